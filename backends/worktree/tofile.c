#include "backends/worktree/tofile.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/fd.h"

#define PIECE (64U * 1024U)
#define TURN_BYTES (4U * 1024U * 1024U)

struct tofile {
    atomic_int refs; /* ours until the end, the waker's, a turn's */
    struct sg_work work;
    struct sg_workq *workq;
    struct sg_pipe *pipe;
    int fd;
    int64_t left; /* bytes that may come; the turn's own */
    void (*done)(void *arg, const struct sg_error *err);
    void *arg;
    pthread_mutex_t lock; /* guards the rest */
    bool busy, again, over;
};

static void t_ref(void *arg)
{
    atomic_fetch_add(&((struct tofile *)arg)->refs, 1);
}

static void t_unref(void *arg)
{
    struct tofile *t = arg;
    if (atomic_fetch_sub(&t->refs, 1) > 1)
        return;
    sg_pipe_unref(t->pipe);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static void finish(struct tofile *t, const struct sg_error *err)
{
    pthread_mutex_lock(&t->lock);
    bool first = !t->over;
    t->over = true;
    pthread_mutex_unlock(&t->lock);
    if (!first)
        return;
    sg_pipe_set_reader(t->pipe, NULL);
    sg_pipe_stop(t->pipe);
    t->fd = sg_close(t->fd);
    t->done(t->arg, err);
    t_unref(t);
}

/* 1: there may be more at once; 0: not now; -1: over, with err, or without: all is there. */
static int move(struct tofile *t, struct sg_error *err)
{
    char piece[PIECE];
    for (size_t turn = 0; turn < TURN_BYTES;) {
        ssize_t n = sg_pipe_read(t->pipe, piece, sizeof piece);
        if (n == -EAGAIN)
            return 0;
        if (n < 0)
            sg_pipe_error(t->pipe, err);
        if (n <= 0)
            return -1;
        t->left -= n;
        if (t->left < 0)
            return sg_error_set(err, SG_PAYLOAD_TOO_LARGE, "it is too large");
        int e = sg_write_all(t->fd, piece, (size_t)n);
        if (e < 0)
            return sg_error_sys(err, SG_UNAVAILABLE, -e, "cannot write");
        turn += (size_t)n;
    }
    return 1;
}

static void submit(struct tofile *t);

static void turn(struct sg_work *w)
{
    struct tofile *t = sg_container_of(w, struct tofile, work);
    struct sg_error err = {0};
    int more = move(t, &err);
    if (more < 0) {
        finish(t, err.code != SG_OK ? &err : NULL);
    } else {
        pthread_mutex_lock(&t->lock);
        bool go = (more > 0 || t->again) && !t->over;
        t->again = false;
        t->busy = go;
        pthread_mutex_unlock(&t->lock);
        if (go)
            submit(t);
    }
    sg_error_clear(&err);
    t_unref(t); /* the turn's */
}

static void submit(struct tofile *t)
{
    struct sg_error err = {0};
    t_ref(t);
    if (sg_workq_submit(t->workq, &t->work, &err) == 0)
        return;
    finish(t, &err);
    sg_error_clear(&err);
    t_unref(t);
}

static void wake(void *arg)
{
    struct tofile *t = arg;
    pthread_mutex_lock(&t->lock);
    bool go = !t->busy && !t->over;
    t->again = t->again || !go;
    t->busy = t->busy || go;
    pthread_mutex_unlock(&t->lock);
    if (go)
        submit(t);
}

void sg_tofile(struct sg_pipe *p, int fd, int64_t max, struct sg_workq *q, void (*done)(void *arg, const struct sg_error *err), void *arg)
{
    struct tofile *t = sg_xcalloc(1, sizeof *t);
    const struct sg_waker w = {.wake = wake, .ref = t_ref, .unref = t_unref, .arg = t};
    atomic_init(&t->refs, 2); /* ours, and this function's */
    t->work.run = turn;
    t->workq = q;
    t->pipe = sg_pipe_ref(p);
    t->fd = fd;
    t->left = max;
    t->done = done;
    t->arg = arg;
    pthread_mutex_init(&t->lock, NULL);
    sg_pipe_set_reader(p, &w);
    pthread_mutex_lock(&t->lock);
    bool over = t->over;
    pthread_mutex_unlock(&t->lock);
    if (over) /* meanwhile: pipe and t would hold on to each other */
        sg_pipe_set_reader(p, NULL);
    t_unref(t);
}
