/* Packets to the server: sent at once when the socket takes them, else kept in a bounded ring. A server that
 * does not read is broken, so an overflow ends the agent, and the sandbox with it. */
#include "backends/agent/inside.h"
#include "backends/agent/packets.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* A worker that is killed right here may have answered: rather no answer than a second one. */
static int put(struct agent *a, const void *data, size_t len, int fd)
{
    if (a->speaks != NULL)
        *a->speaks = true;
    int e = sg_agent_transmit(a->sock, data, len, &fd, fd >= 0 ? 1 : 0);
    if (a->speaks != NULL && e != 0)
        *a->speaks = false;
    return e;
}

static void watch(struct agent *a, bool writable)
{
    struct epoll_event e = {.events = EPOLLIN | (writable ? EPOLLOUT : 0U), .data.u64 = 0};
    (void)epoll_ctl(a->epoll, EPOLL_CTL_MOD, a->sock, &e);
}

/* ... and another one may come? */
static bool server_gone(const struct agent *a, int e)
{
    return a->listen >= 0 && (e == EPIPE || e == ECONNRESET);
}

static void enqueue(struct agent *a, const void *data, size_t len, int fd)
{
    if (a->queue_len == SG_AGENT_QUEUE_MAX || (fd >= 0 && a->queue_fds == SG_AGENT_FDS_IN_FLIGHT_MAX))
        _exit(EXIT_PROTOCOL);
    struct out_packet *p = &a->queue[(a->queue_head + a->queue_len) % SG_AGENT_QUEUE_MAX];
    memcpy(p->data, data, len);
    p->len = len;
    p->fd = fd;
    if (a->queue_len++ == 0)
        watch(a, true);
    if (fd >= 0)
        a->queue_fds++;
}

/* False: too many descriptors are in flight for this user. */
static bool send_or_queue(struct agent *a, struct sg_agent_msg *m, int fd)
{
    unsigned char data[OUT_PACKET_MAX];
    m->nfds = fd >= 0 ? 1 : 0;
    size_t len = sg_agent_encode(m, data, sizeof data);
    if (len == 0)
        _exit(EXIT_PROTOCOL);
    bool nobody = a->sock < 0 || m->id == SG_AGENT_NOBODYS;
    int e = nobody ? 0 : a->queue_len > 0 ? EAGAIN : put(a, data, len, fd);
    if (e == EAGAIN) {
        enqueue(a, data, len, fd);
        return true;
    }
    if (fd >= 0)
        close(fd);
    if (server_gone(a, e))
        return true; /* the end of file comes next */
    if (e != 0 && e != ETOOMANYREFS)
        _exit(e == EPIPE || e == ECONNRESET ? EXIT_EOF : EXIT_PROTOCOL);
    return e == 0;
}

void out_send(struct agent *a, struct sg_agent_msg *m, int fd)
{
    if (send_or_queue(a, m, fd))
        return;
    if (m->type != SG_AGENT_DONE)
        _exit(EXIT_PROTOCOL);
    out_done(a, m->id, EMFILE);
}

int out_terminal(struct agent *a, uint64_t id, int fd)
{
    struct sg_agent_msg m = {.type = SG_AGENT_TERMINAL, .id = id};
    return send_or_queue(a, &m, fd) ? 0 : EMFILE;
}

void out_flush(struct agent *a)
{
    while (a->queue_len > 0) {
        struct out_packet *p = &a->queue[a->queue_head];
        int e = put(a, p->data, p->len, p->fd);
        if (e == EAGAIN || e == ETOOMANYREFS || server_gone(a, e))
            return;
        if (e != 0)
            _exit(e == EPIPE || e == ECONNRESET ? EXIT_EOF : EXIT_PROTOCOL);
        if (p->fd >= 0) {
            close(p->fd);
            a->queue_fds--;
        }
        a->queue_head = (a->queue_head + 1) % SG_AGENT_QUEUE_MAX;
        a->queue_len--;
    }
    watch(a, false);
}

void out_done(struct agent *a, uint64_t id, int error)
{
    struct sg_agent_msg m = {.type = SG_AGENT_DONE, .id = id};
    m.u.done.error = (uint32_t)error;
    out_send(a, &m, -1);
}
