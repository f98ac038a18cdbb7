/* Inside of the upstream connections: upstream.c (hub, start), upstream_pool.c (pools, connections),
 * upstream_exchange.c (life of an exchange), upstream_io.c (moving bytes) and upstream_tunnel.c (moving them after a
 * switch of protocols).
 *
 * Threads. An exchange belongs to the reactor thread once the thread that starts it lets go of `start_lock`;
 * the reactor takes that lock once before it looks (sg_up_settle). hub->lock guards the table, the lists,
 * `conn->x`, `conn->idle` and what dial reports; it is a leaf.
 */
#ifndef SG_UPSTREAM_PRIV_H
#define SG_UPSTREAM_PRIV_H

#include <pthread.h>
#include <stdatomic.h>
#include <uthash.h>

#include "base/id.h"
#include "http/upstream.h"

/* Room for a request's head without an allocation of its own, and how many exchanges' memory is kept. */
#define SG_UP_SMALL_HEAD 1024U
#ifdef __SANITIZE_ADDRESS__
#define SG_UP_SPARE_MAX 0U /* so that uses of what is over are seen */
#else
#define SG_UP_SPARE_MAX 64U
#endif

struct sg_up_exchange;
struct sg_up_conn;

struct sg_up_pool_key {
    char lease[SG_ID_MAX];
    uint32_t port;
};

/* Connections to one port of one lease. Lives in the table while it has an exchange or an idle connection. */
struct sg_up_pool {
    _Atomic unsigned refs;
    struct sg_upstreams *hub;
    struct sg_up_pool_key key;
    UT_hash_handle hh;
    struct sg_cancel *lease_end;
    struct sg_cancel_hook hook;
    struct sg_task end_task;
    bool ended; /* hub lock, all below */
    struct sg_up_conn *idle;
    size_t n_idle;
    struct sg_up_exchange *exchanges;
    size_t n_exchanges;
};

struct sg_upstreams {
    _Atomic unsigned refs;
    struct sg_reactor *reactor;
    struct sg_upstream_config config;
    struct sg_task close_task;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct sg_up_pool *pools;
    struct sg_up_exchange *spare; /* memory of those that are over, for new ones */
    size_t n_spare, max_spare;
    char *scratch; /* reactor: SG_H1_HEAD_MAX bytes that answers are read into; kept by an exchange only as long as it runs */
    bool closing; /* nothing new starts */
    bool cut;     /* close_task has run */
    bool closed;  /* nothing is posted any more */
    size_t n_exchanges, n_conns;
};

struct sg_up_conn {
    struct sg_watch watch;
    struct sg_timer timer;
    int64_t timer_due; /* reactor: 0: not armed. Fires early rather than being moved with every request */
    uint32_t asked;    /* reactor: events */
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
    char *head; /* in small_head, or malloc'ed */
    size_t head_len, head_off;
    struct sg_pipe *body;
    int64_t body_length;
    uint64_t body_sent;
    char *out; /* the framed piece of a chunked body being sent */
    size_t out_off, out_len;
    bool last_piece;   /* out holds the end of it */
    char *(*body_trailers)(void *arg);
    bool body_watched; /* our waker is set */
    bool sent;         /* all of it is on the wire */
    bool send_broken;  /* the server takes no more */
    bool send_blocked; /* the socket is full */
    bool is_head, replayable, retried, upgrade;

    /* the answer */
    char *in; /* SG_H1_HEAD_MAX bytes: the hub's, or malloc'ed where something has to stay in it; NULL: nothing is in it */
    size_t in_off, in_len;
    struct sg_h1_progress progress;
    struct sg_h1_body decoder;
    struct sg_pipe *pipe;
    struct sg_upstream_tunnel *tunnel; /* after 101; moves the bytes from then on */
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

    char small_head[SG_UP_SMALL_HEAD]; /* the last member: it is not cleared */
};

/* ---- hub ---- */

const struct sg_upstream_config *sg_up_config(const struct sg_upstreams *u);
void sg_up_hub_unref(struct sg_upstreams *u);
/* Any thread. False: the hub is closed and the task will not run. */
bool sg_up_post(struct sg_upstreams *u, struct sg_task *t);

/* ---- pools and connections ---- */

/* Under the hub lock: a new pool in the table. The caller adds its hook to lease_end after unlocking. */
struct sg_up_pool *sg_up_pool_new(struct sg_upstreams *u, const struct sg_up_pool_key *key,
                                  struct sg_cancel *lease_end);
void sg_up_pool_unref(struct sg_up_pool *p);
/* Under the hub lock: takes p out of the table if it is empty. True: retire it after unlocking. */
bool sg_up_pool_leave(struct sg_up_pool *p);
void sg_up_pool_retire(struct sg_up_pool *p);
/* Reactor: ends every exchange of p with code and closes its idle connections. */
void sg_up_pool_cut(struct sg_up_pool *p, enum sg_code code);

/* Reactor. A fresh connection for x; fd and hold are ours from here, also on failure. */
int sg_up_conn_new(struct sg_up_exchange *x, int fd, struct sg_hold *hold, struct sg_error *err);
/* Reactor: asks epoll for what x waits for, and arms the timer. */
void sg_up_conn_ask(struct sg_up_conn *c, const struct sg_up_exchange *x);
/* Reactor: takes c from its exchange. Back among the idle ones, or closed. */
void sg_up_conn_release(struct sg_up_conn *c, bool reuse, int keep_alive_s);

/* ---- exchanges ---- */

struct sg_up_exchange *sg_up_exchange_new(struct sg_upstreams *u, const struct sg_upstream_target *target,
                                          const struct sg_upstream_request *q,
                                          const struct sg_upstream_sink *sink);
struct sg_up_exchange *sg_up_exchange_ref(struct sg_up_exchange *x);
/* The same as a waker's ref. */
void sg_up_exchange_hold(void *x);
void sg_up_exchange_unref(void *x);
/* Any thread: lets the reactor look at x. */
void sg_up_exchange_wake(void *x);
/* Starter: ends x when cancel fires. */
void sg_up_exchange_obey(struct sg_up_exchange *x, struct sg_cancel *cancel);
/* Starter without start_lock, or reactor: asks for a connection. */
void sg_up_dial(struct sg_up_exchange *x);
/* Reactor: waits until the thread that starts x has let go of it; from then on it is the reactor's. */
void sg_up_settle(struct sg_up_exchange *x);
/* Reactor: goes on with whatever can go on. */
void sg_up_run(struct sg_up_exchange *x);

/* Sends what can be sent of the head. Reactor, or the starter under start_lock. */
void sg_up_send_head(struct sg_up_exchange *x);
/* Reactor: moves bytes in both directions until the socket or a pipe says no; may end the exchange. */
void sg_up_move(struct sg_up_exchange *x);

/* Reactor. A head of head_len bytes in x->in that says 101 is followed by the tunnel's bytes: takes x->in over. The
 * result has a reference on x for whoever joins or drops it. */
struct sg_upstream_tunnel *sg_up_tunnel_new(struct sg_up_exchange *x, size_t head_len);
/* Reactor: as sg_up_move(), and sets what the connection is asked for. */
void sg_up_tunnel_move(struct sg_up_exchange *x);
/* Reactor, at the end of x: lets go of the client's socket. */
void sg_up_tunnel_end(struct sg_upstream_tunnel *t);
void sg_up_tunnel_free(struct sg_upstream_tunnel *t); /* NULL-safe */

/* Reactor. The exchange is over: everything is let go; reuse keeps the connection. */
void sg_up_end(struct sg_up_exchange *x, bool reuse);
/* Reactor. Ends with an error, told through the sink or the pipe. */
void sg_up_fail(struct sg_up_exchange *x, const struct sg_error *err);
/* Reactor. Ends with an error that says no more than code. */
void sg_up_kill(struct sg_up_exchange *x, enum sg_code code);
/* Reactor. The connection was closed before a byte of an answer: dials anew if that is safe, else fails. */
void sg_up_no_answer(struct sg_up_exchange *x, int sys);

#endif
