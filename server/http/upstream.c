#include "http/upstream_priv.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <uthash.h>
#include <utlist.h>

#include "base/clock.h"

struct pool_key {
    char lease[SG_ID_MAX];
    uint32_t port;
};

/* Connections to one port of one lease. Lives in the table while it has an exchange or an idle connection. */
struct sg_up_pool {
    _Atomic unsigned refs;
    struct sg_upstreams *hub;
    struct pool_key key;
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
    bool closing; /* nothing new starts */
    bool cut;     /* close_task has run */
    bool closed;  /* nothing is posted any more */
    size_t n_exchanges, n_conns;
};

struct sg_upstream_config sg_upstream_defaults(void)
{
    return (struct sg_upstream_config){
        .connect_ms = 10000,
        .first_byte_ms = 600000,
        .stall_ms = 600000,
        .idle_ms = 4000, /* below the 5 s after which many servers close */
        .idle_max = 16,
        .exchanges_max = 512,
        .pipe_bytes = 256U * 1024U,
    };
}

const struct sg_upstream_config *sg_up_config(const struct sg_upstreams *u)
{
    return &u->config;
}

static void hub_unref(struct sg_upstreams *u)
{
    if (atomic_fetch_sub(&u->refs, 1) != 1)
        return;
    pthread_mutex_destroy(&u->lock);
    pthread_cond_destroy(&u->changed);
    free(u);
}

/* False: the hub is closed and the task will not run. */
static bool hub_post(struct sg_upstreams *u, struct sg_task *t)
{
    pthread_mutex_lock(&u->lock);
    bool ok = !u->closed;
    if (ok)
        sg_reactor_post(u->reactor, t);
    pthread_mutex_unlock(&u->lock);
    return ok;
}

/* ---- pools ---- */

static void pool_unref(struct sg_up_pool *p)
{
    if (atomic_fetch_sub(&p->refs, 1) != 1)
        return;
    sg_cancel_unref(p->lease_end);
    hub_unref(p->hub);
    free(p);
}

/* Under the hub lock: takes p out of the table when nothing is in it. The caller retires it after unlocking. */
static bool pool_leave(struct sg_up_pool *p)
{
    if (p->n_idle > 0 || p->n_exchanges > 0)
        return false;
    HASH_DEL(p->hub->pools, p);
    return true;
}

static void pool_retire(struct sg_up_pool *p)
{
    if (p->lease_end != NULL && sg_cancel_unhook(p->lease_end, &p->hook))
        pool_unref(p);
    pool_unref(p);
}

static void pool_end(struct sg_task *t);

static void pool_fired(struct sg_cancel_hook *h, enum sg_cancel_reason why)
{
    (void)why;
    struct sg_up_pool *p = sg_container_of(h, struct sg_up_pool, hook);
    pthread_mutex_lock(&p->hub->lock);
    p->ended = true;
    pthread_mutex_unlock(&p->hub->lock);
    if (!hub_post(p->hub, &p->end_task))
        pool_unref(p);
}

static struct sg_up_pool *pool_new(struct sg_upstreams *u, const struct pool_key *key, struct sg_cancel *lease_end)
{
    struct sg_up_pool *p = sg_xcalloc(1, sizeof *p);
    atomic_init(&p->refs, 1);
    atomic_fetch_add(&u->refs, 1);
    p->hub = u;
    p->key = *key;
    p->end_task.run = pool_end;
    if (lease_end != NULL) {
        p->lease_end = sg_cancel_ref(lease_end);
        p->hook.fired = pool_fired;
        atomic_fetch_add(&p->refs, 1); /* the hook's */
    }
    HASH_ADD(hh, u->pools, key, sizeof p->key, p);
    return p;
}

/* ---- connections ---- */

static void conn_unref(struct sg_up_conn *c)
{
    if (atomic_fetch_sub(&c->refs, 1) != 1)
        return;
    sg_close(c->fd);
    sg_hold_unref(c->hold);
    struct sg_upstreams *u = c->pool->hub;
    pthread_mutex_lock(&u->lock);
    u->n_conns--;
    pthread_cond_broadcast(&u->changed);
    pthread_mutex_unlock(&u->lock);
    pool_unref(c->pool);
    free(c);
}

static void conn_close(struct sg_up_conn *c)
{
    if (c->closed)
        return;
    c->closed = true;
    struct sg_up_pool *p = c->pool;
    pthread_mutex_lock(&p->hub->lock);
    bool left = false;
    if (c->idle) {
        c->idle = false;
        DL_DELETE(p->idle, c);
        p->n_idle--;
        left = pool_leave(p);
    }
    pthread_mutex_unlock(&p->hub->lock);
    sg_watch_del(p->hub->reactor, &c->watch);
    sg_timer_cancel(p->hub->reactor, &c->timer);
    if (left)
        pool_retire(p);
    conn_unref(c);
}

/* The exchange on c with a reference, or NULL. */
static struct sg_up_exchange *conn_exchange(struct sg_up_conn *c)
{
    pthread_mutex_lock(&c->pool->hub->lock);
    struct sg_up_exchange *x = c->x != NULL ? sg_up_exchange_ref(c->x) : NULL;
    pthread_mutex_unlock(&c->pool->hub->lock);
    return x;
}

/* Waits until the thread that starts x has let go of it; from then on it is the reactor's. */
static void settle(struct sg_up_exchange *x)
{
    pthread_mutex_lock(&x->start_lock);
    pthread_mutex_unlock(&x->start_lock);
}

static void exchange_run(struct sg_up_exchange *x);

static void conn_ready(struct sg_watch *w, uint32_t events)
{
    struct sg_up_conn *c = sg_container_of(w, struct sg_up_conn, watch);
    struct sg_up_exchange *x = conn_exchange(c);
    if (x == NULL) { /* idle: closed by the server, or it talks without being asked */
        conn_close(c);
        return;
    }
    settle(x);
    bool hung_up = (events & (EPOLLHUP | EPOLLERR)) != 0;
    if (hung_up && (c->asked & EPOLLIN) == 0)
        sg_watch_del(c->pool->hub->reactor, &c->watch); /* it would be told over and over until there is room */
    if (events & EPOLLOUT || hung_up)
        x->send_blocked = false;
    if (events & EPOLLIN || hung_up)
        x->read_ready = true;
    exchange_run(x);
    sg_up_exchange_unref(x);
}

static void conn_arm(struct sg_up_conn *c, int64_t due)
{
    if (c->timer_due != 0 && c->timer_due <= due)
        return;
    c->timer_due = due;
    sg_timer_set(c->pool->hub->reactor, &c->timer, due);
}

static void conn_timer(struct sg_timer *t)
{
    struct sg_up_conn *c = sg_container_of(t, struct sg_up_conn, timer);
    c->timer_due = 0;
    struct sg_up_exchange *x = conn_exchange(c);
    if (x != NULL)
        settle(x);
    int64_t due = x != NULL ? x->deadline : c->idle_until;
    if (sg_now_ms() < due) {
        conn_arm(c, due);
    } else if (x == NULL) {
        conn_close(c);
    } else {
        struct sg_error err = {0};
        sg_error_set(&err, SG_ENDPOINT_TIMEOUT, "the service on port %u %s", (unsigned)x->target.port,
                     x->answered || !x->sent ? "stopped moving data" : "did not answer in time");
        sg_error_reason(&err, x->answered || !x->sent ? "stalled" : "no_answer");
        sg_up_fail(x, &err);
    }
    if (x != NULL)
        sg_up_exchange_unref(x);
}

/* Asks epoll for what x waits for. */
static void conn_ask(struct sg_up_conn *c, const struct sg_up_exchange *x)
{
    uint32_t want = (x->pipe_full ? 0U : (uint32_t)EPOLLIN) | (x->send_blocked ? (uint32_t)EPOLLOUT : 0U);
    struct sg_reactor *r = c->pool->hub->reactor;
    if (!c->watch.added && want != 0) {
        c->asked = want;
        (void)sg_watch_add(r, &c->watch, want, NULL); /* was in the set before; a failure ends at the deadline */
    } else if (c->asked != want) {
        c->asked = want;
        sg_watch_mod(r, &c->watch, want);
    }
    conn_arm(c, x->deadline);
}

/* A fresh connection for x; fd and hold are ours from here. */
static int conn_new(struct sg_up_exchange *x, int fd, struct sg_hold *hold, struct sg_error *err)
{
    struct sg_up_conn *c = sg_xcalloc(1, sizeof *c);
    int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* not every stream socket has it */
    atomic_init(&c->refs, 2); /* the reactor's and the exchange's */
    c->fd = fd;
    c->hold = hold;
    c->watch.fd = fd;
    c->watch.ready = conn_ready;
    c->timer.fire = conn_timer;
    c->pool = x->pool;
    atomic_fetch_add(&x->pool->refs, 1);
    pthread_mutex_lock(&x->hub->lock);
    x->hub->n_conns++;
    c->x = x;
    x->conn = c;
    pthread_mutex_unlock(&x->hub->lock);
    c->asked = EPOLLIN;
    return sg_watch_add(x->hub->reactor, &c->watch, EPOLLIN, err);
}

/* Back among the idle ones, or closed. */
static void conn_release(struct sg_up_conn *c, bool reuse, int keep_alive_s)
{
    struct sg_up_pool *p = c->pool;
    int64_t keep_ms = p->hub->config.idle_ms;
    if (keep_alive_s >= 0 && (int64_t)keep_alive_s * 1000 - 1000 < keep_ms)
        keep_ms = (int64_t)keep_alive_s * 1000 - 1000;
    reuse = reuse && keep_ms > 0 && c->watch.added;
    c->idle_until = sg_now_ms() + keep_ms;
    c->used = true;
    if (reuse && c->asked != EPOLLIN)
        sg_watch_mod(p->hub->reactor, &c->watch, c->asked = EPOLLIN);
    if (reuse)
        conn_arm(c, c->idle_until);
    pthread_mutex_lock(&p->hub->lock);
    c->x = NULL;
    reuse = reuse && !p->ended && !p->hub->closing && p->n_idle < p->hub->config.idle_max;
    if (reuse) {
        c->idle = true;
        DL_PREPEND(p->idle, c);
        p->n_idle++;
    }
    pthread_mutex_unlock(&p->hub->lock);
    if (!reuse)
        conn_close(c);
    conn_unref(c);
}

/* ---- exchanges ---- */

struct sg_up_exchange *sg_up_exchange_ref(struct sg_up_exchange *x)
{
    atomic_fetch_add(&x->refs, 1);
    return x;
}

void sg_up_exchange_hold(void *x)
{
    (void)sg_up_exchange_ref(x);
}

void sg_up_exchange_unref(void *arg)
{
    struct sg_up_exchange *x = arg;
    if (atomic_fetch_sub(&x->refs, 1) != 1)
        return;
    if (x->target.unref != NULL)
        x->target.unref(x->target.arg);
    free(x->head);
    free(x->out);
    free(x->in);
    sg_pipe_unref(x->body);
    sg_pipe_unref(x->pipe);
    sg_cancel_unref(x->cancel);
    sg_error_clear(&x->dial_err);
    pthread_mutex_destroy(&x->start_lock);
    if (x->pool != NULL)
        pool_unref(x->pool);
    hub_unref(x->hub);
    free(x);
}

void sg_up_exchange_wake(void *arg)
{
    struct sg_up_exchange *x = arg;
    if (atomic_exchange(&x->posted, true))
        return;
    sg_up_exchange_ref(x);
    if (!hub_post(x->hub, &x->task))
        sg_up_exchange_unref(x);
}

static void exchange_task(struct sg_task *t)
{
    struct sg_up_exchange *x = sg_container_of(t, struct sg_up_exchange, task);
    atomic_store(&x->posted, false);
    settle(x);
    exchange_run(x);
    sg_up_exchange_unref(x);
}

static void exchange_cancelled(struct sg_cancel_hook *h, enum sg_cancel_reason why)
{
    struct sg_up_exchange *x = sg_container_of(h, struct sg_up_exchange, cancel_hook);
    int code = why == SG_CANCEL_SHUTDOWN    ? SG_SHUTTING_DOWN
               : why == SG_CANCEL_LEASE_END ? SG_LEASE_GONE
               : why == SG_CANCEL_TIMEOUT   ? SG_ENDPOINT_TIMEOUT
                                            : SG_CANCELLED;
    int none = SG_OK;
    atomic_compare_exchange_strong(&x->killed, &none, code);
    sg_up_exchange_wake(x);
    sg_up_exchange_unref(x); /* the hook's */
}

void sg_up_end(struct sg_up_exchange *x, bool reuse)
{
    if (x->ended)
        return;
    struct sg_upstreams *u = x->hub;
    struct sg_up_conn *c = x->conn;
    x->conn = NULL;
    if (c != NULL)
        conn_release(c, reuse, x->keep_alive_s);
    pthread_mutex_lock(&u->lock);
    x->ended = true;
    DL_DELETE(x->pool->exchanges, x);
    x->pool->n_exchanges--;
    u->n_exchanges--;
    bool left = pool_leave(x->pool);
    int fd = x->dialed ? x->dial_fd : -1;
    struct sg_hold *hold = x->dialed ? x->dial_hold : NULL;
    pthread_cond_broadcast(&u->changed);
    pthread_mutex_unlock(&u->lock);
    sg_close(fd);
    sg_hold_unref(hold);
    if (left)
        pool_retire(x->pool);
    if (x->body != NULL) {
        sg_pipe_set_reader(x->body, NULL);
        if (!x->sent)
            sg_pipe_stop(x->body);
    }
    if (x->pipe != NULL)
        sg_pipe_set_writer(x->pipe, NULL);
    if (x->cancel != NULL && sg_cancel_unhook(x->cancel, &x->cancel_hook))
        sg_up_exchange_unref(x);
    sg_up_exchange_unref(x); /* the list's; the caller has one */
}

void sg_up_fail(struct sg_up_exchange *x, const struct sg_error *err)
{
    if (x->ended)
        return;
    bool answered = x->answered;
    if (x->pipe != NULL)
        sg_pipe_fail(x->pipe, err);
    sg_up_end(x, false);
    if (!answered)
        x->sink.failed(x->sink.arg, err);
    x->sink.ended(x->sink.arg);
}

static void dial(struct sg_up_exchange *x);

void sg_up_no_answer(struct sg_up_exchange *x, int sys)
{
    bool safe = x->head_off == 0 || (x->replayable && x->conn->used);
    if (safe && !x->retried) {
        struct sg_up_conn *c = x->conn;
        x->conn = NULL;
        conn_release(c, false, -1);
        x->retried = true;
        x->head_off = 0;
        x->sent = x->send_broken = x->send_blocked = false;
        dial(x);
        return;
    }
    struct sg_error err = {0};
    sg_error_set(&err, SG_ENDPOINT_FAILED, "the service on port %u closed the connection without an answer%s%s",
                 (unsigned)x->target.port, sys != 0 ? ": " : "", sys != 0 ? strerror(sys) : "");
    err.sys = sys;
    sg_error_reason(&err, "closed_without_answer");
    sg_up_fail(x, &err);
}

static void fail_killed(struct sg_up_exchange *x, enum sg_code code)
{
    struct sg_error err = {0};
    sg_error_set(&err, code, "%s",
                 code == SG_LEASE_GONE      ? "the lease has ended"
                 : code == SG_SHUTTING_DOWN ? "the server is shutting down"
                 : code == SG_CANCELLED     ? "the caller hung up"
                                            : "the request took too long");
    sg_up_fail(x, &err);
}

/* What dial said: a connection for x (true), nothing yet, or an error. */
static bool take_dialed(struct sg_up_exchange *x)
{
    pthread_mutex_lock(&x->hub->lock);
    bool dialed = x->dialed;
    int fd = x->dial_fd;
    struct sg_hold *hold = x->dial_hold;
    x->dialed = false;
    x->dial_fd = -1;
    x->dial_hold = NULL;
    pthread_mutex_unlock(&x->hub->lock);
    if (!dialed)
        return false;
    struct sg_error err = {0};
    if (fd < 0 || conn_new(x, fd, hold, &err) < 0) {
        sg_up_fail(x, fd < 0 ? &x->dial_err : &err);
        sg_error_clear(&err);
        return false;
    }
    x->deadline = sg_now_ms() + x->hub->config.stall_ms;
    return true;
}

static void exchange_run(struct sg_up_exchange *x)
{
    if (x->ended)
        return;
    int killed = atomic_load(&x->killed);
    if (killed != SG_OK) {
        fail_killed(x, (enum sg_code)killed);
        return;
    }
    if (x->conn == NULL && !take_dialed(x))
        return;
    sg_up_move(x);
    if (!x->ended && x->conn != NULL)
        conn_ask(x->conn, x);
}

static void dial_done(void *arg, int fd, struct sg_hold *hold, const struct sg_error *err)
{
    struct sg_up_exchange *x = arg;
    pthread_mutex_lock(&x->hub->lock);
    bool late = x->ended;
    if (!late) {
        x->dialed = true;
        x->dial_fd = fd;
        x->dial_hold = hold;
        if (fd < 0)
            sg_error_copy(&x->dial_err, err);
    }
    pthread_mutex_unlock(&x->hub->lock);
    if (late) {
        sg_close(fd);
        sg_hold_unref(hold);
    } else {
        sg_up_exchange_wake(x);
    }
    sg_up_exchange_unref(x);
}

static void dial(struct sg_up_exchange *x)
{
    struct sg_dial_done done = {dial_done, sg_up_exchange_ref(x)};
    struct sg_error err = {0};
    if (x->target.dial(x->target.arg, x->target.port, sg_now_ms() + x->hub->config.connect_ms, &done, &err) < 0) {
        dial_done(x, -1, NULL, &err);
        sg_error_clear(&err);
    }
}

/* ---- start ---- */

/* Is the server still there? Asked before a request that must not be sent twice. */
static bool conn_alive(const struct sg_up_conn *c)
{
    char byte;
    return recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

/* Under the hub lock: an idle connection becomes x's. */
static void take_idle(struct sg_up_exchange *x)
{
    struct sg_up_pool *p = x->pool;
    while (p->idle != NULL && x->conn == NULL) {
        struct sg_up_conn *c = p->idle;
        DL_DELETE(p->idle, c);
        p->n_idle--;
        c->idle = false;
        if (!x->replayable && !conn_alive(c))
            continue; /* the reactor sees the same and closes it */
        atomic_fetch_add(&c->refs, 1);
        c->x = x;
        x->conn = c;
    }
}

/* Registers x with its pool and gives it an idle connection if there is one. */
static int pool_enter(struct sg_up_exchange *x, struct sg_error *err)
{
    struct sg_upstreams *u = x->hub;
    struct pool_key key;
    memset(&key, 0, sizeof key);
    key.port = x->target.port;
    if (snprintf(key.lease, sizeof key.lease, "%s", x->target.lease_id) >= (int)sizeof key.lease)
        return sg_error_set(err, SG_INTERNAL, "lease id too long");
    pthread_mutex_lock(&u->lock);
    struct sg_up_pool *p = NULL;
    HASH_FIND(hh, u->pools, &key, sizeof key, p);
    bool fresh = p == NULL && !u->closing;
    if (fresh)
        p = pool_new(u, &key, x->target.lease_end);
    enum sg_code refuse = u->closing                                ? SG_SHUTTING_DOWN
                          : p->ended                                ? SG_LEASE_GONE
                          : p->n_exchanges >= u->config.exchanges_max ? SG_OVERLOADED
                                                                    : SG_OK;
    if (refuse == SG_OK) {
        x->pool = p;
        atomic_fetch_add(&p->refs, 1);
        sg_up_exchange_ref(x); /* the list's */
        DL_APPEND(p->exchanges, x);
        p->n_exchanges++;
        u->n_exchanges++;
        take_idle(x);
    }
    pthread_mutex_unlock(&u->lock);
    if (fresh && refuse == SG_OK && p->lease_end != NULL)
        (void)sg_cancel_hook(p->lease_end, &p->hook);
    if (refuse == SG_OVERLOADED) {
        sg_error_set(err, refuse, "too many requests to this port at once");
        return sg_error_retry_after(err, 1);
    }
    return refuse == SG_OK ? 0
                           : sg_error_set(err, refuse, refuse == SG_LEASE_GONE ? "the lease has ended"
                                                                               : "the server is shutting down");
}

static struct sg_up_exchange *exchange_new(struct sg_upstreams *u, const struct sg_upstream_target *target,
                                           const struct sg_upstream_request *q, const struct sg_upstream_sink *sink)
{
    struct sg_up_exchange *x = sg_xcalloc(1, sizeof *x);
    atomic_init(&x->refs, 1);
    atomic_fetch_add(&u->refs, 1);
    pthread_mutex_init(&x->start_lock, NULL);
    x->hub = u;
    x->target = *target;
    if (target->ref != NULL)
        target->ref(target->arg);
    x->sink = *sink;
    x->head = sg_xstrndup(q->head, q->head_len);
    x->head_len = q->head_len;
    x->body = q->body != NULL ? sg_pipe_ref(q->body) : NULL;
    x->body_length = q->body_length;
    x->is_head = q->is_head;
    x->replayable = q->replayable && q->body == NULL;
    x->dial_fd = -1;
    x->keep_alive_s = -1;
    x->task.run = exchange_task;
    return x;
}

int sg_upstream_start(struct sg_upstreams *u, const struct sg_upstream_target *target,
                      const struct sg_upstream_request *request, const struct sg_upstream_sink *sink,
                      struct sg_error *err)
{
    struct sg_up_exchange *x = exchange_new(u, target, request, sink);
    pthread_mutex_lock(&x->start_lock);
    if (pool_enter(x, err) < 0) {
        pthread_mutex_unlock(&x->start_lock);
        sg_up_exchange_unref(x);
        return -1;
    }
    if (request->cancel != NULL) {
        x->cancel = sg_cancel_ref(request->cancel);
        x->cancel_hook.fired = exchange_cancelled;
        sg_up_exchange_ref(x); /* the hook's */
        (void)sg_cancel_hook(x->cancel, &x->cancel_hook);
    }
    bool pooled = x->conn != NULL;
    if (pooled) {
        x->deadline = sg_now_ms() + u->config.stall_ms;
        sg_up_send_head(x);
    }
    /* The timer of a kept connection fires within idle_ms and looks at the deadline then; only what could not wait
     * that long, or is not finished here, needs the reactor now. */
    bool wake = !x->sent || u->config.first_byte_ms < u->config.idle_ms || u->config.stall_ms < u->config.idle_ms;
    pthread_mutex_unlock(&x->start_lock);
    if (!pooled)
        dial(x);
    else if (wake)
        sg_up_exchange_wake(x);
    sg_up_exchange_unref(x);
    return 0;
}

/* ---- ends ---- */

/* Reactor: ends every exchange of p with code and closes its idle connections. */
static void pool_cut(struct sg_up_pool *p, enum sg_code code)
{
    struct sg_upstreams *u = p->hub;
    for (;;) {
        pthread_mutex_lock(&u->lock);
        struct sg_up_exchange *x = p->exchanges != NULL ? sg_up_exchange_ref(p->exchanges) : NULL;
        struct sg_up_conn *c = p->idle;
        if (x == NULL && c != NULL)
            atomic_fetch_add(&c->refs, 1);
        pthread_mutex_unlock(&u->lock);
        if (x != NULL) {
            settle(x);
            fail_killed(x, code);
            sg_up_exchange_unref(x);
        } else if (c != NULL) {
            conn_close(c);
            conn_unref(c);
        } else {
            return;
        }
    }
}

static void pool_end(struct sg_task *t)
{
    struct sg_up_pool *p = sg_container_of(t, struct sg_up_pool, end_task);
    pool_cut(p, SG_LEASE_GONE);
    pool_unref(p); /* the hook's */
}

static void hub_close(struct sg_task *t)
{
    struct sg_upstreams *u = sg_container_of(t, struct sg_upstreams, close_task);
    for (;;) {
        pthread_mutex_lock(&u->lock);
        struct sg_up_pool *p = u->pools;
        if (p != NULL)
            atomic_fetch_add(&p->refs, 1);
        u->cut = p == NULL;
        if (u->cut)
            pthread_cond_broadcast(&u->changed);
        pthread_mutex_unlock(&u->lock);
        if (p == NULL)
            return;
        pool_cut(p, SG_SHUTTING_DOWN);
        pool_unref(p);
    }
}

struct sg_upstreams *sg_upstreams_new(struct sg_reactor *r, const struct sg_upstream_config *config)
{
    struct sg_upstreams *u = sg_xcalloc(1, sizeof *u);
    atomic_init(&u->refs, 1);
    u->reactor = r;
    u->config = *config;
    u->close_task.run = hub_close;
    pthread_mutex_init(&u->lock, NULL);
    pthread_cond_init(&u->changed, NULL);
    return u;
}

struct sg_upstreams *sg_upstreams_free(struct sg_upstreams *u)
{
    if (u == NULL)
        return NULL;
    pthread_mutex_lock(&u->lock);
    u->closing = true;
    pthread_mutex_unlock(&u->lock);
    (void)hub_post(u, &u->close_task);
    pthread_mutex_lock(&u->lock);
    while (!u->cut || u->pools != NULL || u->n_exchanges > 0 || u->n_conns > 0)
        pthread_cond_wait(&u->changed, &u->lock);
    u->closed = true;
    pthread_mutex_unlock(&u->lock);
    hub_unref(u);
    return NULL;
}

void sg_upstreams_counts(struct sg_upstreams *u, size_t *ret_exchanges, size_t *ret_connections)
{
    pthread_mutex_lock(&u->lock);
    *ret_exchanges = u->n_exchanges;
    *ret_connections = u->n_conns;
    pthread_mutex_unlock(&u->lock);
}
