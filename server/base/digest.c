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

static void end(EVP_MD_CTX *c, uint8_t *ret)
{
    if (c != NULL && EVP_DigestFinal_ex(c, ret, NULL) != 1) {
        abort();
    }
}

void sg_digester_result(struct sg_digester *d, struct sg_digests *ret)
{
    *ret = (struct sg_digests){.sha256_given = d->sha256 != NULL, .sha512_given = d->sha512 != NULL};
    end(d->sha256, ret->sha256);
    end(d->sha512, ret->sha512);
}

int sg_digester_check(struct sg_digester *d, struct sg_error *err)
{
    if (d == NULL) {
        return 0;
    }
    struct sg_digests is;
    sg_digester_result(d, &is);
    if ((!is.sha256_given || memcmp(is.sha256, d->wanted.sha256, sizeof is.sha256) == 0) &&
        (!is.sha512_given || memcmp(is.sha512, d->wanted.sha512, sizeof is.sha512) == 0)) {
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
