/* What the selector weighs, from typed values (a request) or from the selector_inputs of a receipt (to decide
 * again).
 */
#ifndef SG_INPUTS_H
#define SG_INPUTS_H

#include <jansson.h>

#include "model/selection.h"
#include "select/select.h"

/* The selector's input with its arrays; strings stay those of the source. */
struct sg_inputs {
    struct sg_select_input in; /* candidates sorted by name */
    struct sg_select_candidate *candidates;
    const char **names; /* sg_inputs_read: all lists of `in`, one after the other */
};

/* From typed values, which must outlive it. SG_INVALID_REQUEST (too many candidates), SG_NO_MEMORY. */
int sg_inputs_of(const struct sg_policy *policy, const struct sg_environment *env,
                 const struct sg_candidates *candidates, struct sg_inputs *ret, struct sg_error *err);

/* From the JSON of a receipt, strictly: every member there and no other, sets sorted, within the selector's
 * bounds. The value may be hostile; it must outlive *ret. SG_INVALID_REQUEST with field, SG_NO_MEMORY. */
int sg_inputs_read(const json_t *v, struct sg_inputs *ret, struct sg_error *err);

void sg_inputs_finish(struct sg_inputs *i);

#endif
