/* A root of an archive that comes out of the sandbox as one stream of records. */
#include "service/tar_pack_priv.h"

#include <archive.h>
#include <errno.h>

int sg_pack_stream_begin(struct pack *p, struct sg_error *err)
{
    const struct sg_waker w = {.wake = sg_stepper_kick, .ref = sg_stepper_ref, .unref = sg_stepper_unref, .arg = &p->stepper};

    p->in_file = p->at_end = false;
    if (p->ops->pack(p->sb, p->path, &p->records, err) < 0)
        return -1;
    sg_pipe_set_reader(p->records, &w);
    return 0;
}

void sg_pack_stream_drop(struct pack *p)
{
    if (p->records) {
        sg_pipe_set_reader(p->records, NULL);
        sg_pipe_stop(p->records);
    }
    p->records = sg_pipe_unref(p->records);
    sg_buf_finish(&p->head);
    sg_tree_walk_finish(&p->walk);
}

/* What sg_pipe_read() said when it brought nothing: 1, or -1. */
static int nothing(struct pack *p, ssize_t n, struct sg_error *err)
{
    if (n == -EAGAIN)
        return 1;
    if (n < 0)
        sg_pipe_error(p->records, err);
    else
        sg_error_set(err, SG_PROVIDER_FAILED, "what the sandbox sends has no end");
    return p->told ? sg_error_wrap(err, "%s", p->name) : -1;
}

static int copy_some(struct pack *p, struct sg_error *err)
{
    uint64_t left = p->size - p->offset;
    size_t want = left < PACK_PIECE ? (size_t)left : PACK_PIECE;
    bool held = p->head.len > 0;
    ssize_t n = !held ? sg_pipe_read(p->records, p->piece, want) : (ssize_t)(p->head.len < want ? p->head.len : want);

    if (n <= 0)
        return nothing(p, n, err);
    if (archive_write_data(p->archive, held ? p->head.data : p->piece, (size_t)n) != n)
        return sg_pack_library_error(p, err);
    if (held)
        sg_buf_consume(&p->head, (size_t)n);
    p->offset += (uint64_t)n;
    p->in_file = p->offset < p->size;
    return p->in_file || archive_write_finish_entry(p->archive) == ARCHIVE_OK ? 0 : sg_pack_library_error(p, err);
}

static int take(struct pack *p, const struct sg_tree_record *r, struct sg_error *err)
{
    const char *prefix = p->roots[p->at_root - 1].prefix;

    sg_pack_tell(p);
    p->at_end = r->kind == 'e';
    if (p->at_end)
        return 0;
    free(p->name);
    p->name = sg_xasprintf("%s%s%s", prefix, *prefix ? "/" : "", r->name);
    p->file = (struct item){.type = r->kind == 'd' ? SG_FILE_DIRECTORY : r->kind == 'l' ? SG_FILE_SYMLINK : SG_FILE_REGULAR,
                            .mode = r->mode, .uid = r->uid, .mtime_ns = r->mtime_ns};
    p->size = r->size;
    p->offset = 0;
    p->in_file = r->size > 0;
    return sg_pack_header(p, r->kind == 'l' ? r->target : NULL, err);
}

/* 0: there is more to look at than before. */
static int read_some(struct pack *p, struct sg_error *err)
{
    char bytes[SG_TREE_RECORD_MAX];
    ssize_t n = sg_pipe_read(p->records, bytes, p->head.cap - p->head.len);

    if (n == 0 && p->at_end && p->head.len == 0) {
        sg_pack_stream_drop(p);
        return 0;
    }
    if (n <= 0)
        return nothing(p, n, err);
    return p->at_end ? sg_error_set(err, SG_PROVIDER_FAILED, "the sandbox sends more than a directory") : sg_buf_add(&p->head, bytes, (size_t)n);
}

int sg_pack_stream_advance(struct pack *p, struct sg_error *err)
{
    struct sg_tree_record r;

    if (p->in_file)
        return copy_some(p, err);
    ssize_t n = p->at_end ? 0 : sg_tree_record_read(p->head.data, p->head.len, &p->walk, &r, err);
    if (n == 0)
        return read_some(p, err);
    if (n < 0 || take(p, &r, err) < 0)
        return -1;
    sg_buf_consume(&p->head, (size_t)n);
    return 0;
}
