/* A longer life for a lease: the provider first, which ends sandboxes by itself, then ours. */
#include "service/service_priv.h"

struct extension {
    struct sg_service *s;
    struct sg_entry *entry;
    int64_t timeout_ms;
    struct sg_spend_limit budget;
    struct sg_store_done done;
};

static void provider_extended(void *arg, const struct sg_error *err)
{
    struct extension *x = arg;
    struct sg_error why = {0};

    if (err)
        x->done.fn(x->done.arg, err);
    else if (sg_registry_extend(x->s->leases, x->entry, x->timeout_ms, &x->budget, &x->done, &why) < 0)
        x->done.fn(x->done.arg, &why);
    sg_error_clear(&why);
    sg_entry_unref(x->entry);
    free(x);
}

int sg_service_extend(struct sg_service *s, const struct sg_principal *who, struct sg_entry *e, int64_t timeout_ms,
                      const struct sg_store_done *done, struct sg_error *err)
{
    const struct sg_spend_limit budget = {.set = who->budget_set, .microusd = who->budget_microusd};
    struct sg_sandbox *sb;

    if (timeout_ms <= 0)
        timeout_ms = s->cfg.lease_timeout_default_ms;
    if (timeout_ms > s->cfg.lease_timeout_max_ms)
        return sg_error_field(err, SG_TIMEOUT_ABOVE_MAXIMUM, "timeout_sec", "is above this server's maximum of %lld seconds",
                              (long long)(s->cfg.lease_timeout_max_ms / 1000));
    if (sg_entry_use_begin(e, &sb, err) < 0)
        return -1;
    if (!sb->driver->ops->extend) {
        sg_sandbox_unref(sb);
        sg_entry_use_end(e, false);
        return sg_registry_extend(s->leases, e, timeout_ms, &budget, done, err);
    }
    struct extension *x = sg_xcalloc(1, sizeof *x);
    *x = (struct extension){.s = s, .entry = sg_entry_ref(e), .timeout_ms = timeout_ms, .budget = budget, .done = *done};
    const struct sg_done extended = {.fn = provider_extended, .arg = x};
    int rc = sg_sandbox_extend(sb, timeout_ms, &extended, err);
    if (rc < 0) {
        sg_entry_unref(x->entry);
        free(x);
    }
    sg_sandbox_unref(sb);
    sg_entry_use_end(e, false);
    return rc;
}
