/* sandgate-agent: the first process of a local sandbox. One thread, one epoll, nothing that waits: it starts
 * commands, reaps whatever dies in its PID namespace, opens files and sockets for the server and hands over
 * the descriptors. No byte of a command or a file passes through it. The server is trusted by it; the
 * sandbox's commands are not. */
#include "backends/agent/inside.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/agent/await.h"
#include "backends/agent/relay.h"
#include "backends/agent/setup.h"

#define PACKETS_PER_TURN 64
#define LEAVE_MS 10000

/* The descriptors of one request: whoever takes one sets it to -1, the rest is closed. */
struct passed {
    int fds[SG_AGENT_FDS_MAX];
    unsigned n;
};

static void close_passed(struct passed *p)
{
    for (unsigned i = 0; i < p->n; i++)
        if (p->fds[i] >= 0)
            close(p->fds[i]);
    p->n = 0;
}

/* ---- commands ---- */

static struct live *live_find(struct agent *a, uint64_t id)
{
    for (size_t i = 0; i < SG_AGENT_EXECS_MAX; i++)
        if (a->live[i].id == id)
            return &a->live[i];
    return NULL;
}

static void send_failed(struct agent *a, uint64_t id, uint32_t stage, int error)
{
    struct sg_agent_msg m = {.type = SG_AGENT_SPAWN_FAILED, .id = id};
    m.u.failed.stage = stage;
    m.u.failed.error = (uint32_t)error;
    out_send(a, &m, -1);
}

static void send_started(struct agent *a, uint64_t id, uint32_t pid)
{
    struct sg_agent_msg m = {.type = SG_AGENT_STARTED, .id = id};
    m.u.started.pid = pid;
    out_send(a, &m, -1);
}

static void send_exited(struct agent *a, uint64_t id, uint32_t status, uint32_t signo)
{
    struct sg_agent_msg m = {.type = SG_AGENT_EXITED, .id = id};
    m.u.exited.status = signo == 0 ? status & 255 : 0;
    m.u.exited.signal = signo;
    out_send(a, &m, -1);
}

static void start_direct(struct agent *a, struct live *slot, uint64_t id, struct child *c)
{
    pid_t pid = child_start(c);
    if (pid < 0) {
        send_failed(a, id, c->stage, c->error);
        return;
    }
    send_started(a, id, (uint32_t)pid);
    if (pid == 0)
        send_exited(a, id, 126, 0);
    else
        *slot = (struct live){.id = id, .pid = pid, .ctl = -1};
}

static void start_helped(struct agent *a, struct live *slot, uint64_t id, struct child *c)
{
    int ctl = -1;
    pid_t pid = helper_start(c, &ctl);
    if (pid < 0) {
        send_failed(a, id, SG_AGENT_STAGE_FORK, -pid);
        return;
    }
    *slot = (struct live){.id = id, .pid = pid, .ctl = ctl};
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = 2 + (uint64_t)(slot - a->live)};
    if (epoll_ctl(a->epoll, EPOLL_CTL_ADD, ctl, &e) != 0)
        _exit(EXIT_PROTOCOL);
}

/* The strings of a SPAWN that did not fit its packet. They stay mapped until the caller unmaps them. */
static char *read_blob(int fd, size_t len)
{
    char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    for (size_t at = 0; at < len;) {
        ssize_t n = pread(fd, p + at, len - at, (off_t)at);
        if (n <= 0)
            _exit(EXIT_PROTOCOL);
        at += (size_t)n;
    }
    return p;
}

static void take_passed(struct child *c, const struct sg_agent_msg *m, const struct passed *p)
{
    uint32_t flags = m->u.spawn.flags;
    unsigned at = (flags & SG_AGENT_SPAWN_BLOB) ? 1 : 0;
    if (flags & SG_AGENT_SPAWN_STDIN)
        c->in = p->fds[at++];
    if (!(flags & SG_AGENT_SPAWN_TTY)) {
        c->out = p->fds[at++];
        c->err = p->fds[at++];
    }
    if (flags & SG_AGENT_SPAWN_GROUP) {
        c->group = p->fds[at++];
        c->group_procs = p->fds[at++];
    }
    while (at < p->n)
        c->tasks[c->n_tasks++] = p->fds[at++];
}

static void start(struct agent *a, const struct sg_agent_msg *m, struct child *c)
{
    struct live *slot = live_find(a, 0);
    if (slot == NULL)
        send_failed(a, m->id, SG_AGENT_STAGE_FORK, EAGAIN);
    else if (m->u.spawn.flags & SG_AGENT_SPAWN_HELPER)
        start_helped(a, slot, m->id, c);
    else
        start_direct(a, slot, m->id, c);
}

/* The server has the master before anything runs: what then goes wrong goes wrong for nobody. */
static void start_on_terminal(struct agent *a, const struct sg_agent_msg *m, struct child *c)
{
    int master = -1;
    int fd = terminal_open(m->u.spawn.rows, m->u.spawn.cols, &master);
    int e = fd < 0 ? -fd : out_terminal(a, m->id, master);
    if (e != 0) {
        send_failed(a, m->id, SG_AGENT_STAGE_TTY, e);
    } else {
        c->terminal = c->in = c->out = c->err = fd;
        start(a, m, c);
    }
    if (fd >= 0)
        close(fd);
}

static void spawn_strings(struct agent *a, const struct sg_agent_msg *m, struct passed *p,
                          const char *strings)
{
    struct child c = {.argv = a->argv + 1, .envp = a->envp, .in = a->null, .terminal = -1, .group = -1};
    if (sg_agent_spawn_split(strings, m->u.spawn.len, m->u.spawn.argc, m->u.spawn.envc, &c.cwd, c.argv,
                             c.envp) != 0)
        _exit(EXIT_PROTOCOL);
    take_passed(&c, m, p);
    c.set_user = a->isolation == SG_AGENT_UID;
    c.uid = a->command_uid;
    c.gid = a->command_gid;
    c.files = a->command_files;
    c.goes_first = a->listen_dir != NULL;
    if (m->u.spawn.flags & SG_AGENT_SPAWN_TTY)
        start_on_terminal(a, m, &c);
    else
        start(a, m, &c);
}

static void spawn(struct agent *a, const struct sg_agent_msg *m, struct passed *p)
{
    size_t len = m->u.spawn.len;
    if (!(m->u.spawn.flags & SG_AGENT_SPAWN_BLOB)) {
        spawn_strings(a, m, p, m->u.spawn.strings);
        return;
    }
    char *blob = len == 0 ? NULL : read_blob(p->fds[0], len);
    if (blob == NULL) {
        send_failed(a, m->id, SG_AGENT_STAGE_FORK, ENOMEM);
        return;
    }
    spawn_strings(a, m, p, blob);
    munmap(blob, len);
}

static void signal_command(struct agent *a, const struct sg_agent_msg *m)
{
    struct live *l = live_find(a, m->id);
    if (l == NULL || l->ended)
        return; /* it ended while the request was on its way */
    struct helper_msg h = {.word = HELPER_SIGNAL, .a = m->u.signal.signo};
    if (l->ctl < 0)
        kill(l->pid, (int)m->u.signal.signo);
    else if (send(l->ctl, &h, sizeof h, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && m->u.signal.signo == SIGKILL)
        shutdown(l->ctl, SHUT_WR);
}

static void kill_command(struct agent *a, const struct sg_agent_msg *m)
{
    struct live *l = live_find(a, m->id);
    if (l != NULL && l->ctl >= 0)
        shutdown(l->ctl, SHUT_WR);
    else if (l != NULL)
        kill(l->pid, SIGKILL);
}

/* ---- helpers and workers ---- */

/* Passes on what a helper has said so far. */
static void hear_helper(struct agent *a, struct live *l)
{
    struct helper_msg h;
    for (;;) {
        ssize_t n = recv(l->ctl, &h, sizeof h, MSG_DONTWAIT);
        if (n != (ssize_t)sizeof h)
            break;
        if (h.word == HELPER_STARTED)
            send_started(a, l->id, h.a);
        else if (h.word == HELPER_FAILED)
            send_failed(a, l->id, h.a, (int)h.b);
        else
            send_exited(a, l->id, h.a, h.b);
        l->ended = h.word != HELPER_STARTED;
    }
    /* Its end closed: the reaping of the process says how; do not hear of it again until then. */
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = 2 + (uint64_t)(l - a->live)};
    char more;
    if (recv(l->ctl, &more, 1, MSG_DONTWAIT | MSG_PEEK) == 0) {
        e.events = 0;
        (void)epoll_ctl(a->epoll, EPOLL_CTL_DEL, l->ctl, &e);
    }
}

void worker_run(struct agent *a, const struct sg_agent_msg *m, int fd,
                void (*job)(struct agent *a, const struct sg_agent_msg *m, int fd))
{
    struct worker *w = NULL;
    for (size_t i = 0; i < SG_AGENT_WORKERS_MAX && w == NULL; i++)
        if (a->workers[i].id == 0)
            w = &a->workers[i];
    volatile bool *speaks = w != NULL ? &a->spoke[w - a->workers] : NULL;
    if (w != NULL)
        *speaks = false;
    pid_t pid = w == NULL ? -1 : fork();
    if (pid == 0) {
        a->speaks = speaks;
        setup_worker(a);
        job(a, m, fd);
        setup_worker_flush(a);
        _exit(0);
    }
    if (pid < 0)
        out_done(a, m->id, EAGAIN);
    else
        *w = (struct worker){.id = m->id, .pid = pid};
}

static bool reaped_worker(struct agent *a, pid_t pid, int status)
{
    for (size_t i = 0; i < SG_AGENT_WORKERS_MAX; i++) {
        struct worker *w = &a->workers[i];
        if (w->id == 0 || w->pid != pid)
            continue;
        if (status != 0 && !a->spoke[i])
            out_done(a, w->id, EIO);
        w->id = 0;
        return true;
    }
    return false;
}

static void reaped_command(struct agent *a, struct live *l, int status)
{
    if (l->ctl >= 0) {
        hear_helper(a, l);
        close(l->ctl);
        if (status != 0 || !l->ended)
            _exit(EXIT_PROTOCOL); /* somebody inside killed it: its descendants are no longer known */
    } else if (WIFSIGNALED(status)) {
        send_exited(a, l->id, 0, (uint32_t)WTERMSIG(status));
    } else {
        send_exited(a, l->id, (uint32_t)WEXITSTATUS(status), 0);
    }
    l->id = 0;
}

/* Commands may stop each other; but where they have the agent's uid they may stop its helpers too, to outlive
 * a kill. */
static void stopped(struct agent *a, const struct live *l, pid_t pid)
{
    if (l != NULL && l->ctl >= 0)
        _exit(EXIT_PROTOCOL);
    for (size_t i = 0; i < SG_AGENT_WORKERS_MAX; i++)
        if (a->workers[i].id != 0 && a->workers[i].pid == pid)
            kill(pid, SIGKILL);
}

static void reap(struct agent *a)
{
    struct signalfd_siginfo info;
    while (read(a->signals, &info, sizeof info) > 0)
        ;
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG | WUNTRACED | __WALL);
        if (pid <= 0)
            return;
        struct live *l = NULL;
        for (size_t i = 0; i < SG_AGENT_EXECS_MAX && l == NULL; i++)
            if (a->live[i].id != 0 && a->live[i].pid == pid)
                l = &a->live[i];
        if (WIFSTOPPED(status))
            stopped(a, l, pid);
        else if (l != NULL)
            reaped_command(a, l, status);
        else
            (void)reaped_worker(a, pid, status); /* else an orphan */
    }
}

/* ---- requests ---- */

static void open_socket(struct agent *a, const struct sg_agent_msg *m);

/* Outside of a namespace the port may be anybody's. In a worker, since that is a long look around. */
static void open_own_socket(struct agent *a, const struct sg_agent_msg *m, int fd)
{
    (void)fd;
    if (listen_is_ours((int)m->u.socket.family, (uint16_t)m->u.socket.port, getppid()))
        open_socket(a, m);
    else
        out_done(a, m->id, ECONNREFUSED);
}

static void open_socket(struct agent *a, const struct sg_agent_msg *m)
{
    int family = (int)m->u.socket.family;
    int fd = -1;
    if (family != AF_INET && family != AF_INET6)
        errno = EAFNOSUPPORT;
    else
        fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (fd < 0) {
        out_done(a, m->id, errno);
        return;
    }
    struct sg_agent_msg done = {.type = SG_AGENT_DONE, .id = m->id};
    out_send(a, &done, fd);
}

static void file_request(struct agent *a, const struct sg_agent_msg *m, struct passed *p)
{
    const char *second = m->u.file.path2;
    bool text = m->type == SG_AGENT_LIST || (m->type == SG_AGENT_LINK && (m->u.file.flags & SG_AGENT_SYMBOLIC));
    if (m->u.file.path[0] != '/' || (second != NULL && !text && second[0] != '/' && second[0] != '\0')) {
        out_done(a, m->id, EINVAL);
        return;
    }
    switch (m->type) {
    case SG_AGENT_OPEN:
        files_open(a, m);
        break;
    case SG_AGENT_COMMIT:
        files_commit(a, m, p->fds[0]);
        p->fds[0] = -1;
        break;
    case SG_AGENT_STAT:
        files_stat(a, m);
        break;
    case SG_AGENT_LIST:
        files_list(a, m, p->fds[0]);
        p->fds[0] = -1;
        break;
    case SG_AGENT_MKDIR:
        files_mkdir(a, m);
        break;
    case SG_AGENT_RENAME:
        files_rename(a, m);
        break;
    case SG_AGENT_LINK:
        tree_link(a, m);
        break;
    case SG_AGENT_ATTRIBUTES:
        tree_attributes(a, m);
        break;
    case SG_AGENT_MERGE:
        tree_merge(a, m);
        break;
    default:
        files_remove(a, m);
        break;
    }
}

static void dispatch(struct agent *a, const struct sg_agent_msg *m, struct passed *p)
{
    switch (m->type) {
    case SG_AGENT_SPAWN:
        spawn(a, m, p);
        break;
    case SG_AGENT_SIGNAL:
        signal_command(a, m);
        break;
    case SG_AGENT_KILL:
        kill_command(a, m);
        break;
    case SG_AGENT_SOCKET:
        if (a->isolation == SG_AGENT_HOST)
            worker_run(a, m, -1, open_own_socket);
        else
            open_socket(a, m);
        break;
    case SG_AGENT_LISTEN:
        ear_open(a, m);
        break;
    case SG_AGENT_RESIZE:
    case SG_AGENT_ACCEPT:
        _exit(EXIT_PROTOCOL); /* for relays */
    default:
        file_request(a, m, p);
        break;
    }
}

static void collect(struct msghdr *h, struct passed *p)
{
    p->n = 0;
    memset(p->fds, 0xff, sizeof p->fds); /* -1 */
    for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c != NULL; c = CMSG_NXTHDR(h, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n && p->n < SG_AGENT_FDS_MAX; i++)
            memcpy(&p->fds[p->n++], CMSG_DATA(c) + i * sizeof(int), sizeof(int));
    }
}

/* End of file is the order to exit. In a sandbox this is the first process, so everything goes. Outside of one it is done here, in case
 * that the keeper is gone too. */
static void __attribute__((noreturn)) leave(struct agent *a, int code)
{
    struct kin kin;
    if (a->isolation == SG_AGENT_HOST && kin_open(&kin) == 0)
        kin_kill_all(&kin, a->signals, LEAVE_MS, NULL, NULL);
    _exit(code);
}

/* One request; false when there is none. */
static bool receive(struct agent *a)
{
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int) * SG_AGENT_FDS_MAX)];
    } control;
    struct iovec iov = {.iov_base = a->packet, .iov_len = sizeof a->packet};
    struct msghdr h = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t n = recvmsg(a->sock, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0 && a->listen >= 0) {
        await_server(a, reap);
        setup_hello(a);
        return false;
    }
    if (n <= 0)
        leave(a, n == 0 || errno == ECONNRESET ? EXIT_EOF : EXIT_PROTOCOL);
    struct passed p;
    struct sg_agent_msg m;
    collect(&h, &p);
    if ((h.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
        sg_agent_decode(a->packet, (size_t)n, p.n, SG_AGENT_FROM_SERVER, &m) != 0)
        _exit(EXIT_PROTOCOL);
    dispatch(a, &m, &p);
    close_passed(&p);
    return true;
}

static void serve(struct agent *a)
{
    struct epoll_event events[32];
    for (;;) {
        int n = epoll_wait(a->epoll, events, (int)(sizeof events / sizeof events[0]), -1);
        for (int i = 0; i < n; i++) {
            uint64_t what = events[i].data.u64;
            if (what == 1) {
                reap(a);
            } else if (what == AGENT_NEXT) {
                await_server(a, reap); /* the old one may never be heard of again */
                setup_hello(a);
            } else if (what >= 2) {
                struct live *l = &a->live[what - 2];
                if (l->id != 0 && l->ctl >= 0) /* else reaped earlier in this turn */
                    hear_helper(a, l);
            } else {
                if (events[i].events & EPOLLOUT)
                    out_flush(a);
                for (int k = 0; k < PACKETS_PER_TURN && receive(a); k++)
                    ;
            }
        }
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "keeper") == 0)
        return keeper_main(argc, argv);
    if (argc > 1 && strcmp(argv[1], "relay") == 0)
        return relay_main(argc, argv);
    static struct agent a; /* half a megabyte of tables that are touched as they are used */
    setup(&a, argc, argv);
    if (a.listen >= 0)
        await_server(&a, reap);
    setup_hello(&a);
    serve(&a);
    return 0;
}
