/* sandgate-agent as a keeper: keeper.h tells what that is. One thread, one poll. */
#include "backends/agent/keeper.h"

#include "backends/agent/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define END_MS 10000

struct kept {
    uint64_t id; /* 0: free entry */
    pid_t pid;   /* 0: has died; then GONE is owed */
    int32_t status;
};

struct keeper {
    int sock, signals, self;
    bool set_user;
    uid_t uid;
    gid_t gid;
    gid_t groups[SG_KEEPER_GROUPS_MAX];
    size_t n_groups;
    struct kin kin;
    struct kept kept[SG_KEEPER_AGENTS_MAX];
    bool sweeping; /* something may be left of an agent that has died */
    struct kin_calm calm;
    bool calming;
    bool blocked; /* the server does not read */
};

static void __attribute__((noreturn)) die(int code, const char *what)
{
    dprintf(2, "sandgate-agent: keeper: %s\n", what);
    _exit(code);
}

/* ---- start ---- */

static bool take_number(const char **s, unsigned *ret)
{
    unsigned v = 0;
    const char *p = *s;
    for (; *p >= '0' && *p <= '9' && v < 400000000U; p++)
        v = v * 10 + (unsigned)(*p - '0');
    bool ok = p != *s && (*p == '\0' || *p == ',');
    *s = *p == ',' ? p + 1 : p;
    *ret = v;
    return ok;
}

static bool parse_groups(struct keeper *k, const char *s)
{
    while (*s != '\0') {
        unsigned g;
        if (k->n_groups == SG_KEEPER_GROUPS_MAX || !take_number(&s, &g))
            return false;
        k->groups[k->n_groups++] = g;
    }
    return true;
}

static void parse(struct keeper *k, int argc, char **argv)
{
    unsigned fd, uid, gid;
    const char *a = argc > 2 ? argv[2] : "", *u = argc > 3 ? argv[3] : "", *g = argc > 4 ? argv[4] : "";
    bool ok = (argc == 3 || argc == 6) && take_number(&a, &fd) && fd > 2;
    if (ok && argc == 6) {
        ok = take_number(&u, &uid) && take_number(&g, &gid) && uid > 0 && gid > 0 && parse_groups(k, argv[5]);
        k->set_user = true;
        k->uid = ok ? uid : 0;
        k->gid = ok ? gid : 0;
    }
    if (!ok)
        die(EXIT_USAGE, "usage: sandgate-agent keeper FD [UID GID GROUPS]");
    k->sock = (int)fd;
}

static void prepare(struct keeper *k)
{
    sigset_t all, chld;
    for (int s = 1; s <= 64; s++)
        if (s != SIGKILL && s != SIGSTOP)
            signal(s, SIG_DFL);
    sigfillset(&all);
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    (void)fcntl(k->sock, F_SETFD, FD_CLOEXEC);
    (void)fcntl(k->sock + 1, F_SETFD, FD_CLOEXEC);
    syscall(SYS_close_range, (unsigned)k->sock + 2U, ~0U, 0U);
    k->self = open("/proc/self/exe", O_PATH | O_CLOEXEC);
    k->signals = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK);
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0 || prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0 ||
        sigprocmask(SIG_SETMASK, &all, NULL) != 0 || k->self < 0 || k->signals < 0 || kin_open(&k->kin) < 0 || chdir("/") != 0)
        die(EXIT_SETUP, "cannot set up");
    setsid(); /* no terminal, no group of the server's */
}

/* ---- agents ---- */

static struct kept *find(struct keeper *k, uint64_t id)
{
    for (size_t i = 0; i < SG_KEEPER_AGENTS_MAX; i++)
        if (k->kept[i].id == id)
            return &k->kept[i];
    return NULL;
}

/* In the new process. */
static void __attribute__((noreturn)) become_agent(struct keeper *k, int sock, int root)
{
    char name[] = "sandgate-agent", mode[] = "host", fd[16], dir[16];
    char *argv[] = {name, mode, fd, dir, NULL}, *envp[] = {NULL};
    snprintf(fd, sizeof fd, "%d", sock);
    snprintf(dir, sizeof dir, "%d", root);
    setsid();
    if (k->set_user && (setgroups(k->n_groups, k->groups) != 0 || setresgid(k->gid, k->gid, k->gid) != 0 ||
                        setresuid(k->uid, k->uid, k->uid) != 0))
        _exit(EXIT_SETUP);
    if (fcntl(sock, F_SETFD, 0) == 0 && fcntl(root, F_SETFD, 0) == 0)
        syscall(SYS_execveat, k->self, "", argv, envp, AT_EMPTY_PATH);
    _exit(EXIT_SETUP);
}

/* Again, if one is under way already: but what there is for git ends when it did. */
static void begin_sweep(struct keeper *k)
{
    k->calm = (struct kin_calm){.git_ms = k->sweeping ? k->calm.git_ms : 0};
    k->calming = k->sweeping = true;
}

static void start(struct keeper *k, uint64_t id, int sock, int root)
{
    struct kept *e = find(k, 0);
    if (e == NULL || id == 0 || find(k, id) != NULL)
        die(EXIT_PROTOCOL, "an agent too many");
    *e = (struct kept){.id = id, .pid = fork()};
    if (e->pid == 0)
        become_agent(k, sock, root);
    if (e->pid < 0) {
        *e = (struct kept){.id = id, .status = errno};
        begin_sweep(k);
    }
}

static void reaped(void *arg, pid_t pid, int status)
{
    struct keeper *k = arg;
    for (size_t i = 0; i < SG_KEEPER_AGENTS_MAX; i++) {
        struct kept *e = &k->kept[i];
        if (e->id == 0 || e->pid != pid)
            continue;
        e->pid = 0;
        e->status = WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SETUP ? ENOEXEC : 0;
        begin_sweep(k);
    }
}

/* ---- what they leave ---- */

static size_t living(struct keeper *k, pid_t pids[SG_KEEPER_AGENTS_MAX])
{
    size_t n = 0;
    for (size_t i = 0; i < SG_KEEPER_AGENTS_MAX; i++)
        if (k->kept[i].id != 0 && k->kept[i].pid > 0)
            pids[n++] = k->kept[i].pid;
    return n;
}

/* Everything below this process that is not a living agent's. True when nothing is left of it. */
static bool sweep(struct keeper *k)
{
    static pid_t spare[SG_KEEPER_AGENTS_MAX];
    size_t n = living(k, spare);
    k->calming = k->calming && kin_calm(&k->kin, &k->calm, spare, n);
    while (k->calming && !k->calm.git)
        k->calming = kin_calm(&k->kin, &k->calm, spare, n);
    return !k->calming && !kin_kill(&k->kin, spare, n);
}

static void report(struct keeper *k)
{
    k->blocked = false;
    for (size_t i = 0; i < SG_KEEPER_AGENTS_MAX; i++) {
        struct kept *e = &k->kept[i];
        struct sg_keeper_msg m = {.magic = SG_KEEPER_MAGIC, .op = SG_KEEPER_GONE, .id = e->id, .status = e->status};
        if (e->id == 0 || e->pid > 0)
            continue;
        if (send(k->sock, &m, sizeof m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
            k->blocked = errno == EAGAIN; /* else the end of file is what comes next */
            return;
        }
        e->id = 0;
    }
}

static void __attribute__((noreturn)) end(struct keeper *k)
{
    static pid_t pids[SG_KEEPER_AGENTS_MAX];
    size_t n = living(k, pids);
    for (size_t i = 0; i < n; i++)
        kill(pids[i], SIGKILL);
    kin_kill_all(&k->kin, k->signals, END_MS, NULL, NULL);
    _exit(EXIT_EOF);
}

/* ---- requests ---- */

static size_t take_descriptors(struct msghdr *h, int fds[2])
{
    size_t n = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c != NULL; c = CMSG_NXTHDR(h, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t got = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < got && n < 2; i++)
            memcpy(&fds[n++], CMSG_DATA(c) + i * sizeof(int), sizeof(int));
    }
    return n;
}

static bool receive(struct keeper *k)
{
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int) * 2)];
    } control;
    struct sg_keeper_msg m;
    struct iovec iov = {.iov_base = &m, .iov_len = sizeof m};
    struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    int fds[2] = {-1, -1};
    ssize_t n = recvmsg(k->sock, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0)
        end(k);
    size_t n_fds = take_descriptors(&h, fds);
    if (n != (ssize_t)sizeof m || m.magic != SG_KEEPER_MAGIC || (h.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
        n_fds != (m.op == SG_KEEPER_START ? 2U : 0U))
        end(k);
    struct kept *e = m.op == SG_KEEPER_KILL && m.id != 0 ? find(k, m.id) : NULL;
    if (m.op == SG_KEEPER_START)
        start(k, m.id, fds[0], fds[1]);
    else if (e != NULL && e->pid > 0)
        kill(e->pid, SIGKILL);
    for (size_t i = 0; i < n_fds; i++)
        close(fds[i]);
    return true;
}

int keeper_main(int argc, char **argv)
{
    static struct keeper k;
    parse(&k, argc, argv);
    prepare(&k);
    for (;;) {
        struct pollfd p[2] = {{.fd = k.signals, .events = POLLIN}, {.fd = k.sock, .events = (short)(k.blocked ? POLLIN | POLLOUT : POLLIN)}};
        struct signalfd_siginfo info;
        (void)poll(p, 2, k.sweeping ? KIN_PASS_WAIT_MS : -1);
        while (read(k.signals, &info, sizeof info) > 0)
            ;
        (void)kin_reap(reaped, &k);
        while (receive(&k))
            ;
        if (k.sweeping && sweep(&k)) {
            k.sweeping = false;
            report(&k);
        } else if (k.blocked) {
            report(&k);
        }
    }
}
