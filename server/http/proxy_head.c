#include "http/proxy_head.h"

#include <stdio.h>
#include <strings.h>

#include "http/proxy_origin.h"

/* Heads are seldom longer, and buffers of this size cost no more than small ones. */
#define HEAD_USUAL 1000U

/* The first letter tells most of them apart. */
static bool is(const char *name, const char *wanted)
{
    return ((name[0] ^ wanted[0]) & ~0x20) == 0 && strcasecmp(name, wanted) == 0;
}

static bool listed(const char *name, const char *const *names)
{
    for (; *names != NULL; names++)
        if (is(name, *names))
            return true;
    return false;
}

/* Meant for the next hop only (RFC 9110, 7.6.1, and what is older). */
static bool hop_by_hop(const char *name)
{
    static const char *const names[] = {"Connection",
                                        "Keep-Alive",
                                        "Proxy-Connection",
                                        "Proxy-Authorization",
                                        "TE",
                                        "Trailer",
                                        "Transfer-Encoding",
                                        "Upgrade",
                                        "HTTP2-Settings",
                                        "Proxy-Authenticate",
                                        "Content-Length",
                                        NULL};
    return listed(name, names);
}

static bool named_in_connection(const struct sg_header *headers, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (is(headers[i].name, "Connection") && sg_h1_list_has(headers[i].value, name))
            return true;
    return false;
}

/* Said by whoever forwards; from a client it proves nothing. */
static bool forwarding(const char *name)
{
    static const char *const names[] = {"Forwarded", "X-Real-IP", NULL};
    return strncasecmp(name, "X-Forwarded-", 12) == 0 || listed(name, names);
}

/* As hop_by_hop(), but where both sides take trailers their names may be announced. */
static bool next_hop_only(const char *name, bool trailers)
{
    return hop_by_hop(name) && !(trailers && strcasecmp(name, "Trailer") == 0);
}

static bool ours(const char *name)
{
    return strncasecmp(name, "Sandgate-", 9) == 0;
}

/* ---- request ---- */

/* Skips "/segment". */
static const char *skip_segment(const char *p)
{
    return *p == '/' ? p + 1 + strcspn(p + 1, "/?") : p;
}

int sg_proxy_split(const char *target, size_t *ret_prefix_len, struct sg_error *err)
{
    const char *p = strncmp(target, "/v1/", 4) == 0 ? target + 3 : target;
    for (int i = 0; i < 4; i++) {
        const char *next = skip_segment(p);
        if (next <= p + 1)
            return sg_error_set(err, SG_NOT_FOUND, "not a path of the proxy");
        p = next;
    }
    *ret_prefix_len = (size_t)(p - target);
    return 0;
}

static bool request_field_passes(const struct sg_proxy_request *q, const char *name)
{
    /* Expect has been answered by us; the two ids are written anew. */
    static const char *const replaced[] = {"Host", "Expect", "X-Request-Id", NULL};
    if (next_hop_only(name, q->content_length < 0) || forwarding(name) || ours(name) || listed(name, replaced))
        return false;
    if (q->drop_authorization && strcasecmp(name, "Authorization") == 0)
        return false;
    if (q->drop_api_key && strcasecmp(name, "X-API-Key") == 0)
        return false;
    return !named_in_connection(q->headers, q->n_headers, name);
}

static const char *header(const struct sg_proxy_request *q, const char *name)
{
    for (size_t i = 0; i < q->n_headers; i++)
        if (is(q->headers[i].name, name))
            return q->headers[i].value;
    return NULL;
}

static int add_text(struct sg_buf *out, const char *text)
{
    return sg_buf_add(out, text, strlen(text));
}

static int add_field(struct sg_buf *out, const char *name, const char *value)
{
    return add_text(out, name) | sg_buf_add(out, ": ", 2) | add_text(out, value) | sg_buf_add(out, "\r\n", 2);
}

/* The request comes from a page of the service itself: it asked its own origin. */
static bool same_origin(const struct sg_proxy_request *q, const char *origin)
{
    const char *host = header(q, "Host");
    const char *at = strstr(origin, "://");
    return host != NULL && at != NULL && strcasecmp(at + 3, host) == 0;
}

/* Host names the service by its own address, and servers compare Origin with it. */
static int add_origin(const struct sg_proxy_request *q, struct sg_buf *out, const char *origin)
{
    if (!q->own_origin || !same_origin(q, origin))
        return add_field(out, "Origin", origin);
    return sg_buf_addf(out, "Origin: http://127.0.0.1:%u\r\n", (unsigned)q->port);
}

/* Our cookie is a credential wherever it is sent to. */
static int add_cookie(struct sg_buf *out, const char *cookies)
{
    sg_cleanup(sg_free_p) char *left = strcasestr(cookies, SG_ENDPOINT_COOKIE) != NULL ? sg_origin_cut_cookie(cookies) : NULL;
    if (left != NULL && *left == '\0')
        return 0;
    return add_field(out, "Cookie", left != NULL ? left : cookies);
}

static int pass_field(const struct sg_proxy_request *q, struct sg_buf *out, const struct sg_header *h)
{
    if (!request_field_passes(q, h->name))
        return 0;
    if (is(h->name, "Origin"))
        return add_origin(q, out, h->value);
    if (is(h->name, "Cookie"))
        return add_cookie(out, h->value);
    if (is(h->name, "Referer") && strstr(h->value, SG_ENDPOINT_QUERY "=") != NULL)
        return 0; /* the page was opened with a token in its URL */
    return add_field(out, h->name, h->value);
}

static int add_framing(const struct sg_proxy_request *q, struct sg_buf *out)
{
    if (q->content_length < 0)
        return add_field(out, "Transfer-Encoding", "chunked");
    /* A server may insist on a length where the method foresees a body. */
    static const char *const with_body[] = {"POST", "PUT", "PATCH", NULL};
    if (q->content_length == 0 && header(q, "Content-Length") == NULL && !listed(q->method, with_body))
        return 0;
    return sg_buf_addf(out, "Content-Length: %lld\r\n", (long long)q->content_length);
}

static int add_ours(const struct sg_proxy_request *q, struct sg_buf *out)
{
    const char *host = header(q, "Host");
    int bad = add_field(out, "X-Request-Id", q->request_id) | add_field(out, "X-Forwarded-Proto", q->proto);
    if (*q->peer != '\0')
        bad |= add_field(out, "X-Forwarded-For", q->peer);
    if (host != NULL)
        bad |= add_field(out, "X-Forwarded-Host", host);
    return *q->prefix != '\0' ? bad | add_field(out, "X-Forwarded-Prefix", q->prefix) : bad;
}

int sg_proxy_request_head(const struct sg_proxy_request *q, struct sg_buf *out, struct sg_error *err)
{
    int bad = sg_buf_reserve(out, HEAD_USUAL) | add_text(out, q->method) | add_text(out, sg_streq(q->target, "*") || q->target[0] == '/' ? " " : " /") |
              add_text(out, q->target) | sg_buf_addf(out, " HTTP/1.1\r\nHost: 127.0.0.1:%u\r\n", (unsigned)q->port);
    for (size_t i = 0; i < q->n_headers && bad == 0; i++)
        bad = pass_field(q, out, &q->headers[i]);
    if (q->trailers && q->upgrade == NULL && bad == 0)
        bad = add_field(out, "Connection", "TE") | add_field(out, "TE", "trailers");
    if (q->upgrade != NULL && bad == 0)
        bad = add_field(out, "Connection", "Upgrade") | add_field(out, "Upgrade", q->upgrade);
    if (bad != 0 || add_ours(q, out) != 0 || add_framing(q, out) != 0 || sg_buf_add(out, "\r\n", 2) != 0)
        return sg_error_set(err, SG_HEADERS_TOO_LARGE, "the request's headers are too large to be passed on");
    return 0;
}

/* A protocol as RFC 9110, 7.8 writes it: a name, perhaps with a version behind a slash. */
static bool is_protocol(const char *s, size_t len)
{
    size_t slashes = 0;
    for (size_t i = 0; i < len; i++) {
        if (s[i] == '/')
            slashes++;
        else if (!sg_h1_is_token((unsigned char)s[i]))
            return false;
    }
    bool http2 = len == 3 && strncasecmp(s, "h2c", 3) == 0;
    return len > 0 && s[0] != '/' && s[len - 1] != '/' && slashes < 2 && !http2;
}

static void add_protocols(struct sg_buf *out, const char *list)
{
    while (*list != '\0') {
        size_t len = strcspn(list, ",");
        const char *at = list + strspn(list, " \t");
        size_t n = at < list + len ? len - (size_t)(at - list) : 0;
        while (n > 0 && (at[n - 1] == ' ' || at[n - 1] == '\t'))
            n--;
        if (is_protocol(at, n))
            (void)sg_buf_addf(out, "%s%.*s", out->len > 0 ? ", " : "", (int)n, at);
        list += len + (list[len] == ',');
    }
}

char *sg_proxy_upgrade(const struct sg_header *headers, size_t n)
{
    struct sg_buf protocols;
    if (!named_in_connection(headers, n, "Upgrade"))
        return NULL;
    sg_buf_init(&protocols, SG_PROXY_HEAD_MAX);
    for (size_t i = 0; i < n; i++)
        if (is(headers[i].name, "Upgrade"))
            add_protocols(&protocols, headers[i].value);
    char *value = protocols.len > 0 ? sg_buf_steal(&protocols, NULL) : NULL;
    sg_buf_finish(&protocols);
    return value;
}

/* ---- response ---- */

/* Gateways do as they are told here by whatever they forward to, such as answer with a file of their own. */
static bool commands_gateway(const char *name)
{
    static const char *const names[] = {"X-Sendfile",    "X-Sendfile2",    "X-Lighttpd-Send-File", "X-Lighttpd-Send-Tempfile",
                                        "X-Reproxy-URL", "X-Reproxy-File", NULL};
    bool accel = strncasecmp(name, "X-Accel-", 8) == 0 && strcasecmp(name, "X-Accel-Buffering") != 0;
    return accel || listed(name, names);
}

bool sg_proxy_field_passes(const struct sg_h1_head *head, size_t i, const struct sg_proxy_side *to)
{
    /* What would act on the origin of the API, which is not the service's. */
    static const char *const origin_wide[] = {"Set-Cookie", "Service-Worker-Allowed", "NEL",       "Report-To",
                                              "Accept-CH",  "Origin-Agent-Cluster",   "Set-Login", NULL};
    /* What reaches beyond an origin (Clear-Site-Data: cookies of the whole domain), is the gateway's to say, or ours. */
    static const char *const never[] = {"Set-Cookie2",  "Clear-Site-Data", "Alt-Svc", "Strict-Transport-Security",
                                        "X-Request-Id", NULL};
    const char *name = head->fields[i].name;
    if (next_hop_only(name, to->trailers) || ours(name) || commands_gateway(name) || listed(name, never) ||
        (!to->own_origin && listed(name, origin_wide)))
        return false;
    for (size_t k = 0; k < head->n_fields; k++)
        if (is(head->fields[k].name, "Connection") && sg_h1_list_has(head->fields[k].value, name))
            return false;
    return true;
}

bool sg_proxy_takes_trailers(const struct sg_header *headers, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (is(headers[i].name, "TE") && sg_h1_list_has(headers[i].value, "trailers"))
            return true;
    return false;
}

bool sg_proxy_trailer_passes(const char *name)
{
    static const char *const never[] = {
        "Host",          "Authorization", "X-API-Key",   "Cookie",        "Set-Cookie", "Set-Cookie2",   "Content-Type",
        "Content-Range", "Expect",        "Range",       "Cache-Control", "Location",   "Content-Encoding", "WWW-Authenticate",
        "Age",           "Date",          "Expires",     "Retry-After",   "Vary",       "Max-Forwards",  "X-Request-Id",
        "Pragma",        "Origin",        "Referer",     NULL};
    bool conditional = strncasecmp(name, "If-", 3) == 0;
    return !hop_by_hop(name) && !forwarding(name) && !ours(name) && !conditional && !listed(name, never);
}

/* The path of an absolute URL of the service itself ("" when there is none), or NULL. */
static const char *own_path(const char *value, uint16_t port)
{
    static const char *const hosts[] = {"127.0.0.1", "localhost", "[::1]"};
    if (strncasecmp(value, "http://", 7) != 0)
        return NULL;
    value += 7;
    for (size_t i = 0; i < SG_COUNT_OF(hosts); i++) {
        size_t n = strlen(hosts[i]);
        if (strncasecmp(value, hosts[i], n) != 0)
            continue;
        char with_port[8];
        int len = snprintf(with_port, sizeof with_port, ":%u", (unsigned)port);
        const char *rest = value + n;
        if (strncmp(rest, with_port, (size_t)len) == 0)
            rest += len;
        else if (port != 80 || *rest == ':')
            return NULL;
        return *rest == '\0' || strchr("/?#", *rest) != NULL ? rest : NULL;
    }
    return NULL;
}

char *sg_proxy_location(const char *value, const char *prefix, uint16_t port)
{
    size_t n = strlen(prefix);
    const char *path = own_path(value, port);
    if (path == NULL) {
        bool absolute_path = value[0] == '/' && value[1] != '/';
        /* A service that heeds X-Forwarded-Prefix has put it there itself. */
        bool already =
            strncmp(value, prefix, n) == 0 && (value[n] == '\0' || strchr("/?#", value[n]) != NULL);
        if (!absolute_path || already)
            return NULL;
        path = value;
    }
    return sg_xasprintf("%s%s%s", prefix, *path == '/' ? "" : "/", path);
}

char *sg_proxy_own_location(const char *value, const char *origin, uint16_t port)
{
    const char *path = own_path(value, port);
    return path != NULL ? sg_xasprintf("%s%s%s", origin, *path == '/' ? "" : "/", path) : NULL;
}
