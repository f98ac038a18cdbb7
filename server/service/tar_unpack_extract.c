/* Entries of the checked archive into the stage. */
#include "service/tar_unpack_priv.h"

#include "base/fd.h"

char *sg_unpack_staged(const struct unpack *u, const char *path)
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
    sg_cleanup(sg_free_p) char *path = sg_unpack_staged(u, e->path);
    sg_cleanup(sg_free_p) char *target = e->kind == SG_TAR_HARDLINK ? sg_unpack_staged(u, e->target) : NULL;
    struct sg_file_put_args put = {
        .path = path, .mode_given = true, .mode = e->mode, .size_hint = (int64_t)e->size, .mtime_given = true,
        .mtime_ns = e->mtime_ns, .no_links = true};

    if (e->kind == SG_TAR_DIRECTORY && note_directory(u, err) < 0)
        return -1;
    if (e->kind == SG_TAR_DIRECTORY && e->path[0] == '\0')
        return 0;
    if (e->kind == SG_TAR_FILE) {
        sg_unpack_asking(u);
        return sg_unpack_asked(u, u->files->put(u->sb, &put, &(struct sg_file_sink_done){sg_unpack_got_sink, u}, err));
    }
    struct order *o = sg_unpack_order_new(u, e->path);
    if (e->kind == SG_TAR_DIRECTORY)
        return sg_unpack_ordered(
            o, u->ops->mkdir(u->sb, path, e->mode | 0700, &(struct sg_file_stat_done){sg_unpack_order_stat, o}, err), err);
    if (e->kind == SG_TAR_SYMLINK)
        return sg_unpack_ordered(
            o, u->ops->symlink(u->sb, path, e->target, e->mtime_ns, &(struct sg_done){sg_unpack_order_done, o}, err), err);
    return sg_unpack_ordered(o, u->ops->link(u->sb, path, target, &(struct sg_done){sg_unpack_order_done, o}, err), err);
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

static void commit_file(struct unpack *u)
{
    struct sg_file_sink *sink = u->sink;

    u->sink = NULL;
    sink->ops->commit(sink, sg_unpack_order_commit, sg_unpack_order_new(u, u->entry.path));
}

/* Of an archive with several roots only one is wanted: 1: u->entry is below it, with its path from there; 0: it is not. */
static int in_root(struct unpack *u)
{
    size_t n;

    if (!u->prefix)
        return 1;
    n = strlen(u->prefix);
    if (strncmp(u->entry.path, u->prefix, n) != 0 || u->entry.path[n] != '/')
        return 0;
    u->entry.path += n + 1;
    u->entry.mtime_ns = u->now_ns;
    return 1;
}

int sg_unpack_next(struct unpack *u, struct sg_error *err)
{
    int rc;

    do
        rc = sg_tar_next(u->reader, &u->entry, err);
    while (rc > 0 && !in_root(u));
    return rc;
}

void sg_unpack_close_archive(struct unpack *u)
{
    u->reader = sg_tar_reader_free(u->reader);
    u->fd = sg_close(u->fd);
    u->hold = sg_hold_unref(u->hold);
}

enum sg_step sg_unpack_extract(struct unpack *u, struct sg_error *err)
{
    size_t turn = 0;
    bool more = false;

    if (u->sink) {
        if (write_file(u, &turn, &more, err) < 0)
            return SG_STEP_OVER;
        if (!more)
            commit_file(u);
        return SG_STEP_MORE;
    }
    int rc = sg_unpack_next(u, err);
    if (rc < 0 || (rc > 0 && make_entry(u, err) < 0))
        return SG_STEP_OVER;
    if (rc > 0)
        return SG_STEP_MORE;
    u->state = TIMES;
    u->at_dir = 0;
    sg_unpack_close_archive(u);
    return SG_STEP_MORE;
}

