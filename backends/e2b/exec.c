/* Commands: our wrapper around each tells exactly how it ended, and keeps its descendants together so that they can be killed. */
#include "backends/e2b/e2b_priv.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/wait.h>

#include "backends/e2b/scripts.h"
#include "base/base64.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"

#define KEY_HEX 32U
#define NOTE_MAX 80U      /* bytes of what the wrapper says */
#define GRACE_MS 250      /* for what others still write once the command has ended */
#define QUIET_MS 60       /* what was written before that is still coming */
#define GRACE_MAX_MS 3000
#define KILL_MS 15000
#define KILLS 4U
#define BACKSTOP_MS 60000
#define INPUT_PIECE ((size_t)48 * 1024)
#define INPUT_MS 60000
#define SIGNAL_MS 15000

struct ex;

/* What a timer has of a command that may end long before. */
struct ticket {
    _Atomic int refs;
    _Atomic(struct ex *) x; /* a reference, of whoever takes it */
};

struct ex {
    struct sg_exec base;
    _Atomic int refs;
    struct e2b_sandbox *sb;
    struct e2b_stream *stream;
    struct sg_exec_sink sink;
    struct ticket *timeout;
    char key[KEY_HEX + 1];
    int64_t started_us;
    struct sg_task feed;
    _Atomic bool feed_posted; /* the task has a reference */

    /* whoever pumps the stream */
    char note[NOTE_MAX]; /* the beginning of what may be the wrapper's word */
    size_t note_len;
    char spill[NOTE_MAX]; /* what turned out not to be */
    size_t spill_len;

    pthread_mutex_t lock; /* guards what follows */
    uint32_t pid;         /* of the wrapper, 0: not yet */
    int64_t child;
    bool exited, ended, released, killing, blocked, failing;
    bool kill_sure; /* the kill under way began when the command was there: before, it finds nothing and is no kill */
    int status;
    int64_t exited_us, exited_ms, last_ms;
    enum sg_killed_by why;
    unsigned kills;
    int pending_signal;
    bool feeding, input_over;
};

static struct ex *ex_ref(struct ex *x)
{
    atomic_fetch_add(&x->refs, 1);
    return x;
}

static void ex_unref(struct ex *x)
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

static void ticket_unref(struct ticket *t)
{
    if (atomic_fetch_sub(&t->refs, 1) == 1)
        free(t);
}

static void drop_timeout(struct ex *x)
{
    struct ticket *t = x->timeout;
    struct ex *mine = atomic_exchange(&t->x, NULL);

    if (mine)
        ex_unref(mine);
    ticket_unref(t);
}

/* True, once: the caller tells the end. *ret_tell: somebody wants to hear it. */
static bool begin_end(struct ex *x, bool *ret_tell)
{
    pthread_mutex_lock(&x->lock);
    bool first = !x->ended;
    x->ended = true;
    *ret_tell = !x->released;
    pthread_mutex_unlock(&x->lock);
    return first;
}

static void settle(struct ex *x)
{
    drop_timeout(x);
    sg_pipe_set_writer(x->base.out, NULL);
    sg_pipe_set_writer(x->base.err, NULL);
    if (x->base.in) {
        sg_pipe_set_reader(x->base.in, NULL);
        sg_pipe_stop(x->base.in);
    }
    e2b_stream_leave(x->stream);
}

static void end_exited(struct ex *x)
{
    bool tell;

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

static void end_failed(struct ex *x, const struct sg_error *err)
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

/* ---- killing ---- */

static void kill_later(void *arg, bool over);

static void killed(void *arg, const struct e2b_ran *r, const struct sg_error *err)
{
    struct ex *x = arg;
    struct sg_error why = {0};

    pthread_mutex_lock(&x->lock);
    bool done = r && r->code == 0 && (x->kill_sure || x->ended);
    bool again = !done && ++x->kills < KILLS && !x->sb->gone;
    if (!again)
        x->killing = false;
    pthread_mutex_unlock(&x->lock);
    if (again) {
        sg_alarm(x->sb->d->alarms, sg_backoff_ms(x->kills, 200, 5000), kill_later, x);
        return;
    }
    if (!done) {
        if (err && err->code == SG_SANDBOX_LOST)
            sg_error_copy(&why, err);
        else
            sg_error_set(&why, SG_OUTCOME_UNKNOWN, "the command was to be killed, but e2b does not do it");
        end_failed(x, &why);
        sg_error_clear(&why);
    }
    ex_unref(x);
}

static void kill_now(struct ex *x)
{
    char pid[16];
    pthread_mutex_lock(&x->lock);
    snprintf(pid, sizeof pid, "%u", x->pid);
    x->kill_sure = x->child != 0;
    pthread_mutex_unlock(&x->lock);
    const char *const argv[] = {"perl", "-e", e2b_script_kill, pid, x->key, NULL};
    e2b_run(x->sb, &(struct e2b_run_args){.user = "root", .argv = argv, .out_max = 4096, .limit_ms = KILL_MS, .done = killed, .arg = x});
}

static void kill_later(void *arg, bool over)
{
    struct ex *x = arg;
    struct sg_error err = {0};

    if (!over) {
        kill_now(x);
        return;
    }
    sg_error_set(&err, SG_SHUTTING_DOWN, "the server is shutting down");
    end_failed(x, &err);
    sg_error_clear(&err);
    ex_unref(x);
}

static void x_kill(struct sg_exec *base, enum sg_killed_by why)
{
    struct ex *x = (struct ex *)base;

    pthread_mutex_lock(&x->lock);
    if (x->why == SG_KILLED_NOT && !x->exited)
        x->why = why;
    bool begin = !x->killing && x->pid != 0; /* else when it has started */
    x->killing = x->killing || begin;
    if (begin)
        x->kills = 0;
    pthread_mutex_unlock(&x->lock);
    if (begin) /* not here and now: the caller may hold a lock */
        sg_alarm(x->sb->d->alarms, 0, kill_later, ex_ref(x));
}

static void timed_out(void *arg, bool over)
{
    struct ticket *t = arg;
    struct ex *x = atomic_exchange(&t->x, NULL);

    if (x && !over)
        x_kill(&x->base, SG_KILLED_TIMEOUT);
    if (x)
        ex_unref(x);
    ticket_unref(t);
}

/* ---- signals ---- */

static void signalled(void *arg, const struct e2b_ran *r SG_UNUSED, const struct sg_error *err SG_UNUSED)
{
    ex_unref(arg);
}

static void send_signal(struct ex *x, int64_t pid, int signo)
{
    char number[16], target[24];

    snprintf(number, sizeof number, "-%d", signo);
    snprintf(target, sizeof target, "%lld", (long long)pid);
    const char *const argv[] = {"/bin/sh", "-c", "kill \"$0\" \"$1\"", number, target, NULL};
    e2b_run(x->sb, &(struct e2b_run_args){.user = "root", .argv = argv, .out_max = 4096, .limit_ms = SIGNAL_MS, .done = signalled, .arg = ex_ref(x)});
}

static int x_signal(struct sg_exec *base, int signo, struct sg_error *err)
{
    struct ex *x = (struct ex *)base;

    pthread_mutex_lock(&x->lock);
    bool over = x->exited || x->ended;
    int64_t child = x->child;
    if (!over && child == 0)
        x->pending_signal = signo;
    pthread_mutex_unlock(&x->lock);
    if (over)
        return sg_error_set(err, SG_CONFLICT, "the command has ended");
    if (child > 0)
        send_signal(x, child, signo);
    return 0;
}

/* ---- stdin ---- */

static void feed(struct ex *x);

static void fed(void *arg, const struct sg_origin_answer *a SG_UNUSED, const struct sg_error *err)
{
    struct ex *x = arg;

    pthread_mutex_lock(&x->lock);
    x->feeding = false;
    x->input_over = x->input_over || err;
    bool over = x->input_over;
    pthread_mutex_unlock(&x->lock);
    if (over)
        sg_pipe_stop(x->base.in);
    else
        feed(x);
    ex_unref(x);
}

static void call_input(struct ex *x, const char *path, const json_t *body)
{
    struct sg_net_header headers[4];
    size_t n = e2b_headers(x->sb, "root", headers);

    sg_origin_call(x->sb->d->data, &(struct sg_origin_call){.method = "POST", .path = path, .body = body, .headers = headers, .n_headers = n,
                                                            .deadline_ms = sg_now_ms() + INPUT_MS, .done = fed, .arg = ex_ref(x)});
}

/* One piece at a time, so that they stay in order. */
static void feed(struct ex *x)
{
    char piece[INPUT_PIECE];

    pthread_mutex_lock(&x->lock);
    bool go = !x->feeding && !x->input_over && x->pid != 0 && !x->ended;
    ssize_t n = go ? sg_pipe_read(x->base.in, piece, sizeof piece) : -EAGAIN;
    x->feeding = x->feeding || n >= 0;
    x->input_over = x->input_over || n == 0 || n == -EIO;
    uint32_t pid = x->pid;
    pthread_mutex_unlock(&x->lock);
    if (n < 0)
        return;
    sg_cleanup(sg_free_p) char *text = n > 0 ? sg_base64_encode(piece, (size_t)n, NULL) : NULL;
    sg_cleanup(sg_json_p) json_t *body = n > 0 ? json_pack("{s:{s:I}, s:{s:s}}", "process", "pid", (json_int_t)pid, "input", "stdin", text)
                                               : json_pack("{s:{s:I}}", "process", "pid", (json_int_t)pid);
    call_input(x, n > 0 ? "/process.Process/SendInput" : "/process.Process/CloseStdin", body);
}

static void feed_task(struct sg_task *t)
{
    struct ex *x = sg_container_of(t, struct ex, feed);

    atomic_store(&x->feed_posted, false);
    feed(x);
    ex_unref(x);
}

/* Not here and now: who writes may hold a lock. */
static void in_wake(void *arg)
{
    struct ex *x = arg;

    if (atomic_exchange(&x->feed_posted, true))
        return;
    x->feed.run = feed_task;
    sg_reactor_post(x->sb->d->reactor, &ex_ref(x)->feed);
}

/* ---- what the stream brings ---- */

static void grace_over(void *arg, bool over)
{
    struct ex *x = arg;
    int64_t now = sg_now_ms();

    pthread_mutex_lock(&x->lock);
    bool wait = !over && !x->ended && (x->blocked || (now - x->last_ms < QUIET_MS && now - x->exited_ms < GRACE_MAX_MS));
    pthread_mutex_unlock(&x->lock);
    if (wait) {
        sg_alarm(x->sb->d->alarms, QUIET_MS, grace_over, x);
        return;
    }
    end_exited(x);
    ex_unref(x);
}

static void command_ended(struct ex *x, int status)
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
        sg_alarm(x->sb->d->alarms, GRACE_MS, grace_over, ex_ref(x));
}

static void command_began(struct ex *x, int64_t pid)
{
    pthread_mutex_lock(&x->lock);
    x->child = pid;
    int signo = x->pending_signal;
    x->pending_signal = 0;
    pthread_mutex_unlock(&x->lock);
    if (signo)
        send_signal(x, pid, signo);
}

/* The note is complete: "\0KEY s PID\0" or "\0KEY x STATUS\0". False: it is none. */
static bool take_note(struct ex *x)
{
    char kind;
    long long number;
    int end = 0;

    if (x->note_len < KEY_HEX + 5 || memcmp(x->note + 1, x->key, KEY_HEX) != 0 ||
        sscanf(x->note + 1 + KEY_HEX, " %c %lld%n", &kind, &number, &end) != 2 || x->note[1 + KEY_HEX + (size_t)end] != '\0')
        return false;
    if (kind == 's')
        command_began(x, number);
    else
        command_ended(x, (int)number);
    return true;
}

/* Could what has been collected become a note? */
static bool may_be_note(const struct ex *x)
{
    size_t n = x->note_len - 1 < KEY_HEX ? x->note_len - 1 : KEY_HEX;

    return x->note_len < NOTE_MAX - 1 && memcmp(x->note + 1, x->key, n) == 0;
}

static void spill_note(struct ex *x)
{
    memcpy(x->spill, x->note, x->note_len);
    x->spill_len = x->note_len;
    x->note_len = 0;
}

/* One byte more of a note. A NUL that ends what is none may begin one. */
static void note_byte(struct ex *x, char c)
{
    if (x->note_len > 0 && c == '\0') {
        x->note[x->note_len++] = '\0';
        if (take_note(x)) {
            x->note_len = 0;
            return;
        }
        x->note_len--;
        spill_note(x);
        x->note[x->note_len++] = '\0';
        return;
    }
    x->note[x->note_len++] = c;
    if (!may_be_note(x))
        spill_note(x);
}

/* Bytes of [data, data + len) that p took; all when nobody reads. */
static size_t put(struct sg_pipe *p, const char *data, size_t len)
{
    ssize_t n = len > 0 ? sg_pipe_write(p, data, len) : 0;

    return n < 0 ? len : (size_t)n;
}

static bool spilled(struct ex *x)
{
    size_t n = put(x->base.err, x->spill, x->spill_len);

    memmove(x->spill, x->spill + n, x->spill_len - n);
    x->spill_len -= n;
    return x->spill_len == 0;
}

static size_t take_stderr(struct ex *x, const char *data, size_t len)
{
    size_t at = 0;

    while (spilled(x) && at < len) {
        if (x->note_len > 0 || data[at] == '\0') {
            note_byte(x, data[at++]);
            continue;
        }
        const char *nul = memchr(data + at, '\0', len - at);
        size_t run = nul ? (size_t)(nul - data) - at : len - at;
        size_t n = put(x->base.err, data + at, run);
        at += n;
        if (n < run)
            break;
    }
    return at;
}

static size_t data(void *arg, bool to_stderr, const char *bytes, size_t len)
{
    struct ex *x = arg;
    size_t n = to_stderr ? take_stderr(x, bytes, len) : put(x->base.out, bytes, len);

    pthread_mutex_lock(&x->lock);
    x->blocked = n < len;
    x->last_ms = sg_now_ms();
    pthread_mutex_unlock(&x->lock);
    return n;
}

static void started(void *arg, uint32_t pid)
{
    struct ex *x = arg;

    pthread_mutex_lock(&x->lock);
    x->pid = pid;
    bool tell = !x->released && !x->ended;
    enum sg_killed_by why = x->why;
    pthread_mutex_unlock(&x->lock);
    if (tell)
        x->sink.started(x->sink.arg);
    if (why != SG_KILLED_NOT)
        x_kill(&x->base, why);
    if (x->base.in)
        feed(x);
}

static void kill_unknown(struct ex *x)
{
    pthread_mutex_lock(&x->lock);
    bool begin = !x->killing;
    x->killing = true;
    x->kills = 0;
    pthread_mutex_unlock(&x->lock);
    if (begin)
        kill_now(ex_ref(x));
}

/* The stream failed: what became of the command is not known, unless it is known that it never began. */
static void stream_failed(void *arg, const struct sg_error *err)
{
    struct ex *x = arg;
    json_int_t status = json_integer_value(json_object_get(err->members, "provider_status"));
    struct sg_error why = {0};
    bool never = x->pid == 0 && (err->code == SG_UNAVAILABLE || err->code == SG_CWD_NOT_FOUND || (status >= 400 && status < 500));

    if (never || err->code == SG_SANDBOX_LOST || err->code == SG_SHUTTING_DOWN) {
        end_failed(x, err);
    } else {
        sg_error_set(&why, SG_OUTCOME_UNKNOWN, "what became of the command is not known: %.300s", err->message);
        sg_error_member(&why, "provider", json_string("e2b"));
        if (status)
            sg_error_member(&why, "provider_status", json_integer(status));
        kill_unknown(x); /* nobody can have it any more */
        end_failed(x, &why);
    }
    sg_error_clear(&why);
    ex_unref(x);
}

static void over(void *arg, int code, const struct sg_error *err)
{
    struct ex *x = arg;

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
    ex_unref(x);
}

/* ---- beginning ---- */

static void room_wake(void *arg)
{
    struct ex *x = arg;

    if (x->stream) /* else it has not begun */
        e2b_stream_resume(x->stream);
}

static void waker_ref(void *arg)
{
    (void)ex_ref(arg);
}

static void waker_unref(void *arg)
{
    ex_unref(arg);
}

static void x_release(struct sg_exec *base)
{
    struct ex *x = (struct ex *)base;

    pthread_mutex_lock(&x->lock);
    x->released = true;
    pthread_mutex_unlock(&x->lock);
    ex_unref(x);
}

static const struct sg_exec_ops ex_ops = {.kill = x_kill, .signal = x_signal, .release = x_release};

static struct ex *ex_new(struct e2b_sandbox *sb, const struct sg_exec_spec *spec, const struct sg_exec_sink *sink)
{
    struct ex *x = sg_xcalloc(1, sizeof *x);
    uint8_t random[KEY_HEX / 2];

    x->refs = 3; /* the caller's, the stream's, and one until it has begun */
    x->base.ops = &ex_ops;
    x->base.in = spec->stdin_open ? sg_pipe_new(spec->pipe_bytes) : NULL;
    x->base.out = sg_pipe_new(spec->pipe_bytes);
    x->base.err = sg_pipe_new(spec->pipe_bytes);
    x->sb = (struct e2b_sandbox *)sg_sandbox_ref(&sb->base);
    x->sink = *sink;
    x->started_us = sg_now_us();
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        abort();
    sg_hex(random, sizeof random, x->key);
    pthread_mutex_init(&x->lock, NULL);
    x->timeout = sg_xcalloc(1, sizeof *x->timeout);
    x->timeout->refs = 2;
    x->timeout->x = ex_ref(x);
    return x;
}

struct wrapped {
    const char **argv;
    char **env; /* NAME=VALUE, as many as there are */
    size_t n_env;
};

static void wrapped_finish(struct wrapped *w)
{
    for (size_t i = 0; i < w->n_env; i++)
        free(w->env[i]);
    free(w->env);
    free(w->argv);
}

/* The wrapper around the command. count: room for the number of variables, which lives as long. */
static void wrap(const struct ex *x, const struct sg_exec_spec *spec, char count[16], struct wrapped *w)
{
    size_t n = 0, at = 0;
    while (spec->argv[n])
        n++;
    w->n_env = spec->env ? spec->env->n : 0;
    w->env = sg_xcalloc(w->n_env + 1, sizeof *w->env);
    w->argv = sg_xcalloc(n + w->n_env + 8, sizeof *w->argv);
    snprintf(count, 16, "%zu", w->n_env);
    const char *const head[] = {"perl", "-e", e2b_script_wrap, x->key, count};
    for (size_t i = 0; i < SG_COUNT_OF(head); i++)
        w->argv[at++] = head[i];
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
    struct ex *x = ex_new(sb, spec, sink);
    sg_cleanup(wrapped_finish) struct wrapped w = {0};
    char count[16];
    wrap(x, spec, count, &w);
    sg_cleanup(sg_free_p) char *cwd = directory(sb, spec->cwd);
    sg_cleanup(sg_free_p) char *marker = sg_xasprintf("SANDGATE_EXEC=%s", x->key);
    const struct sg_waker room = {.wake = room_wake, .ref = waker_ref, .unref = waker_unref, .arg = x};
    const struct sg_waker input = {.wake = in_wake, .ref = waker_ref, .unref = waker_unref, .arg = x};
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
        x->timeout->refs = 1;
        drop_timeout(x);
        x->refs = 1;
        ex_unref(x);
        return -1;
    }
    sg_alarm(sb->d->alarms, spec->timeout_ms, timed_out, x->timeout);
    ex_unref(x);
    return 0;
}
