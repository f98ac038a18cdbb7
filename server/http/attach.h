/* A terminal over a WebSocket: what comes out of a command's terminal goes to the client as binary messages, what the client sends as such is
 * typed; text messages are JSON and say the rest.
 *
 * To the client: `attached` first, `refused` for what could not be done, `exit` or `error` at the end. From the client: `resize`, `signal`.
 * One binary message is one event of the command's output, so that a client can count them. The events that are lost to nobody are the
 * command's expense: a client that is slow slows the command down, one that takes nothing for SG_ATTACH_STALL_MS is let go.
 */
#ifndef SG_ATTACH_H
#define SG_ATTACH_H

#include "http/api.h"
#include "http/ws_offer.h"
#include "service/execs.h"
#include "service/typing.h"

#define SG_ATTACH_PING_MS 20000
#define SG_ATTACH_STALL_MS 30000
#define SG_ATTACH_CLOSE_MS 5000  /* for the client's part of the closing handshake */
#define SG_ATTACH_LINGER_MS 1000 /* for the end of what is sent by a client that was refused */

/* Why the server closes, besides the codes of the protocol. */
enum {
    SG_ATTACH_LEASE_END = 4001,
    SG_ATTACH_LOST = 4002,
    SG_ATTACH_HISTORY = 4003,
};

struct sg_attach_args {
    struct sg_api *api;
    struct sg_entry *lease;
    const char *exec_id;
    uint64_t after; /* or SG_EXEC_OLDEST */
    const struct sg_ws_offer *offer;
};
/* Answers 101. -1: nothing was answered. */
int sg_attach(struct sg_request *r, const struct sg_attach_args *args, struct sg_error *err);

#endif
