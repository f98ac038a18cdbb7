#include <criterion/criterion.h>

#include "http/preflight.h"

static struct sg_error err;

static void teardown(void)
{
    sg_error_clear(&err);
}

TestSuite(preflight, .fini = teardown);

/* "ok", or the code, of a POST with these headers (name, value, ..., NULL) besides Host. */
static const char *check(const char *version, struct sg_framing *f, const char *const *pairs)
{
    struct sg_header h[160] = {{"Host", "h"}};
    size_t n = 1;
    for (; *pairs; pairs += 2)
        h[n++] = (struct sg_header){pairs[0], pairs[1]};
    struct sg_head head = {"POST", version, "/", h, n};
    sg_error_clear(&err);
    return sg_preflight_head(&head, f, &err) == 0 ? "ok" : sg_code_name(err.code);
}

#define CHECK(...) check("HTTP/1.1", &f, (const char *const[]){__VA_ARGS__, NULL})
#define CHECK10(...) check("HTTP/1.0", &f, (const char *const[]){__VA_ARGS__, NULL})

Test(preflight, framing)
{
    struct sg_framing f;
    cr_assert_str_eq(CHECK("Content-Length", "12"), "ok");
    cr_assert(f.has_length && f.length == 12 && !f.chunked);
    cr_assert_str_eq(CHECK("transfer-encoding", "CHUNKED"), "ok");
    cr_assert(f.chunked && !f.has_length);
    cr_assert_str_eq(CHECK("Content-Length", "1", "Transfer-Encoding", "chunked"), "invalid_request");
    cr_assert_str_eq(CHECK("Content-Length", "1", "content-length", "1"), "invalid_request");
    cr_assert_str_eq(err.field, "Content-Length");
    cr_assert_str_eq(CHECK("Transfer-Encoding", "gzip, chunked"), "not_implemented");
    cr_assert_str_eq(CHECK("Transfer-Encoding", "chunked "), "not_implemented");
    cr_assert_str_eq(CHECK("Transfer-Encoding", ""), "not_implemented");
    cr_assert_str_eq(CHECK10("Transfer-Encoding", "chunked"), "invalid_request");
    cr_assert_str_eq(CHECK10("Content-Length", "1"), "ok");
    cr_assert_str_eq(CHECK("Content-Length", ""), "invalid_request");
    cr_assert_str_eq(CHECK("Content-Length", "+1"), "invalid_request");
    cr_assert_str_eq(CHECK("Content-Length", "1 "), "invalid_request");
    cr_assert_str_eq(CHECK("Content-Length", "0x1"), "invalid_request");
    cr_assert_str_eq(CHECK("Content-Length", "9223372036854775807"), "ok");
    cr_assert_str_eq(CHECK("Content-Length", "9223372036854775808"), "invalid_request");
    cr_assert_str_eq(CHECK("Content-Length", "99999999999999999999999"), "invalid_request");
}

Test(preflight, expect)
{
    struct sg_framing f;
    cr_assert_str_eq(CHECK("Expect", "100-Continue", "Content-Length", "1"), "ok");
    cr_assert(f.expect_continue);
    cr_assert_str_eq(CHECK("Expect", "100-continue"), "ok");
    cr_assert(!f.expect_continue);
    cr_assert_str_eq(CHECK10("Expect", "100-continue", "Content-Length", "1"), "ok");
    cr_assert(!f.expect_continue);
    cr_assert_str_eq(CHECK("Expect", "200"), "expectation_failed");
}

Test(preflight, names_and_values)
{
    struct sg_framing f;
    static const char *const bad_names[] = {"", " X", "X ", "X\tY", "X(Y", "X\x80", "X:Y", "\"X\"", "X/Y", "{X}"};
    for (size_t i = 0; i < SG_COUNT_OF(bad_names); i++)
        cr_assert_str_eq(CHECK(bad_names[i], "v"), "invalid_request", "%zu", i);
    cr_assert_str_eq(CHECK("!#$%&'*+-.^_`|~09azAZ", "v"), "ok");
    cr_assert_str_eq(CHECK("X", "a\x01"), "invalid_request");
    cr_assert_str_eq(CHECK("X", "a\r"), "invalid_request");
    cr_assert_str_eq(CHECK("X", "a\x7f"), "invalid_request");
    cr_assert_str_eq(CHECK("X", "a\tb \xe9"), "ok");
}

Test(preflight, once_only)
{
    struct sg_framing f;
    static const char *const once[] = {"Host",         "Authorization", "X-API-Key", "Content-Type",      "Idempotency-Key",
                                       "Sec-WebSocket-Key", "Range",    "Expect",    "Sec-WebSocket-Version"};
    for (size_t i = 0; i < SG_COUNT_OF(once); i++) {
        const char *v = sg_streq(once[i], "Expect") ? "100-continue" : "v";
        cr_assert_str_eq(CHECK(once[i], v, once[i], v), "invalid_request", "%s", once[i]);
    }
    cr_assert_str_eq(CHECK("Accept", "a", "Accept", "b", "X-Forwarded-For", "1", "X-Forwarded-For", "2"), "ok");
}

Test(preflight, host_and_version)
{
    struct sg_framing f;
    struct sg_header h = {"Host", "h"};
    struct sg_head head = {"GET", "HTTP/1.1", "/", &h, 1};
    cr_assert_eq(sg_preflight_head(&head, &f, &err), 0);
    head.n_headers = 0;
    cr_assert_eq(sg_preflight_head(&head, &f, &err), -1);
    head.version = "HTTP/1.0";
    cr_assert_eq(sg_preflight_head(&head, &f, &err), 0);
    head.n_headers = 1;
    static const char *const bad[] = {"", "a b", "a/b", "a@b", "a,b", "a\"", "h\xe9", "a?b", "a#b"};
    for (size_t i = 0; i < SG_COUNT_OF(bad); i++) {
        h.value = bad[i];
        cr_assert_eq(sg_preflight_head(&head, &f, &err), -1, "%s", bad[i]);
    }
    h.value = "[::1]:80";
    cr_assert_eq(sg_preflight_head(&head, &f, &err), 0);
    static const char *const versions[] = {"", "HTTP/2.0", "HTTP/0.9", "http/1.1"};
    for (size_t i = 0; i < SG_COUNT_OF(versions); i++) {
        head.version = versions[i];
        cr_assert_eq(sg_preflight_head(&head, &f, &err), -1, "%s", versions[i]);
    }
    head.version = "HTTP/1.1";
    head.method = "GE T";
    cr_assert_eq(sg_preflight_head(&head, &f, &err), -1);
    head.method = "ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFGH";
    cr_assert_eq(sg_preflight_head(&head, &f, &err), -1);
}

Test(preflight, too_many_headers)
{
    struct sg_framing f;
    const char *pairs[2 * SG_HEADERS_MAX + 1] = {NULL};
    for (size_t i = 0; i < (size_t)SG_HEADERS_MAX - 1; i++) {
        pairs[2 * i] = "A";
        pairs[2 * i + 1] = "b";
    }
    cr_assert_str_eq(check("HTTP/1.1", &f, pairs), "ok");
    pairs[2 * SG_HEADERS_MAX - 2] = "A";
    pairs[2 * SG_HEADERS_MAX - 1] = "b";
    cr_assert_str_eq(check("HTTP/1.1", &f, pairs), "headers_too_large");
}

Test(preflight, targets)
{
    size_t len;
    size_t odd;
    static const char *const good[] = {"/", "/a%2Fb?x=%41&y", "/a//b/../c", "/a?b?c", "/%7e|{}^\"<>\\"};
    static const char *const bad[] = {"", "a", "*", "http://h/", "h:443", "/a b", "/a\tb", "/a\x7f", "/a#b", "/\x80#"};
    static const struct {
        const char *target;
        size_t at;
    } odds[] = {{"/a\x80", 2},  {"/a%", 2},   {"/a%4", 2},      {"/a%4g", 2}, {"/%41%00", 4},
                {"/a?%0", 3}, {"/a?b=%00", 5}, {"/%\xff%00", 1}, {"/?100%&\xc3\xa9", 5}};
    for (size_t i = 0; i < SG_COUNT_OF(good); i++) {
        cr_assert_eq(sg_preflight_target("GET", good[i], &len, &odd, &err), 0, "%s", good[i]);
        cr_assert_eq(odd, SIZE_MAX, "%s", good[i]);
    }
    for (size_t i = 0; i < SG_COUNT_OF(bad); i++)
        cr_assert_eq(sg_preflight_target("GET", bad[i], &len, &odd, &err), -1, "%s", bad[i]);
    for (size_t i = 0; i < SG_COUNT_OF(odds); i++) {
        cr_assert_eq(sg_preflight_target("GET", odds[i].target, &len, &odd, &err), 0, "%s", odds[i].target);
        cr_assert_eq(odd, odds[i].at, "%s", odds[i].target);
        cr_assert_eq(sg_preflight_odd(odds[i].target, odd, &err), -1);
        cr_assert_eq(err.code, SG_INVALID_REQUEST);
    }
    cr_assert_eq(sg_preflight_target("OPTIONS", "*", &len, &odd, &err), 0);
    cr_assert_eq(sg_preflight_target("GET", "/abc?d", &len, &odd, &err), 0);
    cr_assert_eq(len, 4);

    char longest[SG_TARGET_MAX + 2];
    memset(longest, 'a', sizeof longest);
    longest[0] = '/';
    longest[SG_TARGET_MAX] = '\0';
    cr_assert_eq(sg_preflight_target("GET", longest, &len, &odd, &err), 0);
    longest[SG_TARGET_MAX] = 'a';
    longest[SG_TARGET_MAX + 1] = '\0';
    cr_assert_eq(sg_preflight_target("GET", longest, &len, &odd, &err), -1);
    cr_assert_eq(err.code, SG_URI_TOO_LONG);
}
