#include "base/pipe.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/uio.h>

/* One reader and one writer, so the writer owns the free part of the ring and the reader the filled
 * one: system calls run on them without the lock. Only counts move under it. */
struct sg_pipe {
    atomic_int refs;
    pthread_mutex_t lock;
    size_t cap;
    size_t head; /* first filled byte; moved by the reader, or by the writer when the ring is empty */
    size_t len;  /* filled bytes */
    bool closed; /* no more bytes will come */
    bool failed;
    bool stopped;    /* nobody reads any more */
    size_t dropped;  /* unread when the reader stopped */
    bool want_read;  /* the reader was turned away and waits for its waker */
    bool want_write; /* likewise */
    struct sg_waker reader;
    struct sg_waker writer;
    struct sg_error err;
    unsigned char *ring;
};

struct sg_pipe *sg_pipe_new(size_t cap)
{
    struct sg_pipe *p = sg_xcalloc(1, sizeof *p);
    /* Not zeroed and refilled from the start whenever it is empty: pages nobody writes cost nothing. */
    p->ring = malloc(cap);
    if (p->ring == NULL || cap == 0) {
        abort();
    }
    p->refs = 1;
    p->cap = cap;
    (void)pthread_mutex_init(&p->lock, NULL);
    return p;
}

struct sg_pipe *sg_pipe_ref(struct sg_pipe *p)
{
    (void)atomic_fetch_add(&p->refs, 1);
    return p;
}

static void waker_drop(const struct sg_waker *w)
{
    if (w->unref != NULL) {
        w->unref(w->arg);
    }
}

struct sg_pipe *sg_pipe_unref(struct sg_pipe *p)
{
    if (p != NULL && atomic_fetch_sub(&p->refs, 1) == 1) {
        waker_drop(&p->reader);
        waker_drop(&p->writer);
        sg_error_clear(&p->err);
        (void)pthread_mutex_destroy(&p->lock);
        free(p->ring);
        free(p);
    }
    return NULL;
}

static void lock(struct sg_pipe *p)
{
    (void)pthread_mutex_lock(&p->lock);
}

/* Under the lock: takes what is needed to call w after it is released. */
static struct sg_waker waker_take(const struct sg_waker *w)
{
    if (w->wake != NULL && w->ref != NULL) {
        w->ref(w->arg);
    }
    return *w;
}

static struct sg_waker reader_take(struct sg_pipe *p)
{
    if (!p->want_read || p->reader.wake == NULL) {
        return (struct sg_waker){0};
    }
    p->want_read = false;
    return waker_take(&p->reader);
}

static struct sg_waker writer_take(struct sg_pipe *p)
{
    if (!p->want_write || p->writer.wake == NULL) {
        return (struct sg_waker){0};
    }
    p->want_write = false;
    return waker_take(&p->writer);
}

static void unlock_and_wake(struct sg_pipe *p, const struct sg_waker *w)
{
    (void)pthread_mutex_unlock(&p->lock);
    if (w->wake != NULL) {
        w->wake(w->arg);
        waker_drop(w);
    }
}

static bool readable(const struct sg_pipe *p)
{
    return p->len > 0 || p->closed || p->stopped;
}

static bool writable(const struct sg_pipe *p)
{
    return p->len < p->cap || p->closed || p->stopped;
}

/* Puts w in *place and calls it when its side can go on already; only then it need not be called later. */
static void set_waker(struct sg_pipe *p, struct sg_waker *place, const struct sg_waker *w, bool *want,
                      bool (*can_go)(const struct sg_pipe *))
{
    struct sg_waker none = {0};
    if (w != NULL && w->ref != NULL) {
        w->ref(w->arg);
    }
    lock(p);
    struct sg_waker old = *place;
    *place = w != NULL ? *w : none;
    bool now = w != NULL && can_go(p);
    *want = w != NULL && !now;
    struct sg_waker call = now ? waker_take(place) : none;
    unlock_and_wake(p, &call);
    waker_drop(&old);
}

void sg_pipe_set_reader(struct sg_pipe *p, const struct sg_waker *w)
{
    set_waker(p, &p->reader, w, &p->want_read, readable);
}

void sg_pipe_set_writer(struct sg_pipe *p, const struct sg_waker *w)
{
    set_waker(p, &p->writer, w, &p->want_write, writable);
}

/* Under the lock: the free part, at most max bytes; returns its length. */
static size_t free_part(struct sg_pipe *p, size_t max, struct iovec v[2])
{
    if (p->len == 0) {
        p->head = 0;
    }
    size_t room = p->cap - p->len;
    size_t n = max < room ? max : room;
    size_t start = p->head + p->len < p->cap ? p->head + p->len : p->head + p->len - p->cap;
    size_t first = n < p->cap - start ? n : p->cap - start;
    v[0] = (struct iovec){.iov_base = p->ring + start, .iov_len = first};
    v[1] = (struct iovec){.iov_base = p->ring, .iov_len = n - first};
    return n;
}

/* Under the lock: the filled part, at most max bytes. */
static size_t filled_part(struct sg_pipe *p, size_t max, struct iovec v[2])
{
    size_t n = max < p->len ? max : p->len;
    size_t first = n < p->cap - p->head ? n : p->cap - p->head;
    v[0] = (struct iovec){.iov_base = p->ring + p->head, .iov_len = first};
    v[1] = (struct iovec){.iov_base = p->ring, .iov_len = n - first};
    return n;
}

/* Counts n bytes in and wakes the reader; releases the lock. */
static void filled(struct sg_pipe *p, size_t n)
{
    struct sg_waker w = {0};
    if (!p->stopped && n > 0) { /* stopped meanwhile: they are dropped */
        p->len += n;
        w = reader_take(p);
    }
    unlock_and_wake(p, &w);
}

/* Counts n bytes out and wakes the writer; releases the lock. */
static void emptied(struct sg_pipe *p, size_t n)
{
    struct sg_waker w = {0};
    if (!p->stopped && n > 0) {
        p->len -= n;
        p->head += n;
        p->head = p->head >= p->cap ? p->head - p->cap : p->head;
        w = writer_take(p);
    }
    unlock_and_wake(p, &w);
}

ssize_t sg_pipe_write(struct sg_pipe *p, const void *data, size_t len)
{
    struct iovec v[2];
    lock(p);
    if (p->stopped || p->closed) {
        (void)pthread_mutex_unlock(&p->lock);
        return -EPIPE;
    }
    size_t n = free_part(p, len, v);
    if (n > 0) {
        memcpy(v[0].iov_base, data, v[0].iov_len);
        memcpy(v[1].iov_base, (const char *)data + v[0].iov_len, v[1].iov_len);
    }
    p->want_write = p->want_write || n < len; /* there may be others that write */
    filled(p, n);
    return (ssize_t)n;
}

bool sg_pipe_is_over(struct sg_pipe *p)
{
    lock(p);
    bool over = p->stopped || p->closed;
    (void)pthread_mutex_unlock(&p->lock);
    return over;
}

ssize_t sg_pipe_write_from(struct sg_pipe *p, int fd, size_t max)
{
    struct iovec v[2];
    lock(p);
    bool gone = p->stopped || p->closed;
    size_t n = gone ? 0 : free_part(p, max, v);
    p->want_write = n == 0;
    (void)pthread_mutex_unlock(&p->lock);
    if (gone || n == 0) {
        return gone ? -EPIPE : -ENOBUFS;
    }
    ssize_t got;
    do {
        got = readv(fd, v, v[1].iov_len > 0 ? 2 : 1);
    } while (got < 0 && errno == EINTR);
    if (got <= 0) {
        return got < 0 ? -errno : 0;
    }
    lock(p);
    filled(p, (size_t)got);
    return got;
}

int sg_pipe_flush(struct sg_pipe *p)
{
    lock(p);
    bool never = p->dropped > 0;
    bool all = p->len == 0 && !never;
    p->want_write = p->want_write || (!all && !never);
    (void)pthread_mutex_unlock(&p->lock);
    return all ? 0 : never ? -EPIPE : -EAGAIN;
}

size_t sg_pipe_dropped(struct sg_pipe *p)
{
    lock(p);
    size_t n = p->dropped;
    (void)pthread_mutex_unlock(&p->lock);
    return n;
}

static void end(struct sg_pipe *p, const struct sg_error *err)
{
    lock(p);
    if (!p->closed) {
        p->closed = true;
        p->failed = err != NULL;
        if (err != NULL) {
            sg_error_copy(&p->err, err);
        }
    }
    struct sg_waker w = reader_take(p);
    unlock_and_wake(p, &w);
}

void sg_pipe_close(struct sg_pipe *p)
{
    end(p, NULL);
}

void sg_pipe_fail(struct sg_pipe *p, const struct sg_error *err)
{
    struct sg_error unknown = {.code = SG_INTERNAL};
    end(p, err != NULL ? err : &unknown);
}

/* Under the lock: what a reader gets that finds nothing. */
static ssize_t nothing(struct sg_pipe *p)
{
    if (p->stopped) {
        return 0;
    }
    if (p->closed) {
        return p->failed ? -EIO : 0;
    }
    p->want_read = true;
    return -EAGAIN;
}

ssize_t sg_pipe_read(struct sg_pipe *p, void *data, size_t len)
{
    struct iovec v[2];
    lock(p);
    if (p->len == 0) {
        ssize_t r = nothing(p);
        (void)pthread_mutex_unlock(&p->lock);
        return r;
    }
    size_t n = filled_part(p, len, v);
    if (n > 0) {
        memcpy(data, v[0].iov_base, v[0].iov_len);
        memcpy((char *)data + v[0].iov_len, v[1].iov_base, v[1].iov_len);
    }
    emptied(p, n);
    return (ssize_t)n;
}

ssize_t sg_pipe_peek(struct sg_pipe *p, const void **ret)
{
    struct iovec v[2];
    lock(p);
    ssize_t r = p->len == 0 ? nothing(p) : 0;
    size_t n = filled_part(p, p->len, v);
    (void)pthread_mutex_unlock(&p->lock);
    *ret = v[0].iov_base;
    return n > 0 ? (ssize_t)v[0].iov_len : r;
}

void sg_pipe_consume(struct sg_pipe *p, size_t n)
{
    lock(p);
    emptied(p, n);
}

ssize_t sg_pipe_read_to(struct sg_pipe *p, int fd)
{
    struct iovec v[2];
    lock(p);
    ssize_t r = p->len == 0 ? nothing(p) : 0;
    size_t n = filled_part(p, p->len, v);
    (void)pthread_mutex_unlock(&p->lock);
    if (n == 0) {
        return r;
    }
    do {
        r = writev(fd, v, v[1].iov_len > 0 ? 2 : 1);
    } while (r < 0 && errno == EINTR);
    if (r < 0) {
        return errno == EAGAIN ? -ENOBUFS : -errno;
    }
    lock(p);
    emptied(p, (size_t)r);
    return r;
}

size_t sg_pipe_pending(struct sg_pipe *p)
{
    lock(p);
    size_t n = p->len;
    (void)pthread_mutex_unlock(&p->lock);
    return n;
}

void sg_pipe_stop(struct sg_pipe *p)
{
    lock(p);
    p->want_write = p->want_write || !p->stopped; /* told once, whether or not it was turned away */
    p->stopped = true;
    p->dropped += p->len;
    p->len = 0;
    struct sg_waker w = writer_take(p);
    unlock_and_wake(p, &w);
}

void sg_pipe_error(struct sg_pipe *p, struct sg_error *err)
{
    lock(p);
    sg_error_copy(err, &p->err);
    (void)pthread_mutex_unlock(&p->lock);
}
