#include "base/reactor.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"

#define BATCH 64

struct sg_reactor {
    pthread_t thread;
    int epoll;
    int alarm; /* timerfd of the earliest timer */
    int bell;  /* eventfd: other threads have posted tasks */

    pthread_mutex_t lock; /* guards the next four and sg_task.next/queued */
    struct sg_task *head;
    struct sg_task **tail;
    bool stopping;

    /* reactor thread only */
    struct sg_timer **heap;
    size_t heap_len, heap_size;
    int64_t alarm_ms; /* what the timerfd is set to, 0: not set */
    struct epoll_event batch[BATCH];
    int batch_len;
};

/* ---- timers: a binary heap, slot = index + 1 ---- */

static void heap_put(struct sg_reactor *r, size_t i, struct sg_timer *t)
{
    r->heap[i] = t;
    t->slot = i + 1;
}

static void heap_up(struct sg_reactor *r, size_t i)
{
    struct sg_timer *t = r->heap[i];
    while (i > 0 && r->heap[(i - 1) / 2]->due_ms > t->due_ms) {
        heap_put(r, i, r->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    heap_put(r, i, t);
}

static void heap_down(struct sg_reactor *r, size_t i)
{
    struct sg_timer *t = r->heap[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= r->heap_len) {
            break;
        }
        if (child + 1 < r->heap_len && r->heap[child + 1]->due_ms < r->heap[child]->due_ms) {
            child++;
        }
        if (r->heap[child]->due_ms >= t->due_ms) {
            break;
        }
        heap_put(r, i, r->heap[child]);
        i = child;
    }
    heap_put(r, i, t);
}

void sg_timer_cancel(struct sg_reactor *r, struct sg_timer *t)
{
    if (t->slot == 0) {
        return;
    }
    size_t i = t->slot - 1;
    struct sg_timer *last = r->heap[--r->heap_len];
    t->slot = 0;
    if (last != t) {
        heap_put(r, i, last);
        heap_up(r, i);
        heap_down(r, last->slot - 1);
    }
}

void sg_timer_set(struct sg_reactor *r, struct sg_timer *t, int64_t due_ms)
{
    sg_timer_cancel(r, t);
    if (r->heap_len == r->heap_size) {
        size_t size = r->heap_size == 0 ? 64 : r->heap_size * 2;
        struct sg_timer **heap = reallocarray(r->heap, size, sizeof(struct sg_timer *));
        if (heap == NULL) {
            abort();
        }
        r->heap = heap;
        r->heap_size = size;
    }
    t->due_ms = due_ms;
    heap_put(r, r->heap_len, t);
    r->heap_len++;
    heap_up(r, r->heap_len - 1);
}

static void run_timers(struct sg_reactor *r)
{
    int64_t now = sg_now_ms();
    /* At most as many as there are now: one that re-arms itself in the past must not starve the rest. */
    for (size_t most = r->heap_len; most > 0 && r->heap_len > 0 && r->heap[0]->due_ms <= now; most--) {
        struct sg_timer *t = r->heap[0];
        sg_timer_cancel(r, t);
        t->fire(t);
    }
}

static void set_alarm(struct sg_reactor *r)
{
    int64_t due = r->heap_len == 0 ? 0 : r->heap[0]->due_ms < 1 ? 1 : r->heap[0]->due_ms;
    if (due == r->alarm_ms) {
        return;
    }
    struct itimerspec at = {.it_value = {.tv_sec = due / 1000, .tv_nsec = due % 1000 * 1000000}};
    (void)timerfd_settime(r->alarm, TFD_TIMER_ABSTIME, &at, NULL);
    r->alarm_ms = due;
}

/* ---- descriptors ---- */

int sg_watch_add(struct sg_reactor *r, struct sg_watch *w, uint32_t events, struct sg_error *err)
{
    struct epoll_event e = {.events = events, .data.ptr = w};
    w->events = events;
    w->added = true;
    if (epoll_ctl(r->epoll, EPOLL_CTL_ADD, w->fd, &e) < 0) {
        w->added = false;
        return sg_error_sys(err, SG_INTERNAL, errno, "cannot watch a descriptor");
    }
    return 0;
}

void sg_watch_mod(struct sg_reactor *r, struct sg_watch *w, uint32_t events)
{
    if (w->added && w->events != events) {
        struct epoll_event e = {.events = events, .data.ptr = w};
        w->events = events;
        (void)epoll_ctl(r->epoll, EPOLL_CTL_MOD, w->fd, &e);
    }
}

void sg_watch_del(struct sg_reactor *r, struct sg_watch *w)
{
    if (!w->added) {
        return;
    }
    w->added = false;
    (void)epoll_ctl(r->epoll, EPOLL_CTL_DEL, w->fd, NULL);
    for (int i = 0; i < r->batch_len; i++) {
        if (r->batch[i].data.ptr == w) {
            r->batch[i].data.ptr = NULL;
        }
    }
}

static void run_watches(struct sg_reactor *r)
{
    for (int i = 0; i < r->batch_len; i++) {
        struct sg_watch *w = r->batch[i].data.ptr;
        if (w != NULL) {
            w->ready(w, r->batch[i].events);
        }
    }
    r->batch_len = 0;
}

/* ---- tasks ---- */

void sg_reactor_post(struct sg_reactor *r, struct sg_task *t)
{
    (void)pthread_mutex_lock(&r->lock);
    bool ring = false;
    if (!t->queued) {
        ring = r->head == NULL && !sg_reactor_is_current(r); /* this thread looks before it sleeps */
        t->queued = true;
        t->next = NULL;
        *r->tail = t;
        r->tail = &t->next;
    }
    if (ring) {
        (void)eventfd_write(r->bell, 1); /* under the lock: free() must not close it meanwhile */
    }
    (void)pthread_mutex_unlock(&r->lock);
}

/* Runs what is queued now, and when the reactor stops also what that posts; false: stopped. *ret_more: the tasks have
 * posted others, for which no bell rings. */
static bool run_tasks(struct sg_reactor *r, bool *ret_more)
{
    bool stopping;
    (void)pthread_mutex_lock(&r->lock);
    do {
        stopping = r->stopping;
        struct sg_task *t = r->head;
        r->head = NULL;
        r->tail = &r->head;
        while (t != NULL) {
            struct sg_task *next = t->next;
            t->queued = false;
            (void)pthread_mutex_unlock(&r->lock);
            t->run(t); /* may free t */
            t = next;
            (void)pthread_mutex_lock(&r->lock);
        }
    } while (stopping && r->head != NULL);
    *ret_more = r->head != NULL;
    (void)pthread_mutex_unlock(&r->lock);
    return !stopping;
}

/* ---- the thread ---- */

/* Takes our own two descriptors out of the batch. */
static void drain_own(struct sg_reactor *r)
{
    for (int i = 0; i < r->batch_len; i++) {
        uint64_t count;
        if (r->batch[i].data.ptr == &r->alarm) {
            (void)!read(r->alarm, &count, sizeof count);
            r->alarm_ms = 0;
            r->batch[i].data.ptr = NULL;
        } else if (r->batch[i].data.ptr == &r->bell) {
            (void)!read(r->bell, &count, sizeof count);
            r->batch[i].data.ptr = NULL;
        }
    }
}

static void *reactor_main(void *arg)
{
    struct sg_reactor *r = arg;
    bool more = false;
    (void)pthread_mutex_lock(&r->lock); /* r->thread is set once this is free */
    (void)pthread_mutex_unlock(&r->lock);
    do {
        set_alarm(r);
        int n = epoll_wait(r->epoll, r->batch, BATCH, more ? 0 : -1);
        r->batch_len = n < 0 ? 0 : n;
        drain_own(r);
        run_timers(r);
        run_watches(r);
    } while (run_tasks(r, &more));
    return NULL;
}

static int add_own(struct sg_reactor *r, int *fd)
{
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = fd};
    return epoll_ctl(r->epoll, EPOLL_CTL_ADD, *fd, &e);
}

static void dispose(struct sg_reactor *r)
{
    (void)sg_close(r->epoll);
    (void)sg_close(r->alarm);
    (void)sg_close(r->bell);
    (void)pthread_mutex_destroy(&r->lock);
    free(r->heap);
    free(r);
}

/* Signals belong to the main thread. */
static int start_thread(struct sg_reactor *r)
{
    sigset_t all, old;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    (void)pthread_mutex_lock(&r->lock);
    int e = pthread_create(&r->thread, NULL, reactor_main, r);
    (void)pthread_mutex_unlock(&r->lock);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (e == 0) {
        (void)pthread_setname_np(r->thread, "sg-reactor");
    }
    return e;
}

int sg_reactor_new(struct sg_reactor **ret, struct sg_error *err)
{
    struct sg_reactor *r = sg_xcalloc(1, sizeof *r);
    r->tail = &r->head;
    (void)pthread_mutex_init(&r->lock, NULL);
    r->epoll = epoll_create1(EPOLL_CLOEXEC);
    r->alarm = timerfd_create(CLOCK_BOOTTIME, TFD_NONBLOCK | TFD_CLOEXEC);
    r->bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int e = 0;
    if (r->epoll < 0 || r->alarm < 0 || r->bell < 0 || add_own(r, &r->alarm) < 0 || add_own(r, &r->bell) < 0) {
        e = errno;
    }
    if (e == 0) {
        e = start_thread(r);
    }
    if (e != 0) {
        dispose(r);
        return sg_error_sys(err, SG_INTERNAL, e, "cannot start the reactor");
    }
    *ret = r;
    return 0;
}

struct sg_reactor *sg_reactor_free(struct sg_reactor *r)
{
    if (r != NULL) {
        (void)pthread_mutex_lock(&r->lock);
        r->stopping = true;
        (void)eventfd_write(r->bell, 1);
        (void)pthread_mutex_unlock(&r->lock);
        (void)pthread_join(r->thread, NULL);
        dispose(r);
    }
    return NULL;
}

bool sg_reactor_is_current(const struct sg_reactor *r)
{
    return pthread_equal(r->thread, pthread_self()) != 0;
}
