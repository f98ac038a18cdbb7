/* Content negotiation: does a caller take what an operation answers with? (RFC 9110, 12.5.1) Pure; any thread. */
#ifndef SG_ACCEPT_H
#define SG_ACCEPT_H

#include "http/preflight.h"

/* Is the media type (lower case, no parameters: "application/json") among those that the Accept lines ask for? Yes when
 * there are none, or nothing legible in them: a preference, not a duty. The most specific range that fits
 * decides; q=0 forbids. Parameters other than q are not looked at. */
bool sg_accepts(const struct sg_header *headers, size_t n, const char *type);

/* Which of several media types (NULL-terminated, at least one) a caller likes best: by q, then the one it named most precisely, then
 * first, then our own order. The first one when it takes none. */
size_t sg_accept_best(const struct sg_header *headers, size_t n, const char *const *types);

#endif
