#include "ws_peer.h"

#include <criterion/criterion.h>
#include <errno.h>

static int run_bytes(struct ws_peer *p, const struct sg_buf *in, size_t step)
{
    *p = (struct ws_peer){.in = (const unsigned char *)in->data, .in_len = in->len, .step = step};
    ws_peer_start(p);
    return ws_peer_run(p);
}

Test(ws, messages_arrive_however_they_are_cut)
{
    static char big[100000];
    struct sg_buf in;
    sg_buf_init(&in, 1 << 20);
    memset(big, 'b', sizeof big);
    ws_frame(&in, 0x81, "{\"type\":\"x\"}", 12);
    ws_frame(&in, 0x82, big, sizeof big);
    ws_frame(&in, 0x02, "12", 2); /* in pieces, with a ping and a pong between */
    ws_frame(&in, 0x89, "hi", 2);
    ws_frame(&in, 0x00, "", 0);
    ws_frame(&in, 0x8a, "", 0);
    ws_frame(&in, 0x80, "3", 1);
    ws_frame(&in, 0x01, "\xe2\x82", 2); /* a character in two pieces */
    ws_frame(&in, 0x80, "\xac", 1);
    ws_frame(&in, 0x81, "", 0);
    for (size_t step = 0; step < 9; step++) {
        struct ws_peer p;
        cr_assert_eq(run_bytes(&p, &in, step), 0);
        cr_expect_eq(p.binary.len, sizeof big + 3);
        cr_expect(memcmp(p.binary.data + sizeof big, "123", 3) == 0);
        cr_expect_str_eq(p.texts.data, "{\"type\":\"x\"}\n\xe2\x82\xac\n\n");
        cr_expect(p.out.len == 4 && memcmp(p.out.data, "\x8a\x02hi", 4) == 0, "one pong");
        cr_expect(!sg_ws_is_deaf(p.ws) && !sg_ws_is_sending(p.ws));
        ws_peer_finish(&p);
    }
    sg_buf_finish(&in);
}

Test(ws, what_is_sent)
{
    static char big[70000];
    struct sg_buf in;
    struct ws_peer p;
    sg_buf_init(&in, 100);
    cr_assert_eq(run_bytes(&p, &in, 0), 0);
    cr_assert_eq(sg_ws_send_text(p.ws, "hello", 5), 0);
    cr_assert_eq(sg_ws_send_binary(p.ws, big, sizeof big), 0);
    cr_assert_eq(sg_ws_ping(p.ws), 0);
    sg_ws_close(p.ws, 4001, "enough");
    sg_ws_close(p.ws, 1000, "again");
    cr_expect_eq(sg_ws_send_text(p.ws, "late", 4), -1);
    p.room = 10;
    cr_expect_eq(sg_ws_write(p.ws), 1);
    cr_expect(sg_ws_is_sending(p.ws));
    p.room = SIZE_MAX;
    cr_expect_eq(sg_ws_write(p.ws), 0);
    cr_expect_eq(ws_peer_close_code(&p), 4001);
    cr_expect(memcmp(p.out.data + p.out.len - 6, "enough", 6) == 0, "it comes last");
    cr_expect_eq(p.out.len, 2 + (2 + 5) + (10 + sizeof big) + (2 + 8));
    cr_expect(!sg_ws_is_over(p.ws), "until the peer has closed, too");
    ws_frame(&in, 0x82, "ignored", 7);
    ws_frame(&in, 0x88, "\x03\xe8", 2);
    p.in = (const unsigned char *)in.data;
    p.in_len = in.len;
    cr_expect_eq(ws_peer_run(&p), 0);
    cr_expect(sg_ws_is_over(p.ws) && sg_ws_is_closed_by_peer(p.ws) && p.binary.len == 0);
    ws_peer_finish(&p);
    sg_buf_finish(&in);
}

Test(ws, the_peer_closes)
{
    struct sg_buf in;
    struct ws_peer p;
    sg_buf_init(&in, 100);
    ws_frame(&in, 0x88, "\x0f\xa1" "bye", 5);
    ws_frame(&in, 0x82, "late", 4);
    cr_assert_eq(run_bytes(&p, &in, 0), 0);
    cr_expect(sg_ws_is_over(p.ws) && sg_ws_is_closed_by_peer(p.ws));
    cr_expect_eq(ws_peer_close_code(&p), 4001);
    cr_expect_eq(p.binary.len, 0U);
    ws_peer_finish(&p);
    in.len = 0;
    p = (struct ws_peer){.eof = true};
    ws_peer_start(&p);
    cr_expect_eq(ws_peer_run(&p), -1, "leaves without a word");
    ws_peer_finish(&p);
    sg_buf_finish(&in);
}

#define BYTES(s) s, sizeof s - 1
#define M "\0\0\0\0"

Test(ws, rules_that_are_broken)
{
    static const struct {
        const char *bytes;
        size_t len;
        int code;
    } bad[] = {
        {BYTES("\x82\x01x"), 1002},                                /* no mask */
        {BYTES("\xc2\x81" M "x"), 1002},                           /* reserved bits */
        {BYTES("\x83\x81" M "x"), 1002},                           /* unknown opcodes */
        {BYTES("\x8b\x80" M), 1002},
        {BYTES("\x09\x80" M), 1002},                               /* a ping in pieces, */
        {BYTES("\x89\xfe\x00\x7e" M), 1002},                       /* or too long */
        {BYTES("\x80\x81" M "x"), 1002},                           /* goes on with nothing */
        {BYTES("\x02\x81" M "x\x82\x81" M "y"), 1002},             /* begins within a message */
        {BYTES("\x82\xfe\x00\x05" M "xxxxx"), 1002},               /* a length in more bytes than it needs */
        {BYTES("\x82\xff\0\0\0\0\0\0\xff\xff" M), 1002},
        {BYTES("\x82\xff\x80\0\0\0\0\0\0\0" M), 1002},             /* a negative one */
        {BYTES("\x82\xff\x00\x00\x00\x00\x01\x00\x00\x01" M "x"), 1009},
        {BYTES("\x81\x81" M "\xff"), 1007},                        /* no UTF-8 */
        {BYTES("\x81\x82" M "\xc0\xaf"), 1007},
        {BYTES("\x81\x83" M "\xed\xa0\x80"), 1007},
        {BYTES("\x81\x82" M "\xe2\x82"), 1007},                    /* cut */
        {BYTES("\x88\x82" M "\x03\xed"), 1002},                    /* codes that may not be sent */
        {BYTES("\x88\x82" M "\x00\x00"), 1002},
    };
    for (size_t i = 0; i < SG_COUNT_OF(bad); i++) {
        for (size_t step = 0; step < 3; step++) {
            struct ws_peer p = {.in = (const unsigned char *)bad[i].bytes, .in_len = bad[i].len, .step = step};
            ws_peer_start(&p);
            cr_assert_eq(ws_peer_run(&p), 0, "case %zu", i);
            cr_expect_eq(ws_peer_close_code(&p), bad[i].code, "case %zu: %d", i, ws_peer_close_code(&p));
            cr_expect(sg_ws_is_deaf(p.ws) && !sg_ws_is_sending(p.ws) && p.n_texts == 0);
            ws_peer_finish(&p);
        }
    }
}

Test(ws, texts_have_a_limit)
{
    static char text[SG_WS_TEXT_MAX + 1];
    struct sg_buf in;
    struct ws_peer p;
    memset(text, 't', sizeof text);
    sg_buf_init(&in, 1 << 20);
    ws_frame(&in, 0x81, text, SG_WS_TEXT_MAX);
    cr_assert_eq(run_bytes(&p, &in, 0), 0);
    cr_expect(p.n_texts == 1 && p.texts.len == SG_WS_TEXT_MAX + 1 && !sg_ws_is_deaf(p.ws));
    ws_peer_finish(&p);
    in.len = 0;
    ws_frame(&in, 0x81, text, sizeof text);
    cr_assert_eq(run_bytes(&p, &in, 0), 0);
    cr_expect(p.n_texts == 0 && ws_peer_close_code(&p) == 1009 && sg_ws_is_deaf(p.ws));
    ws_peer_finish(&p);
    in.len = 0;
    ws_frame(&in, 0x01, text, 1);
    for (int i = 0; i < 100; i++)
        ws_frame(&in, 0x00, text, 100);
    cr_assert_eq(run_bytes(&p, &in, 7), 0);
    cr_expect(p.n_texts == 0 && ws_peer_close_code(&p) == 1009);
    ws_peer_finish(&p);
    sg_buf_finish(&in);
}

Test(ws, nothing_is_read_while_much_waits_to_be_sent)
{
    struct sg_buf in;
    struct ws_peer p;
    sg_buf_init(&in, 4 << 20);
    for (int i = 0; i < 100000; i++)
        ws_frame(&in, 0x89, "", 0);
    p = (struct ws_peer){.in = (const unsigned char *)in.data, .in_len = in.len};
    ws_peer_start(&p);
    p.room = 0;
    cr_expect_eq(ws_peer_run(&p), 0);
    cr_expect(sg_ws_is_full(p.ws));
    cr_expect_leq(p.in_at, 8192U, "%zu", p.in_at);
    p.room = SIZE_MAX;
    cr_expect_eq(ws_peer_run(&p), 0);
    cr_expect(p.in_at == in.len && p.out.len == 200000 && !sg_ws_is_full(p.ws));
    ws_peer_finish(&p);
    sg_buf_finish(&in);
}
