/* Figures of the proxies of restricted egress. */
#include "http/metrics_priv.h"

#include <stdio.h>
#include <string.h>

/* Of a pool, or of a backend that has none. */
struct proxies {
    char label[96]; /* pool="x" */
    struct sg_egress_figures f;
};
struct all_proxies {
    struct proxies *p;
    size_t n;
};

static void add(struct all_proxies *all, const char *key, const char *name, const struct sg_egress_figures *f)
{
    struct proxies *p = sg_xcalloc(all->n + 1, sizeof *p);

    if (all->n > 0)
        memcpy(p, all->p, all->n * sizeof *p);
    free(all->p);
    all->p = p;
    (void)snprintf(p[all->n].label, sizeof p->label, "%s=\"%.80s\"", key, name);
    p[all->n++].f = *f;
}

static void add_pools(struct all_proxies *all, struct sg_driver *d)
{
    struct sg_slot_report report = {0};

    d->ops->slots->report(d, &report);
    for (size_t i = 0; i < report.n; i++)
        if (report.pools[i].egress >= SG_EGRESS_RESTRICTED)
            add(all, "pool", report.pools[i].name, &report.pools[i].proxies);
    sg_slot_report_finish(&report);
}

static int write_outcomes(const struct proxies *p, struct sg_buf *out)
{
    int bad = 0;

    for (int i = 0; i < SG_EGRESS_OUTCOMES; i++)
        bad |= sg_buf_addf(out, "sandgate_egress_requests_total{%s,outcome=\"%s\"} %llu\n", p->label,
                           sg_egress_outcome_name((enum sg_egress_outcome)i), (unsigned long long)p->f.outcomes[i]);
    return bad;
}

static int write_all(const struct all_proxies *all, struct sg_buf *out)
{
    int bad = sg_metrics_head(out, "sandgate_egress_requests_total", "counter", "Requests of sandboxes to the outside, by what became of them.");

    for (size_t i = 0; i < all->n; i++)
        bad |= write_outcomes(&all->p[i], out);
    bad |= sg_metrics_head(out, "sandgate_egress_bytes_total", "counter", "Bytes that sandboxes sent to and got from the outside.");
    for (size_t i = 0; i < all->n; i++)
        bad |= sg_buf_addf(out, "sandgate_egress_bytes_total{%s,direction=\"out\"} %llu\n"
                                "sandgate_egress_bytes_total{%s,direction=\"in\"} %llu\n",
                           all->p[i].label, (unsigned long long)all->p[i].f.bytes_out, all->p[i].label, (unsigned long long)all->p[i].f.bytes_in);
    bad |= sg_metrics_head(out, "sandgate_egress_connections", "gauge", "Connections of sandboxes to the outside that are open.");
    for (size_t i = 0; i < all->n; i++)
        bad |= sg_buf_addf(out, "sandgate_egress_connections{%s} %lld\n", all->p[i].label, (long long)all->p[i].f.open);
    return bad;
}

int sg_metrics_write_egress(const struct sg_backends *backends, struct sg_buf *out)
{
    struct all_proxies all = {0};
    struct sg_egress_figures f;
    struct sg_driver *d;

    for (size_t i = 0; (d = sg_backends_at(backends, i)) != NULL; i++) {
        if (d->ops->slots)
            add_pools(&all, d);
        if (d->ops->proxies && d->ops->proxies(d, &f))
            add(&all, "provider", d->facts.name, &f);
    }
    int bad = write_all(&all, out);
    free(all.p);
    return bad;
}
