#include "base/fan.h"

#include <pthread.h>
#include <stdatomic.h>

#include <utlist.h>

struct sg_fan {
    _Atomic int refs;
    pthread_mutex_t lock;
    struct sg_fan_seat *seats; /* under lock */
};

struct sg_fan *sg_fan_new(void)
{
    struct sg_fan *f = sg_xcalloc(1, sizeof *f);

    f->refs = 1;
    pthread_mutex_init(&f->lock, NULL);
    return f;
}

static void ref(void *arg)
{
    ((struct sg_fan *)arg)->refs++;
}

static void unref(void *arg)
{
    struct sg_fan *f = arg;

    if (--f->refs > 0)
        return;
    pthread_mutex_destroy(&f->lock);
    free(f);
}

struct sg_fan *sg_fan_unref(struct sg_fan *f)
{
    if (f)
        unref(f);
    return NULL;
}

/* Who leaves or joins meanwhile changes the list: so every turn begins at its head. Two wakes at a time share the work. */
static void wake(void *arg)
{
    struct sg_fan *f = arg;
    struct sg_fan_seat *s;

    pthread_mutex_lock(&f->lock);
    DL_FOREACH(f->seats, s) s->due = true;
    for (;;) {
        DL_FOREACH(f->seats, s) if (s->due) break;
        if (!s)
            break;
        struct sg_waker w = s->waker;
        s->due = false;
        if (w.ref)
            w.ref(w.arg);
        pthread_mutex_unlock(&f->lock);
        w.wake(w.arg);
        if (w.unref)
            w.unref(w.arg);
        pthread_mutex_lock(&f->lock);
    }
    pthread_mutex_unlock(&f->lock);
}

struct sg_waker sg_fan_waker(struct sg_fan *f)
{
    return (struct sg_waker){.wake = wake, .ref = ref, .unref = unref, .arg = f};
}

void sg_fan_join(struct sg_fan *f, struct sg_fan_seat *s)
{
    pthread_mutex_lock(&f->lock);
    s->due = false;
    DL_APPEND(f->seats, s);
    pthread_mutex_unlock(&f->lock);
}

void sg_fan_leave(struct sg_fan *f, struct sg_fan_seat *s)
{
    pthread_mutex_lock(&f->lock);
    DL_DELETE(f->seats, s);
    pthread_mutex_unlock(&f->lock);
}
