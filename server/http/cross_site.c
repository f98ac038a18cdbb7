#include "http/cross_site.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <strings.h>

#define NAME_MAX_LEN 256

/* ---- host names ---- */

/* "host", "host:port", "[v6]:port": without the port, brackets and a last dot. False: longer than any name. */
static bool name_of(const char *host, size_t len, char out[NAME_MAX_LEN])
{
    if (len > 0 && host[0] == '[') {
        host++;
        len = strcspn(host, "]") < len - 1 ? strcspn(host, "]") : len - 1;
    } else {
        const char *colon = memchr(host, ':', len);
        len = colon ? (size_t)(colon - host) : len;
    }
    if (len > 0 && host[len - 1] == '.')
        len--;
    if (len >= NAME_MAX_LEN)
        return false;
    snprintf(out, NAME_MAX_LEN, "%.*s", (int)len, host);
    return true;
}

static bool is_address(const char *name)
{
    struct in6_addr any;
    return inet_pton(AF_INET, name, &any) == 1 || inet_pton(AF_INET6, name, &any) == 1;
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name);
    size_t k = strlen(end);
    return n > k && strcasecmp(name + n - k, end) == 0;
}

/* The host and port of a URL, or of an origin. NULL: it has none. */
static const char *authority(const char *url, size_t *ret_len)
{
    const char *at = strstr(url, "://");
    if (!at)
        return NULL;
    *ret_len = strcspn(at + 3, "/?#");
    return at + 3;
}

bool sg_cross_site_host_ok(const char *host, const char *public_url)
{
    char name[NAME_MAX_LEN], own[NAME_MAX_LEN];
    size_t len = 0;
    if (!name_of(host, strlen(host), name))
        return false;
    if (is_address(name) || !strchr(name, '.') || ends_with(name, ".localhost"))
        return true;
    const char *at = public_url ? authority(public_url, &len) : NULL;
    return at && name_of(at, len, own) && strcasecmp(name, own) == 0;
}

/* ---- origins ---- */

static size_t without_port(const char *at, size_t len, const char *port)
{
    size_t n = strlen(port);
    return len > n && strncmp(at + len - n, port, n) == 0 ? len - n : len;
}

/* Whether it was TLS to the browser is known in front of us only, so either scheme is the same place at its own port. */
static bool same_place(const char *url, const char *host, size_t host_len)
{
    size_t len;
    const char *at = authority(url, &len);
    if (!at)
        return false;
    const char *port = strncasecmp(url, "https:", 6) == 0 ? ":443" : ":80";
    len = without_port(at, len, port);
    host_len = without_port(host, host_len, port);
    return len == host_len && strncasecmp(at, host, len) == 0;
}

static bool own_origin(const char *origin, const char *host, const char *public_url)
{
    size_t len = 0;
    const char *at = public_url ? authority(public_url, &len) : NULL;
    return (host && same_place(origin, host, strlen(host))) || (at && same_place(origin, at, len));
}

/* ---- the request ---- */

static const char *last_of(const struct sg_head *head, const char *name)
{
    const char *v = NULL;
    for (size_t i = 0; i < head->n_headers; i++)
        if (strcasecmp(head->headers[i].name, name) == 0)
            v = head->headers[i].value;
    return v;
}

/* A link that somebody follows: it reads, and the page it comes from does not see what. */
static bool is_visit(const struct sg_head *head)
{
    const char *mode = last_of(head, "Sec-Fetch-Mode");
    const char *dest = last_of(head, "Sec-Fetch-Dest");
    return (sg_streq(head->method, "GET") || sg_streq(head->method, "HEAD")) && mode && sg_streq(mode, "navigate") && dest &&
           sg_streq(dest, "document");
}

static int refuse(struct sg_error *err, const char *field)
{
    return sg_error_field(err, SG_CROSS_ORIGIN, field,
                          "this server asks for no token, so it takes no requests that web pages of other origins make; configure auth.tokens");
}

bool sg_cross_site_own(const struct sg_head *head, const char *public_url)
{
    const char *host = last_of(head, "Host");
    for (size_t i = 0; i < head->n_headers; i++)
        if (strcasecmp(head->headers[i].name, "Origin") == 0 && !own_origin(head->headers[i].value, host, public_url))
            return false;
    return true;
}

int sg_cross_site_check(const struct sg_head *head, const char *public_url, struct sg_error *err)
{
    const char *host = last_of(head, "Host");
    const char *site = last_of(head, "Sec-Fetch-Site");
    if (host && !sg_cross_site_host_ok(host, public_url))
        return sg_error_field(err, SG_MISDIRECTED_REQUEST, "Host",
                              "this server asks for no token, so it is not reached by that name; use localhost or an address, or configure "
                              "server.public_url or auth.tokens");
    if (!sg_cross_site_own(head, public_url))
        return refuse(err, "Origin");
    bool other = site && !sg_streq(site, "same-origin") && !sg_streq(site, "none");
    return other && !is_visit(head) ? refuse(err, "Sec-Fetch-Site") : 0;
}
