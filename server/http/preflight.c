#include "http/preflight.h"

#include <strings.h>

bool sg_token_ok(const char *s, size_t len)
{
    static const char extra[] = "!#$%&'*+-.^_`|~";
    for (size_t i = 0; i < len; i++) {
        char c = s[i];
        bool alnum = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!alnum && (c == '\0' || !strchr(extra, c)))
            return false;
    }
    return len > 0;
}

bool sg_header_value_ok(const char *value)
{
    for (const unsigned char *p = (const unsigned char *)value; *p; p++)
        if ((*p < 0x20 && *p != '\t') || *p == 0x7f)
            return false;
    return true;
}

static bool host_ok(const char *s)
{
    size_t len = 0;
    for (; s[len]; len++) {
        char c = s[len];
        bool alnum = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!alnum && !strchr(".-_~!$&'()*+;=:[]", c))
            return false;
    }
    return len > 0 && len <= 261;
}

/* Headers that must be there once at most. A list in one of the others is the reader's affair. */
enum unique {
    U_HOST,
    U_LENGTH,
    U_TE,
    U_AUTHORIZATION,
    U_API_KEY,
    U_TYPE,
    U_IDEMPOTENCY,
    U_EXPECT,
    U_RANGE,
    U_WS_KEY,
    U_WS_VERSION,
    U_COUNT
};

static const char *const unique_names[U_COUNT] = {
    [U_HOST] = "Host",
    [U_LENGTH] = "Content-Length",
    [U_TE] = "Transfer-Encoding",
    [U_AUTHORIZATION] = "Authorization",
    [U_API_KEY] = "X-API-Key",
    [U_TYPE] = "Content-Type",
    [U_IDEMPOTENCY] = "Idempotency-Key",
    [U_EXPECT] = "Expect",
    [U_RANGE] = "Range",
    [U_WS_KEY] = "Sec-WebSocket-Key",
    [U_WS_VERSION] = "Sec-WebSocket-Version",
};

static enum unique unique_of(const char *name)
{
    /* Most headers are none of these: the first letter tells. */
    if (!strchr("hctaxiersHCTAXIERS", name[0]))
        return U_COUNT;
    for (unsigned i = 0; i < U_COUNT; i++)
        if (strcasecmp(name, unique_names[i]) == 0)
            return (enum unique)i;
    return U_COUNT;
}

static int bad(struct sg_error *err, const char *field, const char *what)
{
    return sg_error_field(err, SG_INVALID_REQUEST, field, "%s", what);
}

static int collect(const struct sg_head *head, const char *found[U_COUNT], struct sg_error *err)
{
    if (head->n_headers > SG_HEADERS_MAX)
        return sg_error_set(err, SG_HEADERS_TOO_LARGE, "more than %d header lines", SG_HEADERS_MAX);
    size_t bytes = 0;
    for (size_t i = 0; i < head->n_headers; i++) {
        const struct sg_header *h = &head->headers[i];
        bytes += strlen(h->name) + strlen(h->value);
        if (bytes > SG_HEADERS_BYTES_MAX)
            return sg_error_set(err, SG_HEADERS_TOO_LARGE, "more than %zu bytes of header fields", SG_HEADERS_BYTES_MAX);
        if (!sg_token_ok(h->name, strlen(h->name)))
            return sg_error_set(err, SG_INVALID_REQUEST, "header name is not a token");
        if (!sg_header_value_ok(h->value))
            return bad(err, h->name, "control character in header value");
        enum unique u = unique_of(h->name);
        if (u == U_COUNT)
            continue;
        if (found[u])
            return bad(err, unique_names[u], "header sent more than once");
        found[u] = h->value;
    }
    return 0;
}

static int parse_length(const char *s, uint64_t *ret, struct sg_error *err)
{
    uint64_t v = 0;
    if (!*s)
        return bad(err, "Content-Length", "empty Content-Length");
    for (; *s; s++) {
        if (*s < '0' || *s > '9')
            return bad(err, "Content-Length", "Content-Length is not a decimal number");
        uint64_t digit = (uint64_t)(*s - '0');
        if (v > ((uint64_t)INT64_MAX - digit) / 10)
            return bad(err, "Content-Length", "Content-Length is too large");
        v = v * 10 + digit;
    }
    *ret = v;
    return 0;
}

static int framing(const char *const found[U_COUNT], bool http10, struct sg_framing *f, struct sg_error *err)
{
    const char *te = found[U_TE];
    if (te) {
        if (found[U_LENGTH])
            return bad(err, "Transfer-Encoding", "both Transfer-Encoding and Content-Length");
        if (http10)
            return bad(err, "Transfer-Encoding", "Transfer-Encoding in HTTP/1.0");
        if (strcasecmp(te, "chunked") != 0)
            return sg_error_field(err, SG_NOT_IMPLEMENTED, "Transfer-Encoding",
                                  "only the transfer coding \"chunked\" is supported");
        f->chunked = true;
    }
    if (found[U_LENGTH]) {
        if (parse_length(found[U_LENGTH], &f->length, err) < 0)
            return -1;
        f->has_length = true;
    }
    if (found[U_EXPECT]) {
        if (strcasecmp(found[U_EXPECT], "100-continue") != 0)
            return sg_error_field(err, SG_EXPECTATION_FAILED, "Expect", "only 100-continue can be expected");
        f->expect_continue = !http10 && (f->chunked || f->length > 0);
    }
    return 0;
}

int sg_preflight_head(const struct sg_head *head, struct sg_framing *ret, struct sg_error *err)
{
    const char *found[U_COUNT] = {NULL};
    *ret = (struct sg_framing){0};
    bool http10 = sg_streq(head->version, "HTTP/1.0");
    if (!http10 && strncmp(head->version, "HTTP/1.", 7) != 0)
        return bad(err, "", "not an HTTP/1 request");
    if (!sg_token_ok(head->method, strlen(head->method)) || strlen(head->method) > 32)
        return bad(err, "", "the method is not a token");
    if (collect(head, found, err) < 0)
        return -1;
    if (found[U_HOST] ? !host_ok(found[U_HOST]) : !http10)
        return bad(err, "Host", found[U_HOST] ? "malformed Host" : "Host is missing");
    return framing(found, http10, ret, err);
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

static int bad_target(struct sg_error *err, const char *what)
{
    return sg_error_set(err, SG_INVALID_REQUEST, "request target: %s", what);
}

/* What is odd about the character at s: an escape that means nothing to us, or a byte that should have been escaped. NULL: nothing. */
static const char *odd_at(const char *s)
{
    if ((unsigned char)*s > 0x7f)
        return "character that must be escaped";
    if (*s != '%')
        return NULL;
    int hi = hex_value(s[1]);
    int lo = hi < 0 ? -1 : hex_value(s[2]);
    if (lo < 0)
        return "malformed escape";
    return hi == 0 && lo == 0 ? "escaped NUL" : NULL;
}

int sg_preflight_odd(const char *target, size_t at, struct sg_error *err)
{
    return bad_target(err, odd_at(target + at));
}

int sg_preflight_target(const char *method, const char *target, size_t *ret_path_len, size_t *ret_odd, struct sg_error *err)
{
    size_t path_len = SIZE_MAX;
    size_t i = 0;
    *ret_odd = SIZE_MAX;
    if (sg_streq(target, "*") && sg_streq(method, "OPTIONS")) {
        *ret_path_len = 1;
        return 0;
    }
    if (target[0] != '/')
        return bad_target(err, "must begin with '/'");
    for (; target[i]; i++) {
        unsigned char c = (unsigned char)target[i];
        if (i >= SG_TARGET_MAX)
            return sg_error_set(err, SG_URI_TOO_LONG, "request target is longer than %d bytes", SG_TARGET_MAX);
        if (c <= 0x20 || c == 0x7f || c == '#')
            return bad_target(err, "character that must be escaped");
        if (c == '?' && path_len == SIZE_MAX)
            path_len = i;
        if ((c == '%' || c > 0x7f) && *ret_odd == SIZE_MAX && odd_at(target + i) != NULL)
            *ret_odd = i;
    }
    *ret_path_len = path_len == SIZE_MAX ? i : path_len;
    return 0;
}
