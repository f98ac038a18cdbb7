#include <criterion/criterion.h>

#include "backends/facts.h"
#include "backends/fake/fake.h"
#include "backends/registry.h"

static struct sg_reactor *reactor;
static struct sg_backend_parts parts;
static const struct sg_backend_settings settings = {.fake_script = "{\"free\": false}"};

static void setup(void)
{
    cr_assert_eq(sg_reactor_new(&reactor, NULL), 0);
    parts = (struct sg_backend_parts){.reactor = reactor};
}

static void teardown(void)
{
    sg_reactor_free(reactor);
}

TestSuite(registry, .init = setup, .fini = teardown);

Test(registry, every_backend_of_the_product_has_a_row)
{
    for (size_t i = 0; i < sg_facts_count(); i++) {
        struct sg_driver_facts f = sg_facts_at(i, NULL);
        cr_expect_not_null(sg_backend_row(f.name), "%s", f.name);
    }
    cr_expect_null(sg_backend_row("worktrees"));
    cr_expect_null(sg_backend_row_at(1000));
    cr_expect_str_eq(sg_backend_row_at(0)->name, "worktree");
}

Test(registry, not_configured_not_built_and_unknown_are_three_answers)
{
    struct sg_backends *r = NULL;
    struct sg_error err = {0};
    cr_assert_eq(sg_backends_new(NULL, 0, &settings, &parts, &r, &err), 0);
    cr_expect_null(sg_backends_get(r, "local_bwrap", &err));
    cr_expect_str_eq(err.reason, "backend_not_configured");
    cr_expect_null(sg_backends_get(r, "modal", &err));
    cr_expect_str_eq(err.reason, "backend_not_built");
    cr_expect_null(sg_backends_get(r, "e3b", &err));
    cr_expect_str_eq(err.reason, "backend_unknown");
    cr_expect_null(sg_backends_get(r, "fake", &err), "never on by default");
    cr_expect_null(sg_backends_at(r, 0));
    sg_backends_free(r);
}

Test(registry, builds_what_is_enabled_and_refuses_the_rest)
{
    static const struct {
        const char *names[2];
        size_t n;
        enum sg_code code;
    } cases[] = {
        {{"fake"}, 1, SG_OK},
        {{"fake", "fake"}, 2, SG_INVALID_REQUEST},
        {{"fake", "nonsense"}, 2, SG_INVALID_REQUEST},
        {{"fake", "modal"}, 2, SG_NOT_IMPLEMENTED},
        {{"local_bwrap"}, 1, SG_UNAVAILABLE}, /* no spawner */
    };
    for (size_t i = 0; i < SG_COUNT_OF(cases); i++) {
        struct sg_backends *r = NULL;
        struct sg_error err = {0};
        int rc = sg_backends_new(cases[i].names, cases[i].n, &settings, &parts, &r, &err);
        cr_expect_eq(err.code, cases[i].code, "case %zu: %s", i, err.message);
        cr_expect_eq(rc, cases[i].code == SG_OK ? 0 : -1);
        if (rc == 0) {
            struct sg_driver *d = sg_backends_get(r, "fake", NULL);
            cr_assert_not_null(d);
            cr_expect_eq(d, sg_backends_at(r, 0));
            cr_expect_not(d->facts.free);
        }
        sg_backends_free(r);
    }
}

Test(registry, takes_instances_made_elsewhere_under_free_names)
{
    struct sg_backends *r = NULL;
    struct sg_driver *a = NULL;
    struct sg_driver *b = NULL;
    struct sg_error err = {0};
    cr_assert_eq(sg_backends_new(NULL, 0, &settings, &parts, &r, NULL), 0);
    cr_assert_eq(sg_fake_new(reactor, "e2b", "{\"credentials\": [\"E2B_API_KEY\"]}", &a, NULL), 0);
    cr_assert_eq(sg_fake_new(reactor, "e2b", NULL, &b, NULL), 0);
    cr_expect_eq(sg_backends_add(r, a, &err), 0);
    cr_expect_eq(sg_backends_add(r, b, &err), -1);
    cr_expect_eq(err.code, SG_CONFLICT);
    cr_expect_eq(sg_backends_get(r, "e2b", NULL), a);
    cr_expect_str_eq(a->facts.credentials[0], "E2B_API_KEY");
    sg_driver_free(b);
    sg_backends_free(r);
}
