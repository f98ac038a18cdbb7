#include <criterion/criterion.h>
#include <stdio.h>

#include "http/h1_body.h"

static struct sg_error err;

/* Feeds text in pieces of `step` bytes. Returns how many bytes were used, or -1; payload is put into out. */
static ssize_t feed(struct sg_h1_body *b, const char *text, size_t len, size_t step, char *out,
                    size_t *ret_out)
{
    size_t used = 0;
    char piece[4096];
    *ret_out = 0;
    while (used < len && !sg_h1_body_done(b)) {
        size_t n = len - used < step ? len - used : step;
        memcpy(piece, text + used, n);
        size_t payload = 0;
        ssize_t took = sg_h1_body_decode(b, piece, n, &payload, &err);
        if (took < 0)
            return -1;
        memcpy(out + *ret_out, piece, payload);
        *ret_out += payload;
        used += (size_t)took;
    }
    return (ssize_t)used;
}

static void check_chunked(const char *text, const char *expected, const char *rest)
{
    for (size_t step = 1; step <= strlen(text); step++) {
        struct sg_h1_body b;
        char out[4096];
        size_t out_len;
        sg_h1_body_init(&b, SG_H1_CHUNKED, 0);
        ssize_t used = feed(&b, text, strlen(text), step, out, &out_len);
        cr_assert_geq(used, 0, "step %zu: %s", step, err.message);
        cr_assert(sg_h1_body_done(&b));
        cr_assert_eq(out_len, strlen(expected));
        cr_assert_eq(memcmp(out, expected, out_len), 0);
        cr_assert_str_eq(text + used, rest);
    }
}

Test(h1_body, chunked)
{
    check_chunked("5\r\nhello\r\n6\r\n world\r\n0\r\n\r\nNEXT", "hello world", "NEXT");
    check_chunked("0\r\n\r\n", "", "");
    check_chunked("0005;a=b;c=\"d;e\"\r\nhello\r\n0;x\r\n\r\n", "hello", "");
    check_chunked("5  \r\nhello\r\nA ;x\r\n0123456789\r\n00\r\n\r\n", "hello0123456789", "");
    check_chunked("5\r\nhello\r\n0\r\nX-Sum: 1 2\t3\r\nB:\r\n\r\nrest", "hello", "rest");
}

Test(h1_body, chunked_refused)
{
    static const char *const bad[] = {
        "\r\n",
        "x\r\n",
        "-5\r\n",
        "+5\r\n",
        "0x5\r\n",
        " 5\r\nhello",
        "5\nhello\r\n",
        "5\r\nhelloX",
        "5\r\nhello\n",
        "5\r\nhello\rX",
        "5 5\r\nhello\r\n",
        "5\rX",
        "5;a\x01\r\n",
        "FFFFFFFFFFFFFFFF\r\n",
        "8000000000000000\r\n",
        "10000000000000000000\r\n",
        "0\r\nno colon\r\n\r\n",
        "0\r\n folded: x\r\n\r\n",
        "0\r\nA: \x01\r\n\r\n",
        "0\r\nA: b\n\r\n",
        "0\r\n: b\r\n\r\n",
        "0\r\nA\r\n\r\n",
        "0\r\n\rX",
    };
    for (size_t i = 0; i < SG_COUNT_OF(bad); i++) {
        for (size_t step = 1; step < 8; step++) {
            struct sg_h1_body b;
            char out[4096];
            size_t out_len;
            sg_h1_body_init(&b, SG_H1_CHUNKED, 0);
            cr_assert_eq(feed(&b, bad[i], strlen(bad[i]), step, out, &out_len), -1, "accepted: %s", bad[i]);
            cr_assert_eq(err.code, SG_ENDPOINT_FAILED);
        }
    }
}

static ssize_t feed_many(const char *begin, char fill, size_t count)
{
    static char text[65536];
    static char out[65536];
    struct sg_h1_body b;
    size_t out_len;
    size_t n = (size_t)sprintf(text, "%s", begin);
    memset(text + n, fill, count);
    sg_h1_body_init(&b, SG_H1_CHUNKED, 0);
    return feed(&b, text, n + count, 100, out, &out_len);
}

Test(h1_body, chunk_lines_and_trailers_are_bounded)
{
    cr_assert_gt(feed_many("5;", 'x', 200), 0);
    cr_assert_eq(feed_many("5;", 'x', 300), -1);
    cr_assert_eq(feed_many("", '0', 300), -1);
    cr_assert_eq(feed_many("5", ' ', 300), -1);
    cr_assert_gt(feed_many("0\r\nA:", 'x', SG_H1_TRAILER_MAX - 10), 0);
    cr_assert_eq(feed_many("0\r\nA:", 'x', SG_H1_TRAILER_MAX), -1);
    cr_assert_eq(feed_many("0\r\n", 'x', SG_H1_TRAILER_MAX + 1), -1);
}

static void kept(const char *text, size_t step, const char *expected)
{
    char data[256];
    char room[SG_H1_TRAILER_MAX];
    struct sg_h1_body b;
    sg_h1_body_init(&b, SG_H1_CHUNKED, 0);
    b.trailers = room;
    for (size_t at = 0; at < strlen(text); at += step) {
        size_t payload;
        size_t n = strlen(text) - at < step ? strlen(text) - at : step;
        memcpy(data, text + at, n);
        cr_assert_eq(sg_h1_body_decode(&b, data, n, &payload, NULL), (ssize_t)n);
    }
    cr_assert(sg_h1_body_done(&b));
    cr_assert_eq(b.trailers_len, strlen(expected));
    cr_assert_eq(memcmp(room, expected, b.trailers_len), 0);
}

Test(h1_body, trailers_are_kept_for_who_wants_them)
{
    for (size_t step = 1; step < 100; step += 7) {
        kept("2\r\nhi\r\n0\r\nA: 1\r\nb:\r\nC:\tx y \r\n\r\n", step, "A: 1\nb:\nC:\tx y \n");
        kept("2\r\nhi\r\n0;x=y\r\n\r\n", step, "");
    }
}

Test(h1_body, length)
{
    struct sg_h1_body b;
    char out[64];
    size_t n;
    sg_h1_body_init(&b, SG_H1_LENGTH, 5);
    cr_assert_eq(feed(&b, "helloNEXT", 9, 2, out, &n), 5);
    cr_assert_eq(n, 5U);
    cr_assert(sg_h1_body_done(&b));
    cr_assert_eq(sg_h1_body_eof(&b, &err), 0);
    sg_h1_body_init(&b, SG_H1_LENGTH, 0);
    cr_assert(sg_h1_body_done(&b));
    sg_h1_body_init(&b, SG_H1_LENGTH, 5);
    cr_assert_eq(feed(&b, "hell", 4, 2, out, &n), 4);
    cr_assert_eq(sg_h1_body_eof(&b, &err), -1);
    cr_assert_str_eq(err.reason, "closed_early");
}

Test(h1_body, until_close)
{
    struct sg_h1_body b;
    char out[64];
    size_t n;
    sg_h1_body_init(&b, SG_H1_UNTIL_CLOSE, 0);
    cr_assert_eq(feed(&b, "hello", 5, 2, out, &n), 5);
    cr_assert_not(sg_h1_body_done(&b));
    cr_assert_eq(sg_h1_body_eof(&b, &err), 0);
    cr_assert(sg_h1_body_done(&b));
}

Test(h1_body, chunked_cut_off)
{
    struct sg_h1_body b;
    char out[64];
    size_t n;
    sg_h1_body_init(&b, SG_H1_CHUNKED, 0);
    cr_assert_eq(feed(&b, "5\r\nhello\r\n0\r\n", 13, 3, out, &n), 13);
    cr_assert_eq(sg_h1_body_eof(&b, &err), -1);
}
