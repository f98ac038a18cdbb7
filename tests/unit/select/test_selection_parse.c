/* The body of POST /select: what is taken, what is refused and where the answer points. */
#include "support.h"

#include <stdio.h>

struct bad {
    const char *body;
    const char *field;
};

static const struct bad bad_bodies[] = {
    {"{'x':1}", "x"},
    {"{'policy':[]}", "policy"},
    {"{'policy':{'allowpaid':true}}", "policy.allowpaid"},
    {"{'policy':{'allow_paid':1}}", "policy.allow_paid"},
    {"{'policy':{'allow_paid':'true'}}", "policy.allow_paid"},
    {"{'policy':{'override':''}}", "policy.override"},
    {"{'policy':{'override':'a\\nb'}}", "policy.override"},
    {"{'policy':{'override':['docker']}}", "policy.override"},
    {"{'policy':{'required_capabilities':'exec'}}", "policy.required_capabilities"},
    {"{'policy':{'required_capabilities':['exec','warp']}}", "policy.required_capabilities[1]"},
    {"{'policy':{'required_capabilities':[null]}}", "policy.required_capabilities[0]"},
    {"{'policy':{'required_capabilities':['EXEC']}}", "policy.required_capabilities[0]"},
    {"{'policy':{'required_credentials':['A','B=secret']}}", "policy.required_credentials[1]"},
    {"{'policy':{'required_credentials':['']}}", "policy.required_credentials[0]"},
    {"{'policy':{'precedence':{}}}", "policy.precedence"},
    {"{'policy':{'precedence':['docker','']}}", "policy.precedence[1]"},
    {"{'environment':[]}", "environment"},
    {"{'environment':{'budget':1}}", "environment.budget"},
    {"{'environment':{'available_credentials':{'E2B_API_KEY':'v'}}}", "environment.available_credentials"},
    {"{'environment':{'available_credentials':['1A']}}", "environment.available_credentials[0]"},
    {"{'environment':{'budget_remaining_usd':'5'}}", "environment.budget_remaining_usd"},
    {"{'environment':{'budget_remaining_usd':true}}", "environment.budget_remaining_usd"},
    {"{'environment':{'budget_remaining_usd':0.0000001}}", "environment.budget_remaining_usd"},
    {"{'environment':{'budget_remaining_usd':1000000001}}", "environment.budget_remaining_usd"},
    {"{'environment':{'budget_remaining_usd':-1e300}}", "environment.budget_remaining_usd"},
    {"{'backends':{}}", "backends"},
    {"{'backends':['docker']}", "backends[0]"},
    {"{'backends':[{'capabilities':[]}]}", "backends[0].name"},
    {"{'backends':[{'name':'docker'}]}", "backends[0].capabilities"},
    {"{'backends':[{'name':'a','capabilities':[]},{'name':'','capabilities':[]}]}", "backends[1].name"},
    {"{'backends':[{'name':'a b','capabilities':[]}]}", "backends[0].name"},
    {"{'backends':[{'name':'.a','capabilities':[]}]}", "backends[0].name"},
    {"{'backends':[{'name':'a','capabilities':[]},{'name':'a','capabilities':[]}]}", "backends[1].name"},
    {"{'backends':[{'name':'a','capabilities':['fly']}]}", "backends[0].capabilities[0]"},
    {"{'backends':[{'name':'a','capabilities':[],'free':'yes'}]}", "backends[0].free"},
    {"{'backends':[{'name':'a','capabilities':[],'credentials':[7]}]}", "backends[0].credentials[0]"},
    {"{'backends':[{'name':'a','capabilities':[],'cost':1}]}", "backends[0].cost"},
    {"{'manifest':[]}", "manifest"},
    {"{'pool':''}", "pool"},
    {"{'pool':7}", "pool"},
    {"{'overrides':[]}", "overrides"},
    {"{'overrides':{'root':'/x'}}", "overrides"},
};

Test(selection_parse, bad_bodies_are_400_and_name_the_member)
{
    for (size_t i = 0; i < SG_COUNT_OF(bad_bodies); i++) {
        sg_cleanup(sg_json_p) json_t *body = test_json_q(bad_bodies[i].body);
        struct sg_selection_request rq;
        struct sg_error err = {0};
        cr_assert(sg_selection_parse(body, &rq, &err) < 0, "taken: %s", bad_bodies[i].body);
        cr_assert_eq(err.code, SG_INVALID_REQUEST, "%s", bad_bodies[i].body);
        cr_assert_str_eq(err.field, bad_bodies[i].field);
        cr_assert(err.message[0] != '\0');
        cr_assert(strstr(err.message, "secret") == NULL, "repeats what may be a secret: %s", err.message);
        cr_assert_eq(rq.body, NULL);
        sg_error_clear(&err);
    }
}

static json_t *many(const char *key, size_t n, const char *prefix)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_sprintf("%s%zu", prefix, i));
    return json_pack("{s:o}", key, list);
}

static bool taken(json_t *body, const char *field)
{
    struct sg_selection_request rq;
    struct sg_error err = {0};
    int rc = sg_selection_parse(body, &rq, &err);
    if (rc < 0)
        cr_assert_str_eq(err.field, field);
    sg_selection_request_finish(&rq);
    sg_error_clear(&err);
    json_decref(body);
    return rc == 0;
}

Test(selection_parse, lists_are_bounded)
{
    const char *const credentials = "environment.available_credentials";
    cr_assert(taken(
        json_pack("{s:o}", "environment", many("available_credentials", SG_AVAILABLE_CREDENTIALS_MAX, "A")),
        credentials));
    cr_assert(!taken(json_pack("{s:o}", "environment",
                               many("available_credentials", SG_AVAILABLE_CREDENTIALS_MAX + 1, "A")),
                     credentials));
    cr_assert(
        taken(json_pack("{s:o}", "policy", many("precedence", SG_PRECEDENCE_MAX, "b")), "policy.precedence"));
    cr_assert(!taken(json_pack("{s:o}", "policy", many("precedence", SG_PRECEDENCE_MAX + 1, "b")),
                     "policy.precedence"));
    for (size_t n = SG_CANDIDATES_MAX; n <= SG_CANDIDATES_MAX + 1; n++) {
        json_t *list = json_array();
        for (size_t i = 0; i < n; i++)
            json_array_append_new(list,
                                  json_pack("{s:o, s:[]}", "name", json_sprintf("b%zu", i), "capabilities"));
        cr_assert_eq(taken(json_pack("{s:o}", "backends", list), "backends"), n == SG_CANDIDATES_MAX);
    }
}

Test(selection_parse, name_lengths)
{
    char name[SG_BACKEND_NAME_MAX + 2];
    memset(name, 'n', sizeof name);
    name[SG_BACKEND_NAME_MAX + 1] = '\0';
    cr_assert(!sg_backend_name_valid(name));
    name[SG_BACKEND_NAME_MAX] = '\0';
    cr_assert(sg_backend_name_valid(name));
    cr_assert(sg_backend_name_valid("7-a.b_C"));
    cr_assert(!sg_backend_name_valid("a/b"));
    cr_assert(!sg_backend_name_valid(""));
    cr_assert(sg_credential_name_valid("_X"));
    cr_assert(!sg_credential_name_valid(""));
}

Test(selection_parse, defaults)
{
    sg_cleanup(sg_json_p) json_t *body = json_object();
    struct sg_selection_request rq;
    cr_assert_eq(sg_selection_parse(body, &rq, NULL), 0);
    cr_assert_eq(rq.policy.override, NULL);
    cr_assert(!rq.policy.allow_paid && !rq.environment_given && !rq.backends_given);
    cr_assert_eq(rq.policy.required_caps, SG_CAP_FILE_RW | SG_CAP_EXEC);
    cr_assert_eq(rq.policy.required_credentials.n, 0);
    cr_assert_eq(rq.policy.precedence.n, 9);
    for (size_t i = 0; sg_precedence_default[i]; i++)
        cr_assert_str_eq(rq.policy.precedence.v[i], sg_precedence_default[i]);
    sg_selection_request_finish(&rq);
}

Test(selection_parse, empty_lists_are_not_defaults)
{
    sg_cleanup(sg_json_p) json_t *body = test_json_q("{'policy':{'required_capabilities':[],'precedence':[]},"
                                                     "'environment':{},'backends':[],'overrides':{}}");
    struct sg_selection_request rq;
    cr_assert_eq(sg_selection_parse(body, &rq, NULL), 0);
    cr_assert_eq(rq.policy.required_caps, 0);
    cr_assert_eq(rq.policy.precedence.n, 0);
    cr_assert(rq.environment_given && rq.backends_given);
    sg_selection_request_finish(&rq);
}

Test(selection_parse, repetitions_collapse)
{
    sg_cleanup(sg_json_p) json_t *v =
        test_json_q("{'required_credentials':['B','A','B'],'precedence':['y','x','y']}");
    struct sg_policy p;
    cr_assert_eq(sg_policy_parse(v, "policy", &p, NULL), 0);
    cr_assert_eq(p.required_credentials.n, 2);
    cr_assert_str_eq(p.required_credentials.v[0], "A");
    cr_assert_eq(p.precedence.n, 2);
    cr_assert_str_eq(p.precedence.v[0], "y");
    sg_policy_finish(&p);
}

struct budget {
    const char *text;
    int64_t micro;
};

Test(selection_parse, budgets_are_exact)
{
    static const struct budget good[] = {
        {"0", 0},
        {"-0.0", 0},
        {"1", 1000000},
        {"-3", -3000000},
        {"0.1", 100000},
        {"0.3", 300000},
        {"-0.000001", -1},
        {"0.000001", 1},
        {"1.005", 1005000},
        {"2.675", 2675000},
        {"1e3", 1000000000},
        {"1.5e-5", 15},
        {"0.1234560000", 123456},
        {"123456789.123457", INT64_C(123456789123457)},
        {"999999999.999999", INT64_C(999999999999999)},
        {"1000000000", SG_BUDGET_MICROUSD_MAX},
        {"-1000000000.0", -SG_BUDGET_MICROUSD_MAX},
    };
    static const char *const too_fine[] = {
        "0.0000001", "0.30000000000000004", "1.0000005",   "-0.1234567", "1e-7", "1e-300",
        "5e-324",    "999999999.9999995",   "1.0000000001"};
    for (size_t i = 0; i < SG_COUNT_OF(good); i++) {
        sg_cleanup(sg_json_p) json_t *v = test_json(good[i].text);
        int64_t micro = -77;
        cr_assert_eq(sg_budget_parse(v, "b", &micro, NULL), 0, "%s", good[i].text);
        cr_assert_eq(micro, good[i].micro, "%s", good[i].text);
    }
    for (size_t i = 0; i < SG_COUNT_OF(too_fine); i++) {
        sg_cleanup(sg_json_p) json_t *v = test_json(too_fine[i]);
        int64_t micro;
        cr_assert(sg_budget_parse(v, "b", &micro, NULL) < 0, "%s", too_fine[i]);
    }
}

/* Every amount of six decimals, as text and back: over the whole range, at random and at the edges. */
Test(selection_parse, budgets_round_trip)
{
    uint64_t s = 12345;
    for (int i = 0; i < 200000; i++) {
        s = s * 6364136223846793005U + 1442695040888963407U;
        int64_t micro =
            (int64_t)((s >> 11) % (uint64_t)(2 * SG_BUDGET_MICROUSD_MAX)) - SG_BUDGET_MICROUSD_MAX;
        if (i % 3 == 0)
            micro %= 100000000;
        char text[48];
        int64_t size = micro < 0 ? -micro : micro;
        snprintf(text, sizeof text, "%s%lld.%06lld", micro < 0 ? "-" : "", (long long)(size / 1000000),
                 (long long)(size % 1000000));
        json_t *v = json_real(strtod(text, NULL));
        int64_t back = 0;
        cr_assert_eq(sg_budget_parse(v, "b", &back, NULL), 0, "%s", text);
        cr_assert_eq(back, micro, "%s", text);
        json_decref(v);
    }
}
