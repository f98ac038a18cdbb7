/* The atomic step from a request to a lease of its own, the one that is there already, or a refusal. */
#include "base/clock.h"
#include "base/json.h"
#include "lease/registry_priv.h"
#include "model/lease_json.h"

static bool same_request(const char *a, const struct sg_lease_terms *t)
{
    return sg_streq(a, t->request_hash);
}

static int key_conflict(struct sg_error *err)
{
    return sg_error_set(err, SG_IDEMPOTENCY_CONFLICT, "this Idempotency-Key was used for another request");
}

static int copy_answer(const struct sg_entry *e, struct sg_stored_answer *ret, struct sg_error *err)
{
    memset(ret, 0, sizeof *ret);
    memcpy(ret->request_hash, e->lease.terms->request_hash, sizeof ret->request_hash);
    memcpy(ret->lease_id, e->lease.id, sizeof ret->lease_id);
    ret->status = e->answer_status;
    ret->body = strdup(e->answer);
    return ret->body != NULL ? 0 : sg_error_set(err, SG_NO_MEMORY, "no memory for a stored answer");
}

struct attempt {
    struct sg_registry *r;
    const struct sg_reserve *q;
    enum sg_reserved *how;
    struct sg_entry **ret;
    struct sg_stored_answer *answer;
};

static int same(const struct attempt *t, struct sg_entry *e)
{
    *t->how = SG_RESERVED_SAME;
    *t->ret = sg_entry_ref(e);
    return 1;
}

/* By the Idempotency-Key, in memory. 1 decided, 0 not, -1. */
static int by_key(const struct attempt *t, const struct sg_entry *mine, struct sg_error *err)
{
    struct sg_entry *e = NULL;
    if (mine->key == NULL) {
        return 0;
    }
    HASH_FIND(by_key, t->r->by_key, mine->key, mine->key_len, e);
    if (e == NULL || sg_entry_past_retention(e)) {
        if (e != NULL) {
            sg_registry_unindex_key(t->r, e);
        }
        return 0;
    }
    if (!same_request(e->lease.terms->request_hash, t->q->terms)) {
        return key_conflict(err);
    }
    if (e->answer == NULL) {
        return same(t, e);
    }
    *t->how = SG_RESERVED_ANSWERED;
    *t->ret = sg_entry_ref(e);
    return copy_answer(e, t->answer, err) < 0 ? -1 : 1;
}

/* By the trajectory: only a lease that is not ending counts. */
static int by_trajectory(const struct attempt *t, const struct sg_entry *mine, struct sg_after *after,
                         struct sg_error *err)
{
    struct sg_entry *e = NULL;
    if (mine->trajectory == NULL) {
        return 0;
    }
    HASH_FIND(by_trajectory, t->r->by_trajectory, mine->trajectory, mine->trajectory_len, e);
    if (e == NULL || sg_entry_expire_if_due(e, sg_now_ms(), after)) {
        return 0;
    }
    if (!same_request(e->lease.terms->request_hash, t->q->terms)) {
        return sg_error_set(err, SG_TRAJECTORY_CONFLICT,
                            "trajectory %s has a lease that was asked for differently",
                            e->lease.terms->trajectory_id);
    }
    return same(t, e);
}

static int quota(const struct attempt *t, const struct sg_entry *mine, struct sg_error *err)
{
    const struct sg_tenant_use *use = mine->tenant;
    if (t->q->max_leases <= 0 || use->leases < (size_t)t->q->max_leases) {
        return 0;
    }
    (void)sg_error_set(err, SG_QUOTA_EXCEEDED, "%s holds %zu leases of at most %lld", use->name, use->leases,
                       (long long)t->q->max_leases);
    sg_error_member(err, "limit", json_integer(t->q->max_leases));
    sg_error_member(err, "use", json_integer((json_int_t)use->leases));
    sg_error_member(err, "owner", json_string(use->name));
    return sg_error_retry_after(err, 1);
}

/* Everything that is decided under the lock. *ret_look: the store must be asked for the key first. */
static int decide(const struct attempt *t, struct sg_entry *mine, bool asked, uint64_t evicted,
                  bool *ret_look, struct sg_after *after, struct sg_error *err)
{
    int rc = by_key(t, mine, err);
    if (rc != 0) {
        return rc;
    }
    if (mine->key != NULL && (!asked || t->r->keys_evicted != evicted)) {
        *ret_look = true;
        return 0;
    }
    rc = by_trajectory(t, mine, after, err);
    if (rc != 0) {
        return rc;
    }
    if (t->r->closed) {
        (void)sg_error_set(err, SG_SHUTTING_DOWN, "the server is shutting down and takes no new leases");
        return sg_error_retry_after(err, 5);
    }
    if (sg_store_check(t->r->cfg.store, err) < 0 || quota(t, mine, err) < 0 ||
        sg_entry_hold_price(mine, &t->q->budget, mine->lease.terms->timeout_ms, err) < 0) {
        return -1;
    }
    *t->how = SG_RESERVED_NEW;
    sg_id_new(SG_LEASE_ID_PREFIX, mine->lease.id);
    mine->lease.created_us = sg_wall_us();
    sg_lease_events_add(&mine->events, &mine->lease, false, mine->lease.created_us);
    sg_registry_index(t->r, mine);
    *t->ret = sg_entry_ref(mine);
    return 1;
}

/* What the store remembers of the key. 1 decided, 0 nothing, -1. */
static int ask_store(const struct attempt *t, struct sg_error *err)
{
    const struct sg_lease_terms *terms = t->q->terms;
    int rc = sg_store_answer(t->r->cfg.store, terms->tenant, terms->idempotency_key, t->answer, err);
    if (rc <= 0) {
        return rc;
    }
    if (!same_request(t->answer->request_hash, terms)) {
        sg_stored_answer_finish(t->answer);
        return key_conflict(err);
    }
    *t->how = SG_RESERVED_ANSWERED;
    *t->ret = NULL;
    (void)sg_registry_peek(t->r, terms->tenant, t->answer->lease_id, t->ret);
    return 1;
}

static int reserve(const struct attempt *t, struct sg_entry *mine, struct sg_after *after,
                   struct sg_error *err)
{
    struct sg_registry *r = t->r;
    bool asked = false;
    uint64_t evicted = 0;
    for (;;) {
        bool look = false;
        pthread_mutex_lock(&r->lock);
        int rc = decide(t, mine, asked, evicted, &look, after, err);
        evicted = r->keys_evicted;
        pthread_mutex_unlock(&r->lock);
        if (!look) {
            return rc;
        }
        /* Not in memory. While the store is read, the entry may be made (found next time round) or even end
         * and be pushed out of memory (then the count has changed and the store is asked again). */
        rc = ask_store(t, err);
        if (rc != 0) {
            return rc;
        }
        asked = true;
    }
}

int sg_registry_reserve(struct sg_registry *r, const struct sg_reserve *q, enum sg_reserved *ret_how,
                        struct sg_entry **ret, struct sg_stored_answer *ret_answer, struct sg_error *err)
{
    struct attempt t = {.r = r, .q = q, .how = ret_how, .ret = ret, .answer = ret_answer};
    struct sg_after after;
    sg_after_init(&after);
    pthread_mutex_lock(&r->lock);
    struct sg_entry *mine = sg_entry_new(r, q->terms);
    pthread_mutex_unlock(&r->lock);
    int rc = reserve(&t, mine, &after, err);
    sg_entry_unref(mine);
    sg_after_run(r, &after);
    return rc < 0 ? -1 : 0;
}
