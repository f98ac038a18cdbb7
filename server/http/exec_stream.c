/* Pulled by the connection that sends it: events are encoded one after the other into what it has room for. Of its own a stream holds
 * at most one encoded event, one that did not fit, and only while it is being sent. */
#include "http/exec_stream.h"

#include <errno.h>
#include <pthread.h>

#include "base/clock.h"
#include "base/str.h"
#include "http/accept.h"

/* The largest event: a piece of output in which every byte needs six, or the exit of a command line of 1 MiB. */
#define EVENT_MAX ((size_t)8 * 1024 * 1024)

struct stream {
    _Atomic int refs; /* the answer's; the timer's */
    struct sg_reactor *reactor;
    struct sg_exec_reader *reader;
    enum sg_event_format format;
    bool follow;
    /* The sending thread's: */
    struct sg_buf out;  /* what is being filled, in the connection's hands */
    struct sg_buf line; /* an event that did not fit in there */
    size_t sent;        /* of it */
    size_t last;        /* bytes of the event before: the next one is probably as large */
    bool over;          /* no further events */
    bool failed;        /* out of memory: cut, rather than leave an event out */
    _Atomic bool ping;
    _Atomic int64_t said_ms; /* when the last bytes went out */
    pthread_mutex_t lock;
    struct sg_waker waker; /* under lock */
    /* The reactor's: */
    struct sg_timer timer;
    struct sg_task arm, disarm;
};

/* ---- what the caller asks for ---- */

enum sg_event_format sg_event_format_of(const struct sg_request *r)
{
    static const char *const types[] = {"application/x-ndjson", "text/event-stream", NULL};
    size_t n;
    const struct sg_header *headers = sg_req_headers(r, &n);

    return sg_accept_best(headers, n, types) == 1 ? SG_EVENT_SSE : SG_EVENT_NDJSON;
}

int sg_event_after(const struct sg_request *r, const char *query, int64_t *ret, struct sg_error *err)
{
    const char *header = sg_req_header(r, "Last-Event-ID");

    *ret = 0;
    if (header && !sg_parse_int(header, 0, INT64_MAX, ret))
        return sg_error_field(err, SG_INVALID_REQUEST, "Last-Event-ID", "must be the seq of an event");
    if (header || !query)
        return 0;
    return sg_req_query_int(r, query, 0, INT64_MAX, ret, err);
}

static void stream_unref(struct stream *s)
{
    if (--s->refs > 0)
        return;
    pthread_mutex_destroy(&s->lock);
    sg_buf_finish(&s->line);
    free(s);
}

/* ---- pings ---- */

static void wake(struct stream *s)
{
    pthread_mutex_lock(&s->lock);
    struct sg_waker w = s->waker;
    if (w.wake && w.ref)
        w.ref(w.arg);
    pthread_mutex_unlock(&s->lock);
    if (!w.wake)
        return;
    w.wake(w.arg);
    if (w.unref)
        w.unref(w.arg);
}

static void silent(struct sg_timer *t)
{
    struct stream *s = sg_container_of(t, struct stream, timer);
    int64_t now = sg_now_ms();
    int64_t due = s->said_ms + SG_EXEC_PING_MS;

    if (due <= now) {
        s->ping = true;
        wake(s);
        due = now + SG_EXEC_PING_MS;
    }
    sg_timer_set(s->reactor, t, due);
}

static void arm(struct sg_task *t)
{
    struct stream *s = sg_container_of(t, struct stream, arm);

    s->timer.fire = silent;
    sg_timer_set(s->reactor, &s->timer, sg_now_ms() + SG_EXEC_PING_MS);
}

/* Posted after the other one, so it runs after it. */
static void disarm(struct sg_task *t)
{
    struct stream *s = sg_container_of(t, struct stream, disarm);

    sg_timer_cancel(s->reactor, &s->timer);
    stream_unref(s);
}

/* ---- the answer ---- */

static void encode(struct stream *s, const struct sg_exec_event *e)
{
    size_t before = s->out.len;

    if (s->out.cap - before > e->len && sg_exec_event_encode(e, s->format, &s->out) == 0) {
        s->last = s->out.len - before;
        return;
    }
    s->failed = sg_exec_event_encode(e, s->format, &s->line) < 0;
    s->last = s->line.len;
}

static void encode_dropped(struct stream *s)
{
    struct sg_error err = {0};

    sg_error_set(&err, SG_HISTORY_DROPPED, "this reader was slower than the history of events is long");
    sg_cleanup(sg_free_p) char *text = sg_exec_error_text(&err);
    encode(s, &(struct sg_exec_event){.type = SG_EVENT_ERROR, .data = text, .len = text ? strlen(text) : 0});
    s->over = true;
}

/* Puts the next event into what is being filled, or the line. 1: there is one; 0: that was the last one; -EAGAIN: none now. */
static int take(struct stream *s)
{
    struct sg_exec_event e;
    int n = s->over ? 0 : sg_exec_reader_next(s->reader, &e);

    if (n > 0) {
        encode(s, &e);
    } else if (n == -ESTALE) {
        encode_dropped(s);
    } else if (n == 0 || !s->follow) {
        s->over = true;
        return 0;
    } else if (s->ping) {
        s->ping = false;
        encode(s, &(struct sg_exec_event){.type = SG_EVENT_PING});
    } else {
        return n;
    }
    return 1;
}

/* As sg_body_source.read, 1 for an event. */
static int next(struct stream *s)
{
    s->line.len = s->sent = 0;
    int n = s->failed ? -EIO : take(s);
    return s->failed ? -EIO : n;
}

/* What is left of the line. */
static void fill_from_line(struct stream *s)
{
    s->sent += sg_buf_add_some(&s->out, s->line.data + s->sent, s->line.len - s->sent);
}

static ssize_t stream_read(void *arg, char *data, size_t max)
{
    struct stream *s = arg;
    int n = 1;

    sg_buf_init_over(&s->out, data, max);
    if (s->sent < s->line.len)
        fill_from_line(s);
    while (n > 0 && s->sent == s->line.len && (s->out.len == 0 || s->out.cap - s->out.len >= s->last)) {
        n = next(s);
        if (n > 0 && s->line.len > 0)
            fill_from_line(s);
    }
    if (s->out.len == 0) {
        sg_buf_finish(&s->line); /* silence costs no memory */
        s->sent = 0;
        return n; /* else asked again after this is sent */
    }
    s->said_ms = sg_now_ms();
    s->ping = false;
    return (ssize_t)s->out.len;
}

static void stream_set_waker(void *arg, const struct sg_waker *w)
{
    struct stream *s = arg;

    if (w && w->ref)
        w->ref(w->arg);
    pthread_mutex_lock(&s->lock);
    struct sg_waker old = s->waker;
    s->waker = w ? *w : (struct sg_waker){0};
    pthread_mutex_unlock(&s->lock);
    if (old.unref)
        old.unref(old.arg);
    sg_exec_reader_set_waker(s->reader, w);
}

static void stream_close(void *arg)
{
    struct stream *s = arg;

    s->reader = sg_exec_reader_free(s->reader);
    if (s->follow)
        sg_reactor_post(s->reactor, &s->disarm);
    stream_unref(s);
}

void sg_exec_stream_respond(struct sg_request *r, struct sg_reactor *reactor, struct sg_exec_reader *reader, enum sg_event_format format,
                            bool follow)
{
    struct stream *s = sg_xcalloc(1, sizeof *s);

    s->refs = follow ? 2 : 1;
    s->reactor = reactor;
    s->reader = reader;
    s->format = format;
    s->follow = follow;
    s->said_ms = sg_now_ms();
    s->arm.run = arm;
    s->disarm.run = disarm;
    pthread_mutex_init(&s->lock, NULL);
    sg_buf_init(&s->line, EVENT_MAX);
    if (follow)
        sg_reactor_post(reactor, &s->arm);
    sg_respond_header(r, "Cache-Control", "no-store");
    sg_respond_header(r, "X-Accel-Buffering", "no"); /* a gateway must pass on each event as it comes */
    sg_respond_header(r, "X-Content-Type-Options", "nosniff");
    struct sg_body_source source = {.read = stream_read, .set_waker = stream_set_waker, .close = stream_close, .arg = s};
    sg_respond_source(r, 200, sg_event_format_type(format), &source);
}
