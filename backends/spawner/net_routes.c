/* Routes that lead nowhere, by rtnetlink. */
#include "backends/spawner/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"

static int closed_add(struct sg_net_closed *c, uint32_t address, unsigned bits)
{
    for (size_t i = 0; i < c->n; i++) {
        if (c->ranges[i].address == address && c->ranges[i].bits == bits) {
            return 0;
        }
    }
    if (c->n == SG_NET_CLOSED_MAX) {
        return -E2BIG;
    }
    c->ranges[c->n++] = (struct sg_net_range){address, bits};
    return 0;
}

int sg_net_closed_find(struct sg_net_closed *c)
{
    struct ifaddrs *all = NULL;
    c->n = 0;
    int r = closed_add(c, htonl(0xa9fe0000U), 16); /* 169.254.0.0 */
    r = r == 0 ? closed_add(c, htonl(0xe0000000U), 3) : r;
    if (r == 0 && getifaddrs(&all) < 0) {
        return -errno;
    }
    for (const struct ifaddrs *i = all; i != NULL && r == 0; i = i->ifa_next) {
        struct sockaddr_in in;
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET) {
            continue;
        }
        memcpy(&in, i->ifa_addr, sizeof in);
        if (ntohl(in.sin_addr.s_addr) >> 24 != 127) { /* those are the sandbox's own */
            r = closed_add(c, in.sin_addr.s_addr, 32);
        }
    }
    if (all != NULL) {
        freeifaddrs(all);
    }
    return r;
}

struct request {
    struct nlmsghdr head;
    struct rtmsg route;
    struct rtattr attr;
    uint32_t address;
};

/* One at a time, so that the kernel's answer is about this one. */
static int close_range_of(int sock, const struct sg_net_range *g)
{
    struct request q = {.head = {.nlmsg_len = sizeof q,
                                 .nlmsg_type = RTM_NEWROUTE,
                                 .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE},
                        .route = {.rtm_family = AF_INET,
                                  .rtm_dst_len = (unsigned char)g->bits,
                                  .rtm_table = RT_TABLE_MAIN,
                                  .rtm_protocol = RTPROT_STATIC,
                                  .rtm_scope = RT_SCOPE_UNIVERSE,
                                  .rtm_type = RTN_UNREACHABLE},
                        .attr = {.rta_len = RTA_LENGTH(sizeof(uint32_t)), .rta_type = RTA_DST},
                        .address = g->address};
    struct {
        struct nlmsghdr head;
        struct nlmsgerr error;
        char rest[256];
    } answer = {0};
    if (send(sock, &q, sizeof q, 0) != (ssize_t)sizeof q) {
        return -errno;
    }
    ssize_t n = recv(sock, &answer, sizeof answer, 0);
    if (n < (ssize_t)(sizeof answer.head + sizeof answer.error.error) || answer.head.nlmsg_type != NLMSG_ERROR) {
        return n < 0 ? -errno : -EPROTO;
    }
    return answer.error.error;
}

int sg_net_closed_set(const struct sg_net_closed *c)
{
    sg_cleanup(sg_close_p) int sock = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    int r = sock < 0 ? -errno : 0;
    for (size_t i = 0; i < c->n && r == 0; i++) {
        r = close_range_of(sock, &c->ranges[i]);
    }
    return r;
}
