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
