#include "backends/spawner/view_etc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"

#define FILE_MAX ((size_t)8 << 20)

static const struct {
    const char *name, *text;
} generated[] = {
    {"passwd", "root:x:0:0:root:/root:/usr/sbin/nologin\n"
               "sandbox:x:1000:1000:sandbox:/home/sandbox:/bin/sh\n"
               "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"},
    {"group", "root:x:0:\nsandbox:x:1000:\nnogroup:x:65534:\n"},
    {"hosts", "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n"},
    {"hostname", "sandbox\n"},
    {"resolv.conf", ""},
    {"host.conf", "multi on\n"},
    {"shells", "/bin/sh\n/bin/bash\n"},
    {"nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\n"
                      "protocols: files\nservices: files\nethers: files\nrpc: files\n"},
};

static const char *const copied_files[] = {"ld.so.cache", "services", "protocols", "mime.types",
                                           "debian_version"};
static const char *const copied_dirs[] = {"alternatives", "ssl/certs"};

static int write_file(const char *dir, const char *name, const void *data, size_t len, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("%s/%s", dir, name);
    sg_cleanup(sg_close_p) int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    int r = fd < 0 ? -errno : sg_write_all(fd, data, len);
    return r < 0 ? sg_error_sys(err, SG_UNAVAILABLE, -r, "%s", path) : 0;
}

/* What is missing, a link or not readable for all is left out. */
static int copy_file(const char *from_dir, const char *to_dir, const char *name, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *from = sg_xasprintf("%s/%s", from_dir, name);
    sg_cleanup(sg_free_p) char *bytes = NULL;
    size_t len = 0;
    struct stat st;
    if (lstat(from, &st) < 0 || !S_ISREG(st.st_mode) || !(st.st_mode & S_IROTH) ||
        sg_read_file(from, FILE_MAX, &bytes, &len, NULL) < 0) {
        return 0;
    }
    return write_file(to_dir, name, bytes, len, err);
}

static int copy_link(const char *from_dir, const char *to_dir, const char *name, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *from = sg_xasprintf("%s/%s", from_dir, name);
    sg_cleanup(sg_free_p) char *to = sg_xasprintf("%s/%s", to_dir, name);
    char target[PATH_MAX];
    ssize_t n = readlink(from, target, sizeof target - 1);
    if (n <= 0) {
        return 0;
    }
    target[n] = '\0';
    return symlink(target, to) < 0 ? sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", to) : 0;
}

/* One level: links as they are, public files by content. */
static int copy_dir(const char *from, const char *to, struct sg_error *err)
{
    DIR *d = opendir(from);
    if (d == NULL) {
        return 0;
    }
    int r = sg_mkdirs(to, 0755, err);
    for (struct dirent *e = readdir(d); e != NULL && r == 0; e = readdir(d)) {
        if (e->d_type == DT_LNK) {
            r = copy_link(from, to, e->d_name, err);
        } else if (e->d_type == DT_REG) {
            r = copy_file(from, to, e->d_name, err);
        }
    }
    closedir(d);
    return r;
}

static int copy_host_data(const char *dir, struct sg_error *err)
{
    int r = 0;
    for (size_t i = 0; i < SG_COUNT_OF(copied_files) && r == 0; i++) {
        r = copy_file("/etc", dir, copied_files[i], err);
    }
    for (size_t i = 0; i < SG_COUNT_OF(copied_dirs) && r == 0; i++) {
        sg_cleanup(sg_free_p) char *from = sg_xasprintf("/etc/%s", copied_dirs[i]);
        sg_cleanup(sg_free_p) char *to = sg_xasprintf("%s/%s", dir, copied_dirs[i]);
        r = copy_dir(from, to, err);
    }
    sg_cleanup(sg_free_p) char *ssl = sg_xasprintf("%s/ssl", dir);
    if (r == 0 && access(ssl, F_OK) == 0) {
        r = copy_file("/etc/ssl", ssl, "openssl.cnf", err);
    }
    return r < 0 ? r : copy_link("/etc", dir, "os-release", err);
}

int sg_view_etc_make(const char *dir, bool host_data, struct sg_error *err)
{
    for (size_t i = 0; i < SG_COUNT_OF(generated); i++) {
        if (write_file(dir, generated[i].name, generated[i].text, strlen(generated[i].text), err) < 0) {
            return -1;
        }
    }
    sg_cleanup(sg_free_p) char *mtab = sg_xasprintf("%s/mtab", dir);
    if (host_data && symlink("/proc/self/mounts", mtab) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", mtab);
    }
    return host_data ? copy_host_data(dir, err) : 0;
}
