/* Expiry, extension, idle time: what is promised is kept, and races are decided one way. */
#include "world.h"

static struct world w;

static void setup(void)
{
    world_init(&w);
}

static void teardown(void)
{
    world_finish(&w);
}

TestSuite(life, .init = setup, .fini = teardown);

static int extend(struct sg_entry *e, int64_t ms, struct sg_error *err)
{
    struct outcome o;
    outcome_init(&o);
    struct sg_store_done done = {.fn = outcome_set, .arg = &o};
    if (sg_registry_extend(w.reg, e, ms, &done, err) < 0) {
        return -1;
    }
    sem_wait_all(&o.sem);
    if (o.failed) {
        sg_error_copy(err, &o.err);
    }
    sg_error_clear(&o.err);
    return o.failed ? -1 : 0;
}

static int64_t expires(struct sg_entry *e)
{
    struct sg_lease l;
    sg_entry_lease(e, &l);
    int64_t us = l.expires_us;
    sg_lease_finish(&l);
    return us;
}

static int64_t ended(struct sg_entry *e)
{
    struct sg_lease l;
    sg_entry_lease(e, &l);
    int64_t us = l.ended_us;
    sg_lease_finish(&l);
    return us;
}

Test(life, leases_expire_each_at_its_time)
{
    struct sg_entry *e[20];
    for (int i = 0; i < 20; i++) {
        e[i] = lease(&w, &(struct ask){.timeout_ms = 100 + (i * 7) % 20 * 20});
    }
    for (int i = 0; i < 20; i++) {
        cr_expect(wait_for(e[i], SG_WAIT_ENDED, 5000));
        cr_expect_eq(state_of(e[i]), SG_LEASE_EXPIRED);
        cr_expect_geq(ended(e[i]) - expires(e[i]), -2000, "%ld", (long)(ended(e[i]) - expires(e[i])));
        cr_expect_eq(sg_cancel_fired(sg_entry_cancel(e[i])), SG_CANCEL_LEASE_END);
        sg_entry_unref(e[i]);
    }
    cr_expect_eq(w.ends, 20);
    cr_expect_eq(w.last_why, SG_END_EXPIRED);
}

Test(life, an_extension_never_shortens)
{
    struct sg_error err = {0};
    struct sg_entry *e = lease(&w, &(struct ask){.timeout_ms = 60000});
    int64_t before = expires(e);
    cr_expect_eq(extend(e, 1000, &err), 0);
    cr_expect_eq(expires(e), before);
    cr_expect_eq(extend(e, 120000, &err), 0);
    cr_expect_geq(expires(e), before + 59000000);
    struct sg_lease l;
    cr_assert_eq(sg_store_lease(w.store, "acme", sg_entry_id(e), &l, &err), 0);
    cr_expect_eq(l.expires_us, expires(e));
    sg_lease_finish(&l);
    end_lease(&w, e);
    cr_expect_eq(extend(e, 120000, &err), -1);
    cr_expect_eq(err.code, SG_LEASE_GONE);
    sg_entry_unref(e);
}

/* 500 leases that end at the same time as somebody extends them. */
struct contest {
    struct sg_entry *e;
    int64_t at_ms;
    bool renewed;
};

static void *contestant(void *arg)
{
    struct contest *c = arg;
    for (int i = 0; i < 125; i++) {
        struct sg_error err = {0};
        int64_t at_us = c[i].at_ms * 1000 + (i % 9 - 4) * 250;
        int64_t early_us = at_us - 300 - sg_now_us();
        if (early_us > 0) {
            usleep((useconds_t)early_us);
        }
        while (sg_now_us() < at_us) { /* a sleep alone is not exact enough to meet the timer */
        }
        c[i].renewed = extend(c[i].e, 60000, &err) == 0;
        cr_expect(c[i].renewed || err.code == SG_LEASE_GONE, "%s", err.message);
    }
    return NULL;
}

Test(life, extension_against_expiry_is_decided_one_way)
{
    static struct contest c[4][125];
    pthread_t threads[4];
    int64_t base = sg_now_ms() + 1500;
    for (int i = 0; i < 125; i++) {
        for (int t = 0; t < 4; t++) {
            int64_t at = base + i * 8 + t;
            struct sg_error err = {0};
            enum sg_reserved how;
            struct ask ask = {.timeout_ms = 60000};
            cr_assert_eq(reserve(&w, &ask, &how, &c[t][i].e, NULL, &err), 0);
            /* The terms are this test's own until the lease is ready. */
            c[t][i].at_ms = at;
            ((struct sg_lease_terms *)(uintptr_t)sg_entry_terms(c[t][i].e))->timeout_ms = at - sg_now_ms();
            cr_assert_eq(make_ready(&w, c[t][i].e, &err), 0, "%s", err.message);
        }
    }
    for (int t = 0; t < 4; t++) {
        pthread_create(&threads[t], NULL, contestant, c[t]);
    }
    int renewed = 0;
    for (int t = 0; t < 4; t++) {
        pthread_join(threads[t], NULL);
    }
    int64_t all_due = c[3][124].at_ms + 500;
    usleep((useconds_t)((all_due > sg_now_ms() ? all_due - sg_now_ms() : 0) * 1000));
    for (int t = 0; t < 4; t++) {
        for (int i = 0; i < 125; i++) {
            enum sg_lease_state s = state_of(c[t][i].e);
            cr_expect_eq(s, c[t][i].renewed ? SG_LEASE_READY : SG_LEASE_EXPIRED,
                         "round %d/%d: renewed %d, state %d", t, i, c[t][i].renewed, s);
            renewed += c[t][i].renewed;
            end_lease(&w, c[t][i].e);
            sg_entry_unref(c[t][i].e);
        }
    }
    cr_expect(renewed > 0 && renewed < 500, "no contest: %d of 500 renewed", renewed);
    cr_expect_eq(w.ends, 500);
}

Test(life, an_idle_lease_ends_and_a_used_one_does_not)
{
    struct sg_error err = {0};
    struct sg_entry *idle = lease(&w, &(struct ask){.idle_ms = 150});
    struct sg_entry *used = lease(&w, &(struct ask){.idle_ms = 150});
    struct sg_sandbox *sb = NULL;
    cr_assert_eq(sg_entry_use_begin(used, &sb, &err), 0);
    cr_expect_not_null(sb);
    test_sandbox_unref(sb);
    cr_expect(wait_for(idle, SG_WAIT_ENDED, 5000));
    cr_expect_eq(state_of(idle), SG_LEASE_EXPIRED);
    cr_expect_eq(w.last_why, SG_END_IDLE);
    struct sg_lease l;
    sg_entry_lease(idle, &l);
    cr_expect_str_eq(l.reason, "idle_timeout");
    sg_lease_finish(&l);
    cr_expect_not(wait_for(used, SG_WAIT_ENDED, 300));
    int64_t from = sg_now_ms();
    sg_entry_use_end(used, true);
    cr_expect(wait_for(used, SG_WAIT_ENDED, 5000));
    cr_expect_geq(sg_now_ms() - from, 145);
    sg_entry_unref(idle);
    sg_entry_unref(used);
}

Test(life, a_failing_use_and_reads_do_not_keep_it)
{
    struct sg_error err = {0};
    struct sg_entry *e = lease(&w, &(struct ask){.idle_ms = 200});
    int64_t from = sg_now_ms();
    while (sg_entry_use_begin(e, NULL, &err) == 0) {
        sg_entry_use_end(e, false);
        (void)expires(e);
        usleep(20000);
        cr_assert_lt(sg_now_ms() - from, 5000);
    }
    cr_expect_eq(err.code, SG_LEASE_GONE);
    cr_expect(wait_for(e, SG_WAIT_ENDED, 5000));
    sg_entry_unref(e);
}

Test(life, a_use_that_counts_starts_the_idle_time_anew)
{
    struct sg_error err = {0};
    struct sg_entry *e = lease(&w, &(struct ask){.idle_ms = 400});
    for (int i = 0; i < 12; i++) {
        usleep(50000);
        cr_assert_eq(sg_entry_use_begin(e, NULL, &err), 0, "%s", err.message);
        sg_entry_use_end(e, true);
    }
    cr_expect_eq(state_of(e), SG_LEASE_READY);
    cr_expect(wait_for(e, SG_WAIT_ENDED, 5000));
    sg_entry_unref(e);
}
