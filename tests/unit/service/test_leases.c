#include "world.h"

static struct world w;

static void begin(void)
{
    world_prepare(&w);
}

static void end(void)
{
    world_finish(&w);
}

TestSuite(leases, .init = begin, .fini = end);

#define FAKE "{\"policy\":{\"override\":\"fake\"}}"

Test(leases, a_caller_that_hangs_up_while_it_waits_leaves_nothing)
{
    struct made m;
    struct sg_cancel *cancel = sg_cancel_new();
    world_start(&w, "{\"capacity\":1}");
    struct sg_entry *e = world_lease(&w);

    world_create_begin(&w, FAKE, NULL, false, cancel, &m);
    cr_expect_not(flag_wait(&m.flag, 1, 100));
    sg_cancel_fire(cancel, SG_CANCEL_HANGUP);
    world_create_end(&m);
    cr_expect_null(m.entry);
    sg_error_clear(&m.err);
    sg_cancel_unref(cancel);
    world_end(&w, e);
    e = world_lease(&w);
    world_end(&w, e);
}

/* Nothing of it was ever handed out: repeating it is right. */
Test(leases, a_sandbox_that_dies_before_the_answer_is_a_503)
{
    struct made m;
    world_start(&w, "{\"create\":[{\"lost_after_ms\":1},{\"lost_after_ms\":0},{\"lost_after_ms\":2}]}");

    for (int i = 0; i < 3; i++) {
        world_create_begin(&w, FAKE, NULL, false, NULL, &m);
        world_create_end(&m);
        if (m.err.code != SG_OK)
            cr_expect_eq(sg_code_status(m.err.code), 503, "%s", m.err.message);
        sg_entry_unref(m.entry);
        sg_error_clear(&m.err);
    }
}

Test(leases, creates_and_commands_at_shutdown_are_all_answered)
{
    struct made m[8];
    struct ran r;
    world_start(&w, "{\"capacity\":1}");
    struct sg_entry *e = world_lease(&w);

    world_exec_begin(&w, e, "{\"command\":[\"sleep\",\"20\"]}", NULL, &r);
    for (int i = 0; i < 8; i++)
        world_create_begin(&w, FAKE, i % 2 ? "key" : NULL, i % 4 == 0, NULL, &m[i]);
    sg_service_end_all(w.service, sg_now_ms() + 10000);
    for (int i = 0; i < 8; i++) {
        world_create_end(&m[i]);
        if (m[i].entry)
            cr_expect_neq(world_state(m[i].entry), SG_LEASE_READY);
        else
            cr_expect_eq(sg_code_status(m[i].err.code), 503, "%s", m[i].err.message);
        sg_entry_unref(m[i].entry);
        sg_error_clear(&m[i].err);
    }
    world_exec_end(&r);
    ran_finish(&r);
    cr_expect_eq(world_state(e), SG_LEASE_TERMINATED);
    sg_entry_unref(e);
    cr_expect_eq(sg_fake_live(w.fake), 0);
}

/* The server goes; what waited for its end goes with it (a sanitizer's build says if not). */
Test(leases, a_lease_that_does_not_end_in_time_is_waited_for_no_longer)
{
    world_start(&w, "{\"terminate\":[{\"stall\":true}]}");
    struct sg_entry *e = world_lease(&w);

    w.patience_ms = 0;
    sg_service_end_all(w.service, sg_now_ms());
    cr_expect_eq(world_state(e), SG_LEASE_RELEASING);
    sg_entry_unref(e);
}
