#include "http/h1_body.h"

#include "http/h1_response.h"

static int bad(struct sg_error *err, const char *what)
{
    sg_error_set(err, SG_ENDPOINT_FAILED, "the service sent a malformed body: %s", what);
    return sg_error_reason(err, "malformed_response");
}

void sg_h1_body_init(struct sg_h1_body *b, enum sg_h1_framing framing, uint64_t length)
{
    *b = (struct sg_h1_body){.framing = framing};
    switch (framing) {
    case SG_H1_NO_BODY:
        b->state = SG_H1_DONE;
        break;
    case SG_H1_LENGTH:
        b->state = length == 0 ? SG_H1_DONE : SG_H1_PAYLOAD;
        b->payload = length;
        break;
    case SG_H1_CHUNKED:
        b->state = SG_H1_SIZE;
        break;
    case SG_H1_UNTIL_CLOSE:
        b->state = SG_H1_PAYLOAD;
        b->payload = UINT64_MAX;
        break;
    }
}

void sg_h1_body_took(struct sg_h1_body *b, uint64_t n)
{
    if (b->framing == SG_H1_UNTIL_CLOSE)
        return;
    b->payload -= n;
    if (b->payload == 0 && b->state == SG_H1_PAYLOAD)
        b->state = b->framing == SG_H1_CHUNKED ? SG_H1_PAYLOAD_CR : SG_H1_DONE;
}

bool sg_h1_body_done(const struct sg_h1_body *b)
{
    return b->state == SG_H1_DONE;
}

int sg_h1_body_eof(struct sg_h1_body *b, struct sg_error *err)
{
    if (b->framing == SG_H1_UNTIL_CLOSE)
        b->state = SG_H1_DONE;
    if (b->state == SG_H1_DONE) {
        b->payload = 0;
        return 0;
    }
    sg_error_set(err, SG_ENDPOINT_FAILED, "the service closed the connection in the middle of its answer");
    return sg_error_reason(err, "closed_early");
}

static int hex_value(unsigned char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool is_text(unsigned char c)
{
    return c == '\t' || (c >= 0x20 && c != 0x7f);
}

/* The line with the size of a chunk: 1*HEXDIG, blanks, extensions nobody reads. */
static int size_line_byte(struct sg_h1_body *b, unsigned char c, struct sg_error *err)
{
    if (++b->line > SG_H1_CHUNK_LINE_MAX)
        return bad(err, "chunk size line too long");
    int v = b->state == SG_H1_SIZE ? hex_value(c) : -1;
    if (v >= 0) {
        if (b->payload > (uint64_t)INT64_MAX >> 4)
            return bad(err, "chunk too large");
        b->payload = b->payload << 4 | (uint64_t)v;
        b->digits++;
        return 0;
    }
    if (b->digits == 0)
        return bad(err, "chunk without a size");
    if (c == '\r')
        b->state = SG_H1_SIZE_LF;
    else if (c == ';')
        b->state = SG_H1_EXTENSION;
    else if (b->state == SG_H1_EXTENSION && is_text(c))
        return 0;
    else if (c == ' ' || c == '\t')
        b->state = SG_H1_SIZE_BLANK;
    else
        return bad(err, "bad chunk size");
    return 0;
}

/* The buffer has room for every byte that is counted. */
static void keep_trailer(struct sg_h1_body *b, unsigned char c)
{
    if (b->trailers != NULL && b->state != SG_H1_END_LF)
        b->trailers[b->trailers_len++] = (char)(c == '\r' ? '\n' : c);
}

static int trailer_byte(struct sg_h1_body *b, unsigned char c, struct sg_error *err)
{
    if (++b->line > SG_H1_TRAILER_MAX)
        return bad(err, "trailers too long");
    if (b->state == SG_H1_LINE_START && c == '\r')
        b->state = SG_H1_END_LF;
    else if (b->state == SG_H1_TRAILER_NAME && c == ':')
        b->state = SG_H1_TRAILER_VALUE;
    else if (b->state == SG_H1_TRAILER_VALUE && c == '\r')
        b->state = SG_H1_TRAILER_LF;
    else if (b->state == SG_H1_TRAILER_VALUE ? !is_text(c) : !sg_h1_is_token(c))
        return bad(err, "bad trailer");
    else if (b->state == SG_H1_LINE_START)
        b->state = SG_H1_TRAILER_NAME;
    keep_trailer(b, c);
    return 0;
}

static int line_end_byte(struct sg_h1_body *b, unsigned char c, struct sg_error *err)
{
    if (c != (b->state == SG_H1_PAYLOAD_CR ? '\r' : '\n'))
        return bad(err, b->state == SG_H1_PAYLOAD_CR || b->state == SG_H1_PAYLOAD_LF
                            ? "chunk longer than its size"
                            : "bad line end");
    if (b->state == SG_H1_PAYLOAD_CR) {
        b->state = SG_H1_PAYLOAD_LF;
    } else if (b->state == SG_H1_PAYLOAD_LF) {
        b->state = SG_H1_SIZE;
        b->line = 0;
        b->digits = 0;
    } else if (b->state == SG_H1_SIZE_LF) {
        b->state = b->payload > 0 ? SG_H1_PAYLOAD : SG_H1_LINE_START;
        b->line = 0;
    } else if (b->state == SG_H1_TRAILER_LF) {
        b->state = SG_H1_LINE_START;
    } else {
        b->state = SG_H1_DONE;
    }
    return 0;
}

static int frame_byte(struct sg_h1_body *b, unsigned char c, struct sg_error *err)
{
    switch (b->state) {
    case SG_H1_SIZE:
    case SG_H1_SIZE_BLANK:
    case SG_H1_EXTENSION:
        return size_line_byte(b, c, err);
    case SG_H1_LINE_START:
    case SG_H1_TRAILER_NAME:
    case SG_H1_TRAILER_VALUE:
        return trailer_byte(b, c, err);
    default:
        return line_end_byte(b, c, err);
    }
}

ssize_t sg_h1_body_frame(struct sg_h1_body *b, const char *data, size_t len, struct sg_error *err)
{
    size_t i = 0;
    while (i < len && b->state != SG_H1_PAYLOAD && b->state != SG_H1_DONE)
        if (frame_byte(b, (unsigned char)data[i++], err) < 0)
            return -1;
    return (ssize_t)i;
}

ssize_t sg_h1_body_decode(struct sg_h1_body *b, char *data, size_t len, size_t *ret_payload,
                          struct sg_error *err)
{
    size_t in = 0;
    size_t out = 0;
    while (in < len && b->state != SG_H1_DONE) {
        ssize_t framed = sg_h1_body_frame(b, data + in, len - in, err);
        if (framed < 0)
            return -1;
        in += (size_t)framed;
        if (b->state != SG_H1_PAYLOAD)
            continue;
        size_t n = len - in;
        if (n > b->payload)
            n = (size_t)b->payload;
        if (out != in)
            memmove(data + out, data + in, n);
        sg_h1_body_took(b, n);
        in += n;
        out += n;
    }
    *ret_payload = out;
    return (ssize_t)in;
}
