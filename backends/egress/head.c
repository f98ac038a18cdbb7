#include "backends/egress/head.h"

#include <string.h>
#include <strings.h>

#include "base/str.h"

#define HEADERS_MAX 128U

struct field {
    const char *name, *value;
    size_t name_len, value_len;
};

struct reading {
    const char *p, *end;
    const char *method, *target;
    char minor; /* of the version */
    size_t method_len, target_len;
    struct field fields[HEADERS_MAX];
    size_t n;
    const char *why;
};

ssize_t sg_egress_head_end(const char *data, size_t len, size_t *scanned)
{
    size_t i = *scanned;
    for (; i < len; i++) {
        if (data[i] == '\0' || (data[i] == '\n' && (i == 0 || data[i - 1] != '\r'))) {
            return -1;
        }
        if (data[i] == '\n' && i >= 3 && data[i - 2] == '\n') {
            *scanned = i;
            return (ssize_t)i + 1;
        }
    }
    *scanned = i;
    return 0;
}

/* ---- lines ---- */

static bool is_token(const char *s, size_t n)
{
    static const char marks[] = "!#$%&'*+-.^_`|~";
    for (size_t i = 0; i < n; i++) {
        bool alnum = (s[i] >= 'a' && s[i] <= 'z') || (s[i] >= 'A' && s[i] <= 'Z') || (s[i] >= '0' && s[i] <= '9');
        if (!alnum && (s[i] == '\0' || strchr(marks, s[i]) == NULL)) {
            return false;
        }
    }
    return n > 0;
}

static bool is_field(const struct field *f, const char *name)
{
    return strlen(name) == f->name_len && strncasecmp(f->name, name, f->name_len) == 0;
}

static int wrong(struct reading *r, const char *why)
{
    r->why = why;
    return -1;
}

/* METHOD TARGET HTTP/1.x, one blank each. */
static int read_request_line(struct reading *r)
{
    const char *eol = memchr(r->p, '\r', (size_t)(r->end - r->p));
    const char *blank = eol != NULL ? memchr(r->p, ' ', (size_t)(eol - r->p)) : NULL;
    const char *second = blank != NULL ? memchr(blank + 1, ' ', (size_t)(eol - blank) - 1) : NULL;
    if (second == NULL || eol[1] != '\n') {
        return wrong(r, "the request line is not METHOD TARGET HTTP/1.1");
    }
    r->method = r->p;
    r->method_len = (size_t)(blank - r->p);
    r->target = blank + 1;
    r->target_len = (size_t)(second - blank) - 1;
    bool version = eol - second == 9 && memcmp(second + 1, "HTTP/1.", 7) == 0 && (second[8] == '0' || second[8] == '1');
    if (!is_token(r->method, r->method_len) || r->target_len == 0 || !version) {
        return wrong(r, "the request line is not METHOD TARGET HTTP/1.1");
    }
    for (size_t i = 0; i < r->target_len; i++) {
        if (r->target[i] <= ' ' || r->target[i] > '~') {
            return wrong(r, "the target has characters that do not belong into one");
        }
    }
    r->minor = second[8];
    r->p = eol + 2;
    return 0;
}

static int read_field(struct reading *r)
{
    const char *eol = memchr(r->p, '\r', (size_t)(r->end - r->p));
    const char *colon = eol != NULL ? memchr(r->p, ':', (size_t)(eol - r->p)) : NULL;
    if (colon == NULL || eol[1] != '\n' || !is_token(r->p, (size_t)(colon - r->p))) {
        return wrong(r, "a header line is not NAME: VALUE");
    }
    if (r->n == HEADERS_MAX) {
        return wrong(r, "there are more than 128 header lines");
    }
    struct field *f = &r->fields[r->n++];
    *f = (struct field){.name = r->p, .name_len = (size_t)(colon - r->p), .value = colon + 1};
    f->value_len = (size_t)(eol - f->value);
    while (f->value_len > 0 && (*f->value == ' ' || *f->value == '\t')) {
        f->value++;
        f->value_len--;
    }
    while (f->value_len > 0 && (f->value[f->value_len - 1] == ' ' || f->value[f->value_len - 1] == '\t')) {
        f->value_len--;
    }
    for (size_t i = 0; i < f->value_len; i++) {
        unsigned char c = (unsigned char)f->value[i];
        if ((c < ' ' && c != '\t') || c == 0x7f) {
            return wrong(r, "a header has control characters");
        }
    }
    r->p = eol + 2;
    return 0;
}

/* ---- what they mean together ---- */

static int read_length(struct reading *r, const struct field *f, struct sg_egress_head *h)
{
    char digits[20];
    int64_t n;
    if (h->body != SG_EGRESS_BODY_NONE) {
        return wrong(r, "the length of the body is said more than once");
    }
    if (f->value_len == 0 || f->value_len >= sizeof digits || strspn(f->value, "0123456789") < f->value_len) {
        return wrong(r, "Content-Length is not a number");
    }
    memcpy(digits, f->value, f->value_len);
    digits[f->value_len] = '\0';
    if (!sg_parse_int(digits, 0, INT64_MAX, &n)) {
        return wrong(r, "Content-Length is not a number");
    }
    h->body = SG_EGRESS_BODY_LENGTH;
    h->length = (uint64_t)n;
    return 0;
}

static int read_framing(struct reading *r, struct sg_egress_head *h)
{
    unsigned hosts = 0;
    for (size_t i = 0; i < r->n; i++) {
        const struct field *f = &r->fields[i];
        if (is_field(f, "host") && ++hosts > 1) {
            return wrong(r, "there is more than one Host");
        }
        if (is_field(f, "content-length") && read_length(r, f, h) < 0) {
            return -1;
        }
        if (is_field(f, "transfer-encoding")) {
            if (h->body != SG_EGRESS_BODY_NONE) {
                return wrong(r, "the length of the body is said more than once");
            }
            if (f->value_len != 7 || strncasecmp(f->value, "chunked", 7) != 0) {
                return wrong(r, "Transfer-Encoding is not chunked");
            }
            if (r->minor == '0') {
                return wrong(r, "HTTP/1.0 has no Transfer-Encoding");
            }
            h->body = SG_EGRESS_BODY_CHUNKED;
        }
    }
    return 0;
}

static int read_authority(struct reading *r, const char *text, size_t len, struct sg_egress_head *h)
{
    if (memchr(text, '@', len) != NULL) {
        return wrong(r, "the target has a user in front of the host");
    }
    if (!sg_host_port_parse(text, len, &h->host, &h->port)) {
        return wrong(r, "the target's host is neither a name nor an address in its usual form");
    }
    return 0;
}

/* http://HOST[:PORT][/...]; *path: what goes to the server, "" for "/". */
static int read_absolute(struct reading *r, struct sg_egress_head *h, const char **path, size_t *path_len)
{
    if (r->target_len >= 8 && strncasecmp(r->target, "https://", 8) == 0) {
        return wrong(r, "https goes through CONNECT");
    }
    if (r->target_len < 8 || strncasecmp(r->target, "http://", 7) != 0) {
        return wrong(r, "this is a proxy: the target is http://HOST/..., or CONNECT HOST:PORT");
    }
    const char *host = r->target + 7;
    size_t rest = r->target_len - 7, n = 0;
    while (n < rest && host[n] != '/' && host[n] != '?' && host[n] != '#') {
        n++;
    }
    if (memchr(host, '#', rest) != NULL) {
        return wrong(r, "the target has characters that do not belong into one");
    }
    *path = host + n;
    *path_len = rest - n;
    if (read_authority(r, host, n, h) < 0) {
        return -1;
    }
    h->port = h->port != 0 ? h->port : 80;
    return 0;
}

/* Is the field named in a Connection header, or one that is between client and proxy by itself? */
static bool is_hop(const struct reading *r, const struct field *f)
{
    static const char *const hop[] = {"connection", "proxy-connection", "keep-alive", "te", "upgrade", "proxy-authorization",
                                      "proxy-authenticate", "host"};
    for (size_t i = 0; i < SG_COUNT_OF(hop); i++) {
        if (is_field(f, hop[i])) {
            return true;
        }
    }
    if (is_field(f, "content-length") || is_field(f, "transfer-encoding")) {
        return false;
    }
    for (size_t i = 0; i < r->n; i++) {
        const struct field *c = &r->fields[i];
        if (!is_field(c, "connection")) {
            continue;
        }
        for (size_t at = 0; at < c->value_len;) {
            size_t n = 0;
            while (at + n < c->value_len && c->value[at + n] != ',' && c->value[at + n] != ' ' && c->value[at + n] != '\t') {
                n++;
            }
            if (n == f->name_len && strncasecmp(c->value + at, f->name, n) == 0) {
                return true;
            }
            at += n + 1;
        }
    }
    return false;
}

static int write_head(const struct reading *r, const struct sg_egress_head *h, const char *path, size_t path_len, struct sg_buf *out)
{
    char host[SG_HOST_MAX + 8];
    sg_host_port_format(&h->host, h->port, host);
    if (h->port == 80) {
        host[strlen(host) - 3] = '\0';
    }
    bool slash = path_len == 0 || *path != '/';
    int bad = sg_buf_add(out, r->method, r->method_len);
    bad |= sg_buf_add(out, slash ? " /" : " ", slash ? 2 : 1);
    bad |= sg_buf_add(out, path, path_len);
    bad |= sg_buf_addf(out, " HTTP/1.%c\r\nHost: %s\r\n", r->minor, host); /* as the client understands */
    for (size_t i = 0; i < r->n; i++) {
        const struct field *f = &r->fields[i];
        if (!is_hop(r, f)) {
            bad |= sg_buf_addf(out, "%.*s: %.*s\r\n", (int)f->name_len, f->name, (int)f->value_len, f->value);
        }
    }
    return bad | sg_buf_add(out, "Connection: close\r\n\r\n", 21);
}

static int interpret(struct reading *r, struct sg_egress_head *ret, struct sg_buf *out)
{
    const char *path = "";
    size_t path_len = 0;
    if (read_framing(r, ret) < 0) {
        return -1;
    }
    ret->connect = r->method_len == 7 && memcmp(r->method, "CONNECT", 7) == 0;
    if (!ret->connect) {
        if (read_absolute(r, ret, &path, &path_len) < 0) {
            return -1;
        }
        return write_head(r, ret, path, path_len, out) < 0 ? wrong(r, "the head is too large") : 0;
    }
    if (ret->body != SG_EGRESS_BODY_NONE) {
        return wrong(r, "a CONNECT has no body");
    }
    if (read_authority(r, r->target, r->target_len, ret) < 0) {
        return -1;
    }
    return ret->port == 0 ? wrong(r, "CONNECT needs HOST:PORT") : 0;
}

int sg_egress_head_parse(const char *data, size_t len, struct sg_egress_head *ret, struct sg_buf *out, const char **why)
{
    struct reading r = {.p = data, .end = data + len - 2}; /* without the empty line */
    *ret = (struct sg_egress_head){.body = SG_EGRESS_BODY_NONE};
    int rc = read_request_line(&r);
    while (rc == 0 && r.p < r.end) {
        rc = read_field(&r);
    }
    rc = rc == 0 ? interpret(&r, ret, out) : rc;
    *why = r.why;
    return rc;
}

/* ---- chunked bodies ---- */

enum { SIZE, EXTENSION, SIZE_LF, DATA, DATA_CR, DATA_LF, TRAILER, TRAILER_LF, END };

static int hex(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* One byte that is not data; the next state, or -1. */
static int step(struct sg_egress_chunks *c, char byte)
{
    switch (c->state) {
    case SIZE:
        if (hex(byte) >= 0 && c->digits < 15) {
            c->left = c->left * 16 + (uint64_t)hex(byte);
            c->digits++;
            return SIZE;
        }
        if (c->digits == 0) {
            return -1;
        }
        return byte == '\r' ? SIZE_LF : byte == ';' || byte == ' ' || byte == '\t' ? EXTENSION : -1;
    case EXTENSION:
        return byte == '\r' ? SIZE_LF : byte == '\n' || ++c->line > 1024 ? -1 : EXTENSION;
    case SIZE_LF:
        c->digits = c->line = 0;
        return byte != '\n' ? -1 : c->left > 0 ? DATA : TRAILER;
    case DATA_CR:
        return byte == '\r' ? DATA_LF : -1;
    case DATA_LF:
        return byte == '\n' ? SIZE : -1;
    case TRAILER: /* digits: characters of this line, line: of all of them */
        if (byte == '\r') {
            return TRAILER_LF;
        }
        c->digits++;
        return byte == '\n' || ++c->line > 4096 ? -1 : TRAILER;
    default: /* TRAILER_LF */
        if (byte != '\n') {
            return -1;
        }
        bool last = c->digits == 0;
        c->digits = 0;
        return last ? END : TRAILER;
    }
}

ssize_t sg_egress_chunks_feed(struct sg_egress_chunks *c, const char *data, size_t len, bool *done)
{
    size_t i = 0;
    while (i < len && c->state != END) {
        if (c->state == DATA) {
            size_t n = len - i < c->left ? len - i : (size_t)c->left;
            i += n;
            c->left -= n;
            c->state = c->left == 0 ? DATA_CR : DATA;
            continue;
        }
        int next = step(c, data[i]);
        if (next < 0) {
            return -1;
        }
        c->state = next;
        i++;
    }
    *done = c->state == END;
    return (ssize_t)i;
}
