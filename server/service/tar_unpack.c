/* A directory on its way in. The body goes to a nameless file on the sandbox's own disk; when it is there it is checked whole, then
 * unpacked into a directory of its own beside the target, and that is merged into the target in one step of the sandbox. What was read of the
 * nameless file is given back to the disk on the way, so that an archive and its content need not both fit.
 */
#include "service/tar.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/fd.h"
#include "service/stepper.h"
#include "service/tar_reader.h"

#define PIECE (128U * 1024U)
#define TURN_BYTES (8U * 1024U * 1024U)
#define TURN_ENTRIES 256U
#define GIVE_BACK ((uint64_t)4 << 20)

enum state { BEGIN, LOOK, SCRATCH, RECEIVE, SCAN, STAGE, EXTRACT, STORED, TIMES, MERGE, MODES, CLEAN, OVER };

struct directory {
    char *path; /* below the target */
    uint32_t mode;
    int64_t mtime_ns;
};

/* What the sandbox said. */
struct answer {
    struct sg_error error;
    struct sg_file_source source;
    struct sg_file_sink *sink;
    char *text;
    enum sg_file_type type;
};

struct unpack {
    struct sg_stepper stepper; /* first */
    struct sg_entry *lease;
    struct sg_sandbox *sb;
    const struct sg_file_ops *files;
    const struct sg_tree_ops *ops;
    struct sg_tar_stored done;
    struct sg_pipe *body;
    struct sg_cancel *cancel; /* the caller's */
    struct sg_cancel_hook lease_end, hangup;
    char *path;

    /* the turn's own */
    enum state state;
    bool hooked;
    struct sg_error why; /* what went wrong, while it is cleaned up */
    struct sg_digester *digester;
    struct sg_tar_limits limits;
    struct sg_tar_reader *reader;
    struct sg_tar_entry entry;
    int fd; /* scratch */
    struct sg_hold *hold;
    uint64_t received, read_at, given_back;
    char *piece;
    char *stage;  /* the directory beside the target, as long as it is there */
    char *target; /* the target's path without links, when it was there */
    struct sg_file_sink *sink;
    uint64_t written;
    struct directory *dirs;
    size_t n_dirs, dirs_size, dirs_held, at_dir;
    struct sg_tar_result result;

    struct answer got; /* taken out of `next` */

    /* under the stepper's lock */
    bool lease_over, left;
    bool asked, answered;
    struct answer next; /* the answer's thread writes it before `answered` is set */
};

/* ---- life ---- */

static void answer_finish(struct answer *a)
{
    if (a->source.fd >= 0) {
        sg_close(a->source.fd);
        sg_hold_unref(a->source.hold);
    }
    if (a->sink)
        a->sink->ops->abort(a->sink);
    free(a->text);
    sg_error_clear(&a->error);
    *a = (struct answer){.source.fd = -1};
}

static void unpack_free(struct sg_stepper *s)
{
    struct unpack *u = sg_container_of(s, struct unpack, stepper);

    answer_finish(&u->got);
    answer_finish(&u->next);
    sg_error_clear(&u->why);
    sg_digester_free(u->digester);
    sg_pipe_unref(u->body);
    sg_cancel_unref(u->cancel);
    sg_sandbox_unref(u->sb);
    sg_entry_unref(u->lease);
    free(u->path);
    free(u);
}

/* Lets go of the body and of what is open, so that the sandbox's slot is not kept. */
static void release(struct unpack *u)
{
    if (u->sink)
        u->sink->ops->abort(u->sink);
    u->sink = NULL;
    u->reader = sg_tar_reader_free(u->reader);
    u->fd = sg_close(u->fd);
    u->hold = sg_hold_unref(u->hold);
    sg_pipe_set_reader(u->body, NULL);
    sg_pipe_stop(u->body);
}

static void finish(struct unpack *u, const struct sg_error *err)
{
    release(u);
    if (u->hooked && sg_cancel_unhook(sg_entry_cancel(u->lease), &u->lease_end))
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

/* ---- asking the sandbox ---- */

static void answered(struct unpack *u, const struct sg_error *err)
{
    pthread_mutex_lock(&u->stepper.lock);
    if (err)
        sg_error_copy(&u->next.error, err);
    u->answered = true;
    pthread_mutex_unlock(&u->stepper.lock);
    sg_stepper_kick(&u->stepper);
    sg_stepper_unref(&u->stepper);
}

static void got_text(void *arg, const char *text, const struct sg_file_stat *st, const struct sg_error *err)
{
    struct unpack *u = arg;

    if (!err) {
        u->next.text = sg_xstrdup(text);
        u->next.type = st->type;
    }
    answered(u, err);
}

static void got_scratch(void *arg, struct sg_file_source *src, const struct sg_error *err)
{
    struct unpack *u = arg;

    if (!err)
        u->next.source = *src;
    answered(u, err);
}

static void got_sink(void *arg, struct sg_file_sink *sink, const struct sg_error *err)
{
    struct unpack *u = arg;

    u->next.sink = sink;
    answered(u, err);
}

static void got_stat(void *arg, const struct sg_file_stat *st SG_UNUSED, const struct sg_error *err)
{
    answered(arg, err);
}

static void got_commit(void *arg, const struct sg_file_stat *st SG_UNUSED, bool created SG_UNUSED, const struct sg_error *err)
{
    answered(arg, err);
}

static void got_done(void *arg, const struct sg_error *err)
{
    answered(arg, err);
}

/* Before a question is put; its answer comes later. The reference is the answer's. */
static void asking(struct unpack *u)
{
    pthread_mutex_lock(&u->stepper.lock);
    u->asked = true;
    u->answered = false;
    pthread_mutex_unlock(&u->stepper.lock);
    sg_stepper_ref(&u->stepper);
}

/* After it: rc < 0 means that none will come. */
static int asked(struct unpack *u, int rc)
{
    if (rc < 0) {
        u->asked = false;
        sg_stepper_unref(&u->stepper);
    }
    return rc;
}

/* ---- the body ---- */

static int store_piece(struct unpack *u, const char *data, size_t len, struct sg_error *err)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = pwrite(u->fd, data + at, len - at, (off_t)u->received);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0 && (n == 0 || errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
            return sg_error_set(err, SG_SANDBOX_DISK_FULL, "no space left in the sandbox for the archive");
        if (n < 0)
            return sg_error_sys(err, SG_INTERNAL, errno, "cannot keep the archive");
        at += (size_t)n;
        u->received += (uint64_t)n;
    }
    return 0;
}

static enum sg_step receive(struct unpack *u, struct sg_error *err)
{
    size_t turn = 0;
    ssize_t n;

    while (turn < TURN_BYTES && (n = sg_pipe_read(u->body, u->piece, PIECE)) != 0) {
        if (n == -EAGAIN)
            return SG_STEP_WAIT;
        if (n < 0) {
            sg_pipe_error(u->body, err);
            return SG_STEP_OVER;
        }
        sg_digester_add(u->digester, u->piece, (size_t)n);
        if (store_piece(u, u->piece, (size_t)n, err) < 0)
            return SG_STEP_OVER;
        turn += (size_t)n;
    }
    if (turn >= TURN_BYTES)
        return SG_STEP_MORE;
    u->state = SCAN;
    return sg_digester_check(u->digester, err) < 0 ? SG_STEP_OVER : SG_STEP_MORE;
}

/* Bytes of the archive for the reader; the second time what was read goes back to the disk. */
static ssize_t pull(void *arg, const void **data, struct sg_error *err)
{
    struct unpack *u = arg;
    ssize_t n;

    do
        n = pread(u->fd, u->piece, PIECE, (off_t)u->read_at);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return sg_error_sys(err, SG_INTERNAL, errno, "cannot read the archive again");
    u->read_at += (uint64_t)n;
    *data = u->piece;
    if (u->state == EXTRACT && u->read_at - u->given_back > 2 * GIVE_BACK) {
        (void)fallocate(u->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)u->given_back, (off_t)GIVE_BACK);
        u->given_back += GIVE_BACK;
    }
    return n;
}

static int open_reader(struct unpack *u, struct sg_error *err)
{
    uint64_t most = u->received < UINT64_MAX / SG_TAR_RATIO ? u->received * SG_TAR_RATIO : UINT64_MAX;

    u->limits.unpacked = most > SG_TAR_RATIO_FLOOR ? most : SG_TAR_RATIO_FLOOR;
    u->reader = sg_tar_reader_free(u->reader);
    u->read_at = 0;
    return sg_tar_reader_new(&u->limits, pull, u, &u->reader, err);
}

/* The whole archive once without a trace. */
static enum sg_step scan(struct unpack *u, struct sg_error *err)
{
    const void *data;
    size_t len;
    uint64_t offset, until = u->read_at + TURN_BYTES;

    if (!u->reader && open_reader(u, err) < 0)
        return SG_STEP_OVER;
    for (size_t turn = 0; turn < TURN_BYTES && u->read_at < until; turn += TURN_BYTES / TURN_ENTRIES) {
        int rc = 1;
        for (; turn < TURN_BYTES && (rc = sg_tar_data(u->reader, &data, &len, &offset, err)) > 0;)
            turn += len;
        if (rc == 0)
            rc = sg_tar_next(u->reader, &u->entry, err);
        if (rc < 0)
            return SG_STEP_OVER;
        if (rc == 0) {
            u->result.entries = sg_tar_entries(u->reader);
            u->result.bytes = sg_tar_bytes(u->reader);
            u->state = STAGE;
            return SG_STEP_MORE;
        }
    }
    return SG_STEP_MORE;
}

/* ---- entries ---- */

static char *staged(const struct unpack *u, const char *path)
{
    return sg_xasprintf("%s%s%s", u->stage, *path ? "/" : "", path);
}

/* Directories get their times when nothing more is put into them, and their modes when nothing more is moved out of them. */
static int note_directory(struct unpack *u, struct sg_error *err)
{
    u->dirs_held += sizeof *u->dirs + strlen(u->entry.path) + 1;
    if (u->dirs_held > SG_TAR_DIRECTORIES_MAX) {
        sg_error_set(err, SG_PAYLOAD_TOO_LARGE, "the archive has too many directories");
        return sg_error_reason(err, "too_many_entries");
    }
    if (u->n_dirs == u->dirs_size) {
        size_t size = u->dirs_size ? 2 * u->dirs_size : 64;
        struct directory *grown = realloc(u->dirs, size * sizeof *grown);
        if (!grown)
            return sg_error_set(err, SG_NO_MEMORY, "no memory for the directories of an archive");
        u->dirs = grown;
        u->dirs_size = size;
    }
    u->dirs[u->n_dirs++] = (struct directory){sg_xstrdup(u->entry.path), u->entry.mode, u->entry.mtime_ns};
    return 0;
}

static int make_entry(struct unpack *u, struct sg_error *err)
{
    const struct sg_tar_entry *e = &u->entry;
    sg_cleanup(sg_free_p) char *path = staged(u, e->path);
    sg_cleanup(sg_free_p) char *target = e->kind == SG_TAR_HARDLINK ? staged(u, e->target) : NULL;
    struct sg_file_put_args put = {
        .path = path, .mode_given = true, .mode = e->mode, .size_hint = (int64_t)e->size, .mtime_given = true,
        .mtime_ns = e->mtime_ns, .no_links = true};

    if (e->kind == SG_TAR_DIRECTORY && note_directory(u, err) < 0)
        return -1;
    if (e->kind == SG_TAR_DIRECTORY && e->path[0] == '\0')
        return 0;
    asking(u);
    switch (e->kind) {
    case SG_TAR_FILE:
        return asked(u, u->files->put(u->sb, &put, &(struct sg_file_sink_done){got_sink, u}, err));
    case SG_TAR_DIRECTORY:
        return asked(u, u->ops->mkdir(u->sb, path, e->mode | 0700, &(struct sg_file_stat_done){got_stat, u}, err));
    case SG_TAR_SYMLINK:
        return asked(u, u->ops->symlink(u->sb, path, e->target, e->mtime_ns, &(struct sg_done){got_done, u}, err));
    default:
        return asked(u, u->ops->link(u->sb, path, target, &(struct sg_done){got_done, u}, err));
    }
}

/* Moves what is there of the open file; *ret_more: there is more. */
static int write_file(struct unpack *u, size_t *turn, bool *ret_more, struct sg_error *err)
{
    const void *data;
    size_t len;
    uint64_t offset;
    int rc = 1;

    while (*turn < TURN_BYTES && (rc = sg_tar_data(u->reader, &data, &len, &offset, err)) > 0) {
        if (offset > u->written && u->sink->ops->write(u->sink, NULL, (size_t)(offset - u->written), err) < 0)
            return -1;
        if (u->sink->ops->write(u->sink, data, len, err) < 0)
            return -1;
        u->written = offset + len;
        *turn += len;
    }
    *ret_more = rc > 0;
    if (rc == 0 && u->entry.size > u->written)
        return u->sink->ops->write(u->sink, NULL, (size_t)(u->entry.size - u->written), err);
    return rc < 0 ? -1 : 0;
}

static int commit_file(struct unpack *u)
{
    struct sg_file_sink *sink = u->sink;

    u->sink = NULL;
    u->state = STORED;
    asking(u);
    sink->ops->commit(sink, got_commit, u);
    return 0;
}

static enum sg_step extract(struct unpack *u, struct sg_error *err)
{
    size_t turn = 0;
    bool more = false;

    if (u->sink) {
        if (write_file(u, &turn, &more, err) < 0)
            return SG_STEP_OVER;
        if (!more)
            commit_file(u);
        return more ? SG_STEP_MORE : SG_STEP_WAIT;
    }
    int rc = sg_tar_next(u->reader, &u->entry, err);
    if (rc < 0 || (rc > 0 && make_entry(u, err) < 0))
        return SG_STEP_OVER;
    if (rc > 0)
        return SG_STEP_MORE;
    u->state = TIMES;
    u->at_dir = 0;
    /* The archive has done its service: its space may be needed for what comes. */
    u->reader = sg_tar_reader_free(u->reader);
    u->fd = sg_close(u->fd);
    u->hold = sg_hold_unref(u->hold);
    return SG_STEP_MORE;
}

/* ---- directories ---- */

static int set_directory(struct unpack *u, const char *path, uint32_t mode, int64_t mtime_ns, struct sg_error *err)
{
    asking(u);
    return asked(u, u->ops->attributes(u->sb, path, mode, mtime_ns, &(struct sg_done){got_done, u}, err));
}

static enum sg_step times(struct unpack *u, struct sg_error *err)
{
    if (u->at_dir == u->n_dirs) {
        u->state = MERGE;
        asking(u);
        return asked(u, u->ops->merge(u->sb, u->stage, u->path, &(struct sg_done){got_done, u}, err)) < 0 ? SG_STEP_OVER
                                                                                                         : SG_STEP_WAIT;
    }
    const struct directory *d = &u->dirs[u->at_dir++];
    sg_cleanup(sg_free_p) char *path = staged(u, d->path);
    return set_directory(u, path, d->mode | 0700, d->mtime_ns, err) < 0 ? SG_STEP_OVER : SG_STEP_MORE;
}

/* The few whose own user may not write to them, and the top when it is new. Deepest last named first: a parent that may not be entered
 * comes after what is in it. */
static enum sg_step modes(struct unpack *u, struct sg_error *err)
{
    while (u->at_dir > 0) {
        const struct directory *d = &u->dirs[--u->at_dir];
        bool top = d->path[0] == '\0';
        if (top ? !u->result.created : (d->mode & 0700) == 0700)
            continue;
        sg_cleanup(sg_free_p) char *path = sg_xasprintf("%s%s%s", u->target, *d->path ? "/" : "", d->path);
        return set_directory(u, path, d->mode, d->mtime_ns, err) < 0 ? SG_STEP_OVER : SG_STEP_MORE;
    }
    u->state = OVER;
    return SG_STEP_OVER;
}

/* ---- turns ---- */

static int ask_text(struct unpack *u, int (*what)(struct sg_sandbox *, const char *, const struct sg_text_done *, struct sg_error *),
                    struct sg_error *err)
{
    asking(u);
    return asked(u, what(u->sb, u->path, &(struct sg_text_done){got_text, u}, err));
}

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
    sg_stepper_ref(&u->stepper);
    sg_stepper_ref(&u->stepper);
    sg_cancel_hook(sg_entry_cancel(u->lease), &u->lease_end);
    sg_cancel_hook(u->cancel, &u->hangup);
    u->state = LOOK;
    return ask_text(u, u->ops->resolve, err) < 0 ? SG_STEP_OVER : SG_STEP_WAIT;
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
    u->state = SCRATCH;
    asking(u);
    return asked(u, u->ops->scratch(u->sb, u->path, &(struct sg_file_source_done){got_scratch, u}, err)) < 0 ? SG_STEP_OVER
                                                                                                            : SG_STEP_WAIT;
}

static enum sg_step start_receiving(struct unpack *u)
{
    struct sg_waker w = {.wake = sg_stepper_kick, .ref = sg_stepper_ref, .unref = sg_stepper_unref, .arg = &u->stepper};

    u->fd = u->got.source.fd;
    u->hold = u->got.source.hold;
    u->got.source = (struct sg_file_source){.fd = -1};
    u->state = RECEIVE;
    sg_pipe_set_reader(u->body, &w);
    return SG_STEP_MORE;
}

static enum sg_step start_modes(struct unpack *u, struct sg_error *err)
{
    free(u->stage);
    u->stage = NULL; /* it is the target now, or part of it */
    u->at_dir = u->n_dirs;
    if (u->target) {
        u->state = MODES;
        return SG_STEP_MORE;
    }
    u->state = MODES; /* the path of what is new: asked once */
    return ask_text(u, u->ops->resolve, err) < 0 ? SG_STEP_OVER : SG_STEP_WAIT;
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
        if (u->state == EXTRACT || u->state == STORED)
            sg_error_wrap(err, "%s", u->entry.path);
        return SG_STEP_OVER;
    }
    switch (u->state) {
    case SCRATCH:
        return start_receiving(u);
    case STAGE:
        u->stage = sg_steal(&u->got.text);
        u->state = EXTRACT;
        return open_reader(u, err) < 0 ? SG_STEP_OVER : SG_STEP_MORE;
    case EXTRACT:
        u->sink = sg_steal(&u->got.sink);
        u->written = 0;
        return SG_STEP_MORE;
    case STORED:
        u->state = EXTRACT;
        return SG_STEP_MORE;
    case MERGE:
        return start_modes(u, err);
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
        return receive(u, err);
    case SCAN:
        return scan(u, err);
    case STAGE:
        return ask_text(u, u->ops->stage, err) < 0 ? SG_STEP_OVER : SG_STEP_WAIT;
    case EXTRACT:
        return extract(u, err);
    case TIMES:
        return times(u, err);
    case MODES:
        return modes(u, err);
    default:
        return SG_STEP_WAIT;
    }
}

/* True: the turn waits for the sandbox's answer. */
static bool waits(struct unpack *u, bool *has_answer, struct sg_error *err)
{
    pthread_mutex_lock(&u->stepper.lock);
    bool wait = u->asked && !u->answered;
    *has_answer = u->asked && u->answered;
    bool lease_over = u->lease_over, left = u->left;
    if (*has_answer) {
        u->asked = false;
        u->got = u->next;
        u->next = (struct answer){.source.fd = -1};
    }
    pthread_mutex_unlock(&u->stepper.lock);
    if (wait || u->state >= MERGE)
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
        asking(u);
        if (asked(u, u->files->remove(u->sb, u->stage, true, NULL, &(struct sg_done){got_done, u}, NULL)) == 0)
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
            answer_finish(&u->got);
            return conclude(u, &err);
        }
        if (has_answer) {
            did = take_answer(u, &err);
            answer_finish(&u->got);
        } else {
            did = act(u, &err);
        }
        if (did == SG_STEP_OVER)
            return conclude(u, &err);
        if (u->state == RECEIVE || u->state == SCAN)
            return did;
    }
    return SG_STEP_MORE;
}

int sg_service_tar_put(struct sg_entry *lease, const struct sg_tar_put_args *args, const struct sg_digests *digests,
                       struct sg_pipe *body, struct sg_workq *workq, const struct sg_tar_stored *done, struct sg_error *err)
{
    struct sg_sandbox *sb = NULL;

    if (sg_entry_use_begin(lease, &sb, err) < 0)
        return -1;
    const struct sg_file_ops *files = sg_sandbox_files(sb, err);
    if (files && !files->tree)
        sg_error_set(err, SG_NOT_SUPPORTED, "this backend has no archives of directories");
    if (!files || !files->tree) {
        sg_entry_use_end(lease, false);
        sg_sandbox_unref(sb);
        return -1;
    }
    struct unpack *u = sg_xcalloc(1, sizeof *u);
    *u = (struct unpack){.lease = sg_entry_ref(lease), .sb = sb, .files = files, .ops = files->tree, .done = *done,
                         .body = sg_pipe_ref(body), .path = sg_xstrdup(args->path), .fd = -1, .got.source.fd = -1, .next.source.fd = -1};
    u->limits = (struct sg_tar_limits){.entries = SG_TAR_ENTRIES_MAX, .bytes = SG_TAR_BYTES_MAX, .outside_links = args->outside_links};
    u->digester = digests ? sg_digester_new(digests) : NULL;
    u->lease_end.fired = lease_ended;
    u->hangup.fired = client_left;
    u->cancel = sg_cancel_ref(args->cancel);
    sg_stepper_init(&u->stepper, workq);
    u->stepper.step = step;
    u->stepper.failed = no_worker;
    u->stepper.free = unpack_free;
    sg_stepper_kick(&u->stepper);
    return 0;
}
