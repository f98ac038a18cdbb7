/* What operators see and do. Any thread; what changes something is posted. */
#include <stdio.h>

#include "backends/local_bwrap/pool_priv.h"
#include "base/clock.h"

/* What is open on behalf of the sandbox besides its pidfd; after its end no more is known than whether any
 * is. Under local.lock. */
static uint64_t holds(struct gen *g)
{
    if (g == NULL) {
        return 0;
    }
    (void)pthread_mutex_lock(&g->base.lock);
    uint64_t n = g->hold != NULL ? sg_hold_count(g->hold) : !g->hold_gone;
    (void)pthread_mutex_unlock(&g->base.lock);
    return n;
}

/* Under local.lock. */
static void report_slot(const struct slot *s, struct sg_slot_info *out)
{
    (void)snprintf(out->name, sizeof out->name, "%s", s->name);
    (void)snprintf(out->lease_id, sizeof out->lease_id, "%s", s->lease_id);
    (void)snprintf(out->last_error, sizeof out->last_error, "%s", s->last_error);
    out->state = s->state;
    out->draining = s->draining;
    out->generation = s->generation;
    out->uptime_ms = s->born_ms > 0 ? sg_now_ms() - s->born_ms : 0;
    out->open_fds = holds(s->gen);
}

static void report(struct sg_driver *d, struct sg_slot_report *ret)
{
    struct local *l = (struct local *)d;
    ret->pools = sg_xcalloc(l->n_pools, sizeof *ret->pools);
    ret->n = l->n_pools;
    (void)pthread_mutex_lock(&l->lock);
    for (size_t i = 0; i < l->n_pools; i++) {
        const struct pool *p = &l->pools[i];
        struct sg_slot_pool_info *out = &ret->pools[i];
        (void)snprintf(out->name, sizeof out->name, "%s", p->cfg.name);
        out->mode = p->cfg.mode;
        out->draining = p->draining;
        egress_report(p, out);
        out->waiters = p->n_waiters;
        memcpy(out->events, p->events, sizeof out->events);
        out->n = p->cfg.size;
        out->slots = sg_xcalloc(out->n, sizeof *out->slots);
        for (size_t k = 0; k < out->n; k++) {
            report_slot(&p->slots[k], &out->slots[k]);
        }
    }
    (void)pthread_mutex_unlock(&l->lock);
}

/* ---- changes ---- */

struct change {
    struct sg_task task;
    struct pool *pool;
    struct slot *slot; /* NULL: all */
    bool on;           /* drain; recycle: hard */
};

static int post_change(struct pool *p, struct slot *s, bool on, void (*run)(struct sg_task *t),
                       struct sg_error *err)
{
    struct change *c = sg_xcalloc(1, sizeof *c);
    c->task.run = run;
    c->pool = p;
    c->slot = s;
    c->on = on;
    local_ref(p->l);
    if (!local_post(p->l, &c->task)) {
        free(c);
        local_unref(p->l);
        return sg_error_set(err, SG_SHUTTING_DOWN, "the server is shutting down");
    }
    return 0;
}

static void change_free(struct change *c)
{
    struct local *l = c->pool->l;
    free(c);
    local_unref(l);
}

/* Finds the pool and, with a name, its slot. */
static int find(struct sg_driver *d, const char *pool, const char *slot, struct pool **ret_pool, struct slot **ret_slot,
                struct sg_error *err)
{
    struct pool *p = local_pool((struct local *)d, pool, err);
    *ret_slot = NULL;
    *ret_pool = p;
    if (p == NULL || slot == NULL) {
        return p == NULL ? -1 : 0;
    }
    for (unsigned i = 0; i < p->cfg.size; i++) {
        if (sg_streq(p->slots[i].name, slot)) {
            *ret_slot = &p->slots[i];
            return 0;
        }
    }
    return sg_error_set(err, SG_NOT_FOUND, "local pool \"%s\" has no slot \"%s\"", p->cfg.name, slot);
}

/* ---- drain ---- */

/* As its flag says now, which may have changed again since. */
static void drain_slot(struct slot *s)
{
    if (s->draining) {
        pool_withdraw(s);
    } else if (s->state == SG_SLOT_READY && !s->offered) {
        pool_offer(s);
    }
}

static void drain_run(struct sg_task *t)
{
    struct change *c = (struct change *)t;
    struct pool *p = c->pool;
    for (unsigned i = 0; !p->l->closing && i < p->cfg.size; i++) {
        drain_slot(&p->slots[i]);
    }
    if (pool_is_drained(p)) {
        struct sg_error err = {0};
        sg_error_set(&err, SG_UNAVAILABLE, "local pool \"%s\" is drained", p->cfg.name);
        sg_error_reason(&err, "pool_draining");
        sg_error_retry_after(&err, 10);
        pool_fail_waiters(p, &err);
        sg_error_clear(&err);
    }
    change_free(c);
}

static int drain(struct sg_driver *d, const char *pool, const char *slot, bool on, struct sg_error *err)
{
    struct pool *p = NULL;
    struct slot *s = NULL;
    if (find(d, pool, slot, &p, &s, err) < 0) {
        return -1;
    }
    /* Here, so that whoever asked sees it done. */
    if (s != NULL) {
        atomic_store(&s->draining, on);
    } else {
        atomic_store(&p->draining, on);
    }
    for (unsigned i = 0; s == NULL && !on && i < p->cfg.size; i++) {
        atomic_store(&p->slots[i].draining, false);
    }
    return post_change(p, s, on, drain_run, err);
}

/* ---- recycle ---- */

static void recycle_run(struct sg_task *t)
{
    struct change *c = (struct change *)t;
    for (unsigned i = 0; !c->pool->l->closing && i < c->pool->cfg.size; i++) {
        if (c->slot == NULL || c->slot == &c->pool->slots[i]) {
            slot_recycle(&c->pool->slots[i], c->on);
        }
    }
    change_free(c);
}

static int recycle(struct sg_driver *d, const char *pool, const char *slot, bool hard, struct sg_error *err)
{
    struct pool *p = NULL;
    struct slot *s = NULL;
    if (find(d, pool, slot, &p, &s, err) < 0) {
        return -1;
    }
    if (s != NULL && !hard) {
        (void)pthread_mutex_lock(&p->l->lock);
        bool leased = s->lease_id[0] != '\0' || s->state == SG_SLOT_LEASED || s->state == SG_SLOT_LOST;
        (void)pthread_mutex_unlock(&p->l->lock);
        if (leased) {
            return sg_error_set(err, SG_CONFLICT, "slot \"%s\" has a lease", slot);
        }
    }
    return post_change(p, s, hard, recycle_run, err);
}

/* ---- log ---- */

static int service_log(struct sg_driver *d, const char *pool, const char *slot, size_t max, char **ret, size_t *ret_len,
                       uint64_t *ret_total, struct sg_error *err)
{
    struct pool *p = NULL;
    struct slot *s = NULL;
    if (find(d, pool, slot, &p, &s, err) < 0) {
        return -1;
    }
    if (s == NULL || p->cfg.mode != SG_POOL_BLACKBOX) {
        return sg_error_set(err, SG_NOT_SUPPORTED, "the slots of local pool \"%s\" run no service", p->cfg.name);
    }
    *ret = service_log_tail(s, max, ret_len, ret_total);
    return 0;
}

const struct sg_slot_ops pool_slot_ops = {.report = report, .drain = drain, .recycle = recycle, .log = service_log};
