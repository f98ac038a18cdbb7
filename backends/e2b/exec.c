/* Commands: our wrapper around each tells exactly how it ended, and keeps its descendants together so that they can be killed. */
#include "backends/e2b/exec_priv.h"

#include <stdio.h>
#include <sys/random.h>
#include <sys/wait.h>

#include "backends/e2b/scripts.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"

#define GRACE_MS 250      /* for what others still write once the command has ended */
#define QUIET_MS 60       /* what was written before that is still coming */
#define GRACE_MAX_MS 3000
#define BACKSTOP_MS 60000

struct e2b_ex *e2b_ex_ref(struct e2b_ex *x)
{
    atomic_fetch_add(&x->refs, 1);
    return x;
}

void e2b_ex_unref(struct e2b_ex *x)
{
    if (atomic_fetch_sub(&x->refs, 1) > 1)
        return;
    e2b_stream_unref(x->stream);
    sg_pipe_unref(x->base.in);
    sg_pipe_unref(x->base.out);
    sg_pipe_unref(x->base.err);
    pthread_mutex_destroy(&x->lock);
    sg_sandbox_unref(&x->sb->base);
    free(x);
}

/* ---- the end ---- */

/* True, once: the caller tells the end. *ret_tell: somebody wants to hear it. */
static bool begin_end(struct e2b_ex *x, bool *ret_tell)
{
    pthread_mutex_lock(&x->lock);
    bool first = !x->ended;
    x->ended = true;
    *ret_tell = !x->released;
    pthread_mutex_unlock(&x->lock);
    return first;
}

static void settle(struct e2b_ex *x)
{
    pthread_mutex_lock(&x->lock);
    struct sg_alarm_set *timeout = x->timeout;
    x->timeout = NULL;
    pthread_mutex_unlock(&x->lock);
    sg_alarm_off(timeout);
    sg_pipe_set_writer(x->base.out, NULL);
    sg_pipe_set_writer(x->base.err, NULL);
    if (x->base.in) {
        sg_pipe_set_reader(x->base.in, NULL);
        sg_pipe_stop(x->base.in);
    }
    e2b_stream_leave(x->stream);
}

/* Once. */
static void tell_started(struct e2b_ex *x)
{
    pthread_mutex_lock(&x->lock);
    bool tell = !x->told && !x->released && !x->ended;
    x->told = true;
    pthread_mutex_unlock(&x->lock);
    if (tell)
        x->sink.started(x->sink.arg);
}

static void end_exited(struct e2b_ex *x)
{
    bool tell;

    tell_started(x);
    if (!begin_end(x, &tell))
        return;
    pthread_mutex_lock(&x->lock);
    struct sg_exit e = {.killed_by = x->why, .duration_us = (x->exited ? x->exited_us : sg_now_us()) - x->started_us};
    if (WIFSIGNALED(x->status))
        e.signal = WTERMSIG(x->status);
    else
        e.returncode = WEXITSTATUS(x->status);
    pthread_mutex_unlock(&x->lock);
    sg_pipe_close(x->base.out);
    sg_pipe_close(x->base.err);
    if (tell)
        x->sink.exited(x->sink.arg, &e);
    settle(x);
}

void e2b_ex_fail(struct e2b_ex *x, const struct sg_error *err)
{
    bool tell;

    if (!begin_end(x, &tell))
        return;
    sg_pipe_fail(x->base.out, err);
    sg_pipe_fail(x->base.err, err);
    if (tell)
        x->sink.failed(x->sink.arg, err);
    settle(x);
}

static void timed_out(void *arg, bool over)
{
    struct e2b_ex *x = arg;

    if (!over)
        e2b_ex_kill(&x->base, SG_KILLED_TIMEOUT);
    e2b_ex_unref(x);
}

/* Unless it has ended by now. */
static void set_timeout(struct e2b_ex *x, int64_t ms)
{
    pthread_mutex_lock(&x->lock);
    if (!x->ended)
        x->timeout = sg_alarm_set(x->sb->d->alarms, ms, timed_out, e2b_ex_ref(x));
    pthread_mutex_unlock(&x->lock);
}

/* ---- what the stream brings ---- */

static void grace_over(void *arg, bool over)
{
    struct e2b_ex *x = arg;
    int64_t now = sg_now_ms();

    pthread_mutex_lock(&x->lock);
    bool wait = !over && !x->ended && (x->blocked || (now - x->last_ms < QUIET_MS && now - x->exited_ms < GRACE_MAX_MS));
    pthread_mutex_unlock(&x->lock);
    if (wait) {
        sg_alarm(x->sb->d->alarms, QUIET_MS, grace_over, x);
        return;
    }
    end_exited(x);
    e2b_ex_unref(x);
}

void e2b_ex_command_ended(struct e2b_ex *x, int status)
{
    pthread_mutex_lock(&x->lock);
    bool first = !x->exited;
    if (first) {
        x->exited = true;
        x->status = status;
        x->exited_us = sg_now_us();
        x->exited_ms = sg_now_ms();
    }
    pthread_mutex_unlock(&x->lock);
    if (first)
        sg_alarm(x->sb->d->alarms, GRACE_MS, grace_over, e2b_ex_ref(x));
}

void e2b_ex_command_began(struct e2b_ex *x, int64_t pid, int64_t pts)
{
    pthread_mutex_lock(&x->lock);
    x->child = pid;
    x->pts = pts;
    int signo = x->pending_signal;
    x->pending_signal = 0;
    pthread_mutex_unlock(&x->lock);
    tell_started(x);
    if (signo)
        e2b_ex_send_signal(x, pid, signo);
}

static size_t data(void *arg, bool to_stderr, const char *bytes, size_t len)
{
    struct e2b_ex *x = arg;
    size_t n = to_stderr ? e2b_ex_take_stderr(x, bytes, len) : e2b_ex_put(x->base.out, bytes, len);

    pthread_mutex_lock(&x->lock);
    x->blocked = n < len;
    x->last_ms = sg_now_ms();
    pthread_mutex_unlock(&x->lock);
    return n;
}

static void started(void *arg, uint32_t pid)
{
    struct e2b_ex *x = arg;

    pthread_mutex_lock(&x->lock);
    x->pid = pid;
    enum sg_killed_by why = x->why;
    pthread_mutex_unlock(&x->lock);
    if (!x->tty) /* else when its terminal is there, which may be resized from then on */
        tell_started(x);
    if (why != SG_KILLED_NOT)
        e2b_ex_kill(&x->base, why);
    if (x->base.in)
        e2b_ex_feed(x);
}

/* The stream failed: what became of the command is not known, unless it is known that it never began. */
static void stream_failed(void *arg, const struct sg_error *err)
{
    struct e2b_ex *x = arg;
    json_int_t status = json_integer_value(json_object_get(err->members, "provider_status"));
    struct sg_error why = {0};
    bool never = x->pid == 0 && (err->code == SG_UNAVAILABLE || err->code == SG_CWD_NOT_FOUND || (status >= 400 && status < 500));

    if (never || err->code == SG_SANDBOX_LOST || err->code == SG_SHUTTING_DOWN) {
        e2b_ex_fail(x, err);
    } else {
        sg_error_set(&why, SG_OUTCOME_UNKNOWN, "what became of the command is not known: %.300s", err->message);
        sg_error_member(&why, "provider", json_string("e2b"));
        if (status)
            sg_error_member(&why, "provider_status", json_integer(status));
        e2b_ex_kill_unknown(x); /* nobody can have it any more */
        e2b_ex_fail(x, &why);
    }
    sg_error_clear(&why);
    e2b_ex_unref(x);
}

static void over(void *arg, int code, const struct sg_error *err)
{
    struct e2b_ex *x = arg;

    pthread_mutex_lock(&x->lock);
    bool known = x->exited || x->ended;
    if (!known && !err) { /* the wrapper itself was killed */
        x->exited = true;
        x->exited_us = sg_now_us();
        x->status = code < 0 ? SIGKILL : (code & 0xff) << 8;
    }
    pthread_mutex_unlock(&x->lock);
    if (!known && err) {
        e2b_blame(x->sb, err, stream_failed, x);
        return;
    }
    end_exited(x);
    e2b_ex_unref(x);
}

/* ---- beginning ---- */

static void room_wake(void *arg)
{
    struct e2b_ex *x = arg;

    if (x->stream) /* else it has not begun */
        e2b_stream_resume(x->stream);
}

static void waker_ref(void *arg)
{
    (void)e2b_ex_ref(arg);
}

static void waker_unref(void *arg)
{
    e2b_ex_unref(arg);
}

static void x_release(struct sg_exec *base)
{
    struct e2b_ex *x = (struct e2b_ex *)base;

    pthread_mutex_lock(&x->lock);
    x->released = true;
    pthread_mutex_unlock(&x->lock);
    e2b_ex_unref(x);
}

static const struct sg_exec_ops ex_ops = {.kill = e2b_ex_kill, .signal = e2b_ex_signal, .resize = e2b_ex_resize, .release = x_release};

static struct e2b_ex *ex_new(struct e2b_sandbox *sb, const struct sg_exec_spec *spec, const struct sg_exec_sink *sink)
{
    struct e2b_ex *x = sg_xcalloc(1, sizeof *x);
    uint8_t random[KEY_HEX / 2];

    x->refs = 3; /* the caller's, the stream's, and one until it has begun */
    x->base.ops = &ex_ops;
    x->base.in = spec->stdin_open ? sg_pipe_new(spec->pipe_bytes) : NULL;
    x->base.out = sg_pipe_new(spec->pipe_bytes);
    x->base.err = sg_pipe_new(spec->pipe_bytes);
    x->sb = (struct e2b_sandbox *)sg_sandbox_ref(&sb->base);
    x->sink = *sink;
    x->tty = spec->tty.rows > 0;
    x->started_us = sg_now_us();
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        abort();
    sg_hex(random, sizeof random, x->key);
    pthread_mutex_init(&x->lock, NULL);
    return x;
}

struct wrapped {
    const char **argv;
    char **env; /* NAME=VALUE, as many as there are */
    size_t n_env;
    char count[16], terminal[40];
};

static void wrapped_finish(struct wrapped *w)
{
    for (size_t i = 0; i < w->n_env; i++)
        free(w->env[i]);
    free(w->env);
    free(w->argv);
}

/* The wrapper around the command. */
static void wrap(const struct e2b_ex *x, const struct sg_exec_spec *spec, struct wrapped *w)
{
    static const char *const plain[] = {"perl", "-e", e2b_script_wrap, NULL};
    static const char *const on_terminal[] = {"perl", "-e", e2b_script_terminal, "-e", e2b_script_wrap, NULL};
    size_t n = 0, at = 0;

    while (spec->argv[n])
        n++;
    w->n_env = spec->env ? spec->env->n : 0;
    w->env = sg_xcalloc(w->n_env + 1, sizeof *w->env);
    w->argv = sg_xcalloc(n + w->n_env + 10, sizeof *w->argv);
    snprintf(w->count, sizeof w->count, "%zu", w->n_env);
    snprintf(w->terminal, sizeof w->terminal, x->tty ? "%u %u %d" : "-", spec->tty.rows, spec->tty.cols, spec->stdin_open);
    for (const char *const *p = x->tty ? on_terminal : plain; *p; p++)
        w->argv[at++] = *p;
    w->argv[at++] = x->key;
    w->argv[at++] = w->terminal;
    w->argv[at++] = w->count;
    for (size_t i = 0; i < w->n_env; i++)
        w->argv[at++] = w->env[i] = sg_xasprintf("%s=%s", spec->env->vars[i].name, spec->env->vars[i].value);
    memcpy(w->argv + at, spec->argv, n * sizeof *w->argv);
}

static char *directory(const struct e2b_sandbox *sb, const char *cwd)
{
    if (!cwd)
        return sg_xstrdup(sb->root);
    return cwd[0] == '/' ? sg_xstrdup(cwd) : sg_xasprintf("/workspace/%s", cwd);
}

int e2b_exec(struct sg_sandbox *base, const struct sg_exec_spec *spec, const struct sg_exec_sink *sink, struct sg_exec **ret,
             struct sg_error *err)
{
    struct e2b_sandbox *sb = (struct e2b_sandbox *)base;

    if (sb->gone) {
        sg_error_set(err, SG_SANDBOX_LOST, "e2b does not have sandbox %s any more", base->id);
        return sg_error_reason(err, "lost");
    }
    struct e2b_ex *x = ex_new(sb, spec, sink);
    sg_cleanup(wrapped_finish) struct wrapped w = {0};
    wrap(x, spec, &w);
    sg_cleanup(sg_free_p) char *cwd = directory(sb, spec->cwd);
    sg_cleanup(sg_free_p) char *marker = sg_xasprintf("SANDGATE_EXEC=%s", x->key);
    const struct sg_waker room = {.wake = room_wake, .ref = waker_ref, .unref = waker_unref, .arg = x};
    const struct sg_waker input = {.wake = e2b_ex_in_wake, .ref = waker_ref, .unref = waker_unref, .arg = x};
    const struct e2b_stream_args a = {.user = "root", .argv = w.argv, .marker = marker, .cwd = cwd, .tag = x->key,
                                      .stdin_open = spec->stdin_open, .backstop_ms = spec->timeout_ms + BACKSTOP_MS,
                                      .started = started, .data = data, .over = over, .arg = x};
    *ret = &x->base;
    sg_pipe_set_writer(x->base.out, &room);
    sg_pipe_set_writer(x->base.err, &room);
    if (x->base.in)
        sg_pipe_set_reader(x->base.in, &input);
    if (e2b_stream_start(sb, &a, &x->stream, err) < 0) {
        *ret = NULL;
        sg_pipe_set_writer(x->base.out, NULL);
        sg_pipe_set_writer(x->base.err, NULL);
        if (x->base.in)
            sg_pipe_set_reader(x->base.in, NULL);
        x->refs = 1;
        e2b_ex_unref(x);
        return -1;
    }
    set_timeout(x, spec->timeout_ms);
    e2b_ex_unref(x);
    return 0;
}
