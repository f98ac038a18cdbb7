/* The other side of a WebSocket in memory, for tests: bytes in, and what was made of them. */
#ifndef SG_TEST_WS_PEER_H
#define SG_TEST_WS_PEER_H

#include "base/buf.h"
#include "http/ws.h"

struct ws_peer {
    struct sg_ws *ws;
    const unsigned char *in; /* what the client sends */
    size_t in_len, in_at, step; /* at most step bytes per recv; 0: any */
    bool eof;                /* behind it; else nothing for now */
    size_t room;             /* that send still takes */
    struct sg_buf out;       /* what the server sent */
    struct sg_buf binary;    /* all of it */
    struct sg_buf texts;     /* each followed by a newline */
    unsigned n_texts;
};

void ws_peer_start(struct ws_peer *p);
void ws_peer_finish(struct ws_peer *p);
/* Appends a masked frame. */
void ws_frame(struct sg_buf *b, unsigned first, const void *data, size_t len);
/* Reads and writes until nothing moves. -1: the transport is gone. */
int ws_peer_run(struct ws_peer *p);
/* The code of the close frame that was sent last, 0: an empty one, -1: none. */
int ws_peer_close_code(const struct ws_peer *p);

#endif
