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

struct sg_slot_info {
    char name[80]; /* "POOL-INDEX" */
    enum sg_slot_state state;
    uint64_t generation; /* sandboxes built in this slot so far */
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
