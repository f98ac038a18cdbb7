/* Receipts: any change is found, whether or not the id was made to fit. */
#include "support.h"

#include <stdio.h>

#include "select/receipt.h"

static json_t *answer_of(const char *body)
{
    sg_cleanup(sg_json_p) json_t *v = test_json_q(body);
    return test_select(v);
}

static const char *const bodies[] = {
    "{'environment':{'available_credentials':['E2B_API_KEY'],'budget_remaining_usd':1.5},"
    "'policy':{'allow_paid':true,'precedence':['e2b','docker'],'required_credentials':['E2B_API_KEY']},"
    "'backends':[{'name':'e2b','capabilities':['exec','file_rw'],'credentials':['E2B_API_KEY']},"
    "{'name':'docker','capabilities':['exec','file_rw']}]}",
    "{'environment':{},'policy':{'override':'docker'},'backends':[{'name':'e2b','capabilities':['exec','file_"
    "rw']}]}",
    "{'environment':{},'policy':{'required_capabilities':['gpu']},'backends':[{'name':'e2b','capabilities':['"
    "exec']}]}",
};

static struct sg_receipt_check verify(const json_t *r)
{
    struct sg_receipt_check c;
    cr_assert_eq(sg_receipt_verify(r, &c, NULL), 0);
    cr_assert(c.ok == (c.reason[0] == '\0') && c.ok == (c.detail[0] == '\0'));
    return c;
}

static void reseal(json_t *r)
{
    char id[SG_SHA256_HEX];
    cr_assert_eq(sg_receipt_id(r, id, NULL), 0);
    json_object_set_new(r, "id", json_string(id));
}

/* ---- one change at every place ---- */

static json_t *changed_leaf(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_STRING:
        return json_sprintf("%sx", json_string_value(v));
    case JSON_INTEGER:
        return json_integer(json_integer_value(v) + 1);
    case JSON_TRUE:
        return json_false();
    case JSON_FALSE:
        return json_true();
    case JSON_NULL:
        return json_string("x");
    default:
        return NULL;
    }
}

static void change(json_t *v, size_t *left);

static void change_object(json_t *v, size_t *left)
{
    const char *key;
    json_t *m;
    void *tmp;
    json_object_foreach_safe(v, tmp, key, m)
    {
        if (*left == 0)
            return;
        json_t *leaf = changed_leaf(m);
        if (!leaf)
            change(m, left);
        else if (--*left == 0)
            json_object_set(v, key, leaf);
        json_decref(leaf);
        if (*left > 0 && --*left == 0)
            json_object_del(v, key);
    }
    if (*left > 0 && --*left == 0)
        json_object_set_new(v, "extra", json_null());
}

/* Makes the change number *left (counted from 1) below v; *left is 0 afterwards when there was one. */
static void change(json_t *v, size_t *left)
{
    if (json_is_object(v)) {
        change_object(v, left);
        return;
    }
    for (size_t i = 0; i < json_array_size(v) && *left > 0; i++) {
        json_t *leaf = changed_leaf(json_array_get(v, i));
        if (!leaf)
            change(json_array_get(v, i), left);
        else if (--*left == 0)
            json_array_set(v, i, leaf);
        json_decref(leaf);
        if (*left > 0 && --*left == 0)
            json_array_remove(v, i);
    }
    if (*left > 0 && --*left == 0)
        json_array_append_new(v, json_string("zzz"));
}

Test(receipt, a_change_at_any_place_is_found)
{
    for (size_t b = 0; b < SG_COUNT_OF(bodies); b++) {
        sg_cleanup(sg_json_p) json_t *answer = answer_of(bodies[b]);
        cr_assert(verify(test_receipt_of(answer)).ok);
        size_t places = 0;
        for (size_t k = 1;; k++) {
            sg_cleanup(sg_json_p) json_t *r = json_deep_copy(test_receipt_of(answer));
            size_t left = k;
            change(r, &left);
            if (left > 0)
                break;
            sg_cleanup(sg_free_p) char *text = sg_json_dump(r, NULL);
            cr_assert(!verify(r).ok, "change %zu went unseen: %s", k, text);
            places++;
        }
        cr_assert(places > 60, "only %zu places", places);
    }
}

/* ---- changes whose id was made to fit ---- */

struct forgery {
    size_t body;
    const char *inputs; /* members of selector_inputs to set, or NULL */
    const char *top;    /* members of the receipt to set, or NULL */
    const char *reason;
};

static const struct forgery forgeries[] = {
    {0, NULL, "{'chosen_backend':'docker'}", "outcome_mismatch"},
    {0, NULL, "{'chosen_backend':null}", "outcome_mismatch"},
    {0, NULL,
     "{'chosen_backend':null,'outcome':{'code':'no_backend_satisfies_policy','reason':null,'field':null}}",
     "outcome_mismatch"},
    {0, NULL, "{'outcome':{'code':'no_backend_satisfies_policy','reason':null,'field':null}}",
     "outcome_mismatch"},
    {0, "{'allow_paid':false}", NULL, "outcome_mismatch"},
    {0, "{'budget_remaining_microusd':0}", NULL, "outcome_mismatch"},
    {0, "{'precedence':['docker','e2b']}", NULL, "outcome_mismatch"},
    {0, "{'override':'docker'}", NULL, "outcome_mismatch"},
    {0, "{'required_capabilities':['exec','gpu']}", NULL, "outcome_mismatch"},
    {0, "{'available_credentials':[]}", NULL, "outcome_mismatch"},
    {0, "{'candidates':[]}", NULL, "outcome_mismatch"},
    {0, "{'required_capabilities':['file_rw','exec']}", NULL, "malformed"},
    {0, "{'required_capabilities':['exec','exec']}", NULL, "malformed"},
    {0, "{'available_credentials':['E2B_API_KEY','A']}", NULL, "malformed"},
    {0,
     "{'candidates':[{'name':'b','capabilities':[],'free':true,'credentials':[]},"
     "{'name':'a','capabilities':[],'free':true,'credentials':[]}]}",
     NULL, "malformed"},
    {0, "{'candidates':[{'name':'b','capabilities':[],'free':true}]}", NULL, "malformed"},
    {0, "{'budget_remaining_microusd':'1'}", NULL, "malformed"},
    {0, "{'network_egress_class':'wide'}", NULL, "malformed"},
    {0, "{'more':1}", NULL, "malformed"},
    {0, NULL, "{'schema_version':2}", "unsupported_schema_version"},
    {0, NULL, "{'pool_hash':'x'}", "malformed"},
    {0, NULL, "{'outcome':{'code':'pool_mode_mismatch'}}", "malformed"},
    {0, NULL, "{'more':1}", "malformed"},
    {1, NULL, "{'chosen_backend':'e2b','outcome':null}", "outcome_mismatch"},
    {1, NULL, "{'outcome':{'code':'override_missing_credentials','reason':null,'field':null}}",
     "outcome_mismatch"},
    {1, NULL, "{'outcome':null}", "outcome_mismatch"},
    {1, "{'override':'e2b'}", NULL, "outcome_mismatch"},
    {1, "{'candidates':[]}", NULL, "outcome_mismatch"},
    {2, NULL, "{'outcome':{'code':'no_backend_satisfies_policy','reason':'because','field':null}}",
     "outcome_mismatch"},
};

static void set_members(json_t *v, const char *text)
{
    if (!text)
        return;
    sg_cleanup(sg_json_p) json_t *members = test_json_q(text);
    json_object_update(v, members);
}

Test(receipt, a_forged_id_does_not_help)
{
    for (size_t i = 0; i < SG_COUNT_OF(forgeries); i++) {
        const struct forgery *f = &forgeries[i];
        sg_cleanup(sg_json_p) json_t *answer = answer_of(bodies[f->body]);
        json_t *r = test_receipt_of(answer);
        set_members(json_object_get(r, "selector_inputs"), f->inputs);
        set_members(r, f->top);
        reseal(r);
        struct sg_receipt_check c = verify(r);
        cr_assert(!c.ok, "forgery %zu", i);
        cr_assert_str_eq(c.reason, f->reason, "forgery %zu: %s", i, c.detail);
    }
}

Test(receipt, a_real_number_is_malformed_and_not_an_error)
{
    sg_cleanup(sg_json_p) json_t *answer = answer_of(bodies[0]);
    json_t *r = test_receipt_of(answer);
    json_object_set_new(json_object_get(r, "selector_inputs"), "budget_remaining_microusd", json_real(5.0));
    cr_assert_str_eq(verify(r).reason, "malformed");
}

Test(receipt, anything_may_come)
{
    static const char *const junk[] = {"null", "[]", "7", "'x'", "{}", "{'id':null}", "[[[[]]]]"};
    for (size_t i = 0; i < SG_COUNT_OF(junk); i++) {
        sg_cleanup(sg_json_p) json_t *v = test_json_q(junk[i]);
        cr_assert_str_eq(verify(v).reason, "malformed");
    }
    cr_assert_str_eq(verify(NULL).reason, "malformed");
}

Test(receipt, signature_and_key_id_are_not_part_of_the_id)
{
    sg_cleanup(sg_json_p) json_t *answer = answer_of(bodies[0]);
    json_t *r = test_receipt_of(answer);
    json_object_set_new(r, "signature", json_string("c2ln"));
    json_object_set_new(r, "key_id", json_string("k1"));
    cr_assert(verify(r).ok);
    json_object_set_new(r, "key_id", json_integer(1));
    cr_assert_str_eq(verify(r).reason, "malformed");
}

Test(receipt, the_order_of_members_does_not_matter)
{
    sg_cleanup(sg_json_p) json_t *answer = answer_of(bodies[0]);
    sg_cleanup(sg_free_p) char *text = json_dumps(test_receipt_of(answer), JSON_SORT_KEYS | JSON_INDENT(3));
    sg_cleanup(sg_json_p) json_t *r = test_json(text);
    cr_assert(verify(r).ok);
}

Test(receipt, a_later_refusal_keeps_the_choice)
{
    sg_cleanup(sg_json_p) json_t *answer = answer_of(bodies[0]);
    sg_cleanup(sg_json_p) json_t *refused = NULL;
    sg_cleanup(sg_json_p) json_t *before = json_deep_copy(test_receipt_of(answer));
    struct sg_error why = {0};
    sg_error_field(&why, SG_POOL_MODE_MISMATCH, "metadata.paddock_mode",
                   "blackbox asked of a command_only pool");
    cr_assert_eq(sg_receipt_refused(test_receipt_of(answer), &why, &refused, NULL), 0);
    cr_assert(json_equal(before, test_receipt_of(answer)), "the receipt given is left alone");
    cr_assert(verify(refused).ok, "%s", verify(refused).detail);
    cr_assert(!json_equal(json_object_get(refused, "id"), json_object_get(before, "id")));
    sg_cleanup(sg_json_p) json_t *wanted =
        test_json_q("{'code':'pool_mode_mismatch','reason':null,'field':'metadata.paddock_mode'}");
    cr_assert(json_equal(json_object_get(refused, "outcome"), wanted));
    cr_assert_str_eq(json_string_value(json_object_get(refused, "chosen_backend")), "e2b");
    sg_error_clear(&why);
}
