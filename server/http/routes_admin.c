/* Pools, slots, and what tells how the server is. */
#include "http/api.h"

#include "base/clock.h"

#include <stdio.h>

/* ---- governed pools: none can be configured yet ---- */

void sg_route_pools(struct sg_request *r, void *app SG_UNUSED)
{
    sg_respond_json(r, 200, sg_api_page(json_array(), NULL));
}

void sg_route_pool(struct sg_request *r, void *app SG_UNUSED)
{
    struct sg_error err = {0};

    sg_error_set(&err, SG_NOT_FOUND, "there is no such pool");
    sg_api_fail(r, &err);
}

/* ---- slots of local pools ---- */

static json_t *text_or_null(const char *s)
{
    return s[0] ? json_string(s) : json_null();
}

static json_t *slot_json(const struct sg_slot_info *s)
{
    return json_pack("{s:s, s:s, s:I, s:o, s:f, s:I, s:o}", "slot", s->name, "state", sg_slot_state_name(s->state), "generation",
                     (json_int_t)s->generation, "lease", text_or_null(s->lease_id), "uptime", (double)s->uptime_ms / 1000.0,
                     "open_descriptors", (json_int_t)s->open_fds, "last_error", text_or_null(s->last_error));
}

static json_t *slot_pool_json(const struct sg_slot_pool_info *p, bool with_slots)
{
    size_t ready = 0, leased = 0;
    json_t *v = json_pack("{s:s, s:s, s:b, s:I, s:I}", "pool", p->name, "mode", sg_pool_mode_name(p->mode), "draining", p->draining,
                          "waiters", (json_int_t)p->waiters, "size", (json_int_t)p->n);
    json_t *slots = json_array();

    for (size_t i = 0; i < p->n; i++) {
        ready += p->slots[i].state == SG_SLOT_READY;
        leased += p->slots[i].state == SG_SLOT_LEASED;
        if (with_slots)
            json_array_append_new(slots, slot_json(&p->slots[i]));
    }
    json_object_set_new(v, "ready", json_integer((json_int_t)ready));
    json_object_set_new(v, "leased", json_integer((json_int_t)leased));
    if (with_slots)
        json_object_set_new(v, "items", slots);
    else
        sg_json_unref(slots);
    return v;
}

/* The driver with slots, and a report of it; NULL when there is none. */
static struct sg_driver *slot_driver(struct sg_api *api)
{
    struct sg_driver *d;

    for (size_t i = 0; (d = sg_backends_at(sg_service_parts(api->service)->backends, i)) != NULL; i++)
        if (d->ops->slots)
            return d;
    return NULL;
}

void sg_route_slots(struct sg_request *r, void *app)
{
    struct sg_driver *d = slot_driver(app);
    struct sg_slot_report report = {0};
    json_t *items = json_array();

    if (d)
        d->ops->slots->report(d, &report);
    for (size_t i = 0; i < report.n; i++)
        json_array_append_new(items, slot_pool_json(&report.pools[i], false));
    sg_slot_report_finish(&report);
    sg_respond_json(r, 200, sg_api_page(items, NULL));
}

static void respond_slot_pool(struct sg_request *r, struct sg_api *api)
{
    struct sg_driver *d = slot_driver(api);
    struct sg_slot_report report = {0};
    struct sg_error err = {0};
    json_t *v = NULL;

    if (d)
        d->ops->slots->report(d, &report);
    for (size_t i = 0; i < report.n && !v; i++)
        if (sg_streq(report.pools[i].name, sg_req_param(r, "pool")))
            v = slot_pool_json(&report.pools[i], true);
    sg_slot_report_finish(&report);
    if (v) {
        sg_respond_json(r, 200, v);
        return;
    }
    sg_error_set(&err, SG_NOT_FOUND, "there is no such local pool");
    sg_api_fail(r, &err);
}

void sg_route_slot_pool(struct sg_request *r, void *app)
{
    respond_slot_pool(r, app);
}

/* An unknown pool is a missing resource here, not a refused request. */
static void slot_failed(struct sg_request *r, struct sg_error *err)
{
    if (err->code == SG_POOL_NOT_FOUND)
        err->code = SG_NOT_FOUND;
    sg_api_fail(r, err);
}

static void drain(struct sg_request *r, struct sg_api *api, bool on)
{
    struct sg_driver *d = slot_driver(api);
    struct sg_error err = {0};

    if (d && d->ops->slots->drain(d, sg_req_param(r, "pool"), on, &err) < 0)
        slot_failed(r, &err);
    else
        respond_slot_pool(r, api);
}

void sg_route_slot_drain(struct sg_request *r, void *app)
{
    drain(r, app, true);
}

void sg_route_slot_undrain(struct sg_request *r, void *app)
{
    drain(r, app, false);
}

void sg_route_slot_recycle(struct sg_request *r, void *app)
{
    struct sg_driver *d = slot_driver(app);
    struct sg_error err = {0};

    if (d && d->ops->slots->recycle(d, sg_req_param(r, "pool"), sg_req_query(r, "slot"), &err) < 0)
        slot_failed(r, &err);
    else
        respond_slot_pool(r, app);
}

/* ---- health, metrics, version, description ---- */

void sg_route_health(struct sg_request *r, void *app)
{
    struct sg_error err = {0};

    if (*((struct sg_api *)app)->spawner_dead) {
        sg_error_set(&err, SG_UNAVAILABLE, "the spawner process died: no local sandbox can be made until the server is restarted");
        sg_api_fail(r, &err);
        return;
    }
    sg_respond_json(r, 200, json_pack("{s:s}", "status", "ok"));
}

void sg_route_ready(struct sg_request *r, void *app)
{
    struct sg_error err = {0};

    if (sg_service_ready(((struct sg_api *)app)->service, &err) < 0)
        sg_api_fail(r, &err);
    else
        sg_respond_json(r, 200, json_pack("{s:s}", "status", "ready"));
}

void sg_route_metrics_open(struct sg_request *r, void *app)
{
    struct sg_api *api = app;
    struct sg_error err = {0};
    struct sg_buf text;

    sg_buf_init(&text, 4U << 20);
    if (sg_metrics_write(api->metrics, api->service, &text) < 0) {
        sg_error_set(&err, SG_INTERNAL, "the metrics are larger than %u bytes", 4U << 20);
        sg_api_fail(r, &err);
    } else {
        sg_respond_bytes(r, 200, "text/plain; version=0.0.4; charset=utf-8", text.data, text.len);
    }
    sg_buf_finish(&text);
}

/* They cover all tenants, so only an administrator sees them unless the configuration opens them. */
void sg_route_metrics(struct sg_request *r, void *app)
{
    struct sg_api *api = app;
    struct sg_error err = {0};

    if (!api->metrics_public) {
        if (sg_req_authenticate(r, &err) < 0) {
            sg_api_fail(r, &err);
            return;
        }
        if (sg_req_principal(r)->role != SG_ROLE_ADMIN) {
            sg_error_set(&err, SG_FORBIDDEN, "metrics cover all tenants: an administrator's token is needed");
            sg_api_fail(r, &err);
            return;
        }
    }
    sg_route_metrics_open(r, app);
}

void sg_route_version(struct sg_request *r, void *app)
{
    char at[SG_TIME_LEN];

    sg_time_format(((struct sg_api *)app)->started_us, at);
    sg_respond_json(r, 200, json_pack("{s:s, s:s, s:s, s:s}", "name", "sandgate", "version", SG_VERSION, "api", "v1", "started_at", at));
}

void sg_route_openapi_yaml(struct sg_request *r, void *app)
{
    const char *text = ((struct sg_api *)app)->openapi_yaml;

    sg_respond_bytes(r, 200, "application/yaml", text, strlen(text));
}

void sg_route_openapi_json(struct sg_request *r, void *app)
{
    sg_respond_json(r, 200, sg_json_ref(((struct sg_api *)app)->openapi));
}
