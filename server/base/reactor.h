/* One thread, one epoll: watches descriptors, runs timers and posted tasks.
 *
 * Callbacks run on the reactor thread and must not block. Except where a function says "any thread",
 * call it on the reactor thread only (sg_reactor_post gets you there). The structs are owned by the
 * caller and embedded in its objects: the reactor allocates nothing per event. Loop order: timers,
 * then descriptors, then tasks.
 */
#ifndef SG_REACTOR_H
#define SG_REACTOR_H

#include "base/error.h"

struct sg_reactor;

struct sg_task {
    void (*run)(struct sg_task *t);
    struct sg_task *next; /* reactor's */
    bool queued;          /* reactor's */
};

struct sg_watch {
    void (*ready)(struct sg_watch *w, uint32_t events); /* EPOLL* bits, level-triggered */
    int fd;
    uint32_t events; /* reactor's: what is asked for now */
    bool added;      /* reactor's */
};

struct sg_timer {
    void (*fire)(struct sg_timer *t);
    int64_t due_ms; /* reactor's: sg_now_ms() time */
    size_t slot;    /* reactor's: heap position + 1, 0: not armed */
};

/* Makes the reactor and starts its thread. */
int sg_reactor_new(struct sg_reactor **ret, struct sg_error *err);
/* Runs the tasks posted so far and those they post, stops the thread, joins it, frees. Any other thread. NULL-safe. */
struct sg_reactor *sg_reactor_free(struct sg_reactor *r);
/* Any thread. */
bool sg_reactor_is_current(const struct sg_reactor *r);

/* Any thread: run t->run on the reactor thread, after what was posted before. A task that is still
 * queued is not queued twice. */
void sg_reactor_post(struct sg_reactor *r, struct sg_task *t);

/* Any thread: starts watching w->fd (w->ready and w->fd set by the caller). The callback may run
 * before this returns. */
int sg_watch_add(struct sg_reactor *r, struct sg_watch *w, uint32_t events, struct sg_error *err);
/* Changes the events asked for; 0 keeps it registered but silent (EPOLLHUP/EPOLLERR still come). */
void sg_watch_mod(struct sg_reactor *r, struct sg_watch *w, uint32_t events);
/* Stops watching; no callback after it, also of events already collected. No-op when not added. */
void sg_watch_del(struct sg_reactor *r, struct sg_watch *w);

/* (Re)arms t to fire once at due_ms. */
void sg_timer_set(struct sg_reactor *r, struct sg_timer *t, int64_t due_ms);
/* No-op when not armed. */
void sg_timer_cancel(struct sg_reactor *r, struct sg_timer *t);

#endif
