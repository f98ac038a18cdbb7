/* What a selection is asked with: policy, environment and candidates, as plain values and their JSON.
 *
 * Strings are borrowed: from the JSON value a struct was parsed from (the struct keeps a reference to it in
 * `source`; nobody may change that value meanwhile) or from whoever filled the struct by hand. Arrays belong
 * to the struct. Every struct here may be zeroed and then finished. No locks: one thread at a time, or read
 * only.
 */
#ifndef SG_SELECTION_H
#define SG_SELECTION_H

#include <jansson.h>

#include "base/error.h"
#include "model/caps.h"
#include "model/principal.h"

/* The most a request may hold; above it SG_INVALID_REQUEST with the list's `field`. */
#define SG_CANDIDATES_MAX 128U
#define SG_CANDIDATE_CREDENTIALS_MAX 16U
#define SG_REQUIRED_CREDENTIALS_MAX 64U
#define SG_AVAILABLE_CREDENTIALS_MAX 256U
#define SG_PRECEDENCE_MAX 256U
#define SG_BACKEND_NAME_MAX 64U     /* bytes, [A-Za-z0-9][A-Za-z0-9._-]* */
#define SG_CREDENTIAL_NAME_MAX 128U /* bytes, [A-Za-z_][A-Za-z0-9_.-]* */
#define SG_ANY_NAME_MAX 128U /* override and precedence: names that need not exist, no control characters */
#define SG_BUDGET_MICROUSD_MAX INT64_C(1000000000000000) /* a thousand million dollars, either way */

/* A list of names. A set is sorted by bytes and has no name twice. */
struct sg_names {
    const char **v;
    size_t n;
};
void sg_names_finish(struct sg_names *l);
/* Is the name in the list (sorted or not)? */
bool sg_names_have(const struct sg_names *l, const char *name);
/* Makes a set of a NULL-terminated list (NULL: empty). SG_NO_MEMORY. */
int sg_names_set(struct sg_names *ret, const char *const *names, struct sg_error *err);

bool sg_backend_name_valid(const char *s);
bool sg_credential_name_valid(const char *s);

/* What a backend costs when nobody declares it, and where it stands when the policy does not say. */
bool sg_free_by_default(const char *backend);
extern const char *const sg_precedence_default[]; /* NULL-terminated */

/* Capabilities as a new array of names sorted by bytes; NULL when memory is out. */
json_t *sg_caps_json(unsigned caps);

/* Dollars with at most six decimals to micro-dollars, exactly: 0 or SG_INVALID_REQUEST with the field. */
int sg_budget_parse(const json_t *v, const char *field, int64_t *ret, struct sg_error *err);

struct sg_policy {
    json_t *source;
    const char *override; /* NULL: none */
    bool allow_paid;
    unsigned required_caps;               /* enum sg_cap bits */
    struct sg_names required_credentials; /* a set */
    struct sg_names precedence;           /* in order, no name twice; the default when the caller gave none */
};
/* Reads a policy object strictly; v NULL or null: the defaults (allow_paid false, [file_rw, exec], the
 * default precedence). path: the prefix of `field`, e.g. "policy". On failure *ret holds nothing. */
int sg_policy_parse(json_t *v, const char *path, struct sg_policy *ret, struct sg_error *err);
void sg_policy_finish(struct sg_policy *p);

struct sg_environment {
    json_t *source;
    struct sg_names available_credentials; /* a set: names, never values */
    bool budget_set;
    int64_t budget_microusd;
};
/* Reads {available_credentials?, budget_remaining_usd?} strictly. */
int sg_environment_parse(json_t *v, const char *path, struct sg_environment *ret, struct sg_error *err);
void sg_environment_finish(struct sg_environment *e);

struct sg_candidate {
    const char *name;
    unsigned caps;
    bool free;
    struct sg_names credentials; /* a set */
};
struct sg_candidates {
    json_t *source;
    struct sg_candidate *v;
    size_t n;
};
/* Reads [{name, capabilities, free?, credentials?}] strictly; no name twice. `free` absent: by the name. */
int sg_candidates_parse(json_t *v, const char *path, struct sg_candidates *ret, struct sg_error *err);
/* Adds one; name and credentials (NULL-terminated or NULL) stay the caller's and must outlive the list.
 * SG_LIMIT_EXCEEDED above SG_CANDIDATES_MAX, SG_INVALID_REQUEST for a bad or repeated name. */
int sg_candidates_add(struct sg_candidates *l, const char *name, unsigned caps, bool free,
                      const char *const *credentials, struct sg_error *err);
/* Drops all but the one of that name. */
void sg_candidates_keep(struct sg_candidates *l, const char *name);
void sg_candidates_finish(struct sg_candidates *l);

/* What a token may see of the server: *cands gets the backends it may use (its `backends`; free ones only
 * unless it may spend), *env the credential names these need out of `held`, and the smaller of budget and its
 * own. Strings stay those of the inputs. snapshot: the server's own environment. */
int sg_selection_cut(const struct sg_principal *who, const struct sg_candidates *registered,
                     const struct sg_environment *snapshot, struct sg_candidates *cands,
                     struct sg_environment *env, struct sg_error *err);

/* The body of POST /select. */
struct sg_selection_request {
    json_t *body; /* one reference */
    struct sg_policy policy;
    bool environment_given;
    struct sg_environment environment;
    bool backends_given;
    struct sg_candidates backends;
    const char *pool;       /* NULL: none */
    json_t *overrides;      /* borrowed from body, NULL: none; only ever with a pool */
    const json_t *manifest; /* an object, or NULL; does not influence the pick */
};
/* Reads it strictly; body is not consumed. Errors: SG_INVALID_REQUEST with `field` such as
 * "policy.allow_paid" or "backends[2].name". On failure *ret holds nothing. */
int sg_selection_parse(json_t *body, struct sg_selection_request *ret, struct sg_error *err);
void sg_selection_request_finish(struct sg_selection_request *r);

/* One backend as GET /backends shows it. */
struct sg_backend_view {
    struct sg_candidate facts;
    bool tty;                      /* commands may have a terminal */
    bool built;                    /* this build has a driver for it */
    bool registered;               /* enabled by the configuration */
    const struct sg_error *health; /* of a registered one: NULL is healthy, else why not */
    const struct sg_provider_report *provider; /* of one that asks somebody, for who may see it; else NULL */
    const struct sg_warm_figures *warm;        /* of one that keeps some ready, likewise */
};
/* [{name, capabilities, tty, free, credentials: [{name, held}], built, registered, healthy, detail, provider?, warm?}] in the order given. held: the
 * credential names the server has. New value; NULL when memory is out. */
json_t *sg_backends_json(const struct sg_backend_view *v, size_t n, const struct sg_names *held);

#endif
