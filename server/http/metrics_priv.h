/* What the files of the metrics share. */
#ifndef SG_METRICS_PRIV_H
#define SG_METRICS_PRIV_H

#include "base/buf.h"
#include "backends/registry.h"

/* These return 0, or not when out is full. */

int sg_metrics_head(struct sg_buf *out, const char *name, const char *type, const char *help);
/* Of the backends that ask a provider. */
int sg_metrics_write_providers(const struct sg_backends *all, struct sg_buf *out);

/* Of the proxies that sandboxes with restricted egress have. */
int sg_metrics_write_egress(const struct sg_backends *all, struct sg_buf *out);

#endif
