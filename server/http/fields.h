/* The header fields that files need: entity tags, dates, digests, file names. Pure; any thread. */
#ifndef SG_FIELDS_H
#define SG_FIELDS_H

#include "model/file.h"

/* If-Match: "*" or a list of entity tags (RFC 9110 13.1.1). Weak tags and tags that no file here can have never match. -1:
 * SG_INVALID_REQUEST with field. */
int sg_field_if_match(const char *text, struct sg_condition *ret, struct sg_error *err);
/* If-None-Match likewise; a weak tag counts as the tag itself. */
int sg_field_if_none_match(const char *text, struct sg_condition *ret, struct sg_error *err);
/* Is this If-Range the strong tag of st? A date never is, it is too coarse. */
bool sg_field_if_range(const char *text, const struct sg_file_stat *st);

struct sg_byte_range {
    uint64_t first, len;
    bool partial; /* false: the whole file */
};
/* Range (NULL: none) of a file of `size` bytes: a single byte range; other forms are ignored, as RFC 9110 14.2 lets a server. -1:
 * SG_RANGE_NOT_SATISFIABLE. */
int sg_field_range(const char *text, uint64_t size, struct sg_byte_range *ret, struct sg_error *err);

/* "Sun, 06 Nov 1994 08:49:37 GMT". */
#define SG_HTTP_DATE_LEN 32
void sg_field_date(int64_t seconds, char out[SG_HTTP_DATE_LEN]);
/* The preferred form only; false for others, which are to be ignored. */
bool sg_field_date_parse(const char *text, int64_t *ret_seconds);

struct sg_digests;
/* Repr-Digest or Content-Digest (RFC 9530): adds what it says to ret; unknown algorithms are skipped. -1: SG_INVALID_REQUEST with
 * `name` as the field when it is malformed or says something else than ret already does. */
int sg_field_digest(const char *name, const char *text, struct sg_digests *ret, struct sg_error *err);

/* Want-Repr-Digest: marks in ret as given the algorithm that the caller likes best of those we have; none when there is none or
 * the text is malformed, since it is only a wish. */
void sg_field_want_digest(const char *text, struct sg_digests *ret);
/* `sha-256=:BASE64:` for what is given. Caller frees. */
char *sg_field_digest_text(const struct sg_digests *d);

/* `attachment; filename="..."; filename*=UTF-8''...` (RFC 6266) for the last component of path. Caller frees. */
char *sg_field_disposition(const char *path, const char *suffix);

/* A copy of bytes with all but unreserved characters and '/' as %XX. Caller frees. */
char *sg_percent_encode(const char *bytes, size_t len);

#endif
