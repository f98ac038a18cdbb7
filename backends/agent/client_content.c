/* What is wanted of a file that is far away, on its way into a pipe: within the credit of its channel, as
 * fast as it is read. */
#include "backends/agent/client_priv.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

#define PIPE_BYTES ((size_t)256 * 1024)
#define CHUNK ((size_t)64 * 1024)
#define CHUNKS_PER_TURN 4
#define SILENCE_MS 60000 /* nothing comes although there is room for it */

struct content {
    struct sg_file_content base; /* first */
    atomic_int refs;             /* whoever has it; while it is sent: that; the waker's, the task's */
    struct sg_agent *agent;
    struct sg_pipe *pipe; /* once it is wanted */
    struct sg_agent_wanted wanted;
    struct sg_task task;
    atomic_bool posted;

    /* reactor thread */
    struct sg_watch watch;
    struct sg_timer silence;
    bool begun, over;
    uint64_t left;
};

static void content_ref(void *arg)
{
    (void)atomic_fetch_add(&((struct content *)arg)->refs, 1);
}

static void content_unref(void *arg)
{
    struct content *c = arg;
    if (atomic_fetch_sub(&c->refs, 1) > 1)
        return;
    (void)sg_close(c->watch.fd);
    sg_pipe_unref(c->pipe);
    sg_agent_unref(c->agent);
    free(c);
}

static void wake(void *arg)
{
    struct content *c = arg;
    if (!atomic_exchange(&c->posted, true)) {
        content_ref(c);
        sg_reactor_post(c->agent->reactor, &c->task);
    }
}

/* why NULL: all has come, or nobody wants more. */
static void finish(struct content *c, const char *why)
{
    struct sg_error err = {0};
    if (c->over)
        return;
    c->over = true;
    sg_pipe_set_writer(c->pipe, NULL);
    sg_watch_del(c->agent->reactor, &c->watch);
    sg_timer_cancel(c->agent->reactor, &c->silence);
    c->watch.fd = sg_close(c->watch.fd);
    if (why != NULL) {
        sg_error_set(&err, SG_SANDBOX_LOST, "the rest of the file does not come: %s", why);
        sg_pipe_fail(c->pipe, &err);
        sg_error_clear(&err);
    } else {
        sg_pipe_close(c->pipe);
    }
    content_unref(c);
}

static void silent(struct sg_timer *t)
{
    finish(sg_container_of(t, struct content, silence), "nothing is heard of it");
}

/* Waits for more of it, or for room. */
static void want(struct content *c, bool more)
{
    struct sg_reactor *r = c->agent->reactor;
    sg_timer_cancel(r, &c->silence);
    if (!more) {
        sg_watch_del(r, &c->watch);
        return;
    }
    sg_timer_set(r, &c->silence, sg_now_ms() + SILENCE_MS);
    if (!c->watch.added && sg_watch_add(r, &c->watch, EPOLLIN, NULL) < 0)
        finish(c, "this server is out of memory");
}

static void pump(struct content *c)
{
    for (int i = 0; i < CHUNKS_PER_TURN && !c->over; i++) {
        ssize_t n = sg_pipe_write_from(c->pipe, c->watch.fd, c->left < CHUNK ? (size_t)c->left : CHUNK);
        if (n > 0)
            c->left -= (uint64_t)n;
        if (n == -EPIPE || c->left == 0) {
            finish(c, NULL);
        } else if (n == -EAGAIN || n == -ENOBUFS) {
            want(c, n == -EAGAIN);
            return;
        } else if (n <= 0) {
            finish(c, n == 0 ? "it has become shorter, or the way to it broke" : "it cannot be read");
        }
    }
    if (!c->over)
        want(c, true);
}

static void ready(struct sg_watch *w, uint32_t events)
{
    (void)events;
    struct content *c = sg_container_of(w, struct content, watch);
    content_ref(c);
    pump(c);
    content_unref(c);
}

static void begin(struct content *c)
{
    const struct sg_waker w = {.wake = wake, .ref = content_ref, .unref = content_unref, .arg = c};
    c->begun = true;
    if (send(c->watch.fd, &c->wanted, sizeof c->wanted, MSG_NOSIGNAL) != (ssize_t)sizeof c->wanted ||
        shutdown(c->watch.fd, SHUT_WR) != 0)
        finish(c, "the way to it broke");
    else
        sg_pipe_set_writer(c->pipe, &w); /* calls it at once */
}

static void work(struct sg_task *t)
{
    struct content *c = sg_container_of(t, struct content, task);
    atomic_store(&c->posted, false);
    if (!c->begun)
        begin(c);
    else
        pump(c);
    content_unref(c);
}

static struct sg_pipe *content_send(struct sg_file_content *base, uint64_t first, uint64_t len)
{
    struct content *c = (struct content *)base;
    c->pipe = sg_pipe_new(PIPE_BYTES);
    struct sg_pipe *ret = sg_pipe_ref(c->pipe);
    if (len == 0) {
        sg_pipe_close(c->pipe);
        return ret;
    }
    c->wanted = (struct sg_agent_wanted){.first = first, .len = len};
    c->left = len;
    content_ref(c);
    wake(c);
    return ret;
}

static void content_close(struct sg_file_content *base)
{
    content_unref(base);
}

struct sg_file_content *sg_agent_content_new(struct sg_agent *a, int fd)
{
    static const struct sg_file_content_ops ops = {.send = content_send, .close = content_close};
    struct content *c = sg_xcalloc(1, sizeof *c);
    c->base.ops = &ops;
    atomic_init(&c->refs, 1);
    atomic_init(&c->posted, false);
    c->agent = sg_agent_ref(a);
    c->watch = (struct sg_watch){.ready = ready, .fd = fd};
    c->silence.fire = silent;
    c->task.run = work;
    return &c->base;
}
