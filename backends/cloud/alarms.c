#include "backends/cloud/alarms.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/random.h>
#include <utlist.h>

#include "base/clock.h"

struct sg_alarm_set {
    _Atomic int refs; /* its own until it has been told, and the caller's */
    struct sg_task task, off;
    struct sg_timer timer;
    struct sg_alarms *set;
    struct sg_reactor *reactor; /* which outlives the set */
    int64_t due_ms;
    void (*fn)(void *arg, bool over);
    void *arg;
    bool told; /* reactor thread, like what follows */
    struct sg_alarm_set *prev, *next;
};

struct sg_alarms {
    struct sg_reactor *reactor;
    pthread_mutex_t lock;
    bool closed;       /* under the lock */
    bool over;         /* reactor thread, like what follows */
    struct sg_alarm_set *all;
    struct sg_task end;
    sem_t ended;
};

struct sg_alarms *sg_alarms_new(struct sg_reactor *r)
{
    struct sg_alarms *a = sg_xcalloc(1, sizeof *a);

    a->reactor = r;
    pthread_mutex_init(&a->lock, NULL);
    sem_init(&a->ended, 0, 0);
    return a;
}

static void unref(struct sg_alarm_set *x)
{
    if (atomic_fetch_sub(&x->refs, 1) == 1)
        free(x);
}

static void tell(struct sg_alarm_set *x, bool over)
{
    x->told = true;
    x->fn(x->arg, over);
    unref(x);
}

static void rang(struct sg_timer *t)
{
    struct sg_alarm_set *x = sg_container_of(t, struct sg_alarm_set, timer);

    DL_DELETE(x->set->all, x);
    tell(x, false);
}

static void arm(struct sg_task *t)
{
    struct sg_alarm_set *x = sg_container_of(t, struct sg_alarm_set, task);

    if (x->set->over) {
        tell(x, true);
        return;
    }
    DL_APPEND(x->set->all, x);
    x->timer.fire = rang;
    sg_timer_set(x->set->reactor, &x->timer, x->due_ms);
}

struct sg_alarm_set *sg_alarm_set(struct sg_alarms *a, int64_t delay_ms, void (*fn)(void *arg, bool over), void *arg)
{
    struct sg_alarm_set *x = NULL;

    pthread_mutex_lock(&a->lock);
    if (!a->closed) {
        x = sg_xcalloc(1, sizeof *x);
        *x = (struct sg_alarm_set){.refs = 2, .task = {.run = arm}, .set = a, .reactor = a->reactor, .due_ms = sg_now_ms() + delay_ms,
                                   .fn = fn, .arg = arg};
        sg_reactor_post(a->reactor, &x->task);
    }
    pthread_mutex_unlock(&a->lock);
    if (!x)
        fn(arg, true);
    return x;
}

void sg_alarm(struct sg_alarms *a, int64_t delay_ms, void (*fn)(void *arg, bool over), void *arg)
{
    struct sg_alarm_set *x = sg_alarm_set(a, delay_ms, fn, arg);

    if (x)
        unref(x);
}

static void called_off(struct sg_task *t)
{
    struct sg_alarm_set *x = sg_container_of(t, struct sg_alarm_set, off);

    if (!x->told) {
        DL_DELETE(x->set->all, x);
        sg_timer_cancel(x->reactor, &x->timer);
        tell(x, true);
    }
    unref(x);
}

void sg_alarm_off(struct sg_alarm_set *x)
{
    if (!x)
        return;
    x->off.run = called_off; /* after arm, which was posted before */
    sg_reactor_post(x->reactor, &x->off);
}

static void end_all(struct sg_task *t)
{
    struct sg_alarms *a = sg_container_of(t, struct sg_alarms, end);

    a->over = true;
    while (a->all) {
        struct sg_alarm_set *x = a->all;
        DL_DELETE(a->all, x);
        sg_timer_cancel(a->reactor, &x->timer);
        tell(x, true);
    }
    sem_post(&a->ended);
}

void sg_alarms_close(struct sg_alarms *a)
{
    pthread_mutex_lock(&a->lock);
    bool first = !a->closed;
    a->closed = true;
    pthread_mutex_unlock(&a->lock);
    if (!first)
        return;
    a->end.run = end_all;
    sg_reactor_post(a->reactor, &a->end);
    while (sem_wait(&a->ended) != 0) {
    }
}

struct sg_alarms *sg_alarms_free(struct sg_alarms *a)
{
    if (!a)
        return NULL;
    sem_destroy(&a->ended);
    pthread_mutex_destroy(&a->lock);
    free(a);
    return NULL;
}

int64_t sg_backoff_ms(unsigned attempt, int64_t base_ms, int64_t max_ms)
{
    int64_t full = base_ms;
    uint32_t chance = 0;

    for (unsigned i = 0; i < attempt && full < max_ms; i++)
        full *= 2;
    if (full > max_ms)
        full = max_ms;
    if (getrandom(&chance, sizeof chance, GRND_NONBLOCK) != (ssize_t)sizeof chance)
        chance = 0;
    return full / 2 + (int64_t)(chance % (uint32_t)(full / 2 + 1));
}
