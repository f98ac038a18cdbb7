/* /archives, /snapshots: what is kept of sandboxes. Reads of the store and of files, on a worker. */
#include "http/api.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/hash.h"
#include "service/archives.h"

/* A call on a worker: one reference of r and, for a snapshot, of the lease. */
struct kept_call {
    struct sg_work work;
    struct sg_request *r;
    struct sg_api *api;
    struct sg_entry *e;
    enum sg_kept_kind kind;
};

static void call_free(struct kept_call *c)
{
    sg_entry_unref(c->e);
    sg_req_unref(c->r);
    free(c);
}

static void on_worker(struct sg_request *r, struct sg_api *api, struct sg_entry *e, enum sg_kept_kind kind,
                      void (*run)(struct sg_work *w))
{
    struct kept_call *c = sg_xcalloc(1, sizeof *c);
    struct sg_error err = {0};

    *c = (struct kept_call){
        .work.run = run, .r = sg_req_ref(r), .api = api, .e = e ? sg_entry_ref(e) : NULL, .kind = kind};
    if (sg_workq_submit(sg_service_parts(api->service)->workq, &c->work, &err) == 0)
        return;
    sg_api_fail(r, &err);
    call_free(c);
}

/* ---- lists ---- */

static int list_args(struct sg_request *r, const char **tenant, char **after, size_t *limit, struct sg_error *err)
{
    const struct sg_principal *who = sg_req_principal(r);
    const char *asked = sg_req_query(r, "tenant");

    if (asked && who->role != SG_ROLE_ADMIN && !sg_streq(asked, who->tenant))
        return sg_error_field(err, SG_FORBIDDEN, "tenant", "only an administrator sees other tenants");
    *tenant = who->role == SG_ROLE_ADMIN ? asked : who->tenant;
    return sg_api_limit(r, limit, err) == 0 && sg_api_cursor_key(r, after, err) >= 0 ? 0 : -1;
}

/* One more row than the page says whether there is another page. */
static void list_kept(struct sg_work *w)
{
    struct kept_call *c = sg_container_of(w, struct kept_call, work);
    sg_cleanup(sg_free_p) struct sg_kept *rows = NULL;
    sg_cleanup(sg_free_p) char *after = NULL;
    struct sg_error err = {0};
    const char *tenant = NULL;
    size_t limit = 0, n = 0;

    int rc = list_args(c->r, &tenant, &after, &limit, &err);
    if (rc == 0) {
        rows = sg_xcalloc(limit + 1, sizeof *rows);
        rc = sg_store_kept_page(sg_service_parts(c->api->service)->store, c->kind, tenant, after, limit + 1, rows, &n, &err);
    }
    if (rc < 0) {
        sg_api_fail(c->r, &err);
    } else {
        json_t *items = json_array();
        for (size_t i = 0; i < n && i < limit; i++)
            json_array_append_new(items, sg_kept_json(&rows[i]));
        sg_cleanup(sg_free_p) char *cursor = n > limit ? sg_api_cursor(rows[limit - 1].id) : NULL;
        sg_respond_json(c->r, 200, sg_api_page(items, cursor));
    }
    call_free(c);
}

void sg_route_archive_list(struct sg_request *r, void *app)
{
    on_worker(r, app, NULL, SG_KEPT_ARCHIVE, list_kept);
}

void sg_route_snapshot_list(struct sg_request *r, void *app)
{
    on_worker(r, app, NULL, SG_KEPT_SNAPSHOT, list_kept);
}

/* ---- one of them ---- */

static void tar_headers(struct sg_request *r, const struct sg_kept *k)
{
    sg_cleanup(sg_free_p) char *disposition = sg_xasprintf("attachment; filename=\"%s.tar\"", k->id);
    sg_cleanup(sg_free_p) char *etag = sg_xasprintf("\"%s\"", k->sha256);
    uint8_t digest[SG_SHA256_LEN];

    sg_respond_header(r, "Content-Disposition", disposition);
    sg_respond_header(r, "ETag", etag);
    sg_respond_header(r, "Cache-Control", "private, no-cache");
    sg_respond_header(r, "X-Content-Type-Options", "nosniff");
    sg_respond_header(r, "Content-Security-Policy", "sandbox");
    if (!sg_unhex(k->sha256, digest, sizeof digest))
        return;
    sg_cleanup(sg_free_p) char *base64 = sg_base64_encode(digest, sizeof digest, NULL);
    sg_cleanup(sg_free_p) char *repr = base64 ? sg_xasprintf("sha-256=:%s:", base64) : NULL;
    if (repr)
        sg_respond_header(r, "Repr-Digest", repr);
}

static void send_tar(struct sg_work *w)
{
    struct kept_call *c = sg_container_of(w, struct kept_call, work);
    struct sg_error err = {0};
    struct sg_kept k;
    int fd = -1;

    if (sg_service_kept_open(c->api->service, sg_req_principal(c->r), c->kind, sg_req_param(c->r, "id"), &k, &fd, &err) < 0) {
        sg_api_fail(c->r, &err);
    } else {
        tar_headers(c->r, &k);
        sg_respond_fd(c->r, 200, "application/x-tar", fd, NULL, 0, (uint64_t)k.bytes);
    }
    call_free(c);
}

void sg_route_archive_get(struct sg_request *r, void *app)
{
    on_worker(r, app, NULL, SG_KEPT_ARCHIVE, send_tar);
}

static void describe(struct sg_work *w)
{
    struct kept_call *c = sg_container_of(w, struct kept_call, work);
    struct sg_error err = {0};
    struct sg_kept k;
    int fd = -1;

    if (sg_service_kept_open(c->api->service, sg_req_principal(c->r), c->kind, sg_req_param(c->r, "id"), &k, &fd, &err) < 0) {
        sg_api_fail(c->r, &err);
    } else {
        sg_close(fd);
        sg_respond_json(c->r, 200, sg_kept_json(&k));
    }
    call_free(c);
}

void sg_route_snapshot_get(struct sg_request *r, void *app)
{
    on_worker(r, app, NULL, SG_KEPT_SNAPSHOT, describe);
}

static void dropped(void *arg, bool gone, const struct sg_error *err)
{
    struct kept_call *c = arg;

    if (err)
        sg_respond_error(c->r, err);
    else if (gone)
        sg_respond_empty(c->r, 204);
    else
        sg_respond_json(c->r, 202, json_pack("{s:s, s:s}", "id", sg_req_param(c->r, "id"), "state", "removing"));
    call_free(c);
}

static void drop(struct sg_work *w)
{
    struct kept_call *c = sg_container_of(w, struct kept_call, work);
    struct sg_error err = {0};

    if (sg_service_kept_drop(c->api->service, sg_req_principal(c->r), c->kind, sg_req_param(c->r, "id"),
                             &(struct sg_kept_gone){dropped, c}, &err) == 0)
        return;
    sg_api_fail(c->r, &err);
    call_free(c);
}

void sg_route_archive_delete(struct sg_request *r, void *app)
{
    on_worker(r, app, NULL, SG_KEPT_ARCHIVE, drop);
}

void sg_route_snapshot_delete(struct sg_request *r, void *app)
{
    on_worker(r, app, NULL, SG_KEPT_SNAPSHOT, drop);
}

/* ---- a new snapshot ---- */

static void snapshot_made(void *arg, const struct sg_kept *k, const struct sg_error *err)
{
    struct kept_call *c = arg;

    if (err) {
        sg_respond_error(c->r, err);
    } else {
        sg_cleanup(sg_free_p) char *location = sg_xasprintf("/snapshots/%s", k->id);
        sg_respond_header(c->r, "Location", location);
        sg_respond_json(c->r, 201, sg_kept_json(k));
    }
    call_free(c);
}

static void make_snapshot(struct sg_work *w)
{
    struct kept_call *c = sg_container_of(w, struct kept_call, work);
    struct sg_error err = {0};

    if (sg_service_snapshot(c->api->service, c->e, &(struct sg_kept_done){snapshot_made, c}, &err) == 0)
        return;
    sg_api_fail(c->r, &err);
    call_free(c);
}

static void snapshot_lease(struct sg_request *r, struct sg_api *api, struct sg_entry *e)
{
    on_worker(r, api, e, SG_KEPT_SNAPSHOT, make_snapshot);
}

void sg_route_snapshot(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, snapshot_lease);
}
