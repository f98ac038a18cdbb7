/* A small server on the HTTP core alone, for the raw-socket suite. Prints its port and the parser's version, then serves until stdin ends; lines
 * on stdin: "drain" drains, "stop GRACE CANCEL" stops and exits, "again GRACE CANCEL" stops and starts a new server
 * in the same process; anything else is ignored. Completion events go
 * to stderr, one line each.
 */
#include <pthread.h>
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/workq.h"
#include "http/auth.h"
#include "http/listener.h"
#include "http/respond.h"

struct fixture {
    struct sg_reactor *reactor;
    struct sg_workq *workq;
    struct sg_auth *auth;
    _Atomic int hangups, shutdowns, holds, outstanding;
};

/* ---- plain ones ---- */

static void handle_hello(struct sg_request *r, void *app)
{
    (void)app;
    sg_respond_json(r, 200, json_pack("{s:s}", "hello", "world"));
}

static void handle_echo(struct sg_request *r, void *app)
{
    size_t len;
    json_t *v = NULL;
    struct sg_error err = {0};
    const char *body = sg_req_body(r, &len);
    (void)app;
    if (sg_json_parse_object(body, len, &v, &err) < 0) {
        sg_respond_error(r, &err);
        sg_error_clear(&err);
        return;
    }
    sg_respond_json(r, 200, v);
}

static void handle_inspect(struct sg_request *r, void *app)
{
    size_t n;
    const struct sg_header *h = sg_req_headers(r, &n);
    json_t *headers = json_array();
    (void)app;
    for (size_t i = 0; i < n; i++)
        json_array_append_new(headers, json_pack("[s,s]", h[i].name, h[i].value));
    const struct sg_principal *p = sg_req_principal(r);
    sg_respond_json(r, 200,
                    json_pack("{s:s,s:s,s:s?,s:s?,s:s?,s:s?,s:o,s:s?,s:s?,s:s}", "method", sg_req_method(r), "target",
                              sg_req_raw_target(r), "id", sg_req_param(r, "id"), "rest", sg_req_param(r, "rest"),
                              "q", sg_req_query(r, "q"), "raw_query", sg_req_raw_query(r), "headers", headers,
                              "who", p ? p->name : NULL, "traceparent", sg_req_traceparent(r), "peer",
                              sg_req_peer(r)));
}

static void handle_stats(struct sg_request *r, void *app)
{
    struct fixture *f = app;
    sg_respond_json(r, 200, json_pack("{s:i,s:i,s:i}", "hangups", f->hangups, "shutdowns", f->shutdowns, "holds", f->holds));
}

static void handle_forget(struct sg_request *r, void *app)
{
    (void)app;
    sg_req_unref(sg_req_ref(r));
}

static void handle_many_headers(struct sg_request *r, void *app)
{
    (void)app;
    sg_respond_header(r, "Set-Cookie", "a=1");
    sg_respond_header(r, "Set-Cookie", "b=2");
    sg_respond_header(r, "Content-Length", "7");
    sg_respond_header(r, "X-Evil", "a\r\nX-Injected: yes");
    sg_respond_bytes(r, 200, "text/plain", "text", 4);
}

/* ---- later ones ---- */

struct later {
    struct sg_work work;
    struct sg_timer timer;
    struct sg_task task, now;
    struct sg_cancel_hook hook;
    struct fixture *f;
    struct sg_request *r;
    int64_t ms;
    bool obey;
    _Atomic int parts; /* the timer's and the hook's */
};

static void later_drop(struct later *l)
{
    if (--l->parts > 0)
        return;
    l->f->outstanding--;
    sg_req_unref(l->r);
    free(l);
}

static void later_fired(struct sg_cancel_hook *h, enum sg_cancel_reason why)
{
    struct later *l = sg_container_of(h, struct later, hook);
    if (why == SG_CANCEL_HANGUP)
        l->f->hangups++;
    if (why == SG_CANCEL_SHUTDOWN)
        l->f->shutdowns++;
    if (l->obey)
        sg_reactor_post(l->f->reactor, &l->now);
    else
        later_drop(l);
}

static void later_finish(struct later *l)
{
    if (sg_cancel_unhook(sg_req_cancel(l->r), &l->hook))
        later_drop(l);
    later_drop(l);
}

/* Cancelled: the hook's part is given up here. */
static void later_now(struct sg_task *t)
{
    struct later *l = sg_container_of(t, struct later, now);
    struct sg_error err = {0};
    sg_error_set(&err, SG_UNAVAILABLE, "cancelled");
    sg_respond_error(l->r, &err);
    sg_error_clear(&err);
    bool armed = l->timer.slot != 0;
    sg_timer_cancel(l->f->reactor, &l->timer);
    if (armed)
        later_drop(l);
    later_drop(l);
}

static void later_fire(struct sg_timer *t)
{
    struct later *l = sg_container_of(t, struct later, timer);
    sg_respond_json(l->r, 200, json_pack("{s:b}", "slept", 1));
    later_finish(l);
}

static void later_arm(struct sg_task *t)
{
    struct later *l = sg_container_of(t, struct later, task);
    sg_timer_set(l->f->reactor, &l->timer, sg_now_ms() + l->ms);
}

static struct later *later_new(struct sg_request *r, struct fixture *f)
{
    struct later *l = sg_xcalloc(1, sizeof *l);
    int64_t ms = 100;
    sg_req_query_int(r, "ms", 0, 60000, &ms, NULL);
    sg_req_query_bool(r, "obey", &l->obey, NULL);
    f->outstanding++;
    l->f = f;
    l->parts = 2;
    l->now.run = later_now;
    l->r = sg_req_ref(r);
    l->ms = ms;
    l->hook.fired = later_fired;
    l->timer.fire = later_fire;
    l->task.run = later_arm;
    return l;
}

/* ?ms=: answers after that long; ?obey=1: at once when cancelled. */
static void handle_slow(struct sg_request *r, void *app)
{
    struct fixture *f = app;
    struct later *l = later_new(r, f);
    sg_cancel_hook(sg_req_cancel(r), &l->hook);
    sg_reactor_post(f->reactor, &l->task);
}

static void at_once(struct sg_work *w)
{
    struct later *l = sg_container_of(w, struct later, work);
    sg_respond_json(l->r, 200, json_pack("{s:b}", "worker", 1));
    l->parts = 1;
    later_drop(l);
}

/* Answers from a worker as fast as it can: races the suspension. */
static void handle_worker(struct sg_request *r, void *app)
{
    struct fixture *f = app;
    struct later *l = later_new(r, f);
    struct sg_error err = {0};
    l->work.run = at_once;
    if (sg_workq_submit(f->workq, &l->work, &err) < 0) {
        sg_respond_error(r, &err);
        sg_error_clear(&err);
        l->parts = 1;
        later_drop(l);
    }
}

/* ---- streams ---- */

struct feed {
    _Atomic int refs;
    struct sg_timer timer;
    struct sg_task task;
    struct fixture *f;
    struct sg_pipe *pipe;
    int64_t left, every_ms;
    bool fail;
    bool ended;           /* reactor thread */
    _Atomic bool queued;  /* the task is, and has a reference */
};

static void feed_ref(void *arg)
{
    ((struct feed *)arg)->refs++;
}

/* A waker may still be running when the pipe is through: it has its own reference. */
static void feed_unref(void *arg)
{
    struct feed *s = arg;
    if (--s->refs > 0)
        return;
    s->f->outstanding--;
    free(s);
}

static void feed_end(struct feed *s)
{
    struct sg_error err = {0};
    sg_error_set(&err, SG_INTERNAL, "made to fail");
    if (s->fail)
        sg_pipe_fail(s->pipe, &err);
    else
        sg_pipe_close(s->pipe);
    sg_pipe_set_writer(s->pipe, NULL);
    sg_pipe_unref(s->pipe);
    s->ended = true;
    feed_unref(s);
}

static void feed_pump(struct feed *s)
{
    char block[4096];
    memset(block, 'x', sizeof block);
    if (s->ended) /* a wake that was still under way */
        return;
    while (s->left > 0) {
        size_t want = s->left < (int64_t)sizeof block ? (size_t)s->left : sizeof block;
        ssize_t n = sg_pipe_write(s->pipe, block, s->every_ms ? 1 : want);
        if (n == -EPIPE) {
            s->f->hangups++;
            feed_end(s);
            return;
        }
        if (n == 0)
            return;
        s->left -= n;
        if (s->every_ms && s->left > 0) {
            sg_timer_set(s->f->reactor, &s->timer, sg_now_ms() + s->every_ms);
            return;
        }
    }
    feed_end(s);
}

static void feed_tick(struct sg_timer *t)
{
    feed_pump(sg_container_of(t, struct feed, timer));
}

static void feed_run(struct sg_task *t)
{
    struct feed *s = sg_container_of(t, struct feed, task);
    s->queued = false;
    feed_pump(s);
    feed_unref(s);
}

static void feed_wake(void *arg)
{
    struct feed *s = arg;
    if (s->every_ms || atomic_exchange(&s->queued, true))
        return;
    feed_ref(s);
    sg_reactor_post(s->f->reactor, &s->task);
}

static void feed_begin(struct sg_task *t)
{
    struct feed *s = sg_container_of(t, struct feed, task);
    struct sg_waker w = {.wake = feed_wake, .ref = feed_ref, .unref = feed_unref, .arg = s};
    s->task.run = feed_run;
    sg_pipe_set_writer(s->pipe, &w);
    feed_pump(s);
}

/* The same bytes as a source: what is not taken from a pipe by the server. */
static ssize_t source_read(void *arg, char *data, size_t max)
{
    return sg_pipe_read(arg, data, max);
}

static void source_set_waker(void *arg, const struct sg_waker *w)
{
    sg_pipe_set_reader(arg, w);
}

static void source_close(void *arg)
{
    sg_pipe_stop(arg);
    sg_pipe_unref(arg);
}

/* ?bytes=&every_ms=&fail=&length=&source=: a stream of x, one per tick or as fast as it is taken. */
static void handle_stream(struct sg_request *r, void *app)
{
    struct fixture *f = app;
    int64_t length = -1;
    bool as_source = false;
    struct feed *s = sg_xcalloc(1, sizeof *s);
    s->refs = 1;
    f->outstanding++;
    s->f = f;
    s->pipe = sg_pipe_new(16 * 1024);
    s->left = 100;
    sg_req_query_int(r, "bytes", 0, INT64_MAX, &s->left, NULL);
    sg_req_query_int(r, "every_ms", 0, 10000, &s->every_ms, NULL);
    sg_req_query_int(r, "length", 0, INT64_MAX, &length, NULL);
    sg_req_query_bool(r, "fail", &s->fail, NULL);
    sg_req_query_bool(r, "source", &as_source, NULL);
    s->task.run = feed_begin;
    s->timer.fire = feed_tick;
    struct sg_pipe *pipe = s->pipe;
    sg_pipe_ref(pipe);
    sg_reactor_post(f->reactor, &s->task);
    if (as_source) {
        struct sg_body_source source = {.read = source_read, .set_waker = source_set_waker, .close = source_close, .arg = pipe};
        sg_respond_source(r, 200, "application/octet-stream", &source);
        return;
    }
    sg_respond_pipe(r, 200, "application/octet-stream", pipe, length);
    sg_pipe_unref(pipe);
}

static void hold_gone(void *arg)
{
    ((struct fixture *)arg)->holds--;
}

/* ?bytes=&offset=&short=&hold=: a file, promised longer than it is when short. */
static void handle_file(struct sg_request *r, void *app)
{
    struct fixture *f = app;
    int64_t bytes = 1000000, offset = 0;
    bool cut = false, hold = false;
    sg_req_query_int(r, "bytes", 0, INT64_MAX, &bytes, NULL);
    sg_req_query_int(r, "offset", 0, INT64_MAX, &offset, NULL);
    sg_req_query_bool(r, "short", &cut, NULL);
    sg_req_query_bool(r, "hold", &hold, NULL);
    int fd = memfd_create("fixture", MFD_CLOEXEC);
    for (int64_t i = 0; i < (cut ? bytes / 2 : bytes); i += 10)
        if (write(fd, "0123456789", 10) != 10)
            break;
    struct sg_hold *h = NULL;
    if (hold) {
        f->holds++;
        h = sg_hold_new(hold_gone, f);
    }
    sg_respond_fd(r, 200, "application/octet-stream", fd, h, (uint64_t)offset, (uint64_t)(bytes - offset));
}

/* ---- uploads ---- */

struct sink {
    _Atomic int refs;
    struct sg_timer timer;
    struct sg_task task, end_task;
    pthread_mutex_t lock;
    bool over; /* under the lock: nothing posts `task` any more */
    struct fixture *f;
    struct sg_request *r;
    struct sg_pipe *pipe;
    int64_t total, each, every_ms, stop_after, think_ms;
    _Atomic bool starved;
};

static void sink_ref(void *arg)
{
    ((struct sink *)arg)->refs++;
}

/* A waker may still be running when the pipe is through: it has its own reference. */
static void sink_unref(void *arg)
{
    struct sink *s = arg;
    if (--s->refs > 0)
        return;
    s->f->outstanding--;
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static void sink_free(struct sg_task *t)
{
    sink_unref(sg_container_of(t, struct sink, end_task));
}

/* A waker may run on while the reactor ends the sink, so posting and ending exclude each other. */
static void sink_post(struct sink *s)
{
    pthread_mutex_lock(&s->lock);
    if (!s->over)
        sg_reactor_post(s->f->reactor, &s->task);
    pthread_mutex_unlock(&s->lock);
}

static void sink_end(struct sink *s)
{
    pthread_mutex_lock(&s->lock);
    s->over = true;
    pthread_mutex_unlock(&s->lock);
    sg_pipe_set_reader(s->pipe, NULL);
    sg_req_unref(s->r);
    s->end_task.run = sink_free;
    sg_reactor_post(s->f->reactor, &s->end_task); /* after a task that is queued already */
}

static void sink_run(struct sg_task *t)
{
    struct sink *s = sg_container_of(t, struct sink, task);
    char block[8192];
    if (s->over) /* only this thread sets it */
        return;
    for (;;) {
        size_t want = s->each && s->each < (int64_t)sizeof block ? (size_t)s->each : sizeof block;
        s->starved = true;
        ssize_t n = sg_pipe_read(s->pipe, block, want);
        if (n == -EAGAIN)
            return;
        s->starved = false;
        if (sg_cancel_fired(sg_req_cancel(s->r)) != SG_CANCEL_NONE)
            n = -EIO; /* the pipe gives out what it holds first, which takes a slow one too long */
        if (n < 0)
            s->f->hangups++;
        if (n <= 0 || (s->stop_after && s->total + n >= s->stop_after)) {
            struct sg_error err = {0};
            sg_error_set(&err, SG_SANDBOX_DISK_FULL, "no room");
            sg_pipe_stop(s->pipe);
            if (n == 0)
                sg_respond_json(s->r, 201, json_pack("{s:I}", "bytes", (json_int_t)s->total));
            else
                sg_respond_error(s->r, &err);
            sink_end(s);
            return;
        }
        s->total += n;
        if (s->every_ms) {
            sg_timer_set(s->f->reactor, &s->timer, sg_now_ms() + s->every_ms);
            return;
        }
    }
}

static void sink_tick(struct sg_timer *t)
{
    sink_run(&sg_container_of(t, struct sink, timer)->task);
}

static void sink_wake(void *arg)
{
    struct sink *s = arg;
    if (!s->every_ms || s->starved)
        sink_post(s);
}

static void sink_attach(struct sg_task *t)
{
    struct sink *s = sg_container_of(t, struct sink, task);
    struct sg_waker w = {.wake = sink_wake, .ref = sink_ref, .unref = sink_unref, .arg = s};
    s->task.run = sink_run;
    s->timer.fire = sink_tick;
    sg_pipe_set_reader(s->pipe, &w);
    sink_post(s);
}

static void sink_open(struct sink *s)
{
    s->pipe = sg_req_body_pipe(s->r);
    s->task.run = sink_attach;
    sg_reactor_post(s->f->reactor, &s->task);
}

static void sink_thought(struct sg_timer *t)
{
    sink_open(sg_container_of(t, struct sink, timer));
}

static void sink_begin(struct sg_task *t)
{
    struct sink *s = sg_container_of(t, struct sink, task);
    s->timer.fire = sink_thought;
    sg_timer_set(s->f->reactor, &s->timer, sg_now_ms() + s->think_ms);
}

/* ?each=&every_ms=&stop_after=&think_ms=: takes `each` bytes per tick; stops with 507; decides after thinking. */
static void handle_upload(struct sg_request *r, void *app)
{
    struct fixture *f = app;
    struct sink *s = sg_xcalloc(1, sizeof *s);
    s->refs = 1;
    pthread_mutex_init(&s->lock, NULL);
    f->outstanding++;
    s->f = f;
    s->r = sg_req_ref(r);
    sg_req_query_int(r, "each", 0, INT64_MAX, &s->each, NULL);
    sg_req_query_int(r, "every_ms", 0, 10000, &s->every_ms, NULL);
    sg_req_query_int(r, "stop_after", 0, INT64_MAX, &s->stop_after, NULL);
    sg_req_query_int(r, "think_ms", 0, 10000, &s->think_ms, NULL);
    if (s->think_ms) {
        s->task.run = sink_begin;
        sg_reactor_post(f->reactor, &s->task);
    } else {
        sink_open(s);
    }
}

/* Refuses a body: at once, or from a timer with ?ms=. */
struct refuse {
    struct sg_timer timer;
    struct sg_task task;
    struct fixture *f;
    struct sg_request *r;
    int64_t ms;
};

static void refuse_now(struct sg_request *r)
{
    struct sg_error err = {0};
    sg_error_set(&err, SG_NOT_FOUND, "no such lease");
    sg_respond_error(r, &err);
    sg_error_clear(&err);
}

static void refuse_fire(struct sg_timer *t)
{
    struct refuse *x = sg_container_of(t, struct refuse, timer);
    refuse_now(x->r);
    x->f->outstanding--;
    sg_req_unref(x->r);
    free(x);
}

static void refuse_arm(struct sg_task *t)
{
    struct refuse *x = sg_container_of(t, struct refuse, task);
    sg_timer_set(x->f->reactor, &x->timer, sg_now_ms() + x->ms);
}

static void handle_refuse(struct sg_request *r, void *app)
{
    struct fixture *f = app;
    int64_t ms = 0;
    sg_req_query_int(r, "ms", 0, 10000, &ms, NULL);
    if (!ms) {
        refuse_now(r);
        return;
    }
    struct refuse *x = sg_xcalloc(1, sizeof *x);
    f->outstanding++;
    x->f = f;
    x->r = sg_req_ref(r);
    x->ms = ms;
    x->timer.fire = refuse_fire;
    x->task.run = refuse_arm;
    sg_reactor_post(f->reactor, &x->task);
}

/* The body comes back as the answer, both moving at once as far as the client lets them. */
static void handle_cat(struct sg_request *r, void *app)
{
    (void)app;
    sg_respond_pipe(r, 200, NULL, sg_req_body_pipe(r), -1);
}

/* ---- upgrade: echoes until the client closes ---- */

struct relay {
    struct sg_watch watch;
    struct fixture *f;
    struct sg_request *r;
    struct sg_upgrade *up;
};

static void relay_ready(struct sg_watch *w, uint32_t events)
{
    struct relay *y = sg_container_of(w, struct relay, watch);
    char block[4096];
    (void)events;
    ssize_t n = recv(w->fd, block, sizeof block, 0);
    if (n > 0 && send(w->fd, block, (size_t)n, MSG_NOSIGNAL) == n)
        return;
    sg_watch_del(y->f->reactor, w);
    sg_upgrade_close(y->up);
    y->f->outstanding--;
    sg_req_unref(y->r);
    free(y);
}

static void relay_taken(void *arg, struct sg_upgrade *up, int fd, const void *early, size_t early_len)
{
    struct relay *y = arg;
    if (!up) {
        y->f->outstanding--;
        sg_req_unref(y->r);
        free(y);
        return;
    }
    y->up = up;
    y->watch.fd = fd;
    y->watch.ready = relay_ready;
    (void)!send(fd, early, early_len, MSG_NOSIGNAL);
    sg_watch_add(y->f->reactor, &y->watch, EPOLLIN, NULL);
}

static void handle_upgrade(struct sg_request *r, void *app)
{
    struct relay *y = sg_xcalloc(1, sizeof *y);
    y->f = app;
    y->f->outstanding++;
    y->r = sg_req_ref(r);
    sg_respond_upgrade(r, "echo", relay_taken, y);
}

/* ---- the table ---- */

static const char *const q_q[] = {"q", NULL};
static const char *const q_slow[] = {"ms", "obey", NULL};
static const char *const q_stream[] = {"bytes", "every_ms", "fail", "length", "source", NULL};
static const char *const q_file[] = {"bytes", "offset", "short", "hold", NULL};
static const char *const q_upload[] = {"each", "every_ms", "stop_after", "think_ms", "ms", NULL};

static const struct sg_route routes[] = {
    {.method = "GET", .path = "/", .operation_id = "root", .handle = handle_hello},
    {.method = "GET", .path = "/hello", .operation_id = "hello", .handle = handle_hello},
    {.method = "GET", .path = "/health", .operation_id = "health", .handle = handle_hello, .always = true},
    {.method = "GET", .path = "/stats", .operation_id = "stats", .handle = handle_stats, .always = true},
    {.method = "POST", .path = "/echo", .operation_id = "echo", .body = SG_BODY_JSON, .handle = handle_echo},
    {.method = "POST", .path = "/maybe", .operation_id = "maybe", .body = SG_BODY_JSON_OPTIONAL, .handle = handle_hello},
    {.method = "GET", .path = "/things/{id}", .operation_id = "thing", .query = q_q, .handle = handle_inspect},
    {.method = "DELETE", .path = "/things/{id}", .operation_id = "thing_delete", .handle = handle_inspect},
    {.method = "*", .path = "/proxy/{id}/{rest...}", .operation_id = "proxy", .body = SG_BODY_STREAM, .handle = handle_inspect},
    {.method = "GET", .path = "/private", .operation_id = "private", .auth = SG_AUTH_TENANT, .handle = handle_inspect},
    {.method = "PUT", .path = "/private", .operation_id = "private_put", .auth = SG_AUTH_TENANT, .body = SG_BODY_STREAM,
     .query = q_upload, .handle = handle_upload},
    {.method = "GET", .path = "/admin", .operation_id = "admin", .auth = SG_AUTH_ADMIN, .handle = handle_inspect},
    {.method = "GET", .path = "/forget", .operation_id = "forget", .handle = handle_forget},
    {.method = "GET", .path = "/headers", .operation_id = "headers", .handle = handle_many_headers},
    {.method = "GET", .path = "/slow", .operation_id = "slow", .query = q_slow, .handle = handle_slow},
    {.method = "POST", .path = "/slow", .operation_id = "slow_post", .body = SG_BODY_JSON, .query = q_slow, .handle = handle_slow},
    {.method = "GET", .path = "/worker", .operation_id = "worker", .query = q_slow, .handle = handle_worker},
    {.method = "GET", .path = "/stream", .operation_id = "stream", .query = q_stream, .handle = handle_stream},
    {.method = "GET", .path = "/file", .operation_id = "file", .query = q_file, .handle = handle_file},
    {.method = "PUT", .path = "/upload", .operation_id = "upload", .body = SG_BODY_STREAM, .query = q_upload, .handle = handle_upload},
    {.method = "PUT", .path = "/capped", .operation_id = "capped", .body = SG_BODY_STREAM, .query = q_upload,
     .max_body = 100000, .handle = handle_upload},
    {.method = "PUT", .path = "/refuse", .operation_id = "refuse", .body = SG_BODY_STREAM, .query = q_upload, .handle = handle_refuse},
    {.method = "POST", .path = "/cat", .operation_id = "cat", .body = SG_BODY_STREAM, .handle = handle_cat},
    {.method = "GET", .path = "/upgrade", .operation_id = "upgrade", .handle = handle_upgrade},
};

static const struct sg_route host_route = {
    .method = "*", .path = "/{rest...}", .operation_id = "host", .body = SG_BODY_STREAM, .handle = handle_inspect};

static bool host_match(void *app, const char *host)
{
    (void)app;
    return strncmp(host, "sandbox.", 8) == 0;
}

static int check_token(void *app, const char *token, size_t len, const struct sg_principal **ret, struct sg_error *err)
{
    return sg_auth_check(((struct fixture *)app)->auth, token, len, ret, err);
}

static void request_done(void *app, const struct sg_http_event *e)
{
    (void)app;
    fprintf(stderr, "%s %s op=%s status=%d complete=%d in=%llu out=%llu id=%s\n", e->method, e->target,
            e->operation_id ? e->operation_id : "-", e->status, e->complete, (unsigned long long)e->bytes_in,
            (unsigned long long)e->bytes_out, e->request_id);
}

/* NAME=VALUE arguments. */
static int64_t option(int argc, char **argv, const char *name, int64_t dflt)
{
    size_t len = strlen(name);
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], name, len) == 0 && argv[i][len] == '=')
            return atoll(argv[i] + len + 1);
    return dflt;
}

static struct sg_http *start(struct fixture *f, int argc, char **argv)
{
    struct sg_error err = {0};
    struct sg_http *h = NULL;
    int fd = -1;
    if (sg_http_listen("127.0.0.1:0", &fd, &err) < 0)
        return NULL;
    struct sg_http_config cfg = {
        .listen_fd = fd,
        .daemons = (unsigned)option(argc, argv, "daemons", 1),
        .routes = routes,
        .n_routes = SG_COUNT_OF(routes),
        .app = f,
        .reactor = f->reactor,
        .auth = check_token,
        .done = option(argc, argv, "quiet", 0) ? NULL : request_done,
        .host_match = host_match,
        .host_route = &host_route,
        .max_body = 100000,
        .max_requests = (unsigned)option(argc, argv, "max_requests", 0),
        .max_connections = (unsigned)option(argc, argv, "max_connections", 0),
        .header_ms = option(argc, argv, "header_ms", 0),
        .idle_ms = option(argc, argv, "idle_ms", 0),
        .body_ms = option(argc, argv, "body_ms", 0),
        .stall_ms = option(argc, argv, "stall_ms", 0),
        .body_pipe = (size_t)option(argc, argv, "body_pipe", 4096),
    };
    if (sg_http_new(&cfg, &h, &err) < 0)
        fprintf(stderr, "%s\n", err.message);
    return h;
}

/* True: once more. */
static bool serve(struct sg_http *h)
{
    char line[128];
    int grace = 0, cancel = 0;
    printf("%u %s\n", sg_http_port(h), sg_http_parser_version());
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (strncmp(line, "drain", 5) == 0) {
            sg_http_drain(h);
            printf("draining\n");
            fflush(stdout);
        }
        if (sscanf(line, "stop %d %d", &grace, &cancel) == 2 || sscanf(line, "again %d %d", &grace, &cancel) == 2)
            break;
    }
    sg_http_stop(h, grace, cancel);
    return strncmp(line, "again", 5) == 0;
}

int main(int argc, char **argv)
{
    struct fixture f = {0};
    char hex[2][65];
    struct sg_error err = {0};
    sg_sha256_hex("tenant-token", 12, hex[0]);
    sg_sha256_hex("admin-token", 11, hex[1]);
    struct sg_token_config list[] = {
        {.name = "t", .tenant = "acme", .role = SG_ROLE_TENANT, .sha256 = hex[0]},
        {.name = "a", .tenant = "default", .role = SG_ROLE_ADMIN, .sha256 = hex[1]},
    };
    if (sg_auth_new(list, 2, &f.auth, &err) < 0 || sg_reactor_new(&f.reactor, &err) < 0 ||
        sg_workq_new(2, 1000, &f.workq, &err) < 0) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    bool again = true;
    while (again) {
        struct sg_http *h = start(&f, argc, argv);
        if (!h)
            return 1;
        again = serve(h);
        sg_http_free(h);
    }
    f.workq = sg_workq_free(f.workq);
    for (int i = 0; i < 1000 && f.outstanding > 0; i++)
        poll(NULL, 0, 10); /* what a disobedient handler still owes */
    sg_reactor_free(f.reactor);
    sg_auth_free(f.auth);
    fprintf(stderr, "stopped\n");
    return 0;
}
