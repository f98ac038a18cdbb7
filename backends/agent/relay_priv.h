/* What the parts of the relay share: relay.c (its life, the connection), relay_ask.c (what the server asks for) and relay_tell.c (what the agent says). */
#ifndef SG_AGENT_RELAY_PRIV_H
#define SG_AGENT_RELAY_PRIV_H

#include "backends/agent/inside.h"
#include "backends/agent/mux.h"
#include "backends/agent/packets.h"
#include "backends/agent/relay.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#include <uthash.h>
#include <utlist.h>
#pragma GCC diagnostic pop

enum ask_kind {
    ASK_SPAWN,
    ASK_READ,
    ASK_CONTENT, /* a file of which the server says what it wants */
    ASK_LIST,
    ASK_SOCKET,
    ASK_CHECK,  /* OPEN_TEMP of the server: the file is not needed yet */
    ASK_BLOB,   /* bytes of the server in memory */
    ASK_STAGE,  /* ... in a temp file */
    ASK_LISTEN,
    ASK_ACCEPT,
    ASK_COMMIT, /* of such a file that has a name of its own */
    ASK_FORGET  /* the relay's own: nobody is told */
};

struct terminal;

struct ask {
    uint64_t id;
    enum ask_kind kind;
    uint32_t names[SG_MUX_NAMED_MAX]; /* channels */
    unsigned n;
    struct sg_agent_wanted wanted; /* CONTENT, */
    size_t have;        /* ... so many bytes of it */
    int fd;             /* CONTENT: the file, until it is known what is wanted; LIST: what the agent writes; STAGE, BLOB: what has come; SOCKET: being connected; or -1 */
    bool answered;      /* STAGE: the agent has said whether there is a file */
    bool complete;      /* STAGE, BLOB: all has come, or an error */
    int error;
    char *temp;         /* the temp file's name, or NULL */
    void *held;         /* READ, LIST: the answer, until its content has gone out */
    size_t held_len;
    uint32_t family, port;
    int64_t oom_before; /* SPAWN */
    unsigned live;      /* SPAWN: of its channels */
    struct terminal *terminal; /* SPAWN on one, or NULL */
    struct ask *prev, *next; /* ACCEPT: those that wait */
    int64_t due_ms;     /* SPAWN: its end is known, and so long others may hold its outputs; 0: it runs; -1: that is over */
    UT_hash_handle hh;
};

/* Outputs that nobody wants any more: read slowly, so that background children do not die of SIGPIPE. */
struct rest {
    int fd;
    int64_t due_ms; /* when it is looked at again; 0: at once when there is something */
    struct rest *prev, *next;
};

/* A packet that waits for the gate. */
struct gated {
    struct gated *prev, *next;
    uint32_t names[SG_MUX_NAMED_MAX];
    unsigned n;
    size_t len;
    unsigned char data[];
};

struct relay {
    struct sg_mux *mux;
    int epoll, oom;
    struct sg_agent_post agent; /* its socket, and what waits to be taken by it */
    struct ask *asks;
    struct ask *gate; /* a COMMIT waits for the agent's word about its file; what comes after it and names no new channel waits, too */
    struct gated *gated;
    unsigned ending; /* commands that have ended while others may hold their outputs */
    struct rest *rests;
    unsigned n_rests;
    uint64_t own_ids;
    int ear; /* the socket of LISTEN, or -1 */
    int64_t ear_due_ms; /* there were no descriptors for a connection: when it is tried again; 0: it is not so */
    struct ask *accepts;
};

/* Who an event is for: the low three bits of it. CONNECT, TERMINAL: above them the number of the channel; REST: the struct rest. */
enum relay_event { EVENT_IN, EVENT_OUT, EVENT_AGENT, EVENT_MUX, EVENT_CONNECT, EVENT_REST, EVENT_TERMINAL, EVENT_EAR };

void __attribute__((noreturn)) relay_die(int code, const char *what);

/* ---- relay_ask.c ---- */

struct ask *ask_new(struct relay *r, uint64_t id, enum ask_kind kind);
struct ask *ask_find(struct relay *r, uint64_t id);
void ask_free(struct relay *r, struct ask *k);
/* A channel of that name for it. */
struct sg_mux_channel *ask_add(struct relay *r, struct ask *k, uint32_t name, enum sg_mux_direction way);
/* Sends a packet to the agent; fds are taken over. */
void relay_ask(struct relay *r, struct sg_agent_msg *m, const int *fds, unsigned n);
/* Answers the server in the agent's place. */
void relay_done(struct relay *r, uint64_t id, int error);
/* Removes a temp file. */
void relay_forget(struct relay *r, const char *temp);
/* A packet of the server. */
int relay_take(void *arg, const uint32_t *names, unsigned n, const void *data, size_t len);
int relay_open(void *arg, uint32_t number);
void relay_received(void *arg, struct sg_mux_channel *c, int error);
/* The agent has answered the gate, or all has come. */
void relay_ungate(struct relay *r);

/* ---- relay_content.c ---- */

/* The agent has opened the file; fd is taken over. */
void relay_content_opened(struct ask *k, int fd);
/* Something has come for it. k and c may be gone after that. */
void relay_content_moved(struct relay *r, struct ask *k, struct sg_mux_channel *c);

/* ---- relay_tell.c ---- */

/* A packet of the agent and its descriptor (-1: none), which is taken over. */
void relay_tell(struct relay *r, const void *data, size_t len, int fd);
void relay_sent(void *arg, struct sg_mux_channel *c);
void relay_gone(void *arg, struct sg_mux_channel *c);
void relay_moved(void *arg, struct sg_mux_channel *c);
void relay_connected(struct relay *r, uint32_t number);
/* How often the kernel has killed here for want of memory. */
int64_t relay_oom(const struct relay *r);
void relay_rest_ready(struct relay *r, struct rest *s);
int64_t relay_now_ms(void);
/* What is due; the milliseconds until the next, -1: nothing is. */
int relay_due(struct relay *r);

/* ---- relay_accept.c ---- */

void relay_listen(struct relay *r, struct sg_agent_msg *m);
/* The agent's answer to it; fd, taken over, or -1. */
void relay_listens(struct relay *r, struct sg_agent_msg *m, int fd);
void relay_accept(struct relay *r, struct ask *k, uint32_t name);
void relay_accept_forget(struct relay *r, struct ask *k);
/* Connections for those who wait. */
void relay_accept_some(struct relay *r);

/* ---- relay_terminal.c: the masters of commands' terminals, which the relay holds: its channel is what is typed, and what comes out ---- */

/* A SPAWN with SG_AGENT_SPAWN_TTY; blob: its strings, taken over, or -1. */
void relay_terminal_spawn(struct relay *r, struct sg_agent_msg *m, uint32_t name, int blob);
/* The agent has made it; fd is taken over. */
void relay_terminal_came(struct relay *r, struct ask *k, int fd);
void relay_terminal_resize(struct relay *r, const struct sg_agent_msg *m);
void relay_terminal_ready(struct relay *r, uint32_t number);
/* Something has been typed, or may be said. */
void relay_terminal_moved(struct relay *r, const struct ask *k, struct sg_mux_channel *c);
/* The end of what is typed was heard. */
void relay_terminal_no_more(struct relay *r, struct ask *k, struct sg_mux_channel *c);
/* The command has ended, or never began: k may be gone after that. */
void relay_terminal_ended(struct relay *r, struct ask *k);
/* Others had it open for long enough: what is in it now is the last of it. */
void relay_terminal_limit(struct relay *r, struct ask *k);
/* Nothing more comes out of it for anybody: it is hung up. */
void relay_terminal_hang_up(struct relay *r, struct ask *k);
void relay_terminal_free(struct relay *r, struct ask *k);

#endif
