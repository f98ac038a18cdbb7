/* An agent that its servers come to: the first process of a container, which outlives them.
 *
 * It listens in a directory that is only its own. What an old server had begun and not finished is ended; what its commands left in the
 * background lives on, under nobody's name. */
#include "backends/agent/await.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define BACKLOG 8

static int64_t now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_BOOTTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* It gets its name once it listens: who sees the name can connect. The name stays: an agent that finds it there is in a container that has
 * ended and was started once more, without the files and processes that its lease knows of. */
int await_listen(const char *dir)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char name[sizeof at.sun_path];
    int n = snprintf(at.sun_path, sizeof at.sun_path, "%s/.new", dir);
    int m = snprintf(name, sizeof name, "%s/%s", dir, SG_AGENT_SOCKET_NAME);
    if (n < 0 || m < 0 || (size_t)n >= sizeof at.sun_path || (size_t)m >= sizeof name)
        return -ENAMETOOLONG;
    if (access(name, F_OK) == 0)
        return -EEXIST;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    (void)unlink(at.sun_path);
    /* The directory keeps everybody else away from it. */
    if (bind(fd, (const struct sockaddr *)&at, sizeof at) != 0 || chmod(at.sun_path, 0666) != 0 || listen(fd, BACKLOG) != 0 ||
        rename(at.sun_path, name) != 0) {
        int e = errno;
        close(fd);
        return -e;
    }
    return fd;
}

/* Somebody outside of the PID namespace? Whoever is inside has a number here. A relay is inside, and of the user that no command is. */
static bool from_outside(const struct agent *a, int fd)
{
    struct ucred peer;
    socklen_t len = sizeof peer;
    bool known = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && len == sizeof peer;
    return known && (a->relayed ? peer.uid == 0 : peer.pid == 0);
}

static void forget_server(struct agent *a)
{
    if (a->sock >= 0) {
        struct epoll_event e = {0};
        (void)epoll_ctl(a->epoll, EPOLL_CTL_DEL, a->sock, &e); /* workers have it open, too */
        close(a->sock);
        a->sock = -1;
    }
    for (size_t i = 0; i < a->queue_len; i++) {
        struct out_packet *p = &a->queue[(a->queue_head + i) % SG_AGENT_QUEUE_MAX];
        if (p->fd >= 0)
            close(p->fd);
    }
    a->queue_len = a->queue_head = a->queue_fds = 0;
}

static void disown(struct agent *a)
{
    for (size_t i = 0; i < SG_AGENT_EXECS_MAX; i++) {
        struct live *l = &a->live[i];
        if (l->id == 0)
            continue;
        l->id = SG_AGENT_NOBODYS;
        if (!l->ended && l->ctl >= 0)
            shutdown(l->ctl, SHUT_WR);
        else if (!l->ended)
            kill(l->pid, SIGKILL);
    }
    for (size_t i = 0; i < SG_AGENT_WORKERS_MAX; i++) {
        if (a->workers[i].id == 0)
            continue;
        a->workers[i].id = SG_AGENT_NOBODYS;
        kill(a->workers[i].pid, SIGKILL);
    }
}

/* False: fd is still the caller's. */
static bool take_server(struct agent *a, int fd)
{
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = 0};
    if (fd != AGENT_SOCK) { /* which is free but for the first server */
        if (dup3(fd, AGENT_SOCK, O_CLOEXEC) < 0)
            return false;
        close(fd);
    }
    if (epoll_ctl(a->epoll, EPOLL_CTL_ADD, AGENT_SOCK, &e) != 0)
        _exit(EXIT_SETUP);
    a->sock = AGENT_SOCK;
    return true;
}

void await_server(struct agent *a, void (*reap)(struct agent *a))
{
    forget_server(a);
    disown(a);
    for (int64_t until = now_ms() + a->grace_ms;;) {
        struct pollfd p[2] = {{.fd = a->listen, .events = POLLIN}, {.fd = a->signals, .events = POLLIN}};
        int64_t left = until - now_ms();
        if (left <= 0)
            _exit(EXIT_EOF); /* nobody came: the container ends */
        (void)poll(p, 2, left < 1000000 ? (int)left : 1000000);
        if (p[1].revents != 0)
            reap(a);
        int fd = p[0].revents != 0 ? accept4(a->listen, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (fd < 0)
            continue;
        if (from_outside(a, fd) && take_server(a, fd))
            return;
        close(fd);
    }
}
