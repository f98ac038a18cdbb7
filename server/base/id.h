/* Ids that cannot be guessed and sort by time: prefix "_" + 10 characters of milliseconds + 22
 * characters (110 bits) of randomness, Crockford base 32, lower case. */
#ifndef SG_ID_H
#define SG_ID_H

#include "base/base.h"

#define SG_ID_MAX 48 /* with NUL, any prefix we use */

void sg_id_new(const char *prefix, char out[SG_ID_MAX]);
/* Looks like an id with that prefix (shape only). */
bool sg_id_valid(const char *prefix, const char *id);

#endif
