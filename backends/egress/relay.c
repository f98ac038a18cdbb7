/* Bytes between a sandbox and the server it may talk to. */
#include "backends/egress/proxy_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"

/* At most so much in a turn, then others are served. */
#define TURN_BYTES ((size_t)256 * 1024)
#define IDLE_MS (10 * 60 * 1000)
/* One side has ended and the other does not. */
#define HALF_IDLE_MS (60 * 1000)
#define LINGER_MS 1000
#define LINGER_BYTES ((size_t)256 * 1024)

static size_t pending(const struct conn *c, const struct way *w)
{
    return w->len + (w == &c->up ? c->out.len : 0);
}

/* How many of n bytes from the client belong to the request; the way has ended behind its body. -1: malformed. */
static ssize_t take_body(struct conn *c, const char *data, size_t n)
{
    bool done = false;
    if (c->head.connect) {
        return (ssize_t)n;
    }
    if (c->head.body == SG_EGRESS_BODY_CHUNKED) {
        ssize_t took = sg_egress_chunks_feed(&c->chunks, data, n, &done);
        c->up.eof = c->up.ended = done;
        return took;
    }
    n = n < c->left ? n : (size_t)c->left;
    c->left -= n;
    c->up.eof = c->up.ended = c->left == 0;
    return (ssize_t)n;
}

/* ---- one direction ---- */

/* 1: read something, 0: not now, -1: over. */
static int fill(struct conn *c, struct way *w)
{
    ssize_t n = recv(w->from->fd, w->buf, WAY_BYTES, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return 0;
    }
    if (n < 0 && w == &c->up) {
        return -1; /* nobody is there to hear an answer */
    }
    if (n <= 0) {
        w->eof = true;
        return 1;
    }
    ssize_t took = w == &c->up ? take_body(c, w->buf, (size_t)n) : n;
    if (took < 0) {
        return -1;
    }
    c->heard = c->heard || w == &c->down;
    w->off = 0;
    w->len = (size_t)took;
    atomic_fetch_add(w == &c->up ? &c->p->a.counters->bytes_out : &c->p->a.counters->bytes_in, (uint64_t)took);
    return 1;
}

/* 1: everything is sent, 0: not now, -1: nobody takes it. */
static int flush(struct conn *c, struct way *w, size_t *sent)
{
    while (pending(c, w) > 0) {
        bool head = w == &c->up && c->out.len > 0;
        ssize_t n = head ? send(w->to->fd, c->out.data, c->out.len, MSG_NOSIGNAL)
                         : send(w->to->fd, w->buf + w->off, w->len, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            return 0;
        }
        if (n < 0) {
            return -1;
        }
        *sent += (size_t)n;
        if (head) {
            sg_buf_consume(&c->out, (size_t)n);
        } else {
            w->off += (size_t)n;
            w->len -= (size_t)n;
        }
    }
    return 1;
}

/* False: the connection is over. */
static bool move(struct conn *c, struct way *w)
{
    for (size_t sent = 0;;) {
        int r = flush(c, w, &sent);
        if (r < 0 && w == &c->down) {
            return false;
        }
        if (r < 0) { /* the server may have answered before it stopped to listen */
            w->len = 0;
            sg_buf_consume(&c->out, c->out.len);
            w->eof = w->ended = true;
        }
        if (r == 0) {
            break;
        }
        if (w->eof) {
            if (!w->ended && (c->head.connect || w == &c->up)) { /* an answer may still have to take its place */
                (void)shutdown(w->to->fd, SHUT_WR);
                w->ended = true;
            }
            break;
        }
        r = sent < TURN_BYTES ? fill(c, w) : 0; /* what is left comes as an event again; what has been read goes on, its end, too */
        if (r < 0) {
            return false;
        }
        if (r == 0) {
            break;
        }
        c->active_ms = sg_now_ms();
    }
    return true;
}

/* ---- both ---- */

/* Silence is a watch that is not there: hang-ups would come again and again. */
static bool want(struct conn *c, struct sg_watch *w, uint32_t events)
{
    if (events == 0) {
        sg_watch_del(c->e->reactor, w);
    } else if (!w->added) {
        return sg_watch_add(c->e->reactor, w, events, NULL) == 0;
    } else if (w->events != events) {
        sg_watch_mod(c->e->reactor, w, events);
    }
    return true;
}

static uint32_t reads(const struct conn *c, const struct way *w)
{
    return !w->eof && pending(c, w) == 0 ? EPOLLIN : 0;
}

static uint32_t writes(const struct conn *c, const struct way *w)
{
    return pending(c, w) > 0 ? EPOLLOUT : 0;
}

void relay_ready(struct conn *c)
{
    if (!move(c, &c->up) || !move(c, &c->down)) {
        conn_end(c);
        return;
    }
    bool answered = c->down.eof && c->down.len == 0;
    if (answered && !c->head.connect && !c->heard) {
        conn_answer(c, SG_EGRESS_UNREACHABLE, "the connection was closed without an answer");
        return;
    }
    if (answered && !c->head.connect) {
        relay_linger(c);
        return;
    }
    if ((answered && c->up.ended) || !want(c, &c->client, reads(c, &c->up) | writes(c, &c->down)) ||
        !want(c, &c->server, reads(c, &c->down) | writes(c, &c->up))) {
        conn_end(c);
    }
}

static int64_t idle_ms(const struct conn *c)
{
    return c->head.connect && (c->up.eof || c->down.eof) ? HALF_IDLE_MS : IDLE_MS;
}

void relay_timer(struct conn *c)
{
    int64_t due = c->active_ms + idle_ms(c);
    if (sg_now_ms() >= due && !c->head.connect && !c->heard) {
        conn_answer(c, SG_EGRESS_TIMED_OUT, "no answer came");
    } else if (sg_now_ms() >= due) {
        conn_end(c);
    } else {
        int64_t look = sg_now_ms() + HALF_IDLE_MS;
        sg_timer_set(c->e->reactor, &c->timer, due < look ? due : look);
    }
}

void relay_start(struct conn *c)
{
    static const char established[] = "HTTP/1.1 200 Connection established\r\n\r\n";
    c->state = CONN_RELAY;
    c->active_ms = sg_now_ms();
    c->up.to = &c->server;
    c->down.from = &c->server;
    c->down.buf = sg_xcalloc(1, WAY_BYTES);
    c->left = c->head.length;
    if (c->head.connect) {
        memcpy(c->down.buf, established, sizeof established - 1);
        c->down.len = sizeof established - 1;
    }
    ssize_t took = take_body(c, c->up.buf + c->up.off, c->up.len); /* what came with the head */
    if (took < 0) {
        conn_end(c);
        return;
    }
    c->up.len = (size_t)took;
    atomic_fetch_add(&c->p->a.counters->bytes_out, (uint64_t)took);
    relay_timer(c);
    relay_ready(c);
}

/* ---- the end of a conversation ---- */

/* Closing with something unread makes the kernel throw away what the client has not read either. */
void relay_linger_ready(struct conn *c)
{
    char nowhere[4096];
    size_t sent = 0;
    int r = flush(c, &c->down, &sent);
    if (r == 1 && !c->down.ended) {
        (void)shutdown(c->client.fd, SHUT_WR);
        c->down.ended = true;
    }
    ssize_t n = 1;
    while (r >= 0 && n > 0 && c->lingered <= LINGER_BYTES) {
        n = recv(c->client.fd, nowhere, sizeof nowhere, 0);
        c->lingered += n > 0 ? (size_t)n : 0;
    }
    bool more = n < 0 && (errno == EAGAIN || errno == EINTR);
    if (r < 0 || !more || !want(c, &c->client, EPOLLIN | (r == 0 ? EPOLLOUT : 0))) {
        conn_end(c);
    }
}

void relay_linger(struct conn *c)
{
    c->state = CONN_LINGER;
    sg_watch_del(c->e->reactor, &c->server);
    c->server.fd = sg_close(c->server.fd);
    sg_timer_set(c->e->reactor, &c->timer, sg_now_ms() + LINGER_MS);
    relay_linger_ready(c);
}
