/* A registry over a real store and a real reactor, and an owner of leases that ends them as the service
 * would. */
#ifndef SG_TEST_LEASE_WORLD_H
#define SG_TEST_LEASE_WORLD_H

#include <pthread.h>
#include <stdatomic.h>

#include "backends/driver.h"
#include "lease/registry.h"
#include "support.h"

struct world {
    char *dir;
    struct sg_reactor *reactor;
    struct sg_store *store;
    struct sg_registry *reg;
    _Atomic int sandboxes; /* alive */
    _Atomic int ends;
    _Atomic int last_why;
    bool hold_end; /* on_end leaves the lease releasing */
};

static inline struct sg_sandbox *test_sandbox_ref(struct sg_sandbox *sb)
{
    atomic_fetch_add(&sb->refs, 1);
    return sb;
}

static inline struct sg_sandbox *test_sandbox_unref(struct sg_sandbox *sb)
{
    if (sb != NULL && atomic_fetch_sub(&sb->refs, 1) == 1) {
        struct world *w = sb->lost_arg;
        atomic_fetch_sub(&w->sandboxes, 1);
        free(sb);
    }
    return NULL;
}

static inline struct sg_sandbox *test_sandbox_new(struct world *w)
{
    struct sg_sandbox *sb = sg_xcalloc(1, sizeof *sb);
    atomic_store(&sb->refs, 1);
    sb->lost_arg = w;
    atomic_fetch_add(&w->sandboxes, 1);
    return sb;
}

static inline void test_on_end(void *arg, struct sg_entry *e, enum sg_end why)
{
    struct world *w = arg;
    atomic_fetch_add(&w->ends, 1);
    atomic_store(&w->last_why, why);
    cr_expect_eq(sg_cancel_fired(sg_entry_cancel(e)), SG_CANCEL_LEASE_END);
    if (!w->hold_end) {
        sg_registry_ended(w->reg, e, NULL);
    }
}

static inline void world_open(struct world *w)
{
    struct sg_error err = {0};
    w->store = open_store(w->dir);
    cr_assert_eq(sg_reactor_new(&w->reactor, &err), 0, "%s", err.message);
    struct sg_registry_config cfg = {.reactor = w->reactor,
                                     .store = w->store,
                                     .sandbox_ref = test_sandbox_ref,
                                     .sandbox_unref = test_sandbox_unref,
                                     .on_end = test_on_end,
                                     .arg = w,
                                     .recent_max = 64};
    w->reg = sg_registry_new(&cfg);
}

static inline void world_close(struct world *w)
{
    w->reg = sg_registry_free(w->reg);
    w->reactor = sg_reactor_free(w->reactor);
    w->store = sg_store_free(w->store);
}

static inline void world_init(struct world *w)
{
    memset(w, 0, sizeof *w);
    w->dir = temp_dir();
    world_open(w);
}

static inline void world_finish(struct world *w)
{
    world_close(w);
    cr_expect_eq(atomic_load(&w->sandboxes), 0, "%d sandboxes leaked", atomic_load(&w->sandboxes));
    remove_dir(w->dir);
}

struct ask {
    const char *tenant, *trajectory, *key, *hash;
    int64_t max_leases, timeout_ms, idle_ms;
};

static inline struct sg_lease_terms *ask_terms(const struct ask *a)
{
    struct sg_lease_terms *t = sg_lease_terms_new(a->tenant != NULL ? a->tenant : "acme");
    t->trajectory_id = a->trajectory != NULL ? sg_xstrdup(a->trajectory) : NULL;
    t->idempotency_key = a->key != NULL ? sg_xstrdup(a->key) : NULL;
    t->timeout_ms = a->timeout_ms > 0 ? a->timeout_ms : 60000;
    t->idle_timeout_ms = a->idle_ms;
    sg_sha256_hex(a->hash != NULL ? a->hash : "", a->hash != NULL ? strlen(a->hash) : 0, t->request_hash);
    return t;
}

static inline int reserve(struct world *w, const struct ask *a, enum sg_reserved *how, struct sg_entry **e,
                          struct sg_stored_answer *answer, struct sg_error *err)
{
    struct sg_lease_terms *t = ask_terms(a);
    struct sg_reserve q = {.terms = t, .max_leases = a->max_leases};
    int rc = sg_registry_reserve(w->reg, &q, how, e, answer, err);
    sg_lease_terms_unref(t);
    return rc;
}

static inline char *test_answer(void *arg, const struct sg_lease *l)
{
    (void)arg;
    cr_expect_eq(l->state, SG_LEASE_READY);
    return sg_xasprintf("{\"id\":\"%s\"}", l->id);
}

static inline int make_ready(struct world *w, struct sg_entry *e, struct sg_error *err)
{
    struct sg_sandbox *sb = test_sandbox_new(w);
    struct outcome o;
    outcome_init(&o);
    struct sg_store_done done = {.fn = outcome_set, .arg = &o};
    struct sg_grant g = {.sandbox = sb,
                         .provider = "local_bwrap",
                         .sandbox_id = "default-0",
                         .caps = SG_CAP_EXEC,
                         .answer = test_answer,
                         .answer_status = 201};
    int rc = sg_registry_ready(w->reg, e, &g, NULL, &done, err);
    test_sandbox_unref(sb);
    if (rc < 0) {
        return -1;
    }
    sem_wait_all(&o.sem);
    if (o.failed && err != NULL) {
        sg_error_copy(err, &o.err);
    }
    sg_error_clear(&o.err);
    return o.failed ? -1 : 0;
}

/* A ready lease; one reference. */
static inline struct sg_entry *lease(struct world *w, const struct ask *a)
{
    struct sg_error err = {0};
    struct sg_stored_answer answer;
    enum sg_reserved how;
    struct sg_entry *e = NULL;
    cr_assert_eq(reserve(w, a, &how, &e, &answer, &err), 0, "%s", err.message);
    cr_assert_eq(how, SG_RESERVED_NEW);
    cr_assert_eq(make_ready(w, e, &err), 0, "%s", err.message);
    return e;
}

struct sem_waiter {
    struct sg_waiter w;
    sem_t sem;
};

static inline void waiter_fn(struct sg_waiter *w)
{
    sem_post(&((struct sem_waiter *)w)->sem);
}

/* Blocks until it is so; false after ms. */
static inline bool wait_for(struct sg_entry *e, enum sg_wait_for what, int ms)
{
    struct sem_waiter s = {.w = {.fn = waiter_fn}};
    sem_init(&s.sem, 0, 0);
    if (!sg_entry_wait(e, what, &s.w)) {
        return true;
    }
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += (long)(ms % 1000) * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    if (sem_timedwait(&s.sem, &until) == 0) {
        return true;
    }
    if (!sg_entry_unwait(e, &s.w)) {
        sem_wait_all(&s.sem);
        return true;
    }
    return false;
}

static inline enum sg_lease_state state_of(struct sg_entry *e)
{
    struct sg_lease l;
    sg_entry_lease(e, &l);
    enum sg_lease_state s = l.state;
    sg_lease_finish(&l);
    return s;
}

/* Deletes and waits until nothing is left of it. */
static inline void end_lease(struct world *w, struct sg_entry *e)
{
    sg_registry_end(w->reg, e, SG_END_DELETED, NULL);
    cr_assert(wait_for(e, SG_WAIT_ENDED, 5000));
}

#endif
