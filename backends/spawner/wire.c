#include "backends/spawner/wire.h"

#include <errno.h>
#include <sys/socket.h>

int sg_wire_send(int sock, const void *packet, size_t size, const int *fds, unsigned n_fds)
{
    union {
        char space[CMSG_SPACE(sizeof(int) * SG_WIRE_FDS_MAX)];
        struct cmsghdr align;
    } control = {0};
    struct iovec iov = {.iov_len = size};
    memcpy(&iov.iov_base, &packet, sizeof packet); /* sendmsg does not write through it */
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n_fds > 0) {
        msg.msg_control = control.space;
        msg.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
    }
    ssize_t n;
    do {
        n = sendmsg(sock, &msg, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : 0;
}

/* Takes every descriptor that came, so that a bad packet leaks none. */
static void take_fds(struct msghdr *msg, int fds[SG_WIRE_FDS_MAX], unsigned *n_fds)
{
    *n_fds = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c != NULL; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
            if (*n_fds < SG_WIRE_FDS_MAX) {
                fds[(*n_fds)++] = fd;
            } else {
                sg_close(fd);
            }
        }
    }
}

int sg_wire_receive(int sock, void *packet, size_t size, int fds[SG_WIRE_FDS_MAX], unsigned *n_fds)
{
    union {
        char space[CMSG_SPACE(sizeof(int) * SG_WIRE_FDS_MAX)];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = packet, .iov_len = size};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.space,
                         .msg_controllen = sizeof control.space};
    ssize_t n;
    do {
        n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    *n_fds = 0;
    if (n < 0) {
        return -errno;
    }
    take_fds(&msg, fds, n_fds);
    if (n == 0) {
        return 0;
    }
    uint32_t magic;
    memcpy(&magic, packet, sizeof magic);
    bool good = (size_t)n == size && magic == SG_WIRE_MAGIC && !(msg.msg_flags & MSG_TRUNC);
    if (good && !(msg.msg_flags & MSG_CTRUNC)) {
        return 1;
    }
    for (unsigned i = 0; i < *n_fds; i++) {
        sg_close(fds[i]);
    }
    *n_fds = 0;
    return good ? 1 : -EBADMSG;
}
