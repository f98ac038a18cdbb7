/* The checked archive as a stream of records, for drivers that make a tree of it themselves. */
#include "service/tar_unpack_priv.h"

#define PIPE_BYTES ((size_t)256 * 1024)

enum sg_step sg_unpack_begin_send(struct unpack *u, struct sg_error *err)
{
    const struct sg_waker w = {.wake = sg_stepper_kick, .ref = sg_stepper_ref, .unref = sg_stepper_unref, .arg = &u->stepper};

    u->state = SEND;
    u->records = sg_pipe_new(PIPE_BYTES);
    sg_buf_init(&u->head, SG_TREE_RECORD_MAX);
    sg_pipe_set_writer(u->records, &w);
    sg_unpack_asking(u);
    if (sg_unpack_asked(u, u->ops->unpack(u->sb, u->path, u->records, &(struct sg_done){sg_unpack_got_done, u}, err)) < 0)
        return SG_STEP_OVER;
    return sg_unpack_open_reader(u, err) < 0 ? SG_STEP_OVER : SG_STEP_MORE;
}

/* Up to len bytes of data, or of zeros, into the pipe: their number; 0: it is full; -1: nobody reads. */
static ssize_t give(struct unpack *u, const char *data, uint64_t len)
{
    static const char zeros[16384];
    size_t n = data || len < sizeof zeros ? (size_t)len : sizeof zeros;

    return sg_pipe_write(u->records, data ? data : zeros, n);
}

/* What is at hand, as far as it goes: 1: all of it; 0: the pipe is full; -1: nobody reads. */
static int flush(struct unpack *u, size_t *turn)
{
    while (u->head.len > 0 || u->zeros > 0 || u->data_len > 0) {
        ssize_t n = u->head.len > 0 ? give(u, u->head.data, u->head.len) : u->zeros > 0 ? give(u, NULL, u->zeros) : give(u, u->data, u->data_len);
        if (n <= 0)
            return n < 0 ? -1 : 0;
        *turn += (size_t)n;
        if (u->head.len > 0) {
            sg_buf_consume(&u->head, (size_t)n);
        } else if (u->zeros > 0) {
            u->zeros -= (uint64_t)n;
        } else {
            u->data += n;
            u->data_len -= (size_t)n;
        }
    }
    return 1;
}

/* The next piece of the open file. */
static int more_of_file(struct unpack *u, struct sg_error *err)
{
    const void *data = NULL;
    size_t len = 0;
    uint64_t offset = u->entry.size;
    int rc = sg_tar_data(u->reader, &data, &len, &offset, err);

    if (rc < 0)
        return -1;
    if (rc == 0) {
        offset = u->entry.size;
        u->in_file = false;
    }
    u->zeros = offset - u->written;
    u->data = data;
    u->data_len = len;
    u->written = offset + len;
    return 0;
}

static int next_record(struct unpack *u, struct sg_error *err)
{
    static const char kinds[] = {[SG_TAR_FILE] = 'f', [SG_TAR_DIRECTORY] = 'd', [SG_TAR_SYMLINK] = 'l', [SG_TAR_HARDLINK] = 'h'};
    const struct sg_tar_entry *e = &u->entry;
    int rc = sg_unpack_next(u, err);

    if (rc < 0)
        return -1;
    struct sg_tree_record r = {.kind = 'e', .name = "", .target = ""};
    if (rc > 0) {
        bool link = e->kind == SG_TAR_SYMLINK || e->kind == SG_TAR_HARDLINK;
        r = (struct sg_tree_record){.kind = kinds[e->kind], .name = e->path, .target = link ? e->target : "", .mode = e->mode,
                                    .mtime_ns = e->mtime_ns, .size = e->kind == SG_TAR_FILE ? e->size : 0};
    }
    u->in_file = r.kind == 'f';
    u->written = 0;
    if (r.kind == 'e')
        sg_unpack_close_archive(u);
    return sg_tree_record_write(&r, &u->head) < 0 ? sg_error_set(err, SG_INTERNAL, "an entry's names are too long") : 0;
}

enum sg_step sg_unpack_send(struct unpack *u, struct sg_error *err)
{
    size_t turn = 0;

    while (turn < TURN_BYTES) {
        int flushed = flush(u, &turn);
        if (flushed == 0)
            return SG_STEP_WAIT;
        if (flushed < 0 || !u->reader) { /* all of it is there, or the driver has something to say */
            if (flushed > 0)
                sg_pipe_close(u->records);
            u->state = SENT;
            return SG_STEP_MORE;
        }
        if ((u->in_file ? more_of_file(u, err) : next_record(u, err)) < 0)
            return SG_STEP_OVER;
    }
    return SG_STEP_MORE;
}
