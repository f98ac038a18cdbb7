/* One writer and many readers of a log: everything arrives, in order, and memory stays within its bounds. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "service/exec_log.h"

enum { EVENTS = 40000, FOLLOWERS = 6, ROUNDS = 3, WINDOW = 20000, HISTORY = 60000 };

static void die(const char *what)
{
    fprintf(stderr, "stress_exec_log: %s\n", what);
    abort();
}

/* Something to wait for. */
struct bell {
    _Atomic int refs;
    pthread_mutex_t lock;
    pthread_cond_t rung;
    bool on;
};

static struct bell *bell_new(void)
{
    struct bell *b = sg_xcalloc(1, sizeof *b);
    b->refs = 1;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->rung, NULL);
    return b;
}

static void bell_ref(void *arg)
{
    ((struct bell *)arg)->refs++;
}

static void bell_unref(void *arg)
{
    struct bell *b = arg;
    if (--b->refs > 0)
        return;
    pthread_mutex_destroy(&b->lock);
    pthread_cond_destroy(&b->rung);
    free(b);
}

static void bell_ring(void *arg)
{
    struct bell *b = arg;
    pthread_mutex_lock(&b->lock);
    b->on = true;
    pthread_cond_signal(&b->rung);
    pthread_mutex_unlock(&b->lock);
}

static void bell_wait(struct bell *b)
{
    pthread_mutex_lock(&b->lock);
    while (!b->on)
        pthread_cond_wait(&b->rung, &b->lock);
    b->on = false;
    pthread_mutex_unlock(&b->lock);
}

static struct sg_waker waker(struct bell *b)
{
    return (struct sg_waker){.wake = bell_ring, .ref = bell_ref, .unref = bell_unref, .arg = b};
}

struct job {
    struct sg_exec_log *log;
    bool attached;
    uint64_t after, seen;
    bool stale, ended;
    int leave_at; /* events, 0: at the end */
};

static void read_all(struct job *j, struct sg_exec_reader *r, struct bell *b)
{
    struct sg_exec_event e;
    for (;;) {
        int n = sg_exec_reader_next(r, &e);
        if (n == -EAGAIN) {
            bell_wait(b);
            continue;
        }
        j->stale = n == -ESTALE;
        if (n <= 0)
            return;
        if (e.seq != j->after + 1)
            die("an event was lost or came twice");
        char want[32];
        int len = snprintf(want, sizeof want, "%llu\n", (unsigned long long)e.seq);
        if (e.type == SG_EVENT_STDOUT && (e.len != (size_t)len || memcmp(e.data, want, e.len) != 0))
            die("wrong bytes");
        j->after = e.seq;
        j->seen++;
        j->ended = e.type == SG_EVENT_EXIT;
        if (j->leave_at && j->seen == (uint64_t)j->leave_at)
            return;
    }
}

static void *reader_main(void *arg)
{
    struct job *j = arg;
    struct sg_exec_reader *r;
    struct bell *b = bell_new();
    struct sg_waker w = waker(b);
    if (sg_exec_reader_new(j->log, j->after, j->attached, &r, NULL) == 0) {
        sg_exec_reader_set_waker(r, &w);
        read_all(j, r, b);
        sg_exec_reader_free(r);
    } else {
        j->stale = true;
    }
    bell_unref(b);
    return NULL;
}

static void *writer_main(void *arg)
{
    struct sg_exec_log *log = arg;
    struct bell *b = bell_new();
    struct sg_waker w = waker(b);
    sg_exec_log_set_space(log, &w);
    for (int i = 1; i <= EVENTS; i++) {
        char text[32];
        int len = snprintf(text, sizeof text, "%d\n", i);
        while (sg_exec_log_full(log))
            bell_wait(b);
        sg_exec_log_output(log, SG_EVENT_STDOUT, text, (size_t)len);
        sg_exec_log_wake(log);
        if (sg_exec_log_bytes(log) > HISTORY + WINDOW + 200)
            die("too much is kept");
    }
    sg_exec_log_end(log, SG_EVENT_EXIT, "{}");
    sg_exec_log_wake(log);
    sg_exec_log_set_space(log, NULL);
    bell_unref(b);
    return NULL;
}

static void round_of(size_t history)
{
    struct sg_run_memory memory = {.max = 1 << 20};
    struct sg_exec_log *log = sg_exec_log_new(history, WINDOW, &memory);
    struct job jobs[FOLLOWERS + 3];
    pthread_t threads[FOLLOWERS + 4];
    size_t n = 0;
    for (; n < FOLLOWERS; n++)
        jobs[n] = (struct job){.log = log, .leave_at = n % 2 ? 500 : 0};
    jobs[n++] = (struct job){.log = log, .attached = true};
    jobs[n++] = (struct job){.log = log, .attached = true};
    jobs[n++] = (struct job){.log = log, .attached = true, .leave_at = 1000};
    for (size_t i = 0; i < n; i++)
        pthread_create(&threads[i], NULL, reader_main, &jobs[i]);
    pthread_create(&threads[n], NULL, writer_main, log);
    for (size_t i = 0; i <= n; i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < n; i++) {
        /* An attached one may have come too late for the beginning; what it began it ends. */
        bool began = jobs[i].seen > 0;
        if (jobs[i].attached && began && !jobs[i].leave_at && (!jobs[i].ended || jobs[i].stale))
            die("an attached reader did not get to the end");
    }
    sg_exec_log_unref(log);
    if (memory.used != 0)
        die("memory was not given back");
}

int main(void)
{
    for (int i = 0; i < ROUNDS; i++) {
        round_of(HISTORY);
        round_of(0);
    }
    return 0;
}
