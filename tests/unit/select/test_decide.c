/* Decisions as bytes: golden answers, and what must hold for random bodies. */
#include "support.h"

#include <glob.h>
#include <stdio.h>

#include "select/receipt.h"

static char *slurp(const char *path)
{
    static const size_t max = 65536;
    char *text = calloc(1, max);
    FILE *f = fopen(path, "re");
    cr_assert(f && text, "%s", path);
    size_t n = fread(text, 1, max - 1, f);
    cr_assert(n > 0 && n < max - 1, "%s", path);
    fclose(f);
    return text;
}

static void check_golden(const char *request)
{
    char answer_path[512];
    int stem = (int)(strstr(request, ".request.json") - request);
    snprintf(answer_path, sizeof answer_path, "%.*s.answer.json", stem, request);
    sg_cleanup(sg_free_p) char *body_text = slurp(request);
    sg_cleanup(sg_free_p) char *wanted = slurp(answer_path);
    sg_cleanup(sg_json_p) json_t *body = test_json(body_text);
    sg_cleanup(sg_json_p) json_t *answer = test_select(body);
    sg_cleanup(sg_free_p) char *got = sg_json_dump(answer, NULL);
    wanted[strcspn(wanted, "\n")] = '\0';
    cr_assert_str_eq(got, wanted, "%s", request);
    struct sg_receipt_check check;
    cr_assert_eq(sg_receipt_verify(test_receipt_of(answer), &check, NULL), 0);
    cr_assert(check.ok, "%s: %s: %s", request, check.reason, check.detail);
}

Test(decide, golden_answers)
{
    glob_t g;
    cr_assert_eq(glob(GOLDEN_DIR "/*.request.json", 0, NULL, &g), 0);
    cr_assert(g.gl_pathc >= 9);
    for (size_t i = 0; i < g.gl_pathc; i++)
        check_golden(g.gl_pathv[i]);
    globfree(&g);
}

/* ---- random bodies ---- */

static uint64_t next(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

static json_t *some_of(uint64_t *s, const char *const *from, size_t n_from, size_t max)
{
    json_t *list = json_array();
    for (size_t n = next(s) % (max + 1); n > 0; n--)
        json_array_append_new(list, json_string(from[next(s) % n_from]));
    return list;
}

static const char *const credentials[] = {"A", "E2B_API_KEY", "MODAL_TOKEN_ID"};
static const char *const caps[] = {"exec", "file_rw", "gpu", "snapshot"};

static json_t *random_backends(uint64_t *s)
{
    static const char *const names[] = {"worktree", "docker", "local_bwrap", "e2b", "modal", "Zed", "zed"};
    json_t *list = json_array();
    for (size_t i = 0; i < SG_COUNT_OF(names); i++) {
        if (next(s) % 2)
            continue;
        json_t *b = json_pack("{s:s, s:o, s:o}", "name", names[i], "capabilities",
                              some_of(s, caps, SG_COUNT_OF(caps), 6), "credentials",
                              some_of(s, credentials, SG_COUNT_OF(credentials), 2));
        if (next(s) % 2)
            json_object_set_new(b, "free", json_boolean(next(s) % 2));
        json_array_insert_new(list, (size_t)(next(s) % (json_array_size(list) + 1)), b);
    }
    return list;
}

static json_t *random_body(uint64_t *s)
{
    json_t *policy = json_pack("{s:b, s:o, s:o}", "allow_paid", (int)(next(s) % 2), "required_capabilities",
                               some_of(s, caps, SG_COUNT_OF(caps), 2), "required_credentials",
                               some_of(s, credentials, SG_COUNT_OF(credentials), 1));
    if (next(s) % 3 == 0)
        json_object_set_new(policy, "override", json_string(next(s) % 2 ? "docker" : "e2b"));
    json_t *env =
        json_pack("{s:o, s:f}", "available_credentials", some_of(s, credentials, SG_COUNT_OF(credentials), 5),
                  "budget_remaining_usd", (double)(int)(next(s) % 3) - 1.0);
    return json_pack("{s:o, s:o, s:o}", "policy", policy, "environment", env, "backends", random_backends(s));
}

/* The same body with its backends and sets in another order. */
static json_t *reordered(const json_t *body)
{
    json_t *copy = json_deep_copy(body);
    const char *const lists[][2] = {{"policy", "required_capabilities"},
                                    {"environment", "available_credentials"}};
    json_t *backends = json_object_get(copy, "backends");
    json_t *back = json_array();
    for (size_t i = json_array_size(backends); i > 0; i--)
        json_array_append(back, json_array_get(backends, i - 1));
    json_object_set_new(copy, "backends", back);
    for (size_t l = 0; l < SG_COUNT_OF(lists); l++) {
        json_t *from = json_object_get(json_object_get(copy, lists[l][0]), lists[l][1]);
        json_t *to = json_array();
        for (size_t i = json_array_size(from); i > 0; i--)
            json_array_append(to, json_array_get(from, i - 1));
        json_object_set_new(json_object_get(copy, lists[l][0]), lists[l][1], to);
    }
    return copy;
}

Test(decide, equal_requests_give_equal_bytes_and_receipts_that_verify)
{
    uint64_t s = 99;
    for (int i = 0; i < 3000; i++) {
        sg_cleanup(sg_json_p) json_t *body = random_body(&s);
        sg_cleanup(sg_json_p) json_t *other = reordered(body);
        sg_cleanup(sg_json_p) json_t *first = test_select(body);
        sg_cleanup(sg_json_p) json_t *again = test_select(body);
        sg_cleanup(sg_json_p) json_t *third = test_select(other);
        sg_cleanup(sg_free_p) char *a = sg_json_dump(first, NULL);
        sg_cleanup(sg_free_p) char *b = sg_json_dump(again, NULL);
        sg_cleanup(sg_free_p) char *c = sg_json_dump(third, NULL);
        struct sg_receipt_check check;
        cr_assert_str_eq(a, b);
        cr_assert_str_eq(a, c);
        cr_assert_eq(sg_receipt_verify(test_receipt_of(first), &check, NULL), 0);
        cr_assert(check.ok, "%s: %s\n%s", check.reason, check.detail, a);
    }
}

Test(decide, the_body_is_left_alone)
{
    sg_cleanup(sg_json_p) json_t *body = test_json_q(
        "{'policy':{'precedence':['b','a','b']},'backends':[{'name':'b','capabilities':['exec','file_rw'],"
        "'free':true}]}");
    sg_cleanup(sg_json_p) json_t *before = json_deep_copy(body);
    sg_cleanup(sg_json_p) json_t *answer = test_select(body);
    cr_assert(json_is_object(answer));
    cr_assert(json_equal(body, before));
    cr_assert_eq(body->refcount, 1);
}

Test(decide, without_backends_the_registered_ones_and_their_environment_count)
{
    sg_cleanup(sg_json_p) json_t *body = json_object();
    sg_cleanup(sg_json_p) json_t *answer = test_select(body);
    cr_assert_str_eq(json_string_value(json_object_get(answer, "backend")), "local_bwrap");
}

Test(decide, a_pool_that_is_not_there)
{
    sg_cleanup(sg_json_p) json_t *body = test_json_q("{'pool':'gold','overrides':{'root':'/x'}}");
    sg_cleanup(sg_json_p) json_t *answer = test_select(body);
    cr_assert_str_eq(json_string_value(json_object_get(answer, "code")), "pool_not_found");
    cr_assert_str_eq(json_string_value(json_object_get(answer, "field")), "pool");
}

Test(decide, the_widest_request_is_answered)
{
    static const char *const names[] = {NULL};
    struct sg_candidates l = {0};
    struct sg_policy p;
    struct sg_environment env = {0};
    struct sg_decision d;
    static char text[SG_CANDIDATES_MAX][SG_BACKEND_NAME_MAX + 1];
    cr_assert_eq(sg_policy_parse(NULL, "policy", &p, NULL), 0);
    for (size_t i = 0; i < SG_CANDIDATES_MAX; i++) {
        snprintf(text[i], sizeof text[i], "b%061zu", i);
        cr_assert_eq(sg_candidates_add(&l, text[i], 0, false, names, NULL), 0);
    }
    cr_assert(sg_candidates_add(&l, "more", 0, false, names, NULL) < 0);
    cr_assert_eq(sg_decide(&p, &env, &l, NULL, &d, NULL), 0);
    cr_assert_eq(d.code, SG_NO_BACKEND_SATISFIES_POLICY);
    cr_assert_eq(json_array_size(d.considered), SG_CANDIDATES_MAX);
    sg_decision_finish(&d);
    sg_candidates_finish(&l);
    sg_policy_finish(&p);
}

Test(decide, circumstances_are_in_the_receipt_and_do_not_sway)
{
    struct sg_decide_context ctx = {.network_egress_class = "loopback", .local_pool = "main"};
    struct sg_candidates l = {0};
    struct sg_policy p;
    struct sg_environment env = {0};
    struct sg_decision d;
    struct sg_receipt_check check;
    cr_assert_eq(sg_policy_parse(NULL, "policy", &p, NULL), 0);
    cr_assert_eq(sg_candidates_add(&l, "local_bwrap", SG_CAP_FILE_RW | SG_CAP_EXEC, true, NULL, NULL), 0);
    cr_assert_eq(sg_decide(&p, &env, &l, &ctx, &d, NULL), 0);
    cr_assert_str_eq(d.backend, "local_bwrap");
    json_t *inputs = json_object_get(d.receipt, "selector_inputs");
    cr_assert_str_eq(json_string_value(json_object_get(inputs, "network_egress_class")), "loopback");
    cr_assert_str_eq(json_string_value(json_object_get(inputs, "local_pool")), "main");
    cr_assert_eq(sg_receipt_verify(d.receipt, &check, NULL), 0);
    cr_assert(check.ok, "%s", check.detail);
    sg_decision_finish(&d);
    sg_candidates_finish(&l);
    sg_policy_finish(&p);
}
