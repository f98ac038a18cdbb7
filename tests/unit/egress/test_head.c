/* Heads and bodies come in pieces of any size; where they end does not depend on that. */
#include <criterion/criterion.h>

#include "backends/egress/head.h"

static int parse(const char *text, struct sg_egress_head *h, char *out, size_t size, const char **why)
{
    struct sg_buf b;
    size_t scanned = 0;
    ssize_t end = sg_egress_head_end(text, strlen(text), &scanned);
    cr_assert_gt(end, 0, "%s", text);
    sg_buf_init(&b, SG_EGRESS_HEAD_MAX + 512);
    int rc = sg_egress_head_parse(text, (size_t)end, h, &b, why);
    cr_assert_lt(b.len, size);
    memcpy(out, b.len > 0 ? b.data : "", b.len);
    out[b.len] = '\0';
    sg_buf_finish(&b);
    return rc;
}

Test(egress_head, its_end_is_found_in_any_pieces)
{
    static const char text[] = "GET http://a/ HTTP/1.1\r\nA: b\r\n\r\nrest\n";
    size_t whole = strlen(text) - 5;
    for (size_t piece = 1; piece < 12; piece++) {
        size_t scanned = 0, have = 0;
        ssize_t end = 0;
        while (end == 0) {
            cr_assert_lt(have, sizeof text);
            have = have + piece < whole ? have + piece : whole;
            end = sg_egress_head_end(text, have, &scanned);
        }
        cr_expect_eq(end, (ssize_t)whole);
    }
    size_t scanned = 0;
    cr_expect_eq(sg_egress_head_end("GET a\n", 6, &scanned), -1);
    scanned = 0;
    cr_expect_eq(sg_egress_head_end("GE\0T", 4, &scanned), -1);
}

Test(egress_head, is_rewritten)
{
    struct sg_egress_head h;
    char out[2048];
    const char *why = NULL;
    cr_assert_eq(parse("PUT http://Example.COM:8080?q=1 HTTP/1.0\r\nhost: other\r\nCONNECTION: x-a , close\r\nX-A: 1\r\nX-B:  2 \r\nX-C:\r\nContent-Length: 7\r\n"
                       "Proxy-Connection: keep-alive\r\nTE: trailers\r\n\r\n", &h, out, sizeof out, &why), 0, "%s", why);
    cr_expect_str_eq(out, "PUT /?q=1 HTTP/1.0\r\nHost: example.com:8080\r\nX-B: 2\r\nX-C: \r\nContent-Length: 7\r\nConnection: close\r\n\r\n");
    cr_expect(!h.connect && h.port == 8080 && h.body == SG_EGRESS_BODY_LENGTH && h.length == 7);
    cr_assert_eq(parse("GET http://[2001:DB8::1]/a//b HTTP/1.1\r\n\r\n", &h, out, sizeof out, &why), 0);
    cr_expect_str_eq(out, "GET /a//b HTTP/1.1\r\nHost: [2001:db8::1]\r\nConnection: close\r\n\r\n");
    cr_assert_eq(parse("CONNECT Example.com.:443 HTTP/1.1\r\nHost: x\r\n\r\n", &h, out, sizeof out, &why), 0);
    cr_expect(h.connect && h.port == 443 && strcmp(h.host.text, "example.com") == 0 && out[0] == '\0');
}

static ssize_t feed_in_pieces(const char *text, size_t piece, bool *done)
{
    struct sg_egress_chunks c = {0};
    size_t len = strlen(text), at = 0;
    *done = false;
    while (at < len && !*done) {
        size_t n = len - at < piece ? len - at : piece;
        ssize_t took = sg_egress_chunks_feed(&c, text + at, n, done);
        if (took < 0) {
            return -1;
        }
        cr_assert(*done || (size_t)took == n);
        at += (size_t)took;
    }
    return (ssize_t)at;
}

Test(egress_head, chunked_bodies_end_where_they_end)
{
    static const char *const good[] = {"0\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n", "A;x=\"y\"\r\n0123456789\r\n2\r\n\r\n\r\n00\r\nT: r\r\nU: s\r\n\r\n"};
    static const char *const bad[] = {"\r\n", "g\r\n", "3\nabc\r\n", "3\r\nabcd\r\n", "-1\r\n", "3;a\nb\r\n", "1000000000000000\r\n", "0\r\nA\nB\r\n\r\n", "0x3\r\nabc\r\n"};
    for (size_t piece = 1; piece < 9; piece++) {
        bool done;
        for (size_t i = 0; i < SG_COUNT_OF(good); i++) {
            sg_cleanup(sg_free_p) char *more = sg_xasprintf("%sGET / HTTP/1.1", good[i]);
            cr_expect_eq(feed_in_pieces(more, piece, &done), (ssize_t)strlen(good[i]), "%s in pieces of %zu", good[i], piece);
            cr_expect(done);
        }
        for (size_t i = 0; i < SG_COUNT_OF(bad); i++) {
            cr_expect_eq(feed_in_pieces(bad[i], piece, &done), -1, "%s", bad[i]);
        }
        cr_expect_eq(feed_in_pieces("5\r\nabc", piece, &done), 6);
        cr_expect_not(done);
    }
}
