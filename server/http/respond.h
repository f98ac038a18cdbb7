/* Answers. Exactly one per request, from any thread, inside the handler or later, as long as a reference is held
 * (or inside the handler). A second answer is ignored and its resources are released.
 *
 * Every answer carries X-Request-Id. Bodies of HEAD requests are left out by the layer below; answer as for GET.
 */
#ifndef SG_RESPOND_H
#define SG_RESPOND_H

#include <jansson.h>

#include "base/hold.h"
#include "http/request.h"

/* Adds a header to the answer to come; copied. Call before it, from the thread that answers. Names and values that
 * could break the framing (empty, CR, LF, Content-Length, Transfer-Encoding, Connection) are left out: false. */
bool sg_respond_header(struct sg_request *r, const char *name, const char *value);

/* How many bytes of headers (names, values and four more for each) the answer may still have; above that the connection would just end. */
size_t sg_respond_room(const struct sg_request *r);

/* Compact JSON and a newline; v is stolen (NULL: 500). */
void sg_respond_json(struct sg_request *r, int status, json_t *v);
/* Bytes, copied. content_type NULL: none. */
void sg_respond_bytes(struct sg_request *r, int status, const char *content_type, const void *data, size_t len);
/* The same without the copy: data is from malloc and stolen. */
void sg_respond_owned(struct sg_request *r, int status, const char *content_type, void *data, size_t len);
/* application/problem+json, no-store, and what the status asks for besides: Retry-After on 429 and 503, ... */
void sg_respond_error(struct sg_request *r, const struct sg_error *err);
/* No body: 204, 304, 202 ... */
void sg_respond_empty(struct sg_request *r, int status);
/* len bytes of a regular file from offset; fd is stolen, and hold (may be NULL) dropped after it was closed.
 * A file that got shorter cuts the answer. */
void sg_respond_fd(struct sg_request *r, int status, const char *content_type, int fd, struct sg_hold *hold,
                   uint64_t offset, uint64_t len);
/* Ends the connection under an answer that is still on its way, so that the client sees a cut; nothing when it is complete. Any
 * thread. For answers whose source ends under them. */
void sg_respond_cut(struct sg_request *r);
/* Whatever comes out of the pipe; a reference is taken. content_length -1: unknown (chunked). The client sees a
 * cut when the pipe fails or ends early. The pipe is stopped when the client goes away. */
void sg_respond_pipe(struct sg_request *r, int status, const char *content_type, struct sg_pipe *p,
                     int64_t content_length);
/* No body either, but its length: of HEAD, and of 304, which must not say another one than the 200 would have. */
void sg_respond_length(struct sg_request *r, int status, uint64_t length);

/* A trailer for the answer out of a pipe, before that ends; copied. It goes out if the answer is chunked; what could break the framing
 * is left out. Any thread. */
void sg_respond_trailer(struct sg_request *r, const char *name, const char *value);

/* A body that is made while it is sent. */
struct sg_body_source {
    /* As sg_pipe_read, max at least 2: > 0 bytes; 0: the end; -EAGAIN: none now, the waker is called once when that changes; else the answer is
     * cut. One call at a time, on a daemon thread or the reactor; must not block. */
    ssize_t (*read)(void *arg, char *data, size_t max);
    /* Sets (NULL: removes) the waker, and calls it at once when there may be something to read. */
    void (*set_waker)(void *arg, const struct sg_waker *w);
    /* Nobody reads any more: the last call, made exactly once, also when the answer was never sent. */
    void (*close)(void *arg);
    void *arg;
};
/* Whatever comes out of the source, chunked. */
void sg_respond_source(struct sg_request *r, int status, const char *content_type, const struct sg_body_source *source);

/* 101: the connection becomes a raw byte stream. `taken` runs once on the daemon thread with the connected,
 * non-blocking socket and the bytes that were already read (valid during the call). The socket is the layer's: never
 * close() it, end with sg_upgrade_close() exactly once, from any thread, after the last use of fd and never
 * under a lock that `taken` or a hook of the request's cancel token takes. The request's cancel token fires when the
 * server stops; hang-ups are the relay's own to see. If the connection dies before, `taken` runs with fd -1 and up NULL. */
struct sg_upgrade;
void sg_respond_upgrade(struct sg_request *r, const char *protocol,
                        void (*taken)(void *arg, struct sg_upgrade *up, int fd, const void *early, size_t early_len),
                        void *arg);
void sg_upgrade_close(struct sg_upgrade *up);

#endif
