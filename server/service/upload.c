/* A file being received: the body pipe is emptied into the driver's sink by one worker item at a time.
 *
 * The pipe's waker and the worker item hand the upload to each other: `busy` says that an item is queued or running, `again` that
 * the pipe had news meanwhile. So no thread ever waits for a slow client, and pieces never overtake one another.
 */
#include "service/files.h"

#include "base/workq.h"

#include <errno.h>
#include <pthread.h>

#define PIECE (128U * 1024U)
/* A worker gives others a turn after this much. */
#define TURN_BYTES (8U * 1024U * 1024U)

struct upload {
    _Atomic int refs;
    struct sg_work work;
    struct sg_entry *lease;
    struct sg_sandbox *sb;
    struct sg_file_sink *sink;
    struct sg_upload_body source;
    struct sg_pipe *body; /* once the sandbox has agreed */
    struct sg_workq *workq;
    struct sg_file_stored done;
    struct sg_digester *digester; /* worker only */
    pthread_mutex_t lock;
    bool busy, again, over;
    bool lease_over;
    struct sg_cancel_hook lease_end;
    bool hooked;
};

static void upload_ref(void *arg)
{
    ((struct upload *)arg)->refs++;
}

static void upload_unref(void *arg)
{
    struct upload *u = arg;

    if (--u->refs > 0)
        return;
    sg_digester_free(u->digester);
    sg_pipe_unref(u->body);
    sg_sandbox_unref(u->sb);
    sg_entry_unref(u->lease);
    pthread_mutex_destroy(&u->lock);
    free(u);
}

/* Tells the caller and drops the upload's own reference. */
static void finish(struct upload *u, const struct sg_file_stat *st, bool created, const struct sg_error *err)
{
    if (u->hooked && sg_cancel_unhook(sg_entry_cancel(u->lease), &u->lease_end))
        upload_unref(u);
    if (u->body) {
        sg_pipe_set_reader(u->body, NULL);
        sg_pipe_stop(u->body);
    }
    u->done.fn(u->done.arg, st, created, err);
    sg_entry_use_end(u->lease, !err);
    upload_unref(u);
}

static void committed(void *arg, const struct sg_file_stat *st, bool created, const struct sg_error *err)
{
    finish(arg, st, created, err);
}

static void give_up(struct upload *u, const struct sg_error *err)
{
    pthread_mutex_lock(&u->lock);
    bool first = !u->over;
    u->over = true;
    pthread_mutex_unlock(&u->lock);
    if (!first)
        return;
    u->sink->ops->abort(u->sink);
    finish(u, NULL, false, err);
}

enum moved { MOVED_ALL, MOVED_MORE, MOVED_ENDED, MOVED_FAILED };

static enum moved move_bytes(struct upload *u, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *piece = malloc(PIECE);
    size_t turn = 0;
    ssize_t n;

    if (!piece) {
        sg_error_set(err, SG_NO_MEMORY, "no memory for the upload");
        return MOVED_FAILED;
    }
    pthread_mutex_lock(&u->lock);
    bool lease_over = u->lease_over;
    pthread_mutex_unlock(&u->lock);
    if (lease_over) {
        sg_error_set(err, SG_LEASE_GONE, "the lease ended during the upload; nothing was written");
        return MOVED_FAILED;
    }
    while ((n = sg_pipe_read(u->body, piece, PIECE)) > 0) {
        if (u->sink->ops->write(u->sink, piece, (size_t)n, err) < 0)
            return MOVED_FAILED;
        sg_digester_add(u->digester, piece, (size_t)n);
        turn += (size_t)n;
        if (turn >= TURN_BYTES)
            return MOVED_MORE;
    }
    if (n == 0)
        return sg_digester_check(u->digester, err) < 0 ? MOVED_FAILED : MOVED_ENDED;
    if (n == -EAGAIN)
        return MOVED_ALL;
    sg_pipe_error(u->body, err);
    return MOVED_FAILED;
}

static void submit(struct upload *u);

/* True when the pipe had news while the item ran: then it goes on. */
static bool rest(struct upload *u)
{
    pthread_mutex_lock(&u->lock);
    bool again = u->again;
    u->again = false;
    u->busy = again;
    pthread_mutex_unlock(&u->lock);
    return again;
}

static void run_item(struct sg_work *w)
{
    struct upload *u = sg_container_of(w, struct upload, work);
    struct sg_error err = {0};

    enum moved m = move_bytes(u, &err);
    if (m == MOVED_FAILED) {
        give_up(u, &err);
    } else if (m == MOVED_ENDED) {
        pthread_mutex_lock(&u->lock);
        bool first = !u->over;
        u->over = true;
        pthread_mutex_unlock(&u->lock);
        if (first)
            u->sink->ops->commit(u->sink, committed, u);
    } else if (m == MOVED_MORE || rest(u)) {
        submit(u);
    }
    sg_error_clear(&err);
    upload_unref(u); /* the item's */
}

static void submit(struct upload *u)
{
    struct sg_error err = {0};

    u->refs++;
    if (sg_workq_submit(u->workq, &u->work, &err) < 0) {
        give_up(u, &err);
        upload_unref(u);
    }
    sg_error_clear(&err);
}

/* The pipe has data or its end. */
static void body_readable(void *arg)
{
    struct upload *u = arg;

    pthread_mutex_lock(&u->lock);
    bool go = !u->busy && !u->over;
    if (go)
        u->busy = true;
    else
        u->again = true;
    pthread_mutex_unlock(&u->lock);
    if (go)
        submit(u);
}

/* The worker that may be writing right now is the one to stop, so that nothing is closed under it. */
static void lease_ended(struct sg_cancel_hook *h, enum sg_cancel_reason why SG_UNUSED)
{
    struct upload *u = sg_container_of(h, struct upload, lease_end);

    pthread_mutex_lock(&u->lock);
    u->lease_over = true;
    pthread_mutex_unlock(&u->lock);
    body_readable(u);
    upload_unref(u);
}

static void sink_opened(void *arg, struct sg_file_sink *sink, const struct sg_error *err)
{
    struct upload *u = arg;
    struct sg_waker w = {.wake = body_readable, .ref = upload_ref, .unref = upload_unref, .arg = u};

    if (!sink) {
        u->over = true;
        finish(u, NULL, false, err);
        return;
    }
    u->sink = sink;
    u->body = sg_pipe_ref(u->source.open(u->source.arg));
    u->lease_end.fired = lease_ended;
    u->hooked = true;
    u->refs += 2; /* the hook's, and ours until the end of this function */
    sg_cancel_hook(sg_entry_cancel(u->lease), &u->lease_end);
    sg_pipe_set_reader(u->body, &w);
    pthread_mutex_lock(&u->lock);
    bool over = u->over;
    pthread_mutex_unlock(&u->lock);
    if (over) /* it ended meanwhile, and removed no waker: pipe and upload would hold on to each other */
        sg_pipe_set_reader(u->body, NULL);
    upload_unref(u);
}

int sg_service_file_put(struct sg_entry *lease, const struct sg_file_put_args *args, const struct sg_digests *digests,
                        const struct sg_upload_body *body, struct sg_workq *workq, const struct sg_file_stored *done,
                        struct sg_error *err)
{
    struct sg_sandbox *sb = NULL;

    if (sg_entry_use_begin(lease, &sb, err) < 0)
        return -1;
    const struct sg_file_ops *ops = sg_sandbox_files(sb, err);
    struct upload *u = sg_xcalloc(1, sizeof *u);
    u->refs = 1;
    u->work.run = run_item;
    u->lease = sg_entry_ref(lease);
    u->sb = sb;
    u->source = *body;
    u->workq = workq;
    u->digester = digests ? sg_digester_new(digests) : NULL;
    u->done = *done;
    pthread_mutex_init(&u->lock, NULL);
    if (!ops || ops->put(sb, args, &(struct sg_file_sink_done){sink_opened, u}, err) < 0) {
        sg_entry_use_end(lease, false);
        upload_unref(u);
        return -1;
    }
    return 0;
}
