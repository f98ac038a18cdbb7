#include "backends/worktree/locks.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"

#define LOCKS_MAX 64U
#define ENTRIES_MAX 200000U /* looked at in one go */
#define DEPTH_MAX 64

struct lock {
    char *dir, *name; /* dir: below git_dir */
    dev_t dev;
    ino_t ino;
    struct timespec made; /* numbers are used again */
};

struct sg_locks {
    int64_t at_ms;
    size_t n;
    struct lock locks[LOCKS_MAX];
};

struct sg_locks *sg_locks_free(struct sg_locks *l)
{
    for (size_t i = 0; l != NULL && i < l->n; i++) {
        free(l->locks[i].dir);
        free(l->locks[i].name);
    }
    free(l);
    return NULL;
}

/* ---- which there are ---- */

struct walk {
    const struct sg_locks_args *a;
    struct sg_locks *to;
    unsigned entries;
};

static bool is_before(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec != b->tv_sec ? a->tv_sec < b->tv_sec : a->tv_nsec < b->tv_nsec;
}

static void note(struct walk *w, int dir, const char *path, const char *name)
{
    struct stat st;
    if (w->to->n == LOCKS_MAX || fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode) || st.st_uid != w->a->uid ||
        is_before(&st.st_mtim, &w->a->since))
        return;
    w->to->locks[w->to->n++] = (struct lock){.dir = sg_xstrdup(path), .name = sg_xstrdup(name), .dev = st.st_dev, .ino = st.st_ino, .made = st.st_mtim};
}

static bool is_lock(const char *name)
{
    size_t n = strlen(name);
    return n > 5 && sg_streq(name + n - 5, ".lock");
}

static int open_below(int dir, const char *name)
{
    return openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static void close_dir(DIR **d)
{
    if (*d != NULL)
        (void)closedir(*d);
}

/* deep: with what is below. */
static void look(struct walk *w, int parent, const char *name, const char *path, int deep)
{
    int fd = open_below(parent, name);
    sg_cleanup(close_dir) DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (d == NULL) {
        sg_close(fd);
        return;
    }
    for (struct dirent *e = readdir(d); e != NULL && w->entries < ENTRIES_MAX; e = readdir(d)) {
        w->entries++;
        if (sg_streq(e->d_name, ".") || sg_streq(e->d_name, ".."))
            continue;
        if ((e->d_type == DT_DIR || (e->d_type == DT_UNKNOWN && !is_lock(e->d_name))) && deep > 0) {
            sg_cleanup(sg_free_p) char *below = sg_xasprintf("%s/%s", path, e->d_name);
            look(w, fd, e->d_name, below, deep - 1);
        } else if (is_lock(e->d_name)) {
            note(w, fd, path, e->d_name);
        }
    }
}

static struct sg_locks *find_all(const struct sg_locks_args *a, int git_dir)
{
    /* Of the directory itself: not its index and HEAD, which belong to whoever works there and not in a worktree. */
    static const char *const names[] = {"config.lock", "packed-refs.lock", "packed-refs.new", "shallow.lock"};
    struct walk w = {.a = a, .to = sg_xcalloc(1, sizeof *w.to)};
    for (size_t i = 0; i < SG_COUNT_OF(names); i++)
        note(&w, git_dir, ".", names[i]);
    look(&w, git_dir, "refs", "refs", DEPTH_MAX);
    look(&w, git_dir, "objects", "objects", 0);
    w.to->at_ms = sg_now_ms();
    return w.to;
}

/* ---- whose they could be ---- */

/* False: it is not git. */
static bool is_git(int process, int64_t *began_ms)
{
    char text[1024];
    int fd = openat(process, "stat", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    sg_close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *name = strchr(text, '('), *rest = strrchr(text, ')');
    if (name == NULL || rest == NULL || strncmp(name, "(git", 4) != 0)
        return false;
    for (int i = 0; i < 20 && rest != NULL; i++) /* the 22nd field; the name is the second one */
        rest = strchr(rest + 1, ' ');
    int64_t ticks = 0, hz = sysconf(_SC_CLK_TCK);
    if (rest != NULL)
        text[strcspn(rest + 1, " ") + (size_t)(rest + 1 - text)] = '\0';
    bool known = rest != NULL && hz > 0 && sg_parse_int(rest + 1, 0, INT64_MAX / 1000, &ticks);
    *began_ms = known ? ticks * 1000 / hz : 0;
    return true;
}

/* Has it one of them open? What hides that even from its own user is not git. */
static bool has_open(int process, const struct sg_locks *l)
{
    int fd = open_below(process, "fd");
    sg_cleanup(close_dir) DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    struct stat st;
    if (d == NULL) {
        sg_close(fd);
        return false;
    }
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        if (fstatat(fd, e->d_name, &st, 0) < 0)
            continue;
        for (size_t i = 0; i < l->n; i++)
            if (l->locks[i].ino == st.st_ino && l->locks[i].dev == st.st_dev)
                return true;
    }
    return false;
}

/* Could a process that was there at until_ms be at work with one of them? In doubt, yes. */
static bool have_owner(const struct sg_locks *l, uint32_t uid, int64_t until_ms)
{
    sg_cleanup(close_dir) DIR *d = opendir("/proc");
    bool any = d == NULL;
    for (struct dirent *e = d != NULL ? readdir(d) : NULL; e != NULL && !any; e = readdir(d)) {
        struct stat st;
        int64_t began_ms = 0;
        if (e->d_name[0] < '0' || e->d_name[0] > '9')
            continue;
        sg_cleanup(sg_close_p) int process = open_below(dirfd(d), e->d_name);
        if (process < 0 || fstat(process, &st) < 0 || (st.st_uid != uid && st.st_uid != 0))
            continue;
        any = (is_git(process, &began_ms) && began_ms <= until_ms) || has_open(process, l);
    }
    return any;
}

/* ---- away with them ---- */

/* The directory it is in; one level after the other, so that no link leads elsewhere. -1: it is gone. */
static int open_dir_of(int git_dir, const struct lock *k)
{
    char path[PATH_MAX], *save = NULL;
    int dir = fcntl(git_dir, F_DUPFD_CLOEXEC, 0);
    if ((size_t)snprintf(path, sizeof path, "%s", k->dir) >= sizeof path)
        return sg_close(dir);
    for (char *part = strtok_r(path, "/", &save); part != NULL && dir >= 0; part = strtok_r(NULL, "/", &save)) {
        int next = open_below(dir, part);
        sg_close(dir);
        dir = next;
    }
    return dir;
}

/* Is it still there? away: not any more. */
static bool is_same(int git_dir, const struct lock *k, bool away)
{
    struct stat st;
    sg_cleanup(sg_close_p) int dir = open_dir_of(git_dir, k);
    bool same = dir >= 0 && fstatat(dir, k->name, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_dev == k->dev && st.st_ino == k->ino &&
                st.st_mtim.tv_sec == k->made.tv_sec && st.st_mtim.tv_nsec == k->made.tv_nsec;
    if (same && away)
        (void)unlinkat(dir, k->name, 0);
    return same;
}

static bool any_same(int git_dir, const struct sg_locks *l)
{
    for (size_t i = 0; i < l->n; i++)
        if (is_same(git_dir, &l->locks[i], false))
            return true;
    return false;
}

static int open_git_dir(const char *path)
{
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

bool sg_locks_left(const char *git_dir, const struct sg_locks *l)
{
    sg_cleanup(sg_close_p) int dir = open_git_dir(git_dir);
    return dir >= 0 && any_same(dir, l);
}

bool sg_locks_clear(const struct sg_locks_args *a, struct sg_locks **seen)
{
    sg_cleanup(sg_close_p) int dir = open_git_dir(a->git_dir);
    if (dir < 0)
        return false;
    if (*seen == NULL) {
        *seen = find_all(a, dir);
        return (*seen)->n > 0 && !have_owner(*seen, a->uid, INT64_MAX) && any_same(dir, *seen);
    }
    struct sg_locks *l = *seen;
    if (l->n > 0 && any_same(dir, l) && !have_owner(l, a->uid, l->at_ms))
        for (size_t i = 0; i < l->n; i++)
            (void)is_same(dir, &l->locks[i], true);
    return false;
}
