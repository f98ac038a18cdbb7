/* Writing: an upload is a file without a name that gets one when it is complete. */
#include "backends/agent/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LINKS_MAX 40
#define SELF_FD_MAX 32
#define TEMP_NAME_MAX 64

static int close_keep(int fd)
{
    int e = errno;
    if (fd >= 0)
        close(fd);
    errno = e;
    return -1;
}

/* ---- the place a file is written to ---- */

/* Where a write through path ends up once its last component's links are followed. */
struct target {
    int dir;   /* holds name; -1 while the directory is missing */
    int links; /* FILES_NO_LINKS: none is followed, one of the last component is what gets replaced */
    char dir_path[SG_AGENT_PATH_MAX + 1];
    char name[SG_AGENT_PATH_MAX + 1];
    bool exists; /* then st is a writable regular file */
    struct stat st;
};

static void target_finish(struct target *t)
{
    close_keep(t->dir);
}

/* Follows one link: path becomes where it points. 1 when there was one, 0 when not, -errno. */
static int follow(struct target *t, char *path)
{
    char text[SG_AGENT_PATH_MAX + 2];
    ssize_t n = readlinkat(t->dir, t->name, text, sizeof text - 1);
    if (n < 0)
        return errno == EINVAL || errno == ENOENT ? 0 : -errno;
    size_t at = text[0] == '/' ? 0 : strlen(t->dir_path) + 1;
    if (n == 0 || at + (size_t)n > SG_AGENT_PATH_MAX)
        return -ENAMETOOLONG;
    if (at > 0) {
        memcpy(path, t->dir_path, at - 1);
        path[at - 1] = '/';
    }
    memcpy(path + at, text, (size_t)n);
    path[at + (size_t)n] = '\0';
    close(t->dir);
    t->dir = -1;
    return 1;
}

/* Is it something that may be overwritten? 0 or -errno. */
static int check_existing(struct target *t)
{
    if (fstatat(t->dir, t->name, &t->st, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? 0 : -errno;
    t->exists = true;
    if (S_ISDIR(t->st.st_mode))
        return -EISDIR;
    if (t->links != 0)
        return 0;
    if (!S_ISREG(t->st.st_mode))
        return -(int)SG_AGENT_ENOTREG;
    if (syscall(SYS_faccessat2, t->dir, t->name, W_OK, AT_EACCESS | AT_SYMLINK_NOFOLLOW) != 0 &&
        errno != ENOSYS)
        return -errno;
    return 0;
}

/* 0 (t->dir is -1 when the directory does not exist yet) or -errno; target_finish in any case. */
static int target_find(struct target *t, const char *path, int links)
{
    char rest[SG_AGENT_PATH_MAX + 1];
    *t = (struct target){.dir = -1, .links = links};
    memcpy(rest, path, strlen(path) + 1);
    size_t len = strlen(path);
    if (path[len - 1] == '/')
        return -EISDIR;
    for (int followed = 0; followed < LINKS_MAX; followed++) {
        int r = files_split(rest, t->dir_path, t->name);
        if (r < 0)
            return r;
        if (files_no_name(t->name))
            return -EISDIR;
        t->dir = files_resolve(t->dir_path, O_PATH | O_DIRECTORY | links);
        if (t->dir == -ENOENT) {
            t->dir = -1;
            return 0;
        }
        if (t->dir < 0) {
            r = t->dir;
            t->dir = -1;
            return r;
        }
        r = links != 0 ? 0 : follow(t, rest);
        if (r <= 0)
            return r < 0 ? r : check_existing(t);
    }
    return -ELOOP;
}
/* ---- conditions ---- */

static bool is_tagged(const struct sg_agent_condition *c, const struct stat *st)
{
    struct sg_agent_stat s;
    files_stat_fill(&s, st);
    for (uint32_t i = 0; i < c->n; i++)
        if (c->tags[i].dev == s.dev && c->tags[i].ino == s.ino && c->tags[i].mtime_ns == s.mtime_ns &&
            c->tags[i].ctime_ns == s.ctime_ns && c->tags[i].size == s.size)
            return true;
    return false;
}

/* st NULL: there is no file. 0 or -SG_AGENT_ECONDITION. */
int files_condition_check(const struct sg_agent_condition *c, const struct stat *st)
{
    bool holds = true;
    if (c->kind == SG_AGENT_EXISTS)
        holds = st != NULL;
    else if (c->kind == SG_AGENT_ABSENT)
        holds = st == NULL;
    else if (c->kind == SG_AGENT_MATCHES)
        holds = st != NULL && is_tagged(c, st);
    else if (c->kind == SG_AGENT_DIFFERS)
        holds = st == NULL || !is_tagged(c, st);
    return holds ? 0 : -(int)SG_AGENT_ECONDITION;
}
/* ---- temporary files ---- */

int files_temp_name(struct agent *a, char *name, size_t cap)
{
    uint32_t r;
    if (getrandom(&r, sizeof r, GRND_NONBLOCK) != (ssize_t)sizeof r)
        r = 0;
    return snprintf(name, cap, ".sandgate-%x-%llx", r, (unsigned long long)++a->temp_names);
}

/* May something be made in it? Asked early, so that an upload is not refused only at its end. */
static int writable_dir(int dir)
{
    if (syscall(SYS_faccessat2, dir, ".", W_OK | X_OK, AT_EACCESS) != 0 && errno != ENOSYS)
        return -errno;
    return 0;
}

static int link_text(int fd, char *path, size_t cap)
{
    char self[SELF_FD_MAX];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(self, path, cap);
    if (n < 0)
        return -errno;
    if ((size_t)n >= cap)
        return -ENAMETOOLONG;
    path[n] = '\0';
    return 0;
}

/* Where an open file of this process is, as the sandbox sees it: below its root. -errno. */
int files_path_of(int fd, char *path, size_t cap)
{
    char root[SG_AGENT_PATH_MAX + 1];
    int r = link_text(FILES_ROOT, root, sizeof root);
    if (r == 0)
        r = link_text(fd, path, cap);
    size_t n = strlen(root);
    if (r < 0 || n == 1)
        return r;
    if (strncmp(path, root, n) != 0 || (path[n] != '/' && path[n] != '\0'))
        return -ENOENT; /* moved out of it meanwhile */
    if (path[n] == '\0')
        memcpy(path, "/", 2);
    else
        memmove(path, path + n, strlen(path + n) + 1);
    return 0;
}

/* A new file in dir: nameless, or where that cannot be, with a name; then path is where it is. fd or -errno.
 */
static int open_temp_in(struct agent *a, int dir, char *path, size_t cap)
{
    char name[TEMP_NAME_MAX];
    int fd = openat(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    path[0] = '\0';
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT && errno != EINVAL))
        return fd < 0 ? -errno : fd;
    files_temp_name(a, name, sizeof name);
    fd = openat(dir, name, O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    int r = files_path_of(fd, path, cap);
    if (r < 0) {
        unlinkat(dir, name, 0);
        close(fd);
        return r;
    }
    return fd;
}

int files_open_temp(struct agent *a, const struct sg_agent_msg *m, char *temp, size_t cap)
{
    struct target t;
    int dir = target_find(&t, m->u.file.path, files_links(m));
    if (dir == 0)
        dir = files_condition_check(&m->u.file.condition, t.exists ? &t.st : NULL);
    if (dir == 0) {
        dir = t.dir >= 0 ? fcntl(t.dir, F_DUPFD_CLOEXEC, 3) : files_nearest_dir(t.dir_path, t.links);
        if (dir < 0 && t.dir >= 0)
            dir = -errno;
    }
    target_finish(&t);
    if (dir < 0)
        return dir;
    int r = writable_dir(dir);
    int fd = r < 0 ? r : open_temp_in(a, dir, temp, cap);
    close(dir);
    return fd;
}

static void unlink_temp(const char *temp)
{
    char name[SG_AGENT_PATH_MAX + 1];
    int dir = files_parent(temp, name, FILES_NO_LINKS);
    if (dir >= 0)
        (void)unlinkat(dir, name, 0);
    close_keep(dir);
}

/* A file for the server alone, wherever path is or will be. fd or -errno. */
int files_open_scratch(struct agent *a, const struct sg_agent_msg *m)
{
    char temp[SG_AGENT_PATH_MAX + 1];
    int dir = files_nearest_dir(m->u.file.path, files_links(m));
    if (dir < 0)
        return dir;
    int r = writable_dir(dir);
    int fd = r < 0 ? r : open_temp_in(a, dir, temp, sizeof temp);
    close(dir);
    if (fd >= 0 && temp[0] != '\0')
        unlink_temp(temp);
    return fd;
}
/* ---- giving it its name ---- */

/* Gives the nameless file its name. 0 and *created, or -1. */
static int place_nameless(struct agent *a, struct target *t, int fd, bool only_new, bool *created)
{
    char self[SELF_FD_MAX], name[TEMP_NAME_MAX];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    if (!t->exists && linkat(AT_FDCWD, self, t->dir, t->name, AT_SYMLINK_FOLLOW) == 0) {
        *created = true;
        return 0;
    }
    if (t->exists)
        errno = EEXIST;
    if (errno != EEXIST || only_new)
        return -1;
    files_temp_name(a, name, sizeof name); /* a link cannot replace: go over a second name */
    if (linkat(AT_FDCWD, self, t->dir, name, AT_SYMLINK_FOLLOW) != 0)
        return -1;
    if (renameat(t->dir, name, t->dir, t->name) == 0)
        return 0;
    int e = errno;
    unlinkat(t->dir, name, 0);
    errno = e;
    return -1;
}

static int place_named(struct target *t, const char *temp, bool only_new, bool *created)
{
    char name[SG_AGENT_PATH_MAX + 1];
    int dir = files_parent(temp, name, 0);
    if (dir < 0) {
        errno = -dir;
        return -1;
    }
    bool fresh = !t->exists || only_new;
    int r = files_replace(dir, name, t->dir, t->name, fresh);
    *created = r == 0 && fresh;
    if (r != 0 && errno == EEXIST && !only_new)
        r = files_replace(dir, name, t->dir, t->name, false);
    close_keep(dir);
    return r;
}

/* The file system's clock stands still for milliseconds, and the number of an inode may be used again meanwhile: the
 * modification times of what is committed differ all the same, by as little as a file system keeps. They are not in
 * the future of that clock, or what a command makes from the file would look older than it. */
static void own_time(struct agent *a, struct timespec *ret)
{
    clock_gettime(CLOCK_REALTIME_COARSE, ret);
    ret->tv_nsec -= (long)(++a->commits % 1000) + 1;
    if (ret->tv_nsec < 0) {
        ret->tv_nsec += 1000000000;
        ret->tv_sec--;
    }
}

/* Everything but the name: 0 or -1. */
static int set_attributes(struct agent *a, const struct sg_agent_msg *m, int fd, const struct target *t)
{
    mode_t mode = t->exists && S_ISREG(t->st.st_mode) ? t->st.st_mode & 0777 : 0644;
    if (m->u.file.flags & SG_AGENT_SET_MODE)
        mode = m->u.file.mode & 0777;
    if (fchmod(fd, mode) != 0)
        return -1;
    struct timespec times[2];
    files_times(m, times);
    if (!(m->u.file.flags & SG_AGENT_SET_MTIME))
        own_time(a, &times[1]);
    return futimens(fd, times);
}

/* 0 or the errno. */
static int commit(struct agent *a, const struct sg_agent_msg *m, int fd, struct target *t, bool *created)
{
    unsigned made = 0;
    bool absent = m->u.file.condition.kind == SG_AGENT_ABSENT;
    bool only_new = absent || (m->u.file.flags & SG_AGENT_COMMIT_NEW);
    int r = files_condition_check(&m->u.file.condition, t->exists ? &t->st : NULL);
    if (r < 0)
        return -r;
    if (t->dir < 0) {
        int dir = files_make_dirs(t->dir_path, 0755, t->links, &made);
        if (dir < 0) {
            files_unmake_dirs(t->dir_path, t->links, made);
            return -dir;
        }
        t->dir = dir;
    }
    r = set_attributes(a, m, fd, t);
    if (r == 0 && m->u.file.path2[0] == '\0')
        r = place_nameless(a, t, fd, only_new, created);
    else if (r == 0)
        r = place_named(t, m->u.file.path2, only_new, created);
    if (r == 0)
        return 0;
    int e = errno == EEXIST && absent ? (int)SG_AGENT_ECONDITION : errno;
    files_unmake_dirs(t->dir_path, t->links, made);
    return e;
}

int files_commit_run(struct agent *a, const struct sg_agent_msg *m, int fd, struct stat *st, bool *created)
{
    struct target t;
    *created = false;
    int e = -target_find(&t, m->u.file.path, files_links(m));
    if (e == 0 && (fstat(fd, st) != 0 || !S_ISREG(st->st_mode)))
        e = EINVAL;
    if (e == 0)
        e = commit(a, m, fd, &t, created);
    target_finish(&t);
    if (e == 0 && fstat(fd, st) != 0)
        e = errno;
    return e;
}

void files_commit(struct agent *a, const struct sg_agent_msg *m, int fd)
{
    struct stat st;
    bool created = false;
    if ((m->u.file.flags & SG_AGENT_COMMIT_APPEND) != 0) {
        worker_run(a, m, fd, append_job);
        close(fd);
        return;
    }
    int e = files_commit_run(a, m, fd, &st, &created);
    close(fd); /* before the answer: a program that is open for writing cannot be run */
    if (e != 0)
        out_done(a, m->id, e);
    else
        files_done_stat(a, m->id, &st, created ? SG_AGENT_DONE_CREATED : 0, "", -1);
}
