/* A move between two file systems of the sandbox (/tmp and /workspace are two): copied under a temporary
 * name, renamed, and only then removed at its old place. Runs in a worker. */
#include "backends/agent/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEPTH_MAX 100
#define PIECE ((size_t)16 << 20)

static int copy_entry(int from, const char *name, int to, const char *as, unsigned depth);

static int keep_times(int fd, const struct stat *st)
{
    struct timespec t[2] = {st->st_atim, st->st_mtim};
    if (fchmod(fd, st->st_mode & 0777) != 0 || futimens(fd, t) != 0)
        return errno;
    return 0;
}

/* Bytes from at up to end. */
static int copy_piece(int in, int out, off_t at, off_t end)
{
    if (lseek(out, at, SEEK_SET) < 0)
        return errno;
    while (at < end) {
        size_t want = (uint64_t)(end - at) < PIECE ? (size_t)(end - at) : PIECE;
        ssize_t n = sendfile(out, in, &at, want);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : 0; /* it has become shorter */
    }
    return 0;
}

/* The first `size` bytes; holes stay holes. */
static int copy_bytes(int in, int out, off_t size)
{
    off_t at = 0;
    while (at < size) {
        off_t data = lseek(in, at, SEEK_DATA);
        if (data < 0 && errno == ENXIO)
            break;
        off_t hole = data < 0 ? -1 : lseek(in, data, SEEK_HOLE);
        if (data < 0) /* this file system does not tell */
            data = at;
        at = hole < 0 || hole > size ? size : hole;
        int e = copy_piece(in, out, data, at);
        if (e != 0)
            return e;
    }
    return ftruncate(out, size) != 0 ? errno : 0;
}

static int copy_file(int from, const char *name, int to, const char *as)
{
    struct stat st;
    int in = openat(from, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (in < 0)
        return errno;
    int out = openat(to, as, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC, 0600);
    int e = out < 0 ? errno : 0;
    if (e == 0 && fstat(in, &st) != 0)
        e = errno;
    if (e == 0 && !S_ISREG(st.st_mode))
        e = (int)SG_AGENT_ENOTREG;
    if (e == 0)
        e = copy_bytes(in, out, st.st_size);
    if (e == 0)
        e = keep_times(out, &st);
    if (out >= 0)
        close(out);
    close(in);
    return e;
}

static int copy_link(int from, const char *name, int to, const char *as)
{
    char text[SG_AGENT_PATH_MAX + 2];
    ssize_t n = readlinkat(from, name, text, sizeof text - 1);
    if (n < 0)
        return errno;
    text[n] = '\0';
    return symlinkat(text, to, as) != 0 ? errno : 0;
}

static int copy_entries(int from, int to, unsigned depth)
{
    struct level l;
    int e = 0;
    level_open(&l, from, 0);
    for (const char *name = level_next(&l, &e); name != NULL && e == 0; name = level_next(&l, &e))
        e = copy_entry(from, name, to, name, depth + 1);
    return e;
}

static int copy_dir(int from, const char *name, int to, const char *as, unsigned depth)
{
    struct stat st;
    if (depth == DEPTH_MAX)
        return ENAMETOOLONG;
    int in = openat(from, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (in < 0)
        return errno;
    int out = -1;
    int e = mkdirat(to, as, 0700) != 0 ? errno : 0;
    if (e == 0 && (out = openat(to, as, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) < 0)
        e = errno;
    if (e == 0)
        e = copy_entries(in, out, depth);
    if (e == 0)
        e = fstat(in, &st) != 0 ? errno : keep_times(out, &st);
    if (out >= 0)
        close(out);
    close(in);
    return e;
}

static int copy_entry(int from, const char *name, int to, const char *as, unsigned depth)
{
    struct stat st;
    if (fstatat(from, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return errno;
    switch (st.st_mode & S_IFMT) {
    case S_IFREG:
        return copy_file(from, name, to, as);
    case S_IFDIR:
        return copy_dir(from, name, to, as, depth);
    case S_IFLNK:
        return copy_link(from, name, to, as);
    case S_IFIFO:
        return mkfifoat(to, as, st.st_mode & 0777) != 0 ? errno : 0;
    default:
        return (int)SG_AGENT_ENOTREG;
    }
}

/* One name and all below it: 0 or an errno. */
static int remove_all(int dir, const char *name)
{
    if (unlinkat(dir, name, 0) == 0)
        return 0;
    if (errno != EISDIR)
        return errno;
    int fd = walk_open(dir, name);
    int e = fd < 0 ? errno : walk_remove(fd);
    if (e == 0 && unlinkat(dir, name, AT_REMOVEDIR) != 0)
        e = errno;
    return e;
}

int copy_move(int from, const char *name, int to, const char *as)
{
    char temp[48];
    snprintf(temp, sizeof temp, ".sandgate-mv-%d", (int)getpid());
    int e =
        faccessat(from, ".", W_OK, AT_EACCESS) != 0 ? errno : 0; /* what cannot go from there is not copied */
    if (e == 0)
        e = copy_entry(from, name, to, temp, 0);
    if (e == 0 && renameat(to, temp, to, as) != 0)
        e = errno;
    if (e != 0) {
        (void)remove_all(to, temp);
        return e;
    }
    return remove_all(from, name);
}
