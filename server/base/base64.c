#include "base/base64.h"

#include <openssl/evp.h>

size_t sg_base64_length(size_t len)
{
    return (len + 2) / 3 * 4;
}

#if defined(__x86_64__)
#include <immintrin.h>

/* The output of commands is encoded as fast as they write it, which the library's table, a character at a time, cannot do: 24 bytes
 * become 32 characters here. The last bytes are left to the library; returns how many bytes were taken. */
__attribute__((target("avx2"))) static size_t encode_wide(const unsigned char *p, size_t len, char *out)
{
    /* In each lane, three bytes abc become the four bytes bacb: as two little-endian words, all bits of two characters in each. */
    const __m256i spread = _mm256_setr_epi8(1, 0, 2, 1, 4, 3, 5, 4, 7, 6, 8, 7, 10, 9, 11, 10, 1, 0, 2, 1, 4, 3, 5, 4, 7, 6, 8, 7, 10, 9, 11, 10);
    /* What to add to a value to get its character: by class 0 (26..51, a-z), 1..10 (52..61, digits), 11 (+), 12 (/), 13 (0..25, A-Z). */
    const __m256i offsets = _mm256_setr_epi8(71, -4, -4, -4, -4, -4, -4, -4, -4, -4, -4, -19, -16, 65, 0, 0, 71, -4, -4, -4, -4, -4, -4, -4, -4,
                                             -4, -4, -19, -16, 65, 0, 0);
    size_t done = 0;

    for (; len - done >= 28; done += 24, out += 32) { /* the second load reads four bytes more than it uses */
        __m128i low = _mm_loadu_si128((const __m128i *)(const void *)(p + done));
        __m128i high = _mm_loadu_si128((const __m128i *)(const void *)(p + done + 12));
        __m256i in = _mm256_shuffle_epi8(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1), spread);
        /* Shifts of single words by multiplication: the first and third character come down, the second and fourth go up. */
        __m256i odd = _mm256_mulhi_epu16(_mm256_and_si256(in, _mm256_set1_epi32(0x0fc0fc00)), _mm256_set1_epi32(0x04000040));
        __m256i even = _mm256_mullo_epi16(_mm256_and_si256(in, _mm256_set1_epi32(0x003f03f0)), _mm256_set1_epi32(0x01000010));
        __m256i values = _mm256_or_si256(odd, even);
        __m256i capital = _mm256_and_si256(_mm256_cmpgt_epi8(_mm256_set1_epi8(26), values), _mm256_set1_epi8(13));
        __m256i class = _mm256_or_si256(_mm256_subs_epu8(values, _mm256_set1_epi8(51)), capital);
        _mm256_storeu_si256((__m256i *)(void *)out, _mm256_add_epi8(_mm256_shuffle_epi8(offsets, class), values));
    }
    return done;
}

static bool is_wide(void)
{
    return __builtin_cpu_supports("avx2") != 0;
}
#else
static size_t encode_wide(const unsigned char *p, size_t len, char *out)
{
    (void)p;
    (void)len;
    (void)out;
    return 0;
}

static bool is_wide(void)
{
    return false;
}
#endif

/* The library adds a NUL, for which there may be no room: the last group goes through a place of its own. */
static void encode_rest(const unsigned char *p, size_t len, unsigned char *out)
{
    unsigned char last[5];

    while (len > 3) {
        size_t piece = len - 1 < 3U << 24 ? (len - 1) / 3 * 3 : 3U << 24; /* it counts in int */
        unsigned char first = out[piece / 3 * 4];
        out += EVP_EncodeBlock(out, p, (int)piece);
        *out = first;
        p += piece;
        len -= piece;
    }
    if (len > 0) {
        (void)EVP_EncodeBlock(last, p, (int)len);
        memcpy(out, last, 4);
    }
}

void sg_base64_encode_to(const void *data, size_t len, char *out)
{
    size_t done = is_wide() && len >= 28 ? encode_wide(data, len, out) : 0;

    encode_rest((const unsigned char *)data + done, len - done, (unsigned char *)out + done / 3 * 4);
}

char *sg_base64_encode(const void *data, size_t len, size_t *ret_len)
{
    if (len > SIZE_MAX / 2) {
        return NULL;
    }
    size_t out_len = sg_base64_length(len);
    char *out = malloc(out_len + 1);
    if (out == NULL) {
        return NULL;
    }
    sg_base64_encode_to(data, len, out);
    out[out_len] = '\0';
    if (ret_len != NULL) {
        *ret_len = out_len;
    }
    return out;
}

static int base64_digit(char c)
{
    return c >= 'A' && c <= 'Z' ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

/* The last group may be padded; its unused bits must be zero, so that every value has one spelling. */
static int decode_group(const char *g, bool last, uint8_t *out)
{
    int v[4];
    int bytes = 3;
    for (int i = 0; i < 4; i++) {
        v[i] = base64_digit(g[i]);
    }
    if (last && g[3] == '=') {
        bytes = g[2] == '=' ? 1 : 2;
        v[3] = 0;
        v[2] = bytes == 1 ? 0 : v[2];
    }
    if (v[0] < 0 || v[1] < 0 || v[2] < 0 || v[3] < 0) {
        return -1;
    }
    uint32_t word = (uint32_t)v[0] << 18 | (uint32_t)v[1] << 12 | (uint32_t)v[2] << 6 | (uint32_t)v[3];
    if ((bytes == 1 && (word & 0xffff) != 0) || (bytes == 2 && (word & 0xff) != 0)) {
        return -1;
    }
    for (int i = 0; i < bytes; i++) {
        out[i] = (uint8_t)(word >> (16 - 8 * i));
    }
    return bytes;
}

int sg_base64_decode(const char *text, size_t len, size_t cap, uint8_t **ret, size_t *ret_len,
                     struct sg_error *err)
{
    if (len % 4 != 0) {
        return sg_error_set(err, SG_INVALID_REQUEST, "base64: the length is not a multiple of four");
    }
    size_t most = len / 4 * 3;
    if (most > cap && most - cap > 2) {
        return sg_error_set(err, SG_PAYLOAD_TOO_LARGE, "base64: more than %zu bytes", cap);
    }
    sg_cleanup(sg_free_p) uint8_t *out = malloc(most + 1);
    if (out == NULL) {
        return sg_error_set(err, SG_NO_MEMORY, "base64: out of memory");
    }
    size_t n = 0;
    for (size_t i = 0; i < len; i += 4) {
        int bytes = decode_group(text + i, i + 4 == len, out + n);
        if (bytes < 0) {
            return sg_error_set(err, SG_INVALID_REQUEST, "base64: not valid at offset %zu", i);
        }
        n += (size_t)bytes;
    }
    if (n > cap) {
        return sg_error_set(err, SG_PAYLOAD_TOO_LARGE, "base64: more than %zu bytes", cap);
    }
    out[n] = 0;
    *ret_len = n;
    *ret = sg_steal(&out);
    return 0;
}
