/* The mirror of a relay: the client's agent, made of a connection of bytes. */
#include "backends/agent/far_priv.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define PACKETS_PER_TURN 64
#define PIECES_PER_TURN 64

/* ---- references ---- */

void far_ref(struct far *f)
{
    (void)atomic_fetch_add(&f->refs, 1);
}

void far_unref(struct far *f)
{
    if (atomic_fetch_sub(&f->refs, 1) == 1) {
        sg_pipe_unref(f->o.in);
        sg_pipe_unref(f->o.out);
        sg_agent_unref(f->agent);
        free(f->spool);
        free(f);
    }
}

void far_wake(struct far *f)
{
    if (!atomic_exchange(&f->posted, true)) {
        far_ref(f);
        sg_reactor_post(f->reactor, &f->task);
    }
}

static void ref(void *arg)
{
    far_ref(arg);
}

static void unref(void *arg)
{
    far_unref(arg);
}

static void wake(void *arg)
{
    far_wake(arg);
}

/* ---- the end ---- */

static void finish(struct far *f)
{
    struct far_call *k, *next_call;
    struct far_parcel *p, *next;
    f->over = true;
    sg_watch_del(f->reactor, &f->sock);
    sg_watch_del(f->reactor, &f->news);
    sg_pipe_set_reader(f->o.in, NULL);
    sg_pipe_set_writer(f->o.out, NULL);
    sg_pipe_stop(f->o.in);
    sg_pipe_close(f->o.out);
    sg_mux_free(f->mux);
    HASH_ITER(hh, f->calls, k, next_call)
    {
        far_call_free(f, k);
    }
    DL_FOREACH_SAFE(f->parcels, p, next)
    {
        far_parcel_free(f, p);
    }
    sg_agent_post_finish(&f->client);
    f->client.sock = sg_close(f->client.sock);
    if (f->o.closed != NULL)
        f->o.closed(f->o.arg);
    unref(f);
}

void far_end(struct far *f, const char *reason, const char *what)
{
    if (!f->over) {
        sg_agent_lose(f->agent, reason, what);
        finish(f);
    }
}

/* ---- turns ---- */

/* What is in the pipe is over: why? */
static void input_over(struct far *f, ssize_t n)
{
    struct sg_error err = {0};
    if (n < 0)
        sg_pipe_error(f->o.in, &err);
    else
        sg_error_set(&err, SG_PROVIDER_FAILED, "its relay has ended");
    if (f->o.explain != NULL)
        f->o.explain(f->o.arg, &err);
    far_end(f, SG_AGENT_RELAY_GONE, err.message);
    sg_error_clear(&err);
}

/* -1: it is no sense, and the end. */
static int take_piece(struct far *f, const void *data, size_t len, size_t *used)
{
    struct sg_error err = {0};
    const void *piece = data;
    size_t piece_len = len;
    ssize_t n = (ssize_t)len;
    if (f->o.unwrap != NULL)
        n = f->o.unwrap(f->o.arg, data, len, &piece, &piece_len, &err);
    if (n < 0 || sg_mux_feed(f->mux, piece, piece_len) < 0) {
        far_end(f, "agent_protocol", n < 0 ? err.message : "its relay broke the protocol");
        sg_error_clear(&err);
        return -1;
    }
    *used = (size_t)n;
    return 0;
}

/* True: there may be more. While the client takes nothing, nothing is read. */
static bool hear_relay(struct far *f)
{
    for (int i = 0; i < PIECES_PER_TURN && f->client.first == NULL; i++) {
        const void *data;
        size_t used = 0;
        ssize_t n = sg_pipe_peek(f->o.in, &data);
        if (n == -EAGAIN)
            return false;
        if (n <= 0) {
            input_over(f, n);
            return false;
        }
        if (take_piece(f, data, (size_t)n, &used) < 0)
            return false;
        sg_pipe_consume(f->o.in, used);
    }
    return f->client.first == NULL;
}

static bool too_much(const struct far *f)
{
    size_t len;
    (void)sg_mux_out(f->mux, &len);
    return len >= SG_MUX_OUT_HIGH || f->n_parcels >= FAR_PARCELS_MAX;
}

/* True: there may be more. */
static bool hear_client(struct far *f)
{
    unsigned char data[SG_AGENT_REQUEST_MAX];
    int fds[SG_AGENT_FDS_MAX];
    unsigned n;
    for (int i = 0; i < PACKETS_PER_TURN && !too_much(f); i++) {
        ssize_t len = sg_agent_receive(f->client.sock, data, sizeof data, fds, &n);
        if (len == -EAGAIN)
            return false;
        if (len <= 0) {
            finish(f); /* the client has ended, and so does the relay */
            return false;
        }
        if (far_ask(f, data, (size_t)len, fds, n) < 0) {
            far_end(f, "agent_protocol", "a request cannot be relayed");
            return false;
        }
    }
    return !too_much(f);
}

static void flush_relay(struct far *f)
{
    size_t len;
    f->full = false;
    for (const char *p = sg_mux_out(f->mux, &len); len > 0 && !f->full; p = sg_mux_out(f->mux, &len)) {
        ssize_t n = sg_pipe_write(f->o.out, p, len);
        f->full = n <= 0; /* when nobody reads any more, the other pipe says why */
        sg_mux_went(f->mux, n > 0 ? (size_t)n : 0);
    }
}

static void watch_client(struct far *f)
{
    sg_watch_mod(f->reactor, &f->sock, (too_much(f) ? 0U : EPOLLIN) | (f->client.first != NULL ? EPOLLOUT : 0U));
}

static void turn(struct far *f)
{
    (void)sg_agent_post_flush(&f->client); /* a client that is gone is heard of below */
    bool more = hear_relay(f);
    if (!f->over)
        more = hear_client(f) || more;
    if (f->over)
        return;
    flush_relay(f);
    bool left = sg_mux_turn(f->mux);
    flush_relay(f);
    if (f->crowded || sg_mux_broken(f->mux)) {
        far_end(f, "agent_protocol", "too much goes on in it at the same time");
        return;
    }
    more = more || (left && !f->full);
    watch_client(f);
    if (more)
        wake(f);
}

static void run(struct sg_task *t)
{
    struct far *f = sg_container_of(t, struct far, task);
    atomic_store(&f->posted, false);
    if (!f->over)
        turn(f);
    unref(f);
}

static void client_ready(struct sg_watch *w, uint32_t events)
{
    struct far *f = sg_container_of(w, struct far, sock);
    ref(f);
    if ((events & (EPOLLHUP | EPOLLERR)) != 0 && (w->events & EPOLLIN) == 0)
        finish(f); /* else it is read first */
    else
        turn(f);
    unref(f);
}

static void channels_ready(struct sg_watch *w, uint32_t events)
{
    struct far *f = sg_container_of(w, struct far, news);
    (void)events;
    ref(f);
    turn(f);
    unref(f);
}

/* ---- start ---- */

/* The rest is done with the pieces that whoever asked gave. */
static void gone(void *arg, struct sg_mux_channel *c)
{
    (void)arg;
    (void)c;
}

static struct far *far_new(const struct sg_agent_far *o, struct sg_reactor *reactor, int sock)
{
    static const struct sg_mux_ops ops = {.packet = far_packet, .oom = far_oom, .received = far_received, .sent = far_sent, .moved = far_moved, .gone = gone};
    struct far *f = sg_xcalloc(1, sizeof *f);
    atomic_init(&f->refs, 1);
    f->o = *o;
    f->o.in = sg_pipe_ref(o->in);
    f->o.out = sg_pipe_ref(o->out);
    f->spool = sg_xstrdup(o->spool);
    f->reactor = reactor;
    f->client.sock = sock;
    f->task.run = run;
    f->mux = sg_mux_new(&ops, f);
    f->sock = (struct sg_watch){.ready = client_ready, .fd = sock};
    f->news = (struct sg_watch){.ready = channels_ready, .fd = f->mux != NULL ? sg_mux_fd(f->mux) : -1};
    return f;
}

int sg_agent_new_far(const struct sg_agent_far *far, const struct sg_agent_options *o, struct sg_agent **ret, struct sg_error *err)
{
    int ends[2];
    struct sg_agent_options own = *o;
    own.far = true;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) < 0)
        return sg_error_sys(err, SG_OVERLOADED, errno, "cannot make a connection to an agent");
    struct far *f = far_new(far, o->reactor, ends[1]);
    bool fine = f->mux != NULL && sg_watch_add(f->reactor, &f->sock, EPOLLIN, err) == 0 && sg_watch_add(f->reactor, &f->news, EPOLLIN, err) == 0;
    if (!fine && f->mux == NULL)
        sg_error_set(err, SG_OVERLOADED, "cannot make a connection to an agent");
    if (!fine || sg_agent_new(ends[0], &own, ret, err) < 0) {
        if (!fine)
            (void)sg_close(ends[0]);
        f->o.closed = NULL;
        finish(f);
        return -1;
    }
    f->agent = sg_agent_ref(*ret);
    const struct sg_waker w = {.wake = wake, .ref = ref, .unref = unref, .arg = f};
    sg_pipe_set_reader(f->o.in, &w);
    sg_pipe_set_writer(f->o.out, &w);
    return 0;
}
