/* The archive on its way to the nameless file, and through the reader once without a trace. */
#include "service/tar_unpack_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define TURN_SKIPPED (TURN_BYTES / TURN_ENTRIES) /* what an entry without content counts for */
#define GIVE_BACK ((uint64_t)4 << 20)

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

enum sg_step sg_unpack_receive(struct unpack *u, struct sg_error *err)
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
    if (u->body && u->state == EXTRACT && u->read_at - u->given_back > 2 * GIVE_BACK) {
        (void)fallocate(u->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)u->given_back, (off_t)GIVE_BACK);
        u->given_back += GIVE_BACK;
    }
    return n;
}

int sg_unpack_open_reader(struct unpack *u, struct sg_error *err)
{
    uint64_t most = u->received < UINT64_MAX / SG_TAR_RATIO ? u->received * SG_TAR_RATIO : UINT64_MAX;

    u->limits.unpacked = most > SG_TAR_RATIO_FLOOR ? most : SG_TAR_RATIO_FLOOR;
    u->reader = sg_tar_reader_free(u->reader);
    u->read_at = 0;
    return sg_tar_reader_new(&u->limits, pull, u, &u->reader, err);
}

enum sg_step sg_unpack_scan(struct unpack *u, struct sg_error *err)
{
    const void *data;
    size_t len;
    uint64_t offset, until = u->read_at + TURN_BYTES;

    if (!u->reader && sg_unpack_open_reader(u, err) < 0)
        return SG_STEP_OVER;
    for (size_t turn = 0; turn < TURN_BYTES && u->read_at < until; turn += TURN_SKIPPED) {
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

