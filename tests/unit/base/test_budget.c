#include <criterion/criterion.h>
#include <pthread.h>

#include "base/budget.h"

Test(budget, never_gives_more_than_there_is)
{
    struct sg_budget *b = sg_budget_new(100);
    cr_assert(sg_budget_take(b, 60));
    cr_assert_not(sg_budget_take(b, 41));
    cr_assert_not(sg_budget_take(b, SIZE_MAX));
    cr_assert_eq(sg_budget_used(b), 60);
    cr_assert(sg_budget_take(b, 40));
    cr_assert_not(sg_budget_take(b, 1));
    cr_assert(sg_budget_take(b, 0));
    sg_budget_give(b, 100);
    cr_assert_eq(sg_budget_used(b), 0);
    sg_budget_ref(b);
    cr_assert_null(sg_budget_unref(b));
    cr_assert(sg_budget_take(b, 100), "still there");
    sg_budget_unref(b);
    sg_budget_unref(NULL);
}

static void *take_and_give(void *arg)
{
    for (int i = 0; i < 20000; i++) {
        if (sg_budget_take(arg, 30)) {
            if (sg_budget_used(arg) > 100)
                abort();
            sg_budget_give(arg, 30);
        }
    }
    return NULL;
}

Test(budget, threads_share_it)
{
    struct sg_budget *b = sg_budget_new(100);
    pthread_t t[4];
    for (int i = 0; i < 4; i++)
        cr_assert_eq(pthread_create(&t[i], NULL, take_and_give, b), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    cr_assert_eq(sg_budget_used(b), 0);
    sg_budget_unref(b);
}
