#include "service/run.h"

#include "base/buf.h"
#include "base/clock.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

/* stdin that never has to wait for others' memory. */
#define INPUT_ALWAYS ((size_t)64 * 1024)

/* What is kept of both streams, for as long as anybody reads it. */
struct kept {
    struct sg_run_memory *memory;
    size_t reserved;
    struct sg_buf out, err;
    struct sg_hold *hold; /* frees it with its last reference */
};

struct stream {
    struct sg_run *run;
    struct sg_pipe *pipe; /* the exec's, referenced */
    struct sg_buf *kept;  /* in run->kept; NULL: nothing more is kept, so that what is kept is the head */
    uint64_t total;
};

struct sg_run {
    _Atomic int refs;
    _Atomic bool started;
    pthread_mutex_t lock; /* leaf: guards what follows */
    struct sg_exec *exec; /* until released */
    bool attached;    /* the pipes are connected */
    bool end_pending; /* the end came before that */
    struct sg_error end_error;
    bool ended;
    struct stream out, err;
    struct sg_exec_log *log; /* or NULL */
    bool dying;              /* it was killed: what it still writes is little, nobody waits for readers any more */
    struct kept *kept; /* one reference on its hold; NULL: dropped */
    struct sg_pipe *in;
    const uint8_t *stdin_data;
    size_t stdin_len, stdin_done;
    struct sg_run_memory *memory;
    size_t input; /* bytes of stdin that count there */
    struct sg_exit exit;
    bool stdin_stays;
    int64_t started_us;
    void (*told_start)(void *arg);
    void (*done)(void *arg, struct sg_run *run, const struct sg_error *err);
    void *arg;
};

static void kept_free(void *arg)
{
    struct kept *k = arg;

    atomic_fetch_sub(&k->memory->used, k->reserved);
    sg_buf_finish(&k->out);
    sg_buf_finish(&k->err);
    free(k);
}

static struct kept *kept_new(struct sg_run_memory *memory, size_t max)
{
    struct kept *k = sg_xcalloc(1, sizeof *k);

    k->memory = memory;
    sg_buf_init(&k->out, max);
    sg_buf_init(&k->err, max);
    k->hold = sg_hold_new(kept_free, k);
    return k;
}

struct sg_run *sg_run_ref(struct sg_run *run)
{
    run->refs++;
    return run;
}

/* The run's lock is held, or nobody else has it: its stdin is in nobody's memory any more. */
static void release_input(struct sg_run *run)
{
    run->memory->used -= run->input;
    run->input = 0;
}

struct sg_run *sg_run_unref(struct sg_run *run)
{
    if (!run || --run->refs > 0)
        return NULL;
    release_input(run);
    if (run->exec)
        run->exec->ops->release(run->exec);
    sg_pipe_unref(run->out.pipe);
    sg_pipe_unref(run->err.pipe);
    sg_pipe_unref(run->in);
    if (run->kept)
        sg_hold_unref(run->kept->hold);
    sg_exec_log_unref(run->log);
    sg_error_clear(&run->end_error);
    pthread_mutex_destroy(&run->lock);
    free(run);
    return NULL;
}

static void ref_run(void *arg)
{
    sg_run_ref(((struct stream *)arg)->run);
}

static void unref_run(void *arg)
{
    sg_run_unref(((struct stream *)arg)->run);
}

/* The run's lock is held. What once was not kept ends the keeping: a hole in the output would be worse than its end. */
static void keep(struct stream *s, const char *data, size_t n)
{
    struct kept *k = s->run->kept;

    if (!s->kept)
        return;
    size_t room = s->kept->cap - s->kept->len;
    size_t want = n < room ? n : room;
    if (atomic_fetch_add(&k->memory->used, want) + want > k->memory->max || sg_buf_add_some(s->kept, data, want) < want) {
        atomic_fetch_sub(&k->memory->used, want);
        s->kept = NULL;
        return;
    }
    k->reserved += want;
    if (want < n)
        s->kept = NULL;
}

/* The run's lock is held. Takes what the pipe has, as long as the log takes it. After the end nothing may change any more. */
static void gather(struct stream *s, bool all)
{
    struct sg_run *run = s->run;
    const void *bytes;
    ssize_t n;

    while (!run->ended && (all || !run->log || !sg_exec_log_full(run->log)) && (n = sg_pipe_peek(s->pipe, &bytes)) > 0) {
        size_t piece = (size_t)n < SG_EXEC_LOG_PIECE ? (size_t)n : SG_EXEC_LOG_PIECE;
        s->total += piece;
        keep(s, bytes, piece);
        if (run->log)
            sg_exec_log_output(run->log, s == &run->out ? SG_EVENT_STDOUT : SG_EVENT_STDERR, bytes, piece);
        sg_pipe_consume(s->pipe, piece);
    }
}

/* The pipe has something; the next byte wakes us again. */
static void collect(void *arg)
{
    struct stream *s = arg;
    struct sg_run *run = s->run;

    pthread_mutex_lock(&run->lock);
    gather(s, run->dying);
    pthread_mutex_unlock(&run->lock);
    if (run->log)
        sg_exec_log_wake(run->log);
}

/* The log takes more. */
static void collect_both(void *arg)
{
    struct sg_run *run = arg;

    collect(&run->out);
    collect(&run->err);
}

static void ref_whole(void *arg)
{
    sg_run_ref(arg);
}

static void unref_whole(void *arg)
{
    sg_run_unref(arg);
}

/* Gives the command as much of its stdin as the pipe takes; space wakes us again. */
static void feed(void *arg)
{
    struct sg_run *run = arg;
    ssize_t n = 1;

    pthread_mutex_lock(&run->lock);
    while (run->in && run->stdin_done < run->stdin_len &&
           (n = sg_pipe_write(run->in, run->stdin_data + run->stdin_done, run->stdin_len - run->stdin_done)) > 0)
        run->stdin_done += (size_t)n;
    bool all = run->stdin_done >= run->stdin_len || n < 0; /* a command that closed its stdin wants no more */
    struct sg_pipe *in = all && run->in ? sg_pipe_ref(run->in) : NULL;
    pthread_mutex_unlock(&run->lock);
    if (in) {
        sg_pipe_close(in);
        sg_pipe_unref(in);
    }
}

static void detach_pipes(struct sg_run *run)
{
    sg_pipe_set_reader(run->out.pipe, NULL);
    sg_pipe_set_reader(run->err.pipe, NULL);
    if (run->in && !run->stdin_stays)
        sg_pipe_set_writer(run->in, NULL);
    if (run->log)
        sg_exec_log_set_space(run->log, NULL);
}

/* Ends the run once; the reference that the sink held goes with it. */
static void finish(struct sg_run *run, const struct sg_error *err)
{
    pthread_mutex_lock(&run->lock);
    gather(&run->out, true); /* what is left is no more than the pipes hold */
    gather(&run->err, true);
    run->ended = true;
    run->stdin_data = NULL;
    run->stdin_len = run->stdin_done = 0;
    release_input(run);
    pthread_mutex_unlock(&run->lock);
    detach_pipes(run);
    run->done(run->arg, run, err);
    sg_run_unref(run);
}

/* The sink may report the end while sg_run_start() is still connecting the pipes: then that one finishes. */
static void report_end(struct sg_run *run, const struct sg_exit *exit, const struct sg_error *err)
{
    pthread_mutex_lock(&run->lock);
    if (exit)
        run->exit = *exit;
    bool later = !run->attached;
    if (later) {
        run->end_pending = true;
        if (err)
            sg_error_copy(&run->end_error, err);
    }
    pthread_mutex_unlock(&run->lock);
    if (!later)
        finish(run, err);
}

static void on_started(void *arg)
{
    struct sg_run *run = arg;

    run->started = true;
    if (run->told_start)
        run->told_start(run->arg);
}

static void on_failed(void *arg, const struct sg_error *err)
{
    report_end(arg, NULL, err);
}

static void on_exited(void *arg, const struct sg_exit *exit)
{
    report_end(arg, exit, NULL);
}

static void connect_pipes(struct sg_run *run)
{
    struct sg_waker w = {.wake = collect, .ref = ref_run, .unref = unref_run};
    struct sg_waker whole = {.wake = collect_both, .ref = ref_whole, .unref = unref_whole, .arg = run};

    if (run->log)
        sg_exec_log_set_space(run->log, &whole);
    w.arg = &run->out;
    sg_pipe_set_reader(run->out.pipe, &w);
    w.arg = &run->err;
    sg_pipe_set_reader(run->err.pipe, &w);
    whole.wake = feed;
    if (run->in && !run->stdin_stays)
        sg_pipe_set_writer(run->in, &whole);
}

static void attach(struct sg_run *run)
{
    connect_pipes(run);
    pthread_mutex_lock(&run->lock);
    run->attached = true;
    bool end = run->end_pending;
    bool failed = run->end_error.code != SG_OK;
    pthread_mutex_unlock(&run->lock);
    if (end) {
        finish(run, failed ? &run->end_error : NULL);
        sg_error_clear(&run->end_error);
    }
}

/* Waiting stdin shares what there is with output; what is small always has a place. */
static int take_input(const struct sg_run_args *args, struct sg_error *err)
{
    struct sg_run_memory *m = args->memory;

    if (atomic_fetch_add(&m->used, args->stdin_len) + args->stdin_len <= m->max || args->stdin_len <= INPUT_ALWAYS)
        return 0;
    m->used -= args->stdin_len;
    sg_error_set(err, SG_OVERLOADED, "what commands have been given and have written takes all the memory there is for it");
    return sg_error_retry_after(err, 1);
}

int sg_run_start(const struct sg_run_args *args, struct sg_run **ret, struct sg_error *err)
{
    if (take_input(args, err) < 0)
        return -1;
    struct sg_run *run = sg_xcalloc(1, sizeof *run);
    struct sg_exec_spec spec = args->spec;
    struct sg_exec_sink sink = {.started = on_started, .failed = on_failed, .exited = on_exited, .arg = run};

    run->refs = 2; /* the caller's and the sink's */
    pthread_mutex_init(&run->lock, NULL);
    run->out.run = run->err.run = run;
    run->memory = args->memory;
    run->input = args->stdin_len;
    run->kept = kept_new(args->memory, args->max_output_bytes);
    run->out.kept = &run->kept->out;
    run->err.kept = &run->kept->err;
    run->stdin_data = args->stdin_data;
    run->stdin_len = args->stdin_len;
    run->stdin_stays = args->stdin_stays && args->stdin_len == 0;
    run->log = args->log ? sg_exec_log_ref(args->log) : NULL;
    run->told_start = args->started;
    run->started_us = sg_now_us();
    run->done = args->done;
    run->arg = args->arg;
    spec.stdin_open = args->stdin_len > 0 || run->stdin_stays;
    if (sg_sandbox_exec(args->sb, &spec, &sink, &run->exec, err) < 0) {
        run->refs = 1;
        sg_run_unref(run);
        return -1;
    }
    run->out.pipe = sg_pipe_ref(run->exec->out);
    run->err.pipe = sg_pipe_ref(run->exec->err);
    run->in = run->exec->in ? sg_pipe_ref(run->exec->in) : NULL;
    *ret = run;
    attach(run);
    return 0;
}

void sg_run_kill(struct sg_run *run, enum sg_killed_by why)
{
    pthread_mutex_lock(&run->lock);
    run->dying = true;
    pthread_mutex_unlock(&run->lock);
    run->exec->ops->kill(run->exec, why);
    if (run->log)
        collect_both(run);
}

struct sg_pipe *sg_run_stdin(const struct sg_run *run)
{
    return run->stdin_stays ? run->in : NULL;
}

int sg_run_signal(struct sg_run *run, int signo, struct sg_error *err)
{
    return run->exec->ops->signal(run->exec, signo, err);
}

int sg_run_resize(struct sg_run *run, struct sg_tty_size size, const struct sg_done *done, struct sg_error *err)
{
    return run->exec->ops->resize(run->exec, size.rows, size.cols, done, err);
}

bool sg_run_has_started(const struct sg_run *run)
{
    return run->started;
}

void sg_run_outcome(struct sg_run *run, struct sg_exec_result *ret)
{
    pthread_mutex_lock(&run->lock);
    const struct kept *k = run->kept;
    ret->keep = k ? sg_hold_ref(k->hold) : NULL;
    ret->out = (struct sg_exec_output){k ? k->out.data : NULL, k ? k->out.len : 0, run->out.total};
    ret->err = (struct sg_exec_output){k ? k->err.data : NULL, k ? k->err.len : 0, run->err.total};
    ret->exit = run->exit;
    pthread_mutex_unlock(&run->lock);
}

size_t sg_run_bytes(struct sg_run *run)
{
    pthread_mutex_lock(&run->lock);
    size_t n = run->kept ? run->kept->out.len + run->kept->err.len : 0;
    pthread_mutex_unlock(&run->lock);
    return n;
}

void sg_run_drop_output(struct sg_run *run)
{
    pthread_mutex_lock(&run->lock);
    struct kept *k = sg_steal(&run->kept);
    pthread_mutex_unlock(&run->lock);
    if (k)
        sg_hold_unref(k->hold);
}

void sg_run_set_lease_end(struct sg_run *run)
{
    run->exit = (struct sg_exit){.signal = SIGKILL,
                                 .killed_by = SG_KILLED_LEASE_END,
                                 .duration_us = sg_now_us() - run->started_us};
}
