#include <criterion/criterion.h>

#include "http/cross_site.h"

#define URL "https://api.example:8443/sandgate"

Test(cross_site, hosts_a_rebound_page_cannot_have)
{
    static const char *const good[] = {"localhost",  "localhost:8080", "LOCALHOST",   "localhost.",      "a.localhost:1", "8000-x.sbx.localhost",
                                       "127.0.0.1",  "127.0.0.1:80",   "127.1.2.3",   "10.0.0.7:8080",   "[::1]",         "[::1]:8080",
                                       "[fe80::1]",  "sandgate",       "sandgate:80", "api.example:8443", "API.Example",   "api.example."};
    static const char *const bad[] = {"evil.example",      "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "evil.localhost.example",
                                      "xlocalhost.evil.x", "127.0.0.1.nip.io",  "127.1",                  "0x7f.1",                 "x.api.example",
                                      "api.example.evil",  "a.b"};
    for (size_t i = 0; i < SG_COUNT_OF(good); i++)
        cr_expect(sg_cross_site_host_ok(good[i], URL), "%s", good[i]);
    for (size_t i = 0; i < SG_COUNT_OF(bad); i++)
        cr_expect_not(sg_cross_site_host_ok(bad[i], URL), "%s", bad[i]);
    cr_expect_not(sg_cross_site_host_ok("api.example", NULL));
    cr_expect(sg_cross_site_host_ok("", NULL)); /* malformed, which is another check's affair */
}

struct ask {
    const char *method, *host, *origin, *site, *mode, *dest;
};

static enum sg_code ask(const struct ask *a, const char *url)
{
    struct sg_header h[8];
    struct sg_error err = {0};
    size_t n = 0;
    if (a->host)
        h[n++] = (struct sg_header){"Host", a->host};
    if (a->origin)
        h[n++] = (struct sg_header){"origin", a->origin};
    if (a->site)
        h[n++] = (struct sg_header){"Sec-Fetch-Site", a->site};
    if (a->mode)
        h[n++] = (struct sg_header){"Sec-Fetch-Mode", a->mode};
    if (a->dest)
        h[n++] = (struct sg_header){"Sec-Fetch-Dest", a->dest};
    struct sg_head head = {a->method, "HTTP/1.1", "/leases", h, n};
    int rc = sg_cross_site_check(&head, url, &err);
    cr_expect_eq(rc, err.code == SG_OK ? 0 : -1);
    return err.code;
}

Test(cross_site, who_made_the_browser_ask)
{
    static const struct {
        struct ask a;
        enum sg_code code;
    } rows[] = {
        {{"POST", "localhost:8080", NULL, NULL, NULL, NULL}, SG_OK},
        {{"POST", NULL, NULL, NULL, NULL, NULL}, SG_OK},
        {{"POST", "localhost:8080", "http://localhost:8080", "same-origin", NULL, NULL}, SG_OK},
        {{"POST", "localhost", "http://localhost:80", NULL, NULL, NULL}, SG_OK},
        {{"POST", "localhost:443", "https://LOCALHOST", NULL, NULL, NULL}, SG_OK},
        {{"POST", "127.0.0.1:8080", "https://api.example:8443", "same-origin", NULL, NULL}, SG_OK},
        {{"GET", "localhost:8080", NULL, "none", "navigate", "document"}, SG_OK},
        {{"GET", "localhost:8080", NULL, "cross-site", "navigate", "document"}, SG_OK},
        {{"POST", "localhost:8080", "http://localhost:3000", "same-site", NULL, NULL}, SG_CROSS_ORIGIN},
        {{"POST", "localhost:8080", "http://localhost", NULL, NULL, NULL}, SG_CROSS_ORIGIN},
        {{"POST", "localhost:8080", "http://127.0.0.1:8080", NULL, NULL, NULL}, SG_CROSS_ORIGIN},
        {{"POST", "localhost:8080", "http://evil.example", NULL, NULL, NULL}, SG_CROSS_ORIGIN},
        {{"POST", "localhost:8080", "http://localhost:8080.evil.example", NULL, NULL, NULL}, SG_CROSS_ORIGIN},
        {{"DELETE", "localhost:8080", "null", NULL, NULL, NULL}, SG_CROSS_ORIGIN},
        {{"POST", "localhost:8080", "", NULL, NULL, NULL}, SG_CROSS_ORIGIN},
        {{"GET", "localhost:8080", "http://evil.example", "cross-site", "cors", "empty"}, SG_CROSS_ORIGIN},
        {{"GET", "localhost:8080", NULL, "cross-site", "no-cors", "image"}, SG_CROSS_ORIGIN},
        {{"GET", "localhost:8080", NULL, "cross-site", "navigate", "iframe"}, SG_CROSS_ORIGIN},
        {{"POST", "localhost:8080", NULL, "cross-site", "navigate", "document"}, SG_CROSS_ORIGIN},
        {{"PUT", "localhost:8080", NULL, "same-site", NULL, NULL}, SG_CROSS_ORIGIN},
        {{"PUT", "localhost:8080", NULL, "who-knows", NULL, NULL}, SG_CROSS_ORIGIN},
        {{"GET", "evil.example:8080", NULL, NULL, NULL, NULL}, SG_MISDIRECTED_REQUEST},
        {{"GET", "evil.example:8080", "http://evil.example:8080", "same-origin", NULL, NULL}, SG_MISDIRECTED_REQUEST},
    };
    for (size_t i = 0; i < SG_COUNT_OF(rows); i++)
        cr_expect_eq(ask(&rows[i].a, URL), rows[i].code, "row %zu", i);
    cr_expect_eq(ask(&(struct ask){.method = "POST", .host = "127.0.0.1:8080", .origin = "https://api.example:8443"}, NULL), SG_CROSS_ORIGIN);
}

Test(cross_site, one_good_origin_does_not_excuse_another)
{
    struct sg_header h[] = {{"Host", "localhost"}, {"Origin", "http://evil.example"}, {"Origin", "http://localhost"}};
    struct sg_head head = {"POST", "HTTP/1.1", "/leases", h, 3};
    struct sg_error err = {0};
    cr_expect_eq(sg_cross_site_check(&head, NULL, &err), -1);
    cr_expect_str_eq(err.field, "Origin");
}
