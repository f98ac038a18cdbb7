#include "model/lease_json.h"

#include "base/base64.h"
#include "base/clock.h"
#include "base/json.h"

static json_t *text_or_null(const char *s)
{
    return s == NULL || s[0] == '\0' ? json_null() : json_string(s);
}

static json_t *time_or_null(int64_t us)
{
    if (us == 0) {
        return json_null();
    }
    char text[SG_TIME_LEN];
    sg_time_format(us, text);
    return json_string(text);
}

static json_t *caps_json(unsigned caps)
{
    json_t *a = json_array();
    for (unsigned i = 0; i < SG_CAP_COUNT; i++) {
        if ((caps & (1U << i)) != 0) {
            json_array_append_new(a, json_string(sg_cap_name(i)));
        }
    }
    return a;
}

/* What the driver and the service say of it, what an hour of it costs where that is known, and what all of it has cost once it ended. */
static json_t *metadata_json(const struct sg_lease *l)
{
    if (l->terms->price_uh == 0) {
        return l->metadata != NULL ? sg_json_ref(l->metadata) : json_object();
    }
    json_t *v = l->metadata != NULL ? json_copy(l->metadata) : json_object();
    json_t *cost = json_pack("{s:f}", "usd_per_hour", (double)l->terms->price_uh / 1e6);
    if (l->ended_us > 0) {
        json_object_set_new(cost, "usd", json_real((double)sg_lease_cost(l) / 1e6));
    }
    json_object_set_new(v, "cost", cost);
    return v;
}

json_t *sg_lease_json(const struct sg_lease *l, json_t *endpoints)
{
    json_t *v = json_object();
    int bad = v == NULL;
    bad |= json_object_set_new(v, "id", json_string(l->id));
    bad |= json_object_set_new(v, "trajectory_id", text_or_null(l->terms->trajectory_id));
    bad |= json_object_set_new(v, "provider", text_or_null(l->provider));
    bad |= json_object_set_new(v, "sandbox_id", text_or_null(l->sandbox_id));
    bad |= json_object_set_new(v, "state", json_string(sg_lease_state_name(l->state)));
    bad |= json_object_set_new(v, "reason", text_or_null(l->reason));
    bad |= json_object_set_new(v, "endpoints", endpoints != NULL ? endpoints : json_object());
    bad |= json_object_set_new(v, "capabilities", caps_json(l->caps));
    bad |= json_object_set_new(v, "metadata", metadata_json(l));
    bad |= json_object_set_new(v, "created_at", time_or_null(l->created_us));
    bad |= json_object_set_new(v, "expires_at", time_or_null(l->expires_us));
    bad |= json_object_set_new(v, "receipt_id", text_or_null(l->receipt_id));
    if (bad != 0) {
        sg_json_unref(v);
        return NULL;
    }
    return v;
}

/* ---- terms ---- */

static json_t *env_json(const struct sg_env *e)
{
    json_t *v = json_object();
    for (size_t i = 0; i < e->n; i++) {
        /* Values may be any bytes but NUL. */
        json_t *text = json_string(e->vars[i].value);
        if (text == NULL) {
            sg_cleanup(sg_free_p) char *b64 =
                sg_base64_encode(e->vars[i].value, strlen(e->vars[i].value), NULL);
            text = json_pack("{s:s}", "base64", b64);
        }
        json_object_set_new(v, e->vars[i].name, text);
    }
    return v;
}

static json_t *services_json(const struct sg_lease_terms *t)
{
    json_t *a = json_array();
    for (size_t i = 0; i < t->n_services; i++) {
        const struct sg_service_port *s = &t->services[i];
        json_t *one = json_pack("{s:s, s:i, s:o}", "name", s->name, "port", (int)s->port, "health_path",
                                text_or_null(s->health_path));
        json_array_append_new(a, one);
    }
    return a;
}

json_t *sg_lease_terms_json(const struct sg_lease_terms *t)
{
    json_t *v = json_object();
    int bad = v == NULL;
    bad |= json_object_set_new(v, "tenant", json_string(t->tenant));
    bad |= json_object_set_new(v, "trajectory_id", text_or_null(t->trajectory_id));
    bad |= json_object_set_new(v, "idempotency_key", text_or_null(t->idempotency_key));
    bad |= json_object_set_new(v, "request_hash", text_or_null(t->request_hash));
    bad |= json_object_set_new(v, "local_pool", text_or_null(t->local_pool));
    bad |= json_object_set_new(v, "image", text_or_null(t->image));
    bad |= json_object_set_new(v, "root", text_or_null(t->root));
    bad |= json_object_set_new(v, "mode", json_string(sg_mode_name(t->mode)));
    bad |= json_object_set_new(v, "env", env_json(&t->env));
    bad |= json_object_set_new(v, "services", services_json(t));
    bad |= json_object_set_new(v, "timeout_ms", json_integer(t->timeout_ms));
    bad |= json_object_set_new(v, "idle_timeout_ms", json_integer(t->idle_timeout_ms));
    bad |= json_object_set_new(v, "price_uh", json_integer(t->price_uh));
    if (bad != 0) {
        sg_json_unref(v);
        return NULL;
    }
    return v;
}

static void terms_p(struct sg_lease_terms **t)
{
    sg_lease_terms_unref(*t);
}

static int read_text(struct sg_json_reader *r, const char *key, char **ret, struct sg_error *err)
{
    const char *s = NULL;
    int rc = sg_json_str(r, key, &s, err);
    if (rc > 0) {
        *ret = sg_xstrdup(s);
    }
    return rc < 0 ? -1 : 0;
}

static int read_env(const json_t *obj, struct sg_env *ret, struct sg_error *err)
{
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)obj, name, v)
    {
        sg_cleanup(sg_free_p) uint8_t *bytes = NULL;
        const char *text = json_string_value(v);
        if (text == NULL) {
            const char *b64 = json_string_value(json_object_get(v, "base64"));
            size_t n = 0;
            if (b64 == NULL) {
                return sg_error_field(err, SG_INVALID_REQUEST, "env", "env is not text");
            }
            if (sg_base64_decode(b64, strlen(b64), SG_ENV_BYTES_MAX, &bytes, &n, err) < 0) {
                return -1;
            }
            sg_cleanup(sg_free_p) char *whole = sg_xstrndup((const char *)bytes, n);
            if (sg_env_set(ret, name, whole, err) < 0) {
                return -1;
            }
        } else if (sg_env_set(ret, name, text, err) < 0) {
            return -1;
        }
    }
    return 0;
}

static int read_service(const json_t *v, struct sg_service_port *ret, struct sg_error *err)
{
    struct sg_json_reader r;
    const char *name = NULL;
    int64_t port = 0;
    if (sg_json_begin(&r, v, "services", err) < 0 || sg_json_str(&r, "name", &name, err) < 0 ||
        sg_json_int(&r, "port", 1, UINT16_MAX, &port, err) < 0 ||
        read_text(&r, "health_path", &ret->health_path, err) < 0 || sg_json_end(&r, err) < 0) {
        return -1;
    }
    if (name == NULL || strlen(name) >= sizeof ret->name) {
        return sg_error_field(err, SG_INVALID_REQUEST, "services", "a service has no usable name");
    }
    memcpy(ret->name, name, strlen(name) + 1);
    ret->port = (uint16_t)port;
    return 0;
}

static int read_services(const json_t *a, struct sg_lease_terms *t, struct sg_error *err)
{
    size_t n = json_array_size(a);
    if (n == 0) {
        return 0;
    }
    t->services = calloc(n, sizeof *t->services);
    if (t->services == NULL) {
        return sg_error_set(err, SG_NO_MEMORY, "no memory for %zu services", n);
    }
    for (; t->n_services < n; t->n_services++) {
        struct sg_service_port *s = &t->services[t->n_services];
        if (read_service(json_array_get(a, t->n_services), s, err) < 0) {
            free(s->health_path);
            return -1;
        }
    }
    return 0;
}

int sg_lease_terms_parse(const json_t *v, struct sg_lease_terms **ret, struct sg_error *err)
{
    struct sg_json_reader r;
    const char *tenant = NULL;
    const char *hash = NULL;
    const char *mode = NULL;
    json_t *env = NULL;
    json_t *services = NULL;
    if (sg_json_begin(&r, v, "", err) < 0 || sg_json_str(&r, "tenant", &tenant, err) < 0) {
        return -1;
    }
    if (tenant == NULL) {
        return sg_error_field(err, SG_INVALID_REQUEST, "tenant", "tenant is missing");
    }
    sg_cleanup(terms_p) struct sg_lease_terms *t = sg_lease_terms_new(tenant);
    if (read_text(&r, "trajectory_id", &t->trajectory_id, err) < 0 ||
        read_text(&r, "idempotency_key", &t->idempotency_key, err) < 0 ||
        read_text(&r, "local_pool", &t->local_pool, err) < 0 || read_text(&r, "image", &t->image, err) < 0 ||
        read_text(&r, "root", &t->root, err) < 0 ||
        sg_json_str(&r, "request_hash", &hash, err) < 0 || sg_json_str(&r, "mode", &mode, err) < 0 ||
        sg_json_object(&r, "env", &env, err) < 0 || sg_json_array(&r, "services", &services, err) < 0 ||
        sg_json_int(&r, "timeout_ms", 0, INT64_MAX, &t->timeout_ms, err) < 0 ||
        sg_json_int(&r, "idle_timeout_ms", 0, INT64_MAX, &t->idle_timeout_ms, err) < 0 ||
        sg_json_int(&r, "price_uh", 0, SG_PRICE_MAX, &t->price_uh, err) < 0 ||
        sg_json_end(&r, err) < 0 || read_env(env, &t->env, err) < 0 || read_services(services, t, err) < 0) {
        return -1;
    }
    if (mode == NULL || !sg_mode_parse(mode, &t->mode)) {
        return sg_error_field(err, SG_INVALID_REQUEST, "mode", "mode is unknown");
    }
    if (hash != NULL && strlen(hash) == SG_SHA256_HEX - 1) {
        memcpy(t->request_hash, hash, SG_SHA256_HEX);
    }
    *ret = sg_steal(&t);
    return 0;
}
