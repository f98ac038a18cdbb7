/* The threaded parts of base against each other; for ThreadSanitizer, and useful without it. A lost wake-up shows as
 * the test's timeout. */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/pipe.h"
#include "base/reactor.h"
#include "base/workq.h"

static void check(bool ok, const char *what)
{
    if (!ok) {
        (void)fprintf(stderr, "failed: %s\n", what);
        abort();
    }
}

static void wake(void *arg)
{
    check(sem_post(arg) == 0, "sem_post");
}

static void wait_for(sem_t *s)
{
    while (sem_wait(s) < 0) {
        check(errno == EINTR, "sem_wait");
    }
}

/* ---- a pipe between two threads ---- */

static size_t pipe_bytes;

static unsigned char pattern(size_t at)
{
    return (unsigned char)((at * 2654435761U) >> 16);
}

static void *pipe_writer(void *arg)
{
    struct sg_pipe *p = arg;
    sem_t space;
    struct sg_waker w = {.wake = wake, .arg = &space};
    unsigned char data[777];
    size_t at = 0;
    check(sem_init(&space, 0, 0) == 0, "sem_init");
    sg_pipe_set_writer(p, &w);
    while (at < pipe_bytes) {
        size_t n = at % sizeof data + 1;
        n = n < pipe_bytes - at ? n : pipe_bytes - at;
        for (size_t i = 0; i < n; i++) {
            data[i] = pattern(at + i);
        }
        ssize_t took = sg_pipe_write(p, data, n);
        check(took >= 0, "write");
        at += (size_t)took;
        if (took == 0) {
            wait_for(&space);
        }
    }
    sg_pipe_set_writer(p, NULL);
    sg_pipe_close(p);
    (void)sg_pipe_unref(p);
    return NULL; /* the semaphore goes out of scope: the pipe must not use it any more */
}

static void stress_pipe(size_t cap, size_t bytes)
{
    pipe_bytes = bytes;
    struct sg_pipe *p = sg_pipe_new(cap);
    sem_t data;
    struct sg_waker w = {.wake = wake, .arg = &data};
    pthread_t t;
    size_t at = 0;
    check(sem_init(&data, 0, 0) == 0, "sem_init");
    check(pthread_create(&t, NULL, pipe_writer, sg_pipe_ref(p)) == 0, "thread");
    sg_pipe_set_reader(p, &w);
    for (;;) {
        unsigned char buf[1000];
        ssize_t n = sg_pipe_read(p, buf, at % sizeof buf + 1);
        if (n == -EAGAIN) {
            wait_for(&data);
            continue;
        }
        if (n == 0) {
            break;
        }
        for (ssize_t i = 0; i < n; i++, at++) {
            check(buf[i] == pattern(at), "a byte");
        }
    }
    check(at == pipe_bytes, "all bytes");
    check(pthread_join(t, NULL) == 0, "join");
    (void)sg_pipe_unref(p);
}

/* ---- a reactor that several threads post to ---- */

#define POSTERS 4
#define POSTS 5000

static struct sg_reactor *reactor;
static atomic_int posted_runs;

struct posted {
    struct sg_task task;
    struct sg_timer timer;
};

static void timer_end(struct sg_timer *t)
{
    posted_runs++;
    free((char *)t - offsetof(struct posted, timer));
}

static void posted_run(struct sg_task *t)
{
    struct posted *p = (struct posted *)t;
    p->timer.fire = timer_end;
    sg_timer_set(reactor, &p->timer, sg_now_ms());
}

static void *poster(void *arg)
{
    (void)arg;
    for (int i = 0; i < POSTS; i++) {
        struct posted *p = sg_xcalloc(1, sizeof *p);
        p->task.run = posted_run;
        sg_reactor_post(reactor, &p->task);
    }
    return NULL;
}

struct flush {
    struct sg_task task;
    sem_t done;
};

static void flush_run(struct sg_task *t)
{
    struct flush *f = (struct flush *)t;
    if (posted_runs < POSTERS * POSTS) {
        sg_reactor_post(reactor, t); /* timers are still due */
    } else {
        wake(&f->done);
    }
}

static void stress_reactor(void)
{
    pthread_t t[POSTERS];
    struct flush f = {.task.run = flush_run};
    check(sem_init(&f.done, 0, 0) == 0, "sem_init");
    check(sg_reactor_new(&reactor, NULL) == 0, "reactor");
    for (int i = 0; i < POSTERS; i++) {
        check(pthread_create(&t[i], NULL, poster, NULL) == 0, "thread");
    }
    for (int i = 0; i < POSTERS; i++) {
        check(pthread_join(t[i], NULL) == 0, "join");
    }
    sg_reactor_post(reactor, &f.task);
    wait_for(&f.done);
    reactor = sg_reactor_free(reactor);
    check(posted_runs == POSTERS * POSTS, "every task and timer ran once");
}

/* ---- firing against unhooking, on workers ---- */

struct race {
    struct sg_work fire, unhook;
    struct sg_cancel *token;
    struct sg_cancel_hook hook;
    atomic_int outcomes; /* the hook ran, or was taken off: never both, never neither */
    sem_t *done;
};

static void race_hook(struct sg_cancel_hook *h, enum sg_cancel_reason why)
{
    struct race *r = (struct race *)((char *)h - offsetof(struct race, hook));
    check(why == SG_CANCEL_CALLER, "reason");
    r->outcomes++;
    wake(r->done);
}

static void race_fire(struct sg_work *w)
{
    struct race *r = (struct race *)w;
    sg_cancel_fire(r->token, SG_CANCEL_CALLER);
    wake(r->done);
}

static void race_unhook(struct sg_work *w)
{
    struct race *r = (struct race *)((char *)w - offsetof(struct race, unhook));
    if (sg_cancel_unhook(r->token, &r->hook)) {
        r->outcomes++;
        wake(r->done);
    }
    wake(r->done);
}

static void stress_cancel(void)
{
    struct sg_workq *q = NULL;
    sem_t done;
    check(sem_init(&done, 0, 0) == 0, "sem_init");
    check(sg_workq_new(3, 8, &q, NULL) == 0, "workq");
    for (int i = 0; i < 3000; i++) {
        struct race r = {.fire.run = race_fire, .unhook.run = race_unhook, .hook.fired = race_hook, .done = &done};
        r.token = sg_cancel_new();
        check(sg_cancel_hook(r.token, &r.hook), "hook");
        struct sg_work *first = i % 2 ? &r.fire : &r.unhook;
        struct sg_work *second = i % 2 ? &r.unhook : &r.fire;
        check(sg_workq_submit(q, first, NULL) == 0 && sg_workq_submit(q, second, NULL) == 0, "submit");
        for (int n = 0; n < 3; n++) {
            wait_for(&done);
        }
        check(r.outcomes == 1, "one outcome");
        (void)sg_cancel_unref(r.token);
    }
    (void)sg_workq_free(q);
}

int main(void)
{
    stress_pipe(1, 10000);
    stress_pipe(1000, 1 << 20);
    stress_pipe(65536, 4 << 20);
    stress_reactor();
    stress_cancel();
    return 0;
}
