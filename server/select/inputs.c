#include "select/inputs.h"

#include <stdio.h>

#include "base/json.h"
#include "model/sandbox.h"

#define PATH "selector_inputs"

/* ---- from typed values ---- */

static struct sg_select_names names_of(const struct sg_names *l)
{
    return (struct sg_select_names){l->v, l->n};
}

static int compare_candidates(const void *a, const void *b)
{
    const struct sg_select_candidate *x = a;
    const struct sg_select_candidate *y = b;
    return strcmp(x->name, y->name);
}

int sg_inputs_of(const struct sg_policy *policy, const struct sg_environment *env,
                 const struct sg_candidates *candidates, struct sg_inputs *ret, struct sg_error *err)
{
    struct sg_inputs t = {0};
    *ret = t;
    if (candidates->n > SG_SELECT_CANDIDATES_MAX)
        return sg_error_set(err, SG_INVALID_REQUEST, "more than %d candidates", SG_SELECT_CANDIDATES_MAX);
    t.candidates = calloc(candidates->n + 1, sizeof *t.candidates);
    if (!t.candidates)
        return sg_error_set(err, SG_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < candidates->n; i++) {
        const struct sg_candidate *c = &candidates->v[i];
        t.candidates[i] = (struct sg_select_candidate){c->name, c->caps, c->free, names_of(&c->credentials)};
    }
    if (candidates->n > 1)
        qsort(t.candidates, candidates->n, sizeof *t.candidates, compare_candidates);
    t.in = (struct sg_select_input){
        .candidates = t.candidates,
        .n_candidates = candidates->n,
        .policy = {policy->override, policy->allow_paid, policy->required_caps,
                   names_of(&policy->required_credentials), names_of(&policy->precedence)},
        .environment = {names_of(&env->available_credentials), env->budget_set, env->budget_microusd},
    };
    *ret = t;
    return 0;
}

/* ---- reading ---- */

/* Where the lists go: one array with room for every name of the value. */
struct pool {
    const char **names;
    size_t used;
};

static int malformed(const char *path, const char *key, const char *must, struct sg_error *err)
{
    char field[sizeof err->field];
    sg_json_path(path, key, field, sizeof field);
    return sg_error_field(err, SG_INVALID_REQUEST, field, "%s %s", field, must);
}

/* Reads an array of names into the pool; sorted: they must be a set. */
static int read_names(struct sg_json_reader *r, const char *key, bool sorted, struct pool *pool,
                      struct sg_select_names *ret, struct sg_error *err)
{
    json_t *list;
    int has = sg_json_array(r, key, &list, err);
    if (has <= 0)
        return has < 0 ? -1 : malformed(r->path, key, "is missing", err);
    const char **v = pool->names + pool->used;
    size_t n = json_array_size(list);
    for (size_t i = 0; i < n; i++) {
        v[i] = json_string_value(json_array_get(list, i));
        if (!v[i] || !*v[i])
            return malformed(r->path, key, "must hold names", err);
        if (sorted && i > 0 && strcmp(v[i - 1], v[i]) >= 0)
            return malformed(r->path, key, "must be sorted and hold no name twice", err);
    }
    pool->used += n;
    *ret = (struct sg_select_names){v, n};
    return 0;
}

static int read_caps(struct sg_json_reader *r, const char *key, unsigned *ret, struct sg_error *err)
{
    json_t *list;
    unsigned caps = 0;
    int has = sg_json_array(r, key, &list, err);
    if (has <= 0)
        return has < 0 ? -1 : malformed(r->path, key, "is missing", err);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *s = json_string_value(json_array_get(list, i));
        unsigned bit = s ? sg_cap_parse(s) : 0;
        if (!bit)
            return malformed(r->path, key, "must hold names of capabilities", err);
        if (i > 0 && strcmp(json_string_value(json_array_get(list, i - 1)), s) >= 0)
            return malformed(r->path, key, "must be sorted and hold no name twice", err);
        caps |= bit;
    }
    *ret = caps;
    return 0;
}

static int read_bool(struct sg_json_reader *r, const char *key, bool *ret, struct sg_error *err)
{
    int has = sg_json_bool(r, key, ret, err);
    if (has == 0)
        return malformed(r->path, key, "is missing", err);
    return has < 0 ? -1 : 0;
}

static int read_candidate(const json_t *v, size_t i, struct pool *pool, struct sg_select_candidate *c,
                          struct sg_error *err)
{
    struct sg_json_reader r;
    char path[64];
    snprintf(path, sizeof path, PATH ".candidates[%zu]", i);
    if (sg_json_begin(&r, v, path, err) < 0)
        return -1;
    int has = sg_json_str(&r, "name", &c->name, err);
    if (has < 0)
        return -1;
    if (has == 0 || !sg_backend_name_valid(c->name))
        return malformed(path, "name", "must be the name of a backend", err);
    if (read_caps(&r, "capabilities", &c->capabilities, err) < 0 ||
        read_bool(&r, "free", &c->free, err) < 0 ||
        read_names(&r, "credentials", true, pool, &c->credentials, err) < 0)
        return -1;
    return sg_json_end(&r, err);
}

static int read_candidates(struct sg_json_reader *r, struct pool *pool, struct sg_inputs *t,
                           struct sg_error *err)
{
    json_t *list;
    int has = sg_json_array(r, "candidates", &list, err);
    if (has <= 0)
        return has < 0 ? -1 : malformed(PATH, "candidates", "is missing", err);
    size_t n = json_array_size(list);
    if (n > SG_SELECT_CANDIDATES_MAX)
        return malformed(PATH, "candidates", "holds too many", err);
    t->candidates = calloc(n ? n : 1, sizeof *t->candidates);
    if (!t->candidates)
        return sg_error_set(err, SG_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < n; i++) {
        if (read_candidate(json_array_get(list, i), i, pool, &t->candidates[i], err) < 0)
            return -1;
        if (i > 0 && strcmp(t->candidates[i - 1].name, t->candidates[i].name) >= 0)
            return malformed(PATH, "candidates", "must be sorted by name, no name twice", err);
    }
    t->in.candidates = t->candidates;
    t->in.n_candidates = n;
    return 0;
}

/* Members the selector does not weigh: right in shape, no more. */
static int read_context(struct sg_json_reader *r, struct pool *pool, struct sg_error *err)
{
    const char *egress = NULL;
    const char *local_pool = NULL;
    enum sg_egress class;
    struct sg_select_names allowlist;
    json_t *list;
    if (sg_json_str(r, "network_egress_class", &egress, err) < 0 ||
        sg_json_str(r, "local_pool", &local_pool, err) < 0)
        return -1;
    if (egress && !sg_egress_parse(egress, &class))
        return malformed(PATH, "network_egress_class", "must be the name of a class", err);
    if (sg_json_any(r, "backend_allowlist", &list) > 0)
        return read_names(r, "backend_allowlist", false, pool, &allowlist, err);
    return 0;
}

static int read_members(struct sg_json_reader *r, struct pool *pool, struct sg_inputs *t,
                        struct sg_error *err)
{
    struct sg_select_policy *p = &t->in.policy;
    struct sg_select_environment *e = &t->in.environment;
    if (sg_json_str(r, "override", &p->override, err) < 0 ||
        read_bool(r, "allow_paid", &p->allow_paid, err) < 0 ||
        read_caps(r, "required_capabilities", &p->required_capabilities, err) < 0 ||
        read_names(r, "required_credentials", true, pool, &p->required_credentials, err) < 0 ||
        read_names(r, "precedence", false, pool, &p->precedence, err) < 0 ||
        read_names(r, "available_credentials", true, pool, &e->available_credentials, err) < 0)
        return -1;
    int has = sg_json_int(r, "budget_remaining_microusd", -SG_BUDGET_MICROUSD_MAX, SG_BUDGET_MICROUSD_MAX,
                          &e->budget_microusd, err);
    if (has < 0)
        return -1;
    e->budget_set = has > 0;
    if (read_context(r, pool, err) < 0 || read_candidates(r, pool, t, err) < 0)
        return -1;
    return sg_json_end(r, err);
}

/* A null counts as absent for the reader; here every member must be there by name. */
static int check_members(const json_t *v, struct sg_error *err)
{
    static const char *const keys[] = {"override",
                                       "allow_paid",
                                       "required_capabilities",
                                       "required_credentials",
                                       "precedence",
                                       "available_credentials",
                                       "budget_remaining_microusd",
                                       "network_egress_class",
                                       "backend_allowlist",
                                       "local_pool",
                                       "candidates"};
    for (size_t i = 0; i < SG_COUNT_OF(keys); i++) {
        if (!json_object_get(v, keys[i]))
            return malformed(PATH, keys[i], "is missing", err);
    }
    return 0;
}

/* How many names all lists of the value hold; SIZE_MAX when one list is over the selector's bounds. */
static size_t count_names(const json_t *v)
{
    static const char *const lists[] = {"required_credentials", "precedence", "available_credentials",
                                        "backend_allowlist"};
    const json_t *candidates = json_object_get(v, "candidates");
    size_t total = 0;
    for (size_t i = 0; i < SG_COUNT_OF(lists); i++) {
        size_t n = json_array_size(json_object_get(v, lists[i]));
        if (n > SG_SELECT_NAMES_MAX)
            return SIZE_MAX;
        total += n;
    }
    if (json_array_size(candidates) > SG_SELECT_CANDIDATES_MAX)
        return SIZE_MAX;
    for (size_t i = 0; i < json_array_size(candidates); i++) {
        size_t n = json_array_size(json_object_get(json_array_get(candidates, i), "credentials"));
        if (n > SG_SELECT_NAMES_MAX)
            return SIZE_MAX;
        total += n;
    }
    return total;
}

int sg_inputs_read(const json_t *v, struct sg_inputs *ret, struct sg_error *err)
{
    struct sg_json_reader r;
    struct sg_inputs t = {0};
    *ret = t;
    if (sg_json_begin(&r, v, PATH, err) < 0 || check_members(v, err) < 0)
        return -1;
    size_t n = count_names(v);
    if (n == SIZE_MAX)
        return sg_error_field(err, SG_INVALID_REQUEST, PATH, "a list holds too many elements");
    t.names = calloc(n ? n : 1, sizeof *t.names);
    if (!t.names)
        return sg_error_set(err, SG_NO_MEMORY, "out of memory");
    struct pool pool = {t.names, 0};
    if (read_members(&r, &pool, &t, err) < 0) {
        sg_inputs_finish(&t);
        return -1;
    }
    *ret = t;
    return 0;
}

void sg_inputs_finish(struct sg_inputs *i)
{
    free(i->names);
    free(i->candidates);
    *i = (struct sg_inputs){0};
}
