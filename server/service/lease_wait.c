/* Waiting for a lease to get somewhere, with a limit. */
#include "service/service_priv.h"

#include "base/clock.h"

#include <stdatomic.h>

/* What may end the wait (the lease, time, the caller) runs on threads of its own; whichever is first answers and takes the others out. */
struct wait {
    _Atomic int refs; /* the waiter's, the timer's, the arming's, the hook's, and its maker's while it is made */
    _Atomic bool over;
    struct sg_service *s;
    struct sg_entry *entry;
    struct sg_waiter waiter;
    struct sg_timer timer;
    struct sg_task arm, disarm; /* the timer is the reactor's: both run there */
    int64_t due_ms;
    struct sg_cancel *cancel; /* or NULL */
    struct sg_cancel_hook hook;
    void (*done)(void *arg, bool reached);
    void *arg;
};

static void wait_unref(struct wait *w)
{
    if (--w->refs > 0)
        return;
    sg_entry_unref(w->entry);
    sg_cancel_unref(w->cancel);
    free(w);
}

/* The caller of this holds a reference. */
static void finish(struct wait *w, bool reached)
{
    if (atomic_exchange(&w->over, true))
        return;
    w->done(w->arg, reached);
    if (sg_entry_unwait(w->entry, &w->waiter))
        wait_unref(w);
    if (w->cancel && sg_cancel_unhook(w->cancel, &w->hook))
        wait_unref(w);
    sg_reactor_post(w->s->parts.reactor, &w->disarm);
}

static void reached(struct sg_waiter *waiter)
{
    struct wait *w = sg_container_of(waiter, struct wait, waiter);

    finish(w, true);
    wait_unref(w);
}

static void caller_gone(struct sg_cancel_hook *h, enum sg_cancel_reason why SG_UNUSED)
{
    struct wait *w = sg_container_of(h, struct wait, hook);

    finish(w, false);
    wait_unref(w);
}

static void timed_out(struct sg_timer *t)
{
    finish(sg_container_of(t, struct wait, timer), false);
}

static void arm(struct sg_task *t)
{
    struct wait *w = sg_container_of(t, struct wait, arm);

    if (!w->over)
        sg_timer_set(w->s->parts.reactor, &w->timer, w->due_ms);
    wait_unref(w);
}

static void disarm(struct sg_task *t)
{
    struct wait *w = sg_container_of(t, struct wait, disarm);

    sg_timer_cancel(w->s->parts.reactor, &w->timer);
    wait_unref(w);
}

void sg_service_wait_for(struct sg_service *s, const struct sg_wait_args *a)
{
    struct wait *w = sg_xcalloc(1, sizeof *w);

    w->refs = 4;
    w->s = s;
    w->entry = sg_entry_ref(a->lease);
    w->waiter.fn = reached;
    w->timer.fire = timed_out;
    w->arm.run = arm;
    w->disarm.run = disarm;
    w->hook.fired = caller_gone;
    w->due_ms = sg_now_ms() + a->wait_ms;
    w->done = a->done;
    w->arg = a->arg;
    if (a->cancel) {
        w->cancel = sg_cancel_ref(a->cancel);
        w->refs++;
        sg_cancel_hook(w->cancel, &w->hook);
    }
    sg_reactor_post(s->parts.reactor, &w->arm);
    if (!sg_entry_wait(w->entry, a->what, &w->waiter))
        reached(&w->waiter);
    else if (w->over && sg_entry_unwait(w->entry, &w->waiter))
        wait_unref(w); /* over before the waiter was there to be taken out */
    wait_unref(w);
}

bool sg_service_elsewhere(struct sg_service *s, const struct sg_lease *l, uint16_t port, struct json_t **ret)
{
    const struct sg_driver *d = sg_backends_get(s->parts.backends, l->provider, NULL);
    struct sg_entry *e;

    *ret = NULL;
    if (!d || !d->ops->public_url)
        return false;
    if (sg_registry_peek(s->leases, NULL, l->id, &e) == 1) {
        struct sg_sandbox *sb = sg_entry_sandbox(e);
        *ret = sb ? sg_sandbox_public_url(sb, port) : NULL;
        sg_sandbox_unref(sb);
        sg_entry_unref(e);
    }
    return true;
}
