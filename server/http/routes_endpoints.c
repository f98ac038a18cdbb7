/* /leases/{id}/endpoints and /leases/{id}/proxy: services inside a sandbox. */
#include "http/api.h"
#include "http/proxy.h"

#include "base/hash.h"
#include "base/str.h"

#include <stdio.h>

/* The path parameter "port": plain decimal, 1 to 65535. */
static int port_of(const struct sg_request *r, uint16_t *ret, struct sg_error *err)
{
    const char *text = sg_req_param(r, "port");
    int64_t port;

    if (text[0] == '0' || strspn(text, "0123456789") != strlen(text) || !sg_parse_int(text, 1, 65535, &port))
        return sg_error_field(err, SG_INVALID_REQUEST, "port", "must be a plain port number from 1 to 65535");
    *ret = (uint16_t)port;
    return 0;
}

static void get_endpoint(struct sg_request *r, struct sg_api *api, struct sg_entry *e)
{
    struct sg_error err = {0};
    uint16_t port;

    if (port_of(r, &port, &err) < 0 || sg_entry_use_begin(e, NULL, &err) < 0) {
        sg_api_fail(r, &err);
        return;
    }
    sg_entry_use_end(e, false); /* asking is not using */
    sg_respond_json(r, 200, sg_api_endpoint(r, api, sg_entry_id(e), port));
}

void sg_route_endpoint(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, get_endpoint);
}

/* ---- proxy ---- */

/* One relayed request: a use of the lease from its head to the end of its answer. */
struct relay {
    _Atomic int refs;
    struct sg_entry *e;
    struct sg_sandbox *sb;
};

static void relay_ref(void *arg)
{
    ((struct relay *)arg)->refs++;
}

static void relay_unref(void *arg)
{
    struct relay *p = arg;

    if (--p->refs > 0)
        return;
    sg_sandbox_unref(p->sb);
    sg_entry_unref(p->e);
    free(p);
}

static int relay_dial(void *arg, uint16_t port, int64_t deadline_ms, const struct sg_dial_done *done, struct sg_error *err)
{
    return sg_sandbox_dial(((struct relay *)arg)->sb, port, deadline_ms, done, err);
}

static void relay_over(void *arg, bool answered)
{
    struct relay *p = arg;

    sg_entry_use_end(p->e, answered);
    relay_unref(p);
}

static void proxy_to_lease(struct sg_request *r, struct sg_api *api, struct sg_entry *e)
{
    struct sg_error err = {0};
    struct sg_sandbox *sb = NULL;
    uint16_t port;

    if (port_of(r, &port, &err) < 0 || sg_entry_use_begin(e, &sb, &err) < 0) {
        sg_proxy_refuse(r, &err);
        sg_error_clear(&err);
        return;
    }
    struct relay *p = sg_xcalloc(1, sizeof *p);
    *p = (struct relay){.refs = 1, .e = sg_entry_ref(e), .sb = sb};
    struct sg_proxy_args args = {.upstreams = api->upstreams,
                                 .auth = api->auth,
                                 .public_url = api->public_url,
                                 .target = {.lease_id = sg_entry_id(e),
                                            .port = port,
                                            .lease_end = sg_entry_cancel(e),
                                            .dial = relay_dial,
                                            .ref = relay_ref,
                                            .unref = relay_unref,
                                            .arg = p},
                                 .over = relay_over,
                                 .over_arg = p};
    sg_proxy(r, &args);
}

/* The lease's own endpoint token opens its endpoints and nothing else. */
static bool has_endpoint_token(const struct sg_request *r, const struct sg_api *api)
{
    const char *given = sg_req_header(r, SG_ENDPOINT_TOKEN_HEADER);
    char right[SG_ENDPOINT_TOKEN_LEN];

    if (!given)
        return false;
    sg_api_endpoint_token(api, sg_req_param(r, "id"), right);
    return strlen(given) == strlen(right) && sg_equal_const_time(given, right, strlen(right));
}

struct proxy_call {
    struct sg_request *r;
    struct sg_api *api;
};

static void proxy_found(void *arg, struct sg_entry *e, const struct sg_error *err)
{
    struct proxy_call *c = arg;

    if (err)
        sg_proxy_refuse(c->r, err);
    else
        proxy_to_lease(c->r, c->api, e);
    sg_entry_unref(e);
    sg_req_unref(c->r);
    free(c);
}

void sg_route_proxy(struct sg_request *r, void *app)
{
    static const struct sg_principal token_bearer = {.name = "endpoint-token", .role = SG_ROLE_ADMIN};
    struct sg_api *api = app;
    struct sg_error err = {0};
    const struct sg_principal *who = &token_bearer;

    if (!has_endpoint_token(r, api)) {
        if (sg_req_authenticate(r, &err) < 0) {
            sg_proxy_refuse(r, &err);
            sg_error_clear(&err);
            return;
        }
        who = sg_req_principal(r);
    }
    struct proxy_call *c = sg_xcalloc(1, sizeof *c);
    *c = (struct proxy_call){.r = sg_req_ref(r), .api = api};
    sg_req_set_note(r, sg_req_param(r, "id"));
    sg_service_find(api->service, who, sg_req_param(r, "id"), &(struct sg_entry_done){proxy_found, c});
}
