#include "model/provider.h"

const char *sg_provider_kind_name(enum sg_provider_kind k)
{
    static const char *const names[SG_PROVIDER_KINDS] = {"api", "sandbox", "stream"};
    return names[k];
}

static json_t *calls_json(const struct sg_provider_calls *c)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "running", (json_int_t)c->running, "waiting",
                     (json_int_t)c->waiting, "max_concurrent", (json_int_t)c->max_concurrent, "answered", (json_int_t)c->answered, "failed",
                     (json_int_t)c->failed, "timed_out", (json_int_t)c->timed_out, "cancelled", (json_int_t)c->cancelled, "refused",
                     (json_int_t)c->refused, "repeated", (json_int_t)c->repeated, "bytes_in", (json_int_t)c->bytes_in, "bytes_out",
                     (json_int_t)c->bytes_out);
}

json_t *sg_provider_json(const struct sg_provider_report *r)
{
    static const char *const states[] = {[SG_BREAKER_CLOSED] = "closed", [SG_BREAKER_HALF_OPEN] = "half_open", [SG_BREAKER_OPEN] = "open"};
    json_t *calls = json_object();
    for (int i = 0; i < SG_PROVIDER_KINDS; i++) {
        (void)json_object_set_new(calls, sg_provider_kind_name((enum sg_provider_kind)i), calls_json(&r->calls[i]));
    }
    return json_pack("{s:o, s:{s:s, s:I}, s:I, s:I, s:I, s:I, s:I}", "calls", calls, "breaker", "state", states[r->breaker], "opened",
                     (json_int_t)r->breaker_opened, "sandboxes", (json_int_t)r->sandboxes, "removals_pending",
                     (json_int_t)r->removals_pending, "sweeps", (json_int_t)r->sweeps, "sweeps_failed", (json_int_t)r->sweeps_failed,
                     "orphans", (json_int_t)r->orphans);
}
