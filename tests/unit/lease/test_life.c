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
    if (sg_registry_extend(w.reg, e, ms, &(struct sg_spend_limit){0}, &done, err) < 0) {
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

/* 4 times 125 leases that somebody extends from a little before to a little after their end. */
struct contest {
    struct sg_entry *e[125];
    bool renewed[125];
};

static void *contestant(void *arg)
{
    struct contest *c = arg;
    for (int i = 0; i < 125; i++) {
        struct sg_error err = {0};
        c->e[i] = lease(&w, &(struct ask){.timeout_ms = 20});
        struct sg_lease l;
        sg_entry_lease(c->e[i], &l);
        /* Every fifth well before the end, so that both outcomes are seen. */
        int64_t at_us = l.expires_us + (i % 5 == 0 ? -20000 : (i % 9 - 6) * 250);
        sg_lease_finish(&l);
        int64_t early_us = at_us - 300 - sg_wall_us();
        if (early_us > 0) {
            usleep((useconds_t)early_us);
        }
        while (sg_wall_us() < at_us) { /* a sleep alone is not exact enough to meet the timer */
        }
        c->renewed[i] = extend(c->e[i], 60000, &err) == 0;
        cr_expect(c->renewed[i] || err.code == SG_LEASE_GONE, "%s", err.message);
    }
    return NULL;
}

Test(life, extension_against_expiry_is_decided_one_way)
{
    static struct contest c[4];
    pthread_t threads[4];
    int renewed = 0;
    for (int t = 0; t < 4; t++) {
        pthread_create(&threads[t], NULL, contestant, &c[t]);
    }
    for (int t = 0; t < 4; t++) {
        pthread_join(threads[t], NULL);
    }
    for (int t = 0; t < 4; t++) {
        for (int i = 0; i < 125; i++) {
            struct sg_entry *e = c[t].e[i];
            if (!c[t].renewed[i]) {
                cr_expect(wait_for(e, SG_WAIT_ENDED, 5000));
            }
            enum sg_lease_state s = state_of(e);
            cr_expect_eq(s, c[t].renewed[i] ? SG_LEASE_READY : SG_LEASE_EXPIRED,
                         "round %d/%d: renewed %d, state %d", t, i, c[t].renewed[i], s);
            renewed += c[t].renewed[i];
            end_lease(&w, e);
            sg_entry_unref(e);
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
