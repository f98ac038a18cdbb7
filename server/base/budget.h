/* So many bytes for all who take part. Reference counted, so that those who still hold some may outlive whoever made it. Any thread. */
#ifndef SG_BUDGET_H
#define SG_BUDGET_H

#include "base/base.h"

struct sg_budget;

struct sg_budget *sg_budget_new(size_t max);
struct sg_budget *sg_budget_ref(struct sg_budget *b);
struct sg_budget *sg_budget_unref(struct sg_budget *b); /* NULL-safe, returns NULL */

/* False: that would be more than there is, and nothing was taken. */
bool sg_budget_take(struct sg_budget *b, size_t n);
/* Of what was taken. */
void sg_budget_give(struct sg_budget *b, size_t n);
size_t sg_budget_used(const struct sg_budget *b);

#endif
