#include "base/stepper.h"

void sg_stepper_ref(void *arg)
{
    ((struct sg_stepper *)arg)->refs++;
}

void sg_stepper_unref(void *arg)
{
    struct sg_stepper *s = arg;

    if (--s->refs > 0)
        return;
    pthread_mutex_destroy(&s->lock);
    s->free(s);
}

static void submit(struct sg_stepper *s)
{
    struct sg_error err = {0};

    sg_stepper_ref(s);
    if (sg_workq_submit(s->workq, &s->work, &err) == 0)
        return;
    pthread_mutex_lock(&s->lock);
    s->over = true;
    pthread_mutex_unlock(&s->lock);
    s->failed(s, &err);
    sg_error_clear(&err);
    sg_stepper_unref(s);
}

/* After a turn: true when there is another one to be run. */
static bool rest(struct sg_stepper *s, enum sg_step did)
{
    pthread_mutex_lock(&s->lock);
    s->over = s->over || did == SG_STEP_OVER;
    bool more = !s->over && (did == SG_STEP_MORE || s->again);
    s->again = false;
    s->busy = more;
    pthread_mutex_unlock(&s->lock);
    return more;
}

static void run(struct sg_work *w)
{
    struct sg_stepper *s = sg_container_of(w, struct sg_stepper, work);

    if (rest(s, s->step(s)))
        submit(s);
    sg_stepper_unref(s); /* the turn's */
}

void sg_stepper_init(struct sg_stepper *s, struct sg_workq *q)
{
    s->refs = 1;
    s->workq = q;
    s->work.run = run;
    pthread_mutex_init(&s->lock, NULL);
}

void sg_stepper_kick(void *arg)
{
    struct sg_stepper *s = arg;

    pthread_mutex_lock(&s->lock);
    bool go = !s->busy && !s->over;
    if (go)
        s->busy = true;
    else
        s->again = true;
    pthread_mutex_unlock(&s->lock);
    if (go)
        submit(s);
}
