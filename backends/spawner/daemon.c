#include "backends/spawner/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/spawner/net.h"
#include "backends/spawner/seccomp.h"
#include "backends/spawner/slot.h"
#include "base/clock.h"
#include "base/fd.h"

#define ANSWER_WAIT_MS 5000
#define END_MS 8000

int sg_daemon_watch(struct sg_daemon *d, int fd, uint32_t events, enum sg_slot_event kind, uint32_t slot)
{
    struct epoll_event e = {.events = events, .data.u64 = (uint64_t)kind << 32 | slot};
    return epoll_ctl(d->epoll, EPOLL_CTL_ADD, fd, &e);
}

/* ---- the end ---- */

/* Everything else in this PID namespace is something we started. */
static void kill_all(int64_t deadline_ms)
{
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    kill(-1, SIGKILL);
    for (;;) {
        pid_t pid = waitpid(-1, NULL, WNOHANG);
        if (pid < 0 && errno == ECHILD) {
            return;
        }
        int64_t left = deadline_ms - sg_now_ms();
        if (left <= 0) {
            return; /* our own exit makes the kernel try again */
        }
        struct timespec t = {left / 1000, left % 1000 * 1000000};
        if (pid == 0) {
            sigtimedwait(&child, NULL, &t);
        }
    }
}

_Noreturn static void finish(struct sg_daemon *d)
{
    int64_t deadline_ms = sg_now_ms() + END_MS;
    kill_all(deadline_ms);
    sg_groups_close(&d->args->groups, deadline_ms);
    if (d->slots_dir >= 0) {
        sg_cleanup(sg_close_p) int state = open(d->args->cfg->state_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        sg_remove_tree(state, "slots", NULL);
    }
    _exit(0);
}

/* ---- talking to the server ---- */

void sg_daemon_answer(struct sg_daemon *d, const struct sg_wire_answer *a, const int *fds, unsigned n_fds)
{
    int r = sg_wire_send(d->args->sock, a, sizeof *a, fds, n_fds);
    if (r == -EAGAIN) {
        /* The server's reactor always reads: one that has not for so long is dead. */
        struct pollfd p = {.fd = d->args->sock, .events = POLLOUT};
        if (poll(&p, 1, ANSWER_WAIT_MS) == 1) {
            r = sg_wire_send(d->args->sock, a, sizeof *a, fds, n_fds);
        }
    }
    if (r < 0) {
        finish(d);
    }
}

static void read_requests(struct sg_daemon *d)
{
    for (;;) {
        struct sg_wire_request r;
        int fds[SG_WIRE_FDS_MAX];
        unsigned n_fds;
        int got = sg_wire_receive(d->args->sock, &r, sizeof r, fds, &n_fds);
        if (got == -EAGAIN) {
            return;
        }
        if (got != 1 || n_fds != 0 || r.slot >= SG_SPAWNER_SLOTS_MAX) {
            finish(d);
        }
        if (r.op == SG_WIRE_BUILD) {
            sg_slot_build(d, &r);
        } else if (r.op == SG_WIRE_DESTROY) {
            sg_slot_destroy(d, &r);
        } else if (r.op == SG_WIRE_LIMIT) {
            sg_slot_limit(d, &r);
        } else {
            finish(d);
        }
    }
}

/* ---- start ---- */

int sg_daemon_slots_dir(struct sg_daemon *d)
{
    if (d->slots_dir < 0) {
        sg_cleanup(sg_close_p) int state = open(d->args->cfg->state_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (state >= 0 && mkdirat(state, "slots", 0700) < 0 && errno != EEXIST) {
            return -1;
        }
        d->slots_dir = openat(state, "slots", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    }
    return d->slots_dir;
}

static int compare_ints(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

/* The server was young when it forked us, but what it had open is not ours. */
static void close_others(const struct sg_daemon_args *a)
{
    int keep[4 + 2 * SG_CTL_COUNT] = {a->sock, a->lock, a->groups.v2, a->groups.v2_parent};
    for (int c = 0; c < SG_CTL_COUNT; c++) {
        keep[4 + 2 * c] = a->groups.v1[c];
        keep[5 + 2 * c] = a->groups.v1_parent[c];
    }
    qsort(keep, SG_COUNT_OF(keep), sizeof *keep, compare_ints);
    unsigned from = 3;
    for (size_t i = 0; i < SG_COUNT_OF(keep); i++) {
        if (keep[i] < (int)from) {
            continue;
        }
        if (keep[i] > (int)from) {
            close_range(from, (unsigned)keep[i] - 1, 0);
        }
        from = (unsigned)keep[i] + 1;
    }
    close_range(from, ~0U, 0);
}

static void settle_process(const struct sg_daemon_args *a)
{
    struct rlimit files;
    prctl(PR_SET_NAME, "sandgate-spawn");
    for (char **e = environ; *e != NULL; e++) { /* the server's keys are not needed here */
        explicit_bzero(*e, strlen(*e));
    }
    environ[0] = NULL;
    umask(022);
    setsid();
    close_others(a);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null >= 0) {
        dup2(null, STDIN_FILENO);
        dup2(null, STDOUT_FILENO);
        close(null);
    }
    signal(SIGPIPE, SIG_IGN);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
}

static int start(struct sg_daemon *d, int *signals, struct sg_error *err)
{
    struct sg_daemon_args *a = d->args;
    unsigned flags = a->own.root_server ? 0 : SG_SECCOMP_ONE_UID;
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_SETMASK, &child, NULL);
    *signals = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    d->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (*signals < 0 || d->epoll < 0 || sg_daemon_watch(d, *signals, EPOLLIN, SG_EV_SIGNAL, 0) < 0 ||
        sg_daemon_watch(d, a->sock, EPOLLIN, SG_EV_CONTROL, 0) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot start the spawner");
    }
    sg_cleanup(sg_close_p) int state = open(a->cfg->state_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (state < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", a->cfg->state_dir);
    }
    if (sg_view_make(&d->view, a, err) < 0 ||
        (a->slirp != NULL && sg_net_check(a->own.root_server ? a->cfg->uid_base : 0, err) < 0) ||
        sg_remove_tree(state, "slots", err) < 0 || sg_seccomp_filter(flags, &d->seccomp[0], err) < 0 ||
        sg_seccomp_filter(flags | SG_SECCOMP_CLONE3, &d->seccomp[1], err) < 0) {
        return -1;
    }
    sg_groups_try(&a->groups);
    return 0;
}

static void say_ready(struct sg_daemon *d, const struct sg_error *err)
{
    const struct sg_groups *g = &d->args->groups;
    struct sg_wire_answer a = {.magic = SG_WIRE_MAGIC, .op = SG_WIRE_READY};
    if (err->code != SG_OK) {
        a.code = err->code;
        a.sys = err->sys;
        snprintf(a.message, sizeof a.message, "%.*s", (int)sizeof a.message - 1, err->message);
    }
    a.isolation = d->args->own.root_server ? SG_ISOLATION_UID : SG_ISOLATION_DUMPABLE;
    a.tree_kill = g->v2 >= 0 ? SG_TREE_KILL_CGROUP : SG_TREE_KILL_HELPER;
    a.memory = sg_groups_means(g, SG_CTL_MEMORY);
    a.pids = sg_groups_means(g, SG_CTL_PIDS);
    a.cpu = sg_groups_means(g, SG_CTL_CPU);
    sg_daemon_answer(d, &a, NULL, 0);
}

/* ---- the loop ---- */

static void reap(struct sg_daemon *d, int signals)
{
    struct signalfd_siginfo info;
    while (read(signals, &info, sizeof info) > 0) {
        ;
    }
    for (pid_t pid = waitpid(-1, NULL, WNOHANG); pid > 0; pid = waitpid(-1, NULL, WNOHANG)) {
        sg_slot_on_exit(d, pid);
    }
}

static void loop(struct sg_daemon *d, int signals)
{
    for (;;) {
        int64_t now = sg_now_ms(), next = sg_slot_on_time(d, now);
        int wait = next == INT64_MAX ? -1 : next - now > 60000 ? 60000 : next > now ? (int)(next - now) : 0;
        struct epoll_event events[32];
        int n = epoll_wait(d->epoll, events, SG_COUNT_OF(events), wait);
        for (int i = 0; i < n; i++) {
            enum sg_slot_event kind = (enum sg_slot_event)(events[i].data.u64 >> 32);
            if (kind == SG_EV_CONTROL) {
                read_requests(d);
            } else if (kind == SG_EV_SIGNAL) {
                reap(d, signals);
            } else {
                sg_slot_on_event(d, (uint32_t)events[i].data.u64, kind);
            }
        }
    }
}

void sg_daemon_run(struct sg_daemon_args *a)
{
    struct sg_daemon *d = sg_xcalloc(1, sizeof *d);
    struct sg_error err = {0};
    int signals = -1;
    d->args = a;
    d->slots_dir = -1;
    settle_process(a);
    int r = start(d, &signals, &err);
    say_ready(d, &err);
    if (r < 0) {
        finish(d);
    }
    loop(d, signals);
    finish(d);
}
