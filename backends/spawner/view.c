#include "backends/spawner/view.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/spawner/view_etc.h"
#include "base/fd.h"

#define AGENT_MAX (64U * 1024U * 1024U)

/* ---- the namespaces the spawner was born into ---- */

static int write_text(const char *path, const char *text)
{
    sg_cleanup(sg_close_p) int fd = open(path, O_WRONLY | O_CLOEXEC);
    return fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) ? 0 : -1;
}

static int map_user(unsigned uid, unsigned gid, struct sg_error *err)
{
    char users[64], groups[64];
    snprintf(users, sizeof users, "0 %u 1\n", uid);
    snprintf(groups, sizeof groups, "0 %u 1\n", gid);
    if (write_text("/proc/self/setgroups", "deny") < 0 || write_text("/proc/self/uid_map", users) < 0 ||
        write_text("/proc/self/gid_map", groups) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot map this user into a user namespace");
    }
    return 0;
}

static int settle_mounts(struct sg_error *err)
{
    if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot make the mounts private");
    }
    if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno,
                            "cannot mount a /proc (inside a container it must not be masked: run it with "
                            "systempaths=unconfined)");
    }
    return 0;
}

/* ---- the tmpfs ---- */

static bool is_below(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    return path != NULL && strncmp(path, dir, n) == 0 && (path[n] == '/' || path[n] == '\0');
}

static bool hides_something(const char *dir, const struct sg_spawner_config *cfg)
{
    bool hides =
        is_below(cfg->state_dir, dir) || is_below(cfg->bwrap_path, dir) || is_below(cfg->agent_path, dir);
    for (size_t i = 0; cfg->rootfs != NULL && cfg->rootfs[i] != NULL; i++) {
        hides = hides || is_below(cfg->rootfs[i], dir);
    }
    return hides;
}

/* Any directory will do that exists everywhere and that nobody needs; it is covered in the spawner's
 * namespace only. */
static const char *find_anchor(const struct sg_spawner_config *cfg)
{
    static const char *const places[] = {"/mnt", "/media", "/srv", "/opt", "/boot"};
    for (size_t i = 0; i < SG_COUNT_OF(places); i++) {
        struct stat st;
        if (!hides_something(places[i], cfg) && lstat(places[i], &st) == 0 && S_ISDIR(st.st_mode)) {
            return places[i];
        }
    }
    return NULL;
}

static int make_anchor(struct sg_view *v, const struct sg_spawner_config *cfg, struct sg_error *err)
{
    const char *place = find_anchor(cfg);
    if (place == NULL) {
        return sg_error_set(err, SG_UNAVAILABLE,
                            "none of /mnt, /media, /srv, /opt, /boot is a directory to mount on");
    }
    if (mount("sandgate", place, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=128m") < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot mount a tmpfs");
    }
    v->anchor = sg_xstrdup(place);
    v->slot = sg_xasprintf("%s/slot", place);
    v->empty = sg_xasprintf("%s/empty", place);
    v->nothing = sg_xasprintf("%s/nothing", place);
    if (mount(NULL, place, NULL, MS_PRIVATE, NULL) < 0 || mkdir(v->slot, 0755) < 0 ||
        mkdir(v->empty, 0) < 0 || mknod(v->nothing, S_IFREG, 0) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", v->slot);
    }
    return 0;
}

static int copy_agent(const struct sg_view *v, const char *from, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *to = sg_xasprintf("%s/agent", v->anchor);
    sg_cleanup(sg_free_p) char *bytes = NULL;
    size_t len;
    if (sg_read_file(from, AGENT_MAX, &bytes, &len, err) < 0) {
        return sg_error_wrap(err, "the agent's binary");
    }
    if (sg_write_file(to, bytes, len, 0555, err) < 0 || chmod(to, 0555) < 0) {
        return sg_error_wrap(err, "the copy of the agent's binary");
    }
    return 0;
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

static int make_dirs(const char *root, const char *const *dirs, struct sg_error *err)
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
    if (make_dirs(r->path, common_dirs, err) < 0) {
        return -1;
    }
    if (link(agent, link_to) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", link_to);
    }
    return 0;
}

static int make_host_root(struct sg_view *v, struct sg_error *err)
{
    static const char *const system_dirs[] = {"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"};
    static const char *const more_dirs[] = {"/etc",     "/root",     "/mnt",     "/opt",
                                            "/srv",     "/var",      "/var/lib", "/var/cache",
                                            "/var/log", "/var/mail", "/var/opt", NULL};
    struct sg_view_root *r = &v->roots[0];
    if (begin_root(v, r, err) < 0 || make_dirs(r->path, more_dirs, err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < SG_COUNT_OF(system_dirs); i++) {
        if (take_entry(r, "", system_dirs[i], err) < 0) {
            return -1;
        }
    }
    sg_cleanup(sg_free_p) char *var_tmp = sg_xasprintf("%s/var/tmp", r->path);
    sg_cleanup(sg_free_p) char *var_run = sg_xasprintf("%s/var/run", r->path);
    sg_cleanup(sg_free_p) char *etc = sg_xasprintf("%s/etc", r->path);
    if (symlink("/tmp", var_tmp) < 0 || symlink("/run", var_run) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", var_tmp);
    }
    return sg_view_etc_make(etc, true, err);
}

/* The image's own /etc, with the generated files over those of the same name. */
static int take_etc(struct sg_view *v, struct sg_view_root *r, const char *base, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *etc = sg_xasprintf("%s/etc-%zu", v->anchor, v->n_roots);
    if (mkdir(etc, 0755) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", etc);
    }
    if (sg_view_etc_make(etc, false, err) < 0 || take_entry(r, base, "etc", err) < 0) {
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

int sg_view_make(struct sg_view *v, const struct sg_spawner_config *cfg, const struct sg_view_user *own,
                 struct sg_error *err)
{
    if ((!own->root_server && map_user(own->uid, own->gid, err) < 0) || settle_mounts(err) < 0 ||
        make_anchor(v, cfg, err) < 0 || copy_agent(v, cfg->agent_path, err) < 0 ||
        make_host_root(v, err) < 0) {
        return -1;
    }
    for (size_t i = 0; cfg->rootfs != NULL && cfg->rootfs[i] != NULL; i++) {
        if (make_image_root(v, cfg->rootfs[i], err) < 0) {
            return -1;
        }
    }
    if (mount(NULL, v->anchor, NULL, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV, "mode=0755,size=128m") <
        0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot make %s read-only", v->anchor);
    }
    return 0;
}
