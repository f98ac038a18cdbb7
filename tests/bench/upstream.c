/* The service behind the proxies: answers GET /small with 64 bytes and anything else with 100 MB, over
 * keep-alive, one thread. Listens on 127.0.0.1:PORT; prints "ready" once it does. Static, so that it runs
 * inside a sandbox as it does outside. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define BIG_BYTES ((size_t)100 * 1000 * 1000)

struct client {
    int fd;
    size_t have;
    size_t left; /* of a big body */
    char head[8192];
};

static char piece[256 * 1024];

static _Noreturn void die(const char *what)
{
    perror(what);
    exit(1);
}

static void want(int ep, struct client *c, uint32_t events, int op)
{
    struct epoll_event e = {.events = events, .data.ptr = c};
    if (epoll_ctl(ep, op, c->fd, &e) < 0)
        die("epoll_ctl");
}

static void drop(struct client *c)
{
    close(c->fd);
    free(c);
}

static bool send_rest(int ep, struct client *c)
{
    while (c->left > 0) {
        ssize_t n = send(c->fd, piece, c->left < sizeof piece ? c->left : sizeof piece, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) {
            want(ep, c, EPOLLOUT, EPOLL_CTL_MOD);
            return true;
        }
        if (n <= 0)
            return false;
        c->left -= (size_t)n;
        if (c->left == 0)
            want(ep, c, EPOLLIN, EPOLL_CTL_MOD);
    }
    return true;
}

static bool answer(int ep, struct client *c)
{
    static const char small[] = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 64\r\n\r\n"
                                "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    char head[128];
    if (strncmp(c->head, "GET /small ", 11) == 0)
        return send(c->fd, small, sizeof small - 1, MSG_NOSIGNAL) == (ssize_t)(sizeof small - 1);
    int n = snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", BIG_BYTES);
    if (send(c->fd, head, (size_t)n, MSG_NOSIGNAL | MSG_MORE) != n)
        return false;
    c->left = BIG_BYTES;
    return send_rest(ep, c);
}

static bool receive(int ep, struct client *c)
{
    ssize_t n = recv(c->fd, c->head + c->have, sizeof c->head - 1 - c->have, 0);
    if (n < 0 && errno == EAGAIN)
        return true;
    if (n <= 0)
        return false;
    c->have += (size_t)n;
    c->head[c->have] = '\0';
    if (!strstr(c->head, "\r\n\r\n"))
        return c->have < sizeof c->head - 1;
    c->have = 0;
    return answer(ep, c);
}

static int listen_at(int port)
{
    int one = 1;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, 512) < 0)
        die("listen");
    return fd;
}

static void accept_one(int ep, int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return;
    struct client *c = calloc(1, sizeof *c);
    if (!c)
        die("calloc");
    c->fd = fd;
    want(ep, c, EPOLLIN, EPOLL_CTL_ADD);
}

int main(int argc, char **argv)
{
    struct epoll_event ready[64];
    int listener = listen_at(argc > 1 ? atoi(argv[1]) : 0);
    int ep = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event e = {.events = EPOLLIN};
    if (ep < 0 || epoll_ctl(ep, EPOLL_CTL_ADD, listener, &e) < 0)
        die("epoll");
    memset(piece, 'x', sizeof piece);
    puts("ready");
    fflush(stdout);
    for (;;) {
        int n = epoll_wait(ep, ready, 64, -1);
        for (int i = 0; i < n; i++) {
            struct client *c = ready[i].data.ptr;
            if (!c)
                accept_one(ep, listener);
            else if (!(c->left ? send_rest(ep, c) : receive(ep, c)))
                drop(c);
        }
    }
}
