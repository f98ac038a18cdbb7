/* The HTTP server: one listen socket, N one-thread epoll daemons on copies of it. */
#ifndef SG_LISTENER_H
#define SG_LISTENER_H

#include "base/log.h"
#include "base/reactor.h"
#include "http/request.h"

struct sg_http;

/* What happened to a request, told once when it is over, on a daemon thread (must not block). Strings are borrowed. */
struct sg_http_event {
    const struct sg_request *request; /* for sg_req_param() etc.; NULL fields when it never got that far */
    const char *method;
    const char *target;
    const char *operation_id; /* NULL: no route */
    const char *request_id;
    const char *traceparent;  /* or NULL */
    const char *peer;
    const char *note;         /* sg_req_set_note(), or "" */
    const struct sg_principal *principal; /* or NULL */
    int status;               /* 0: cut before an answer, or the parser's own 4xx */
    bool complete;            /* false: the client left, or the answer was cut */
    uint64_t bytes_in, bytes_out; /* of bodies */
    int64_t duration_us;
};

struct sg_http_config {
    int listen_fd;                /* non-blocking; stays the caller's until sg_http_new succeeds, then ours */
    unsigned daemons;             /* 0: 1 */
    const struct sg_route *routes; /* borrowed */
    size_t n_routes;
    void *app;                    /* given to handlers and callbacks */
    struct sg_reactor *reactor;   /* borrowed: hang-up watch and timers */
    struct sg_log *log;           /* or NULL */
    /* Checks a token (NULL: none was sent). 0: *ret is a reference the server gives back with
     * sg_principal_unref(); -1: SG_UNAUTHORIZED or so. NULL: nobody is asked, the principal stays NULL. */
    int (*auth)(void *app, const char *token, size_t len, const struct sg_principal **ret, struct sg_error *err);
    /* Does auth let everybody in? Then where a request comes from is looked at instead (cross_site.h). NULL: no. */
    bool (*open)(void *app);
    const char *public_url; /* how callers reach this server, borrowed; NULL: not configured */
    void (*done)(void *app, const struct sg_http_event *e); /* or NULL */
    /* Requests for a Host this accepts go to host_route (path "/{rest...}") whatever their path. NULL: none. */
    bool (*host_match)(void *app, const char *host);
    const struct sg_route *host_route;
    size_t max_body;              /* of JSON bodies; 0: 1 MiB */
    size_t body_memory;           /* of all JSON bodies together, but for the first 16 KiB of each: beyond, 503; 0: 256 MiB */
    unsigned max_requests;        /* at once, beyond: 503; 0: 4096 */
    unsigned max_connections;     /* at once, beyond: 503 and close; 0: 8192 */
    /* Per connection, cleared per request; 0: 32 KiB. What does not fit of a request's head is refused by the parser with a page of its own, so
     * there is more of it than our own limits need. */
    size_t connection_memory;
    int64_t header_ms;            /* a request's head must be here within; 0: 10 s */
    int64_t idle_ms;              /* kept-alive connection without a request; 0: 75 s */
    int64_t body_ms;              /* a buffered body must be here within, a streamed one must move; 0: 60 s */
    int64_t stall_ms;             /* a client that takes nothing of its answer; 0: 300 s */
    size_t body_pipe;             /* bytes an upload may be ahead of its reader; 0: 256 KiB */
};

/* Opens a listen socket for "HOST:PORT" (numeric or "localhost"; "[::1]:8080", ":8080" all addresses; port 0: any). */
int sg_http_listen(const char *address, int *ret_fd, struct sg_error *err);
/* Is it bound to a loopback address? */
bool sg_http_is_loopback(int listen_fd);

int sg_http_new(const struct sg_http_config *cfg, struct sg_http **ret, struct sg_error *err);
/* Of the HTTP parser library: "0.9.75". */
const char *sg_http_parser_version(void);
uint16_t sg_http_port(const struct sg_http *h);
/* Requests being worked on now; open connections. Any thread. */
unsigned sg_http_requests(const struct sg_http *h);
unsigned sg_http_connections(const struct sg_http *h);

/* Waits until no request is being worked on, at most ms; the server goes on as it is. False: it took longer. Not on a daemon
 * or reactor thread. */
bool sg_http_wait_idle(struct sg_http *h, int64_t ms);
/* That wait ends now, and so does every later one. Any thread. */
void sg_http_hurry(struct sg_http *h);
/* Closes the listen socket; kept-alive connections get 503 and are closed; running requests go on. Idempotent. */
void sg_http_drain(struct sg_http *h);
/* Drains, waits until grace_ms for running requests, then fires SG_CANCEL_SHUTDOWN on the rest, waits up to cancel_ms
 * for their answers, answers 503 for those that still owe one, cuts streams and upgrades, stops the daemons. Must not
 * be called on a daemon or reactor thread. */
void sg_http_stop(struct sg_http *h, int64_t grace_ms, int64_t cancel_ms);
/* Stops (without grace) if that was not done, and frees. References to requests may outlive it, answers to
 * them then do nothing. The reactor must still run. NULL-safe. */
struct sg_http *sg_http_free(struct sg_http *h);

#endif
