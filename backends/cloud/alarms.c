#include "backends/cloud/alarms.h"

#include <pthread.h>
#include <semaphore.h>
#include <sys/random.h>
#include <utlist.h>

#include "base/clock.h"

struct alarm {
    struct sg_task task;
    struct sg_timer timer;
    struct sg_alarms *set;
    int64_t due_ms;
    void (*fn)(void *arg, bool over);
    void *arg;
    struct alarm *prev, *next; /* reactor thread */
};

struct sg_alarms {
    struct sg_reactor *reactor;
    pthread_mutex_t lock;
    bool closed;       /* under the lock */
    bool over;         /* reactor thread, like what follows */
    struct alarm *all;
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

static void tell(struct alarm *x, bool over)
{
    void (*fn)(void *arg, bool over) = x->fn;
    void *arg = x->arg;

    free(x);
    fn(arg, over);
}

static void rang(struct sg_timer *t)
{
    struct alarm *x = sg_container_of(t, struct alarm, timer);

    DL_DELETE(x->set->all, x);
    tell(x, false);
}

static void arm(struct sg_task *t)
{
    struct alarm *x = sg_container_of(t, struct alarm, task);

    if (x->set->over) {
        tell(x, true);
        return;
    }
    DL_APPEND(x->set->all, x);
    x->timer.fire = rang;
    sg_timer_set(x->set->reactor, &x->timer, x->due_ms);
}

void sg_alarm(struct sg_alarms *a, int64_t delay_ms, void (*fn)(void *arg, bool over), void *arg)
{
    pthread_mutex_lock(&a->lock);
    bool closed = a->closed;
    if (!closed) {
        struct alarm *x = sg_xcalloc(1, sizeof *x);
        *x = (struct alarm){.task = {.run = arm}, .set = a, .due_ms = sg_now_ms() + delay_ms, .fn = fn, .arg = arg};
        sg_reactor_post(a->reactor, &x->task);
    }
    pthread_mutex_unlock(&a->lock);
    if (closed)
        fn(arg, true);
}

static void end_all(struct sg_task *t)
{
    struct sg_alarms *a = sg_container_of(t, struct sg_alarms, end);

    a->over = true;
    while (a->all) {
        struct alarm *x = a->all;
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
