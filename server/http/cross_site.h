/* A server that asks for no token trusts everybody on its machine, but not the web pages they look at: a browser sends requests for any
 * page to any address, this one included. Pure; any thread.
 *
 * Two ways in are shut. A page of another site can make a browser send requests here, and says so in Origin or Sec-Fetch-Site. And a page
 * whose own host name has been made to resolve to this address (DNS rebinding) is of the same origin as the server to a browser; then the
 * name it asks for is the only thing that is odd. Clients that are no browsers send none of these headers, and a name that is theirs.
 */
#ifndef SG_CROSS_SITE_H
#define SG_CROSS_SITE_H

#include "http/preflight.h"

/* May a request be trusted for where it comes from? public_url: how callers reach the API, NULL when it is not configured.
 * -1: SG_CROSS_ORIGIN (field Origin or Sec-Fetch-Site), SG_MISDIRECTED_REQUEST (field Host). */
int sg_cross_site_check(const struct sg_head *head, const char *public_url, struct sg_error *err);

/* Does it come from a page of the server's own origin, or from no page at all? Host and public_url say what that is. */
bool sg_cross_site_own(const struct sg_head *head, const char *public_url);

/* A Host a rebound page cannot have: an address, a name without a dot, localhost and what is below it, or that of public_url. */
bool sg_cross_site_host_ok(const char *host, const char *public_url);

#endif
