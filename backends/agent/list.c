/* Listing into a memfd: of all names below a directory those that come first behind a given one, in byte order. However many there
 * are, only about twice as many as are wanted are held at a time. Links are never followed, descriptors held are bounded. */
#include "backends/agent/inside.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DEPTH_MAX 100 /* directories open at a time */
#define SPARE 64U     /* room beyond twice what is wanted */
#define TRIES 4       /* of a page all of whose files vanish before they are looked at */

/* Names, one behind the other. */
struct arena {
    char *bytes;
    size_t used;
};

struct lister {
    struct listing *w;
    const char **picks; /* into the arena */
    size_t n, cap, arena_size;
    struct arena now, other; /* other: to move to */
    const char *bound;       /* what is not before it is not wanted; NULL: everything is */
    uint32_t visited;
    size_t buffered;
    char path[SG_AGENT_PATH_MAX + 1];
    char out[32 * 1024];
    struct level levels[DEPTH_MAX];
};

/* ---- picking ---- */

static void *room(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static int make_room(struct lister *l)
{
    size_t name = l->w->recursive ? SG_AGENT_PATH_MAX + 1 : NAME_MAX + 1;
    l->cap = l->w->budget > 0 ? l->w->budget + 1 : 2 * (size_t)l->w->max_entries + SPARE;
    l->arena_size = l->cap * name;
    l->picks = room(l->cap * sizeof *l->picks);
    l->now.bytes = room(l->arena_size);
    l->other.bytes = room(l->arena_size);
    return l->picks == NULL || l->now.bytes == NULL || l->other.bytes == NULL ? ENOMEM : 0;
}

static void give_room(struct lister *l)
{
    if (l->picks != NULL)
        munmap(l->picks, l->cap * sizeof *l->picks);
    if (l->now.bytes != NULL)
        munmap(l->now.bytes, l->arena_size);
    if (l->other.bytes != NULL)
        munmap(l->other.bytes, l->arena_size);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static const char *keep(struct arena *a, const char *name)
{
    size_t n = strlen(name) + 1;
    char *at = memcpy(a->bytes + a->used, name, n);
    a->used += n;
    return at;
}

/* Sorts what there is and lets go of what is more than wanted. */
static void cut(struct lister *l)
{
    qsort(l->picks, l->n, sizeof *l->picks, by_name);
    if (l->n <= l->w->max_entries)
        return;
    l->w->more = true;
    l->n = l->w->max_entries;
    l->other.used = 0;
    for (size_t i = 0; i < l->n; i++)
        l->picks[i] = keep(&l->other, l->picks[i]);
    struct arena a = l->now;
    l->now = l->other;
    l->other = a;
    l->bound = l->n > 0 ? l->picks[l->n - 1] : "";
}

static void pick(struct lister *l, const char *name)
{
    if (l->w->after != NULL && strcmp(name, l->w->after) <= 0)
        return;
    if (l->bound != NULL && strcmp(name, l->bound) >= 0)
        return;
    l->picks[l->n++] = keep(&l->now, name);
    if (l->n == l->cap)
        cut(l);
}

/* May there be anything wanted below the directory l->path, which is len long? */
static bool worth_entering(struct lister *l, size_t len)
{
    bool worth = true;
    l->path[len] = '/'; /* all names below begin like this */
    if (l->w->after != NULL)
        worth = strncmp(l->path, l->w->after, len + 1) >= 0;
    if (worth && l->bound != NULL)
        worth = strncmp(l->path, l->bound, len + 1) <= 0;
    l->path[len] = '\0';
    return worth;
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

static bool is_directory(const struct level *here, const char *name)
{
    struct stat st;
    if (here->type != DT_UNKNOWN)
        return here->type == DT_DIR;
    return fstatat(here->fd, name, &st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) == 0 && S_ISDIR(st.st_mode);
}

/* One entry of the deepest level; descends into it when it is a directory. 0 or an errno. */
static int visit(struct lister *l, size_t *depth, const char *name)
{
    struct level *here = &l->levels[*depth - 1];
    size_t len = extend(l, here->path_len, name);
    if (len == 0) {
        l->w->truncated = true;
        return 0;
    }
    if (l->w->budget > 0 && ++l->visited > l->w->budget)
        return EAGAIN;
    pick(l, l->path);
    if (!l->w->recursive || !is_directory(here, name) || !worth_entering(l, len))
        return 0;
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

/* Goes through everything below dir (consumed). */
static int walk(struct lister *l, int dir)
{
    size_t depth = 1;
    int e = 0;
    level_open(&l->levels[0], dir, 0);
    while (depth > 0 && e == 0) {
        const char *name = level_next(&l->levels[depth - 1], &e);
        if (name != NULL)
            e = visit(l, &depth, name);
        else
            close(l->levels[--depth].fd);
    }
    while (depth > 0)
        close(l->levels[--depth].fd);
    if (e == 0)
        cut(l);
    return e;
}

/* ---- telling ---- */

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

/* What is there now under a name that was seen, itself when it is a link. Through none: the directories on the way may have
 * changed. */
static int look(int top, const char *path, struct stat *st, char *target, size_t *target_len)
{
    struct open_how how = {.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC, .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
    long fd = syscall(SYS_openat2, top, path, &how, sizeof how);
    if (fd < 0)
        return errno;
    int e = fstat((int)fd, st) != 0 ? errno : 0;
    ssize_t n = e == 0 && S_ISLNK(st->st_mode) ? readlinkat((int)fd, "", target, SG_AGENT_TARGET_MAX) : 0;
    *target_len = n > 0 ? (size_t)n : 0;
    close((int)fd);
    return e;
}

/* 0, an errno, or -1 when it does not fit any more. */
static int record(struct lister *l, int top, const char *name)
{
    char target[SG_AGENT_TARGET_MAX];
    struct sg_agent_record r;
    struct stat st;
    size_t target_len = 0;
    int e = look(top, name, &st, target, &target_len);
    if (e == EACCES && l->w->recursive)
        l->w->truncated = true;
    if (e != 0) /* gone meanwhile, or of a directory whose names may be read and nothing else */
        return e == EACCES && !l->w->recursive ? e : 0;
    memset(&r, 0, sizeof r);
    files_stat_fill(&r.stat, &st);
    r.name_len = (uint32_t)strlen(name);
    r.target_len = (uint32_t)target_len;
    size_t need = sizeof r + r.name_len + r.target_len;
    if (l->w->written + l->buffered + need > l->w->max_bytes)
        return -1;
    e = need > sizeof l->out - l->buffered ? flush(l) : 0;
    if (e != 0)
        return e;
    memcpy(l->out + l->buffered, &r, sizeof r);
    memcpy(l->out + l->buffered + sizeof r, name, r.name_len);
    memcpy(l->out + l->buffered + sizeof r + r.name_len, target, r.target_len);
    l->buffered += need;
    return 0;
}

static int tell(struct lister *l, int top)
{
    int e = 0;
    for (size_t i = 0; i < l->n && e == 0; i++)
        e = record(l, top, l->picks[i]);
    if (e == -1) {
        l->w->more = true;
        e = 0;
    }
    return e == 0 ? flush(l) : e;
}

static int again(struct lister *l, int top)
{
    int dir = openat(top, ".", O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC);
    if (dir < 0)
        return errno;
    l->n = l->now.used = 0;
    l->bound = NULL;
    l->visited = 0;
    l->w->more = l->w->truncated = false;
    int e = walk(l, dir);
    return e == 0 ? tell(l, top) : e;
}

int list_run(struct listing *w, int dir)
{
    static struct lister l; /* one at a time: the agent has one thread, a worker its own copy */
    l.w = w;
    l.buffered = 0;
    int e = make_room(&l);
    for (int i = 0; i < TRIES && e == 0; i++) {
        e = again(&l, dir);
        if (e != 0 || w->written > 0 || l.n == 0 || !w->more)
            break;
        e = i == TRIES - 1 ? EBUSY : 0; /* there are more behind them, and no name to go on from */
    }
    give_room(&l);
    close(dir);
    return e;
}
