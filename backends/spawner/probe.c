/* Does all of it work here? One real sandbox tells. */
#include <pthread.h>
#include <time.h>

#include "backends/spawner/spawner.h"
#include "base/clock.h"

#define PROBE_MS 10000

struct probe {
    struct sg_spawner *sp;
    struct sg_task task;
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    bool done;
    int result;
    struct sg_error error;
};

static void finished(struct probe *p, const struct sg_error *err)
{
    pthread_mutex_lock(&p->lock);
    p->done = true;
    p->result = err == NULL ? 0 : -1;
    if (err != NULL) {
        sg_error_copy(&p->error, err);
    }
    pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static void destroyed(void *arg, const struct sg_error *err)
{
    finished(arg, err);
}

static void built(void *arg, struct sg_slot_built *b, const struct sg_error *err)
{
    struct probe *p = arg;
    if (err != NULL) {
        finished(p, err);
        return;
    }
    sg_slot_built_finish(b);
    sg_spawner_destroy(p->sp, 0, destroyed, p);
}

static void build(struct sg_task *t)
{
    struct probe *p = (struct probe *)((char *)t - offsetof(struct probe, task));
    const struct sg_slot_spec spec = {.disk_bytes = 1 << 20, .deadline_ms = sg_now_ms() + PROBE_MS / 2};
    sg_spawner_build(p->sp, &spec, built, p);
}

static int wait_for(struct probe *p, struct sg_error *err)
{
    struct timespec until;
    int timed_out = 0;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += PROBE_MS / 1000;
    pthread_mutex_lock(&p->lock);
    while (!p->done && timed_out == 0) {
        timed_out = pthread_cond_clockwait(&p->changed, &p->lock, CLOCK_MONOTONIC, &until);
    }
    int r = p->done ? p->result : -1;
    if (!p->done) {
        sg_error_set(err, SG_UNAVAILABLE, "the spawner does not answer");
    } else if (r < 0 && err != NULL) {
        *err = p->error;
    } else {
        sg_error_clear(&p->error);
    }
    pthread_mutex_unlock(&p->lock);
    return r;
}

static int try_slot(struct sg_spawner *sp, struct sg_error *err)
{
    struct sg_reactor *reactor;
    struct probe p = {.sp = sp, .task = {.run = build}};
    if (sg_reactor_new(&reactor, err) < 0) {
        sg_spawner_free(sp);
        return -1;
    }
    pthread_mutex_init(&p.lock, NULL);
    pthread_cond_init(&p.changed, NULL);
    int r = sg_spawner_attach(sp, reactor, NULL, NULL, err);
    if (r == 0) {
        sg_reactor_post(reactor, &p.task);
        r = wait_for(&p, err);
    }
    sg_spawner_free(sp); /* no callback comes after it */
    sg_reactor_free(reactor);
    pthread_cond_destroy(&p.changed);
    pthread_mutex_destroy(&p.lock);
    return r;
}

int sg_spawner_probe(const struct sg_spawner_config *cfg, struct sg_error *err)
{
    struct sg_spawner *sp;
    return sg_spawner_start(&sp, cfg, err) < 0 ? -1 : try_slot(sp, err);
}
