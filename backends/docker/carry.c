#include "backends/docker/carry.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

#include "base/fd.h"
#include "base/stepper.h"

#define BLOCK 512U
#define TAIL ((uint64_t)2 * BLOCK) /* of zeros, at the end of a tar */
#define PIPE_BYTES ((size_t)256 * 1024)
#define TURN_BYTES ((size_t)8 << 20)

static uint64_t padding(uint64_t bytes)
{
    return (BLOCK - bytes % BLOCK) % BLOCK;
}

/* ---- in ---- */

struct carry_in {
    struct sg_stepper stepper; /* first */
    struct sg_pipe *to;
    int fd;
    char head[4 * BLOCK];
    size_t head_len, head_at;
    uint64_t left, zeros;
};

static void in_free(struct sg_stepper *s)
{
    struct carry_in *c = sg_container_of(s, struct carry_in, stepper);
    sg_pipe_unref(c->to);
    (void)sg_close(c->fd);
    free(c);
}

static void in_over(struct carry_in *c, const struct sg_error *err)
{
    sg_pipe_set_writer(c->to, NULL);
    if (err != NULL) {
        sg_pipe_fail(c->to, err);
    } else {
        sg_pipe_close(c->to);
    }
    sg_stepper_unref(&c->stepper);
}

static void in_failed(struct sg_stepper *s, const struct sg_error *err)
{
    in_over(sg_container_of(s, struct carry_in, stepper), err);
}

/* The next bytes: as of sg_pipe_write_from(), 0 when there are no more. */
static ssize_t in_some(struct carry_in *c)
{
    static const char zeros[TAIL + BLOCK];
    ssize_t n;
    if (c->head_at < c->head_len) {
        n = sg_pipe_write(c->to, c->head + c->head_at, c->head_len - c->head_at);
        c->head_at += n > 0 ? (size_t)n : 0;
        return n != 0 ? n : -ENOBUFS;
    }
    if (c->left > 0) {
        n = sg_pipe_write_from(c->to, c->fd, c->left < PIPE_BYTES ? (size_t)c->left : PIPE_BYTES);
        c->left -= n > 0 ? (uint64_t)n : 0;
        return n != 0 ? n : -ENODATA; /* it got shorter */
    }
    if (c->zeros > 0) {
        n = sg_pipe_write(c->to, zeros, (size_t)c->zeros);
        c->zeros -= n > 0 ? (uint64_t)n : 0;
        return n != 0 ? n : -ENOBUFS;
    }
    return 0;
}

static enum sg_step in_step(struct sg_stepper *s)
{
    struct carry_in *c = sg_container_of(s, struct carry_in, stepper);
    struct sg_error err = {0};
    ssize_t n = 1;
    for (size_t turn = 0; turn < TURN_BYTES && n > 0; turn += (size_t)n) {
        n = in_some(c);
        if (n <= 0) {
            break;
        }
    }
    if (n > 0) {
        return SG_STEP_MORE;
    }
    if (n == -ENOBUFS) {
        return SG_STEP_WAIT;
    }
    if (n < 0 && n != -EPIPE) {
        sg_error_sys(&err, SG_INTERNAL, (int)-n, "cannot read what is to be in the container");
    }
    in_over(c, err.code != SG_OK ? &err : NULL);
    return SG_STEP_OVER;
}

static int make_head(struct carry_in *c, const char *name, uint64_t bytes, struct sg_error *err)
{
    struct archive *a = archive_write_new();
    struct archive_entry *e = archive_entry_new();
    int rc = -1;
    if (a != NULL && e != NULL) {
        archive_entry_set_pathname(e, name);
        archive_entry_set_filetype(e, AE_IFREG);
        archive_entry_set_perm(e, 0400);
        archive_entry_set_size(e, (la_int64_t)bytes);
        if (archive_write_set_format_ustar(a) == ARCHIVE_OK && archive_write_set_bytes_per_block(a, 0) == ARCHIVE_OK &&
            archive_write_open_memory(a, c->head, sizeof c->head, &c->head_len) == ARCHIVE_OK && archive_write_header(a, e) == ARCHIVE_OK) {
            rc = 0;
        }
    }
    if (rc < 0) {
        sg_error_set(err, SG_INTERNAL, "cannot make a tar: %s", a != NULL && archive_error_string(a) != NULL ? archive_error_string(a) : "no memory");
    }
    archive_entry_free(e);
    size_t head = c->head_len;
    archive_write_free(a); /* fails to write the rest, which comes from elsewhere, where there is room for so little */
    c->head_len = head;
    return rc;
}

struct sg_pipe *sg_carry_in(struct sg_workq *q, const char *name, int fd, uint64_t bytes, int64_t *ret_size, struct sg_error *err)
{
    struct carry_in *c = sg_xcalloc(1, sizeof *c);
    if (bytes >= SG_CARRY_MAX) {
        sg_error_set(err, SG_LIMIT_EXCEEDED, "an engine is given files of less than 8 GiB");
        free(c);
        return NULL;
    }
    if (make_head(c, name, bytes, err) < 0) {
        free(c);
        return NULL;
    }
    sg_stepper_init(&c->stepper, q);
    c->stepper.step = in_step;
    c->stepper.failed = in_failed;
    c->stepper.free = in_free;
    c->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    c->left = bytes;
    c->zeros = padding(bytes) + TAIL;
    *ret_size = (int64_t)(c->head_len + c->left + c->zeros);
    c->to = sg_pipe_new(PIPE_BYTES);
    struct sg_pipe *ret = sg_pipe_ref(c->to);
    const struct sg_waker w = {.wake = sg_stepper_kick, .ref = sg_stepper_ref, .unref = sg_stepper_unref, .arg = &c->stepper};
    sg_pipe_set_writer(c->to, &w); /* calls it at once */
    return ret;
}

/* ---- out ---- */

struct carry_out {
    struct sg_stepper stepper; /* first */
    struct sg_pipe *from, *to;
    char head[BLOCK];
    size_t head_len;
    uint64_t left; /* of the entry */
    uint64_t skip; /* then */
    bool in_file, told;
};

static void out_free(struct sg_stepper *s)
{
    struct carry_out *c = sg_container_of(s, struct carry_out, stepper);
    sg_pipe_unref(c->from);
    sg_pipe_unref(c->to);
    free(c);
}

static void out_over(struct carry_out *c, const struct sg_error *err)
{
    sg_pipe_set_reader(c->from, NULL);
    sg_pipe_set_writer(c->to, NULL);
    sg_pipe_stop(c->from);
    if (!c->told) {
        sg_pipe_fail(c->to, err);
    }
    sg_stepper_unref(&c->stepper);
}

static void out_failed(struct sg_stepper *s, const struct sg_error *err)
{
    out_over(sg_container_of(s, struct carry_out, stepper), err);
}

static int no_file(struct sg_error *err)
{
    return sg_error_set(err, SG_PROVIDER_FAILED, "the engine answers with a tar in which there is no file");
}

/* Its digest is known elsewhere, so that little of a header counts: the size and the kind. */
static int read_head(struct carry_out *c, struct sg_error *err)
{
    const char *size = c->head + 124; /* octal, 12 bytes: below SG_CARRY_MAX that is what engines write */
    uint64_t n = 0;
    size_t digits = 0;
    while (digits < 12 && size[digits] >= '0' && size[digits] <= '7') {
        n = n * 8 + (uint64_t)(size[digits++] - '0');
    }
    if (c->head[0] == '\0' || digits == 0 || n >= SG_CARRY_MAX) {
        return no_file(err);
    }
    c->in_file = c->head[156] == '0' || c->head[156] == '\0';
    c->left = c->in_file ? n : 0;
    c->skip = c->in_file ? 0 : n + padding(n);
    c->head_len = 0;
    return 0;
}

/* n bytes are there. How many were taken; -ENOBUFS: the other side is full; -EPIPE: nobody wants them; -1: *err. */
static ssize_t out_some(struct carry_out *c, const char *data, size_t n, struct sg_error *err)
{
    if (c->told) {
        return (ssize_t)n; /* what is behind the file, so that the connection can be kept */
    }
    if (c->left > 0) {
        ssize_t w = sg_pipe_write(c->to, data, n < c->left ? n : (size_t)c->left);
        c->left -= w > 0 ? (uint64_t)w : 0;
        n = w > 0 ? (size_t)w : 0;
        if (w <= 0) {
            return w == 0 ? -ENOBUFS : w;
        }
    } else if (c->skip > 0) {
        n = n < c->skip ? n : (size_t)c->skip;
        c->skip -= n;
    } else {
        n = n < BLOCK - c->head_len ? n : BLOCK - c->head_len;
        memcpy(c->head + c->head_len, data, n);
        c->head_len += n;
        if (c->head_len == BLOCK && read_head(c, err) < 0) {
            return -1;
        }
    }
    if (c->in_file && c->left == 0) {
        c->told = true;
        sg_pipe_close(c->to);
    }
    return (ssize_t)n;
}

static enum sg_step out_ends(struct carry_out *c, const struct sg_error *err)
{
    out_over(c, err);
    return SG_STEP_OVER;
}

static enum sg_step out_step(struct sg_stepper *s)
{
    struct carry_out *c = sg_container_of(s, struct carry_out, stepper);
    struct sg_error err = {0};
    const void *data = NULL;
    for (size_t turn = 0; turn < TURN_BYTES;) {
        ssize_t n = sg_pipe_peek(c->from, &data);
        ssize_t took = n > 0 ? out_some(c, data, (size_t)n, &err) : 0;
        if (n == -EAGAIN || took == -ENOBUFS) {
            return SG_STEP_WAIT;
        }
        if (n <= 0 || took < 0) {
            if (n == -EIO) {
                sg_pipe_error(c->from, &err);
            } else if (err.code == SG_OK) {
                no_file(&err);
            }
            enum sg_step over = out_ends(c, &err);
            sg_error_clear(&err);
            return over;
        }
        sg_pipe_consume(c->from, (size_t)took);
        turn += (size_t)took;
    }
    return SG_STEP_MORE;
}

struct sg_pipe *sg_carry_out(struct sg_workq *q, struct sg_pipe *from)
{
    struct carry_out *c = sg_xcalloc(1, sizeof *c);
    sg_stepper_init(&c->stepper, q);
    c->stepper.step = out_step;
    c->stepper.failed = out_failed;
    c->stepper.free = out_free;
    c->from = sg_pipe_ref(from);
    c->to = sg_pipe_new(PIPE_BYTES);
    struct sg_pipe *ret = sg_pipe_ref(c->to);
    const struct sg_waker w = {.wake = sg_stepper_kick, .ref = sg_stepper_ref, .unref = sg_stepper_unref, .arg = &c->stepper};
    sg_stepper_ref(&c->stepper); /* the first turn may be the last */
    sg_pipe_set_writer(c->to, &w);
    sg_pipe_set_reader(c->from, &w);
    sg_stepper_unref(&c->stepper);
    return ret;
}
