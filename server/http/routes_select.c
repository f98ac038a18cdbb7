/* /select, /backends, /receipts, /audit: decisions and their records. */
#include "http/api.h"

#include "backends/facts.h"
#include "base/str.h"
#include "model/selection.h"
#include "select/decide.h"
#include "select/receipt.h"

#include <stdio.h>

/* ---- select ---- */

void sg_route_select(struct sg_request *r, void *app)
{
    const struct sg_api *api = app;
    const struct sg_principal who = sg_service_with_budget(api->service, sg_req_principal(r));
    const struct sg_selection_world world = {.who = &who,
                                             .registered = sg_service_candidates(api->service),
                                             .snapshot = sg_service_environment(api->service)};
    sg_cleanup(sg_json_p) json_t *body = NULL;
    struct sg_selection_request rq = {0};
    struct sg_error err = {0};
    char *answer = NULL;
    size_t len;
    const char *text = sg_req_body(r, &len);

    if (sg_json_parse_object(text, len, &body, &err) < 0 || sg_selection_parse(body, &rq, &err) < 0 ||
        sg_selection_answer(&rq, &world, &answer, &len, &err) < 0)
        sg_api_fail(r, &err);
    else
        sg_respond_owned(r, 200, "application/json", answer, len);
    sg_selection_request_finish(&rq);
}

/* ---- backends ---- */

/* What lasts as long as the answer takes. */
struct seen {
    struct sg_error health;
    struct sg_provider_report provider;
    struct sg_warm_figures warm;
};

/* all: figures of the whole server too, which are its administrators'. */
static void view_of(const struct sg_backend_row *row, struct sg_driver *d, bool all, struct seen *seen, struct sg_backend_view *v)
{
    struct sg_driver_facts f = {.name = row->name};

    if (d)
        f = d->facts;
    else
        sg_facts_get(row->name, NULL, &f);
    *v = (struct sg_backend_view){.facts = {.name = row->name, .caps = f.caps, .free = f.free},
                                  .tty = f.tty,
                                  .built = row->make != NULL,
                                  .registered = d != NULL};
    sg_names_set(&v->facts.credentials, f.credentials, NULL);
    if (d && sg_driver_health(d, &seen->health) < 0)
        v->health = &seen->health;
    if (d && all && sg_driver_report(d, &seen->provider))
        v->provider = &seen->provider;
    if (d && all && d->ops->warm && d->ops->warm(d, &seen->warm))
        v->warm = &seen->warm;
}

void sg_route_backends(struct sg_request *r, void *app)
{
    const struct sg_service_parts *parts = sg_service_parts(((struct sg_api *)app)->service);
    struct sg_backend_view views[SG_CANDIDATES_MAX] = {0};
    sg_cleanup(sg_free_p) struct seen *seen = sg_xcalloc(SG_CANDIDATES_MAX, sizeof *seen); /* too much for the stack of an HTTP thread */
    bool all = sg_req_principal(r)->role == SG_ROLE_ADMIN;
    const struct sg_backend_row *row;
    size_t n = 0;

    for (size_t i = 0; n < SG_COUNT_OF(views) && (row = sg_backend_row_at(i)) != NULL; i++) {
        struct sg_driver *d = sg_backends_get(parts->backends, row->name, NULL);
        /* The test driver shows only where somebody enabled it. */
        if (!d && sg_streq(row->name, "fake"))
            continue;
        view_of(row, d, all, &seen[n], &views[n]);
        n++;
    }
    sg_api_respond_page(r, sg_backends_json(views, n, parts->held_credentials), "name");
    for (size_t i = 0; i < n; i++) {
        sg_names_finish(&views[i].facts.credentials);
        sg_error_clear(&seen[i].health);
    }
}

/* ---- receipts and audit: reads of the store, on a worker ---- */

struct read_work {
    struct sg_work work;
    struct sg_request *r;
    struct sg_api *api;
    int64_t after;
    size_t limit;
};

static void read_submit(struct sg_request *r, struct sg_api *api, void (*run)(struct sg_work *w), int64_t after, size_t limit)
{
    struct read_work *w = sg_xcalloc(1, sizeof *w);
    struct sg_error err = {0};

    *w = (struct read_work){.work.run = run, .r = sg_req_ref(r), .api = api, .after = after, .limit = limit};
    if (sg_workq_submit(sg_service_parts(api->service)->workq, &w->work, &err) == 0)
        return;
    sg_api_fail(r, &err);
    sg_req_unref(w->r);
    free(w);
}

static void read_receipt(struct sg_work *w)
{
    struct read_work *rw = sg_container_of(w, struct read_work, work);
    struct sg_error err = {0};
    char *text = NULL;

    if (sg_store_receipt(sg_service_parts(rw->api->service)->store, sg_service_tenant(sg_req_principal(rw->r)),
                         sg_req_param(rw->r, "id"), &text, &err) < 0)
        sg_api_fail(rw->r, &err);
    else
        sg_respond_owned(rw->r, 200, "application/json", text, strlen(text));
    sg_req_unref(rw->r);
    free(rw);
}

void sg_route_receipt_get(struct sg_request *r, void *app)
{
    read_submit(r, app, read_receipt, 0, 0);
}

void sg_route_receipt_verify(struct sg_request *r, void *app SG_UNUSED)
{
    sg_cleanup(sg_json_p) json_t *body = NULL;
    struct sg_receipt_check check;
    struct sg_error err = {0};
    size_t len;
    const char *text = sg_req_body(r, &len);

    if (sg_json_parse_object(text, len, &body, &err) < 0 || sg_receipt_verify(body, &check, &err) < 0) {
        sg_api_fail(r, &err);
        return;
    }
    sg_respond_json(r, 200, json_pack("{s:b, s:s?, s:s?}", "ok", check.ok, "reason", check.ok ? NULL : check.reason, "detail",
                                      check.ok ? NULL : check.detail));
}

static void read_audit(struct sg_work *w)
{
    struct read_work *rw = sg_container_of(w, struct read_work, work);
    const struct sg_principal *who = sg_req_principal(rw->r);
    const char *tenant = who->role == SG_ROLE_ADMIN ? sg_req_query(rw->r, "tenant") : who->tenant;
    struct sg_error err = {0};
    json_t *items = NULL;
    int64_t next = 0;

    if (sg_store_audit(sg_service_parts(rw->api->service)->store, tenant, rw->after, rw->limit, &items, &next, &err) < 0) {
        sg_api_fail(rw->r, &err);
    } else {
        char key[32];
        snprintf(key, sizeof key, "%lld", (long long)next);
        sg_cleanup(sg_free_p) char *cursor = next > 0 ? sg_api_cursor(key) : NULL;
        sg_respond_json(rw->r, 200, sg_api_page(items, cursor));
    }
    sg_req_unref(rw->r);
    free(rw);
}

void sg_route_audit(struct sg_request *r, void *app)
{
    sg_cleanup(sg_free_p) char *after = NULL;
    const struct sg_principal *who = sg_req_principal(r);
    const char *tenant = sg_req_query(r, "tenant");
    struct sg_error err = {0};
    int64_t seq = 0;
    size_t limit;

    if (tenant && who->role != SG_ROLE_ADMIN && !sg_streq(tenant, who->tenant))
        sg_error_field(&err, SG_FORBIDDEN, "tenant", "only an administrator sees other tenants");
    else if (sg_api_limit(r, &limit, &err) == 0 && sg_api_cursor_key(r, &after, &err) >= 0) {
        if (!after || sg_parse_int(after, 0, INT64_MAX, &seq)) {
            read_submit(r, app, read_audit, seq, limit);
            return;
        }
        sg_error_field(&err, SG_INVALID_REQUEST, "cursor", "is not a next_cursor of this list");
    }
    sg_api_fail(r, &err);
}
