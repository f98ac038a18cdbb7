#include "model/sandbox.h"

static const char *const mode_names[] = {[SG_MODE_WHITEBOX] = "whitebox", [SG_MODE_BLACKBOX] = "blackbox"};
static const char *const pool_mode_names[] = {[SG_POOL_COMMAND_ONLY] = "command_only", [SG_POOL_BLACKBOX] = "blackbox"};
static const char *const egress_names[] = {[SG_EGRESS_NONE] = "none",
                                           [SG_EGRESS_LOOPBACK] = "loopback",
                                           [SG_EGRESS_RESTRICTED] = "restricted",
                                           [SG_EGRESS_OPEN] = "open"};

/* Position of s among n names, n when it is none of them. */
static size_t position(const char *s, const char *const *names, size_t n)
{
    size_t i = 0;
    while (i < n && !sg_streq(s, names[i])) {
        i++;
    }
    return i;
}

const char *sg_mode_name(enum sg_mode m)
{
    return mode_names[m];
}

const char *sg_pool_mode_name(enum sg_pool_mode m)
{
    return pool_mode_names[m];
}

const char *sg_egress_name(enum sg_egress e)
{
    return egress_names[e];
}

bool sg_mode_parse(const char *s, enum sg_mode *ret)
{
    size_t i = position(s, mode_names, SG_COUNT_OF(mode_names));
    if (i < SG_COUNT_OF(mode_names)) {
        *ret = (enum sg_mode)i;
        return true;
    }
    return false;
}

bool sg_pool_mode_parse(const char *s, enum sg_pool_mode *ret)
{
    size_t i = position(s, pool_mode_names, SG_COUNT_OF(pool_mode_names));
    if (i < SG_COUNT_OF(pool_mode_names)) {
        *ret = (enum sg_pool_mode)i;
        return true;
    }
    return false;
}

bool sg_egress_parse(const char *s, enum sg_egress *ret)
{
    size_t i = position(s, egress_names, SG_COUNT_OF(egress_names));
    if (i < SG_COUNT_OF(egress_names)) {
        *ret = (enum sg_egress)i;
        return true;
    }
    return false;
}

bool sg_egress_reaches_out(enum sg_egress e)
{
    return e == SG_EGRESS_RESTRICTED || e == SG_EGRESS_OPEN;
}

/* ---- environments ---- */

static bool name_ok(const char *s)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_";
    static const char rest[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789";
    return strspn(s, letters) > 0 && s[strspn(s, rest)] == '\0';
}

static struct sg_env_var *find(const struct sg_env *e, const char *name)
{
    for (size_t i = 0; i < e->n; i++) {
        if (sg_streq(e->vars[i].name, name)) {
            return &e->vars[i];
        }
    }
    return NULL;
}

/* A slot for a new variable, or NULL. */
static struct sg_env_var *grow(struct sg_env *e)
{
    if ((e->n & (e->n - 1)) == 0) { /* full at every power of two */
        size_t size = e->n == 0 ? 1 : e->n * 2;
        struct sg_env_var *vars = reallocarray(e->vars, size, sizeof *vars);
        if (vars == NULL) {
            return NULL;
        }
        e->vars = vars;
    }
    return &e->vars[e->n];
}

int sg_env_set(struct sg_env *e, const char *name, const char *value, struct sg_error *err)
{
    if (!name_ok(name)) {
        return sg_error_field(err, SG_INVALID_REQUEST, "env", "env: \"%s\" is not a variable name", name);
    }
    struct sg_env_var *old = find(e, name);
    size_t add = strlen(value) + (old == NULL ? strlen(name) : 0);
    size_t bytes = e->bytes - (old == NULL ? 0 : strlen(old->value));
    if (add > SG_ENV_BYTES_MAX - bytes || (old == NULL && e->n == SG_ENV_VARS_MAX)) {
        return sg_error_field(err, SG_INVALID_REQUEST, "env", "env: more than %u variables or %u bytes",
                              SG_ENV_VARS_MAX, SG_ENV_BYTES_MAX);
    }
    sg_cleanup(sg_free_p) char *copy = strdup(value);
    sg_cleanup(sg_free_p) char *name_copy = old == NULL ? strdup(name) : NULL;
    struct sg_env_var *v = old != NULL ? old : grow(e);
    if (copy == NULL || v == NULL || (old == NULL && name_copy == NULL)) {
        return sg_error_set(err, SG_NO_MEMORY, "env: out of memory");
    }
    if (old == NULL) {
        v->name = sg_steal(&name_copy);
        e->n++;
    } else {
        free(old->value);
    }
    v->value = sg_steal(&copy);
    e->bytes = bytes + add;
    return 0;
}

const char *sg_env_get(const struct sg_env *e, const char *name)
{
    const struct sg_env_var *v = find(e, name);
    return v != NULL ? v->value : NULL;
}

int sg_env_merge(struct sg_env *dst, const struct sg_env *src, struct sg_error *err)
{
    for (size_t i = 0; src != NULL && i < src->n; i++) {
        if (sg_env_set(dst, src->vars[i].name, src->vars[i].value, err) < 0) {
            return -1;
        }
    }
    return 0;
}

int sg_env_base(struct sg_env *e, struct sg_error *err)
{
    static const char *const base[][2] = {{"PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
                                          {"HOME", "/home/sandbox"},
                                          {"USER", "sandbox"},
                                          {"LANG", "C.UTF-8"},
                                          {"TERM", "dumb"}};
    for (size_t i = 0; i < SG_COUNT_OF(base); i++) {
        if (sg_env_set(e, base[i][0], base[i][1], err) < 0) {
            return -1;
        }
    }
    return 0;
}

void sg_env_finish(struct sg_env *e)
{
    for (size_t i = 0; i < e->n; i++) {
        free(e->vars[i].name);
        free(e->vars[i].value);
    }
    free(e->vars);
    *e = (struct sg_env){0};
}
