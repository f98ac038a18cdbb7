#include "service/exec_log.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <utlist.h>

#include "base/str.h"

/* An unfinished character: at most three bytes. */
#define CARRY_MAX 3U

struct event {
    _Atomic int refs; /* the log's; the reader's that looks at it */
    enum sg_event_type type;
    bool binary;
    size_t len;
    bool has_seq;
    uint64_t seq; /* as it is shown: its place in the log, unless it has one of its own */
    uint64_t end; /* what all events up to and with this one weigh */
    char data[];
};

struct carry {
    char data[CARRY_MAX];
    size_t len;
};

struct sg_exec_log {
    _Atomic int refs;
    pthread_mutex_t lock; /* leaf: guards all that follows */
    size_t history, window;
    struct sg_run_memory *memory;
    /* Events number `first` to `last`; number n is ring[n % size], size a power of two. */
    struct event **ring;
    size_t size;
    uint64_t first, last;
    uint64_t total;   /* what all events so far weigh */
    uint64_t dropped; /* what those weigh that are gone */
    bool ended;
    bool want_space; /* the writer was told that the log is full */
    struct sg_waker space;
    struct carry out, err;
    struct sg_exec_reader *attached;
    /* Readers that were told to wait, in that order: so their next events are in order, too. */
    struct sg_exec_reader *waiting;
};

struct sg_exec_reader {
    struct sg_exec_log *log;
    bool attached;
    struct event *at; /* the one it was given last, with a reference; NULL: none */
    /* Under the log's lock: */
    uint64_t after;
    uint64_t passed; /* what events up to `after` weigh */
    bool waits;
    struct sg_waker waker;
    struct sg_exec_reader *next, *prev;           /* attached */
    struct sg_exec_reader *wait_next, *wait_prev; /* waiting */
};

static void event_unref(struct event *e)
{
    if (e && --e->refs == 0)
        free(e);
}

/* What an event costs, with the place in the ring and what the allocator adds. */
static uint64_t weight(size_t len)
{
    return sizeof(struct event) + len + sizeof(struct event *) + 16;
}

struct sg_exec_log *sg_exec_log_new(size_t history, size_t window, struct sg_run_memory *memory)
{
    struct sg_exec_log *l = sg_xcalloc(1, sizeof *l);

    l->refs = 1;
    l->history = history;
    l->window = window;
    l->memory = memory;
    l->first = 1;
    pthread_mutex_init(&l->lock, NULL);
    return l;
}

struct sg_exec_log *sg_exec_log_ref(struct sg_exec_log *l)
{
    l->refs++;
    return l;
}

static void waker_drop(const struct sg_waker *w)
{
    if (w->unref)
        w->unref(w->arg);
}

struct sg_exec_log *sg_exec_log_unref(struct sg_exec_log *l)
{
    if (!l || --l->refs > 0)
        return NULL;
    for (uint64_t n = l->first; n <= l->last; n++)
        event_unref(l->ring[n & (l->size - 1)]);
    l->memory->used -= (size_t)(l->total - l->dropped);
    free(l->ring);
    waker_drop(&l->space);
    pthread_mutex_destroy(&l->lock);
    free(l);
    return NULL;
}

/* ---- with the lock held ---- */

static struct sg_waker waker_take(const struct sg_waker *w)
{
    if (w->wake && w->ref)
        w->ref(w->arg);
    return *w;
}

static struct event *at(const struct sg_exec_log *l, uint64_t n)
{
    return l->ring[n & (l->size - 1)];
}

/* The number up to which every attached reader has read. */
static uint64_t passed_by_all(const struct sg_exec_log *l)
{
    const struct sg_exec_reader *r;
    uint64_t n = l->last;

    DL_FOREACH(l->attached, r) n = r->after < n ? r->after : n;
    return n;
}

static void drop_first(struct sg_exec_log *l)
{
    struct event *e = at(l, l->first);

    l->memory->used -= (size_t)(e->end - l->dropped);
    l->dropped = e->end;
    l->first++;
    event_unref(e);
}

/* Keeps history within its bounds. The end stays: whoever comes late shall hear how it ended. */
static void trim(struct sg_exec_log *l, size_t history)
{
    uint64_t passed = passed_by_all(l);

    while (l->first <= passed && (l->total - l->dropped > history || l->memory->used > l->memory->max) &&
           !(l->ended && l->first == l->last))
        drop_first(l);
}

static uint64_t furthest_behind(const struct sg_exec_log *l)
{
    const struct sg_exec_reader *r;
    uint64_t most = 0;

    DL_FOREACH(l->attached, r) most = l->total - r->passed > most ? l->total - r->passed : most;
    return most;
}

/* The writer is called back not before half of the window is free, so that the two do not take turns for every event. */
static struct sg_waker space_take(struct sg_exec_log *l)
{
    if (!l->want_space || furthest_behind(l) > l->window / 2)
        return (struct sg_waker){0};
    l->want_space = false;
    return waker_take(&l->space);
}

static void grow(struct sg_exec_log *l)
{
    size_t size = l->size ? l->size * 2 : 16;
    struct event **ring = sg_xcalloc(size, sizeof(struct event *));

    for (uint64_t n = l->first; n <= l->last; n++)
        ring[n & (size - 1)] = at(l, n);
    free(l->ring);
    l->ring = ring;
    l->size = size;
}

/* Steals e. */
static void append(struct sg_exec_log *l, struct event *e)
{
    if (l->last + 1 - l->first == l->size)
        grow(l);
    l->total += weight(e->len);
    l->memory->used += (size_t)weight(e->len);
    e->end = l->total;
    l->last++;
    e->seq = e->has_seq ? e->seq : l->last;
    l->ring[l->last & (l->size - 1)] = e;
    trim(l, l->history);
}

/* An event of two parts. Its size is bounded, so memory for it is like that of any small object. */
static struct event *event_new(enum sg_event_type type, const char *a, size_t a_len, const char *b, size_t b_len)
{
    struct event *e = malloc(sizeof *e + a_len + b_len);

    if (!e)
        abort();
    *e = (struct event){.refs = 1, .type = type, .len = a_len + b_len};
    if (a_len)
        memcpy(e->data, a, a_len);
    if (b_len)
        memcpy(e->data + a_len, b, b_len);
    return e;
}

static void add_output(struct sg_exec_log *l, enum sg_event_type type, struct carry *c, const char *data, size_t len)
{
    struct event *e = event_new(type, c->data, c->len, data, len);
    size_t whole = sg_utf8_whole(e->data, e->len);

    c->len = e->len - whole;
    memcpy(c->data, e->data + whole, c->len);
    e->len = whole;
    if (whole == 0) {
        event_unref(e);
        return;
    }
    e->binary = !sg_event_is_text(e->data, e->len);
    append(l, e);
}

/* What never became a character. */
static void flush(struct sg_exec_log *l, enum sg_event_type type, struct carry *c)
{
    if (c->len == 0)
        return;
    struct event *e = event_new(type, c->data, c->len, NULL, 0);
    e->binary = true;
    c->len = 0;
    append(l, e);
}

/* ---- waking ---- */

/* A reader that waits again meanwhile has read everything, so the loop ends. */
void sg_exec_log_wake(struct sg_exec_log *l)
{
    struct sg_exec_reader *r;

    pthread_mutex_lock(&l->lock);
    while ((r = l->waiting) && (r->after < l->last || l->ended)) {
        struct sg_waker w = waker_take(&r->waker);
        DL_DELETE2(l->waiting, r, wait_prev, wait_next);
        r->waits = false;
        if (!w.wake)
            continue;
        pthread_mutex_unlock(&l->lock);
        w.wake(w.arg);
        waker_drop(&w);
        pthread_mutex_lock(&l->lock);
    }
    pthread_mutex_unlock(&l->lock);
}

static void call(const struct sg_waker *w)
{
    if (!w->wake)
        return;
    w->wake(w->arg);
    waker_drop(w);
}

/* ---- the writer ---- */

bool sg_exec_log_full(struct sg_exec_log *l)
{
    pthread_mutex_lock(&l->lock);
    bool full = furthest_behind(l) >= l->window;
    l->want_space |= full; /* another output of the command may still wait for the call */
    pthread_mutex_unlock(&l->lock);
    return full;
}

void sg_exec_log_set_space(struct sg_exec_log *l, const struct sg_waker *space)
{
    if (space && space->ref)
        space->ref(space->arg);
    pthread_mutex_lock(&l->lock);
    struct sg_waker old = l->space;
    l->space = space ? *space : (struct sg_waker){0};
    pthread_mutex_unlock(&l->lock);
    waker_drop(&old);
}

void sg_exec_log_start(struct sg_exec_log *l, const char *text)
{
    size_t len = text ? strlen(text) : 0;

    pthread_mutex_lock(&l->lock);
    if (l->last == 0)
        append(l, event_new(SG_EVENT_START, text, len, NULL, 0));
    pthread_mutex_unlock(&l->lock);
}

void sg_exec_log_output(struct sg_exec_log *l, enum sg_event_type type, const char *data, size_t len)
{
    pthread_mutex_lock(&l->lock);
    struct carry *c = type == SG_EVENT_STDERR ? &l->err : &l->out;
    while (len > 0 && !l->ended) {
        size_t n = len < SG_EXEC_LOG_PIECE ? len : SG_EXEC_LOG_PIECE;
        add_output(l, type, c, data, n);
        data += n;
        len -= n;
    }
    pthread_mutex_unlock(&l->lock);
}

void sg_exec_log_end(struct sg_exec_log *l, enum sg_event_type type, const char *text)
{
    pthread_mutex_lock(&l->lock);
    if (!l->ended) {
        flush(l, SG_EVENT_STDOUT, &l->out);
        flush(l, SG_EVENT_STDERR, &l->err);
        l->ended = true;
        append(l, event_new(type, text, text ? strlen(text) : 0, NULL, 0));
    }
    pthread_mutex_unlock(&l->lock);
}

void sg_exec_log_event(struct sg_exec_log *l, uint64_t seq, enum sg_event_type type, const char *text)
{
    struct event *e = event_new(type, text, text ? strlen(text) : 0, NULL, 0);

    e->has_seq = true;
    e->seq = seq;
    pthread_mutex_lock(&l->lock);
    if (l->ended)
        event_unref(e);
    else
        append(l, e);
    pthread_mutex_unlock(&l->lock);
}

void sg_exec_log_close(struct sg_exec_log *l)
{
    pthread_mutex_lock(&l->lock);
    l->ended = true;
    pthread_mutex_unlock(&l->lock);
}

void sg_exec_log_drop(struct sg_exec_log *l)
{
    pthread_mutex_lock(&l->lock);
    trim(l, 0);
    pthread_mutex_unlock(&l->lock);
}

size_t sg_exec_log_bytes(struct sg_exec_log *l)
{
    pthread_mutex_lock(&l->lock);
    size_t n = (size_t)(l->total - l->dropped);
    pthread_mutex_unlock(&l->lock);
    return n;
}

/* ---- readers ---- */

static int check_after(const struct sg_exec_log *l, uint64_t after, struct sg_error *err)
{
    if (after > l->last)
        return sg_error_field(err, SG_INVALID_REQUEST, "after", "there is no event of that number yet");
    if (after + 1 >= l->first)
        return 0;
    sg_error_set(err, SG_HISTORY_DROPPED, "the events after number %llu are no longer kept; the oldest one is number %llu",
                 (unsigned long long)after, (unsigned long long)l->first);
    if (err)
        sg_error_member(err, "oldest_seq", json_integer((json_int_t)l->first));
    return -1;
}

int sg_exec_reader_new(struct sg_exec_log *l, uint64_t after, bool attached, struct sg_exec_reader **ret, struct sg_error *err)
{
    pthread_mutex_lock(&l->lock);
    after = after == SG_EXEC_OLDEST ? l->first - 1 : after;
    if (check_after(l, after, err) < 0) {
        pthread_mutex_unlock(&l->lock);
        return -1;
    }
    struct sg_exec_reader *r = sg_xcalloc(1, sizeof *r);
    r->log = sg_exec_log_ref(l);
    r->attached = attached;
    r->after = after;
    r->passed = after + 1 == l->first ? l->dropped : at(l, after)->end;
    if (attached)
        DL_APPEND(l->attached, r);
    pthread_mutex_unlock(&l->lock);
    *ret = r;
    return 0;
}

/* The lock is held. */
static void no_longer_waits(struct sg_exec_reader *r)
{
    if (r->waits)
        DL_DELETE2(r->log->waiting, r, wait_prev, wait_next);
    r->waits = false;
}

struct sg_exec_reader *sg_exec_reader_free(struct sg_exec_reader *r)
{
    if (!r)
        return NULL;
    struct sg_exec_log *l = r->log;
    pthread_mutex_lock(&l->lock);
    no_longer_waits(r);
    if (r->attached)
        DL_DELETE(l->attached, r);
    trim(l, l->history);
    struct sg_waker space = space_take(l);
    pthread_mutex_unlock(&l->lock);
    call(&space);
    waker_drop(&r->waker);
    event_unref(r->at);
    free(r);
    sg_exec_log_unref(l);
    return NULL;
}

/* The lock is held: 1 with r->at, or why not. */
static int advance(struct sg_exec_reader *r)
{
    struct sg_exec_log *l = r->log;

    if (r->after + 1 < l->first)
        return -ESTALE;
    if (r->after == l->last) {
        if (l->ended)
            return 0;
        if (!r->waits)
            DL_APPEND2(l->waiting, r, wait_prev, wait_next);
        r->waits = true;
        return -EAGAIN;
    }
    no_longer_waits(r);
    r->after++;
    r->at = at(l, r->after);
    r->at->refs++;
    r->passed = r->at->end;
    return 1;
}

int sg_exec_reader_next(struct sg_exec_reader *r, struct sg_exec_event *ret)
{
    struct sg_waker space = {0};

    event_unref(r->at);
    r->at = NULL;
    pthread_mutex_lock(&r->log->lock);
    int n = advance(r);
    if (n > 0 && r->attached) {
        trim(r->log, r->log->history);
        space = space_take(r->log);
    }
    pthread_mutex_unlock(&r->log->lock);
    call(&space);
    if (n > 0)
        *ret = (struct sg_exec_event){
            .seq = r->at->seq, .type = r->at->type, .binary = r->at->binary, .data = r->at->data, .len = r->at->len};
    return n;
}

uint64_t sg_exec_reader_after(const struct sg_exec_reader *r)
{
    return r->after;
}

void sg_exec_reader_set_waker(struct sg_exec_reader *r, const struct sg_waker *w)
{
    struct sg_exec_log *l = r->log;
    struct sg_waker now = {0};

    if (w && w->ref)
        w->ref(w->arg);
    pthread_mutex_lock(&l->lock);
    struct sg_waker old = r->waker;
    r->waker = w ? *w : (struct sg_waker){0};
    if (w && (r->after < l->last || l->ended))
        now = waker_take(&r->waker);
    pthread_mutex_unlock(&l->lock);
    call(&now);
    waker_drop(&old);
}
