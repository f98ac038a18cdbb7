/* Commands of the fake: a small interpreter that moves on when a pipe, a timer or a kill says so. */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>

#include "backends/fake/fake_priv.h"
#include "base/clock.h"
#include "base/str.h"

#define WORDS_MAX 256U
#define OUTPUT_CHUNK 65536U
/* Rounds of one command before others on the reactor get their turn. */
#define ROUNDS_MAX 32

enum exec_state {
    EXEC_WAITING, /* for its step of the script */
    EXEC_RUNNING,
    EXEC_ENDED,
};

struct out {
    struct sg_pipe *pipe;
    char *data;
    size_t len, size;
    size_t at;
    bool broken; /* nobody reads any more */
};

struct fake_exec {
    struct sg_exec base;
    atomic_int refs;
    atomic_bool ended;       /* for signal() on other threads */
    atomic_bool released;    /* no callbacks any more */
    struct fake_sandbox *sb; /* one reference */
    struct sg_exec_sink sink;
    enum exec_state state;
    bool stall;
    char *words[WORDS_MAX]; /* all commands; NULL separates, two NULLs end */
    size_t at;
    char *storage;
    char *cwd;
    struct sg_env env;
    struct out out;
    struct out err;
    bool again; /* the command at `at` is in the middle (sleep, cat, yes) */
    int code;
    int64_t started_us;
    int64_t timeout_ms;
    struct sg_timer sleep_timer;
    struct sg_timer timeout_timer;
    struct sg_timer lost_timer;
    struct sg_task step_task;
    struct sg_task kill_task;
    struct sg_task signal_task;
    struct sg_task free_task;
    atomic_int kill_why;
    atomic_int signo;
    struct fake_exec *prev, *next;
};

struct exec_op {
    struct fake_op op;
    struct fake_exec *x; /* kept by the reference of the running command */
};

#define EXEC_OF(ptr, member) ((struct fake_exec *)(void *)((char *)(ptr)-offsetof(struct fake_exec, member)))

/* ---- life ---- */

static void exec_free_task(struct sg_task *t)
{
    struct fake_exec *x = EXEC_OF(t, free_task);
    sg_pipe_unref(x->base.in);
    sg_pipe_unref(x->base.out);
    sg_pipe_unref(x->base.err);
    free(x->out.data);
    free(x->err.data);
    free(x->storage);
    free(x->cwd);
    sg_env_finish(&x->env);
    struct fake_sandbox *sb = x->sb;
    free(x);
    sg_sandbox_unref(&sb->base);
}

static void exec_ref(void *arg)
{
    atomic_fetch_add(&((struct fake_exec *)arg)->refs, 1);
}

/* The memory goes in a task of its own: tasks of x that are still queued come before it. */
static void exec_unref(void *arg)
{
    struct fake_exec *x = arg;
    if (atomic_fetch_sub(&x->refs, 1) == 1) {
        x->free_task.run = exec_free_task;
        sg_reactor_post(x->sb->f->reactor, &x->free_task);
    }
}

static void exec_wake(void *arg)
{
    struct fake_exec *x = arg;
    sg_reactor_post(x->sb->f->reactor, &x->step_task);
}

static bool silent(const struct fake_exec *x)
{
    return atomic_load(&x->released);
}

/* Ends the command; err: the outcome is lost. */
static void exec_end(struct fake_exec *x, const struct sg_exit *how, const struct sg_error *err)
{
    struct sg_reactor *r = x->sb->f->reactor;
    if (x->state == EXEC_ENDED) {
        return;
    }
    x->state = EXEC_ENDED;
    atomic_store(&x->ended, true);
    sg_timer_cancel(r, &x->sleep_timer);
    sg_timer_cancel(r, &x->timeout_timer);
    sg_timer_cancel(r, &x->lost_timer);
    DL_DELETE(x->sb->execs, x);
    if (x->base.in != NULL) {
        sg_pipe_set_reader(x->base.in, NULL);
        sg_pipe_stop(x->base.in);
    }
    sg_pipe_set_writer(x->base.out, NULL);
    sg_pipe_set_writer(x->base.err, NULL);
    if (err != NULL) {
        sg_pipe_fail(x->base.out, err);
        sg_pipe_fail(x->base.err, err);
        if (!silent(x)) {
            x->sink.failed(x->sink.arg, err);
        }
    } else {
        struct sg_exit e = *how;
        e.duration_us = sg_now_us() - x->started_us;
        sg_pipe_close(x->base.out);
        sg_pipe_close(x->base.err);
        if (!silent(x)) {
            x->sink.exited(x->sink.arg, &e);
        }
    }
    exec_unref(x);
}

void fake_exec_end_all(struct fake_sandbox *sb, const struct sg_error *err)
{
    struct sg_exit how = {.signal = SIGKILL, .killed_by = SG_KILLED_LEASE_END};
    while (sb->execs != NULL) {
        exec_end(sb->execs, &how, err);
    }
}

/* ---- output ---- */

static void say(struct out *o, const char *data, size_t len)
{
    if (len > FAKE_FILE_MAX) {
        return;
    }
    if (o->len + len > o->size) {
        char *grown = realloc(o->data, 2 * (o->len + len));
        if (grown == NULL) {
            return;
        }
        o->data = grown;
        o->size = 2 * (o->len + len);
    }
    if (len > 0) {
        memcpy(o->data + o->len, data, len);
    }
    o->len += len;
}

static void say_text(struct out *o, const char *text)
{
    say(o, text, strlen(text));
}

/* True: all gone (or nobody reads any more). */
static bool flush(struct out *o)
{
    while (o->at < o->len) {
        ssize_t n = sg_pipe_write(o->pipe, o->data + o->at, o->len - o->at);
        if (n == 0) {
            return false;
        }
        if (n < 0) {
            o->broken = true;
            break;
        }
        o->at += (size_t)n;
    }
    o->at = 0;
    o->len = 0;
    return true;
}

/* ---- commands: each returns true when it is over, false to be called again later ---- */

static void say_words(struct out *o, char **words)
{
    for (size_t i = 1; words[i] != NULL; i++) {
        say_text(o, i > 1 ? " " : "");
        say_text(o, words[i]);
    }
    say_text(o, "\n");
}

static bool run_cat(struct fake_exec *x, char **words)
{
    char chunk[4096];
    if (words[1] == NULL) {
        ssize_t n = x->base.in == NULL ? 0 : sg_pipe_read(x->base.in, chunk, sizeof chunk);
        if (n > 0) {
            say(&x->out, chunk, (size_t)n);
            sg_reactor_post(x->sb->f->reactor, &x->step_task);
        }
        return n == 0 || n == -EIO;
    }
    char abs[FAKE_PATH_MAX];
    const struct fake_node *node = fake_path(words[1], abs, NULL) == 0 ? fake_find(x->sb, abs) : NULL;
    if (node == NULL || node->stat.type != SG_FILE_REGULAR) {
        say_text(&x->err, "cat: no such file\n");
        x->code = 1;
        return true;
    }
    say(&x->out, node->data, (size_t)node->stat.size);
    return true;
}

static bool run_sleep(struct fake_exec *x, char **words)
{
    int64_t ms = 0;
    if (x->again) {
        return x->sleep_timer.slot == 0;
    }
    if (words[1] == NULL || !sg_parse_duration_ms(words[1], &ms) || ms <= 0) {
        return true;
    }
    sg_timer_set(x->sb->f->reactor, &x->sleep_timer, sg_now_ms() + ms);
    return false;
}

static bool run_yes(struct fake_exec *x, char **words)
{
    while (x->out.len < OUTPUT_CHUNK) {
        say_text(&x->out, words[1] != NULL ? words[1] : "y");
        say_text(&x->out, "\n");
    }
    return false;
}

static void run_write(struct fake_exec *x, char **words)
{
    struct out text = {0};
    struct sg_file_stat st;
    struct sg_error err = {0};
    bool created = false;
    if (words[1] == NULL) {
        x->code = 2;
        return;
    }
    say_words(&text, words + 1);
    if (fake_write(x->sb, words[1], text.data, text.len, false, 0, &created, &st, &err) < 0) {
        say_text(&x->err, err.message);
        say_text(&x->err, "\n");
        x->code = 1;
    }
    sg_error_clear(&err);
    free(text.data);
}

static void run_printenv(struct fake_exec *x, char **words)
{
    const char *value = words[1] != NULL ? sg_env_get(&x->env, words[1]) : NULL;
    if (value == NULL) {
        x->code = 1;
        return;
    }
    say_text(&x->out, value);
    say_text(&x->out, "\n");
}

static void run_unknown(struct fake_exec *x, char **words)
{
    say_text(&x->err, words[0]);
    say_text(&x->err, ": not found\n");
    x->code = 127;
}

/* Quick commands; false: not one of them. */
static bool run_quick(struct fake_exec *x, char **words)
{
    const char *name = words[0];
    if (sg_streq(name, "true")) {
        x->code = 0;
    } else if (sg_streq(name, "false")) {
        x->code = 1;
    } else if (sg_streq(name, "echo")) {
        say_words(&x->out, words);
    } else if (sg_streq(name, "stderr")) {
        say_words(&x->err, words);
    } else if (sg_streq(name, "pwd")) {
        say_text(&x->out, x->cwd);
        say_text(&x->out, "\n");
    } else if (sg_streq(name, "printenv")) {
        run_printenv(x, words);
    } else if (sg_streq(name, "write")) {
        run_write(x, words);
    } else {
        return false;
    }
    return true;
}

static bool run(struct fake_exec *x, char **words)
{
    if (!x->again) {
        x->code = 0;
    }
    if (sg_streq(words[0], "cat")) {
        return run_cat(x, words);
    }
    if (sg_streq(words[0], "sleep")) {
        return run_sleep(x, words);
    }
    if (sg_streq(words[0], "yes")) {
        return run_yes(x, words);
    }
    if (!run_quick(x, words)) {
        run_unknown(x, words);
    }
    return true;
}

/* exit and signal end the whole thing. */
static bool run_last(struct fake_exec *x, char **words)
{
    struct sg_exit how = {0};
    int64_t code = 0;
    if (sg_streq(words[0], "exit")) {
        how.returncode = words[1] != NULL && sg_parse_int(words[1], 0, 255, &code) ? (int)code : x->code;
    } else if (sg_streq(words[0], "signal") && words[1] != NULL) {
        how.signal = sg_signal_parse(words[1]);
    } else {
        return false;
    }
    exec_end(x, &how, NULL);
    return true;
}

static void exec_step(struct sg_task *t)
{
    struct fake_exec *x = EXEC_OF(t, step_task);
    for (int round = 0; x->state == EXEC_RUNNING && flush(&x->out) && flush(&x->err); round++) {
        char **words = x->words + x->at;
        if (x->out.broken || x->err.broken) {
            struct sg_exit how = {.signal = SIGPIPE};
            exec_end(x, &how, NULL);
            return;
        }
        if (words[0] == NULL) {
            struct sg_exit how = {.returncode = x->code};
            exec_end(x, &how, NULL);
            return;
        }
        if (round == ROUNDS_MAX) {
            sg_reactor_post(x->sb->f->reactor, &x->step_task);
            return;
        }
        if (x->stall || run_last(x, words)) {
            return;
        }
        bool over = run(x, words);
        x->again = !over;
        if (!over && x->out.len == 0) {
            return;
        }
        while (over && x->words[x->at] != NULL) {
            x->at++;
        }
        x->at += over;
    }
}

/* ---- timers, kills ---- */

static void sleep_over(struct sg_timer *t)
{
    exec_step(&EXEC_OF(t, sleep_timer)->step_task);
}

static void timeout_over(struct sg_timer *t)
{
    struct sg_exit how = {.signal = SIGKILL, .killed_by = SG_KILLED_TIMEOUT};
    exec_end(EXEC_OF(t, timeout_timer), &how, NULL);
}

static void lost_over(struct sg_timer *t)
{
    fake_sandbox_lose(EXEC_OF(t, lost_timer)->sb);
}

static void kill_run(struct sg_task *t)
{
    struct fake_exec *x = EXEC_OF(t, kill_task);
    struct sg_exit how = {.signal = SIGKILL, .killed_by = (enum sg_killed_by)atomic_load(&x->kill_why)};
    if (x->state == EXEC_RUNNING) {
        exec_end(x, &how, NULL);
    } /* one that has not started yet looks at kill_why itself */
}

static void exec_kill(struct sg_exec *e, enum sg_killed_by why)
{
    struct fake_exec *x = (struct fake_exec *)e;
    int none = SG_KILLED_NOT;
    if (atomic_compare_exchange_strong(&x->kill_why, &none, (int)why)) {
        sg_reactor_post(x->sb->f->reactor, &x->kill_task);
    }
}

static void signal_run(struct sg_task *t)
{
    struct fake_exec *x = EXEC_OF(t, signal_task);
    struct sg_exit how = {.signal = atomic_load(&x->signo)};
    if (x->state == EXEC_RUNNING) {
        exec_end(x, &how, NULL);
    }
}

static int exec_signal(struct sg_exec *e, int signo, struct sg_error *err)
{
    struct fake_exec *x = (struct fake_exec *)e;
    if (atomic_load(&x->ended)) {
        return sg_error_set(err, SG_CONFLICT, "the command has ended");
    }
    if (signo == 0 || signo == SIGCHLD || signo == SIGCONT || signo == SIGWINCH || signo == SIGURG) {
        return 0;
    }
    atomic_store(&x->signo, signo);
    sg_reactor_post(x->sb->f->reactor, &x->signal_task);
    return 0;
}

static void exec_release(struct sg_exec *e)
{
    struct fake_exec *x = (struct fake_exec *)e;
    atomic_store(&x->released, true);
    exec_unref(x);
}

static const struct sg_exec_ops exec_ops = {
    .kill = exec_kill, .signal = exec_signal, .release = exec_release};

/* ---- start ---- */

static void exec_begin(struct fake_exec *x, const struct fake_step *step)
{
    struct sg_waker w = {.wake = exec_wake, .ref = exec_ref, .unref = exec_unref, .arg = x};
    struct sg_reactor *r = x->sb->f->reactor;
    x->state = EXEC_RUNNING;
    x->stall = x->stall || step->stall;
    x->started_us = sg_now_us();
    sg_timer_set(r, &x->timeout_timer, sg_now_ms() + x->timeout_ms);
    if (step->lost_after_ms >= 0) {
        sg_timer_set(r, &x->lost_timer, sg_now_ms() + step->lost_after_ms);
    }
    if (!silent(x)) {
        x->sink.started(x->sink.arg);
    }
    if (x->base.in != NULL) {
        sg_pipe_set_reader(x->base.in, &w);
    }
    sg_pipe_set_writer(x->base.out, &w);
    sg_pipe_set_writer(x->base.err, &w);
    exec_step(&x->step_task);
}

static void exec_started(struct fake_op *op, const struct sg_error *err)
{
    struct fake_exec *x = ((struct exec_op *)op)->x;
    struct sg_error own = {0};
    struct fake_step step = op->step;
    DL_APPEND(x->sb->execs, x);
    exec_ref(x);
    if (err == NULL && fake_sandbox_usable(x->sb, &own) < 0) {
        err = &own;
    }
    fake_op_end(op);
    free(op);
    if (err != NULL) {
        exec_end(x, NULL, err);
    } else {
        exec_begin(x, &step);
    }
    if (atomic_load(&x->kill_why) != SG_KILLED_NOT) {
        kill_run(&x->kill_task);
    }
    sg_error_clear(&own);
    exec_unref(x);
}

/* Splits `/bin/sh -c TEXT` at blanks and ';', takes an argv as one command. */
static void split(struct fake_exec *x, const char *const *argv)
{
    bool shell =
        sg_streq(argv[0], "/bin/sh") && argv[1] != NULL && sg_streq(argv[1], "-c") && argv[2] != NULL;
    size_t n = 0;
    if (!shell) {
        size_t bytes = 0;
        for (size_t i = 0; argv[i] != NULL; i++) {
            bytes += strlen(argv[i]) + 1;
        }
        char *to = x->storage = sg_xcalloc(bytes, 1);
        for (size_t i = 0; argv[i] != NULL && n + 2 < WORDS_MAX; i++) {
            x->words[n++] = to;
            to = stpcpy(to, argv[i]) + 1;
        }
        return;
    }
    x->storage = sg_xstrdup(argv[2]);
    for (char *p = x->storage; *p != '\0' && n + 3 < WORDS_MAX;) {
        char was = *p;
        if (was == ' ' || was == '\n' || was == ';') {
            *p++ = '\0';
            n += was == ';' && n > 0 && x->words[n - 1] != NULL;
            continue;
        }
        x->words[n++] = p;
        p += strcspn(p, " \n;");
    }
}

static struct fake_exec *exec_new(struct fake_sandbox *sb, const struct sg_exec_spec *spec,
                                  const struct sg_exec_sink *sink)
{
    struct fake_exec *x = sg_xcalloc(1, sizeof *x);
    atomic_init(&x->refs, 2); /* the caller's and that of the running command */
    x->sb = (struct fake_sandbox *)sg_sandbox_ref(&sb->base);
    x->sink = *sink;
    x->base.ops = &exec_ops;
    x->base.in = spec->stdin_open ? sg_pipe_new(spec->pipe_bytes) : NULL;
    x->base.out = x->out.pipe = sg_pipe_new(spec->pipe_bytes);
    x->base.err = x->err.pipe = sg_pipe_new(spec->pipe_bytes);
    x->cwd = sg_xstrdup(spec->cwd != NULL ? spec->cwd : "/workspace");
    x->timeout_ms = spec->timeout_ms;
    x->sleep_timer.fire = sleep_over;
    x->timeout_timer.fire = timeout_over;
    x->lost_timer.fire = lost_over;
    x->step_task.run = exec_step;
    x->kill_task.run = kill_run;
    x->signal_task.run = signal_run;
    split(x, spec->argv);
    return x;
}

int fake_exec_start(struct sg_sandbox *sandbox, const struct sg_exec_spec *spec,
                    const struct sg_exec_sink *sink, struct sg_exec **ret, struct sg_error *err)
{
    struct fake_sandbox *sb = (struct fake_sandbox *)sandbox;
    if (spec->argv[0] == NULL) {
        return sg_error_set(err, SG_INVALID_REQUEST, "no command");
    }
    struct fake_exec *x = exec_new(sb, spec, sink);
    if (spec->env != NULL && sg_env_merge(&x->env, spec->env, err) < 0) {
        exec_unref(x);
        exec_unref(x);
        return -1;
    }
    struct exec_op *op = sg_xcalloc(1, sizeof *op);
    op->x = x;
    op->op.finish = exec_started;
    *ret = &x->base;
    fake_op_start(&op->op, sb->f, sb, FAKE_EXEC);
    return 0;
}
