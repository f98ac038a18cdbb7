#include "select/decide.h"

#include "base/buf.h"
#include "base/json.h"
#include "select/inputs.h"
#include "select/write.h"

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

/* ---- the decision ---- */

static int no_memory(struct sg_error *err)
{
    return sg_error_set(err, SG_NO_MEMORY, "out of memory");
}

static int decide(const struct sg_policy *policy, const struct sg_environment *env,
                  const struct sg_candidates *candidates, struct sg_inputs *t, struct sg_select_result *r,
                  struct sg_error *err)
{
    if (sg_inputs_of(policy, env, candidates, t, err) < 0)
        return -1;
    enum sg_select_fault fault = sg_select(&t->in, r);
    if (fault == SG_SELECT_OK)
        return 0;
    sg_inputs_finish(t);
    return sg_error_set(err, SG_INVALID_REQUEST, "the candidates are not acceptable (%d)", (int)fault);
}

/* Reads back what was written; consumes b. NULL when memory is out. */
static json_t *tree(struct sg_buf *b, int written)
{
    json_t *v = written == 0 ? json_loadb(b->data, b->len, 0, NULL) : NULL;
    sg_buf_finish(b);
    return v;
}

static int fill(const struct sg_select_input *in, const struct sg_decide_context *ctx,
                const struct sg_select_result *r, struct sg_decision *d, struct sg_error *err)
{
    struct sg_buf b;
    sg_buf_init(&b, SG_DECISION_TEXT_MAX);
    d->receipt = tree(&b, sg_write_receipt(&b, in, ctx, r));
    d->considered = tree(&b, sg_write_considered(&b, in, r));
    d->attempted = tree(&b, sg_write_attempted(&b, r));
    if (!d->receipt || !d->considered || !d->attempted)
        return no_memory(err);
    d->code = code_of(r->verdict);
    d->backend = json_string_value(json_object_get(d->receipt, "chosen_backend"));
    return 0;
}

int sg_decide(const struct sg_policy *policy, const struct sg_environment *env,
              const struct sg_candidates *candidates, const struct sg_decide_context *ctx,
              struct sg_decision *ret, struct sg_error *err)
{
    struct sg_decision d = {0};
    struct sg_inputs t;
    struct sg_select_result r;
    *ret = d;
    if (decide(policy, env, candidates, &t, &r, err) < 0)
        return -1;
    int rc = fill(&t.in, ctx, &r, &d, err);
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
    sg_json_unref(d->receipt);
    sg_json_unref(d->considered);
    sg_json_unref(d->attempted);
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
    sg_error_member(err, "attempted", sg_json_ref(d->attempted));
    sg_error_member(err, "considered", sg_json_ref(d->considered));
    sg_error_member(err, "receipt", sg_json_ref(d->receipt));
    return -1;
}

/* ---- POST /select ---- */

static int answer_text(const struct sg_select_input *in, const struct sg_select_result *r, struct sg_buf *b)
{
    return sg_buf_add(b, "{\"backend\":", 11) < 0 ||
                   sg_json_add_string(b, r->pick->name, strlen(r->pick->name)) < 0 ||
                   sg_buf_add(b, ",\"receipt\":", 11) < 0 || sg_write_receipt(b, in, NULL, r) < 0 ||
                   sg_buf_add(b, ",\"considered\":", 14) < 0 || sg_write_considered(b, in, r) < 0 ||
                   sg_buf_add(b, "}", 1) < 0
               ? -1
               : 0;
}

static int answer(const struct sg_policy *policy, const struct sg_environment *env,
                  const struct sg_candidates *candidates, char **ret, size_t *ret_len, struct sg_error *err)
{
    struct sg_inputs t;
    struct sg_select_result r;
    struct sg_decision d = {0};
    struct sg_buf b;
    if (decide(policy, env, candidates, &t, &r, err) < 0)
        return -1;
    sg_buf_init(&b, SG_DECISION_TEXT_MAX);
    int rc;
    if (r.pick)
        rc = answer_text(&t.in, &r, &b) < 0 ? no_memory(err) : 0;
    else
        rc = fill(&t.in, NULL, &r, &d, err) < 0 ? -1 : sg_decision_refusal(&d, err);
    if (rc == 0)
        *ret = sg_buf_steal(&b, ret_len);
    sg_buf_finish(&b);
    sg_decision_finish(&d);
    sg_inputs_finish(&t);
    return rc;
}

int sg_selection_answer(const struct sg_selection_request *rq, const struct sg_selection_world *world,
                        char **ret, size_t *ret_len, struct sg_error *err)
{
    struct sg_candidates candidates = {0};
    struct sg_environment env = {0};
    if (rq->pool)
        return sg_error_field(err, SG_POOL_NOT_FOUND, "pool", "no pool of that name is configured");
    if (rq->backends_given && rq->environment_given)
        return answer(&rq->policy, &rq->environment, &rq->backends, ret, ret_len, err);
    if (sg_selection_cut(world->who, world->registered, world->snapshot, &candidates, &env, err) < 0)
        return -1;
    int rc = answer(&rq->policy, rq->environment_given ? &rq->environment : &env,
                    rq->backends_given ? &rq->backends : &candidates, ret, ret_len, err);
    sg_candidates_finish(&candidates);
    sg_environment_finish(&env);
    return rc;
}
