#include "backends/spawner/daemon.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/spawner/net.h"
#include "backends/spawner/view_etc.h"
#include "base/fd.h"

#define AGENT_MAX ((size_t)64 << 20)
#define OWN SG_VIEW_OWN

/* ---- our files in it ---- */

static int make_own(struct sg_view *v, struct sg_error *err)
{
    v->anchor = OWN;
    v->slot = OWN "/slot";
    v->devices = OWN "/devices";
    v->empty = OWN "/empty";
    v->nothing = OWN "/nothing";
    if (mkdir(v->slot, 0755) < 0 || mkdir(v->devices, 0755) < 0 || mkdir(v->empty, 0) < 0 ||
        mknod(v->nothing, S_IFREG, 0) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, OWN);
    }
    return 0;
}

static int show_device(const char *name, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *from = sg_xasprintf("/dev/%s", name);
    sg_cleanup(sg_free_p) char *at = sg_xasprintf(OWN "/devices/%s", name);
    if (mknod(at, S_IFREG | 0444, 0) < 0 || mount(from, at, NULL, MS_BIND, NULL) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot show %s", from);
    }
    return 0;
}

/* A file system of its own, for our root is without devices. */
static int make_devices(const struct sg_view *v, struct sg_error *err)
{
    static const char *const devices[] = {"null", "zero", "full", "random", "urandom", "tty"};
    static const struct sg_view_bind links[] = {{"/proc/self/fd", OWN "/devices/fd"},      {"/proc/self/fd/0", OWN "/devices/stdin"},
                                                {"/proc/self/fd/1", OWN "/devices/stdout"}, {"/proc/self/fd/2", OWN "/devices/stderr"},
                                                {"/proc/kcore", OWN "/devices/core"},       {"pts/ptmx", OWN "/devices/ptmx"}};
    struct mount_attr no_suid = {.attr_set = MOUNT_ATTR_NOSUID}, read_only = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV};
    if (mount("devices", v->devices, "tmpfs", MS_NOSUID, "mode=0755,size=64k") < 0 || mkdir(OWN "/devices/shm", 0755) < 0 ||
        mkdir(OWN "/devices/pts", 0755) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", v->devices);
    }
    for (size_t i = 0; i < SG_COUNT_OF(devices); i++) {
        if (show_device(devices[i], err) < 0) {
            return -1;
        }
    }
    for (size_t i = 0; i < SG_COUNT_OF(links); i++) {
        if (symlink(links[i].from, links[i].to) < 0) {
            return sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", links[i].to);
        }
    }
    if (mount_setattr(AT_FDCWD, v->devices, AT_RECURSIVE, &no_suid, sizeof no_suid) < 0 ||
        mount_setattr(AT_FDCWD, v->devices, 0, &read_only, sizeof read_only) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot make the devices read-only");
    }
    return 0;
}

/* For slots with an open network; the host's name servers are there already. */
static int make_resolv(struct sg_view *v, struct sg_error *err)
{
    v->name_servers = SG_VIEW_NAME_SERVERS;
    v->resolv_inside = OWN "/resolv.conf";
    if (sg_write_file(v->resolv_inside, SG_NET_RESOLV_CONF, strlen(SG_NET_RESOLV_CONF), 0644, err) < 0 ||
        chmod(v->resolv_inside, 0644) < 0) {
        return sg_error_wrap(err, "resolv.conf");
    }
    return 0;
}

static int read_agent(const char *from, char **bytes, size_t *len, struct sg_error *err)
{
    return sg_read_file(from, AGENT_MAX, bytes, len, err) < 0 ? sg_error_wrap(err, "the agent's binary") : 0;
}

static int write_agent(const char *bytes, size_t len, struct sg_error *err)
{
    if (sg_write_file(OWN "/agent", bytes, len, 0555, err) < 0 || chmod(OWN "/agent", 0555) < 0) {
        return sg_error_wrap(err, "the copy of the agent's binary");
    }
    return 0;
}

/* Read by anybody on the host, and of no use in a sandbox. */
static void find_covered(struct sg_view *v)
{
    static const char *const names[] = {
        "/proc/kcore", "/proc/keys", "/proc/key-users",   "/proc/kmsg",          "/proc/timer_list",
        "/proc/acpi",  "/proc/scsi", "/proc/sched_debug", "/proc/latency_stats", "/proc/asound"};
    for (size_t i = 0; i < SG_COUNT_OF(names); i++) {
        struct stat st;
        if (lstat(names[i], &st) == 0 && (st.st_mode & S_IROTH)) {
            v->covered[v->n_covered++] =
                (struct sg_view_bind){S_ISDIR(st.st_mode) ? v->empty : v->nothing, names[i]};
        }
    }
}

/* ---- one root ---- */

static int bind_add(struct sg_view_root *r, const char *from, const char *to, struct sg_error *err)
{
    if (r->n_binds == SG_VIEW_BINDS_MAX) {
        return sg_error_set(err, SG_UNAVAILABLE, "%s: too many directories at the top", from);
    }
    r->binds[r->n_binds++] = (struct sg_view_bind){sg_xstrdup(from), sg_xstrdup(to)};
    return 0;
}

static int make_all(const char *root, const char *const *dirs, struct sg_error *err)
{
    for (; *dirs != NULL; dirs++) {
        sg_cleanup(sg_free_p) char *path = sg_xasprintf("%s%s", root, *dirs);
        if (mkdir(path, 0755) < 0 && errno != EEXIST) {
            return sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", path);
        }
    }
    return 0;
}

/* A link at the top is copied, a directory becomes a mount point with the original bound over it. */
static int take_entry(struct sg_view_root *r, const char *base, const char *name, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *from = sg_xasprintf("%s/%s", base, name);
    sg_cleanup(sg_free_p) char *inside = sg_xasprintf("/%s", name);
    sg_cleanup(sg_free_p) char *at = sg_xasprintf("%s%s", r->path, inside);
    char target[PATH_MAX];
    struct stat st;
    if (lstat(from, &st) < 0) {
        return 0;
    }
    if (S_ISLNK(st.st_mode)) {
        ssize_t n = readlink(from, target, sizeof target - 1);
        target[n > 0 ? n : 0] = '\0';
        if (n <= 0 || (symlink(target, at) < 0 && errno != EEXIST)) {
            return sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", from);
        }
        return 0;
    }
    if (!S_ISDIR(st.st_mode)) {
        return 0;
    }
    if (mkdir(at, 0755) < 0 && errno != EEXIST) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", at);
    }
    return bind_add(r, from, inside, err);
}

static const char *const common_dirs[] = {
    "/proc", "/dev", "/tmp", "/run", "/workspace", "/home", "/home/sandbox", "/.sandgate", NULL,
};

static int begin_root(struct sg_view *v, struct sg_view_root *r, struct sg_error *err)
{
    r->path = sg_xasprintf("%s/root-%zu", v->anchor, v->n_roots++);
    sg_cleanup(sg_free_p) char *agent = sg_xasprintf("%s/agent", v->anchor);
    sg_cleanup(sg_free_p) char *link_to = sg_xasprintf("%s%s", r->path, SG_VIEW_AGENT);
    if (mkdir(r->path, 0755) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", r->path);
    }
    if (make_all(r->path, common_dirs, err) < 0) {
        return -1;
    }
    if (link(agent, link_to) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", link_to);
    }
    return 0;
}

static int make_host_root(struct sg_view *v, struct sg_error *err)
{
    static const char *const more_dirs[] = {"/root",     "/mnt",     "/opt",       "/srv",
                                            "/var",      "/var/lib", "/var/cache", "/var/log",
                                            "/var/mail", "/var/opt", NULL};
    struct sg_view_root *r = &v->roots[0];
    if (begin_root(v, r, err) < 0 || make_all(r->path, more_dirs, err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < SG_COUNT_OF(sg_view_system_dirs); i++) {
        if (take_entry(r, "", sg_view_system_dirs[i], err) < 0) {
            return -1;
        }
    }
    r->has_resolv = true;
    sg_cleanup(sg_free_p) char *var_tmp = sg_xasprintf("%s/var/tmp", r->path);
    sg_cleanup(sg_free_p) char *var_run = sg_xasprintf("%s/var/run", r->path);
    sg_cleanup(sg_free_p) char *etc = sg_xasprintf("%s/etc", r->path);
    if (symlink("/tmp", var_tmp) < 0 || symlink("/run", var_run) < 0 || rename(SG_VIEW_ETC, etc) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", var_tmp);
    }
    return 0;
}

/* The image's own /etc, with the generated files over those of the same name; all of them where it has none. */
static int take_etc(struct sg_view *v, struct sg_view_root *r, const char *base, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *etc = sg_xasprintf("%s/etc-%zu", v->anchor, v->n_roots);
    if (mkdir(etc, 0755) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", etc);
    }
    if (sg_view_etc_make(etc, false, err) < 0) {
        return -1;
    }
    sg_cleanup(sg_free_p) char *own = sg_xasprintf("%s/etc", base);
    sg_cleanup(sg_free_p) char *at = sg_xasprintf("%s/etc", r->path);
    struct stat its;
    if (lstat(own, &its) < 0) {
        r->has_resolv = true;
        return rename(etc, at) < 0 ? sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", at) : 0;
    }
    if (!S_ISDIR(its.st_mode)) {
        return sg_error_set(err, SG_UNAVAILABLE, "its etc is not a directory");
    }
    if (take_entry(r, base, "etc", err) < 0) {
        return -1;
    }
    DIR *d = opendir(etc);
    int result = d == NULL ? sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", etc) : 0;
    for (struct dirent *e = d != NULL ? readdir(d) : NULL; e != NULL && result == 0; e = readdir(d)) {
        sg_cleanup(sg_free_p) char *theirs = sg_xasprintf("%s/etc/%s", base, e->d_name);
        sg_cleanup(sg_free_p) char *ours = sg_xasprintf("%s/%s", etc, e->d_name);
        struct stat st;
        if (e->d_name[0] != '.' && lstat(theirs, &st) == 0 && S_ISREG(st.st_mode)) {
            result = bind_add(r, ours, theirs + strlen(base), err);
            r->has_resolv = r->has_resolv || sg_streq(e->d_name, "resolv.conf");
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    return result;
}

static bool is_ours(const char *name)
{
    static const char *const names[] = {"proc",      "sys",  "dev", "tmp",       "run",
                                        "workspace", "home", "etc", "lost+found"};
    for (size_t i = 0; i < SG_COUNT_OF(names); i++) {
        if (sg_streq(name, names[i])) {
            return true;
        }
    }
    return name[0] == '.';
}

static int make_image_root(struct sg_view *v, const char *base, struct sg_error *err)
{
    struct sg_view_root *r = &v->roots[v->n_roots];
    DIR *d = opendir(base);
    if (d == NULL) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "rootfs %s", base);
    }
    int result = begin_root(v, r, err);
    for (struct dirent *e = readdir(d); e != NULL && result == 0; e = readdir(d)) {
        if (!is_ours(e->d_name)) {
            result = take_entry(r, base, e->d_name, err);
        }
    }
    closedir(d);
    return result < 0 ? -1 : take_etc(v, r, base, err);
}

int sg_view_make(struct sg_view *v, const struct sg_daemon_args *a, struct sg_error *err)
{
    const struct sg_spawner_config *cfg = a->cfg;
    sg_cleanup(sg_free_p) char *agent = NULL;
    size_t len;
    if (read_agent(cfg->agent_path, &agent, &len, err) < 0) {
        return -1;
    }
    if (sg_view_enter(a, err) < 0 || make_own(v, err) < 0 || make_devices(v, err) < 0 || (a->slirp != NULL && make_resolv(v, err) < 0) || write_agent(agent, len, err) < 0 ||
        make_host_root(v, err) < 0) {
        return -1;
    }
    for (size_t i = 0; cfg->rootfs != NULL && cfg->rootfs[i] != NULL; i++) {
        char base[64];
        (void)snprintf(base, sizeof base, SG_VIEW_IMAGE, i);
        if (make_image_root(v, base, err) < 0) {
            return sg_error_wrap(err, "rootfs %s", cfg->rootfs[i]);
        }
    }
    find_covered(v);
    if (mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV, "mode=0755,size=128m") < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot make the spawner's root read-only");
    }
    return 0;
}
