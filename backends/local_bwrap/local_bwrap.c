/* The driver: pools from the configuration, health, and the end of it all. */
#include "backends/local_bwrap/local_bwrap.h"

#include <errno.h>
#include <stdio.h>
#include <utlist.h>

#include "backends/local_bwrap/pool_priv.h"
#include "base/clock.h"

/* How long the end of the driver waits for sandboxes to die and descriptors to be closed. */
#define CLOSE_MS 10000

/* ---- references and posts ---- */

struct local *local_ref(struct local *l)
{
    atomic_fetch_add(&l->refs, 1);
    return l;
}

static void pool_finish(struct pool *p)
{
    free((char *)(uintptr_t)p->cfg.name);
    free((char *)(uintptr_t)p->cfg.rootfs);
    free((char *)(uintptr_t)p->cfg.service_health_path);
    for (size_t i = 0; i < p->cfg.n_images; i++) {
        free((char *)(uintptr_t)p->cfg.images[i].name);
        free((char *)(uintptr_t)p->cfg.images[i].rootfs);
    }
    free((void *)(uintptr_t)p->cfg.images);
    for (size_t i = 0; p->cfg.service_command != NULL && p->cfg.service_command[i] != NULL; i++) {
        free((char *)(uintptr_t)p->cfg.service_command[i]);
    }
    free((void *)(uintptr_t)p->cfg.service_command);
    sg_egress_rules_free(p->rules);
    for (unsigned i = 0; i < p->cfg.size; i++) {
        free(p->slots[i].log.data);
    }
    free(p->slots);
}

void local_unref(struct local *l)
{
    if (atomic_fetch_sub(&l->refs, 1) > 1) {
        return;
    }
    for (size_t i = 0; i < l->n_pools; i++) {
        pool_finish(&l->pools[i]);
    }
    free(l->pools);
    sg_env_finish(&l->proxy_env);
    (void)pthread_mutex_destroy(&l->lock);
    (void)pthread_cond_destroy(&l->cond);
    free(l);
}

bool local_post(struct local *l, struct sg_task *t)
{
    (void)pthread_mutex_lock(&l->lock);
    bool open = !l->closed;
    if (open) {
        sg_reactor_post(l->parts.reactor, t);
    }
    (void)pthread_mutex_unlock(&l->lock);
    return open;
}

struct pool *local_pool(struct local *l, const char *name, struct sg_error *err)
{
    if (name == NULL || *name == '\0') {
        return &l->pools[0];
    }
    for (size_t i = 0; i < l->n_pools; i++) {
        if (sg_streq(l->pools[i].cfg.name, name)) {
            return &l->pools[i];
        }
    }
    sg_error_field(err, SG_POOL_NOT_FOUND, "local_pool", "there is no local pool \"%s\"", name);
    return NULL;
}

/* ---- health ---- */

/* Its sandbox has been built, so building works: a slot that is only being tried for says nothing yet. */
static bool has_worked(enum sg_slot_state s)
{
    return s == SG_SLOT_READY || s == SG_SLOT_LEASED || s == SG_SLOT_RELEASING || s == SG_SLOT_RESETTING ||
           s == SG_SLOT_LOST;
}

static int health(struct sg_driver *d, struct sg_error *err)
{
    struct local *l = (struct local *)d;
    const struct slot *bad = &l->pools[0].slots[0];
    bool good = false;
    if (sg_spawner_gone(l->parts.spawner)) { /* what slots say is of the ends of their sandboxes, which died with it */
        return sg_error_set(err, SG_UNAVAILABLE, "the spawner process died: no local sandbox can be made until the server is restarted");
    }
    (void)pthread_mutex_lock(&l->lock);
    for (size_t i = 0; i < l->n_pools; i++) {
        for (unsigned k = 0; k < l->pools[i].cfg.size; k++) {
            good = good || has_worked(l->pools[i].slots[k].state);
        }
    }
    if (!good && err != NULL) {
        if (bad->last_error[0] != '\0') {
            sg_error_set(err, SG_UNAVAILABLE, "no slot of the local pools works: %s", bad->last_error);
        } else {
            sg_error_set(err, SG_UNAVAILABLE, "the slots of the local pools are still being built");
        }
        sg_error_retry_after(err, 1);
    }
    (void)pthread_mutex_unlock(&l->lock);
    return good ? 0 : -1;
}

/* An agent that does not answer is found by its client, which then says that it is lost. */
static void health_answer(void *arg, const struct sg_file_stat *st, const struct sg_error *err)
{
    (void)arg;
    (void)st;
    (void)err;
}

static void health_due(struct sg_timer *t)
{
    struct pool *p = POOL_OF(t, health);
    const struct sg_file_stat_done done = {.fn = health_answer};
    for (unsigned i = 0; i < p->cfg.size; i++) {
        struct gen *g = p->slots[i].gen;
        if (g == NULL || !g->ready || g->ending) {
            continue;
        }
        (void)sg_agent_stat(g->base.agent, "/", &done, NULL);
        if (!g->leased && !g->ending) { /* a leased service is its lease's to judge: it may be busy */
            service_check(g);
        }
    }
    sg_timer_set(p->l->parts.reactor, t, sg_now_ms() + p->cfg.health_interval_ms);
}

/* ---- end ---- */

static void set_closed(struct local *l)
{
    sg_timer_cancel(l->parts.reactor, &l->close_timer);
    (void)pthread_mutex_lock(&l->lock);
    l->closed = true;
    (void)pthread_cond_signal(&l->cond);
    (void)pthread_mutex_unlock(&l->lock);
}

void local_maybe_closed(struct local *l)
{
    if (!l->closing || l->closed) {
        return;
    }
    for (size_t i = 0; i < l->n_pools; i++) {
        for (unsigned k = 0; k < l->pools[i].cfg.size; k++) {
            if (l->pools[i].slots[k].gen != NULL) {
                return;
            }
        }
    }
    for (size_t i = 0; i < l->n_pools; i++) {
        for (unsigned k = 0; k < l->pools[i].cfg.size; k++) {
            struct slot *s = &l->pools[i].slots[k];
            s->cgroups = sg_cgroups_free(s->cgroups);
        }
    }
    set_closed(l);
}

/* Somebody still holds a descriptor or a process will not die: what belongs to it is left to the end of the
 * server. */
static void close_late(struct sg_timer *t)
{
    set_closed(LOCAL_OF(t, close_timer));
}

static void close_run(struct sg_task *t)
{
    struct local *l = LOCAL_OF(t, close_task);
    struct sg_error err = {0};
    sg_error_set(&err, SG_SHUTTING_DOWN, "the server is shutting down");
    l->closing = true;
    sg_timer_set(l->parts.reactor, &l->close_timer, sg_now_ms() + CLOSE_MS);
    for (size_t i = 0; i < l->n_pools; i++) {
        struct pool *p = &l->pools[i];
        sg_timer_cancel(l->parts.reactor, &p->health);
        pool_fail_waiters(p, &err);
        for (unsigned k = 0; k < p->cfg.size; k++) {
            slot_close(&p->slots[k]);
        }
    }
    sg_error_clear(&err);
    local_maybe_closed(l);
}

static void driver_free(struct sg_driver *d)
{
    struct local *l = (struct local *)d;
    l->close_task.run = close_run;
    l->close_timer.fire = close_late;
    (void)local_post(l, &l->close_task);
    (void)pthread_mutex_lock(&l->lock);
    while (!l->closed) {
        (void)pthread_cond_wait(&l->cond, &l->lock);
    }
    (void)pthread_mutex_unlock(&l->lock);
    l->egress = sg_egress_hub_free(l->egress); /* every sandbox has been cut off by now */
    local_unref(l);
}

/* ---- start ---- */

static const struct sg_driver_ops local_ops = {
    .create = pool_create,
    .check = pool_check,
    .terminate = sandbox_terminate,
    .sandbox_free = sandbox_free,
    .exec_start = sandbox_exec,
    .files = &sg_agent_sandbox_files,
    .dial = sg_agent_sandbox_dial,
    .slots = &pool_slot_ops,
    .metadata = sandbox_metadata,
    .health = health,
    .free = driver_free,
};

static int check_enforced(const struct sg_local_pool_config *c, const struct sg_spawner_facts *f,
                          struct sg_error *err)
{
    const struct {
        const char *field;
        int64_t limit;
        enum sg_means means;
    } all[] = {{"memory_max", c->memory_max, f->memory},
               {"pids_max", c->pids_max, f->pids},
               {"cpu_max", c->cpu_milli, f->cpu}};
    for (size_t i = 0; c->require_limits && i < SG_COUNT_OF(all); i++) {
        if (all[i].limit > 0 && all[i].means != SG_MEANS_CGROUP1 && all[i].means != SG_MEANS_CGROUP2) {
            return sg_error_field(
                err, SG_UNAVAILABLE, all[i].field,
                "require_limits is set, but %s cannot be enforced here by a control group (means: "
                "%s): run as root or in a delegated cgroup v2",
                all[i].field, sg_means_name(all[i].means));
        }
    }
    return 0;
}

static int check_all(const struct sg_local_parts *parts, const struct sg_local_pool_config *pools,
                     size_t n_pools, struct sg_error *err)
{
    const struct sg_spawner_facts *facts = sg_spawner_facts(parts->spawner);
    size_t slots = 0;
    if (n_pools == 0) {
        return sg_error_field(err, SG_INVALID_REQUEST, "local_bwrap", "no local pool is configured");
    }
    for (size_t i = 0; i < n_pools; i++) {
        if (sg_local_pool_config_check(&pools[i], err) < 0 || check_enforced(&pools[i], facts, err) < 0) {
            return sg_error_wrap(err, "local pool \"%s\"", pools[i].name != NULL ? pools[i].name : "");
        }
        slots += pools[i].size;
        for (size_t k = 0; k < i; k++) {
            if (sg_streq(pools[i].name, pools[k].name)) {
                return sg_error_field(err, SG_INVALID_REQUEST, "name", "two local pools have the name \"%s\"",
                                      pools[i].name);
            }
        }
    }
    if (slots > SG_SPAWNER_SLOTS_MAX) {
        return sg_error_field(err, SG_INVALID_REQUEST, "size", "the local pools have %zu slots, more than %u",
                              slots, SG_SPAWNER_SLOTS_MAX);
    }
    return 0;
}

/* A copy of a NULL-terminated list, or NULL of none. */
static const char *const *copy_list(const char *const *list)
{
    size_t n = 0;
    while (list != NULL && list[n] != NULL) {
        n++;
    }
    if (n == 0) {
        return NULL;
    }
    const char **copy = sg_xcalloc(n + 1, sizeof *copy);
    for (size_t i = 0; i < n; i++) {
        copy[i] = sg_xstrdup(list[i]);
    }
    return copy;
}

/* Names are looked up on threads of their own, which are there only where somebody needs them. */
static int start_egress(struct local *l, const struct sg_local_pool_config *pools, size_t n, struct sg_error *err)
{
    bool proxies = false;
    for (size_t i = 0; i < n; i++) {
        proxies = proxies || (sg_egress_reaches_out(pools[i].egress) && pools[i].egress_allow != NULL);
        if (sg_egress_reaches_out(pools[i].egress)) {
            l->base.facts.caps |= (unsigned)SG_CAP_NETWORK;
        }
    }
    return sg_egress_env(&l->proxy_env, err) < 0 || (proxies && sg_egress_hub_new(l->parts.reactor, &l->egress, err) < 0) ? -1 : 0;
}

static const struct sg_local_image *copy_images(const struct sg_local_image *images, size_t n)
{
    struct sg_local_image *copy = sg_xcalloc(n, sizeof *copy);
    for (size_t i = 0; i < n; i++) {
        copy[i] = (struct sg_local_image){sg_xstrdup(images[i].name), sg_xstrdup(images[i].rootfs)};
    }
    return copy;
}

static void pool_init(struct pool *p, struct local *l, const struct sg_local_pool_config *c, uint32_t first)
{
    p->l = l;
    p->cfg = *c;
    p->cfg.name = sg_xstrdup(c->name);
    p->cfg.rootfs = c->rootfs != NULL ? sg_xstrdup(c->rootfs) : NULL;
    p->cfg.egress_allow = NULL; /* that is what the rules are made of */
    (void)sg_egress_rules_new(c->egress_allow, &p->rules, NULL); /* it has been checked */
    p->cfg.images = copy_images(c->images, c->n_images);
    p->cfg.service_command = copy_list(c->service_command);
    p->cfg.service_health_path = c->service_health_path != NULL ? sg_xstrdup(c->service_health_path) : NULL;
    p->cfg.waiters_max = c->waiters_max != 0 ? c->waiters_max : SG_LOCAL_WAITERS_DEFAULT;
    p->health.fire = health_due;
    p->slots = sg_xcalloc(c->size, sizeof *p->slots);
    for (unsigned i = 0; i < c->size; i++) {
        struct slot *s = &p->slots[i];
        s->pool = p;
        s->number = first + i;
        s->retry.fire = slot_retry;
        (void)snprintf(s->name, sizeof s->name, "%s-%u", c->name, i);
    }
}

static void start_run(struct sg_task *t)
{
    struct local *l = LOCAL_OF(t, start_task);
    for (size_t i = 0; i < l->n_pools; i++) {
        struct pool *p = &l->pools[i];
        for (unsigned k = 0; k < p->cfg.size; k++) {
            slot_want(&p->slots[k]);
        }
        if (p->cfg.health_interval_ms > 0) {
            sg_timer_set(l->parts.reactor, &p->health, sg_now_ms() + p->cfg.health_interval_ms);
        }
    }
}

int sg_local_bwrap_new(const struct sg_local_parts *parts, const struct sg_local_pool_config *pools,
                       size_t n_pools, struct sg_driver **ret, struct sg_error *err)
{
    if (check_all(parts, pools, n_pools, err) < 0) {
        return -1;
    }
    struct local *l = sg_xcalloc(1, sizeof *l);
    l->base.ops = &local_ops;
    l->base.facts = (struct sg_driver_facts){
        .name = "local_bwrap",
        .caps = (unsigned)SG_CAP_FILE_RW | (unsigned)SG_CAP_EXEC | (unsigned)SG_CAP_SNAPSHOT | (unsigned)SG_CAP_PUBLIC_URL,
        .free = true,
        .tty = true,
    };
    l->parts = *parts;
    atomic_init(&l->refs, 1);
    (void)pthread_mutex_init(&l->lock, NULL);
    (void)pthread_cond_init(&l->cond, NULL);
    if (start_egress(l, pools, n_pools, err) < 0) {
        local_unref(l);
        return -1;
    }
    l->pools = sg_xcalloc(n_pools, sizeof *l->pools);
    uint32_t first = 0;
    for (; l->n_pools < n_pools; l->n_pools++) {
        pool_init(&l->pools[l->n_pools], l, &pools[l->n_pools], first);
        first += pools[l->n_pools].size;
    }
    l->start_task.run = start_run;
    sg_reactor_post(parts->reactor, &l->start_task);
    *ret = &l->base;
    return 0;
}
