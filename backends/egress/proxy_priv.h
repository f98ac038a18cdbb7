/* Between proxy.c (who may connect where) and relay.c (bytes). Reactor thread throughout. */
#ifndef SG_EGRESS_PROXY_PRIV_H
#define SG_EGRESS_PROXY_PRIV_H

#include "backends/egress/head.h"
#include "backends/egress/proxy.h"
#include "backends/egress/resolve.h"

#define WAY_BYTES ((size_t)32 * 1024) /* at least SG_EGRESS_HEAD_MAX */

struct sg_egress_hub {
    struct sg_reactor *reactor;
    struct sg_resolver *resolver;
    unsigned open, open_max; /* connections of all sandboxes */
};

/* The lookups of one sandbox that are under way: so many at once, that others have their turn. They may outlive its proxy. */
struct lookups {
    unsigned refs, n;
    struct sg_egress_proxy *p; /* NULL: stopped */
};

struct sg_egress_proxy {
    struct sg_egress_proxy_args a;
    struct sg_watch listener;
    struct sg_timer pause; /* no descriptors: until it is tried again */
    struct conn *conns;
    unsigned n;
    struct lookups *lookups; /* one reference */
    int64_t told_until_ms; /* log lines given away in advance: until then none is left */
    uint64_t untold;
};

/* One direction. */
struct way {
    struct sg_watch *from, *to;
    char *buf;
    size_t off, len; /* what has been read and not been sent */
    bool eof;        /* nothing more is read */
    bool ended;      /* and the other side has been told, or need not be */
};

enum conn_state { CONN_HEAD, CONN_RESOLVE, CONN_CONNECT, CONN_RELAY, CONN_LINGER };

struct conn {
    unsigned refs; /* its own until the end; one of a lookup under way. Reactor thread */
    struct sg_egress_proxy *p; /* NULL: over */
    struct sg_egress_hub *e;
    struct conn *prev, *next;
    enum conn_state state;
    struct sg_watch client, server; /* their fds are the sockets */
    struct sg_timer timer;
    int64_t active_ms;
    struct way up, down; /* to the server, to the client */
    size_t scanned;
    struct sg_egress_head head;
    struct sg_buf out; /* the head for the server */
    struct sg_egress_chunks chunks;
    uint64_t left; /* of a body of known length */
    size_t lingered;
    bool heard; /* the server has said something */
    struct lookups *looking; /* its lookup is under way, one reference; a CONN_RESOLVE without waits for its turn */

    struct sg_task resolved_task;
    struct sg_resolved found; /* the worker's until the task */
    size_t at;                /* the next address to try */
};

/* Ends it, whatever it is doing. */
void conn_end(struct conn *c);
/* Says what became of the request and closes soon. detail: for people. */
void conn_answer(struct conn *c, enum sg_egress_outcome why, const char *detail);

/* relay.c */
/* The server is connected: what has been read goes there, and so on until the end. */
void relay_start(struct conn *c);
void relay_ready(struct conn *c);
/* Sends what there is (e.g. an answer) and closes when the client does, or soon. */
void relay_linger(struct conn *c);
void relay_linger_ready(struct conn *c);
/* CONN_RELAY: too long without a byte? Else sets the timer again. */
void relay_timer(struct conn *c);

#endif
