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

#define SCAN_MAX 32768U /* processes looked at in one pass; what is beyond comes in a later one */
#define STOP_PASSES 8   /* passes that only freeze, so that a bomb cannot outgrow the killing */
#define PASS_WAIT_MS 20 /* between passes, unless something dies earlier */

struct process {
    pid_t pid, parent;
    bool mine, stopped;
};

struct helper {
    int ctl, signals, proc;
    pid_t leader; /* 0: has ended */
    struct process *all;
};

/* ---- the descendants ---- */

static bool parse_stat(const char *text, struct process *p)
{
    const char *s = strrchr(text, ')'); /* the name before it may hold anything */
    if (s == NULL || s[1] != ' ' || s[2] == '\0' || s[3] != ' ')
        return false;
    p->stopped = s[2] == 'T' || s[2] == 'Z' || s[2] == 'X';
    p->parent = 0;
    for (s += 4; *s >= '0' && *s <= '9'; s++)
        p->parent = p->parent * 10 + (*s - '0');
    return true;
}

static bool read_process(struct helper *h, const char *name, struct process *p)
{
    char path[40], text[512];
    size_t n = strlen(name);
    if (n > 20)
        return false;
    memcpy(path, name, n);
    memcpy(path + n, "/stat", 6);
    p->pid = 0;
    for (const char *s = name; *s != '\0'; s++) {
        if (*s < '0' || *s > '9')
            return false;
        p->pid = p->pid * 10 + (*s - '0');
    }
    int fd = openat(h->proc, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t len = read(fd, text, sizeof text - 1);
    close(fd);
    if (len <= 0)
        return false;
    text[len] = '\0';
    return parse_stat(text, p);
}

struct dirent64_head {
    uint64_t ino;
    int64_t off;
    uint16_t reclen;
    uint8_t type;
    char name[];
};

static size_t scan(struct helper *h)
{
    char buf[8192] __attribute__((aligned(8)));
    size_t n = 0;
    lseek(h->proc, 0, SEEK_SET);
    for (;;) {
        long len = syscall(SYS_getdents64, h->proc, buf, sizeof buf);
        if (len <= 0)
            return n;
        for (long at = 0; at < len;) {
            struct dirent64_head *d = (struct dirent64_head *)(void *)(buf + at);
            at += d->reclen;
            if (n == SCAN_MAX)
                return n;
            if (read_process(h, d->name, &h->all[n]))
                n++;
        }
    }
}

/* Marks what descends from this process; the order of the list does not matter. */
static void mark(struct process *all, size_t n)
{
    pid_t self = getpid();
    bool more = true;
    for (size_t i = 0; i < n; i++)
        all[i].mine = all[i].parent == self;
    while (more) {
        more = false;
        for (size_t i = 0; i < n; i++)
            for (size_t k = 0; !all[i].mine && k < n; k++)
                if (all[k].mine && all[k].pid == all[i].parent)
                    all[i].mine = more = true;
    }
}

/* One pass over all descendants. True when a freezing pass met one that was still running. */
static bool signal_all(struct helper *h, int signo)
{
    bool running = false;
    size_t n = scan(h);
    mark(h->all, n);
    for (size_t i = 0; i < n; i++) {
        if (!h->all[i].mine || (signo == SIGSTOP && h->all[i].stopped))
            continue;
        running = true;
        kill(h->all[i].pid, signo);
    }
    return running;
}

/* ---- life ---- */

static void tell(struct helper *h, enum helper_word word, uint32_t a, uint32_t b)
{
    struct helper_msg m = {.word = word, .a = a, .b = b};
    ssize_t n = send(h->ctl, &m, sizeof m, MSG_NOSIGNAL);
    (void)n; /* an agent that is gone took this process along */
}

/* True when no descendant is left. */
static bool reap(struct helper *h)
{
    for (;;) {
        int st;
        pid_t pid = waitpid(-1, &st, WNOHANG | __WALL);
        if (pid < 0)
            return errno == ECHILD;
        if (pid == 0)
            return false;
        if (pid != h->leader)
            continue;
        h->leader = 0;
        if (WIFSIGNALED(st))
            tell(h, HELPER_EXITED, 0, (uint32_t)WTERMSIG(st));
        else
            tell(h, HELPER_EXITED, (uint32_t)WEXITSTATUS(st), 0);
    }
}

static void drain_signals(struct helper *h)
{
    struct signalfd_siginfo info;
    while (read(h->signals, &info, sizeof info) > 0)
        ;
}

static void kill_all(struct helper *h)
{
    for (int pass = 0; !reap(h); pass++) {
        drain_signals(h);
        if (pass < STOP_PASSES && signal_all(h, SIGSTOP))
            continue;
        pass = STOP_PASSES;
        signal_all(h, SIGKILL);
        struct pollfd p = {.fd = h->signals, .events = POLLIN};
        poll(&p, 1, PASS_WAIT_MS);
    }
}

static void serve(struct helper *h)
{
    while (!reap(h)) {
        struct pollfd p[2] = {{.fd = h->signals, .events = POLLIN}, {.fd = h->ctl, .events = POLLIN}};
        if (poll(p, 2, -1) < 0)
            continue;
        drain_signals(h);
        if (p[1].revents == 0)
            continue;
        struct helper_msg m;
        ssize_t n = recv(h->ctl, &m, sizeof m, MSG_DONTWAIT);
        if (n == 0) {
            kill_all(h);
            return;
        }
        if (n == (ssize_t)sizeof m && m.word == HELPER_SIGNAL && h->leader > 0)
            kill(h->leader, (int)m.a);
    }
}

/* Keeps only what the command needs and the socket. */
static void close_rest(struct child *c, int *ctl)
{
    int keep[4 + SG_AGENT_TASKS_MAX] = {c->in, c->out, c->err, *ctl};
    size_t n = 4;
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
    close(c->out);
    close(c->err);
    for (unsigned i = 0; i < c->n_tasks; i++)
        close(c->tasks[i]);
}

static void helper_main(struct child *c, int ctl)
{
    static struct process all[SCAN_MAX];
    struct helper h = {.ctl = ctl, .all = all};
    close_rest(c, &h.ctl);
    sigset_t chld;
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    h.signals = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK);
    h.proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (h.signals < 0 || h.proc < 0 || prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) {
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
