/* What a sandbox asks of its proxy: the head of one HTTP/1 request, read strictly. Whatever two programs could read in two ways is
 * refused. */
#ifndef SG_EGRESS_HEAD_H
#define SG_EGRESS_HEAD_H

#include "backends/egress/host.h"
#include "base/buf.h"

#define SG_EGRESS_HEAD_MAX ((size_t)16 * 1024)

enum sg_egress_body { SG_EGRESS_BODY_NONE, SG_EGRESS_BODY_LENGTH, SG_EGRESS_BODY_CHUNKED };

struct sg_egress_head {
    bool connect; /* a tunnel; else a request to pass on */
    struct sg_host host;
    uint16_t port;
    enum sg_egress_body body;
    uint64_t length; /* of BODY_LENGTH */
};

/* Where the head ends in data (behind the empty line); 0: not yet; -1: it can be none any more. *scanned: how far earlier calls
 * have looked, at first 0. */
ssize_t sg_egress_head_end(const char *data, size_t len, size_t *scanned);
/* Reads the head of exactly len bytes. 0, and of what is no tunnel the head to send to the server in out: target in origin form, Host as
 * the target says, nothing that was meant for the proxy, `Connection: close`. -1 and *why: what is wrong with it, for people. */
int sg_egress_head_parse(const char *data, size_t len, struct sg_egress_head *ret, struct sg_buf *out, const char **why);

/* Finds the end of a chunked body. */
struct sg_egress_chunks {
    int state; /* 0 at first */
    uint64_t left;
    unsigned digits;
    unsigned line;
};
/* How many of the len bytes belong to the body, *done: it ends there. -1: it is malformed. */
ssize_t sg_egress_chunks_feed(struct sg_egress_chunks *c, const char *data, size_t len, bool *done);

#endif
