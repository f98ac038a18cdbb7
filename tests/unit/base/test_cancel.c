#include <criterion/criterion.h>

#include "base/cancel.h"

struct op {
    struct sg_cancel_hook hook;
    struct sg_cancel *token;
    int runs;
    enum sg_cancel_reason why;
};

static void note(struct sg_cancel_hook *h, enum sg_cancel_reason why)
{
    struct op *o = (struct op *)h;
    o->runs++;
    o->why = why;
}

static void note_and_drop(struct sg_cancel_hook *h, enum sg_cancel_reason why)
{
    struct op *o = (struct op *)h;
    note(h, why);
    cr_assert_not(sg_cancel_unhook(o->token, h));
    sg_cancel_fire(o->token, SG_CANCEL_SHUTDOWN); /* a second one does nothing */
    o->token = sg_cancel_unref(o->token);
}

Test(cancel, fires_once_for_the_first_reason)
{
    struct sg_cancel *c = sg_cancel_new();
    struct op a = {.hook.fired = note}, b = {.hook.fired = note}, gone = {.hook.fired = note}, late = {.hook.fired = note};
    cr_assert_eq(sg_cancel_fired(NULL), SG_CANCEL_NONE);
    cr_assert(sg_cancel_hook(c, &a.hook));
    cr_assert(sg_cancel_hook(c, &gone.hook));
    cr_assert(sg_cancel_hook(c, &b.hook));
    cr_assert(sg_cancel_unhook(c, &gone.hook));
    cr_assert_not(sg_cancel_unhook(c, &gone.hook));
    sg_cancel_fire(c, SG_CANCEL_TIMEOUT);
    sg_cancel_fire(c, SG_CANCEL_HANGUP);
    cr_assert_eq(sg_cancel_fired(c), SG_CANCEL_TIMEOUT);
    cr_assert(a.runs == 1 && b.runs == 1 && gone.runs == 0);
    cr_assert_eq(b.why, SG_CANCEL_TIMEOUT);
    cr_assert_not(sg_cancel_unhook(c, &a.hook));
    cr_assert_not(sg_cancel_hook(c, &late.hook), "fired already: runs at once");
    cr_assert_eq(late.runs, 1);
    cr_assert_not(sg_cancel_unhook(c, &late.hook));
    cr_assert_null(sg_cancel_unref(c));
    cr_assert_null(sg_cancel_unref(NULL));
}

Test(cancel, a_hook_may_drop_the_token)
{
    struct sg_cancel *c = sg_cancel_new();
    struct op a = {.hook.fired = note_and_drop, .token = sg_cancel_ref(c)};
    struct op b = {.hook.fired = note_and_drop, .token = c};
    sg_cancel_hook(c, &a.hook);
    sg_cancel_hook(c, &b.hook);
    sg_cancel_fire(c, SG_CANCEL_LEASE_END);
    cr_assert(a.runs == 1 && b.runs == 1);
}
