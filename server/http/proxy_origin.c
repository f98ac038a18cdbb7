#include "http/proxy_origin.h"

#include <stdio.h>
#include <strings.h>

#include "base/buf.h"
#include "base/str.h"

#define LEASE_PREFIX "lease_"

/* ---- host names ---- */

/* The length of a host without its port and the dot of the root. */
static size_t name_len(const char *host)
{
    size_t n = *host == '[' ? strlen(host) : strcspn(host, ":");
    return n > 0 && host[n - 1] == '.' ? n - 1 : n;
}

bool sg_origin_covers(const char *host, const char *domain)
{
    size_t n = name_len(host);
    size_t d = strlen(domain);
    if (n < d || strncasecmp(host + n - d, domain, d) != 0)
        return false;
    return n == d || host[n - d - 1] == '.';
}

static void lower(char *s)
{
    for (; *s != '\0'; s++)
        if (*s >= 'A' && *s <= 'Z')
            *s = (char)(*s - 'A' + 'a');
}

int sg_origin_parse(const char *host, const char *domain, uint16_t *ret_port, char lease_id[SG_ID_MAX],
                    struct sg_error *err)
{
    size_t below = name_len(host) - strlen(domain);
    size_t digits = strspn(host, "0123456789");
    char port_text[8];
    int64_t port;
    /* PORT "-" ID "." DOMAIN */
    bool shaped = sg_origin_covers(host, domain) && digits > 0 && digits < 6 && host[0] != '0' &&
                  host[digits] == '-' && below > digits + 2 && below - digits - 2 < SG_ID_MAX - sizeof LEASE_PREFIX;
    if (!shaped)
        return sg_error_set(err, SG_NOT_FOUND, "the host does not name a port of a lease");
    snprintf(port_text, sizeof port_text, "%.*s", (int)digits, host);
    snprintf(lease_id, SG_ID_MAX, LEASE_PREFIX "%.*s", (int)(below - digits - 2), host + digits + 1);
    lower(lease_id);
    if (!sg_parse_int(port_text, 1, 65535, &port) || !sg_id_valid("lease", lease_id))
        return sg_error_set(err, SG_NOT_FOUND, "the host does not name a port of a lease");
    *ret_port = (uint16_t)port;
    return 0;
}

void sg_origin_label(uint16_t port, const char *lease_id, char out[SG_ORIGIN_LABEL_MAX])
{
    const char *bare = strncmp(lease_id, LEASE_PREFIX, strlen(LEASE_PREFIX)) == 0 ? lease_id + strlen(LEASE_PREFIX) : lease_id;
    snprintf(out, SG_ORIGIN_LABEL_MAX, "%u-%s", (unsigned)port, bare);
}

/* ---- cookies ---- */

struct piece {
    const char *at;
    size_t len;
};

/* The next piece of a list separated by `by`, without the blanks around it. */
static bool next_piece(const char **p, char by, struct piece *ret)
{
    if (*p == NULL)
        return false;
    const char *end = strchr(*p, by);
    const char *at = *p;
    size_t len = end != NULL ? (size_t)(end - at) : strlen(at);
    *p = end != NULL ? end + 1 : NULL;
    for (; len > 0 && (*at == ' ' || *at == '\t'); at++)
        len--;
    while (len > 0 && (at[len - 1] == ' ' || at[len - 1] == '\t'))
        len--;
    *ret = (struct piece){at, len};
    return true;
}

static bool named(struct piece c, const char *name)
{
    size_t n = strlen(name);
    return c.len >= n && strncasecmp(c.at, name, n) == 0 && (c.len == n || c.at[n] == '=' || c.at[n] == ' ' || c.at[n] == '\t');
}

/* Also where browsers are said to take a value for a name: "=NAME=value". */
static bool is_ours(struct piece c)
{
    while (c.len > 0 && (*c.at == '=' || *c.at == ' ' || *c.at == '\t')) {
        c.at++;
        c.len--;
    }
    return named(c, SG_ENDPOINT_COOKIE);
}

char *sg_origin_cookie(const struct sg_header *headers, size_t n)
{
    const size_t skip = strlen(SG_ENDPOINT_COOKIE "=");
    for (size_t i = 0; i < n; i++) {
        const char *p = strcasecmp(headers[i].name, "Cookie") == 0 ? headers[i].value : NULL;
        for (struct piece c; next_piece(&p, ';', &c);)
            if (c.len > skip && strncmp(c.at, SG_ENDPOINT_COOKIE "=", skip) == 0)
                return sg_xstrndup(c.at + skip, c.len - skip);
    }
    return NULL;
}

/* The pieces that stay, joined by `with`. */
static char *join(const char *value, char by, const char *with, bool (*stays)(struct piece c, size_t nth))
{
    struct sg_buf out;
    const char *p = value;
    size_t nth = 0;
    size_t kept = 0;
    sg_buf_init(&out, strlen(value) * 2 + 16);
    for (struct piece c; next_piece(&p, by, &c); nth++)
        if (stays(c, nth) && sg_buf_addf(&out, "%s%.*s", kept++ > 0 ? with : "", (int)c.len, c.at) < 0)
            break;
    char *text = out.len > 0 ? sg_buf_steal(&out, NULL) : sg_xstrdup("");
    sg_buf_finish(&out);
    return text;
}

static bool not_our_cookie(struct piece c, size_t nth)
{
    (void)nth;
    return !is_ours(c);
}

char *sg_origin_cut_cookie(const char *value)
{
    return join(value, ';', "; ", not_our_cookie);
}

static bool not_domain(struct piece c, size_t nth)
{
    return nth == 0 || !named(c, "Domain");
}

char *sg_origin_set_cookie(const char *value)
{
    const char *p = value;
    struct piece first;
    if (!next_piece(&p, ';', &first) || is_ours(first))
        return NULL;
    return join(value, ';', "; ", not_domain);
}

/* ---- the token in a query ---- */

static bool not_our_parameter(struct piece c, size_t nth)
{
    (void)nth;
    const size_t n = strlen(SG_ENDPOINT_QUERY "=");
    return c.len < n || memcmp(c.at, SG_ENDPOINT_QUERY "=", n) != 0;
}

bool sg_origin_cut_token(const char *target, char **ret_token, char **ret_target)
{
    const char *query = strchr(target, '?');
    const char *p = query != NULL ? query + 1 : NULL;
    char *token = NULL;
    for (struct piece c; token == NULL && next_piece(&p, '&', &c);)
        if (!not_our_parameter(c, 0))
            token = sg_xstrndup(c.at + strlen(SG_ENDPOINT_QUERY "="), c.len - strlen(SG_ENDPOINT_QUERY "="));
    if (token == NULL)
        return false;
    sg_cleanup(sg_free_p) char *rest = join(query + 1, '&', "&", not_our_parameter);
    *ret_token = token;
    *ret_target = sg_xasprintf("%.*s%s%s", (int)(query - target), target, *rest != '\0' ? "?" : "", rest);
    return true;
}

/* ---- who made the browser ask ---- */

static bool of_lease(const char *url, const char *domain, const char *lease_id)
{
    char other[SG_ID_MAX];
    char host[300];
    uint16_t port;
    const char *at = strstr(url, "://");
    if (at == NULL)
        return false;
    snprintf(host, sizeof host, "%.*s", (int)strcspn(at + 3, "/?#"), at + 3);
    return sg_origin_parse(host, domain, &port, other, NULL) == 0 && sg_streq(other, lease_id);
}

bool sg_origin_page_may(const struct sg_request *r, const char *domain, const char *lease_id)
{
    const char *origin = sg_req_header(r, "Origin");
    const char *site = sg_req_header(r, "Sec-Fetch-Site");
    const char *mode = sg_req_header(r, "Sec-Fetch-Mode");
    if (origin != NULL)
        return of_lease(origin, domain, lease_id);
    if (site == NULL || sg_streq(site, "same-origin") || sg_streq(site, "none"))
        return true;
    if (mode != NULL && sg_streq(mode, "navigate"))
        return true;
    const char *referer = sg_req_header(r, "Referer");
    return referer != NULL && of_lease(referer, domain, lease_id);
}
