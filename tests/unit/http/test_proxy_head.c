#include <criterion/criterion.h>
#include <stdio.h>

#include "http/proxy_head.h"

static void split(const char *target, const char *prefix)
{
    size_t n = 0;
    cr_assert_eq(sg_proxy_split(target, &n, NULL), 0, "%s", target);
    cr_assert_eq(n, strlen(prefix), "%s", target);
    cr_assert_eq(strncmp(target, prefix, n), 0);
}

Test(proxy_head, targets_are_split_where_the_port_ends)
{
    split("/leases/l/proxy/80", "/leases/l/proxy/80");
    split("/leases/l/proxy/80/", "/leases/l/proxy/80");
    split("/leases/l/proxy/80//a/../b?c", "/leases/l/proxy/80");
    split("/leases/l/proxy/80?q=/x/y", "/leases/l/proxy/80");
    split("/v1/leases/l/proxy/80/leases/x", "/v1/leases/l/proxy/80");
    size_t n;
    cr_assert_eq(sg_proxy_split("/leases/l/proxy", &n, NULL), -1);
    cr_assert_eq(sg_proxy_split("/leases/l/proxy/", &n, NULL), -1);
    cr_assert_eq(sg_proxy_split("http://x/leases/l/proxy/80", &n, NULL), -1);
    cr_assert_eq(sg_proxy_split("*", &n, NULL), -1);
}

static char *head_of(const struct sg_header *headers, size_t n, int64_t length, const char *method,
                     const char *target)
{
    struct sg_proxy_request q = {.method = method,
                                 .target = target,
                                 .headers = headers,
                                 .n_headers = n,
                                 .port = 8000,
                                 .content_length = length,
                                 .request_id = "req_1",
                                 .peer = "10.0.0.9",
                                 .proto = "https",
                                 .prefix = "/leases/l/proxy/8000",
                                 .drop_api_key = true};
    struct sg_buf b;
    sg_buf_init(&b, SG_PROXY_HEAD_MAX);
    cr_assert_eq(sg_proxy_request_head(&q, &b, NULL), 0);
    return sg_buf_steal(&b, NULL);
}

#define OURS                                                                                                 \
    "X-Request-Id: req_1\r\nX-Forwarded-Proto: https\r\nX-Forwarded-For: 10.0.0.9\r\n"                       \
    "X-Forwarded-Host: h\r\nX-Forwarded-Prefix: /leases/l/proxy/8000\r\n"

Test(proxy_head, request)
{
    static const struct sg_header headers[] = {
        {"Host", "h"},
        {"A", "1"},
        {"a", "2"},
        {"Authorization", "Basic x"},
        {"X-API-Key", "ours"},
        {"Connection", "x-hop, close"},
        {"X-Hop", "1"},
        {"Forwarded", "for=1.1.1.1"},
        {"X-FORWARDED-For", ""},
        {"Expect", "100-continue"},
        {"Content-Length", "5"},
        {"sandgate-endpoint-token", "t"},
    };
    char *head = head_of(headers, SG_COUNT_OF(headers), 5, "POST", "/x?y");
    cr_assert_str_eq(
        head, "POST /x?y HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nA: 1\r\na: 2\r\nAuthorization: Basic x\r\n" OURS
              "Content-Length: 5\r\n\r\n");
    free(head);
}

Test(proxy_head, framing)
{
    static const struct sg_header headers[] = {{"Host", "h"}};
    static const struct {
        const char *method;
        int64_t length;
        const char *line;
    } cases[] = {
        {"GET", 0, ""},
        {"POST", 0, "Content-Length: 0\r\n"},
        {"PUT", 7, "Content-Length: 7\r\n"},
        {"PUT", -1, "Transfer-Encoding: chunked\r\n"},
    };
    for (size_t i = 0; i < SG_COUNT_OF(cases); i++) {
        char expected[512];
        snprintf(expected, sizeof expected, "%s /?q HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n" OURS "%s\r\n",
                 cases[i].method, cases[i].line);
        char *head = head_of(headers, 1, cases[i].length, cases[i].method, "?q");
        cr_assert_str_eq(head, expected);
        free(head);
    }
}

Test(proxy_head, too_large)
{
    size_t size = SG_PROXY_HEAD_MAX;
    char *value = malloc(size + 1);
    memset(value, 'x', size);
    value[size] = '\0';
    struct sg_header headers[] = {{"Host", "h"}, {"A", value}};
    struct sg_proxy_request q = {.method = "GET",
                                 .target = "/",
                                 .headers = headers,
                                 .n_headers = 2,
                                 .port = 1,
                                 .request_id = "r",
                                 .peer = "",
                                 .proto = "http",
                                 .prefix = "/p"};
    struct sg_buf b;
    struct sg_error err = {0};
    sg_buf_init(&b, SG_PROXY_HEAD_MAX);
    cr_assert_eq(sg_proxy_request_head(&q, &b, &err), -1);
    cr_assert_eq(err.code, SG_HEADERS_TOO_LARGE);
    sg_buf_finish(&b);
    free(value);
}

static void upgrade_is(const char *upgrade, const char *connection, const char *expected)
{
    struct sg_header h[] = {{"Upgrade", upgrade}, {"Connection", connection}};
    char *got = sg_proxy_upgrade(h, 2);
    if (expected == NULL)
        cr_assert_null(got, "%s: %s", upgrade, got);
    else
        cr_assert_str_eq(got, expected);
    free(got);
}

Test(proxy_head, upgrade)
{
    upgrade_is("websocket", "keep-alive, upgrade", "websocket");
    upgrade_is(" h2c,, WebSocket , foo/2", "Upgrade", "WebSocket, foo/2");
    upgrade_is("h2c", "Upgrade, HTTP2-Settings", NULL);
    upgrade_is("H2C", "Upgrade", NULL);
    upgrade_is("websocket", "keep-alive", NULL);
    upgrade_is("", "Upgrade", NULL);
    upgrade_is("a b, /x, x/, a/b/c, \x01", "Upgrade", NULL);
    static const struct sg_header twice[] = {{"Upgrade", "a"}, {"connection", "upgrade"}, {"upgrade", "b"}};
    char *got = sg_proxy_upgrade(twice, 3);
    cr_assert_str_eq(got, "a, b");
    free(got);
}

Test(proxy_head, upgrade_goes_out_once)
{
    static const struct sg_header headers[] = {
        {"Host", "h"}, {"Connection", "Upgrade, x-hop"}, {"Upgrade", "websocket"}, {"x-hop", "1"}, {"Sec-WebSocket-Key", "k"}};
    struct sg_proxy_request q = {.method = "GET", .target = "/", .headers = headers, .n_headers = 5, .port = 80,
                                 .request_id = "r", .peer = "", .proto = "http", .prefix = "/p", .upgrade = "websocket"};
    struct sg_buf b;
    sg_buf_init(&b, SG_PROXY_HEAD_MAX);
    cr_assert_eq(sg_proxy_request_head(&q, &b, NULL), 0);
    cr_assert_str_eq(b.data, "GET / HTTP/1.1\r\nHost: 127.0.0.1:80\r\nSec-WebSocket-Key: k\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                             "X-Request-Id: r\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: h\r\nX-Forwarded-Prefix: /p\r\n\r\n");
    sg_buf_finish(&b);
}

Test(proxy_head, response_fields)
{
    static struct sg_h1_head h = {.fields = {{"Content-Type", "x"},
                                             {"X-A", "1"},
                                             {"set-cookie", "a"},
                                             {"Connection", "X-Hop"},
                                             {"x-hop", "1"},
                                             {"Content-Length", "5"},
                                             {"Transfer-Encoding", "chunked"},
                                             {"Service-Worker-Allowed", "/"},
                                             {"SANDGATE-error", "x"},
                                             {"Upgrade", "h2"},
                                             {"Location", "/x"},
                                             {"Trailer", "x"},
                                             {"x-accel-redirect", "/x"},
                                             {"X-Accel-Buffering", "no"},
                                             {"X-Sendfile", "/x"},
                                             {"nel", "{}"},
                                             {"Report-To", "{}"}},
                                  .n_fields = 17};
    static const bool passes[] = {true,  true,  false, false, false, false,
                                  false, false, false, false, true,  false, false, true,  false, false, false};
    for (size_t i = 0; i < h.n_fields; i++)
        cr_assert_eq(sg_proxy_field_passes(&h, i, &(struct sg_proxy_side){0}), passes[i], "%s", h.fields[i].name);
}

static void location(const char *given, uint16_t port, const char *expected)
{
    char *got = sg_proxy_location(given, "/p", port);
    if (expected == NULL)
        cr_assert_null(got, "%s became %s", given, got);
    else
        cr_assert_str_eq(got, expected, "%s", given);
    free(got);
}

Test(proxy_head, locations)
{
    location("/", 8000, "/p/");
    location("/x?y=/z#f", 8000, "/p/x?y=/z#f");
    location("/p2/x", 8000, "/p/p2/x");
    location("/p/x", 8000, NULL);
    location("/p", 8000, NULL);
    location("", 8000, NULL);
    location("x", 8000, NULL);
    location("//evil/x", 8000, NULL);
    location("http://127.0.0.1:8000/x", 8000, "/p/x");
    location("http://LocalHost:8000", 8000, "/p/");
    location("http://[::1]:8000?q", 8000, "/p/?q");
    location("http://localhost/x", 80, "/p/x");
    location("http://localhost:80/x", 80, "/p/x");
    location("http://localhost/x", 8000, NULL);
    location("http://localhost:80000/x", 8000, NULL);
    location("http://localhost:800/x", 8000, NULL);
    location("http://localhost:8001/x", 80, NULL);
    location("http://localhost.evil/x", 80, NULL);
    location("http://localhost@evil/x", 80, NULL);
    location("https://localhost:8000/x", 8000, NULL);
    location("http://user@localhost:8000/x", 8000, NULL);
}
