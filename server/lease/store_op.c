/* Ops: rows that belong together, copied at once so that the store thread needs nobody's locks. */
#include "base/clock.h"
#include "base/json.h"
#include "lease/store_priv.h"
#include "model/lease_json.h"

struct sg_store_op *sg_store_op_new(void)
{
    struct sg_store_op *op = sg_xcalloc(1, sizeof *op);
    op->tail = &op->rows;
    return op;
}

static void row_free(struct sg_row *r)
{
    for (size_t i = 0; i < SG_ROW_TEXTS; i++) {
        free(r->text[i]);
    }
    free(r);
}

struct sg_store_op *sg_store_op_free(struct sg_store_op *op)
{
    if (op == NULL) {
        return NULL;
    }
    for (struct sg_row *r = op->rows; r != NULL;) {
        struct sg_row *next = r->next;
        row_free(r);
        r = next;
    }
    sg_error_clear(&op->err);
    free(op);
    return NULL;
}

struct sg_row *sg_store_op_row(struct sg_store_op *op, enum sg_row_kind kind)
{
    struct sg_row *r = sg_xcalloc(1, sizeof *r);
    r->kind = kind;
    *op->tail = r;
    op->tail = &r->next;
    return r;
}

void sg_store_op_text(struct sg_store_op *op, struct sg_row *r, int i, const char *text)
{
    if (text == NULL || text[0] == '\0') {
        return;
    }
    if (strlen(text) > SG_STORE_BODY_MAX) {
        op->too_large = true;
        return;
    }
    r->text[i] = strdup(text);
    op->no_memory = op->no_memory || r->text[i] == NULL;
}

/* Takes v. */
static void set_json(struct sg_store_op *op, struct sg_row *r, int i, json_t *v)
{
    size_t len = 0;
    r->text[i] = v != NULL ? sg_json_dump(v, &len) : NULL;
    op->no_memory = op->no_memory || r->text[i] == NULL;
    op->too_large = op->too_large || len > SG_STORE_BODY_MAX;
    sg_json_unref(v);
}

static void set_standing(struct sg_store_op *op, struct sg_row *r, const struct sg_lease *l)
{
    sg_store_op_text(op, r, SG_L_ID, l->id);
    sg_store_op_text(op, r, SG_L_REASON, l->reason);
    r->num[SG_L_STATE] = l->state;
    r->num[SG_L_EXPIRES] = l->expires_us;
    r->num[SG_L_ENDED] = l->ended_us;
}

void sg_store_op_lease(struct sg_store_op *op, const struct sg_lease *l)
{
    struct sg_row *r = sg_store_op_row(op, SG_ROW_LEASE);
    set_standing(op, r, l);
    sg_store_op_text(op, r, SG_L_TENANT, l->terms->tenant);
    sg_store_op_text(op, r, SG_L_TRAJECTORY, l->terms->trajectory_id);
    sg_store_op_text(op, r, SG_L_KEY, l->terms->idempotency_key);
    sg_store_op_text(op, r, SG_L_PROVIDER, l->provider);
    sg_store_op_text(op, r, SG_L_SANDBOX, l->sandbox_id);
    if (l->metadata != NULL) {
        set_json(op, r, SG_L_METADATA, sg_json_ref(l->metadata));
    }
    set_json(op, r, SG_L_TERMS, sg_lease_terms_json(l->terms));
    sg_store_op_text(op, r, SG_L_RECEIPT, l->receipt_id);
    r->num[SG_L_CAPS] = l->caps;
    r->num[SG_L_CREATED] = l->created_us;
}

void sg_store_op_lease_state(struct sg_store_op *op, const struct sg_lease *l)
{
    set_standing(op, sg_store_op_row(op, SG_ROW_LEASE_STATE), l);
}

void sg_store_op_events(struct sg_store_op *op, const char *lease_id, const struct sg_lease_events *l)
{
    struct sg_row *r = sg_store_op_row(op, SG_ROW_EVENTS);
    sg_store_op_text(op, r, SG_V_LEASE, lease_id);
    r->text[SG_V_TEXT] = sg_lease_events_dump(l);
    op->no_memory = op->no_memory || r->text[SG_V_TEXT] == NULL;
}

void sg_store_op_receipt(struct sg_store_op *op, const char *tenant, const char *receipt_id, const char *body)
{
    struct sg_row *r = sg_store_op_row(op, SG_ROW_RECEIPT);
    char digest[SG_SHA256_HEX];
    sg_sha256_hex(body, strlen(body), digest);
    sg_store_op_text(op, r, SG_R_ID, receipt_id);
    sg_store_op_text(op, r, SG_R_TENANT, tenant);
    sg_store_op_text(op, r, SG_R_BODY, body);
    set_json(op, r, SG_R_PAYLOAD, json_pack("{s:s}", "sha256", digest));
}

void sg_store_op_audit(struct sg_store_op *op, const char *event, const char *tenant, const char *lease_id,
                       const struct json_t *detail)
{
    struct sg_row *r = sg_store_op_row(op, SG_ROW_AUDIT);
    sg_store_op_text(op, r, SG_A_KIND, event);
    sg_store_op_text(op, r, SG_A_TENANT, tenant);
    sg_store_op_text(op, r, SG_A_LEASE, lease_id);
    if (detail == NULL) {
        sg_store_op_text(op, r, SG_A_PAYLOAD, "{}");
        return;
    }
    size_t len = 0;
    r->text[SG_A_PAYLOAD] = sg_json_dump(detail, &len);
    op->no_memory = op->no_memory || r->text[SG_A_PAYLOAD] == NULL;
    op->too_large = op->too_large || len > SG_STORE_BODY_MAX;
}

void sg_store_op_answer(struct sg_store_op *op, const char *tenant, const char *key, const char *request_hash,
                        const char *lease_id, int status, const char *body)
{
    struct sg_row *r = sg_store_op_row(op, SG_ROW_ANSWER);
    sg_store_op_text(op, r, SG_K_TENANT, tenant);
    sg_store_op_text(op, r, SG_K_KEY, key);
    sg_store_op_text(op, r, SG_K_HASH, request_hash);
    sg_store_op_text(op, r, SG_K_LEASE, lease_id);
    sg_store_op_text(op, r, SG_K_BODY, body);
    r->num[0] = status;
    r->num[1] = sg_wall_us();
}

void sg_store_op_spent(struct sg_store_op *op, const char *tenant, int64_t microusd)
{
    struct sg_row *r = sg_store_op_row(op, SG_ROW_SPENT);
    sg_store_op_text(op, r, SG_K_TENANT, tenant);
    r->num[0] = microusd;
}

void sg_store_op_no_answer(struct sg_store_op *op, const char *tenant, const char *key, const char *lease_id)
{
    struct sg_row *r = sg_store_op_row(op, SG_ROW_NO_ANSWER);
    sg_store_op_text(op, r, SG_K_TENANT, tenant);
    sg_store_op_text(op, r, SG_K_KEY, key);
    sg_store_op_text(op, r, SG_K_LEASE, lease_id);
}
