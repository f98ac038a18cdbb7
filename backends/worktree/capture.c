#include "backends/worktree/capture.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/buf.h"

#define PIPE_BYTES (64U * 1024U)
#define ERR_MAX 2048U
#define PIECE 16384U

struct capture {
    atomic_int refs; /* the starter's, the sink's, the wakers' */
    struct sg_agent *agent;
    struct sg_exec *x;
    struct sg_pipe *out, *err, *to;
    void (*done)(void *arg, const struct sg_capture_result *r, const struct sg_error *err);
    void *arg;
    size_t out_max;

    pthread_mutex_t lock; /* guards the rest */
    struct sg_buf kept_out, kept_err;
    bool cut;
    char held[PIECE]; /* taken from out, not yet taken by to */
    size_t held_at, held_len;
    bool dropping;
    bool ended, failed, told;
    struct sg_exit exit;
    struct sg_error why;
};

static void c_ref(void *arg)
{
    atomic_fetch_add(&((struct capture *)arg)->refs, 1);
}

static void c_unref(void *arg)
{
    struct capture *c = arg;
    if (atomic_fetch_sub(&c->refs, 1) > 1)
        return;
    if (c->x != NULL)
        c->x->ops->release(c->x);
    sg_pipe_unref(c->out);
    sg_pipe_unref(c->err);
    sg_pipe_unref(c->to);
    sg_buf_finish(&c->kept_out);
    sg_buf_finish(&c->kept_err);
    sg_error_clear(&c->why);
    sg_agent_unref(c->agent);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* ---- moving bytes; the lock is held ---- */

static void keep(struct capture *c)
{
    char piece[PIECE];
    ssize_t n;
    while ((n = sg_pipe_read(c->out, piece, sizeof piece)) > 0)
        if (sg_buf_add_some(&c->kept_out, piece, (size_t)n) < (size_t)n)
            c->cut = true;
}

/* False: nobody reads any more. What still comes is thrown away, or the command could not end. */
static bool pass_on(struct capture *c)
{
    ssize_t n;
    while (!c->dropping) {
        while (c->held_at < c->held_len && (n = sg_pipe_write(c->to, c->held + c->held_at, c->held_len - c->held_at)) != 0) {
            c->dropping = n < 0;
            c->held_at = n < 0 ? c->held_len : c->held_at + (size_t)n;
        }
        if (c->held_at < c->held_len)
            return true;
        n = c->dropping ? 0 : sg_pipe_read(c->out, c->held, sizeof c->held);
        if (n <= 0 && !c->dropping)
            return true;
        c->held_at = 0;
        c->held_len = (size_t)n;
    }
    while (sg_pipe_read(c->out, c->held, sizeof c->held) > 0)
        ;
    return false;
}

static bool move(struct capture *c)
{
    char piece[PIECE];
    ssize_t n;
    while ((n = sg_pipe_read(c->err, piece, sizeof piece)) > 0)
        (void)sg_buf_add_some(&c->kept_err, piece, (size_t)n);
    if (c->to != NULL)
        return pass_on(c);
    keep(c);
    return true;
}

/* ---- the end ---- */

static void detach(struct capture *c)
{
    sg_pipe_set_reader(c->out, NULL);
    sg_pipe_set_reader(c->err, NULL);
    if (c->to != NULL)
        sg_pipe_set_writer(c->to, NULL);
}

static void end_pipe(struct capture *c)
{
    struct sg_error err = {0};
    if (!c->failed && c->exit.signal == 0 && c->exit.returncode == 0) {
        sg_pipe_close(c->to);
        return;
    }
    sg_error_set(&err, SG_UNAVAILABLE, "a command ended before it had said everything: %.200s",
                 c->kept_err.len > 0 ? c->kept_err.data : "");
    sg_pipe_fail(c->to, c->failed ? &c->why : &err);
    sg_error_clear(&err);
}

/* Once, when all has been read; drops the sink's reference. */
static void tell(struct capture *c)
{
    detach(c);
    if (c->to != NULL)
        end_pipe(c);
    size_t len = 0;
    char *out = sg_buf_steal(&c->kept_out, &len);
    struct sg_capture_result r = {.exit = c->exit, .out = out, .out_len = len, .out_cut = c->cut, .err = c->kept_err.len > 0 ? c->kept_err.data : ""};
    c->done(c->arg, c->failed ? NULL : &r, c->failed ? &c->why : NULL);
    free(out);
    c_unref(c);
}

/* Something came, or there is room again, or it is over. */
static void go_on(void *arg)
{
    struct capture *c = arg;
    pthread_mutex_lock(&c->lock);
    bool read = move(c);
    bool over = c->ended && !c->told && (!read || c->to == NULL || c->failed || c->held_at == c->held_len);
    c->told = c->told || over;
    bool stop = !read && !c->ended;
    pthread_mutex_unlock(&c->lock);
    if (stop)
        c->x->ops->kill(c->x, SG_KILLED_CALLER);
    if (over)
        tell(c);
}

static void on_started(void *arg)
{
    (void)arg;
}

static void on_failed(void *arg, const struct sg_error *err)
{
    struct capture *c = arg;
    pthread_mutex_lock(&c->lock);
    c->ended = c->failed = true;
    sg_error_copy(&c->why, err);
    pthread_mutex_unlock(&c->lock);
    go_on(c);
}

static void on_exited(void *arg, const struct sg_exit *exit)
{
    struct capture *c = arg;
    pthread_mutex_lock(&c->lock);
    c->ended = true;
    c->exit = *exit;
    pthread_mutex_unlock(&c->lock);
    go_on(c);
}

/* ---- start ---- */

/* The end may have come while the wakers were put in: then they go again, or pipes and capture would hold on to each other. */
static void attach(struct capture *c)
{
    const struct sg_waker w = {.wake = go_on, .ref = c_ref, .unref = c_unref, .arg = c};
    sg_pipe_set_reader(c->out, &w);
    sg_pipe_set_reader(c->err, &w);
    if (c->to != NULL)
        sg_pipe_set_writer(c->to, &w);
    pthread_mutex_lock(&c->lock);
    bool told = c->told;
    pthread_mutex_unlock(&c->lock);
    if (told)
        detach(c);
}

int sg_capture(const struct sg_capture_args *args, struct sg_error *err)
{
    struct capture *c = sg_xcalloc(1, sizeof *c);
    struct sg_exec_spec spec = {
        .argv = args->argv, .cwd = args->cwd, .env = args->env, .timeout_ms = args->timeout_ms, .pipe_bytes = PIPE_BYTES};
    struct sg_exec_sink sink = {.started = on_started, .failed = on_failed, .exited = on_exited, .arg = c};
    atomic_init(&c->refs, 2);
    c->agent = sg_agent_ref(args->agent);
    c->done = args->done;
    c->arg = args->arg;
    c->to = args->to != NULL ? sg_pipe_ref(args->to) : NULL;
    sg_buf_init(&c->kept_out, args->out_max);
    sg_buf_init(&c->kept_err, ERR_MAX);
    pthread_mutex_init(&c->lock, NULL);
    struct sg_exec *x = NULL;
    pthread_mutex_lock(&c->lock); /* so that the end, if it comes now, finds the pipes */
    int rc = sg_agent_exec_start(c->agent, &spec, NULL, &sink, &x, err);
    if (rc == 0) {
        c->x = x;
        c->out = sg_pipe_ref(x->out);
        c->err = sg_pipe_ref(x->err);
    }
    pthread_mutex_unlock(&c->lock);
    if (rc < 0) {
        c_unref(c);
        c_unref(c);
        return -1;
    }
    attach(c);
    c_unref(c);
    return 0;
}
