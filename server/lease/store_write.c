/* One commit: rows into the database. Store thread (and the opening thread before there is one). */
#include "base/clock.h"
#include "base/secret.h"
#include "lease/store_priv.h"

void sg_store_bind_text(sqlite3_stmt *st, int i, const char *text)
{
    if (text == NULL) {
        sqlite3_bind_null(st, i);
    } else {
        sqlite3_bind_text(st, i, text, -1, SQLITE_STATIC);
    }
}

int sg_store_run(struct sg_store *s, enum sg_stmt which)
{
    sqlite3_stmt *st = s->stmts[which];
    int rc = sqlite3_step(st);
    sqlite3_reset(st);
    return rc == SQLITE_DONE || rc == SQLITE_ROW ? SQLITE_OK : rc;
}

int sg_store_audit_append(struct sg_store *s, struct sg_audit_head *head, struct sg_audit_record *r,
                          struct sg_error *err)
{
    size_t key_len = 0;
    const char *key = sg_secret_expose(s->audit_key, &key_len);
    r->time_us = sg_wall_us();
    if (sg_audit_append(key, key_len, head, r, err) < 0) {
        return SQLITE_MISUSE;
    }
    sqlite3_stmt *st = s->stmts[SG_STMT_AUDIT];
    sqlite3_bind_int64(st, 1, r->seq);
    sqlite3_bind_int64(st, 2, r->time_us);
    sg_store_bind_text(st, 3, r->kind);
    sg_store_bind_text(st, 4, r->tenant);
    sg_store_bind_text(st, 5, r->lease_id);
    sg_store_bind_text(st, 6, r->receipt_id);
    sg_store_bind_text(st, 7, r->payload);
    sqlite3_bind_blob(st, 8, r->mac, SG_SHA256_LEN, SQLITE_STATIC);
    return sg_store_run(s, SG_STMT_AUDIT);
}

static int write_lease(struct sg_store *s, const struct sg_row *r)
{
    sqlite3_stmt *st = s->stmts[SG_STMT_LEASE];
    sg_store_bind_text(st, 1, r->text[SG_L_ID]);
    sg_store_bind_text(st, 2, r->text[SG_L_TENANT]);
    sg_store_bind_text(st, 3, r->text[SG_L_TRAJECTORY]);
    sg_store_bind_text(st, 4, r->text[SG_L_KEY]);
    sg_store_bind_text(st, 5, r->text[SG_L_PROVIDER]);
    sg_store_bind_text(st, 6, r->text[SG_L_SANDBOX]);
    sqlite3_bind_int64(st, 7, r->num[SG_L_STATE]);
    sg_store_bind_text(st, 8, r->text[SG_L_REASON]);
    sqlite3_bind_int64(st, 9, r->num[SG_L_CAPS]);
    sg_store_bind_text(st, 10, r->text[SG_L_METADATA]);
    sg_store_bind_text(st, 11, r->text[SG_L_TERMS]);
    sg_store_bind_text(st, 12, r->text[SG_L_RECEIPT]);
    sqlite3_bind_int64(st, 13, r->num[SG_L_CREATED]);
    sqlite3_bind_int64(st, 14, r->num[SG_L_EXPIRES]);
    sqlite3_bind_int64(st, 15, r->num[SG_L_ENDED]);
    return sg_store_run(s, SG_STMT_LEASE);
}

static int write_lease_state(struct sg_store *s, const struct sg_row *r)
{
    sqlite3_stmt *st = s->stmts[SG_STMT_LEASE_STATE];
    sg_store_bind_text(st, 1, r->text[SG_L_ID]);
    sqlite3_bind_int64(st, 2, r->num[SG_L_STATE]);
    sg_store_bind_text(st, 3, r->text[SG_L_REASON]);
    sqlite3_bind_int64(st, 4, r->num[SG_L_EXPIRES]);
    sqlite3_bind_int64(st, 5, r->num[SG_L_ENDED]);
    return sg_store_run(s, SG_STMT_LEASE_STATE);
}

static int write_events(struct sg_store *s, const struct sg_row *r)
{
    sqlite3_stmt *st = s->stmts[SG_STMT_EVENTS];
    sg_store_bind_text(st, 1, r->text[SG_V_LEASE]);
    sg_store_bind_text(st, 2, r->text[SG_V_TEXT]);
    return sg_store_run(s, SG_STMT_EVENTS);
}

static int write_receipt(struct sg_store *s, const struct sg_row *r, struct sg_audit_head *head)
{
    sqlite3_stmt *st = s->stmts[SG_STMT_RECEIPT];
    sg_store_bind_text(st, 1, r->text[SG_R_ID]);
    sg_store_bind_text(st, 2, r->text[SG_R_BODY]);
    int rc = sg_store_run(s, SG_STMT_RECEIPT);
    if (rc == SQLITE_OK) {
        st = s->stmts[SG_STMT_RECEIPT_OWNER];
        sg_store_bind_text(st, 1, r->text[SG_R_ID]);
        sg_store_bind_text(st, 2, r->text[SG_R_TENANT]);
        rc = sg_store_run(s, SG_STMT_RECEIPT_OWNER);
    }
    if (rc != SQLITE_OK) {
        return rc;
    }
    struct sg_audit_record rec = {.kind = "receipt.sealed",
                                  .tenant = r->text[SG_R_TENANT],
                                  .receipt_id = r->text[SG_R_ID],
                                  .payload = r->text[SG_R_PAYLOAD]};
    return sg_store_audit_append(s, head, &rec, NULL);
}

static int write_answer(struct sg_store *s, const struct sg_row *r)
{
    sqlite3_stmt *st = s->stmts[SG_STMT_ANSWER];
    sg_store_bind_text(st, 1, r->text[SG_K_TENANT]);
    sg_store_bind_text(st, 2, r->text[SG_K_KEY]);
    sg_store_bind_text(st, 3, r->text[SG_K_HASH]);
    sg_store_bind_text(st, 4, r->text[SG_K_LEASE]);
    sqlite3_bind_int64(st, 5, r->num[0]);
    sg_store_bind_text(st, 6, r->text[SG_K_BODY]);
    sqlite3_bind_int64(st, 7, r->num[1]);
    return sg_store_run(s, SG_STMT_ANSWER);
}

int sg_store_forget_answer(struct sg_store *s, const char *tenant, const char *key, const char *lease_id)
{
    sqlite3_stmt *st = s->stmts[SG_STMT_NO_ANSWER];
    sg_store_bind_text(st, 1, tenant);
    sg_store_bind_text(st, 2, key);
    sg_store_bind_text(st, 3, lease_id);
    return sg_store_run(s, SG_STMT_NO_ANSWER);
}

static int write_spent(struct sg_store *s, const struct sg_row *r)
{
    sqlite3_stmt *st = s->stmts[SG_STMT_SPENT];
    sg_store_bind_text(st, 1, r->text[SG_K_TENANT]);
    sqlite3_bind_int64(st, 2, r->num[0]);
    return sg_store_run(s, SG_STMT_SPENT);
}

static int write_row(struct sg_store *s, const struct sg_row *r, struct sg_audit_head *head)
{
    switch (r->kind) {
    case SG_ROW_LEASE:
        return write_lease(s, r);
    case SG_ROW_LEASE_STATE:
        return write_lease_state(s, r);
    case SG_ROW_EVENTS:
        return write_events(s, r);
    case SG_ROW_RECEIPT:
        return write_receipt(s, r, head);
    case SG_ROW_ANSWER:
        return write_answer(s, r);
    case SG_ROW_NO_ANSWER:
        return sg_store_forget_answer(s, r->text[SG_K_TENANT], r->text[SG_K_KEY], r->text[SG_K_LEASE]);
    case SG_ROW_SPENT:
        return write_spent(s, r);
    case SG_ROW_KEPT:
        return sg_store_write_kept(s, r);
    case SG_ROW_NOT_KEPT:
        return sg_store_write_not_kept(s, r);
    case SG_ROW_AUDIT:
        break;
    }
    struct sg_audit_record rec = {.kind = r->text[SG_A_KIND],
                                  .tenant = r->text[SG_A_TENANT],
                                  .lease_id = r->text[SG_A_LEASE],
                                  .payload = r->text[SG_A_PAYLOAD]};
    return sg_store_audit_append(s, head, &rec, NULL);
}

/* The fault of one op, as opposed to one of the disk. */
static bool own_fault(int rc)
{
    switch (rc & 0xff) {
    case SQLITE_CONSTRAINT:
    case SQLITE_MISMATCH:
    case SQLITE_TOOBIG:
    case SQLITE_MISUSE:
    case SQLITE_RANGE:
        return true;
    default:
        return false;
    }
}

/* One op within the running transaction, whole or not at all. SQLITE_OK also when op->failed. */
static int write_op(struct sg_store *s, struct sg_store_op *op, struct sg_audit_head *head)
{
    const struct sg_audit_head before = *head;
    int rc = sg_store_run(s, SG_STMT_SAVE);
    for (struct sg_row *r = op->rows; r != NULL && rc == SQLITE_OK; r = r->next) {
        rc = write_row(s, r, head);
    }
    if (rc != SQLITE_OK && own_fault(rc)) {
        op->failed = true;
        (void)sg_error_set(&op->err, SG_INTERNAL, "the store refused a row: %s", sqlite3_errmsg(s->writer));
        *head = before;
        rc = sg_store_run(s, SG_STMT_SAVE_ROLLBACK);
    }
    return rc == SQLITE_OK ? sg_store_run(s, SG_STMT_SAVE_RELEASE) : rc;
}

int sg_store_sync(struct sg_store *s, bool full)
{
    if (s->full_sync == full) {
        return SQLITE_OK;
    }
    int rc = sqlite3_exec(s->writer, full ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=NORMAL", NULL,
                          NULL, NULL);
    s->full_sync = rc == SQLITE_OK ? full : s->full_sync;
    return rc;
}

int sg_store_commit(struct sg_store *s, struct sg_store_op *ops, bool durable, struct sg_error *err)
{
    struct sg_audit_head head = s->head;
    int rc = sg_store_sync(s, durable);
    if (rc == SQLITE_OK) {
        rc = sg_store_run(s, SG_STMT_BEGIN);
    }
    for (struct sg_store_op *op = ops; op != NULL && rc == SQLITE_OK; op = op->next) {
        rc = write_op(s, op, &head);
    }
    if (rc == SQLITE_OK) {
        rc = sg_store_run(s, SG_STMT_COMMIT);
    }
    if (rc != SQLITE_OK) {
        sg_db_error(err, s->writer, rc, "write");
        if (sqlite3_get_autocommit(s->writer) == 0) {
            (void)sg_store_run(s, SG_STMT_ROLLBACK);
        }
        for (struct sg_store_op *op = ops; op != NULL; op = op->next) {
            op->failed = false; /* the next attempt decides anew */
            sg_error_clear(&op->err);
        }
        return -1;
    }
    s->head = head;
    sg_store_head_set(s, &head, durable ? &head : NULL);
    return 0;
}

int sg_store_probe(struct sg_store *s, struct sg_error *err)
{
    int rc = sg_store_sync(s, true);
    if (rc == SQLITE_OK) {
        rc = sg_store_run(s, SG_STMT_PROBE);
    }
    return rc == SQLITE_OK ? 0 : sg_db_error(err, s->writer, rc, "write");
}

bool sg_store_checkpoint(struct sg_store *s, sqlite3 *db)
{
    int pages = 0;
    int copied = 0;
    int rc = sqlite3_wal_checkpoint_v2(db, NULL, SQLITE_CHECKPOINT_PASSIVE, &pages, &copied);
    if (rc != SQLITE_OK && rc != SQLITE_BUSY) {
        struct sg_error err = {0};
        sg_db_error(&err, db, rc, "checkpoint");
        sg_log_event(s->log, SG_LOG_WARN, "store_checkpoint_failed", &err);
        sg_error_clear(&err);
    }
    return rc == SQLITE_OK && pages == copied;
}
