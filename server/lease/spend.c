/* What leases cost their tenants: held for the whole of their time before a provider is asked, and settled at what their time came to. */
#include "base/clock.h"
#include "base/json.h"
#include "lease/registry_priv.h"

static int64_t in_use(const struct sg_tenant_use *t)
{
    return t->spent + t->on_hold;
}

int sg_entry_hold_price(struct sg_entry *e, const struct sg_spend_limit *budget, int64_t ms, struct sg_error *err)
{
    struct sg_tenant_use *t = e->tenant;
    int64_t price = sg_price_of(e->lease.terms->price_uh, ms);
    if (price == 0) {
        return 0;
    }
    if (budget->set && price > budget->microusd - in_use(t)) {
        (void)sg_error_set(err, SG_QUOTA_EXCEEDED, "%s would spend up to $%.6f more on this, and has $%.6f left of its budget of $%.6f", t->name,
                           (double)price / 1e6, (double)(budget->microusd - in_use(t)) / 1e6, (double)budget->microusd / 1e6);
        (void)sg_error_reason(err, "budget_exhausted");
        sg_error_member(err, "limit", json_real((double)budget->microusd / 1e6));
        sg_error_member(err, "use", json_real((double)in_use(t) / 1e6));
        sg_error_member(err, "owner", json_string(t->name));
        return sg_error_retry_after(err, 60);
    }
    e->on_hold += price;
    t->on_hold += price;
    return 0;
}

void sg_entry_drop_hold(struct sg_entry *e, int64_t microusd)
{
    int64_t n = microusd < e->on_hold ? microusd : e->on_hold;
    e->on_hold -= n;
    e->tenant->on_hold -= n;
}

void sg_tenant_charge(struct sg_tenant_use *t, const struct sg_lease *l, struct sg_store_op *op)
{
    int64_t cost = sg_lease_cost(l);
    t->spent += cost;
    if (op != NULL && cost > 0) {
        sg_store_op_spent(op, t->name, cost);
    }
}

void sg_entry_settle(struct sg_entry *e, struct sg_store_op *op)
{
    if (e->on_hold > 0) {
        sg_entry_drop_hold(e, e->on_hold);
        sg_tenant_charge(e->tenant, &e->lease, op);
    }
}

static void spent_before(void *arg, const char *tenant, int64_t microusd)
{
    sg_registry_tenant(arg, tenant)->spent = microusd;
}

int sg_registry_load_spent(struct sg_registry *r, struct sg_error *err)
{
    pthread_mutex_lock(&r->lock);
    int rc = sg_store_spent(r->cfg.store, spent_before, r, err);
    pthread_mutex_unlock(&r->lock);
    return rc;
}

int64_t sg_registry_spent(struct sg_registry *r, const char *tenant)
{
    struct sg_tenant_use *t = NULL;
    pthread_mutex_lock(&r->lock);
    HASH_FIND_STR(r->tenants, tenant, t);
    int64_t n = t != NULL ? in_use(t) : 0;
    pthread_mutex_unlock(&r->lock);
    return n;
}
