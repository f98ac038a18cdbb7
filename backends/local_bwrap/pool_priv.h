/* Inside of the local pools.
 *
 * Everything is decided on the reactor thread: slots called on other threads post what they were asked. What
 * reports and health read from other threads is written under local.lock; the reactor thread reads it
 * without.
 *
 * A slot has at most one sandbox at a time, a struct gen, which is leased at most once: that is why a lease
 * is always fresh. The gen outlives its place in the slot as long as somebody has a reference on the sandbox.
 */
#ifndef SG_POOL_PRIV_H
#define SG_POOL_PRIV_H

#include <stdatomic.h>

#include "backends/agent/sandbox.h"
#include "backends/egress/lease.h"
#include "backends/egress/proxy.h"
#include "backends/local_bwrap/local_bwrap.h"
#include "backends/probe.h"
#include "backends/spawner/cgroup.h"
#include "backends/spawner/spawner.h"
#include "base/hold.h"

/* Sandboxes being made at once: more only makes each of them slower. */
#define BUILDS_MAX 4U
/* Services of one pool that are starting at once: each has a limited time for it. */
#define STARTS_MAX 8U

#define GEN_OF(ptr, member) ((struct gen *)(void *)((char *)(ptr)-offsetof(struct gen, member)))
#define SLOT_OF(ptr, member) ((struct slot *)(void *)((char *)(ptr)-offsetof(struct slot, member)))
#define POOL_OF(ptr, member) ((struct pool *)(void *)((char *)(ptr)-offsetof(struct pool, member)))
#define WAITER_OF(ptr, member) ((struct waiter *)(void *)((char *)(ptr)-offsetof(struct waiter, member)))
#define LOCAL_OF(ptr, member) ((struct local *)(void *)((char *)(ptr)-offsetof(struct local, member)))

struct local;
struct pool;
struct slot;

/* Somebody who waits for a sandbox to be gone. */
struct ending {
    struct sg_done done;
    struct ending *next;
};

/* The service of a blackbox slot; reactor only. */
struct service_out {
    struct gen *g;
    struct sg_pipe *pipe; /* one reference, NULL: closed */
    struct sg_timer pause;
};
struct service {
    struct sg_exec *x; /* NULL: none */
    bool starting;     /* counted in pool.starting */
    struct service_out out, err;
    struct sg_probe *probe; /* under way, or NULL */
};

/* The last of what services wrote in a slot; under local.lock. */
#define SERVICE_LOG_BYTES ((size_t)64 * 1024)
struct service_log {
    char *data; /* a ring of SERVICE_LOG_BYTES, NULL: empty */
    uint64_t total;
};


/* One sandbox, from its build to the close of the last descriptor that came out of it. References: the slot,
 * the hold until it is gone, the sandbox while leased, calls under way. */
struct gen {
    struct sg_agent_sandbox base; /* first; its lock guards agent_why and hold, too */
    atomic_int refs;
    struct local *l;   /* one reference */
    struct slot *slot; /* reactor only, until the driver ends */

    struct sg_error agent_why; /* what the agent's client said of its end */
    struct sg_hold *hold; /* of all descriptors of the sandbox; the first reference is ours, until it ends */

    struct sg_slot_built built;  /* without agent_fd and cgroup_fd; constant once READY */
    unsigned n_limit_fds;        /* the first ones of built.limit_fds */
    struct sg_limits limits;     /* effective; 0: none */
    const struct sg_local_image *image; /* whose root file system it has, NULL: the pool's own */
    int mounts;                  /* its mount namespace, or -1; */
    struct sg_hold *mounts_hold; /* and what keeps the slot back until it is closed */
    struct sg_watch death;       /* pidfd */
    struct sg_timer mourn;       /* the process has died: what the agent's client has to say about it by */

    /* reactor only */
    bool spawning; /* the spawner has not answered yet */
    bool building; /* counted in local.building */
    bool hello;
    bool ready;
    bool leased;
    struct waiter *waiter; /* for whom it is being changed, see waiter.limiting */
    bool ending;    /* its destruction has been asked for */
    bool dead;      /* nothing of it runs any more */
    bool destroyed; /* nothing of it is left */
    struct ending *endings;
    struct service service;
    enum sg_egress egress;         /* what its lease has */
    struct sg_egress_proxy *proxy; /* or NULL */
    void (*egress_done)(struct gen *g, const struct sg_error *err); /* of the proxy's start */
    void (*cut_done)(struct gen *g, const struct sg_error *err);    /* of the change below */
    struct sg_watch helper;  /* pidfd of what joins it to the outside */
    bool cutting;            /* that one's end has been asked for */
    struct sg_task cut_task; /* g has ended meanwhile */

    /* written under local.lock */
    bool hold_gone; /* no descriptor that came out of the sandbox is open */

    struct sg_task died_task;
    struct sg_task hold_gone_task;
    struct sg_task freed_task;
};

struct slot {
    struct pool *pool;
    uint32_t number; /* over all pools */
    struct sg_cgroups *cgroups;
    unsigned failures; /* in a row */
    bool queued;       /* in local.build_queue */
    bool offered;      /* in pool.ready */
    bool undead;       /* it could not be destroyed: that is tried again first */
    struct waiter *promised; /* whose image it is being rebuilt with, or NULL */
    struct sg_timer retry;
    struct slot *prev, *next;   /* pool.ready: least recently used first */
    struct slot *bprev, *bnext; /* local.build_queue */

    _Atomic bool draining; /* written by any thread */

    /* written under local.lock */
    struct gen *gen; /* one reference, or NULL */
    char name[80];
    enum sg_slot_state state;
    uint64_t generation;
    char lease_id[SG_ID_MAX];
    int64_t born_ms; /* sg_now_ms() of the present sandbox, 0: none */
    char last_error[256];
    struct service_log log;
};

/* A create that has not been answered. */
struct waiter {
    struct pool *pool;
    struct sg_sandbox_done done;
    char lease_id[SG_ID_MAX];
    int64_t timeout_ms;
    int64_t began_ms, due_ms; /* sg_now_ms() time */
    struct sg_task start_task;
    struct sg_timer timer;
    struct sg_cancel *cancel; /* one reference, or NULL */
    struct sg_cancel_hook hook;
    struct sg_task cancel_task;
    const struct sg_local_image *image; /* asked for, NULL: the pool's own root file system */
    struct slot *coming;     /* the slot that is promised to it, while that is rebuilt; or NULL */
    struct sg_limits limits; /* of its own; 0: the pool's */
    enum sg_egress egress;
    struct gen *limiting;    /* its sandbox, while it is being given them, or less of the network; one reference */
    bool cancelled;          /* meanwhile */
    bool queued;
    bool answered;
    struct waiter *prev, *next;
};

struct pool {
    struct local *l;
    struct sg_local_pool_config cfg; /* strings are ours */
    struct sg_egress_rules *rules;
    struct sg_egress_counters egress;
    struct slot *slots;
    struct slot *ready;
    struct waiter *waiters;
    struct sg_timer health;
    unsigned starting; /* services */

    _Atomic bool draining; /* written by any thread */
    size_t n_waiters;      /* written under local.lock, as what follows */
    uint64_t events[SG_SLOT_EVENTS];
};

struct local {
    struct sg_driver base;
    atomic_int refs; /* the driver's own and one per gen */
    struct sg_local_parts parts;
    struct pool *pools;
    size_t n_pools;
    struct sg_egress_hub *egress; /* NULL: no pool has a proxy */
    struct sg_env proxy_env;  /* what commands have on top where there is a proxy; constant */
    struct slot *build_queue;
    unsigned building;
    bool pumping;
    bool closing;
    struct sg_task start_task;
    struct sg_task close_task;
    struct sg_timer close_timer;

    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool closed; /* nothing is posted to the reactor any more */
};

/* local_bwrap.c */
struct local *local_ref(struct local *l);
void local_unref(struct local *l);
/* Any thread: posts unless the driver has ended; false: it has, and t will not run. */
bool local_post(struct local *l, struct sg_task *t);
/* The pool of that name, NULL or "": the default one. NULL with SG_POOL_NOT_FOUND. */
struct pool *local_pool(struct local *l, const char *name, struct sg_error *err);
/* Reactor: something ended; maybe the whole driver has. */
void local_maybe_closed(struct local *l);

/* mounts.c. Reactor only */
void mounts_keep(struct gen *g);
void mounts_drop(struct gen *g);

/* lease.c: creates. Reactor except for pool_create */
int pool_create(struct sg_driver *d, const struct sg_sandbox_spec *spec, struct sg_cancel *cancel,
                const struct sg_sandbox_done *done, struct sg_error *err);
int pool_check(struct sg_driver *d, const struct sg_sandbox_spec *spec, struct sg_error *err);
/* A READY slot goes to the first who waits, else to the end of the ready list; a drained one to nobody. One with another image than is
 * wanted is rebuilt first; in the ready list all have the pool's own. */
void pool_offer(struct slot *s);
/* The slot could not be built: whom it was promised to hears so, when it was for the image, or waits for another. */
void pool_build_failed(struct slot *s, const struct sg_error *err);
/* Not READY any more, or drained. */
void pool_withdraw(struct slot *s);
/* Could no slot of the pool be leased even if all worked? */
bool pool_is_drained(const struct pool *p);
void pool_fail_waiters(struct pool *p, const struct sg_error *err);

/* egress.c. Reactor only, but for check and report */
/* Starts the proxy of a sandbox. done comes unless g ends before, maybe at once. */
int egress_listen(struct gen *g, void (*done)(struct gen *g, const struct sg_error *err), struct sg_error *err);
void egress_end(struct gen *g);
/* Hears of the end of the helper of an open network. */
int egress_watch(struct gen *g, struct sg_error *err);
/* The sandbox is about to be leased with that class, not wider than it has. True: that takes a while, and done comes on the reactor
 * thread in any case. */
bool egress_settle(struct gen *g, enum sg_egress e, void (*done)(struct gen *g, const struct sg_error *err));
int egress_check(const struct pool *p, const struct sg_sandbox_spec *spec, struct sg_error *err);
void egress_report(const struct pool *p, struct sg_slot_pool_info *out);

/* note.c. Reactor only */
void slot_set_state(struct slot *s, enum sg_slot_state state);
void slot_set_lease(struct slot *s, const char *lease_id);
void slot_set_born(struct slot *s, int64_t born_ms);
void slot_set_gen(struct slot *s, struct gen *g);
void slot_set_last_error(struct slot *s, const struct sg_error *err);
/* Counts it and tells whoever listens; err may be NULL. */
void slot_event(struct slot *s, enum sg_slot_event_kind kind, const struct sg_error *err);

/* slot.c. Reactor only */
/* Asks for a sandbox in an empty slot. */
void slot_want(struct slot *s);
/* Takes over the descriptors of limits; those of before are closed. */
void gen_take_limits(struct gen *g, struct sg_slot_built *b);
/* Ends the sandbox of the slot; done (may be NULL) when nothing of it runs. */
void gen_release(struct gen *g, const struct sg_done *done);
/* A READY one is rebuilt, for whom it is promised to. */
void slot_rebuild(struct slot *s);
/* A slot without a lease is rebuilt, a FAILED one at once. hard: a leased one too, whose lease is lost. */
void slot_recycle(struct slot *s, bool hard);
/* The driver ends: so does the slot, as soon as it can. */
void slot_close(struct slot *s);
void slot_retry(struct sg_timer *t);
/* It is ready for its lease. */
void gen_offer(struct gen *g);
/* It died on its own, or is no good: rebuilt, or LOST when it is leased. Nothing when it is ending already. answers: its agent is well, so
 * that its owner can still read its files before it terminates it. */
void gen_died(struct gen *g, const struct sg_error *why, bool answers);
struct gen *gen_ref(struct gen *g);
void gen_unref(struct gen *g);

/* service.c. Reactor only, but for the log */
int service_start(struct gen *g, struct sg_error *err);
void service_end(struct gen *g);
/* Begins a check of one that is READY, unless one is under way; ends it without a result. */
void service_check(struct gen *g);
void service_uncheck(struct gen *g);
/* Any thread. The last bytes of the log, at most max, with a NUL behind them; the caller frees. */
char *service_log_tail(struct slot *s, size_t max, size_t *ret_len, uint64_t *ret_total);

/* sandbox.c: what is asked of a leased sandbox. Any thread */
void sandbox_terminate(struct sg_sandbox *sb, const struct sg_done *done);
void sandbox_free(struct sg_sandbox *sb);
int sandbox_exec(struct sg_sandbox *sb, const struct sg_exec_spec *spec, const struct sg_exec_sink *sink,
                 struct sg_exec **ret, struct sg_error *err);
struct json_t *sandbox_metadata(struct sg_sandbox *sb);
/* A group for a command of the sandbox; tree->free(tree->arg) ends it. */
int gen_group(struct gen *g, struct sg_agent_tree *tree, struct sg_error *err);

/* admin.c */
extern const struct sg_slot_ops pool_slot_ops;

#endif
