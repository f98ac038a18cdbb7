/* Creates and their order; what a lease is. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <jansson.h>

#include "tests/unit/local_bwrap/world.h"

/* As root everything runs twice: as a root server and as an ordinary user's. */
static bool variants[] = {false, true};
#define VARIANTS (cr_make_param_array(bool, variants, world_is_root() ? 2 : 1))

ParameterizedTestParameters(local_lease, is_fresh)
{
    return VARIANTS;
}

ParameterizedTest(bool *user, local_lease, is_fresh)
{
    static const char *const leave =
        "for d in /workspace /home/sandbox /tmp /dev/shm /run; do echo x > $d/left; done;"
        "setsid sh -c 'sleep 1000' >/dev/null 2>&1 & sleep 1000 >/dev/null 2>&1 & echo ok";
    static const char *const look = "ls -A /workspace /home/sandbox /tmp /dev/shm /run; cat "
                                    "/proc/[0-9]*/comm 2>/dev/null | grep -x sleep; true";
    struct world w;
    const struct sg_local_pool_config c = world_pool(1);
    world_open(&w, *user, &c, 1);
    struct sg_sandbox *sb = world_lease(&w, "lse_1");
    cr_assert_not_null(sb);
    char first[64];
    (void)snprintf(first, sizeof first, "%s", sb->id);
    char *before = call_output(sb, look);
    char *out = call_output(sb, leave);
    cr_expect_str_eq(out, "ok\n");
    call_end(sb);
    free(out);
    sb = world_lease(&w, "lse_2");
    cr_assert_not_null(sb);
    cr_expect_str_neq(sb->id, first);
    out = call_output(sb, look);
    cr_expect_str_eq(out, before, "files or processes were left");
    free(out);
    free(before);
    call_end(sb);
    world_close(&w);
}

ParameterizedTestParameters(local_lease, says_what_it_is)
{
    return VARIANTS;
}

ParameterizedTest(bool *user, local_lease, says_what_it_is)
{
    struct world w;
    const struct sg_local_pool_config c = world_pool(1);
    bool root = world_is_root() && !*user;
    world_open(&w, *user, &c, 1);
    struct sg_sandbox *sb = world_lease(&w, "lse_1");
    cr_assert_not_null(sb);
    json_t *m = sg_sandbox_metadata(sb);
    cr_assert_not_null(m);
    cr_expect_str_eq(json_string_value(json_object_get(m, "isolation")), "bwrap");
    cr_expect_str_eq(json_string_value(json_object_get(m, "slot")), "default-0");
    cr_expect_str_eq(json_string_value(json_object_get(m, "local_pool")), "default");
    cr_expect_str_eq(json_string_value(json_object_get(m, "mode")), "command_only");
    cr_expect_eq(json_integer_value(json_object_get(m, "generation")), 1);
    cr_expect_str_eq(json_string_value(json_object_get(m, "agent_isolation")), root ? "uid" : "dumpable");
    cr_expect_not_null(json_object_get(json_object_get(m, "limits_enforced"), "memory"));
    cr_expect_not_null(json_object_get(m, "tree_kill"));
    json_decref(m);
    char *out = call_output(sb, "id -u; pwd; echo $HOME");
    cr_expect(out != NULL && strncmp(out, "1000\n/workspace\n", 16) == 0, "%s", out);
    free(out);
    struct sg_slot_info info = world_slot(&w, 0, 0);
    cr_expect_str_eq(info.lease_id, "lse_1");
    cr_expect_eq(info.state, SG_SLOT_LEASED);
    call_end(sb);
    cr_expect_str_eq(world_slot(&w, 0, 0).lease_id, "");
    world_close(&w);
}

Test(local_lease, waiters_are_served_in_arrival_order)
{
    enum { N = 5 };
    struct world w;
    const struct sg_local_pool_config c = world_pool(1);
    struct creating waiting[N];
    struct sg_sandbox_spec spec = call_spec("lse_n");
    unsigned order = 0;
    world_open(&w, false, &c, 1);
    struct sg_sandbox *sb = world_lease(&w, "lse_1");
    cr_assert_not_null(sb);
    for (size_t i = 0; i < N; i++) {
        waiting[i].order = &order;
        call_create_begin(w.d, &spec, NULL, &waiting[i]);
    }
    for (size_t i = 0; i < N; i++) {
        cr_expect_not(flag_wait(&waiting[i].flag, 1, 0));
        call_end(sb);
        sb = call_create_end(&waiting[i]);
        cr_assert_not_null(sb, "%s", waiting[i].err.message);
        cr_expect_eq(waiting[i].place, i + 1);
    }
    call_end(sb);
    world_close(&w);
}

Test(local_lease, the_least_recently_used_slot_is_taken)
{
    struct world w;
    const struct sg_local_pool_config c = world_pool(3);
    char seen[4][64];
    world_open(&w, false, &c, 1);
    cr_assert(world_wait_ready(&w));
    for (size_t i = 0; i < 4; i++) {
        struct sg_sandbox *sb = world_lease(&w, "lse_1");
        cr_assert_not_null(sb);
        (void)snprintf(seen[i], sizeof seen[i], "%s", sb->id);
        *strchr(seen[i], '.') = '\0';
        call_end(sb);
        cr_assert(world_wait_ready(&w));
    }
    cr_expect_str_neq(seen[0], seen[1]);
    cr_expect_str_neq(seen[1], seen[2]);
    cr_expect_str_neq(seen[0], seen[2]);
    cr_expect_str_eq(seen[0], seen[3]);
    world_close(&w);
}

Test(local_lease, a_wait_ends_by_timeout_or_cancel_and_takes_nothing)
{
    struct world w;
    const struct sg_local_pool_config c = world_pool(1);
    struct sg_sandbox_spec spec = call_spec("lse_2");
    struct sg_error err = {0};
    world_open(&w, false, &c, 1);
    struct sg_sandbox *sb = world_lease(&w, "lse_1");
    cr_assert_not_null(sb);
    spec.acquire_timeout_ms = 30;
    cr_expect_null(call_create(w.d, &spec, &err));
    cr_expect_eq(err.code, SG_ACQUIRE_TIMEOUT);
    cr_expect_gt(err.retry_after, 0);
    spec.acquire_timeout_ms = CALL_MS;
    struct sg_cancel *cancel = sg_cancel_new();
    struct creating cancelled = {0};
    struct creating next = {0};
    call_create_begin(w.d, &spec, cancel, &cancelled);
    call_create_begin(w.d, &spec, NULL, &next);
    cr_expect_not(flag_wait(&cancelled.flag, 1, 20));
    sg_cancel_fire(cancel, SG_CANCEL_HANGUP);
    cr_expect_null(call_create_end(&cancelled));
    cr_expect_eq(cancelled.err.code, SG_CANCELLED);
    call_end(sb);
    sb = call_create_end(&next);
    cr_assert_not_null(sb);
    cr_expect_null(
        call_create(w.d, &(struct sg_sandbox_spec){.lease_id = "x", .acquire_timeout_ms = 1}, &err));
    call_end(sb);
    cr_assert(world_wait(&w, 0, 0, SG_SLOT_READY));
    sg_cancel_unref(cancel);
    world_close(&w);
}

Test(local_lease, the_queue_is_bounded)
{
    struct world w;
    struct sg_local_pool_config c = world_pool(1);
    struct sg_sandbox_spec spec = call_spec("lse_2");
    struct creating waiting = {0};
    struct sg_error err = {0};
    c.waiters_max = 1;
    world_open(&w, false, &c, 1);
    struct sg_sandbox *sb = world_lease(&w, "lse_1");
    cr_assert_not_null(sb);
    call_create_begin(w.d, &spec, NULL, &waiting);
    cr_expect_null(call_create(w.d, &spec, &err));
    cr_expect_eq(err.code, SG_OVERLOADED);
    cr_expect_gt(err.retry_after, 0);
    call_end(sb);
    sb = call_create_end(&waiting);
    cr_assert_not_null(sb);
    call_end(sb);
    world_close(&w);
}

Test(local_lease, the_end_of_the_driver_answers_waiters_and_ends_leases)
{
    struct world w;
    const struct sg_local_pool_config c = world_pool(1);
    struct sg_sandbox_spec spec = call_spec("lse_2");
    struct creating waiting = {0};
    struct run r;
    world_open(&w, false, &c, 1);
    struct sg_sandbox *sb = world_lease(&w, "lse_1");
    cr_assert_not_null(sb);
    call_create_begin(w.d, &spec, NULL, &waiting);
    cr_assert(call_exec_begin(sb, "sleep 1000", false, CALL_MS, &r));
    cr_assert(flag_wait(&r.started, 1, CALL_MS));
    struct sg_sandbox *kept = sg_sandbox_ref(sb);
    call_exec_end((r.x->ops->kill(r.x, SG_KILLED_LEASE_END), &r));
    cr_expect_eq(r.exit.killed_by, SG_KILLED_LEASE_END);
    call_exec_finish(&r);
    w.d = sg_driver_free(w.d);
    cr_expect_null(call_create_end(&waiting));
    cr_expect_eq(waiting.err.code, SG_SHUTTING_DOWN);
    cr_expect_eq(world_processes(&w, "sleep", NULL, 0), 0);
    cr_expect_eq(world_processes(&w, "agent", NULL, 0), 0);
    cr_expect_eq(call_terminate(sb, NULL), 0);
    sg_sandbox_unref(kept);
    sg_sandbox_unref(sb);
    world_close(&w);
}

Test(local_lease, pools_do_not_mix)
{
    struct world w;
    struct sg_local_pool_config pools[] = {world_pool(1), world_pool(2)};
    struct sg_error err = {0};
    pools[1].name = "second";
    world_open(&w, false, pools, 2);
    struct sg_sandbox_spec spec = call_spec("lse_1");
    spec.local_pool = "second";
    struct sg_sandbox *a = call_create(w.d, &spec, &err);
    struct sg_sandbox *b = call_create(w.d, &spec, &err);
    cr_assert(a != NULL && b != NULL, "%s", err.message);
    cr_expect_eq(strncmp(a->id, "second-", 7), 0);
    cr_expect_eq(strncmp(b->id, "second-", 7), 0);
    spec.acquire_timeout_ms = 20;
    cr_expect_null(call_create(w.d, &spec, &err));
    struct sg_sandbox *first = world_lease(&w, "lse_2");
    cr_assert_not_null(first);
    cr_expect_eq(strncmp(first->id, "default-", 8), 0);
    call_end(first);
    call_end(a);
    call_end(b);
    world_close(&w);
}
