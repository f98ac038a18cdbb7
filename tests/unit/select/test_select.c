/* The selector's rules, one by one. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "base/base.h"
#include "select/select.h"

#define RW 1U
#define EXEC 2U
#define GPU 8U

static const char *const precedence[] = {"worktree", "docker", "local_bwrap", "e2b", "modal"};
static const char *const e2b_needs[] = {"E2B_API_KEY"};

static struct sg_select_candidate free_one(const char *name, unsigned caps)
{
    return (struct sg_select_candidate){.name = name, .capabilities = caps, .free = true};
}

static struct sg_select_candidate e2b(void)
{
    return (struct sg_select_candidate){
        .name = "e2b", .capabilities = RW | EXEC | GPU, .credentials = {e2b_needs, 1}};
}

static struct sg_select_input input(const struct sg_select_candidate *c, size_t n)
{
    return (struct sg_select_input){
        .candidates = c,
        .n_candidates = n,
        .policy = {.required_capabilities = RW | EXEC, .precedence = {precedence, SG_COUNT_OF(precedence)}},
    };
}

static struct sg_select_result run(const struct sg_select_input *in)
{
    struct sg_select_result r;
    cr_assert_eq(sg_select(in, &r), SG_SELECT_OK);
    return r;
}

static void expect_pick(const struct sg_select_input *in, const char *name)
{
    struct sg_select_result r = run(in);
    cr_assert_eq(r.verdict, SG_SELECT_PICKED);
    cr_assert_str_eq(r.pick->name, name);
}

Test(select, nothing_registered_comes_before_the_override)
{
    struct sg_select_input in = input(NULL, 0);
    cr_assert_eq(run(&in).verdict, SG_SELECT_NO_BACKENDS_REGISTERED);
    in.policy.override = "docker";
    struct sg_select_result r = run(&in);
    cr_assert_eq(r.verdict, SG_SELECT_NO_BACKENDS_REGISTERED);
    cr_assert_eq(r.n_considered, 0);
}

Test(select, first_of_the_precedence_wins)
{
    struct sg_select_candidate c[] = {free_one("local_bwrap", RW | EXEC), free_one("docker", RW | EXEC),
                                      free_one("worktree", RW)};
    struct sg_select_input in = input(c, 3);
    struct sg_select_result r = run(&in);
    cr_assert_str_eq(r.pick->name, "docker");
    cr_assert_str_eq(r.considered[0].candidate->name, "worktree");
    cr_assert_eq((int)r.considered[0].reasons, SG_SELECT_MISSING_CAPABILITIES);
    cr_assert_eq((int)r.considered[0].missing_capabilities, EXEC);
    cr_assert_eq((int)r.considered[2].reasons, 0);
}

Test(select, names_outside_the_precedence_come_after_in_byte_order)
{
    struct sg_select_candidate c[] = {free_one("b", RW | EXEC), free_one("a", RW | EXEC),
                                      free_one("B", RW | EXEC), free_one("a1", RW | EXEC),
                                      free_one("modal", RW | EXEC)};
    const char *const order[] = {"modal", "B", "a", "a1", "b"};
    struct sg_select_input in = input(c, 5);
    struct sg_select_result r = run(&in);
    for (size_t i = 0; i < 5; i++)
        cr_assert_str_eq(r.considered[i].candidate->name, order[i]);
    in.policy.precedence = (struct sg_select_names){NULL, 0};
    expect_pick(&in, "B");
}

Test(select, the_first_place_of_a_repeated_name_counts)
{
    const char *const twice[] = {"b", "a", "b"};
    struct sg_select_candidate c[] = {free_one("a", RW | EXEC), free_one("b", RW | EXEC)};
    struct sg_select_input in = input(c, 2);
    in.policy.precedence = (struct sg_select_names){twice, 3};
    expect_pick(&in, "b");
}

Test(select, every_reason_that_holds_is_there)
{
    struct sg_select_candidate c = e2b();
    struct sg_select_input in = input(&c, 1);
    in.policy.required_capabilities = RW | 64U;
    in.environment.budget_set = true;
    in.environment.budget_microusd = 0;
    struct sg_select_result r = run(&in);
    cr_assert_eq(r.verdict, SG_SELECT_NO_BACKEND_SATISFIES_POLICY);
    cr_assert_eq((int)r.considered[0].reasons, SG_SELECT_PAID_NOT_ALLOWED | SG_SELECT_BUDGET_EXHAUSTED |
                                                   SG_SELECT_MISSING_CAPABILITIES |
                                                   SG_SELECT_MISSING_CREDENTIALS);
}

Test(select, a_budget_binds_only_when_set_and_used_up)
{
    const char *const held[] = {"E2B_API_KEY"};
    struct sg_select_candidate c = e2b();
    struct sg_select_input in = input(&c, 1);
    in.policy.allow_paid = true;
    in.environment.available_credentials = (struct sg_select_names){held, 1};
    in.environment.budget_microusd = -5;
    expect_pick(&in, "e2b");
    in.environment.budget_set = true;
    cr_assert_eq((int)run(&in).considered[0].reasons, SG_SELECT_BUDGET_EXHAUSTED);
    in.environment.budget_microusd = 1;
    expect_pick(&in, "e2b");
}

Test(select, a_spent_budget_does_not_touch_free_backends)
{
    struct sg_select_candidate c = free_one("docker", RW | EXEC);
    struct sg_select_input in = input(&c, 1);
    in.environment.budget_set = true;
    in.environment.budget_microusd = -1;
    expect_pick(&in, "docker");
}

Test(select, required_credentials_bind_free_backends_too)
{
    const char *const wanted[] = {"GH_TOKEN"};
    struct sg_select_candidate c = free_one("docker", RW | EXEC);
    struct sg_select_input in = input(&c, 1);
    in.policy.required_credentials = (struct sg_select_names){wanted, 1};
    cr_assert_eq((int)run(&in).considered[0].reasons, SG_SELECT_MISSING_CREDENTIALS);
    in.environment.available_credentials = (struct sg_select_names){wanted, 1};
    expect_pick(&in, "docker");
}

Test(select, an_override_ignores_price_and_budget)
{
    const char *const held[] = {"E2B_API_KEY"};
    struct sg_select_candidate c[] = {free_one("docker", RW | EXEC), e2b()};
    struct sg_select_input in = input(c, 2);
    in.policy.override = "e2b";
    in.environment.available_credentials = (struct sg_select_names){held, 1};
    in.environment.budget_set = true;
    in.environment.budget_microusd = -1000;
    struct sg_select_result r = run(&in);
    cr_assert_str_eq(r.pick->name, "e2b");
    cr_assert_eq(r.n_considered, 1);
}

Test(select, an_override_fails_in_order)
{
    struct sg_select_candidate c[] = {free_one("docker", RW | EXEC), e2b()};
    struct sg_select_input in = input(c, 2);
    in.policy.override = "modal";
    struct sg_select_result r = run(&in);
    cr_assert_eq(r.verdict, SG_SELECT_OVERRIDE_NOT_REGISTERED);
    cr_assert_eq(r.n_considered, 2);
    cr_assert_str_eq(r.considered[0].candidate->name, "docker");
    in.policy.override = "e2b";
    in.policy.required_capabilities |= 64U;
    r = run(&in);
    cr_assert_eq(r.verdict, SG_SELECT_OVERRIDE_MISSING_CAPABILITIES);
    cr_assert_eq(r.n_considered, 1);
    cr_assert_eq((int)r.considered[0].reasons,
                 SG_SELECT_MISSING_CAPABILITIES | SG_SELECT_MISSING_CREDENTIALS);
    in.policy.required_capabilities = 0;
    cr_assert_eq(run(&in).verdict, SG_SELECT_OVERRIDE_MISSING_CREDENTIALS);
}

Test(select, an_empty_override_is_an_override)
{
    struct sg_select_candidate c = free_one("docker", RW | EXEC);
    struct sg_select_input in = input(&c, 1);
    in.policy.override = "";
    cr_assert_eq(run(&in).verdict, SG_SELECT_OVERRIDE_NOT_REGISTERED);
}

Test(select, missing_credentials_are_a_sorted_set)
{
    const char *const wanted[] = {"Z", "E2B_API_KEY", "A", "HELD"};
    const char *const held[] = {"HELD"};
    const char *out[2 * SG_SELECT_NAMES_MAX];
    struct sg_select_candidate c = e2b();
    struct sg_select_input in = input(&c, 1);
    in.policy.required_credentials = (struct sg_select_names){wanted, 4};
    in.environment.available_credentials = (struct sg_select_names){held, 1};
    cr_assert_eq(sg_select_missing_credentials(&in, &c, out), 3);
    cr_assert_str_eq(out[0], "A");
    cr_assert_str_eq(out[1], "E2B_API_KEY");
    cr_assert_str_eq(out[2], "Z");
}

Test(select, input_out_of_bounds_is_a_fault)
{
    struct sg_select_candidate many[SG_SELECT_CANDIDATES_MAX + 1];
    static char names[SG_SELECT_CANDIDATES_MAX + 1][24];
    const char *const hole[] = {"A", NULL};
    struct sg_select_result r = {.verdict = SG_SELECT_PICKED, .n_considered = 77};
    for (size_t i = 0; i < SG_COUNT_OF(many); i++) {
        snprintf(names[i], sizeof names[i], "n%zu", i);
        many[i] = free_one(names[i], RW | EXEC);
    }
    struct sg_select_input in = input(many, SG_COUNT_OF(many));
    cr_assert_eq(sg_select(&in, &r), SG_SELECT_TOO_MANY);
    cr_assert_eq(r.n_considered, 77);
    in.n_candidates--;
    cr_assert_eq(sg_select(&in, &r), SG_SELECT_OK);
    cr_assert_eq(r.n_considered, SG_SELECT_CANDIDATES_MAX);
    many[100].name = "n7";
    cr_assert_eq(sg_select(&in, &r), SG_SELECT_DUPLICATE_NAME);
    many[100].name = "";
    cr_assert_eq(sg_select(&in, &r), SG_SELECT_BAD_NAME);
    many[100].name = NULL;
    cr_assert_eq(sg_select(&in, &r), SG_SELECT_BAD_NAME);
    in.n_candidates = 5;
    in.policy.required_credentials = (struct sg_select_names){hole, 2};
    cr_assert_eq(sg_select(&in, &r), SG_SELECT_BAD_NAME);
    in.policy.required_credentials = (struct sg_select_names){hole, SG_SELECT_NAMES_MAX + 1};
    cr_assert_eq(sg_select(&in, &r), SG_SELECT_TOO_MANY);
}
