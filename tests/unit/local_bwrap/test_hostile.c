/* Leases that do their worst: what they reach is their own sandbox. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>

#include "base/clock.h"
#include "tests/unit/local_bwrap/world.h"

static bool variants[] = {false, true};
#define VARIANTS (cr_make_param_array(bool, variants, world_is_root() ? 2 : 1))

static void expect_works(struct sg_sandbox *sb)
{
    char *out = call_output(sb, "echo fine");
    cr_expect_str_eq(out != NULL ? out : "", "fine\n");
    free(out);
}

ParameterizedTestParameters(local_hostile, killing_everything_kills_only_ones_own)
{
    return VARIANTS;
}

ParameterizedTest(bool *user, local_hostile, killing_everything_kills_only_ones_own)
{
    struct world w;
    const struct sg_local_pool_config c = world_pool(2);
    struct run bystander;
    struct run r;
    world_open(&w, *user, &c, 1);
    struct sg_sandbox *bad = world_lease(&w, "lse_bad");
    struct sg_sandbox *good = world_lease(&w, "lse_good");
    cr_assert(bad != NULL && good != NULL);
    cr_assert(call_exec_begin(good, "sleep 1000", false, CALL_MS, &bystander));
    cr_assert(flag_wait(&bystander.started, 1, CALL_MS));
    call_exec(bad, "kill -9 1; kill -TERM 1; kill -STOP 1; kill -INT 1", NULL, &r);
    call_exec_finish(&r);
    expect_works(bad);
    call_exec(bad, "sleep 1000 >/dev/null 2>&1 & kill -9 -1; kill -9 2 3 4; true", NULL, &r);
    call_exec_finish(&r);
    /* With one uid for all, and helpers instead of groups, it may have killed a helper: then its sandbox is
     * given up. */
    call_exec(bad, "true", NULL, &r);
    cr_expect(!r.failed || (!world_is_root() && r.err.code == SG_SANDBOX_LOST), "%s", r.err.message);
    call_exec_finish(&r);
    expect_works(good);
    size_t g = strncmp(good->id, "default-0.", 10) == 0 ? 0 : 1;
    cr_expect_eq(world_slot(&w, 0, g).state, SG_SLOT_LEASED);
    cr_expect_not(bystander.done);
    call_end(bad);
    bystander.x->ops->kill(bystander.x, SG_KILLED_CALLER);
    call_exec_end(&bystander);
    cr_expect_eq(bystander.exit.killed_by, SG_KILLED_CALLER);
    call_exec_finish(&bystander);
    cr_assert(world_wait(&w, 0, 1 - g, SG_SLOT_READY));
    call_end(good);
    world_close(&w);
}

ParameterizedTestParameters(local_hostile, a_fork_bomb_stays_inside_and_dies)
{
    return VARIANTS;
}

ParameterizedTest(bool *user, local_hostile, a_fork_bomb_stays_inside_and_dies)
{
    struct world w;
    struct sg_local_pool_config c = world_pool(2);
    struct run bomb;
    struct run r;
    c.pids_max = 100;
    world_open(&w, *user, &c, 1);
    struct sg_sandbox *bad = world_lease(&w, "lse_bad");
    struct sg_sandbox *good = world_lease(&w, "lse_good");
    cr_assert(bad != NULL && good != NULL);
    cr_assert(call_exec_begin(bad, "f() { f | f & sleep 0.2; }; f >/dev/null 2>&1; sleep 1000", false,
                              CALL_MS, &bomb));
    cr_assert(flag_wait(&bomb.started, 1, CALL_MS));
    for (int i = 0; i < 5; i++) {
        expect_works(good);
    }
    bomb.x->ops->kill(bomb.x, SG_KILLED_CALLER);
    call_exec_end(&bomb);
    call_exec_finish(&bomb);
    call_exec(bad, "true", NULL, &r); /* the kill was exact: there is room again */
    cr_expect_eq(r.exit.returncode, 0, "%s %s", r.err.message, r.errout);
    call_exec_finish(&r);
    cr_assert(call_exec_begin(bad, "f() { f | f & sleep 0.2; }; f >/dev/null 2>&1; sleep 1000", false,
                              CALL_MS, &bomb));
    cr_expect_eq(call_terminate(bad, NULL), 0, "the end of the lease ends it too");
    call_exec_end(&bomb);
    call_exec_finish(&bomb);
    sg_sandbox_unref(bad);
    expect_works(good);
    call_end(good);
    cr_assert(world_wait_ready(&w));
    world_close(&w);
}

Test(local_hostile, a_full_disk_is_ones_own_and_gone_with_the_lease)
{
    struct world w;
    struct sg_local_pool_config c = world_pool(2);
    struct sg_error err = {0};
    struct run r;
    c.disk_max = (int64_t)8 * 1024 * 1024;
    world_open(&w, false, &c, 1);
    struct sg_sandbox *bad = world_lease(&w, "lse_bad");
    struct sg_sandbox *good = world_lease(&w, "lse_good");
    cr_assert(bad != NULL && good != NULL);
    call_exec(bad, "head -c 50000000 /dev/zero > /workspace/big", NULL, &r);
    cr_expect_neq(r.exit.returncode, 0);
    call_exec_finish(&r);
    char block[65536] = {1};
    cr_expect_eq(call_put(bad, "more", block, sizeof block, false, &err), -1);
    cr_expect_eq(err.code, SG_SANDBOX_DISK_FULL, "%s", err.message);
    cr_expect_eq(call_put(good, "more", block, sizeof block, false, &err), 0);
    size_t b = strncmp(bad->id, "default-0.", 10) == 0 ? 0 : 1;
    call_end(bad);
    cr_assert(world_wait(&w, 0, b, SG_SLOT_READY));
    bad = world_lease(&w, "lse_next");
    cr_assert_not_null(bad);
    cr_expect_eq(call_put(bad, "more", block, sizeof block, false, &err), 0, "%s", err.message);
    call_end(bad);
    call_end(good);
    world_close(&w);
}
