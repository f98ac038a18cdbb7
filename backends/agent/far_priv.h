/* What the parts of the relay's mirror share: far.c (its life, the connection), far_ask.c (what the client asks for) and far_tell.c (what it is told). All
 * of it is the reactor thread's. */
#ifndef SG_AGENT_FAR_PRIV_H
#define SG_AGENT_FAR_PRIV_H

#include "backends/agent/client_priv.h"
#include "backends/agent/far.h"
#include "backends/agent/mux.h"
#include "backends/agent/packets.h"

#include <utlist.h>

#define FAR_PARCELS_MAX 4096U

/* A question whose answer brings more than its packet. */
enum call_kind { CALL_READ, CALL_LIST, CALL_SOCKET, CALL_TEMP, CALL_TERMINAL, CALL_CONTENT, CALL_ACCEPT };
struct far_call {
    uint64_t id;
    enum call_kind kind;
    uint32_t channel;
    int fd;        /* SOCKET, TERMINAL, CONTENT: the client's end; READ: what has come; or -1 */
    struct far_io *io; /* READ: what takes it */
    bool complete; /* READ, LIST: all has come */
    int error;
    void *held;    /* READ: the answer, which came before the disk was done */
    size_t held_len;
    UT_hash_handle hh;
};

/* A question of the client that waits: for its content to go first, or for those before it. */
struct far_parcel {
    struct far_parcel *prev, *next;
    bool ordered, ready;
    uint32_t content; /* the channel of it; 0: none */
    struct far_io *io;
    int fds[SG_MUX_NAMED_MAX];
    unsigned n; /* of the fds; those that are taken are -1 */
    size_t len;
    unsigned char data[];
};

struct far {
    atomic_int refs; /* until its end; the task's; the wakers' */
    struct sg_agent_far o;
    char *spool;
    struct sg_reactor *reactor;
    struct sg_agent *agent;
    struct sg_mux *mux;
    struct sg_agent_post client; /* its socket, and what waits to be taken by it */
    struct sg_watch sock, news;  /* of the client; of the channels */
    struct sg_task task;
    atomic_bool posted;
    bool over, full; /* full: the connection takes nothing now */
    bool crowded;    /* too much runs at the same time: this is its end */
    struct far_call *calls;
    struct far_parcel *parcels;
    unsigned n_parcels;
    uint32_t last_channel;
};

/* Once the connection, or the other side, is of no use any more. reason: a stable word. */
void far_end(struct far *f, const char *reason, const char *what);

void far_wake(struct far *f);
void far_ref(struct far *f);
void far_unref(struct far *f);

/* ---- far_io.c: files, which workers read and write ---- */

/* fd is taken over. out: it is sent, else what comes is written to it. */
struct far_io *far_io_new(struct far *f, uint32_t channel, int fd, bool out);
struct far_io *far_io_free(struct far_io *io); /* NULL-safe, returns NULL */
void far_io_moved(struct far_io *io, struct sg_mux_channel *c);
int far_io_take(struct far_io *io); /* its descriptor */

/* ---- far_ask.c ---- */

/* A packet of the client's and its descriptors, which are taken over. -1: there is no sense in it. */
int far_ask(struct far *f, const void *data, size_t len, int *fds, unsigned n);
void far_sent(void *arg, struct sg_mux_channel *c);
struct far_call *far_call_find(struct far *f, uint64_t id);
void far_call_free(struct far *f, struct far_call *k);
void far_parcel_free(struct far *f, struct far_parcel *p);
/* The mirror's end of what comes: a file, or half a connection whose other half is the client's. -1: there is no room for one. */
int far_make_end(const struct far *f, struct far_call *k);
/* A file without a name for what is on its way; -1. */
int far_spool(const struct far *f);

/* ---- far_tell.c ---- */

int far_packet(void *arg, const uint32_t *names, unsigned n, const void *data, size_t len);
void far_moved(void *arg, struct sg_mux_channel *c);
int far_oom(void *arg, uint64_t id);
void far_received(void *arg, struct sg_mux_channel *c, int error);
/* Tells the client in the agent's place; fd is taken over. */
void far_done(struct far *f, struct sg_agent_msg *m, int fd);
void far_spawn_failed(struct far *f, uint64_t id, uint32_t error);
void far_refuse(struct far *f, const struct sg_agent_msg *asked, uint32_t error);

#endif
