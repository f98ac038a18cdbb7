/* One waker for many: who has a single place for one (the writing side of a pipe) wakes all that sit in the fan.
 *
 * Any thread. Wakers are called without locks held; they must not block.
 */
#ifndef SG_FAN_H
#define SG_FAN_H

#include "base/pipe.h"

struct sg_fan;

/* One reference, for the caller. */
struct sg_fan *sg_fan_new(void);
struct sg_fan *sg_fan_unref(struct sg_fan *f); /* NULL-safe, returns NULL */
/* What wakes everybody; whoever keeps it keeps a reference. */
struct sg_waker sg_fan_waker(struct sg_fan *f);

struct sg_fan_seat {
    struct sg_waker waker;           /* set by the caller */
    bool due;                        /* the fan's, like the rest */
    struct sg_fan_seat *next, *prev;
};

/* The seat is the caller's and must stay where it is until it has left. The fan keeps no reference on its object. */
void sg_fan_join(struct sg_fan *f, struct sg_fan_seat *s);
/* Not called any more, but for a call that is just being made, which has its own reference. */
void sg_fan_leave(struct sg_fan *f, struct sg_fan_seat *s);

#endif
