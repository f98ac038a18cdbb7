/* A directory on its way in. The body goes to a nameless file on the sandbox's own disk; when it is there it is checked
 * whole (tar_unpack_scan.c), then unpacked into a directory of its own beside the target (tar_unpack_extract.c), and that
 * is merged into the target in one step of the sandbox (tar_unpack_merge.c). What was read of the nameless file is given
 * back to the disk on the way, so that an archive and its content need not both fit. This file takes the turns. */
#include "service/tar_unpack_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/fd.h"

/* ---- life ---- */

static void unpack_free(struct sg_stepper *s)
{
    struct unpack *u = sg_container_of(s, struct unpack, stepper);

    sg_unpack_answer_finish(&u->got);
    sg_unpack_answer_finish(&u->next);
    sg_error_clear(&u->why);
    sg_error_clear(&u->ahead_error);
    sg_digester_free(u->digester);
    sg_pipe_unref(u->body);
    sg_cancel_unref(u->cancel);
    sg_sandbox_unref(u->sb);
    sg_entry_unref(u->lease);
    free(u->prefix);
    free(u->path);
    free(u);
}

/* Lets go of the body and of what is open, so that the sandbox's slot is not kept. */
static void release(struct unpack *u)
{
    if (u->sink)
        u->sink->ops->abort(u->sink);
    u->sink = NULL;
    sg_unpack_close_archive(u);
    if (u->records) {
        sg_pipe_set_writer(u->records, NULL);
        sg_pipe_fail(u->records, &u->why);
    }
    u->records = sg_pipe_unref(u->records);
    sg_buf_finish(&u->head);
    if (u->body) {
        sg_pipe_set_reader(u->body, NULL);
        sg_pipe_stop(u->body);
    }
}

static void finish(struct unpack *u, const struct sg_error *err)
{
    release(u);
    if (u->hooked && u->lease && sg_cancel_unhook(sg_entry_cancel(u->lease), &u->lease_end))
        sg_stepper_unref(&u->stepper);
    if (u->hooked && sg_cancel_unhook(u->cancel, &u->hangup))
        sg_stepper_unref(&u->stepper);
    for (size_t i = 0; i < u->n_dirs; i++)
        free(u->dirs[i].path);
    free(u->dirs);
    free(u->piece);
    free(u->stage);
    free(u->target);
    u->done.fn(u->done.arg, err ? NULL : &u->result, err);
    if (u->lease)
        sg_entry_use_end(u->lease, !err);
    sg_stepper_unref(&u->stepper);
}

static void forgotten(void *arg SG_UNUSED, const struct sg_error *err SG_UNUSED)
{
}

/* No turn will come any more: the stage must go all the same. */
static void no_worker(struct sg_stepper *s, const struct sg_error *err)
{
    struct unpack *u = sg_container_of(s, struct unpack, stepper);

    if (u->stage)
        (void)u->files->remove(u->sb, u->stage, true, NULL, &(struct sg_done){forgotten, NULL}, NULL);
    finish(u, u->why.code != SG_OK ? &u->why : err);
}

/* ---- turns ---- */

static void lease_ended(struct sg_cancel_hook *h, enum sg_cancel_reason why SG_UNUSED)
{
    struct unpack *u = sg_container_of(h, struct unpack, lease_end);

    pthread_mutex_lock(&u->stepper.lock);
    u->lease_over = true;
    pthread_mutex_unlock(&u->stepper.lock);
    sg_stepper_kick(&u->stepper);
    sg_stepper_unref(&u->stepper);
}

static void client_left(struct sg_cancel_hook *h, enum sg_cancel_reason why SG_UNUSED)
{
    struct unpack *u = sg_container_of(h, struct unpack, hangup);

    pthread_mutex_lock(&u->stepper.lock);
    u->left = true;
    pthread_mutex_unlock(&u->stepper.lock);
    sg_stepper_kick(&u->stepper);
    sg_stepper_unref(&u->stepper);
}

static enum sg_step begin(struct unpack *u, struct sg_error *err)
{
    u->piece = malloc(PIECE);
    if (!u->piece) {
        sg_error_set(err, SG_NO_MEMORY, "no memory for an archive");
        return SG_STEP_OVER;
    }
    u->hooked = true;
    if (u->lease) {
        sg_stepper_ref(&u->stepper);
        sg_cancel_hook(sg_entry_cancel(u->lease), &u->lease_end);
    }
    sg_stepper_ref(&u->stepper);
    sg_cancel_hook(u->cancel, &u->hangup);
    u->state = LOOK;
    return sg_unpack_ask_text(u, u->ops->resolve, err) < 0 ? SG_STEP_OVER : SG_STEP_WAIT;
}

/* What is there of the target. */
static enum sg_step looked(struct unpack *u, struct sg_error *err)
{
    u->result.created = u->got.error.code == SG_NOT_FOUND;
    if (u->got.error.code != SG_OK && !u->result.created) {
        sg_error_copy(err, &u->got.error);
        return SG_STEP_OVER;
    }
    if (!u->result.created && u->got.type != SG_FILE_DIRECTORY) {
        sg_error_set(err, SG_NOT_A_DIRECTORY, "there is something that is not a directory");
        return SG_STEP_OVER;
    }
    u->target = sg_steal(&u->got.text);
    if (u->fd >= 0) { /* the archive is there already */
        u->state = SCAN;
        return SG_STEP_MORE;
    }
    u->state = SCRATCH;
    sg_unpack_asking(u);
    int rc = u->ops->scratch(u->sb, u->path, &(struct sg_file_source_done){sg_unpack_got_scratch, u}, err);
    return sg_unpack_asked(u, rc) < 0 ? SG_STEP_OVER : SG_STEP_WAIT;
}

static enum sg_step start_receiving(struct unpack *u)
{
    struct sg_waker w = {.wake = sg_stepper_kick, .ref = sg_stepper_ref, .unref = sg_stepper_unref, .arg = &u->stepper};

    u->fd = u->got.source.fd;
    u->hold = u->got.source.hold;
    u->got.source = (struct sg_file_source){.fd = -1};
    u->state = RECEIVE;
    if (!u->body)
        u->body = sg_pipe_ref(u->source.open(u->source.arg));
    sg_pipe_set_reader(u->body, &w);
    return SG_STEP_MORE;
}

/* The sandbox has answered what was asked in this state. */
static enum sg_step take_answer(struct unpack *u, struct sg_error *err)
{
    if (u->state == LOOK)
        return looked(u, err);
    if (u->state == CLEAN)
        return SG_STEP_OVER; /* whatever came of it: the sandbox is going, or its commands are at work there */
    if (u->got.error.code != SG_OK) {
        sg_error_copy(err, &u->got.error);
        if (u->state == EXTRACT)
            sg_error_wrap(err, "%s", u->entry.path);
        return SG_STEP_OVER;
    }
    switch (u->state) {
    case SCRATCH:
        return start_receiving(u);
    case STAGE:
        u->stage = sg_steal(&u->got.text);
        u->state = EXTRACT;
        return sg_unpack_open_reader(u, err) < 0 ? SG_STEP_OVER : SG_STEP_MORE;
    case EXTRACT:
        u->sink = sg_steal(&u->got.sink);
        u->written = 0;
        return SG_STEP_MORE;
    case SEND: /* before all was sent: it cannot be all */
        sg_error_set(err, SG_INTERNAL, "the archive was not taken");
        return SG_STEP_OVER;
    case SENT:
        return SG_STEP_OVER;
    case MERGE:
        return sg_unpack_merged(u, err);
    case MODES:
        if (!u->target)
            u->target = sg_steal(&u->got.text);
        return SG_STEP_MORE;
    default:
        return SG_STEP_MORE;
    }
}

static enum sg_step act(struct unpack *u, struct sg_error *err)
{
    switch (u->state) {
    case BEGIN:
        return begin(u, err);
    case RECEIVE:
        return sg_unpack_receive(u, err);
    case SCAN:
        return sg_unpack_scan(u, err);
    case STAGE:
        if (u->ops->unpack)
            return sg_unpack_begin_send(u, err);
        return sg_unpack_ask_text(u, u->ops->stage, err) < 0 ? SG_STEP_OVER : SG_STEP_WAIT;
    case EXTRACT:
        return sg_unpack_extract(u, err);
    case TIMES:
        return sg_unpack_times(u, err);
    case SEND:
        return sg_unpack_send(u, err);
    case MODES:
        return sg_unpack_modes(u, err);
    default:
        return SG_STEP_WAIT;
    }
}

/* True: the turn waits for the sandbox's answer. */
static bool waits(struct unpack *u, bool *has_answer, struct sg_error *err)
{
    pthread_mutex_lock(&u->stepper.lock);
    bool wait = (u->asked && !u->answered && u->state != SEND) || u->ahead >= AHEAD_MAX;
    *has_answer = u->asked && u->answered && u->ahead < AHEAD_MAX;
    bool lease_over = u->lease_over, left = u->left;
    if (!wait && u->state == EXTRACT && u->ahead_error.code != SG_OK)
        sg_error_copy(err, &u->ahead_error);
    if (*has_answer) {
        u->asked = false;
        u->got = u->next;
        u->next = (struct answer){.source.fd = -1};
    }
    pthread_mutex_unlock(&u->stepper.lock);
    if (wait || u->state >= MERGE || err->code != SG_OK)
        return wait;
    if (lease_over)
        sg_error_set(err, SG_LEASE_GONE, "the lease ended while the archive was unpacked");
    else if (left)
        sg_error_set(err, SG_CANCELLED, "the client has left");
    return false;
}

/* It failed, or all is done. */
static enum sg_step conclude(struct unpack *u, struct sg_error *err)
{
    if (u->state != CLEAN) {
        u->why = *err;
        *err = (struct sg_error){0};
        release(u);
    }
    if (u->stage && u->state != CLEAN) {
        u->state = CLEAN;
        sg_unpack_asking(u);
        int rc = u->files->remove(u->sb, u->stage, true, NULL, &(struct sg_done){sg_unpack_got_done, u}, NULL);
        if (sg_unpack_asked(u, rc) == 0)
            return SG_STEP_WAIT;
    }
    pthread_mutex_lock(&u->stepper.lock);
    u->stepper.over = true;
    pthread_mutex_unlock(&u->stepper.lock);
    finish(u, u->why.code != SG_OK ? &u->why : NULL);
    sg_error_clear(err);
    return SG_STEP_OVER;
}

static enum sg_step step(struct sg_stepper *s)
{
    struct unpack *u = sg_container_of(s, struct unpack, stepper);
    struct sg_error err = {0};
    bool has_answer = false;
    enum sg_step did = SG_STEP_MORE;

    for (unsigned turn = 0; turn < TURN_ENTRIES; turn++) {
        if (waits(u, &has_answer, &err))
            return SG_STEP_WAIT;
        if (err.code != SG_OK) {
            sg_unpack_answer_finish(&u->got);
            return conclude(u, &err);
        }
        if (has_answer) {
            did = take_answer(u, &err);
            sg_unpack_answer_finish(&u->got);
        } else {
            did = act(u, &err);
        }
        if (did == SG_STEP_OVER)
            return conclude(u, &err);
        if (did == SG_STEP_WAIT || u->state == RECEIVE || u->state == SCAN)
            return did;
    }
    return SG_STEP_MORE;
}

static const struct sg_file_ops *tree_files(struct sg_sandbox *sb, struct sg_error *err)
{
    const struct sg_file_ops *files = sg_sandbox_files(sb, err);

    if (files && !files->tree) {
        sg_error_set(err, SG_NOT_SUPPORTED, "this backend has no archives of directories");
        return NULL;
    }
    return files;
}

/* Takes over the reference of sb. */
static struct unpack *unpack_new(struct sg_sandbox *sb, const struct sg_file_ops *files, const char *path, struct sg_cancel *cancel,
                                 struct sg_workq *workq, const struct sg_tar_stored *done)
{
    struct unpack *u = sg_xcalloc(1, sizeof *u);

    *u = (struct unpack){.sb = sb, .files = files, .ops = files->tree, .done = *done, .path = sg_xstrdup(path), .fd = -1,
                         .got.source.fd = -1, .next.source.fd = -1};
    u->lease_end.fired = lease_ended;
    u->hangup.fired = client_left;
    u->cancel = sg_cancel_ref(cancel);
    sg_stepper_init(&u->stepper, workq);
    u->stepper.step = step;
    u->stepper.failed = no_worker;
    u->stepper.free = unpack_free;
    return u;
}

/* An archive that is received. */
static void start_with(struct unpack *u, const struct sg_tar_put_args *args)
{
    u->limits = (struct sg_tar_limits){.entries = SG_TAR_ENTRIES_MAX, .bytes = SG_TAR_BYTES_MAX, .outside_links = args->outside_links};
    sg_stepper_kick(&u->stepper);
}

int sg_tar_unpack(struct sg_sandbox *sb, const struct sg_tar_put_args *args, struct sg_pipe *body, struct sg_workq *workq,
                  const struct sg_tar_stored *done, struct sg_error *err)
{
    const struct sg_file_ops *files = tree_files(sb, err);

    if (!files)
        return -1;
    struct unpack *u = unpack_new(sg_sandbox_ref(sb), files, args->path, args->cancel, workq, done);
    u->body = sg_pipe_ref(body);
    start_with(u, args);
    return 0;
}

int sg_service_tar_put(struct sg_entry *lease, const struct sg_tar_put_args *args, const struct sg_digests *digests,
                       const struct sg_upload_body *body, struct sg_workq *workq, const struct sg_tar_stored *done,
                       struct sg_error *err)
{
    struct sg_sandbox *sb = NULL;

    if (sg_entry_use_begin(lease, &sb, err) < 0)
        return -1;
    const struct sg_file_ops *files = tree_files(sb, err);
    if (!files) {
        sg_entry_use_end(lease, false);
        sg_sandbox_unref(sb);
        return -1;
    }
    struct unpack *u = unpack_new(sb, files, args->path, args->cancel, workq, done);
    u->lease = sg_entry_ref(lease);
    u->digester = digests ? sg_digester_new(digests) : NULL;
    u->source = *body;
    start_with(u, args);
    return 0;
}

int sg_tar_restore(const struct sg_tar_restore_args *args, struct sg_workq *workq, const struct sg_tar_stored *done,
                   struct sg_error *err)
{
    const struct sg_file_ops *files = tree_files(args->sb, err);
    struct stat st;

    if (!files)
        return -1;
    int fd = fcntl(args->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0 || fstat(fd, &st) < 0) {
        sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot read the archive");
        sg_close(fd);
        return -1;
    }
    struct unpack *u = unpack_new(sg_sandbox_ref(args->sb), files, args->path, args->cancel, workq, done);
    u->fd = fd;
    u->received = (uint64_t)st.st_size;
    u->prefix = sg_xstrdup(args->prefix);
    u->now_ns = sg_wall_us() * 1000;
    u->limits = (struct sg_tar_limits){.entries = SG_TAR_ENTRIES_MAX * SG_TAR_ROOTS_MAX, .bytes = SG_TAR_BYTES_MAX, .outside_links = true};
    sg_stepper_kick(&u->stepper);
    return 0;
}
