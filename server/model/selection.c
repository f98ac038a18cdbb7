#include "model/selection.h"

#include <stdio.h>

#include "base/json.h"

#define FIELD_MAX sizeof(((struct sg_error *)NULL)->field)
#define LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
#define DIGITS "0123456789"

const char *const sg_precedence_default[] = {"worktree", "docker", "local_bwrap", "e2b",    "modal",
                                             "daytona",  "blaxel", "runloop",     "vercel", NULL};

bool sg_free_by_default(const char *backend)
{
    return sg_streq(backend, "worktree") || sg_streq(backend, "docker") || sg_streq(backend, "local_bwrap");
}

/* ---- names ---- */

static bool name_valid(const char *s, size_t max, const char *first, const char *rest)
{
    size_t n = strlen(s);
    return n > 0 && n <= max && strchr(first, s[0]) && strspn(s, rest) == n;
}

bool sg_backend_name_valid(const char *s)
{
    return name_valid(s, SG_BACKEND_NAME_MAX, LETTERS DIGITS, LETTERS DIGITS "._-");
}

bool sg_credential_name_valid(const char *s)
{
    return name_valid(s, SG_CREDENTIAL_NAME_MAX, LETTERS "_", LETTERS DIGITS "_.-");
}

/* Control characters are out: names end up in messages that terminals show. */
static bool any_name_valid(const char *s)
{
    size_t n = 0;
    while (n <= SG_ANY_NAME_MAX && (unsigned char)s[n] >= 0x20 && s[n] != 0x7f)
        n++;
    return n > 0 && n <= SG_ANY_NAME_MAX && s[n] == '\0';
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

void sg_names_finish(struct sg_names *l)
{
    free(l->v);
    *l = (struct sg_names){0};
}

bool sg_names_have(const struct sg_names *l, const char *name)
{
    for (size_t i = 0; i < l->n; i++) {
        if (sg_streq(l->v[i], name))
            return true;
    }
    return false;
}

/* Sorts and drops repetitions. */
static void names_make_set(struct sg_names *l)
{
    size_t kept = 0;
    if (l->n > 1)
        qsort(l->v, l->n, sizeof *l->v, compare_names);
    for (size_t i = 0; i < l->n; i++) {
        if (kept == 0 || !sg_streq(l->v[kept - 1], l->v[i]))
            l->v[kept++] = l->v[i];
    }
    l->n = kept;
}

/* Drops repetitions; the first place of a name stays. */
static void names_keep_first(struct sg_names *l)
{
    size_t n = l->n;
    l->n = 0;
    for (size_t i = 0; i < n; i++) {
        if (!sg_names_have(l, l->v[i]))
            l->v[l->n++] = l->v[i];
    }
}

static int names_reserve(struct sg_names *l, size_t n, struct sg_error *err)
{
    l->v = calloc(n ? n : 1, sizeof *l->v);
    return l->v ? 0 : sg_error_set(err, SG_NO_MEMORY, "out of memory");
}

static int names_copy(struct sg_names *ret, const char *const *names, struct sg_error *err)
{
    size_t n = 0;
    while (names && names[n])
        n++;
    if (names_reserve(ret, n, err) < 0)
        return -1;
    for (size_t i = 0; i < n; i++)
        ret->v[ret->n++] = names[i];
    return 0;
}

int sg_names_set(struct sg_names *ret, const char *const *names, struct sg_error *err)
{
    *ret = (struct sg_names){0};
    if (names_copy(ret, names, err) < 0)
        return -1;
    names_make_set(ret);
    return 0;
}

/* What an array member of names must hold. A bad element is never repeated in the message: someone may have
 * put a credential's value where its name belongs. */
struct names_rule {
    bool (*valid)(const char *);
    const char *must;
};

static const struct names_rule credential_rule = {
    sg_credential_name_valid,
    "must be the name of a credential: letters, digits, '_', '.', '-', first a letter or '_', at most 128"};
static const struct names_rule precedence_rule = {
    any_name_valid, "must be the name of a backend: 1 to 128 bytes, no control characters"};

/* Element i of the member is wrong; returns -1. */
static int bad_element(const struct sg_json_reader *r, const char *key, size_t i, const char *must,
                       struct sg_error *err)
{
    char path[FIELD_MAX];
    char field[FIELD_MAX + 24];
    sg_json_path(r->path, key, path, sizeof path);
    snprintf(field, sizeof field, "%s[%zu]", path, i);
    return sg_error_field(err, SG_INVALID_REQUEST, field, "%s", must);
}

/* Takes an array member of at most max elements: 1, 0 when absent, -1. */
static int take_list(struct sg_json_reader *r, const char *key, size_t max, json_t **ret,
                     struct sg_error *err)
{
    char path[FIELD_MAX];
    int has = sg_json_array(r, key, ret, err);
    if (has <= 0 || json_array_size(*ret) <= max)
        return has;
    sg_json_path(r->path, key, path, sizeof path);
    return sg_error_field(err, SG_INVALID_REQUEST, path, "has more than %zu elements", max);
}

/* Takes an array of names: 1, 0 when absent, -1. */
static int take_names(struct sg_json_reader *r, const char *key, const struct names_rule *rule, size_t max,
                      struct sg_names *ret, struct sg_error *err)
{
    json_t *list;
    int has = take_list(r, key, max, &list, err);
    if (has <= 0)
        return has;
    size_t n = json_array_size(list);
    if (names_reserve(ret, n, err) < 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        const char *s = json_string_value(json_array_get(list, i));
        if (!s || !rule->valid(s))
            return bad_element(r, key, i, rule->must, err);
        ret->v[ret->n++] = s;
    }
    return 1;
}

/* Takes an array of capability names as bits: 1, 0 when absent, -1. */
static int take_caps(struct sg_json_reader *r, const char *key, unsigned *ret, struct sg_error *err)
{
    json_t *list;
    unsigned caps = 0;
    int has = take_list(r, key, SG_PRECEDENCE_MAX, &list, err);
    if (has <= 0)
        return has;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *s = json_string_value(json_array_get(list, i));
        unsigned bit = s ? sg_cap_parse(s) : 0;
        if (!bit)
            return bad_element(
                r, key, i,
                "must be one of file_rw, exec, network, gpu, snapshot, persistent_volumes, public_url", err);
        caps |= bit;
    }
    *ret = caps;
    return 1;
}

json_t *sg_caps_json(unsigned caps)
{
    const char *names[SG_CAP_COUNT];
    size_t n = 0;
    for (unsigned i = 0; i < SG_CAP_COUNT; i++) {
        if (caps & (1U << i))
            names[n++] = sg_cap_name(i);
    }
    if (n > 1)
        qsort(names, n, sizeof *names, compare_names);
    json_t *list = json_array();
    for (size_t i = 0; list && i < n; i++) {
        if (json_array_append_new(list, json_string(names[i])) < 0) {
            sg_json_unref(list);
            list = NULL;
        }
    }
    return list;
}

/* ---- policy ---- */

static int policy_read(struct sg_json_reader *r, struct sg_policy *p, struct sg_error *err)
{
    char field[FIELD_MAX];
    if (sg_json_str(r, "override", &p->override, err) < 0 ||
        sg_json_bool(r, "allow_paid", &p->allow_paid, err) < 0 ||
        take_caps(r, "required_capabilities", &p->required_caps, err) < 0 ||
        take_names(r, "required_credentials", &credential_rule, SG_REQUIRED_CREDENTIALS_MAX,
                   &p->required_credentials, err) < 0)
        return -1;
    if (p->override && !any_name_valid(p->override)) {
        sg_json_path(r->path, "override", field, sizeof field);
        return sg_error_field(err, SG_INVALID_REQUEST, field,
                              "must be the name of a backend: 1 to 128 bytes, no control characters");
    }
    names_make_set(&p->required_credentials);
    int has = take_names(r, "precedence", &precedence_rule, SG_PRECEDENCE_MAX, &p->precedence, err);
    if (has < 0)
        return -1;
    names_keep_first(&p->precedence);
    if (!has && names_copy(&p->precedence, sg_precedence_default, err) < 0)
        return -1;
    return sg_json_end(r, err);
}

int sg_policy_parse(json_t *v, const char *path, struct sg_policy *ret, struct sg_error *err)
{
    struct sg_json_reader r;
    struct sg_policy p = {.required_caps = SG_CAP_FILE_RW | SG_CAP_EXEC};
    *ret = (struct sg_policy){0};
    if (!v || json_is_null(v)) {
        if (names_copy(&p.precedence, sg_precedence_default, err) < 0)
            return -1;
        *ret = p;
        return 0;
    }
    if (sg_json_begin(&r, v, path, err) < 0)
        return -1;
    p.source = sg_json_ref(v);
    if (policy_read(&r, &p, err) < 0) {
        sg_policy_finish(&p);
        return -1;
    }
    *ret = p;
    return 0;
}

void sg_policy_finish(struct sg_policy *p)
{
    sg_names_finish(&p->required_credentials);
    sg_names_finish(&p->precedence);
    sg_json_unref(p->source);
    *p = (struct sg_policy){0};
}

/* ---- environment ---- */

int sg_budget_parse(const json_t *v, const char *field, int64_t *ret, struct sg_error *err)
{
    const int64_t usd_max = SG_BUDGET_MICROUSD_MAX / 1000000;
    if (json_is_integer(v)) {
        json_int_t usd = json_integer_value(v);
        if (usd > usd_max || usd < -usd_max)
            return sg_error_field(err, SG_INVALID_REQUEST, field, "must be within %lld dollars either way",
                                  (long long)usd_max);
        *ret = (int64_t)usd * 1000000;
        return 0;
    }
    if (!json_is_real(v))
        return sg_error_field(err, SG_INVALID_REQUEST, field, "must be a number");
    double usd = json_real_value(v);
    if (!(usd <= (double)usd_max && usd >= -(double)usd_max))
        return sg_error_field(err, SG_INVALID_REQUEST, field, "must be within %lld dollars either way",
                              (long long)usd_max);
    /* Up to the limit micro-dollars are exact in a double, and a division rounds correctly: the quotient is
     * the very double that the decimal text of that many micro-dollars parses to. Anything else had more
     * decimals. */
    int64_t micro = (int64_t)(usd * 1e6 + (usd < 0 ? -0.5 : 0.5));
    if ((double)micro / 1e6 != usd)
        return sg_error_field(err, SG_INVALID_REQUEST, field, "must have at most 6 decimals");
    *ret = micro;
    return 0;
}

static int environment_read(struct sg_json_reader *r, struct sg_environment *e, struct sg_error *err)
{
    json_t *budget;
    char field[FIELD_MAX];
    if (take_names(r, "available_credentials", &credential_rule, SG_AVAILABLE_CREDENTIALS_MAX,
                   &e->available_credentials, err) < 0)
        return -1;
    names_make_set(&e->available_credentials);
    int has = sg_json_any(r, "budget_remaining_usd", &budget);
    if (has < 0)
        return -1;
    if (has) {
        sg_json_path(r->path, "budget_remaining_usd", field, sizeof field);
        if (sg_budget_parse(budget, field, &e->budget_microusd, err) < 0)
            return -1;
        e->budget_set = true;
    }
    return sg_json_end(r, err);
}

int sg_environment_parse(json_t *v, const char *path, struct sg_environment *ret, struct sg_error *err)
{
    struct sg_json_reader r;
    struct sg_environment e = {0};
    *ret = e;
    if (sg_json_begin(&r, v, path, err) < 0)
        return -1;
    e.source = sg_json_ref(v);
    if (environment_read(&r, &e, err) < 0) {
        sg_environment_finish(&e);
        return -1;
    }
    *ret = e;
    return 0;
}

void sg_environment_finish(struct sg_environment *e)
{
    sg_names_finish(&e->available_credentials);
    sg_json_unref(e->source);
    *e = (struct sg_environment){0};
}

/* ---- candidates ---- */

static const struct sg_candidate *find_candidate(const struct sg_candidates *l, const char *name)
{
    for (size_t i = 0; i < l->n; i++) {
        if (sg_streq(l->v[i].name, name))
            return &l->v[i];
    }
    return NULL;
}

static int candidate_missing(const char *path, const char *key, struct sg_error *err)
{
    char field[FIELD_MAX];
    sg_json_path(path, key, field, sizeof field);
    return sg_error_field(err, SG_INVALID_REQUEST, field, "is required");
}

static int candidate_read(const json_t *v, const char *path, const struct sg_candidates *before,
                          struct sg_candidate *c, struct sg_error *err)
{
    struct sg_json_reader r;
    char field[FIELD_MAX];
    if (sg_json_begin(&r, v, path, err) < 0)
        return -1;
    int has = sg_json_str(&r, "name", &c->name, err);
    if (has <= 0)
        return has < 0 ? -1 : candidate_missing(path, "name", err);
    bool valid = sg_backend_name_valid(c->name);
    if (!valid || find_candidate(before, c->name)) {
        sg_json_path(path, "name", field, sizeof field);
        return sg_error_field(
            err, SG_INVALID_REQUEST, field, "%s",
            valid ? "repeats the name of another one"
                  : "must be 1 to 64 letters, digits, '.', '_' or '-', first a letter or digit");
    }
    has = take_caps(&r, "capabilities", &c->caps, err);
    if (has <= 0)
        return has < 0 ? -1 : candidate_missing(path, "capabilities", err);
    c->free = sg_free_by_default(c->name);
    if (sg_json_bool(&r, "free", &c->free, err) < 0 ||
        take_names(&r, "credentials", &credential_rule, SG_CANDIDATE_CREDENTIALS_MAX, &c->credentials, err) <
            0)
        return -1;
    names_make_set(&c->credentials);
    return sg_json_end(&r, err);
}

int sg_candidates_parse(json_t *v, const char *path, struct sg_candidates *ret, struct sg_error *err)
{
    struct sg_candidates l = {0};
    char item[FIELD_MAX];
    *ret = l;
    if (!json_is_array(v))
        return sg_error_field(err, SG_INVALID_REQUEST, path, "must be an array");
    size_t n = json_array_size(v);
    if (n > SG_CANDIDATES_MAX)
        return sg_error_field(err, SG_INVALID_REQUEST, path, "has more than %u elements", SG_CANDIDATES_MAX);
    l.v = calloc(n ? n : 1, sizeof *l.v);
    if (!l.v)
        return sg_error_set(err, SG_NO_MEMORY, "out of memory");
    l.source = sg_json_ref(v);
    for (size_t i = 0; i < n; i++) {
        snprintf(item, sizeof item, "%s[%zu]", path, i);
        int rc = candidate_read(json_array_get(v, i), item, &l, &l.v[i], err);
        l.n = i + 1;
        if (rc < 0) {
            sg_candidates_finish(&l);
            return -1;
        }
    }
    *ret = l;
    return 0;
}

int sg_candidates_add(struct sg_candidates *l, const char *name, unsigned caps, bool free,
                      const char *const *credentials, struct sg_error *err)
{
    if (!sg_backend_name_valid(name) || find_candidate(l, name))
        return sg_error_set(err, SG_INVALID_REQUEST, "\"%s\" is not the name of a new backend", name);
    if (l->n >= SG_CANDIDATES_MAX)
        return sg_error_set(err, SG_LIMIT_EXCEEDED, "more than %u backends", SG_CANDIDATES_MAX);
    struct sg_candidate c = {.name = name, .caps = caps, .free = free};
    if (sg_names_set(&c.credentials, credentials, err) < 0)
        return -1;
    struct sg_candidate *grown = reallocarray(l->v, l->n + 1, sizeof *l->v);
    if (!grown) {
        sg_names_finish(&c.credentials);
        return sg_error_set(err, SG_NO_MEMORY, "out of memory");
    }
    l->v = grown;
    l->v[l->n++] = c;
    return 0;
}

void sg_candidates_keep(struct sg_candidates *l, const char *name)
{
    size_t n = 0;

    for (size_t i = 0; i < l->n; i++) {
        if (sg_streq(l->v[i].name, name))
            l->v[n++] = l->v[i];
        else
            sg_names_finish(&l->v[i].credentials);
    }
    l->n = n;
}

void sg_candidates_finish(struct sg_candidates *l)
{
    for (size_t i = 0; i < l->n; i++)
        sg_names_finish(&l->v[i].credentials);
    free(l->v);
    sg_json_unref(l->source);
    *l = (struct sg_candidates){0};
}
