/* The route table: one array of these is the truth for paths, methods and operation ids. Pure; any thread.
 *
 * A path is literal segments and `{name}` parameters: "/leases/{id}/exec". A last `{rest...}` matches the rest of the
 * raw target path, of any length, without decoding it. Every path also answers under /v1; one trailing slash
 * is ignored (a path with a tail keeps it, it belongs to the tail).
 */
#ifndef SG_ROUTER_H
#define SG_ROUTER_H

#include "base/error.h"

struct sg_request;

#define SG_ROUTE_PARAMS_MAX 8
#define SG_ROUTE_QUERY_MAX 16

enum sg_body_kind {
    SG_BODY_NONE,          /* a body is dropped when small, refused otherwise */
    SG_BODY_JSON,          /* buffered up to max_body; must be there; Content-Type application/json or 415 */
    SG_BODY_JSON_OPTIONAL, /* likewise, and may be absent */
    SG_BODY_STREAM,        /* raw bytes through sg_req_body_pipe() */
};

enum sg_auth_need {
    SG_AUTH_NONE,   /* open, or the handler checks for itself with sg_req_authenticate() */
    SG_AUTH_TENANT, /* anybody with a valid token */
    SG_AUTH_ADMIN,  /* role admin, else 403 */
};

struct sg_route {
    const char *method; /* "GET" also serves HEAD; "*": every method, also OPTIONS */
    const char *path;
    const char *operation_id; /* as in the API description */
    enum sg_body_kind body;
    enum sg_auth_need auth;
    /* Runs once per request on a daemon thread and must not block. r is lent for the call: take a reference
     * (sg_req_ref) to answer later, from any thread. Returning without an answer and without a reference
     * is answered 500. */
    void (*handle)(struct sg_request *r, void *app);
    /* Query parameters it knows, NULL-terminated; others are 400. NULL: none. A route with a tail, or raw_query,
     * gets its query undecoded and unchecked. */
    const char *const *query;
    bool raw_query;
    /* Media types of its successful answers, NULL-terminated; a caller who takes none of them gets 406. NULL:
     * application/json. SG_ANY_TYPE, or method "*": Accept is not looked at. */
    const char *const *produces;
    bool websocket;    /* the token may come as a subprotocol, too; one in a header counts only if no page of another origin asks */
    bool always;       /* answered also while overloaded or draining (health, metrics) */
    bool watches;      /* only looks on: a stop of the server does not wait for it, it is told when everything else is done */
    uint64_t max_body; /* bytes; 0: the server's for JSON, no limit for STREAM */
};

/* Answers of the caller's own bytes, or of none, or that must come whatever a probe asks for. */
extern const char *const SG_ANY_TYPE[];

struct sg_router;

/* Routes are borrowed and must outlive the router. -1 when two routes are the same or a path is malformed. */
int sg_router_new(const struct sg_route *routes, size_t n, struct sg_router **ret, struct sg_error *err);
struct sg_router *sg_router_free(struct sg_router *rt);

struct sg_slice {
    const char *at;
    size_t len;
};

struct sg_route_match {
    const struct sg_route *route;
    size_t n_params;
    const char *names[SG_ROUTE_PARAMS_MAX];
    struct sg_slice raw[SG_ROUTE_PARAMS_MAX]; /* undecoded pieces of the path given */
};

/* Finds the route of an undecoded path. 0; -1: SG_NOT_FOUND, SG_METHOD_NOT_ALLOWED, or SG_NOT_IMPLEMENTED for a
 * method no route knows. When the path exists, allow gets "GET, HEAD, OPTIONS, ..." (else ""). OPTIONS without
 * a route of its own is 0 with m->route NULL. */
int sg_router_find(const struct sg_router *rt, const char *method, const char *path, size_t len,
                   struct sg_route_match *m, char *allow, size_t allow_size, struct sg_error *err);

#endif
