#include <criterion/criterion.h>
#include <jansson.h>

#include "backends/driver.h"

static int frees, execs;

static void free_sandbox(struct sg_sandbox *sb)
{
    (void)sb;
    frees++;
}

static int exec_start(struct sg_sandbox *sb, const struct sg_exec_spec *spec, const struct sg_exec_sink *sink,
                      struct sg_exec **ret, struct sg_error *err)
{
    (void)sb;
    (void)spec;
    (void)sink;
    (void)ret;
    execs++;
    return sg_error_set(err, SG_LEASE_GONE, "from the slot");
}

static const struct sg_file_ops files = {0};
static const struct sg_driver_ops bare = {.sandbox_free = free_sandbox};
static const struct sg_driver_ops full = {.sandbox_free = free_sandbox, .exec_start = exec_start, .files = &files};

Test(driver, what_is_not_there_is_not_supported)
{
    struct sg_driver d = {.ops = &bare, .facts = {.name = "bare", .caps = SG_CAP_EXEC | SG_CAP_FILE_RW}};
    struct sg_sandbox sb = {.driver = &d, .refs = 1};
    struct sg_error err = {0};
    struct sg_sandbox_spec spec = {0};
    struct sg_exec_spec exec = {0};
    struct sg_exec *x = NULL;
    cr_assert_eq(sg_driver_check(&d, &spec, &err), 0, "nothing to check is fine");
    cr_assert_eq(sg_driver_create(&d, &spec, NULL, NULL, &err), -1);
    cr_assert_eq(err.code, SG_NOT_SUPPORTED);
    cr_assert_eq(sg_sandbox_exec(&sb, &exec, NULL, &x, &err), -1);
    cr_assert_eq(err.code, SG_NOT_SUPPORTED);
    cr_assert_null(sg_sandbox_files(&sb, &err));
    cr_assert_eq(err.code, SG_NOT_SUPPORTED);
    cr_assert_str_eq(err.message, "bare does not support files");
    cr_assert_eq(sg_sandbox_dial(&sb, 80, 0, NULL, &err), -1);
    cr_assert_eq(err.code, SG_NOT_SUPPORTED);
    cr_assert_eq(sg_driver_health(&d, &err), 0);
    json_t *m = sg_sandbox_metadata(&sb);
    cr_assert_eq(json_object_size(m), 0);
    json_decref(m);
    cr_assert_null(sg_driver_free(NULL));
}

static int refs_taken;

static int take(struct sg_sandbox *sb, const struct sg_snapshot_args *a, const struct sg_snapshot_done *done, struct sg_error *err)
{
    (void)sb;
    (void)a;
    (void)done;
    (void)err;
    refs_taken++;
    return 0;
}

Test(driver, snapshots_are_the_providers_only_where_it_has_them)
{
    static const struct sg_snapshot_ops whole = {.take = take};
    static const struct sg_snapshot_ops given = {.take = take, .tar = true};
    static const struct sg_snapshot_ops old = {.tar = true};
    static const struct sg_driver_ops ops[] = {{0}, {.snapshots = &whole}, {.snapshots = &given}, {.snapshots = &old}};
    static const struct {
        unsigned caps, lacks;
        bool takes;
    } cases[] = {{SG_CAP_SNAPSHOT, 0, false}, {SG_CAP_SNAPSHOT, 0, true}, {SG_CAP_SNAPSHOT, 0, true}, {SG_CAP_SNAPSHOT, 0, false}};
    struct sg_error err = {0};
    struct sg_snapshot_args a = {.fd = -1};
    char id[SG_ID_MAX];
    sg_id_new("snap", id);
    for (size_t i = 0; i < SG_COUNT_OF(cases); i++) {
        struct sg_driver d = {.ops = &ops[i], .facts = {.name = "d", .caps = cases[i].caps}};
        struct sg_sandbox sb = {.driver = &d, .refs = 1, .lacks = cases[i].lacks};
        struct sg_sandbox_spec spec = {.snapshot_ref = "x"};
        cr_expect_eq(sg_sandbox_snapshots(&sb) != NULL, cases[i].takes, "case %zu", i);
        cr_expect_eq(sg_sandbox_snapshot_reads(&sb), i >= 2, "case %zu", i);
        sb.lacks = SG_CAP_SNAPSHOT;
        cr_expect_null(sg_sandbox_snapshots(&sb));
        sb.lacks = 0;
        cr_expect_eq(sg_driver_check(&d, &spec, &err), i == 0 ? -1 : 0);
        a.id = "nonsense";
        cr_expect_eq(sg_sandbox_snapshot(&sb, &a, NULL, &err), -1);
        a.id = id;
        cr_expect_eq(sg_sandbox_snapshot(&sb, &a, NULL, &err), i == 1 ? 0 : -1, "what is to be given is given");
    }
    cr_expect_eq(refs_taken, 1);
    struct sg_driver none = {.ops = &ops[0], .facts = {.name = "d"}};
    struct sg_sandbox_spec spec = {.snapshot_ref = "x"};
    cr_expect_eq(sg_driver_check(&none, &spec, &err), -1);
    cr_expect_eq(err.code, SG_NOT_SUPPORTED);
    cr_expect_str_eq(err.field, "manifest.snapshot");
    cr_expect_eq(sg_driver_snapshot_drop(&none, id, "", NULL, &err), -1);
    cr_expect_eq(sg_driver_snapshot_list(&none, NULL, &err), -1);
    cr_expect_eq(err.code, SG_NOT_SUPPORTED);
}

Test(driver, facts_bind)
{
    struct sg_driver d = {.ops = &full, .facts = {.name = "full"}};
    struct sg_sandbox sb = {.driver = &d, .refs = 1};
    struct sg_error err = {0};
    const char *const argv[] = {"true", NULL};
    struct sg_exec_spec spec = {.argv = argv, .timeout_ms = 1, .pipe_bytes = 1};
    struct sg_exec *x = NULL;
    cr_assert_eq(sg_sandbox_exec(&sb, &spec, NULL, &x, &err), -1);
    cr_assert_eq(err.code, SG_NOT_SUPPORTED, "a slot without the capability is not called");
    cr_assert_null(sg_sandbox_files(&sb, &err));
    cr_assert_eq(execs, 0);
    d.facts.caps = SG_CAP_EXEC | SG_CAP_FILE_RW;
    cr_assert_eq(sg_sandbox_exec(&sb, &spec, NULL, &x, &err), -1);
    cr_assert_eq(err.code, SG_LEASE_GONE);
    cr_assert_eq(sg_sandbox_files(&sb, &err), &files);
    spec.timeout_ms = 0;
    cr_assert_eq(sg_sandbox_exec(&sb, &spec, NULL, &x, &err), -1);
    cr_assert_eq(err.code, SG_INTERNAL);
    cr_assert_eq(execs, 1);
}

Test(driver, a_fired_token_creates_nothing)
{
    struct sg_driver d = {.ops = &bare, .facts = {.name = "bare"}};
    struct sg_driver_ops ops = bare;
    ops.create = (int (*)(struct sg_driver *, const struct sg_sandbox_spec *, struct sg_cancel *, const struct sg_sandbox_done *,
                          struct sg_error *))(void (*)(void))abort;
    d.ops = &ops;
    struct sg_cancel *c = sg_cancel_new();
    struct sg_sandbox_spec spec = {0};
    struct sg_error err = {0};
    sg_cancel_fire(c, SG_CANCEL_HANGUP);
    cr_assert_eq(sg_driver_create(&d, &spec, c, NULL, &err), -1);
    cr_assert_eq(err.code, SG_CANCELLED);
    sg_cancel_unref(c);
}

Test(driver, the_last_reference_frees)
{
    struct sg_driver d = {.ops = &bare, .facts = {.name = "bare"}};
    struct sg_sandbox sb = {.driver = &d, .refs = 1};
    cr_assert_eq(sg_sandbox_ref(&sb), &sb);
    cr_assert_null(sg_sandbox_unref(&sb));
    cr_assert_eq(frees, 0);
    cr_assert_null(sg_sandbox_unref(&sb));
    cr_assert_eq(frees, 1);
    cr_assert_null(sg_sandbox_unref(NULL));
}
