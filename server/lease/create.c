/* The way of a reserved lease to ready, or to nothing. */
#include <stdio.h>

#include "base/clock.h"
#include "base/json.h"
#include "lease/registry_priv.h"

struct intent {
    struct sg_entry *entry;
    struct sg_store_done done;
};

static void intent_written(void *arg, const struct sg_error *err)
{
    struct intent *i = arg;
    if (err == NULL) {
        pthread_mutex_lock(&i->entry->reg->lock);
        i->entry->stored = true;
        pthread_mutex_unlock(&i->entry->reg->lock);
    }
    if (i->done.fn != NULL) {
        i->done.fn(i->done.arg, err);
    }
    free(i);
}

int sg_registry_intent(struct sg_registry *r, struct sg_entry *e, const char *provider, bool outlives_server,
                       struct sg_store_op *with, const struct sg_store_done *done, struct sg_error *err)
{
    struct sg_store_op *op = with != NULL ? with : sg_store_op_new();
    struct intent *i = sg_xcalloc(1, sizeof *i);
    *i = (struct intent){.entry = e, .done = done != NULL ? *done : (struct sg_store_done){0}};
    pthread_mutex_lock(&r->lock);
    e->outlives = outlives_server;
    if (provider != NULL) {
        (void)snprintf(e->lease.provider, sizeof e->lease.provider, "%s", provider);
    }
    int rc;
    if (e->lease.state == SG_LEASE_CREATING) {
        sg_store_op_lease(op, &e->lease);
        sg_entry_op_events(e, op, NULL, false, 0);
        sg_entry_audit(e, op);
        rc = sg_entry_submit(e, op, SG_STORE_DURABLE, intent_written, i, err);
    } else {
        sg_store_op_free(op);
        rc = sg_entry_refuse(e, err);
    }
    pthread_mutex_unlock(&r->lock);
    if (rc < 0) {
        free(i);
    }
    return rc;
}

struct seal {
    struct sg_entry *entry;
    struct sg_store_done done;
    char *answer;
    int answer_status;
};

static void seal_free(struct seal *s)
{
    free(s->answer);
    free(s);
}

/* The commit of a ready lease went wrong or came too late: the sandbox is the creator's again. */
static void take_back(struct sg_entry *e, struct sg_after *a)
{
    sg_after_add(a, e)->drop = e->sandbox;
    e->sandbox = NULL;
    e->lease.expires_us = 0;
}

static void seal_written(void *arg, const struct sg_error *err)
{
    struct seal *s = arg;
    struct sg_entry *e = s->entry;
    struct sg_error gone = {0};
    struct sg_after after;
    sg_after_init(&after);
    pthread_mutex_lock(&e->reg->lock);
    e->committing = false;
    e->stored = e->stored || err == NULL;
    if (err == NULL && e->lease.state == SG_LEASE_CREATING) {
        e->answer = sg_steal(&s->answer);
        e->answer_status = s->answer_status;
        e->idle_from_ms = sg_now_ms();
        sg_entry_step_at(e, SG_LEASE_READY, "", e->ready_us, &after);
        sg_due_set(e->reg, e);
    } else {
        if (err == NULL) {
            (void)sg_entry_refuse(e, &gone);
            err = &gone;
        }
        take_back(e, &after);
    }
    pthread_mutex_unlock(&e->reg->lock);
    if (s->done.fn != NULL) {
        s->done.fn(s->done.arg, err);
    }
    sg_after_run(e->reg, &after);
    sg_error_clear(&gone);
    seal_free(s);
}

static void set_metadata(struct sg_entry *e, json_t *v)
{
    sg_json_unref(e->lease.metadata);
    e->lease.metadata = sg_json_ref(v);
}

void sg_registry_progress(struct sg_registry *r, struct sg_entry *e, json_t *what)
{
    pthread_mutex_lock(&r->lock);
    if (e->lease.state == SG_LEASE_CREATING && !e->committing) {
        set_metadata(e, what);
    }
    pthread_mutex_unlock(&r->lock);
}

/* Fills the entry in; the lease as it will be goes to *ret. */
static void fill_in(struct sg_entry *e, const struct sg_grant *g, struct sg_lease *ret)
{
    struct sg_lease *l = &e->lease;
    (void)snprintf(l->provider, sizeof l->provider, "%s", g->provider);
    (void)snprintf(l->sandbox_id, sizeof l->sandbox_id, "%s", g->sandbox_id);
    (void)snprintf(l->receipt_id, sizeof l->receipt_id, "%s", g->receipt_id != NULL ? g->receipt_id : "");
    l->caps = g->caps;
    set_metadata(e, g->metadata);
    e->outlives = g->outlives_server;
    e->sandbox = g->sandbox != NULL ? e->reg->cfg.sandbox_ref(g->sandbox) : NULL;
    e->expires_ms = sg_now_ms() + l->terms->timeout_ms;
    e->committed_expires_ms = e->expires_ms;
    l->expires_us = sg_wall_us() + l->terms->timeout_ms * 1000;
    sg_lease_copy(ret, l);
    ret->state = SG_LEASE_READY;
}

/* The one transaction that makes a lease ready. */
static struct sg_store_op *seal_op(struct sg_entry *e, const struct sg_grant *g, const struct sg_lease *l,
                                   struct seal *s, struct sg_store_op *op)
{
    const struct sg_lease_terms *t = l->terms;
    op = op != NULL ? op : sg_store_op_new();
    sg_store_op_lease(op, l);
    sg_cleanup(sg_json_p) json_t *detail = json_pack("{s:s, s:s, s:s}", "provider", l->provider, "sandbox_id",
                                                     l->sandbox_id, "receipt_id", l->receipt_id);
    sg_store_op_audit(op, "lease.ready", t->tenant, l->id, detail);
    if (e->key != NULL && g->answer != NULL) {
        s->answer = g->answer(g->arg, l);
        s->answer_status = g->answer_status;
        if (s->answer != NULL) {
            sg_store_op_answer(op, t->tenant, t->idempotency_key, t->request_hash, l->id, g->answer_status,
                               s->answer);
        }
    }
    return op;
}

int sg_registry_ready(struct sg_registry *r, struct sg_entry *e, const struct sg_grant *g,
                      struct sg_store_op *with, const struct sg_store_done *done, struct sg_error *err)
{
    struct sg_lease l = {0};
    struct sg_after after;
    sg_after_init(&after);
    pthread_mutex_lock(&r->lock);
    int rc = e->lease.state == SG_LEASE_CREATING && !e->committing ? 0 : sg_entry_refuse(e, err);
    if (rc == 0) {
        e->committing = true;
        fill_in(e, g, &l);
    }
    pthread_mutex_unlock(&r->lock);
    if (rc != 0) {
        sg_store_op_free(with);
        return -1;
    }
    struct seal *s = sg_xcalloc(1, sizeof *s);
    *s = (struct seal){.entry = e, .done = done != NULL ? *done : (struct sg_store_done){0}};
    struct sg_store_op *op = seal_op(e, g, &l, s, with);
    pthread_mutex_lock(&r->lock);
    e->ready_us = sg_wall_us();
    sg_entry_op_events(e, op, &l, false, e->ready_us);
    rc = sg_entry_submit(e, op, SG_STORE_DURABLE, seal_written, s, err);
    if (rc < 0) {
        e->committing = false;
        take_back(e, &after);
    }
    pthread_mutex_unlock(&r->lock);
    if (rc < 0) {
        seal_free(s);
    }
    sg_lease_finish(&l);
    sg_after_run(r, &after);
    return rc;
}

struct failure {
    struct sg_entry *entry;
    struct sg_store_done done;
};

static void failure_written(void *arg, const struct sg_error *err)
{
    struct failure *f = arg;
    struct sg_store_done done = f->done;
    struct sg_entry *e = f->entry;
    free(f);
    sg_entry_end_written(e, err);
    if (done.fn != NULL) {
        done.fn(done.arg, err);
    }
}

/* What there is to write of a failed create. False: nothing, or no memory for it (err). */
static bool write_failure(struct sg_entry *e, struct sg_store_op *with, const struct sg_store_done *done,
                          struct sg_error *err)
{
    const struct sg_lease_terms *t = e->lease.terms;
    unsigned how = SG_STORE_KEEP | (with != NULL ? SG_STORE_DURABLE : SG_STORE_LAZY);
    if (with == NULL && !e->stored) {
        return false;
    }
    struct sg_store_op *op = with != NULL ? with : sg_store_op_new();
    sg_entry_settle(e, op);
    if (e->stored) {
        sg_store_op_lease_state(op, &e->lease);
        sg_entry_op_events(e, op, NULL, false, 0);
        sg_entry_audit(e, op);
        if (e->key != NULL) {
            sg_store_op_no_answer(op, t->tenant, t->idempotency_key, e->lease.id);
        }
    }
    struct failure *f = sg_xcalloc(1, sizeof *f);
    *f = (struct failure){.entry = e, .done = done != NULL ? *done : (struct sg_store_done){0}};
    e->unwritten++;
    if (sg_entry_submit(e, op, how, failure_written, f, err) < 0) {
        e->unwritten--;
        free(f);
        return false;
    }
    return true;
}

/* Under the lock: the state that follows from a create that failed. */
static void step_failed(struct sg_entry *e, const struct sg_error *why, struct sg_after *a)
{
    sg_error_copy(&e->failure, why);
    sg_registry_unindex_trajectory(e->reg, e);
    sg_registry_unindex_key(e->reg, e);
    if (e->lease.state == SG_LEASE_CREATING) {
        char reason[sizeof e->lease.reason];
        (void)snprintf(reason, sizeof reason, "%s: %.*s", sg_code_name(why->code), 100, why->message);
        sg_entry_step(e, SG_LEASE_FAILED, reason, a);
    } else {
        sg_entry_finish_releasing(e, NULL, a);
    }
}

void sg_registry_failed(struct sg_registry *r, struct sg_entry *e, struct sg_store_op *with,
                        const struct sg_error *why, const struct sg_store_done *done)
{
    struct sg_error err = {0};
    struct sg_after after;
    sg_after_init(&after);
    pthread_mutex_lock(&r->lock);
    bool writes = false;
    if (e->held && !e->committing &&
        (e->lease.state == SG_LEASE_CREATING || e->lease.state == SG_LEASE_RELEASING)) {
        if (e->lease.sandbox_id[0] == '\0') {
            set_metadata(e, NULL); /* only progress has been there */
        }
        step_failed(e, why, &after);
        writes = write_failure(e, with, done, &err);
        sg_entry_let_go(e, &after);
        sg_entry_wake(e, &after);
    } else {
        sg_store_op_free(with);
    }
    pthread_mutex_unlock(&r->lock);
    sg_after_run(r, &after);
    if (!writes && done != NULL) {
        done->fn(done->arg, err.code != SG_OK ? &err : NULL);
    }
    sg_error_clear(&err);
}
