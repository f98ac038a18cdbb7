/* Trees: reading directories, removing. Links are never followed, descriptors held are bounded, and memory is the
 * stack. */
#include "backends/agent/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DEPTH_MAX 100 /* directories open at a time */
#define ROUNDS_MAX 16

struct dirent64_head {
    uint64_t ino;
    int64_t off;
    uint16_t reclen;
    uint8_t type;
    char name[];
};

const char *level_next(struct level *l, int *e)
{
    for (;;) {
        if (l->at >= l->len) {
            l->len = syscall(SYS_getdents64, l->fd, l->buf, sizeof l->buf);
            l->at = 0;
            if (l->len < 0)
                *e = errno;
            if (l->len <= 0)
                return NULL;
        }
        struct dirent64_head *d = (struct dirent64_head *)(void *)(l->buf + l->at);
        l->at += d->reclen;
        l->type = d->type;
        if (strcmp(d->name, ".") != 0 && strcmp(d->name, "..") != 0)
            return d->name;
    }
}

void level_open(struct level *l, int fd, size_t path_len)
{
    l->fd = fd;
    l->path_len = path_len;
    l->len = l->at = 0;
}

/* ---- remove ---- */

/* A directory too deep to hold open is moved up beside the top ones, where it is met again. */
static int lift(int from, const char *name, int top, unsigned n)
{
    char up[48];
    snprintf(up, sizeof up, ".sandgate-rm-%d-%u", (int)getpid(), n);
    return renameat(from, name, top, up) != 0 ? errno : 0;
}

int walk_open(int dir, const char *name)
{
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 || errno != EACCES || fchmodat(dir, name, 0700, 0) != 0)
        return fd;
    return openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
}

/* As unlinkat; a directory whose own user may not write to it has that changed, since it goes anyway. */
static int unlink_in(int dir, const char *name)
{
    if (unlinkat(dir, name, 0) == 0)
        return 0;
    if (errno != EACCES || fchmod(dir, 0700) != 0)
        return -1;
    return unlinkat(dir, name, 0);
}

/* 0, errno; -1: *depth has grown, the entry is met again once that level is empty. */
static int remove_entry(struct level *levels, size_t *depth, const char *name, unsigned *lifted)
{
    struct level *here = &levels[*depth - 1];
    if (unlink_in(here->fd, name) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return errno;
    if (unlinkat(here->fd, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
        return 0;
    if (errno != ENOTEMPTY && errno != EEXIST)
        return errno;
    if (*depth == DEPTH_MAX)
        return lift(here->fd, name, levels[0].fd, ++*lifted);
    int fd = walk_open(here->fd, name);
    if (fd < 0)
        return errno == ENOENT ? 0 : errno;
    level_open(&levels[(*depth)++], fd, 0);
    return -1;
}

int walk_remove(int dir)
{
    static struct level levels[DEPTH_MAX];
    size_t depth = 1;
    unsigned lifted = 0;
    int e = 0;
    bool dirty[DEPTH_MAX] = {
        false}; /* something went while reading: entries may have been skipped, read again */
    unsigned rounds[DEPTH_MAX] = {0}; /* three do, unless somebody fills the directory meanwhile */
    level_open(&levels[0], dir, 0);
    while (depth > 0 && e <= 0) {
        struct level *here = &levels[depth - 1];
        e = 0;
        const char *name = level_next(here, &e);
        if (name != NULL) {
            unsigned before = lifted;
            dirty[depth - 1] = true;
            e = remove_entry(levels, &depth, name, &lifted);
            if (lifted > before)
                rounds[0] = 0;
            if (e == -1) {
                dirty[depth - 1] = false;
                rounds[depth - 1] = 0;
            }
            continue;
        }
        if (e == 0 && dirty[depth - 1]) {
            e = ++rounds[depth - 1] > ROUNDS_MAX ? ENOTEMPTY : 0;
            dirty[depth - 1] = false;
            lseek(here->fd, 0, SEEK_SET);
            here->len = here->at = 0;
            continue;
        }
        close(levels[--depth].fd);
    }
    while (depth > 0)
        close(levels[--depth].fd);
    return e > 0 ? e : 0;
}
