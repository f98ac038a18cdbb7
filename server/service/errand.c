#include "service/errand.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/hold.h"
#include "service/run.h"

#define PIPE_BYTES 4096U

struct sg_errand {
    _Atomic int refs; /* the run's, the hook's, the caller's */
    struct sg_errand_args a;
    struct sg_cancel_hook hook;
    pthread_mutex_t lock; /* guards what follows */
    struct sg_run *run;   /* once it is known here, which may be after its end */
    bool cancelled;
};

struct sg_errand *sg_errand_unref(struct sg_errand *e)
{
    if (!e || --e->refs > 0)
        return NULL;
    sg_run_unref(e->run);
    pthread_mutex_destroy(&e->lock);
    free(e);
    return NULL;
}

static void ended(void *arg, struct sg_run *run, const struct sg_error *err)
{
    struct sg_errand *e = arg;
    struct sg_exec_result r = {.timeout_ms = e->a.timeout_ms};
    struct sg_error own = {0};

    if (sg_cancel_unhook(e->a.cancel, &e->hook))
        sg_errand_unref(e);
    if (err) {
        e->a.done(e->a.arg, NULL, err);
    } else if (sg_cancel_fired(e->a.cancel) != SG_CANCEL_NONE) {
        sg_error_set(&own, SG_CANCELLED, "the lease was ended while it was being created");
        e->a.done(e->a.arg, NULL, &own);
        sg_error_clear(&own);
    } else {
        sg_run_outcome(run, &r);
        e->a.done(e->a.arg, &r, NULL);
        sg_hold_unref(r.keep);
    }
    sg_errand_unref(e);
}

static struct sg_run *known_run(struct sg_errand *e)
{
    pthread_mutex_lock(&e->lock);
    struct sg_run *run = e->run ? sg_run_ref(e->run) : NULL;
    pthread_mutex_unlock(&e->lock);
    return run;
}

void sg_errand_signal(struct sg_errand *e, int signo)
{
    struct sg_run *run = known_run(e);

    if (run)
        (void)sg_run_signal(run, signo, NULL);
    sg_run_unref(run);
}

static void kill_run(struct sg_errand *e)
{
    struct sg_run *run = known_run(e);

    if (run)
        sg_run_kill(run, SG_KILLED_LEASE_END);
    sg_run_unref(run);
}

static void cancelled(struct sg_cancel_hook *h, enum sg_cancel_reason why SG_UNUSED)
{
    struct sg_errand *e = sg_container_of(h, struct sg_errand, hook);

    pthread_mutex_lock(&e->lock);
    e->cancelled = true;
    pthread_mutex_unlock(&e->lock);
    kill_run(e);
    sg_errand_unref(e);
}

static int start(struct sg_errand *e, struct sg_run **run, struct sg_error *err)
{
    struct sg_env env = {0};
    int rc = sg_env_base(&env, err) < 0 || sg_env_merge(&env, e->a.sb->env, err) < 0 || sg_env_merge(&env, e->a.env, err) < 0 ? -1 : 0;

    if (rc == 0) {
        struct sg_run_args args = {.memory = e->a.memory,
                                   .sb = e->a.sb,
                                   .spec = {.argv = e->a.argv, .cwd = e->a.cwd, .env = &env, .timeout_ms = e->a.timeout_ms, .pipe_bytes = PIPE_BYTES},
                                   .max_output_bytes = e->a.output_max,
                                   .done = ended,
                                   .arg = e};
        rc = sg_run_start(&args, run, err);
    }
    sg_env_finish(&env);
    return rc;
}

static void not_started(struct sg_errand *e, struct sg_error *err)
{
    if (sg_cancel_unhook(e->a.cancel, &e->hook))
        sg_errand_unref(e);
    e->a.done(e->a.arg, NULL, err);
    sg_error_clear(err);
    sg_errand_unref(e); /* the run's */
}

struct sg_errand *sg_errand_start(const struct sg_errand_args *args)
{
    struct sg_errand *e = sg_xcalloc(1, sizeof *e);
    struct sg_error err = {0};
    struct sg_run *run = NULL;

    e->a = *args;
    e->refs = 3;
    e->hook.fired = cancelled;
    pthread_mutex_init(&e->lock, NULL);
    sg_cancel_hook(args->cancel, &e->hook);
    if (start(e, &run, &err) < 0) {
        not_started(e, &err);
        return e;
    }
    pthread_mutex_lock(&e->lock);
    e->run = run;
    bool kill = e->cancelled;
    pthread_mutex_unlock(&e->lock);
    if (kill)
        kill_run(e);
    return e;
}
