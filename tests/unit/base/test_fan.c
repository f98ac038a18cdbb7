#include "base/fan.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdatomic.h>

struct sitter {
    struct sg_fan_seat seat;
    _Atomic int refs, woken;
    struct sg_fan *leaves; /* when it is woken */
};

static void wake(void *arg)
{
    struct sitter *s = arg;
    s->woken++;
    if (s->leaves)
        sg_fan_leave(s->leaves, &s->seat);
    s->leaves = NULL;
}

static void ref(void *arg)
{
    ((struct sitter *)arg)->refs++;
}

static void unref(void *arg)
{
    ((struct sitter *)arg)->refs--;
}

static void sit(struct sg_fan *f, struct sitter *s)
{
    s->seat.waker = (struct sg_waker){.wake = wake, .ref = ref, .unref = unref, .arg = s};
    sg_fan_join(f, &s->seat);
}

Test(fan, wakes_all_that_sit_in_it)
{
    struct sg_fan *f = sg_fan_new();
    struct sg_waker w = sg_fan_waker(f);
    struct sitter s[3] = {0};
    w.wake(w.arg); /* nobody */
    for (int i = 0; i < 3; i++)
        sit(f, &s[i]);
    w.wake(w.arg);
    s[1].leaves = f; /* from within */
    w.wake(w.arg);
    w.wake(w.arg);
    cr_expect_eq(s[0].woken, 3);
    cr_expect_eq(s[1].woken, 2);
    cr_expect_eq(s[2].woken, 3);
    for (int i = 0; i < 3; i++)
        cr_expect_eq(s[i].refs, 0);
    sg_fan_leave(f, &s[0].seat);
    sg_fan_leave(f, &s[2].seat);
    w.wake(w.arg);
    cr_expect_eq(s[0].woken, 3);
    sg_fan_unref(f);
}

Test(fan, many_writers_of_one_pipe_are_all_told)
{
    struct sg_fan *f = sg_fan_new();
    struct sg_pipe *p = sg_pipe_new(4);
    struct sg_waker w = sg_fan_waker(f);
    struct sitter s[2] = {0};
    char out[4];
    sg_pipe_set_writer(p, &w);
    sg_fan_unref(f); /* the pipe has it */
    sit(f, &s[0]);
    sit(f, &s[1]);
    cr_assert_eq(sg_pipe_write(p, "abcd", 4), 4);
    cr_assert_eq(sg_pipe_write(p, "e", 1), 0);
    cr_assert_eq(sg_pipe_read(p, out, 2), 2);
    cr_expect(s[0].woken == 1 && s[1].woken == 1);
    cr_assert_eq(sg_pipe_flush(p), -EAGAIN);
    cr_assert_eq(sg_pipe_write(p, "f", 1), 1); /* another one's does not make the flush forgotten */
    cr_assert_eq(sg_pipe_read(p, out, 4), 3);
    cr_expect(s[0].woken == 2 && s[1].woken == 2);
    cr_expect_eq(sg_pipe_flush(p), 0);
    sg_pipe_stop(p);
    cr_expect(s[0].woken == 3 && s[1].woken == 3);
    sg_pipe_unref(p);
}
