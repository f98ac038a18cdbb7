/* Appending a temp file to what there is, in a worker: in space that was reserved before, so that it is there whole or not at all. */
#include "backends/agent/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROUNDS_MAX 8 /* of "it is not there" - "now it is" */
#define PIECE 65536U

static int copy(int from, int to, off_t size)
{
    static char buf[PIECE];
    for (off_t at = 0; at < size;) {
        ssize_t n = pread(from, buf, sizeof buf, at), done = 0;
        if (n <= 0)
            return n < 0 ? errno : EIO;
        while (done < n) {
            ssize_t w = write(to, buf + done, (size_t)(n - done));
            if (w <= 0)
                return w < 0 ? errno : ENOSPC;
            done += w;
        }
        at += n;
    }
    return 0;
}

/* 0 or an errno; on failure the file is as long as before. */
static int append(int from, int to)
{
    struct stat more, before;
    if (fstat(from, &more) != 0 || fstat(to, &before) != 0)
        return errno;
    if (more.st_size == 0)
        return 0;
    if (fallocate(to, FALLOC_FL_KEEP_SIZE, before.st_size, more.st_size) != 0 && errno != EOPNOTSUPP)
        return errno;
    int e = copy(from, to, more.st_size);
    if (e != 0 && ftruncate(to, before.st_size) != 0)
        e = errno;
    return e;
}

static int append_to(const struct sg_agent_msg *m, int fd, int to, struct stat *st)
{
    int e = -files_condition_check(&m->u.file.condition, st);
    if (e == 0)
        e = append(fd, to);
    if (e == 0 && fstat(to, st) != 0)
        e = errno;
    close(to);
    return e;
}

void append_job(struct agent *a, const struct sg_agent_msg *m, int fd)
{
    struct sg_agent_msg new = *m;
    struct stat st;
    bool created = false;
    int e = EEXIST;
    new.u.file.flags = (m->u.file.flags & ~SG_AGENT_COMMIT_APPEND) | SG_AGENT_COMMIT_NEW;
    for (int i = 0; i < ROUNDS_MAX && e == EEXIST; i++) {
        int to = files_open_regular(m->u.file.path, O_WRONLY | O_APPEND, files_links(m), &st);
        if (to == -ENOENT)
            e = files_commit_run(a, &new, fd, &st, &created);
        else
            e = to < 0 ? -to : append_to(m, fd, to, &st);
    }
    close(fd);
    if (e != 0)
        out_done(a, m->id, e);
    else
        files_done_stat(a, m->id, &st, created ? SG_AGENT_DONE_CREATED : 0, "", -1);
}
