/* The spawner's own root directory. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backends/spawner/daemon.h"
#include "backends/spawner/view_etc.h"
#include "base/fd.h"

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

/* ---- the spawner's own root ---- */

#define RESOLV_MAX ((size_t)64 * 1024)

/* Everything is mounted here first; the place only has to exist and to be nothing that anybody binds from. */
#define PLACE "/proc"

const char *const sg_view_system_dirs[SG_VIEW_SYSTEM_DIRS] = {"usr",   "bin",   "sbin",  "lib",
                                                              "lib32", "lib64", "libx32"};

/* Where bubblewrap puts together what it then changes to: the state directory need not lie below it. */
#define BWRAP_PLACE "/tmp"

static int make_dirs(const char *root, const char *path, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *whole = sg_xasprintf("%s%s", root, path);
    return sg_mkdirs(whole, 0755, err);
}

/* Shows a directory, with what is mounted below it, at a path under the new root. */
static int show_dir(const char *path, const char *as, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *at = sg_xasprintf(PLACE "%s", as);
    if (make_dirs(PLACE, as, err) < 0) {
        return -1;
    }
    if (mount(path, at, NULL, MS_BIND | MS_REC, NULL) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot bind %s", path);
    }
    return 0;
}

static int show_file(const char *path, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *at = sg_xasprintf(PLACE "%s", path);
    sg_cleanup(sg_free_p) char *dir = sg_xstrndup(path, (size_t)(strrchr(path, '/') - path));
    if (access(at, X_OK) == 0) {
        return 0; /* with its directory */
    }
    if (make_dirs(PLACE, dir, err) < 0) {
        return -1;
    }
    if (mknod(at, S_IFREG | 0644, 0) < 0 || mount(path, at, NULL, MS_BIND, NULL) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot bind %s", path);
    }
    return 0;
}

static int show_system(struct sg_error *err)
{
    for (size_t i = 0; i < SG_VIEW_SYSTEM_DIRS; i++) {
        sg_cleanup(sg_free_p) char *path = sg_xasprintf("/%s", sg_view_system_dirs[i]);
        sg_cleanup(sg_free_p) char *at = sg_xasprintf(PLACE "%s", path);
        char target[PATH_MAX];
        struct stat st;
        ssize_t n = readlink(path, target, sizeof target - 1);
        target[n > 0 ? n : 0] = '\0';
        if (n > 0 && symlink(target, at) < 0) {
            return sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", at);
        }
        if (n < 0 && lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && show_dir(path, path, err) < 0) {
            return -1;
        }
    }
    return show_dir("/dev", "/dev", err);
}

static int show_configured(const struct sg_daemon_args *a, struct sg_error *err)
{
    const struct sg_spawner_config *cfg = a->cfg;
    if (show_dir(cfg->state_dir, cfg->state_dir, err) < 0) {
        return -1;
    }
    for (size_t i = 0; cfg->rootfs != NULL && cfg->rootfs[i] != NULL; i++) {
        /* At a path of ours: bwrap, as the agent's uid, need not get through the directories above. */
        char as[64];
        (void)snprintf(as, sizeof as, SG_VIEW_IMAGE, i);
        if (show_dir(cfg->rootfs[i], as, err) < 0) {
            return -1;
        }
    }
    return show_file(a->bwrap, err) < 0 || (a->slirp != NULL && show_file(a->slirp, err) < 0) ? -1 : 0;
}

static int mount_proc(struct sg_error *err)
{
    if (mkdir(PLACE "/proc", 0755) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "/proc");
    }
    if (mount("proc", PLACE "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno,
                            "cannot mount a /proc (inside a container it must not be masked: run it with "
                            "systempaths=unconfined)");
    }
    return 0;
}

/* A small root with only what slots are made of. bubblewrap reads the list of mounts once per mount it makes,
 * so the fewer there are, the faster; and what is not there cannot be shown by mistake. */
static int make_root(const struct sg_daemon_args *a, struct sg_error *err)
{
    if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot make the mounts private");
    }
    if (mount("sandgate", PLACE, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=128m") < 0 ||
        mount(NULL, PLACE, NULL, MS_PRIVATE, NULL) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot mount a tmpfs");
    }
    if (make_dirs(PLACE, SG_VIEW_OWN, err) < 0 || make_dirs(PLACE, BWRAP_PLACE, err) < 0 || show_system(err) < 0 ||
        show_configured(a, err) < 0 || mount_proc(err) < 0) {
        return -1;
    }
    return 0;
}

/* From the host's /etc, which the new root does not show. bubblewrap's loader uses it, too. */
static int make_etc(struct sg_error *err)
{
    if (mkdir(PLACE SG_VIEW_ETC, 0755) < 0 || symlink(SG_VIEW_OWN "/root-0/etc", PLACE "/etc") < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, SG_VIEW_ETC);
    }
    return sg_view_etc_make(PLACE SG_VIEW_ETC, true, err);
}

/* A copy of what the host has now; without any there is no name service. */
static int copy_name_servers(struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *text = NULL;
    size_t len = 0;
    if (sg_read_file("/etc/resolv.conf", RESOLV_MAX, &text, &len, NULL) < 0) {
        len = 0;
    }
    const char *to = PLACE SG_VIEW_NAME_SERVERS;
    if (sg_write_file(to, text != NULL ? text : "", len, 0644, err) < 0 || chmod(to, 0644) < 0) {
        return sg_error_wrap(err, "the copy of /etc/resolv.conf");
    }
    return 0;
}

static int enter_root(struct sg_error *err)
{
    if (chdir(PLACE) < 0 || syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 ||
        chdir("/") < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot change the root directory");
    }
    return 0;
}

int sg_view_enter(const struct sg_daemon_args *a, struct sg_error *err)
{
    if (!a->own.root_server && map_user(a->own.uid, a->own.gid, err) < 0) {
        return -1;
    }
    if (make_root(a, err) < 0 || make_etc(err) < 0 || (a->slirp != NULL && copy_name_servers(err) < 0)) {
        return -1;
    }
    return enter_root(err);
}
