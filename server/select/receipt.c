#include "select/receipt.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/json.h"
#include "base/str.h"
#include "select/inputs.h"

static const char *const members[] = {"id",
                                      "schema_version",
                                      "pool_name",
                                      "pool_hash",
                                      "template_hash",
                                      "overrides_hash",
                                      "effective_manifest_hash",
                                      "selector_inputs",
                                      "chosen_backend",
                                      "outcome"};
static const char *const hashes[] = {"pool_hash", "template_hash", "overrides_hash",
                                     "effective_manifest_hash"};
/* Not part of the id. */
static const char *const unhashed[] = {"id", "signature", "key_id"};

/* ---- making ---- */

int sg_receipt_id(const json_t *receipt, char ret[SG_SHA256_HEX], struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *text = NULL;
    size_t len;
    sg_cleanup(sg_json_p) json_t *rest = json_copy((json_t *)receipt);
    if (!rest)
        return sg_error_set(err, SG_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < SG_COUNT_OF(unhashed); i++)
        (void)json_object_del(rest, unhashed[i]);
    if (sg_json_canonical(rest, &text, &len, err) < 0)
        return -1;
    sg_sha256_hex(text, len, ret);
    return 0;
}

/* Sets the id of a receipt that has everything else; consumes it on failure. */
static int seal(json_t *receipt, json_t **ret, struct sg_error *err)
{
    char id[SG_SHA256_HEX];
    if (sg_receipt_id(receipt, id, err) < 0) {
        sg_json_unref(receipt);
        return -1;
    }
    if (json_object_set_new(receipt, "id", json_string(id)) < 0) {
        sg_json_unref(receipt);
        return sg_error_set(err, SG_NO_MEMORY, "out of memory");
    }
    *ret = receipt;
    return 0;
}

int sg_receipt_refused(const json_t *receipt, const struct sg_error *why, json_t **ret, struct sg_error *err)
{
    json_t *r = json_copy((json_t *)receipt);
    json_t *outcome = json_pack("{s:s, s:s?, s:s?}", "code", sg_code_name(why->code), "reason",
                                why->reason[0] ? why->reason : NULL, "field", why->field[0] ? why->field : NULL);
    if (!r || json_object_set_new(r, "outcome", outcome) < 0) {
        sg_json_unref(r);
        return sg_error_set(err, SG_NO_MEMORY, "out of memory");
    }
    (void)json_object_del(r, "signature");
    (void)json_object_del(r, "key_id");
    return seal(r, ret, err);
}

/* ---- checking ---- */

static bool fail(struct sg_receipt_check *c, const char *reason, const char *fmt, ...) SG_PRINTF(3, 4);
static bool fail(struct sg_receipt_check *c, const char *reason, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    c->ok = false;
    snprintf(c->reason, sizeof c->reason, "%s", reason);
    (void)vsnprintf(c->detail, sizeof c->detail, fmt, ap);
    va_end(ap);
    c->detail[sg_utf8_whole(c->detail, strlen(c->detail))] = '\0';
    return false;
}

static bool is_hash(const json_t *v)
{
    const char *s = json_string_value(v);
    return s && strlen(s) == SG_SHA256_HEX - 1 && strspn(s, "0123456789abcdef") == SG_SHA256_HEX - 1;
}

static bool is_text_or_null(const json_t *v)
{
    return json_is_null(v) || json_is_string(v);
}

static bool known_member(const char *key)
{
    for (size_t i = 0; i < SG_COUNT_OF(members); i++) {
        if (sg_streq(key, members[i]))
            return true;
    }
    return sg_streq(key, "signature") || sg_streq(key, "key_id");
}

static bool check_members(const json_t *r, struct sg_receipt_check *c)
{
    const char *key;
    json_t *v;
    if (!json_is_object(r))
        return fail(c, "malformed", "a receipt is an object");
    for (size_t i = 0; i < SG_COUNT_OF(members); i++) {
        if (!json_object_get(r, members[i]))
            return fail(c, "malformed", "%s is missing", members[i]);
    }
    json_object_foreach((json_t *)r, key, v)
    {
        if (!known_member(key))
            return fail(c, "malformed", "there is a member that receipts do not have");
    }
    const json_t *signature = json_object_get(r, "signature");
    const json_t *key_id = json_object_get(r, "key_id");
    if ((signature && !json_is_string(signature)) || (key_id && !json_is_string(key_id)))
        return fail(c, "malformed", "signature and key_id are strings");
    return true;
}

static bool check_pool(const json_t *r, struct sg_receipt_check *c)
{
    const json_t *name = json_object_get(r, "pool_name");
    if (!is_text_or_null(name))
        return fail(c, "malformed", "pool_name is a string or null");
    for (size_t i = 0; i < SG_COUNT_OF(hashes); i++) {
        const json_t *h = json_object_get(r, hashes[i]);
        if (!json_is_null(h) && (json_is_null(name) || !is_hash(h)))
            return fail(c, "malformed", "%s is a hash, or null without a pool", hashes[i]);
    }
    return true;
}

static bool check_outcome(const json_t *r, struct sg_receipt_check *c)
{
    const json_t *o = json_object_get(r, "outcome");
    if (!is_text_or_null(json_object_get(r, "chosen_backend")))
        return fail(c, "malformed", "chosen_backend is a string or null");
    if (json_is_null(o))
        return true;
    const json_t *code = json_object_get(o, "code");
    const json_t *reason = json_object_get(o, "reason");
    const json_t *field = json_object_get(o, "field");
    if (json_object_size(o) != 3 || !json_is_string(code) || !reason || !is_text_or_null(reason) || !field ||
        !is_text_or_null(field))
        return fail(c, "malformed", "outcome is null or {code, reason, field}");
    return true;
}

static bool check_shape(const json_t *r, struct sg_receipt_check *c)
{
    if (!check_members(r, c))
        return false;
    const json_t *version = json_object_get(r, "schema_version");
    if (!json_is_integer(version))
        return fail(c, "malformed", "schema_version is an integer");
    if (json_integer_value(version) != SG_RECEIPT_SCHEMA_VERSION)
        return fail(c, "unsupported_schema_version", "only schema_version %d is known",
                    SG_RECEIPT_SCHEMA_VERSION);
    if (!is_hash(json_object_get(r, "id")))
        return fail(c, "malformed", "id is a SHA-256 in lower-case hex");
    return check_pool(r, c) && check_outcome(r, c);
}

/* Runs the selector over what the receipt says it weighed and compares. */
static bool check_replay(const json_t *r, const struct sg_inputs *inputs, struct sg_receipt_check *c)
{
    struct sg_select_result result;
    const char *chosen = json_string_value(json_object_get(r, "chosen_backend"));
    const json_t *outcome = json_object_get(r, "outcome");
    const char *code = json_string_value(json_object_get(outcome, "code"));
    if (sg_select(&inputs->in, &result) != SG_SELECT_OK)
        return fail(c, "malformed", "the selector does not accept selector_inputs");
    const char *pick = result.pick ? result.pick->name : NULL;
    if (pick ? !chosen || !sg_streq(pick, chosen) : chosen != NULL)
        return fail(c, "outcome_mismatch", "the selector chooses %s%s, the receipt %s",
                    pick ? "backend " : "none", pick ? pick : "", chosen ? "another one" : "none");
    if (!pick) {
        const char *verdict = sg_select_verdict_name(result.verdict);
        if (!code || !sg_streq(code, verdict) || !json_is_null(json_object_get(outcome, "reason")) ||
            !json_is_null(json_object_get(outcome, "field")))
            return fail(c, "outcome_mismatch", "the selector refuses with %s, the receipt says otherwise",
                        verdict);
        return true;
    }
    /* A backend was chosen and something after the selector may have refused: any code but the selector's
     * own. */
    for (int v = SG_SELECT_NO_BACKENDS_REGISTERED; code && v <= SG_SELECT_NO_BACKEND_SATISFIES_POLICY; v++) {
        if (sg_streq(code, sg_select_verdict_name((enum sg_select_verdict)v)))
            return fail(c, "outcome_mismatch",
                        "the selector chooses backend %s, the receipt is a refusal of the selector", pick);
    }
    return true;
}

int sg_receipt_verify(const json_t *receipt, struct sg_receipt_check *ret, struct sg_error *err)
{
    struct sg_error why = {0};
    struct sg_inputs inputs;
    char id[SG_SHA256_HEX];
    *ret = (struct sg_receipt_check){0};
    if (!check_shape(receipt, ret))
        return 0;
    if (sg_inputs_read(json_object_get(receipt, "selector_inputs"), &inputs, &why) < 0) {
        if (why.code == SG_NO_MEMORY)
            return sg_error_set(err, SG_NO_MEMORY, "out of memory");
        fail(ret, "malformed", "%.200s", why.message);
        sg_error_clear(&why);
        return 0;
    }
    if (sg_receipt_id(receipt, id, &why) < 0)
        fail(ret, "malformed", "%.200s", why.message);
    else if (!sg_streq(id, json_string_value(json_object_get(receipt, "id"))))
        fail(ret, "id_mismatch", "the members hash to %s", id);
    else
        ret->ok = check_replay(receipt, &inputs, ret);
    sg_inputs_finish(&inputs);
    bool no_memory = why.code == SG_NO_MEMORY;
    sg_error_clear(&why);
    return no_memory ? sg_error_set(err, SG_NO_MEMORY, "out of memory") : 0;
}
