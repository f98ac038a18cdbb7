/* When something is due: one timer on the reactor for all leases, over a heap of lower bounds. A use moves
 * what is due to later without touching the heap; that shows when the bound is reached. */
#include <semaphore.h>

#include "base/clock.h"
#include "lease/registry_priv.h"

#define NEVER INT64_MAX

static int64_t true_due(const struct sg_entry *e)
{
    int64_t due = e->expires_ms;
    int64_t idle = e->lease.terms->idle_timeout_ms;
    if (idle > 0 && e->uses == 0 && e->idle_from_ms + idle < due) {
        due = e->idle_from_ms + idle;
    }
    return due;
}

static void put(struct sg_registry *r, size_t i, struct sg_entry *e)
{
    r->heap[i] = e;
    e->heap_pos = i + 1;
}

static void sift_up(struct sg_registry *r, size_t i)
{
    struct sg_entry *e = r->heap[i];
    while (i > 0 && r->heap[(i - 1) / 2]->heap_due > e->heap_due) {
        put(r, i, r->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    put(r, i, e);
}

static void sift_down(struct sg_registry *r, size_t i)
{
    struct sg_entry *e = r->heap[i];
    for (size_t child; (child = 2 * i + 1) < r->heap_n; i = child) {
        if (child + 1 < r->heap_n && r->heap[child + 1]->heap_due < r->heap[child]->heap_due) {
            child++;
        }
        if (r->heap[child]->heap_due >= e->heap_due) {
            break;
        }
        put(r, i, r->heap[child]);
    }
    put(r, i, e);
}

static void grow(struct sg_registry *r)
{
    if (r->heap_n < r->heap_size) {
        return;
    }
    size_t size = r->heap_size > 0 ? 2 * r->heap_size : 64;
    struct sg_entry **wider = sg_xcalloc(size, sizeof(struct sg_entry *));
    if (r->heap_n > 0) {
        memcpy(wider, r->heap, r->heap_n * sizeof(struct sg_entry *));
    }
    free(r->heap);
    r->heap = wider;
    r->heap_size = size;
}

static void ask_to_rearm(struct sg_registry *r)
{
    if (r->heap_n > 0 && r->heap[0]->heap_due < r->armed_ms) {
        r->armed_ms = r->heap[0]->heap_due; /* whoever comes with a later one need not ask again */
        sg_reactor_post(r->cfg.reactor, &r->rearm);
    }
}

static void set_at(struct sg_registry *r, struct sg_entry *e, int64_t due)
{
    e->heap_due = due;
    if (e->heap_pos == 0) {
        grow(r);
        put(r, r->heap_n++, e);
    }
    size_t i = e->heap_pos - 1;
    sift_up(r, i);
    sift_down(r, e->heap_pos - 1);
}

void sg_due_set(struct sg_registry *r, struct sg_entry *e)
{
    int64_t due = true_due(e);
    if (e->heap_pos > 0 && due >= e->heap_due) {
        return;
    }
    set_at(r, e, due);
    ask_to_rearm(r);
}

void sg_due_remove(struct sg_registry *r, struct sg_entry *e)
{
    if (e->heap_pos == 0) {
        return;
    }
    size_t i = e->heap_pos - 1;
    struct sg_entry *last = r->heap[--r->heap_n];
    e->heap_pos = 0;
    if (last != e) {
        put(r, i, last);
        sift_up(r, i);
        sift_down(r, last->heap_pos - 1);
    }
}

/* On the reactor: ends what is due and says when to come again. */
static int64_t sweep(struct sg_registry *r, int64_t now, struct sg_after *a)
{
    while (r->heap_n > 0 && r->heap[0]->heap_due <= now) {
        struct sg_entry *e = r->heap[0];
        int64_t due = true_due(e);
        if (due > now) {
            set_at(r, e, due);
        } else {
            sg_due_remove(r, e);
            (void)sg_entry_begin_end(e, now >= e->expires_ms ? SG_END_EXPIRED : SG_END_IDLE, NULL, a);
        }
    }
    return r->heap_n > 0 ? r->heap[0]->heap_due : NEVER;
}

static void run_due(struct sg_registry *r)
{
    struct sg_after after;
    sg_after_init(&after);
    pthread_mutex_lock(&r->lock);
    int64_t next = sweep(r, sg_now_ms(), &after);
    r->armed_ms = next;
    pthread_mutex_unlock(&r->lock);
    if (next == NEVER) {
        sg_timer_cancel(r->cfg.reactor, &r->timer);
    } else {
        sg_timer_set(r->cfg.reactor, &r->timer, next);
    }
    sg_after_run(r, &after);
}

static void on_timer(struct sg_timer *t)
{
    run_due((struct sg_registry *)((char *)t - offsetof(struct sg_registry, timer)));
}

static void on_rearm(struct sg_task *t)
{
    run_due((struct sg_registry *)((char *)t - offsetof(struct sg_registry, rearm)));
}

struct stop {
    struct sg_task task;
    struct sg_registry *reg;
    sem_t done;
};

static void on_stop(struct sg_task *t)
{
    struct stop *s = (struct stop *)((char *)t - offsetof(struct stop, task));
    sg_timer_cancel(s->reg->cfg.reactor, &s->reg->timer);
    sem_post(&s->done);
}

void sg_due_init(struct sg_registry *r)
{
    r->armed_ms = NEVER;
    r->timer.fire = on_timer;
    r->rearm.run = on_rearm;
}

void sg_due_finish(struct sg_registry *r)
{
    struct stop s = {.task = {.run = on_stop}, .reg = r};
    sem_init(&s.done, 0, 0);
    sg_reactor_post(r->cfg.reactor, &s.task);
    while (sem_wait(&s.done) != 0) {
    }
    sem_destroy(&s.done);
    free(r->heap);
    r->heap = NULL;
    r->heap_n = 0;
}
