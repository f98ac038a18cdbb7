/* The request's inside: what the files of the HTTP core share. Nobody else includes this.
 *
 * Threads. A connection and its request are driven by their daemon's thread. Other threads only store an answer,
 * move pipe bytes, and call MHD_resume_connection() under the request's lock after checking that it is suspended;
 * completion takes the same lock, so the connection cannot vanish under them.
 * Lock ranks: registry (sg_http.lock, conns_lock) < connection < request < the parser library's. Nothing of the
 * library but suspend and resume is called with a request locked.
 */
#ifndef SG_REQUEST_PRIV_H
#define SG_REQUEST_PRIV_H

#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/budget.h"
#include "base/buf.h"
#include "base/clock.h"
#include "http/listener.h"
#include "http/preflight.h"
#include "http/respond.h"

#if MHD_VERSION < 0x00097002
#error "libmicrohttpd 0.9.70 or later is needed"
#endif

/* Bytes of a refused body we read for the sake of answering on a connection that stays usable. */
#define SG_DRAIN_MAX ((uint64_t)256 * 1024)
/* How long an answer waits for the rest of a body that nobody wants, before it is given past the parser library and the connection closes. */
#define SG_OWED_MS 1000
/* What files and pipes of known length are read in. */
#define SG_BLOCK ((size_t)64 * 1024)

/* ---- connections: hangup.c ---- */

struct sg_conn {
    struct sg_http *http; /* gone only after every connection */
    _Atomic int refs;
    struct sg_conn *next, **prev; /* http->conns, under conns_lock; prev NULL: not (any more) in it */
    int fd;                       /* the parser's; usable while listed, under conns_lock */
    _Atomic int64_t deadline_ms;  /* the sweep shuts it down then; 0: none */
    _Atomic bool owes;            /* at that deadline it is only told its answer */
    bool over_limit;              /* accepted beyond max_connections */
    bool linger;                  /* daemon thread: close softly, the client may still be sending */
    _Atomic(struct sg_request *) spare; /* memory of one that is over, for the next */
    char peer[INET6_ADDRSTRLEN];

    pthread_mutex_t lock;
    struct sg_request *waiting; /* under lock: told when the client hangs up; one reference */
    bool watched;               /* under lock */
    bool hung_up;               /* under lock */

    /* Reactor thread, but for setting watch.fd before anything is posted. */
    struct sg_watch watch; /* its own copy of the descriptor: safe whatever the parser does */
    struct sg_timer timer;
    struct sg_task task, room_task;
    struct sg_conn *linger_next, **linger_prev;
    bool lingered; /* something came since the timer was set */
    int64_t linger_until_ms;
};

void sg_conn_opened(struct sg_http *h, struct MHD_Connection *mhd, void **socket_context);
void sg_conn_closed(struct sg_conn *c);
struct sg_conn *sg_conn_unref(struct sg_conn *c);
/* From now on r hears about a hang-up (one that has happened: sg_conn_hung). Daemon thread, no lock held. */
void sg_conn_wait(struct sg_conn *c, struct sg_request *r);
bool sg_conn_hung(struct sg_conn *c);
void sg_conn_unwait(struct sg_conn *c, struct sg_request *r);
/* After sg_conn_wait(): is it? Not when descriptors have run out. Daemon thread. */
bool sg_conn_is_watched(struct sg_conn *c);
/* Tells the waiting request, one that is sent directly, once when the socket takes bytes. Only when it is watched. Daemon thread or
 * reactor. */
void sg_conn_want_room(struct sg_conn *c);
void sg_conn_deadline(struct sg_conn *c, int64_t in_ms); /* 0: none */
void sg_conn_deadline_at(struct sg_conn *c, int64_t at_ms);
/* Shuts the connection's socket down if it is still open. Any thread. */
void sg_conn_shutdown(struct sg_conn *c);
/* Reactor: ends every soft close at once. */
void sg_conn_end_lingers(struct sg_http *h);

/* ---- answers: respond.c ---- */

enum sg_answer_kind { SG_ANSWER_BYTES, SG_ANSWER_FD, SG_ANSWER_PIPE, SG_ANSWER_SOURCE, SG_ANSWER_UPGRADE };

struct sg_answer_header {
    struct sg_answer_header *next;
    const char *name; /* literal, or behind value */
    char value[];
};

struct sg_answer {
    enum sg_answer_kind kind;
    int status;
    struct sg_answer_header *headers;
    const char *content_type; /* a literal, or NULL: then it is among the headers, if at all */
    void *data;               /* BYTES: malloc'ed */
    size_t len;
    int fd;                   /* FD */
    struct sg_hold *hold; /* FD: dropped after fd is closed */
    uint64_t offset, fd_len;
    struct sg_pipe *pipe; /* PIPE; also read by the reader until completion */
    struct sg_body_source source; /* SOURCE; likewise; close NULL: done */
    int64_t content_length;
    void (*taken)(void *arg, struct sg_upgrade *up, int fd, const void *early, size_t early_len); /* UPGRADE */
    void *taken_arg;
};

/* ---- requests ---- */

enum sg_req_state {
    SG_REQ_HEAD,   /* headers are here, nothing else decided; also while a STREAM handler makes up its mind */
    SG_REQ_BODY,   /* reading the body */
    SG_REQ_FULL,   /* all of it is here */
    SG_REQ_QUEUED, /* the answer is with the parser library */
};

struct sg_pair {
    const char *name, *value;
};

struct sg_block {
    struct sg_block *next;
    char bytes[];
};

struct sg_request {
    _Atomic int refs;  /* all of them */
    _Atomic int users; /* those of handlers: the last one going without an answer means none will come */
    struct sg_http *http;
    struct sg_conn *conn; /* one reference */

    /* Head: written once, before the handler runs. */
    const char *method, *version, *target;
    const char *target_at; /* daemon thread: where the parser had the target */
    size_t target_len, path_len;
    struct sg_header *headers;
    size_t n_headers;
    struct sg_framing framing;
    struct sg_header *body_trailers; /* written before the upload's pipe ends */
    size_t n_body_trailers;
    struct sg_route_match match;
    const char *params[SG_ROUTE_PARAMS_MAX];
    struct sg_pair query[SG_ROUTE_QUERY_MAX];
    size_t n_query;
    const char *id;
    const char *traceparent;
    const struct sg_principal *principal; /* one reference */
    int64_t started_us;

    /* Daemon thread only. */
    enum sg_req_state state;
    bool counted;         /* in http->requests */
    bool dispatched;      /* the handler has run */
    bool discard;         /* the body is thrown away */
    bool close;           /* no next request on this connection */
    bool body_ended;
    bool cut;             /* the answer was not (wholly) given */
    bool too_late;        /* the client was gone before the answer was handed over */
    int sent_status;      /* of the answer handed to the client, 0: none */
    uint64_t bytes_in, drained;
    _Atomic uint64_t bytes_out;
    size_t moved;         /* body bytes since the deadline was set */
    bool suspended_before; /* the body stood still because of us */
    struct sg_buf body; /* also the handler's, which may drop it */
    struct sg_budget *budget; /* of what body_taken bytes were taken; NULL: none were */
    size_t body_taken;

    pthread_mutex_t lock;
    /* Under lock. */
    char note[64];
    struct MHD_Connection *mhd; /* NULL once completed */
    bool suspended;             /* MHD_suspend_connection was called and not undone */
    bool wake;                  /* something happened for a side that is not suspended yet */
    bool answered;              /* answer is set, nobody may set it again */
    bool hung_up;
    bool aborted;               /* the server stops: end it now */
    bool owed;                  /* the answer is there, and what is left of the body is only in its way */
    bool told;                  /* by sg_req_tell() */
    bool upload_open;           /* the handler asked for the body */
    bool body_pending;          /* a body is not wholly here */
    struct sg_pipe *upload;
    struct sg_cancel *cancel;
    enum sg_cancel_reason cancel_reason;
    void (*on_end)(void *arg, bool delivered); /* NULL: none, or called */
    void *on_end_arg;
    struct sg_answer answer;

    struct sg_answer_header *trailers; /* under lock: of the answer */
    struct MHD_Response *response;     /* daemon thread: a chunked one whose reader runs; not a reference */
    struct sg_direct *direct;          /* how it is sent, set before it is; NULL: by the parser library */

    struct sg_answer_header *pending_headers; /* the answering thread's, until it answers */

    _Atomic bool upgraded;
    bool listed; /* in http->async, under http->lock */
    struct sg_request *async_next, **async_prev;
    struct sg_task task;
    enum MHD_RequestTerminationCode how;

    struct sg_block *blocks;
    size_t arena_left;
    char *arena_at;
    char arena[2048];
};

/* request.c */
struct sg_request *sg_req_new(struct sg_http *h, struct sg_conn *c, const char *target);
struct sg_request *sg_req_get(struct sg_request *r);
struct sg_request *sg_req_put(struct sg_request *r);
void *sg_req_alloc(struct sg_request *r, size_t size);
char *sg_req_copy(struct sg_request *r, const char *s, size_t len);
/* Decodes the path parameters and, unless the route wants it raw, the query. */
int sg_req_decode(struct sg_request *r, struct sg_error *err);
void sg_req_fire(struct sg_request *r, enum sg_cancel_reason why);
/* The client has closed its sending side, or all. Whatever waits is cancelled: the parser library does not serve a
 * half-closed connection any further once it was suspended. False: a body is just being read, so it may still
 * complete, or the library may notice for itself; look again a little later, with sure. */
bool sg_req_hangup(struct sg_request *r, bool sure);
/* r locked: resumes it if it is suspended, else remembers. */
void sg_req_wake_locked(struct sg_request *r);
/* The same for a pipe that the request reads or writes; the pipe keeps a reference. */
struct sg_waker sg_req_waker(struct sg_request *r);
/* Suspends unless something happened meanwhile. 1: suspended, leave the callback now; 0: look again; -1: the server
 * stops or the request is aborted. Daemon thread, no lock held. */
int sg_req_suspend(struct sg_request *r);
/* Has the client left, or is the server ending this request? */
bool sg_req_is_gone(struct sg_request *r);
bool sg_req_answered(struct sg_request *r);
bool sg_req_has_body(const struct sg_request *r);

/* exchange.c: the state machine. */
enum MHD_Result sg_exchange(struct sg_request *r, struct MHD_Connection *mhd, const char *method,
                            const char *version, const char *data, size_t *size);
void sg_exchange_completed(struct sg_request *r, enum MHD_RequestTerminationCode how);

/* admit.c: everything that is decided from the head. 0, or -1 with err; r->close set when it has to be. */
int sg_admit(struct sg_request *r, struct MHD_Connection *mhd, const char *method, const char *version,
             char *allow, size_t allow_size, struct sg_error *err);
int sg_admit_authenticate(struct sg_request *r, struct sg_error *err);
void sg_admit_trailers(struct sg_request *r, struct MHD_Connection *mhd);
uint64_t sg_admit_max_body(const struct sg_request *r); /* bytes; r has a route */

/* respond.c, daemon thread. */
/* A refusal of our own; shares nothing with an answer a handler may be making at this moment. allow: for the Allow
 * header, or NULL. Clears err. */
void sg_answer_refuse(struct sg_request *r, struct sg_error *err, const char *allow);
void sg_answer_free_headers(struct sg_answer_header *h);
enum MHD_Result sg_answer_queue(struct sg_request *r, struct MHD_Connection *mhd);
/* Writes a small answer straight to the socket; the connection is done after it. For refusals in the middle of a body,
 * where the parser library takes no answer. */
void sg_answer_raw(struct sg_request *r);
/* Daemon thread: what is left of the body is thrown away, and waited for only a moment if there is such an answer. */
void sg_req_owe(struct sg_request *r);
/* Reactor: that answer, if it is owed, although the body is not here. */
void sg_req_tell(struct sg_request *r);
void sg_answer_finish(struct sg_answer *a);
/* Nobody reads its source any more, if it has one. Idempotent. */
void sg_answer_close_source(struct sg_answer *a);

/* stream.c */
struct MHD_Response *sg_stream_response(struct sg_request *r);
struct MHD_Response *sg_file_response(struct sg_request *r);
/* The file is done with: once sent, or when it never will be. Daemon thread. */
void sg_file_close(struct sg_request *r);

/* direct.c: the body of an answer from a source, past the parser library. Daemon thread. NULL: not for this connection. */
struct sg_direct *sg_direct_new(struct sg_request *r);
struct sg_direct *sg_direct_free(struct sg_direct *d);
/* From the content reader. 0: all is sent, but for what ends a chunked one; -EAGAIN: suspended, call again; else the answer is cut. */
ssize_t sg_direct_read(struct sg_request *r);
/* Any thread, r not locked: the source or the socket can go on. */
void sg_direct_wake(struct sg_request *r);
/* r is locked: is a thread just using the source? Once the request is completed, that one closes it. */
bool sg_direct_is_busy(const struct sg_request *r);

/* upload.c: one block of body. */
enum MHD_Result sg_upload_block(struct sg_request *r, const char *data, size_t *size);
void sg_upload_moved(struct sg_request *r, size_t n);
void sg_upload_end(struct sg_request *r);
void sg_upload_abort(struct sg_request *r);

/* upgrade.c */
struct MHD_Response *sg_upgrade_response(struct sg_request *r);

/* ---- the server: listener.c ---- */

struct sg_http {
    struct sg_http_config cfg;
    struct sg_router *router;
    struct sg_router *host_router;
    struct sg_budget *bodies; /* what buffered bodies may hold together */
    struct MHD_Daemon **daemons;
    unsigned n_daemons;
    uint16_t port;
    char id_prefix[24];
    _Atomic uint32_t id_count;
    _Atomic unsigned requests; /* whose head is here; */
    _Atomic unsigned working;  /* and those of them that reached their handler, */
    _Atomic unsigned watching; /* but for those whose route only watches */
    _Atomic unsigned connections;
    _Atomic bool draining;
    _Atomic bool stopping;
    _Atomic bool hurry; /* nobody waits for running work any more */
    bool drained, stopped; /* the stopping thread's */
    int *quiesced;         /* listen descriptors given back by the daemons; */
    bool *quiet;           /* which have: both under lock */

    pthread_mutex_t lock;
    pthread_cond_t idle;       /* requests went down */
    _Atomic unsigned waiters;  /* for that */
    struct sg_request *async;  /* under lock: requests that were suspended at least once */

    pthread_mutex_t conns_lock;
    struct sg_conn *conns; /* under conns_lock */
    bool sweeping;         /* under conns_lock: the timer is or will be armed */
    struct sg_timer sweep;
    struct sg_task sweep_task;
    struct sg_conn *lingers; /* reactor thread */
    _Atomic unsigned lingering;
};

void sg_http_async_add(struct sg_http *h, struct sg_request *r);
void sg_http_async_remove(struct sg_http *h, struct sg_request *r);
void sg_http_went_down(struct sg_http *h);
void sg_http_sweep_start(struct sg_http *h);
void sg_http_sweep(struct sg_timer *t);

#endif
