#include "http/auth.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/hash.h"

#define BACKENDS_MAX 64

struct set;

struct entry {
    struct sg_principal principal;
    uint8_t hash[SG_SHA256_LEN];
    char **backends; /* owned; what principal.backends points to */
    struct set *set;
};

/* Lives as long as it is current or one of its principals is referred to. */
struct set {
    _Atomic int refs;
    size_t n; /* tokens; with none there is one entry, the local administrator */
    struct entry entries[];
};

struct sg_auth {
    pthread_mutex_t lock;
    struct set *current; /* under lock */
};

static void set_unref(struct set *s)
{
    if (!s || atomic_fetch_sub(&s->refs, 1) != 1)
        return;
    for (size_t i = 0; i < s->n; i++) {
        for (char **b = s->entries[i].backends; b && *b; b++)
            free(*b);
        free(s->entries[i].backends);
    }
    free(s);
}

static int copy_name(char *out, size_t size, const char *what, const char *s, struct sg_error *err)
{
    if (!s || !*s || strlen(s) >= size)
        return sg_error_field(err, SG_INVALID_REQUEST, what, "%s of a token must have 1 to %zu characters", what,
                              size - 1);
    memcpy(out, s, strlen(s) + 1);
    return 0;
}

static int copy_backends(struct entry *e, const char *const *from, struct sg_error *err)
{
    size_t n = 0;
    if (!from)
        return 0;
    while (from[n])
        n++;
    if (n > BACKENDS_MAX)
        return sg_error_field(err, SG_INVALID_REQUEST, "backends", "a token names more than %d backends",
                              BACKENDS_MAX);
    e->backends = sg_xcalloc(n + 1, sizeof(char *));
    for (size_t i = 0; i < n; i++)
        e->backends[i] = sg_xstrdup(from[i]);
    e->principal.backends = (const char *const *)e->backends;
    return 0;
}

static int fill_entry(struct entry *e, const struct sg_token_config *c, struct sg_error *err)
{
    struct sg_principal *p = &e->principal;
    if (copy_name(p->name, sizeof p->name, "name", c->name, err) < 0 ||
        copy_name(p->tenant, sizeof p->tenant, "tenant", c->tenant, err) < 0)
        return -1;
    if (!c->sha256 || strlen(c->sha256) != 2 * SG_SHA256_LEN || !sg_unhex(c->sha256, e->hash, SG_SHA256_LEN))
        return sg_error_field(err, SG_INVALID_REQUEST, "sha256", "sha256 of token %s must be 64 hex digits", p->name);
    p->role = c->role;
    p->max_leases = c->max_leases;
    p->max_execs = c->max_execs;
    p->allow_paid = c->allow_paid;
    p->budget_set = c->budget_set;
    p->budget_microusd = c->budget_microusd;
    return copy_backends(e, c->backends, err);
}

static int set_new(const struct sg_token_config *tokens, size_t n, struct set **ret, struct sg_error *err)
{
    if (n > 10000)
        return sg_error_set(err, SG_INVALID_REQUEST, "more than 10000 tokens");
    struct set *s = sg_xcalloc(1, sizeof *s + (n ? n : 1) * sizeof(struct entry));
    atomic_init(&s->refs, 1);
    s->n = n;
    s->entries[0].set = s;
    if (n == 0) {
        struct sg_principal *p = &s->entries[0].principal;
        snprintf(p->name, sizeof p->name, "local");
        snprintf(p->tenant, sizeof p->tenant, "default");
        p->role = SG_ROLE_ADMIN;
        p->allow_paid = true;
    }
    for (size_t i = 0; i < n; i++) {
        s->entries[i].set = s;
        int rc = fill_entry(&s->entries[i], &tokens[i], err);
        for (size_t j = 0; rc == 0 && j < i; j++)
            if (memcmp(s->entries[i].hash, s->entries[j].hash, SG_SHA256_LEN) == 0)
                rc = sg_error_field(err, SG_INVALID_REQUEST, "sha256", "tokens %s and %s are the same",
                                    s->entries[j].principal.name, s->entries[i].principal.name);
        if (rc < 0) {
            set_unref(s);
            return -1;
        }
    }
    *ret = s;
    return 0;
}

int sg_auth_new(const struct sg_token_config *tokens, size_t n, struct sg_auth **ret, struct sg_error *err)
{
    struct set *s;
    if (set_new(tokens, n, &s, err) < 0)
        return -1;
    struct sg_auth *a = sg_xcalloc(1, sizeof *a);
    pthread_mutex_init(&a->lock, NULL);
    a->current = s;
    *ret = a;
    return 0;
}

struct sg_auth *sg_auth_free(struct sg_auth *a)
{
    if (a) {
        set_unref(a->current);
        pthread_mutex_destroy(&a->lock);
        free(a);
    }
    return NULL;
}

bool sg_auth_has_tokens(struct sg_auth *a)
{
    pthread_mutex_lock(&a->lock);
    bool has = a->current->n > 0;
    pthread_mutex_unlock(&a->lock);
    return has;
}

int sg_auth_replace(struct sg_auth *a, const struct sg_token_config *tokens, size_t n, struct sg_error *err)
{
    struct set *s;
    if (n == 0 && sg_auth_has_tokens(a))
        return sg_error_set(err, SG_INVALID_REQUEST, "a running server does not give up its tokens altogether");
    if (set_new(tokens, n, &s, err) < 0)
        return -1;
    pthread_mutex_lock(&a->lock);
    struct set *old = a->current;
    a->current = s;
    pthread_mutex_unlock(&a->lock);
    set_unref(old);
    return 0;
}

static struct set *current_set(struct sg_auth *a)
{
    pthread_mutex_lock(&a->lock);
    struct set *s = a->current;
    atomic_fetch_add(&s->refs, 1);
    pthread_mutex_unlock(&a->lock);
    return s;
}

/* Looks at every entry whatever it finds, so that the time says nothing. */
static const struct entry *find(const struct set *s, const char *token, size_t len)
{
    uint8_t hash[SG_SHA256_LEN];
    const struct entry *found = NULL;
    sg_sha256(token, len, hash);
    for (size_t i = 0; i < s->n; i++)
        found = sg_equal_const_time(hash, s->entries[i].hash, sizeof hash) ? &s->entries[i] : found;
    return found;
}

int sg_auth_check(struct sg_auth *a, const char *token, size_t len, const struct sg_principal **ret,
                  struct sg_error *err)
{
    struct set *s = current_set(a);
    const struct entry *e = NULL;
    if (s->n == 0)
        e = &s->entries[0];
    else if (token && len > 0)
        e = find(s, token, len);
    if (!e) {
        set_unref(s);
        return sg_error_set(err, SG_UNAUTHORIZED, token ? "the token is not known" : "a token is required: Authorization: Bearer TOKEN, or X-API-Key");
    }
    *ret = &e->principal; /* keeps the set's reference */
    return 0;
}

const struct sg_principal *sg_principal_ref(const struct sg_principal *p)
{
    const struct entry *e = (const struct entry *)(const void *)p;
    atomic_fetch_add(&e->set->refs, 1);
    return p;
}

const struct sg_principal *sg_principal_unref(const struct sg_principal *p)
{
    if (p)
        set_unref(((const struct entry *)(const void *)p)->set);
    return NULL;
}
