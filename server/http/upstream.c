#include <errno.h>
#include <sys/socket.h>

#include <utlist.h>

#include "base/clock.h"
#include "http/upstream_priv.h"

struct sg_upstream_config sg_upstream_defaults(void)
{
    return (struct sg_upstream_config){
        .connect_ms = 10000,
        .first_byte_ms = 600000,
        .stall_ms = 600000,
        .idle_ms = 4000, /* below the 5 s after which many servers close */
        .idle_max = 64,
        .exchanges_max = 512,
        .pipe_bytes = (size_t)256 * 1024,
    };
}

const struct sg_upstream_config *sg_up_config(const struct sg_upstreams *u)
{
    return &u->config;
}

void sg_up_hub_unref(struct sg_upstreams *u)
{
    if (atomic_fetch_sub(&u->refs, 1) != 1)
        return;
    while (u->spare != NULL) {
        struct sg_up_exchange *x = u->spare;
        u->spare = x->next;
        free(x);
    }
    pthread_mutex_destroy(&u->lock);
    pthread_cond_destroy(&u->changed);
    free(u->scratch);
    free(u);
}

bool sg_up_post(struct sg_upstreams *u, struct sg_task *t)
{
    pthread_mutex_lock(&u->lock);
    bool ok = !u->closed;
    if (ok)
        sg_reactor_post(u->reactor, t);
    pthread_mutex_unlock(&u->lock);
    return ok;
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
    struct sg_up_pool_key key;
    memset(&key, 0, sizeof key);
    key.port = x->target.port;
    size_t id_len = strlen(x->target.lease_id);
    if (id_len >= sizeof key.lease)
        return sg_error_set(err, SG_INTERNAL, "lease id too long");
    memcpy(key.lease, x->target.lease_id, id_len);
    pthread_mutex_lock(&u->lock);
    struct sg_up_pool *p = NULL;
    HASH_FIND(hh, u->pools, &key, sizeof key, p);
    bool fresh = p == NULL && !u->closing;
    if (fresh)
        p = sg_up_pool_new(u, &key, x->target.lease_end);
    enum sg_code refuse = u->closing                                  ? SG_SHUTTING_DOWN
                          : p->ended                                  ? SG_LEASE_GONE
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
                           : sg_error_set(err, refuse,
                                          refuse == SG_LEASE_GONE ? "the lease has ended"
                                                                  : "the server is shutting down");
}

int sg_upstream_start(struct sg_upstreams *u, const struct sg_upstream_target *target,
                      const struct sg_upstream_request *request, const struct sg_upstream_sink *sink,
                      struct sg_error *err)
{
    struct sg_up_exchange *x = sg_up_exchange_new(u, target, request, sink);
    pthread_mutex_lock(&x->start_lock);
    if (pool_enter(x, err) < 0) {
        pthread_mutex_unlock(&x->start_lock);
        sg_up_exchange_unref(x);
        return -1;
    }
    if (request->cancel != NULL)
        sg_up_exchange_obey(x, request->cancel);
    bool pooled = x->conn != NULL;
    if (pooled) {
        sg_up_send_head(x);
        if (!x->sent)
            x->deadline = sg_now_ms() + u->config.stall_ms;
    }
    /* The timer of a kept connection fires within idle_ms and looks at the deadline then; only what could not
     * wait that long, or is not finished here, needs the reactor now. */
    bool wake =
        !x->sent || u->config.first_byte_ms < u->config.idle_ms || u->config.stall_ms < u->config.idle_ms;
    pthread_mutex_unlock(&x->start_lock);
    if (!pooled)
        sg_up_dial(x);
    else if (wake)
        sg_up_exchange_wake(x);
    sg_up_exchange_unref(x);
    return 0;
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
        sg_up_pool_cut(p, SG_SHUTTING_DOWN);
        sg_up_pool_unref(p);
    }
}

struct sg_upstreams *sg_upstreams_new(struct sg_reactor *r, const struct sg_upstream_config *config)
{
    struct sg_upstreams *u = sg_xcalloc(1, sizeof *u);
    atomic_init(&u->refs, 1);
    u->reactor = r;
    u->config = *config;
    u->scratch = sg_xcalloc(1, SG_H1_HEAD_MAX);
    u->max_spare = SG_UP_SPARE_MAX;
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
    (void)sg_up_post(u, &u->close_task);
    pthread_mutex_lock(&u->lock);
    while (!u->cut || u->pools != NULL || u->n_exchanges > 0 || u->n_conns > 0)
        pthread_cond_wait(&u->changed, &u->lock);
    u->closed = true;
    pthread_mutex_unlock(&u->lock);
    sg_up_hub_unref(u);
    return NULL;
}

void sg_upstreams_counts(struct sg_upstreams *u, size_t *ret_exchanges, size_t *ret_connections)
{
    pthread_mutex_lock(&u->lock);
    *ret_exchanges = u->n_exchanges;
    *ret_connections = u->n_conns;
    pthread_mutex_unlock(&u->lock);
}
