/* HTTP calls to providers and engines: one thread with one curl multi handle for all of them, however many run.
 *
 * A client is one origin with its own limits; a call is one request to it. There are no retries, no redirects, no cookies, and
 * nothing of proxies is taken from the environment: what is asked for is sent once, and what came of it is told once. A response is hostile: it never
 * takes more memory than the call allows.
 *
 * Unless said otherwise functions may be called on any thread and never block. Callbacks run on the net thread, without locks held,
 * and must not block; they may start further calls.
 */
#ifndef SG_NET_HTTP_H
#define SG_NET_HTTP_H

#include "base/cancel.h"
#include "base/error.h"
#include "base/pipe.h"
#include "base/secret.h"

struct sg_net;
struct sg_net_client;
struct sg_net_response;

#define SG_NET_WAITING_MAX 1024U    /* calls of one client that wait for their turn, by default */
#define SG_NET_CONCURRENT_MAX 64U   /* calls of one client that run, by default */
#define SG_NET_CONNECT_MS 10000     /* by default */
#define SG_NET_HEAD_MAX 65536U      /* bytes of a response's status line and header fields; more is a failure */

/* Starts the thread. */
int sg_net_new(struct sg_net **ret, struct sg_error *err);
/* Ends the thread; all clients have been freed. Blocks; not on the net thread. NULL-safe, returns NULL. */
struct sg_net *sg_net_free(struct sg_net *n);

/* ---- clients ---- */

struct sg_net_client_config {
    /* "http://host[:port][/prefix]", "https://..." or "unix:///absolute/path"; no query, no user. Copied like all strings. */
    const char *base;
    const char *ca_file;   /* PEM; NULL: the system's. https only, whose certificates and names are always verified */
    const char *cert_file; /* PEM, the client's own certificate and key; both or NULL */
    const char *key_file;
    /* MAY: "http://[USER:PASSWORD@]HOST[:PORT]", percent-encoded; everything goes through a tunnel (CONNECT) of it. */
    const struct sg_secret *proxy;
    const char *connect_to;  /* MAY: "host:port" where all its connections go, whatever their name, which certificates are held to */
    bool http2;              /* by ALPN where there is TLS, with prior knowledge elsewhere; else HTTP/1.1 */
    unsigned max_concurrent; /* 0: SG_NET_CONCURRENT_MAX */
    unsigned max_waiting;    /* 0: SG_NET_WAITING_MAX */
    int64_t connect_ms;      /* 0: SG_NET_CONNECT_MS */
    int receive_buffer;      /* bytes that the system may hold of what nobody reads, per connection; 0: as it likes */
};

/* SG_INVALID_REQUEST for a base, proxy or connect_to that is none. The net outlives the client. */
int sg_net_client_new(struct sg_net *n, const struct sg_net_client_config *c, struct sg_net_client **ret, struct sg_error *err);
/* Ends all calls with SG_SHUTTING_DOWN and waits until their callbacks have returned; no call may be started meanwhile but from
 * those (they are refused). Blocks for these only; not on the net thread. NULL-safe, returns NULL. */
struct sg_net_client *sg_net_client_free(struct sg_net_client *c);

struct sg_net_counts {
    uint64_t calls;     /* accepted so far */
    uint64_t answered;  /* that ended with a response, whatever its status */
    uint64_t failed;    /* ... without, deadlines included */
    uint64_t timed_out; /* of those that failed: by the deadline, or stalled */
    uint64_t cancelled; /* ... by their token */
    uint64_t refused;   /* were not accepted: too many waited */
    uint64_t bytes_in, bytes_out; /* of bodies */
    unsigned running, waiting;    /* now */
    unsigned max_concurrent;
};
void sg_net_client_counts(struct sg_net_client *c, struct sg_net_counts *ret);

/* ---- calls ---- */

/* name: value. Exactly one of value and secret is set; a secret goes nowhere but into the request. */
struct sg_net_header {
    const char *name;
    const char *value;
    const struct sg_secret *secret;
    const char *prefix; /* MAY: before the secret, such as "Bearer " */
};

/* Borrowed for sg_net_call(), which copies what it needs and takes references of its own on pipes and tokens. */
struct sg_net_request {
    const char *method; /* "GET", ... */
    const char *path;   /* with the query, begins with '/', already escaped; appended to the base */
    const char *host;   /* MAY: "name[:port]" in place of all of the base behind "://" */
    const struct sg_net_header *headers; /* Host, Content-Length and Transfer-Encoding are made here. A body without Content-Type goes
                                          * out without one. */
    size_t n_headers;

    /* The body: bytes, or a pipe that this end reads; body_size -1: unknown, sent in chunks. A pipe that fails ends the call with its
     * error, and one of another size than said with SG_INTERNAL. Whoever writes hears that nobody reads any more when the call ends. */
    const void *body;
    size_t body_len;
    struct sg_pipe *body_pipe;
    int64_t body_size;

    /* Requests that are not safe to repeat (POST and PATCH) are never sent again by themselves; the others are when a kept connection
     * turns out to have been closed. repeatable: so is this POST. */
    bool repeatable;

    /* MAY: the protocol that the connection is to change to, such as "tcp"; body is then the request's, and body_pipe and response,
     * which must be given, are what follows. Once the response is 101 or 200, which head tells, bytes go both ways as they come: the
     * end of body_pipe closes that half of the connection, the other end's ends the call with the response. Another status is an
     * ordinary response. deadline_ms is then that of the response's head, and there is no stall_ms. HTTP/1.1 only. */
    const char *upgrade;

    int64_t deadline_ms; /* of sg_now_ms(): of everything, the wait for a turn included; 0: none */
    int64_t stall_ms;    /* ends a call during which for so long (whole seconds, rounded up) no byte moved; 0: never. A response that
                          * nobody reads is not stalled. */

    /* The response's body: kept in memory up to response_max bytes (more: SG_PROVIDER_FAILED, reason `response_too_large`); or, when
     * response is given and the status is 2xx, written there. The pipe is bounded: a reader that is slow slows the sender. It is closed
     * before done when the response is complete, else failed; a reader that stops ends the call with SG_CANCELLED. */
    size_t response_max;
    struct sg_pipe *response;

    struct sg_cancel *cancel; /* MAY: when it fires the call ends with SG_CANCELLED */

    /* MAY: status and header fields are here. At most once, before done. */
    void (*head)(void *arg, const struct sg_net_response *r);
    /* MUST: exactly once, last. Either r (any status; 3xx too) or err; both borrowed for the callback. See sg_net_call(). */
    void (*done)(void *arg, const struct sg_net_response *r, const struct sg_error *err);
    void *arg;
};

/* 0: done will come, maybe before this returns but always on the net thread. -1: nothing happened (SG_OVERLOADED when too many wait,
 * SG_INTERNAL for a request that is none, SG_SHUTTING_DOWN, SG_CANCELLED).
 *
 * How a call fails without a response:
 *   SG_UNAVAILABLE       nothing of the request was sent: no connection (reason `unreachable`), no trust (`tls_failed`), or the deadline
 *                        came while it waited for its turn (`busy`). Repeating it is safe.
 *   SG_PROVIDER_TIMEOUT  the deadline came, or it stalled, after something was sent (reason `deadline` or `stalled`)
 *   SG_PROVIDER_FAILED   the connection broke or what came was no HTTP after something was sent (reason `connection_lost`), or the
 *                        response was too large
 *   SG_CANCELLED, SG_SHUTTING_DOWN
 *   what a body_pipe failed with
 * Messages name the origin and never a header field, a query or a body. */
int sg_net_call(struct sg_net_client *c, const struct sg_net_request *q, struct sg_error *err);

/* ---- responses ---- */

int sg_net_status(const struct sg_net_response *r);
/* The value of the first field of that name (of the head, then of the trailers), or NULL. Borrowed like r. */
const char *sg_net_header(const struct sg_net_response *r, const char *name);
/* The body that was kept, with a NUL behind it; *ret_len (MAY be NULL): its bytes. Never NULL. */
const char *sg_net_body(const struct sg_net_response *r, size_t *ret_len);
/* Seconds of a Retry-After, a number of them or a date, at most a day; 0: none, or one that has passed. */
int sg_net_retry_after(const struct sg_net_response *r);

/* text escaped for one segment of a path, or a value of a query: unreserved characters stay. Caller frees. */
char *sg_net_escape(const char *text);

#endif
