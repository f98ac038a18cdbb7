#include <criterion/criterion.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "base/workq.h"

static sem_t started, go;
static atomic_int runs;

static void wait_run(struct sg_work *w)
{
    (void)w;
    sem_post(&started);
    sem_wait(&go);
    runs++;
}

static void count_and_free(struct sg_work *w)
{
    runs++;
    free(w);
}

Test(workq, a_full_queue_says_so, .timeout = 30)
{
    struct sg_workq *q = NULL;
    struct sg_error err = {0};
    struct sg_work busy = {.run = wait_run};
    sem_init(&started, 0, 0);
    sem_init(&go, 0, 0);
    cr_assert_eq(sg_workq_new(1, 2, &q, &err), 0, "%s", err.message);
    cr_assert_eq(sg_workq_submit(q, &busy, &err), 0);
    sem_wait(&started);
    for (int i = 0; i < 2; i++) {
        struct sg_work *w = sg_xcalloc(1, sizeof *w);
        w->run = count_and_free;
        cr_assert_eq(sg_workq_submit(q, w, &err), 0);
    }
    struct sg_work extra = {.run = wait_run};
    cr_assert_eq(sg_workq_submit(q, &extra, &err), -1);
    cr_assert_eq(err.code, SG_OVERLOADED);
    cr_assert_eq(err.retry_after, 1);
    cr_assert_eq(runs, 0);
    sem_post(&go);
    q = sg_workq_free(q); /* finishes what is queued */
    cr_assert_eq(runs, 3);
    cr_assert_null(sg_workq_free(NULL));
}

Test(workq, workers_run_side_by_side, .timeout = 30)
{
    struct sg_workq *q = NULL;
    struct sg_work work[3] = {{.run = wait_run}, {.run = wait_run}, {.run = wait_run}};
    sem_init(&started, 0, 0);
    sem_init(&go, 0, 0);
    cr_assert_eq(sg_workq_new(3, 3, &q, NULL), 0);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(sg_workq_submit(q, &work[i], NULL), 0);
    }
    for (int i = 0; i < 3; i++) {
        sem_wait(&started); /* hangs unless all three run at once */
    }
    for (int i = 0; i < 3; i++) {
        sem_post(&go);
    }
    sg_workq_free(q);
    cr_assert_eq(runs, 3);
}
