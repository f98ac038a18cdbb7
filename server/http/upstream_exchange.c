/* The life of one exchange: its reference counts, its news from other threads, its end. */
#include <stdio.h>

#include <utlist.h>

#include "base/clock.h"
#include "http/upstream_priv.h"

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

/* Its memory, or zeroed memory for one: never more than SG_UP_SPARE_MAX lie about. */
static void exchange_free(struct sg_up_exchange *x)
{
    struct sg_upstreams *u = x->hub;
    pthread_mutex_lock(&u->lock);
    bool keep = u->n_spare < u->max_spare;
    if (keep) {
        x->next = u->spare;
        u->spare = x;
        u->n_spare++;
    }
    pthread_mutex_unlock(&u->lock);
    if (!keep)
        free(x);
    sg_up_hub_unref(u);
}

static struct sg_up_exchange *exchange_alloc(struct sg_upstreams *u)
{
    pthread_mutex_lock(&u->lock);
    struct sg_up_exchange *x = u->spare;
    if (x != NULL) {
        u->spare = x->next;
        u->n_spare--;
    }
    pthread_mutex_unlock(&u->lock);
    if (x == NULL)
        return sg_xcalloc(1, sizeof *x);
    memset(x, 0, offsetof(struct sg_up_exchange, small_head));
    return x;
}

void sg_up_exchange_unref(void *arg)
{
    struct sg_up_exchange *x = arg;
    if (atomic_fetch_sub(&x->refs, 1) != 1)
        return;
    if (x->target.unref != NULL)
        x->target.unref(x->target.arg);
    if (x->head != x->small_head)
        free(x->head);
    free(x->out);
    free(x->in);
    free(x->decoder.trailers);
    sg_up_tunnel_free(x->tunnel);
    sg_pipe_unref(x->body);
    sg_pipe_unref(x->pipe);
    sg_cancel_unref(x->cancel);
    sg_error_clear(&x->dial_err);
    pthread_mutex_destroy(&x->start_lock);
    if (x->pool != NULL)
        sg_up_pool_unref(x->pool);
    exchange_free(x);
}

void sg_up_exchange_wake(void *arg)
{
    struct sg_up_exchange *x = arg;
    if (atomic_exchange(&x->posted, true))
        return;
    sg_up_exchange_ref(x);
    if (!sg_up_post(x->hub, &x->task))
        sg_up_exchange_unref(x);
}

void sg_up_settle(struct sg_up_exchange *x)
{
    pthread_mutex_lock(&x->start_lock);
    pthread_mutex_unlock(&x->start_lock);
}

static void exchange_task(struct sg_task *t)
{
    struct sg_up_exchange *x = sg_container_of(t, struct sg_up_exchange, task);
    atomic_store(&x->posted, false);
    sg_up_settle(x);
    sg_up_run(x);
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

void sg_up_exchange_obey(struct sg_up_exchange *x, struct sg_cancel *cancel)
{
    x->cancel = sg_cancel_ref(cancel);
    x->cancel_hook.fired = exchange_cancelled;
    sg_up_exchange_ref(x); /* the hook's */
    (void)sg_cancel_hook(x->cancel, &x->cancel_hook);
}

void sg_up_end(struct sg_up_exchange *x, bool reuse)
{
    if (x->ended)
        return;
    struct sg_upstreams *u = x->hub;
    struct sg_up_conn *c = x->conn;
    x->conn = NULL;
    if (x->tunnel != NULL)
        sg_up_tunnel_end(x->tunnel);
    if (c != NULL)
        sg_up_conn_release(c, reuse, x->keep_alive_s);
    pthread_mutex_lock(&u->lock);
    x->ended = true;
    DL_DELETE(x->pool->exchanges, x);
    x->pool->n_exchanges--;
    u->n_exchanges--;
    bool left = sg_up_pool_leave(x->pool);
    int fd = x->dialed ? x->dial_fd : -1;
    struct sg_hold *hold = x->dialed ? x->dial_hold : NULL;
    pthread_cond_broadcast(&u->changed);
    pthread_mutex_unlock(&u->lock);
    sg_close(fd);
    sg_hold_unref(hold);
    if (left)
        sg_up_pool_retire(x->pool);
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

void sg_up_no_answer(struct sg_up_exchange *x, int sys)
{
    bool safe = x->head_off == 0 || (x->replayable && x->conn->used);
    if (safe && !x->retried) {
        struct sg_up_conn *c = x->conn;
        x->conn = NULL;
        sg_up_conn_release(c, false, -1);
        x->retried = true;
        x->head_off = 0;
        x->sent = x->send_broken = x->send_blocked = false;
        sg_up_dial(x);
        return;
    }
    struct sg_error err = {0};
    sg_error_set(&err, SG_ENDPOINT_FAILED,
                 "the service on port %u closed the connection without an answer%s%s",
                 (unsigned)x->target.port, sys != 0 ? ": " : "", sys != 0 ? strerror(sys) : "");
    err.sys = sys;
    sg_error_reason(&err, "closed_without_answer");
    sg_up_fail(x, &err);
}

void sg_up_kill(struct sg_up_exchange *x, enum sg_code code)
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
    if (fd < 0 || sg_up_conn_new(x, fd, hold, &err) < 0) {
        sg_up_fail(x, fd < 0 ? &x->dial_err : &err);
        sg_error_clear(&err);
        return false;
    }
    x->deadline = sg_now_ms() + x->hub->config.stall_ms;
    return true;
}

void sg_up_run(struct sg_up_exchange *x)
{
    if (x->ended)
        return;
    int killed = atomic_load(&x->killed);
    if (killed != SG_OK) {
        sg_up_kill(x, (enum sg_code)killed);
        return;
    }
    if (x->conn == NULL && !take_dialed(x))
        return;
    if (x->tunnel == NULL)
        sg_up_move(x);
    if (!x->ended && x->tunnel != NULL)
        sg_up_tunnel_move(x);
    if (!x->ended && x->conn != NULL)
        sg_up_conn_ask(x->conn, x);
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

void sg_up_dial(struct sg_up_exchange *x)
{
    struct sg_dial_done done = {dial_done, sg_up_exchange_ref(x)};
    struct sg_error err = {0};
    if (x->target.dial(x->target.arg, x->target.port, sg_now_ms() + x->hub->config.connect_ms, &done, &err) <
        0) {
        dial_done(x, -1, NULL, &err);
        sg_error_clear(&err);
    }
}

struct sg_up_exchange *sg_up_exchange_new(struct sg_upstreams *u, const struct sg_upstream_target *target,
                                          const struct sg_upstream_request *q,
                                          const struct sg_upstream_sink *sink)
{
    struct sg_up_exchange *x = exchange_alloc(u);
    atomic_init(&x->refs, 1);
    atomic_fetch_add(&u->refs, 1);
    pthread_mutex_init(&x->start_lock, NULL);
    x->hub = u;
    x->target = *target;
    if (target->ref != NULL)
        target->ref(target->arg);
    x->sink = *sink;
    x->head = q->head_len <= sizeof x->small_head ? x->small_head : sg_xcalloc(1, q->head_len);
    memcpy(x->head, q->head, q->head_len);
    x->head_len = q->head_len;
    x->body = q->body != NULL ? sg_pipe_ref(q->body) : NULL;
    x->body_length = q->body_length;
    x->is_head = q->is_head;
    x->replayable = q->replayable && q->body == NULL;
    x->upgrade = q->upgrade;
    x->body_trailers = q->trailers;
    x->progress.upgrade = q->upgrade;
    x->dial_fd = -1;
    x->keep_alive_s = -1;
    x->task.run = exchange_task;
    return x;
}
