/* Counts what is still open on behalf of somebody who waits for the last of it to be closed: a sandbox's slot may be used
 * again only after every descriptor that came out of it is closed. Whoever receives a descriptor with a hold drops
 * the hold after closing the descriptor. Any thread.
 */
#ifndef SG_HOLD_H
#define SG_HOLD_H

#include "base/base.h"

struct sg_hold;

/* One reference, for the caller; gone(arg) runs when the last one goes, on that thread. */
struct sg_hold *sg_hold_new(void (*gone)(void *arg), void *arg);
struct sg_hold *sg_hold_ref(struct sg_hold *h);   /* NULL-safe */
struct sg_hold *sg_hold_unref(struct sg_hold *h); /* NULL-safe, returns NULL */
/* References besides the first owner's: for reports. */
unsigned sg_hold_count(const struct sg_hold *h);

#endif
