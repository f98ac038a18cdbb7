/* The reverse proxy: one request relayed to a service inside a sandbox, streamed both ways.
 *
 * Path and query, on the path form those behind /leases/{id}/proxy/{port}, pass byte for byte ("" becomes "/"). The service sees Host
 * 127.0.0.1:PORT, and in X-Forwarded-For, -Proto, -Host and -Prefix how it was reached; what the client says
 * in such headers is dropped, as are hop-by-hop headers and every valid token of ours. An application's own
 * Authorization arrives. Redirects are passed on; a Location that points at the service itself gets the
 * public prefix. What would command the gateway before us (X-Accel-Redirect and the like) is cut. On the path form a sandbox shares the API's origin, so cookies and other origin-wide headers are cut,
 * documents are sandboxed and service workers refused. On the host form it has one of its own: its cookies pass, for its own host only, and our own
 * never reaches it; a page of its own shows as Origin what Host says. Trailers pass to the service, and to clients that take
 * them. When a client asks for another protocol (WebSocket and others, but not HTTP/2) and the service agrees with
 * 101, bytes go both ways from then on, unlooked at.
 * Answers made here rather than by the service carry Sandgate-Error: CODE.
 */
#ifndef SG_PROXY_H
#define SG_PROXY_H

#include "http/request.h"
#include "http/upstream.h"

struct sg_auth;

struct sg_proxy_args {
    struct sg_upstreams *upstreams;
    struct sg_auth
        *auth; /* knows the service's own tokens, which never reach a sandbox; NULL: there are none */
    const char
        *public_url; /* how clients reach the server, without a trailing slash; NULL: plain HTTP, no path */
    bool own_origin;    /* host form: the Host header is the service's alone */
    const char *rest;   /* what the service gets; NULL: what is behind the route's prefix */
    struct sg_upstream_target target; /* as sg_upstream_start() takes it */
    /* Once, when the relay is over: answered says whether the service answered. Any thread. */
    void (*over)(void *arg, bool answered);
    void *over_arg;
};

/* Takes over the request: answers it, now or later. In a handler of the route whose tail is "rest", or later
 * with a reference. */
void sg_proxy(struct sg_request *r, const struct sg_proxy_args *args);

/* An error answer of our own on the proxy's routes: problem+json with Sandgate-Error. */
void sg_proxy_refuse(struct sg_request *r, const struct sg_error *err);

#endif
