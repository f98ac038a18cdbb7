/* What lies beside the database in the state directory: the lock and the keys. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/hash.h"
#include "lease/store_priv.h"

int sg_state_lock(const char *dir, int *ret_fd, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("%s/lock", dir);
    sg_cleanup(sg_close_p) int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot open %s", path);
    }
    char who[32] = "";
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        int sys = errno;
        if (sys != EWOULDBLOCK) {
            return sg_error_sys(err, SG_UNAVAILABLE, sys, "cannot lock %s", path);
        }
        ssize_t n = pread(fd, who, sizeof who - 1, 0);
        who[n > 0 ? (size_t)n : 0] = '\0';
        who[strcspn(who, "\n")] = '\0';
        return sg_error_set(err, SG_CONFLICT,
                            "the state directory %s is in use by another sandgate server (process %s)", dir,
                            who[0] != '\0' ? who : "unknown");
    }
    /* Only the message above reads it, so a failed write is no harm. */
    int n = snprintf(who, sizeof who, "%d\n", (int)getpid());
    if (ftruncate(fd, 0) == 0) {
        (void)!pwrite(fd, who, (size_t)n, 0);
    }
    *ret_fd = sg_steal_fd(&fd);
    return 0;
}

static int key_check(const char *path, size_t len, struct sg_error *err)
{
    struct stat st;
    if (stat(path, &st) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot look at the key file %s", path);
    }
    if ((st.st_mode & 077) != 0) {
        return sg_error_set(err, SG_UNAVAILABLE,
                            "the key file %s can be read by others (mode %03o); chmod 600 it", path,
                            (unsigned)(st.st_mode & 0777));
    }
    if (len != SG_KEY_LEN) {
        return sg_error_set(err, SG_UNAVAILABLE, "the key file %s has %zu bytes instead of %d", path, len,
                            SG_KEY_LEN);
    }
    return 0;
}

int sg_key_load(const char *dir, const char *file, const char *name, bool make, struct sg_secret **ret,
                struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *path = file != NULL ? sg_xstrdup(file) : sg_xasprintf("%s/%s", dir, name);
    if (make && access(path, F_OK) < 0 && errno == ENOENT) {
        uint8_t fresh[SG_KEY_LEN];
        sg_random(fresh, sizeof fresh);
        int rc = sg_write_file(path, fresh, sizeof fresh, 0600, err);
        explicit_bzero(fresh, sizeof fresh);
        if (rc < 0) {
            return sg_error_wrap(err, "cannot make a key file");
        }
    }
    char *text = NULL;
    size_t len = 0;
    if (sg_read_file(path, 4096, &text, &len, err) < 0) {
        return sg_error_wrap(err, "cannot read a key file");
    }
    int rc = key_check(path, len, err);
    if (rc == 0) {
        *ret = sg_secret_new(text, len);
    }
    explicit_bzero(text, len);
    free(text);
    return rc;
}

void sg_boot_id(char out[SG_BOOT_ID_LEN])
{
    sg_cleanup(sg_free_p) char *text = NULL;
    size_t len = 0;
    memset(out, 0, SG_BOOT_ID_LEN);
    if (sg_read_file("/proc/sys/kernel/random/boot_id", 128, &text, &len, NULL) == 0 &&
        len >= SG_BOOT_ID_LEN - 1) {
        memcpy(out, text, SG_BOOT_ID_LEN - 1);
    } else {
        /* Without it every start counts as another boot. */
        memcpy(out, "unknown", sizeof "unknown");
    }
}
