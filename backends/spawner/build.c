#include "backends/spawner/build.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/spawner/child.h"
#include "base/fd.h"

#define SPARE_PROCESSES 16 /* of the agent's own, where commands share its uid */
#define TERMINALS_MAX "64"
#define ARGS_MAX 128U

_Noreturn static void die(const struct sg_build *b, const char *what)
{
    sg_child_die(b->error_fd, what);
}

/* ---- what the sandbox may write to ---- */

static const struct {
    const char *name, *inside;
    mode_t mode;
} writable[] = {
    {"workspace", "/workspace", 0755},
    {"home", "/home/sandbox", 0755},
    {"tmp", "/tmp", 01777},
    {"run", "/run", 0755},
    {"shm", "/dev/shm", 01777},
};

/* With what is mounted below it. */
static void bind_over(const struct sg_build *b, const char *from, const char *to, uint64_t attributes)
{
    struct mount_attr a = {.attr_set = attributes};
    if (mount(from, to, NULL, MS_BIND | MS_REC, NULL) < 0 ||
        (attributes != 0 && mount_setattr(AT_FDCWD, to, AT_RECURSIVE, &a, sizeof a) < 0)) {
        die(b, to);
    }
}

static void mount_disk(const struct sg_build *b)
{
    char options[160];
    /* An inode costs the kernel some 1 KiB; a quarter of the size at most goes into them. */
    int64_t inodes = b->disk_bytes / 4096 < 16384 ? 16384 : b->disk_bytes / 4096;
    snprintf(options, sizeof options, "mode=0755,size=%lld,nr_inodes=%lld", (long long)b->disk_bytes,
             (long long)inodes);
    if (unshare(CLONE_NEWNS) < 0) {
        die(b, "cannot make a mount namespace");
    }
    if (b->disk_dir == NULL) {
        if (mount("sandbox", b->view->slot, "tmpfs", MS_NOSUID | MS_NODEV, options) < 0) {
            die(b, "cannot mount the sandbox's tmpfs");
        }
        return;
    }
    if (mkdir(b->disk_dir, 0755) < 0) {
        die(b, b->disk_dir);
    }
    bind_over(b, b->disk_dir, b->view->slot, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
}

static void make_writable(const struct sg_build *b)
{
    if (chdir(b->view->slot) < 0) {
        die(b, b->view->slot);
    }
    for (size_t i = 0; i < SG_COUNT_OF(writable); i++) {
        if (mkdir(writable[i].name, 0755) < 0 || chmod(writable[i].name, writable[i].mode) < 0) {
            die(b, writable[i].name);
        }
        if (b->root_server && chown(writable[i].name, b->command_uid, b->command_uid) < 0) {
            die(b, writable[i].name);
        }
    }
    if (chdir("/") < 0) {
        die(b, "/");
    }
}

/* ---- what the sandbox sees ---- */

static void show(const struct sg_build *b, const char *from, const char *inside, uint64_t attributes)
{
    char to[PATH_MAX];
    (void)snprintf(to, sizeof to, "%s%s", b->root->path, inside);
    bind_over(b, from, to, attributes);
}

/* The machine has a few thousand for all its sandboxes together, so none may have them all. */
static void mount_terminals(const struct sg_build *b)
{
    char at[PATH_MAX];
    (void)snprintf(at, sizeof at, "%s/dev/pts", b->root->path);
    if (mount("terminals", at, "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,max=" TERMINALS_MAX) < 0) {
        die(b, "cannot mount the sandbox's terminals");
    }
}

/* Puts the whole root together in our own mount namespace, for bwrap to bind in one go: for each thing it is asked to bind it
 * reads the list of all mounts. */
static void compose_root(const struct sg_build *b)
{
    const uint64_t read_only = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
    for (size_t i = 0; i < b->root->n_binds; i++) {
        show(b, b->root->binds[i].from, b->root->binds[i].to, read_only);
    }
    if (b->open_net && b->root->has_resolv) {
        show(b, b->view->resolv_inside, "/etc/resolv.conf", read_only);
    }
    show(b, b->view->devices, "/dev", 0);
    mount_terminals(b);
    for (size_t i = 0; i < SG_COUNT_OF(writable); i++) {
        char from[PATH_MAX];
        (void)snprintf(from, sizeof from, "%s/%s", b->view->slot, writable[i].name);
        show(b, from, writable[i].inside, 0);
    }
}

/* ---- who the sandbox is ---- */

static void become_agent(const struct sg_build *b)
{
    if (setns(b->ns->cgroup, CLONE_NEWCGROUP) < 0) {
        die(b, "cannot enter the cgroup namespace");
    }
    if (!b->root_server) {
        return;
    }
    if (sg_child_become(b->agent_uid) < 0) {
        die(b, "cannot take the agent's uid");
    }
    sg_child_tie(b->parent);
    /* As its owner: uid 0 and all capabilities, of that namespace alone. */
    if (setns(b->ns->user, CLONE_NEWUSER) < 0) {
        die(b, "cannot enter the user namespace");
    }
}

int sg_build_limit(pid_t pid, int64_t pids, int64_t memory_bytes)
{
    rlim_t most = (rlim_t)pids + SPARE_PROCESSES;
    struct rlimit processes = {most, most}, data = {(rlim_t)memory_bytes, (rlim_t)memory_bytes};
    if (pids > 0 && prlimit(pid, RLIMIT_NPROC, &processes, NULL) < 0) {
        return -errno;
    }
    if (memory_bytes > 0 && prlimit(pid, RLIMIT_DATA, &data, NULL) < 0) {
        return -errno;
    }
    return 0;
}

static void set_rlimits(const struct sg_build *b)
{
    struct rlimit core = {1, 1}, files, locked = {8U << 20, 8U << 20};
    setrlimit(RLIMIT_CORE, &core); /* at one byte the kernel does not even start the program that collects dumps */
    setrlimit(RLIMIT_MEMLOCK, &locked);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_max = files.rlim_max > 65536 ? 65536 : files.rlim_max;
        files.rlim_cur = files.rlim_max > 1024 ? 1024 : files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    if (b->root_server && (errno = -sg_build_limit(0, b->pids, b->memory_bytes)) != 0) {
        die(b, "cannot set the resource limits");
    }
}

/* ---- bwrap's command line ---- */

struct args {
    char *list[ARGS_MAX];
    size_t n;
};

static void add(struct args *a, ...)
{
    va_list ap;
    va_start(ap, a);
    for (const char *s = va_arg(ap, const char *); s != NULL; s = va_arg(ap, const char *)) {
        if (a->n + 1 < ARGS_MAX) {
            a->list[a->n++] = sg_xstrdup(s);
        }
    }
    va_end(ap);
}

static void add_fd(struct args *a, const char *option, int fd)
{
    char text[16];
    snprintf(text, sizeof text, "%d", fd);
    add(a, option, text, NULL);
}

static void add_namespaces(struct args *a, const struct sg_build *b)
{
    add(a, b->bwrap, "--as-pid-1", "--die-with-parent", "--unshare-pid", "--unshare-net", "--unshare-ipc",
        "--unshare-uts", "--hostname", "sandbox", "--cap-drop", "ALL", NULL);
    if (b->root_server) {
        add(a, "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_KILL", NULL);
    } else {
        add(a, "--unshare-user", "--uid", "1000", "--gid", "1000", NULL);
    }
}

static void add_proc(struct args *a, const struct sg_build *b)
{
    add(a, "--proc", "/proc", NULL);
    /* An ordinary user's commands may write the settings of their own namespaces, so nobody may write any. */
    add(a, "--ro-bind", "/proc/sys", "/proc/sys", NULL);
    for (size_t i = 0; i < b->view->n_covered; i++) {
        add(a, "--ro-bind", b->view->covered[i].from, b->view->covered[i].to, NULL);
    }
}

static void add_files(struct args *a, const struct sg_build *b)
{
    /* Not --ro-bind, which would take the devices away: what is to be read-only is so already. */
    add(a, "--dev-bind", b->root->path, "/", NULL);
    add_proc(a, b);
}

static void add_agent(struct args *a, const struct sg_build *b)
{
    char fd[16];
    snprintf(fd, sizeof fd, "%d", b->agent_fd);
    add(a, "--chdir", "/", "--clearenv", "--", SG_VIEW_AGENT, "slot", fd, NULL);
    if (b->root_server) {
        add(a, "uid", "1000", "1000", NULL);
    } else {
        add(a, "dumpable", NULL);
    }
}

struct start {
    const struct sg_build *b;
    struct args args;
    int seccomp;
};

/* bwrap reads the program from the current offset, which all builds would share. */
static int reopen(int fd)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, O_RDONLY | O_CLOEXEC);
}

/* In the child, whose memory may be the spawner's: nothing is allocated. */
static void child(const void *arg)
{
    static char *const no_env[] = {NULL};
    const struct start *s = arg;
    const struct sg_build *b = s->b;
    sg_child_reset_signals();
    sg_child_tie(b->parent);
    setsid();
    mount_disk(b);
    make_writable(b);
    compose_root(b);
    set_rlimits(b);
    sg_child_offer_to_oom_killer();
    sg_child_keep(s->seccomp, b->error_fd);
    sg_child_keep(b->info_fd, b->error_fd);
    sg_child_keep(b->agent_fd, b->error_fd);
    if (dup2(b->error_fd, STDERR_FILENO) < 0) {
        die(b, "cannot redirect");
    }
    become_agent(b);
    execve(b->bwrap, s->args.list, no_env);
    die(b, b->bwrap);
}

pid_t sg_build_start(const struct sg_build *b, const struct sg_groups *g, int group)
{
    struct start s = {.b = b, .seccomp = reopen(b->seccomp_fd)};
    if (s.seccomp < 0) {
        return -errno;
    }
    add_namespaces(&s.args, b);
    add_fd(&s.args, "--seccomp", s.seccomp);
    add_fd(&s.args, "--info-fd", b->info_fd);
    add_files(&s.args, b);
    add_agent(&s.args, b);
    pid_t pid = sg_groups_spawn(g, group, child, &s);
    sg_close(s.seccomp);
    for (size_t i = 0; i < s.args.n; i++) {
        free(s.args.list[i]);
    }
    return pid;
}
