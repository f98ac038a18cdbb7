/* What is set is heard of exactly once: in time, called off, or at the end. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "backends/cloud/alarms.h"

struct heard {
    sem_t told;
    _Atomic unsigned rang, over;
};

static struct sg_reactor *reactor;
static struct sg_alarms *alarms;
static struct heard heard;

static void hear(void *arg, bool over)
{
    struct heard *h = arg;

    atomic_fetch_add(over ? &h->over : &h->rang, 1);
    sem_post(&h->told);
}

static void set_up(void)
{
    struct sg_error err = {0};

    cr_assert_eq(sg_reactor_new(&reactor, &err), 0);
    alarms = sg_alarms_new(reactor);
    heard = (struct heard){0};
    sem_init(&heard.told, 0, 0);
}

static void tear_down(void)
{
    sg_alarms_close(alarms);
    alarms = sg_alarms_free(alarms);
    reactor = sg_reactor_free(reactor);
    sem_destroy(&heard.told);
}

TestSuite(alarms, .init = set_up, .fini = tear_down);

Test(alarms, one_rings)
{
    sg_alarm(alarms, 1, hear, &heard);
    sem_wait(&heard.told);
    cr_expect_eq(heard.rang, 1);
    cr_expect_eq(heard.over, 0);
}

Test(alarms, one_that_is_called_off_is_over_long_before_its_time)
{
    struct sg_alarm_set *x = sg_alarm_set(alarms, 3600 * 1000, hear, &heard);

    cr_assert_not_null(x);
    sg_alarm_off(x);
    sem_wait(&heard.told);
    cr_expect_eq(heard.rang, 0);
    cr_expect_eq(heard.over, 1);
}

Test(alarms, calling_off_what_has_rung_is_nothing)
{
    struct sg_alarm_set *x = sg_alarm_set(alarms, 1, hear, &heard);

    sem_wait(&heard.told);
    sg_alarm_off(x);
    sg_alarms_close(alarms);
    cr_expect_eq(heard.rang, 1);
    cr_expect_eq(heard.over, 0);
}

Test(alarms, what_is_still_set_is_over_at_the_end_and_later_nothing_is_set)
{
    struct sg_alarm_set *x = sg_alarm_set(alarms, 3600 * 1000, hear, &heard);

    sg_alarm(alarms, 3600 * 1000, hear, &heard);
    sg_alarms_close(alarms);
    cr_expect_eq(heard.over, 2);
    sg_alarm_off(x);
    cr_expect_null(sg_alarm_set(alarms, 1, hear, &heard));
    cr_expect_eq(heard.over, 3);
    sg_alarm_off(NULL);
}
