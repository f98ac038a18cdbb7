/* Names: walking to the directory that holds one, making what is missing of it, taking that back. Every walk begins at the sandbox's root and
 * cannot leave it. Links are followed unless a request forbids it, magic links never, because /proc/self would mean the agent's own. */
#include "backends/agent/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A walk over ".." is given up by the kernel when anything on the machine was renamed meanwhile: it may be asked again. */
#define RACES_MAX 100

int files_resolve(const char *path, int flags)
{
    struct open_how how = {.flags = (uint64_t)(unsigned)((flags & ~FILES_NO_LINKS) | O_CLOEXEC),
                           .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};
    if (flags & FILES_NO_LINKS)
        how.resolve |= RESOLVE_NO_SYMLINKS;
    long fd = -1;
    for (int i = 0; i < RACES_MAX; i++) {
        fd = syscall(SYS_openat2, FILES_ROOT, path, &how, sizeof how);
        if (fd >= 0 || errno != EAGAIN)
            break;
    }
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
        .ctime_ns = (int64_t)st->st_ctim.tv_sec * 1000000000 + st->st_ctim.tv_nsec,
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

/* Takes back levels that were made, the last of which is the first len bytes of path. */
static void unmake_part(const char *path, size_t len, int links, unsigned made)
{
    char part[SG_AGENT_PATH_MAX + 1];
    memcpy(part, path, len);
    part[len] = '\0';
    files_unmake_dirs(part, links, made);
}

/* Walked from the root again for each level: what ".." or a link means is the kernel's to say. */
int files_make_dirs(const char *path, mode_t mode, int links, unsigned *made)
{
    char part[SG_AGENT_PATH_MAX + 1], name[SG_AGENT_PATH_MAX + 1];
    const int how = O_PATH | O_DIRECTORY | links;
    int dir = files_resolve("/", how);
    size_t made_len = 0;
    *made = 0;
    for (size_t at = 0; dir >= 0;) {
        at += strspn(path + at, "/");
        size_t n = strcspn(path + at, "/");
        if (n == 0)
            break;
        memcpy(name, path + at, n);
        name[n] = '\0';
        at += n;
        memcpy(part, path, at);
        part[at] = '\0';
        int next = files_resolve(part, how);
        if (next == -ENOENT) {
            if (mkdirat(dir, name, mode) == 0) {
                ++*made;
                made_len = at;
            } else if (errno != EEXIST) {
                next = -errno;
            }
            if (next == -ENOENT)
                next = files_resolve(part, how);
        }
        close(dir);
        dir = next;
    }
    if (dir < 0 && *made > 0) {
        unmake_part(path, made_len, links, *made);
        *made = 0;
    }
    return dir;
}

void files_unmake_dirs(const char *path, int links, unsigned made)
{
    char part[SG_AGENT_PATH_MAX + 1], name[SG_AGENT_PATH_MAX + 1], dir[SG_AGENT_PATH_MAX + 1];
    memcpy(part, path, strlen(path) + 1);
    for (; made > 0 && files_split(part, dir, name) == 0; made--) {
        int fd = files_resolve(dir, O_PATH | O_DIRECTORY | links);
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
    return r < 0 ? r : files_resolve(dir, O_PATH | O_DIRECTORY | links);
}

int files_make_parent(const char *path, char *name, int links, struct made_dirs *made)
{
    *made = (struct made_dirs){.links = links};
    int r = files_split(path, made->path, name);
    return r < 0 ? r : files_make_dirs(made->path, 0755, links, &made->n);
}

void files_unmake_parent(const struct made_dirs *made)
{
    files_unmake_dirs(made->path, made->links, made->n);
}

/* The nearest existing directory on the way to path, so that parents appear only with the file. fd or -errno. */
int files_nearest_dir(const char *path, int links)
{
    char part[SG_AGENT_PATH_MAX + 1], dir[SG_AGENT_PATH_MAX + 1], name[SG_AGENT_PATH_MAX + 1];
    memcpy(part, path, strlen(path) + 1);
    for (;;) {
        int fd = files_resolve(part, O_PATH | O_DIRECTORY | links);
        if (fd != -ENOENT)
            return fd;
        int r = files_split(part, dir, name);
        if (r < 0)
            return r;
        memcpy(part, dir, strlen(dir) + 1);
    }
}
