/* The life of a lease: creating, ready, in use, extended, ending, ended. */
#include <stdio.h>

#include "base/clock.h"
#include "base/json.h"
#include "lease/registry_priv.h"
#include "model/lease_json.h"

/* ---- writing it down ---- */

struct write {
    struct sg_entry *entry;
    void (*fn)(void *arg, const struct sg_error *err);
    void *arg;
};

static void written(void *arg, const struct sg_error *err)
{
    struct write *w = arg;
    struct sg_registry *r = w->entry->reg;
    w->fn(w->arg, err);
    pthread_mutex_lock(&r->lock);
    r->writes--;
    if (r->writes == 0) {
        pthread_cond_broadcast(&r->quiet);
    }
    pthread_mutex_unlock(&r->lock);
    sg_entry_unref(w->entry);
    free(w);
}

int sg_entry_submit(struct sg_entry *e, struct sg_store_op *op, unsigned how, void (*fn)(void *arg, const struct sg_error *err),
                    void *arg, struct sg_error *err)
{
    struct write *w = sg_xcalloc(1, sizeof *w);
    *w = (struct write){.entry = sg_entry_ref(e), .fn = fn, .arg = arg};
    struct sg_store_done done = {.fn = written, .arg = w};
    e->reg->writes++;
    if (sg_store_submit(e->reg->cfg.store, op, how, &done, err) < 0) {
        e->reg->writes--;
        sg_entry_unref(e); /* never the last: the caller has one */
        free(w);
        return -1;
    }
    return 0;
}

void sg_entry_audit(const struct sg_entry *e, struct sg_store_op *op)
{
    char event[32];
    sg_cleanup(sg_json_p) json_t *detail =
        json_pack("{s:s, s:s, s:s, s:s}", "provider", e->lease.provider, "sandbox_id", e->lease.sandbox_id, "reason",
                  e->lease.reason, "receipt_id", e->lease.receipt_id);
    (void)snprintf(event, sizeof event, "lease.%s", sg_lease_state_name(e->lease.state));
    sg_store_op_audit(op, event, e->lease.terms->tenant, e->lease.id, detail);
}

static void end_written(void *arg, const struct sg_error *err)
{
    struct sg_entry *e = arg;
    struct sg_after after;
    (void)err; /* it is kept and written later; what happened has happened */
    sg_after_init(&after);
    pthread_mutex_lock(&e->reg->lock);
    e->unwritten--;
    sg_entry_wake(e, &after);
    pthread_mutex_unlock(&e->reg->lock);
    sg_after_run(e->reg, &after);
}

/* The state it is in now, which is a fact already. op: further rows or NULL. */
static void write_state(struct sg_entry *e, struct sg_store_op *op, unsigned how)
{
    op = op != NULL ? op : sg_store_op_new();
    sg_store_op_lease_state(op, &e->lease);
    sg_entry_audit(e, op);
    e->unwritten++;
    if (sg_entry_submit(e, op, how | SG_STORE_KEEP, end_written, e, NULL) < 0) {
        e->unwritten--; /* out of memory: after a restart it will be found lost, which is not wrong */
    }
}

/* ---- refusals ---- */

int sg_entry_refuse(const struct sg_entry *e, struct sg_error *err)
{
    const char *state = sg_lease_state_name(e->lease.state);
    const char *sep = e->lease.reason[0] != '\0' ? ": " : "";
    if (e->lease.state == SG_LEASE_CREATING) {
        (void)sg_error_set(err, SG_LEASE_NOT_READY, "lease %s is still being created", e->lease.id);
        return sg_error_retry_after(err, 1);
    }
    (void)sg_error_set(err, e->lease.state == SG_LEASE_LOST ? SG_SANDBOX_LOST : SG_LEASE_GONE, "lease %s is %s%s%s",
                       e->lease.id, state, sep, e->lease.reason);
    return sg_error_reason(err, state);
}

/* ---- ending ---- */

static const char *end_reason(enum sg_end why)
{
    switch (why) {
    case SG_END_DELETED:
        return "deleted";
    case SG_END_SHUTDOWN:
        return "server_shutdown";
    case SG_END_EXPIRED:
        return "timeout";
    case SG_END_IDLE:
        return "idle_timeout";
    case SG_END_LOST:
        break;
    }
    return "sandbox_lost";
}

static enum sg_lease_state end_state(enum sg_end why)
{
    switch (why) {
    case SG_END_DELETED:
    case SG_END_SHUTDOWN:
        return SG_LEASE_TERMINATED;
    case SG_END_EXPIRED:
    case SG_END_IDLE:
        return SG_LEASE_EXPIRED;
    case SG_END_LOST:
        break;
    }
    return SG_LEASE_LOST;
}

bool sg_entry_begin_end(struct sg_entry *e, enum sg_end why, const char *detail, struct sg_after *a)
{
    bool ready = e->lease.state == SG_LEASE_READY;
    if (!e->held || (!ready && e->lease.state != SG_LEASE_CREATING)) {
        return false;
    }
    const char *reason = detail != NULL ? detail : end_reason(why);
    struct sg_after_step *s = sg_after_add(a, e);
    s->cancel = true;
    s->on_end = ready;
    s->why = why;
    e->end = why;
    sg_registry_unindex_trajectory(e->reg, e);
    sg_due_remove(e->reg, e);
    sg_entry_step(e, ready && why == SG_END_LOST ? SG_LEASE_LOST : SG_LEASE_RELEASING, reason, a);
    if (ready && why == SG_END_LOST) {
        write_state(e, NULL, SG_STORE_LAZY);
    } else if (ready && e->outlives) {
        /* The provider goes on charging until it is told: a crash must not forget that. */
        write_state(e, NULL, SG_STORE_DURABLE);
    }
    return true;
}

bool sg_entry_expire_if_due(struct sg_entry *e, int64_t now, struct sg_after *a)
{
    if (e->lease.state == SG_LEASE_READY && now >= e->expires_ms) {
        (void)sg_entry_begin_end(e, SG_END_EXPIRED, NULL, a);
    }
    return e->lease.state != SG_LEASE_READY && e->lease.state != SG_LEASE_CREATING;
}

bool sg_registry_end(struct sg_registry *r, struct sg_entry *e, enum sg_end why, const char *detail)
{
    struct sg_after after;
    sg_after_init(&after);
    pthread_mutex_lock(&r->lock);
    bool began = sg_entry_begin_end(e, why, detail, &after);
    pthread_mutex_unlock(&r->lock);
    sg_after_run(r, &after);
    return began;
}

size_t sg_registry_end_all(struct sg_registry *r, enum sg_end why)
{
    struct sg_after after;
    struct sg_entry *e, *next;
    size_t n = 0;
    sg_after_init(&after);
    pthread_mutex_lock(&r->lock);
    HASH_ITER(by_id, r->by_id, e, next)
    {
        n += e->held;
        (void)sg_entry_begin_end(e, why, NULL, &after);
    }
    pthread_mutex_unlock(&r->lock);
    sg_after_run(r, &after);
    return n;
}

/* From releasing into the state its end leads to. */
static void finish_releasing(struct sg_entry *e, const struct sg_error *err, struct sg_after *a)
{
    char reason[sizeof e->lease.reason];
    if (err != NULL) {
        (void)snprintf(reason, sizeof reason, "terminate_failed: %.*s", 120, err->message);
        sg_entry_step(e, SG_LEASE_LOST, reason, a);
        return;
    }
    memcpy(reason, e->lease.reason, sizeof reason);
    sg_entry_step(e, end_state(e->end), reason, a);
}

/* Its sandbox goes, its place is free. */
static void let_go(struct sg_entry *e, struct sg_after *a)
{
    sg_after_add(a, e)->drop = e->sandbox;
    e->sandbox = NULL;
    sg_entry_release_quota(e);
    sg_registry_retire(e->reg, e);
}

void sg_registry_ended(struct sg_registry *r, struct sg_entry *e, const struct sg_error *err)
{
    struct sg_after after;
    sg_after_init(&after);
    pthread_mutex_lock(&r->lock);
    if (e->held && !e->committing && (e->lease.state == SG_LEASE_RELEASING || e->lease.state == SG_LEASE_LOST)) {
        if (e->lease.state == SG_LEASE_RELEASING) {
            finish_releasing(e, err, &after);
            write_state(e, NULL, SG_STORE_LAZY);
        }
        let_go(e, &after);
        sg_entry_wake(e, &after);
    }
    pthread_mutex_unlock(&r->lock);
    sg_after_run(r, &after);
}

/* ---- creating ---- */

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
        sg_entry_step(e, SG_LEASE_READY, "", &after);
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

/* Fills the entry in; the lease as it will be goes to *ret. */
static void fill_in(struct sg_entry *e, const struct sg_grant *g, struct sg_lease *ret)
{
    struct sg_lease *l = &e->lease;
    (void)snprintf(l->provider, sizeof l->provider, "%s", g->provider);
    (void)snprintf(l->sandbox_id, sizeof l->sandbox_id, "%s", g->sandbox_id);
    (void)snprintf(l->receipt_id, sizeof l->receipt_id, "%s", g->receipt_id != NULL ? g->receipt_id : "");
    l->caps = g->caps;
    json_decref(l->metadata);
    l->metadata = json_incref(g->metadata);
    e->outlives = g->outlives_server;
    e->sandbox = g->sandbox != NULL ? e->reg->cfg.sandbox_ref(g->sandbox) : NULL;
    e->expires_ms = sg_now_ms() + l->terms->timeout_ms;
    e->committed_expires_ms = e->expires_ms;
    l->expires_us = sg_wall_us() + l->terms->timeout_ms * 1000;
    sg_lease_copy(ret, l);
    ret->state = SG_LEASE_READY;
}

/* The one transaction that makes a lease ready. */
static struct sg_store_op *seal_op(struct sg_entry *e, const struct sg_grant *g, const struct sg_lease *l, struct seal *s,
                                   struct sg_store_op *op)
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
            sg_store_op_answer(op, t->tenant, t->idempotency_key, t->request_hash, l->id, g->answer_status, s->answer);
        }
    }
    return op;
}

int sg_registry_ready(struct sg_registry *r, struct sg_entry *e, const struct sg_grant *g, struct sg_store_op *with,
                      const struct sg_store_done *done, struct sg_error *err)
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
    if (rc < 0) {
        sg_store_op_free(with);
        return -1;
    }
    struct seal *s = sg_xcalloc(1, sizeof *s);
    *s = (struct seal){.entry = e, .done = done != NULL ? *done : (struct sg_store_done){0}};
    struct sg_store_op *op = seal_op(e, g, &l, s, with);
    pthread_mutex_lock(&r->lock);
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
    end_written(e, err);
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
    if (e->stored) {
        sg_store_op_lease_state(op, &e->lease);
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
        finish_releasing(e, NULL, a);
    }
}

void sg_registry_failed(struct sg_registry *r, struct sg_entry *e, struct sg_store_op *with, const struct sg_error *why,
                        const struct sg_store_done *done)
{
    struct sg_error err = {0};
    struct sg_after after;
    sg_after_init(&after);
    pthread_mutex_lock(&r->lock);
    bool writes = false;
    if (e->held && !e->committing && (e->lease.state == SG_LEASE_CREATING || e->lease.state == SG_LEASE_RELEASING)) {
        step_failed(e, why, &after);
        writes = write_failure(e, with, done, &err);
        let_go(e, &after);
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

/* ---- extending ---- */

struct extension {
    struct sg_entry *entry;
    struct sg_store_done done;
    int64_t until_ms;
};

static void set_expiry(struct sg_entry *e, int64_t until_ms)
{
    e->expires_ms = until_ms;
    e->lease.expires_us = sg_wall_us() + (until_ms - sg_now_ms()) * 1000;
}

static void extension_written(void *arg, const struct sg_error *err)
{
    struct extension *x = arg;
    struct sg_entry *e = x->entry;
    pthread_mutex_lock(&e->reg->lock);
    e->extending--;
    if (err == NULL && x->until_ms > e->committed_expires_ms) {
        e->committed_expires_ms = x->until_ms;
    }
    /* What could not be written down was not granted. */
    if (e->extending == 0 && e->lease.state == SG_LEASE_READY && e->expires_ms != e->committed_expires_ms) {
        set_expiry(e, e->committed_expires_ms);
        sg_due_set(e->reg, e);
    }
    pthread_mutex_unlock(&e->reg->lock);
    x->done.fn(x->done.arg, err);
    free(x);
}

/* Under the lock: 1 submitted, 0 nothing to change, -1. */
static int extend(struct sg_entry *e, int64_t timeout_ms, const struct sg_store_done *done, struct sg_after *a,
                  struct sg_error *err)
{
    int64_t now = sg_now_ms();
    if (sg_entry_expire_if_due(e, now, a) || e->lease.state != SG_LEASE_READY) {
        return sg_entry_refuse(e, err);
    }
    e->idle_from_ms = now;
    if (now + timeout_ms <= e->expires_ms) {
        return 0;
    }
    const int64_t before_ms = e->expires_ms;
    const int64_t before_us = e->lease.expires_us;
    struct extension *x = sg_xcalloc(1, sizeof *x);
    *x = (struct extension){.entry = e, .done = *done, .until_ms = now + timeout_ms};
    set_expiry(e, x->until_ms);
    struct sg_store_op *op = sg_store_op_new();
    sg_cleanup(sg_json_p) json_t *detail = json_pack("{s:I}", "expires_us", (json_int_t)e->lease.expires_us);
    sg_store_op_lease_state(op, &e->lease);
    sg_store_op_audit(op, "lease.extended", e->lease.terms->tenant, e->lease.id, detail);
    e->extending++;
    if (sg_entry_submit(e, op, SG_STORE_DURABLE, extension_written, x, err) < 0) {
        e->extending--;
        e->expires_ms = before_ms;
        e->lease.expires_us = before_us;
        free(x);
        return -1;
    }
    return 1;
}

int sg_registry_extend(struct sg_registry *r, struct sg_entry *e, int64_t timeout_ms, const struct sg_store_done *done,
                       struct sg_error *err)
{
    struct sg_after after;
    sg_after_init(&after);
    pthread_mutex_lock(&r->lock);
    int rc = extend(e, timeout_ms, done, &after, err);
    pthread_mutex_unlock(&r->lock);
    sg_after_run(r, &after);
    if (rc == 0) {
        done->fn(done->arg, NULL);
    }
    return rc < 0 ? -1 : 0;
}

/* ---- use ---- */

static int use(struct sg_entry *e, bool exec, int64_t max_execs, struct sg_sandbox **ret, struct sg_after *a,
               struct sg_error *err)
{
    struct sg_tenant_use *t = e->tenant;
    if (sg_entry_expire_if_due(e, sg_now_ms(), a) || e->lease.state != SG_LEASE_READY) {
        return sg_entry_refuse(e, err);
    }
    if (exec && max_execs > 0 && t->execs >= (size_t)max_execs) {
        (void)sg_error_set(err, SG_QUOTA_EXCEEDED, "%s runs %zu commands of at most %lld", t->name, t->execs,
                           (long long)max_execs);
        sg_error_member(err, "limit", json_integer(max_execs));
        sg_error_member(err, "use", json_integer((json_int_t)t->execs));
        sg_error_member(err, "owner", json_string(t->name));
        return sg_error_retry_after(err, 1);
    }
    e->uses++;
    t->execs += exec;
    e->reg->stats.execs += exec;
    if (ret != NULL) {
        *ret = e->reg->cfg.sandbox_ref(e->sandbox);
    }
    return 0;
}

static int use_begin(struct sg_entry *e, bool exec, int64_t max_execs, struct sg_sandbox **ret, struct sg_error *err)
{
    struct sg_registry *r = e->reg;
    struct sg_after after;
    sg_after_init(&after);
    pthread_mutex_lock(&r->lock);
    int rc = use(e, exec, max_execs, ret, &after, err);
    pthread_mutex_unlock(&r->lock);
    sg_after_run(r, &after);
    return rc;
}

static void use_end(struct sg_entry *e, bool exec, bool counts)
{
    struct sg_registry *r = e->reg;
    pthread_mutex_lock(&r->lock);
    e->uses--;
    e->tenant->execs -= exec;
    r->stats.execs -= exec;
    if (counts) {
        e->idle_from_ms = sg_now_ms();
    }
    if (e->uses == 0 && e->lease.state == SG_LEASE_READY) {
        sg_due_set(r, e);
    }
    pthread_mutex_unlock(&r->lock);
}

int sg_entry_use_begin(struct sg_entry *e, struct sg_sandbox **ret, struct sg_error *err)
{
    return use_begin(e, false, 0, ret, err);
}

void sg_entry_use_end(struct sg_entry *e, bool counts)
{
    use_end(e, false, counts);
}

int sg_entry_exec_begin(struct sg_entry *e, int64_t max_execs, struct sg_sandbox **ret, struct sg_error *err)
{
    return use_begin(e, true, max_execs, ret, err);
}

void sg_entry_exec_end(struct sg_entry *e, bool counts)
{
    use_end(e, true, counts);
}
