/* A placement decision: the selector run over policy, environment and candidates, its explanation and its
 * receipt. Pure.
 */
#ifndef SG_DECIDE_H
#define SG_DECIDE_H

#include <jansson.h>

#include "model/selection.h"

/* Circumstances that the receipt records but the selector does not weigh; NULL members are null there. */
struct sg_decide_context {
    const char *network_egress_class;
    const char *local_pool;
};

/* Zero it before first use; finish releases. */
struct sg_decision {
    enum sg_code code;   /* SG_OK: picked; else the refusal (SG_NO_BACKENDS_REGISTERED ...
                            SG_NO_BACKEND_SATISFIES_POLICY) */
    const char *backend; /* borrowed from receipt; NULL unless picked */
    json_t *receipt;     /* the complete sealed value, also of a refusal; owned */
    json_t *considered;  /* [{backend, eligible, reasons: [{code, detail}]}] in rank order; owned */
    json_t *attempted;   /* names in rank order; owned */
};

/* 0: *ret complete, picked or refused. -1: SG_NO_MEMORY, SG_INVALID_REQUEST (candidates that break the
 * selector's bounds). ctx may be NULL. */
int sg_decide(const struct sg_policy *policy, const struct sg_environment *env,
              const struct sg_candidates *candidates, const struct sg_decide_context *ctx,
              struct sg_decision *ret, struct sg_error *err);
void sg_decision_finish(struct sg_decision *d);

/* Fills err with a refusal (code, detail, members attempted, considered, receipt); returns -1. d must be
 * refused. */
int sg_decision_refusal(const struct sg_decision *d, struct sg_error *err);

/* What POST /select is answered over when the request does not bring its own: the registered backends and the
 * server's own environment, both cut to what the caller's token may use. */
struct sg_selection_world {
    const struct sg_principal *who;
    const struct sg_candidates *registered;
    const struct sg_environment *snapshot;
};

/* 0: *ret is the text of the 200 body {backend, receipt, considered} (*ret_len bytes, NUL-terminated), the
 * caller frees it. -1: a refusal as above, SG_POOL_NOT_FOUND, SG_NO_MEMORY. Equal requests over equal worlds
 * get equal bytes. */
int sg_selection_answer(const struct sg_selection_request *rq, const struct sg_selection_world *world,
                        char **ret, size_t *ret_len, struct sg_error *err);

#endif
