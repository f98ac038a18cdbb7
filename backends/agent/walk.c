/* Trees: listing into a memfd, removing. Links are never followed, descriptors held are bounded, and memory
 * is the stack. */
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

/* ---- list ---- */

struct lister {
    struct walk_list *w;
    uint32_t entries;
    size_t buffered;
    char path[SG_AGENT_PATH_MAX + 1];
    char out[32 * 1024];
    struct level levels[DEPTH_MAX];
};

static int flush(struct lister *l)
{
    size_t done = 0;
    while (done < l->buffered) {
        ssize_t n = pwrite(l->w->fd, l->out + done, l->buffered - done, (off_t)(l->w->written + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : EIO;
        done += (size_t)n;
    }
    l->w->written += done;
    l->buffered = 0;
    return 0;
}

/* Writes the entry whose path is l->path; 0, an errno, or -1 when the list is full. */
static int record(struct lister *l, int dir, const char *name, const struct stat *st)
{
    char target[SG_AGENT_TARGET_MAX];
    struct sg_agent_record r;
    memset(&r, 0, sizeof r);
    files_stat_fill(&r.stat, st);
    ssize_t n = S_ISLNK(st->st_mode) ? readlinkat(dir, name, target, sizeof target) : 0;
    r.target_len = n > 0 ? (uint32_t)n : 0;
    r.name_len = (uint32_t)strlen(l->path);
    size_t need = sizeof r + r.name_len + r.target_len;
    if (l->entries == l->w->max_entries || l->w->written + l->buffered + need > l->w->max_bytes)
        return -1;
    if (l->w->budget > 0 && l->entries == l->w->budget)
        return EAGAIN;
    int e = need > sizeof l->out - l->buffered ? flush(l) : 0;
    if (e != 0)
        return e;
    memcpy(l->out + l->buffered, &r, sizeof r);
    memcpy(l->out + l->buffered + sizeof r, l->path, r.name_len);
    memcpy(l->out + l->buffered + sizeof r + r.name_len, target, r.target_len);
    l->buffered += need;
    l->entries++;
    return 0;
}

/* Puts name behind the directory's path; its length, or 0 when that is too long. */
static size_t extend(struct lister *l, size_t path_len, const char *name)
{
    size_t n = strlen(name), at = path_len;
    if (at + n + 1 > SG_AGENT_PATH_MAX)
        return 0;
    if (at > 0)
        l->path[at++] = '/';
    memcpy(l->path + at, name, n + 1);
    return at + n;
}

/* One entry of the deepest level; descends into it when it is a directory. 0, errno, -1 full. */
static int visit(struct lister *l, size_t *depth, const char *name)
{
    struct level *here = &l->levels[*depth - 1];
    struct stat st;
    size_t len = extend(l, here->path_len, name);
    if (len == 0) {
        l->w->truncated = true;
        return 0;
    }
    if (fstatat(here->fd, name, &st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) != 0)
        return errno == ENOENT ? 0 : errno; /* gone meanwhile */
    int e = record(l, here->fd, name, &st);
    if (e != 0 || !l->w->recursive || !S_ISDIR(st.st_mode))
        return e;
    if (*depth == DEPTH_MAX) {
        l->w->truncated = true;
        return 0;
    }
    int fd = openat(here->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0)
        level_open(&l->levels[(*depth)++], fd, len);
    else if (errno != ENOENT && errno != EACCES && errno != ENOTDIR && errno != ELOOP)
        return errno; /* what may not be read is listed, not entered */
    return 0;
}

int walk_list(struct walk_list *w, int dir)
{
    static struct lister l; /* one at a time: the agent has one thread, a worker its own copy */
    l.w = w;
    l.entries = 0;
    l.buffered = 0;
    size_t depth = 1;
    level_open(&l.levels[0], dir, 0);
    int e = 0;
    while (depth > 0 && e == 0) {
        const char *name = level_next(&l.levels[depth - 1], &e);
        if (name != NULL)
            e = visit(&l, &depth, name);
        else
            close(l.levels[--depth].fd);
    }
    while (depth > 0)
        close(l.levels[--depth].fd);
    if (e == -1) {
        w->truncated = true;
        e = 0;
    }
    return e == 0 ? flush(&l) : e;
}

/* ---- remove ---- */

/* A directory too deep to hold open is moved up beside the top ones, where it is met again. */
static int lift(int from, const char *name, int top, unsigned n)
{
    char up[48];
    snprintf(up, sizeof up, ".sandgate-rm-%d-%u", (int)getpid(), n);
    return renameat(from, name, top, up) != 0 ? errno : 0;
}

/* 0, errno; -1: *depth has grown, the entry is met again once that level is empty. */
static int remove_entry(struct level *levels, size_t *depth, const char *name, unsigned *lifted)
{
    struct level *here = &levels[*depth - 1];
    if (unlinkat(here->fd, name, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return errno;
    if (unlinkat(here->fd, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
        return 0;
    if (errno != ENOTEMPTY && errno != EEXIST)
        return errno;
    if (*depth == DEPTH_MAX)
        return lift(here->fd, name, levels[0].fd, ++*lifted);
    int fd = openat(here->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
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
