#include <criterion/criterion.h>

#include "base/hash.h"

Test(hash, known_digests)
{
    char hex[SG_SHA256_HEX];
    sg_sha256_hex("abc", 3, hex);
    cr_assert_str_eq(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    uint8_t mac[SG_SHA256_LEN];
    sg_hmac_sha256("Jefe", 4, "what do ya want for nothing?", 28, mac); /* RFC 4231, case 2 */
    sg_hex(mac, sizeof mac, hex);
    cr_assert_str_eq(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

Test(hash, unhex)
{
    uint8_t out[2] = {0};
    cr_assert(sg_unhex("0aFf", out, 2));
    cr_assert(out[0] == 0x0a && out[1] == 0xff);
    cr_assert_not(sg_unhex("0aF", out, 2));
    cr_assert_not(sg_unhex("0aFf0", out, 2));
    cr_assert_not(sg_unhex("0aFg", out, 2));
    cr_assert_not(sg_unhex("", out, 2));
    cr_assert(sg_equal_const_time("abc", "abd", 2));
    cr_assert_not(sg_equal_const_time("abc", "abd", 3));
}

Test(hash, base64_round_trip)
{
    uint8_t data[300];
    sg_random(data, sizeof data);
    for (size_t len = 0; len <= sizeof data; len++) {
        size_t text_len = 0, back_len = 0;
        char *text = sg_base64_encode(data, len, &text_len);
        uint8_t *back = NULL;
        cr_assert_eq(strlen(text), text_len);
        cr_assert_eq(sg_base64_decode(text, text_len, len, &back, &back_len, NULL), 0, "length %zu", len);
        cr_assert(back_len == len && memcmp(back, data, len) == 0);
        if (len > 0) {
            cr_assert_eq(sg_base64_decode(text, text_len, len - 1, &back, &back_len, NULL), -1);
        }
        free(text);
        free(back);
    }
}

Test(hash, base64_is_strict)
{
    static const char *const bad[] = {"a", "ab", "abc", "ab==ab==", "a===", "====", "ab=c", "ab c", "abc\n", "ab-_", "ab==\n", "ab\x80="};
    for (size_t i = 0; i < SG_COUNT_OF(bad); i++) {
        uint8_t *out = NULL;
        size_t len = 0;
        struct sg_error err = {0};
        cr_expect_eq(sg_base64_decode(bad[i], strlen(bad[i]), 100, &out, &len, &err), -1, "\"%s\"", bad[i]);
        cr_expect_eq(err.code, SG_INVALID_REQUEST);
    }
    uint8_t *out = NULL;
    size_t len = 0;
    cr_assert_eq(sg_base64_decode("aQ==", 4, 1, &out, &len, NULL), 0);
    cr_assert(len == 1 && out[0] == 'i');
    free(out);
    struct sg_error err = {0};
    cr_assert_eq(sg_base64_decode("aR==", 4, 1, &out, &len, NULL), -1, "unused bits are not zero");
    cr_assert_eq(sg_base64_decode("aaaaaaaa", 8, 3, &out, &len, &err), -1);
    cr_assert_eq(err.code, SG_PAYLOAD_TOO_LARGE);
}

Test(hash, a_digest_of_pieces_is_that_of_the_whole)
{
    struct sg_sha256_stream *s = sg_sha256_begin();
    char of_pieces[SG_SHA256_HEX], whole[SG_SHA256_HEX];
    cr_assert_not_null(s);
    sg_sha256_add(s, "pie", 3);
    sg_sha256_add(s, "", 0);
    sg_sha256_add(s, "ces", 3);
    sg_sha256_end(s, of_pieces);
    cr_expect_null(sg_sha256_free(s));
    sg_sha256_hex("pieces", 6, whole);
    cr_expect_str_eq(of_pieces, whole);
}
