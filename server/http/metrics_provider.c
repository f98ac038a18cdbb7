/* Figures of the providers that backends ask. */
#include "http/metrics_priv.h"

struct provider {
    const char *name;
    struct sg_provider_report report;
};

static int of_kind(struct sg_buf *out, const char *metric, const struct provider *p, int kind, const char *label, const char *value, uint64_t n)
{
    return sg_buf_addf(out, "%s{provider=\"%s\",kind=\"%s\",%s=\"%s\"} %llu\n", metric, p->name,
                       sg_provider_kind_name((enum sg_provider_kind)kind), label, value, (unsigned long long)n);
}

static int write_calls(const char *metric, const struct provider *p, struct sg_buf *out)
{
    int bad = 0;

    for (int k = 0; k < SG_PROVIDER_KINDS; k++) {
        const struct sg_provider_calls *c = &p->report.calls[k];
        bad |= of_kind(out, metric, p, k, "outcome", "answered", c->answered);
        bad |= of_kind(out, metric, p, k, "outcome", "failed", c->failed - c->timed_out);
        bad |= of_kind(out, metric, p, k, "outcome", "timed_out", c->timed_out);
        bad |= of_kind(out, metric, p, k, "outcome", "cancelled", c->cancelled);
        bad |= of_kind(out, metric, p, k, "outcome", "refused", c->refused);
    }
    return bad;
}

static int write_now(const char *metric, const struct provider *p, struct sg_buf *out)
{
    int bad = 0;

    for (int k = 0; k < SG_PROVIDER_KINDS; k++) {
        bad |= of_kind(out, metric, p, k, "state", "running", p->report.calls[k].running);
        bad |= of_kind(out, metric, p, k, "state", "waiting", p->report.calls[k].waiting);
    }
    return bad;
}

static int write_bytes(const char *metric, const struct provider *p, struct sg_buf *out)
{
    int bad = 0;

    for (int k = 0; k < SG_PROVIDER_KINDS; k++) {
        bad |= of_kind(out, metric, p, k, "direction", "out", p->report.calls[k].bytes_out);
        bad |= of_kind(out, metric, p, k, "direction", "in", p->report.calls[k].bytes_in);
    }
    return bad;
}

static int write_limits(const char *metric, const struct provider *p, struct sg_buf *out)
{
    int bad = 0;

    for (int k = 0; k < SG_PROVIDER_KINDS; k++)
        bad |= sg_buf_addf(out, "%s{provider=\"%s\",kind=\"%s\"} %u\n", metric, p->name, sg_provider_kind_name((enum sg_provider_kind)k),
                           p->report.calls[k].max_concurrent);
    return bad;
}

static int one(const char *metric, const struct provider *p, uint64_t n, struct sg_buf *out)
{
    return sg_buf_addf(out, "%s{provider=\"%s\"} %llu\n", metric, p->name, (unsigned long long)n);
}

static int write_repeated(const char *metric, const struct provider *p, struct sg_buf *out)
{
    uint64_t n = 0;

    for (int k = 0; k < SG_PROVIDER_KINDS; k++)
        n += p->report.calls[k].repeated;
    return one(metric, p, n, out);
}

static int write_open(const char *metric, const struct provider *p, struct sg_buf *out)
{
    return one(metric, p, p->report.breaker != SG_BREAKER_CLOSED, out);
}

static int write_opened(const char *metric, const struct provider *p, struct sg_buf *out)
{
    return one(metric, p, p->report.breaker_opened, out);
}

static int write_sandboxes(const char *metric, const struct provider *p, struct sg_buf *out)
{
    return one(metric, p, p->report.sandboxes, out);
}

static int write_removals(const char *metric, const struct provider *p, struct sg_buf *out)
{
    return one(metric, p, p->report.removals_pending, out);
}

static int write_sweeps(const char *metric, const struct provider *p, struct sg_buf *out)
{
    return sg_buf_addf(out, "%s{provider=\"%s\",outcome=\"ok\"} %llu\n%s{provider=\"%s\",outcome=\"failed\"} %llu\n", metric, p->name,
                       (unsigned long long)(p->report.sweeps - p->report.sweeps_failed), metric, p->name,
                       (unsigned long long)p->report.sweeps_failed);
}

static int write_orphans(const char *metric, const struct provider *p, struct sg_buf *out)
{
    return one(metric, p, p->report.orphans, out);
}

static const struct {
    const char *name, *type, *help;
    int (*write)(const char *metric, const struct provider *p, struct sg_buf *out);
} metrics[] = {
    {"sandgate_provider_calls_total", "counter", "Calls to providers by outcome; refused: too many waited.", write_calls},
    {"sandgate_provider_repeated_total", "counter", "Calls that were made again.", write_repeated},
    {"sandgate_provider_calls", "gauge", "Calls that run or wait for their turn.", write_now},
    {"sandgate_provider_calls_max", "gauge", "Calls that may run at a time.", write_limits},
    {"sandgate_provider_bytes_total", "counter", "Bytes of bodies to and from providers.", write_bytes},
    {"sandgate_provider_breaker_open", "gauge", "1 while a provider does not work and is not asked.", write_open},
    {"sandgate_provider_breaker_opened_total", "counter", "Times that happened.", write_opened},
    {"sandgate_provider_sandboxes", "gauge", "Sandboxes at providers that leases have.", write_sandboxes},
    {"sandgate_provider_removals_pending", "gauge", "Sandboxes whose end the provider has not confirmed yet.", write_removals},
    {"sandgate_provider_sweeps_total", "counter", "Looks at what providers have of this server's.", write_sweeps},
    {"sandgate_provider_orphans_total", "counter", "Sandboxes found there that nobody had; they are removed.", write_orphans},
};

int sg_metrics_write_providers(const struct sg_backends *all, struct sg_buf *out)
{
    struct provider found[16];
    struct sg_driver *d;
    size_t n = 0;
    int bad = 0;

    for (size_t i = 0; n < SG_COUNT_OF(found) && (d = sg_backends_at(all, i)) != NULL; i++) {
        found[n].name = d->facts.name;
        n += sg_driver_report(d, &found[n].report);
    }
    for (size_t m = 0; n > 0 && m < SG_COUNT_OF(metrics); m++) {
        bad |= sg_metrics_head(out, metrics[m].name, metrics[m].type, metrics[m].help);
        for (size_t i = 0; i < n; i++)
            bad |= metrics[m].write(metrics[m].name, &found[i], out);
    }
    return bad;
}
