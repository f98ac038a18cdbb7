#include "support.h"

json_t *test_json(const char *text)
{
    json_t *v = NULL;
    struct sg_error err = {0};
    cr_assert(text);
    cr_assert(sg_json_parse(text, strlen(text), &v, &err) == 0, "%s: %s", err.message, text);
    return v;
}

json_t *test_json_q(const char *text)
{
    sg_cleanup(sg_free_p) char *copy = sg_xstrdup(text);
    for (char *p = copy; *p; p++) {
        if (*p == '\'')
            *p = '"';
    }
    return test_json(copy);
}

static json_t *error_json(struct sg_error *err)
{
    json_t *v = json_pack("{s:s, s:i, s:s}", "code", sg_code_name(err->code), "status",
                          sg_code_status(err->code), "field", err->field);
    if (err->members)
        json_object_update_missing(v, err->members);
    sg_error_clear(err);
    return v;
}

json_t *test_select(json_t *body)
{
    struct sg_error err = {0};
    struct sg_candidates registered = {0};
    struct sg_environment snapshot = {0};
    const struct sg_principal who = {.allow_paid = true};
    const struct sg_selection_world world = {&who, &registered, &snapshot};
    sg_cleanup(sg_free_p) char *text = NULL;
    size_t len;
    struct sg_selection_request rq;
    json_t *answer;
    cr_assert(sg_candidates_add(&registered, "local_bwrap", SG_CAP_FILE_RW | SG_CAP_EXEC, true, NULL, &err) ==
              0);
    int rc = sg_selection_parse(body, &rq, &err);
    if (rc == 0)
        rc = sg_selection_answer(&rq, &world, &text, &len, &err);
    answer = rc < 0 ? error_json(&err) : test_json(text);
    sg_selection_request_finish(&rq);
    sg_candidates_finish(&registered);
    return answer;
}

json_t *test_receipt_of(const json_t *answer)
{
    json_t *r = json_object_get(answer, "receipt");
    cr_assert(json_is_object(r));
    return r;
}
