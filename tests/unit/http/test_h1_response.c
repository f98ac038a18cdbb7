#include <criterion/criterion.h>
#include <stdio.h>

#include "http/h1_response.h"

static struct sg_h1_head head;
static struct sg_error err;
static char buf[2 * SG_H1_HEAD_MAX];

static ssize_t parse_n(const char *text, size_t len, bool head_request)
{
    struct sg_h1_progress p = {0};
    memcpy(buf, text, len);
    sg_error_clear(&err);
    return sg_h1_head_parse(&head, &p, buf, len, head_request, &err);
}

static ssize_t parse(const char *text)
{
    return parse_n(text, strlen(text), false);
}

Test(h1_response, plain)
{
    const char *text = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A:  b c \t\r\nEmpty:\r\n\r\nhello";
    cr_assert_eq(parse(text), (ssize_t)strlen(text) - 5);
    cr_assert_eq(head.status, 200);
    cr_assert_eq(head.n_fields, 3U);
    cr_assert_str_eq(head.fields[1].name, "X-A");
    cr_assert_str_eq(head.fields[1].value, "b c");
    cr_assert_str_eq(head.fields[2].value, "");
    cr_assert_eq(head.framing, SG_H1_LENGTH);
    cr_assert_eq(head.length, 5U);
    cr_assert(head.keep_alive);
    cr_assert_str_eq(sg_h1_field_get(&head, "x-a"), "b c");
    cr_assert_null(sg_h1_field_get(&head, "x"));
}

Test(h1_response, every_split_gives_the_same)
{
    const char *text = "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
                       "HTTP/1.1 201 Made\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n";
    ssize_t whole = parse(text);
    cr_assert_gt(whole, 0);
    for (size_t cut = 0; cut < (size_t)whole; cut++) {
        struct sg_h1_progress p = {0};
        strcpy(buf, text);
        cr_assert_eq(sg_h1_head_parse(&head, &p, buf, cut, false, &err), 0, "cut %zu: %s", cut, err.message);
        cr_assert_eq(sg_h1_head_parse(&head, &p, buf, strlen(text), false, &err), whole, "cut %zu", cut);
        cr_assert_eq(head.status, 201);
        cr_assert_eq(head.framing, SG_H1_CHUNKED);
        cr_assert_eq(head.n_fields, 1U);
    }
}

Test(h1_response, byte_by_byte)
{
    const char *text = "HTTP/1.0 404 Not Found\r\nA: 1\r\nA: 2\r\n\r\n";
    struct sg_h1_progress p = {0};
    strcpy(buf, text);
    for (size_t n = 0; n < strlen(text); n++)
        cr_assert_eq(sg_h1_head_parse(&head, &p, buf, n, false, &err), 0);
    cr_assert_eq(sg_h1_head_parse(&head, &p, buf, strlen(text), false, &err), (ssize_t)strlen(text));
    cr_assert_eq(head.n_fields, 2U);
    cr_assert_str_eq(head.fields[1].value, "2");
}

Test(h1_response, bare_lf_ends_a_line)
{
    cr_assert_gt(parse("HTTP/1.0 200 OK\nContent-Type: text/plain\n\nhi"), 0);
    cr_assert_eq(head.framing, SG_H1_UNTIL_CLOSE);
    cr_assert_str_eq(sg_h1_field_get(&head, "Content-Type"), "text/plain");
}

Test(h1_response, reason_is_optional)
{
    cr_assert_gt(parse("HTTP/1.1 200\r\n\r\n"), 0);
    cr_assert_gt(parse("HTTP/1.1 200 \r\n\r\n"), 0);
}

Test(h1_response, refused)
{
    static const char *const bad[] = {
        "\r\nHTTP/1.1 200 OK\r\n\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        "HTTP/1 200 OK\r\n\r\n",
        "HTTP/1.1  200 OK\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/1.1 099 OK\r\n\r\n",
        "HTTP/1.1 600 OK\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        "SSH-2.0-OpenSSH\r\n",
        "HTTP/1.1 200 OK\r\nX A: b\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX-A : b\r\n\r\n",
        "HTTP/1.1 200 OK\r\n: b\r\n\r\n",
        "HTTP/1.1 200 OK\r\nnocolon\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n",
        "HTTP/1.1 200 OK\r\n A: b\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: b\rc\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: b\x01\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: b\x7f\r\n\r\n",
        "HTTP/1.1 200 O\x02K\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 0x5\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775808\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\n",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    };
    for (size_t i = 0; i < SG_COUNT_OF(bad); i++) {
        cr_assert_eq(parse(bad[i]), -1, "accepted: %s", bad[i]);
        cr_assert_eq(err.code, SG_ENDPOINT_FAILED);
        cr_assert_str_eq(err.reason, "malformed_response");
    }
    cr_assert_eq(parse_n("HTTP/1.1 200 OK\r\nA: b\0c\r\n\r\n", 28, false), -1);
    cr_assert_eq(parse_n("HTTP/1.1 200 OK\r\nA\0: bc\r\n\r\n", 28, false), -1);
}

Test(h1_response, garbage_is_refused_at_once)
{
    cr_assert_eq(parse("\x16\x03\x01"), -1);
    cr_assert_eq(parse("HTTP/1"), 0);
}

Test(h1_response, bodies)
{
    cr_assert_gt(parse("HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\n"), 0);
    cr_assert_eq(head.framing, SG_H1_NO_BODY);
    cr_assert_gt(parse("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"), 0);
    cr_assert_eq(head.framing, SG_H1_NO_BODY);
    cr_assert(head.has_length && head.length == 5);
    cr_assert(head.keep_alive);
    const char *text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: CHUNKED\r\n\r\n";
    cr_assert_gt(parse_n(text, strlen(text), true), 0);
    cr_assert_eq(head.framing, SG_H1_NO_BODY);
    cr_assert_gt(parse(text), 0);
    cr_assert_eq(head.framing, SG_H1_CHUNKED);
    cr_assert_gt(parse("HTTP/1.1 200 OK\r\n\r\n"), 0);
    cr_assert_eq(head.framing, SG_H1_UNTIL_CLOSE);
    cr_assert_not(head.keep_alive);
}

Test(h1_response, keep_alive)
{
    cr_assert_gt(parse("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: foo, Close\r\n\r\n"), 0);
    cr_assert_not(head.keep_alive);
    cr_assert_gt(parse("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n"), 0);
    cr_assert_not(head.keep_alive);
    cr_assert_gt(parse("HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\nKeep-Alive: "
                       "timeout=5, max=9\r\n\r\n"),
                 0);
    cr_assert(head.keep_alive);
    cr_assert_eq(head.keep_alive_s, 5);
    cr_assert_gt(parse("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: closely\r\n\r\n"), 0);
    cr_assert(head.keep_alive);
}

Test(h1_response, limits)
{
    size_t n = (size_t)sprintf(buf, "HTTP/1.1 200 OK\r\n");
    for (unsigned i = 0; i < SG_H1_FIELDS_MAX; i++)
        n += (size_t)sprintf(buf + n, "H%u: v\r\n", i);
    char *text = strdup(buf);
    char longer[8192];
    snprintf(longer, sizeof longer, "%s\r\n", text);
    cr_assert_gt(parse(longer), 0);
    snprintf(longer, sizeof longer, "%sOne-Too: many\r\n\r\n", text);
    cr_assert_eq(parse(longer), -1);
    free(text);

    struct sg_h1_progress p = {0};
    n = (size_t)sprintf(buf, "HTTP/1.1 200 OK\r\nA: ");
    memset(buf + n, 'x', SG_H1_HEAD_MAX);
    cr_assert_eq(sg_h1_head_parse(&head, &p, buf, SG_H1_HEAD_MAX - 1, false, &err), 0);
    cr_assert_eq(sg_h1_head_parse(&head, &p, buf, SG_H1_HEAD_MAX, false, &err), -1);

    char many[1024] = "";
    for (unsigned i = 0; i <= SG_H1_INTERIM_MAX; i++)
        strcat(many, "HTTP/1.1 100 Continue\r\n\r\n");
    cr_assert_eq(parse(many), -1);
}

Test(h1_response, lists)
{
    cr_assert(sg_h1_list_has("close", "close"));
    cr_assert(sg_h1_list_has(" a ,\tClose , b", "close"));
    cr_assert_not(sg_h1_list_has("closed, aclose", "close"));
    cr_assert_not(sg_h1_list_has("", "close"));
    cr_assert_not(sg_h1_list_has(",,", "close"));
}

Test(h1_response, a_switch_of_protocols_where_it_was_asked_for)
{
    static const struct {
        const char *text;
        bool upgrade, fine;
    } cases[] = {
        {"HTTP/1.1 101 Yes\r\nConnection: x, upgrade\r\nUpgrade: websocket\r\n\r\nbytes", true, true},
        {"HTTP/1.1 100 Wait\r\n\r\nHTTP/1.1 101 Yes\r\nConnection: Upgrade\r\nUpgrade: a/1\r\n\r\n", true, true},
        {"HTTP/1.1 101 Yes\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", false, false},
        {"HTTP/1.1 101 Yes\r\nUpgrade: websocket\r\n\r\n", true, false},
        {"HTTP/1.1 101 Yes\r\nConnection: upgrade\r\n\r\n", true, false},
        {"HTTP/1.1 101 Yes\r\nConnection: upgrade\r\nUpgrade:\r\n\r\n", true, false},
    };
    for (size_t i = 0; i < SG_COUNT_OF(cases); i++) {
        struct sg_h1_progress p = {.upgrade = cases[i].upgrade};
        snprintf(buf, sizeof buf, "%s", cases[i].text);
        ssize_t n = sg_h1_head_parse(&head, &p, buf, strlen(buf), false, &err);
        cr_assert_eq(n > 0, cases[i].fine, "%zu", i);
        if (n > 0) {
            cr_assert_eq(head.status, 101);
            cr_assert_eq(head.framing, SG_H1_NO_BODY);
            cr_assert_not(head.keep_alive);
            cr_assert_str_eq(cases[i].text + n, i == 0 ? "bytes" : "");
        }
    }
}
