#include "backends/spawner/groups.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/hash.h"

#define TEXT_MAX ((size_t)1 << 20)
#define PATH_SIZE 4096

static const char *const controller_names[SG_CTL_COUNT] = {"memory", "pids", "cpu"};

/* ---- small files ---- */

static int write_file(int dir, const char *name, const char *text)
{
    sg_cleanup(sg_close_p) int fd = openat(dir, name, O_WRONLY | O_CLOEXEC);
    if (fd < 0) {
        return -errno;
    }
    ssize_t n = write(fd, text, strlen(text));
    return n < 0 ? -errno : 0;
}

static ssize_t read_text(int dir, const char *name, char *text, size_t size)
{
    sg_cleanup(sg_close_p) int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);
    text[n > 0 ? n : 0] = '\0';
    return n;
}

static int open_dir(int parent, const char *name)
{
    return openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static int make_dir(int parent, const char *name)
{
    if (mkdirat(parent, name, 0755) < 0 && errno != EEXIST) {
        return -1;
    }
    return open_dir(parent, name);
}

static pid_t born_into(int group)
{
    struct clone_args a = {
        .flags = CLONE_INTO_CGROUP, .exit_signal = SIGCHLD, .cgroup = (__u64)(unsigned)group};
    long pid = syscall(SYS_clone3, &a, sizeof a);
    return pid < 0 ? -errno : (pid_t)pid;
}

/* The child goes on on our stack, below this frame. It must not return from a function that we have yet to return from, so the call
 * of the kernel is none. A sanitizer keeps a record of the stack that the child would leave behind. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SHARES_MEMORY true
__attribute__((noinline)) static long clone_shared(const struct clone_args *a, void (*child)(const void *arg), const void *arg)
{
    long pid;
    __asm__ volatile("syscall" : "=a"(pid) : "0"((long)SYS_clone3), "D"(a), "S"(sizeof *a) : "rcx", "r11", "memory");
    if (pid == 0) {
        child(arg);
        _exit(99);
    }
    return pid;
}
#elif defined(__aarch64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SHARES_MEMORY true
__attribute__((noinline)) static long clone_shared(const struct clone_args *a, void (*child)(const void *arg), const void *arg)
{
    register long number __asm__("x8") = SYS_clone3;
    register long pid __asm__("x0") = (long)a;
    register long size __asm__("x1") = (long)sizeof *a;
    __asm__ volatile("svc 0" : "+r"(pid) : "r"(number), "r"(size) : "memory");
    if (pid == 0) {
        child(arg);
        _exit(99);
    }
    return pid;
}
#else
#define SHARES_MEMORY false
static long clone_shared(const struct clone_args *a, void (*child)(const void *arg), const void *arg)
{
    (void)a, (void)child, (void)arg;
    return -ENOSYS;
}
#endif

pid_t sg_groups_fork(const struct sg_groups *g, int group)
{
    if (group >= 0 && !g->no_birth) {
        return born_into(group);
    }
    pid_t pid = fork();
    if (pid == 0 && group >= 0 && write_file(group, "cgroup.procs", "0") < 0) {
        _exit(99);
    }
    return pid < 0 ? -errno : pid;
}

pid_t sg_groups_spawn(const struct sg_groups *g, int group, void (*child)(const void *arg), const void *arg)
{
    if (SHARES_MEMORY && group >= 0 && !g->no_birth) {
        const struct clone_args a = {.flags = CLONE_INTO_CGROUP | CLONE_VM | CLONE_VFORK, .exit_signal = SIGCHLD, .cgroup = (__u64)(unsigned)group};
        return (pid_t)clone_shared(&a, child, arg);
    }
    pid_t pid = sg_groups_fork(g, group);
    if (pid == 0) {
        child(arg);
        _exit(99);
    }
    return pid;
}

/* Does a process get into the group and live there? */
static bool try_fork(const struct sg_groups *g, int group)
{
    int status = -1;
    pid_t pid = sg_groups_fork(g, group);
    if (pid == 0) {
        _exit(0);
    }
    if (pid > 0) {
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
            ;
        }
    }
    return status == 0;
}

void sg_groups_try(struct sg_groups *g)
{
    if (g->v2 < 0) {
        return;
    }
    sg_cleanup(sg_close_p) int trial = make_dir(g->v2, "trial");
    g->no_birth = trial >= 0 && !try_fork(g, trial);
    bool works = trial >= 0 && (!g->no_birth || try_fork(g, trial));
    unlinkat(g->v2, "trial", AT_REMOVEDIR);
    if (works) {
        return;
    }
    unlinkat(g->v2_parent, g->name, AT_REMOVEDIR);
    g->v2 = sg_close(g->v2);
    g->v2_controllers = false;
}

/* ---- killing and removing ---- */

/* The kernel wakes us for each change of cgroup.events, so there is nothing to loop for but other changes. */
static void wait_empty(int dir, int64_t deadline_ms)
{
    sg_cleanup(sg_close_p) int events = openat(dir, "cgroup.events", O_RDONLY | O_CLOEXEC);
    char text[256];
    for (;;) {
        ssize_t n = events < 0 ? -1 : pread(events, text, sizeof text - 1, 0);
        text[n > 0 ? n : 0] = '\0';
        int64_t left = deadline_ms - sg_now_ms();
        if (strstr(text, "populated 1") == NULL || left <= 0) {
            return;
        }
        struct pollfd p = {.fd = events, .events = POLLPRI};
        if (poll(&p, 1, (int)left) < 0 && errno != EINTR) {
            return;
        }
    }
}

/* v1 has no kill file: kills those listed and waits for each of them. */
static void kill_listed(int dir, int64_t deadline_ms)
{
    sg_cleanup(sg_close_p) int fd = openat(dir, "cgroup.procs", O_RDONLY | O_CLOEXEC);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
    if (f == NULL) {
        return;
    }
    sg_steal_fd(&fd);
    int pid;
    while (fscanf(f, "%d", &pid) == 1) {
        int handle = (int)syscall(SYS_pidfd_open, pid, 0);
        int64_t left = deadline_ms - sg_now_ms();
        struct pollfd p = {.fd = handle, .events = POLLIN};
        if (handle >= 0 && syscall(SYS_pidfd_send_signal, handle, SIGKILL, NULL, 0) == 0) {
            poll(&p, 1, left > 0 ? (int)left : 0);
        }
        sg_close(handle);
    }
    fclose(f);
}

/* Removes parent/name and the groups below it (at most depth levels); those that are busy stay. */
static void remove_groups(int parent, const char *name, unsigned depth, bool v1, int64_t deadline_ms)
{
    int fd = open_dir(parent, name);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (d == NULL) {
        sg_close(fd);
        return;
    }
    for (struct dirent *e = readdir(d); e != NULL && depth > 0; e = readdir(d)) {
        if (e->d_type == DT_DIR && e->d_name[0] != '.') {
            remove_groups(fd, e->d_name, depth - 1, v1, deadline_ms);
        }
    }
    if (v1) {
        kill_listed(fd, deadline_ms);
    }
    closedir(d);
    unlinkat(parent, name, AT_REMOVEDIR);
}

static void wipe(int parent, const char *name, bool v1, int64_t deadline_ms)
{
    sg_cleanup(sg_close_p) int dir = open_dir(parent, name);
    if (dir < 0) {
        return;
    }
    if (!v1) {
        write_file(dir, "cgroup.kill", "1");
        wait_empty(dir, deadline_ms);
    }
    remove_groups(parent, name, 4, v1, deadline_ms);
}

/* ---- finding a place ---- */

struct where {
    char *mountinfo, *own;
};

static void where_finish(struct where *w)
{
    free(w->mountinfo);
    free(w->own);
}

static int open_own(const struct where *w, const char *controller, bool top)
{
    char mount[PATH_SIZE], path[PATH_SIZE], whole[2 * PATH_SIZE];
    if (!sg_groups_locate(w->mountinfo, w->own, controller, mount, path, PATH_SIZE)) {
        return -1;
    }
    snprintf(whole, sizeof whole, "%s%s", mount, top ? "" : path);
    return open(whole, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* Is this process all there is in the group? */
static bool only_us(int dir)
{
    char text[64], own[32];
    snprintf(own, sizeof own, "%d\n", (int)getpid());
    return read_text(dir, "cgroup.procs", text, sizeof text) > 0 && sg_streq(text, own);
}

/* A group with members cannot hand controllers on, except the real root: move into a leaf, as a delegated
 * service does. */
static bool hand_on(int dir)
{
    static const char all[] = "+memory +pids +cpu";
    int r = write_file(dir, "cgroup.subtree_control", all);
    if (r != -EBUSY || !only_us(dir)) {
        return r == 0;
    }
    sg_cleanup(sg_close_p) int leaf = make_dir(dir, "sandgate-server");
    return leaf >= 0 && write_file(leaf, "cgroup.procs", "0") == 0 &&
           write_file(dir, "cgroup.subtree_control", all) == 0;
}

static bool has_controllers(int dir)
{
    char text[512], padded[520];
    read_text(dir, "cgroup.controllers", text, sizeof text);
    text[strcspn(text, "\n")] = '\0';
    snprintf(padded, sizeof padded, " %s ", text);
    return strstr(padded, " memory ") != NULL && strstr(padded, " pids ") != NULL &&
           strstr(padded, " cpu ") != NULL;
}

/* Takes parent as the place of the v2 tree if it may be used; without controllers only as a second choice. */
static bool try_v2(struct sg_groups *g, int parent, bool need_controllers)
{
    bool controllers = parent >= 0 && has_controllers(parent) && hand_on(parent);
    if (parent < 0 || (need_controllers && !controllers) ||
        faccessat(parent, "cgroup.procs", W_OK, AT_EACCESS) < 0) {
        return false;
    }
    wipe(parent, g->name, false, sg_now_ms() + 5000);
    int dir = make_dir(parent, g->name);
    if (dir < 0 || faccessat(dir, "cgroup.kill", W_OK, AT_EACCESS) < 0 ||
        (controllers && write_file(dir, "cgroup.subtree_control", "+memory +pids +cpu") < 0)) {
        sg_close(dir);
        unlinkat(parent, g->name, AT_REMOVEDIR);
        return false;
    }
    g->v2 = dir;
    g->v2_parent = parent;
    g->v2_controllers = controllers;
    return true;
}

static void find_v2(struct sg_groups *g, const struct where *w)
{
    for (int choice = 0; choice < 4; choice++) {
        int parent = open_own(w, NULL, choice % 2 == 1);
        if (try_v2(g, parent, choice < 2)) {
            return;
        }
        sg_close(parent);
    }
}

/* All commands together weigh as much as one ordinary process on every processor, whatever their number: enough not to
 * starve beside others on the machine, and the server is heard however busy they are. By default it would be one process
 * on the whole machine. */
static void weigh(int cpu_dir)
{
    char text[32];
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    snprintf(text, sizeof text, "%ld", 1024 * (processors < 1 ? 1 : processors > 256 ? 256 : processors));
    (void)write_file(cpu_dir, "cpu.shares", text); /* the default does as well */
}

static void find_v1(struct sg_groups *g, const struct where *w)
{
    for (int c = 0; c < SG_CTL_COUNT; c++) {
        sg_cleanup(sg_close_p) int parent = open_own(w, controller_names[c], false);
        if (parent < 0) {
            continue;
        }
        wipe(parent, g->name, true, sg_now_ms() + 5000);
        if (!g->v2_controllers) {
            g->v1[c] = make_dir(parent, g->name);
        }
        if (c == SG_CTL_CPU && g->v1[c] >= 0) {
            weigh(g->v1[c]);
        }
        if (g->v1[c] >= 0) {
            g->v1_parent[c] = sg_steal_fd(&parent);
        }
    }
}

void sg_groups_init(struct sg_groups *g)
{
    *g = (struct sg_groups){.v2 = -1, .v2_parent = -1};
    for (int c = 0; c < SG_CTL_COUNT; c++) {
        g->v1[c] = g->v1_parent[c] = -1;
    }
}

int sg_groups_open(struct sg_groups *g, const char *state_dir, struct sg_error *err)
{
    sg_groups_init(g);
    char hex[SG_SHA256_HEX];
    sg_sha256_hex(state_dir, strlen(state_dir), hex);
    snprintf(g->name, sizeof g->name, "sandgate-%.12s", hex);
    sg_cleanup(where_finish) struct where w = {0};
    size_t len;
    if (sg_read_file("/proc/self/mountinfo", TEXT_MAX, &w.mountinfo, &len, err) < 0) {
        return -1;
    }
    if (sg_read_file("/proc/self/cgroup", TEXT_MAX, &w.own, &len, NULL) < 0 || w.own == NULL ||
        w.mountinfo == NULL) {
        return 0; /* a kernel without control groups */
    }
    find_v2(g, &w);
    find_v1(g, &w);
    return 0;
}

void sg_groups_close(struct sg_groups *g, int64_t deadline_ms)
{
    if (g->v2 >= 0) {
        wipe(g->v2_parent, g->name, false, deadline_ms);
    }
    for (int c = 0; c < SG_CTL_COUNT; c++) {
        if (g->v1[c] >= 0) {
            wipe(g->v1_parent[c], g->name, true, deadline_ms);
        }
    }
    sg_groups_finish(g);
}

void sg_groups_finish(struct sg_groups *g)
{
    g->v2 = sg_close(g->v2);
    g->v2_parent = sg_close(g->v2_parent);
    for (int c = 0; c < SG_CTL_COUNT; c++) {
        g->v1[c] = sg_close(g->v1[c]);
        g->v1_parent[c] = sg_close(g->v1_parent[c]);
    }
}

enum sg_means sg_groups_means(const struct sg_groups *g, enum sg_controller c)
{
    if (g->v2_controllers) {
        return SG_MEANS_CGROUP2;
    }
    if (g->v1[c] >= 0) {
        return SG_MEANS_CGROUP1;
    }
    return c == SG_CTL_CPU ? SG_MEANS_NONE : SG_MEANS_RLIMIT;
}

/* ---- one slot ---- */

void sg_slot_groups_init(struct sg_slot_groups *s)
{
    *s = (struct sg_slot_groups){.slot = -1, .agent = -1, .cmds = -1};
}

static int failed(struct sg_error *err, const char *what, uint32_t n)
{
    return sg_error_sys(err, SG_UNAVAILABLE, errno, "slot %u: cannot %s its control group", n, what);
}

int sg_slot_groups_make(struct sg_groups *g, struct sg_slot_groups *s, uint32_t n, uint32_t agent_uid,
                        struct sg_error *err)
{
    char name[32];
    snprintf(name, sizeof name, "slot-%u", n);
    if (s->made) {
        return 0;
    }
    for (int c = 0; c < SG_CTL_COUNT; c++) {
        if (g->v1[c] >= 0 && mkdirat(g->v1[c], name, 0755) < 0 && errno != EEXIST) {
            return failed(err, "make", n);
        }
    }
    if (g->v2 >= 0) {
        if (s->slot < 0 && (s->slot = make_dir(g->v2, name)) < 0) {
            return failed(err, "make", n);
        }
        if (s->agent < 0 && (s->agent = make_dir(s->slot, "agent")) < 0) {
            return failed(err, "make", n);
        }
        if (s->cmds < 0 && (s->cmds = make_dir(s->slot, "cmds")) < 0) {
            return failed(err, "make", n);
        }
        if (geteuid() == 0 && agent_uid != 0 &&
            fchownat(s->slot, "cgroup.procs", agent_uid, (gid_t)-1, 0) < 0) {
            return failed(err, "hand over", n);
        }
    }
    s->made = true;
    return 0;
}

int sg_slot_groups_enable(struct sg_groups *g, struct sg_slot_groups *s, struct sg_error *err)
{
    if (!g->v2_controllers) {
        return 0;
    }
    int r = write_file(s->slot, "cgroup.subtree_control", "+memory +pids +cpu");
    return r == 0 ? 0 : sg_error_sys(err, SG_UNAVAILABLE, -r, "cannot hand the controllers to a slot");
}

/* Values as the files want them; 0: no limit. */
static int limit_v2(int cmds, const int64_t limits[SG_CTL_COUNT])
{
    static const char *const files[SG_CTL_COUNT] = {"memory.max", "pids.max", "cpu.max"};
    int r = 0;
    for (int c = 0; c < SG_CTL_COUNT && r == 0; c++) {
        char text[64] = "max";
        if (limits[c] > 0 && c == SG_CTL_CPU) {
            snprintf(text, sizeof text, "%lld 100000", (long long)limits[c] * 100);
        } else if (limits[c] > 0) {
            snprintf(text, sizeof text, "%lld", (long long)limits[c]);
        }
        r = write_file(cmds, files[c], text);
    }
    if (r == 0 && limits[SG_CTL_MEMORY] > 0) {
        write_file(cmds, "memory.swap.max", "0"); /* missing without swap accounting */
    }
    return r;
}

/* What lies in sockets is counted apart there, and without a limit of its own not at all: a sandbox could have all that the machine
 * gives to sockets. */
static void limit_v1_sockets(int dir, int64_t memory)
{
    char text[32] = "-1";
    if (memory > 0) {
        snprintf(text, sizeof text, "%lld", (long long)memory / 4);
    }
    write_file(dir, "memory.kmem.tcp.limit_in_bytes", text); /* not there when the kernel is told not to count it */
}

static int limit_v1(int dir, enum sg_controller c, int64_t limit)
{
    char text[64];
    snprintf(text, sizeof text, "%lld", (long long)(c == SG_CTL_CPU ? limit * 100 : limit));
    if (c == SG_CTL_PIDS) {
        return write_file(dir, "pids.max", limit > 0 ? text : "max");
    }
    if (c == SG_CTL_CPU) {
        return write_file(dir, "cpu.cfs_quota_us", limit > 0 ? text : "-1");
    }
    /* Memory with swap may never be below memory alone, so it is lifted first. */
    write_file(dir, "memory.memsw.limit_in_bytes", "-1");
    int r = write_file(dir, "memory.limit_in_bytes", limit > 0 ? text : "-1");
    if (r == 0 && limit > 0) {
        write_file(dir, "memory.memsw.limit_in_bytes", text);
    }
    limit_v1_sockets(dir, limit);
    return r;
}

static int open_v1(const struct sg_groups *g, int c, uint32_t n)
{
    char name[32];
    snprintf(name, sizeof name, "slot-%u", n);
    return open_dir(g->v1[c], name);
}

int sg_slot_groups_limit(struct sg_groups *g, struct sg_slot_groups *s, uint32_t n,
                         const int64_t limits[SG_CTL_COUNT], struct sg_error *err)
{
    if (s->limited && memcmp(s->limits, limits, sizeof s->limits) == 0) {
        return 0; /* as in the build before, which is the rule */
    }
    s->limited = false;
    int r = g->v2_controllers ? limit_v2(s->cmds, limits) : 0;
    for (int c = 0; c < SG_CTL_COUNT && r == 0; c++) {
        if (g->v1[c] < 0) {
            continue;
        }
        sg_cleanup(sg_close_p) int dir = open_v1(g, c, n);
        r = dir < 0 ? -errno : limit_v1(dir, (enum sg_controller)c, limits[c]);
    }
    if (r < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, -r, "slot %u: cannot set its limits", n);
    }
    memcpy(s->limits, limits, sizeof s->limits);
    s->limited = true;
    return 0;
}

int sg_slot_groups_limit_fds(struct sg_groups *g, const struct sg_slot_groups *s, uint32_t n,
                             int fds[SG_SLOT_LIMIT_FDS], struct sg_error *err)
{
    for (int c = 0; c < SG_CTL_COUNT; c++) {
        if (g->v1[c] < 0 || s->limits[c] == 0) {
            continue;
        }
        sg_cleanup(sg_close_p) int dir = open_v1(g, c, n);
        if (dir < 0 || (fds[c] = openat(dir, "tasks", O_WRONLY | O_CLOEXEC)) < 0) {
            return failed(err, "open", n);
        }
    }
    return 0;
}

int sg_slot_groups_oom_fd(struct sg_groups *g, struct sg_slot_groups *s, uint32_t n)
{
    if (g->v2_controllers) {
        return openat(s->cmds, "memory.events", O_RDONLY | O_CLOEXEC);
    }
    if (g->v1[SG_CTL_MEMORY] < 0) {
        return -1;
    }
    sg_cleanup(sg_close_p) int dir = open_v1(g, SG_CTL_MEMORY, n);
    return dir < 0 ? -1 : openat(dir, "memory.oom_control", O_RDONLY | O_CLOEXEC);
}

void sg_slot_groups_finish(struct sg_slot_groups *s)
{
    sg_close(s->slot);
    sg_close(s->agent);
    sg_close(s->cmds);
    sg_slot_groups_init(s);
}
