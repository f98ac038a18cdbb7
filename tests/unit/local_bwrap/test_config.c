/* What is refused before anything is touched. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <unistd.h>

#include "tests/unit/local_bwrap/world.h"

Test(local_config, bad_values_are_named)
{
    static const char *const fields[] = {"name",           "name",       "size",     "size",
                                         "mode",           "egress",     "egress_allow", "acquire_timeout",
                                         "disk_max",       "memory_max", "pids_max", "cpu_max",
                                         "health_interval"};
    for (size_t i = 0; i < SG_COUNT_OF(fields); i++) {
        struct sg_local_pool_config c = world_pool(2);
        struct sg_error err = {0};
        cr_assert_eq(sg_local_pool_config_check(&c, NULL), 0);
        c.name = i == 0 ? "" : i == 1 ? "Two Words" : c.name;
        c.size = i == 2 ? 0 : i == 3 ? SG_LOCAL_POOL_SIZE_MAX + 1 : c.size;
        c.mode = i == 4 ? SG_POOL_BLACKBOX : c.mode;
        const char *const bad[] = {"no port", NULL};
        c.egress = i == 5 ? SG_EGRESS_RESTRICTED : i == 6 ? SG_EGRESS_OPEN : c.egress;
        c.egress_allow = i == 6 ? bad : NULL;
        c.acquire_timeout_ms = i == 7 ? -1 : c.acquire_timeout_ms;
        c.disk_max = i == 8 ? 0 : c.disk_max;
        c.memory_max = i == 9 ? -1 : c.memory_max;
        c.pids_max = i == 10 ? -1 : c.pids_max;
        c.cpu_milli = i == 11 ? -1 : c.cpu_milli;
        c.health_interval_ms = i == 12 ? -1 : c.health_interval_ms;
        cr_expect_eq(sg_local_pool_config_check(&c, &err), -1, "case %zu", i);
        cr_expect_eq(err.code, SG_INVALID_REQUEST);
        cr_expect_str_eq(err.field, fields[i], "case %zu: %s", i, err.message);
    }
}

Test(local_config, two_pools_need_two_names_and_none_is_no_pool)
{
    struct world w;
    struct sg_error err = {0};
    const struct sg_local_pool_config pools[] = {world_pool(1), world_pool(1)};
    world_open_parts(&w, false, false);
    const struct sg_local_parts parts = {.reactor = w.reactor, .workq = w.workq, .spawner = w.spawner};
    cr_expect_eq(sg_local_bwrap_new(&parts, pools, 2, &w.d, &err), -1);
    cr_expect_str_eq(err.field, "name");
    cr_expect_eq(sg_local_bwrap_new(&parts, NULL, 0, &w.d, &err), -1);
    cr_expect_eq(err.code, SG_INVALID_REQUEST);
    world_close(&w);
}

Test(local_config, required_limits_that_nobody_enforces_stop_the_start)
{
    struct world w;
    struct sg_error err = {0};
    struct sg_local_pool_config c = world_pool(1);
    c.require_limits = true;
    world_open_parts(&w, false, true);
    const struct sg_local_parts parts = {.reactor = w.reactor, .workq = w.workq, .spawner = w.spawner};
    cr_expect_eq(sg_local_bwrap_new(&parts, &c, 1, &w.d, &err), -1);
    cr_expect_eq(err.code, SG_UNAVAILABLE);
    cr_expect_str_eq(err.field, "memory_max");
    world_close(&w);
}

Test(local_config, specs_are_checked_without_touching_a_slot)
{
    static const enum sg_code codes[] = {SG_OK,
                                         SG_POOL_NOT_FOUND,
                                         SG_POOL_MODE_MISMATCH,
                                         SG_POOL_REFUSED,
                                         SG_LIMIT_EXCEEDED,
                                         SG_LIMIT_EXCEEDED,
                                         SG_LIMIT_EXCEEDED,
                                         SG_LIMIT_EXCEEDED,
                                         SG_NOT_SUPPORTED,
                                         SG_OK,
                                         SG_OK};
    struct world w;
    const struct sg_local_pool_config c = world_pool(1);
    world_open(&w, false, &c, 1);
    for (size_t i = 0; i < SG_COUNT_OF(codes); i++) {
        struct sg_sandbox_spec spec = call_spec("lse_1");
        struct sg_error err = {0};
        spec.local_pool = i == 1 ? "other" : i == 10 ? "default" : NULL;
        spec.mode = i == 2 ? SG_MODE_BLACKBOX : SG_MODE_WHITEBOX;
        spec.egress_given = i == 3 || i == 9;
        spec.egress = i == 3 ? SG_EGRESS_OPEN : SG_EGRESS_LOOPBACK;
        spec.limits.memory_bytes = i == 4 ? c.memory_max + 1 : c.memory_max;
        spec.limits.pids = i == 5 ? c.pids_max + 1 : 0;
        spec.limits.cpu_milli = i == 6 ? c.cpu_milli + 1 : geteuid() == 0 ? 1 : 0; /* an ordinary user may have no groups */
        spec.limits.disk_bytes = i == 7 ? c.disk_max + 1 : 0;
        spec.image = i == 8 ? "debian" : NULL;
        cr_expect_eq(sg_driver_check(w.d, &spec, &err), codes[i] == SG_OK ? 0 : -1, "case %zu", i);
        cr_expect_eq(err.code, codes[i], "case %zu: %s", i, err.message);
        if (codes[i] == SG_POOL_MODE_MISMATCH) {
            cr_expect_str_eq(json_string_value(json_object_get(err.members, "setting")), "local_bwrap.mode");
            cr_expect(strstr(err.message, "blackbox") != NULL && strstr(err.message, "command_only") != NULL,
                      "%s", err.message);
        }
        if (codes[i] != SG_OK) {
            cr_expect_null(call_create(w.d, &spec, NULL), "create refuses it too");
        }
        sg_error_clear(&err);
    }
    cr_expect_leq(world_slot(&w, 0, 0).generation, 1);
    world_close(&w);
}

Test(local_config, facts_and_health)
{
    struct world w;
    const struct sg_local_pool_config c = world_pool(1);
    world_open(&w, false, &c, 1);
    cr_expect_str_eq(w.d->facts.name, "local_bwrap");
    cr_expect(w.d->facts.free);
    cr_expect_not(w.d->facts.outlives_server);
    cr_expect_eq(w.d->facts.caps & (unsigned)SG_CAP_NETWORK, 0);
    cr_assert(world_wait(&w, 0, 0, SG_SLOT_READY));
    cr_expect_eq(sg_driver_health(w.d, NULL), 0);
    world_close(&w);
}
