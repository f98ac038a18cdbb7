/* The server's end of the spawner. */
#include "backends/spawner/spawner.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/sched.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/spawner/daemon.h"
#include "backends/spawner/wire.h"
#include "base/clock.h"

#define READY_MS 20000
#define LOCK_MS 10000
#define END_MS 10000

struct pending {
    struct pending *next;
    struct sg_wire_request request;
    bool sent;
    void (*built)(void *arg, struct sg_slot_built *b, const struct sg_error *err);
    void (*destroyed)(void *arg, const struct sg_error *err);
    void *arg;
};

struct sg_spawner {
    struct sg_spawner_facts facts;
    char **rootfs;           /* copies, NULL-terminated */
    struct sg_groups groups; /* to remove what a killed spawner leaves */
    pid_t pid;
    int pidfd, sock;
    struct sg_reactor *reactor; /* NULL: not attached */
    struct sg_watch watch;
    void (*died)(void *arg);
    void *died_arg;
    struct pending *first, **last;
    uint64_t next_id;
    _Atomic bool dead;

    struct sg_task detach; /* for sg_spawner_free() */
    pthread_mutex_t lock;
    pthread_cond_t detached_changed;
    bool detached;
};

const char *sg_isolation_name(enum sg_isolation i)
{
    return i == SG_ISOLATION_UID ? "uid" : "dumpable";
}

const char *sg_tree_kill_name(enum sg_tree_kill t)
{
    return t == SG_TREE_KILL_CGROUP ? "cgroup" : "helper";
}

const char *sg_means_name(enum sg_means m)
{
    static const char *const names[] = {"none", "rlimit", "cgroup1", "cgroup2", "tmpfs"};
    return (unsigned)m < SG_COUNT_OF(names) ? names[m] : "none";
}

const struct sg_spawner_facts *sg_spawner_facts(const struct sg_spawner *sp)
{
    return &sp->facts;
}

pid_t sg_spawner_pid(const struct sg_spawner *sp)
{
    return sp->pid;
}

bool sg_spawner_gone(const struct sg_spawner *sp)
{
    return sp->dead;
}

void sg_slot_built_finish(struct sg_slot_built *b)
{
    b->agent_fd = sg_close(b->agent_fd);
    b->pidfd = sg_close(b->pidfd);
    b->cgroup_fd = sg_close(b->cgroup_fd);
    b->oom_fd = sg_close(b->oom_fd);
    b->net_fd = sg_close(b->net_fd);
    for (unsigned i = 0; i < SG_SLOT_LIMIT_FDS; i++) {
        b->limit_fds[i] = sg_close(b->limit_fds[i]);
    }
}

/* ---- start ---- */

/* One spawner per state directory: it removes what another of the same would be using. One that is cleaning
 * up after its server died is waited for. */
static int take_lock(const char *state_dir, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("%s/spawner.lock", state_dir);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", path);
    }
    /* flock() has no deadline of its own; whoever holds it lets go within END_MS of its server's death. */
    int64_t deadline_ms = sg_now_ms() + LOCK_MS;
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EINTR && (errno != EWOULDBLOCK || sg_now_ms() >= deadline_ms)) {
            int sys = errno;
            close(fd);
            return sg_error_sys(err, SG_UNAVAILABLE, sys, "another sandgate uses the state directory %s",
                                state_dir);
        }
        poll(NULL, 0, 50);
    }
    return fd;
}

static int find_program(const char *name, char *path, size_t size, const char *hint, struct sg_error *err)
{
    const char *dirs = getenv("PATH");
    if (dirs == NULL) {
        dirs = "/usr/local/bin:/usr/bin:/bin";
    }
    while (*dirs != '\0') {
        size_t n = strcspn(dirs, ":");
        if (n > 0 && dirs[0] == '/' && (size_t)snprintf(path, size, "%.*s/%s", (int)n, dirs, name) < size &&
            access(path, X_OK) == 0) {
            return 0;
        }
        dirs += n + (dirs[n] == ':');
    }
    return sg_error_set(err, SG_UNAVAILABLE, "%s is not in PATH: %s", name, hint);
}

static int find_bwrap(const char *wanted, char *path, size_t size, struct sg_error *err)
{
    if (wanted == NULL) {
        return find_program("bwrap", path, size, "install the package bubblewrap", err);
    }
    if (access(wanted, X_OK) == 0 && (size_t)snprintf(path, size, "%s", wanted) < size) {
        return 0;
    }
    return sg_error_sys(err, SG_UNAVAILABLE, errno, "bubblewrap at %s", wanted);
}

static int find_slirp(const struct sg_spawner_config *cfg, char *path, size_t size, struct sg_error *err)
{
    return cfg->open_net ? find_program("slirp4netns", path, size, "install the package slirp4netns, which egress open needs", err) : 0;
}

/* Born into namespaces of its own: the end of the first process of a PID namespace is the end of all of it.
 */
static pid_t fork_daemon(bool root_server, struct sg_error *err)
{
    struct clone_args c = {.flags = CLONE_CLEAR_SIGHAND | CLONE_NEWPID | CLONE_NEWNS |
                                    (root_server ? 0U : CLONE_NEWUSER),
                           .exit_signal = SIGCHLD};
    long pid = syscall(SYS_clone3, &c, sizeof c);
    if (pid >= 0) {
        return (pid_t)pid;
    }
    if (root_server) {
        return sg_error_sys(
            err, SG_UNAVAILABLE, errno,
            "cannot make namespaces (a container needs CAP_SYS_ADMIN and a seccomp profile that allows "
            "clone3, unshare and mount)");
    }
    return sg_error_sys(
        err, SG_UNAVAILABLE, errno,
        "no user namespaces for ordinary users: set the sysctls user.max_user_namespaces > 0, "
        "kernel.unprivileged_userns_clone=1 and kernel.apparmor_restrict_unprivileged_userns=0 (those "
        "that exist), or run as root; a container needs a seccomp profile that allows clone3, unshare and mount");
}

static int take_ready(struct sg_spawner *sp, struct sg_error *err)
{
    struct sg_wire_answer a;
    int fds[SG_WIRE_FDS_MAX];
    unsigned n;
    struct pollfd p = {.fd = sp->sock, .events = POLLIN};
    int r = poll(&p, 1, READY_MS) == 1 ? sg_wire_receive(sp->sock, &a, sizeof a, fds, &n) : -ETIMEDOUT;
    if (r != 1 || a.op != SG_WIRE_READY || n != 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, r < 0 ? -r : 0, "the spawner did not start");
    }
    a.message[sizeof a.message - 1] = '\0';
    if (a.code != SG_OK) {
        sg_error_set(err, (enum sg_code)a.code, "local sandboxes cannot be made: %s", a.message);
        if (err != NULL) {
            err->sys = a.sys;
        }
        return -1;
    }
    sp->facts = (struct sg_spawner_facts){.isolation = (enum sg_isolation)a.isolation,
                                          .tree_kill = (enum sg_tree_kill)a.tree_kill,
                                          .memory = (enum sg_means)a.memory,
                                          .pids = (enum sg_means)a.pids,
                                          .cpu = (enum sg_means)a.cpu};
    return 0;
}

static struct sg_spawner *spawner_new(const struct sg_spawner_config *cfg)
{
    struct sg_spawner *sp = sg_xcalloc(1, sizeof *sp);
    size_t n = 0;
    while (cfg->rootfs != NULL && cfg->rootfs[n] != NULL) {
        n++;
    }
    sp->rootfs = sg_xcalloc(n + 1, sizeof *sp->rootfs);
    for (size_t i = 0; i < n; i++) {
        sp->rootfs[i] = sg_xstrdup(cfg->rootfs[i]);
    }
    sp->pidfd = sp->sock = -1;
    sg_groups_init(&sp->groups);
    sp->last = &sp->first;
    sp->next_id = 1;
    pthread_mutex_init(&sp->lock, NULL);
    pthread_cond_init(&sp->detached_changed, NULL);
    return sp;
}

static int check_config(const struct sg_spawner_config *cfg, struct sg_error *err)
{
    size_t n = 0;
    for (; cfg->rootfs != NULL && cfg->rootfs[n] != NULL; n++) {
        if (cfg->rootfs[n][0] != '/' || cfg->rootfs[n][1] == '\0' || n >= SG_SPAWNER_ROOTFS_MAX) {
            return sg_error_set(err, SG_INVALID_REQUEST,
                                "rootfs must be an absolute path, at most %u of them", SG_SPAWNER_ROOTFS_MAX);
        }
    }
    if (cfg->state_dir[0] != '/' || cfg->state_dir[1] == '\0' || cfg->agent_path[0] != '/') {
        return sg_error_set(err, SG_INVALID_REQUEST, "state directory and agent must be absolute paths");
    }
    if (geteuid() == 0 && (cfg->uid_base < 1000 || cfg->uid_base > 2000000000U)) {
        return sg_error_set(err, SG_INVALID_REQUEST, "uid_base must be between 1000 and 2000000000");
    }
    return 0;
}

static int start(struct sg_spawner *sp, const struct sg_spawner_config *cfg, struct sg_daemon_args *a,
                 struct sg_error *err)
{
    static char bwrap[PATH_MAX], slirp[PATH_MAX];
    int pair[2];
    if (check_config(cfg, err) < 0 || find_bwrap(cfg->bwrap_path, bwrap, sizeof bwrap, err) < 0 ||
        find_slirp(cfg, slirp, sizeof slirp, err) < 0 ||
        (a->lock = take_lock(cfg->state_dir, err)) < 0) {
        return -1;
    }
    if (!cfg->no_cgroups && sg_groups_open(&a->groups, cfg->state_dir, err) < 0) {
        return -1;
    }
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot make a socket pair");
    }
    sp->sock = pair[0];
    a->sock = pair[1];
    a->bwrap = bwrap;
    a->slirp = cfg->open_net ? slirp : NULL;
    sp->pid = fork_daemon(a->own.root_server, err);
    if (sp->pid == 0) {
        sg_daemon_run(a);
    }
    if (sp->pid < 0) {
        sp->pid = 0;
        return -1;
    }
    a->sock = sg_close(a->sock);
    sp->pidfd = (int)syscall(SYS_pidfd_open, sp->pid, 0);
    return take_ready(sp, err);
}

int sg_spawner_start(struct sg_spawner **ret, const struct sg_spawner_config *cfg, struct sg_error *err)
{
    struct sg_daemon_args a = {.cfg = cfg, .sock = -1, .lock = -1};
    a.own = (struct sg_view_user){.root_server = geteuid() == 0, .uid = geteuid(), .gid = getegid()};
    sg_groups_init(&a.groups);
    struct sg_spawner *sp = spawner_new(cfg);
    int r = start(sp, cfg, &a, err);
    sp->groups = a.groups;
    sg_close(a.sock);
    sg_close(a.lock);
    if (r < 0) {
        sg_spawner_free(sp);
        return -1;
    }
    *ret = sp;
    return 0;
}

/* ---- requests ---- */

static void flush(struct sg_spawner *sp)
{
    bool blocked = false;
    for (struct pending *p = sp->first; p != NULL && !blocked && !sp->dead; p = p->next) {
        if (p->sent) {
            continue;
        }
        blocked = sg_wire_send(sp->sock, &p->request, sizeof p->request, NULL, 0) == -EAGAIN;
        p->sent = !blocked; /* another error shows as end of file */
    }
    sg_watch_mod(sp->reactor, &sp->watch, blocked ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

static struct pending *request(struct sg_spawner *sp, uint32_t op, uint32_t slot, void *arg)
{
    struct pending *p = sg_xcalloc(1, sizeof *p);
    p->request.magic = SG_WIRE_MAGIC;
    p->request.op = op;
    p->request.id = sp->next_id++;
    p->request.slot = slot;
    p->arg = arg;
    *sp->last = p;
    sp->last = &p->next;
    return p;
}

static struct pending *pending_take(struct sg_spawner *sp, uint64_t id, uint32_t op)
{
    for (struct pending **at = &sp->first; *at != NULL; at = &(*at)->next) {
        struct pending *p = *at;
        bool fits = op == SG_WIRE_DESTROYED ? p->destroyed != NULL : p->built != NULL;
        if (p->request.id != id || !fits) {
            continue;
        }
        *at = p->next;
        if (sp->last == &p->next) {
            sp->last = at;
        }
        return p;
    }
    return NULL;
}

static int rootfs_index(const struct sg_spawner *sp, const char *rootfs)
{
    if (rootfs == NULL) {
        return -1;
    }
    for (int i = 0; sp->rootfs[i] != NULL; i++) {
        if (sg_streq(sp->rootfs[i], rootfs)) {
            return i;
        }
    }
    return -2;
}

void sg_spawner_build(struct sg_spawner *sp, const struct sg_slot_spec *spec,
                      void (*done)(void *arg, struct sg_slot_built *b, const struct sg_error *err), void *arg)
{
    int rootfs = rootfs_index(sp, spec->rootfs);
    if (sp->dead || spec->slot >= SG_SPAWNER_SLOTS_MAX || rootfs < -1 || spec->disk_bytes <= 0) {
        struct sg_error err = {0};
        sg_error_set(&err, SG_UNAVAILABLE, sp->dead ? "the spawner is gone" : "slot %u: a bad specification",
                     spec->slot);
        done(arg, NULL, &err);
        return;
    }
    struct pending *p = request(sp, SG_WIRE_BUILD, spec->slot, arg);
    p->built = done;
    p->request.rootfs = rootfs;
    p->request.disk_dir = spec->disk_dir;
    p->request.open_net = spec->open_net;
    p->request.disk_bytes = spec->disk_bytes;
    p->request.memory_bytes = spec->memory_bytes;
    p->request.pids = spec->pids;
    p->request.cpu_milli = spec->cpu_milli;
    p->request.deadline_ms = spec->deadline_ms;
    flush(sp);
}

void sg_spawner_limit(struct sg_spawner *sp, const struct sg_slot_spec *limits,
                      void (*done)(void *arg, struct sg_slot_built *b, const struct sg_error *err), void *arg)
{
    if (sp->dead || limits->slot >= SG_SPAWNER_SLOTS_MAX) {
        struct sg_error err = {0};
        sg_error_set(&err, SG_UNAVAILABLE, "the spawner is gone");
        done(arg, NULL, &err);
        return;
    }
    struct pending *p = request(sp, SG_WIRE_LIMIT, limits->slot, arg);
    p->built = done;
    p->request.disk_bytes = limits->disk_bytes;
    p->request.memory_bytes = limits->memory_bytes;
    p->request.pids = limits->pids;
    p->request.cpu_milli = limits->cpu_milli;
    flush(sp);
}

void sg_spawner_destroy(struct sg_spawner *sp, uint32_t slot,
                        void (*done)(void *arg, const struct sg_error *err), void *arg)
{
    if (sp->dead || slot >= SG_SPAWNER_SLOTS_MAX) {
        done(arg, NULL); /* nothing outlives the spawner */
        return;
    }
    request(sp, SG_WIRE_DESTROY, slot, arg)->destroyed = done;
    flush(sp);
}

/* ---- answers ---- */

static void fill_error(struct sg_error *err, const struct sg_wire_answer *a)
{
    sg_error_set(err, a->code < SG_CODE_COUNT ? (enum sg_code)a->code : SG_INTERNAL, "%s", a->message);
    err->sys = a->sys;
}

/* false: the descriptors are not those the answer speaks of. */
static bool fill_built(struct sg_slot_built *b, const struct sg_wire_answer *a, const int *fds,
                       unsigned n_fds)
{
    int *where[SG_WIRE_FDS_MAX] = {&b->agent_fd,     &b->pidfd,        &b->cgroup_fd,   &b->oom_fd,
                                   &b->limit_fds[0], &b->limit_fds[1], &b->limit_fds[2], &b->net_fd};
    unsigned used = 0;
    for (unsigned i = 0; i < SG_WIRE_FDS_MAX; i++) {
        bool there = (a->fds & (1U << i)) != 0 && used < n_fds;
        *where[i] = there ? fds[used++] : -1;
    }
    for (unsigned i = used; i < n_fds; i++) {
        sg_close(fds[i]);
    }
    b->agent_pid = a->agent_pid;
    b->agent_uid = a->agent_uid;
    b->command_uid = a->command_uid;
    b->isolation = (enum sg_isolation)a->isolation;
    b->tree_kill = (enum sg_tree_kill)a->tree_kill;
    b->memory = (enum sg_means)a->memory;
    b->pids = (enum sg_means)a->pids;
    b->cpu = (enum sg_means)a->cpu;
    b->disk = (enum sg_means)a->disk;
    return used == n_fds;
}

/* The spawner knows its own PID namespace's number only. */
static pid_t pid_of(int pidfd)
{
    char path[64], line[128];
    int pid = 0;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pidfd);
    FILE *f = fopen(path, "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL && sscanf(line, "Pid: %d", &pid) != 1) {
        ;
    }
    if (f != NULL) {
        fclose(f);
    }
    return (pid_t)pid;
}

static void answer_built(struct pending *p, const struct sg_wire_answer *a, const int *fds, unsigned n_fds)
{
    struct sg_slot_built b;
    struct sg_error err = {0};
    bool good = fill_built(&b, a, fds, n_fds) && a->code == SG_OK;
    if (good && a->op == SG_WIRE_BUILT) {
        good = b.agent_fd >= 0 && b.pidfd >= 0;
        b.agent_pid = good ? pid_of(b.pidfd) : 0;
    }
    if (good) {
        p->built(p->arg, &b, NULL);
        return;
    }
    sg_slot_built_finish(&b);
    if (a->code != SG_OK) {
        fill_error(&err, a);
    } else {
        sg_error_set(&err, SG_OVERLOADED, "the sandbox's descriptors did not arrive: the server is out of descriptors");
    }
    p->built(p->arg, NULL, &err);
}

static void dispatch(struct sg_spawner *sp, struct sg_wire_answer *a, const int *fds, unsigned n_fds)
{
    struct pending *p = pending_take(sp, a->id, a->op);
    a->message[sizeof a->message - 1] = '\0';
    if (p != NULL && a->op != SG_WIRE_DESTROYED) {
        answer_built(p, a, fds, n_fds);
    } else {
        for (unsigned i = 0; i < n_fds; i++) {
            sg_close(fds[i]);
        }
        struct sg_error err = {0};
        if (p != NULL && a->code != SG_OK) {
            fill_error(&err, a);
        }
        if (p != NULL) {
            p->destroyed(p->arg, a->code != SG_OK ? &err : NULL);
        }
    }
    free(p);
}

static void lose(struct sg_spawner *sp)
{
    struct sg_error err = {0};
    sg_error_set(&err, SG_UNAVAILABLE, "the spawner is gone");
    if (sp->died != NULL) {
        sp->died(sp->died_arg);
    }
    sp->dead = true;
    sg_watch_del(sp->reactor, &sp->watch);
    while (sp->first != NULL) {
        struct pending *p = sp->first;
        sp->first = p->next;
        if (sp->first == NULL) {
            sp->last = &sp->first;
        }
        if (p->built != NULL) {
            p->built(p->arg, NULL, &err);
        } else {
            p->destroyed(p->arg, NULL);
        }
        free(p);
    }
}

static void ready(struct sg_watch *w, uint32_t events)
{
    struct sg_spawner *sp = (struct sg_spawner *)((char *)w - offsetof(struct sg_spawner, watch));
    if (events & EPOLLOUT) {
        flush(sp);
    }
    for (;;) {
        struct sg_wire_answer a;
        int fds[SG_WIRE_FDS_MAX];
        unsigned n_fds;
        int r = sg_wire_receive(sp->sock, &a, sizeof a, fds, &n_fds);
        if (r == -EAGAIN) {
            return;
        }
        if (r != 1) {
            lose(sp);
            return;
        }
        dispatch(sp, &a, fds, n_fds);
    }
}

int sg_spawner_attach(struct sg_spawner *sp, struct sg_reactor *r, void (*died)(void *arg), void *arg,
                      struct sg_error *err)
{
    sp->reactor = r;
    sp->died = died;
    sp->died_arg = arg;
    sp->watch = (struct sg_watch){.ready = ready, .fd = sp->sock};
    if (sg_watch_add(r, &sp->watch, EPOLLIN, err) < 0) {
        sp->reactor = NULL;
        return -1;
    }
    return 0;
}

/* ---- end ---- */

static void detach(struct sg_task *t)
{
    struct sg_spawner *sp = (struct sg_spawner *)((char *)t - offsetof(struct sg_spawner, detach));
    sg_watch_del(sp->reactor, &sp->watch);
    pthread_mutex_lock(&sp->lock);
    sp->detached = true;
    pthread_cond_signal(&sp->detached_changed);
    pthread_mutex_unlock(&sp->lock);
}

static void leave_reactor(struct sg_spawner *sp)
{
    if (sp->reactor == NULL) {
        return;
    }
    sp->detach.run = detach;
    sg_reactor_post(sp->reactor, &sp->detach);
    pthread_mutex_lock(&sp->lock);
    while (!sp->detached) {
        pthread_cond_wait(&sp->detached_changed, &sp->lock);
    }
    pthread_mutex_unlock(&sp->lock);
}

static void end_process(struct sg_spawner *sp)
{
    sp->sock = sg_close(sp->sock);
    if (sp->pid <= 0) {
        sg_groups_close(&sp->groups, 0);
        return;
    }
    struct pollfd p = {.fd = sp->pidfd, .events = POLLIN};
    if (sp->pidfd < 0 || poll(&p, 1, END_MS) != 1) {
        kill(sp->pid, SIGKILL);
    }
    while (waitpid(sp->pid, NULL, 0) < 0 && errno == EINTR) {
        ;
    }
    sp->pidfd = sg_close(sp->pidfd);
    sg_groups_close(&sp->groups, sg_now_ms() + END_MS);
}

struct sg_spawner *sg_spawner_free(struct sg_spawner *sp)
{
    if (sp == NULL) {
        return NULL;
    }
    leave_reactor(sp);
    end_process(sp);
    while (sp->first != NULL) {
        struct pending *p = sp->first;
        sp->first = p->next;
        free(p);
    }
    for (size_t i = 0; sp->rootfs[i] != NULL; i++) {
        free(sp->rootfs[i]);
    }
    free(sp->rootfs);
    pthread_cond_destroy(&sp->detached_changed);
    pthread_mutex_destroy(&sp->lock);
    free(sp);
    return NULL;
}
