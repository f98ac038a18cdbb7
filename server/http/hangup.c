/* Connections: who hears of a client's going, own deadlines, soft closes.
 *
 * The parser library looks at a socket only while it reads from or writes to it, so a waiting request learns
 * nothing of a client that has left. A connection whose request waits for the first time gets a copy of its descriptor
 * registered with the reactor (no input events: those are the parser's) until it is closed.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http/request_priv.h"

#define LINGER_IDLE_MS 2000 /* without a byte from the client */
#define LINGER_MS 30000
#define LINGER_PIECE ((size_t)1 << 20)
#define LINGERS_MAX 128
/* For a body that is complete in the kernel to be read after its sender has stopped sending. */
#define BODY_MS 250
#define TELL_MAX 64U /* answers that are owed, in one pass of the sweep */

/* ---- life ---- */

static void format_peer(const struct sockaddr *sa, char *out, socklen_t size)
{
    const void *addr = NULL;
    int family = sa ? sa->sa_family : AF_UNSPEC;
    if (family == AF_INET) {
        addr = &((const struct sockaddr_in *)(const void *)sa)->sin_addr;
    } else if (family == AF_INET6) {
        const struct in6_addr *in6 = &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr;
        addr = in6;
        if (IN6_IS_ADDR_V4MAPPED(in6)) {
            family = AF_INET;
            addr = &in6->s6_addr[12];
        }
    }
    if (!addr || !inet_ntop(family, addr, out, size))
        out[0] = '\0';
}

void sg_conn_opened(struct sg_http *h, struct MHD_Connection *mhd, void **socket_context)
{
    struct sg_conn *c = sg_xcalloc(1, sizeof *c);
    /* The second answer may overwrite the first. */
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    c->fd = info ? info->connect_fd : -1;
    info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    c->http = h;
    atomic_init(&c->refs, 1);
    c->watch.fd = -1;
    pthread_mutex_init(&c->lock, NULL);
    format_peer(info ? info->client_addr : NULL, c->peer, sizeof c->peer);
    c->over_limit = atomic_fetch_add(&h->connections, 1) >= h->cfg.max_connections;
    atomic_init(&c->deadline_ms, sg_now_ms() + h->cfg.header_ms);
    *socket_context = c;

    pthread_mutex_lock(&h->conns_lock);
    c->next = h->conns;
    c->prev = &h->conns;
    if (c->next)
        c->next->prev = &c->next;
    h->conns = c;
    bool start = !h->sweeping;
    h->sweeping = true;
    pthread_mutex_unlock(&h->conns_lock);
    if (start)
        sg_reactor_post(h->cfg.reactor, &h->sweep_task);
}

struct sg_conn *sg_conn_unref(struct sg_conn *c)
{
    if (c && atomic_fetch_sub(&c->refs, 1) == 1) {
        pthread_mutex_destroy(&c->lock);
        free(atomic_load(&c->spare));
        free(c);
    }
    return NULL;
}

static void unlist(struct sg_conn *c)
{
    struct sg_http *h = c->http;
    pthread_mutex_lock(&h->conns_lock);
    *c->prev = c->next;
    if (c->next)
        c->next->prev = c->prev;
    c->prev = NULL;
    c->fd = -1;
    pthread_mutex_unlock(&h->conns_lock);
}

void sg_conn_deadline(struct sg_conn *c, int64_t in_ms)
{
    sg_conn_deadline_at(c, in_ms ? sg_now_ms() + in_ms : 0);
}

void sg_conn_deadline_at(struct sg_conn *c, int64_t at_ms)
{
    atomic_store_explicit(&c->deadline_ms, at_ms, memory_order_relaxed);
}

void sg_conn_shutdown(struct sg_conn *c)
{
    pthread_mutex_lock(&c->http->conns_lock);
    if (c->prev)
        shutdown(c->fd, SHUT_RDWR);
    pthread_mutex_unlock(&c->http->conns_lock);
}

/* ---- the sweep: one timer for all connections' deadlines ---- */

static int64_t shortest_ms(const struct sg_http_config *cfg)
{
    int64_t ms = cfg->header_ms < cfg->idle_ms ? cfg->header_ms : cfg->idle_ms;
    ms = ms < cfg->body_ms ? ms : cfg->body_ms;
    return ms < SG_OWED_MS ? ms : SG_OWED_MS;
}

/* Under conns_lock. At its deadline; the answer that is owed to it is told once the lock is let go. False: not in this pass. */
static bool overdue(struct sg_conn *c, int64_t due, struct sg_request *owed[TELL_MAX], size_t *n)
{
    bool owes = atomic_load(&c->owes);
    if (owes && *n == TELL_MAX)
        return false;
    if (!atomic_compare_exchange_strong(&c->deadline_ms, &due, 0))
        return true;
    if (!owes) {
        shutdown(c->fd, SHUT_RDWR);
        return true;
    }
    pthread_mutex_lock(&c->lock);
    if (c->waiting)
        owed[(*n)++] = sg_req_get(c->waiting);
    pthread_mutex_unlock(&c->lock);
    return true;
}

/* A deadline set after this pass is at least the shortest of the configured times away: so is the next pass. */
void sg_http_sweep(struct sg_timer *t)
{
    struct sg_http *h = sg_container_of(t, struct sg_http, sweep);
    int64_t now = sg_now_ms();
    int64_t next = now + shortest_ms(&h->cfg);
    struct sg_request *owed[TELL_MAX];
    size_t n = 0;
    pthread_mutex_lock(&h->conns_lock);
    for (struct sg_conn *c = h->conns; c; c = c->next) {
        int64_t due = atomic_load_explicit(&c->deadline_ms, memory_order_relaxed);
        if (due && (due > now || !overdue(c, due, owed, &n)) && due < next)
            next = due;
    }
    h->sweeping = h->conns != NULL;
    bool again = h->sweeping;
    pthread_mutex_unlock(&h->conns_lock);
    for (size_t i = 0; i < n; i++) {
        sg_req_tell(owed[i]);
        sg_req_put(owed[i]);
    }
    if (again)
        sg_timer_set(h->cfg.reactor, &h->sweep, next);
}

/* ---- hang-ups ---- */

static void hang_up(struct sg_conn *c, bool sure)
{
    pthread_mutex_lock(&c->lock);
    c->hung_up = true;
    struct sg_request *r = c->waiting ? sg_req_get(c->waiting) : NULL;
    pthread_mutex_unlock(&c->lock);
    if (r && !sg_req_hangup(r, sure))
        sg_timer_set(c->http->cfg.reactor, &c->timer, sg_now_ms() + BODY_MS);
    else if (r && sure)
        sg_conn_shutdown(c); /* wakes a parser that waits for the rest of a body and missed the end */
    sg_req_put(r);
}

static void look_again(struct sg_timer *t)
{
    hang_up(sg_container_of(t, struct sg_conn, timer), true);
}

static void has_room(struct sg_conn *c)
{
    pthread_mutex_lock(&c->lock);
    struct sg_request *r = c->waiting ? sg_req_get(c->waiting) : NULL;
    pthread_mutex_unlock(&c->lock);
    sg_watch_mod(c->http->cfg.reactor, &c->watch, EPOLLRDHUP);
    if (r)
        sg_direct_wake(r);
    sg_req_put(r);
}

static void watch_ready(struct sg_watch *w, uint32_t events)
{
    struct sg_conn *c = sg_container_of(w, struct sg_conn, watch);
    bool reset = events & (EPOLLHUP | EPOLLERR);
    if (events == EPOLLOUT) {
        has_room(c);
        return;
    }
    if (reset)
        sg_watch_del(c->http->cfg.reactor, w);
    else
        sg_watch_mod(c->http->cfg.reactor, w, 0);
    hang_up(c, reset);
}

static void watch_start(struct sg_conn *c)
{
    struct sg_error err = {0};
    int fd = fcntl(c->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return; /* out of descriptors: this one is only missed when written to */
    c->watch.fd = fd;
    c->watch.ready = watch_ready;
    c->timer.fire = look_again;
    atomic_fetch_add(&c->refs, 1);
    if (sg_watch_add(c->http->cfg.reactor, &c->watch, EPOLLRDHUP, &err) == 0)
        return;
    sg_log_event(c->http->cfg.log, SG_LOG_WARN, "hangup_watch_failed", &err);
    sg_error_clear(&err);
    c->watch.fd = sg_close(c->watch.fd);
    sg_conn_unref(c);
}

void sg_conn_wait(struct sg_conn *c, struct sg_request *r)
{
    struct sg_request *old = NULL;
    pthread_mutex_lock(&c->lock);
    if (c->waiting != r) {
        old = c->waiting;
        c->waiting = sg_req_get(r);
    }
    bool start = !c->watched;
    c->watched = true;
    pthread_mutex_unlock(&c->lock);
    sg_req_put(old);
    if (start)
        watch_start(c);
}

bool sg_conn_is_watched(struct sg_conn *c)
{
    return c->watch.fd >= 0;
}

/* Reactor. One that hung up is not told any more: its request was. */
static void room_task(struct sg_task *t)
{
    struct sg_conn *c = sg_container_of(t, struct sg_conn, room_task);
    if (!sg_conn_hung(c))
        sg_watch_mod(c->http->cfg.reactor, &c->watch, EPOLLRDHUP | EPOLLOUT);
}

/* The connection's last task comes after this one. */
void sg_conn_want_room(struct sg_conn *c)
{
    c->room_task.run = room_task;
    if (sg_reactor_is_current(c->http->cfg.reactor))
        room_task(&c->room_task);
    else
        sg_reactor_post(c->http->cfg.reactor, &c->room_task);
}

bool sg_conn_hung(struct sg_conn *c)
{
    pthread_mutex_lock(&c->lock);
    bool hung = c->hung_up;
    pthread_mutex_unlock(&c->lock);
    return hung;
}

void sg_conn_unwait(struct sg_conn *c, struct sg_request *r)
{
    pthread_mutex_lock(&c->lock);
    bool mine = c->waiting == r;
    if (mine)
        c->waiting = NULL;
    pthread_mutex_unlock(&c->lock);
    if (mine)
        sg_req_put(r);
}

/* ---- closing ---- */

static void linger_end(struct sg_conn *c)
{
    struct sg_http *h = c->http;
    sg_timer_cancel(h->cfg.reactor, &c->timer);
    sg_watch_del(h->cfg.reactor, &c->watch);
    *c->linger_prev = c->linger_next;
    if (c->linger_next)
        c->linger_next->linger_prev = c->linger_prev;
    c->watch.fd = sg_close(c->watch.fd);
    atomic_fetch_sub(&h->lingering, 1);
    sg_conn_unref(c);
}

static void linger_timeout(struct sg_timer *t)
{
    struct sg_conn *c = sg_container_of(t, struct sg_conn, timer);
    bool idle = !c->lingered;
    c->lingered = false;
    if (idle || sg_now_ms() >= c->linger_until_ms)
        linger_end(c);
    else
        sg_timer_set(c->http->cfg.reactor, &c->timer, sg_now_ms() + LINGER_IDLE_MS);
}

static void linger_ready(struct sg_watch *w, uint32_t events)
{
    struct sg_conn *c = sg_container_of(w, struct sg_conn, watch);
    ssize_t n = recv(w->fd, NULL, LINGER_PIECE, MSG_DONTWAIT | MSG_TRUNC); /* of a TCP socket: thrown away, not copied */
    bool again = n < 0 && (errno == EAGAIN || errno == EINTR) && !(events & (EPOLLHUP | EPOLLERR));
    if (n > 0)
        c->lingered = true;
    else if (!again)
        linger_end(c);
}

void sg_conn_end_lingers(struct sg_http *h)
{
    while (h->lingers)
        linger_end(h->lingers);
}

/* Reading on keeps the kernel from answering the bytes still coming with a reset, which could overtake and destroy the
 * answer. Many clients look for it only when all of their body is out, however large: they get some time for that. */
static void linger_start(struct sg_conn *c)
{
    struct sg_http *h = c->http;
    c->linger_next = h->lingers;
    c->linger_prev = &h->lingers;
    if (c->linger_next)
        c->linger_next->linger_prev = &c->linger_next;
    h->lingers = c;
    c->watch.ready = linger_ready;
    c->timer.fire = linger_timeout;
    c->linger_until_ms = sg_now_ms() + LINGER_MS;
    sg_timer_set(h->cfg.reactor, &c->timer, sg_now_ms() + LINGER_IDLE_MS);
    if (sg_watch_add(h->cfg.reactor, &c->watch, EPOLLIN | EPOLLRDHUP, NULL) < 0)
        linger_end(c);
}

/* Reactor: the connection is closed, its copy of the descriptor may go. */
static void closed_task(struct sg_task *t)
{
    struct sg_conn *c = sg_container_of(t, struct sg_conn, task);
    sg_watch_del(c->http->cfg.reactor, &c->watch);
    sg_timer_cancel(c->http->cfg.reactor, &c->timer);
    if (c->linger) {
        linger_start(c);
        return;
    }
    c->watch.fd = sg_close(c->watch.fd);
    sg_conn_unref(c);
}

static bool want_linger(struct sg_conn *c)
{
    struct sg_http *h = c->http;
    if (!c->linger || atomic_load(&h->stopping))
        return false;
    if (atomic_fetch_add(&h->lingering, 1) >= LINGERS_MAX) {
        atomic_fetch_sub(&h->lingering, 1);
        return false;
    }
    return true;
}

void sg_conn_closed(struct sg_conn *c)
{
    struct sg_http *h = c->http;
    int fd = c->fd;
    c->linger = want_linger(c);
    unlist(c);
    if (c->linger && c->watch.fd < 0) {
        c->watch.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        if (c->watch.fd < 0) {
            atomic_fetch_sub(&h->lingering, 1);
            c->linger = false;
        } else {
            atomic_fetch_add(&c->refs, 1);
        }
    }
    if (c->watch.fd >= 0) {
        c->task.run = closed_task;
        sg_reactor_post(h->cfg.reactor, &c->task);
    }
    atomic_fetch_sub(&h->connections, 1);
    sg_conn_unref(c);
    sg_http_went_down(h);
}
