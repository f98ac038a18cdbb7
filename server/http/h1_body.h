/* Where the bytes of a response body are between the framing of HTTP/1.x.
 *
 * The reader hands in what it has, gets told how much of it is framing, moves at most `payload` bytes
 * wherever it likes (straight from the socket, if it wants to) and says so. Trailers are checked, and kept for who
 * wants them.
 * No I/O, no allocation.
 */
#ifndef SG_H1_BODY_H
#define SG_H1_BODY_H

#include "base/error.h"

#define SG_H1_CHUNK_LINE_MAX 256U /* size and extensions of one chunk */
#define SG_H1_TRAILER_MAX 8192U   /* all trailers together */

enum sg_h1_framing {
    SG_H1_NO_BODY,
    SG_H1_LENGTH,
    SG_H1_CHUNKED,
    SG_H1_UNTIL_CLOSE,
};

enum sg_h1_body_state {
    SG_H1_PAYLOAD,
    SG_H1_PAYLOAD_CR,
    SG_H1_PAYLOAD_LF,
    SG_H1_SIZE,
    SG_H1_SIZE_BLANK,
    SG_H1_EXTENSION,
    SG_H1_SIZE_LF,
    SG_H1_LINE_START, /* of a trailer or the end */
    SG_H1_TRAILER_NAME,
    SG_H1_TRAILER_VALUE,
    SG_H1_TRAILER_LF,
    SG_H1_END_LF,
    SG_H1_DONE,
};

struct sg_h1_body {
    enum sg_h1_framing framing;
    enum sg_h1_body_state state;
    uint64_t
        payload; /* bytes of payload that come next, without framing in between; UINT64_MAX: until close */
    size_t line; /* bytes of the current size line, or of all trailers */
    unsigned digits;
    char *trailers; /* caller's, after init: room for SG_H1_TRAILER_MAX bytes; NULL: they are dropped */
    size_t trailers_len; /* of the lines kept there, each "Name:value" and a LF */
};

void sg_h1_body_init(struct sg_h1_body *b, enum sg_h1_framing framing, uint64_t length);

/* Reads framing at the start of data until payload begins, the body is done or data ends. Returns how many
 * bytes it took; afterwards the next min(b->payload, rest) bytes are payload. -1: SG_ENDPOINT_FAILED. */
ssize_t sg_h1_body_frame(struct sg_h1_body *b, const char *data, size_t len, struct sg_error *err);

/* n <= b->payload bytes of payload were moved away. */
void sg_h1_body_took(struct sg_h1_body *b, uint64_t n);

/* The body is complete; nothing after it belongs to it. */
bool sg_h1_body_done(const struct sg_h1_body *b);

/* The server closed. 0 when that ends the body; -1 (SG_ENDPOINT_FAILED) when it cuts it off. */
int sg_h1_body_eof(struct sg_h1_body *b, struct sg_error *err);

/* Decodes what is in data in place: payload is moved together to its front. *ret_payload: bytes of it there.
 * Returns how many bytes of data were used up (all of them, unless the body ended before); -1 as above. */
ssize_t sg_h1_body_decode(struct sg_h1_body *b, char *data, size_t len, size_t *ret_payload,
                          struct sg_error *err);

#endif
