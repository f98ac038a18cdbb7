/* Requests to HTTP/1.1 servers inside sandboxes, over connections that are kept and reused.
 *
 * One exchange is one request and its answer. The caller gives the request's head as bytes and its body as a
 * pipe, and gets the response head in a callback and the body in another pipe; both pipes push back. Reading
 * and writing happens on the reactor; a request that finds an idle connection is written by the calling
 * thread itself. An exchange ends by itself, when its cancel token fires, when its lease ends or when a
 * deadline passes, and always lets go of everything it was given.
 *
 * A request is sent a second time only if it is replayable and the kept connection it went out on was closed
 * without a byte of an answer, or if nothing of it was sent at all.
 */
#ifndef SG_UPSTREAM_H
#define SG_UPSTREAM_H

#include "backends/driver.h"
#include "base/cancel.h"
#include "base/pipe.h"
#include "base/reactor.h"
#include "http/h1_response.h"

struct sg_upstreams;
struct sg_upstream_tunnel;

struct sg_upstream_config {
    int64_t connect_ms;    /* dialling */
    int64_t first_byte_ms; /* from the end of the request to the head of the answer */
    int64_t stall_ms;      /* nothing moved in either direction in the middle of an exchange */
    int64_t idle_ms;       /* how long an unused connection is kept */
    size_t idle_max;       /* unused connections kept per lease and port */
    size_t exchanges_max;  /* exchanges at a time per lease and port; above: SG_OVERLOADED */
    size_t pipe_bytes;     /* of a response body in flight */
};

/* Sensible values for all of it. */
struct sg_upstream_config sg_upstream_defaults(void);

/* One hub per process, on the caller's reactor, which must outlive it. config is copied. SIGPIPE must be
 * ignored. */
struct sg_upstreams *sg_upstreams_new(struct sg_reactor *r, const struct sg_upstream_config *config);
/* Cuts every exchange (SG_SHUTTING_DOWN) and closes every connection, waits for that, frees. Not on the
 * reactor thread. NULL-safe, returns NULL. */
struct sg_upstreams *sg_upstreams_free(struct sg_upstreams *u);

/* Where a request goes. Borrowed for the call; ref and unref keep arg alive while a dial may be needed. */
struct sg_upstream_target {
    const char *lease_id;
    uint16_t port;
    struct sg_cancel *lease_end; /* firing it closes everything of this lease; may be NULL */
    /* As sg_sandbox_dial(): connects to port, answers once through done on any thread, or returns -1. */
    int (*dial)(void *arg, uint16_t port, int64_t deadline_ms, const struct sg_dial_done *done,
                struct sg_error *err);
    void (*ref)(void *arg);   /* may be NULL */
    void (*unref)(void *arg); /* may be NULL */
    void *arg;
};

struct sg_upstream_answer {
    const struct sg_h1_head *head; /* borrowed for the callback */
    /* Either the whole body, borrowed for the callback, with pipe NULL (also for answers without a body) ...
     */
    const void *whole;
    size_t whole_len;
    /* ... or a pipe to read it from, one reference for the callee; -1: the length is unknown. It fails
     * (sg_pipe_error()) when the answer is cut off; stopping it ends the exchange. */
    struct sg_pipe *pipe;
    int64_t length;
    /* Status 101: no body but a tunnel. For the callee: sg_upstream_tunnel_join() or _drop(), once. */
    struct sg_upstream_tunnel *tunnel;
};

/* answered or failed is called, exactly once, then ended, exactly once, on any thread, without locks held; it
 * may be before sg_upstream_start() returns. */
struct sg_upstream_sink {
    void (*answered)(void *arg, const struct sg_upstream_answer *a);
    /* SG_ENDPOINT_NOT_LISTENING, SG_ENDPOINT_FAILED, SG_ENDPOINT_TIMEOUT, SG_LEASE_GONE, SG_CANCELLED,
     * SG_SHUTTING_DOWN or what dial said. */
    void (*failed)(void *arg, const struct sg_error *err);
    /* The answer's trailers, each "Name:value" and a LF: after answered, before the pipe ends. NULL: they are dropped. */
    void (*trailers)(void *arg, const char *lines, size_t len);
    /* Nothing moves any more: the answer is whole in its pipe, or cut off. Last callback. */
    void (*ended)(void *arg);
    void *arg;
};

struct sg_upstream_request {
    const char *head; /* request line, fields, empty line; copied */
    size_t head_len;
    struct sg_pipe *body; /* NULL: none. A reference is taken. Its end is the end of the request. */
    int64_t body_length;  /* what the head's Content-Length says; -1: the head says chunked, frame the body */
    bool is_head;         /* HEAD: no body follows the answer */
    bool replayable;      /* sending it twice does no harm (GET or HEAD without a body) */
    /* Once, at the end of a chunked body: its trailers as lines with CR LF, malloc'ed, or NULL. With the sink's arg, on the
     * reactor. May be NULL itself. */
    char *(*trailers)(void *arg);
    bool upgrade;         /* the head asks for another protocol, so 101 is an answer */
    struct sg_cancel *cancel; /* may be NULL; a reference is taken */
};

/* Any thread. -1: nothing was started and no callback comes. */
int sg_upstream_start(struct sg_upstreams *u, const struct sg_upstream_target *target,
                      const struct sg_upstream_request *request, const struct sg_upstream_sink *sink,
                      struct sg_error *err);

/* The client's side of a tunnel: a connected, non-blocking stream socket, which stays the caller's, and what was
 * read from it already (copied). From here on bytes go both ways, with at most some 64 KiB of each in memory, and so
 * do half-closes. However long nothing is said, the tunnel stays; it ends when both sides have ended, the
 * client's connection breaks, bytes that wait do not move for stall_ms, or the exchange is cut. Then closed(arg)
 * runs, once, after the last use of fd, without locks held. Any thread. */
void sg_upstream_tunnel_join(struct sg_upstream_tunnel *t, int fd, const void *early, size_t early_len,
                             void (*closed)(void *arg), void *arg);
/* There is no client any more. Any thread. */
void sg_upstream_tunnel_drop(struct sg_upstream_tunnel *t);

/* Any thread: how many exchanges run and connections are open, for metrics and tests. */
void sg_upstreams_counts(struct sg_upstreams *u, size_t *ret_exchanges, size_t *ret_connections);

#endif
