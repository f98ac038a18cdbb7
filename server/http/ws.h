/* The server's end of a WebSocket (RFC 6455) without its socket: bytes in, bytes out, messages between. Framing, masks, fragments, control frames,
 * UTF-8 and the closing handshake are wslay's; bounds are ours. What the peer sends is hostile. Not thread-safe.
 *
 * Bounds: a text message has at most SG_WS_TEXT_MAX bytes, a frame SG_WS_FRAME_MAX; binary messages are handed on in pieces and never
 * held. While much waits to be sent nothing more is read.
 */
#ifndef SG_WS_H
#define SG_WS_H

#include "base/base.h"

#define SG_WS_TEXT_MAX ((size_t)4096)
#define SG_WS_FRAME_MAX ((uint64_t)16 * 1024 * 1024)
/* Most bytes of binary messages that one read hands over after the first wait. */
#define SG_WS_READ_AHEAD ((size_t)4096)

/* Close codes of the protocol. */
enum {
    SG_WS_NORMAL = 1000,
    SG_WS_GOING_AWAY = 1001,
    SG_WS_PROTOCOL_ERROR = 1002,
    SG_WS_BAD_TEXT = 1007,
    SG_WS_TOO_BIG = 1009,
    SG_WS_INTERNAL_ERROR = 1011,
};

struct sg_ws_ops {
    /* The transport: > 0 bytes, 0: the peer's end of file, -EAGAIN: not now, else it is broken. */
    ssize_t (*recv)(void *arg, void *data, size_t max);
    ssize_t (*send)(void *arg, const void *data, size_t len);
    /* Messages; must not call back into sg_ws_read(). */
    void (*binary)(void *arg, const void *data, size_t len); /* a piece of one */
    void (*text)(void *arg, const char *text, size_t len);   /* a whole one, valid UTF-8 */
};

struct sg_ws;

/* NULL when memory is out. ops is borrowed, and arg. */
struct sg_ws *sg_ws_new(const struct sg_ws_ops *ops, void *arg);
struct sg_ws *sg_ws_free(struct sg_ws *w); /* NULL-safe, returns NULL */

/* Handles what recv gives, until it gives nothing, the connection closes or too much waits to be sent. -1: the transport is gone. */
int sg_ws_read(struct sg_ws *w);
/* Sends what waits. 0: all of it; 1: send takes no more now; -1: the transport is gone. */
int sg_ws_write(struct sg_ws *w);

/* Put in line to be sent; copied. -1: memory is out, or it closes already. */
int sg_ws_send_binary(struct sg_ws *w, const void *data, size_t len);
int sg_ws_send_text(struct sg_ws *w, const char *text, size_t len);
int sg_ws_ping(struct sg_ws *w);
/* Begins the closing handshake after what waits; later calls do nothing. reason: at most 123 bytes of UTF-8. */
void sg_ws_close(struct sg_ws *w, uint16_t code, const char *reason);

/* Does anything wait to be sent? */
bool sg_ws_is_sending(const struct sg_ws *w);
/* Does so much wait to be sent that nothing is read until some of it has gone? */
bool sg_ws_is_full(const struct sg_ws *w);
/* Will it read no more: closed by the peer, or for what it sent? */
bool sg_ws_is_deaf(const struct sg_ws *w);
/* Has the peer said that it closes? It sends nothing more then. */
bool sg_ws_is_closed_by_peer(const struct sg_ws *w);
/* Nothing more will be sent or read. */
bool sg_ws_is_over(const struct sg_ws *w);

#endif
