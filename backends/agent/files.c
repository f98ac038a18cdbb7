/* File operations with the command user's rights: the agent's fsuid and fsgid are the command's from its
 * start on, so there is nothing to switch. Names are resolved without magic links, because /proc/self would
 * mean the agent's own; files are looked at through O_PATH before they are opened, because opening a FIFO or
 * a device already does something. */
#include "backends/agent/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

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

/* By its number: not every C library has a name for it. */
int files_replace(int from_dir, const char *from, int to_dir, const char *to, bool fresh)
{
    return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, fresh ? RENAME_NOREPLACE : 0U);
}

void files_done_stat(struct agent *a, uint64_t id, const struct stat *st, uint32_t flags, const char *text,
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

int files_open_regular(const char *path, int flags, int links, struct stat *st)
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
        fd = files_open_regular(m->u.file.path, O_RDONLY, files_links(m), &st);
    else if (m->u.file.how == SG_AGENT_OPEN_APPEND)
        fd = files_open_regular(m->u.file.path, O_WRONLY | O_APPEND, files_links(m), &st);
    else if (m->u.file.how == SG_AGENT_OPEN_SCRATCH)
        fd = files_open_scratch(a, m);
    else if (m->u.file.how == SG_AGENT_OPEN_CONTENT)
        fd = -EINVAL;
    else
        fd = files_open_temp(a, m, temp, sizeof temp);
    if (fd >= 0 && m->u.file.how >= SG_AGENT_OPEN_TEMP && fstat(fd, &st) != 0) {
        int e = errno;
        close(fd);
        fd = -e;
    }
    if (fd < 0)
        out_done(a, m->id, -fd);
    else
        files_done_stat(a, m->id, &st, temp[0] != '\0' ? SG_AGENT_DONE_NAMED : 0, temp, fd);
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
        e = -files_path_of(fd, text, sizeof text);
    close(fd);
    if (e != 0)
        out_done(a, m->id, e);
    else
        files_done_stat(a, m->id, &st, 0, text, -1);
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
        e = -files_path_of(fd, path, sizeof path);
    if (e != 0 && dir >= 0)
        (void)unlinkat(dir, name, AT_REMOVEDIR);
    close_keep(fd);
    close_keep(dir);
    if (e != 0)
        out_done(a, m->id, e);
    else
        files_done_stat(a, m->id, &st, SG_AGENT_DONE_CREATED, path, -1);
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
        files_done_stat(a, m->id, &st, made > 0 ? SG_AGENT_DONE_CREATED : 0, "", -1);
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
    int dir = walk_open(parent, name);
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
    int refused = files_condition_check(&m->u.file.condition, missing ? NULL : &st);
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
    struct listing w = {
        .fd = fd,
        .recursive = m->u.file.flags & SG_AGENT_RECURSIVE,
        .after = m->u.file.path2[0] != '\0' ? m->u.file.path2 : NULL,
        .max_entries = m->u.file.max_entries,
        .max_bytes = m->u.file.max_bytes,
        .budget = budget,
    };
    int dir = list_open(m->u.file.path, files_links(m));
    int e = dir < 0 ? -dir : list_run(&w, dir);
    if (e == EAGAIN && budget > 0)
        return e;
    struct sg_agent_msg done = {.type = SG_AGENT_DONE, .id = m->id};
    done.u.done.error = (uint32_t)e;
    done.u.done.size = e == 0 ? w.written : 0;
    if (e == 0)
        done.u.done.flags = (w.truncated ? SG_AGENT_DONE_TRUNCATED : 0) | (w.more ? SG_AGENT_DONE_MORE : 0);
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
