#include "select/decide.h"

#include "base/buf.h"
#include "base/json.h"
#include "select/inputs.h"
#include "select/receipt.h"

#define MISSING_MAX ((size_t)2 * SG_SELECT_NAMES_MAX)
#define DETAIL_MAX (MISSING_MAX * (SG_CREDENTIAL_NAME_MAX + 2) + 64)

static enum sg_code code_of(enum sg_select_verdict v)
{
    switch (v) {
    case SG_SELECT_PICKED:
        return SG_OK;
    case SG_SELECT_NO_BACKENDS_REGISTERED:
        return SG_NO_BACKENDS_REGISTERED;
    case SG_SELECT_OVERRIDE_NOT_REGISTERED:
        return SG_OVERRIDE_NOT_REGISTERED;
    case SG_SELECT_OVERRIDE_MISSING_CAPABILITIES:
        return SG_OVERRIDE_MISSING_CAPABILITIES;
    case SG_SELECT_OVERRIDE_MISSING_CREDENTIALS:
        return SG_OVERRIDE_MISSING_CREDENTIALS;
    case SG_SELECT_NO_BACKEND_SATISFIES_POLICY:
        return SG_NO_BACKEND_SATISFIES_POLICY;
    }
    return SG_INTERNAL;
}

/* ---- the explanation ---- */

static void add_missing_caps(struct sg_buf *b, unsigned caps)
{
    sg_cleanup(sg_json_p) json_t *names = sg_caps_json(caps);
    for (size_t i = 0; i < json_array_size(names); i++)
        (void)sg_buf_addf(b, "%s%s", i ? ", " : "missing ", json_string_value(json_array_get(names, i)));
}

static void add_missing_credentials(struct sg_buf *b, const struct sg_select_input *in,
                                    const struct sg_select_candidate *c)
{
    const char *names[MISSING_MAX];
    size_t n = sg_select_missing_credentials(in, c, names);
    for (size_t i = 0; i < n; i++)
        (void)sg_buf_addf(b, "%s%s", i ? ", " : "missing ", names[i]);
}

/* One {code, detail}; NULL when memory is out. */
static json_t *reason_json(const struct sg_select_input *in, const struct sg_select_considered *c,
                           enum sg_select_reason reason)
{
    struct sg_buf b;
    sg_buf_init(&b, DETAIL_MAX);
    switch (reason) {
    case SG_SELECT_NOT_THE_OVERRIDE:
        (void)sg_buf_addf(&b, "the override names %s, which is not registered", in->policy.override);
        break;
    case SG_SELECT_PAID_NOT_ALLOWED:
        (void)sg_buf_addf(&b, "not free, and allow_paid is false");
        break;
    case SG_SELECT_BUDGET_EXHAUSTED:
        (void)sg_buf_addf(&b, "not free, and the budget is used up");
        break;
    case SG_SELECT_MISSING_CAPABILITIES:
        add_missing_caps(&b, c->missing_capabilities);
        break;
    case SG_SELECT_MISSING_CREDENTIALS:
        add_missing_credentials(&b, in, c->candidate);
        break;
    }
    json_t *v =
        b.len ? json_pack("{s:s, s:s}", "code", sg_select_reason_name(reason), "detail", b.data) : NULL;
    sg_buf_finish(&b);
    return v;
}

static json_t *considered_one(const struct sg_select_input *in, const struct sg_select_considered *c)
{
    sg_cleanup(sg_json_p) json_t *reasons = json_array();
    for (unsigned i = 0; reasons && i < SG_SELECT_REASONS; i++) {
        enum sg_select_reason bit = (enum sg_select_reason)(1U << i);
        if ((c->reasons & bit) && json_array_append_new(reasons, reason_json(in, c, bit)) < 0)
            return NULL;
    }
    return json_pack("{s:s, s:b, s:O}", "backend", c->candidate->name, "eligible", c->reasons == 0, "reasons",
                     reasons);
}

static int explain(const struct sg_select_input *in, const struct sg_select_result *r, struct sg_decision *d,
                   struct sg_error *err)
{
    d->considered = json_array();
    d->attempted = json_array();
    bool good = d->considered && d->attempted;
    for (size_t i = 0; good && i < r->n_considered; i++) {
        good = json_array_append_new(d->considered, considered_one(in, &r->considered[i])) == 0 &&
               json_array_append_new(d->attempted, json_string(r->considered[i].candidate->name)) == 0;
    }
    return good ? 0 : sg_error_set(err, SG_NO_MEMORY, "out of memory");
}

/* ---- the decision ---- */

static int decide_inputs(json_t *inputs, const struct sg_inputs *t, struct sg_decision *d,
                         struct sg_error *err)
{
    struct sg_select_result result;
    enum sg_select_fault fault = sg_select(&t->in, &result);
    if (fault != SG_SELECT_OK)
        return sg_error_set(err, SG_INVALID_REQUEST, "the candidates are not acceptable (%d)", (int)fault);
    struct sg_receipt_outcome o = {
        .chosen_backend = result.pick ? result.pick->name : NULL,
        .code = result.pick ? NULL : sg_select_verdict_name(result.verdict),
    };
    if (explain(&t->in, &result, d, err) < 0 || sg_receipt_make(inputs, &o, &d->receipt, err) < 0)
        return -1;
    d->code = code_of(result.verdict);
    d->backend = json_string_value(json_object_get(d->receipt, "chosen_backend"));
    return 0;
}

int sg_decide(const struct sg_policy *policy, const struct sg_environment *env,
              const struct sg_candidates *candidates, const struct sg_decide_context *ctx,
              struct sg_decision *ret, struct sg_error *err)
{
    struct sg_decision d = {0};
    struct sg_inputs t;
    sg_cleanup(sg_json_p) json_t *inputs = NULL;
    *ret = d;
    if (sg_inputs_build(policy, env, candidates, ctx, &inputs, err) < 0 ||
        sg_inputs_read(inputs, &t, err) < 0)
        return -1;
    int rc = decide_inputs(inputs, &t, &d, err);
    sg_inputs_finish(&t);
    if (rc < 0) {
        sg_decision_finish(&d);
        return -1;
    }
    *ret = d;
    return 0;
}

void sg_decision_finish(struct sg_decision *d)
{
    json_decref(d->receipt);
    json_decref(d->considered);
    json_decref(d->attempted);
    *d = (struct sg_decision){0};
}

/* What the one considered backend of an override lacks: the detail of its first reason. */
static const char *first_detail(const struct sg_decision *d)
{
    const json_t *reasons = json_object_get(json_array_get(d->considered, 0), "reasons");
    const char *s = json_string_value(json_object_get(json_array_get(reasons, 0), "detail"));
    return s ? s : "";
}

int sg_decision_refusal(const struct sg_decision *d, struct sg_error *err)
{
    const json_t *inputs = json_object_get(d->receipt, "selector_inputs");
    const char *override = json_string_value(json_object_get(inputs, "override"));
    if (!override)
        override = "";
    switch (d->code) {
    case SG_NO_BACKENDS_REGISTERED:
        sg_error_set(err, d->code, "no backends are registered");
        break;
    case SG_OVERRIDE_NOT_REGISTERED:
        sg_error_set(err, d->code, "the override names %s, which is not registered", override);
        break;
    case SG_OVERRIDE_MISSING_CAPABILITIES:
        sg_error_set(err, d->code, "the override %s lacks capabilities: %.300s", override, first_detail(d));
        break;
    case SG_OVERRIDE_MISSING_CREDENTIALS:
        sg_error_set(err, d->code, "the override %s lacks credentials: %.300s", override, first_detail(d));
        break;
    default:
        sg_error_set(err, d->code, "none of the %zu backends satisfies the policy",
                     json_array_size(d->considered));
        break;
    }
    sg_error_member(err, "attempted", json_incref(d->attempted));
    sg_error_member(err, "considered", json_incref(d->considered));
    sg_error_member(err, "receipt", json_incref(d->receipt));
    return -1;
}

int sg_selection_answer(const struct sg_selection_request *rq, const struct sg_selection_world *world,
                        json_t **ret, struct sg_error *err)
{
    struct sg_decision d;
    const struct sg_candidates *candidates = rq->backends_given ? &rq->backends : world->registered;
    const struct sg_environment *env = rq->environment_given ? &rq->environment : world->snapshot;
    if (rq->pool)
        return sg_error_field(err, SG_POOL_NOT_FOUND, "pool", "no pool of that name is configured");
    if (sg_decide(&rq->policy, env, candidates, NULL, &d, err) < 0)
        return -1;
    int rc = 0;
    if (d.code != SG_OK) {
        rc = sg_decision_refusal(&d, err);
    } else {
        *ret = json_pack("{s:s, s:O, s:O}", "backend", d.backend, "receipt", d.receipt, "considered",
                         d.considered);
        if (!*ret)
            rc = sg_error_set(err, SG_NO_MEMORY, "out of memory");
    }
    sg_decision_finish(&d);
    return rc;
}
