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

TestSuite(execs, .init = begin, .fini = end);

Test(execs, an_attempt_that_started_nothing_is_forgotten)
{
    struct ran r;
    world_start(&w, "{\"exec\":[{\"error\":\"overloaded\"}]}");
    struct sg_entry *e = world_lease(&w);

    world_exec(&w, e, "{\"command\":\"echo hi\",\"exec_id\":\"one\"}", &r);
    cr_assert(r.failed);
    cr_expect_eq(r.err.code, SG_OVERLOADED, "%s", r.err.message);
    ran_finish(&r);
    /* 503 means: repeat it. */
    world_exec(&w, e, "{\"command\":\"echo hi\",\"exec_id\":\"one\"}", &r);
    cr_assert_not(r.failed, "%s", r.err.message);
    cr_expect_str_eq(r.out, "hi\n");
    ran_finish(&r);
    world_end(&w, e);
}

Test(execs, a_token_lets_go_of_a_command_that_ended_at_once)
{
    struct ran r;
    struct sg_cancel *cancel = sg_cancel_new();
    world_start(&w, "{\"exec\":[{\"error\":\"overloaded\"}]}");
    struct sg_entry *e = world_lease(&w);

    for (int i = 0; i < 200; i++) {
        world_exec_begin(&w, e, "{\"command\":\"true\"}", cancel, &r);
        world_exec_end(&r);
        ran_finish(&r);
    }
    world_end(&w, e);
    /* A hook left behind would be a leak (and run into freed memory, here). */
    sg_cancel_fire(cancel, SG_CANCEL_HANGUP);
    sg_cancel_unref(cancel);
    cr_expect_eq(sg_fake_live(w.fake), 0);
}

Test(execs, a_repetition_gets_the_kept_result_and_never_runs_again)
{
    struct ran r;
    world_start(&w, NULL);
    struct sg_entry *e = world_lease(&w);

    for (int i = 0; i < 3; i++) {
        world_exec(&w, e, "{\"command\":[\"echo\",\"first\"],\"exec_id\":\"one\"}", &r);
        cr_assert_not(r.failed, "%s", r.err.message);
        cr_expect_str_eq(r.out, "first\n");
        ran_finish(&r);
    }
    world_exec(&w, e, "{\"command\":[\"echo\",\"other\"],\"exec_id\":\"one\"}", &r);
    cr_expect_eq(r.err.code, SG_EXEC_ID_CONFLICT);
    ran_finish(&r);
    world_end(&w, e);
}

/* Output beyond the history goes, oldest first; what happened is still known. */
Test(execs, output_goes_before_results)
{
    struct ran r;
    char word[3001], body[3200];
    w.cfg.exec_history_max = 16384;
    world_start(&w, NULL);
    struct sg_entry *e = world_lease(&w);

    memset(word, 'x', 3000);
    word[3000] = '\0';
    for (int i = 0; i < 8; i++) {
        snprintf(body, sizeof body, "{\"command\":\"write f %s; cat f\",\"exec_id\":\"e%d\"}", word, i);
        world_exec(&w, e, body, &r);
        cr_assert_eq(r.kept, 3001, "%zu", r.kept);
        ran_finish(&r);
    }
    snprintf(body, sizeof body, "{\"command\":\"write f %s; cat f\",\"exec_id\":\"e7\"}", word);
    world_exec(&w, e, body, &r);
    cr_assert_not(r.failed);
    cr_expect_eq(r.total, 3001);
    ran_finish(&r);
    world_end(&w, e);
}

Test(execs, what_all_commands_keep_together_is_bounded)
{
    struct ran r[4];
    w.cfg.exec_memory_max = 100000;
    world_start(&w, NULL);
    struct sg_entry *e = world_lease(&w);
    struct sg_cancel *cancel[4];
    size_t kept = 0;

    /* All four run at the same time, on a busy machine too: what one has given back another may have. */
    for (int i = 0; i < 4; i++) {
        cancel[i] = sg_cancel_new();
        world_exec_begin(&w, e, "{\"command\":[\"yes\"],\"max_output_bytes\":65536,\"timeout\":3}", cancel[i], &r[i]);
    }
    for (int i = 0; i < 4; i++) {
        world_exec_end(&r[i]);
        cr_assert_not(r[i].failed, "%s", r[i].err.message);
        kept += r[i].kept;
        cr_expect_gt(r[i].total, r[i].kept);
        ran_finish(&r[i]);
        sg_cancel_unref(cancel[i]);
    }
    cr_expect_leq(kept, 100000, "%zu", kept);
    /* It is free again. */
    world_exec(&w, e, "{\"command\":[\"echo\",\"hi\"]}", &r[0]);
    cr_expect_str_eq(r[0].out, "hi\n");
    ran_finish(&r[0]);
    world_end(&w, e);
}

Test(execs, the_last_caller_that_leaves_takes_the_command_with_it)
{
    struct ran a, b;
    world_start(&w, NULL);
    struct sg_entry *e = world_lease(&w);
    struct sg_cancel *ca = sg_cancel_new(), *cb = sg_cancel_new();
    const char *body = "{\"command\":[\"sleep\",\"20\"],\"exec_id\":\"one\"}";

    world_exec_begin(&w, e, body, ca, &a);
    world_exec_begin(&w, e, body, cb, &b);
    sg_cancel_fire(ca, SG_CANCEL_HANGUP);
    cr_expect_not(flag_wait(&b.flag, 1, 200));
    sg_cancel_fire(cb, SG_CANCEL_HANGUP);
    world_exec_end(&a);
    world_exec_end(&b);
    cr_expect_eq(b.exit.killed_by, SG_KILLED_HANGUP);
    ran_finish(&a);
    ran_finish(&b);
    sg_cancel_unref(ca);
    sg_cancel_unref(cb);
    world_end(&w, e);
}

Test(execs, the_end_of_the_lease_ends_commands_and_results)
{
    struct ran kept, running;
    world_start(&w, NULL);
    struct sg_entry *e = world_lease(&w);

    world_exec(&w, e, "{\"command\":[\"echo\",\"hi\"],\"exec_id\":\"kept\"}", &kept);
    world_exec_begin(&w, e, "{\"command\":[\"sleep\",\"20\"]}", NULL, &running);
    sg_entry_ref(e);
    world_end(&w, e);
    world_exec_end(&running);
    cr_assert_not(running.failed, "%s", running.err.message);
    cr_expect_eq(running.exit.killed_by, SG_KILLED_LEASE_END);
    ran_finish(&running);
    ran_finish(&kept);
    world_exec(&w, e, "{\"command\":[\"echo\",\"hi\"],\"exec_id\":\"kept\"}", &kept);
    cr_expect_eq(kept.err.code, SG_LEASE_GONE, "%s", kept.err.message);
    ran_finish(&kept);
    sg_entry_unref(e);
}
