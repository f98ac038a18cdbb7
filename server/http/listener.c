#include "http/listener.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/str.h"
#include "http/request_priv.h"

#define BACKLOG 1024
/* Connections the library may take beyond our own limit, to be told 503: a quarter more, at most so many. */
#define HEADROOM 256U
#define QUIESCE_MS 300  /* for a daemon to notice a new connection, */
#define QUIESCE_TRIES 3 /* so often */
#define FLUSH_MS 1000   /* for answers of a stopping server to be written */
#define UPGRADE_MS 2000 /* for relays to let go of their sockets */

/* ---- the socket ---- */

static int split_address(const char *address, char host[64], char port[8], struct sg_error *err)
{
    const char *colon = strrchr(address, ':');
    size_t len = colon ? (size_t)(colon - address) : 0;
    int64_t number;
    if (!colon || len >= 64 || strlen(colon + 1) > 5 || !sg_parse_int(colon + 1, 0, 65535, &number))
        return sg_error_field(err, SG_INVALID_REQUEST, "listen", "\"%.64s\" is not HOST:PORT", address);
    if (len >= 2 && address[0] == '[' && address[len - 1] == ']') {
        address++;
        len -= 2;
    }
    memcpy(host, address, len);
    host[len] = '\0';
    snprintf(port, 8, "%d", (int)number);
    if (sg_streq(host, "localhost"))
        snprintf(host, 64, "127.0.0.1");
    return 0;
}

/* Accepted sockets inherit these. */
static void set_options(int fd)
{
    int one = 1;
    int idle = 60;
    int interval = 15;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
}

static int open_socket(const struct addrinfo *ai, const char *address, int *ret_fd, struct sg_error *err)
{
    int zero = 0;
    sg_cleanup(sg_close_p) int fd =
        socket(ai->ai_family, ai->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, ai->ai_protocol);
    if (fd < 0)
        return sg_error_sys(err, SG_INTERNAL, errno, "socket for %s", address);
    set_options(fd);
    if (ai->ai_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    if (bind(fd, ai->ai_addr, ai->ai_addrlen) < 0 || listen(fd, BACKLOG) < 0)
        return sg_error_sys(err, SG_INTERNAL, errno, "cannot listen on %s", address);
    *ret_fd = sg_steal_fd(&fd);
    return 0;
}

int sg_http_listen(const char *address, int *ret_fd, struct sg_error *err)
{
    char host[64], port[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    if (split_address(address, host, port, err) < 0)
        return -1;
    int rc = getaddrinfo(host[0] ? host : NULL, port, &hints, &list);
    if (rc != 0 || list == NULL)
        return sg_error_field(err, SG_INVALID_REQUEST, "listen", "\"%.64s\": %s", address, gai_strerror(rc));
    /* Without a host, the IPv6 socket takes IPv4 as well. */
    const struct addrinfo *pick = list;
    for (const struct addrinfo *ai = list; ai && !host[0]; ai = ai->ai_next)
        if (ai->ai_family == AF_INET6)
            pick = ai;
    rc = open_socket(pick, address, ret_fd, err);
    if (rc < 0 && !host[0] && pick != list) {
        sg_error_clear(err);
        rc = open_socket(list, address, ret_fd, err);
    }
    freeaddrinfo(list);
    return rc;
}

union any_address {
    struct sockaddr sa;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
    struct sockaddr_storage storage;
};

static bool local_address(int fd, union any_address *a)
{
    socklen_t len = sizeof *a;
    memset(a, 0, sizeof *a);
    return getsockname(fd, &a->sa, &len) == 0;
}

bool sg_http_is_loopback(int listen_fd)
{
    union any_address a;
    if (!local_address(listen_fd, &a))
        return false;
    if (a.sa.sa_family == AF_INET)
        return (ntohl(a.in.sin_addr.s_addr) >> 24) == 127;
    if (a.sa.sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&a.in6.sin6_addr);
    return a.sa.sa_family == AF_UNIX;
}

/* ---- what the daemons call ---- */

static void *on_target(void *cls, const char *uri, struct MHD_Connection *mhd)
{
    struct sg_http *h = cls;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct sg_conn *c = info ? info->socket_context : NULL;
    struct sg_request *r = c ? sg_req_new(h, c, uri) : NULL;
    if (!r)
        return NULL;
    r->mhd = mhd;
    return r;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *mhd, const char *url, const char *method,
                                  const char *version, const char *data, size_t *size, void **con_cls)
{
    (void)cls;
    (void)url; /* decoded and cut at an escaped NUL: routing goes by the raw target */
    if (!*con_cls)
        return MHD_NO; /* no memory at on_target */
    return sg_exchange(*con_cls, mhd, method, version, data, size);
}

static void on_completed(void *cls, struct MHD_Connection *mhd, void **con_cls,
                         enum MHD_RequestTerminationCode how)
{
    struct sg_request *r = *con_cls;
    (void)cls;
    *con_cls = NULL;
    /* The library forgets a connection whose chunked answer was cut until something makes it look at it once more, which can be for as
     * long as an older connection is idle. Those with a time of their own are looked at each turn, and a turn is due when that is up. */
    if (how != MHD_REQUEST_TERMINATED_COMPLETED_OK)
        (void)MHD_set_connection_option(mhd, MHD_CONNECTION_OPTION_TIMEOUT, 1U);
    if (r)
        sg_exchange_completed(r, how);
}

/* h->lock is held. */
static void quiesce(struct sg_http *h, unsigned i)
{
    if (h->quiet[i])
        return;
    h->quiet[i] = true;
    h->quiesced[i] = MHD_quiesce_daemon(h->daemons[i]);
    pthread_cond_broadcast(&h->idle);
}

/* Only on its own thread may a daemon be told to stop accepting: the library's loop takes the listen socket out of its epoll set when
 * it sees the flag, the call takes it out too, and whichever comes second ends the process (seen with 0.9.75 and 1.0.1). */
static void quiesce_if_draining(struct sg_http *h, struct MHD_Connection *mhd)
{
    if (!atomic_load(&h->draining))
        return;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_DAEMON);
    pthread_mutex_lock(&h->lock);
    for (unsigned i = 0; info && i < h->n_daemons; i++)
        if (h->daemons[i] == info->daemon)
            quiesce(h, i);
    pthread_mutex_unlock(&h->lock);
}

static void on_connection(void *cls, struct MHD_Connection *mhd, void **context,
                          enum MHD_ConnectionNotificationCode what)
{
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        sg_conn_opened(cls, mhd, context);
        quiesce_if_draining(cls, mhd);
    } else if (*context) {
        sg_conn_closed(*context);
    }
}

static void on_library_log(void *cls, const char *fmt, va_list ap) SG_PRINTF(2, 0);
static void on_library_log(void *cls, const char *fmt, va_list ap)
{
    struct sg_http *h = cls;
    struct sg_log_line l;
    char text[512];
    (void)ap; /* may quote what a client sent, tokens included: the pattern alone tells what happened */
    snprintf(text, sizeof text, "%.*s", (int)strcspn(fmt, "\r\n"), fmt);
    sg_log_begin(&l, h->cfg.log, SG_LOG_DEBUG, "http_library");
    sg_log_str(&l, "message", text);
    sg_log_end(&l);
}

static size_t no_unescape(void *cls, struct MHD_Connection *mhd, char *s)
{
    (void)cls;
    (void)mhd;
    return strlen(s);
}

/* ---- building ---- */

static int64_t or_default(int64_t v, int64_t dflt)
{
    return v > 0 ? v : dflt;
}

static void fill_defaults(struct sg_http_config *c)
{
    c->daemons = c->daemons ? c->daemons : 1;
    c->max_body = c->max_body ? c->max_body : (size_t)1024 * 1024;
    c->body_memory = c->body_memory ? c->body_memory : (size_t)256 * 1024 * 1024;
    c->max_requests = c->max_requests ? c->max_requests : 4096;
    c->max_connections = c->max_connections ? c->max_connections : 8192;
    c->connection_memory = c->connection_memory ? c->connection_memory : (size_t)32 * 1024;
    c->body_pipe = c->body_pipe ? c->body_pipe : (size_t)256 * 1024;
    c->header_ms = or_default(c->header_ms, 10 * 1000);
    c->idle_ms = or_default(c->idle_ms, 75 * 1000);
    c->body_ms = or_default(c->body_ms, 60 * 1000);
    c->stall_ms = or_default(c->stall_ms, 300 * 1000);
}

static int start_daemon(struct sg_http *h, int listen_fd, struct sg_error *err)
{
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_ALLOW_UPGRADE | MHD_USE_ERROR_LOG;
    unsigned more = h->cfg.max_connections / 4 + 1;
    unsigned limit = h->cfg.max_connections + (more < HEADROOM ? more : HEADROOM);
    unsigned stall = (unsigned)((h->cfg.stall_ms + 999) / 1000);
    int fd = fcntl(listen_fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return sg_error_sys(err, SG_INTERNAL, errno, "copy of the listen socket");
    struct MHD_Daemon *d = MHD_start_daemon(
        flags, 0, NULL, NULL, on_request, h, MHD_OPTION_EXTERNAL_LOGGER, on_library_log, (void *)h,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_NOTIFY_COMPLETED, on_completed, (void *)h,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, (void *)h, MHD_OPTION_URI_LOG_CALLBACK, on_target, (void *)h,
        MHD_OPTION_UNESCAPE_CALLBACK, no_unescape, (void *)h, MHD_OPTION_CONNECTION_LIMIT, limit,
        MHD_OPTION_CONNECTION_TIMEOUT, stall, MHD_OPTION_CONNECTION_MEMORY_LIMIT, h->cfg.connection_memory,
        MHD_OPTION_CONNECTION_MEMORY_INCREMENT, (size_t)8192, MHD_OPTION_THREAD_STACK_SIZE, (size_t)512 * 1024,
#if MHD_VERSION >= 0x01000000
        MHD_OPTION_CLIENT_DISCIPLINE_LVL, 1,
#endif
        MHD_OPTION_END);
    if (!d) {
        sg_close(fd);
        return sg_error_set(err, SG_INTERNAL, "the HTTP daemon does not start");
    }
    h->daemons[h->n_daemons++] = d;
    return 0;
}

static void sweep_task(struct sg_task *t)
{
    sg_http_sweep(&sg_container_of(t, struct sg_http, sweep_task)->sweep);
}

static int make_routers(struct sg_http *h, struct sg_error *err)
{
    if (sg_router_new(h->cfg.routes, h->cfg.n_routes, &h->router, err) < 0)
        return -1;
    if (h->cfg.host_match && h->cfg.host_route)
        return sg_router_new(h->cfg.host_route, 1, &h->host_router, err);
    return 0;
}

/* Request ids are told apart, not kept secret: a random prefix per server and a counter. */
static void make_id_prefix(struct sg_http *h)
{
    uint8_t random[6];
    char hex[2 * sizeof random + 1];
    sg_random(random, sizeof random);
    sg_hex(random, sizeof random, hex);
    snprintf(h->id_prefix, sizeof h->id_prefix, "req_%s", hex);
}

static struct sg_http *http_alloc(const struct sg_http_config *cfg)
{
    pthread_condattr_t attr;
    struct sg_http *h = sg_xcalloc(1, sizeof *h);
    h->cfg = *cfg;
    h->cfg.listen_fd = -1;
    fill_defaults(&h->cfg);
    h->bodies = sg_budget_new(h->cfg.body_memory);
    pthread_mutex_init(&h->lock, NULL);
    pthread_mutex_init(&h->conns_lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&h->idle, &attr);
    pthread_condattr_destroy(&attr);
    h->sweep.fire = sg_http_sweep;
    h->sweep_task.run = sweep_task;
    h->daemons = sg_xcalloc(h->cfg.daemons, sizeof(struct MHD_Daemon *));
    h->quiesced = sg_xcalloc(h->cfg.daemons, sizeof(int));
    h->quiet = sg_xcalloc(h->cfg.daemons, sizeof(bool));
    for (unsigned i = 0; i < h->cfg.daemons; i++)
        h->quiesced[i] = -1;
    make_id_prefix(h);
    return h;
}

int sg_http_new(const struct sg_http_config *cfg, struct sg_http **ret, struct sg_error *err)
{
    union any_address a;
    struct sg_http *h = http_alloc(cfg);
    if (local_address(cfg->listen_fd, &a))
        h->port = ntohs(a.sa.sa_family == AF_INET6 ? a.in6.sin6_port : a.in.sin_port);
    int rc = make_routers(h, err);
    for (unsigned i = 0; rc == 0 && i < h->cfg.daemons; i++)
        rc = start_daemon(h, cfg->listen_fd, err);
    if (rc < 0) {
        sg_http_free(h);
        return -1;
    }
    h->cfg.listen_fd = cfg->listen_fd;
    *ret = h;
    return 0;
}

const char *sg_http_parser_version(void)
{
    return MHD_get_version();
}

uint16_t sg_http_port(const struct sg_http *h)
{
    return h->port;
}

unsigned sg_http_requests(const struct sg_http *h)
{
    return atomic_load(&h->requests);
}

unsigned sg_http_connections(const struct sg_http *h)
{
    return atomic_load(&h->connections);
}

/* ---- requests that were suspended once: who must be told when the server stops ---- */

void sg_http_async_add(struct sg_http *h, struct sg_request *r)
{
    pthread_mutex_lock(&h->lock);
    if (!r->listed) {
        r->listed = true;
        r->async_next = h->async;
        r->async_prev = &h->async;
        if (r->async_next)
            r->async_next->async_prev = &r->async_next;
        h->async = r;
    }
    pthread_mutex_unlock(&h->lock);
}

void sg_http_async_remove(struct sg_http *h, struct sg_request *r)
{
    if (!r->listed) /* only this thread, or the reactor after it, writes it */
        return;
    pthread_mutex_lock(&h->lock);
    r->listed = false;
    *r->async_prev = r->async_next;
    if (r->async_next)
        r->async_next->async_prev = r->async_prev;
    pthread_mutex_unlock(&h->lock);
}

void sg_http_went_down(struct sg_http *h)
{
    if (atomic_load(&h->waiters) == 0)
        return;
    pthread_mutex_lock(&h->lock);
    pthread_cond_broadcast(&h->idle);
    pthread_mutex_unlock(&h->lock);
}

/* ---- draining and stopping ---- */

/* ms from now on the clock that h->idle waits by. */
static struct timespec from_now(int64_t ms)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += ms / 1000;
    t.tv_nsec += ms % 1000 * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

/* Gives the daemon a connection, so that it calls us on its own thread. It is refused silently at the library's limit of connections;
 * then another attempt may help, as old ones end. */
static void wake_to_quiesce(struct sg_http *h, unsigned i)
{
    const struct sockaddr none = {.sa_family = AF_UNIX};
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) < 0)
        return;
    (void)MHD_add_connection(h->daemons[i], pair[0], &none, sizeof none); /* closes it also when it fails */
    struct timespec until = from_now(QUIESCE_MS);
    int rc = 0;
    pthread_mutex_lock(&h->lock);
    while (!h->quiet[i] && rc == 0)
        rc = pthread_cond_timedwait(&h->idle, &h->lock, &until);
    pthread_mutex_unlock(&h->lock);
    sg_close(pair[1]);
}

static bool is_quiet(struct sg_http *h, unsigned i)
{
    pthread_mutex_lock(&h->lock);
    bool is = h->quiet[i];
    pthread_mutex_unlock(&h->lock);
    return is;
}

void sg_http_drain(struct sg_http *h)
{
    if (h->drained)
        return;
    h->drained = true;
    atomic_store(&h->draining, true);
    for (unsigned i = 0; i < h->n_daemons; i++) {
        for (int k = 0; k < QUIESCE_TRIES && !is_quiet(h, i); k++)
            wake_to_quiesce(h, i);
        pthread_mutex_lock(&h->lock);
        quiesce(h, i); /* does nothing but for a daemon that is full, whose listen socket is not in its set */
        pthread_mutex_unlock(&h->lock);
    }
    /* The daemons' copies stay open until they have stopped, so the socket itself has to end. */
    if (h->cfg.listen_fd >= 0)
        (void)shutdown(h->cfg.listen_fd, SHUT_RDWR);
    h->cfg.listen_fd = sg_close(h->cfg.listen_fd);
}

/* A request that has not arrived completely is nobody's work yet: its client may be gone or never send the rest. */
static bool busy(struct sg_http *h, bool watchers)
{
    return atomic_load(&h->working) > 0 || (watchers && atomic_load(&h->watching) > 0);
}

static bool wait_for_requests(struct sg_http *h, bool watchers, int64_t ms)
{
    struct timespec until = from_now(ms);
    int rc = 0;
    pthread_mutex_lock(&h->lock);
    atomic_fetch_add(&h->waiters, 1);
    while (busy(h, watchers) && rc == 0)
        rc = pthread_cond_timedwait(&h->idle, &h->lock, &until);
    atomic_fetch_sub(&h->waiters, 1);
    pthread_mutex_unlock(&h->lock);
    return !busy(h, watchers);
}

/* References to all requests that may be suspended, upgraded ones included. */
static struct sg_request **snapshot(struct sg_http *h, size_t *ret_n)
{
    size_t n = 0;
    pthread_mutex_lock(&h->lock);
    for (struct sg_request *r = h->async; r; r = r->async_next)
        n++;
    struct sg_request **list = sg_xcalloc(n + 1, sizeof(struct sg_request *));
    n = 0;
    for (struct sg_request *r = h->async; r; r = r->async_next)
        list[n++] = sg_req_get(r);
    pthread_mutex_unlock(&h->lock);
    *ret_n = n;
    return list;
}

static void for_all(struct sg_http *h, void (*fn)(struct sg_request *r))
{
    size_t n;
    struct sg_request **list = snapshot(h, &n);
    for (size_t i = 0; i < n; i++) {
        fn(list[i]);
        sg_req_put(list[i]);
    }
    free(list);
}

static void cancel_one(struct sg_request *r)
{
    sg_req_fire(r, SG_CANCEL_SHUTDOWN);
}

bool sg_http_wait_idle(struct sg_http *h, int64_t ms)
{
    struct timespec until = from_now(ms);
    int rc = 0;
    pthread_mutex_lock(&h->lock);
    atomic_fetch_add(&h->waiters, 1);
    while (busy(h, false) && !atomic_load(&h->hurry) && rc == 0)
        rc = pthread_cond_timedwait(&h->idle, &h->lock, &until);
    atomic_fetch_sub(&h->waiters, 1);
    pthread_mutex_unlock(&h->lock);
    return !busy(h, false);
}

void sg_http_hurry(struct sg_http *h)
{
    pthread_mutex_lock(&h->lock);
    atomic_store(&h->hurry, true);
    pthread_cond_broadcast(&h->idle);
    pthread_mutex_unlock(&h->lock);
}

/* Whatever it waits for, it gets moving now and cannot be suspended again. */
static void abort_one(struct sg_request *r)
{
    pthread_mutex_lock(&r->lock);
    r->aborted = true;
    sg_req_wake_locked(r);
    pthread_mutex_unlock(&r->lock);
}

static void cut_upgraded(struct sg_request *r)
{
    if (atomic_load(&r->upgraded))
        sg_conn_shutdown(r->conn);
}

void sg_http_stop(struct sg_http *h, int64_t grace_ms, int64_t cancel_ms)
{
    if (h->stopped)
        return;
    h->stopped = true;
    sg_http_drain(h);
    (void)wait_for_requests(h, false, grace_ms);
    if (busy(h, true)) {
        for_all(h, cancel_one);
        (void)wait_for_requests(h, true, cancel_ms);
    }
    atomic_store(&h->stopping, true);
    for_all(h, abort_one);
    (void)wait_for_requests(h, true, FLUSH_MS);
    for_all(h, cut_upgraded); /* their relays see the end of both directions */
    (void)wait_for_requests(h, true, UPGRADE_MS);
    for (unsigned i = 0; i < h->n_daemons; i++)
        MHD_stop_daemon(h->daemons[i]);
    for (unsigned i = 0; i < h->n_daemons; i++)
        h->quiesced[i] = sg_close(h->quiesced[i]);
}

/* ---- the end ---- */

struct last_task {
    struct sg_task task;
    struct sg_http *http;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool done;
};

static void last_run(struct sg_task *t)
{
    struct last_task *l = sg_container_of(t, struct last_task, task);
    sg_conn_end_lingers(l->http);
    sg_timer_cancel(l->http->cfg.reactor, &l->http->sweep);
    pthread_mutex_lock(&l->lock);
    l->done = true;
    pthread_cond_signal(&l->cond);
    pthread_mutex_unlock(&l->lock);
}

/* Everything we posted to the reactor, and everything it watches for us, is over after this. */
static void settle_reactor(struct sg_http *h)
{
    struct last_task l = {.task.run = last_run, .http = h};
    pthread_mutex_init(&l.lock, NULL);
    pthread_cond_init(&l.cond, NULL);
    sg_reactor_post(h->cfg.reactor, &l.task);
    pthread_mutex_lock(&l.lock);
    while (!l.done)
        pthread_cond_wait(&l.cond, &l.lock);
    pthread_mutex_unlock(&l.lock);
    pthread_cond_destroy(&l.cond);
    pthread_mutex_destroy(&l.lock);
}

struct sg_http *sg_http_free(struct sg_http *h)
{
    if (!h)
        return NULL;
    sg_http_stop(h, 0, 0);
    settle_reactor(h);
    h->bodies = sg_budget_unref(h->bodies);
    h->router = sg_router_free(h->router);
    h->host_router = sg_router_free(h->host_router);
    pthread_cond_destroy(&h->idle);
    pthread_mutex_destroy(&h->lock);
    pthread_mutex_destroy(&h->conns_lock);
    free(h->daemons);
    free(h->quiesced);
    free(h->quiet);
    free(h);
    return NULL;
}
