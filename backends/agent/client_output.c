/* What a command writes, on its way into the pipes of its caller, and what background children write after it has ended. */
#include "backends/agent/client_exec_priv.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"

#define CHUNK ((size_t)64 * 1024)
#define TTY_BUFFERED ((size_t)16 * 1024) /* what a terminal may hold besides what it says it has */

/* ---- output that nobody wants any more: read slowly, so that background children do not die of SIGPIPE ----
 */

static void close_output(struct sg_agent_output *o)
{
    if (o->x->tty)
        sg_agent_terminal_close(o->x, o->watch.fd);
    else
        sg_close(o->watch.fd);
    o->watch.fd = -1;
}

static void rest_end(struct sg_agent_output *o)
{
    struct sg_agent *a = o->x->agent;
    sg_watch_del(a->reactor, &o->watch);
    sg_timer_cancel(a->reactor, &o->pause);
    close_output(o);
    a->rest--;
    sg_agent_exec_unref(o->x);
}

static void rest_ready(struct sg_watch *w, uint32_t events)
{
    (void)events;
    struct sg_agent_output *o = sg_container_of(w, struct sg_agent_output, watch);
    struct sg_agent *a = o->x->agent;
    char nowhere[SG_AGENT_REST_BYTES];
    ssize_t n = read(w->fd, nowhere, sizeof nowhere);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
        rest_end(o);
        return;
    }
    sg_watch_del(a->reactor, w);
    sg_timer_set(a->reactor, &o->pause, sg_now_ms() + SG_AGENT_REST_PAUSE_MS);
}

static void rest_again(struct sg_timer *t)
{
    struct sg_agent_output *o = sg_container_of(t, struct sg_agent_output, pause);
    if (sg_watch_add(o->x->agent->reactor, &o->watch, EPOLLIN, NULL) < 0)
        rest_end(o);
}

static void rest_start(struct sg_agent_output *o)
{
    struct sg_agent *a = o->x->agent;
    a->rest++;
    o->watch.ready = rest_ready;
    if (a->rest > SG_AGENT_REST_MAX || a->gone)
        rest_end(o);
    else if (!o->watch.added && sg_watch_add(a->reactor, &o->watch, EPOLLIN, NULL) < 0)
        rest_end(o);
    else
        sg_watch_mod(a->reactor, &o->watch, EPOLLIN);
}

/* ---- output ---- */

void sg_agent_output_finish(struct sg_agent_output *o, bool at_end)
{
    struct sg_agent *a = o->x->agent;
    if (o->done)
        return;
    o->done = true;
    sg_pipe_set_writer(o->pipe, NULL);
    sg_pipe_close(o->pipe);
    bool hang_up = o->x->tty && o->x->state >= ENDED;
    if (!at_end && !hang_up) {
        rest_start(o);
        return;
    }
    sg_watch_del(a->reactor, &o->watch);
    close_output(o);
    sg_agent_exec_unref(o->x);
}

/* A watched pipe whose writers are gone is always "ready", so a full sg_pipe means no
 * watch. */
void sg_agent_output_want(struct sg_agent_output *o, bool want)
{
    struct sg_reactor *r = o->x->agent->reactor;
    if (!want)
        sg_watch_del(r, &o->watch);
    else if (!o->watch.added && sg_watch_add(r, &o->watch, EPOLLIN, NULL) < 0)
        sg_agent_output_finish(o, true);
}

void sg_agent_output_pump(struct sg_agent_output *o)
{
    for (int i = 0; i < SG_AGENT_CHUNKS_PER_TURN && !o->done; i++) {
        size_t max = o->limited && o->left < CHUNK ? o->left : CHUNK;
        if (max == 0) {
            sg_agent_output_finish(o, false);
            return;
        }
        ssize_t n = sg_pipe_write_from(o->pipe, o->watch.fd, max);
        if (n > 0) {
            o->left -= o->limited ? (size_t)n : 0;
        } else if (n == -EAGAIN && !o->limited) {
            sg_agent_output_want(o, true);
            return;
        } else if (n == -ENOBUFS) {
            sg_agent_output_want(o, false);
            return;
        } else {
            sg_agent_output_finish(o, n != -EPIPE && n != -EAGAIN);
            return;
        }
    }
    if (!o->done)
        sg_agent_output_want(o, true);
}

static void output_ready(struct sg_watch *w, uint32_t events)
{
    (void)events;
    struct sg_agent_output *o = sg_container_of(w, struct sg_agent_output, watch);
    struct sg_agent_exec *x = sg_agent_exec_ref(o->x);
    sg_agent_output_pump(o);
    sg_agent_exec_turn(x);
    sg_agent_exec_unref(x);
}

static size_t waiting(const struct sg_agent_output *o)
{
    int n = 0;
    return ioctl(o->watch.fd, FIONREAD, &n) < 0 || n < 0 ? 0 : (size_t)n;
}

bool sg_agent_output_waits(const struct sg_agent_output *o)
{
    return !o->done && waiting(o) > 0;
}

void sg_agent_output_limit(struct sg_agent_output *o)
{
    if (o->done || o->limited)
        return;
    o->limited = true;
    o->left = waiting(o) + (o->x->tty ? TTY_BUFFERED : 0);
    sg_agent_output_pump(o);
}

void sg_agent_output_over(struct sg_agent_output *o)
{
    if (o->x->tty && o->done && o->watch.fd >= 0)
        rest_end(o);
}

void sg_agent_output_init(struct sg_agent_output *o, struct sg_agent_exec *x, struct sg_pipe *pipe)
{
    o->x = x;
    o->pipe = pipe;
    o->watch.ready = output_ready;
    o->watch.fd = -1;
    o->pause.fire = rest_again;
}
