/* Slots: deaths, releases, descriptors that outlive a lease, operators. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/unit/local_bwrap/world.h"

static bool variants[] = {false, true};
#define VARIANTS (cr_make_param_array(bool, variants, world_is_root() ? 2 : 1))

static void count_lost(void *arg, struct sg_sandbox *sb, const struct sg_error *why)
{
    (void)sb;
    cr_expect_eq(why->code, SG_SANDBOX_LOST);
    cr_expect_neq(why->reason[0], '\0');
    flag_raise(arg);
}

/* Kills the only agent there is: the oldest process of that name, helpers over commands have it too. */
static void kill_agent(struct world *w)
{
    pid_t pid = 0;
    cr_assert_geq(world_processes(w, "agent", &pid, 1), 1);
    cr_assert_eq(kill(pid, SIGKILL), 0);
}

static bool wait_generation(struct world *w, uint64_t generation)
{
    for (int i = 0; i < 5000; i++) {
        if (world_slot(w, 0, 0).generation >= generation) {
            return world_wait(w, 0, 0, SG_SLOT_READY);
        }
        (void)usleep(2000);
    }
    return false;
}

ParameterizedTestParameters(local_slot, a_ready_one_that_dies_is_rebuilt)
{
    return VARIANTS;
}

ParameterizedTest(bool *user, local_slot, a_ready_one_that_dies_is_rebuilt)
{
    struct world w;
    const struct sg_local_pool_config c = world_pool(1);
    world_open(&w, *user, &c, 1);
    cr_assert(world_wait_ready(&w));
    uint64_t before = world_slot(&w, 0, 0).generation;
    kill_agent(&w);
    cr_assert(wait_generation(&w, before + 1));
    struct sg_slot_info info = world_slot(&w, 0, 0);
    cr_expect_neq(info.last_error[0], '\0');
    struct sg_sandbox *sb = world_lease(&w, "lse_1");
    cr_assert_not_null(sb);
    char *out = call_output(sb, "echo alive");
    cr_expect_str_eq(out, "alive\n");
    free(out);
    call_end(sb);
    world_close(&w);
}

ParameterizedTestParameters(local_slot, a_leased_one_that_dies_is_lost)
{
    return VARIANTS;
}

ParameterizedTest(bool *user, local_slot, a_leased_one_that_dies_is_lost)
{
    struct world w;
    const struct sg_local_pool_config c = world_pool(1);
    struct flag lost = FLAG_INIT;
    struct run running;
    struct run late;
    struct sg_error err = {0};
    world_open(&w, *user, &c, 1);
    struct sg_sandbox *sb = world_lease(&w, "lse_1");
    cr_assert_not_null(sb);
    sg_sandbox_on_lost(sb, count_lost, &lost);
    cr_assert(call_exec_begin(sb, "echo begun; sleep 1000", false, CALL_MS, &running));
    cr_assert(flag_wait(&running.started, 1, CALL_MS));
    kill_agent(&w);
    cr_assert(flag_wait(&lost, 1, CALL_MS));
    call_exec_end(&running);
    cr_expect(running.failed);
    cr_expect_eq(running.err.code, SG_SANDBOX_LOST, "%s", running.err.message);
    cr_expect_not(call_exec_begin(sb, "true", false, CALL_MS, &late));
    cr_expect_eq(late.err.code, SG_SANDBOX_LOST);
    cr_expect_null(call_get(sb, "/etc/passwd", NULL, &err));
    cr_expect_eq(err.code, SG_SANDBOX_LOST);
    call_exec_finish(&running);
    call_exec_finish(&late);
    struct sg_slot_info info = world_slot(&w, 0, 0);
    cr_expect_eq(info.state, SG_SLOT_LOST);
    cr_expect_str_eq(info.lease_id, "lse_1");
    cr_expect_eq(call_terminate(sb, NULL), 0);
    cr_expect_eq(call_terminate(sb, NULL), 0);
    sg_sandbox_unref(sb);
    cr_assert(world_wait(&w, 0, 0, SG_SLOT_READY));
    cr_expect_eq(lost.count, 1);
    world_close(&w);
}

Test(local_slot, one_that_dies_again_and_again_is_failed_until_it_works)
{
    struct world w;
    const struct sg_local_pool_config c = world_pool(1);
    struct sg_sandbox_spec spec = call_spec("lse_1");
    struct sg_error err = {0};
    world_open(&w, false, &c, 1);
    for (int i = 0; i < 4; i++) {
        cr_assert(world_wait(&w, 0, 0, SG_SLOT_READY));
        cr_expect_eq(sg_driver_health(w.d, NULL), 0);
        kill_agent(&w);
        cr_assert(i == 3 ? world_wait(&w, 0, 0, SG_SLOT_FAILED) : wait_generation(&w, (uint64_t)i + 2));
    }
    cr_expect_eq(sg_driver_health(w.d, &err), -1);
    cr_expect_eq(err.code, SG_UNAVAILABLE);
    cr_expect_null(call_create(w.d, &spec, &err));
    cr_expect_eq(err.code, SG_UNAVAILABLE);
    cr_expect_gt(err.retry_after, 0);
    cr_expect_neq(world_slot(&w, 0, 0).last_error[0], '\0');
    cr_assert_eq(w.d->ops->slots->recycle(w.d, NULL, "default-0", false, &err), 0);
    cr_assert(world_wait(&w, 0, 0, SG_SLOT_READY));
    cr_expect_eq(sg_driver_health(w.d, NULL), 0);
    world_close(&w);
}

Test(local_slot, a_lost_lease_that_is_only_dropped_frees_its_slot)
{
    struct world w;
    const struct sg_local_pool_config c = world_pool(1);
    struct flag lost = FLAG_INIT;
    world_open(&w, false, &c, 1);
    struct sg_sandbox *sb = world_lease(&w, "lse_1");
    cr_assert_not_null(sb);
    sg_sandbox_on_lost(sb, count_lost, &lost);
    kill_agent(&w);
    cr_assert(flag_wait(&lost, 1, CALL_MS));
    sg_sandbox_unref(sb);
    cr_assert(world_wait(&w, 0, 0, SG_SLOT_READY));
    world_close(&w);
}

/* ---- releases ---- */

Test(local_slot, many_leases_leave_nothing, .timeout = 110)
{
    enum { WARM = 20, CYCLES = 200 };
    struct world w;
    const struct sg_local_pool_config c = world_pool(2);
    world_open(&w, false, &c, 1);
    size_t fds = 0;
    size_t processes = 0;
    size_t mounts = 0;
    size_t groups = 0;
    for (unsigned i = 0; i < WARM + CYCLES; i++) {
        if (i == WARM) {
            cr_assert(world_wait_ready(&w));
            fds = world_open_fds();
            processes = world_processes(&w, NULL, NULL, 0);
            mounts = world_mounts(&w);
            groups = world_groups(&w);
        }
        struct sg_sandbox *sb = world_lease(&w, "lse_1");
        cr_assert_not_null(sb);
        if (i < WARM || i % 20 == 0) {
            char *out = call_output(sb, "sleep 1000 >/dev/null 2>&1 & echo x > /tmp/x; echo ok");
            cr_expect_str_eq(out, "ok\n");
            free(out);
        }
        call_end(sb);
    }
    cr_assert(world_wait_ready(&w));
    size_t fds_now = world_open_fds();
    cr_expect_leq(fds_now, fds, "%zu descriptors, %zu before", fds_now, fds);
    cr_expect_leq(world_processes(&w, NULL, NULL, 0), processes);
    cr_expect_leq(world_mounts(&w), mounts);
    cr_expect_leq(world_groups(&w), groups);
    cr_expect(groups > 0 || sg_spawner_facts(w.spawner)->tree_kill != SG_TREE_KILL_CGROUP);
    cr_expect_eq(world_processes(&w, "sleep", NULL, 0), 0);
    world_close(&w);
    cr_expect_eq(world_groups(&w), 0);
}

ParameterizedTestParameters(local_slot, terminate_ends_running_commands)
{
    return VARIANTS;
}

ParameterizedTest(bool *user, local_slot, terminate_ends_running_commands)
{
    enum { N = 8 };
    struct world w;
    const struct sg_local_pool_config c = world_pool(1);
    struct run runs[N];
    world_open(&w, *user, &c, 1);
    struct sg_sandbox *sb = world_lease(&w, "lse_1");
    cr_assert_not_null(sb);
    for (size_t i = 0; i < N; i++) {
        cr_assert(call_exec_begin(sb, "setsid sleep 1000 & sleep 1000", false, CALL_MS, &runs[i]));
        cr_assert(flag_wait(&runs[i].started, 1, CALL_MS));
    }
    cr_expect_eq(call_terminate(sb, NULL), 0);
    cr_expect_eq(world_processes(&w, "sleep", NULL, 0), 0, "done means that nothing runs");
    for (size_t i = 0; i < N; i++) {
        call_exec_end(&runs[i]);
        cr_expect(runs[i].failed, "never a made-up exit");
        call_exec_finish(&runs[i]);
    }
    struct run late;
    cr_expect_not(call_exec_begin(sb, "true", false, CALL_MS, &late));
    cr_expect_eq(late.err.code, SG_LEASE_GONE);
    call_exec_finish(&late);
    sg_sandbox_unref(sb);
    cr_assert(world_wait(&w, 0, 0, SG_SLOT_READY));
    world_close(&w);
}

/* The slot must stay out of use while something of its last sandbox is open here, and come back right after.
 */
static void expect_held(struct world *w)
{
    (void)usleep(150000); /* a rebuild takes a tenth of that */
    struct sg_slot_info info = world_slot(w, 0, 0);
    cr_expect_eq(info.state, SG_SLOT_RESETTING, "%s", sg_slot_state_name(info.state));
    cr_expect_gt(info.open_fds, 0);
}

Test(local_slot, an_open_file_keeps_the_slot_back)
{
    struct world w;
    const struct sg_local_pool_config c = world_pool(1);
    struct sg_hold *hold = NULL;
    struct sg_error err = {0};
    char text[8] = "";
    world_open(&w, false, &c, 1);
    struct sg_sandbox *sb = world_lease(&w, "lse_1");
    cr_assert_not_null(sb);
    cr_assert_eq(call_put(sb, "f", "secret", 6, false, &err), 0, "%s", err.message);
    int fd = call_get_fd(sb, "f", &hold, NULL, &err);
    cr_assert_geq(fd, 0, "%s", err.message);
    cr_assert_not_null(hold);
    call_end(sb);
    expect_held(&w);
    cr_expect_eq(pread(fd, text, sizeof text - 1, 0), 6, "still the old content");
    sg_close(fd);
    sg_hold_unref(hold);
    cr_assert(world_wait(&w, 0, 0, SG_SLOT_READY));
    world_close(&w);
}

Test(local_slot, an_upload_keeps_the_slot_back)
{
    struct world w;
    const struct sg_local_pool_config c = world_pool(1);
    struct sg_error err = {0};
    world_open(&w, false, &c, 1);
    struct sg_sandbox *sb = world_lease(&w, "lse_1");
    cr_assert_not_null(sb);
    struct sg_file_sink *sink = call_put_open(sb, "f", false, &err);
    cr_assert_not_null(sink, "%s", err.message);
    call_end(sb);
    expect_held(&w);
    cr_expect_eq(call_put_commit(sink, NULL, NULL, &err), -1, "no success for a sandbox that is gone");
    cr_assert(world_wait(&w, 0, 0, SG_SLOT_READY));
    world_close(&w);
}

Test(local_slot, a_connection_keeps_the_slot_back)
{
    static const char *const server =
        "exec perl -e 'use Socket; socket(S, PF_INET, SOCK_STREAM, 0) or die; "
        "bind(S, sockaddr_in(8080, INADDR_LOOPBACK)) or die; listen(S, 5) or die; $| = 1; print \"up\\n\"; "
        "accept(C, S); sleep 1000'";
    struct world w;
    const struct sg_local_pool_config c = world_pool(1);
    struct sg_hold *hold = NULL;
    struct sg_error err = {0};
    struct run r;
    world_open(&w, false, &c, 1);
    struct sg_sandbox *sb = world_lease(&w, "lse_1");
    cr_assert_not_null(sb);
    cr_expect_eq(call_dial(sb, 8080, &hold, &err), -1);
    cr_expect_eq(err.code, SG_ENDPOINT_NOT_LISTENING, "%s", err.message);
    cr_assert(call_exec_begin(sb, server, false, CALL_MS, &r));
    cr_assert(flag_wait(&r.flag, 1, CALL_MS));
    int fd = call_dial(sb, 8080, &hold, &err);
    cr_assert_geq(fd, 0, "%s", err.message);
    call_terminate(sb, NULL);
    call_exec_end(&r);
    call_exec_finish(&r);
    sg_sandbox_unref(sb);
    expect_held(&w);
    sg_close(fd);
    sg_hold_unref(hold);
    cr_assert(world_wait(&w, 0, 0, SG_SLOT_READY));
    world_close(&w);
}

Test(local_slot, a_command_nobody_has_let_go_of_keeps_the_slot_back)
{
    struct world w;
    const struct sg_local_pool_config c = world_pool(1);
    struct run r;
    world_open(&w, false, &c, 1);
    struct sg_sandbox *sb = world_lease(&w, "lse_1");
    cr_assert_not_null(sb);
    cr_assert(call_exec_begin(sb, "sleep 1000", false, CALL_MS, &r));
    call_end(sb);
    call_exec_end(&r);
    call_exec_finish(&r);
    cr_assert(world_wait(&w, 0, 0, SG_SLOT_READY));
    world_close(&w);
}

/* ---- operators ---- */

Test(local_slot, drain_refuses_and_undrain_serves_again)
{
    struct world w;
    const struct sg_local_pool_config c = world_pool(1);
    struct sg_sandbox_spec spec = call_spec("lse_2");
    struct creating waiting = {0};
    struct sg_error err = {0};
    struct sg_slot_report report = {0};
    world_open(&w, false, &c, 1);
    const struct sg_slot_ops *slots = w.d->ops->slots;
    struct sg_sandbox *sb = world_lease(&w, "lse_1");
    cr_assert_not_null(sb);
    call_create_begin(w.d, &spec, NULL, &waiting);
    cr_expect_eq(slots->drain(w.d, "nonsense", NULL, true, &err), -1);
    cr_expect_eq(err.code, SG_POOL_NOT_FOUND);
    cr_expect_eq(slots->drain(w.d, "default", NULL, true, &err), 0);
    cr_expect_null(call_create_end(&waiting));
    cr_expect_eq(waiting.err.code, SG_UNAVAILABLE);
    cr_expect_str_eq(waiting.err.reason, "pool_draining");
    cr_expect_null(call_create(w.d, &spec, &err));
    cr_expect_str_eq(err.reason, "pool_draining");
    slots->report(w.d, &report);
    cr_expect(report.pools[0].draining);
    cr_expect_eq(report.pools[0].waiters, 0);
    sg_slot_report_finish(&report);
    char *out = call_output(sb, "echo still here");
    cr_expect_str_eq(out, "still here\n");
    free(out);
    call_end(sb);
    cr_assert(world_wait(&w, 0, 0, SG_SLOT_READY));
    cr_expect_eq(slots->drain(w.d, NULL, NULL, false, &err), 0);
    sb = world_lease(&w, "lse_3");
    cr_assert_not_null(sb);
    call_end(sb);
    world_close(&w);
}

Test(local_slot, recycle_rebuilds_what_is_not_leased)
{
    struct world w;
    const struct sg_local_pool_config c = world_pool(2);
    struct sg_error err = {0};
    world_open(&w, false, &c, 1);
    const struct sg_slot_ops *slots = w.d->ops->slots;
    cr_assert(world_wait_ready(&w));
    struct sg_sandbox *sb =
        world_lease(&w, "lse_1"); /* slot 0: the longest READY, or whichever was built first */
    cr_assert_not_null(sb);
    size_t leased = world_slot(&w, 0, 0).state == SG_SLOT_LEASED ? 0 : 1;
    char name[80];
    (void)snprintf(name, sizeof name, "default-%zu", leased);
    cr_expect_eq(slots->recycle(w.d, NULL, name, false, &err), -1);
    cr_expect_eq(err.code, SG_CONFLICT);
    cr_expect_eq(slots->recycle(w.d, NULL, "default-7", false, &err), -1);
    cr_expect_eq(err.code, SG_NOT_FOUND);
    cr_expect_eq(slots->recycle(w.d, NULL, NULL, false, &err), 0);
    for (int i = 0; i < 5000 && world_slot(&w, 0, 1 - leased).generation < 2; i++) {
        (void)usleep(2000);
    }
    cr_expect_eq(world_slot(&w, 0, 1 - leased).generation, 2);
    cr_expect_eq(world_slot(&w, 0, leased).generation, 1);
    cr_assert(world_wait(&w, 0, 1 - leased, SG_SLOT_READY));
    call_end(sb);
    world_close(&w);
}

Test(local_slot, a_drained_slot_waits_until_it_is_undrained)
{
    struct world w;
    const struct sg_local_pool_config c = world_pool(2);
    struct sg_sandbox_spec spec = call_spec("lse_2");
    struct creating waiting = {0};
    struct sg_error err = {0};
    world_open(&w, false, &c, 1);
    const struct sg_slot_ops *slots = w.d->ops->slots;
    cr_assert(world_wait_ready(&w));
    cr_expect_eq(slots->drain(w.d, NULL, "default-2", true, &err), -1);
    cr_expect_eq(err.code, SG_NOT_FOUND);
    cr_assert_eq(slots->drain(w.d, NULL, "default-0", true, &err), 0);
    cr_assert_eq(slots->drain(w.d, NULL, "default-0", true, &err), 0, "again is fine");
    cr_expect(world_slot(&w, 0, 0).draining && !world_slot(&w, 0, 1).draining);
    struct sg_sandbox *sb = world_lease(&w, "lse_1");
    cr_assert_not_null(sb);
    cr_expect_str_eq(world_slot(&w, 0, 1).lease_id, "lse_1");
    call_create_begin(w.d, &spec, NULL, &waiting); /* the other one is busy, so it waits: for this one or for the drained one */
    cr_assert_eq(slots->drain(w.d, NULL, "default-0", false, &err), 0);
    struct sg_sandbox *other = call_create_end(&waiting);
    cr_assert_not_null(other, "%s", waiting.err.message);
    cr_expect_str_eq(world_slot(&w, 0, 0).lease_id, "lse_2");
    cr_assert_eq(slots->drain(w.d, NULL, "default-0", true, &err), 0);
    cr_assert_eq(slots->drain(w.d, NULL, "default-1", true, &err), 0);
    cr_expect_null(call_create(w.d, &spec, &err));
    cr_expect_str_eq(err.reason, "pool_draining");
    call_end(sb);
    call_end(other);
    cr_assert(world_wait_ready(&w), "it is built all the same");
    cr_assert_eq(slots->drain(w.d, NULL, NULL, false, &err), 0);
    cr_expect(!world_slot(&w, 0, 0).draining && !world_slot(&w, 0, 1).draining);
    call_end(world_lease(&w, "lse_3"));
    sg_error_clear(&err);
    world_close(&w);
}

/* What a pool says of its slots, counted here as well. */
struct heard {
    unsigned n[SG_SLOT_EVENTS];
    char last[SG_ID_MAX];
};

static void hear(void *arg, const struct sg_slot_event *e)
{
    struct heard *h = arg;
    h->n[e->kind]++;
    (void)snprintf(h->last, sizeof h->last, "%s", e->lease_id);
    cr_expect_str_eq(e->pool, "default");
    cr_expect_str_eq(e->slot, "default-0");
    cr_expect_eq(e->err != NULL, e->kind == SG_SLOT_DIED || e->kind == SG_SLOT_TAKEN || e->kind == SG_SLOT_GAVE_UP ||
                                     e->kind == SG_SLOT_BUILD_FAILED);
}

Test(local_slot, a_hard_reset_takes_a_leased_slot_away_and_events_tell)
{
    struct world w;
    struct heard heard = {0};
    struct flag lost = FLAG_INIT;
    struct sg_error err = {0};
    struct sg_slot_report report = {0};
    const struct sg_local_pool_config c = world_pool(1);
    world_open_parts(&w, false, false);
    const struct sg_local_parts parts = {
        .reactor = w.reactor, .workq = w.workq, .spawner = w.spawner, .event = hear, .event_arg = &heard};
    cr_assert_eq(sg_local_bwrap_new(&parts, &c, 1, &w.d, &err), 0);
    struct sg_sandbox *sb = world_lease(&w, "lse_1");
    cr_assert_not_null(sb);
    sg_sandbox_on_lost(sb, count_lost, &lost);
    cr_expect_eq(w.d->ops->slots->recycle(w.d, NULL, NULL, false, &err), 0, "soft: nothing to do");
    free(call_output(sb, "true"));
    cr_expect_eq(w.d->ops->slots->recycle(w.d, NULL, "default-0", true, &err), 0);
    cr_assert(flag_wait(&lost, 1, CALL_MS));
    cr_expect_eq(world_slot(&w, 0, 0).state, SG_SLOT_LOST);
    cr_expect_eq(w.d->ops->slots->recycle(w.d, NULL, "default-0", true, &err), 0, "again: it is on its way");
    call_end(sb);
    cr_assert(world_wait(&w, 0, 0, SG_SLOT_READY));
    kill_agent(&w);
    cr_assert(wait_generation(&w, 3));
    cr_expect_eq(w.d->ops->slots->recycle(w.d, NULL, "default-0", true, &err), 0);
    cr_assert(wait_generation(&w, 4));
    w.d->ops->slots->report(w.d, &report);
    for (size_t i = 0; i < SG_SLOT_EVENTS; i++) {
        static const unsigned expected[SG_SLOT_EVENTS] = {
            [SG_SLOT_BUILT] = 4, [SG_SLOT_TAKEN] = 1, [SG_SLOT_RELEASED] = 1, [SG_SLOT_DIED] = 1, [SG_SLOT_RECYCLED] = 1};
        cr_expect_eq(report.pools[0].events[i], expected[i], "%s: %llu", sg_slot_event_name((enum sg_slot_event_kind)i),
                     (unsigned long long)report.pools[0].events[i]);
    }
    sg_slot_report_finish(&report);
    world_close(&w);
    cr_expect_eq(heard.n[SG_SLOT_BUILT], 4);
    cr_expect_eq(heard.n[SG_SLOT_TAKEN], 1);
}

Test(local_slot, a_late_end_of_an_old_lease_does_not_touch_the_next_one)
{
    struct world w;
    const struct sg_local_pool_config c = world_pool(1);
    world_open(&w, false, &c, 1);
    struct sg_sandbox *old = world_lease(&w, "lse_1");
    cr_assert_not_null(old);
    cr_expect_eq(call_terminate(old, NULL), 0);
    struct sg_sandbox *now = world_lease(&w, "lse_2");
    cr_assert_not_null(now);
    cr_expect_eq(world_slot(&w, 0, 0).generation, 2);
    for (int i = 0; i < 5; i++) {
        cr_expect_eq(call_terminate(old, NULL), 0);
    }
    sg_sandbox_unref(old);
    char *out = call_output(now, "echo still here");
    cr_expect_str_eq(out, "still here\n");
    free(out);
    struct sg_slot_info info = world_slot(&w, 0, 0);
    cr_expect(info.state == SG_SLOT_LEASED && info.generation == 2);
    cr_expect_str_eq(info.lease_id, "lse_2");
    call_end(now);
    world_close(&w);
}

Test(local_slot, health_checks_leave_good_slots_alone)
{
    struct world w;
    struct sg_local_pool_config c = world_pool(1);
    c.health_interval_ms = 10;
    world_open(&w, false, &c, 1);
    cr_assert(world_wait_ready(&w));
    (void)usleep(100000);
    struct sg_slot_info info = world_slot(&w, 0, 0);
    cr_expect_eq(info.generation, 1);
    cr_expect_eq(info.state, SG_SLOT_READY);
    cr_expect_gt(info.uptime_ms, 50);
    world_close(&w);
}

Test(local_slot, without_its_spawner_nothing_is_healthy)
{
    struct world w;
    const struct sg_local_pool_config c = world_pool(2);
    struct flag lost = FLAG_INIT;
    struct sg_error err = {0};
    world_open(&w, false, &c, 1);
    cr_assert(world_wait_ready(&w));
    struct sg_sandbox *sb = world_lease(&w, "lse_1");
    cr_assert_not_null(sb);
    sg_sandbox_on_lost(sb, count_lost, &lost);
    cr_assert_eq(kill(sg_spawner_pid(w.spawner), SIGKILL), 0);
    cr_assert(flag_wait(&lost, 1, CALL_MS));
    cr_assert(world_wait_gone(&w));
    cr_expect_eq(sg_driver_health(w.d, &err), -1, "whatever has become of the slots");
    cr_expect_not_null(strstr(err.message, "spawner"), "%s", err.message);
    sg_error_clear(&err);
    cr_expect_eq(call_terminate(sb, NULL), 0);
    sg_sandbox_unref(sb);
    cr_assert(world_wait(&w, 0, 0, SG_SLOT_FAILED));
    cr_assert(world_wait(&w, 0, 1, SG_SLOT_FAILED));
    cr_expect_eq(sg_driver_health(w.d, &err), -1);
    cr_expect_eq(err.code, SG_UNAVAILABLE);
    struct sg_sandbox_spec spec = call_spec("lse_2");
    cr_expect_null(call_create(w.d, &spec, &err));
    cr_expect_eq(err.code, SG_UNAVAILABLE);
    world_close(&w);
}
