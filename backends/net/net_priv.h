/* What the parts of the net share; nobody else includes it. */
#ifndef SG_NET_PRIV_H
#define SG_NET_PRIV_H

#include "backends/net/http.h"

#include "base/buf.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>

struct sg_net {
    pthread_t thread;
    CURLM *multi;
    pthread_mutex_t lock; /* guards the next block and what says so below */
    pthread_cond_t idle;  /* the last call of a client has ended */
    bool stop;
    struct sg_net_call *poked; /* calls the thread is to look at, in order; a reference each */
    struct sg_net_client *clients;
    unsigned objects; /* calls that exist, of ended ones too */
    struct sg_net_call *wires; /* net thread: that are connected */
    struct curl_waitfd *waits; /* net thread: room for those of them that wait */
    unsigned n_waits;
};

struct sg_net_client {
    struct sg_net *net;
    char *url;    /* of the base, without a '/' at its end */
    char *socket; /* path of the unix socket, or NULL */
    char *shown;  /* in messages */
    char *ca_file, *cert_file, *key_file;
    char *proxy; /* http://HOST[:PORT], or NULL */
    struct sg_secret *proxy_auth; /* USER:PASSWORD, percent-encoded, or NULL */
    struct curl_slist *connect_to;
    bool http2;
    unsigned max_concurrent, max_waiting;
    int64_t connect_ms;
    int receive_buffer;

    /* under the net's lock */
    bool closing;
    struct sg_net_call *alive; /* whose done has not returned */
    struct sg_net_counts counts;
    struct sg_net_client *prev, *next;

    /* net thread */
    struct sg_net_call *queue; /* that wait for their turn, in order */
};

struct sg_net_response {
    int status;
    struct sg_buf head; /* name NUL value NUL ... */
    struct sg_buf body;
};

/* One call as a connection that stops being HTTP. */
enum sg_wire_state { SG_WIRE_CONNECTING, SG_WIRE_REQUEST, SG_WIRE_HEAD, SG_WIRE_OPEN, SG_WIRE_REFUSED };
struct sg_wire {
    enum sg_wire_state state;
    int fd; /* curl's */
    struct sg_buf request;
    size_t sent; /* of it */
    struct sg_buf head; /* what has come of the response's */
    bool deaf;    /* nothing is sent any more */
    bool blocked; /* the socket takes nothing now */
    bool more;    /* there may be more to do without waiting */
    bool over;    /* nothing comes any more */
    int64_t left; /* of the body of a refusal */
    char chunk[16384];
    size_t at, len; /* of what has been read into it and not been used */
};

enum sg_call_state { SG_CALL_NEW, SG_CALL_WAITING, SG_CALL_RUNNING, SG_CALL_ENDED };
enum sg_call_stop { SG_CALL_GO, SG_CALL_CANCELLED, SG_CALL_CLOSED };

struct sg_net_call {
    atomic_int refs; /* until it has ended; while poked; one per waker; the hook's */
    struct sg_net *net;
    struct sg_net_client *client; /* not after the end */
    struct sg_cancel *cancel;
    struct sg_cancel_hook hook;
    _Atomic enum sg_call_stop stop;

    /* under the net's lock */
    bool poked, starting;
    struct sg_net_call *poked_prev, *poked_next;
    struct sg_net_call *alive_prev, *alive_next;

    /* fixed */
    char *method, *path, *host;
    struct curl_slist *headers;
    char *body;
    size_t body_len;
    struct sg_pipe *body_pipe, *response_pipe;
    int64_t body_size;
    bool repeatable;
    int64_t deadline_ms, stall_ms;
    size_t response_max;
    void (*head)(void *arg, const struct sg_net_response *r);
    void (*done)(void *arg, const struct sg_net_response *r, const struct sg_error *err);
    void *arg;

    enum sg_call_state state; /* set by the net thread, with the lock */

    struct sg_wire *wire; /* of an upgrade, else NULL */

    /* net thread */
    CURL *easy;
    char text[CURL_ERROR_SIZE]; /* what curl says of a failure */
    struct sg_net_response response;
    bool waited;  /* did not get its turn at once */
    bool begun;   /* the request has been given to a connection */
    bool headed;  /* the final head is complete */
    bool streams; /* the body goes to response_pipe */
    bool paused;
    size_t skip; /* bytes that were taken of what curl will bring once more */
    int64_t body_sent;
    uint64_t bytes_in;
    struct sg_error why; /* set by a callback that ends the transfer */
    struct sg_net_call *queue_prev, *queue_next;
    struct sg_net_call *wire_prev, *wire_next;
};

/* ---- net.c ---- */

struct sg_net_call *sg_call_ref(struct sg_net_call *c);
void sg_call_unref(struct sg_net_call *c);
/* Any thread: the net thread looks at c soon. */
void sg_call_poke(struct sg_net_call *c);

/* ---- call.c: one call as curl sees it; net thread but for sg_call_new() ---- */

int sg_call_new(struct sg_net_client *client, const struct sg_net_request *q, struct sg_net_call **ret, struct sg_error *err);
void sg_call_free(struct sg_net_call *c);
/* Makes the handle; not added to a multi yet. */
int sg_call_prepare(struct sg_net_call *c, struct sg_error *err);
/* One line of the response's head: "Name: value". */
int sg_call_take_field(struct sg_net_call *c, const char *p, size_t len);
int sg_call_head_too_large(struct sg_net_call *c);
/* What a transfer that ended with rc means: 0, or -1 with err. */
int sg_call_verdict(struct sg_net_call *c, CURLcode rc, struct sg_error *err);

/* ---- wire.c ---- */

int sg_wire_new(struct sg_net_call *c, const char *protocol, struct sg_error *err);
void sg_wire_free(struct sg_wire *w); /* NULL-safe */
/* It is connected. As sg_wire_step(). */
int sg_wire_begin(struct sg_net_call *c);
/* Moves what can be moved. 0, 1: it is over, -1: with c->why. */
int sg_wire_step(struct sg_net_call *c);
/* What it waits for; false: for nothing but its pipes. */
bool sg_wire_wants(const struct sg_net_call *c, struct curl_waitfd *ret);

#endif
