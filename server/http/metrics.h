/* Counters for GET /metrics in the Prometheus text format. Any thread. */
#ifndef SG_METRICS_H
#define SG_METRICS_H

#include "base/buf.h"
#include "http/listener.h"
#include "model/exec_json.h"

struct sg_metrics;
struct sg_service;

enum sg_metrics_exec {
    SG_METRICS_EXEC_OK,
    SG_METRICS_EXEC_NONZERO,
    SG_METRICS_EXEC_TIMED_OUT,
    SG_METRICS_EXEC_KILLED,
    SG_METRICS_EXEC_FAILED, /* it never ran, or its outcome was lost */
    SG_METRICS_EXEC_COUNT
};

/* Routes are borrowed: requests are counted by operation. */
struct sg_metrics *sg_metrics_new(const struct sg_route *routes, size_t n);
struct sg_metrics *sg_metrics_free(struct sg_metrics *m);

void sg_metrics_count_request(struct sg_metrics *m, const struct sg_http_event *e);
/* arg: the metrics. As exec_ended of struct sg_service_parts. */
void sg_metrics_exec_ended(void *arg, const struct sg_exec_result *r, const struct sg_error *err);

/* Everything, with what the service knows now (leases and slots by state, the store). 0, or -1 when the text is above out's
 * cap. */
int sg_metrics_write(struct sg_metrics *m, struct sg_service *s, struct sg_buf *out);

#endif
