/* POST /select's body: whatever is taken is decided the same way twice, and its receipt verifies. */
#include "fuzz.h"

#include <string.h>

#include "base/json.h"
#include "select/decide.h"
#include "select/receipt.h"

/* The text of the answer, or of the members of the refusal. Caller frees. */
static char *answer_text(const struct sg_selection_request *rq)
{
    struct sg_error err = {0};
    struct sg_candidates registered = {0};
    struct sg_environment snapshot = {0};
    const struct sg_principal who = {.allow_paid = true};
    const struct sg_selection_world world = {&who, &registered, &snapshot};
    char *text = NULL;
    size_t len;
    json_t *answer = NULL;
    fuzz_require(
        sg_candidates_add(&registered, "local_bwrap", SG_CAP_FILE_RW | SG_CAP_EXEC, true, NULL, &err) == 0,
        "the registered backend is taken");
    if (sg_selection_answer(rq, &world, &text, &len, &err) < 0) {
        fuzz_require(sg_code_status(err.code) == 422, "a request that was taken is answered or refused");
        answer = json_incref(err.members);
        sg_error_clear(&err);
        text = answer ? sg_json_dump(answer, NULL) : sg_xstrdup("");
    } else {
        fuzz_require(sg_json_parse(text, len, &answer, &err) == 0, "an answer is JSON");
    }
    sg_candidates_finish(&registered);
    if (answer && json_object_get(answer, "receipt")) {
        struct sg_receipt_check check;
        char *canonical = NULL;
        char *as_is = sg_json_dump(json_object_get(answer, "receipt"), NULL);
        fuzz_require(sg_json_canonical(json_object_get(answer, "receipt"), &canonical, NULL, &err) == 0,
                     "it has a form");
        fuzz_require(strcmp(as_is, canonical) == 0, "receipts are written in canonical form");
        free(canonical);
        free(as_is);
        fuzz_require(sg_receipt_verify(json_object_get(answer, "receipt"), &check, NULL) == 0 && check.ok,
                     "receipts verify");
    }
    json_decref(answer);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sg_error err = {0};
    struct sg_selection_request rq;
    json_t *body = NULL;
    if (sg_json_parse((const char *)data, size, &body, &err) == 0 &&
        sg_selection_parse(body, &rq, &err) == 0) {
        char *once = answer_text(&rq);
        char *twice = answer_text(&rq);
        fuzz_require(once && twice && strcmp(once, twice) == 0, "equal requests get equal answers");
        free(once);
        free(twice);
        sg_selection_request_finish(&rq);
    } else {
        fuzz_require(err.code == SG_INVALID_REQUEST, "what is not taken is invalid_request");
    }
    sg_error_clear(&err);
    json_decref(body);
    return 0;
}
