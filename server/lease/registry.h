/* All leases of this server: who holds what, until when, within which limits.
 *
 * In memory: every lease that has not ended, and the most recent ended ones; older ones are read from the
 * store until retention. Thread-safe. Callbacks run without locks, on whichever thread caused them, and must
 * not block. Lock rank: the registry's one lock is taken before the store's and the reactor's, never while
 * holding any other lock of this program's lower layers.
 *
 * The life of a lease, as its owner (the service) drives it:
 *
 *   reserve -> NEW -> [intent] -> driver create -> ready  -> ... end -> on_end -> driver terminate -> ended
 *                                              \-> failed
 */
#ifndef SG_REGISTRY_H
#define SG_REGISTRY_H

#include "base/cancel.h"
#include "base/reactor.h"
#include "lease/store.h"
#include "model/lease_event.h"

struct sg_registry;
struct sg_entry; /* one lease, reference-counted */
struct sg_sandbox;

/* Why a lease ends. */
enum sg_end {
    SG_END_DELETED,  /* -> terminated */
    SG_END_SHUTDOWN, /* -> terminated, reason server_shutdown */
    SG_END_EXPIRED,  /* -> expired, reason timeout */
    SG_END_IDLE,     /* -> expired, reason idle_timeout */
    SG_END_LOST,     /* -> lost, at once */
};

struct sg_registry_config {
    struct sg_reactor *reactor;
    struct sg_store *store;
    /* How to count references of a sandbox (sg_sandbox_ref, sg_sandbox_unref). */
    struct sg_sandbox *(*sandbox_ref)(struct sg_sandbox *sb);
    struct sg_sandbox *(*sandbox_unref)(struct sg_sandbox *sb);
    /* A lease that has a sandbox ends: terminate the sandbox, then call sg_registry_ended(), exactly once.
     * Its cancel token has fired already. For leases still being created it is not called: who creates sees
     * the token. */
    void (*on_end)(void *arg, struct sg_entry *e, enum sg_end why);
    void *arg;
    size_t recent_max; /* ended leases kept in memory; 0: 4096 */
};

struct sg_registry *sg_registry_new(const struct sg_registry_config *cfg);
/* Entries that have not ended are dropped as they are. Waits for writes that are under way. No calls may be
 * running, but references on entries may outlive it. Any thread but the reactor's and the store's. NULL-safe.
 */
struct sg_registry *sg_registry_free(struct sg_registry *r);

/* ---- entries ---- */

struct sg_entry *sg_entry_ref(struct sg_entry *e);
struct sg_entry *sg_entry_unref(struct sg_entry *e); /* NULL-safe, returns NULL */
const char *sg_entry_id(const struct sg_entry *e);
/* What was asked for, borrowed; immutable. */
const struct sg_lease_terms *sg_entry_terms(const struct sg_entry *e);
/* A consistent copy of where it stands; sg_lease_finish() it. */
void sg_entry_lease(struct sg_entry *e, struct sg_lease *ret);
/* Fires with SG_CANCEL_LEASE_END when the lease begins to end; borrowed, lives as long as e. Hook execs and
 * proxied requests to it; give it to the driver's create. */
struct sg_cancel *sg_entry_cancel(struct sg_entry *e);
/* What began its end, once anything has: false before that (and for a create that failed by itself). */
bool sg_entry_end_cause(struct sg_entry *e, enum sg_end *ret);
/* Why the create failed (state failed); zeroed when it did not. sg_error_clear() it. */
void sg_entry_failure(struct sg_entry *e, struct sg_error *ret);

/* 1: *ret is one reference; -1: SG_NOT_FOUND, also for another tenant's (tenant NULL: of anyone). May read
 * the disk when the lease ended long ago. */
int sg_registry_get(struct sg_registry *r, const char *tenant, const char *id, struct sg_entry **ret,
                    struct sg_error *err);
/* Memory only: 1, or 0 when it must be looked up with sg_registry_get() on a worker. */
int sg_registry_peek(struct sg_registry *r, const char *tenant, const char *id, struct sg_entry **ret);

/* ---- creating ---- */

enum sg_reserved {
    SG_RESERVED_NEW,      /* *ret: yours to create; finish it with ready or failed */
    SG_RESERVED_SAME,     /* *ret: the lease of the same request, maybe still creating: sg_entry_wait() */
    SG_RESERVED_ANSWERED, /* *ret_answer: what was answered for this Idempotency-Key; *ret the lease if it is
                             in memory, else NULL */
};

/* What a tenant may spend on all its leases ever. */
struct sg_spend_limit {
    bool set;
    int64_t microusd;
};

struct sg_reserve {
    struct sg_lease_terms *terms; /* borrowed; the entry takes a reference */
    int64_t max_leases;           /* of the tenant, 0: none */
    struct sg_spend_limit budget; /* the whole time of this lease must fit in what is left of it */
};

/* Micro-dollars that the tenant's leases have cost, or may cost until they end. */
int64_t sg_registry_spent(struct sg_registry *r, const char *tenant);

/* Atomic: the Idempotency-Key first, then the trajectory, then the quota and the budget. Returns 0 with *ret_how; -1 with
 * SG_IDEMPOTENCY_CONFLICT, SG_TRAJECTORY_CONFLICT, SG_QUOTA_EXCEEDED (members limit, use, owner;
 * retry_after). May read the disk when the terms have an Idempotency-Key. ret_answer may be NULL when they
 * have none. */
int sg_registry_reserve(struct sg_registry *r, const struct sg_reserve *q, enum sg_reserved *ret_how,
                        struct sg_entry **ret, struct sg_stored_answer *ret_answer, struct sg_error *err);

/* Writes the lease down, durably, while it is still creating: before asking a provider whose sandboxes
 * outlive the server, and before answering 202. provider: who will be asked, or NULL. `with`: further rows
 * (the receipt) or NULL; consumed. done: as sg_store_submit; -1: not written and done is not called. */
int sg_registry_intent(struct sg_registry *r, struct sg_entry *e, const char *provider, bool outlives_server,
                       struct sg_store_op *with, const struct sg_store_done *done, struct sg_error *err);

/* What a lease that is being created is waiting for: its `metadata` until it is ready, or failed. Borrowed; the entry takes a reference. Nothing
 * is written down. */
void sg_registry_progress(struct sg_registry *r, struct sg_entry *e, struct json_t *what);

struct sg_grant {
    struct sg_sandbox *sandbox; /* the entry takes its own reference */
    const char *provider;
    const char *sandbox_id;
    unsigned caps;
    struct json_t *metadata; /* borrowed; the entry takes a reference */
    const char *receipt_id;
    bool outlives_server;
    /* The body stored for the Idempotency-Key, made from the lease as it will be answered; called only when
     * there is a key, before sg_registry_ready() returns. malloc'ed; NULL: none is stored. */
    char *(*answer)(void *arg, const struct sg_lease *l);
    void *arg;
    int answer_status;
};

/* Seals the lease: one durable transaction of the lease, `with` (the receipt; consumed, may be NULL), the
 * audit record and the stored answer; then it is ready, waiters run, and done(NULL). expires_at is now +
 * timeout. An error, returned or given to done (SG_STORE_UNAVAILABLE; SG_LEASE_GONE when the lease was ended
 * meanwhile): the lease did not become ready and the sandbox is the caller's: terminate it, then
 * sg_registry_failed(). */
int sg_registry_ready(struct sg_registry *r, struct sg_entry *e, const struct sg_grant *g,
                      struct sg_store_op *with, const struct sg_store_done *done, struct sg_error *err);

/* Nothing of it is left outside: failed (terminated when it had been ended by its caller meanwhile); the
 * quota is free, waiters run, the Idempotency-Key may be used again. `with`: further rows (the receipt of the
 * refusal), consumed, or NULL. done (may be NULL) comes once they are on the disk, or with the error that
 * kept them from it; maybe before this returns. */
void sg_registry_failed(struct sg_registry *r, struct sg_entry *e, struct sg_store_op *with,
                        const struct sg_error *why, const struct sg_store_done *done);

/* ---- life ---- */

/* max(expires_at, now + timeout), durable before done; counts as use. done may come before this returns. SG_QUOTA_EXCEEDED when the budget
 * does not allow for it.
 * Either the lease lives until the new time, or the error is SG_LEASE_GONE: decided against expiry under one
 * lock. Also SG_LEASE_NOT_READY, SG_SANDBOX_LOST, SG_STORE_UNAVAILABLE (not extended). */
int sg_registry_extend(struct sg_registry *r, struct sg_entry *e, int64_t timeout_ms, const struct sg_spend_limit *budget,
                       const struct sg_store_done *done, struct sg_error *err);

/* Begins the end. The first caller decides the reason; later calls change nothing. True: this call began it.
 * detail: for SG_END_LOST, the short word plus detail that becomes `reason`; else NULL. Wait with
 * sg_entry_wait(SG_WAIT_ENDED). */
bool sg_registry_end(struct sg_registry *r, struct sg_entry *e, enum sg_end why, const char *detail);
/* Nothing of its sandbox runs any more: the final state, quota free, waiters run once it is written. err
 * (borrowed): the driver could not confirm; the lease is lost with that reason. */
void sg_registry_ended(struct sg_registry *r, struct sg_entry *e, const struct sg_error *err);
/* sg_registry_end() for every lease that has not ended. Returns how many there were. With SG_END_SHUTDOWN
 * nothing is reserved any more from then on (SG_SHUTTING_DOWN). */
size_t sg_registry_end_all(struct sg_registry *r, enum sg_end why);

/* For a shutdown that another server follows: ready leases whose sandboxes outlive this one stay as they are written down. Their commands are
 * cancelled, their sandboxes let go of; nothing ends them here any more, and once nothing uses them they count as ended for SG_WAIT_ENDED and
 * are in no list. Nothing is reserved any more from then on. Returns how many were left now. */
size_t sg_registry_leave_all(struct sg_registry *r);

/* The sandbox, one reference, in whatever state the lease is; NULL when it has none. For on_end, which
 * terminates it. */
struct sg_sandbox *sg_entry_sandbox(struct sg_entry *e);

/* Use of the sandbox: keeps it from idling, gives a reference on it (*ret may be NULL when not wanted). -1:
 * SG_LEASE_NOT_READY (creating), SG_LEASE_GONE (ended or ending, with reason), SG_SANDBOX_LOST, SG_UNAVAILABLE (recovered, its sandbox
 * not found yet). */
int sg_entry_use_begin(struct sg_entry *e, struct sg_sandbox **ret, struct sg_error *err);
/* counts: false for a request that failed: the idle time goes on from before it. */
void sg_entry_use_end(struct sg_entry *e, bool counts);

/* A use that also takes one of the tenant's exec slots: SG_QUOTA_EXCEEDED (members limit, use, owner) when
 * max_execs (0: none) are running. */
int sg_entry_exec_begin(struct sg_entry *e, int64_t max_execs, struct sg_sandbox **ret, struct sg_error *err);
void sg_entry_exec_end(struct sg_entry *e, bool counts);

/* ---- waiting ---- */

enum sg_wait_for {
    SG_WAIT_SETTLED, /* no longer creating */
    SG_WAIT_AT_REST, /* neither creating nor releasing */
    SG_WAIT_ENDED,   /* ended and nothing of its sandbox left */
};
struct sg_waiter {
    void (*fn)(struct sg_waiter *w); /* once; may free w */
    enum sg_wait_for what;           /* registry's from here on */
    struct sg_waiter *next, **prev;
};
/* False: it is so already, fn will not run. */
bool sg_entry_wait(struct sg_entry *e, enum sg_wait_for what, struct sg_waiter *w);
/* True: removed, fn will not run. False: it ran, or is running on another thread. */
bool sg_entry_unwait(struct sg_entry *e, struct sg_waiter *w);

/* ---- events ---- */

/* Hears of every step of one lease. The calls come in order, under the registry's lock but for wake: they must not block and may take
 * only locks that are leaves. */
struct sg_follower {
    void (*event)(struct sg_follower *f, const struct sg_lease_event *ev, const struct sg_lease *l);
    void (*over)(struct sg_follower *f); /* after the last event there will ever be */
    void (*wake)(struct sg_follower *f); /* without locks, after one of these, but for those during sg_entry_follow() */
    void (*ref)(struct sg_follower *f);  /* held until wake has returned */
    void (*unref)(struct sg_follower *f);
    bool following; /* registry's from here on */
    struct sg_follower *next, *prev;
};
/* Tells f of what came after event number `after` (0: from the beginning) before it returns, then of what comes. -1: nothing was told;
 * SG_HISTORY_DROPPED with the member oldest_seq, SG_INVALID_REQUEST (field after) when there is no such event yet. May read the disk
 * when e came from sg_registry_get(). */
int sg_entry_follow(struct sg_entry *e, uint64_t after, struct sg_follower *f, struct sg_error *err);
/* No event or over comes after it returns; a wake may still. */
void sg_entry_unfollow(struct sg_entry *e, struct sg_follower *f);

/* ---- start and lists ---- */

struct sg_recover {
    /* A provider whose sandboxes outlive the server? */
    bool (*outlives)(void *arg, const char *provider);
    /* Takes over such a lease (state creating, ready or releasing): find its sandbox, then
     * sg_registry_adopted(), or destroy what there is and sg_registry_ended(). NULL: there are none, all
     * become lost. */
    void (*adopt)(void *arg, struct sg_entry *e);
    void *arg;
};
/* Once, before requests: leases of a former server whose sandboxes died with it become lost
 * (server_restarted), durably. *ret_lost (may be NULL): how many. Blocks until written. */
int sg_registry_recover(struct sg_registry *r, const struct sg_recover *how, size_t *ret_lost,
                        struct sg_error *err);
/* The sandbox of a recovered lease was found: ready again until its old expires_at, or, if it was being
 * released, on_end() comes. (One still being created goes through sg_registry_ready().) A lease that ends before that has no sandbox
 * in its on_end(). */
void sg_registry_adopted(struct sg_registry *r, struct sg_entry *e, struct sg_sandbox *sb);

/* One page over all leases, memory and store, newest first. Nothing repeats or is skipped while leases come
 * and go. */
int sg_registry_list(struct sg_registry *r, const struct sg_lease_query *q, struct sg_lease_page *ret,
                     struct sg_error *err);

struct sg_registry_stats {
    size_t by_state[SG_LEASE_STATE_COUNT]; /* ended ones: totals since the start */
    size_t execs;
};
void sg_registry_stats(struct sg_registry *r, struct sg_registry_stats *ret);

#endif
