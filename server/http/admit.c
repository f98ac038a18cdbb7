/* Everything that is decided from a request's head, before its body: framing, limits, route, caller, body rules. */
#include <stdio.h>
#include <strings.h>

#include "http/accept.h"
#include "http/auth.h"
#include "http/cross_site.h"
#include "http/layout.h"
#include "http/request_priv.h"
#include "http/ws_offer.h"

/* ---- taking the head over from the parser ---- */

struct take {
    struct sg_request *r;
    struct sg_header list[SG_HEADERS_MAX + 1];
    size_t n;
    struct sg_layout layout;
    bool cut; /* a value goes on behind a NUL, or there are more headers than we list */
};

static enum MHD_Result take_header(void *arg, enum MHD_ValueKind kind, const char *name, size_t name_len,
                                   const char *value, size_t value_len)
{
    struct take *t = arg;
    (void)kind;
    if (t->n == SG_COUNT_OF(t->list)) {
        t->cut = true;
        return MHD_NO;
    }
    if (!value) {
        value = "";
        value_len = 0;
    }
    sg_layout_header(&t->layout, name, value, value_len);
    /* The parser compares this one with its trailing blanks: so must we. */
    bool whole = strcasecmp(name, "Transfer-Encoding") == 0;
    while (!whole && value_len > 0 && (value[value_len - 1] == ' ' || value[value_len - 1] == '\t'))
        value_len--;
    t->list[t->n++] = (struct sg_header){sg_req_copy(t->r, name, name_len), sg_req_copy(t->r, value, value_len)};
    if (strlen(t->list[t->n - 1].value) != value_len)
        t->cut = true;
    return MHD_YES;
}

static int take_head(struct sg_request *r, struct MHD_Connection *mhd, const char *method, const char *version,
                     struct sg_error *err)
{
    struct take t; /* its list is left as it comes */
    t.r = r;
    t.n = 0;
    t.cut = false;
    r->method = sg_req_copy(r, method, strlen(method));
    r->version = sg_streq(version, "HTTP/1.1") ? "HTTP/1.1" : sg_req_copy(r, version, strlen(version));
    sg_layout_begin(&t.layout, r->target_at, r->target_len, version);
    MHD_get_connection_values_n(mhd, MHD_HEADER_KIND, take_header, &t);
    r->headers = sg_req_alloc(r, (t.n + 1) * sizeof *r->headers);
    memcpy(r->headers, t.list, t.n * sizeof *r->headers);
    r->n_headers = t.n;
    r->target_at = NULL;
    if (t.n > SG_HEADERS_MAX)
        return 0; /* the preflight refuses it for their number */
    if (t.cut || !sg_layout_end(&t.layout, mhd, method))
        return sg_error_set(err, SG_INVALID_REQUEST, "malformed line in the request head");
    return 0;
}

#define TRAILERS_MAX 64U

struct take_trailers {
    struct sg_request *r;
    struct sg_header list[TRAILERS_MAX];
    size_t n;
};

/* The head of the request has been acted on already: what is malformed here is left out. */
static enum MHD_Result take_trailer(void *arg, enum MHD_ValueKind kind, const char *name, size_t name_len,
                                    const char *value, size_t value_len)
{
    struct take_trailers *t = arg;
    (void)kind;
    bool sound = value && strlen(name) == name_len && strlen(value) == value_len && sg_token_ok(name, name_len) &&
                 sg_header_value_ok(value);
    if (t->n == TRAILERS_MAX)
        return MHD_NO;
    if (sound)
        t->list[t->n++] = (struct sg_header){sg_req_copy(t->r, name, name_len), sg_req_copy(t->r, value, value_len)};
    return MHD_YES;
}

void sg_admit_trailers(struct sg_request *r, struct MHD_Connection *mhd)
{
    struct take_trailers t; /* its list is left as it comes */
    t.r = r;
    t.n = 0;
    if (!r->framing.chunked)
        return;
    MHD_get_connection_values_n(mhd, MHD_FOOTER_KIND, take_trailer, &t);
    if (t.n == 0)
        return;
    r->body_trailers = sg_req_alloc(r, t.n * sizeof *t.list);
    memcpy(r->body_trailers, t.list, t.n * sizeof *t.list);
    r->n_body_trailers = t.n;
}

/* ---- identity of the request ---- */

static bool id_ok(const char *s)
{
    size_t len = strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");
    return len > 0 && len <= 128 && s[len] == '\0';
}

/* version "-" trace id "-" parent id "-" flags; neither id all zero. */
static bool traceparent_ok(const char *s)
{
    static const char hex[] = "0123456789abcdef";
    static const size_t parts[] = {2, 32, 16, 2};
    for (size_t i = 0; i < SG_COUNT_OF(parts); i++) {
        if (strspn(s, hex) != parts[i] || (parts[i] > 2 && strspn(s, "0") >= parts[i]))
            return false;
        if (i == 0 && memcmp(s, "ff", 2) == 0)
            return false;
        s += parts[i];
        if (*s != (i + 1 < SG_COUNT_OF(parts) ? '-' : '\0'))
            return false;
        s++;
    }
    return true;
}

static const char *make_id(struct sg_request *r)
{
    static const char digits[] = "0123456789abcdef";
    size_t len = strlen(r->http->id_prefix);
    char *id = sg_req_alloc(r, len + 9);
    uint32_t n = atomic_fetch_add(&r->http->id_count, 1);
    memcpy(id, r->http->id_prefix, len);
    for (size_t i = 0; i < 8; i++)
        id[len + i] = digits[(n >> (28 - 4 * i)) & 15];
    id[len + 8] = '\0';
    return id;
}

static void take_ids(struct sg_request *r)
{
    const char *id = sg_req_header(r, "X-Request-Id");
    if (!id || !id_ok(id)) {
        id = make_id(r);
    }
    r->id = id;
    const char *trace = sg_req_header(r, "traceparent");
    r->traceparent = trace && traceparent_ok(trace) ? trace : NULL;
}

/* ---- who ---- */

/* The value after "Bearer "; NULL for another scheme, which is not ours. */
static const char *bearer_token(const struct sg_request *r)
{
    const char *value = sg_req_header(r, "Authorization");
    if (!value || strncasecmp(value, "Bearer ", 7) != 0)
        return NULL;
    return value + 7 + strspn(value + 7, " ");
}

/* Goes to a service that has its own say about credentials and types. */
static bool relayed(const struct sg_request *r)
{
    return r->match.route && sg_streq(r->match.route->method, "*");
}

static int find_token(struct sg_request *r, const char **ret, struct sg_error *err)
{
    const char *bearer = bearer_token(r);
    const char *key = sg_req_header(r, "X-API-Key");
    *ret = key ? key : bearer;
    if (key && bearer && !relayed(r)) /* else the other one is the service's */
        return sg_error_field(err, SG_INVALID_REQUEST, "Authorization", "both Authorization and X-API-Key");
    return 0;
}

/* Whoever shows the token as a subprotocol is a page that knows it. A header may be a gateway's, which adds it for its user whatever page
 * asks; and of WebSockets a browser asks for no permission (CORS) before. */
static int find_websocket_token(struct sg_request *r, const struct sg_head *head, const char **ret, struct sg_error *err)
{
    if (*ret) {
        if (sg_cross_site_own(head, r->http->cfg.public_url))
            return 0;
        return sg_error_field(err, SG_CROSS_ORIGIN, "Origin",
                              "a page of another origin must send the token as a subprotocol: " SG_WS_PROTOCOL ", " SG_WS_TOKEN_PREFIX "BASE64URL");
    }
    sg_cleanup(sg_free_p) char *token = sg_ws_offer_token(r->headers, r->n_headers);
    if (token)
        *ret = sg_req_copy(r, token, strlen(token));
    return 0;
}

int sg_admit_authenticate(struct sg_request *r, struct sg_error *err)
{
    const char *token = NULL;
    if (find_token(r, &token, err) < 0)
        return -1;
    const struct sg_http_config *cfg = &r->http->cfg;
    if (!cfg->auth)
        return 0;
    /* What a sandbox serves may be meant for pages of other origins; to reach it they must have been told the lease's id. */
    bool trusted = relayed(r) || !cfg->open || !cfg->open(cfg->app);
    struct sg_head head = {r->method, r->version, r->target, r->headers, r->n_headers};
    if (r->match.route && r->match.route->websocket && find_websocket_token(r, &head, &token, err) < 0)
        return -1;
    if (!trusted && sg_cross_site_check(&head, cfg->public_url, err) < 0)
        return -1;
    return r->http->cfg.auth(r->http->cfg.app, token, token ? strlen(token) : 0, &r->principal, err);
}

static int authenticate(struct sg_request *r, struct sg_error *err)
{
    enum sg_auth_need need = r->match.route->auth;
    if (need == SG_AUTH_NONE)
        return 0;
    if (sg_admit_authenticate(r, err) < 0)
        return -1;
    if (need == SG_AUTH_ADMIN && r->principal && r->principal->role != SG_ROLE_ADMIN)
        return sg_error_set(err, SG_FORBIDDEN, "only an administrator may do this");
    return 0;
}

/* ---- limits, route, body rules ---- */

static int check_load(struct sg_request *r, struct sg_error *err)
{
    struct sg_http *h = r->http;
    r->counted = true;
    bool full = atomic_fetch_add(&h->requests, 1) >= h->cfg.max_requests;
    if (r->match.route && r->match.route->always)
        return 0;
    if (atomic_load(&h->draining)) {
        sg_error_set(err, SG_SHUTTING_DOWN, "the server is shutting down");
        return sg_error_retry_after(err, 1);
    }
    if (!full)
        return 0;
    sg_error_set(err, SG_OVERLOADED, "too many requests are being worked on");
    return sg_error_retry_after(err, 1);
}

static int find_route(struct sg_request *r, char *allow, size_t allow_size, struct sg_error *err)
{
    struct sg_http *h = r->http;
    const char *host = h->host_router ? sg_req_header(r, "Host") : NULL;
    bool by_host = host && h->cfg.host_match(h->cfg.app, host);
    if (!by_host && sg_streq(r->target, "*")) {
        snprintf(allow, allow_size, "GET, HEAD, POST, PUT, DELETE, OPTIONS");
        return 0;
    }
    return sg_router_find(by_host ? h->host_router : h->router, r->method, r->target, r->path_len, &r->match,
                          allow, allow_size, err);
}

const char *const SG_ANY_TYPE[] = {"*/*", NULL};

static int check_accept(const struct sg_request *r, struct sg_error *err)
{
    static const char *const json[] = {"application/json", NULL};
    const char *const *types = r->match.route->produces ? r->match.route->produces : json;
    if (types == SG_ANY_TYPE || relayed(r))
        return 0;
    for (const char *const *t = types; *t; t++)
        if (sg_accepts(r->headers, r->n_headers, *t))
            return 0;
    return sg_error_field(err, SG_NOT_ACCEPTABLE, "Accept", "this is answered with %s%s", types[0],
                          types[1] ? " and others" : "");
}

static bool is_json_type(const char *type)
{
    size_t n = strlen("application/json");
    if (!type || strncasecmp(type, "application/json", n) != 0)
        return false;
    return type[n] == '\0' || type[n] == ';' || type[n] == ' ';
}

uint64_t sg_admit_max_body(const struct sg_request *r)
{
    const struct sg_route *route = r->match.route;
    if (route->body == SG_BODY_STREAM)
        return route->max_body ? route->max_body : UINT64_MAX;
    if (route->body == SG_BODY_NONE)
        return SG_DRAIN_MAX;
    uint64_t max = route->max_body ? route->max_body : r->http->cfg.max_body;
    return max < r->http->cfg.body_memory ? max : r->http->cfg.body_memory; /* what never fits is not worth a repetition */
}

/* Nothing is unpacked here: a packed body would be taken for what it is not. */
static int check_coding(const struct sg_request *r, struct sg_error *err)
{
    for (size_t i = 0; i < r->n_headers && !relayed(r); i++)
        if (strcasecmp(r->headers[i].name, "Content-Encoding") == 0 && strcasecmp(r->headers[i].value, "identity") != 0)
            return sg_error_field(err, SG_UNSUPPORTED_MEDIA_TYPE, "Content-Encoding", "bodies are taken as they are: send the bytes that are meant");
    return 0;
}

static int check_body(struct sg_request *r, struct sg_error *err)
{
    const struct sg_route *route = r->match.route;
    bool json = route->body == SG_BODY_JSON || route->body == SG_BODY_JSON_OPTIONAL;
    uint64_t max = sg_admit_max_body(r);
    if (route->body == SG_BODY_JSON && !sg_req_has_body(r))
        return sg_error_set(err, SG_INVALID_REQUEST, "a JSON body is required");
    if (json && sg_req_has_body(r) && !is_json_type(sg_req_header(r, "Content-Type")))
        return sg_error_field(err, SG_UNSUPPORTED_MEDIA_TYPE, "Content-Type",
                              "the body must be JSON and say so: Content-Type: application/json (curl: --json, or -H)");
    if (route->body != SG_BODY_NONE && check_coding(r, err) < 0)
        return -1;
    if (r->framing.length > max)
        return sg_error_set(err, SG_PAYLOAD_TOO_LARGE, "the body is larger than %llu bytes",
                            (unsigned long long)max);
    return 0;
}

/* From where on the target is not ours to read; SIZE_MAX: all of it is. */
static size_t passed_on_from(const struct sg_request *r)
{
    return relayed(r) && r->match.n_params > 0 ? (size_t)(r->match.raw[r->match.n_params - 1].at - r->target) : SIZE_MAX;
}

int sg_admit(struct sg_request *r, struct MHD_Connection *mhd, const char *method, const char *version,
             char *allow, size_t allow_size, struct sg_error *err)
{
    allow[0] = '\0';
    int sound = take_head(r, mhd, method, version, err);
    struct sg_head head = {r->method, r->version, r->target, r->headers, r->n_headers};
    take_ids(r);
    r->close = true; /* until nothing is wrong with the framing */
    if (sound < 0 || sg_preflight_head(&head, &r->framing, err) < 0)
        return -1;
    size_t odd;
    if (sg_preflight_target(r->method, r->target, &r->path_len, &odd, err) < 0)
        return -1;
    if (r->conn->over_limit) {
        sg_error_set(err, SG_OVERLOADED, "too many connections");
        return sg_error_retry_after(err, 1);
    }
    r->close = false;
    int found = find_route(r, allow, allow_size, err);
    if (odd < passed_on_from(r)) {
        r->close = true;
        allow[0] = '\0';
        return sg_preflight_odd(r->target, odd, err);
    }
    if (found < 0 || check_load(r, err) < 0)
        return -1;
    if (!r->match.route)
        return 0;
    if (authenticate(r, err) < 0 || sg_req_decode(r, err) < 0 || check_accept(r, err) < 0)
        return -1;
    return check_body(r, err);
}
