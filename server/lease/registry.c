/* The index of leases, entries and their waiters. */
#include "lease/registry.h"

#include <stdatomic.h>
#include <stdio.h>

#include "base/clock.h"
#include "lease/registry_priv.h"
#include "model/lease_json.h"

#define RECENT_DEFAULT 4096

/* ---- entries ---- */

static char *join(const char *tenant, const char *name, size_t *ret_len)
{
    if (name == NULL) {
        return NULL;
    }
    size_t n = strlen(tenant) + 1;
    *ret_len = n + strlen(name);
    char *s = sg_xcalloc(1, *ret_len + 1);
    memcpy(s, tenant, n);
    memcpy(s + n, name, *ret_len - n);
    return s;
}

struct sg_entry *sg_entry_new(struct sg_registry *r, struct sg_lease_terms *t)
{
    struct sg_entry *e = sg_xcalloc(1, sizeof *e);
    e->refs = 1;
    e->reg = r;
    atomic_fetch_add(&r->refs, 1);
    e->lease.terms = sg_lease_terms_ref(t);
    e->cancel = sg_cancel_new();
    e->tenant = sg_registry_tenant(r, t->tenant);
    e->trajectory = join(t->tenant, t->trajectory_id, &e->trajectory_len);
    e->key = join(t->tenant, t->idempotency_key, &e->key_len);
    return e;
}

struct sg_entry *sg_entry_ref(struct sg_entry *e)
{
    atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed);
    return e;
}

static void registry_unref(struct sg_registry *r)
{
    if (atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) > 1) {
        return;
    }
    struct sg_tenant_use *t, *next;
    HASH_ITER(hh, r->tenants, t, next)
    {
        HASH_DEL(r->tenants, t);
        free(t->name);
        free(t);
    }
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->quiet);
    free(r);
}

struct sg_entry *sg_entry_unref(struct sg_entry *e)
{
    if (e == NULL || atomic_fetch_sub_explicit(&e->refs, 1, memory_order_acq_rel) > 1) {
        return NULL;
    }
    if (e->sandbox != NULL) {
        e->reg->cfg.sandbox_unref(e->sandbox);
    }
    sg_cancel_unref(e->cancel);
    sg_error_clear(&e->failure);
    sg_lease_finish(&e->lease);
    sg_lease_events_finish(&e->events);
    free(e->trajectory);
    free(e->key);
    free(e->answer);
    registry_unref(e->reg);
    free(e);
    return NULL;
}

const char *sg_entry_id(const struct sg_entry *e)
{
    return e->lease.id;
}

const struct sg_lease_terms *sg_entry_terms(const struct sg_entry *e)
{
    return e->lease.terms;
}

struct sg_cancel *sg_entry_cancel(struct sg_entry *e)
{
    return e->cancel;
}

void sg_entry_lease(struct sg_entry *e, struct sg_lease *ret)
{
    pthread_mutex_lock(&e->reg->lock);
    sg_lease_copy(ret, &e->lease);
    pthread_mutex_unlock(&e->reg->lock);
}

void sg_entry_failure(struct sg_entry *e, struct sg_error *ret)
{
    memset(ret, 0, sizeof *ret);
    pthread_mutex_lock(&e->reg->lock);
    if (e->failure.code != SG_OK) {
        sg_error_copy(ret, &e->failure);
    }
    pthread_mutex_unlock(&e->reg->lock);
}

bool sg_entry_end_cause(struct sg_entry *e, enum sg_end *ret)
{
    pthread_mutex_lock(&e->reg->lock);
    bool begun = e->end_begun;
    *ret = e->end;
    pthread_mutex_unlock(&e->reg->lock);
    return begun;
}

struct sg_sandbox *sg_entry_sandbox(struct sg_entry *e)
{
    pthread_mutex_lock(&e->reg->lock);
    struct sg_sandbox *sb = e->sandbox != NULL ? e->reg->cfg.sandbox_ref(e->sandbox) : NULL;
    pthread_mutex_unlock(&e->reg->lock);
    return sb;
}

/* ---- what happens after the lock ---- */

void sg_after_init(struct sg_after *a)
{
    a->first = NULL;
    a->tail = &a->first;
    a->waiters = NULL;
    a->waiters_tail = &a->waiters;
}

struct sg_after_step *sg_after_add(struct sg_after *a, struct sg_entry *e)
{
    struct sg_after_step *s = sg_xcalloc(1, sizeof *s);
    s->entry = sg_entry_ref(e);
    *a->tail = s;
    a->tail = &s->next;
    return s;
}

void sg_after_run(struct sg_registry *r, struct sg_after *a)
{
    for (struct sg_after_step *s = a->first; s != NULL;) {
        struct sg_after_step *next = s->next;
        if (s->cancel) {
            sg_cancel_fire(s->entry->cancel, SG_CANCEL_LEASE_END);
        }
        if (s->on_end && r->cfg.on_end != NULL) {
            r->cfg.on_end(r->cfg.arg, s->entry, s->why);
        }
        if (s->drop != NULL) {
            r->cfg.sandbox_unref(s->drop);
        }
        if (s->told != NULL) {
            s->told->wake(s->told);
            s->told->unref(s->told);
        }
        sg_entry_unref(s->entry);
        free(s);
        s = next;
    }
    for (struct sg_waiter *w = a->waiters; w != NULL;) {
        struct sg_waiter *next = w->next;
        w->fn(w);
        w = next;
    }
    sg_after_init(a);
}

/* ---- states and waiters ---- */

bool sg_entry_is_left(const struct sg_entry *e)
{
    return e->left && e->uses == 0;
}

static bool has_it(const struct sg_entry *e, enum sg_wait_for what)
{
    if (what != SG_WAIT_ENDED) {
        return e->lease.state != SG_LEASE_CREATING && (what != SG_WAIT_AT_REST || e->lease.state != SG_LEASE_RELEASING);
    }
    return sg_entry_is_left(e) || (sg_lease_state_ended(e->lease.state) && !e->held && e->unwritten == 0);
}

void sg_entry_wake(struct sg_entry *e, struct sg_after *a)
{
    for (struct sg_waiter *w = e->waiters; w != NULL;) {
        struct sg_waiter *next = w->next;
        if (has_it(e, w->what)) {
            *w->prev = next;
            if (next != NULL) {
                next->prev = w->prev;
            }
            w->prev = NULL;
            w->next = NULL;
            *a->waiters_tail = w;
            a->waiters_tail = &w->next;
        }
        w = next;
    }
}

void sg_entry_step(struct sg_entry *e, enum sg_lease_state to, const char *reason, struct sg_after *a)
{
    sg_entry_step_at(e, to, reason, sg_wall_us(), a);
}

void sg_entry_step_at(struct sg_entry *e, enum sg_lease_state to, const char *reason, int64_t at_us, struct sg_after *a)
{
    struct sg_registry_stats *stats = &e->reg->stats;
    if (!sg_lease_state_may_become(e->lease.state, to)) {
        abort(); /* a fault of this program, and going on would lose a sandbox */
    }
    stats->by_state[e->lease.state]--;
    stats->by_state[to]++;
    e->lease.state = to;
    (void)snprintf(e->lease.reason, sizeof e->lease.reason, "%s", reason);
    if (sg_lease_state_ended(to)) {
        e->lease.ended_us = at_us;
    }
    sg_entry_event(e, false, at_us, a);
    sg_entry_wake(e, a);
}

bool sg_entry_wait(struct sg_entry *e, enum sg_wait_for what, struct sg_waiter *w)
{
    pthread_mutex_lock(&e->reg->lock);
    bool wait = !has_it(e, what);
    w->what = what;
    w->prev = NULL;
    w->next = NULL;
    if (wait) {
        w->next = e->waiters;
        w->prev = &e->waiters;
        if (w->next != NULL) {
            w->next->prev = &w->next;
        }
        e->waiters = w;
    }
    pthread_mutex_unlock(&e->reg->lock);
    return wait;
}

bool sg_entry_unwait(struct sg_entry *e, struct sg_waiter *w)
{
    pthread_mutex_lock(&e->reg->lock);
    bool there = w->prev != NULL;
    if (there) {
        *w->prev = w->next;
        if (w->next != NULL) {
            w->next->prev = w->prev;
        }
        w->prev = NULL;
        w->next = NULL;
    }
    pthread_mutex_unlock(&e->reg->lock);
    return there;
}

/* ---- the index ---- */

struct sg_tenant_use *sg_registry_tenant(struct sg_registry *r, const char *name)
{
    struct sg_tenant_use *t = NULL;
    HASH_FIND_STR(r->tenants, name, t);
    if (t == NULL) {
        t = sg_xcalloc(1, sizeof *t);
        t->name = sg_xstrdup(name);
        HASH_ADD_KEYPTR(hh, r->tenants, t->name, strlen(t->name), t);
    }
    return t;
}

void sg_registry_index(struct sg_registry *r, struct sg_entry *e)
{
    sg_entry_ref(e);
    HASH_ADD_KEYPTR(by_id, r->by_id, e->lease.id, strlen(e->lease.id), e);
    if (e->trajectory != NULL && (e->lease.state == SG_LEASE_CREATING || e->lease.state == SG_LEASE_READY)) {
        HASH_ADD_KEYPTR(by_trajectory, r->by_trajectory, e->trajectory, e->trajectory_len, e);
        e->by_trajectory_on = true;
    }
    if (e->key != NULL) {
        HASH_ADD_KEYPTR(by_key, r->by_key, e->key, e->key_len, e);
        e->by_key_on = true;
    }
    if (!sg_lease_state_ended(e->lease.state)) {
        e->held = true;
        e->tenant->leases++;
    }
    r->stats.by_state[e->lease.state]++;
}

void sg_registry_unindex_trajectory(struct sg_registry *r, struct sg_entry *e)
{
    if (e->by_trajectory_on) {
        HASH_DELETE(by_trajectory, r->by_trajectory, e);
        e->by_trajectory_on = false;
    }
}

void sg_registry_unindex_key(struct sg_registry *r, struct sg_entry *e)
{
    if (e->by_key_on) {
        HASH_DELETE(by_key, r->by_key, e);
        e->by_key_on = false;
        r->keys_evicted++;
    }
}

void sg_entry_release_quota(struct sg_entry *e)
{
    if (e->held) {
        e->held = false;
        e->tenant->leases--;
        sg_entry_drop_hold(e, e->on_hold); /* of one that came to nothing */
    }
}

bool sg_entry_past_retention(const struct sg_entry *e)
{
    return e->lease.ended_us > 0 &&
           e->lease.ended_us < sg_wall_us() - sg_store_retention_ms(e->reg->cfg.store) * 1000;
}

static void unlink_recent(struct sg_registry *r, struct sg_entry *e)
{
    *(e->recent_prev != NULL ? &e->recent_prev->recent_next : &r->recent_first) = e->recent_next;
    *(e->recent_next != NULL ? &e->recent_next->recent_prev : &r->recent_last) = e->recent_prev;
    e->recent = false;
    r->n_recent--;
}

/* Drops an ended entry from memory; the store has it (or it never got an answer). */
static void evict(struct sg_registry *r, struct sg_entry *e)
{
    unlink_recent(r, e);
    sg_registry_unindex_key(r, e);
    HASH_DELETE(by_id, r->by_id, e);
    sg_entry_unref(e); /* the last one: it ended, so no callback and no lock is behind this */
}

void sg_registry_retire(struct sg_registry *r, struct sg_entry *e)
{
    e->recent = true;
    e->recent_next = NULL;
    e->recent_prev = r->recent_last;
    *(r->recent_last != NULL ? &r->recent_last->recent_next : &r->recent_first) = e;
    r->recent_last = e;
    r->n_recent++;
    /* What is not written yet must stay; it is in the way only while the store is in trouble. */
    for (struct sg_entry *old = r->recent_first; r->n_recent > r->cfg.recent_max && old != NULL;) {
        struct sg_entry *next = old->recent_next;
        if (old->unwritten == 0 && old != e) {
            evict(r, old);
        } else if (old->unwritten > 0) {
            break;
        }
        old = next;
    }
}

/* ---- looking up ---- */

static struct sg_entry *find(struct sg_registry *r, const char *id)
{
    struct sg_entry *e = NULL;
    HASH_FIND(by_id, r->by_id, id, strlen(id), e);
    return e;
}

int sg_registry_peek(struct sg_registry *r, const char *tenant, const char *id, struct sg_entry **ret)
{
    int found = 0;
    pthread_mutex_lock(&r->lock);
    struct sg_entry *e = find(r, id);
    if (e != NULL && (tenant == NULL || sg_streq(tenant, e->lease.terms->tenant)) &&
        !sg_entry_past_retention(e)) {
        *ret = sg_entry_ref(e);
        found = 1;
    }
    pthread_mutex_unlock(&r->lock);
    return found;
}

int sg_registry_get(struct sg_registry *r, const char *tenant, const char *id, struct sg_entry **ret,
                    struct sg_error *err)
{
    if (!sg_id_valid(SG_LEASE_ID_PREFIX, id)) {
        return sg_error_set(err, SG_NOT_FOUND, "there is no such lease");
    }
    if (sg_registry_peek(r, tenant, id, ret) == 1) {
        return 1;
    }
    struct sg_lease l;
    if (sg_store_lease(r->cfg.store, tenant, id, &l, err) < 0) {
        return -1;
    }
    /* It may have been in memory all the time, but another tenant's, in which case the store said no. */
    pthread_mutex_lock(&r->lock);
    struct sg_entry *e = sg_entry_new(r, l.terms);
    pthread_mutex_unlock(&r->lock);
    sg_lease_finish(&e->lease);
    e->lease = l;
    e->stored = true;
    sg_cancel_fire(e->cancel, SG_CANCEL_LEASE_END);
    *ret = e;
    return 1;
}

void sg_registry_stats(struct sg_registry *r, struct sg_registry_stats *ret)
{
    pthread_mutex_lock(&r->lock);
    *ret = r->stats;
    pthread_mutex_unlock(&r->lock);
}

/* ---- birth and death of the registry ---- */

struct sg_registry *sg_registry_new(const struct sg_registry_config *cfg)
{
    struct sg_registry *r = sg_xcalloc(1, sizeof *r);
    r->refs = 1;
    r->cfg = *cfg;
    r->cfg.recent_max = cfg->recent_max > 0 ? cfg->recent_max : RECENT_DEFAULT;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->quiet, NULL);
    sg_due_init(r);
    return r;
}

struct sg_registry *sg_registry_free(struct sg_registry *r)
{
    if (r == NULL) {
        return NULL;
    }
    pthread_mutex_lock(&r->lock);
    while (r->writes > 0) {
        pthread_cond_wait(&r->quiet, &r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    sg_due_finish(r);
    HASH_CLEAR(by_trajectory, r->by_trajectory);
    HASH_CLEAR(by_key, r->by_key);
    struct sg_entry *e, *next;
    HASH_ITER(by_id, r->by_id, e, next)
    {
        HASH_DELETE(by_id, r->by_id, e);
        sg_entry_unref(e);
    }
    registry_unref(r);
    return NULL;
}
