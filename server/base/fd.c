#include "base/fd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"

int sg_write_all(int fd, const void *data, size_t len)
{
    const char *p = data;
    while (len > 0) {
        ssize_t n = write(fd, p, len);
        if (n < 0 && errno != EINTR) {
            return -errno;
        }
        if (n > 0) {
            p += n;
            len -= (size_t)n;
        }
    }
    return 0;
}

int sg_read_file(const char *path, size_t cap, char **ret, size_t *ret_len, struct sg_error *err)
{
    sg_cleanup(sg_close_p) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) {
        return sg_error_sys(err, errno == ENOENT ? SG_NOT_FOUND : SG_INTERNAL, errno, "%s", path);
    }
    sg_cleanup(sg_buf_finish) struct sg_buf b;
    sg_buf_init(&b, cap);
    char piece[16384];
    for (;;) {
        ssize_t n = read(fd, piece, sizeof piece);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return sg_error_sys(err, SG_INTERNAL, errno, "%s", path);
        }
        if (n == 0) {
            break;
        }
        if (sg_buf_add(&b, piece, (size_t)n) < 0) {
            return sg_error_set(err, SG_PAYLOAD_TOO_LARGE, "%s: more than %zu bytes", path, cap);
        }
    }
    explicit_bzero(piece, sizeof piece); /* key files pass through here */
    *ret = sg_buf_steal(&b, ret_len);
    return 0;
}

static int sync_parent(const char *path)
{
    const char *slash = strrchr(path, '/');
    sg_cleanup(sg_free_p) char *dir = slash == NULL ? sg_xstrdup(".")
                                      : slash == path ? sg_xstrdup("/")
                                                      : sg_xstrndup(path, (size_t)(slash - path));
    sg_cleanup(sg_close_p) int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 || fsync(fd) < 0 ? -1 : 0;
}

int sg_write_file(const char *path, const void *data, size_t len, mode_t mode, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *temp = sg_xasprintf("%s.XXXXXX", path);
    sg_cleanup(sg_close_p) int fd = mkostemp(temp, O_CLOEXEC);
    if (fd < 0) {
        return sg_error_sys(err, SG_INTERNAL, errno, "%s", temp);
    }
    int r = sg_write_all(fd, data, len);
    if (r == 0 && (fchmod(fd, mode) < 0 || fsync(fd) < 0 || rename(temp, path) < 0)) {
        r = -errno;
    }
    if (r < 0) {
        (void)unlink(temp);
        return sg_error_sys(err, SG_INTERNAL, -r, "%s", path);
    }
    return sync_parent(path) < 0 ? sg_error_sys(err, SG_INTERNAL, errno, "%s", path) : 0;
}

int sg_mkdirs(const char *path, mode_t mode, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *copy = sg_xstrdup(path);
    for (char *p = copy + 1; *copy != '\0'; p++) {
        bool end = *p == '\0';
        if (!end && *p != '/') {
            continue;
        }
        *p = '\0';
        struct stat st;
        if (mkdir(copy, mode) < 0 && (errno != EEXIST || stat(copy, &st) < 0)) {
            return sg_error_sys(err, SG_INTERNAL, errno, "%s", copy);
        }
        if (end) {
            break;
        }
        *p = '/';
    }
    struct stat st;
    if (stat(path, &st) < 0 || !S_ISDIR(st.st_mode)) {
        return sg_error_sys(err, SG_INTERNAL, ENOTDIR, "%s", path);
    }
    return 0;
}

/* ---- removal of trees that a sandbox made: any depth, any modes ---- */

#define DEPTH_MAX 32

struct removal {
    int top;           /* directory that too deep ones are moved up to */
    dev_t dev;         /* stay on this file system */
    unsigned next;     /* number of the next one moved up */
    bool moved;        /* something was moved up: another pass is needed */
};

/* Opens a directory although its owner may have taken all permissions from it. */
static int open_dir(int dirfd, const char *name)
{
    int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 || errno != EACCES) {
        return fd;
    }
    sg_cleanup(sg_close_p) int path = openat(dirfd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    char link[64];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", path);
    if (path < 0 || chmod(link, 0700) < 0) {
        return -1;
    }
    return openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static int remove_dir(struct removal *rm, int dirfd, const char *name, int depth);

static int remove_entry(struct removal *rm, int dirfd, const char *name, int depth)
{
    if (unlinkat(dirfd, name, 0) == 0 || errno == ENOENT) {
        return 0;
    }
    if (errno != EISDIR && errno != EPERM) { /* POSIX says EPERM for directories */
        return -errno;
    }
    if (unlinkat(dirfd, name, AT_REMOVEDIR) == 0 || errno == ENOENT) {
        return 0;
    }
    if (depth < DEPTH_MAX || rm->top < 0) {
        return remove_dir(rm, dirfd, name, depth);
    }
    for (;;) {
        char up[32];
        (void)snprintf(up, sizeof up, ".sg-remove-%u", rm->next++);
        if (renameat2(dirfd, name, rm->top, up, RENAME_NOREPLACE) == 0) {
            rm->moved = true;
            return 0;
        }
        if (errno != EEXIST) {
            return -errno;
        }
    }
}

static void close_dir(DIR **d)
{
    if (*d != NULL) {
        (void)closedir(*d);
    }
}

static int empty_dir(struct removal *rm, int fd, int depth)
{
    sg_cleanup(close_dir) DIR *d = fdopendir(fd); /* owns fd now */
    if (d == NULL) {
        int r = -errno;
        (void)sg_close(fd);
        return r;
    }
    struct dirent *e;
    while ((errno = 0, e = readdir(d)) != NULL) {
        if (sg_streq(e->d_name, ".") || sg_streq(e->d_name, "..")) {
            continue;
        }
        int r = remove_entry(rm, dirfd(d), e->d_name, depth + 1);
        if (r < 0) {
            return r;
        }
    }
    return errno != 0 ? -errno : 0;
}

static int remove_dir(struct removal *rm, int dirfd, const char *name, int depth)
{
    sg_cleanup(sg_close_p) int fd = open_dir(dirfd, name);
    struct stat st;
    if (fd < 0) {
        return errno == ENOENT ? 0 : -errno;
    }
    if (fstat(fd, &st) < 0) {
        return -errno;
    }
    if (st.st_dev != rm->dev) {
        return -EXDEV;
    }
    if (fchmod(fd, 0700) < 0 && errno != EPERM) { /* entries can only go from a writable directory */
        return -errno;
    }
    bool is_top = rm->top < 0;
    int r;
    do {
        int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (again < 0) {
            return -errno;
        }
        if (is_top) {
            rm->top = fd;
            rm->moved = false;
        }
        r = empty_dir(rm, again, depth);
    } while (r == 0 && is_top && rm->moved);
    if (r == 0 && unlinkat(dirfd, name, AT_REMOVEDIR) < 0 && errno != ENOENT) {
        r = -errno;
    }
    return r;
}

int sg_remove_tree(int dirfd, const char *name, struct sg_error *err)
{
    struct stat st;
    if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
        return errno == ENOENT ? 0 : sg_error_sys(err, SG_INTERNAL, errno, "%s", name);
    }
    struct removal rm = {.top = -1, .dev = st.st_dev};
    int r = S_ISDIR(st.st_mode) ? remove_dir(&rm, dirfd, name, 0) : remove_entry(&rm, dirfd, name, 0);
    return r < 0 ? sg_error_sys(err, SG_INTERNAL, -r, "removing %s", name) : 0;
}
