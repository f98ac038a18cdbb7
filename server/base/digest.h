/* Digests of bytes that come piece by piece, and what they should be. */
#ifndef SG_DIGEST_H
#define SG_DIGEST_H

#include "base/error.h"
#include "base/hash.h"

#define SG_SHA512_LEN 64

struct sg_digests {
    bool sha256_given, sha512_given;
    uint8_t sha256[SG_SHA256_LEN];
    uint8_t sha512[SG_SHA512_LEN];
};

/* Computes the digests that are given, and compares them at the end or tells them. One thread at a time. */
struct sg_digester;
/* NULL when none is given. */
struct sg_digester *sg_digester_new(const struct sg_digests *wanted);
void sg_digester_add(struct sg_digester *d, const void *data, size_t len); /* NULL-safe */
/* What they are: the same ones are given in *ret. Once, instead of check. */
void sg_digester_result(struct sg_digester *d, struct sg_digests *ret);
/* 0, or -1 with SG_INVALID_REQUEST and reason digest_mismatch. Once. NULL-safe. */
int sg_digester_check(struct sg_digester *d, struct sg_error *err);
struct sg_digester *sg_digester_free(struct sg_digester *d); /* NULL-safe, returns NULL */

#endif
