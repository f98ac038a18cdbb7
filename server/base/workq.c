#include "base/workq.h"

#include <pthread.h>
#include <signal.h>

struct sg_workq {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct sg_work *head;
    struct sg_work **tail;
    size_t queued, queue_max;
    bool stopping;
    unsigned n_threads;
    pthread_t threads[];
};

static void *worker_main(void *arg)
{
    struct sg_workq *q = arg;
    (void)pthread_mutex_lock(&q->lock);
    for (;;) {
        while (q->head == NULL && !q->stopping) {
            (void)pthread_cond_wait(&q->more, &q->lock);
        }
        struct sg_work *w = q->head;
        if (w == NULL) {
            break;
        }
        q->head = w->next;
        if (q->head == NULL) {
            q->tail = &q->head;
        }
        q->queued--;
        (void)pthread_mutex_unlock(&q->lock);
        w->run(w);
        (void)pthread_mutex_lock(&q->lock);
    }
    (void)pthread_mutex_unlock(&q->lock);
    return NULL;
}

struct sg_workq *sg_workq_free(struct sg_workq *q)
{
    if (q == NULL) {
        return NULL;
    }
    (void)pthread_mutex_lock(&q->lock);
    q->stopping = true;
    (void)pthread_cond_broadcast(&q->more);
    (void)pthread_mutex_unlock(&q->lock);
    for (unsigned i = 0; i < q->n_threads; i++) {
        (void)pthread_join(q->threads[i], NULL);
    }
    (void)pthread_cond_destroy(&q->more);
    (void)pthread_mutex_destroy(&q->lock);
    free(q);
    return NULL;
}

int sg_workq_new(unsigned threads, size_t queue_max, struct sg_workq **ret, struct sg_error *err)
{
    struct sg_workq *q = sg_xcalloc(1, sizeof *q + threads * sizeof q->threads[0]);
    q->tail = &q->head;
    q->queue_max = queue_max;
    (void)pthread_mutex_init(&q->lock, NULL);
    (void)pthread_cond_init(&q->more, NULL);
    sigset_t all, old; /* signals belong to the main thread */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    int e = 0;
    while (e == 0 && q->n_threads < threads) {
        e = pthread_create(&q->threads[q->n_threads], NULL, worker_main, q);
        if (e == 0) {
            (void)pthread_setname_np(q->threads[q->n_threads], "sg-worker");
            q->n_threads++;
        }
    }
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (e != 0) {
        (void)sg_workq_free(q);
        return sg_error_sys(err, SG_INTERNAL, e, "cannot start a worker");
    }
    *ret = q;
    return 0;
}

int sg_workq_submit(struct sg_workq *q, struct sg_work *w, struct sg_error *err)
{
    int r = 0;
    (void)pthread_mutex_lock(&q->lock);
    if (q->stopping) {
        r = sg_error_set(err, SG_SHUTTING_DOWN, "the server is shutting down");
    } else if (q->queued >= q->queue_max) {
        r = sg_error_set(err, SG_OVERLOADED, "too much work is waiting");
    } else {
        w->next = NULL;
        *q->tail = w;
        q->tail = &w->next;
        q->queued++;
        (void)pthread_cond_signal(&q->more);
    }
    (void)pthread_mutex_unlock(&q->lock);
    return r < 0 ? sg_error_retry_after(err, 1) : 0;
}
