/* A few threads for short blocking calls. The queue is bounded and says so when it is full. */
#ifndef SG_WORKQ_H
#define SG_WORKQ_H

#include "base/error.h"

struct sg_workq;

struct sg_work {
    void (*run)(struct sg_work *w); /* on a worker; may free w */
    struct sg_work *next;           /* queue's */
};

/* Starts `threads` workers; at most `queue_max` items wait. */
int sg_workq_new(unsigned threads, size_t queue_max, struct sg_workq **ret, struct sg_error *err);
/* Finishes what is queued, joins, frees. NULL-safe. */
struct sg_workq *sg_workq_free(struct sg_workq *q);
/* Any thread. -1 with SG_OVERLOADED (retry_after 1) when the queue is full: nothing happened. */
int sg_workq_submit(struct sg_workq *q, struct sg_work *w, struct sg_error *err);

#endif
