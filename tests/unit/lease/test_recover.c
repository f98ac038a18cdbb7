/* After a crash at any instant: what was answered is still known, and what is told of it is true. */
#include <signal.h>
#include <sys/wait.h>

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

TestSuite(recover, .init = setup, .fini = teardown);

/* A server that makes leases and ends every third, telling each answer through fd. */
static void serve_until_killed(const char *dir, int fd)
{
    w.dir = sg_xstrdup(dir);
    world_open(&w);
    for (int i = 0;; i++) {
        struct sg_entry *e = lease(&w, &(struct ask){.key = NULL});
        char line[SG_ID_MAX + 4];
        bool end = i % 3 == 0;
        if (end) {
            end_lease(&w, e);
        }
        int n = snprintf(line, sizeof line, "%c%s\n", end ? 'E' : 'R', sg_entry_id(e));
        if (write(fd, line, (size_t)n) != n) {
            _exit(1);
        }
        sg_entry_unref(e);
    }
}

static void kill_one_server(int ms)
{
    int fds[2];
    cr_assert_eq(pipe(fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(fds[0]);
        serve_until_killed(w.dir, fds[1]);
        _exit(0);
    }
    close(fds[1]);
    FILE *f = fdopen(fds[0], "r");
    char line[SG_ID_MAX + 4];
    static char answers[20000][SG_ID_MAX + 4];
    size_t n = 0;
    int64_t until = 0;
    while (n < SG_COUNT_OF(answers) && fgets(line, sizeof line, f) != NULL) {
        until = until == 0 ? sg_now_ms() + ms : until; /* counted from its first answer */
        memcpy(answers[n++], line, sizeof line);
        if (sg_now_ms() >= until) {
            kill(pid, SIGKILL);
        }
    }
    fclose(f);
    waitpid(pid, NULL, 0);
    cr_expect_gt(n, 0);
    world_open(&w);
    struct sg_error err = {0};
    size_t lost = 0;
    cr_assert_eq(sg_registry_recover(w.reg, &(struct sg_recover){0}, &lost, &err), 0, "%s", err.message);
    for (size_t i = 0; i < n; i++) {
        struct sg_entry *e = NULL;
        answers[i][strcspn(answers[i], "\n")] = '\0';
        cr_assert_eq(sg_registry_get(w.reg, "acme", answers[i] + 1, &e, &err), 1, "answer %zu of %zu, %s: %s",
                     i, n, answers[i], err.message);
        struct sg_lease l;
        sg_entry_lease(e, &l);
        cr_expect_eq(l.state, answers[i][0] == 'E' ? SG_LEASE_TERMINATED : SG_LEASE_LOST);
        cr_expect_str_eq(l.reason, answers[i][0] == 'E' ? "deleted" : "server_restarted");
        sg_lease_finish(&l);
        sg_entry_unref(e);
    }
    cr_expect_geq(lost, n * 2 / 3);
    world_close(&w);
    struct sg_audit_report rep;
    cr_assert_eq(sg_audit_verify(w.dir, NULL, &rep, &err), 0);
    cr_expect(rep.ok, "%s at %ld: %s", rep.problem, (long)rep.at_seq, rep.detail);
}

Test(recover, no_answered_lease_is_forgotten_by_a_kill)
{
    world_close(&w);
    for (int i = 0; i < 6; i++) {
        kill_one_server(5 + i * 37);
    }
    world_open(&w);
}

struct adopter {
    struct sg_entry *entries[8];
    size_t n;
};

static bool outlives(void *arg, const char *provider)
{
    (void)arg;
    return sg_streq(provider, "cloud");
}

static void adopt(void *arg, struct sg_entry *e)
{
    struct adopter *a = arg;
    a->entries[a->n++] = sg_entry_ref(e);
}

static void put_row(const char *provider, enum sg_lease_state state, const char *trajectory,
                    char id[SG_ID_MAX])
{
    struct sg_lease l = make_lease("acme", state);
    snprintf(l.provider, sizeof l.provider, "%s", provider);
    l.terms->trajectory_id = trajectory != NULL ? sg_xstrdup(trajectory) : NULL;
    put_lease(w.store, &l);
    memcpy(id, l.id, SG_ID_MAX);
    sg_lease_finish(&l);
}

Test(recover, leases_that_outlive_the_server_are_handed_over)
{
    char local[SG_ID_MAX], ready[SG_ID_MAX], releasing[SG_ID_MAX], intent[SG_ID_MAX],
        local_releasing[SG_ID_MAX];
    put_row("local_bwrap", SG_LEASE_READY, "x", local);
    put_row("cloud", SG_LEASE_READY, "t", ready);
    put_row("cloud", SG_LEASE_RELEASING, NULL, releasing);
    put_row("cloud", SG_LEASE_CREATING, NULL, intent);
    put_row("local_bwrap", SG_LEASE_RELEASING, NULL, local_releasing);
    world_close(&w);
    world_open(&w);
    struct sg_error err = {0};
    struct adopter a = {0};
    size_t lost = 0;
    struct sg_recover how = {.outlives = outlives, .adopt = adopt, .arg = &a};
    cr_assert_eq(sg_registry_recover(w.reg, &how, &lost, &err), 0, "%s", err.message);
    cr_expect_eq(lost, 2);
    cr_assert_eq(a.n, 3);
    for (size_t i = 0; i < a.n; i++) {
        struct sg_entry *e = a.entries[i];
        struct sg_sandbox *sb = test_sandbox_new(&w);
        if (sg_streq(sg_entry_id(e), intent)) {
            cr_expect_eq(state_of(e), SG_LEASE_CREATING);
            sg_error_set(&err, SG_PROVIDER_FAILED, "there is no such sandbox");
            sg_registry_failed(w.reg, e, NULL, &err, NULL);
            cr_expect_eq(state_of(e), SG_LEASE_FAILED);
        } else {
            bool is_ready = sg_streq(sg_entry_id(e), ready);
            sg_registry_adopted(w.reg, e, sb);
            cr_expect_eq(state_of(e), is_ready ? SG_LEASE_READY : SG_LEASE_TERMINATED);
        }
        test_sandbox_unref(sb);
    }
    enum sg_reserved how_reserved;
    struct sg_entry *e = NULL;
    cr_expect_eq(
        reserve(&w, &(struct ask){.trajectory = "t", .hash = "other"}, &how_reserved, &e, NULL, &err), -1);
    cr_expect_eq(err.code, SG_TRAJECTORY_CONFLICT);
    cr_assert_eq(sg_registry_get(w.reg, NULL, local, &e, &err), 1);
    cr_expect_eq(state_of(e), SG_LEASE_LOST);
    sg_entry_unref(e);
    cr_assert_eq(sg_registry_get(w.reg, NULL, local_releasing, &e, &err), 1);
    cr_expect_eq(state_of(e), SG_LEASE_TERMINATED);
    sg_entry_unref(e);
    cr_expect_eq(sg_registry_end_all(w.reg, SG_END_SHUTDOWN), 1);
    for (size_t i = 0; i < a.n; i++) {
        sg_entry_unref(a.entries[i]);
    }
}

Test(recover, a_lease_that_is_not_found_yet_is_neither_used_nor_over)
{
    struct sg_lease l = make_lease("acme", SG_LEASE_READY);
    snprintf(l.provider, sizeof l.provider, "cloud");
    l.expires_us = sg_wall_us() + 3600 * INT64_C(1000000);
    put_lease(w.store, &l);
    sg_lease_finish(&l);
    struct sg_error err = {0};
    struct adopter a = {0};
    struct sg_recover how = {.outlives = outlives, .adopt = adopt, .arg = &a};
    cr_assert_eq(sg_registry_recover(w.reg, &how, NULL, &err), 0);
    struct sg_sandbox *sb = NULL;
    cr_expect_lt(sg_entry_use_begin(a.entries[0], &sb, &err), 0);
    cr_expect_eq(err.code, SG_UNAVAILABLE);
    cr_expect_str_eq(err.reason, "recovering");
    cr_expect_eq(state_of(a.entries[0]), SG_LEASE_READY);
    sb = test_sandbox_new(&w);
    sg_registry_adopted(w.reg, a.entries[0], sb);
    test_sandbox_unref(sb);
    cr_expect_eq(sg_entry_use_begin(a.entries[0], &sb, &err), 0);
    test_sandbox_unref(sb);
    sg_entry_use_end(a.entries[0], true);
    sg_error_clear(&err);
    cr_expect_eq(sg_registry_end_all(w.reg, SG_END_SHUTDOWN), 1);
    sg_entry_unref(a.entries[0]);
}

Test(recover, an_adopted_lease_past_its_time_expires)
{
    struct sg_lease l = make_lease("acme", SG_LEASE_READY);
    snprintf(l.provider, sizeof l.provider, "cloud");
    l.expires_us = sg_wall_us() - 1000000;
    put_lease(w.store, &l);
    sg_lease_finish(&l);
    struct sg_error err = {0};
    struct adopter a = {0};
    struct sg_recover how = {.outlives = outlives, .adopt = adopt, .arg = &a};
    cr_assert_eq(sg_registry_recover(w.reg, &how, NULL, &err), 0);
    cr_assert_eq(a.n, 1);
    struct sg_sandbox *sb = test_sandbox_new(&w);
    sg_registry_adopted(w.reg, a.entries[0], sb);
    test_sandbox_unref(sb);
    cr_expect(wait_for(a.entries[0], SG_WAIT_ENDED, 5000));
    cr_expect_eq(state_of(a.entries[0]), SG_LEASE_EXPIRED);
    sg_entry_unref(a.entries[0]);
}

Test(recover, an_intent_is_known_after_a_crash)
{
    struct sg_error err = {0};
    enum sg_reserved how;
    struct sg_entry *e = NULL;
    struct outcome o;
    outcome_init(&o);
    struct sg_store_done done = {.fn = outcome_set, .arg = &o};
    cr_assert_eq(reserve(&w, &(struct ask){0}, &how, &e, NULL, &err), 0);
    cr_assert_eq(sg_registry_intent(w.reg, e, "cloud", true, NULL, &done, &err), 0);
    sem_wait_all(&o.sem);
    cr_expect_not(o.failed);
    struct sg_lease l;
    cr_assert_eq(sg_store_lease(w.store, NULL, sg_entry_id(e), &l, &err), 0);
    cr_expect_eq(l.state, SG_LEASE_CREATING);
    cr_expect_str_eq(l.provider, "cloud");
    sg_lease_finish(&l);
    sg_error_set(&err, SG_PROVIDER_FAILED, "no");
    sg_registry_failed(w.reg, e, NULL, &err, NULL);
    cr_expect(wait_for(e, SG_WAIT_ENDED, 5000));
    cr_assert_eq(sg_store_lease(w.store, NULL, sg_entry_id(e), &l, &err), 0);
    cr_expect_eq(l.state, SG_LEASE_FAILED);
    sg_lease_finish(&l);
    sg_entry_unref(e);
}
