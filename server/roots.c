#include "roots.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/spawner/spawner.h"
#include "base/fd.h"
#include "service/tar_image.h"

#define UNPACK_SECONDS 900
#define PIECE ((size_t)256 * 1024)
#define NEW ".new" /* what is being unpacked */

struct sg_roots {
    struct sg_local_pool_config *pools;
    size_t n_pools;
    char *dirs[SG_SPAWNER_ROOTFS_MAX + 1];
    size_t n_dirs;
    int images; /* directory of what was unpacked, or -1 */
    char *images_path;
    int64_t max_bytes;
};

/* ---- one archive ---- */

/* The signals that stop a server are blocked while it starts, which may take long here. */
static bool told_to_stop(sigset_t *which)
{
    sigset_t pending;

    sigemptyset(which);
    sigaddset(which, SIGTERM);
    sigaddset(which, SIGINT);
    return sigpending(&pending) == 0 && (sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGINT) == 1);
}

static int stopped(struct sg_error *err)
{
    return sg_error_set(err, SG_SHUTTING_DOWN, "the server was told to stop before it was unpacked");
}

static int digest_of(int fd, char ret[SG_SHA256_HEX], struct sg_error *err)
{
    struct sg_sha256_stream *sha = sg_sha256_begin();
    sg_cleanup(sg_free_p) char *piece = sg_xcalloc(PIECE, 1);
    sigset_t which;
    bool stop = false;
    ssize_t n;

    while (!(stop = told_to_stop(&which)) && ((n = read(fd, piece, PIECE)) > 0 || (n < 0 && errno == EINTR)))
        sg_sha256_add(sha, piece, n > 0 ? (size_t)n : 0);
    if (!stop && n == 0)
        sg_sha256_end(sha, ret);
    sg_sha256_free(sha);
    if (stop)
        return stopped(err);
    return n < 0 || lseek(fd, 0, SEEK_SET) < 0 ? sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot be read") : 0;
}

/* In a process of its own, which a hostile archive may have to itself. */
_Noreturn static void unpack_child(const struct sg_roots *r, int fd, const char *digest, int out, pid_t parent)
{
    sg_cleanup(sg_free_p) char *dir = sg_xasprintf("%s/" NEW, r->images_path);
    const struct rlimit size = {(rlim_t)r->max_bytes, (rlim_t)r->max_bytes};
    char got[SG_SHA256_HEX];
    struct sg_error err = {0};

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (getppid() != parent)
        _exit(1);
    (void)signal(SIGXFSZ, SIG_IGN);
    (void)setrlimit(RLIMIT_FSIZE, &size);
    (void)umask(022);
    (void)alarm(UNPACK_SECONDS);
    int rc = sg_tar_image(fd, dir, r->max_bytes, got, &err);
    if (rc == 0 && !sg_streq(got, digest))
        rc = sg_error_set(&err, SG_CONFLICT, "has changed while it was read");
    if (rc == 0 && syncfs(r->images) < 0)
        rc = sg_error_sys(&err, SG_UNAVAILABLE, errno, "cannot be written");
    if (rc < 0)
        (void)sg_write_all(out, err.message, strlen(err.message));
    _exit(rc < 0 ? 1 : 0);
}

/* Until the process that unpacks says something or ends. */
static bool stopped_before_end(int in)
{
    sigset_t which;
    bool stop = told_to_stop(&which);
    sg_cleanup(sg_close_p) int signals = signalfd(-1, &which, SFD_CLOEXEC);
    struct pollfd p[] = {{.fd = in, .events = POLLIN}, {.fd = signals, .events = POLLIN}};

    while (!stop && poll(p, 2, -1) < 0 && errno == EINTR)
        continue;
    return stop || (p[0].revents == 0 && p[1].revents != 0);
}

/* 0, or why the process that unpacks has failed. */
static int wait_for(pid_t pid, int in, struct sg_error *err)
{
    char text[512];
    size_t len = 0;
    int status = 0;
    bool stop = stopped_before_end(in);

    if (stop)
        (void)kill(pid, SIGKILL);
    for (ssize_t n = 1; n > 0 && len < sizeof text - 1; len += n > 0 ? (size_t)n : 0)
        n = read(in, text + len, sizeof text - 1 - len);
    text[len] = '\0';
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (stop)
        return stopped(err);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        return sg_error_set(err, SG_UNAVAILABLE, "was not unpacked within %d seconds", UNPACK_SECONDS);
    return sg_error_set(err, SG_INVALID_REQUEST, "%s", len > 0 ? text : "the process that unpacks it has died");
}

static int unpack(const struct sg_roots *r, int fd, const char *digest, struct sg_error *err)
{
    int ends[2];

    if (sg_remove_tree(r->images, NEW, err) < 0)
        return -1;
    if (mkdirat(r->images, NEW, 0755) < 0 || pipe2(ends, O_CLOEXEC) < 0)
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot be unpacked");
    sg_cleanup(sg_close_p) int in = ends[0];
    pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        unpack_child(r, fd, digest, ends[1], parent);
    sg_close(ends[1]);
    int rc = pid < 0 ? sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot be unpacked") : wait_for(pid, in, err);
    if (rc == 0 && renameat(r->images, NEW, r->images, digest) < 0)
        rc = sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot be kept");
    if (rc < 0)
        (void)sg_remove_tree(r->images, NEW, NULL);
    return rc;
}

static int open_images(struct sg_roots *r, struct sg_error *err)
{
    if (r->images >= 0)
        return 0;
    if (sg_mkdirs(r->images_path, 0700, err) < 0)
        return -1;
    r->images = open(r->images_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return r->images < 0 ? sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", r->images_path) : 0;
}

static int image_dir(struct sg_roots *r, int fd, char **ret, struct sg_error *err)
{
    char digest[SG_SHA256_HEX];
    struct stat st;

    if (open_images(r, err) < 0 || digest_of(fd, digest, err) < 0)
        return -1;
    if (fstatat(r->images, digest, &st, AT_SYMLINK_NOFOLLOW) < 0 && unpack(r, fd, digest, err) < 0)
        return -1;
    *ret = sg_xasprintf("%s/%s", r->images_path, digest);
    return 0;
}

/* ---- all of them ---- */

/* Keeps dir, which becomes ours, unless it is there already; *ret is borrowed. */
static int keep(struct sg_roots *r, char *dir, const char **ret, struct sg_error *err)
{
    for (size_t i = 0; i < r->n_dirs; i++) {
        if (sg_streq(r->dirs[i], dir)) {
            free(dir);
            *ret = r->dirs[i];
            return 0;
        }
    }
    if (r->n_dirs == SG_SPAWNER_ROOTFS_MAX) {
        free(dir);
        return sg_error_set(err, SG_INVALID_REQUEST, "there may be %u root file systems at most", SG_SPAWNER_ROOTFS_MAX);
    }
    *ret = r->dirs[r->n_dirs++] = dir;
    return 0;
}

/* path, of the configuration, becomes a directory. */
static int resolve(struct sg_roots *r, const char *path, const char **ret, struct sg_error *err)
{
    sg_cleanup(sg_close_p) int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    char *dir = NULL;
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0)
        return sg_error_sys(err, SG_INVALID_REQUEST, errno, "%s", path);
    if (S_ISDIR(st.st_mode) && !(dir = realpath(path, NULL)))
        return sg_error_sys(err, SG_INVALID_REQUEST, errno, "%s", path);
    if (dir && sg_streq(dir, "/")) {
        free(dir);
        return sg_error_set(err, SG_INVALID_REQUEST, "%s is the host's own, which sandboxes get without this setting", path);
    }
    if (!dir && !S_ISREG(st.st_mode))
        return sg_error_set(err, SG_INVALID_REQUEST, "%s is neither a directory nor a tar archive", path);
    if (!dir && image_dir(r, fd, &dir, err) < 0)
        return sg_error_wrap(err, "%s", path);
    return keep(r, dir, ret, err);
}

static int resolve_pool(struct sg_roots *r, struct sg_local_pool_config *p, const struct sg_config_pool *from, const char *section,
                        struct sg_error *err)
{
    struct sg_local_image *images = sg_xcalloc(from->n_images, sizeof *images);

    p->images = images;
    if (p->rootfs && resolve(r, from->pool.rootfs, &p->rootfs, err) < 0)
        return sg_error_wrap(err, "%s.rootfs", section);
    for (; p->n_images < from->n_images; p->n_images++) {
        struct sg_local_image *im = &images[p->n_images];
        im->name = from->images[p->n_images].name;
        if (resolve(r, from->images[p->n_images].value, &im->rootfs, err) < 0)
            return sg_error_wrap(err, "%s.images.%s", section, im->name);
    }
    return 0;
}

/* What no setting needs any more. */
static void prune(struct sg_roots *r)
{
    struct stat st;

    if (r->images < 0 && (stat(r->images_path, &st) < 0 || open_images(r, NULL) < 0))
        return;
    DIR *d = opendir(r->images_path);
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        sg_cleanup(sg_free_p) char *path = sg_xasprintf("%s/%s", r->images_path, e->d_name);
        bool used = sg_streq(e->d_name, ".") || sg_streq(e->d_name, "..");
        for (size_t i = 0; i < r->n_dirs; i++)
            used = used || sg_streq(r->dirs[i], path);
        if (!used)
            (void)sg_remove_tree(r->images, e->d_name, NULL); /* what stays is tried again by the next server */
    }
    if (d)
        closedir(d);
}

int sg_roots_open(const struct sg_config *c, const char *state_dir, struct sg_roots **ret, struct sg_error *err)
{
    struct sg_roots *r = sg_xcalloc(1, sizeof *r);
    int rc = 0;

    r->images = -1;
    r->images_path = sg_xasprintf("%s/images", state_dir);
    r->max_bytes = c->image_max_bytes;
    r->pools = sg_config_local_pools(c, &r->n_pools);
    for (size_t i = 0; i < r->n_pools && rc == 0; i++) {
        char section[48] = "local_bwrap";
        if (i > 0)
            (void)snprintf(section, sizeof section, "local_pools[%zu]", i - 1);
        rc = resolve_pool(r, &r->pools[i], i == 0 ? &c->local_bwrap : &c->local_pools[i - 1], section, err);
    }
    if (rc < 0) {
        sg_roots_free(r);
        return -1;
    }
    prune(r);
    *ret = r;
    return 0;
}

struct sg_roots *sg_roots_free(struct sg_roots *r)
{
    if (r) {
        for (size_t i = 0; i < r->n_pools; i++)
            free((void *)(uintptr_t)r->pools[i].images);
        for (size_t i = 0; i < r->n_dirs; i++)
            free(r->dirs[i]);
        free(r->pools);
        free(r->images_path);
        sg_close(r->images);
        free(r);
    }
    return NULL;
}

const char *const *sg_roots_dirs(const struct sg_roots *r)
{
    return (const char *const *)r->dirs;
}

const struct sg_local_pool_config *sg_roots_pools(const struct sg_roots *r, size_t *ret_n)
{
    *ret_n = r->n_pools;
    return r->pools;
}
