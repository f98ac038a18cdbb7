/* One command: its request, its input, its end.
 *
 * Everything but kill, signal, release, resize and the wakers of the pipes happens on the reactor thread; those set a
 * bit in `asked` and post the one task. */
#include "backends/agent/client_exec_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"

enum asked { ASKED_PUMP = 1, ASKED_KILL = 2, ASKED_RELEASE = 4 };

static const struct sg_exec_ops exec_ops;

/* ---- references and callbacks ---- */

struct sg_agent_exec *sg_agent_exec_ref(struct sg_agent_exec *x)
{
    atomic_fetch_add(&x->refs, 1);
    return x;
}

void sg_agent_exec_unref(struct sg_agent_exec *x)
{
    if (atomic_fetch_sub(&x->refs, 1) != 1)
        return;
    sg_pipe_unref(x->pub.in);
    sg_pipe_unref(x->pub.out);
    sg_pipe_unref(x->pub.err);
    pthread_mutex_destroy(&x->lock);
    pthread_cond_destroy(&x->idle);
    sg_error_clear(&x->unfit);
    sg_agent_unref(x->agent);
    free(x);
}

static void ref_arg(void *arg)
{
    sg_agent_exec_ref(arg);
}

static void unref_arg(void *arg)
{
    sg_agent_exec_unref(arg);
}

static void post(struct sg_agent_exec *x, unsigned what)
{
    atomic_fetch_or(&x->asked, what);
    if (!atomic_exchange(&x->posted, true)) {
        sg_agent_exec_ref(x);
        sg_reactor_post(x->agent->reactor, &x->task);
    }
}

static void wake(void *arg)
{
    post(arg, ASKED_PUMP);
}

/* True: the caller is there and will not leave until callback_end(). */
static bool callback_begin(struct sg_agent_exec *x)
{
    pthread_mutex_lock(&x->lock);
    x->calling = !x->released;
    pthread_mutex_unlock(&x->lock);
    return x->calling;
}

static void callback_end(struct sg_agent_exec *x)
{
    pthread_mutex_lock(&x->lock);
    x->calling = false;
    pthread_cond_broadcast(&x->idle);
    pthread_mutex_unlock(&x->lock);
}

/* ---- standard input ---- */

static void close_in(struct sg_agent_exec *x)
{
    if (x->in.fd < 0)
        return;
    sg_watch_del(x->agent->reactor, &x->in);
    if (x->tty)
        sg_agent_terminal_close(x, x->in.fd);
    else
        sg_close(x->in.fd);
    x->in.fd = -1;
    if (x->pub.in == NULL)
        return;
    sg_pipe_set_reader(x->pub.in, NULL);
    sg_pipe_stop(x->pub.in);
}

/* One step of the input. */
static ssize_t move_in(struct sg_agent_exec *x)
{
    ssize_t n = x->pub.in != NULL ? sg_pipe_read_to(x->pub.in, x->in.fd) : 0;
    return n == 0 && x->tty ? sg_agent_terminal_type_end(x) : n;
}

static void pump_in(struct sg_agent_exec *x)
{
    for (int i = 0; i < SG_AGENT_CHUNKS_PER_TURN && x->in.fd >= 0; i++) {
        ssize_t n = move_in(x);
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
    struct sg_agent_exec *x = sg_container_of(w, struct sg_agent_exec, in);
    if (events & (EPOLLERR | EPOLLHUP))
        close_in(x);
    else
        pump_in(x);
}

/* ---- the end ---- */

static void over(struct sg_agent_exec *x)
{
    x->state = OVER;
    atomic_store(&x->ended, true);
    sg_timer_cancel(x->agent->reactor, &x->timer);
    sg_timer_cancel(x->agent->reactor, &x->grace);
    close_in(x);
    sg_agent_terminal_let_go(x);
    sg_agent_output_over(&x->out);
    sg_agent_call_over(x->agent, &x->call);
}

static void finish_failed(struct sg_agent_exec *x, const struct sg_error *err)
{
    bool nothing_runs = x->state == STARTING || x->agent->gone;
    if (x->state == OVER)
        return;
    over(x);
    sg_pipe_fail(x->pub.out, err);
    sg_pipe_fail(x->pub.err, err);
    sg_agent_output_finish(&x->out, nothing_runs);
    sg_agent_output_finish(&x->err, nothing_runs);
    if (callback_begin(x)) {
        x->sink.failed(x->sink.arg, err);
        callback_end(x);
    }
    sg_agent_exec_unref(x);
}

static void free_tree(struct sg_agent_exec *x)
{
    if (x->freed)
        return;
    x->freed = true;
    if (x->tree.free != NULL)
        x->tree.free(x->tree.arg);
}

static void finish_exited(struct sg_agent_exec *x)
{
    over(x);
    if (x->tree.empty != NULL && x->tree.empty(x->tree.arg))
        free_tree(x);
    if (callback_begin(x)) {
        x->sink.exited(x->sink.arg, &x->exit);
        callback_end(x);
    }
    sg_agent_exec_unref(x);
}

static void kill_late(struct sg_timer *t)
{
    struct sg_agent_exec *x = sg_agent_exec_ref(sg_container_of(t, struct sg_agent_exec, timer));
    struct sg_error err = {0};
    sg_error_set(&err, SG_OUTCOME_UNKNOWN, "the command was killed, but its end was not heard of");
    finish_failed(x, &err);
    sg_agent_exec_turn(x);
    sg_agent_exec_unref(x);
}

static void do_kill(struct sg_agent_exec *x)
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

static void set_grace(struct sg_agent_exec *x)
{
    sg_timer_set(x->agent->reactor, &x->grace, sg_now_ms() + (x->agent->o.far ? SG_AGENT_FAR_GRACE_MS : SG_AGENT_GRACE_MS));
}

static void grace_over(struct sg_timer *t)
{
    struct sg_agent_exec *x = sg_agent_exec_ref(sg_container_of(t, struct sg_agent_exec, grace));
    if (x->agent->o.far && (sg_agent_output_waits(&x->out) || sg_agent_output_waits(&x->err))) {
        set_grace(x); /* its reader is slow, which is no fault of the relay's */
    } else {
        sg_agent_output_limit(&x->out);
        sg_agent_output_limit(&x->err);
    }
    sg_agent_exec_turn(x);
    sg_agent_exec_unref(x);
}

static void timed_out(struct sg_timer *t)
{
    struct sg_agent_exec *x = sg_container_of(t, struct sg_agent_exec, timer);
    int none = SG_KILLED_NOT;
    atomic_compare_exchange_strong(&x->why, &none, SG_KILLED_TIMEOUT);
    do_kill(x);
}

void sg_agent_exec_turn(struct sg_agent_exec *x)
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
    struct sg_agent_exec *x = sg_container_of(t, struct sg_agent_exec, task);
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
        sg_agent_output_pump(&x->out);
        sg_agent_output_pump(&x->err);
    }
    sg_agent_exec_turn(x);
    sg_agent_exec_unref(x);
}

/* ---- what the agent says ---- */

static void started(struct sg_agent_exec *x)
{
    struct sg_waker w = {.wake = wake, .ref = ref_arg, .unref = unref_arg, .arg = x};
    x->state = RUNNING;
    sg_agent_call_started(x->agent, &x->call);
    if (x->unfit.code != SG_OK) {
        do_kill(x);
        return;
    }
    if (callback_begin(x)) {
        x->sink.started(x->sink.arg);
        callback_end(x);
    }
    x->timer.fire = timed_out;
    sg_timer_set(x->agent->reactor, &x->timer, x->start_us / 1000 + x->timeout_ms);
    sg_pipe_set_writer(x->pub.out, &w);
    sg_agent_output_want(&x->out, true);
    if (!x->tty) {
        sg_pipe_set_writer(x->pub.err, &w);
        sg_agent_output_want(&x->err, true);
    }
    if (x->in.fd >= 0) {
        if (x->pub.in != NULL)
            sg_pipe_set_reader(x->pub.in, &w);
        if (sg_watch_add(x->agent->reactor, &x->in, 0, NULL) < 0)
            close_in(x);
        else
            pump_in(x);
    }
    if (atomic_load(&x->why) != SG_KILLED_NOT)
        do_kill(x);
}

static void start_failed(struct sg_agent_exec *x, uint32_t stage, uint32_t error)
{
    struct sg_error err = {0};
    bool full = error == EAGAIN || error == ENOMEM || error == EMFILE || error == ENFILE;
    if (stage == SG_AGENT_STAGE_CWD && (error == EACCES || error == EPERM))
        sg_error_field(&err, SG_CWD_NOT_FOUND, "cwd",
                       "the working directory may not be entered by the sandbox's user");
    else if (stage == SG_AGENT_STAGE_CWD)
        sg_error_field(&err, SG_CWD_NOT_FOUND, "cwd", "there is no such working directory");
    else if (stage == SG_AGENT_STAGE_TTY && error == ENOSPC)
        sg_error_set(&err, SG_OVERLOADED, "all terminals of this machine are in use");
    else if (full)
        sg_error_set(&err, SG_OVERLOADED, "the sandbox cannot start another command now");
    else
        sg_error_sys(&err, SG_INTERNAL, (int)(error & 0xffff),
                     "the sandbox could not start the command (stage %u)", stage);
    if (err.code == SG_OVERLOADED)
        sg_error_retry_after(&err, 1);
    finish_failed(x, &err);
}

static void exited(struct sg_agent_exec *x, uint32_t status, uint32_t signo)
{
    x->state = ENDED;
    atomic_store(&x->ended, true);
    x->exit.returncode = (int)status;
    x->exit.signal = (int)signo;
    x->exit.duration_us = sg_now_us() - x->start_us;
    if ((signo == SIGKILL || signo == SIGTERM) && x->kill_sent) /* git is asked to end before it is killed */
        x->exit.killed_by = (enum sg_killed_by)atomic_load(&x->why);
    else if (signo == SIGKILL && (x->agent->oom_id == x->call.id || (x->tree.oom != NULL && x->tree.oom(x->tree.arg))))
        x->exit.killed_by = SG_KILLED_OOM;
    sg_timer_cancel(x->agent->reactor, &x->timer);
    if (x->unfit.code != SG_OK) {
        finish_failed(x, &x->unfit);
        return;
    }
    close_in(x);
    sg_agent_terminal_let_go(x);
    sg_agent_output_pump(&x->out);
    sg_agent_output_pump(&x->err);
    if (!x->out.done || !x->err.done)
        set_grace(x);
}

/* An answer of the agent. -1: it may not come now. */
static int heard(struct sg_agent_exec *x, const struct sg_agent_msg *m, int fd)
{
    if (m->type == SG_AGENT_TERMINAL)
        return sg_agent_terminal_take(x, fd);
    bool complete = !x->tty || x->master >= 0 || x->unfit.code != SG_OK;
    if (x->state == STARTING && m->type == SG_AGENT_STARTED && complete)
        started(x);
    else if (x->state == STARTING && m->type == SG_AGENT_SPAWN_FAILED)
        start_failed(x, m->u.failed.stage, m->u.failed.error);
    else if (x->state == RUNNING && m->type == SG_AGENT_EXITED)
        exited(x, m->u.exited.status, m->u.exited.signal);
    else
        return -1;
    return 0;
}

static int answer(struct sg_call *c, const struct sg_agent_msg *m, int fd, const struct sg_error *err)
{
    struct sg_agent_exec *x = sg_agent_exec_ref(sg_container_of(c, struct sg_agent_exec, call));
    int r = 0;
    if (m != NULL)
        r = heard(x, m, fd);
    else if (!x->agent->gone)
        sg_agent_terminal_unfit(x, err->message);
    else if (x->state != ENDED) /* an end that is known stays one: its output is still in the pipes */
        finish_failed(x, err);
    if (r == 0)
        sg_agent_exec_turn(x);
    sg_agent_exec_unref(x);
    return r;
}

/* ---- the caller's operations ---- */

static void exec_kill(struct sg_exec *pub, enum sg_killed_by why)
{
    struct sg_agent_exec *x = (struct sg_agent_exec *)pub;
    int none = SG_KILLED_NOT;
    atomic_compare_exchange_strong(&x->why, &none, (int)why);
    post(x, ASKED_KILL);
}

static int exec_signal(struct sg_exec *pub, int signo, struct sg_error *err)
{
    struct sg_agent_exec *x = (struct sg_agent_exec *)pub;
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
    struct sg_agent_exec *x = (struct sg_agent_exec *)pub;
    pthread_mutex_lock(&x->lock);
    x->released = true;
    while (x->calling && !sg_reactor_is_current(x->agent->reactor))
        pthread_cond_wait(&x->idle, &x->lock);
    pthread_mutex_unlock(&x->lock);
    post(x, ASKED_RELEASE);
    sg_agent_exec_unref(x);
}

static const struct sg_exec_ops exec_ops = {
    .kill = exec_kill, .signal = exec_signal, .resize = sg_agent_terminal_resize, .release = exec_release};

/* ---- start ---- */

static struct sg_agent_exec *exec_new(struct sg_agent *a, const struct sg_exec_spec *spec,
                             const struct sg_agent_tree *tree, const struct sg_exec_sink *sink)
{
    struct sg_agent_exec *x = sg_xcalloc(1, sizeof *x);
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
    sg_agent_output_init(&x->out, x, x->pub.out);
    sg_agent_output_init(&x->err, x, x->pub.err);
    x->master = x->slave = -1;
    x->tty = spec->tty.rows > 0;
    if (x->tty) { /* a terminal has no second output */
        sg_pipe_close(x->pub.err);
        x->err.done = true;
        atomic_store(&x->refs, 3);
    }
    x->timeout_ms = spec->timeout_ms;
    x->start_us = sg_now_us();
    return x;
}

/* It was never sent: nobody else knows it. */
static void exec_discard(struct sg_agent_exec *x)
{
    sg_close(x->in.fd);
    sg_close(x->out.watch.fd);
    sg_close(x->err.watch.fd);
    atomic_store(&x->refs, 1);
    sg_agent_exec_unref(x);
}

int sg_agent_exec_start(struct sg_agent *a, const struct sg_exec_spec *spec, const struct sg_agent_tree *tree,
                        const struct sg_exec_sink *sink, struct sg_exec **ret, struct sg_error *err)
{
    struct sg_agent_exec *x = exec_new(a, spec, tree, sink);
    struct sg_spawn_ends ends = {.in = &x->in.fd, .out = &x->out.watch.fd, .err = &x->err.watch.fd};
    *ret = &x->pub; /* callbacks may come before the next line is over */
    if (sg_agent_spawn(a, spec, tree, &x->call, &ends, err) == 0)
        return 0;
    *ret = NULL;
    exec_discard(x);
    return -1;
}
