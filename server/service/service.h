/* The use cases: what the API does, in the words of leases, commands, files and endpoints.
 *
 * Nothing here knows HTTP. Every call answers through its `done` callback, exactly once, on any thread, without locks held, maybe
 * before the call returns; errors given to it are borrowed. A call that returns -1 has filled err and will not call done.
 */
#ifndef SG_SERVICE_H
#define SG_SERVICE_H

#include "backends/driver.h"
#include "backends/registry.h"
#include "backends/repos.h"
#include "base/workq.h"
#include "lease/registry.h"
#include "lease/store.h"
#include "model/exec_json.h"
#include "model/lease_request.h"
#include "model/principal.h"
#include "model/selection.h"
#include "service/archives.h"

struct sg_service;
struct sg_created;

struct sg_service_config {
    int64_t lease_timeout_default_ms;
    int64_t lease_timeout_max_ms;
    int64_t lease_idle_timeout_ms; /* 0: none */
    bool leave_leases;             /* at the end: what outlives the server is the next one's */
    int64_t exec_timeout_default_ms;
    int64_t exec_timeout_max_ms;
    size_t exec_output_max;  /* default and maximum of max_output_bytes */
    size_t exec_memory_max;  /* bytes of output that all commands together keep */
    size_t exec_history_max; /* bytes of finished results kept per lease */
    int64_t exec_history_ttl_ms;
    struct sg_archives_config archives;
};

/* All borrowed; they must outlive the service. */
/* What an hour of a backend costs. */
struct sg_service_price {
    const char *backend;
    int64_t microusd;
};

struct sg_service_parts {
    struct sg_reactor *reactor;
    struct sg_workq *workq;
    struct sg_store *store;
    struct sg_backends *backends;
    struct sg_repos *repos; /* MAY be NULL: there are none */
    struct sg_log *log;
    const struct sg_names *held_credentials; /* names of the credentials this server has */
    bool budget_set;
    int64_t budget_microusd;
    const struct sg_service_price *prices; /* of those that have one; borrowed for the life of the service */
    size_t n_prices;
    /* MAY be NULL. A command has ended (r), or err: it was refused, not started, or its outcome is lost. Borrowed; any thread, no locks
     * held. */
    void (*exec_ended)(void *arg, const struct sg_exec_result *r, const struct sg_error *err);
    void *exec_ended_arg;
};

int sg_service_new(const struct sg_service_config *cfg, const struct sg_service_parts *parts, struct sg_service **ret,
                   struct sg_error *err);
/* All leases must have ended. NULL-safe. */
struct sg_service *sg_service_free(struct sg_service *s);
/* From here on: no new leases. */
void sg_service_drain(struct sg_service *s);
/* Ends every lease (with leave_leases: that does not outlive the server); done when nothing of them runs any more or deadline_ms (sg_now_ms) has passed. Blocks: shutdown only. */
void sg_service_end_all(struct sg_service *s, int64_t deadline_ms);

/* Once, before requests: takes over what a server before this one has left behind. *ret_lost: leases whose sandboxes ended with it. Blocks
 * until that is written down; sandboxes that outlived it are found in the background. */
int sg_service_recover(struct sg_service *s, size_t *ret_lost, struct sg_error *err);

struct sg_registry *sg_service_leases(struct sg_service *s);
const struct sg_service_config *sg_service_config(const struct sg_service *s);
const struct sg_service_parts *sg_service_parts(const struct sg_service *s);
/* The registered backends as candidates, and what the server holds: what a selection without its own is made over. */
const struct sg_candidates *sg_service_candidates(const struct sg_service *s);
const struct sg_environment *sg_service_environment(const struct sg_service *s);

/* The same caller with what is left of the budget, which is what decisions are made with. */
struct sg_principal sg_service_with_budget(struct sg_service *s, const struct sg_principal *who);

/* 0: store writable and one backend usable; -1 with the reason. */
int sg_service_ready(struct sg_service *s, struct sg_error *err);

/* The tenant to look things up under: NULL (anyone's) for an administrator. */
const char *sg_service_tenant(const struct sg_principal *who);

/* ---- leases ---- */

struct sg_entry_done {
    /* e: one reference for the callee; NULL with err. */
    void (*fn)(void *arg, struct sg_entry *e, const struct sg_error *err);
    void *arg;
};
/* Finds a lease of the caller's, ended ones included. At once from memory, else on a worker. */
void sg_service_find(struct sg_service *s, const struct sg_principal *who, const char *id, const struct sg_entry_done *done);

struct sg_create_args {
    const struct sg_principal *who;    /* borrowed for the call */
    struct sg_lease_request *request;  /* moved from */
    const char *idempotency_key;       /* or NULL */
    bool async;                        /* answer when the lease is reserved and written down, and wait_ms have passed without its being ready */
    int64_t wait_ms;                   /* with async */
    struct sg_cancel *cancel;          /* the caller's; a create nobody could find again ends with it */
    /* As sg_grant.answer: the body to store for the Idempotency-Key. `arg` as in done; called before done. */
    char *(*render)(void *arg, const struct sg_lease *l);
    void (*done)(void *arg, const struct sg_created *c, const struct sg_error *err);
    void *arg;
};
/* Borrowed for the callback. */
struct sg_created {
    struct sg_entry *entry;         /* NULL when only the stored answer is left */
    const struct sg_stored_answer *answer; /* not NULL: replay this */
    bool fresh;                     /* this call made it; else it is the same as before */
};
/* Never fails by itself: everything goes to done. With manifest.snapshot it reads the store: on a worker. */
void sg_service_create(struct sg_service *s, const struct sg_create_args *a);

/* Begins the end of a lease; done(true) when nothing of it runs any more, done(false) when that took longer than wait_ms. */
void sg_service_delete(struct sg_service *s, struct sg_entry *e, int64_t wait_ms, void (*done)(void *arg, bool gone), void *arg);

/* Ends a lease whose creation was answered to nobody. */
void sg_service_abandon(struct sg_service *s, struct sg_entry *e);

/* Is a port of that lease reached at its provider, and not through the server? Then *ret is where: {url, headers}, the caller's, or NULL
 * as long as its sandbox is not known (a server before this one made it, and it has not been found yet). */
bool sg_service_elsewhere(struct sg_service *s, const struct sg_lease *l, uint16_t port, struct json_t **ret);

struct sg_wait_args {
    struct sg_entry *lease;
    enum sg_wait_for what;
    int64_t wait_ms;
    struct sg_cancel *cancel; /* the caller's, which ends the wait; or NULL */
    void (*done)(void *arg, bool reached);
    void *arg;
};
/* Waits until the lease is there, at most wait_ms. */
void sg_service_wait_for(struct sg_service *s, const struct sg_wait_args *a);

/* timeout_ms <= 0: the default. SG_TIMEOUT_ABOVE_MAXIMUM. */
int sg_service_extend(struct sg_service *s, const struct sg_principal *who, struct sg_entry *e, int64_t timeout_ms, const struct sg_store_done *done,
                      struct sg_error *err);

#endif
