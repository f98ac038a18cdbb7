/* selector_inputs: everything the selector weighed, as the JSON of a receipt, in one form for equal inputs (sets and
 * candidates sorted). A decision is made from this value, so a receipt cannot differ from what was decided.
 */
#ifndef SG_INPUTS_H
#define SG_INPUTS_H

#include "select/decide.h"
#include "select/select.h"

/* New value into *ret. ctx may be NULL. SG_NO_MEMORY. */
int sg_inputs_build(const struct sg_policy *policy, const struct sg_environment *env,
                    const struct sg_candidates *candidates, const struct sg_decide_context *ctx, json_t **ret,
                    struct sg_error *err);

/* What sg_inputs_read() makes: the selector's input, its strings borrowed from the JSON value. */
struct sg_inputs {
    struct sg_select_input in;
    struct sg_select_candidate *candidates;
    const char **names; /* all lists of `in`, one after the other */
};

/* Reads the value strictly: every member there and no other, sets sorted, within the selector's bounds. The value may be
 * hostile. SG_INVALID_REQUEST with field, SG_NO_MEMORY. */
int sg_inputs_read(const json_t *v, struct sg_inputs *ret, struct sg_error *err);
void sg_inputs_finish(struct sg_inputs *i);

#endif
