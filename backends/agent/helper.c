/* Where no cgroup can be had: one process over each command that adopts whatever the command's descendants
 * orphan (a child subreaper), so that "all descendants" stays a question the kernel can answer. It tells the
 * agent when the command's own process ends and stays until the last descendant is gone. Its end of the
 * socket reading end of file means: kill them all. */
#include "backends/agent/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define FOREVER 0x7fffffff

struct helper {
    int ctl, signals;
    pid_t leader; /* 0: has ended */
    struct kin kin;
};

/* ---- life ---- */

static void tell(struct helper *h, enum helper_word word, uint32_t a, uint32_t b)
{
    struct helper_msg m = {.word = word, .a = a, .b = b};
    ssize_t n = send(h->ctl, &m, sizeof m, MSG_NOSIGNAL);
    (void)n; /* an agent that is gone took this process along */
}

static void reaped(void *arg, pid_t pid, int st)
{
    struct helper *h = arg;
    if (pid != h->leader)
        return;
    h->leader = 0;
    if (WIFSIGNALED(st))
        tell(h, HELPER_EXITED, 0, (uint32_t)WTERMSIG(st));
    else
        tell(h, HELPER_EXITED, (uint32_t)WEXITSTATUS(st), 0);
}

static void drain_signals(struct helper *h)
{
    struct signalfd_siginfo info;
    while (read(h->signals, &info, sizeof info) > 0)
        ;
}

static void serve(struct helper *h)
{
    while (!kin_reap(reaped, h)) {
        struct pollfd p[2] = {{.fd = h->signals, .events = POLLIN}, {.fd = h->ctl, .events = POLLIN}};
        if (poll(p, 2, -1) < 0)
            continue;
        drain_signals(h);
        if (p[1].revents == 0)
            continue;
        struct helper_msg m;
        ssize_t n = recv(h->ctl, &m, sizeof m, MSG_DONTWAIT);
        if (n == 0) {
            kin_kill_all(&h->kin, h->signals, FOREVER, reaped, h);
            return;
        }
        if (n == (ssize_t)sizeof m && m.word == HELPER_SIGNAL && h->leader > 0)
            kill(h->leader, (int)m.a);
    }
}

/* Keeps only what the command needs and the socket. */
static void close_rest(struct child *c, int *ctl)
{
    int keep[5 + SG_AGENT_TASKS_MAX] = {c->in, c->out, c->err, *ctl, FILES_ROOT};
    size_t n = 5;
    for (unsigned i = 0; i < c->n_tasks; i++)
        keep[n++] = c->tasks[i];
    unsigned from = 3;
    while (from != ~0U) {
        unsigned next = ~0U;
        for (size_t i = 0; i < n; i++)
            if ((unsigned)keep[i] >= from && (unsigned)keep[i] < next)
                next = (unsigned)keep[i];
        if (next > from)
            syscall(SYS_close_range, from, next == ~0U ? ~0U : next - 1, 0U);
        from = next == ~0U ? next : next + 1;
    }
}

static void close_command_ends(struct child *c)
{
    close(c->in);
    if (c->terminal < 0) {
        close(c->out);
        close(c->err);
    }
    for (unsigned i = 0; i < c->n_tasks; i++)
        close(c->tasks[i]);
}

static void helper_main(struct child *c, int ctl)
{
    struct helper h = {.ctl = ctl};
    close_rest(c, &h.ctl);
    sigset_t chld;
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    h.signals = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK);
    if (h.signals < 0 || kin_open(&h.kin) < 0 || prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) {
        tell(&h, HELPER_FAILED, SG_AGENT_STAGE_FORK, (uint32_t)errno);
        return;
    }
    h.leader = child_start(c);
    close_command_ends(c);
    if (h.leader < 0) {
        tell(&h, HELPER_FAILED, c->stage, (uint32_t)c->error);
        return;
    }
    tell(&h, HELPER_STARTED, (uint32_t)h.leader, 0);
    if (h.leader == 0) {
        tell(&h, HELPER_EXITED, 126, 0);
        return;
    }
    serve(&h);
}

pid_t helper_start(struct child *c, int *ctl)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return -errno;
    pid_t pid = fork();
    if (pid == 0) {
        helper_main(c, pair[1]);
        _exit(0);
    }
    int e = errno;
    close(pair[1]);
    if (pid < 0) {
        close(pair[0]);
        return -e;
    }
    *ctl = pair[0];
    return pid;
}
