#include "service/keep.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/id.h"
#include "base/stepper.h"

#define PIECE (256U * 1024U)
#define TURN_BYTES (8U * 1024U * 1024U)
#define PART_PREFIX ".part-"

struct keep {
    struct sg_stepper stepper; /* first */
    struct sg_pipe *from;
    struct sg_keep_done done;
    int dir_fd;
    char part[SG_ID_MAX + 8]; /* the name while it is written */
    char *name;
    uint64_t max_bytes;
    int fd;
    struct sg_sha256_stream *hash;
    char *piece;
    bool listening;
    struct sg_keep_result result;
};

static void keep_free(struct sg_stepper *s)
{
    struct keep *k = sg_container_of(s, struct keep, stepper);

    sg_pipe_unref(k->from);
    sg_close(k->dir_fd);
    sg_sha256_free(k->hash);
    free(k->piece);
    free(k->name);
    free(k);
}

static void finish(struct keep *k, const struct sg_error *err)
{
    sg_pipe_set_reader(k->from, NULL);
    sg_pipe_stop(k->from);
    if (k->fd >= 0 && err)
        (void)unlinkat(k->dir_fd, k->part, 0);
    k->fd = sg_close(k->fd);
    k->done.fn(k->done.arg, err ? NULL : &k->result, err);
    sg_stepper_unref(&k->stepper);
}

static void no_worker(struct sg_stepper *s, const struct sg_error *err)
{
    finish(sg_container_of(s, struct keep, stepper), err);
}

static int disk_error(struct sg_error *err, int sys)
{
    sg_error_sys(err, SG_STORE_UNAVAILABLE, sys, "the server cannot write the archive");
    return sg_error_retry_after(err, 30);
}

static int begin(struct keep *k, struct sg_error *err)
{
    k->listening = true;
    k->piece = malloc(PIECE);
    k->hash = sg_sha256_begin();
    if (!k->piece || !k->hash)
        return sg_error_set(err, SG_NO_MEMORY, "no memory to keep an archive");
    k->fd = openat(k->dir_fd, k->part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (k->fd < 0)
        return disk_error(err, errno);
    struct sg_waker w = {.wake = sg_stepper_kick, .ref = sg_stepper_ref, .unref = sg_stepper_unref, .arg = &k->stepper};
    sg_pipe_set_reader(k->from, &w);
    return 0;
}

static int take(struct keep *k, size_t n, struct sg_error *err)
{
    k->result.bytes += n;
    if (k->result.bytes > k->max_bytes) {
        sg_error_set(err, SG_LIMIT_EXCEEDED, "the archive is larger than the %llu bytes that may be kept",
                     (unsigned long long)k->max_bytes);
        return sg_error_reason(err, "archive_too_large");
    }
    sg_sha256_add(k->hash, k->piece, n);
    int rc = sg_write_all(k->fd, k->piece, n);
    return rc < 0 ? disk_error(err, -rc) : 0;
}

/* All of it is written: on the disk first, then under its name, then the name on the disk. */
static int commit(struct keep *k, struct sg_error *err)
{
    sg_sha256_end(k->hash, k->result.sha256);
    if (fsync(k->fd) < 0 || renameat(k->dir_fd, k->part, k->dir_fd, k->name) < 0 || fsync(k->dir_fd) < 0)
        return disk_error(err, errno);
    return 0;
}

static enum sg_step over(struct keep *k, struct sg_error *err)
{
    finish(k, err && err->code != SG_OK ? err : NULL);
    sg_error_clear(err);
    return SG_STEP_OVER;
}

static enum sg_step step(struct sg_stepper *s)
{
    struct keep *k = sg_container_of(s, struct keep, stepper);
    struct sg_error err = {0};
    size_t turn = 0;
    ssize_t n;

    if (!k->listening && begin(k, &err) < 0)
        return over(k, &err);
    while ((n = sg_pipe_read(k->from, k->piece, PIECE)) > 0) {
        if (take(k, (size_t)n, &err) < 0)
            return over(k, &err);
        turn += (size_t)n;
        if (turn >= TURN_BYTES)
            return SG_STEP_MORE;
    }
    if (n == -EAGAIN)
        return SG_STEP_WAIT;
    if (n < 0)
        sg_pipe_error(k->from, &err);
    else
        (void)commit(k, &err);
    return over(k, &err);
}

void sg_keep(const struct sg_keep_args *args, struct sg_pipe *from, struct sg_workq *workq, const struct sg_keep_done *done)
{
    struct keep *k = sg_xcalloc(1, sizeof *k);
    char id[SG_ID_MAX];
    struct sg_error err = {0};

    sg_id_new("k", id);
    *k = (struct keep){.from = from, .done = *done, .max_bytes = args->max_bytes, .fd = -1};
    snprintf(k->part, sizeof k->part, PART_PREFIX "%s", id);
    k->name = sg_xstrdup(args->name);
    sg_stepper_init(&k->stepper, workq);
    k->stepper.step = step;
    k->stepper.failed = no_worker;
    k->stepper.free = keep_free;
    k->dir_fd = open(args->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (k->dir_fd < 0) {
        (void)disk_error(&err, errno);
        finish(k, &err);
        return;
    }
    sg_stepper_kick(&k->stepper);
}

int sg_keep_sweep(const char *dir, bool (*wanted)(void *arg, const char *name), void *arg, struct sg_error *err)
{
    DIR *d = opendir(dir);
    const struct dirent *e;

    if (!d)
        return sg_error_sys(err, SG_INTERNAL, errno, "cannot read %s", dir);
    while ((e = readdir(d)) != NULL)
        if (!sg_streq(e->d_name, ".") && !sg_streq(e->d_name, "..") && !wanted(arg, e->d_name))
            (void)unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
    return 0;
}
