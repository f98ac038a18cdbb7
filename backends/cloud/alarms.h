/* Things that happen later, once each: repetitions, look-ups, sweeps. What is set is always heard of, also when it is over before its
 * time. Any thread. */
#ifndef SG_ALARMS_H
#define SG_ALARMS_H

#include "base/reactor.h"

struct sg_alarms;
struct sg_alarm_set; /* one of them */

/* The reactor outlives the alarms. */
struct sg_alarms *sg_alarms_new(struct sg_reactor *r);
/* fn(arg, false) on the reactor thread, delay_ms from now; fn(arg, true) once sg_alarms_close() was called, maybe before this returns.
 * fn must not block. */
void sg_alarm(struct sg_alarms *a, int64_t delay_ms, void (*fn)(void *arg, bool over), void *arg);
/* As sg_alarm(), for what may be called off: what is returned is the caller's, for sg_alarm_off(). NULL: fn has been called already. */
struct sg_alarm_set *sg_alarm_set(struct sg_alarms *a, int64_t delay_ms, void (*fn)(void *arg, bool over), void *arg);
/* Consumes x. Unless fn has been called it is called at once, on the reactor thread, as over. NULL-safe. */
void sg_alarm_off(struct sg_alarm_set *x);
/* All that is set is over; when it returns, they have been told. Not on the reactor thread. */
void sg_alarms_close(struct sg_alarms *a);
/* After close, and when nobody sets any more. NULL-safe, returns NULL. */
struct sg_alarms *sg_alarms_free(struct sg_alarms *a);

/* base_ms * 2^attempt, at most max_ms, and of that between a half and all of it, by chance. */
int64_t sg_backoff_ms(unsigned attempt, int64_t base_ms, int64_t max_ms);

#endif
