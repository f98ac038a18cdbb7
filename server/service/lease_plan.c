/* What is decided about a lease before anything is touched: its terms, its backend, its snapshot, its
 * repository. */
#include "service/lease_create_priv.h"

#include <stdio.h>

/* How long the services of a lease may take to be ready when no acquire_timeout is given, and at least when one is. */
#define SERVICES_MS 30000
#define SERVICES_LEAST_MS 1000

int64_t sg_creation_commands_ms(const struct sg_creation *c)
{
    return c->request.commands_timeout_ms > 0 ? c->request.commands_timeout_ms : c->s->cfg.exec_timeout_default_ms;
}

int64_t sg_creation_services_ms(const struct sg_creation *c)
{
    int64_t ms = c->request.acquire_timeout_given ? c->request.acquire_timeout_ms : SERVICES_MS;

    return ms > SERVICES_LEAST_MS ? ms : SERVICES_LEAST_MS;
}

struct sg_sandbox_spec sg_creation_spec(const struct sg_creation *c)
{
    const struct sg_lease_request *q = &c->request;

    return (struct sg_sandbox_spec){
        .lease_id = c->entry ? sg_entry_id(c->entry) : "",
        .local_pool = q->local_pool,
        .mode = q->mode,
        .egress_given = q->egress_given,
        .egress = q->egress,
        .required_caps = c->required_caps | (q->manifest.repo_url ? (unsigned)SG_CAP_NETWORK : 0),
        .env = &c->terms->env,
        .limits = q->limits,
        .services = c->terms->services,
        .n_services = c->terms->n_services,
        .image = q->image,
        .snapshot_ref = c->snapshot.ref[0] ? c->snapshot.ref : NULL,
        .brings_service = q->mode == SG_MODE_BLACKBOX && q->n_commands == 0,
        .setup_ms = (q->n_commands > 0 ? sg_creation_commands_ms(c) : 0) + (q->mode == SG_MODE_BLACKBOX ? sg_creation_services_ms(c) : 0),
        .root = c->terms->root,
        .repo_name = c->repo ? c->repo : q->manifest.repo_name,
        .repo_ref = q->manifest.repo_ref,
        .repo_commit = c->repo ? c->commit : NULL,
        .timeout_ms = c->terms->timeout_ms,
        .acquire_timeout_ms = q->acquire_timeout_given ? q->acquire_timeout_ms : -1};
}

static int check_timeout(const char *field, int64_t given_ms, int64_t max_ms, struct sg_error *err)
{
    if (given_ms <= max_ms)
        return 0;
    return sg_error_field(err, SG_TIMEOUT_ABOVE_MAXIMUM, field,
                          "is above this server's maximum of %lld seconds", (long long)(max_ms / 1000));
}

static int fill_terms(struct sg_creation *c, const struct sg_principal *who, const char *key,
                      struct sg_error *err)
{
    const struct sg_service_config *cfg = &c->s->cfg;
    struct sg_lease_request *q = &c->request;
    struct sg_lease_terms *t = c->terms = sg_lease_terms_new(who->tenant);

    t->trajectory_id = sg_steal(&q->trajectory_id);
    t->idempotency_key = key ? sg_xstrdup(key) : NULL;
    memcpy(t->request_hash, q->hash, sizeof t->request_hash);
    t->local_pool = q->local_pool ? sg_xstrdup(q->local_pool) : NULL;
    t->image = q->image ? sg_xstrdup(q->image) : NULL;
    t->mode = q->mode;
    t->root = q->manifest.root ? sg_xstrdup(q->manifest.root) : NULL;
    t->env = q->env;
    q->env = (struct sg_env){0};
    t->services = sg_steal(&q->services);
    t->n_services = q->n_services;
    q->n_services = 0;
    t->timeout_ms = q->timeout_ms > 0 ? q->timeout_ms : cfg->lease_timeout_default_ms;
    t->idle_timeout_ms = q->idle_timeout_ms > 0 ? q->idle_timeout_ms : cfg->lease_idle_timeout_ms;
    if (check_timeout("timeout_sec", t->timeout_ms, cfg->lease_timeout_max_ms, err) < 0 ||
        check_timeout("idle_timeout_sec", t->idle_timeout_ms, cfg->lease_timeout_max_ms, err) < 0 ||
        check_timeout("env_args.sandbox_cmd_timeout", q->commands_timeout_ms, cfg->exec_timeout_max_ms, err) < 0 ||
        check_timeout("acquire_timeout", q->acquire_timeout_ms, cfg->lease_timeout_max_ms, err) < 0)
        return -1;
    if (q->pool)
        return sg_error_field(err, SG_POOL_NOT_FOUND, "pool", "this server has no pool of that name");
    if (q->overrides)
        return sg_error_field(err, SG_INVALID_REQUEST, "overrides", "is only for requests that name a pool");
    return 0;
}

static int decide(struct sg_creation *c, const struct sg_principal *who, struct sg_error *err)
{
    struct sg_policy policy = {0};
    struct sg_candidates cands = {0};
    struct sg_environment env = {0};
    struct sg_decide_context ctx = {.network_egress_class =
                                        c->request.egress_given ? sg_egress_name(c->request.egress) : NULL,
                                    .local_pool = c->request.local_pool};

    const struct sg_principal now = sg_service_with_budget(c->s, who);

    int rc = sg_policy_parse(c->request.policy, "policy", &policy, err);
    c->required_caps = policy.required_caps;
    if (rc == 0)
        rc = sg_selection_cut(&now, &c->s->candidates, &c->s->environment, &cands, &env, err);
    if (rc == 0 && c->snapshot.id[0])
        sg_candidates_keep(&cands, c->snapshot.provider); /* it can be restored nowhere else */
    if (rc == 0)
        rc = sg_decide(&policy, &env, &cands, &ctx, &c->decision, err);
    sg_policy_finish(&policy);
    sg_candidates_finish(&cands);
    sg_environment_finish(&env);
    return rc;
}

static int64_t price_of(const struct sg_service *s, const char *backend)
{
    for (size_t i = 0; i < s->parts.n_prices; i++)
        if (sg_streq(s->parts.prices[i].backend, backend))
            return s->parts.prices[i].microusd < SG_PRICE_MAX ? s->parts.prices[i].microusd : SG_PRICE_MAX;
    return 0;
}

static int find_snapshot(struct sg_creation *c, const struct sg_principal *who, struct sg_error *err)
{
    const char *id = c->request.manifest.snapshot;

    if (!id || sg_service_kept_open(c->s, who, SG_KEPT_SNAPSHOT, id, &c->snapshot, &c->snapshot_fd, err) == 0)
        return 0;
    if (err && err->code == SG_NOT_FOUND)
        return sg_error_field(err, SG_SNAPSHOT_NOT_FOUND, "manifest.snapshot", "there is no such snapshot");
    return -1;
}

/* The selector was given the one backend that has the snapshot; its refusal alone would not say so. */
static void explain_snapshot(struct sg_creation *c)
{
    if (!c->snapshot.id[0])
        return;
    sg_error_wrap(&c->why, "snapshot %s is backend %s's, and no other can begin with it", c->snapshot.id, c->snapshot.provider);
    snprintf(c->why.field, sizeof c->why.field, "manifest.snapshot");
    sg_error_reason(&c->why, "snapshot_backend");
}

/* Which repository goes into the sandbox; none is fine where the driver does not live of them. */
static int choose_repo(struct sg_creation *c, struct sg_error *err)
{
    const struct sg_manifest *m = &c->request.manifest;
    const struct sg_driver *d = c->driver;

    if (m->repo_url && d->facts.checks_out)
        return sg_error_field(err, SG_NOT_SUPPORTED, "manifest.repo.url",
                              "backend \"%s\" has only this server's own repositories, by their name",
                              d->facts.name);
    if (m->repo_url && !(d->facts.caps & SG_CAP_NETWORK))
        return sg_error_field(err, SG_NOT_SUPPORTED, "manifest.repo.url",
                              "the sandbox itself fetches it, and backend \"%s\" has no network here; use a "
                              "repository of this server by its name",
                              d->facts.name);
    if (m->repo_url)
        return 0;
    if (!m->repo_name && !d->facts.checks_out)
        return 0;
    if (!d->facts.checks_out && !(d->ops->files && d->ops->files->tree))
        return sg_error_field(err, SG_NOT_SUPPORTED, "manifest.repo",
                              "backend \"%s\" cannot be given a repository", d->facts.name);
    c->repo = sg_repos_find(c->s->parts.repos, m->repo_name, err);
    return c->repo ? 0 : -1;
}

int sg_creation_plan(struct sg_creation *c, const struct sg_principal *who, const char *key)
{
    if (c->s->draining) {
        sg_error_set(&c->why, SG_SHUTTING_DOWN, "the server is shutting down and takes no new leases");
        return sg_error_retry_after(&c->why, 5);
    }
    if (sg_store_check(c->s->parts.store, &c->why) < 0 || fill_terms(c, who, key, &c->why) < 0 ||
        find_snapshot(c, who, &c->why) < 0 || decide(c, who, &c->why) < 0)
        return -1;
    if (c->decision.code != SG_OK) {
        sg_decision_refusal(&c->decision, &c->why);
        explain_snapshot(c);
        return 1;
    }
    c->driver = sg_backends_get(c->s->parts.backends, c->decision.backend, &c->why);
    if (!c->driver)
        return -1;
    c->terms->price_uh = price_of(c->s, c->decision.backend);
    struct sg_sandbox_spec spec = sg_creation_spec(c);
    return choose_repo(c, &c->why) < 0 || sg_driver_check(c->driver, &spec, &c->why) < 0 ? 1 : 0;
}
