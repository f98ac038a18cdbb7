/* Pools and connections of the upstream hub. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <utlist.h>

#include "base/clock.h"
#include "http/upstream_priv.h"

/* ---- pools ---- */

void sg_up_pool_unref(struct sg_up_pool *p)
{
    if (atomic_fetch_sub(&p->refs, 1) != 1)
        return;
    sg_cancel_unref(p->lease_end);
    sg_up_hub_unref(p->hub);
    free(p);
}

bool sg_up_pool_leave(struct sg_up_pool *p)
{
    if (p->n_idle > 0 || p->n_exchanges > 0)
        return false;
    HASH_DEL(p->hub->pools, p);
    return true;
}

void sg_up_pool_retire(struct sg_up_pool *p)
{
    if (p->lease_end != NULL && sg_cancel_unhook(p->lease_end, &p->hook))
        sg_up_pool_unref(p);
    sg_up_pool_unref(p);
}

static void pool_end(struct sg_task *t);

static void pool_fired(struct sg_cancel_hook *h, enum sg_cancel_reason why)
{
    (void)why;
    struct sg_up_pool *p = sg_container_of(h, struct sg_up_pool, hook);
    pthread_mutex_lock(&p->hub->lock);
    p->ended = true;
    pthread_mutex_unlock(&p->hub->lock);
    if (!sg_up_post(p->hub, &p->end_task))
        sg_up_pool_unref(p);
}

struct sg_up_pool *sg_up_pool_new(struct sg_upstreams *u, const struct sg_up_pool_key *key,
                                  struct sg_cancel *lease_end)
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
    sg_up_pool_unref(c->pool);
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
        left = sg_up_pool_leave(p);
    }
    pthread_mutex_unlock(&p->hub->lock);
    sg_watch_del(p->hub->reactor, &c->watch);
    sg_timer_cancel(p->hub->reactor, &c->timer);
    if (left)
        sg_up_pool_retire(p);
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

static void conn_ready(struct sg_watch *w, uint32_t events)
{
    struct sg_up_conn *c = sg_container_of(w, struct sg_up_conn, watch);
    struct sg_up_exchange *x = conn_exchange(c);
    if (x == NULL) { /* idle: closed by the server, or it talks without being asked */
        conn_close(c);
        return;
    }
    sg_up_settle(x);
    bool hung_up = (events & (EPOLLHUP | EPOLLERR)) != 0;
    if (hung_up && (c->asked & EPOLLIN) == 0) /* it would be told over and over until there is room */
        sg_watch_del(c->pool->hub->reactor, &c->watch);
    if (events & EPOLLOUT || hung_up)
        x->send_blocked = false;
    if (events & EPOLLIN || hung_up)
        x->read_ready = true;
    sg_up_run(x);
    sg_up_exchange_unref(x);
}

static void conn_arm(struct sg_up_conn *c, int64_t due)
{
    if (due == INT64_MAX || (c->timer_due != 0 && c->timer_due <= due))
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
        sg_up_settle(x);
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

void sg_up_conn_ask(struct sg_up_conn *c, const struct sg_up_exchange *x)
{
    uint32_t want = (x->pipe_full ? 0U : (uint32_t)EPOLLIN) | (x->send_blocked ? (uint32_t)EPOLLOUT : 0U);
    struct sg_reactor *r = c->pool->hub->reactor;
    if (!c->watch.added && want != 0) {
        c->asked = want;
        /* It was in the set before; a failure ends at the deadline. */
        (void)sg_watch_add(r, &c->watch, want, NULL);
    } else if (c->asked != want) {
        c->asked = want;
        sg_watch_mod(r, &c->watch, want);
    }
    conn_arm(c, x->deadline);
}

int sg_up_conn_new(struct sg_up_exchange *x, int fd, struct sg_hold *hold, struct sg_error *err)
{
    struct sg_up_conn *c = sg_xcalloc(1, sizeof *c);
    int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* not every stream socket has it */
    atomic_init(&c->refs, 2);                                         /* the reactor's and the exchange's */
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

void sg_up_conn_release(struct sg_up_conn *c, bool reuse, int keep_alive_s)
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

/* ---- ends ---- */

void sg_up_pool_cut(struct sg_up_pool *p, enum sg_code code)
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
            sg_up_settle(x);
            sg_up_kill(x, code);
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
    sg_up_pool_cut(p, SG_LEASE_GONE);
    sg_up_pool_unref(p); /* the hook's */
}
