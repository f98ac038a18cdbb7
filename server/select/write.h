/* The texts of a decision: its receipt (canonical) and its explanation, written straight from the selector's
 * values. A request to /select is answered thousands of times a second; trees of JSON values would be most of
 * its cost.
 */
#ifndef SG_WRITE_H
#define SG_WRITE_H

#include "base/buf.h"
#include "base/hash.h"
#include "select/decide.h"
#include "select/select.h"

#define SG_DECISION_TEXT_MAX ((size_t)8 << 20)

/* Each appends to b: 0, or -1 when memory is out. Names must be valid UTF-8. */

/* The receipt in canonical form, id and all. in: candidates sorted by name. ctx: may be NULL. */
int sg_write_receipt(struct sg_buf *b, const struct sg_select_input *in, const struct sg_decide_context *ctx,
                     const struct sg_select_result *result);
/* [{"backend", "eligible", "reasons"}] in rank order. */
int sg_write_considered(struct sg_buf *b, const struct sg_select_input *in,
                        const struct sg_select_result *result);
/* The names in rank order. */
int sg_write_attempted(struct sg_buf *b, const struct sg_select_result *result);

#endif
