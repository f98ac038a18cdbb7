#include "backends/spawner/net.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/nsfs.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/spawner/child.h"
#include "base/fd.h"

#define DEVICE "/dev/net/tun"
#define FILES_MAX 512 /* and so many connections */

_Noreturn static void die(const struct sg_net *n, const char *what)
{
    sg_child_die(n->error_fd, what);
}

/* ---- the device ---- */

/* Where only root may open the device, the uid gets a node of its own, in a mount namespace of the helper's own. 0, or -1 with errno and
 * *what. */
static int make_device(uint32_t uid, const char **what)
{
    struct stat st;
    *what = DEVICE " (load the module tun, or give the container the device)";
    if (stat(DEVICE, &st) < 0) {
        return -1;
    }
    if (uid == 0 || ((st.st_mode & S_IROTH) && (st.st_mode & S_IWOTH))) {
        return 0;
    }
    *what = "cannot make a node of " DEVICE " that a slot's uid may open";
    if (mount("sandgate", "/dev/net", "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=0755,size=64k") < 0 ||
        mknod(DEVICE, S_IFCHR | 0600, st.st_rdev) < 0 || chown(DEVICE, uid, uid) < 0) {
        return -1;
    }
    return 0;
}

static int become(uint32_t uid)
{
    return uid == 0 ? 0 : sg_child_become(uid);
}

/* The steps of a helper up to its device. Exits with errno. */
_Noreturn static void try_device(uint32_t uid)
{
    const char *what;
    if (unshare(CLONE_NEWNS) < 0 || make_device(uid, &what) < 0 || become(uid) < 0) {
        _exit(errno);
    }
    int fd = open(DEVICE, O_RDWR | O_CLOEXEC);
    _exit(fd < 0 ? errno : 0);
}

int sg_net_check(uint32_t uid, struct sg_error *err)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        try_device(uid);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
        ;
    }
    int sys = pid < 0 ? errno : WIFEXITED(status) ? WEXITSTATUS(status) : EINTR;
    if (sys == 0) {
        return 0;
    }
    if (sys == ENOENT || sys == ENODEV || sys == ENXIO) {
        return sg_error_sys(err, SG_UNAVAILABLE, sys, "egress open needs " DEVICE ": load the module tun, or give the container the device");
    }
    if (uid == 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, sys,
                            "egress open needs " DEVICE " and this user may not open it: make it readable and writable for all, or run as root");
    }
    return sg_error_sys(err, SG_UNAVAILABLE, sys,
                        "egress open needs " DEVICE " and a node of it for a slot's uid cannot be made: a container needs CAP_MKNOD and the device");
}

/* ---- routes ---- */

/* A process of its own goes in: nobody comes back out of a network namespace without privileges. Not by fork(): what a library starts
 * after one (ThreadSanitizer, a thread) would keep it from changing namespaces. */
static void close_routes(const struct sg_net *n, int userns)
{
    const struct clone_args plain = {.exit_signal = SIGCHLD};
    struct sg_net_closed c;
    int status = 0;
    errno = -sg_net_closed_find(&c);
    if (errno != 0) {
        die(n, "cannot list the addresses of this machine");
    }
    pid_t pid = (pid_t)syscall(SYS_clone3, &plain, sizeof plain);
    if (pid == 0) {
        if ((!n->root_server && setns(userns, CLONE_NEWUSER) < 0) || setns(n->netns, CLONE_NEWNET) < 0) {
            die(n, "cannot enter the slot's network");
        }
        errno = -sg_net_closed_set(&c);
        if (errno != 0) {
            die(n, "cannot close the routes to this machine");
        }
        _exit(0);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
        ;
    }
    if (pid < 0) {
        die(n, "cannot fork");
    }
    if (status != 0) {
        _exit(1);
    }
}

/* ---- the helper ---- */

/* Under an ordinary user it is uid 0 of the spawner's user namespace. What owns the slot's namespace may enter it all the same. */
static void drop_capabilities(const struct sg_net *n)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0}};
    if (syscall(SYS_capset, &head, none) < 0) {
        die(n, "cannot drop capabilities");
    }
}

static void set_limits(const struct sg_net *n)
{
    const struct rlimit core = {1, 1}, files = {FILES_MAX, FILES_MAX};
    setrlimit(RLIMIT_CORE, &core);
    if (setrlimit(RLIMIT_NOFILE, &files) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) {
        die(n, "cannot limit the network helper");
    }
    sg_child_offer_to_oom_killer();
}

_Noreturn static void run(const struct sg_net *n, int userns)
{
    static char *const no_env[] = {NULL};
    char ready[32], user[64], net[64];
    (void)snprintf(ready, sizeof ready, "--ready-fd=%d", n->ready_fd);
    (void)snprintf(user, sizeof user, "--userns-path=/proc/self/fd/%d", userns);
    (void)snprintf(net, sizeof net, "/proc/self/fd/%d", n->netns);
    const char *const args[] = {n->program, "--configure", "--mtu=65520", "--disable-host-loopback", "--enable-seccomp",
                                ready,      user,          "--netns-type=path", net, "tap0", NULL};
    char *list[SG_COUNT_OF(args)];
    for (size_t i = 0; i < SG_COUNT_OF(args); i++) {
        list[i] = args[i] != NULL ? sg_xstrdup(args[i]) : NULL;
    }
    sg_child_keep(n->ready_fd, n->error_fd);
    sg_child_keep(n->netns, n->error_fd);
    sg_child_keep(userns, n->error_fd);
    if (dup2(n->error_fd, STDERR_FILENO) < 0) {
        die(n, "cannot redirect");
    }
    execve(n->program, list, no_env);
    die(n, n->program);
}

void sg_net_child(const struct sg_net *n)
{
    const char *what;
    sg_child_reset_signals();
    sg_child_tie(n->parent);
    int userns = ioctl(n->netns, NS_GET_USERNS);
    if (userns < 0) {
        die(n, "cannot find the owner of the slot's network");
    }
    if (fcntl(userns, F_SETFD, FD_CLOEXEC) < 0 || unshare(CLONE_NEWNS) < 0) {
        die(n, "cannot make a mount namespace");
    }
    if (make_device(n->root_server ? n->uid : 0, &what) < 0) {
        die(n, what);
    }
    if (n->resolv != NULL && mount(n->resolv, "/etc/resolv.conf", NULL, MS_BIND, NULL) < 0) {
        die(n, "cannot show the name servers");
    }
    close_routes(n, userns);
    set_limits(n);
    if (become(n->root_server ? n->uid : 0) < 0) {
        die(n, "cannot take the slot's uid");
    }
    drop_capabilities(n);
    sg_child_tie(n->parent); /* a change of user had cleared it */
    run(n, userns);
}
