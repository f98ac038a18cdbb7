/* What others see of a slot: written under local.lock, by the reactor only. */
#include <stdio.h>

#include "backends/local_bwrap/pool_priv.h"

void slot_set_state(struct slot *s, enum sg_slot_state state)
{
    struct local *l = s->pool->l;
    (void)pthread_mutex_lock(&l->lock);
    s->state = state;
    (void)pthread_mutex_unlock(&l->lock);
}

void slot_set_lease(struct slot *s, const char *lease_id)
{
    struct local *l = s->pool->l;
    (void)pthread_mutex_lock(&l->lock);
    (void)snprintf(s->lease_id, sizeof s->lease_id, "%s", lease_id);
    (void)pthread_mutex_unlock(&l->lock);
}

void slot_set_born(struct slot *s, int64_t born_ms)
{
    struct local *l = s->pool->l;
    (void)pthread_mutex_lock(&l->lock);
    s->born_ms = born_ms;
    (void)pthread_mutex_unlock(&l->lock);
}

void slot_set_gen(struct slot *s, struct gen *g)
{
    struct local *l = s->pool->l;
    (void)pthread_mutex_lock(&l->lock);
    s->gen = g;
    s->generation += g != NULL;
    (void)pthread_mutex_unlock(&l->lock);
}

void slot_set_last_error(struct slot *s, const struct sg_error *err)
{
    struct local *l = s->pool->l;
    (void)pthread_mutex_lock(&l->lock);
    (void)snprintf(s->last_error, sizeof s->last_error, "%.255s", err->message);
    (void)pthread_mutex_unlock(&l->lock);
}

void slot_event(struct slot *s, enum sg_slot_event_kind kind, const struct sg_error *err)
{
    struct local *l = s->pool->l;
    (void)pthread_mutex_lock(&l->lock);
    s->pool->events[kind]++;
    (void)pthread_mutex_unlock(&l->lock);
    if (l->parts.event != NULL) {
        const struct sg_slot_event e = {.kind = kind,
                                        .pool = s->pool->cfg.name,
                                        .slot = s->name,
                                        .generation = s->generation,
                                        .lease_id = s->lease_id,
                                        .err = err};
        l->parts.event(l->parts.event_arg, &e);
    }
}
