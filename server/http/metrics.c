#include "http/metrics.h"

#include "http/metrics_priv.h"
#include "service/service.h"

#include <stdio.h>

/* Upper bounds of the latency buckets, in microseconds. */
static const int64_t bounds[] = {500, 1000, 2500, 5000, 10000, 25000, 50000, 100000, 250000, 1000000, 5000000, 30000000};
#define BUCKETS (SG_COUNT_OF(bounds) + 1)
#define CLASSES 6 /* of statuses; 0: cut before an answer */

struct operation {
    const char *id;
    _Atomic uint64_t by_class[CLASSES];
    _Atomic uint64_t bucket[BUCKETS];
    _Atomic uint64_t sum_us;
};

struct sg_metrics {
    struct operation *ops; /* the last one: requests that met no route */
    size_t n;
    _Atomic uint64_t execs[SG_METRICS_EXEC_COUNT];
};

struct sg_metrics *sg_metrics_new(const struct sg_route *routes, size_t n)
{
    struct sg_metrics *m = sg_xcalloc(1, sizeof *m);

    m->n = n + 1;
    m->ops = sg_xcalloc(m->n, sizeof *m->ops);
    for (size_t i = 0; i < n; i++)
        m->ops[i].id = routes[i].operation_id;
    m->ops[n].id = "none";
    return m;
}

struct sg_metrics *sg_metrics_free(struct sg_metrics *m)
{
    if (m)
        free(m->ops);
    free(m);
    return NULL;
}

static struct operation *find(struct sg_metrics *m, const char *operation_id)
{
    for (size_t i = 0; operation_id && i + 1 < m->n; i++)
        if (m->ops[i].id == operation_id) /* that of a route, nearly always */
            return &m->ops[i];
    for (size_t i = 0; operation_id && i + 1 < m->n; i++)
        if (sg_streq(m->ops[i].id, operation_id))
            return &m->ops[i];
    return &m->ops[m->n - 1];
}

void sg_metrics_count_request(struct sg_metrics *m, const struct sg_http_event *e)
{
    struct operation *op = find(m, e->operation_id);
    size_t b = 0;

    op->by_class[e->status >= 100 && e->status < 600 ? e->status / 100 : 0]++;
    while (b < SG_COUNT_OF(bounds) && e->duration_us > bounds[b])
        b++;
    op->bucket[b]++;
    op->sum_us += (uint64_t)(e->duration_us > 0 ? e->duration_us : 0);
}

static enum sg_metrics_exec outcome(const struct sg_exec_result *result, const struct sg_error *err)
{
    if (err)
        return SG_METRICS_EXEC_FAILED;
    if (result->exit.killed_by == SG_KILLED_TIMEOUT)
        return SG_METRICS_EXEC_TIMED_OUT;
    if (result->exit.killed_by != SG_KILLED_NOT)
        return SG_METRICS_EXEC_KILLED;
    return result->exit.signal || result->exit.returncode ? SG_METRICS_EXEC_NONZERO : SG_METRICS_EXEC_OK;
}

void sg_metrics_exec_ended(void *arg, const struct sg_exec_result *r, const struct sg_error *err)
{
    struct sg_metrics *m = arg;

    m->execs[outcome(r, err)]++;
}

int sg_metrics_head(struct sg_buf *out, const char *name, const char *type, const char *help)
{
    return sg_buf_addf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static int write_requests(struct sg_metrics *m, struct sg_buf *out)
{
    int bad = sg_metrics_head(out, "sandgate_requests_total", "counter", "Requests by operation and class of status.");

    for (size_t i = 0; i < m->n; i++)
        for (int c = 0; c < CLASSES; c++)
            if (m->ops[i].by_class[c] > 0)
                bad |= sg_buf_addf(out, "sandgate_requests_total{operation=\"%s\",status=\"%dxx\"} %llu\n", m->ops[i].id, c,
                                   (unsigned long long)m->ops[i].by_class[c]);
    return bad;
}

static int write_latency(const struct operation *op, struct sg_buf *out)
{
    unsigned long long sum = 0;
    int bad = 0;

    for (size_t b = 0; b < BUCKETS; b++) {
        sum += op->bucket[b];
        if (b < SG_COUNT_OF(bounds))
            bad |= sg_buf_addf(out, "sandgate_request_seconds_bucket{operation=\"%s\",le=\"%g\"} %llu\n", op->id,
                               (double)bounds[b] / 1e6, sum);
    }
    bad |= sg_buf_addf(out, "sandgate_request_seconds_bucket{operation=\"%s\",le=\"+Inf\"} %llu\n", op->id, sum);
    bad |= sg_buf_addf(out, "sandgate_request_seconds_sum{operation=\"%s\"} %.6f\n", op->id, (double)op->sum_us / 1e6);
    bad |= sg_buf_addf(out, "sandgate_request_seconds_count{operation=\"%s\"} %llu\n", op->id, sum);
    return bad;
}

static int write_latencies(struct sg_metrics *m, struct sg_buf *out)
{
    int bad = sg_metrics_head(out, "sandgate_request_seconds", "histogram", "Time from the request's head to the end of its answer.");

    for (size_t i = 0; i < m->n; i++) {
        uint64_t any = 0;
        for (size_t b = 0; b < BUCKETS; b++)
            any += m->ops[i].bucket[b];
        if (any > 0)
            bad |= write_latency(&m->ops[i], out);
    }
    return bad;
}

static int write_execs(struct sg_metrics *m, const struct sg_registry_stats *leases, struct sg_buf *out)
{
    static const char *const names[] = {"ok", "nonzero", "timed_out", "killed", "failed"};
    int bad = sg_metrics_head(out, "sandgate_execs_total", "counter", "Finished commands by outcome.");

    for (size_t i = 0; i < SG_METRICS_EXEC_COUNT; i++)
        bad |= sg_buf_addf(out, "sandgate_execs_total{outcome=\"%s\"} %llu\n", names[i], (unsigned long long)m->execs[i]);
    bad |= sg_metrics_head(out, "sandgate_execs_running", "gauge", "Commands running now.");
    return bad | sg_buf_addf(out, "sandgate_execs_running %zu\n", leases->execs);
}

static int write_leases(const struct sg_registry_stats *leases, struct sg_buf *out)
{
    int bad = sg_metrics_head(out, "sandgate_leases", "gauge", "Leases by state; ended ones since the start.");

    for (int i = 0; i < SG_LEASE_STATE_COUNT; i++)
        bad |= sg_buf_addf(out, "sandgate_leases{state=\"%s\"} %zu\n", sg_lease_state_name((enum sg_lease_state)i),
                           leases->by_state[i]);
    return bad;
}

static int write_states(const struct sg_slot_pool_info *p, struct sg_buf *out)
{
    size_t by_state[SG_SLOT_STATES] = {0};
    int bad = 0;

    for (size_t i = 0; i < p->n; i++)
        by_state[p->slots[i].state]++;
    for (int i = 0; i < SG_SLOT_STATES; i++)
        bad |= sg_buf_addf(out, "sandgate_slots{pool=\"%s\",state=\"%s\"} %zu\n", p->name,
                           sg_slot_state_name((enum sg_slot_state)i), by_state[i]);
    return bad;
}

static int write_waiters(const struct sg_slot_pool_info *p, struct sg_buf *out)
{
    return sg_buf_addf(out, "sandgate_slot_waiters{pool=\"%s\"} %zu\n", p->name, p->waiters);
}

static int write_events(const struct sg_slot_pool_info *p, struct sg_buf *out)
{
    int bad = 0;

    for (int i = 0; i < SG_SLOT_EVENTS; i++)
        bad |= sg_buf_addf(out, "sandgate_slot_events_total{pool=\"%s\",event=\"%s\"} %llu\n", p->name,
                           sg_slot_event_name((enum sg_slot_event_kind)i), (unsigned long long)p->events[i]);
    return bad;
}

static int write_report(const struct sg_slot_report *r, struct sg_buf *out)
{
    int bad = sg_metrics_head(out, "sandgate_slots", "gauge", "Slots of local pools by state.");

    for (size_t p = 0; p < r->n; p++)
        bad |= write_states(&r->pools[p], out);
    bad |= sg_metrics_head(out, "sandgate_slot_waiters", "gauge", "Creates that wait for a slot.");
    for (size_t p = 0; p < r->n; p++)
        bad |= write_waiters(&r->pools[p], out);
    bad |= sg_metrics_head(out, "sandgate_slot_events_total", "counter", "What happened to slots of local pools.");
    for (size_t p = 0; p < r->n; p++)
        bad |= write_events(&r->pools[p], out);
    return bad;
}

/* At most one backend has slots. */
static int write_slots(struct sg_service *s, struct sg_buf *out)
{
    struct sg_driver *d;
    int bad = 0;

    for (size_t i = 0; (d = sg_backends_at(sg_service_parts(s)->backends, i)) != NULL; i++) {
        struct sg_slot_report report = {0};
        if (!d->ops->slots)
            continue;
        d->ops->slots->report(d, &report);
        bad |= write_report(&report, out);
        sg_slot_report_finish(&report);
    }
    return bad;
}

static int write_store(struct sg_service *s, struct sg_buf *out)
{
    struct sg_store_stats st;

    sg_store_stats(sg_service_parts(s)->store, &st);
    int bad = sg_metrics_head(out, "sandgate_store_commits_total", "counter", "Transactions committed.");
    bad |= sg_buf_addf(out, "sandgate_store_commits_total %llu\n", (unsigned long long)st.commits);
    bad |= sg_metrics_head(out, "sandgate_store_read_only", "gauge", "1 while the store refuses writes.");
    return bad | sg_buf_addf(out, "sandgate_store_read_only %d\n", st.read_only);
}

int sg_metrics_write(struct sg_metrics *m, struct sg_service *s, struct sg_buf *out)
{
    struct sg_registry_stats leases;

    sg_registry_stats(sg_service_leases(s), &leases);
    int bad = write_requests(m, out) | write_latencies(m, out) | write_execs(m, &leases, out) | write_leases(&leases, out) |
              write_slots(s, out) | sg_metrics_write_egress(sg_service_parts(s)->backends, out) |
              sg_metrics_write_providers(sg_service_parts(s)->backends, out) | write_store(s, out);
    return bad ? -1 : 0;
}
