#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>

#include "model/exec.h"
#include "model/file.h"
#include "model/sandbox.h"

Test(caps, names_and_bits)
{
    unsigned all = 0;
    for (unsigned i = 0; i < SG_CAP_COUNT; i++) {
        cr_assert_eq(sg_cap_parse(sg_cap_name(i)), 1U << i);
        all |= 1U << i;
    }
    cr_assert_eq(all, 127);
    cr_assert_eq(sg_cap_parse("persistent_volumes"), SG_CAP_PERSISTENT_VOLUMES);
    cr_assert_eq(sg_cap_parse("EXEC"), 0);
    cr_assert_eq(sg_cap_parse(""), 0);
}

Test(sandbox, names)
{
    enum sg_mode m;
    enum sg_pool_mode p;
    enum sg_egress e;
    cr_assert(sg_mode_parse("blackbox", &m) && m == SG_MODE_BLACKBOX);
    cr_assert(sg_pool_mode_parse("command_only", &p) && p == SG_POOL_COMMAND_ONLY);
    cr_assert(sg_egress_parse("restricted", &e) && e == SG_EGRESS_RESTRICTED);
    cr_assert_not(sg_mode_parse("command_only", &m));
    cr_assert_not(sg_egress_parse("", &e));
    cr_assert(SG_EGRESS_NONE < SG_EGRESS_LOOPBACK && SG_EGRESS_LOOPBACK < SG_EGRESS_RESTRICTED && SG_EGRESS_RESTRICTED < SG_EGRESS_OPEN);
    cr_assert_str_eq(sg_egress_name(SG_EGRESS_OPEN), "open");
}

Test(env, later_wins_and_order_stays)
{
    struct sg_env a = {0}, b = {0};
    struct sg_error err = {0};
    cr_assert_eq(sg_env_set(&a, "PATH", "/bin", &err), 0);
    cr_assert_eq(sg_env_set(&a, "_x1", "", &err), 0);
    cr_assert_eq(sg_env_set(&b, "PATH", "/usr/bin", &err), 0);
    cr_assert_eq(sg_env_set(&b, "NEW", "n", &err), 0);
    cr_assert_eq(sg_env_merge(&a, &b, &err), 0);
    cr_assert_eq(sg_env_merge(&a, NULL, &err), 0);
    cr_assert_eq(a.n, 3);
    cr_assert_str_eq(a.vars[0].value, "/usr/bin");
    cr_assert_str_eq(a.vars[2].name, "NEW");
    cr_assert_eq(a.bytes, strlen("PATH/usr/bin_x1NEWn"));
    cr_assert_null(sg_env_get(&a, "path"));
    static const char *const bad[] = {"", "1A", "A=B", "A B", "A-B", "\xc3\xa9"};
    for (size_t i = 0; i < SG_COUNT_OF(bad); i++) {
        cr_expect_eq(sg_env_set(&a, bad[i], "x", &err), -1, "\"%s\"", bad[i]);
        cr_expect_eq(err.code, SG_INVALID_REQUEST);
    }
    sg_env_finish(&a);
    sg_env_finish(&b);
    cr_assert(a.n == 0 && a.vars == NULL);
}

Test(env, caps_hold_also_when_values_are_replaced)
{
    struct sg_env e = {0};
    struct sg_error err = {0};
    char *big = malloc(SG_ENV_BYTES_MAX);
    memset(big, 'x', SG_ENV_BYTES_MAX);
    big[SG_ENV_BYTES_MAX - 1] = '\0';
    cr_assert_eq(sg_env_set(&e, "A", big, &err), 0, "name and value just fit");
    cr_assert_eq(e.bytes, SG_ENV_BYTES_MAX);
    cr_assert_eq(sg_env_set(&e, "A", big, &err), 0, "replaced by the same");
    cr_assert_eq(sg_env_set(&e, "B", "", &err), -1);
    cr_assert_eq(sg_env_set(&e, "A", "", &err), 0);
    cr_assert_eq(e.bytes, 1);
    for (unsigned i = 1; i < SG_ENV_VARS_MAX; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "V%u", i);
        cr_assert_eq(sg_env_set(&e, name, "v", &err), 0);
    }
    cr_assert_eq(sg_env_set(&e, "ONE_MORE", "v", &err), -1);
    cr_assert_eq(sg_env_set(&e, "V7", "w", &err), 0);
    cr_assert_str_eq(sg_env_get(&e, "V7"), "w");
    sg_env_finish(&e);
    free(big);
}

Test(exec, signal_names)
{
    cr_assert_str_eq(sg_signal_name(SIGKILL), "SIGKILL");
    cr_assert_str_eq(sg_signal_name(SIGSYS), "SIGSYS");
    cr_assert_str_eq(sg_signal_name(SIGRTMIN + 1), "SIGRTMIN+1");
    cr_assert_str_eq(sg_signal_name(SIGRTMAX), "SIGRTMIN+30");
    cr_assert_str_eq(sg_signal_name(0), "SIG?");
    cr_assert_str_eq(sg_signal_name(65), "SIG?");
    for (int i = 1; i <= 64; i++) {
        cr_assert_eq(sg_signal_parse(sg_signal_name(i)), i);
    }
    cr_assert_eq(sg_signal_parse("TERM"), SIGTERM);
    cr_assert_eq(sg_signal_parse("15"), SIGTERM);
    static const char *const bad[] = {"", "0", "65", "-9", "sigterm", "SIG", "KILL ", "SIG?"};
    for (size_t i = 0; i < SG_COUNT_OF(bad); i++) {
        cr_expect_eq(sg_signal_parse(bad[i]), 0, "\"%s\"", bad[i]);
    }
    for (int i = 1; i < 32; i++) { /* the C library agrees */
        const char *abbrev = sigabbrev_np(i);
        cr_assert(abbrev == NULL || sg_signal_parse(abbrev) == i || i == SIGIO, "%d %s", i, abbrev);
    }
    cr_assert_null(sg_killed_by_name(SG_KILLED_NOT));
    cr_assert_str_eq(sg_killed_by_name(SG_KILLED_LEASE_END), "lease_end");
}

Test(file, etag_changes_with_every_part)
{
    struct sg_file_stat st = {.size = 1, .mtime_ns = 2, .ctime_ns = 5, .ino = 3, .dev = 4};
    char a[SG_ETAG_MAX], b[SG_ETAG_MAX];
    sg_file_etag(&st, a);
    cr_assert(a[0] == '"' && a[strlen(a) - 1] == '"');
    struct sg_file_stat others[] = {st, st, st, st, st};
    others[0].size++;
    others[1].mtime_ns++;
    others[2].ino++;
    others[3].dev++;
    others[4].ctime_ns++;
    for (size_t i = 0; i < SG_COUNT_OF(others); i++) {
        sg_file_etag(&others[i], b);
        cr_expect_str_neq(a, b);
    }
    struct sg_file_stat big = {.size = UINT64_MAX, .mtime_ns = -1, .ctime_ns = -1, .ino = UINT64_MAX, .dev = UINT64_MAX};
    sg_file_etag(&big, b);
    cr_assert_eq(b[strlen(b) - 1], '"', "the longest is not cut");
    cr_assert_str_eq(sg_file_type_name(SG_FILE_FIFO), "fifo");
}
