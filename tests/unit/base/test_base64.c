#include <criterion/criterion.h>
#include <openssl/evp.h>

#include "base/base64.h"
#include "base/hash.h"

/* As the library has it, from memory of exactly the right size to memory of exactly the right size. */
static void same(const uint8_t *data, size_t len)
{
    uint8_t *in = malloc(len + 1);
    char *out = malloc(sg_base64_length(len) + 1);
    unsigned char *want = malloc(sg_base64_length(len) + 1);
    memcpy(in + 1, data, len); /* unaligned */
    out[sg_base64_length(len)] = '#';
    sg_base64_encode_to(in + 1, len, out);
    cr_assert_eq(out[sg_base64_length(len)], '#', "length %zu", len);
    cr_assert_eq(EVP_EncodeBlock(want, data, (int)len), (int)sg_base64_length(len));
    cr_assert(memcmp(out, want, sg_base64_length(len)) == 0, "length %zu", len);
    free(in);
    free(out);
    free(want);
}

Test(base64, every_length_and_every_value)
{
    uint8_t data[4096];
    sg_random(data, sizeof data);
    for (size_t len = 0; len < 300; len++)
        same(data, len);
    same(data, sizeof data);
    for (size_t i = 0; i < sizeof data; i++) /* each of the 64 characters at each place of a group, twice over */
        data[i] = (uint8_t)(i * 5 + i / 256);
    same(data, sizeof data);
    for (unsigned v = 0; v < 64; v++) {
        uint32_t word = v << 18 | v << 12 | v << 6 | v;
        for (size_t i = 0; i + 3 <= sizeof data; i += 3) {
            data[i] = (uint8_t)(word >> 16);
            data[i + 1] = (uint8_t)(word >> 8);
            data[i + 2] = (uint8_t)word;
        }
        same(data, 96);
    }
}

Test(base64, round_trip)
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

Test(base64, is_strict)
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
