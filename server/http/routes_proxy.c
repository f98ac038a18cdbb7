/* Services inside a sandbox: /leases/{id}/proxy/{port}/... and, below the public domain, a host for each port.
 *
 * Who may come in: whoever shows an endpoint token for the port (in a header; on the host form also in our cookie, or in
 * the query of a first visit, which turns it into the cookie), and whoever may use the API.
 */
#include "http/api.h"
#include "http/proxy.h"
#include "http/proxy_origin.h"

#include "base/clock.h"

#include <stdio.h>

/* ---- relaying ---- */

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

/* ---- one call, from its head to the lease it goes to ---- */

enum how { BY_API, BY_HEADER, BY_COOKIE, BY_QUERY };

struct proxy_call {
    struct sg_request *r;
    struct sg_api *api;
    char lease_id[SG_ID_MAX];
    uint16_t port;
    bool own_origin;
    enum how how;
    struct sg_endpoint_pass pass; /* unless BY_API */
    char *token; /* BY_QUERY: the token, and the target without it */
    char *target;
};

static void call_free(struct proxy_call *c)
{
    sg_req_unref(c->r);
    free(c->token);
    free(c->target);
    free(c);
}

static void refuse(struct proxy_call *c, struct sg_error *err)
{
    sg_proxy_refuse(c->r, err);
    sg_error_clear(err);
}

static void relay(struct proxy_call *c, struct sg_entry *e, struct sg_sandbox *sb)
{
    struct sg_api *api = c->api;
    struct relay *p = sg_xcalloc(1, sizeof *p);

    *p = (struct relay){.refs = 1, .e = sg_entry_ref(e), .sb = sb};
    struct sg_proxy_args args = {.upstreams = api->upstreams,
                                 .auth = api->auth,
                                 .public_url = api->public_url,
                                 .own_origin = c->own_origin,
                                 .rest = c->target,
                                 .target = {.lease_id = sg_entry_id(e),
                                            .port = c->port,
                                            .lease_end = sg_entry_cancel(e),
                                            .dial = relay_dial,
                                            .ref = relay_ref,
                                            .unref = relay_unref,
                                            .arg = p},
                                 .over = relay_over,
                                 .over_arg = p};
    sg_proxy(c->r, &args);
}

/* A first visit: the token moves from the URL, where histories and logs see it, into a cookie of this host. */
static void redirect(struct proxy_call *c)
{
    int64_t left_s = (c->pass.expires_us - sg_wall_us()) / 1000000;
    char age[40] = "";

    if (c->pass.expires_us != 0)
        snprintf(age, sizeof age, "; Max-Age=%lld", (long long)(left_s > 0 ? left_s : 0));
    sg_cleanup(sg_free_p) char *cookie = sg_xasprintf(SG_ENDPOINT_COOKIE "=%s; Path=/; Secure; HttpOnly; SameSite=Lax%s", c->token, age);
    /* "//x" and, to browsers, "/\\x" would name another host. */
    bool other_host = c->target[1] == '/' || c->target[1] == '\\';
    sg_cleanup(sg_free_p) char *location = sg_xasprintf("%s%s", other_host ? "/." : "", c->target);
    sg_respond_header(c->r, "Location", location);
    sg_respond_header(c->r, "Set-Cookie", cookie);
    sg_respond_header(c->r, "Cache-Control", "no-store");
    sg_respond_header(c->r, "Referrer-Policy", "no-referrer");
    sg_respond_empty(c->r, 303);
}

/* Anything but a plain GET is relayed without the token instead: it could not be repeated, or takes no redirect. */
static bool is_first_visit(const struct proxy_call *c)
{
    const char *method = sg_req_method(c->r);

    return c->how == BY_QUERY && (sg_streq(method, "GET") || sg_streq(method, "HEAD")) && sg_req_content_length(c->r) == 0 &&
           sg_req_header(c->r, "Upgrade") == NULL;
}

static void to_lease(struct proxy_call *c, struct sg_entry *e)
{
    struct sg_error err = {0};
    struct sg_sandbox *sb = NULL;

    if (sg_entry_use_begin(e, &sb, &err) < 0) {
        refuse(c, &err);
        return;
    }
    bool admitted = c->how == BY_API || sg_service_endpoint_admit(c->api->service, e, &c->pass, &err) == 0;
    if (admitted && !is_first_visit(c)) {
        relay(c, e, sb);
        return;
    }
    if (admitted)
        redirect(c);
    else
        refuse(c, &err);
    sg_entry_use_end(e, false);
    sg_sandbox_unref(sb);
}

static void found(void *arg, struct sg_entry *e, const struct sg_error *err)
{
    struct proxy_call *c = arg;

    if (err)
        sg_proxy_refuse(c->r, err);
    else
        to_lease(c, e);
    sg_entry_unref(e);
    call_free(c);
}

/* ---- who may come in ---- */

static bool right(struct proxy_call *c, enum how how, const char *token, struct sg_error *err)
{
    if (!token)
        return false;
    sg_error_clear(err);
    c->how = how;
    return sg_service_endpoint_check(c->api->service, c->lease_id, c->port, token, &c->pass, err) == 0;
}

static bool cookie_right(struct proxy_call *c, struct sg_error *err)
{
    size_t n;
    const struct sg_header *headers = sg_req_headers(c->r, &n);
    sg_cleanup(sg_free_p) char *cookie = sg_origin_cookie(headers, n);

    if (!cookie || !right(c, BY_COOKIE, cookie, err))
        return false;
    if (sg_origin_page_may(c->r, c->api->public_domain, c->lease_id))
        return true;
    sg_error_set(err, SG_UNAUTHORIZED, "the cookie does not count for requests that pages of other origins make");
    return false;
}

/* NULL with err: nobody we know. */
static const struct sg_principal *admit(struct proxy_call *c, struct sg_error *err)
{
    static const struct sg_principal token_bearer = {.name = "endpoint-token", .role = SG_ROLE_ADMIN};
    struct sg_error other = {0};

    if (c->token)
        return right(c, BY_QUERY, c->token, err) ? &token_bearer : NULL;
    if (right(c, BY_HEADER, sg_req_header(c->r, SG_ENDPOINT_TOKEN_HEADER), err) || (c->own_origin && cookie_right(c, err)))
        return &token_bearer;
    c->how = BY_API;
    if (sg_req_authenticate(c->r, &other) == 0) {
        sg_error_clear(err);
        return sg_req_principal(c->r);
    }
    if (err->code == SG_OK)
        sg_error_copy(err, &other);
    sg_error_clear(&other);
    return NULL;
}

static void begin(struct proxy_call *c)
{
    struct sg_error err = {0};

    sg_req_set_note(c->r, c->lease_id);
    const struct sg_principal *who = admit(c, &err);
    if (who) {
        sg_service_find(c->api->service, who, c->lease_id, &(struct sg_entry_done){found, c});
        return;
    }
    refuse(c, &err);
    call_free(c);
}

void sg_route_proxy(struct sg_request *r, void *app)
{
    struct sg_error err = {0};
    struct proxy_call *c = sg_xcalloc(1, sizeof *c);

    *c = (struct proxy_call){.r = sg_req_ref(r), .api = app};
    snprintf(c->lease_id, sizeof c->lease_id, "%s", sg_req_param(r, "id"));
    if (sg_api_port(r, "port", &c->port, &err) == 0) {
        begin(c);
        return;
    }
    refuse(c, &err);
    call_free(c);
}

/* ---- the host form ---- */

bool sg_api_is_endpoint_host(void *app, const char *host)
{
    const struct sg_api *api = app;

    return api->public_domain && sg_origin_covers(host, api->public_domain);
}

static void proxy_host(struct sg_request *r, void *app)
{
    struct sg_error err = {0};
    struct sg_api *api = app;
    struct proxy_call *c = sg_xcalloc(1, sizeof *c);

    *c = (struct proxy_call){.r = sg_req_ref(r), .api = api, .own_origin = true};
    if (sg_origin_parse(sg_req_header(r, "Host"), api->public_domain, &c->port, c->lease_id, &err) == 0) {
        (void)sg_origin_cut_token(sg_req_raw_target(r), &c->token, &c->target);
        begin(c);
        return;
    }
    refuse(c, &err);
    call_free(c);
}

const struct sg_route sg_endpoint_host_route = {
    .method = "*", .path = "/{rest...}", .operation_id = "proxy", .body = SG_BODY_STREAM, .auth = SG_AUTH_NONE, .handle = proxy_host};
