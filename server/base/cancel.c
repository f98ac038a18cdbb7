#include "base/cancel.h"

#include <pthread.h>
#include <stdatomic.h>

struct sg_cancel {
    atomic_int refs;
    atomic_int why; /* enum sg_cancel_reason, set once */
    pthread_mutex_t lock;
    struct sg_cancel_hook *hooks;
};

struct sg_cancel *sg_cancel_new(void)
{
    struct sg_cancel *c = sg_xcalloc(1, sizeof *c);
    c->refs = 1;
    (void)pthread_mutex_init(&c->lock, NULL);
    return c;
}

struct sg_cancel *sg_cancel_ref(struct sg_cancel *c)
{
    (void)atomic_fetch_add(&c->refs, 1);
    return c;
}

struct sg_cancel *sg_cancel_unref(struct sg_cancel *c)
{
    if (c != NULL && atomic_fetch_sub(&c->refs, 1) == 1) {
        (void)pthread_mutex_destroy(&c->lock);
        free(c);
    }
    return NULL;
}

/* Under the lock. */
static void unlink_hook(struct sg_cancel_hook *h)
{
    *h->prev = h->next;
    if (h->next != NULL) {
        h->next->prev = h->prev;
    }
    h->next = NULL;
    h->prev = NULL; /* marks it as taken off */
}

void sg_cancel_fire(struct sg_cancel *c, enum sg_cancel_reason why)
{
    (void)sg_cancel_ref(c); /* a hook may drop the last reference of the others */
    (void)pthread_mutex_lock(&c->lock);
    if (atomic_load(&c->why) == SG_CANCEL_NONE) {
        atomic_store(&c->why, (int)why);
        while (c->hooks != NULL) {
            struct sg_cancel_hook *h = c->hooks;
            unlink_hook(h);
            (void)pthread_mutex_unlock(&c->lock);
            h->fired(h, why); /* may free h */
            (void)pthread_mutex_lock(&c->lock);
        }
    }
    (void)pthread_mutex_unlock(&c->lock);
    (void)sg_cancel_unref(c);
}

enum sg_cancel_reason sg_cancel_fired(const struct sg_cancel *c)
{
    return c == NULL ? SG_CANCEL_NONE : (enum sg_cancel_reason)atomic_load(&c->why);
}

bool sg_cancel_hook(struct sg_cancel *c, struct sg_cancel_hook *h)
{
    (void)pthread_mutex_lock(&c->lock);
    h->next = NULL; /* under the lock: somebody may try to take it out already */
    h->prev = NULL;
    enum sg_cancel_reason why = sg_cancel_fired(c);
    if (why == SG_CANCEL_NONE) {
        h->next = c->hooks;
        h->prev = &c->hooks;
        if (h->next != NULL) {
            h->next->prev = &h->next;
        }
        c->hooks = h;
    }
    (void)pthread_mutex_unlock(&c->lock);
    if (why != SG_CANCEL_NONE) {
        h->fired(h, why);
    }
    return why == SG_CANCEL_NONE;
}

bool sg_cancel_unhook(struct sg_cancel *c, struct sg_cancel_hook *h)
{
    (void)pthread_mutex_lock(&c->lock);
    bool mine = h->prev != NULL;
    if (mine) {
        unlink_hook(h);
    }
    (void)pthread_mutex_unlock(&c->lock);
    return mine;
}
