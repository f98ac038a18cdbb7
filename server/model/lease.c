#include "model/lease.h"

#include <stdatomic.h>

#include "base/json.h"

static const char *const state_names[SG_LEASE_STATE_COUNT] = {
    [SG_LEASE_CREATING] = "creating",   [SG_LEASE_READY] = "ready",
    [SG_LEASE_RELEASING] = "releasing", [SG_LEASE_TERMINATED] = "terminated",
    [SG_LEASE_FAILED] = "failed",       [SG_LEASE_EXPIRED] = "expired",
    [SG_LEASE_LOST] = "lost",
};

#define BIT(s) (1U << (s))

/* A lease that is ended while it is still being created goes through releasing; one whose sandbox dies is
 * lost at once; what a former server left behind is lost from wherever it stood. */
static const unsigned next_states[SG_LEASE_STATE_COUNT] = {
    [SG_LEASE_CREATING] =
        BIT(SG_LEASE_READY) | BIT(SG_LEASE_RELEASING) | BIT(SG_LEASE_FAILED) | BIT(SG_LEASE_LOST),
    [SG_LEASE_READY] = BIT(SG_LEASE_RELEASING) | BIT(SG_LEASE_LOST),
    [SG_LEASE_RELEASING] =
        BIT(SG_LEASE_TERMINATED) | BIT(SG_LEASE_FAILED) | BIT(SG_LEASE_EXPIRED) | BIT(SG_LEASE_LOST),
};

const char *sg_lease_state_name(enum sg_lease_state s)
{
    return state_names[s];
}

bool sg_lease_state_parse(const char *s, enum sg_lease_state *ret)
{
    for (unsigned i = 0; i < SG_LEASE_STATE_COUNT; i++) {
        if (sg_streq(s, state_names[i])) {
            *ret = (enum sg_lease_state)i;
            return true;
        }
    }
    return false;
}

bool sg_lease_state_ended(enum sg_lease_state s)
{
    return next_states[s] == 0;
}

bool sg_lease_state_may_become(enum sg_lease_state from, enum sg_lease_state to)
{
    return (next_states[from] & BIT(to)) != 0;
}

struct sg_lease_terms *sg_lease_terms_new(const char *tenant)
{
    struct sg_lease_terms *t = sg_xcalloc(1, sizeof *t);
    t->refs = 1;
    t->tenant = sg_xstrdup(tenant);
    return t;
}

struct sg_lease_terms *sg_lease_terms_ref(struct sg_lease_terms *t)
{
    atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    return t;
}

struct sg_lease_terms *sg_lease_terms_unref(struct sg_lease_terms *t)
{
    if (t == NULL || atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) > 1) {
        return NULL;
    }
    free(t->tenant);
    free(t->trajectory_id);
    free(t->idempotency_key);
    free(t->local_pool);
    free(t->image);
    free(t->root);
    sg_env_finish(&t->env);
    for (size_t i = 0; i < t->n_services; i++) {
        free(t->services[i].health_path);
    }
    free(t->services);
    free(t);
    return NULL;
}

void sg_lease_copy(struct sg_lease *dst, const struct sg_lease *src)
{
    *dst = *src;
    if (dst->terms != NULL) {
        sg_lease_terms_ref(dst->terms);
    }
    sg_json_ref(dst->metadata);
}

void sg_lease_finish(struct sg_lease *l)
{
    sg_lease_terms_unref(l->terms);
    sg_json_unref(l->metadata);
    memset(l, 0, sizeof *l);
}

int64_t sg_price_of(int64_t price_uh, int64_t ms)
{
    const int64_t hour_ms = 3600000;
    if (price_uh <= 0 || ms <= 0) {
        return 0;
    }
    return price_uh * (ms / hour_ms) + (price_uh * (ms % hour_ms) + hour_ms - 1) / hour_ms;
}

int64_t sg_lease_cost(const struct sg_lease *l)
{
    int64_t until_us = l->expires_us > 0 && l->expires_us < l->ended_us ? l->expires_us : l->ended_us;
    return l->sandbox_id[0] != '\0' ? sg_price_of(l->terms->price_uh, (until_us - l->created_us) / 1000) : 0;
}
