/* Long work as a row of short turns on workers: it goes on when something happened (a pipe has news, an answer came), never waits in
 * a thread, and never runs twice at a time.
 *
 * `busy` says that a turn is queued or running, `again` that something happened meanwhile.
 */
#ifndef SG_STEPPER_H
#define SG_STEPPER_H

#include <pthread.h>

#include "base/workq.h"

enum sg_step { SG_STEP_WAIT, SG_STEP_MORE, SG_STEP_OVER };

/* Embedded. */
struct sg_stepper {
    _Atomic int refs;
    struct sg_work work;
    struct sg_workq *workq;
    pthread_mutex_t lock;
    bool busy, again, over;
    /* One turn. WAIT: until the next kick; MORE: others first, then again; OVER: never again. */
    enum sg_step (*step)(struct sg_stepper *s);
    /* No worker could be had: like OVER, with err. Any thread, instead of a turn. */
    void (*failed)(struct sg_stepper *s, const struct sg_error *err);
    void (*free)(struct sg_stepper *s); /* the last reference is gone */
};

/* One reference. */
void sg_stepper_init(struct sg_stepper *s, struct sg_workq *q);
void sg_stepper_ref(void *s);
void sg_stepper_unref(void *s);
/* Something happened. Any thread, no locks held. */
void sg_stepper_kick(void *s);

#endif
