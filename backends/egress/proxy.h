/* The way out of a sandbox with restricted egress: an HTTP proxy that listens on the sandbox's own loopback and runs on the server's reactor.
 *
 * It takes CONNECT HOST:PORT, and requests with an absolute http:// target, one per connection. What the allow-list names is resolved and
 * connected to here, to the address that was checked; everything else is answered with a problem document that says why. The
 * sandbox never learns addresses, and has no other route.
 *
 * The sandbox is hostile: heads are bounded and read strictly, every step has a deadline, connections are counted.
 */
#ifndef SG_EGRESS_PROXY_H
#define SG_EGRESS_PROXY_H

#include <stdatomic.h>

#include "backends/egress/rules.h"
#include "base/hold.h"
#include "base/reactor.h"
#include "model/slot.h"

/* Of the sandbox's loopback: above the ports that connections get by themselves. */
#define SG_EGRESS_PORT 61080
#define SG_EGRESS_URL "http://127.0.0.1:61080"

/* What all proxies of a server share. */
struct sg_egress_hub;
int sg_egress_hub_new(struct sg_reactor *reactor, struct sg_egress_hub **ret, struct sg_error *err);
/* Blocks for lookups under way. Not on the reactor thread, after all proxies have been stopped. NULL-safe, returns NULL. */
struct sg_egress_hub *sg_egress_hub_free(struct sg_egress_hub *e);

/* What they have done so far, e.g. all of a pool. Written on the reactor thread, read anywhere. */
struct sg_egress_counters {
    _Atomic uint64_t outcomes[SG_EGRESS_OUTCOMES]; /* requests by what became of them */
    _Atomic uint64_t bytes_out, bytes_in;          /* bodies and tunnels, as the sandbox sees it */
    _Atomic int64_t open;                          /* connections of sandboxes now */
};

void sg_egress_counters_read(const struct sg_egress_counters *c, struct sg_egress_figures *ret); /* any thread */

struct sg_egress_proxy_args {
    struct sg_egress_hub *egress;
    const struct sg_egress_rules *rules; /* outlives the proxy */
    struct sg_egress_counters *counters; /* likewise */
    int fd;               /* listens; taken over, also on failure. -1: connections are brought by sg_egress_proxy_take() */
    struct sg_hold *hold; /* a reference, taken over, also on failure: until the last connection from inside is closed */
    /* A request was refused; of many in a short time not all are told, but how many were not. Reactor thread. */
    void (*refused)(void *arg, enum sg_egress_outcome why, const char *target, uint64_t untold);
    /* It no longer listens. At most once. */
    void (*lost)(void *arg, const struct sg_error *why);
    void *arg;
};

/* Reactor thread, like its end. */
struct sg_egress_proxy;
int sg_egress_proxy_start(const struct sg_egress_proxy_args *a, struct sg_egress_proxy **ret, struct sg_error *err);
/* A connection from inside: a stream socket that does not block, taken over. Of too many it is closed. */
void sg_egress_proxy_take(struct sg_egress_proxy *p, int fd);
/* Every connection is closed when this returns, and no callback comes any more. NULL-safe, returns NULL. */
struct sg_egress_proxy *sg_egress_proxy_stop(struct sg_egress_proxy *p);

#endif
