/* The reverse proxy: one request relayed to a service inside a sandbox, streamed both ways.
 *
 * Path and query behind /leases/{id}/proxy/{port} pass byte for byte. Hop-by-hop headers, the service's own credentials and
 * untrusted forwarding headers do not. Answers made here rather than by the service carry Sandgate-Error: CODE.
 */
#ifndef SG_PROXY_H
#define SG_PROXY_H

#include "http/request.h"
#include "http/upstream.h"

struct sg_proxy_args {
    struct sg_upstreams *upstreams;
    struct sg_upstream_target target; /* as sg_upstream_start() takes it */
    /* Once, when the relay is over: answered says whether the service answered. Any thread. */
    void (*over)(void *arg, bool answered);
    void *over_arg;
};

/* Takes over the request: answers it, now or later. In a handler of the route whose tail is "rest", or later with a reference. */
void sg_proxy(struct sg_request *r, const struct sg_proxy_args *args);

/* An error answer of our own on the proxy's routes: problem+json with Sandgate-Error. */
void sg_proxy_refuse(struct sg_request *r, const struct sg_error *err);

#endif
