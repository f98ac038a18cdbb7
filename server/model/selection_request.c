/* The body of POST /select, what a token may see, and the value of GET /backends. */
#include "base/json.h"
#include "model/provider.h"
#include "model/selection.h"
#include "model/slot.h"

static int request_read(struct sg_json_reader *r, struct sg_selection_request *q, struct sg_error *err)
{
    json_t *policy = NULL;
    json_t *environment = NULL;
    json_t *backends = NULL;
    json_t *manifest = NULL;
    if (sg_json_object(r, "manifest", &manifest, err) < 0 || sg_json_object(r, "policy", &policy, err) < 0 ||
        sg_json_object(r, "environment", &environment, err) < 0 ||
        sg_json_str(r, "pool", &q->pool, err) < 0 || sg_json_object(r, "overrides", &q->overrides, err) < 0 ||
        sg_json_array(r, "backends", &backends, err) < 0 || sg_json_end(r, err) < 0)
        return -1;
    q->manifest = manifest;
    if (q->pool && !*q->pool)
        return sg_error_field(err, SG_INVALID_REQUEST, "pool", "must be the name of a pool");
    if (q->overrides && json_object_size(q->overrides) > 0 && !q->pool)
        return sg_error_field(err, SG_INVALID_REQUEST, "overrides",
                              "override members of a pool: name one with pool");
    if (sg_policy_parse(policy, "policy", &q->policy, err) < 0)
        return -1;
    if (environment && sg_environment_parse(environment, "environment", &q->environment, err) < 0)
        return -1;
    if (backends && sg_candidates_parse(backends, "backends", &q->backends, err) < 0)
        return -1;
    q->environment_given = environment != NULL;
    q->backends_given = backends != NULL;
    return 0;
}

int sg_selection_parse(json_t *body, struct sg_selection_request *ret, struct sg_error *err)
{
    struct sg_json_reader r;
    struct sg_selection_request q = {0};
    *ret = q;
    if (sg_json_begin(&r, body, "", err) < 0)
        return -1;
    q.body = sg_json_ref(body);
    if (request_read(&r, &q, err) < 0) {
        sg_selection_request_finish(&q);
        return -1;
    }
    *ret = q;
    return 0;
}

void sg_selection_request_finish(struct sg_selection_request *r)
{
    sg_policy_finish(&r->policy);
    sg_environment_finish(&r->environment);
    sg_candidates_finish(&r->backends);
    sg_json_unref(r->body);
    *r = (struct sg_selection_request){0};
}

/* ---- what a token may see ---- */

static bool may_use(const struct sg_principal *who, const struct sg_candidate *c)
{
    if (!c->free && !who->allow_paid)
        return false;
    if (!who->backends)
        return true;
    for (size_t i = 0; who->backends[i]; i++) {
        if (sg_streq(who->backends[i], c->name))
            return true;
    }
    return false;
}

/* Copies a candidate; its strings stay those of c. */
static int add_copy(struct sg_candidates *l, const struct sg_candidate *c, struct sg_error *err)
{
    const char *credentials[SG_CANDIDATE_CREDENTIALS_MAX + 1] = {NULL};
    if (c->credentials.n > SG_CANDIDATE_CREDENTIALS_MAX)
        return sg_error_set(err, SG_LIMIT_EXCEEDED, "backend %s needs more than %u credentials", c->name,
                            SG_CANDIDATE_CREDENTIALS_MAX);
    for (size_t i = 0; i < c->credentials.n; i++)
        credentials[i] = c->credentials.v[i];
    return sg_candidates_add(l, c->name, c->caps, c->free, credentials, err);
}

static bool needed(const struct sg_candidates *l, const char *credential)
{
    for (size_t i = 0; i < l->n; i++) {
        if (sg_names_have(&l->v[i].credentials, credential))
            return true;
    }
    return false;
}

static int cut_environment(const struct sg_principal *who, const struct sg_candidates *visible,
                           const struct sg_environment *snapshot, struct sg_environment *env,
                           struct sg_error *err)
{
    const char *names[SG_AVAILABLE_CREDENTIALS_MAX + 1] = {NULL};
    size_t n = 0;
    for (size_t i = 0; i < snapshot->available_credentials.n; i++) {
        const char *name = snapshot->available_credentials.v[i];
        if (!needed(visible, name))
            continue;
        if (n == SG_AVAILABLE_CREDENTIALS_MAX)
            return sg_error_set(err, SG_LIMIT_EXCEEDED, "more than %u credentials",
                                SG_AVAILABLE_CREDENTIALS_MAX);
        names[n++] = name;
    }
    env->budget_set = snapshot->budget_set;
    env->budget_microusd = snapshot->budget_microusd;
    if (who->budget_set && (!env->budget_set || who->budget_microusd < env->budget_microusd)) {
        env->budget_set = true;
        env->budget_microusd = who->budget_microusd;
    }
    return sg_names_set(&env->available_credentials, names, err);
}

int sg_selection_cut(const struct sg_principal *who, const struct sg_candidates *registered,
                     const struct sg_environment *snapshot, struct sg_candidates *cands,
                     struct sg_environment *env, struct sg_error *err)
{
    struct sg_candidates l = {0};
    struct sg_environment e = {0};
    *cands = l;
    *env = e;
    for (size_t i = 0; i < registered->n; i++) {
        if (may_use(who, &registered->v[i]) && add_copy(&l, &registered->v[i], err) < 0) {
            sg_candidates_finish(&l);
            return -1;
        }
    }
    if (cut_environment(who, &l, snapshot, &e, err) < 0) {
        sg_candidates_finish(&l);
        return -1;
    }
    *cands = l;
    *env = e;
    return 0;
}

/* ---- GET /backends ---- */

static json_t *credentials_json(const struct sg_names *needs, const struct sg_names *held)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < needs->n; i++) {
        json_t *item = json_pack("{s:s, s:b}", "name", needs->v[i], "held", sg_names_have(held, needs->v[i]));
        if (json_array_append_new(list, item) < 0) {
            sg_json_unref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *backend_json(const struct sg_backend_view *v, const struct sg_names *held)
{
    json_t *healthy = v->registered ? json_boolean(v->health == NULL) : json_null();
    const char *detail = v->registered && v->health ? v->health->message : NULL;
    json_t *provider = v->provider ? sg_provider_json(v->provider) : NULL;
    json_t *warm = v->warm ? json_pack("{s:i, s:i}", "size", (int)v->warm->size, "ready", (int)v->warm->ready) : NULL;
    return json_pack("{s:s, s:o, s:b, s:b, s:o, s:b, s:b, s:o, s:s?, s:o*, s:o*}", "name", v->facts.name, "capabilities",
                     sg_caps_json(v->facts.caps), "tty", v->tty, "free", v->facts.free, "credentials",
                     credentials_json(&v->facts.credentials, held), "built", v->built, "registered",
                     v->registered, "healthy", healthy, "detail", detail, "provider", provider, "warm", warm);
}

json_t *sg_backends_json(const struct sg_backend_view *v, size_t n, const struct sg_names *held)
{
    json_t *items = json_array();
    for (size_t i = 0; items && i < n; i++) {
        if (json_array_append_new(items, backend_json(&v[i], held)) < 0) {
            sg_json_unref(items);
            items = NULL;
        }
    }
    return items;
}
