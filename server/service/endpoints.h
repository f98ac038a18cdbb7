/* Tokens that open the endpoints of one lease and nothing else.
 *
 * Every lease has one of its own that opens all its ports for as long as the lease lives. Further ones can be issued for
 * one port and a limited time, and revoked. Both are MACs under the server's endpoint key, so they are checked without
 * looking anything up; what has been issued, and revoked, is kept in memory with its lease: the leases whose ports the
 * server reaches itself do not outlive it. A token the table does not know opens nothing. Any thread; nothing blocks.
 */
#ifndef SG_ENDPOINTS_H
#define SG_ENDPOINTS_H

#include "base/id.h"
#include "lease/registry.h"

struct sg_service;
struct sg_endpoints;

#define SG_ENDPOINT_TOKEN_MAX 192 /* with NUL; letters, digits, '_' and '.' only */
#define SG_ENDPOINT_TOKENS_MAX 1000U /* issued, not expired, per lease */

struct sg_endpoints *sg_endpoints_new(void);
/* Nobody calls any more. NULL-safe, returns NULL. */
struct sg_endpoints *sg_endpoints_free(struct sg_endpoints *t);

/* The lease's own token. */
void sg_service_endpoint_token(struct sg_service *s, const char *lease_id, char out[SG_ENDPOINT_TOKEN_MAX]);

struct sg_endpoint_grant {
    char token_id[SG_ID_MAX];
    char token[SG_ENDPOINT_TOKEN_MAX];
    int64_t expires_us; /* wall clock */
};
/* ttl_ms > 0. SG_TIMEOUT_ABOVE_MAXIMUM above the longest life of a lease, SG_QUOTA_EXCEEDED (members limit, use) when the lease
 * has too many tokens, SG_LEASE_GONE and the like. */
int sg_service_endpoint_issue(struct sg_service *s, struct sg_entry *e, uint16_t port, int64_t ttl_ms,
                              struct sg_endpoint_grant *ret, struct sg_error *err);
/* From here on the token opens nothing; again is fine. SG_NOT_FOUND: the lease has none of that id, or it has expired. */
int sg_service_endpoint_revoke(struct sg_service *s, struct sg_entry *e, const char *token_id, struct sg_error *err);

/* A token that was found right. */
struct sg_endpoint_pass {
    char token_id[SG_ID_MAX]; /* "": the lease's own */
    int64_t expires_us;       /* wall clock; 0: with the lease */
};
/* Is token one for this port of this lease? -1: SG_UNAUTHORIZED, with reason token_expired when it was once. */
int sg_service_endpoint_check(struct sg_service *s, const char *lease_id, uint16_t port, const char *token,
                              struct sg_endpoint_pass *ret, struct sg_error *err);
/* Has it been revoked? To be asked once the lease was found to live: -1 SG_UNAUTHORIZED with reason token_revoked. */
int sg_service_endpoint_admit(struct sg_service *s, struct sg_entry *e, const struct sg_endpoint_pass *pass,
                              struct sg_error *err);

#endif
