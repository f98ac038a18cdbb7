#include "backends/agent/packets.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct sg_agent_posted {
    struct sg_agent_posted *next;
    size_t len;
    unsigned n;
    int fds[SG_AGENT_FDS_MAX];
    unsigned char data[];
};

int sg_agent_transmit(int sock, const void *data, size_t len, const int *fds, unsigned n)
{
    struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = len};
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int) * SG_AGENT_FDS_MAX)];
    } control;
    struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n > 0) {
        memset(&control, 0, sizeof control);
        h.msg_control = &control;
        h.msg_controllen = (socklen_t)CMSG_SPACE(sizeof(int) * n);
        struct cmsghdr *c = &control.align;
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = (socklen_t)CMSG_LEN(sizeof(int) * n);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * n);
    }
    ssize_t r;
    do
        r = sendmsg(sock, &h, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (r < 0 && errno == EINTR);
    return r < 0 ? errno : 0;
}

static void close_all(const int *fds, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        close(fds[i]);
}

ssize_t sg_agent_receive(int sock, void *buf, size_t cap, int *fds, unsigned *n)
{
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int) * SG_AGENT_FDS_MAX)];
    } control;
    struct iovec iov = {.iov_base = buf, .iov_len = cap};
    struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t r;
    *n = 0;
    do
        r = recvmsg(sock, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (r < 0 && errno == EINTR);
    if (r < 0)
        return -errno;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&h); c != NULL; c = CMSG_NXTHDR(&h, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count && *n < SG_AGENT_FDS_MAX; i++)
            memcpy(&fds[(*n)++], CMSG_DATA(c) + i * sizeof(int), sizeof(int));
    }
    if ((h.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
        close_all(fds, *n);
        *n = 0;
        return -EPROTO;
    }
    return r;
}

static int keep(struct sg_agent_post *p, const void *data, size_t len, const int *fds, unsigned n)
{
    struct sg_agent_posted *k = p->waiting < SG_AGENT_POSTED_MAX ? malloc(sizeof *k + len) : NULL;
    if (k == NULL) {
        close_all(fds, n);
        return ENOBUFS;
    }
    k->next = NULL;
    k->len = len;
    k->n = n;
    if (n > 0)
        memcpy(k->fds, fds, n * sizeof *fds);
    memcpy(k->data, data, len);
    *(p->first == NULL ? &p->first : p->last) = k;
    p->last = &k->next;
    p->waiting++;
    return 0;
}

int sg_agent_post(struct sg_agent_post *p, const void *data, size_t len, const int *fds, unsigned n)
{
    int e = p->first != NULL ? EAGAIN : sg_agent_transmit(p->sock, data, len, fds, n);
    if (e == EAGAIN || e == ETOOMANYREFS)
        return keep(p, data, len, fds, n);
    close_all(fds, n);
    return e;
}

int sg_agent_post_flush(struct sg_agent_post *p)
{
    while (p->first != NULL) {
        struct sg_agent_posted *k = p->first;
        int e = sg_agent_transmit(p->sock, k->data, k->len, k->fds, k->n);
        if (e != 0)
            return e == ETOOMANYREFS ? EAGAIN : e;
        p->first = k->next;
        p->waiting--;
        close_all(k->fds, k->n);
        free(k);
    }
    return 0;
}

void sg_agent_post_finish(struct sg_agent_post *p)
{
    while (p->first != NULL) {
        struct sg_agent_posted *k = p->first;
        p->first = k->next;
        close_all(k->fds, k->n);
        free(k);
    }
    p->waiting = 0;
}
