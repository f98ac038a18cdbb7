#include <criterion/criterion.h>

#include "http/proxy_head.h"
#include "http/proxy_origin.h"

#define BARE "0123456789abcdefghjkmnpqrstvwxyz"
#define LEASE "lease_" BARE

Test(proxy_origin, hosts_below_a_domain)
{
    cr_assert(sg_origin_covers("a.sbx.example", "sbx.example"));
    cr_assert(sg_origin_covers("A.SBX.Example:8443", "sbx.example"));
    cr_assert(sg_origin_covers("a.b.sbx.example.", "sbx.example"));
    cr_assert(sg_origin_covers("sbx.example.:80", "sbx.example"));
    cr_assert(sg_origin_covers("sbx.example", "sbx.example"));
    cr_assert_not(sg_origin_covers("sbx.example.evil", "sbx.example"));
    cr_assert_not(sg_origin_covers("xsbx.example", "sbx.example"));
    cr_assert_not(sg_origin_covers("example", "sbx.example"));
    cr_assert_not(sg_origin_covers("", "sbx.example"));
    cr_assert_not(sg_origin_covers("[::1]:80", "sbx.example"));
}

static void parse(const char *host, int port)
{
    char lease[SG_ID_MAX] = "";
    uint16_t got = 0;
    int rc = sg_origin_parse(host, "sbx.example", &got, lease, NULL);
    cr_assert_eq(rc, port > 0 ? 0 : -1, "%s", host);
    if (port > 0) {
        cr_assert_eq(got, port);
        cr_assert_str_eq(lease, LEASE);
    }
}

Test(proxy_origin, hosts_name_a_port_and_a_lease)
{
    parse("8000-" BARE ".sbx.example", 8000);
    parse("1-" BARE ".SBX.example.:443", 1);
    parse("65535-0123456789ABCDEFGHJKMNPQRSTVWXYZ.sbx.example", 65535);
    static const char *const bad[] = {
        "sbx.example", ".sbx.example", "8000.sbx.example", "8000-.sbx.example", "-" BARE ".sbx.example", BARE ".sbx.example",
        "0-" BARE ".sbx.example", "08000-" BARE ".sbx.example", "65536-" BARE ".sbx.example", "80000000000-" BARE ".sbx.example",
        "8000-" BARE "x.sbx.example", "8000-x" BARE ".sbx.example", "8000-0123456789abcdefghjkmnpqrstvwxyu.sbx.example",
        "8000-" LEASE ".sbx.example", "8000_" BARE ".sbx.example", "a.8000-" BARE ".sbx.example", "8000-" BARE ".a.sbx.example",
        "8000-" BARE ".example", "8000-" BARE, "", "8000-" BARE BARE BARE BARE ".sbx.example"};
    for (size_t i = 0; i < SG_COUNT_OF(bad); i++)
        parse(bad[i], 0);
    char label[SG_ORIGIN_LABEL_MAX];
    sg_origin_label(65535, LEASE, label);
    cr_assert_str_eq(label, "65535-" BARE);
    cr_assert_leq(strlen(label), 63U);
}

static void cut(const char *value, const char *expected)
{
    char *got = sg_origin_cut_cookie(value);
    cr_assert_str_eq(got, expected);
    free(got);
}

Test(proxy_origin, our_cookie)
{
    static const struct sg_header h[] = {{"X", "__Host-sandgate=no"}, {"cookie", "a=b;  __Host-sandgate=eps_x.1 ; c=d=e"}, {"Cookie", "__Host-sandgate=2"}};
    char *got = sg_origin_cookie(h, 3);
    cr_assert_str_eq(got, "eps_x.1");
    free(got);
    cr_assert_null(sg_origin_cookie(h, 1));
    static const struct sg_header other[] = {{"Cookie", "x__Host-sandgate=1; __Host-sandgate2=1; __host-sandgate=1; __Host-sandgate"}};
    cr_assert_null(sg_origin_cookie(other, 1));

    cut("a=b;  __Host-sandgate=eps_x.1 ; c=d=e", "a=b; c=d=e");
    cut("__Host-sandgate=x", "");
    cut("__Host-sandgate=x; __HOST-SANDGATE=y", "");
    cut("=__Host-sandgate=x; a=b", "a=b");
    cut("a=\"x y\"; __Host-sandgate2=1", "a=\"x y\"; __Host-sandgate2=1");
    cut("", "");
}

static void set(const char *value, const char *expected)
{
    char *got = sg_origin_set_cookie(value);
    if (expected == NULL)
        cr_assert_null(got, "%s", value);
    else
        cr_assert_str_eq(got, expected);
    free(got);
}

Test(proxy_origin, cookies_of_the_service)
{
    set("sid=1", "sid=1");
    set("sid=a=b; Path=/; Domain=sbx.example; HttpOnly", "sid=a=b; Path=/; HttpOnly");
    set("sid=1;domain=.example;DOMAIN = x;Domain", "sid=1");
    set("Domain=x; Path=/", "Domain=x; Path=/"); /* a cookie of that name */
    set("__Host-app=1; Secure; Path=/", "__Host-app=1; Secure; Path=/");
    set("__Host-sandgate=x; Path=/", NULL);
    set(" __host-SANDGATE =x", NULL);
    set("=__Host-sandgate=x", NULL);
    set("__Host-sandgate", NULL);
}

static void token(const char *target, const char *expected_token, const char *expected_target)
{
    char *t = NULL;
    char *rest = NULL;
    bool found = sg_origin_cut_token(target, &t, &rest);
    cr_assert_eq(found, expected_token != NULL, "%s", target);
    if (found) {
        cr_assert_str_eq(t, expected_token);
        cr_assert_str_eq(rest, expected_target);
    }
    free(t);
    free(rest);
}

Test(proxy_origin, the_token_in_a_query)
{
    token("/?sandgate_token=abc", "abc", "/");
    token("/a%2Fb//c?x=%E9&sandgate_token=abc&s=1;2&&y", "abc", "/a%2Fb//c?x=%E9&s=1;2&&y");
    token("/?sandgate_token=a&sandgate_token=b&c", "a", "/?c");
    token("/?sandgate_token=", "", "/");
    token("/?a?sandgate_token=x", NULL, NULL);
    token("/sandgate_token=x", NULL, NULL);
    token("/?xsandgate_token=x&sandgate_tokens=x", NULL, NULL);
    token("/", NULL, NULL);
}

Test(proxy_origin, heads_of_the_host_form)
{
    static const struct sg_header headers[] = {{"Host", "8000-x.sbx.example:8443"},
                                               {"Origin", "https://8000-X.sbx.example:8443"},
                                               {"Cookie", "__Host-sandgate=t"},
                                               {"Cookie", "a=b; __Host-sandgate=t"}};
    struct sg_proxy_request q = {.method = "GET", .target = "/x", .headers = headers, .n_headers = 4, .port = 8000, .request_id = "r", .peer = "",
                                 .proto = "https", .prefix = "", .own_origin = true};
    struct sg_buf b;
    sg_buf_init(&b, SG_PROXY_HEAD_MAX);
    cr_assert_eq(sg_proxy_request_head(&q, &b, NULL), 0);
    cr_assert_str_eq(b.data, "GET /x HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nOrigin: http://127.0.0.1:8000\r\nCookie: a=b\r\nX-Request-Id: r\r\n"
                             "X-Forwarded-Proto: https\r\nX-Forwarded-Host: 8000-x.sbx.example:8443\r\n\r\n");
    sg_buf_finish(&b);

    static struct sg_h1_head h = {.fields = {{"Set-Cookie", "a"}, {"Service-Worker-Allowed", "/"}, {"Clear-Site-Data", "x"}, {"Location", "/"}}, .n_fields = 4};
    static const bool passes[] = {true, true, false, true};
    for (size_t i = 0; i < h.n_fields; i++)
        cr_assert_eq(sg_proxy_field_passes(&h, i, &(struct sg_proxy_side){.own_origin = true}), passes[i], "%zu", i);

    char *l = sg_proxy_own_location("http://localhost:8000//evil.example/", "https://h:1", 8000);
    cr_assert_str_eq(l, "https://h:1//evil.example/");
    free(l);
    l = sg_proxy_own_location("http://127.0.0.1:8000", "https://h:1", 8000);
    cr_assert_str_eq(l, "https://h:1/");
    free(l);
    cr_assert_null(sg_proxy_own_location("/path", "https://h:1", 8000));
    cr_assert_null(sg_proxy_own_location("https://example.com/", "https://h:1", 8000));
}
