/* Tokens: configured as SHA-256 hashes, compared in constant time, swapped as a whole on reload. Any thread. */
#ifndef SG_AUTH_H
#define SG_AUTH_H

#include "base/error.h"
#include "model/principal.h"

struct sg_token_config {
    const char *name;
    const char *sha256; /* 64 hex digits */
    const char *tenant;
    enum sg_role role;
    int64_t max_leases, max_execs; /* 0: no limit */
    bool allow_paid;
    const char *const *backends; /* NULL-terminated, NULL: all */
    bool budget_set;
    int64_t budget_microusd;
};

struct sg_auth;

/* With n == 0 everybody is the administrator "local" of tenant "default" (all paid backends allowed): only for
 * loopback listeners. -1 for a malformed hash, an empty or too long name or tenant, or the same hash twice. */
int sg_auth_new(const struct sg_token_config *tokens, size_t n, struct sg_auth **ret, struct sg_error *err);
struct sg_auth *sg_auth_free(struct sg_auth *a);
/* Replaces the whole set; on -1 the old one stays. Principals handed out stay valid. Going from tokens to none is refused. */
int sg_auth_replace(struct sg_auth *a, const struct sg_token_config *tokens, size_t n, struct sg_error *err);
bool sg_auth_has_tokens(struct sg_auth *a);

/* 0: *ret is a new reference. -1: SG_UNAUTHORIZED. token NULL: none was sent. */
int sg_auth_check(struct sg_auth *a, const char *token, size_t len, const struct sg_principal **ret, struct sg_error *err);

/* Principals from sg_auth_check only. */
const struct sg_principal *sg_principal_ref(const struct sg_principal *p);
const struct sg_principal *sg_principal_unref(const struct sg_principal *p); /* NULL-safe, returns NULL */

#endif
