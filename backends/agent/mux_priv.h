/* What the two halves of the mux share: mux.c (channels and how their bytes move) and mux_frames.c (what goes out and what comes in). */
#ifndef SG_AGENT_MUX_PRIV_H
#define SG_AGENT_MUX_PRIV_H

#include "backends/agent/mux.h"
#include "backends/agent/protocol.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#include <uthash.h>
#include <utlist.h>
#pragma GCC diagnostic pop

#define MUX_PAYLOAD_MAX (4U + 4U * SG_MUX_NAMED_MAX + SG_AGENT_PACKET_MAX)

struct sg_mux_channel {
    uint32_t number;
    enum sg_mux_direction way;
    void *owner;
    int fd; /* -1: none yet, or none any more */
    bool is_file, watched, manual;
    bool readable, writable;

    /* here to there */
    bool out_over; /* END has gone out */
    bool stopped;  /* ... as the other side takes no more */
    uint64_t credit, left;
    off_t read_at;

    /* there to here */
    bool in_end;  /* END has come */
    bool in_over; /* ... and all before it has been taken */
    bool deaf;    /* STOP has gone out: what comes is thrown away */
    int error;
    uint32_t window; /* what may still come */
    uint32_t owed;   /* taken, and not told yet */
    char *pending;   /* SG_MUX_WINDOW, while there is something in it */
    size_t at, len;
    size_t grabbed; /* of what has been taken away and not been taken yet */
    off_t write_at;

    bool active; /* in the list of those that may have something to do */
    struct sg_mux_channel *prev, *next;
    UT_hash_handle hh;
};

struct sg_mux {
    const struct sg_mux_ops *ops;
    void *arg;
    int epoll;
    bool broken;
    struct sg_mux_channel *channels, *active;
    unsigned n;
    char *out;
    size_t out_at, out_len, out_cap;
    unsigned char head[SG_MUX_HEADER + MUX_PAYLOAD_MAX]; /* a frame that is not complete yet */
    size_t have;
};

/* ---- mux_frames.c ---- */

/* Room for n bytes at the end; NULL, and it is broken. */
char *mux_room(struct sg_mux *m, size_t n);
void mux_put_head(char *to, uint32_t channel, enum sg_mux_type type, size_t len);
void mux_frame(struct sg_mux *m, uint32_t channel, enum sg_mux_type type, const void *data, size_t len);

/* ---- mux.c ---- */

void mux_activate(struct sg_mux *m, struct sg_mux_channel *c);
/* True: it was over, and is gone. */
bool mux_gone(struct sg_mux *m, struct sg_mux_channel *c);
void mux_end_out(struct sg_mux *m, struct sg_mux_channel *c);
/* Nothing of what comes can be taken any more. */
void mux_deafen(struct sg_mux *m, struct sg_mux_channel *c, int error);
/* How many of the bytes have been taken; of one that is deaf, all. */
size_t mux_take_what_fits(struct sg_mux *m, struct sg_mux_channel *c, const char *p, size_t len);
void mux_pump_in(struct sg_mux *m, struct sg_mux_channel *c);
/* One direction may have gone with its descriptor while the other is still to be closed by the other side. */
void mux_let_go(struct sg_mux *m, struct sg_mux_channel *c);

#endif
