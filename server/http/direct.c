/* Answers of unknown length written straight to their socket, by the reactor.
 *
 * The parser library takes what it sends from a part of the connection's small memory, in pieces of some 20 KiB, each of which costs
 * turns of its event loop; and what is sent mostly comes from the reactor, so that each piece would wake another thread. But while its
 * content reader runs, or the request is suspended, the library has nothing left to send (the head is out before the reader is first
 * called) and leaves the socket alone. So the reader sends what there is, suspends the request for the rest of the answer, and whole
 * chunks (to HTTP/1.0 bare bytes) are written here whenever the source or the socket says so. At the end the request is resumed, and
 * the library adds the last chunk and the trailers, or closes. Clients that stop reading find the same patience as with the library.
 *
 * One thread at a time pumps: the daemon's, until the request is handed over, then the reactor's. Whoever completes the request while
 * that one is busy leaves the source to it.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>

#include "http/request_priv.h"

/* Of one chunk with its frame. The first is small, as most are; who fills it gets a larger one, who falls silent gives it back. */
#define BUFFER_MIN ((size_t)16 * 1024)
#define BUFFER_MAX ((size_t)128 * 1024)
/* Bytes until others have their turn. */
#define TURN ((size_t)256 * 1024)
#define HEAD_MAX 10 /* eight hexadecimal digits and a line's end */
#define TAIL 2

enum { MORE = 1 }; /* the turn is over */

struct sg_direct {
    struct sg_request *r; /* whose part it is */
    struct sg_task task;
    bool bare; /* without frames */
    /* Under the request's lock: */
    bool busy;     /* a thread is pumping */
    bool again;    /* something came meanwhile */
    bool handed;   /* to the reactor */
    bool posted;   /* the task is, with a reference */
    bool over;     /* nothing more is sent, */
    ssize_t result; /* because of this, as sg_direct_read() */
    /* The pumping thread's: */
    char *data;
    size_t size;    /* allocated; 0: not now */
    size_t next;    /* size of the next one */
    size_t at, end; /* what is still to be sent */
    bool stalled;   /* the connection has a deadline for taking more */
};

static void turn(struct sg_task *t);

struct sg_direct *sg_direct_new(struct sg_request *r)
{
    sg_conn_wait(r->conn, r);
    if (!sg_conn_is_watched(r->conn))
        return NULL;
    struct sg_direct *d = sg_xcalloc(1, sizeof *d);
    d->r = r;
    d->bare = sg_streq(r->version, "HTTP/1.0");
    d->task.run = turn;
    d->next = BUFFER_MIN;
    return d;
}

static void release(struct sg_direct *d)
{
    free(d->data);
    d->data = NULL;
    d->size = d->at = d->end = 0;
}

struct sg_direct *sg_direct_free(struct sg_direct *d)
{
    if (d)
        release(d);
    free(d);
    return NULL;
}

/* ---- pumping ---- */

/* 1: all is out; 0: the socket is full, the connection's watch will say when it takes more; -1: the client is gone. */
static int push(struct sg_request *r, struct sg_direct *d)
{
    while (d->at < d->end) {
        ssize_t n = send(r->conn->watch.fd, d->data + d->at, d->end - d->at, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN)
            return -1;
        if (n < 0) {
            if (!d->stalled)
                sg_conn_deadline(r->conn, r->http->cfg.stall_ms);
            d->stalled = true;
            sg_conn_want_room(r->conn);
            return 0;
        }
        if (d->stalled)
            sg_conn_deadline(r->conn, 0);
        d->stalled = false;
        d->at += (size_t)n;
    }
    return 1;
}

/* Around the n bytes in the buffer. */
static void frame(struct sg_direct *d, size_t n)
{
    char head[HEAD_MAX + 1];
    int len = d->bare ? 0 : snprintf(head, sizeof head, "%zx\r\n", n);

    d->at = HEAD_MAX - (size_t)len;
    d->end = HEAD_MAX + n;
    memcpy(d->data + d->at, head, (size_t)len);
    if (d->bare)
        return;
    memcpy(d->data + d->end, "\r\n", TAIL);
    d->end += TAIL;
}

/* Fills the buffer with a chunk; as the source's read. */
static ssize_t fill(struct sg_request *r, struct sg_direct *d)
{
    const struct sg_body_source *s = &r->answer.source;

    if (d->size < d->next) {
        release(d);
        d->data = malloc(d->next);
        if (!d->data)
            return -ENOMEM;
        d->size = d->next;
    }
    size_t room = d->size - HEAD_MAX - TAIL;
    ssize_t n = s->read(s->arg, d->data + HEAD_MAX, room);
    if (n <= 0) {
        release(d);
        d->next = BUFFER_MIN;
        return n;
    }
    frame(d, (size_t)n);
    if ((size_t)n > room / 2)
        d->next = d->size < BUFFER_MAX ? d->size * 2 : BUFFER_MAX;
    r->bytes_out += (uint64_t)n;
    return n;
}

/* 0: the end; MORE; -EAGAIN: the waker will be called; else it is over before its time. */
static ssize_t pump(struct sg_request *r, struct sg_direct *d)
{
    for (size_t moved = 0; moved < TURN; moved += d->end) {
        ssize_t n = sg_req_is_gone(r) ? -EPIPE : d->at < d->end ? 1 : fill(r, d);
        if (n <= 0)
            return n;
        int out = push(r, d);
        if (out <= 0)
            return out == 0 ? -EAGAIN : -EPIPE;
    }
    return MORE;
}

/* ---- whose turn it is ---- */

/* The request is locked. */
static void post(struct sg_request *r, struct sg_direct *d)
{
    if (d->posted)
        return;
    d->posted = true;
    sg_req_get(r);
    sg_reactor_post(r->http->cfg.reactor, &d->task);
}

void sg_direct_wake(struct sg_request *r)
{
    struct sg_direct *d = r->direct;

    pthread_mutex_lock(&r->lock);
    if (d->busy || !d->handed)
        d->again = true;
    else if (r->mhd && !d->over)
        post(r, d);
    pthread_mutex_unlock(&r->lock);
}

/* The request is locked. May this thread pump now? */
static bool begin(struct sg_request *r, struct sg_direct *d, bool handed)
{
    if (!r->mhd || d->over || d->busy || d->handed != handed)
        return false;
    d->busy = true;
    d->again = false;
    return true;
}

/* The request is locked; n is what pump() said. */
static void end(struct sg_request *r, struct sg_direct *d, ssize_t n)
{
    d->busy = false;
    d->handed = true;
    if (n == MORE || (n == -EAGAIN && d->again)) {
        post(r, d);
    } else if (n != -EAGAIN) {
        d->over = true;
        d->result = n;
        sg_req_wake_locked(r);
    }
}

/* Reactor. */
static void turn(struct sg_task *t)
{
    struct sg_direct *d = sg_container_of(t, struct sg_direct, task);
    struct sg_request *r = d->r;

    pthread_mutex_lock(&r->lock);
    d->posted = false;
    bool mine = begin(r, d, true);
    pthread_mutex_unlock(&r->lock);
    ssize_t n = mine ? pump(r, d) : 0;
    pthread_mutex_lock(&r->lock);
    if (mine)
        end(r, d, n);
    bool left = mine && !r->mhd;
    pthread_mutex_unlock(&r->lock);
    if (left)
        sg_answer_close_source(&r->answer);
    sg_req_put(r);
}

bool sg_direct_is_busy(const struct sg_request *r)
{
    return r->direct && r->direct->busy;
}

ssize_t sg_direct_read(struct sg_request *r)
{
    struct sg_direct *d = r->direct;

    for (;;) {
        pthread_mutex_lock(&r->lock);
        bool mine = begin(r, d, false);
        bool over = d->over;
        ssize_t result = d->result;
        pthread_mutex_unlock(&r->lock);
        if (over || (!mine && sg_req_is_gone(r)))
            return over ? result : -EPIPE;
        if (mine) {
            ssize_t n = pump(r, d);
            pthread_mutex_lock(&r->lock);
            end(r, d, n);
            pthread_mutex_unlock(&r->lock);
        }
        int s = sg_req_suspend(r);
        if (s != 0)
            return s < 0 ? -EPIPE : -EAGAIN;
    }
}
