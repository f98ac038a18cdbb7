#include "backends/spawner/namespaces.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/spawner/groups.h"
#include "backends/spawner/spawner.h"
#include "base/fd.h"

#define STEP_MS 3000

/* ---- the short-lived process ---- */

/* Says a byte, hears one. */
static bool step(int sock, char say)
{
    char heard;
    return write(sock, &say, 1) == 1 && read(sock, &heard, 1) == 1;
}

/* With the map in place it is uid 0 of the new namespace and may forbid others below it; where /proc/sys is
 * read-only the system call filter has to do alone. */
static char seal(void)
{
    sg_cleanup(sg_close_p) int fd = open("/proc/sys/user/max_user_namespaces", O_WRONLY | O_CLOEXEC);
    return fd >= 0 && write(fd, "0\n", 2) == 2 ? 's' : 'n';
}

_Noreturn static void maker(int sock, uid_t agent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (unshare(CLONE_NEWCGROUP) < 0) {
        _exit(10);
    }
    if (agent == 0) {
        step(sock, 'n');
        _exit(0);
    }
    if (setgroups(0, NULL) < 0 || setresgid(agent, agent, agent) < 0 || setresuid(agent, agent, agent) < 0) {
        _exit(11);
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a change of user had cleared it */
    if (unshare(CLONE_NEWUSER) < 0) {
        _exit(12);
    }
    if (!step(sock, 'u')) {
        _exit(13);
    }
    step(sock, seal());
    _exit(0);
}

/* ---- the spawner's side ---- */

static bool hear(int sock, char *heard)
{
    struct pollfd p = {.fd = sock, .events = POLLIN};
    return poll(&p, 1, STEP_MS) == 1 && read(sock, heard, 1) == 1;
}

static int write_map(pid_t pid, const char *file, uint32_t agent, uint32_t command)
{
    char path[64], text[96];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, file);
    int n = snprintf(text, sizeof text, "0 %u 1\n%u %u 1\n", agent, SG_SLOT_UID, command);
    sg_cleanup(sg_close_p) int fd = open(path, O_WRONLY | O_CLOEXEC);
    return fd >= 0 && write(fd, text, (size_t)n) == n ? 0 : -1;
}

static int open_ns(pid_t pid, const char *kind)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/%s", (int)pid, kind);
    return open(path, O_RDONLY | O_CLOEXEC);
}

static int map_and_open(struct sg_namespaces *ns, pid_t pid, int sock, uint32_t agent, uint32_t command,
                        struct sg_error *err)
{
    char heard;
    if (!hear(sock, &heard)) {
        return sg_error_set(err, SG_UNAVAILABLE, "cannot make a slot's namespaces");
    }
    if (agent != 0) {
        if (write_map(pid, "gid_map", agent, command) < 0 || write_map(pid, "uid_map", agent, command) < 0) {
            return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot map uids %u and %u into a user namespace",
                                agent, command);
        }
        if (write(sock, "m", 1) != 1 || !hear(sock, &heard)) {
            return sg_error_set(err, SG_UNAVAILABLE, "cannot finish a slot's user namespace");
        }
        ns->sealed = heard == 's';
        if ((ns->user = open_ns(pid, "user")) < 0) {
            return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot open a slot's user namespace (a container needs CAP_SYS_PTRACE)");
        }
    }
    if ((ns->cgroup = open_ns(pid, "cgroup")) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot open a slot's cgroup namespace");
    }
    return 0;
}

/* The step that failed, from the exit code of maker(). */
static void explain(struct sg_error *err, int status)
{
    static const char *const steps[] = {"unshare the cgroup namespace", "take the agent's uid",
                                        "unshare the user namespace (see user.max_user_namespaces)",
                                        "wait for the map"};
    unsigned step_no = WIFEXITED(status) ? (unsigned)WEXITSTATUS(status) - 10 : SG_COUNT_OF(steps);
    if (step_no < SG_COUNT_OF(steps)) {
        sg_error_wrap(err, "the kernel refused to %s", steps[step_no]);
    }
}

int sg_namespaces_make(struct sg_namespaces *ns, const struct sg_groups *g, int group, uint32_t agent_uid,
                       uint32_t command_uid, struct sg_error *err)
{
    *ns = (struct sg_namespaces){.user = -1, .cgroup = -1};
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot make a socket pair");
    }
    pid_t pid = sg_groups_fork(g, group);
    if (pid == 0) {
        close(pair[0]);
        maker(pair[1], (uid_t)agent_uid);
    }
    close(pair[1]);
    int r = pid < 0 ? sg_error_sys(err, SG_UNAVAILABLE, -pid, "cannot fork")
                    : map_and_open(ns, pid, pair[0], agent_uid, command_uid, err);
    close(pair[0]); /* its end of file lets the maker go */
    int status = 0;
    if (pid > 0) {
        if (r < 0) {
            kill(pid, SIGKILL);
        }
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
            ;
        }
    }
    if (r < 0) {
        explain(err, status);
        sg_namespaces_finish(ns);
    }
    return r;
}

void sg_namespaces_finish(struct sg_namespaces *ns)
{
    ns->user = sg_close(ns->user);
    ns->cgroup = sg_close(ns->cgroup);
}
