/* /leases/{id}/endpoints: where a sandbox's ports are reached, and the tokens that open them. */
#include "http/api.h"

#include "base/clock.h"
#include "base/json.h"

#define TTL_DEFAULT_MS (INT64_C(3600) * 1000)

/* Where the backend cannot connect to ports of its sandboxes there is nothing to tell. ret_elsewhere, port (MAY be NULL and 0): where
 * else a port is reached, if the provider has a place for it; the caller's. */
static int check_endpoints(struct sg_entry *e, uint16_t port, json_t **ret_elsewhere, struct sg_error *err)
{
    struct sg_sandbox *sb;

    if (sg_entry_use_begin(e, &sb, err) < 0)
        return -1;
    const struct sg_driver *d = sb->driver;
    if (ret_elsewhere)
        *ret_elsewhere = sg_sandbox_public_url(sb, port);
    bool known = d->ops->dial || (ret_elsewhere && *ret_elsewhere);
    int rc = known ? 0 : sg_error_set(err, SG_NOT_SUPPORTED, "%s does not support connections into the sandbox", d->facts.name);
    sg_sandbox_unref(sb);
    sg_entry_use_end(e, false); /* asking is not using */
    return rc;
}

static void get_endpoint(struct sg_request *r, struct sg_api *api, struct sg_entry *e)
{
    struct sg_error err = {0};
    json_t *elsewhere = NULL;
    uint16_t port;

    if (sg_api_port(r, "endpoint", &port, &err) < 0 || check_endpoints(e, port, &elsewhere, &err) < 0) {
        sg_api_fail(r, &err);
        return;
    }
    sg_respond_json(r, 200, elsewhere ? elsewhere : sg_api_endpoint(r, api, sg_entry_id(e), port, NULL));
}

void sg_route_endpoint(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, get_endpoint);
}

/* ---- tokens ---- */

static int parse_issue(struct sg_request *r, uint16_t *ret_port, int64_t *ret_ttl_ms, struct sg_error *err)
{
    sg_cleanup(sg_json_p) json_t *body = NULL;
    struct sg_json_reader rd;
    int64_t port = 0;
    size_t len;
    const char *text = sg_req_body(r, &len);

    if (sg_json_parse_object(text, len, &body, err) < 0 || sg_json_begin(&rd, body, "", err) < 0)
        return -1;
    int has_port = sg_json_int(&rd, "port", 1, 65535, &port, err);
    if (has_port < 0 || sg_json_seconds_ms(&rd, "ttl", INT64_C(4000000000000), ret_ttl_ms, err) < 0 || sg_json_end(&rd, err) < 0)
        return -1;
    if (has_port == 0)
        return sg_error_field(err, SG_INVALID_REQUEST, "port", "is required");
    *ret_port = (uint16_t)port;
    return 0;
}

static json_t *grant_json(const struct sg_request *r, const struct sg_api *api, struct sg_entry *e, uint16_t port,
                          const struct sg_endpoint_grant *g)
{
    char expires[SG_TIME_LEN];
    json_t *v = sg_api_endpoint(r, api, sg_entry_id(e), port, g->token);

    sg_time_format(g->expires_us, expires);
    json_object_set_new(v, "token_id", json_string(g->token_id));
    json_object_set_new(v, "expires_at", json_string(expires));
    return v;
}

static void issue(struct sg_request *r, struct sg_api *api, struct sg_entry *e)
{
    struct sg_endpoint_grant g;
    struct sg_error err = {0};
    int64_t ttl_ms = TTL_DEFAULT_MS;
    uint16_t port = 0;

    if (parse_issue(r, &port, &ttl_ms, &err) < 0 || check_endpoints(e, 0, NULL, &err) < 0 || sg_service_endpoint_issue(api->service, e, port, ttl_ms, &g, &err) < 0) {
        sg_api_fail(r, &err);
        return;
    }
    sg_respond_header(r, "Cache-Control", "no-store");
    sg_respond_json(r, 201, grant_json(r, api, e, port, &g));
}

void sg_route_endpoint_issue(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, issue);
}

static void revoke(struct sg_request *r, struct sg_api *api, struct sg_entry *e)
{
    struct sg_error err = {0};

    if (sg_service_endpoint_revoke(api->service, e, sg_req_param(r, "endpoint"), &err) < 0)
        sg_api_fail(r, &err);
    else
        sg_respond_empty(r, 204);
}

void sg_route_endpoint_revoke(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, revoke);
}
