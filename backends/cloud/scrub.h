/* What a provider says may hold what it was sent. */
#ifndef SG_SCRUB_H
#define SG_SCRUB_H

#include <stdbool.h>

/* Is enough of the secret in text to give it away: as it is, percent-encoded, or in the base64 or hex of it or of something it is in?
 * secret NULL: no. */
bool sg_gives_away(const char *text, const char *secret);

#endif
