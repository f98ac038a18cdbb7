/* What route handlers share: the objects that main built, and the few steps most of them begin with. */
#ifndef SG_API_H
#define SG_API_H

#include "base/log.h"
#include "http/auth.h"
#include "http/metrics.h"
#include "http/respond.h"
#include "http/upstream.h"
#include "service/endpoints.h"
#include "service/service.h"

/* Borrowed by the HTTP server as its `app`; immutable while it runs, but for draining. */
struct sg_api {
    struct sg_service *service;
    struct sg_auth *auth;
    struct sg_metrics *metrics;
    struct sg_upstreams *upstreams;
    struct sg_log *log;
    const _Atomic bool *spawner_dead; /* then only a restart brings local sandboxes back */
    const char *public_url;  /* without a trailing slash; NULL: made from each request's Host */
    const char *public_domain; /* endpoints answer below it; NULL: only under their paths */
    bool metrics_public;     /* GET /metrics answers here and needs no token */
    const char *openapi_yaml;
    json_t *openapi;
    int64_t started_us; /* wall clock */
};

/* All routes, for the HTTP server and for whoever compares them with the API description. */
extern const struct sg_route sg_routes[];
extern const size_t sg_routes_count;

/* Finds the lease named by the path parameter "id" and goes on with it, now or on a worker; 404 otherwise. The handler's
 * references of r and e end when `go` returns. */
typedef void sg_lease_handler(struct sg_request *r, struct sg_api *api, struct sg_entry *e);
void sg_api_with_lease(struct sg_request *r, struct sg_api *api, sg_lease_handler *go);

/* Answers with err and clears it. */
void sg_api_fail(struct sg_request *r, struct sg_error *err);

/* "http://host:port" (or the configured public URL), for links in answers. */
void sg_api_base_url(const struct sg_request *r, const struct sg_api *api, char *out, size_t size);

/* A page: {items, next_cursor}; steals items. cursor NULL: null. */
json_t *sg_api_page(json_t *items, const char *cursor);
/* Answers with one page of a list that is all there and whose order stays the same; `key`: the member, a string, that tells its
 * items apart. Steals items; NULL: memory is out. */
void sg_api_respond_page(struct sg_request *r, json_t *items, const char *key);
/* `limit` of a list, 1..1000, default 100. */
int sg_api_limit(struct sg_request *r, size_t *ret, struct sg_error *err);
/* Opaque cursors over a key: "c1" + hex. encode: caller frees. decode: 1 with *ret (caller frees), 0 without a cursor, -1. */
char *sg_api_cursor(const char *key);
int sg_api_cursor_key(struct sg_request *r, char **ret, struct sg_error *err);

/* {url, headers} of a port of a lease; the headers carry token, or the lease's own with NULL. NULL when memory is out. */
json_t *sg_api_endpoint(const struct sg_request *r, const struct sg_api *api, const char *lease_id, uint16_t port,
                        const char *token);
#define SG_ENDPOINT_TOKEN_HEADER "Sandgate-Endpoint-Token"
/* As sg_http_config wants them: hosts of endpoints, and what answers there. */
bool sg_api_is_endpoint_host(void *app, const char *host);
extern const struct sg_route sg_endpoint_host_route;
/* The path parameter `name` as a port: plain decimal, 1 to 65535. */
int sg_api_port(const struct sg_request *r, const char *name, uint16_t *ret, struct sg_error *err);

/* Media types of commands: JSON, then the two of streams, in the order of enum sg_event_format. */
extern const char *const sg_exec_types[];

/* handlers, by file */
void sg_route_select(struct sg_request *r, void *app);
void sg_route_backends(struct sg_request *r, void *app);
void sg_route_lease_create(struct sg_request *r, void *app);
void sg_route_lease_list(struct sg_request *r, void *app);
void sg_route_lease_get(struct sg_request *r, void *app);
void sg_route_lease_extend(struct sg_request *r, void *app);
void sg_route_lease_delete(struct sg_request *r, void *app);
void sg_route_lease_events(struct sg_request *r, void *app);
void sg_route_exec(struct sg_request *r, void *app);
void sg_route_exec_list(struct sg_request *r, void *app);
void sg_route_exec_get(struct sg_request *r, void *app);
void sg_route_exec_kill(struct sg_request *r, void *app);
void sg_route_exec_output(struct sg_request *r, void *app);
void sg_route_exec_stdin(struct sg_request *r, void *app);
void sg_route_exec_attach(struct sg_request *r, void *app);
void sg_route_exec_resize(struct sg_request *r, void *app);
void sg_route_exec_signal(struct sg_request *r, void *app);
void sg_route_file_get(struct sg_request *r, void *app);
void sg_route_file_put(struct sg_request *r, void *app);
void sg_route_file_delete(struct sg_request *r, void *app);
void sg_route_file_list(struct sg_request *r, void *app);
void sg_route_file_stat(struct sg_request *r, void *app);
void sg_route_file_mkdir(struct sg_request *r, void *app);
void sg_route_file_move(struct sg_request *r, void *app);
void sg_route_tar_get(struct sg_request *r, void *app);
void sg_route_tar_put(struct sg_request *r, void *app);
void sg_route_endpoint(struct sg_request *r, void *app);
void sg_route_endpoint_issue(struct sg_request *r, void *app);
void sg_route_endpoint_revoke(struct sg_request *r, void *app);
void sg_route_proxy(struct sg_request *r, void *app);
void sg_route_pools(struct sg_request *r, void *app);
void sg_route_pool(struct sg_request *r, void *app);
void sg_route_slots(struct sg_request *r, void *app);
void sg_route_slot_pool(struct sg_request *r, void *app);
void sg_route_slot_drain(struct sg_request *r, void *app);
void sg_route_slot_undrain(struct sg_request *r, void *app);
void sg_route_slot_recycle(struct sg_request *r, void *app);
void sg_route_slot_log(struct sg_request *r, void *app);
void sg_route_snapshot(struct sg_request *r, void *app);
void sg_route_snapshot_list(struct sg_request *r, void *app);
void sg_route_snapshot_get(struct sg_request *r, void *app);
void sg_route_snapshot_delete(struct sg_request *r, void *app);
void sg_route_archive_list(struct sg_request *r, void *app);
void sg_route_archive_get(struct sg_request *r, void *app);
void sg_route_archive_delete(struct sg_request *r, void *app);
void sg_route_receipt_get(struct sg_request *r, void *app);
void sg_route_receipt_verify(struct sg_request *r, void *app);
void sg_route_audit(struct sg_request *r, void *app);
void sg_route_health(struct sg_request *r, void *app);
void sg_route_ready(struct sg_request *r, void *app);
void sg_route_metrics(struct sg_request *r, void *app);
void sg_route_metrics_open(struct sg_request *r, void *app);
void sg_route_version(struct sg_request *r, void *app);
void sg_route_openapi_yaml(struct sg_request *r, void *app);
void sg_route_openapi_json(struct sg_request *r, void *app);

#endif
