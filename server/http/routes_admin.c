/* Pools, slots, and what tells how the server is. */
#include "http/api.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/str.h"

#include <stdio.h>

#define LOG_DEFAULT 16384
#define LOG_MAX 65536

/* ---- governed pools: none can be configured yet ---- */

void sg_route_pools(struct sg_request *r, void *app SG_UNUSED)
{
    sg_api_respond_page(r, json_array(), "name");
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
    return json_pack("{s:s, s:s, s:b, s:I, s:o, s:f, s:I, s:o}", "slot", s->name, "state", sg_slot_state_name(s->state), "draining",
                     s->draining, "generation", (json_int_t)s->generation, "lease", text_or_null(s->lease_id), "uptime", (double)s->uptime_ms / 1000.0,
                     "open_descriptors", (json_int_t)s->open_fds, "last_error", text_or_null(s->last_error));
}

static json_t *slot_pool_json(const struct sg_slot_pool_info *p, bool with_slots)
{
    size_t ready = 0, leased = 0;
    json_t *v = json_pack("{s:s, s:s, s:b, s:I, s:I}", "pool", p->name, "mode", sg_pool_mode_name(p->mode), "draining", p->draining,
                          "waiters", (json_int_t)p->waiters, "size", (json_int_t)p->n);
    json_t *slots = json_array();

    for (size_t i = 0; i < p->n; i++) {
        ready += p->slots[i].state == SG_SLOT_READY && !p->slots[i].draining;
        leased += p->slots[i].state == SG_SLOT_LEASED;
        if (with_slots)
            json_array_append_new(slots, slot_json(&p->slots[i]));
    }
    json_object_set_new(v, "egress", json_string(sg_egress_name(p->egress)));
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
    sg_api_respond_page(r, items, "pool");
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

    if (d && d->ops->slots->drain(d, sg_req_param(r, "pool"), sg_req_query(r, "slot"), on, &err) < 0)
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
    const char *reset = sg_req_query(r, "reset");
    struct sg_error err = {0};

    if (reset && !sg_streq(reset, "soft") && !sg_streq(reset, "hard"))
        sg_error_field(&err, SG_INVALID_REQUEST, "reset", "must be \"soft\" or \"hard\"");
    else if (d)
        (void)d->ops->slots->recycle(d, sg_req_param(r, "pool"), sg_req_query(r, "slot"), reset && sg_streq(reset, "hard"), &err);
    if (err.code != SG_OK)
        slot_failed(r, &err);
    else
        respond_slot_pool(r, app);
}

void sg_route_slot_log(struct sg_request *r, void *app)
{
    struct sg_driver *d = slot_driver(app);
    int64_t max = LOG_DEFAULT;
    struct sg_error err = {0};
    sg_cleanup(sg_free_p) char *text = NULL;
    size_t len = 0;
    uint64_t total = 0;

    int rc = sg_req_query_int(r, "bytes", 0, LOG_MAX, &max, &err);
    if (rc >= 0)
        rc = d ? d->ops->slots->log(d, sg_req_param(r, "pool"), sg_req_param(r, "slot"), (size_t)max, &text, &len, &total, &err)
               : sg_error_set(&err, SG_NOT_FOUND, "there is no such local pool");
    if (rc < 0) {
        slot_failed(r, &err);
        return;
    }
    bool utf8 = sg_utf8_valid(text, len) && !memchr(text, '\0', len);
    sg_cleanup(sg_free_p) char *b64 = utf8 ? NULL : sg_base64_encode(text, len, NULL);
    sg_respond_json(r, 200, json_pack("{s:s, s:s, s:s, s:s, s:I}", "pool", sg_req_param(r, "pool"), "slot", sg_req_param(r, "slot"),
                                      "data", utf8 ? text : b64, "encoding", utf8 ? "utf-8" : "base64", "bytes_total", (json_int_t)total));
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
