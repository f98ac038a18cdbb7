/* One command: its request, its pipes, its end.
 *
 * Everything but kill, signal, release and the wakers of the pipes happens on the reactor thread; those set a
 * bit in `asked` and post the one task. States only move forward: STARTING, RUNNING, ENDED (its own process
 * is gone, output may still be read), OVER (the last callback was made). */
#include "backends/agent/client_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"

#define CHUNK ((size_t)64 * 1024)
#define CHUNKS_PER_TURN 8 /* so that one loud command does not keep the others waiting */

enum state { STARTING, RUNNING, ENDED, OVER };
enum asked { ASKED_PUMP = 1, ASKED_KILL = 2, ASKED_RELEASE = 4 };

struct exec;

/* The reading end of stdout or stderr. */
struct output {
    struct sg_watch watch;
    struct sg_timer pause; /* while throwing away */
    struct exec *x;
    struct sg_pipe *pipe;
    bool done;    /* the pipe has all it gets; fd may live on, thrown away */
    bool limited; /* the grace is over: only `left` bytes more */
    size_t left;
};

struct exec {
    struct sg_exec pub; /* first */
    struct sg_call call;
    atomic_int refs; /* the caller's; the command's until OVER; one per output that is open; the task's; the
                        wakers' */
    struct sg_agent *agent;
    struct sg_exec_sink sink;
    struct sg_agent_tree tree;
    atomic_uint asked;
    atomic_int why; /* enum sg_killed_by of the first kill */
    atomic_bool posted;
    atomic_bool ended; /* for signal() */
    struct sg_task task;

    pthread_mutex_t lock; /* the next two: release() waits for a callback that runs */
    pthread_cond_t idle;
    bool calling, released;

    /* reactor thread */
    enum state state;
    bool kill_sent, freed;
    struct sg_timer timer; /* the command's timeout, then the end of the wait for a killed one */
    struct sg_timer grace;
    struct sg_watch in;
    struct output out, err;
    int64_t start_us, timeout_ms;
    struct sg_exit exit;
};

static const struct sg_exec_ops exec_ops;
static void turn(struct exec *x);

/* ---- references and callbacks ---- */

static struct exec *x_ref(struct exec *x)
{
    atomic_fetch_add(&x->refs, 1);
    return x;
}

static void x_unref(struct exec *x)
{
    if (atomic_fetch_sub(&x->refs, 1) != 1)
        return;
    sg_pipe_unref(x->pub.in);
    sg_pipe_unref(x->pub.out);
    sg_pipe_unref(x->pub.err);
    pthread_mutex_destroy(&x->lock);
    pthread_cond_destroy(&x->idle);
    sg_agent_unref(x->agent);
    free(x);
}

static void ref_arg(void *arg)
{
    x_ref(arg);
}

static void unref_arg(void *arg)
{
    x_unref(arg);
}

static void post(struct exec *x, unsigned what)
{
    atomic_fetch_or(&x->asked, what);
    if (!atomic_exchange(&x->posted, true)) {
        x_ref(x);
        sg_reactor_post(x->agent->reactor, &x->task);
    }
}

static void wake(void *arg)
{
    post(arg, ASKED_PUMP);
}

/* True: the caller is there and will not leave until callback_end(). */
static bool callback_begin(struct exec *x)
{
    pthread_mutex_lock(&x->lock);
    x->calling = !x->released;
    pthread_mutex_unlock(&x->lock);
    return x->calling;
}

static void callback_end(struct exec *x)
{
    pthread_mutex_lock(&x->lock);
    x->calling = false;
    pthread_cond_broadcast(&x->idle);
    pthread_mutex_unlock(&x->lock);
}

/* ---- standard input ---- */

static void close_in(struct exec *x)
{
    if (x->in.fd < 0)
        return;
    sg_watch_del(x->agent->reactor, &x->in);
    x->in.fd = sg_close(x->in.fd);
    sg_pipe_set_reader(x->pub.in, NULL);
    sg_pipe_stop(x->pub.in);
}

static void pump_in(struct exec *x)
{
    for (int i = 0; i < CHUNKS_PER_TURN && x->in.fd >= 0; i++) {
        ssize_t n = sg_pipe_read_to(x->pub.in, x->in.fd);
        if (n > 0)
            continue;
        if (n == -EAGAIN || n == -ENOBUFS) {
            /* Without data to write the watch still tells (EPOLLERR) when the command closes its end. */
            sg_watch_mod(x->agent->reactor, &x->in, n == -ENOBUFS ? EPOLLOUT : 0);
            return;
        }
        close_in(x); /* the caller's end of file, or a command that reads no more */
        return;
    }
    if (x->in.fd >= 0)
        sg_watch_mod(x->agent->reactor, &x->in, EPOLLOUT);
}

static void in_ready(struct sg_watch *w, uint32_t events)
{
    struct exec *x = sg_container_of(w, struct exec, in);
    if (events & EPOLLERR)
        close_in(x);
    else
        pump_in(x);
}

/* ---- output that nobody wants any more: read slowly, so that background children do not die of SIGPIPE ----
 */

static void rest_end(struct output *o)
{
    struct sg_agent *a = o->x->agent;
    sg_watch_del(a->reactor, &o->watch);
    sg_timer_cancel(a->reactor, &o->pause);
    o->watch.fd = sg_close(o->watch.fd);
    a->rest--;
    x_unref(o->x);
}

static void rest_ready(struct sg_watch *w, uint32_t events)
{
    (void)events;
    struct output *o = sg_container_of(w, struct output, watch);
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
    struct output *o = sg_container_of(t, struct output, pause);
    if (sg_watch_add(o->x->agent->reactor, &o->watch, EPOLLIN, NULL) < 0)
        rest_end(o);
}

static void rest_start(struct output *o)
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

/* The pipe gets no more; at_end: neither does the descriptor. */
static void finish_output(struct output *o, bool at_end)
{
    struct sg_agent *a = o->x->agent;
    if (o->done)
        return;
    o->done = true;
    sg_pipe_set_writer(o->pipe, NULL);
    sg_pipe_close(o->pipe);
    if (!at_end) {
        rest_start(o);
        return;
    }
    sg_watch_del(a->reactor, &o->watch);
    o->watch.fd = sg_close(o->watch.fd);
    x_unref(o->x);
}

/* Asks for readability. A watched pipe whose writers are gone is always "ready", so a full sg_pipe means no
 * watch. */
static void want_output(struct output *o, bool want)
{
    struct sg_reactor *r = o->x->agent->reactor;
    if (!want)
        sg_watch_del(r, &o->watch);
    else if (!o->watch.added && sg_watch_add(r, &o->watch, EPOLLIN, NULL) < 0)
        finish_output(o, true);
}

static void pump_output(struct output *o)
{
    for (int i = 0; i < CHUNKS_PER_TURN && !o->done; i++) {
        size_t max = o->limited && o->left < CHUNK ? o->left : CHUNK;
        if (max == 0) {
            finish_output(o, false);
            return;
        }
        ssize_t n = sg_pipe_write_from(o->pipe, o->watch.fd, max);
        if (n > 0) {
            o->left -= o->limited ? (size_t)n : 0;
        } else if (n == -EAGAIN && !o->limited) {
            want_output(o, true);
            return;
        } else if (n == -ENOBUFS) {
            want_output(o, false);
            return;
        } else {
            finish_output(o, n != -EPIPE && n != -EAGAIN);
            return;
        }
    }
    if (!o->done)
        want_output(o, true);
}

static void output_ready(struct sg_watch *w, uint32_t events)
{
    (void)events;
    struct output *o = sg_container_of(w, struct output, watch);
    struct exec *x = x_ref(o->x);
    pump_output(o);
    turn(x);
    x_unref(x);
}

/* The grace is over: what is in the kernel's pipe now may still be the command's own, what comes later is
 * not. */
static void limit_output(struct output *o)
{
    int n = 0;
    if (o->done || o->limited)
        return;
    if (ioctl(o->watch.fd, FIONREAD, &n) < 0 || n < 0)
        n = 0;
    o->limited = true;
    o->left = (size_t)n;
    pump_output(o);
}

/* ---- the end ---- */

static void over(struct exec *x)
{
    x->state = OVER;
    atomic_store(&x->ended, true);
    sg_timer_cancel(x->agent->reactor, &x->timer);
    sg_timer_cancel(x->agent->reactor, &x->grace);
    close_in(x);
    sg_agent_call_over(x->agent, &x->call);
}

static void finish_failed(struct exec *x, const struct sg_error *err)
{
    bool nothing_runs = x->state == STARTING || x->agent->gone;
    if (x->state == OVER)
        return;
    over(x);
    sg_pipe_fail(x->pub.out, err);
    sg_pipe_fail(x->pub.err, err);
    finish_output(&x->out, nothing_runs);
    finish_output(&x->err, nothing_runs);
    if (callback_begin(x)) {
        x->sink.failed(x->sink.arg, err);
        callback_end(x);
    }
    x_unref(x);
}

static void free_tree(struct exec *x)
{
    if (x->freed)
        return;
    x->freed = true;
    if (x->tree.free != NULL)
        x->tree.free(x->tree.arg);
}

static void finish_exited(struct exec *x)
{
    over(x);
    if (x->tree.empty != NULL && x->tree.empty(x->tree.arg))
        free_tree(x);
    if (callback_begin(x)) {
        x->sink.exited(x->sink.arg, &x->exit);
        callback_end(x);
    }
    x_unref(x);
}

static void kill_late(struct sg_timer *t)
{
    struct exec *x = x_ref(sg_container_of(t, struct exec, timer));
    struct sg_error err = {0};
    sg_error_set(&err, SG_OUTCOME_UNKNOWN, "the command was killed, but its end was not heard of");
    finish_failed(x, &err);
    turn(x);
    x_unref(x);
}

static void do_kill(struct exec *x)
{
    struct sg_agent_msg m = {.type = SG_AGENT_KILL, .id = x->call.id};
    if (x->state == STARTING)
        return; /* when it has started: until then it is not in its group */
    if (x->tree.kill == NULL)
        (void)sg_agent_tell(x->agent, &m, NULL); /* a full socket is followed by the deadline below */
    else if (!x->freed)
        x->tree.kill(x->tree.arg);
    if (x->state != RUNNING || x->kill_sent)
        return;
    x->kill_sent = true;
    x->timer.fire = kill_late;
    sg_timer_set(x->agent->reactor, &x->timer, sg_now_ms() + SG_AGENT_KILL_MS);
}

static void grace_over(struct sg_timer *t)
{
    struct exec *x = x_ref(sg_container_of(t, struct exec, grace));
    limit_output(&x->out);
    limit_output(&x->err);
    turn(x);
    x_unref(x);
}

static void timed_out(struct sg_timer *t)
{
    struct exec *x = sg_container_of(t, struct exec, timer);
    int none = SG_KILLED_NOT;
    atomic_compare_exchange_strong(&x->why, &none, SG_KILLED_TIMEOUT);
    do_kill(x);
}

/* Looks whether the next step can be made. */
static void turn(struct exec *x)
{
    if (x->state == ENDED && x->out.done && x->err.done)
        finish_exited(x);
    pthread_mutex_lock(&x->lock);
    bool released = x->released;
    pthread_mutex_unlock(&x->lock);
    if (x->state == OVER && released)
        free_tree(x);
}

static void work(struct sg_task *t)
{
    struct exec *x = sg_container_of(t, struct exec, task);
    atomic_store(&x->posted, false);
    unsigned asked = atomic_exchange(&x->asked, 0);
    if (asked & ASKED_RELEASE) {
        sg_pipe_stop(x->pub.out);
        sg_pipe_stop(x->pub.err);
        if (x->pub.in != NULL)
            sg_pipe_close(x->pub.in);
    }
    if (asked & ASKED_KILL)
        do_kill(x);
    if ((asked & (ASKED_PUMP | ASKED_RELEASE)) && (x->state == RUNNING || x->state == ENDED)) {
        pump_in(x);
        pump_output(&x->out);
        pump_output(&x->err);
    }
    turn(x);
    x_unref(x);
}

/* ---- what the agent says ---- */

static void started(struct exec *x)
{
    struct sg_waker w = {.wake = wake, .ref = ref_arg, .unref = unref_arg, .arg = x};
    x->state = RUNNING;
    sg_agent_call_started(x->agent, &x->call);
    if (callback_begin(x)) {
        x->sink.started(x->sink.arg);
        callback_end(x);
    }
    x->timer.fire = timed_out;
    sg_timer_set(x->agent->reactor, &x->timer, x->start_us / 1000 + x->timeout_ms);
    sg_pipe_set_writer(x->pub.out, &w);
    sg_pipe_set_writer(x->pub.err, &w);
    want_output(&x->out, true);
    want_output(&x->err, true);
    if (x->in.fd >= 0) {
        sg_pipe_set_reader(x->pub.in, &w);
        if (sg_watch_add(x->agent->reactor, &x->in, 0, NULL) < 0)
            close_in(x);
        else
            pump_in(x);
    }
    if (atomic_load(&x->why) != SG_KILLED_NOT)
        do_kill(x);
}

static void start_failed(struct exec *x, uint32_t stage, uint32_t error)
{
    struct sg_error err = {0};
    bool full = error == EAGAIN || error == ENOMEM || error == EMFILE || error == ENFILE;
    if (stage == SG_AGENT_STAGE_CWD && (error == EACCES || error == EPERM))
        sg_error_field(&err, SG_CWD_NOT_FOUND, "cwd",
                       "the working directory may not be entered by the sandbox's user");
    else if (stage == SG_AGENT_STAGE_CWD)
        sg_error_field(&err, SG_CWD_NOT_FOUND, "cwd", "there is no such working directory");
    else if (full)
        sg_error_set(&err, SG_OVERLOADED, "the sandbox cannot start another command now");
    else
        sg_error_sys(&err, SG_INTERNAL, (int)(error & 0xffff),
                     "the sandbox could not start the command (stage %u)", stage);
    if (full)
        sg_error_retry_after(&err, 1);
    finish_failed(x, &err);
}

static void exited(struct exec *x, uint32_t status, uint32_t signo)
{
    x->state = ENDED;
    atomic_store(&x->ended, true);
    x->exit.returncode = (int)status;
    x->exit.signal = (int)signo;
    x->exit.duration_us = sg_now_us() - x->start_us;
    if (signo == SIGKILL && x->kill_sent)
        x->exit.killed_by = (enum sg_killed_by)atomic_load(&x->why);
    else if (signo == SIGKILL && x->tree.oom != NULL && x->tree.oom(x->tree.arg))
        x->exit.killed_by = SG_KILLED_OOM;
    sg_timer_cancel(x->agent->reactor, &x->timer);
    close_in(x);
    pump_output(&x->out);
    pump_output(&x->err);
    if (!x->out.done || !x->err.done)
        sg_timer_set(x->agent->reactor, &x->grace, sg_now_ms() + SG_AGENT_GRACE_MS);
}

static int answer(struct sg_call *c, const struct sg_agent_msg *m, int fd, const struct sg_error *err)
{
    struct exec *x = x_ref(sg_container_of(c, struct exec, call));
    int r = fd < 0 ? 0 : -1;
    sg_close(fd);
    if (m == NULL && x->state != ENDED) /* an end that is known stays one: its output is still in the pipes */
        finish_failed(x, err);
    else if (m == NULL)
        r = 0;
    else if (r == 0 && x->state == STARTING && m->type == SG_AGENT_STARTED)
        started(x);
    else if (r == 0 && x->state == STARTING && m->type == SG_AGENT_SPAWN_FAILED)
        start_failed(x, m->u.failed.stage, m->u.failed.error);
    else if (r == 0 && x->state == RUNNING && m->type == SG_AGENT_EXITED)
        exited(x, m->u.exited.status, m->u.exited.signal);
    else
        r = -1;
    if (r == 0)
        turn(x);
    x_unref(x);
    return r;
}

/* ---- the caller's operations ---- */

static void exec_kill(struct sg_exec *pub, enum sg_killed_by why)
{
    struct exec *x = (struct exec *)pub;
    int none = SG_KILLED_NOT;
    atomic_compare_exchange_strong(&x->why, &none, (int)why);
    post(x, ASKED_KILL);
}

static int exec_signal(struct sg_exec *pub, int signo, struct sg_error *err)
{
    struct exec *x = (struct exec *)pub;
    struct sg_agent_msg m = {.type = SG_AGENT_SIGNAL, .id = x->call.id};
    if (signo < 1 || signo > 64)
        return sg_error_field(err, SG_INVALID_REQUEST, "signal", "no such signal");
    m.u.signal.signo = (uint32_t)signo;
    if (atomic_load(&x->ended))
        return sg_error_set(err, SG_CONFLICT, "the command has ended");
    return sg_agent_tell(x->agent, &m, err);
}

static void exec_release(struct sg_exec *pub)
{
    struct exec *x = (struct exec *)pub;
    pthread_mutex_lock(&x->lock);
    x->released = true;
    while (x->calling && !sg_reactor_is_current(x->agent->reactor))
        pthread_cond_wait(&x->idle, &x->lock);
    pthread_mutex_unlock(&x->lock);
    post(x, ASKED_RELEASE);
    x_unref(x);
}

static const struct sg_exec_ops exec_ops = {
    .kill = exec_kill, .signal = exec_signal, .release = exec_release};

/* ---- start ---- */

static void output_init(struct output *o, struct exec *x, struct sg_pipe *pipe)
{
    o->x = x;
    o->pipe = pipe;
    o->watch.ready = output_ready;
    o->watch.fd = -1;
    o->pause.fire = rest_again;
}

static struct exec *exec_new(struct sg_agent *a, const struct sg_exec_spec *spec,
                             const struct sg_agent_tree *tree, const struct sg_exec_sink *sink)
{
    struct exec *x = sg_xcalloc(1, sizeof *x);
    atomic_init(&x->refs, 4); /* the caller's, the command's, the outputs' */
    x->pub.ops = &exec_ops;
    x->pub.in = spec->stdin_open ? sg_pipe_new(spec->pipe_bytes) : NULL;
    x->pub.out = sg_pipe_new(spec->pipe_bytes);
    x->pub.err = sg_pipe_new(spec->pipe_bytes);
    x->agent = sg_agent_ref(a);
    x->sink = *sink;
    if (tree != NULL)
        x->tree = *tree;
    x->tree.tasks = NULL;
    pthread_mutex_init(&x->lock, NULL);
    pthread_cond_init(&x->idle, NULL);
    x->call.answer = answer;
    x->call.command = true;
    x->task.run = work;
    x->grace.fire = grace_over;
    x->in = (struct sg_watch){.ready = in_ready, .fd = -1};
    output_init(&x->out, x, x->pub.out);
    output_init(&x->err, x, x->pub.err);
    x->timeout_ms = spec->timeout_ms;
    x->start_us = sg_now_us();
    return x;
}

/* It was never sent: nobody else knows it. */
static void exec_discard(struct exec *x)
{
    sg_close(x->in.fd);
    sg_close(x->out.watch.fd);
    sg_close(x->err.watch.fd);
    atomic_store(&x->refs, 1);
    x_unref(x);
}

int sg_agent_exec_start(struct sg_agent *a, const struct sg_exec_spec *spec, const struct sg_agent_tree *tree,
                        const struct sg_exec_sink *sink, struct sg_exec **ret, struct sg_error *err)
{
    struct exec *x = exec_new(a, spec, tree, sink);
    struct sg_spawn_ends ends = {.in = &x->in.fd, .out = &x->out.watch.fd, .err = &x->err.watch.fd};
    *ret = &x->pub; /* callbacks may come before the next line is over */
    if (sg_agent_spawn(a, spec, tree, &x->call, &ends, err) == 0)
        return 0;
    *ret = NULL;
    exec_discard(x);
    return -1;
}
