#include "http/proxy.h"

#include <stdatomic.h>
#include <strings.h>

#include "http/auth.h"
#include "http/proxy_head.h"
#include "http/proxy_origin.h"
#include "http/respond.h"

/* One relayed request, from sg_proxy() to the end of the exchange. */
struct proxy_call {
    struct sg_request *r;
    char *prefix; /* public path of the service; on the host form its origin */
    struct sg_proxy_side side;
    uint16_t port;
    bool answered;
    void (*over)(void *arg, bool answered);
    void *over_arg;
};

void sg_proxy_refuse(struct sg_request *r, const struct sg_error *err)
{
    sg_respond_header(r, "Sandgate-Error", sg_code_name(err->code));
    sg_respond_error(r, err);
}

/* ---- the answer ---- */

static void pass_field(struct proxy_call *c, const char *name, const char *value)
{
    sg_cleanup(sg_free_p) char *copy = NULL;
    if (strcasecmp(name, "Location") == 0)
        copy = c->side.own_origin ? sg_proxy_own_location(value, c->prefix, c->port)
                             : sg_proxy_location(value, c->prefix, c->port);
    if (strcasecmp(name, "Set-Cookie") == 0) {
        copy = sg_origin_set_cookie(value);
        if (copy == NULL)
            return;
    }
    if (copy == NULL && strchr(value, '\t') != NULL)
        copy = sg_xstrdup(value);
    for (char *tab = copy != NULL ? strchr(copy, '\t') : NULL; tab != NULL; tab = strchr(tab, '\t'))
        *tab = ' '; /* the same by the grammar, and the layer below takes no tabs */
    (void)sg_respond_header(c->r, name, copy != NULL ? copy : value);
}

static void pass_fields(struct proxy_call *c, const struct sg_h1_head *head)
{
    for (size_t i = 0; i < head->n_fields; i++)
        if (sg_proxy_field_passes(head, i, &c->side))
            pass_field(c, head->fields[i].name, head->fields[i].value);
    const char *type = sg_h1_field_get(head, "Content-Type");
    if (type != NULL && strncasecmp(type, "text/event-stream", 17) == 0 && sg_h1_field_get(head, "X-Accel-Buffering") == NULL)
        (void)sg_respond_header(c->r, "X-Accel-Buffering", "no"); /* a gateway must not collect events either */
    if (head->status == 101 || c->side.own_origin)
        return;
    /* Each policy holds beside the others, so a further one can only narrow what the service allows. */
    (void)sg_respond_header(c->r, "Content-Security-Policy", "sandbox");
}

/* ---- a switch of protocols ---- */

/* From the service's 101 until the client's connection is the tunnel's no more. */
struct switching {
    struct sg_upstream_tunnel *tunnel;
    struct sg_upgrade *up;
};

static void tunnel_closed(void *arg)
{
    struct switching *s = arg;
    sg_upgrade_close(s->up);
    free(s);
}

static void switched(void *arg, struct sg_upgrade *up, int fd, const void *early, size_t early_len)
{
    struct switching *s = arg;
    s->up = up;
    if (up != NULL) {
        sg_upstream_tunnel_join(s->tunnel, fd, early, early_len, tunnel_closed, s);
        return;
    }
    sg_upstream_tunnel_drop(s->tunnel);
    free(s);
}

static void answer_switch(struct proxy_call *c, const struct sg_upstream_answer *a)
{
    struct switching *s = sg_xcalloc(1, sizeof *s);
    s->tunnel = a->tunnel;
    sg_respond_upgrade(c->r, sg_h1_field_get(a->head, "Upgrade"), switched, s);
}

/* Nothing of the answer went out yet, so that the client can still be told. */
static bool fits(struct proxy_call *c, const struct sg_upstream_answer *a)
{
    size_t size = 0;
    for (size_t i = 0; i < a->head->n_fields; i++)
        size += strlen(a->head->fields[i].name) + strlen(a->head->fields[i].value) + 4;
    size_t room = sg_respond_room(c->r);
    if (size + strlen(c->prefix) <= room)
        return true;
    struct sg_error err = {0};
    sg_error_set(&err, SG_ENDPOINT_FAILED, "the service's answer has %zu bytes of headers; %zu can be passed on", size, room);
    sg_error_reason(&err, "headers_too_large");
    sg_proxy_refuse(c->r, &err);
    sg_error_clear(&err);
    return false;
}

static void let_go(const struct sg_upstream_answer *a)
{
    if (a->tunnel != NULL)
        sg_upstream_tunnel_drop(a->tunnel);
    if (a->pipe != NULL)
        sg_pipe_stop(a->pipe);
    sg_pipe_unref(a->pipe);
}

static void answered(void *arg, const struct sg_upstream_answer *a)
{
    struct proxy_call *c = arg;
    c->answered = true;
    if (!fits(c, a)) {
        let_go(a);
        return;
    }
    pass_fields(c, a->head);
    if (a->tunnel != NULL) {
        answer_switch(c, a);
    } else if (a->pipe != NULL) {
        sg_respond_pipe(c->r, a->head->status, NULL, a->pipe, a->length);
        sg_pipe_unref(a->pipe);
    } else if ((sg_req_is_head(c->r) || a->head->status == 304) && a->head->has_length && a->head->length > 0) {
        sg_respond_length(c->r, a->head->status, a->head->length);
    } else if (a->head->status == 204 || a->head->status == 304) {
        sg_respond_empty(c->r, a->head->status);
    } else {
        sg_respond_bytes(c->r, a->head->status, NULL, a->whole, a->whole_len);
    }
}

/* One line of the answer's trailers, "Name:value". */
static void pass_trailer(struct proxy_call *c, char *line)
{
    char *value = strchr(line, ':');
    if (value == NULL)
        return;
    *value++ = '\0';
    value += strspn(value, " \t");
    for (size_t n = strlen(value); n > 0 && strchr(" \t", value[n - 1]) != NULL; n--)
        value[n - 1] = '\0';
    for (char *tab = strchr(value, '\t'); tab != NULL; tab = strchr(tab, '\t'))
        *tab = ' ';
    if (sg_proxy_trailer_passes(line))
        sg_respond_trailer(c->r, line, value);
}

static void trailers(void *arg, const char *lines, size_t len)
{
    sg_cleanup(sg_free_p) char *copy = sg_xstrndup(lines, len);
    char *rest = NULL;
    for (char *line = strtok_r(copy, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
        pass_trailer(arg, line);
}

static void failed(void *arg, const struct sg_error *err)
{
    sg_proxy_refuse(((struct proxy_call *)arg)->r, err);
}

static void ended(void *arg)
{
    struct proxy_call *c = arg;
    c->over(c->over_arg, c->answered);
    sg_req_unref(c->r);
    free(c->prefix);
    free(c);
}

/* ---- the request ---- */

static bool valid_token(struct sg_auth *auth, const char *token)
{
    const struct sg_principal *who = NULL;
    if (token == NULL || sg_auth_check(auth, token, strlen(token), &who, NULL) < 0)
        return false;
    sg_principal_unref(who);
    return true;
}

/* What stands behind the scheme, whichever that is, or all of it: a token of ours stays one where we would not look for it. */
static const char *credentials(const char *authorization)
{
    if (authorization == NULL)
        return NULL;
    size_t scheme = strcspn(authorization, " \t");
    size_t blanks = strspn(authorization + scheme, " \t");
    return authorization[scheme + blanks] != '\0' ? authorization + scheme + blanks : authorization;
}

/* Which credentials are ours: the one that let the caller in, and any other valid one. */
static void find_credentials(const struct sg_request *r, struct sg_auth *auth, struct sg_proxy_request *q)
{
    if (auth == NULL || !sg_auth_has_tokens(auth))
        return;
    const char *key = sg_req_header(r, "X-API-Key");
    bool let_in = sg_req_principal(r) != NULL;
    q->drop_api_key = (let_in && key != NULL) || valid_token(auth, key);
    q->drop_authorization =
        (let_in && key == NULL) || valid_token(auth, credentials(sg_req_header(r, "Authorization")));
}

/* What the client said behind its chunked body. */
static char *body_trailers(void *arg)
{
    struct sg_buf out;
    size_t n;
    const struct sg_header *list = sg_req_trailers(((struct proxy_call *)arg)->r, &n);
    sg_buf_init(&out, SG_PROXY_HEAD_MAX);
    for (size_t i = 0; i < n; i++)
        if (sg_proxy_trailer_passes(list[i].name))
            (void)sg_buf_addf(&out, "%s: %s\r\n", list[i].name, list[i].value);
    char *lines = out.len > 0 ? sg_buf_steal(&out, NULL) : NULL;
    sg_buf_finish(&out);
    return lines;
}

/* The path part of "https://host/path", or "". */
static const char *url_path(const char *url)
{
    const char *host = url != NULL ? strstr(url, "://") : NULL;
    const char *path = host != NULL ? strchr(host + 3, '/') : NULL;
    return path != NULL ? path : "";
}

static char *path_prefix(const char *base, const char *target, size_t prefix_len)
{
    size_t n = strlen(base);
    char *prefix = sg_xcalloc(1, n + prefix_len + 1);
    memcpy(prefix, base, n);
    memcpy(prefix + n, target, prefix_len);
    return prefix;
}

static const char *proto_of(const char *public_url)
{
    return public_url != NULL && strncasecmp(public_url, "https:", 6) == 0 ? "https" : "http";
}

/* The protocols the client asks for, NULL: none. A server may always stay with HTTP, and where a body comes first, we do. */
static char *wanted_upgrade(const struct sg_request *r)
{
    size_t n;
    const struct sg_header *headers = sg_req_headers(r, &n);
    bool may = sg_streq(sg_req_version(r), "1.1") && sg_req_content_length(r) == 0;
    return may ? sg_proxy_upgrade(headers, n) : NULL;
}

static int write_head(const struct proxy_call *c, const struct sg_proxy_args *args, const char *rest, const char *upgrade,
                      struct sg_buf *head, struct sg_error *err)
{
    const struct sg_request *r = c->r;
    struct sg_proxy_request q = {
        .method = sg_req_method(r),
        .target = rest,
        .port = args->target.port,
        .content_length = sg_req_content_length(r),
        .request_id = sg_req_id(r),
        .peer = sg_req_peer(r),
        .proto = proto_of(args->public_url),
        .prefix = c->side.own_origin ? "" : c->prefix,
        .own_origin = c->side.own_origin,
    };
    q.headers = sg_req_headers(r, &q.n_headers);
    q.upgrade = upgrade;
    q.trailers = c->side.trailers;
    find_credentials(r, args->auth, &q);
    return sg_proxy_request_head(&q, head, err);
}

/* On the path form a worker made of what a sandbox says would be the API's origin for good. */
static int check_purpose(const struct proxy_call *c, struct sg_error *err)
{
    const char *purpose = sg_req_header(c->r, "Sec-Fetch-Dest");
    bool worker = sg_req_header(c->r, "Service-Worker") != NULL || (purpose != NULL && sg_streq(purpose, "serviceworker"));
    if (c->side.own_origin || !worker)
        return 0;
    sg_error_set(err, SG_FORBIDDEN, "service workers exist only at an endpoint's own host, not below the API's origin");
    return sg_error_reason(err, "service_worker");
}

static int start(struct proxy_call *c, const struct sg_proxy_args *args, struct sg_error *err)
{
    struct sg_request *r = c->r;
    if (check_purpose(c, err) < 0)
        return -1;
    const char *target = args->rest != NULL ? args->rest : sg_req_raw_target(r);
    size_t prefix_len = 0;
    if (!c->side.own_origin && sg_proxy_split(target, &prefix_len, err) < 0)
        return -1;
    const char *host = sg_req_header(r, "Host");
    c->prefix = c->side.own_origin ? sg_xasprintf("%s://%s", proto_of(args->public_url), host != NULL ? host : "")
                                   : path_prefix(url_path(args->public_url), target, prefix_len);
    struct sg_buf head;
    sg_buf_init(&head, SG_PROXY_HEAD_MAX);
    sg_cleanup(sg_free_p) char *upgrade = wanted_upgrade(r);
    int rc = write_head(c, args, target + prefix_len, upgrade, &head, err);
    if (rc == 0) {
        int64_t length = sg_req_content_length(r);
        const char *method = sg_req_method(r);
        struct sg_upstream_request q = {
            .head = head.data,
            .head_len = head.len,
            .body = length != 0 ? sg_req_body_pipe(r) : NULL,
            .body_length = length,
            .is_head = sg_req_is_head(r),
            .replayable = sg_streq(method, "GET") || sg_streq(method, "HEAD"),
            .trailers = body_trailers,
            .upgrade = upgrade != NULL,
            .cancel = sg_req_cancel(r),
        };
        struct sg_upstream_sink sink = {
            .answered = answered, .failed = failed, .trailers = c->side.trailers ? trailers : NULL, .ended = ended, .arg = c};
        rc = sg_upstream_start(args->upstreams, &args->target, &q, &sink, err);
    }
    sg_buf_finish(&head);
    return rc;
}

void sg_proxy(struct sg_request *r, const struct sg_proxy_args *args)
{
    struct proxy_call *c = sg_xcalloc(1, sizeof *c);
    struct sg_error err = {0};
    c->r = sg_req_ref(r);
    c->port = args->target.port;
    c->side.own_origin = args->own_origin;
    size_t n;
    const struct sg_header *headers = sg_req_headers(r, &n);
    c->side.trailers = sg_streq(sg_req_version(r), "1.1") && sg_proxy_takes_trailers(headers, n);
    c->over = args->over;
    c->over_arg = args->over_arg;
    if (start(c, args, &err) < 0) {
        sg_proxy_refuse(r, &err);
        sg_error_clear(&err);
        ended(c);
    }
}
