/* The selector: one pure function that picks a backend. No I/O, no clock, no allocation that outlives the
 * call, no state: equal inputs give equal results on any machine, and neither the order of the candidates nor
 * that of a set matters.
 *
 * This header and select.c include nothing but the standard library, so that the decision can be read, tested
 * and replayed on its own.
 */
#ifndef SG_SELECT_H
#define SG_SELECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SG_SELECT_CANDIDATES_MAX 128
#define SG_SELECT_NAMES_MAX 256 /* of any one list */

struct sg_select_names {
    const char *const *v;
    size_t n;
};

struct sg_select_candidate {
    const char *name;
    unsigned capabilities; /* bits; what they mean is the caller's */
    bool free;
    struct sg_select_names credentials;
};

struct sg_select_policy {
    const char *override; /* NULL: none */
    bool allow_paid;
    unsigned required_capabilities;
    struct sg_select_names required_credentials;
    struct sg_select_names precedence; /* the first place of a name counts */
};

struct sg_select_environment {
    struct sg_select_names available_credentials;
    bool budget_set;
    int64_t budget_microusd;
};

struct sg_select_input {
    const struct sg_select_candidate *candidates;
    size_t n_candidates;
    struct sg_select_policy policy;
    struct sg_select_environment environment;
};

enum sg_select_verdict {
    SG_SELECT_PICKED,
    SG_SELECT_NO_BACKENDS_REGISTERED,
    SG_SELECT_OVERRIDE_NOT_REGISTERED,
    SG_SELECT_OVERRIDE_MISSING_CAPABILITIES,
    SG_SELECT_OVERRIDE_MISSING_CREDENTIALS,
    SG_SELECT_NO_BACKEND_SATISFIES_POLICY,
};

/* Why a candidate was not eligible, as bits; reported in this order. */
enum sg_select_reason {
    SG_SELECT_NOT_THE_OVERRIDE = 1U << 0, /* the override names a backend that is not registered */
    SG_SELECT_PAID_NOT_ALLOWED = 1U << 1,
    SG_SELECT_BUDGET_EXHAUSTED = 1U << 2,
    SG_SELECT_MISSING_CAPABILITIES = 1U << 3,
    SG_SELECT_MISSING_CREDENTIALS = 1U << 4,
};
#define SG_SELECT_REASONS 5

struct sg_select_considered {
    const struct sg_select_candidate *candidate;
    unsigned reasons; /* enum sg_select_reason bits; 0: eligible */
    unsigned missing_capabilities;
};

/* considered[] is what was looked at, in rank order: the one backend of an override that is registered, else
 * all. The `attempted` of a refusal are their names. */
struct sg_select_result {
    enum sg_select_verdict verdict;
    const struct sg_select_candidate *pick; /* NULL unless SG_SELECT_PICKED; points into the input */
    size_t n_considered;
    struct sg_select_considered considered[SG_SELECT_CANDIDATES_MAX];
};

enum sg_select_fault {
    SG_SELECT_OK = 0,
    SG_SELECT_TOO_MANY = -1,       /* more candidates or names than the limits above */
    SG_SELECT_DUPLICATE_NAME = -2, /* two candidates of one name */
    SG_SELECT_BAD_NAME = -3,       /* a NULL or empty name of a candidate, a NULL in a list */
};

/* Decides. SG_SELECT_OK and *ret complete, or a fault of the input with *ret untouched. Any thread. */
enum sg_select_fault sg_select(const struct sg_select_input *in, struct sg_select_result *ret);

/* The credential names (the candidate's own and the policy's) that the environment lacks: a set, sorted by
 * bytes, into out; returns how many. out must have room for 2 * SG_SELECT_NAMES_MAX. */
size_t sg_select_missing_credentials(const struct sg_select_input *in, const struct sg_select_candidate *c,
                                     const char **out);

/* "picked", "no_backends_registered", ... and "paid_not_allowed", ... (one bit). */
const char *sg_select_verdict_name(enum sg_select_verdict v);
const char *sg_select_reason_name(enum sg_select_reason r);

#endif
