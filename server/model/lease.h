/* A lease: one caller's hold on one sandbox. Plain values, no I/O. What was asked for (the terms) never
 * changes and is shared by reference count; where the lease stands now is a small struct that is copied
 * freely. */
#ifndef SG_MODEL_LEASE_H
#define SG_MODEL_LEASE_H

#include "base/hash.h"
#include "model/sandbox.h"

enum sg_lease_state {
    SG_LEASE_CREATING,
    SG_LEASE_READY,
    SG_LEASE_RELEASING,
    SG_LEASE_TERMINATED,
    SG_LEASE_FAILED,
    SG_LEASE_EXPIRED,
    SG_LEASE_LOST,
};
#define SG_LEASE_STATE_COUNT 7

const char *sg_lease_state_name(enum sg_lease_state s);
bool sg_lease_state_parse(const char *s, enum sg_lease_state *ret);
/* terminated, failed, expired, lost: nothing follows. */
bool sg_lease_state_ended(enum sg_lease_state s);
/* The one table of legal steps. */
bool sg_lease_state_may_become(enum sg_lease_state from, enum sg_lease_state to);

/* What was asked for. Filled by one thread, then immutable. */
struct sg_lease_terms {
    _Atomic int refs;
    char *tenant;
    char *trajectory_id;              /* or NULL */
    char *idempotency_key;            /* or NULL */
    char request_hash[SG_SHA256_HEX]; /* of the request that made it: equal means the same request */
    char *local_pool;                 /* or NULL */
    char *image;                      /* or NULL */
    enum sg_mode mode;
    char *root;    /* where commands start, absolute; NULL: /workspace */
    struct sg_env env; /* merged: manifest, pool, lease */
    struct sg_service_port *services;
    size_t n_services;
    int64_t timeout_ms;      /* > 0, effective */
    int64_t idle_timeout_ms; /* 0: none */
    int64_t price_uh;        /* micro-dollars that an hour of it costs; 0: nothing, or not known */
};

#define SG_PRICE_MAX INT64_C(1000000000000) /* micro-dollars an hour */
/* What so long costs at that price, rounded up; micro-dollars. */
int64_t sg_price_of(int64_t price_uh, int64_t ms);
/* What a lease that has ended has cost: from its creation until then, or until its time was over; nothing without a sandbox. */
struct sg_lease;
int64_t sg_lease_cost(const struct sg_lease *l);

struct sg_lease_terms *sg_lease_terms_new(const char *tenant);
struct sg_lease_terms *sg_lease_terms_ref(struct sg_lease_terms *t);
struct sg_lease_terms *sg_lease_terms_unref(struct sg_lease_terms *t); /* NULL-safe, returns NULL */

struct sg_lease {
    char id[SG_ID_MAX]; /* "lease_..." */
    struct sg_lease_terms *terms;
    enum sg_lease_state state;
    char reason[160];    /* why it is in this state: a stable word, or "word: detail"; "" while all is well */
    char provider[64];   /* "" until chosen */
    char sandbox_id[64]; /* "" until there is one */
    unsigned caps;
    struct json_t *metadata;        /* object or NULL; never changed once set */
    char receipt_id[SG_SHA256_HEX]; /* "" until sealed */
    int64_t created_us;             /* wall clock */
    int64_t expires_us;             /* 0 while creating */
    int64_t ended_us;               /* 0 while not ended */
};

/* dst (not initialised before) shares terms and metadata with src. */
void sg_lease_copy(struct sg_lease *dst, const struct sg_lease *src);
/* Drops what it shares and zeroes it. */
void sg_lease_finish(struct sg_lease *l);

#endif
