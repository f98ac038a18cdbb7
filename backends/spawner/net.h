/* Open egress: slirp4netns joins a slot's own network to the outside, as an ordinary process of the machine that makes connections on the
 * sandbox's behalf. It has the uid of the slot's agent, no capabilities, a system call filter, and the spawner's small root.
 *
 * What it would reach of this machine is kept away from it twice: host loopback is off, and the slot's routes to the machine's own
 * addresses, to link-local ones (the metadata of clouds) and to multicast are closed before the sandbox can send anything.
 */
#ifndef SG_SPAWNER_NET_H
#define SG_SPAWNER_NET_H

#include "base/error.h"

#include <sys/types.h>

/* Inside: where it answers for the name servers of the host. */
#define SG_NET_RESOLV_CONF "nameserver 10.0.2.3\n"

struct sg_net {
    const char *program; /* slirp4netns, absolute */
    const char *resolv;  /* a file that shows the host's name servers, or NULL */
    bool root_server;
    uint32_t uid; /* the agent's, under a root server */
    pid_t parent;
    int netns;    /* of the slot */
    int ready_fd; /* gets a byte when the network is up; both CLOEXEC */
    int error_fd; /* what it says, not blocking */
};

/* Never returns: becomes the helper, or says why not on error_fd and exits. */
_Noreturn void sg_net_child(const struct sg_net *n);

/* In the spawner: can helpers get a network device here? uid: as which (0: our own). SG_UNAVAILABLE says what is missing. */
int sg_net_check(uint32_t uid, struct sg_error *err);

/* ---- net_routes.c ---- */

#define SG_NET_CLOSED_MAX 4096U

/* IPv4 networks, in network byte order. */
struct sg_net_closed {
    struct sg_net_range {
        uint32_t address;
        unsigned bits;
    } ranges[SG_NET_CLOSED_MAX];
    size_t n;
};

/* What no sandbox may reach: the addresses that this network namespace's interfaces have now, link-local, multicast and reserved ones. 0, or
 * -errno; too many are an error. */
int sg_net_closed_find(struct sg_net_closed *c);
/* Makes unreachable routes to all of them in the caller's network namespace. 0 or -errno. */
int sg_net_closed_set(const struct sg_net_closed *c);

#endif
