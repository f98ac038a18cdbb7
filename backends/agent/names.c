/* Names: walking to the directory that holds one, making what is missing of it, taking that back. Links are followed unless a
 * request forbids it, magic links never, because /proc/self would mean the agent's own. */
#include "backends/agent/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int sys_openat2(int dir, const char *path, int flags, mode_t mode)
{
    struct open_how how = {.flags = (uint64_t)(unsigned)((flags & ~FILES_NO_LINKS) | O_CLOEXEC),
                           .mode = mode,
                           .resolve = RESOLVE_NO_MAGICLINKS};
    if (flags & FILES_NO_LINKS)
        how.resolve |= RESOLVE_NO_SYMLINKS;
    long fd = syscall(SYS_openat2, dir, path, &how, sizeof how);
    return fd < 0 ? -errno : (int)fd;
}

void files_times(const struct sg_agent_msg *m, struct timespec times[2])
{
    int64_t ns = m->u.file.mtime_ns % 1000000000, s = m->u.file.mtime_ns / 1000000000;
    if (ns < 0) {
        ns += 1000000000;
        s--;
    }
    times[0] = (struct timespec){.tv_nsec = UTIME_OMIT};
    times[1] = (struct timespec){.tv_nsec = UTIME_OMIT};
    if (m->u.file.flags & SG_AGENT_SET_MTIME)
        times[1] = (struct timespec){.tv_sec = (time_t)s, .tv_nsec = (long)ns};
}

void files_stat_fill(struct sg_agent_stat *out, const struct stat *st)
{
    *out = (struct sg_agent_stat){
        .type = st->st_mode & S_IFMT,
        .mode = st->st_mode & 07777,
        .uid = st->st_uid,
        .size = (uint64_t)st->st_size,
        .mtime_ns = (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec,
        .ino = st->st_ino,
        .dev = st->st_dev,
    };
}

/* ---- names ---- */

/* Cuts path into the directory (dir) and the last component (name); both have room for a whole path. "/a/b/"
 * is "/a" and "b"; the root itself has the name ".". -errno. */
int files_split(const char *path, char *dir, char *name)
{
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/')
        len--;
    if (path[0] != '/' && path[0] != '\0' && memchr(path, '/', len) == NULL) {
        memcpy(dir, ".", 2);
        memcpy(name, path, len);
        name[len] = '\0';
        return 0;
    }
    size_t cut = len;
    while (cut > 0 && path[cut - 1] != '/')
        cut--;
    if (len - cut > 255)
        return -ENAMETOOLONG;
    memcpy(name, path + cut, len - cut);
    name[len - cut] = '\0';
    if (len == cut)
        memcpy(name, ".", 2);
    if (cut > 1)
        cut--;
    memcpy(dir, path, cut);
    dir[cut] = '\0';
    return 0;
}

bool files_no_name(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* Opens directory path under base, making what is missing of it. *made: how many levels are new. fd or
 * -errno. */
int files_make_dirs(int base, const char *path, mode_t mode, int links, unsigned *made)
{
    char name[SG_AGENT_PATH_MAX + 1];
    const int how = O_PATH | O_DIRECTORY | links;
    int dir = sys_openat2(base, path[0] == '/' ? "/" : ".", how, 0);
    *made = 0;
    for (const char *p = path; dir >= 0;) {
        p += strspn(p, "/");
        size_t n = strcspn(p, "/");
        if (n == 0)
            break;
        memcpy(name, p, n);
        name[n] = '\0';
        p += n;
        int next = sys_openat2(dir, name, how, 0);
        if (next == -ENOENT) {
            if (mkdirat(dir, name, mode) == 0)
                ++*made;
            else if (errno != EEXIST)
                next = -errno;
            if (next == -ENOENT)
                next = sys_openat2(dir, name, how, 0);
        }
        close(dir);
        dir = next;
    }
    return dir;
}

/* Takes back the last levels that make_dirs made; what has been filled meanwhile stays. */
void files_unmake_dirs(int base, const char *path, int links, unsigned made)
{
    char part[SG_AGENT_PATH_MAX + 1], name[SG_AGENT_PATH_MAX + 1], dir[SG_AGENT_PATH_MAX + 1];
    memcpy(part, path, strlen(path) + 1);
    for (; made > 0 && files_split(part, dir, name) == 0; made--) {
        int fd = sys_openat2(base, dir, O_PATH | O_DIRECTORY | links, 0);
        if (fd < 0)
            return;
        int r = unlinkat(fd, name, AT_REMOVEDIR);
        close(fd);
        if (r != 0)
            return;
        memcpy(part, dir, strlen(dir) + 1);
    }
}

int files_links(const struct sg_agent_msg *m)
{
    return m->u.file.flags & SG_AGENT_NO_LINKS ? FILES_NO_LINKS : 0;
}

int files_parent(const char *path, char *name, int links)
{
    char dir[SG_AGENT_PATH_MAX + 1];
    int r = files_split(path, dir, name);
    return r < 0 ? r : sys_openat2(AT_FDCWD, dir, O_PATH | O_DIRECTORY | links, 0);
}

int files_make_parent(const char *path, char *name, int links, struct made_dirs *made)
{
    *made = (struct made_dirs){.links = links};
    int r = files_split(path, made->path, name);
    return r < 0 ? r : files_make_dirs(AT_FDCWD, made->path, 0755, links, &made->n);
}

void files_unmake_parent(const struct made_dirs *made)
{
    files_unmake_dirs(AT_FDCWD, made->path, made->links, made->n);
}

/* The nearest existing directory on the way to path, so that parents appear only with the file. fd or -errno. */
int files_nearest_dir(int base, const char *path, int links)
{
    char part[SG_AGENT_PATH_MAX + 1], dir[SG_AGENT_PATH_MAX + 1], name[SG_AGENT_PATH_MAX + 1];
    memcpy(part, path, strlen(path) + 1);
    for (;;) {
        int fd = sys_openat2(base, part, O_PATH | O_DIRECTORY | links, 0);
        if (fd != -ENOENT)
            return fd;
        int r = files_split(part, dir, name);
        if (r < 0)
            return r;
        memcpy(part, dir, strlen(dir) + 1);
    }
}
