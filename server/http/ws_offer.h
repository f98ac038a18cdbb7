/* What a client that wants a WebSocket offers: the head of its request. Pure; any thread. */
#ifndef SG_WS_OFFER_H
#define SG_WS_OFFER_H

#include "http/request.h"

/* Our subprotocol, and the one that carries a token: browsers let a page choose nothing else of a WebSocket's request. */
#define SG_WS_PROTOCOL "sandgate.v1"
#define SG_WS_TOKEN_PREFIX "bearer."
#define SG_WS_TOKEN_MAX 4096U

#define SG_WS_ACCEPT_LEN 28U

struct sg_ws_offer {
    bool protocol;                     /* SG_WS_PROTOCOL was offered: say it back */
    char accept[SG_WS_ACCEPT_LEN + 1]; /* Sec-WebSocket-Accept */
};

/* -1: SG_UPGRADE_REQUIRED (no WebSocket of version 13 is asked for), SG_INVALID_REQUEST with field (a key that is none; subprotocols,
 * but not ours). */
int sg_ws_offer_read(const struct sg_header *headers, size_t n, struct sg_ws_offer *ret, struct sg_error *err);

/* The token that is offered as a subprotocol, "bearer." and base64url without padding; the caller frees. NULL: none, or none that could be
 * right. */
char *sg_ws_offer_token(const struct sg_header *headers, size_t n);

#endif
