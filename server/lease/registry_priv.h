/* The inside of the registry, shared by its files only. Everything in an entry that can change is guarded by
 * the registry's one lock; what must happen without it (callbacks, dropping references) is collected in a
 * sg_after and run once it is released. */
#ifndef SG_REGISTRY_PRIV_H
#define SG_REGISTRY_PRIV_H

#include <pthread.h>
#include <uthash.h>
#include <utlist.h>

#include "lease/registry.h"

struct sg_tenant_use {
    char *name;
    size_t leases; /* that have a sandbox or are about to */
    size_t execs;
    int64_t spent, on_hold; /* micro-dollars: of leases that ended, and for those that have not */
    UT_hash_handle hh;
};

struct sg_entry {
    _Atomic int refs;
    struct sg_registry *reg;
    struct sg_lease lease; /* id and terms never change */
    struct sg_cancel *cancel;
    struct sg_tenant_use *tenant;
    char *trajectory; /* "tenant\0trajectory_id", or NULL; likewise key */
    char *key;
    size_t trajectory_len, key_len;

    struct sg_sandbox *sandbox;
    struct sg_error failure;
    char *answer;
    int answer_status;
    enum sg_end end; /* valid once end_begun, also of a recovered one that is releasing */
    bool end_begun;
    bool held;       /* counts against its tenant's quota */
    int64_t on_hold; /* micro-dollars of its tenant's */
    bool stored;     /* its row is in the store */
    bool outlives;
    bool left;       /* to the server after this one */
    bool committing;    /* its row as a ready lease is being written */
    unsigned unwritten; /* rows about its end on their way */
    bool by_trajectory_on, by_key_on;
    bool recent; /* in the list of ended ones */

    int64_t expires_ms;           /* sg_now_ms() time; valid once ready */
    int64_t committed_expires_ms; /* what the store knows */
    unsigned extending;           /* extensions on their way to the store */
    int64_t idle_from_ms;
    unsigned uses;
    size_t heap_pos; /* position + 1, 0: none */
    int64_t heap_due;

    struct sg_lease_events events; /* empty in an entry that was read from the store */
    int64_t ready_us;              /* of the event that is written with the ready lease */
    struct sg_follower *followers;
    struct sg_waiter *waiters;
    struct sg_entry *recent_next, *recent_prev;
    UT_hash_handle by_id, by_trajectory, by_key;
};

struct sg_registry {
    _Atomic int refs; /* its own and one per entry */
    struct sg_registry_config cfg;
    pthread_mutex_t lock;
    pthread_cond_t quiet; /* writes == 0 */
    size_t writes;        /* ops in the store that will call back */
    struct sg_entry *by_id, *by_trajectory, *by_key;
    struct sg_tenant_use *tenants;
    struct sg_entry *recent_first, *recent_last; /* oldest first */
    size_t n_recent;
    bool closed;           /* no new entries */
    uint64_t keys_evicted; /* entries with a key that left memory */
    struct sg_registry_stats stats;

    struct sg_entry **heap; /* by heap_due: a lower bound of when something is due */
    size_t heap_n, heap_size;
    int64_t armed_ms;
    struct sg_timer timer;
    struct sg_task rearm;
};

/* ---- what happens after the lock ---- */

struct sg_after_step {
    struct sg_after_step *next;
    struct sg_entry *entry; /* one reference */
    bool cancel, on_end;
    enum sg_end why;
    struct sg_sandbox *drop;
    struct sg_follower *told; /* one reference */
};
struct sg_after {
    struct sg_after_step *first, **tail;
    struct sg_waiter *waiters, **waiters_tail;
};
void sg_after_init(struct sg_after *a);
struct sg_after_step *sg_after_add(struct sg_after *a, struct sg_entry *e);
/* Without the lock. */
void sg_after_run(struct sg_registry *r, struct sg_after *a);

/* ---- registry.c: all with the lock held ---- */

/* A new entry (one reference) that is in no index yet. */
struct sg_entry *sg_entry_new(struct sg_registry *r, struct sg_lease_terms *t);
void sg_registry_index(struct sg_registry *r, struct sg_entry *e);
void sg_registry_unindex_trajectory(struct sg_registry *r, struct sg_entry *e);
void sg_registry_unindex_key(struct sg_registry *r, struct sg_entry *e);
/* The end of an entry's time among the live: into the list of recent ones, which may push others out. */
void sg_registry_retire(struct sg_registry *r, struct sg_entry *e);
struct sg_tenant_use *sg_registry_tenant(struct sg_registry *r, const char *name);
/* Checks the step against the table of legal ones, counts it, moves waiters that have what they wait for to
 * a. */
void sg_entry_step(struct sg_entry *e, enum sg_lease_state to, const char *reason, struct sg_after *a);
/* The same for a step whose event was written down already, as of at_us. */
void sg_entry_step_at(struct sg_entry *e, enum sg_lease_state to, const char *reason, int64_t at_us, struct sg_after *a);
void sg_entry_wake(struct sg_entry *e, struct sg_after *a);
void sg_entry_release_quota(struct sg_entry *e);
/* To the next server, and nothing of it goes on here. */
bool sg_entry_is_left(const struct sg_entry *e);
bool sg_entry_past_retention(const struct sg_entry *e);

/* ---- spend.c: with the lock held, but for the last ---- */

/* Holds what e costs in so long: SG_QUOTA_EXCEEDED (reason budget_exhausted) when that is more than the budget leaves. */
int sg_entry_hold_price(struct sg_entry *e, const struct sg_spend_limit *budget, int64_t ms, struct sg_error *err);
/* Gives so much of it back. */
void sg_entry_drop_hold(struct sg_entry *e, int64_t microusd);
/* What l, which has ended, has cost is spent, and written down with op (NULL: nothing was asked for). */
void sg_tenant_charge(struct sg_tenant_use *t, const struct sg_lease *l, struct sg_store_op *op);
/* Once e has ended: what it cost takes the place of what was held. op: as of sg_tenant_charge(). */
void sg_entry_settle(struct sg_entry *e, struct sg_store_op *op);
/* Before anything is reserved. */
int sg_registry_load_spent(struct sg_registry *r, struct sg_error *err);

/* ---- events.c: with the lock held ---- */

/* Records where e is now as an event of at_us and tells it. */
void sg_entry_event(struct sg_entry *e, bool extended, int64_t at_us, struct sg_after *a);
/* The row of e's events; next (may be NULL): the lease after one more, which is told once it is written. */
void sg_entry_op_events(const struct sg_entry *e, struct sg_store_op *op, const struct sg_lease *next, bool extended,
                        int64_t at_us);
/* Without the lock, reads the disk. */
int sg_lease_events_load(struct sg_store *s, const struct sg_lease *l, struct sg_lease_events *ret, struct sg_error *err);

/* ---- life.c: with the lock held ---- */

bool sg_entry_begin_end(struct sg_entry *e, enum sg_end why, const char *detail, struct sg_after *a);
/* Ends it when its time is over; true when it has ended or is ending. */
bool sg_entry_expire_if_due(struct sg_entry *e, int64_t now, struct sg_after *a);
/* Why work on it is refused, by its state (not ready). */
int sg_entry_refuse(const struct sg_entry *e, struct sg_error *err);
/* Submits op for e; fn(e) comes back on the store thread, with a reference held meanwhile. */
int sg_entry_submit(struct sg_entry *e, struct sg_store_op *op, unsigned how,
                    void (*fn)(void *arg, const struct sg_error *err), void *arg, struct sg_error *err);
/* The audit record of the state it is in. */
void sg_entry_audit(const struct sg_entry *e, struct sg_store_op *op);
/* From releasing into the state its end leads to; err: the sandbox could not be terminated. */
void sg_entry_finish_releasing(struct sg_entry *e, const struct sg_error *err, struct sg_after *a);
/* Its sandbox goes, its place is free. */
void sg_entry_let_go(struct sg_entry *e, struct sg_after *a);
/* A row about its end (counted in unwritten) is written or kept. Without the lock; arg: the entry. */
void sg_entry_end_written(void *arg, const struct sg_error *err);

/* ---- due.c: with the lock held ---- */

void sg_due_set(struct sg_registry *r, struct sg_entry *e); /* in or moved, by its expiry and idle time */
void sg_due_remove(struct sg_registry *r, struct sg_entry *e);
void sg_due_init(struct sg_registry *r);
void sg_due_finish(struct sg_registry *r); /* without the lock; waits for the reactor */

#endif
