/* Descendants of this process, wherever they moved, by /proc: this process is a subreaper (or a first process), so that whatever is orphaned
 * below it comes to it, and the chain of parents from any of them ends here. */
#include "backends/agent/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SCAN_MAX 32768U /* processes looked at in one pass; what is beyond comes in a later one */
#define TORN_MAX 10     /* scans in a row that saw a process, but not its parent any more */

enum side { UNKNOWN, OURS, OTHERS };

struct process {
    pid_t pid, parent;
    unsigned char side;
    bool stopped, dead, git;
};

/* ---- reading ---- */

static bool parse_stat(const char *text, struct process *p)
{
    const char *s = strrchr(text, ')'); /* the name before it may hold anything */
    if (s == NULL || s[1] != ' ' || s[2] == '\0' || s[3] != ' ')
        return false;
    const char *name = strchr(text, '(');
    p->git = name != NULL && strncmp(name, "(git", 4) == 0;
    p->dead = s[2] == 'Z' || s[2] == 'X';
    p->stopped = s[2] == 'T' || p->dead;
    p->parent = 0;
    for (s += 4; *s >= '0' && *s <= '9'; s++)
        p->parent = p->parent * 10 + (*s - '0');
    return true;
}

static bool read_process(struct kin *k, const char *name, struct process *p)
{
    char path[40], text[512];
    size_t n = strlen(name);
    if (n > 20)
        return false;
    memcpy(path, name, n);
    memcpy(path + n, "/stat", 6);
    *p = (struct process){.pid = 0};
    for (const char *s = name; *s != '\0'; s++) {
        if (*s < '0' || *s > '9')
            return false;
        p->pid = p->pid * 10 + (*s - '0');
    }
    int fd = openat(k->proc, path, O_RDONLY | O_CLOEXEC);
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

static size_t scan(struct kin *k)
{
    char buf[8192] __attribute__((aligned(8)));
    size_t n = 0;
    lseek(k->proc, 0, SEEK_SET);
    for (;;) {
        long len = syscall(SYS_getdents64, k->proc, buf, sizeof buf);
        if (len <= 0)
            return n;
        for (long at = 0; at < len;) {
            struct dirent64_head *d = (struct dirent64_head *)(void *)(buf + at);
            at += d->reclen;
            if (n == SCAN_MAX)
                return n;
            if (read_process(k, d->name, &k->all[n]))
                n++;
        }
    }
}

static int64_t now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- sorting out ---- */

static int by_pid(const void *a, const void *b)
{
    pid_t x = ((const struct process *)a)->pid, y = ((const struct process *)b)->pid;
    return x < y ? -1 : x > y;
}

static struct process *find(struct kin *k, size_t n, pid_t pid)
{
    struct process key = {.pid = pid};
    return bsearch(&key, k->all, n, sizeof key, by_pid);
}

/* Follows the parents of p up to one whose side is known, and marks all on the way. False: the chain is broken, somebody in it has died
 * while the others were read. */
static bool mark(struct kin *k, size_t n, struct process *p, pid_t self)
{
    struct process *top = p;
    enum side side = UNKNOWN;
    bool whole = true;
    for (size_t steps = 0; side == UNKNOWN && steps <= n; steps++) {
        struct process *parent = find(k, n, top->parent);
        if (top->parent == self)
            side = OURS;
        else if (parent == NULL || parent == top)
            side = OTHERS;
        else if (parent->side != UNKNOWN)
            side = parent->side;
        whole = top->parent == 0 || top->parent == self || parent != NULL;
        top = parent;
    }
    while (p != top && p != NULL && p->side == UNKNOWN) {
        p->side = (unsigned char)(side == UNKNOWN ? OTHERS : side);
        p = find(k, n, p->parent);
    }
    return whole;
}

/* All of them, n in number; false when the picture is torn. */
static bool look(struct kin *k, const pid_t *spare, size_t n_spare, size_t *n)
{
    bool whole = true;
    pid_t self = k->top != 0 ? k->top : getpid();
    *n = scan(k);
    qsort(k->all, *n, sizeof *k->all, by_pid);
    for (size_t i = 0; i < n_spare; i++) {
        struct process *p = find(k, *n, spare[i]);
        if (p != NULL)
            p->side = OTHERS;
    }
    for (size_t i = 0; i < *n; i++)
        if (k->all[i].pid != self && k->all[i].side == UNKNOWN)
            whole = mark(k, *n, &k->all[i], self) && whole;
    return whole || *n == SCAN_MAX;
}

int kin_open(struct kin *k)
{
    static struct process all[SCAN_MAX];
    k->all = all;
    k->top = 0;
    k->proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return k->proc < 0 ? -1 : 0;
}

bool kin_each(struct kin *k, bool (*fn)(void *arg, pid_t pid), void *arg)
{
    size_t n = 0;
    (void)look(k, NULL, 0, &n);
    for (size_t p = 0; p < n; p++)
        if (k->all[p].side == OURS && fn(arg, k->all[p].pid))
            return true;
    return false;
}

/* Some wait for those that they began, so these go on. */
static bool is_child_of_git(struct kin *k, size_t n, const struct process *p)
{
    const struct process *parent = find(k, n, p->parent);
    return parent != NULL && parent->side == OURS && parent->git && !parent->dead;
}

bool kin_calm(struct kin *k, struct kin_calm *c, const pid_t *spare, size_t n_spare)
{
    size_t n = 0;
    bool whole = look(k, spare, n_spare, &n), running = false;
    int64_t now = now_ms(), since_ms = c->git_ms != 0 ? now - c->git_ms : 0;
    bool wait = since_ms < KIN_GIT_MS;
    c->git = false;
    for (size_t i = 0; i < n; i++) {
        const struct process *p = &k->all[i];
        if (p->side != OURS || p->dead)
            continue;
        if (wait && p->git) {
            c->git = true;
            if (since_ms >= KIN_GIT_ALONE_MS)
                kill(p->pid, SIGTERM);
            if (p->stopped)
                kill(p->pid, SIGCONT);
        } else if (!p->stopped && !(wait && is_child_of_git(k, n, p))) {
            running = true;
            kill(p->pid, SIGSTOP);
        }
    }
    if (c->git && c->git_ms == 0)
        c->git_ms = now;
    return c->git || ((running || !whole) && c->passes++ < KIN_STOP_PASSES);
}

bool kin_kill(struct kin *k, const pid_t *spare, size_t n_spare)
{
    size_t n = 0;
    bool any = false, whole = false;
    for (int i = 0; i < TORN_MAX && !any && !whole; i++) {
        whole = look(k, spare, n_spare, &n);
        for (size_t p = 0; p < n; p++) {
            if (k->all[p].side != OURS)
                continue;
            any = true;
            kill(k->all[p].pid, SIGKILL);
        }
    }
    return any;
}

/* ---- the end of all ---- */

bool kin_reap(void (*reaped)(void *arg, pid_t pid, int status), void *arg)
{
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG | __WALL);
        if (pid < 0)
            return errno == ECHILD;
        if (pid == 0)
            return false;
        if (reaped != NULL)
            reaped(arg, pid, status);
    }
}

void kin_kill_all(struct kin *k, int signals, int patience_ms, void (*reaped)(void *arg, pid_t pid, int status), void *arg)
{
    struct signalfd_siginfo info;
    struct kin_calm calm = {0};
    bool calming = true;
    while (!kin_reap(reaped, arg) && patience_ms > 0) {
        struct pollfd p = {.fd = signals, .events = POLLIN};
        while (read(signals, &info, sizeof info) > 0)
            ;
        calming = calming && kin_calm(k, &calm, NULL, 0);
        if (!calming)
            (void)kin_kill(k, NULL, 0);
        int wait_ms = calming && !calm.git ? 0 : KIN_PASS_WAIT_MS;
        if (poll(&p, 1, wait_ms) == 0)
            patience_ms -= wait_ms;
    }
}
