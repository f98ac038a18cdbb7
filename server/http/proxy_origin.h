/* What browsers need where a sandbox's port has an origin of its own ("8000-01h...x.DOMAIN"): host names, cookies, the
 * token in a query. Pure; any thread.
 *
 * The host's first label is the port, a hyphen and the lease's id without its "lease_": an underscore has no place in a host
 * name, and "65535-" with 32 characters fits into a label's 63. Letter case does not matter, as in all host names.
 */
#ifndef SG_PROXY_ORIGIN_H
#define SG_PROXY_ORIGIN_H

#include "base/id.h"
#include "http/request.h"

#define SG_ENDPOINT_COOKIE "__Host-sandgate" /* holds an endpoint token */
#define SG_ENDPOINT_QUERY "sandgate_token"   /* likewise, on a first visit */

/* Is host (of a Host header, perhaps with a port) domain itself or below it? */
bool sg_origin_covers(const char *host, const char *domain);
/* The port and the lease of a host below domain. -1: SG_NOT_FOUND. */
int sg_origin_parse(const char *host, const char *domain, uint16_t *ret_port, char lease_id[SG_ID_MAX],
                    struct sg_error *err);
/* The host of a port of a lease, without domain. */
#define SG_ORIGIN_LABEL_MAX 64
void sg_origin_label(uint16_t port, const char *lease_id, char out[SG_ORIGIN_LABEL_MAX]);

/* The value of our cookie among the request's, caller frees; NULL: it has none. */
char *sg_origin_cookie(const struct sg_header *headers, size_t n);
/* A Cookie header's value without our cookie, caller frees; "": nothing is left. */
char *sg_origin_cut_cookie(const char *value);
/* A Set-Cookie value of the service for the client: without Domain, so that no other sandbox gets the cookie. Caller frees;
 * NULL: not passed, it would replace our cookie. */
char *sg_origin_set_cookie(const char *value);

/* Cuts our parameter out of a raw target's query, the rest stays byte for byte. True: it was there; the caller frees both. Of
 * several the first counts. */
bool sg_origin_cut_token(const char *target, char **ret_token, char **ret_target);

/* May a request that is let in by its cookie have been made by the page it comes from? Pages of the same lease may; of
 * other origins only navigations come, as by a link. Only what browsers say is judged. */
bool sg_origin_page_may(const struct sg_request *r, const char *domain, const char *lease_id);

#endif
