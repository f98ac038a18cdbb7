#include "service/service_priv.h"

#include "base/clock.h"

#include <stdio.h>

#define FOLLOW_MEMORY_MAX ((size_t)64 * 1024 * 1024)

/* Facts of the registered backends, as the selector sees them. */
static int collect_candidates(struct sg_service *s, struct sg_error *err)
{
    struct sg_driver *d;

    for (size_t i = 0; (d = sg_backends_at(s->parts.backends, i)) != NULL; i++)
        if (sg_candidates_add(&s->candidates, d->facts.name, d->facts.caps, d->facts.free, d->facts.credentials, err) < 0)
            return -1;
    s->environment.budget_set = s->parts.budget_set;
    s->environment.budget_microusd = s->parts.budget_microusd;
    sg_cleanup(sg_free_p) const char **names = sg_xcalloc(s->parts.held_credentials->n + 1, sizeof *names);
    for (size_t i = 0; i < s->parts.held_credentials->n; i++)
        names[i] = s->parts.held_credentials->v[i];
    return sg_names_set(&s->environment.available_credentials, names, err);
}

int sg_service_new(const struct sg_service_config *cfg, const struct sg_service_parts *parts, struct sg_service **ret,
                   struct sg_error *err)
{
    struct sg_service *s = sg_xcalloc(1, sizeof *s);

    s->cfg = *cfg;
    s->parts = *parts;
    s->follow_memory.max = FOLLOW_MEMORY_MAX;
    if (collect_candidates(s, err) < 0) {
        sg_service_free(s);
        return -1;
    }
    struct sg_registry_config rc = {.reactor = parts->reactor,
                                    .store = parts->store,
                                    .sandbox_ref = sg_sandbox_ref,
                                    .sandbox_unref = sg_sandbox_unref,
                                    .on_end = sg_service_on_end,
                                    .arg = s};
    s->leases = sg_registry_new(&rc);
    s->execs = sg_execs_new(s);
    s->endpoints = sg_endpoints_new();
    if (cfg->archives.state_dir && sg_archives_new(s, &cfg->archives, &s->archives, err) < 0) {
        sg_service_free(s);
        return -1;
    }
    *ret = s;
    return 0;
}

struct sg_service *sg_service_free(struct sg_service *s)
{
    if (!s)
        return NULL;
    sg_archives_free(s->archives);
    sg_endpoints_free(s->endpoints);
    sg_execs_free(s->execs);
    if (s->leases)
        sg_registry_free(s->leases);
    sg_candidates_finish(&s->candidates);
    sg_environment_finish(&s->environment);
    free(s);
    return NULL;
}

void sg_service_drain(struct sg_service *s)
{
    s->draining = true;
}

struct sg_registry *sg_service_leases(struct sg_service *s)
{
    return s->leases;
}

const struct sg_service_config *sg_service_config(const struct sg_service *s)
{
    return &s->cfg;
}

const struct sg_service_parts *sg_service_parts(const struct sg_service *s)
{
    return &s->parts;
}

const struct sg_candidates *sg_service_candidates(const struct sg_service *s)
{
    return &s->candidates;
}

const struct sg_environment *sg_service_environment(const struct sg_service *s)
{
    return &s->environment;
}

int sg_service_ready(struct sg_service *s, struct sg_error *err)
{
    struct sg_driver *d;

    if (s->draining)
        return sg_error_set(err, SG_SHUTTING_DOWN, "the server is shutting down");
    if (sg_store_check(s->parts.store, err) < 0)
        return -1;
    for (size_t i = 0; (d = sg_backends_at(s->parts.backends, i)) != NULL; i++) {
        struct sg_error why = {0};
        if (sg_driver_health(d, &why) == 0)
            return 0;
        if (sg_backends_at(s->parts.backends, i + 1) == NULL)
            sg_error_copy(err, &why);
        sg_error_clear(&why);
    }
    return sg_error_wrap(err, "no backend is usable");
}

const char *sg_service_tenant(const struct sg_principal *who)
{
    return who->role == SG_ROLE_ADMIN ? NULL : who->tenant;
}

/* ---- finding ---- */

struct find_work {
    struct sg_work work;
    struct sg_service *s;
    char tenant[64];
    bool any_tenant;
    char id[SG_ID_MAX];
    struct sg_entry_done done;
};

static void find_on_worker(struct sg_work *w)
{
    struct find_work *f = (struct find_work *)w;
    struct sg_entry *e = NULL;
    struct sg_error err = {0};

    if (sg_registry_get(f->s->leases, f->any_tenant ? NULL : f->tenant, f->id, &e, &err) < 0)
        f->done.fn(f->done.arg, NULL, &err);
    else
        f->done.fn(f->done.arg, e, NULL);
    sg_error_clear(&err);
    free(f);
}

void sg_service_find(struct sg_service *s, const struct sg_principal *who, const char *id, const struct sg_entry_done *done)
{
    struct sg_error err = {0};
    struct sg_entry *e;
    const char *tenant = sg_service_tenant(who);

    if (!sg_id_valid("lease", id)) {
        sg_error_set(&err, SG_NOT_FOUND, "there is no such lease");
        done->fn(done->arg, NULL, &err);
        return;
    }
    if (sg_registry_peek(s->leases, tenant, id, &e) == 1) {
        done->fn(done->arg, e, NULL);
        return;
    }
    struct find_work *f = sg_xcalloc(1, sizeof *f);
    f->work.run = find_on_worker;
    f->s = s;
    f->any_tenant = tenant == NULL;
    if (tenant)
        snprintf(f->tenant, sizeof f->tenant, "%s", tenant);
    snprintf(f->id, sizeof f->id, "%s", id);
    f->done = *done;
    if (sg_workq_submit(s->parts.workq, &f->work, &err) < 0) {
        done->fn(done->arg, NULL, &err);
        sg_error_clear(&err);
        free(f);
    }
}

struct sg_principal sg_service_with_budget(struct sg_service *s, const struct sg_principal *who)
{
    struct sg_principal p = *who;

    if (p.budget_set)
        p.budget_microusd -= sg_registry_spent(s->leases, p.tenant);
    return p;
}
