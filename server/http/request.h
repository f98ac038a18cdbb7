/* One HTTP request, as handlers see it.
 *
 * Reference counted; everything read from it stays valid, unchanged and readable from any thread as long as a
 * reference is held, also when the client is long gone. Strings are borrowed from it.
 */
#ifndef SG_REQUEST_H
#define SG_REQUEST_H

#include "base/cancel.h"
#include "base/error.h"
#include "base/pipe.h"
#include "http/router.h"
#include "model/principal.h"

struct sg_request;

struct sg_request *sg_req_ref(struct sg_request *r);
/* NULL-safe, returns NULL. The last reference going without an answer answers 500. */
struct sg_request *sg_req_unref(struct sg_request *r);
/* sg_req_unref through a pointer, for sg_cleanup. */
void sg_req_p(struct sg_request **r);

const char *sg_req_method(const struct sg_request *r);
bool sg_req_is_head(const struct sg_request *r);
const struct sg_route *sg_req_route(const struct sg_request *r);
/* The caller's X-Request-Id if it is sane, else one of ours. */
const char *sg_req_id(const struct sg_request *r);
/* A well-formed W3C traceparent the caller sent, or NULL. */
const char *sg_req_traceparent(const struct sg_request *r);
/* Peer address without port ("127.0.0.1", IPv4-mapped ones as IPv4), "" when unknown. */
const char *sg_req_peer(const struct sg_request *r);
/* "1.1" or "1.0". */
const char *sg_req_version(const struct sg_request *r);

/* The target as it came: path and query, byte for byte. */
const char *sg_req_raw_target(const struct sg_request *r);
/* The bytes behind '?', or NULL when there is none. */
const char *sg_req_raw_query(const struct sg_request *r);
/* A decoded path parameter (never empty, no '/', NUL, "." or ".."), or the raw bytes of the tail (may be empty, has
 * no leading '/'). NULL: the route has none of that name. */
const char *sg_req_param(const struct sg_request *r, const char *name);
/* A decoded query parameter ("" for `?name` and `?name=`), or NULL. */
const char *sg_req_query(const struct sg_request *r, const char *name);
/* A query parameter as integer. 1: *ret set; 0: absent; -1: SG_INVALID_REQUEST with field. */
int sg_req_query_int(const struct sg_request *r, const char *name, int64_t min, int64_t max, int64_t *ret,
                     struct sg_error *err);
/* "1", "true", "" are true, "0", "false" are false. As above. */
int sg_req_query_bool(const struct sg_request *r, const char *name, bool *ret, struct sg_error *err);

/* A header's value, or NULL when it is absent or was sent more than once. */
const char *sg_req_header(const struct sg_request *r, const char *name);
struct sg_header {
    const char *name;
    const char *value;
};
/* Every header line in order, duplicates included. */
const struct sg_header *sg_req_headers(const struct sg_request *r, size_t *ret_n);

/* The buffered body of a JSON route, NUL-terminated; "" and 0 when there was none. */
const char *sg_req_body(const struct sg_request *r, size_t *ret_len);
/* The handler has what it needs of the body: its memory is free for others from here on. */
void sg_req_drop_body(struct sg_request *r);
/* What Content-Length said, -1 for a chunked body, 0 without one. */
int64_t sg_req_content_length(const struct sg_request *r);
/* The body of a STREAM route. Nothing is read from the client (no "100 Continue" either) before the first
 * call of this, so a handler can refuse first. Call it from any thread, before or instead of answering; borrowed.
 * The pipe is full when the caller should slow down, closed at the end of the body, failed when the client goes
 * away or breaks the rules. Stop it (sg_pipe_stop) to drop the rest. */
struct sg_pipe *sg_req_body_pipe(struct sg_request *r);

/* The trailers of a chunked body, once its pipe has ended; none before that. Borrowed, in order, duplicates included. */
const struct sg_header *sg_req_trailers(const struct sg_request *r, size_t *ret_n);

/* Who calls; NULL on SG_AUTH_NONE routes until sg_req_authenticate(). */
const struct sg_principal *sg_req_principal(const struct sg_request *r);
/* Does on request what SG_AUTH_TENANT does before the handler. In the handler only. */
int sg_req_authenticate(struct sg_request *r, struct sg_error *err);

/* Fires with SG_CANCEL_HANGUP when the client goes away before its answer is complete (closing only its sending side
 * counts, once the request has waited or streamed), with SG_CANCEL_SHUTDOWN when the server stops. An answer is still
 * owed then (it is thrown away). Borrowed. */
struct sg_cancel *sg_req_cancel(struct sg_request *r);

/* fn is called once, when the exchange is over: delivered says that the whole answer was handed over while the client was still there.
 * Maybe before this returns. At most one per request, before answering; fn must not block. */
void sg_req_on_end(struct sg_request *r, void (*fn)(void *arg, bool delivered), void *arg);

/* A word or two for the completion hook (a lease id, say): copied, at most 63 bytes. Any thread, before answering. */
void sg_req_set_note(struct sg_request *r, const char *note);

#endif
