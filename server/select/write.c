#include "select/write.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/json.h"
#include "model/caps.h"
#include "select/receipt.h"

#define MISSING_MAX ((size_t)2 * SG_SELECT_NAMES_MAX)

/* Appends until something fails; then nothing more, and `failed` says so. */
struct writer {
    struct sg_buf *b;
    bool failed;
};

static void add(struct writer *w, const char *data, size_t len)
{
    if (!w->failed)
        w->failed = sg_buf_add(w->b, data, len) < 0;
}

static void text(struct writer *w, const char *s)
{
    add(w, s, strlen(s));
}

/* A string, or null. */
static void string(struct writer *w, const char *s)
{
    if (!s)
        add(w, "null", 4);
    else if (!w->failed)
        w->failed = sg_json_add_string(w->b, s, strlen(s)) < 0;
}

static void boolean(struct writer *w, bool v)
{
    text(w, v ? "true" : "false");
}

static void names(struct writer *w, const struct sg_select_names *l)
{
    add(w, "[", 1);
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            add(w, ",", 1);
        string(w, l->v[i]);
    }
    add(w, "]", 1);
}

/* ---- capabilities: names of a set of bits, sorted by bytes ---- */

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static size_t cap_names(unsigned caps, const char *out[SG_CAP_COUNT])
{
    size_t n = 0;
    for (unsigned i = 0; i < SG_CAP_COUNT; i++) {
        if (caps & (1U << i))
            out[n++] = sg_cap_name(i);
    }
    if (n > 1)
        qsort(out, n, sizeof *out, compare_names);
    return n;
}

static void caps_list(struct writer *w, unsigned caps)
{
    const char *v[SG_CAP_COUNT];
    struct sg_select_names l = {v, cap_names(caps, v)};
    names(w, &l);
}

/* ---- the receipt ---- */

static void candidates(struct writer *w, const struct sg_select_input *in)
{
    add(w, "[", 1);
    for (size_t i = 0; i < in->n_candidates; i++) {
        const struct sg_select_candidate *c = &in->candidates[i];
        text(w, i ? ",{\"capabilities\":" : "{\"capabilities\":");
        caps_list(w, c->capabilities);
        text(w, ",\"credentials\":");
        names(w, &c->credentials);
        text(w, ",\"free\":");
        boolean(w, c->free);
        text(w, ",\"name\":");
        string(w, c->name);
        add(w, "}", 1);
    }
    add(w, "]", 1);
}

static void budget(struct writer *w, const struct sg_select_environment *e)
{
    char number[32];
    if (!e->budget_set) {
        text(w, "null");
        return;
    }
    int n = snprintf(number, sizeof number, "%" PRId64, e->budget_microusd);
    add(w, number, (size_t)n);
}

/* Members in the order of their names, as everywhere in canonical text. */
static void selector_inputs(struct writer *w, const struct sg_select_input *in,
                            const struct sg_decide_context *ctx)
{
    text(w, "{\"allow_paid\":");
    boolean(w, in->policy.allow_paid);
    text(w, ",\"available_credentials\":");
    names(w, &in->environment.available_credentials);
    text(w, ",\"backend_allowlist\":null,\"budget_remaining_microusd\":");
    budget(w, &in->environment);
    text(w, ",\"candidates\":");
    candidates(w, in);
    text(w, ",\"local_pool\":");
    string(w, ctx->local_pool);
    text(w, ",\"network_egress_class\":");
    string(w, ctx->network_egress_class);
    text(w, ",\"override\":");
    string(w, in->policy.override);
    text(w, ",\"precedence\":");
    names(w, &in->policy.precedence);
    text(w, ",\"required_capabilities\":");
    caps_list(w, in->policy.required_capabilities);
    text(w, ",\"required_credentials\":");
    names(w, &in->policy.required_credentials);
    add(w, "}", 1);
}

static void outcome(struct writer *w, const struct sg_select_result *r)
{
    if (r->pick) {
        text(w, "null");
        return;
    }
    text(w, "{\"code\":");
    string(w, sg_select_verdict_name(r->verdict));
    text(w, ",\"field\":null,\"reason\":null}");
}

/* Hashes the receipt from `start` on and puts its id where it belongs, at `at`. */
static void insert_id(struct writer *w, size_t start, size_t at)
{
    char id[SG_SHA256_HEX];
    char member[SG_SHA256_HEX + 16];
    if (w->failed)
        return;
    sg_sha256_hex(w->b->data + start, w->b->len - start, id);
    int n = snprintf(member, sizeof member, "\"id\":\"%s\",", id);
    size_t tail = w->b->len - at;
    add(w, member, (size_t)n);
    if (w->failed)
        return;
    memmove(w->b->data + at + n, w->b->data + at, tail);
    memcpy(w->b->data + at, member, (size_t)n);
}

int sg_write_receipt(struct sg_buf *b, const struct sg_select_input *in, const struct sg_decide_context *ctx,
                     const struct sg_select_result *result)
{
    static const struct sg_decide_context nothing = {0};
    char version[48];
    struct writer w = {.b = b};
    size_t start = b->len;
    text(&w, "{\"chosen_backend\":");
    string(&w, result->pick ? result->pick->name : NULL);
    text(&w, ",\"effective_manifest_hash\":null,");
    size_t at = b->len;
    text(&w, "\"outcome\":");
    outcome(&w, result);
    text(&w, ",\"overrides_hash\":null,\"pool_hash\":null,\"pool_name\":null,");
    snprintf(version, sizeof version, "\"schema_version\":%d,", SG_RECEIPT_SCHEMA_VERSION);
    text(&w, version);
    text(&w, "\"selector_inputs\":");
    selector_inputs(&w, in, ctx ? ctx : &nothing);
    text(&w, ",\"template_hash\":null}");
    insert_id(&w, start, at);
    return w.failed ? -1 : 0;
}

/* ---- the explanation ---- */

/* "missing a, b" as a JSON string; the names of credentials and capabilities need no escape. */
static void missing(struct writer *w, const char *const *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        text(w, i ? ", " : "\"missing ");
        text(w, v[i]);
    }
    add(w, "\"", 1);
}

static void detail(struct writer *w, const struct sg_select_input *in, const struct sg_select_considered *c,
                   enum sg_select_reason reason)
{
    const char *v[MISSING_MAX];
    char sentence[512];
    switch (reason) {
    case SG_SELECT_NOT_THE_OVERRIDE:
        snprintf(sentence, sizeof sentence, "the override names %.*s, which is not registered",
                 (int)SG_ANY_NAME_MAX, in->policy.override);
        string(w, sentence);
        break;
    case SG_SELECT_PAID_NOT_ALLOWED:
        text(w, "\"not free, and allow_paid is false\"");
        break;
    case SG_SELECT_BUDGET_EXHAUSTED:
        text(w, "\"not free, and the budget is used up\"");
        break;
    case SG_SELECT_MISSING_CAPABILITIES:
        missing(w, v, cap_names(c->missing_capabilities, v));
        break;
    case SG_SELECT_MISSING_CREDENTIALS:
        missing(w, v, sg_select_missing_credentials(in, c->candidate, v));
        break;
    }
}

static void reasons(struct writer *w, const struct sg_select_input *in, const struct sg_select_considered *c)
{
    bool first = true;
    for (unsigned i = 0; i < SG_SELECT_REASONS; i++) {
        enum sg_select_reason bit = (enum sg_select_reason)(1U << i);
        if (!(c->reasons & bit))
            continue;
        text(w, first ? "{\"code\":\"" : ",{\"code\":\"");
        text(w, sg_select_reason_name(bit));
        text(w, "\",\"detail\":");
        detail(w, in, c, bit);
        add(w, "}", 1);
        first = false;
    }
}

int sg_write_considered(struct sg_buf *b, const struct sg_select_input *in,
                        const struct sg_select_result *result)
{
    struct writer w = {.b = b};
    add(&w, "[", 1);
    for (size_t i = 0; i < result->n_considered; i++) {
        const struct sg_select_considered *c = &result->considered[i];
        text(&w, i ? ",{\"backend\":" : "{\"backend\":");
        string(&w, c->candidate->name);
        text(&w, ",\"eligible\":");
        boolean(&w, c->reasons == 0);
        text(&w, ",\"reasons\":[");
        reasons(&w, in, c);
        text(&w, "]}");
    }
    add(&w, "]", 1);
    return w.failed ? -1 : 0;
}

int sg_write_attempted(struct sg_buf *b, const struct sg_select_result *result)
{
    struct writer w = {.b = b};
    add(&w, "[", 1);
    for (size_t i = 0; i < result->n_considered; i++) {
        if (i)
            add(&w, ",", 1);
        string(&w, result->considered[i].candidate->name);
    }
    add(&w, "]", 1);
    return w.failed ? -1 : 0;
}
