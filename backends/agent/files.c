/* File operations with the command user's rights: the agent's fsuid and fsgid are the command's from its
 * start on, so there is nothing to switch. Names are resolved without magic links, because /proc/self would
 * mean the agent's own; files are looked at through O_PATH before they are opened, because opening a FIFO or
 * a device already does something. */
#include "backends/agent/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#define LINKS_MAX 40
#define INLINE_ENTRIES 256U /* a list longer than this is a worker's */
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

static void done_stat(struct agent *a, uint64_t id, const struct stat *st, uint32_t flags, const char *text,
                      int fd)
{
    struct sg_agent_msg m = {.type = SG_AGENT_DONE, .id = id};
    m.u.done.flags = flags;
    m.u.done.text = text;
    if (st != NULL) {
        m.u.done.flags |= SG_AGENT_DONE_STAT;
        files_stat_fill(&m.u.done.stat, st);
    }
    out_send(a, &m, fd);
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
            c->tags[i].size == s.size)
            return true;
    return false;
}

/* st NULL: there is no file. 0 or -SG_AGENT_ECONDITION. */
static int condition_check(const struct sg_agent_condition *c, const struct stat *st)
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
static int path_of(int fd, char *path, size_t cap)
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
    int r = path_of(fd, path, cap);
    if (r < 0) {
        unlinkat(dir, name, 0);
        close(fd);
        return r;
    }
    return fd;
}

static int open_temp(struct agent *a, const struct sg_agent_msg *m, char *temp, size_t cap)
{
    struct target t;
    int dir = target_find(&t, m->u.file.path, files_links(m));
    if (dir == 0)
        dir = condition_check(&m->u.file.condition, t.exists ? &t.st : NULL);
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
static int open_scratch(struct agent *a, const struct sg_agent_msg *m)
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

/* ---- requests ---- */

static int open_regular(const char *path, int flags, int links, struct stat *st)
{
    int fd = files_resolve(path, O_PATH | links);
    if (fd < 0)
        return fd;
    struct statfs fs;
    char self[SELF_FD_MAX];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    int file = -1;
    if (fstat(fd, st) != 0 || fstatfs(fd, &fs) != 0)
        file = -errno;
    else if (S_ISDIR(st->st_mode))
        file = -EISDIR;
    else if (!S_ISREG(st->st_mode) || sg_agent_fs_refused((unsigned long)fs.f_type))
        file = -(int)SG_AGENT_ENOTREG;
    else if ((file = open(self, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)) < 0)
        file = -errno;
    close(fd);
    return file;
}

void files_open(struct agent *a, const struct sg_agent_msg *m)
{
    struct stat st;
    char temp[SG_AGENT_PATH_MAX + 1] = "";
    int fd;
    if (m->u.file.how == SG_AGENT_OPEN_READ)
        fd = open_regular(m->u.file.path, O_RDONLY, files_links(m), &st);
    else if (m->u.file.how == SG_AGENT_OPEN_APPEND)
        fd = open_regular(m->u.file.path, O_WRONLY | O_APPEND, files_links(m), &st);
    else if (m->u.file.how == SG_AGENT_OPEN_SCRATCH)
        fd = open_scratch(a, m);
    else
        fd = open_temp(a, m, temp, sizeof temp);
    if (fd >= 0 && m->u.file.how >= SG_AGENT_OPEN_TEMP && fstat(fd, &st) != 0) {
        int e = errno;
        close(fd);
        fd = -e;
    }
    if (fd < 0)
        out_done(a, m->id, -fd);
    else
        done_stat(a, m->id, &st, temp[0] != '\0' ? SG_AGENT_DONE_NAMED : 0, temp, fd);
}

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
    int r = renameat2(dir, name, t->dir, t->name, fresh ? RENAME_NOREPLACE : 0);
    *created = r == 0 && fresh;
    if (r != 0 && errno == EEXIST && !only_new)
        r = renameat2(dir, name, t->dir, t->name, 0);
    close_keep(dir);
    return r;
}

/* Everything but the name: 0 or -1. */
static int set_attributes(const struct sg_agent_msg *m, int fd, const struct target *t)
{
    mode_t mode = t->exists && S_ISREG(t->st.st_mode) ? t->st.st_mode & 0777 : 0644;
    if (m->u.file.flags & SG_AGENT_SET_MODE)
        mode = m->u.file.mode & 0777;
    if (fchmod(fd, mode) != 0)
        return -1;
    struct timespec times[2];
    files_times(m, times);
    return futimens(fd, times);
}

/* 0 or the errno. */
static int commit(struct agent *a, const struct sg_agent_msg *m, int fd, struct target *t, bool *created)
{
    unsigned made = 0;
    bool absent = m->u.file.condition.kind == SG_AGENT_ABSENT;
    bool only_new = absent || (m->u.file.flags & SG_AGENT_COMMIT_NEW);
    int r = condition_check(&m->u.file.condition, t->exists ? &t->st : NULL);
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
    r = set_attributes(m, fd, t);
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

void files_commit(struct agent *a, const struct sg_agent_msg *m, int fd)
{
    struct target t;
    struct stat st;
    bool created = false;
    int e = -target_find(&t, m->u.file.path, files_links(m));
    if (e == 0 && (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)))
        e = EINVAL;
    if (e == 0)
        e = commit(a, m, fd, &t, &created);
    target_finish(&t);
    if (e == 0 && fstat(fd, &st) != 0)
        e = errno;
    close(fd); /* before the answer: a program that is open for writing cannot be run */
    if (e != 0)
        out_done(a, m->id, e);
    else
        done_stat(a, m->id, &st, created ? SG_AGENT_DONE_CREATED : 0, "", -1);
}

void files_stat(struct agent *a, const struct sg_agent_msg *m)
{
    struct stat st;
    char text[SG_AGENT_TEXT_MAX + 1] = "";
    bool resolve = m->u.file.flags & SG_AGENT_RESOLVE;
    int fd = files_resolve(m->u.file.path, O_PATH | (resolve ? 0 : O_NOFOLLOW) | files_links(m));
    if (fd < 0) {
        out_done(a, m->id, -fd);
        return;
    }
    int e = fstat(fd, &st) != 0 ? errno : 0;
    ssize_t n = e == 0 && S_ISLNK(st.st_mode) ? readlinkat(fd, "", text, sizeof text - 1) : 0;
    text[n > 0 ? n : 0] = '\0';
    if (e == 0 && resolve)
        e = -path_of(fd, text, sizeof text);
    close(fd);
    if (e != 0)
        out_done(a, m->id, e);
    else
        done_stat(a, m->id, &st, 0, text, -1);
}

/* A directory of its own name in path or above it. */
static void make_stage(struct agent *a, const struct sg_agent_msg *m)
{
    char path[SG_AGENT_PATH_MAX + 1] = "", name[TEMP_NAME_MAX];
    struct stat st;
    int dir = files_nearest_dir(m->u.file.path, files_links(m));
    int e = dir < 0 ? -dir : 0;
    if (e == 0 && files_temp_name(a, name, sizeof name) > 0 && mkdirat(dir, name, m->u.file.mode & 0777) != 0)
        e = errno;
    int fd = e == 0 ? openat(dir, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    if (e == 0 && (fd < 0 || fstat(fd, &st) != 0))
        e = errno;
    if (e == 0)
        e = -path_of(fd, path, sizeof path);
    if (e != 0 && dir >= 0)
        (void)unlinkat(dir, name, AT_REMOVEDIR);
    close_keep(fd);
    close_keep(dir);
    if (e != 0)
        out_done(a, m->id, e);
    else
        done_stat(a, m->id, &st, SG_AGENT_DONE_CREATED, path, -1);
}

void files_mkdir(struct agent *a, const struct sg_agent_msg *m)
{
    unsigned made;
    struct stat st;
    if (m->u.file.flags & SG_AGENT_STAGE) {
        make_stage(a, m);
        return;
    }
    int links = files_links(m);
    int dir = files_make_dirs(m->u.file.path, 0755, links, &made);
    int e = dir < 0 ? -dir : 0;
    char name[SG_AGENT_PATH_MAX + 1];
    if (e == 0 && made > 0) { /* only the last level gets the mode asked for */
        int parent = files_parent(m->u.file.path, name, links);
        if (parent < 0 || (!files_no_name(name) && fchmodat(parent, name, m->u.file.mode & 0777, 0) != 0))
            e = parent < 0 ? -parent : errno;
        close_keep(parent);
    }
    if (e == 0 && fstat(dir, &st) != 0)
        e = errno;
    close_keep(dir);
    if (e != 0)
        files_unmake_dirs(m->u.file.path, links, made);
    if (e != 0)
        out_done(a, m->id, e);
    else
        done_stat(a, m->id, &st, made > 0 ? SG_AGENT_DONE_CREATED : 0, "", -1);
}

/* Does path end with a slash although st is no directory? */
static bool only_directory(const char *path, const struct stat *st)
{
    size_t len = strlen(path);
    return len > 1 && path[len - 1] == '/' && !S_ISDIR(st->st_mode);
}

/* 0 or the errno; across: the two are on different file systems and that is fine. */
static int rename_paths(const struct sg_agent_msg *m, bool across)
{
    char from[SG_AGENT_PATH_MAX + 1], to[SG_AGENT_PATH_MAX + 1];
    struct made_dirs made = {0};
    struct stat st;
    int links = files_links(m), e = 0;
    int from_dir = files_parent(m->u.file.path, from, links);
    if (from_dir >= 0 && fstatat(from_dir, from, &st, AT_SYMLINK_NOFOLLOW) != 0)
        e = errno; /* before parents are made */
    else if (from_dir >= 0)
        e = only_directory(m->u.file.path, &st) || only_directory(m->u.file.path2, &st) ? ENOTDIR : 0;
    int to_dir = from_dir < 0 || e != 0 ? -1 : files_make_parent(m->u.file.path2, to, links, &made);
    if (e != 0) {
        close_keep(from_dir);
        return e;
    }
    if (from_dir < 0 || to_dir < 0)
        e = from_dir < 0 ? -from_dir : -to_dir;
    else if (files_no_name(from) || files_no_name(to))
        e = EBUSY;
    else if (renameat(from_dir, from, to_dir, to) != 0)
        e = errno;
    if (e == EXDEV && across)
        e = copy_move(from_dir, from, to_dir, to);
    if (e != 0)
        files_unmake_parent(&made);
    close_keep(from_dir);
    close_keep(to_dir);
    return e;
}

static void rename_job(struct agent *a, const struct sg_agent_msg *m, int fd)
{
    (void)fd;
    out_done(a, m->id, rename_paths(m, true));
}

void files_rename(struct agent *a, const struct sg_agent_msg *m)
{
    int e = rename_paths(m, false);
    if (e == EXDEV)
        worker_run(a, m, -1, rename_job);
    else
        out_done(a, m->id, e);
}

/* ---- trees ---- */

static int remove_tree(const char *path, int links)
{
    char name[SG_AGENT_PATH_MAX + 1];
    int parent = files_parent(path, name, links);
    if (parent < 0)
        return -parent;
    int dir = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    int e = dir < 0 ? errno : walk_remove(dir);
    if (e == 0 && unlinkat(parent, name, AT_REMOVEDIR) != 0)
        e = errno;
    close(parent);
    return e;
}

static void remove_job(struct agent *a, const struct sg_agent_msg *m, int fd)
{
    (void)fd;
    out_done(a, m->id, remove_tree(m->u.file.path, files_links(m)));
}

void files_remove(struct agent *a, const struct sg_agent_msg *m)
{
    char name[SG_AGENT_PATH_MAX + 1];
    int parent = files_parent(m->u.file.path, name, files_links(m));
    int e = 0;
    struct stat st;
    bool missing = parent < 0 || fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) != 0;
    int refused = condition_check(&m->u.file.condition, missing ? NULL : &st);
    if (parent < 0 || refused < 0)
        e = refused < 0 ? -refused : -parent;
    else if (!missing && only_directory(m->u.file.path, &st))
        e = ENOTDIR;
    else if (files_no_name(name))
        e = EBUSY;
    else if (unlinkat(parent, name, 0) != 0)
        e = errno;
    if (e == EISDIR && unlinkat(parent, name, AT_REMOVEDIR) == 0)
        e = 0;
    else if (e == EISDIR)
        e = errno;
    close_keep(parent);
    if ((e == ENOTEMPTY || e == EEXIST) && (m->u.file.flags & SG_AGENT_RECURSIVE))
        worker_run(a, m, -1, remove_job);
    else
        out_done(a, m->id, e);
}

static int list_open(const char *path, int links)
{
    struct statfs fs;
    int dir = files_resolve(path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | links);
    if (dir < 0)
        return dir;
    /* There the agent would see its own descriptors and more than a command does. */
    if (fstatfs(dir, &fs) != 0 || fs.f_type == 0x9fa0) {
        close(dir);
        return -EACCES;
    }
    return dir;
}

static int list(struct agent *a, const struct sg_agent_msg *m, int fd, uint32_t budget)
{
    struct walk_list w = {
        .fd = fd,
        .recursive = m->u.file.flags & SG_AGENT_RECURSIVE,
        .max_entries = m->u.file.max_entries,
        .max_bytes = m->u.file.max_bytes,
        .budget = budget,
    };
    int dir = list_open(m->u.file.path, files_links(m));
    int e = dir < 0 ? -dir : walk_list(&w, dir);
    if (e == EAGAIN && budget > 0)
        return e;
    struct sg_agent_msg done = {.type = SG_AGENT_DONE, .id = m->id};
    done.u.done.error = (uint32_t)e;
    done.u.done.size = e == 0 ? w.written : 0;
    done.u.done.flags = e == 0 && w.truncated ? SG_AGENT_DONE_TRUNCATED : 0;
    out_send(a, &done, -1);
    return 0;
}

static void list_job(struct agent *a, const struct sg_agent_msg *m, int fd)
{
    list(a, m, fd, 0);
}

void files_list(struct agent *a, const struct sg_agent_msg *m, int fd)
{
    if (list(a, m, fd, INLINE_ENTRIES) == EAGAIN)
        worker_run(a, m, fd, list_job);
    close(fd);
}
