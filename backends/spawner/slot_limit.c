/* Other limits for a slot that is up: groups anew, resource limits of its first process, which commands inherit, and the size of its
 * tmpfs, from inside its mount namespace. */
#include "backends/spawner/slot_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/spawner/build.h"
#include "base/fd.h"

/* ---- the disk ---- */

static int set_option(int fs, const char *key, const char *value)
{
    return (int)syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, key, value, 0);
}

#define TOO_SMALL 200

/* In a process of its own. Its exit code: 0, TOO_SMALL, or an errno. */
_Noreturn static void resize(int mounts, int64_t bytes)
{
    char size[32];
    snprintf(size, sizeof size, "%lld", (long long)bytes);
    if (setns(mounts, CLONE_NEWNS) < 0) {
        _exit(errno);
    }
    int fs = (int)syscall(SYS_fspick, AT_FDCWD, "/workspace", FSPICK_CLOEXEC | FSPICK_NO_AUTOMOUNT | FSPICK_SYMLINK_NOFOLLOW);
    if (fs < 0 || set_option(fs, "size", size) < 0) {
        _exit(errno);
    }
    if (syscall(SYS_fsconfig, fs, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0) < 0) {
        _exit(errno == EINVAL ? TOO_SMALL : errno);
    }
    _exit(0);
}

static int set_disk(const struct sg_slot *s, int64_t bytes, struct sg_error *err)
{
    char path[64];
    int status = -1;
    if (s->build.disk_dir) {
        return sg_error_set(err, SG_NOT_SUPPORTED, "nobody limits the disk of these sandboxes (disk: dir)");
    }
    snprintf(path, sizeof path, "/proc/%d/ns/mnt", (int)s->agent);
    sg_cleanup(sg_close_p) int mounts = open(path, O_RDONLY | O_CLOEXEC);
    if (mounts < 0) {
        return sg_error_sys(err, SG_NOT_SUPPORTED, errno, "cannot change the size of a sandbox's disk");
    }
    /* Not fork(): what a library starts after one (ThreadSanitizer, a thread) would keep us from changing namespaces. */
    const struct clone_args plain = {.exit_signal = SIGCHLD};
    pid_t pid = (pid_t)syscall(SYS_clone3, &plain, sizeof plain);
    if (pid == 0) {
        resize(mounts, bytes);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
        ;
    }
    if (pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        return 0;
    }
    int code = pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    if (code == TOO_SMALL) {
        return sg_error_set(err, SG_LIMIT_EXCEEDED, "an empty sandbox holds more than that already");
    }
    return sg_error_sys(err, SG_NOT_SUPPORTED, code, "cannot change the size of a sandbox's disk");
}

/* ---- groups and resource limits ---- */

static int64_t either(int64_t asked, int64_t built)
{
    return asked > 0 ? asked : built;
}

static int set_limits(struct sg_daemon *d, struct sg_slot *s, const struct sg_wire_request *r, struct sg_error *err)
{
    const int64_t limits[SG_CTL_COUNT] = {either(r->memory_bytes, s->build.memory_bytes), either(r->pids, s->build.pids),
                                          either(r->cpu_milli, s->build.cpu_milli)};
    const struct sg_groups *g = &d->args->groups;
    bool memory = r->memory_bytes > 0 && sg_groups_means(g, SG_CTL_MEMORY) == SG_MEANS_RLIMIT;
    bool pids = r->pids > 0 && sg_groups_means(g, SG_CTL_PIDS) == SG_MEANS_RLIMIT;
    if (r->cpu_milli > 0 && sg_groups_means(g, SG_CTL_CPU) == SG_MEANS_NONE) {
        return sg_error_set(err, SG_NOT_SUPPORTED, "without control groups nobody can limit CPUs");
    }
    int e = memory || pids ? sg_build_limit(s->agent, pids ? r->pids : 0, memory ? r->memory_bytes : 0) : 0;
    if (e < 0) {
        return sg_error_sys(err, SG_NOT_SUPPORTED, -e, "cannot set the sandbox's resource limits");
    }
    return sg_slot_groups_limit(&d->args->groups, &s->groups, s->n, limits, err);
}

/* What the slot has from now on; its next build brings its own. */
static void note(struct sg_slot *s, const struct sg_wire_request *r)
{
    s->build.memory_bytes = either(r->memory_bytes, s->build.memory_bytes);
    s->build.pids = either(r->pids, s->build.pids);
    s->build.cpu_milli = either(r->cpu_milli, s->build.cpu_milli);
    s->build.disk_bytes = either(r->disk_bytes, s->build.disk_bytes);
}

static void answer(struct sg_daemon *d, const struct sg_slot *s, const struct sg_wire_request *r, const struct sg_error *err)
{
    struct sg_wire_answer a = slot_answer_to(SG_WIRE_LIMITED, r->id, err);
    struct sg_error late = {0};
    int limits[SG_SLOT_LIMIT_FDS] = {-1, -1, -1}, fds[SG_SLOT_LIMIT_FDS];
    unsigned n = 0;
    if (err == NULL && sg_slot_groups_limit_fds(&d->args->groups, &s->groups, s->n, limits, &late) < 0) {
        a = slot_answer_to(SG_WIRE_LIMITED, r->id, &late);
    } else if (err == NULL) {
        a.memory = slot_means(d, SG_CTL_MEMORY, s->build.memory_bytes);
        a.pids = slot_means(d, SG_CTL_PIDS, s->build.pids);
        a.cpu = slot_means(d, SG_CTL_CPU, s->build.cpu_milli);
        a.disk = s->build.disk_dir ? SG_MEANS_NONE : SG_MEANS_TMPFS;
        for (unsigned i = 0; i < SG_SLOT_LIMIT_FDS; i++) {
            if (limits[i] >= 0) {
                fds[n++] = limits[i];
                a.fds |= 1U << (4 + i);
            }
        }
    }
    sg_daemon_answer(d, &a, fds, n);
    for (unsigned i = 0; i < SG_SLOT_LIMIT_FDS; i++) {
        sg_close(limits[i]);
    }
}

void sg_slot_limit(struct sg_daemon *d, const struct sg_wire_request *r)
{
    struct sg_slot *s = d->slots[r->slot];
    struct sg_error err = {0};
    int rc = 0;
    if (s == NULL || s->state != UP || s->agent_dead || r->memory_bytes < 0 || r->pids < 0 || r->cpu_milli < 0 || r->disk_bytes < 0) {
        rc = sg_error_set(&err, SG_UNAVAILABLE, "slot %u has no sandbox to limit", r->slot);
    } else if ((r->disk_bytes > 0 && set_disk(s, r->disk_bytes, &err) < 0) || set_limits(d, s, r, &err) < 0) {
        rc = -1;
    } else {
        note(s, r);
    }
    answer(d, s, r, rc < 0 ? &err : NULL);
}
