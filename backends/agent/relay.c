/* The relay's life and its connection: it holds no rights but what it has open, and nothing of it waits. */
#include "backends/agent/relay_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define IN_BYTES 65536U
#define READS_PER_TURN 16
#define PACKETS_PER_TURN 64
#define WAIT_MS 10000 /* for the agent's socket */

void relay_die(int code, const char *what)
{
    dprintf(2, "sandgate-agent: relay: %s\n", what);
    _exit(code);
}

/* ---- start ---- */

static void drop_rights(void)
{
    struct __user_cap_header_struct h = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {0};
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || syscall(SYS_capset, &h, none) != 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0)
        relay_die(EXIT_SETUP, "cannot drop its rights");
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGCHLD, SIG_IGN);
}

/* The container may have been started a moment ago. */
static void await_name(const char *dir)
{
    char path[sizeof((struct sockaddr_un *)0)->sun_path];
    int n = snprintf(path, sizeof path, "%s/%s", dir, SG_AGENT_SOCKET_NAME);
    int news = inotify_init1(IN_CLOEXEC);
    if (n < 0 || (size_t)n >= sizeof path || news < 0 || inotify_add_watch(news, dir, IN_MOVED_TO | IN_ONLYDIR) < 0)
        relay_die(EXIT_SETUP, "cannot watch the agent's directory");
    struct pollfd p = {.fd = news, .events = POLLIN};
    if (access(path, F_OK) != 0 && (poll(&p, 1, WAIT_MS) <= 0 || access(path, F_OK) != 0))
        relay_die(EXIT_SETUP, "there is no agent");
    close(news);
}

static int connect_agent(const char *dir)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct ucred peer = {0};
    socklen_t len = sizeof peer;
    await_name(dir);
    (void)snprintf(at.sun_path, sizeof at.sun_path, "%s/%s", dir, SG_AGENT_SOCKET_NAME);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&at, sizeof at) != 0)
        relay_die(EXIT_SETUP, "cannot reach the agent");
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) != 0 || peer.pid != 1 || peer.uid != 0)
        relay_die(EXIT_SETUP, "somebody else listens in the agent's place");
    return fd;
}

static int open_oom(void)
{
    int fd = open("/sys/fs/cgroup/memory.events", O_RDONLY | O_CLOEXEC);
    return fd >= 0 ? fd : open("/sys/fs/cgroup/memory/memory.oom_control", O_RDONLY | O_CLOEXEC);
}

static void watch(const struct relay *r, int op, int fd, uint32_t events, enum relay_event who)
{
    struct epoll_event e = {.events = events, .data.u64 = who};
    if (epoll_ctl(r->epoll, op, fd, &e) != 0)
        relay_die(EXIT_SETUP, "cannot watch its descriptors");
}

static void setup(struct relay *r, const char *dir)
{
    static const struct sg_mux_ops ops = {.packet = relay_take, .open = relay_open, .received = relay_received, .sent = relay_sent, .moved = relay_moved, .gone = relay_gone};
    *r = (struct relay){.agent.sock = connect_agent(dir), .ear = -1};
    drop_rights();
    r->oom = open_oom();
    r->mux = sg_mux_new(&ops, r);
    r->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (r->mux == NULL || r->epoll < 0 || fcntl(0, F_SETFL, O_NONBLOCK) != 0 || fcntl(1, F_SETFL, O_NONBLOCK) != 0)
        relay_die(EXIT_SETUP, "cannot set itself up");
    watch(r, EPOLL_CTL_ADD, 0, EPOLLIN, EVENT_IN);
    watch(r, EPOLL_CTL_ADD, 1, 0, EVENT_OUT);
    watch(r, EPOLL_CTL_ADD, r->agent.sock, EPOLLIN, EVENT_AGENT);
    watch(r, EPOLL_CTL_ADD, sg_mux_fd(r->mux), EPOLLIN, EVENT_MUX);
}

/* ---- the loop ---- */

/* While the agent takes nothing, nothing is read: what is asked for waits where it comes from. */
static bool listens(const struct relay *r)
{
    return r->agent.first == NULL && r->gate == NULL;
}

static void hear_server(struct relay *r)
{
    static char buf[IN_BYTES];
    for (int i = 0; i < READS_PER_TURN && listens(r); i++) {
        ssize_t n = read(0, buf, sizeof buf);
        if (n == 0)
            _exit(EXIT_EOF);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n < 0 || sg_mux_feed(r->mux, buf, (size_t)n) < 0)
            relay_die(EXIT_PROTOCOL, n < 0 ? "its input broke" : "the server broke the protocol");
    }
}

static void hear_agent(struct relay *r)
{
    static unsigned char buf[SG_AGENT_PACKET_MAX];
    int fds[SG_AGENT_FDS_MAX];
    unsigned n;
    for (int i = 0; i < PACKETS_PER_TURN; i++) {
        ssize_t len = sg_agent_receive(r->agent.sock, buf, sizeof buf, fds, &n);
        if (len == -EAGAIN)
            return;
        if (len <= 0 || n > 1)
            relay_die(EXIT_SETUP, len == 0 ? "the agent has ended" : "the agent broke the protocol");
        relay_tell(r, buf, (size_t)len, n == 1 ? fds[0] : -1);
    }
}

static void flush_agent(struct relay *r)
{
    int e = sg_agent_post_flush(&r->agent);
    if (e != 0 && e != EAGAIN)
        relay_die(EXIT_SETUP, "the agent has ended");
    watch(r, EPOLL_CTL_MOD, r->agent.sock, EPOLLIN | (e == EAGAIN ? EPOLLOUT : 0U), EVENT_AGENT);
    }

/* True: all of it went out. */
static bool flush_server(struct relay *r)
{
    size_t len;
    for (const char *p = sg_mux_out(r->mux, &len); len > 0; p = sg_mux_out(r->mux, &len)) {
        ssize_t n = write(1, p, len);
        if (n > 0)
            sg_mux_went(r->mux, (size_t)n);
        else if (n < 0 && errno == EAGAIN)
            return false;
        else if (n == 0 || errno != EINTR)
            relay_die(EXIT_SETUP, "its output broke");
    }
    return true;
}

static void turn(struct relay *r)
{
    bool more = true, out = true;
    for (int i = 0; i < READS_PER_TURN && more && out; i++) {
        more = sg_mux_turn(r->mux);
        out = flush_server(r);
    }
    if (sg_mux_broken(r->mux))
        relay_die(EXIT_PROTOCOL, "too much waits to be taken by the server");
    /* A pipe that takes bytes always says so: what is left to do is done then. */
    watch(r, EPOLL_CTL_MOD, 1, more || !out ? EPOLLOUT : 0U, EVENT_OUT);
    if (r->agent.first != NULL)
        flush_agent(r);
    watch(r, EPOLL_CTL_MOD, 0, listens(r) ? EPOLLIN : 0U, EVENT_IN);
}

static void handle(struct relay *r, const struct epoll_event *e)
{
    switch (e->data.u64 & 7) {
    case EVENT_IN:
        hear_server(r);
        break;
    case EVENT_AGENT:
        flush_agent(r);
        hear_agent(r);
        break;
    case EVENT_CONNECT:
        relay_connected(r, (uint32_t)(e->data.u64 >> 3));
        break;
    case EVENT_TERMINAL:
        relay_terminal_ready(r, (uint32_t)(e->data.u64 >> 3));
        break;
    case EVENT_EAR:
        relay_accept_some(r);
        break;
    case EVENT_REST:
        relay_rest_ready(r, (struct rest *)(uintptr_t)(e->data.u64 & ~7ULL));
        break;
    default:
        if ((e->data.u64 & 7) == EVENT_OUT && (e->events & EPOLLERR) != 0)
            _exit(EXIT_EOF); /* nobody reads */
        break;
    }
}

int relay_main(int argc, char **argv)
{
    struct relay r;
    struct epoll_event events[32];
    if (argc != 3 || argv[2][0] != '/')
        relay_die(EXIT_USAGE, "usage: sandgate-agent relay DIRECTORY");
    setup(&r, argv[2]);
    for (;;) {
        int wait_ms = relay_due(&r);
        turn(&r); /* also of what was due */
        int n = epoll_wait(r.epoll, events, 32, wait_ms);
        for (int i = 0; i < n; i++)
            handle(&r, &events[i]);
    }
}
