/* Connections from inside to the port that the server listens on: as many are taken as it has asked for, the others wait in the kernel's queue. */
#include "backends/agent/relay_priv.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define PAUSE_MS 100 /* no descriptors */

static void answer(struct relay *r, uint64_t id)
{
    unsigned char data[OUT_PACKET_MAX];
    struct sg_agent_msg m = {.type = SG_AGENT_DONE, .id = id, .nfds = 1, .u.done = {.text = ""}};
    sg_mux_send_packet(r->mux, NULL, 0, data, sg_agent_encode(&m, data, sizeof data));
}

void relay_listen(struct relay *r, struct sg_agent_msg *m)
{
    (void)ask_new(r, m->id, ASK_LISTEN);
    relay_ask(r, m, NULL, 0);
}

void relay_listens(struct relay *r, struct sg_agent_msg *m, int fd)
{
    struct epoll_event e = {.data.u64 = EVENT_EAR};
    if (m->u.done.error == 0 && fd < 0)
        relay_die(EXIT_PROTOCOL, "the agent broke the protocol");
    relay_done(r, m->id, (int)m->u.done.error);
    if (fd < 0)
        return;
    if (r->ear >= 0)
        close(r->ear);
    r->ear = fd;
    if (epoll_ctl(r->epoll, EPOLL_CTL_ADD, fd, &e) != 0)
        relay_die(EXIT_SETUP, "cannot watch its descriptors");
    relay_accept_some(r);
}

void relay_accept_forget(struct relay *r, struct ask *k)
{
    DL_DELETE(r->accepts, k);
    ask_free(r, k);
}

void relay_accept(struct relay *r, struct ask *k, uint32_t name)
{
    (void)ask_add(r, k, name, SG_MUX_BOTH);
    DL_APPEND(r->accepts, k);
    relay_accept_some(r);
}

static void give(struct relay *r, struct ask *k, int fd)
{
    struct sg_mux_channel *c = sg_mux_find(r->mux, k->names[0]); /* else k were forgotten */
    const int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    answer(r, k->id);
    relay_accept_forget(r, k);
    if (sg_mux_attach(r->mux, c, fd) < 0)
        sg_mux_abort(r->mux, c);
}

void relay_accept_some(struct relay *r)
{
    struct epoll_event e = {.events = EPOLLIN | EPOLLONESHOT, .data.u64 = EVENT_EAR};
    while (r->ear >= 0 && r->accepts != NULL && r->ear_due_ms == 0) {
        int fd = accept4(r->ear, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            give(r, r->accepts, fd);
        } else if (errno == EAGAIN) {
            if (epoll_ctl(r->epoll, EPOLL_CTL_MOD, r->ear, &e) != 0)
                relay_die(EXIT_SETUP, "cannot watch its descriptors");
            return;
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            r->ear_due_ms = relay_now_ms() + PAUSE_MS;
        } else if (errno == EINVAL || errno == EBADF || errno == ENOTSOCK) {
            relay_die(EXIT_SETUP, "its listening socket broke");
        }
    }
}
