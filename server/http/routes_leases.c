/* /leases: create, list, read, extend, end. */
#include "http/api.h"
#include "base/str.h"
#include "model/lease_json.h"

#include <stdio.h>

#define DELETE_WAIT_MS 10000
#define WAIT_MAX_MS 60000

static void add_endpoint(json_t *endpoints, const struct sg_request *r, const struct sg_api *api, const struct sg_lease *l, const char *name, uint16_t port)
{
    json_t *place;

    if (!sg_service_elsewhere(api->service, l, port, &place))
        place = sg_api_endpoint(r, api, l->id, port, NULL);
    if (place)
        json_object_set_new(endpoints, name, place);
}

/* The lease as answered to this request: its endpoints are links that depend on how it was asked. */
static json_t *lease_json(const struct sg_request *r, const struct sg_api *api, const struct sg_lease *l)
{
    json_t *endpoints = json_object();
    const struct sg_lease_terms *t = l->terms;
    json_int_t own = json_integer_value(json_object_get(json_object_get(l->metadata, "service"), "port"));

    /* What its sandbox brought along. */
    if (l->state == SG_LEASE_READY && t->mode == SG_MODE_BLACKBOX && own > 0 && own <= 65535)
        add_endpoint(endpoints, r, api, l, "blackbox", (uint16_t)own);
    if (l->state == SG_LEASE_READY)
        for (size_t i = 0; i < t->n_services; i++)
            add_endpoint(endpoints, r, api, l, t->services[i].name, t->services[i].port);
    return sg_lease_json(l, endpoints);
}

static void respond_lease(struct sg_request *r, struct sg_api *api, struct sg_entry *e, int status)
{
    struct sg_lease l;

    sg_entry_lease(e, &l);
    sg_respond_json(r, status, lease_json(r, api, &l));
    sg_lease_finish(&l);
}

/* ---- create ---- */

struct create_call {
    struct sg_request *r;
    struct sg_api *api;
    bool async;
    int64_t wait_ms;
    const char *key; /* the request's */
    struct sg_lease_request wanted;
    struct sg_work work;
};

static char *render_lease(void *arg, const struct sg_lease *l)
{
    struct create_call *c = arg;
    sg_cleanup(sg_json_p) json_t *v = lease_json(c->r, c->api, l);
    size_t len;

    return v ? sg_json_dump(v, &len) : NULL;
}

static void location(struct sg_request *r, const char *id)
{
    char text[64 + SG_ID_MAX];

    snprintf(text, sizeof text, "/leases/%s", id);
    sg_respond_header(r, "Location", text);
}

/* A lease whose caller can only know it by the answer that is on its way. */
struct unclaimed {
    struct sg_service *service;
    struct sg_entry *e;
};

static void claimed(void *arg, bool delivered)
{
    struct unclaimed *u = arg;

    if (!delivered)
        sg_service_abandon(u->service, u->e);
    sg_entry_unref(u->e);
    free(u);
}

static void watch_delivery(struct create_call *c, const struct sg_created *made)
{
    const struct sg_lease_terms *t = sg_entry_terms(made->entry);

    if (!made->fresh || (c->async && c->wait_ms == 0) || t->trajectory_id || t->idempotency_key)
        return;
    struct unclaimed *u = sg_xcalloc(1, sizeof *u);
    *u = (struct unclaimed){c->api->service, sg_entry_ref(made->entry)};
    sg_req_on_end(c->r, claimed, u);
}

static void created(void *arg, const struct sg_created *made, const struct sg_error *err)
{
    struct create_call *c = arg;

    if (err) {
        sg_respond_error(c->r, err);
    } else if (made->answer) {
        location(c->r, made->answer->lease_id);
        sg_respond_header(c->r, "Idempotency-Replayed", "true");
        sg_respond_bytes(c->r, made->answer->status, "application/json", made->answer->body, strlen(made->answer->body));
    } else {
        sg_req_set_note(c->r, sg_entry_id(made->entry));
        location(c->r, sg_entry_id(made->entry));
        struct sg_lease l;
        sg_entry_lease(made->entry, &l);
        bool creating = l.state == SG_LEASE_CREATING;
        sg_lease_finish(&l);
        watch_delivery(c, made);
        respond_lease(c->r, c->api, made->entry, creating ? 202 : made->fresh ? 201 : 200);
    }
    sg_req_unref(c->r);
    free(c);
}

/* 1: *ret set; 0: absent; -1. */
static int idempotency_key(struct sg_request *r, const char **ret, struct sg_error *err)
{
    const char *key = sg_req_header(r, "Idempotency-Key");

    if (!key)
        return 0;
    size_t n = strlen(key);
    bool clean = n > 0 && n <= 255;
    for (size_t i = 0; clean && i < n; i++)
        clean = key[i] > 0x20 && key[i] < 0x7f;
    if (!clean)
        return sg_error_field(err, SG_INVALID_REQUEST, "Idempotency-Key", "must be 1 to 255 printable ASCII characters");
    *ret = key;
    return 1;
}

/* RFC 7240; other preferences are ignored, as it asks for. */
static bool prefers_async(const struct sg_request *r)
{
    const char *p = sg_req_header(r, "Prefer");

    while (p && *p) {
        size_t n = strcspn(p, ",;");
        while (n > 0 && (*p == ' ' || *p == '\t')) {
            p++;
            n--;
        }
        if (n >= 13 && strncasecmp(p, "respond-async", 13) == 0 && strspn(p + 13, " \t") == n - 13)
            return true;
        p += strcspn(p, ",");
        p += *p == ',';
    }
    return false;
}

/* `wait`: seconds, up to the maximum. 1: *ret_ms set; 0: absent; -1. */
static int wait_of(const struct sg_request *r, int64_t *ret_ms, struct sg_error *err)
{
    const char *v = sg_req_query(r, "wait");

    if (!v)
        return 0;
    /* Too many digits for any number are still a number. */
    bool whole = *v && v[strspn(v, "0123456789")] == '\0';
    bool number = v[strspn(v, "0123456789.")] == '\0' && sg_parse_duration_ms(v, ret_ms);
    if (!whole && !number)
        return sg_error_field(err, SG_INVALID_REQUEST, "wait", "must be a number of seconds, 0 or more");
    if (!number || *ret_ms > WAIT_MAX_MS) {
        sg_error_field(err, SG_TIMEOUT_ABOVE_MAXIMUM, "wait", "is above the maximum of %d seconds", WAIT_MAX_MS / 1000);
        sg_error_member(err, "limit", json_integer(WAIT_MAX_MS / 1000));
        return -1;
    }
    return 1;
}

static void create(struct create_call *c)
{
    struct sg_lease_request q = c->wanted;
    struct sg_create_args args = {.who = sg_req_principal(c->r),
                                  .request = &q,
                                  .idempotency_key = c->key,
                                  .async = c->async,
                                  .wait_ms = c->wait_ms,
                                  .cancel = sg_req_cancel(c->r),
                                  .render = render_lease,
                                  .done = created,
                                  .arg = c};

    sg_service_create(c->api->service, &args);
    sg_lease_request_finish(&q);
}

static void create_on_worker(struct sg_work *w)
{
    create(sg_container_of(w, struct create_call, work));
}

void sg_route_lease_create(struct sg_request *r, void *app)
{
    struct sg_api *api = app;
    struct sg_lease_request q;
    struct sg_error err = {0};
    const char *key = NULL;
    int64_t wait_ms = 0;
    size_t len;
    const char *body = sg_req_body(r, &len);

    int waits = wait_of(r, &wait_ms, &err);
    if (waits < 0 || idempotency_key(r, &key, &err) < 0 || sg_lease_request_parse(body, len, &q, &err) < 0) {
        sg_api_fail(r, &err);
        return;
    }
    sg_req_drop_body(r);
    struct create_call *c = sg_xcalloc(1, sizeof *c);
    *c = (struct create_call){.r = sg_req_ref(r),
                              .api = api,
                              .async = waits > 0 || prefers_async(r),
                              .wait_ms = wait_ms,
                              .key = key,
                              .wanted = q,
                              .work.run = create_on_worker};
    if (prefers_async(r))
        sg_respond_header(r, "Preference-Applied", "respond-async");
    if (!q.manifest.snapshot) {
        create(c);
    } else if (sg_workq_submit(sg_service_parts(api->service)->workq, &c->work, &err) < 0) {
        created(c, NULL, &err);
        sg_lease_request_finish(&q);
        sg_error_clear(&err);
    }
}

/* ---- list ---- */

struct list_work {
    struct sg_work work;
    struct sg_request *r;
    struct sg_api *api;
    struct sg_lease_query q;
    char *after;
};

static void list_on_worker(struct sg_work *w)
{
    struct list_work *lw = sg_container_of(w, struct list_work, work);
    struct sg_lease_page page = {0};
    struct sg_error err = {0};

    if (sg_registry_list(sg_service_leases(lw->api->service), &lw->q, &page, &err) < 0) {
        sg_api_fail(lw->r, &err);
    } else {
        json_t *items = json_array();
        for (size_t i = 0; i < page.n; i++)
            json_array_append_new(items, lease_json(lw->r, lw->api, &page.items[i]));
        sg_cleanup(sg_free_p) char *cursor = page.next[0] ? sg_api_cursor(page.next) : NULL;
        sg_respond_json(lw->r, 200, sg_api_page(items, cursor));
        sg_lease_page_finish(&page);
    }
    sg_req_unref(lw->r);
    free(lw->after);
    free(lw);
}

static int parse_states(const char *text, unsigned *ret, struct sg_error *err)
{
    char word[32];

    while (text && *text) {
        size_t n = strcspn(text, ",");
        enum sg_lease_state state;
        snprintf(word, sizeof word, "%.*s", n < sizeof word ? (int)n : (int)sizeof word - 1, text);
        if (!sg_lease_state_parse(word, &state))
            return sg_error_field(err, SG_INVALID_REQUEST, "state",
                                  "must be of creating, ready, releasing, terminated, failed, expired, lost");
        *ret |= 1U << state;
        text += n + (text[n] == ',');
    }
    return 0;
}

void sg_route_lease_list(struct sg_request *r, void *app)
{
    struct list_work *w = sg_xcalloc(1, sizeof *w);
    const struct sg_principal *who = sg_req_principal(r);
    struct sg_error err = {0};
    const char *tenant = sg_req_query(r, "tenant");

    w->work.run = list_on_worker;
    w->api = app;
    w->q = (struct sg_lease_query){.tenant = who->role == SG_ROLE_ADMIN ? tenant : who->tenant,
                                   .provider = sg_req_query(r, "provider"),
                                   .trajectory_id = sg_req_query(r, "trajectory_id")};
    if (tenant && who->role != SG_ROLE_ADMIN && !sg_streq(tenant, who->tenant))
        sg_error_field(&err, SG_FORBIDDEN, "tenant", "only an administrator sees other tenants");
    else if (parse_states(sg_req_query(r, "state"), &w->q.states, &err) == 0 && sg_api_limit(r, &w->q.limit, &err) == 0 &&
             sg_api_cursor_key(r, &w->after, &err) >= 0) {
        w->q.after = w->after;
        w->r = sg_req_ref(r);
        if (sg_workq_submit(sg_service_parts(w->api->service)->workq, &w->work, &err) == 0)
            return;
        sg_req_unref(r);
    }
    sg_api_fail(r, &err);
    free(w->after);
    free(w);
}

/* ---- read ---- */

struct wait_call {
    struct sg_request *r;
    struct sg_api *api;
    struct sg_entry *e;
};

static void waited(void *arg, bool settled SG_UNUSED)
{
    struct wait_call *c = arg;

    respond_lease(c->r, c->api, c->e, 200);
    sg_req_unref(c->r);
    sg_entry_unref(c->e);
    free(c);
}

static void get_lease(struct sg_request *r, struct sg_api *api, struct sg_entry *e)
{
    int64_t wait_ms = 0;
    struct sg_error err = {0};

    if (wait_of(r, &wait_ms, &err) < 0) {
        sg_api_fail(r, &err);
        return;
    }
    if (wait_ms == 0) {
        respond_lease(r, api, e, 200);
        return;
    }
    struct wait_call *c = sg_xcalloc(1, sizeof *c);
    *c = (struct wait_call){.r = sg_req_ref(r), .api = api, .e = sg_entry_ref(e)};
    struct sg_wait_args w = {.lease = e, .what = SG_WAIT_AT_REST, .wait_ms = wait_ms, .cancel = sg_req_cancel(r), .done = waited, .arg = c};
    sg_service_wait_for(api->service, &w);
}

void sg_route_lease_get(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, get_lease);
}

/* ---- extend ---- */

static void extended(void *arg, const struct sg_error *err)
{
    struct wait_call *c = arg;

    if (err)
        sg_respond_error(c->r, err);
    else
        respond_lease(c->r, c->api, c->e, 200);
    sg_req_unref(c->r);
    sg_entry_unref(c->e);
    free(c);
}

static int parse_extend(struct sg_request *r, int64_t *ret_ms, struct sg_error *err)
{
    sg_cleanup(sg_json_p) json_t *body = NULL;
    struct sg_json_reader rd;
    size_t len;
    const char *text = sg_req_body(r, &len);

    if (len == 0)
        return 0;
    if (sg_json_parse_object(text, len, &body, err) < 0 || sg_json_begin(&rd, body, "", err) < 0 ||
        sg_json_seconds_ms(&rd, "timeout_sec", INT64_C(4000000000000), ret_ms, err) < 0)
        return -1;
    return sg_json_end(&rd, err);
}

static void extend_lease(struct sg_request *r, struct sg_api *api, struct sg_entry *e)
{
    struct sg_error err = {0};
    int64_t ms = 0;

    if (parse_extend(r, &ms, &err) < 0) {
        sg_api_fail(r, &err);
        return;
    }
    struct wait_call *c = sg_xcalloc(1, sizeof *c);
    *c = (struct wait_call){.r = sg_req_ref(r), .api = api, .e = sg_entry_ref(e)};
    if (sg_service_extend(api->service, sg_req_principal(r), e, ms, &(struct sg_store_done){extended, c}, &err) < 0)
        extended(c, &err);
    sg_error_clear(&err);
}

void sg_route_lease_extend(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, extend_lease);
}

/* ---- end ---- */

static void deleted(void *arg, bool gone)
{
    struct wait_call *c = arg;
    const char *trajectory = sg_entry_terms(c->e)->trajectory_id;

    sg_respond_json(c->r, gone ? 200 : 202, json_pack("{s:b, s:s?}", "terminated", gone, "trajectory_id", trajectory));
    sg_req_unref(c->r);
    sg_entry_unref(c->e);
    free(c);
}

static void delete_lease(struct sg_request *r, struct sg_api *api, struct sg_entry *e)
{
    struct wait_call *c = sg_xcalloc(1, sizeof *c);

    *c = (struct wait_call){.r = sg_req_ref(r), .api = api, .e = sg_entry_ref(e)};
    sg_service_delete(api->service, e, DELETE_WAIT_MS, deleted, c);
}

void sg_route_lease_delete(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, delete_lease);
}
