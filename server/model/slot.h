/* What an operator sees of local pools and their slots: plain values. */
#ifndef SG_SLOT_H
#define SG_SLOT_H

#include "model/sandbox.h"

enum sg_slot_state {
    SG_SLOT_EMPTY,      /* nothing built yet, or drained */
    SG_SLOT_STARTING,   /* first sandbox is being built */
    SG_SLOT_READY,      /* a fresh sandbox waits for a lease */
    SG_SLOT_LEASED,     /* a lease has it */
    SG_SLOT_RELEASING,  /* the lease ended, what it ran is being killed */
    SG_SLOT_RESETTING,  /* nothing runs; waiting for old descriptors, then rebuilt */
    SG_SLOT_RESTARTING, /* the sandbox died unleased and is rebuilt */
    SG_SLOT_FAILED,     /* repeated failures; tried again slowly */
    SG_SLOT_DEAD,       /* the pool has ended */
    SG_SLOT_LOST,       /* the sandbox died under its lease, which has not been released yet */
};
#define SG_SLOT_STATES 10

/* "EMPTY", "STARTING", ... Borrowed static text. */
const char *sg_slot_state_name(enum sg_slot_state s);

/* What happens to slots, for logs and figures. */
enum sg_slot_event_kind {
    SG_SLOT_BUILT,        /* a sandbox is ready for its lease */
    SG_SLOT_BUILD_FAILED, /* it could not be made; tried again later */
    SG_SLOT_GAVE_UP,      /* the slot is FAILED now */
    SG_SLOT_RECOVERED,    /* ... and works again */
    SG_SLOT_DIED,         /* a sandbox died while it waited for a lease */
    SG_SLOT_TAKEN,        /* ... while a lease had it, or an operator took it away: the lease is lost */
    SG_SLOT_RELEASED,     /* a lease let go of it */
    SG_SLOT_RECYCLED,     /* an operator threw it away while it waited */
};
#define SG_SLOT_EVENTS 8

/* "built", "build_failed", "failed", "recovered", "died", "lost", "released", "recycled". Borrowed static text. */
const char *sg_slot_event_name(enum sg_slot_event_kind k);

struct sg_slot_event {
    enum sg_slot_event_kind kind;
    const char *pool;
    const char *slot;
    uint64_t generation;
    const char *lease_id;       /* "" without one */
    const struct sg_error *err; /* why, or NULL */
};

/* What became of a request to the proxy of a sandbox with restricted egress. */
enum sg_egress_outcome {
    SG_EGRESS_ALLOWED,             /* and connected */
    SG_EGRESS_HOST_NOT_ALLOWED,    /* no rule names the host */
    SG_EGRESS_PORT_NOT_ALLOWED,    /* ... with that port */
    SG_EGRESS_ADDRESS_NOT_ALLOWED, /* the name leads to an address that is not public, or the server's own */
    SG_EGRESS_MALFORMED,           /* no request that could be read in one way only */
    SG_EGRESS_TOO_LARGE,           /* its head */
    SG_EGRESS_TOO_MANY,            /* connections, lookups */
    SG_EGRESS_TOO_SLOW,            /* the sandbox, with its request */
    SG_EGRESS_NAME_NOT_FOUND,
    SG_EGRESS_UNREACHABLE,
    SG_EGRESS_TIMED_OUT,           /* nobody answered out there */
};
#define SG_EGRESS_OUTCOMES 11

/* "allowed", "host_not_allowed", ... Borrowed static text. */
const char *sg_egress_outcome_name(enum sg_egress_outcome o);

/* Sandboxes of a backend without pools that wait for somebody: how many there are to be, and how many are ready. */
struct sg_warm_figures {
    unsigned size, ready;
};

/* What the proxies of one pool, or of a backend without pools, have done since the start. */
struct sg_egress_figures {
    uint64_t outcomes[SG_EGRESS_OUTCOMES]; /* requests */
    uint64_t bytes_out, bytes_in;          /* through them, as sandboxes see it */
    int64_t open;                          /* connections of sandboxes now */
};

/* A refusal, for the log. */
struct sg_egress_event {
    enum sg_egress_outcome why;
    const char *target; /* host:port, or what was wrong with a malformed one */
    uint64_t untold;    /* refusals since the last one that was told */
    const char *backend;
    const char *pool; /* of a local one; else NULL */
    const char *slot; /* or what else the backend calls the sandbox */
    uint64_t generation; /* of the slot */
    const char *lease_id; /* "" without one */
};

struct sg_slot_info {
    char name[80]; /* "POOL-INDEX" */
    enum sg_slot_state state;
    uint64_t generation; /* sandboxes built in this slot so far */
    bool draining;            /* gets no new lease */
    char lease_id[SG_ID_MAX]; /* "" without a lease */
    int64_t uptime_ms;        /* of the present sandbox, 0: none */
    uint64_t open_fds;        /* who in the server has descriptors of its sandbox open: the pool and the agent's client
                               * themselves, each file and connection; after its end 0 or 1 */
    char last_error[256];     /* "" when there was none */
};

struct sg_slot_pool_info {
    char name[64];
    enum sg_pool_mode mode;
    bool draining;
    size_t waiters;
    uint64_t events[SG_SLOT_EVENTS]; /* since the start, by kind */
    enum sg_egress egress;
    struct sg_egress_figures proxies; /* of restricted egress */
    struct sg_slot_info *slots; /* by index */
    size_t n;
};

struct sg_slot_report {
    struct sg_slot_pool_info *pools; /* in the order of the configuration; the first is the default pool */
    size_t n;
};
/* Frees what the report holds and zeroes it. */
void sg_slot_report_finish(struct sg_slot_report *r);

#endif
