/* What happened to a lease, one event for each step of its life. Plain values, no I/O.
 *
 * Events of a lease are numbered from 1, rising. The newest SG_LEASE_EVENTS_MAX are kept. A server that died may have told of events
 * that it had not written down yet; a number is never used twice, so the server after it leaves a gap that is wider than those could be.
 */
#ifndef SG_LEASE_EVENT_H
#define SG_LEASE_EVENT_H

#include "model/exec_event.h"
#include "model/lease.h"

#define SG_LEASE_EVENTS_MAX 64
/* How far numbers jump when the end of what was told is not known. */
#define SG_LEASE_EVENTS_GAP 16

struct sg_lease_event {
    uint64_t seq;
    int64_t at_us;             /* wall clock */
    int64_t expires_us;        /* 0: none yet */
    enum sg_lease_state state; /* after it */
    bool extended;             /* the state is what it was, the end has moved */
    char *reason;              /* owned; NULL: none */
};

struct sg_lease_events {
    struct sg_lease_event *v; /* oldest first */
    size_t n, size;
    uint64_t last; /* number of the newest, 0: there was none */
};

/* Copies what l says of it now, with the number after the last; the oldest goes when there are too many. */
void sg_lease_events_add(struct sg_lease_events *l, const struct sg_lease *lease, bool extended, int64_t at_us);
/* The next number leaves a gap. */
void sg_lease_events_skip(struct sg_lease_events *l);
void sg_lease_events_copy(struct sg_lease_events *dst, const struct sg_lease_events *src);
void sg_lease_events_finish(struct sg_lease_events *l);
/* Index of the first event after number `after`. -1: SG_HISTORY_DROPPED with the member oldest_seq, SG_INVALID_REQUEST (field after)
 * when there is no such number yet. */
int sg_lease_events_from(const struct sg_lease_events *l, uint64_t after, size_t *ret, struct sg_error *err);

/* As text for the store, and back. dump: malloc'ed, NULL when memory is out. parse: -1 (SG_INTERNAL) when it is damaged. */
char *sg_lease_events_dump(const struct sg_lease_events *l);
int sg_lease_events_parse(const char *text, struct sg_lease_events *ret, struct sg_error *err);

enum sg_event_type sg_lease_event_type(const struct sg_lease_event *e);
/* Its members, an object as compact text: {at, state, reason, expires_at, provider, sandbox_id, slot}; the last three are null while
 * nothing is placed, slot also where there are none. malloc'ed; NULL when memory is out. */
char *sg_lease_event_text(const struct sg_lease_event *e, const struct sg_lease *lease);

#endif
