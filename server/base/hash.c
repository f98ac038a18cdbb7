#include "base/hash.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

void sg_sha256(const void *data, size_t len, uint8_t out[SG_SHA256_LEN])
{
    if (EVP_Digest(data, len, out, NULL, EVP_sha256(), NULL) != 1) {
        abort();
    }
}

void sg_sha256_hex(const void *data, size_t len, char out[SG_SHA256_HEX])
{
    uint8_t digest[SG_SHA256_LEN];
    sg_sha256(data, len, digest);
    sg_hex(digest, sizeof digest, out);
}

/* An EVP_MD_CTX under another name. Hashing fails only for lack of memory at the start. */
struct sg_sha256_stream *sg_sha256_begin(void)
{
    EVP_MD_CTX *c = EVP_MD_CTX_new();

    if (c && EVP_DigestInit_ex(c, EVP_sha256(), NULL) == 1)
        return (struct sg_sha256_stream *)(void *)c;
    EVP_MD_CTX_free(c);
    return NULL;
}

void sg_sha256_add(struct sg_sha256_stream *s, const void *data, size_t len)
{
    if (EVP_DigestUpdate((EVP_MD_CTX *)(void *)s, data, len) != 1)
        abort();
}

void sg_sha256_end(struct sg_sha256_stream *s, char out[SG_SHA256_HEX])
{
    uint8_t digest[SG_SHA256_LEN];

    if (EVP_DigestFinal_ex((EVP_MD_CTX *)(void *)s, digest, NULL) != 1)
        abort();
    sg_hex(digest, sizeof digest, out);
}

struct sg_sha256_stream *sg_sha256_free(struct sg_sha256_stream *s)
{
    EVP_MD_CTX_free((EVP_MD_CTX *)(void *)s);
    return NULL;
}

void sg_hmac_sha256(const void *key, size_t key_len, const void *data, size_t len, uint8_t out[SG_SHA256_LEN])
{
    if (key_len > INT32_MAX || HMAC(EVP_sha256(), key, (int)key_len, data, len, out, NULL) == NULL) {
        abort();
    }
}

void sg_hex(const uint8_t *data, size_t len, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < len; i++) {
        *out++ = digits[data[i] >> 4];
        *out++ = digits[data[i] & 15];
    }
    *out = '\0';
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool sg_unhex(const char *hex, uint8_t *out, size_t out_len)
{
    for (size_t i = 0; i < out_len; i++) {
        int high = hex_digit(hex[2 * i]);
        int low = high < 0 ? -1 : hex_digit(hex[2 * i + 1]);
        if (low < 0) {
            return false;
        }
        out[i] = (uint8_t)(high << 4 | low);
    }
    return hex[2 * out_len] == '\0';
}

bool sg_equal_const_time(const void *a, const void *b, size_t len)
{
    return CRYPTO_memcmp(a, b, len) == 0;
}

char *sg_base64_encode(const void *data, size_t len, size_t *ret_len)
{
    if (len > SIZE_MAX / 2) {
        return NULL;
    }
    size_t out_len = (len + 2) / 3 * 4;
    char *out = malloc(out_len + 1);
    if (out == NULL) {
        return NULL;
    }
    out[0] = '\0';
    const unsigned char *p = data;
    unsigned char *q = (unsigned char *)out;
    while (len > 0) {
        size_t piece = len < 3U << 24 ? len : 3U << 24; /* the library counts in int */
        q += EVP_EncodeBlock(q, p, (int)piece);
        p += piece;
        len -= piece;
    }
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

void sg_random(void *out, size_t len)
{
    uint8_t *p = out;
    while (len > 0) {
        ssize_t n = getrandom(p, len, 0);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            abort();
        }
        p += n;
        len -= (size_t)n;
    }
}
