/* After 101: bytes go both ways between the client's socket and the server's, whatever they mean. */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "http/upstream_priv.h"

#define FLOW_BYTES 32768U
/* After so many bytes one direction lets the others have their turn. */
#define TURN_BYTES ((size_t)512 * 1024)
/* How long a client that goes on sending to a server that is gone may take to see the end of what that said. */
#define LINGER_MS 5000

/* One direction. Its buffer exists only while bytes wait in it. */
struct flow {
    char *data;
    size_t cap, off, len; /* len bytes from off wait to be sent */
    int from, to;
    bool ready;  /* `from` may have more */
    bool eof;    /* it has ended */
    bool sink;   /* `to` takes no more: what comes is thrown away */
    bool passed; /* the end was passed on */
};

struct sg_upstream_tunnel {
    struct sg_up_exchange *x;
    struct flow up, down; /* to the server, to the client */
    struct sg_watch client;
    uint32_t asked;
    struct sg_task join_task;
    bool joined; /* reactor: the client's side is known */
    bool broken; /* the client is gone */
    int64_t moved_ms;
    void (*closed)(void *arg);
    void *closed_arg;
};

/* ---- one direction ---- */

static void flow_stop(struct flow *f)
{
    f->sink = true;
    f->len = 0;
}

static void flow_receive(struct sg_upstream_tunnel *t, struct flow *f)
{
    if (f->data == NULL) {
        f->cap = FLOW_BYTES;
        f->data = malloc(f->cap);
        t->broken = f->data == NULL;
        if (t->broken)
            return;
    }
    ssize_t n;
    do
        n = recv(f->from, f->data, f->cap, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    f->off = 0;
    if (n > 0) {
        f->len = f->sink ? 0 : (size_t)n;
        f->ready = (size_t)n == f->cap;
        return;
    }
    f->ready = false;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return;
    f->eof = true;
    if (n < 0 && f == &t->up)
        t->broken = true;
    else if (n < 0)
        flow_stop(&t->up);
}

/* > 0 bytes were sent; 0: not now, or never again. */
static size_t flow_send(struct sg_upstream_tunnel *t, struct flow *f)
{
    ssize_t n;
    do
        n = send(f->to, f->data + f->off, f->len, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n >= 0) {
        f->off += (size_t)n;
        f->len -= (size_t)n;
        t->moved_ms = sg_now_ms();
        return (size_t)n;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK)
        return 0;
    flow_stop(f);
    if (f == &t->down)
        t->broken = true;
    return 0;
}

static void flow_move(struct sg_upstream_tunnel *t, struct flow *f)
{
    for (size_t moved = 0; moved < TURN_BYTES && !t->broken;) {
        size_t n = f->len > 0 ? flow_send(t, f) : 0;
        moved += n;
        if (f->len > 0 && n == 0)
            break;
        if (f->len > 0)
            continue;
        if (!f->ready || f->eof)
            break;
        flow_receive(t, f);
        moved++;
    }
    if (f->len == 0) {
        free(f->data);
        f->data = NULL;
    }
    if (f->eof && f->len == 0 && !f->passed) {
        f->passed = true;
        t->moved_ms = sg_now_ms();
        (void)shutdown(f->to, SHUT_WR);
    }
}

/* ---- both ---- */

static uint32_t events_for(const struct flow *from_here, const struct flow *to_here)
{
    bool in = !from_here->eof && from_here->len == 0;
    return (in ? (uint32_t)EPOLLIN : 0U) | (to_here->len > 0 ? (uint32_t)EPOLLOUT : 0U);
}

static void ask_client(struct sg_upstream_tunnel *t)
{
    uint32_t want = events_for(&t->up, &t->down);
    struct sg_reactor *r = t->x->hub->reactor;
    if (!t->client.added && want != 0)
        (void)sg_watch_add(r, &t->client, want, NULL); /* it was in the set before */
    else if (t->asked != want)
        sg_watch_mod(r, &t->client, want);
    t->asked = want;
}

/* An idle tunnel is left alone; where bytes wait, or one side has ended, something must move. */
static int64_t deadline(const struct sg_upstream_tunnel *t)
{
    const struct sg_upstream_config *config = sg_up_config(t->x->hub);
    if (t->down.passed && t->up.sink)
        return t->moved_ms + LINGER_MS;
    bool waits = !t->joined || t->up.len > 0 || t->down.len > 0 || t->up.eof || t->down.eof;
    return waits ? t->moved_ms + config->stall_ms : INT64_MAX;
}

void sg_up_tunnel_move(struct sg_up_exchange *x)
{
    struct sg_upstream_tunnel *t = x->tunnel;
    if (x->read_ready)
        t->down.ready = true;
    x->read_ready = false;
    if (t->joined) {
        flow_move(t, &t->up);
        flow_move(t, &t->down);
        if (t->broken || (t->up.passed && t->down.passed)) {
            sg_up_end(x, false);
            x->sink.ended(x->sink.arg);
            return;
        }
        ask_client(t);
    }
    uint32_t want = t->joined ? events_for(&t->down, &t->up) : 0;
    x->pipe_full = (want & EPOLLIN) == 0;
    x->send_blocked = (want & EPOLLOUT) != 0;
    x->deadline = deadline(t);
}

static void client_ready(struct sg_watch *w, uint32_t events)
{
    struct sg_upstream_tunnel *t = sg_container_of(w, struct sg_upstream_tunnel, client);
    struct sg_up_exchange *x = sg_up_exchange_ref(t->x);
    bool hung_up = (events & (EPOLLHUP | EPOLLERR)) != 0;
    if (hung_up && (t->asked & EPOLLIN) == 0) /* it would be told over and over until there is room */
        sg_watch_del(x->hub->reactor, &t->client);
    if (events & EPOLLIN || hung_up)
        t->up.ready = true;
    sg_up_run(x);
    sg_up_exchange_unref(x);
}

/* ---- its life ---- */

static void tunnel_joined(struct sg_task *task)
{
    struct sg_upstream_tunnel *t = sg_container_of(task, struct sg_upstream_tunnel, join_task);
    struct sg_up_exchange *x = t->x;
    if (x->ended) {
        t->closed(t->closed_arg);
    } else {
        struct sg_error err = {0};
        t->joined = true;
        t->up.from = t->down.to = t->client.fd;
        t->down.from = t->up.to = x->conn->fd;
        t->down.ready = true;
        t->moved_ms = sg_now_ms();
        t->asked = EPOLLIN;
        if (sg_watch_add(x->hub->reactor, &t->client, EPOLLIN, &err) < 0)
            sg_up_fail(x, &err);
        sg_error_clear(&err);
        sg_up_run(x);
    }
    sg_up_exchange_unref(x); /* the handle's */
}

struct sg_upstream_tunnel *sg_up_tunnel_new(struct sg_up_exchange *x, size_t head_len)
{
    struct sg_upstream_tunnel *t = sg_xcalloc(1, sizeof *t);
    t->x = x;
    t->client.fd = -1;
    t->client.ready = client_ready;
    t->join_task.run = tunnel_joined;
    t->moved_ms = sg_now_ms();
    t->down = (struct flow){.data = x->in, .cap = SG_H1_HEAD_MAX, .off = head_len, .len = x->in_len - head_len};
    x->in = NULL;
    x->in_off = x->in_len = 0;
    x->tunnel = t;
    sg_up_exchange_ref(x); /* the handle's */
    return t;
}

void sg_up_tunnel_end(struct sg_upstream_tunnel *t)
{
    if (!t->joined)
        return;
    sg_watch_del(t->x->hub->reactor, &t->client);
    t->closed(t->closed_arg);
}

void sg_up_tunnel_free(struct sg_upstream_tunnel *t)
{
    if (t == NULL)
        return;
    free(t->up.data);
    free(t->down.data);
    free(t);
}

void sg_upstream_tunnel_join(struct sg_upstream_tunnel *t, int fd, const void *early, size_t early_len,
                             void (*closed)(void *arg), void *arg)
{
    struct sg_up_exchange *x = t->x;
    t->client.fd = fd;
    t->closed = closed;
    t->closed_arg = arg;
    if (early_len > 0) {
        t->up = (struct flow){.data = sg_xcalloc(1, early_len), .cap = early_len, .len = early_len};
        memcpy(t->up.data, early, early_len);
    }
    t->up.ready = true;
    if (sg_up_post(x->hub, &t->join_task))
        return;
    closed(arg);
    sg_up_exchange_unref(x);
}

void sg_upstream_tunnel_drop(struct sg_upstream_tunnel *t)
{
    struct sg_up_exchange *x = t->x;
    int none = SG_OK;
    atomic_compare_exchange_strong(&x->killed, &none, SG_CANCELLED);
    sg_up_exchange_wake(x);
    sg_up_exchange_unref(x);
}
