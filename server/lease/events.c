/* What happened to a lease: kept with its entry, written down with its row, told to those who follow. */
#include "base/clock.h"
#include "lease/registry_priv.h"

/* ---- with the lock held ---- */

static void take_out(struct sg_entry *e, struct sg_follower *f)
{
    DL_DELETE(e->followers, f);
    f->following = false;
}

static void tell(struct sg_entry *e, struct sg_follower *f, struct sg_after *a)
{
    const struct sg_lease_event *newest = &e->events.v[e->events.n - 1];
    f->event(f, newest, &e->lease);
    if (sg_lease_state_ended(newest->state)) {
        take_out(e, f);
        f->over(f);
    }
    f->ref(f);
    sg_after_add(a, e)->told = f;
}

void sg_entry_event(struct sg_entry *e, bool extended, int64_t at_us, struct sg_after *a)
{
    struct sg_follower *f, *next;
    sg_lease_events_add(&e->events, &e->lease, extended, at_us);
    DL_FOREACH_SAFE(e->followers, f, next)
    {
        tell(e, f, a);
    }
}

void sg_entry_op_events(const struct sg_entry *e, struct sg_store_op *op, const struct sg_lease *next, bool extended,
                        int64_t at_us)
{
    struct sg_lease_events all;
    sg_lease_events_copy(&all, &e->events);
    if (next != NULL) {
        sg_lease_events_add(&all, next, extended, at_us);
    }
    sg_store_op_events(op, e->lease.id, &all);
    sg_lease_events_finish(&all);
}

/* ---- following ---- */

int sg_lease_events_load(struct sg_store *s, const struct sg_lease *l, struct sg_lease_events *ret, struct sg_error *err)
{
    if (sg_store_events(s, l->id, ret, err) < 0) {
        return -1;
    }
    if (ret->n == 0 && sg_lease_state_ended(l->state)) {
        sg_lease_events_add(ret, l, false, l->ended_us); /* written by a version that kept none */
    }
    return 0;
}

/* An entry that was read from the store has ended: its events never change. */
static int load_if_stored(struct sg_entry *e, struct sg_error *err)
{
    struct sg_registry *r = e->reg;
    struct sg_lease_events read;
    pthread_mutex_lock(&r->lock);
    bool has = e->events.n > 0;
    pthread_mutex_unlock(&r->lock);
    if (has) {
        return 0;
    }
    if (sg_lease_events_load(r->cfg.store, &e->lease, &read, err) < 0) {
        return -1;
    }
    pthread_mutex_lock(&r->lock);
    if (e->events.n == 0) {
        e->events = read;
        read = (struct sg_lease_events){0};
    }
    pthread_mutex_unlock(&r->lock);
    sg_lease_events_finish(&read);
    return 0;
}

int sg_entry_follow(struct sg_entry *e, uint64_t after, struct sg_follower *f, struct sg_error *err)
{
    size_t i;
    if (load_if_stored(e, err) < 0) {
        return -1;
    }
    pthread_mutex_lock(&e->reg->lock);
    int rc = sg_lease_events_from(&e->events, after, &i, err);
    for (; rc == 0 && i < e->events.n; i++) {
        f->event(f, &e->events.v[i], &e->lease);
    }
    f->following = rc == 0 && !sg_lease_state_ended(e->lease.state);
    if (f->following) {
        DL_APPEND(e->followers, f);
    } else if (rc == 0) {
        f->over(f);
    }
    pthread_mutex_unlock(&e->reg->lock);
    return rc;
}

void sg_entry_unfollow(struct sg_entry *e, struct sg_follower *f)
{
    pthread_mutex_lock(&e->reg->lock);
    if (f->following) {
        take_out(e, f);
    }
    pthread_mutex_unlock(&e->reg->lock);
}
