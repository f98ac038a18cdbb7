/* Everything but the beginning happens on the reactor, in attach_turn(); whatever brings news posts that. */
#include "http/attach.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "http/ws.h"
#include "model/exec_event.h"

/* What one turn moves each way before others on the reactor get theirs. */
#define TURN_BYTES ((size_t)256 * 1024)
/* The largest text message: the exit of a command line of 1 MiB, every byte escaped. */
#define TEXT_MAX ((size_t)8 * 1024 * 1024)
/* Typed, and not taken yet: no more than what is read ahead. */
#define TYPED_MAX (2 * SG_WS_READ_AHEAD)

enum phase { OPEN, CLOSING, LINGER, DONE };

struct attach {
    _Atomic int refs; /* its own until DONE; the wakers', the hook's, the task's, a resize's */
    struct sg_reactor *reactor;
    struct sg_service *service;
    struct sg_entry *lease;
    char exec_id[SG_ID_MAX];
    struct sg_tty_size tty; /* when it began */
    struct sg_exec_reader *reader;
    struct sg_typist *typist; /* or NULL: nothing can be typed (any more) */
    struct sg_cancel *cancel;
    struct sg_cancel_hook hook;
    _Atomic bool stopping; /* the server does */
    _Atomic bool posted;
    struct sg_task task;

    /* Reactor, once it was posted: */
    enum phase phase;
    struct sg_upgrade *up;
    struct sg_watch watch;
    uint32_t asked;
    char *early; /* read before the upgrade */
    size_t early_at, early_len;
    struct sg_ws *ws;
    size_t in_left, out_left; /* of this turn */
    char typed[TYPED_MAX];
    size_t typed_len;
    bool broken;
    bool input_refused; /* said once */
    int64_t sent_ms; /* when the last bytes went out */
    int64_t due_ms;  /* CLOSING, LINGER: the end of the patience */
    struct sg_timer timer;
    struct sg_tty_size wanted; /* after the resize that is under way; 0 rows: none */
    bool resizing;
    _Atomic bool resized;
    struct sg_error resize_error;
};

static void ref(void *arg)
{
    ((struct attach *)arg)->refs++;
}

static void unref(void *arg)
{
    struct attach *a = arg;

    if (--a->refs > 0)
        return;
    sg_exec_reader_free(a->reader);
    sg_typist_free(a->typist);
    sg_cancel_unref(a->cancel);
    sg_entry_unref(a->lease);
    sg_ws_free(a->ws);
    sg_error_clear(&a->resize_error);
    free(a->early);
    free(a);
}

static void post(void *arg)
{
    struct attach *a = arg;

    if (atomic_exchange(&a->posted, true))
        return;
    ref(a);
    sg_reactor_post(a->reactor, &a->task);
}

/* ---- to the client ---- */

static void begin_close(struct attach *a, uint16_t code, const char *reason)
{
    if (a->phase != OPEN)
        return;
    sg_ws_close(a->ws, code, reason);
    a->phase = CLOSING;
    a->typed_len = 0;
    a->due_ms = sg_now_ms() + SG_ATTACH_CLOSE_MS;
}

/* Steals v. */
static void say(struct attach *a, json_t *v)
{
    size_t len = 0;
    sg_cleanup(sg_free_p) char *text = v ? sg_json_dump(v, &len) : NULL;

    sg_json_unref(v);
    if (!text || sg_ws_send_text(a->ws, text, len) < 0)
        begin_close(a, SG_WS_INTERNAL_ERROR, "out of memory");
}

static void refuse(struct attach *a, struct sg_error *err)
{
    json_t *v = json_pack("{s:s, s:s, s:s}", "type", "refused", "code", sg_code_name(err->code), "detail",
                          err->message[0] ? err->message : sg_code_title(err->code));

    if (v && err->field[0])
        json_object_set_new(v, "field", json_string(err->field));
    say(a, v);
    sg_error_clear(err);
}

static bool killed_by_lease_end(const struct sg_exec_event *e)
{
    json_t *v = json_loadb(e->data, e->len, 0, NULL);
    const char *by = json_string_value(json_object_get(v, "killed_by"));
    bool is = by && sg_streq(by, "lease_end");

    sg_json_unref(v);
    return is;
}

/* The last event, as a text message, and the end. */
static void say_end(struct attach *a, const struct sg_exec_event *e)
{
    struct sg_buf text;

    sg_buf_init(&text, TEXT_MAX);
    if (sg_exec_event_encode(e, SG_EVENT_NDJSON, &text) < 0 || sg_ws_send_text(a->ws, text.data, text.len - 1) < 0)
        begin_close(a, SG_WS_INTERNAL_ERROR, "out of memory");
    else if (e->type == SG_EVENT_ERROR)
        begin_close(a, SG_ATTACH_LOST, "the outcome was lost");
    else if (killed_by_lease_end(e))
        begin_close(a, SG_ATTACH_LEASE_END, "the lease has ended");
    else
        begin_close(a, SG_WS_NORMAL, "the command has ended");
    sg_buf_finish(&text);
}

static void say_event(struct attach *a, const struct sg_exec_event *e)
{
    if (e->type == SG_EVENT_EXIT || e->type == SG_EVENT_ERROR) {
        say_end(a, e);
    } else if (e->type == SG_EVENT_STDOUT || e->type == SG_EVENT_STDERR) {
        a->out_left -= e->len < a->out_left ? e->len : a->out_left;
        if (sg_ws_send_binary(a->ws, e->data, e->len) < 0)
            begin_close(a, SG_WS_INTERNAL_ERROR, "out of memory");
    }
}

/* True: one was said, or the end; false: none now. */
static bool say_next(struct attach *a)
{
    struct sg_exec_event e;
    int n = sg_exec_reader_next(a->reader, &e);

    if (n > 0)
        say_event(a, &e);
    else if (n == 0)
        begin_close(a, SG_WS_NORMAL, "the command has ended");
    else if (n == -ESTALE)
        begin_close(a, SG_ATTACH_HISTORY, "slower than the command's history is long");
    return n != -EAGAIN;
}

/* One event at a time waits in the line, so little is held for a client that is slow. True: the socket takes no more now. */
static bool write_out(struct attach *a)
{
    for (;;) {
        int rc = sg_ws_write(a->ws);
        if (rc != 0) {
            a->broken = a->broken || rc < 0;
            return rc > 0;
        }
        if (a->phase != OPEN || a->out_left == 0 || !say_next(a))
            return false;
    }
}

/* ---- from the client: bytes ---- */

static void no_more_input(struct attach *a)
{
    struct sg_error err = {0};

    a->typist = sg_typist_free(a->typist);
    a->typed_len = 0;
    if (a->input_refused)
        return;
    a->input_refused = true;
    sg_error_set(&err, SG_CONFLICT, "the command takes no input: it was given when it started, was closed, or the command has ended");
    refuse(a, &err);
}

static void type(void *arg, const void *data, size_t len)
{
    struct attach *a = arg;
    ssize_t n = a->typed_len > 0 ? 0 : a->typist ? sg_typist_write(a->typist, data, len) : -EPIPE;

    if (n < 0) {
        no_more_input(a);
        return;
    }
    len -= (size_t)n;
    if (len > sizeof a->typed - a->typed_len) {
        begin_close(a, SG_WS_INTERNAL_ERROR, "too much was read ahead");
        return;
    }
    memcpy(a->typed + a->typed_len, (const char *)data + n, len);
    a->typed_len += len;
}

/* What waited, now that there may be room. */
static void type_rest(struct attach *a)
{
    if (a->typed_len == 0 || a->phase != OPEN)
        return;
    ssize_t n = sg_typist_write(a->typist, a->typed, a->typed_len);
    if (n < 0) {
        no_more_input(a);
        return;
    }
    a->typed_len -= (size_t)n;
    memmove(a->typed, a->typed + n, a->typed_len);
}

/* ---- from the client: words ---- */

static void resize_done(void *arg, const struct sg_error *err)
{
    struct attach *a = arg;

    if (err)
        sg_error_copy(&a->resize_error, err);
    a->resized = true;
    post(a);
    unref(a);
}

static void resize(struct attach *a, struct sg_tty_size size)
{
    struct sg_error err = {0};

    if (a->resizing) { /* somebody pulls at a window: only where it ends counts */
        a->wanted = size;
        return;
    }
    a->resizing = true;
    ref(a);
    if (sg_service_exec_resize(a->service, a->lease, a->exec_id, size, &(struct sg_done){resize_done, a}, &err) == 0)
        return;
    a->resizing = false;
    refuse(a, &err);
    unref(a);
}

static void resize_next(struct attach *a)
{
    if (!atomic_exchange(&a->resized, false))
        return;
    struct sg_tty_size next = a->wanted;
    a->resizing = false;
    a->wanted = (struct sg_tty_size){0};
    if (a->phase != OPEN)
        return;
    if (a->resize_error.code != SG_OK)
        refuse(a, &a->resize_error);
    if (next.rows > 0)
        resize(a, next);
}

static int do_resize(struct attach *a, struct sg_json_reader *rd, struct sg_error *err)
{
    struct sg_tty_size size;

    if (sg_tty_size_read(rd, true, &size, err) < 0 || sg_json_end(rd, err) < 0)
        return -1;
    resize(a, size);
    return 0;
}

static int do_signal(struct attach *a, struct sg_json_reader *rd, struct sg_error *err)
{
    const char *name = NULL;

    if (sg_json_str(rd, "signal", &name, err) < 0 || sg_json_end(rd, err) < 0)
        return -1;
    int signo = name ? sg_signal_parse(name) : 0;
    if (signo == 0)
        return sg_error_field(err, SG_INVALID_REQUEST, "signal", "must be the name of a signal, for example \"SIGTERM\"");
    return sg_service_exec_signal(a->service, a->lease, a->exec_id, signo, err);
}

static int obey(struct attach *a, const char *text, size_t len, struct sg_error *err)
{
    sg_cleanup(sg_json_p) json_t *v = NULL;
    struct sg_json_reader rd;
    const char *what = "";

    if (sg_json_parse_object(text, len, &v, err) < 0 || sg_json_begin(&rd, v, "", err) < 0 || sg_json_str(&rd, "type", &what, err) < 0)
        return -1;
    if (sg_streq(what, "resize"))
        return do_resize(a, &rd, err);
    if (sg_streq(what, "signal"))
        return do_signal(a, &rd, err);
    return sg_error_field(err, SG_INVALID_REQUEST, "type", "must be \"resize\" or \"signal\"");
}

static void hear(void *arg, const char *text, size_t len)
{
    struct attach *a = arg;
    struct sg_error err = {0};

    if (a->phase == OPEN && obey(a, text, len, &err) < 0)
        refuse(a, &err);
}

/* ---- the socket ---- */

static ssize_t sock_recv(void *arg, void *data, size_t max)
{
    struct attach *a = arg;
    size_t early = a->early_len - a->early_at;
    ssize_t n;

    if (a->typed_len > 0 || a->in_left == 0)
        return -EAGAIN;
    if (early > 0) {
        size_t take = early < max ? early : max;
        memcpy(data, a->early + a->early_at, take);
        a->early_at += take;
        return (ssize_t)take;
    }
    do
        n = recv(a->watch.fd, data, max, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n > 0)
        a->in_left -= (size_t)n < a->in_left ? (size_t)n : a->in_left;
    return n < 0 ? (errno == EWOULDBLOCK ? -EAGAIN : -errno) : n;
}

static ssize_t sock_send(void *arg, const void *data, size_t len)
{
    struct attach *a = arg;
    ssize_t n;

    do
        n = send(a->watch.fd, data, len, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n > 0)
        a->sent_ms = sg_now_ms();
    return n < 0 ? (errno == EWOULDBLOCK ? -EAGAIN : -errno) : n;
}

/* What comes after everything was said; a connection closed with unread bytes would take what we said last along. */
static void throw_away(struct attach *a)
{
    char nowhere[16384];
    ssize_t n;

    do
        n = recv(a->watch.fd, nowhere, sizeof nowhere, MSG_DONTWAIT);
    while ((n > 0 && (a->in_left -= (size_t)n < a->in_left ? (size_t)n : a->in_left) > 0) || (n < 0 && errno == EINTR));
    a->broken = n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
}

static void ask(struct attach *a, bool blocked)
{
    bool in = a->phase == LINGER || (a->typed_len == 0 && !sg_ws_is_full(a->ws) && !sg_ws_is_deaf(a->ws));
    uint32_t want = (in ? (uint32_t)EPOLLIN : 0U) | (blocked ? (uint32_t)EPOLLOUT : 0U);

    if (want != a->asked)
        sg_watch_mod(a->reactor, &a->watch, want);
    a->asked = want;
}

/* ---- turns ---- */

static void finish(struct attach *a)
{
    a->phase = DONE;
    sg_watch_del(a->reactor, &a->watch);
    sg_timer_cancel(a->reactor, &a->timer);
    a->reader = sg_exec_reader_free(a->reader); /* it slows the command down no longer */
    a->typist = sg_typist_free(a->typist);
    if (sg_cancel_unhook(a->cancel, &a->hook))
        unref(a);
    sg_upgrade_close(a->up);
    unref(a);
}

static void wait_for(struct attach *a, bool blocked)
{
    int64_t due = a->phase != OPEN ? a->due_ms : a->sent_ms + (blocked ? SG_ATTACH_STALL_MS : SG_ATTACH_PING_MS);

    sg_timer_set(a->reactor, &a->timer, due);
    ask(a, blocked);
}

static void move(struct attach *a)
{
    a->in_left = a->out_left = TURN_BYTES;
    if (a->stopping)
        begin_close(a, SG_WS_GOING_AWAY, "the server is shutting down");
    resize_next(a);
    type_rest(a);
    if (a->phase == LINGER)
        throw_away(a);
    else if (!sg_ws_is_deaf(a->ws) && sg_ws_read(a->ws) < 0)
        a->broken = true;
    if (a->phase == OPEN && sg_ws_is_deaf(a->ws)) { /* it closes, or has said what may not be said */
        a->phase = CLOSING;
        a->due_ms = sg_now_ms() + SG_ATTACH_CLOSE_MS;
    }
}

static void turn(struct attach *a)
{
    if (a->phase == DONE)
        return;
    move(a);
    bool blocked = a->phase != LINGER && !a->broken && write_out(a);
    if (a->phase == CLOSING && !a->broken && sg_ws_is_over(a->ws)) {
        a->phase = LINGER;
        a->due_ms = sg_now_ms() + SG_ATTACH_LINGER_MS;
        (void)shutdown(a->watch.fd, SHUT_WR);
        a->broken = sg_ws_is_closed_by_peer(a->ws);
    }
    if (a->broken) {
        finish(a);
        return;
    }
    wait_for(a, blocked);
    if (a->in_left == 0 || (a->out_left == 0 && !blocked))
        post(a);
}

static void task_run(struct sg_task *t)
{
    struct attach *a = sg_container_of(t, struct attach, task);

    a->posted = false;
    turn(a);
    unref(a);
}

static void ready(struct sg_watch *w, uint32_t events)
{
    struct attach *a = sg_container_of(w, struct attach, watch);

    ref(a);
    if ((events & (EPOLLHUP | EPOLLERR)) && !(a->asked & EPOLLIN))
        finish(a); /* it would be told over and over until there is room for what is typed */
    else
        turn(a);
    unref(a);
}

static void due(struct sg_timer *t)
{
    struct attach *a = sg_container_of(t, struct attach, timer);
    int64_t silent = sg_now_ms() - a->sent_ms;

    ref(a);
    if (a->phase != OPEN || (sg_ws_is_sending(a->ws) && silent >= SG_ATTACH_STALL_MS)) {
        finish(a);
    } else {
        if (!sg_ws_is_sending(a->ws) && silent >= SG_ATTACH_PING_MS)
            (void)sg_ws_ping(a->ws);
        turn(a);
    }
    unref(a);
}

/* ---- its beginning ---- */

static void stop(struct sg_cancel_hook *h, enum sg_cancel_reason why)
{
    struct attach *a = sg_container_of(h, struct attach, hook);

    a->stopping = a->stopping || why == SG_CANCEL_SHUTDOWN;
    post(a);
    unref(a);
}

static void begin(struct sg_task *t)
{
    struct attach *a = sg_container_of(t, struct attach, task);
    struct sg_waker w = {.wake = post, .ref = ref, .unref = unref, .arg = a};
    uint64_t after = sg_exec_reader_after(a->reader);

    a->posted = false;
    a->task.run = task_run;
    a->sent_ms = sg_now_ms();
    a->asked = EPOLLIN;
    if (sg_watch_add(a->reactor, &a->watch, EPOLLIN, NULL) < 0)
        a->broken = true;
    /* The first event says that the command has started, which goes without saying. */
    say(a, json_pack("{s:s, s:s, s:I, s:o, s:b}", "type", "attached", "exec_id", a->exec_id, "after", (json_int_t)(after > 0 ? after : 1), "tty",
                     sg_tty_size_json(a->tty), "input", a->typist != NULL));
    ref(a);
    sg_cancel_hook(a->cancel, &a->hook);
    sg_exec_reader_set_waker(a->reader, &w);
    turn(a);
    unref(a);
}

/* The last use of it when the connection died before: nobody else knows it. */
static void taken(void *arg, struct sg_upgrade *up, int fd, const void *early, size_t early_len)
{
    struct attach *a = arg;
    int ms = SG_ATTACH_STALL_MS * 2;

    if (fd < 0) {
        unref(a);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms); /* pings find out who is gone without a word */
    a->up = up;
    a->watch.fd = fd;
    if (early_len > 0) {
        a->early = sg_xcalloc(1, early_len);
        memcpy(a->early, early, early_len);
        a->early_len = early_len;
    }
    post(a);
}

static void take_size(void *arg, const struct sg_exec_info *i)
{
    ((struct attach *)arg)->tty = i->tty;
}

/* A command that takes no input can be watched all the same. */
static int take_keyboard(struct attach *a, struct sg_error *err)
{
    struct sg_waker w = {.wake = post, .ref = ref, .unref = unref, .arg = a};
    struct sg_error no = {0};

    if (sg_service_type(a->service, a->lease, a->exec_id, &w, &a->typist, &no) == 0)
        return 0;
    bool without = no.code == SG_CONFLICT && no.reason[0] == '\0';
    if (!without)
        sg_error_copy(err, &no);
    sg_error_clear(&no);
    return without ? 0 : -1;
}

static struct attach *attach_new(struct sg_request *r, const struct sg_attach_args *args)
{
    static const struct sg_ws_ops ops = {.recv = sock_recv, .send = sock_send, .binary = type, .text = hear};
    struct attach *a = sg_xcalloc(1, sizeof *a);

    a->refs = 1;
    a->reactor = sg_service_parts(args->api->service)->reactor;
    a->service = args->api->service;
    a->lease = sg_entry_ref(args->lease);
    snprintf(a->exec_id, sizeof a->exec_id, "%s", args->exec_id);
    a->cancel = sg_cancel_ref(sg_req_cancel(r));
    a->hook.fired = stop;
    a->task.run = begin;
    a->watch = (struct sg_watch){.ready = ready, .fd = -1};
    a->timer.fire = due;
    a->ws = sg_ws_new(&ops, a);
    return a;
}

int sg_attach(struct sg_request *r, const struct sg_attach_args *args, struct sg_error *err)
{
    struct attach *a = attach_new(r, args);

    if (!a->ws)
        sg_error_set(err, SG_NO_MEMORY, "no memory for a WebSocket");
    if (!a->ws || sg_service_exec_attach(a->service, a->lease, a->exec_id, args->after, &a->reader, err) < 0 ||
        sg_service_exec_get(a->service, a->lease, a->exec_id, take_size, a, err) < 0 || take_keyboard(a, err) < 0) {
        unref(a);
        return -1;
    }
    sg_respond_header(r, "Sec-WebSocket-Accept", args->offer->accept);
    if (args->offer->protocol)
        sg_respond_header(r, "Sec-WebSocket-Protocol", SG_WS_PROTOCOL);
    sg_respond_upgrade(r, "websocket", taken, a);
    return 0;
}
