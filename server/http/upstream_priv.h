/* Inside of the upstream connections: upstream.c (hub, pools, start, dial) and upstream_io.c (moving bytes).
 *
 * Threads. An exchange belongs to the reactor thread once the thread that starts it lets go of `start_lock`; the
 * reactor takes that lock once before it looks (sg_up_settle). hub->lock guards the table, the lists, `conn->x`,
 * `conn->idle` and what dial reports; it is a leaf.
 */
#ifndef SG_UPSTREAM_PRIV_H
#define SG_UPSTREAM_PRIV_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/id.h"
#include "http/upstream.h"

struct sg_up_pool;
struct sg_up_exchange;

struct sg_up_conn {
    struct sg_watch watch;
    struct sg_timer timer;
    int64_t timer_due;  /* reactor: 0: not armed. Fires early rather than being moved with every request */
    uint32_t asked;     /* reactor: events */
    _Atomic unsigned refs;
    int fd;
    struct sg_hold *hold; /* dropped after fd is closed */
    struct sg_up_pool *pool;
    struct sg_up_exchange *x; /* hub lock */
    bool idle;                /* hub lock: in pool->idle */
    bool used;                /* reactor: has carried an exchange before this one */
    bool closed;              /* reactor */
    int64_t idle_until;
    struct sg_up_conn *prev, *next;
};

struct sg_up_exchange {
    _Atomic unsigned refs;
    pthread_mutex_t start_lock;
    struct sg_upstreams *hub;
    struct sg_up_pool *pool;
    struct sg_up_exchange *prev, *next;
    struct sg_upstream_target target;
    struct sg_upstream_sink sink;
    struct sg_up_conn *conn;
    int64_t deadline;

    /* the request */
    char *head;
    size_t head_len, head_off;
    struct sg_pipe *body;
    int64_t body_length;
    uint64_t body_sent;
    char *out; /* the framed piece of a chunked body being sent */
    size_t out_off, out_len;
    bool last_piece;    /* out holds the end of it */
    bool body_watched;  /* our waker is set */
    bool sent;          /* all of it is on the wire */
    bool send_broken;   /* the server takes no more */
    bool send_blocked;  /* the socket is full */
    bool is_head, replayable, retried;

    /* the answer */
    char *in; /* SG_H1_HEAD_MAX bytes */
    size_t in_off, in_len;
    struct sg_h1_progress progress;
    struct sg_h1_body decoder;
    struct sg_pipe *pipe;
    bool keep_alive;
    int keep_alive_s;
    bool answered;
    bool pipe_full;
    bool read_ready; /* the socket may have more */
    bool ended;      /* also under the hub lock */

    /* news from other threads */
    struct sg_task task;
    _Atomic bool posted;
    _Atomic int killed; /* enum sg_code */
    struct sg_cancel *cancel;
    struct sg_cancel_hook cancel_hook;
    bool dialed; /* hub lock, these four */
    int dial_fd;
    struct sg_hold *dial_hold;
    struct sg_error dial_err;
};

struct sg_up_exchange *sg_up_exchange_ref(struct sg_up_exchange *x);
/* The same as a waker's ref. */
void sg_up_exchange_hold(void *x);
void sg_up_exchange_unref(void *x);
/* Any thread: lets the reactor look at x. */
void sg_up_exchange_wake(void *x);

/* Sends what can be sent now: the head, then the body. Reactor, or the starter under start_lock for the head. */
void sg_up_send_head(struct sg_up_exchange *x);
/* Reactor: moves bytes in both directions until the socket or a pipe says no; may end the exchange. */
void sg_up_move(struct sg_up_exchange *x);

/* Reactor. The exchange is over: everything is let go; reuse keeps the connection. */
void sg_up_end(struct sg_up_exchange *x, bool reuse);
/* Reactor. Ends with an error, told through the sink or the pipe. */
void sg_up_fail(struct sg_up_exchange *x, const struct sg_error *err);
/* Reactor. The connection was closed before a byte of an answer: dials anew if that is safe, else fails. */
void sg_up_no_answer(struct sg_up_exchange *x, int sys);

const struct sg_upstream_config *sg_up_config(const struct sg_upstreams *u);

#endif
