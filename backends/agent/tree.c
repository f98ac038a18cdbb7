/* What unpacking an archive needs besides files: links, attributes, and merging a finished tree into another. */
#include "backends/agent/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEPTH_MAX 100

static void close_keep(int fd)
{
    int e = errno;
    if (fd >= 0)
        close(fd);
    errno = e;
}

/* ---- links ---- */

static bool same_file(int a, const char *name_a, int b, const char *name_b)
{
    struct stat x, y;
    return fstatat(a, name_a, &x, AT_SYMLINK_NOFOLLOW) == 0 && fstatat(b, name_b, &y, AT_SYMLINK_NOFOLLOW) == 0 &&
           x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* 0 or an errno. */
static int link_once(const struct sg_agent_msg *m, int dir, const char *name)
{
    char from[SG_AGENT_PATH_MAX + 1];
    if (m->u.file.flags & SG_AGENT_SYMBOLIC)
        return symlinkat(m->u.file.path2, dir, name) != 0 ? errno : 0;
    int from_dir = files_parent(m->u.file.path2, from, files_links(m));
    if (from_dir < 0)
        return -from_dir;
    int e = linkat(from_dir, from, dir, name, 0) != 0 ? errno : 0;
    if (e == EEXIST && same_file(from_dir, from, dir, name))
        e = 0;
    close_keep(from_dir);
    return e;
}

void tree_link(struct agent *a, const struct sg_agent_msg *m)
{
    char name[SG_AGENT_PATH_MAX + 1];
    struct made_dirs made;
    int dir = files_make_parent(m->u.file.path, name, files_links(m), &made);
    int e = dir < 0 ? -dir : link_once(m, dir, name);
    if (e == EEXIST && unlinkat(dir, name, 0) == 0)
        e = link_once(m, dir, name);
    else if (e == EEXIST)
        e = errno;
    struct timespec times[2];
    files_times(m, times);
    if (e == 0 && utimensat(dir, name, times, AT_SYMLINK_NOFOLLOW) != 0)
        e = errno;
    if (e != 0)
        files_unmake_parent(&made);
    close_keep(dir);
    out_done(a, m->id, e);
}

/* ---- attributes ---- */

void tree_attributes(struct agent *a, const struct sg_agent_msg *m)
{
    char name[SG_AGENT_PATH_MAX + 1];
    struct stat st;
    struct timespec times[2];
    int dir = files_parent(m->u.file.path, name, files_links(m));
    int e = dir < 0 ? -dir : 0;
    files_times(m, times);
    if (e == 0 && fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        e = errno;
    if (e == 0 && !S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode))
        e = (int)SG_AGENT_ENOTREG;
    if (e == 0 && utimensat(dir, name, times, AT_SYMLINK_NOFOLLOW) != 0)
        e = errno;
    if (e == 0 && (m->u.file.flags & SG_AGENT_SET_MODE) && fchmodat(dir, name, m->u.file.mode & 0777, 0) != 0)
        e = errno;
    close_keep(dir);
    out_done(a, m->id, e);
}

/* ---- merge ---- */

struct merge {
    char path[SG_AGENT_PATH_MAX + 1]; /* of the entry at work, below the directories */
};

typedef int merge_step(struct merge *g, int from, int to, const char *name, unsigned depth);

static int open_dir(int dir, const char *name)
{
    return openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
}

/* Runs step for every entry of from (consumed). On failure g->path names the entry. */
static int each(struct merge *g, int from, int to, unsigned depth, merge_step *step)
{
    struct level l;
    size_t len = strlen(g->path);
    int e = 0;
    level_open(&l, from, 0);
    for (const char *name = level_next(&l, &e); name != NULL && e == 0; name = level_next(&l, &e)) {
        size_t n = strlen(name);
        if (len + n + 2 <= sizeof g->path) {
            g->path[len] = '/';
            memcpy(g->path + len + (len > 0), name, n + 1);
        }
        e = step(g, from, to, name, depth);
        if (e != 0)
            break;
        g->path[len] = '\0';
    }
    close_keep(from);
    return e;
}

/* Both of from/name and to/name are directories: step for all that is in the first. */
static int descend(struct merge *g, int from, int to, const char *name, unsigned depth, merge_step *step)
{
    if (depth == DEPTH_MAX)
        return ENAMETOOLONG;
    int a = open_dir(from, name);
    if (a < 0)
        return errno;
    int b = openat(to, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (b < 0) {
        close_keep(a);
        return errno;
    }
    int e = each(g, a, b, depth + 1, step);
    close_keep(b);
    return e;
}

/* Would from/name find its place in to? */
static int check(struct merge *g, int from, int to, const char *name, unsigned depth)
{
    struct stat a, b;
    if (fstatat(from, name, &a, AT_SYMLINK_NOFOLLOW) != 0)
        return errno;
    if (fstatat(to, name, &b, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? (faccessat(to, ".", W_OK | X_OK, AT_EACCESS) != 0 ? errno : 0) : errno;
    if (S_ISDIR(a.st_mode) && S_ISDIR(b.st_mode))
        return descend(g, from, to, name, depth, check);
    if (S_ISDIR(a.st_mode) || S_ISDIR(b.st_mode))
        return S_ISDIR(a.st_mode) ? ENOTDIR : EISDIR;
    return faccessat(to, ".", W_OK | X_OK, AT_EACCESS) != 0 ? errno : 0;
}

static int move_in(struct merge *g, int from, int to, const char *name, unsigned depth)
{
    struct stat a, b;
    bool both = fstatat(from, name, &a, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(a.st_mode) &&
                fstatat(to, name, &b, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(b.st_mode);
    for (int tries = 0; both; tries++) { /* reading a directory while moving out of it may skip entries */
        int e = descend(g, from, to, name, depth, move_in);
        if (e == 0 && unlinkat(from, name, AT_REMOVEDIR) == 0)
            return 0;
        if (e != 0 || errno != ENOTEMPTY || tries == 8)
            return e != 0 ? e : errno;
    }
    if (renameat(from, name, to, name) == 0)
        return 0;
    return errno == EXDEV ? copy_move(from, name, to, name) : errno;
}

static int open_stage(const struct sg_agent_msg *m)
{
    return files_resolve(m->u.file.path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | files_links(m));
}

static int into_existing(const struct sg_agent_msg *m, struct merge *g, int to)
{
    char name[SG_AGENT_PATH_MAX + 1];
    int stage = open_stage(m);
    int e = stage < 0 ? -stage : each(g, stage, to, 0, check);
    if (e != 0)
        return e;
    int parent = files_parent(m->u.file.path, name, files_links(m));
    if (parent < 0)
        return -parent;
    for (int tries = 0; tries < 8; tries++) {
        stage = open_stage(m);
        e = stage < 0 ? -stage : each(g, stage, to, 0, move_in);
        if (e == 0 && unlinkat(parent, name, AT_REMOVEDIR) != 0)
            e = errno;
        if (e != ENOTEMPTY || g->path[0] != '\0')
            break;
    }
    close_keep(parent);
    return e;
}

/* The stage becomes the directory itself: 0, EEXIST when there is one meanwhile, or another errno. */
static int into_new(const struct sg_agent_msg *m)
{
    char from[SG_AGENT_PATH_MAX + 1], to[SG_AGENT_PATH_MAX + 1];
    struct made_dirs made;
    int from_dir = files_parent(m->u.file.path, from, files_links(m));
    if (from_dir < 0)
        return -from_dir;
    int to_dir = files_make_parent(m->u.file.path2, to, 0, &made);
    int e = to_dir < 0 ? -to_dir : 0;
    if (e == 0 && fchmodat(from_dir, from, 0755, 0) != 0)
        e = errno;
    if (e == 0 && files_replace(from_dir, from, to_dir, to, true) != 0)
        e = errno;
    if (e != 0)
        files_unmake_parent(&made);
    close_keep(from_dir);
    close_keep(to_dir);
    return e;
}

static int merge(const struct sg_agent_msg *m, struct merge *g)
{
    for (int tries = 0;; tries++) {
        int to = files_resolve(m->u.file.path2, O_PATH | O_DIRECTORY);
        if (to == -ENOENT) {
            int e = into_new(m);
            if (e != EEXIST || tries == 3)
                return e;
            continue;
        }
        int e = to < 0 ? -to : into_existing(m, g, to);
        close_keep(to);
        return e;
    }
}

static void merge_job(struct agent *a, const struct sg_agent_msg *m, int fd)
{
    static struct merge g;
    (void)fd;
    g.path[0] = '\0';
    struct sg_agent_msg done = {.type = SG_AGENT_DONE, .id = m->id};
    done.u.done.error = (uint32_t)merge(m, &g);
    done.u.done.text = done.u.done.error != 0 ? g.path : "";
    out_send(a, &done, -1);
}

void tree_merge(struct agent *a, const struct sg_agent_msg *m)
{
    worker_run(a, m, -1, merge_job);
}
