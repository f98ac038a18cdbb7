#include "base/digest.h"

#include <openssl/evp.h>

struct sg_digester {
    struct sg_digests wanted;
    EVP_MD_CTX *sha256, *sha512; /* NULL: not wanted */
};

static EVP_MD_CTX *start(const EVP_MD *kind)
{
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    if (c == NULL || EVP_DigestInit_ex(c, kind, NULL) != 1) {
        abort();
    }
    return c;
}

struct sg_digester *sg_digester_new(const struct sg_digests *wanted)
{
    if (!wanted->sha256_given && !wanted->sha512_given) {
        return NULL;
    }
    struct sg_digester *d = sg_xcalloc(1, sizeof *d);
    d->wanted = *wanted;
    d->sha256 = wanted->sha256_given ? start(EVP_sha256()) : NULL;
    d->sha512 = wanted->sha512_given ? start(EVP_sha512()) : NULL;
    return d;
}

static void add(EVP_MD_CTX *c, const void *data, size_t len)
{
    if (c != NULL && EVP_DigestUpdate(c, data, len) != 1) {
        abort();
    }
}

void sg_digester_add(struct sg_digester *d, const void *data, size_t len)
{
    if (d != NULL) {
        add(d->sha256, data, len);
        add(d->sha512, data, len);
    }
}

static bool right(EVP_MD_CTX *c, const uint8_t *wanted, size_t len)
{
    uint8_t is[EVP_MAX_MD_SIZE];
    if (c == NULL) {
        return true;
    }
    if (EVP_DigestFinal_ex(c, is, NULL) != 1) {
        abort();
    }
    return memcmp(is, wanted, len) == 0;
}

int sg_digester_check(struct sg_digester *d, struct sg_error *err)
{
    if (d == NULL) {
        return 0;
    }
    bool same = right(d->sha256, d->wanted.sha256, SG_SHA256_LEN) && right(d->sha512, d->wanted.sha512, SG_SHA512_LEN);
    if (same) {
        return 0;
    }
    (void)sg_error_field(err, SG_INVALID_REQUEST, "Repr-Digest", "the body that came has another digest; nothing was written");
    return sg_error_reason(err, "digest_mismatch");
}

struct sg_digester *sg_digester_free(struct sg_digester *d)
{
    if (d != NULL) {
        EVP_MD_CTX_free(d->sha256);
        EVP_MD_CTX_free(d->sha512);
        free(d);
    }
    return NULL;
}
