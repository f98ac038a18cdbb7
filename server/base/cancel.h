/* One token per operation: hang-up, timeout, DELETE and shutdown all fire it. Any thread. */
#ifndef SG_CANCEL_H
#define SG_CANCEL_H

#include "base/base.h"

enum sg_cancel_reason {
    SG_CANCEL_NONE = 0,
    SG_CANCEL_CALLER,    /* asked for explicitly */
    SG_CANCEL_TIMEOUT,
    SG_CANCEL_LEASE_END, /* the lease ends */
    SG_CANCEL_HANGUP,    /* the caller's connection is gone */
    SG_CANCEL_SHUTDOWN,
};

struct sg_cancel;

struct sg_cancel_hook {
    void (*fired)(struct sg_cancel_hook *h, enum sg_cancel_reason why);
    struct sg_cancel_hook *next, **prev; /* token's */
};

struct sg_cancel *sg_cancel_new(void);
struct sg_cancel *sg_cancel_ref(struct sg_cancel *c);
struct sg_cancel *sg_cancel_unref(struct sg_cancel *c); /* NULL-safe, returns NULL */

/* Fires once; later calls do nothing. Hooks run on the calling thread, without locks held. */
void sg_cancel_fire(struct sg_cancel *c, enum sg_cancel_reason why);
/* The reason it fired for, or SG_CANCEL_NONE. NULL-safe. */
enum sg_cancel_reason sg_cancel_fired(const struct sg_cancel *c);

/* Adds a hook; if the token has fired, runs it at once and returns false. The hook's object must
 * live until it ran or sg_cancel_unhook() returned true. */
bool sg_cancel_hook(struct sg_cancel *c, struct sg_cancel_hook *h);
/* True: removed and will not run. False: it ran, or is running on another thread. */
bool sg_cancel_unhook(struct sg_cancel *c, struct sg_cancel_hook *h);

#endif
