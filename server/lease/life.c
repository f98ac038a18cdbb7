/* The life of a lease once it is there: in use, extended, ending, ended. */
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

int sg_entry_submit(struct sg_entry *e, struct sg_store_op *op, unsigned how,
                    void (*fn)(void *arg, const struct sg_error *err), void *arg, struct sg_error *err)
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
        json_pack("{s:s, s:s, s:s, s:s}", "provider", e->lease.provider, "sandbox_id", e->lease.sandbox_id,
                  "reason", e->lease.reason, "receipt_id", e->lease.receipt_id);
    (void)snprintf(event, sizeof event, "lease.%s", sg_lease_state_name(e->lease.state));
    sg_store_op_audit(op, event, e->lease.terms->tenant, e->lease.id, detail);
}

void sg_entry_end_written(void *arg, const struct sg_error *err)
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
    if (e->lease.ended_us > 0) {
        sg_entry_settle(e, op);
    }
    sg_store_op_lease_state(op, &e->lease);
    sg_entry_op_events(e, op, NULL, false, 0);
    sg_entry_audit(e, op);
    e->unwritten++;
    if (sg_entry_submit(e, op, how | SG_STORE_KEEP, sg_entry_end_written, e, NULL) < 0) {
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
    (void)sg_error_set(err, e->lease.state == SG_LEASE_LOST ? SG_SANDBOX_LOST : SG_LEASE_GONE,
                       "lease %s is %s%s%s", e->lease.id, state, sep, e->lease.reason);
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
    if (!e->held || e->left || (!ready && e->lease.state != SG_LEASE_CREATING)) {
        return false;
    }
    const char *reason = detail != NULL ? detail : end_reason(why);
    struct sg_after_step *s = sg_after_add(a, e);
    s->cancel = true;
    s->on_end = ready;
    s->why = why;
    e->end = why;
    e->end_begun = true;
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
    r->closed = r->closed || why == SG_END_SHUTDOWN;
    HASH_ITER(by_id, r->by_id, e, next)
    {
        n += e->held;
        (void)sg_entry_begin_end(e, why, NULL, &after);
    }
    pthread_mutex_unlock(&r->lock);
    sg_after_run(r, &after);
    return n;
}

static void leave(struct sg_entry *e, struct sg_after *a)
{
    struct sg_after_step *s = sg_after_add(a, e);
    s->cancel = true;
    s->drop = e->sandbox;
    e->sandbox = NULL;
    e->left = true;
    sg_due_remove(e->reg, e);
}

size_t sg_registry_leave_all(struct sg_registry *r)
{
    struct sg_after after;
    struct sg_entry *e, *next;
    size_t n = 0;
    sg_after_init(&after);
    pthread_mutex_lock(&r->lock);
    r->closed = true;
    HASH_ITER(by_id, r->by_id, e, next)
    {
        if (e->held && e->outlives && !e->left && e->lease.state == SG_LEASE_READY) {
            leave(e, &after);
            n++;
        }
    }
    pthread_mutex_unlock(&r->lock);
    sg_after_run(r, &after);
    return n;
}

void sg_entry_finish_releasing(struct sg_entry *e, const struct sg_error *err, struct sg_after *a)
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

void sg_entry_let_go(struct sg_entry *e, struct sg_after *a)
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
    if (e->held && !e->committing &&
        (e->lease.state == SG_LEASE_RELEASING || e->lease.state == SG_LEASE_LOST)) {
        if (e->lease.state == SG_LEASE_RELEASING) {
            sg_entry_finish_releasing(e, err, &after);
            write_state(e, NULL, SG_STORE_LAZY);
        }
        sg_entry_let_go(e, &after);
        sg_entry_wake(e, &after);
    }
    pthread_mutex_unlock(&r->lock);
    sg_after_run(r, &after);
}

/* ---- extending ---- */

struct extension {
    struct sg_entry *entry;
    struct sg_store_done done;
    int64_t until_ms;
    int64_t at_us;   /* of its event */
    int64_t on_hold; /* what it may cost */
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
    struct sg_after after;
    sg_after_init(&after);
    pthread_mutex_lock(&e->reg->lock);
    e->extending--;
    if (err == NULL && x->until_ms > e->committed_expires_ms) {
        e->committed_expires_ms = x->until_ms;
    }
    if (err != NULL) {
        sg_entry_drop_hold(e, x->on_hold);
    }
    /* What could not be written down was not granted. */
    if (e->extending == 0 && e->lease.state == SG_LEASE_READY && e->expires_ms != e->committed_expires_ms) {
        set_expiry(e, e->committed_expires_ms);
        sg_due_set(e->reg, e);
    }
    if (err == NULL && e->lease.state == SG_LEASE_READY) {
        sg_entry_event(e, true, x->at_us, &after);
    }
    pthread_mutex_unlock(&e->reg->lock);
    x->done.fn(x->done.arg, err);
    free(x);
    sg_after_run(e->reg, &after);
}

/* Under the lock: 1 submitted, 0 nothing to change, -1. */
static int extend(struct sg_entry *e, int64_t timeout_ms, const struct sg_spend_limit *budget, const struct sg_store_done *done,
                  struct sg_after *a, struct sg_error *err)
{
    int64_t now = sg_now_ms();
    if (sg_entry_expire_if_due(e, now, a) || e->lease.state != SG_LEASE_READY) {
        return sg_entry_refuse(e, err);
    }
    e->idle_from_ms = now;
    if (now + timeout_ms <= e->expires_ms) {
        return 0;
    }
    const int64_t held_before = e->on_hold;
    if (sg_entry_hold_price(e, budget, now + timeout_ms - e->expires_ms, err) < 0) {
        return -1;
    }
    const int64_t before_ms = e->expires_ms;
    const int64_t before_us = e->lease.expires_us;
    struct extension *x = sg_xcalloc(1, sizeof *x);
    *x = (struct extension){.entry = e, .done = *done, .until_ms = now + timeout_ms, .on_hold = e->on_hold - held_before};
    set_expiry(e, x->until_ms);
    x->at_us = sg_wall_us();
    struct sg_store_op *op = sg_store_op_new();
    sg_cleanup(sg_json_p) json_t *detail = json_pack("{s:I}", "expires_us", (json_int_t)e->lease.expires_us);
    sg_store_op_lease_state(op, &e->lease);
    sg_entry_op_events(e, op, &e->lease, true, x->at_us);
    sg_store_op_audit(op, "lease.extended", e->lease.terms->tenant, e->lease.id, detail);
    e->extending++;
    if (sg_entry_submit(e, op, SG_STORE_DURABLE, extension_written, x, err) < 0) {
        e->extending--;
        sg_entry_drop_hold(e, x->on_hold);
        e->expires_ms = before_ms;
        e->lease.expires_us = before_us;
        free(x);
        return -1;
    }
    return 1;
}

int sg_registry_extend(struct sg_registry *r, struct sg_entry *e, int64_t timeout_ms, const struct sg_spend_limit *budget,
                       const struct sg_store_done *done, struct sg_error *err)
{
    struct sg_after after;
    sg_after_init(&after);
    pthread_mutex_lock(&r->lock);
    int rc = extend(e, timeout_ms, budget, done, &after, err);
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
    if (e->sandbox == NULL) { /* of a server before this one, and not found yet */
        (void)sg_error_set(err, SG_UNAVAILABLE, "the sandbox of lease %s is being found again after a restart", e->lease.id);
        (void)sg_error_reason(err, "recovering");
        return sg_error_retry_after(err, 1);
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

static int use_begin(struct sg_entry *e, bool exec, int64_t max_execs, struct sg_sandbox **ret,
                     struct sg_error *err)
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
    struct sg_after after;
    sg_after_init(&after);
    pthread_mutex_lock(&r->lock);
    e->uses--;
    e->tenant->execs -= exec;
    r->stats.execs -= exec;
    if (counts) {
        e->idle_from_ms = sg_now_ms();
    }
    if (e->left) {
        sg_entry_wake(e, &after);
    } else if (e->uses == 0 && e->lease.state == SG_LEASE_READY) {
        sg_due_set(r, e);
    }
    pthread_mutex_unlock(&r->lock);
    sg_after_run(r, &after);
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
