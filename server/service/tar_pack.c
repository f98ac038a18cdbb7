/* A directory on its way out: one directory's names at a time are asked for, one file is open at a time, and the archive goes into a pipe
 * as fast as the client takes it. */
#include "service/tar_pack_priv.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <unistd.h>

#include "base/fd.h"
#include "service/tar_locale.h"

#define TURN_BYTES (8U * 1024U * 1024U)
#define PIPE_BYTES (256U * 1024U)
#define OUT_MAX (1024U * 1024U) /* a piece of a file, or a header with its longest names */
#define DEPTH_MAX 256U

/* ---- life ---- */

static void level_free(struct level *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->items[i].name);
    free(l->items);
    free(l->path);
    free(l->prefix);
    free(l);
}

static void pop(struct pack *p)
{
    struct level *l = p->top;

    p->top = l->up;
    p->held -= l->held;
    p->depth--;
    level_free(l);
}

static void close_file(struct pack *p)
{
    p->fd = sg_close(p->fd);
    p->hold = sg_hold_unref(p->hold);
}

static void answer_finish(struct pack *p)
{
    if (p->source.fd >= 0) {
        sg_close(p->source.fd);
        sg_hold_unref(p->source.hold);
    }
    p->source = (struct sg_file_source){.fd = -1};
    sg_file_list_finish(&p->list);
    sg_error_clear(&p->error);
    free(p->text);
    p->text = NULL;
}

static void pack_free(struct sg_stepper *s)
{
    struct pack *p = sg_container_of(s, struct pack, stepper);

    answer_finish(p);
    for (size_t i = 0; i < p->n_roots; i++) {
        free(p->roots[i].path);
        free(p->roots[i].prefix);
    }
    sg_pipe_unref(p->out);
    sg_sandbox_unref(p->sb);
    sg_cancel_unref(p->cancel);
    sg_entry_unref(p->lease);
    free(p);
}

/* Everything of the sandbox is let go; what comes later is thrown away. */
static void release(struct pack *p)
{
    close_file(p);
    sg_pack_stream_drop(p);
    while (p->top)
        pop(p);
    if (p->archive)
        archive_write_free(p->archive);
    p->archive = NULL;
    sg_tar_locale_free(p->locale);
    sg_buf_finish(&p->pending);
    free(p->piece);
    free(p->path);
    free(p->name);
    if (p->hooked && sg_cancel_unhook(p->cancel, &p->cancelled))
        sg_stepper_unref(&p->stepper);
}

static void finish(struct pack *p, const struct sg_error *err)
{
    release(p);
    sg_pipe_set_writer(p->out, NULL);
    if (err)
        sg_pipe_fail(p->out, err);
    else
        sg_pipe_close(p->out);
    if (!p->told)
        p->done.fn(p->done.arg, NULL, err);
    if (p->lease)
        sg_entry_use_end(p->lease, !err);
    sg_stepper_unref(&p->stepper);
}

static void no_worker(struct sg_stepper *s, const struct sg_error *err)
{
    finish(sg_container_of(s, struct pack, stepper), err);
}

/* ---- asking the sandbox ---- */

static void answered(struct pack *p, const struct sg_error *err)
{
    pthread_mutex_lock(&p->stepper.lock);
    if (err)
        sg_error_copy(&p->error, err);
    p->answered = true;
    bool over = p->stepper.over;
    pthread_mutex_unlock(&p->stepper.lock);
    if (over) /* nobody looks any more: a descriptor must not keep the slot */
        answer_finish(p);
    else
        sg_stepper_kick(&p->stepper);
    sg_stepper_unref(&p->stepper);
}

static void got_text(void *arg, const char *text, const struct sg_file_stat *st, const struct sg_error *err)
{
    struct pack *p = arg;

    if (!err) {
        p->text = sg_xstrdup(text);
        p->stat = *st;
    }
    answered(p, err);
}

static void got_list(void *arg, struct sg_file_list *list, const struct sg_error *err)
{
    struct pack *p = arg;

    if (!err)
        p->list = *list;
    answered(p, err);
}

static void got_file(void *arg, struct sg_file_source *src, const struct sg_error *err)
{
    struct pack *p = arg;

    if (!err)
        p->source = *src;
    answered(p, err);
}

/* Asks; the answer kicks. */
static int ask(struct pack *p, enum asked what, const char *path, struct sg_error *err)
{
    int rc = -1;

    pthread_mutex_lock(&p->stepper.lock);
    p->asked = what;
    p->answered = false;
    pthread_mutex_unlock(&p->stepper.lock);
    sg_stepper_ref(&p->stepper);
    if (what == RESOLVE)
        rc = p->ops->resolve(p->sb, path, &(struct sg_text_done){got_text, p}, err);
    else if (what == LIST)
        rc = p->ops->list(p->sb, path, SG_TAR_DIRECTORY_MAX, &(struct sg_file_list_done){got_list, p}, err);
    else if (what == OPEN)
        rc = p->ops->get(p->sb, path, &(struct sg_file_source_done){got_file, p}, err);
    else if (what == TARGET)
        rc = p->ops->readlink(p->sb, path, &(struct sg_text_done){got_text, p}, err);
    if (rc < 0) {
        p->asked = NOTHING;
        sg_stepper_unref(&p->stepper);
    }
    return rc;
}

/* ---- the archive ---- */

static la_ssize_t library_wrote(struct archive *a, void *arg, const void *data, size_t len)
{
    struct pack *p = arg;

    if (sg_buf_add(&p->pending, data, len) == 0)
        return (la_ssize_t)len;
    archive_set_error(a, ENOMEM, "no memory for the archive");
    return -1;
}

int sg_pack_library_error(struct pack *p, struct sg_error *err)
{
    const char *text = archive_error_string(p->archive);

    return sg_error_set(err, SG_INTERNAL, "the archive cannot be written: %s", text ? text : "unknown");
}

static int archive_begin(struct pack *p, struct sg_error *err)
{
    p->archive = archive_write_new();
    p->piece = malloc(PACK_PIECE);
    if (!p->archive || !p->piece)
        return sg_error_set(err, SG_NO_MEMORY, "no memory for an archive");
    if (archive_write_set_format_pax(p->archive) != ARCHIVE_OK || archive_write_add_filter_none(p->archive) != ARCHIVE_OK ||
        archive_write_set_bytes_per_block(p->archive, 0) != ARCHIVE_OK ||
        archive_write_open(p->archive, p, NULL, library_wrote, NULL) != ARCHIVE_OK)
        return sg_pack_library_error(p, err);
    return 0;
}

int sg_pack_header(struct pack *p, const char *target, struct sg_error *err)
{
    static const unsigned types[] = {[SG_FILE_REGULAR] = AE_IFREG, [SG_FILE_DIRECTORY] = AE_IFDIR, [SG_FILE_SYMLINK] = AE_IFLNK};
    struct archive_entry *e = archive_entry_new();
    int64_t mtime = p->anonymous ? 0 : p->file.mtime_ns, s = mtime / 1000000000, ns = mtime % 1000000000;
    uint32_t uid = p->anonymous ? 0 : p->file.uid;

    archive_entry_set_pathname(e, p->name);
    archive_entry_set_filetype(e, types[p->file.type]);
    archive_entry_set_perm(e, (__LA_MODE_T)(p->file.mode & 0777));
    archive_entry_set_mtime(e, (time_t)(ns < 0 ? s - 1 : s), (long)(ns < 0 ? ns + 1000000000 : ns));
    archive_entry_set_uid(e, uid);
    archive_entry_set_gid(e, uid);
    if (p->file.type == SG_FILE_REGULAR)
        archive_entry_set_size(e, (la_int64_t)p->size);
    if (target)
        archive_entry_set_symlink(e, target);
    locale_t old = sg_tar_locale_enter(p->locale);
    int rc = archive_write_header(p->archive, e);
    sg_tar_locale_leave(old);
    archive_entry_free(e);
    return rc == ARCHIVE_OK || rc == ARCHIVE_WARN ? 0 : sg_pack_library_error(p, err);
}

/* A piece of the open file. The library would fill up a file that got shorter with zeros: the client rather sees a cut. */
static int copy_piece(struct pack *p, struct sg_error *err)
{
    uint64_t left = p->size - p->offset;
    size_t want = left < PACK_PIECE ? (size_t)left : PACK_PIECE;
    ssize_t n = want > 0 ? pread(p->fd, p->piece, want, (off_t)p->offset) : 0;

    if (n < 0)
        return sg_error_sys(err, SG_INTERNAL, errno, "cannot read a file");
    if (n == 0 && want > 0)
        return sg_error_set(err, SG_CONFLICT, "%s got shorter while it was read", p->name);
    if (n > 0 && archive_write_data(p->archive, p->piece, (size_t)n) != n)
        return sg_pack_library_error(p, err);
    p->offset += (uint64_t)n;
    if (p->offset < p->size)
        return 0;
    close_file(p);
    return archive_write_finish_entry(p->archive) == ARCHIVE_OK ? 0 : sg_pack_library_error(p, err);
}

/* ---- answers ---- */

static struct item item_of(const struct sg_file_stat *st)
{
    return (struct item){.type = st->type, .mode = st->mode, .uid = st->uid, .mtime_ns = st->mtime_ns};
}

/* Steals the names of the list into a new top level for the entry at hand (or the top). */
static int push(struct pack *p, const char *path, const char *name, struct sg_error *err)
{
    struct level *l = sg_xcalloc(1, sizeof *l);

    l->up = p->top;
    l->path = sg_xstrdup(path);
    l->prefix = *name ? sg_xasprintf("%s/", name) : sg_xstrdup("");
    l->items = calloc(p->list.n + 1, sizeof *l->items);
    p->top = l;
    p->depth++;
    if (!l->items)
        return sg_error_set(err, SG_NO_MEMORY, "no memory for the names of a directory");
    for (size_t i = 0; i < p->list.n; i++) {
        struct item *to = &l->items[l->n++];
        *to = item_of(&p->list.entries[i].stat);
        to->name = sg_steal(&p->list.entries[i].name);
        l->held += sizeof *to + strlen(to->name) + 1;
    }
    p->held += l->held;
    if (p->list.more || p->list.truncated || p->held > SG_TAR_NAMES_MAX || p->depth > DEPTH_MAX) {
        sg_error_set(err, SG_LIMIT_EXCEEDED, "%s/ has more entries or is deeper than an archive may be here", name);
        return sg_error_reason(err, "too_many_entries");
    }
    return 0;
}

static int opened(struct pack *p, struct sg_error *err)
{
    p->fd = p->source.fd;
    p->hold = p->source.hold;
    p->file = item_of(&p->source.stat);
    p->size = p->source.stat.size;
    p->offset = 0;
    p->source = (struct sg_file_source){.fd = -1};
    return sg_pack_header(p, NULL, err);
}

/* A file of that kind is gone or has become something else since it was listed. */
static bool vanished(const struct pack *p)
{
    return p->told && (p->error.code == SG_NOT_FOUND || p->error.code == SG_NOT_A_DIRECTORY || p->error.code == SG_IS_A_DIRECTORY ||
                       p->error.code == SG_NOT_A_REGULAR_FILE || p->error.code == SG_PATH_REFUSED);
}

/* The next root is there: a directory under its prefix, or a file under its own name. */
static int resolved(struct pack *p, struct sg_error *err)
{
    const char *base = strrchr(p->text, '/'), *prefix = p->roots[p->at_root++].prefix;

    free(p->path);
    free(p->name);
    p->path = sg_steal(&p->text);
    p->file = item_of(&p->stat);
    if (p->stat.type == SG_FILE_DIRECTORY) {
        p->name = sg_xstrdup(prefix);
        if (*prefix && sg_pack_header(p, NULL, err) < 0)
            return -1;
        return p->ops->pack ? sg_pack_stream_begin(p, err) : ask(p, LIST, p->path, err);
    }
    if (p->ops->pack) { /* it comes with its name */
        p->name = sg_xstrdup("");
        return sg_pack_stream_begin(p, err);
    }
    p->name = sg_xstrdup(base ? base + 1 : p->path);
    return ask(p, OPEN, p->path, err);
}

void sg_pack_tell(struct pack *p)
{
    if (p->told)
        return;
    p->told = true;
    p->done.fn(p->done.arg, sg_pipe_ref(p->out), NULL);
}

/* Takes up what the sandbox said. */
static int take_answer(struct pack *p, struct sg_error *err)
{
    enum asked what = p->asked;
    int rc = 0;

    p->asked = NOTHING;
    if (p->error.code != SG_OK) {
        if (what == RESOLVE || !vanished(p)) {
            sg_error_copy(err, &p->error);
            rc = p->told ? sg_error_wrap(err, "%s", p->name) : -1;
        }
    } else if (what == RESOLVE) {
        return resolved(p, err); /* its text is in use, and there is a new question */
    } else if (what == LIST) {
        rc = push(p, p->path, p->name, err);
    } else if (what == OPEN) {
        rc = opened(p, err);
    } else if (p->text[0] != '\0') { /* else it is no link any more */
        rc = sg_pack_header(p, p->text, err);
    }
    if (rc == 0 && what != RESOLVE)
        sg_pack_tell(p);
    answer_finish(p);
    return rc;
}

/* ---- turns ---- */

/* The next entry of the top level, or the end. */
static int next(struct pack *p, struct sg_error *err)
{
    struct level *l = p->top;

    if (!l || l->at == l->n) {
        if (l)
            pop(p);
        if (p->top)
            return 0;
        if (p->at_root < p->n_roots)
            return ask(p, RESOLVE, p->roots[p->at_root].path, err);
        p->ended = true;
        return archive_write_close(p->archive) == ARCHIVE_OK ? 0 : sg_pack_library_error(p, err);
    }
    p->file = l->items[l->at++];
    free(p->name);
    free(p->path);
    p->name = sg_xasprintf("%s%s", l->prefix, p->file.name);
    p->path = sg_xasprintf("%s/%s", sg_streq(l->path, "/") ? "" : l->path, p->file.name);
    p->size = 0;
    switch (p->file.type) {
    case SG_FILE_DIRECTORY:
        if (sg_pack_header(p, NULL, err) < 0)
            return -1;
        return ask(p, LIST, p->path, err);
    case SG_FILE_REGULAR:
        return ask(p, OPEN, p->path, err);
    case SG_FILE_SYMLINK:
        return ask(p, TARGET, p->path, err);
    default:
        return 0; /* no archive has a place for it */
    }
}

/* 1: all of it is in the pipe; 0: the pipe is full; -1: nobody reads. */
static int flush(struct pack *p)
{
    while (p->pending.len > 0) {
        ssize_t n = sg_pipe_write(p->out, p->pending.data, p->pending.len);
        if (n < 0)
            return -1;
        sg_buf_consume(&p->pending, (size_t)n);
        if (n == 0)
            return 0;
    }
    return 1;
}

/* True: the turn waits for the sandbox's answer. */
static bool waits(struct pack *p, bool *over)
{
    pthread_mutex_lock(&p->stepper.lock);
    bool wait = p->asked != NOTHING && !p->answered;
    *over = p->cancel_fired;
    pthread_mutex_unlock(&p->stepper.lock);
    return wait;
}

static void cancel_fired(struct sg_cancel_hook *h, enum sg_cancel_reason why SG_UNUSED)
{
    struct pack *p = sg_container_of(h, struct pack, cancelled);

    pthread_mutex_lock(&p->stepper.lock);
    p->cancel_fired = true;
    pthread_mutex_unlock(&p->stepper.lock);
    sg_stepper_kick(&p->stepper);
    sg_stepper_unref(&p->stepper);
}

/* The first turn: from here on the ends of the lease and of the client are heard. */
static int begin(struct pack *p, struct sg_error *err)
{
    struct sg_waker w = {.wake = sg_stepper_kick, .ref = sg_stepper_ref, .unref = sg_stepper_unref, .arg = &p->stepper};

    p->begun = true;
    p->hooked = p->cancel != NULL;
    p->locale = sg_tar_locale_new();
    if (p->hooked) {
        sg_stepper_ref(&p->stepper);
        sg_cancel_hook(p->cancel, &p->cancelled);
    }
    sg_pipe_set_writer(p->out, &w);
    return archive_begin(p, err);
}

static int advance(struct pack *p, struct sg_error *err)
{
    if (!p->begun)
        return begin(p, err);
    if (p->asked != NOTHING)
        return take_answer(p, err);
    if (p->records)
        return sg_pack_stream_advance(p, err);
    return p->fd >= 0 ? copy_piece(p, err) : next(p, err);
}

static enum sg_step over(struct pack *p, struct sg_error *err)
{
    /* Whoever answers from now on must see that nobody looks. */
    pthread_mutex_lock(&p->stepper.lock);
    p->stepper.over = true;
    bool has_answer = p->answered;
    pthread_mutex_unlock(&p->stepper.lock);
    if (has_answer)
        answer_finish(p);
    finish(p, err && err->code != SG_OK ? err : NULL);
    sg_error_clear(err);
    return SG_STEP_OVER;
}

static enum sg_step step(struct sg_stepper *s)
{
    struct pack *p = sg_container_of(s, struct pack, stepper);
    struct sg_error err = {0};
    size_t turn = 0;
    bool cancelled;

    for (;;) {
        bool wait = waits(p, &cancelled);
        if (cancelled) {
            sg_error_set(&err, p->lease ? SG_LEASE_GONE : SG_CANCELLED, p->lease ? "the lease ended" : "it took too long");
            return over(p, &err);
        }
        turn += p->pending.len;
        int flushed = p->told ? flush(p) : 1;
        if (flushed < 0) {
            sg_error_set(&err, SG_CANCELLED, "the client has left");
            return over(p, &err);
        }
        if (wait || flushed == 0)
            return SG_STEP_WAIT;
        if (p->ended)
            return over(p, &err);
        if (turn > TURN_BYTES)
            return SG_STEP_MORE;
        int advanced = advance(p, &err);
        if (advanced < 0)
            return over(p, &err);
        if (advanced > 0 && (p->pending.len == 0 || !p->told))
            return SG_STEP_WAIT;
    }
}

static const struct sg_tree_ops *tree_ops(struct sg_sandbox *sb, struct sg_error *err)
{
    const struct sg_file_ops *files = sg_sandbox_files(sb, err);

    if (files && !files->tree)
        sg_error_set(err, SG_NOT_SUPPORTED, "this backend has no archives of directories");
    return files ? files->tree : NULL;
}

static struct pack *pack_new(struct sg_sandbox *sb, struct sg_workq *workq, const struct sg_tar_source_done *done)
{
    struct pack *p = sg_xcalloc(1, sizeof *p);

    *p = (struct pack){.sb = sb, .done = *done, .fd = -1, .source.fd = -1};
    sg_stepper_init(&p->stepper, workq);
    p->stepper.step = step;
    p->stepper.failed = no_worker;
    p->stepper.free = pack_free;
    p->out = sg_pipe_new(PIPE_BYTES);
    p->cancelled.fired = cancel_fired;
    sg_buf_init(&p->pending, OUT_MAX);
    sg_buf_init(&p->head, SG_TREE_RECORD_MAX);
    return p;
}

static int start(struct pack *p, struct sg_error *err)
{
    p->ops = tree_ops(p->sb, err);
    if (p->ops && ask(p, RESOLVE, p->roots[0].path, err) == 0)
        return 0;
    if (p->lease)
        sg_entry_use_end(p->lease, false);
    sg_buf_finish(&p->pending);
    sg_stepper_unref(&p->stepper);
    return -1;
}

int sg_service_tar_get(struct sg_entry *lease, const char *path, struct sg_workq *workq, const struct sg_tar_source_done *done,
                       struct sg_error *err)
{
    struct sg_sandbox *sb = NULL;

    if (sg_entry_use_begin(lease, &sb, err) < 0)
        return -1;
    struct pack *p = pack_new(sb, workq, done);
    p->lease = sg_entry_ref(lease);
    p->cancel = sg_cancel_ref(sg_entry_cancel(lease));
    p->roots[0] = (struct root){.path = sg_xstrdup(path), .prefix = sg_xstrdup("")};
    p->n_roots = 1;
    return start(p, err);
}

int sg_tar_pack(const struct sg_tar_pack_args *a, struct sg_workq *workq, const struct sg_tar_source_done *done, struct sg_error *err)
{
    struct pack *p = pack_new(sg_sandbox_ref(a->sb), workq, done);

    p->cancel = a->cancel ? sg_cancel_ref(a->cancel) : NULL;
    p->anonymous = a->anonymous;
    for (size_t i = 0; i < a->n_roots && i < SG_TAR_ROOTS_MAX; i++)
        p->roots[p->n_roots++] = (struct root){.path = sg_xstrdup(a->roots[i].path), .prefix = sg_xstrdup(a->roots[i].prefix)};
    return start(p, err);
}
