/* Digests, MACs and encodings, over OpenSSL. */
#ifndef SG_HASH_H
#define SG_HASH_H

#include "base/base64.h"

#define SG_SHA256_LEN 32
#define SG_SHA256_HEX 65 /* with NUL */

#define SG_SHA1_LEN 20

void sg_sha256(const void *data, size_t len, uint8_t out[SG_SHA256_LEN]);
void sg_sha256_hex(const void *data, size_t len, char out[SG_SHA256_HEX]);
/* For the handshake of WebSockets, which asks for it; secures nothing. */
void sg_sha1(const void *data, size_t len, uint8_t out[SG_SHA1_LEN]);
/* SHA-256 of bytes that come piece by piece. One thread at a time. NULL: no memory. */
struct sg_sha256_stream;
struct sg_sha256_stream *sg_sha256_begin(void);
void sg_sha256_add(struct sg_sha256_stream *s, const void *data, size_t len);
void sg_sha256_end(struct sg_sha256_stream *s, char out[SG_SHA256_HEX]); /* once, after the last piece */
struct sg_sha256_stream *sg_sha256_free(struct sg_sha256_stream *s);     /* NULL-safe, returns NULL */
void sg_hmac_sha256(const void *key, size_t key_len, const void *data, size_t len, uint8_t out[SG_SHA256_LEN]);
void sg_hex(const uint8_t *data, size_t len, char *out /* 2 * len + 1 */);
/* Lower- or upper-case hex of exactly out_len bytes; false when malformed. */
bool sg_unhex(const char *hex, uint8_t *out, size_t out_len);
bool sg_equal_const_time(const void *a, const void *b, size_t len);

/* Cryptographic random bytes; aborts if the kernel has none. */
void sg_random(void *out, size_t len);

#endif
