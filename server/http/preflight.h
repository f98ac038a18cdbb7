/* What a request must look like before anything is done with it: framing, names, values, Host, target.
 * Pure: no sockets, no parser types; any thread.
 *
 * The parser below lets several shapes through that another hop may read differently (request smuggling); they
 * end here.
 */
#ifndef SG_PREFLIGHT_H
#define SG_PREFLIGHT_H

#include "base/error.h"
#include "http/request.h"

#define SG_TARGET_MAX 16384 /* a path of 4095 bytes in a sandbox, all of them escaped, has room */
#define SG_HEADERS_MAX 100
#define SG_HEADERS_BYTES_MAX ((size_t)20 * 1024) /* of names and values together */

struct sg_head {
    const char *method;
    const char *version; /* "HTTP/1.1" */
    const char *target;
    const struct sg_header *headers;
    size_t n_headers;
};

struct sg_framing {
    bool chunked;
    bool expect_continue;
    bool has_length;
    uint64_t length; /* of Content-Length */
};

/* 0 and *ret, or -1: the connection must be closed after this answer, since where the next request begins is open
 * to dispute. */
int sg_preflight_head(const struct sg_head *head, struct sg_framing *ret, struct sg_error *err);

/* Origin form only: no blanks, no control characters, no fragment, at most SG_TARGET_MAX bytes. *ret_path_len: bytes before '?'. "*"
 * is let through for OPTIONS. *ret_odd: where there is the first malformed escape, %00 or byte that is not ASCII (SIZE_MAX: nowhere). We
 * read no target with one of these, but what is only passed on may have them. */
int sg_preflight_target(const char *method, const char *target, size_t *ret_path_len, size_t *ret_odd, struct sg_error *err);
/* Says what is wrong at `at`; returns -1. */
int sg_preflight_odd(const char *target, size_t at, struct sg_error *err);

/* Is it fit to be a header value we send or pass on (no CTL but tab)? */
bool sg_header_value_ok(const char *value);
/* An RFC 9110 token of at least one character? */
bool sg_token_ok(const char *s, size_t len);

#endif
