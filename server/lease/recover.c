/* What a former server left behind. */
#include <semaphore.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/json.h"
#include "lease/registry_priv.h"

#define PAGE 200

#define LIVE_STATES ((1U << SG_LEASE_CREATING) | (1U << SG_LEASE_READY) | (1U << SG_LEASE_RELEASING))

struct wait {
    sem_t sem;
    struct sg_error *err;
    int rc;
};

static void wake(void *arg, const struct sg_error *err)
{
    struct wait *w = arg;
    if (err != NULL) {
        w->rc = -1;
        if (w->err != NULL) {
            sg_error_copy(w->err, err);
        }
    }
    sem_post(&w->sem);
}

static int write_and_wait(struct sg_store *s, struct sg_store_op *op, struct sg_error *err)
{
    struct wait w = {.err = err};
    struct sg_store_done done = {.fn = wake, .arg = &w};
    sem_init(&w.sem, 0, 0);
    int rc = sg_store_submit(s, op, SG_STORE_DURABLE, &done, err);
    if (rc == 0) {
        while (sem_wait(&w.sem) != 0) {
        }
        rc = w.rc;
    }
    sem_destroy(&w.sem);
    return rc;
}

/* What is known of an old server's lease; what it may have told and not written is left out of the count. */
static void old_events(struct sg_registry *r, const struct sg_lease *l, struct sg_lease_events *ret)
{
    if (sg_lease_events_load(r->cfg.store, l, ret, NULL) < 0) {
        *ret = (struct sg_lease_events){0}; /* damaged: the lease itself must not be forgotten for it */
    }
    sg_lease_events_skip(ret);
}

/* Its sandbox died with the server. One that was being released got what its caller wanted. */
static void note_gone(struct sg_registry *r, struct sg_store_op *op, struct sg_lease *l)
{
    struct sg_lease_events events;
    old_events(r, l, &events);
    l->state = l->state == SG_LEASE_RELEASING ? SG_LEASE_TERMINATED : SG_LEASE_LOST;
    l->ended_us = sg_wall_us();
    (void)snprintf(l->reason, sizeof l->reason, "server_restarted");
    char event[32];
    (void)snprintf(event, sizeof event, "lease.%s", sg_lease_state_name(l->state));
    sg_cleanup(sg_json_p) json_t *detail = json_pack("{s:s, s:s, s:s}", "provider", l->provider, "sandbox_id",
                                                     l->sandbox_id, "reason", l->reason);
    sg_lease_events_add(&events, l, false, l->ended_us);
    pthread_mutex_lock(&r->lock);
    sg_tenant_charge(sg_registry_tenant(r, l->terms->tenant), l, op);
    pthread_mutex_unlock(&r->lock);
    sg_store_op_lease_state(op, l);
    sg_store_op_events(op, l->id, &events);
    sg_lease_events_finish(&events);
    sg_store_op_audit(op, event, l->terms->tenant, l->id, detail);
}

/* Takes l over. */
static struct sg_entry *take_over(struct sg_registry *r, struct sg_lease *l)
{
    struct sg_lease_events events;
    old_events(r, l, &events);
    pthread_mutex_lock(&r->lock);
    struct sg_entry *e = sg_entry_new(r, l->terms);
    sg_lease_finish(&e->lease);
    e->events = events;
    e->lease = *l;
    memset(l, 0, sizeof *l);
    e->stored = true;
    e->outlives = true;
    if (e->lease.state == SG_LEASE_READY) { /* it ends when it was to, found again or not */
        e->expires_ms = sg_now_ms() + (e->lease.expires_us - sg_wall_us()) / 1000;
        e->committed_expires_ms = e->expires_ms;
        e->idle_from_ms = sg_now_ms();
    } else if (e->lease.state == SG_LEASE_RELEASING) {
        bool expired = sg_streq(e->lease.reason, "timeout") || sg_streq(e->lease.reason, "idle_timeout");
        e->end = expired ? SG_END_EXPIRED : SG_END_DELETED;
        sg_cancel_fire(e->cancel, SG_CANCEL_LEASE_END);
    }
    sg_registry_index(r, e);
    if (e->lease.state == SG_LEASE_READY) {
        sg_due_set(r, e);
    }
    int64_t ms = e->lease.expires_us > 0 ? (e->lease.expires_us - e->lease.created_us) / 1000 : e->lease.terms->timeout_ms;
    (void)sg_entry_hold_price(e, &(struct sg_spend_limit){0}, ms, NULL);
    pthread_mutex_unlock(&r->lock);
    return e;
}

static int recover_page(struct sg_registry *r, const struct sg_recover *how, struct sg_lease_page *page,
                        size_t *ret_lost, struct sg_error *err)
{
    struct sg_store_op *op = sg_store_op_new();
    struct sg_entry *adopt[PAGE];
    size_t n_adopt = 0;
    size_t n_lost = 0;
    for (size_t i = 0; i < page->n; i++) {
        struct sg_lease *l = &page->items[i];
        if (how->adopt != NULL && how->outlives != NULL && how->outlives(how->arg, l->provider)) {
            adopt[n_adopt++] = take_over(r, l);
        } else {
            note_gone(r, op, l);
            n_lost++;
        }
    }
    int rc = 0;
    if (n_lost > 0) {
        rc = write_and_wait(r->cfg.store, op, err);
    } else {
        sg_store_op_free(op);
    }
    for (size_t i = 0; i < n_adopt; i++) {
        how->adopt(how->arg, adopt[i]);
        sg_entry_unref(adopt[i]);
    }
    *ret_lost += n_lost;
    return rc;
}

int sg_registry_recover(struct sg_registry *r, const struct sg_recover *how, size_t *ret_lost,
                        struct sg_error *err)
{
    char after[SG_ID_MAX] = "";
    size_t lost = 0;
    if (sg_registry_load_spent(r, err) < 0) {
        return sg_error_wrap(err, "cannot read what was spent");
    }
    do {
        struct sg_lease_query q = {
            .states = LIVE_STATES, .limit = PAGE, .after = after[0] != '\0' ? after : NULL};
        struct sg_lease_page page;
        if (sg_store_leases(r->cfg.store, &q, &page, err) < 0) {
            return sg_error_wrap(err, "cannot read the leases of the server before");
        }
        memcpy(after, page.next, sizeof after);
        int rc = recover_page(r, how, &page, &lost, err);
        sg_lease_page_finish(&page);
        if (rc < 0) {
            return sg_error_wrap(err, "cannot write down what became of the leases of the server before");
        }
    } while (after[0] != '\0');
    if (ret_lost != NULL) {
        *ret_lost = lost;
    }
    return 0;
}

void sg_registry_adopted(struct sg_registry *r, struct sg_entry *e, struct sg_sandbox *sb)
{
    struct sg_after after;
    sg_after_init(&after);
    pthread_mutex_lock(&r->lock);
    if (e->held && !e->left && e->sandbox == NULL) {
        e->sandbox = r->cfg.sandbox_ref(sb);
        if (e->lease.state == SG_LEASE_READY) {
            int64_t left_ms = (e->lease.expires_us - sg_wall_us()) / 1000;
            e->expires_ms = sg_now_ms() + left_ms;
            e->committed_expires_ms = e->expires_ms;
            e->idle_from_ms = sg_now_ms();
            sg_due_set(r, e);
        } else if (e->lease.state == SG_LEASE_RELEASING && !e->end_begun) { /* else on_end() has come already */
            struct sg_after_step *s = sg_after_add(&after, e);
            s->on_end = true;
            s->why = e->end;
        }
    }
    pthread_mutex_unlock(&r->lock);
    sg_after_run(r, &after);
}
