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

void sg_sha1(const void *data, size_t len, uint8_t out[SG_SHA1_LEN])
{
    if (EVP_Digest(data, len, out, NULL, EVP_sha1(), NULL) != 1) {
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
