/* What is over its time goes, in pieces that hold up nobody. Store thread. */
#include "base/clock.h"
#include "base/secret.h"
#include "lease/store_priv.h"

#define AUDIT_BATCH 500

/* Removes up to 200 leases that ended before the cut. */
static int some_leases(struct sg_store *s, int64_t cut_us, bool *ret_more)
{
    struct {
        char id[SG_ID_MAX];
        char *tenant, *key;
    } rows[200];
    size_t n = 0;
    sqlite3_stmt *find = s->stmts[SG_STMT_PRUNE_FIND];
    sqlite3_bind_int64(find, 1, cut_us);
    int rc;
    while ((rc = sqlite3_step(find)) == SQLITE_ROW && n < SG_COUNT_OF(rows)) {
        sg_db_column(find, 0, rows[n].id, sizeof rows[n].id);
        const char *tenant = (const char *)sqlite3_column_text(find, 1);
        const char *key = (const char *)sqlite3_column_text(find, 2);
        rows[n].tenant = tenant != NULL ? sg_xstrdup(tenant) : NULL;
        rows[n].key = key != NULL ? sg_xstrdup(key) : NULL;
        n++;
    }
    sqlite3_reset(find);
    rc = rc == SQLITE_DONE || rc == SQLITE_ROW ? SQLITE_OK : rc;
    for (size_t i = 0; i < n; i++) {
        if (rc == SQLITE_OK) {
            sg_store_bind_text(s->stmts[SG_STMT_PRUNE_LEASE], 1, rows[i].id);
            rc = sg_store_run(s, SG_STMT_PRUNE_LEASE);
        }
        if (rc == SQLITE_OK && rows[i].key != NULL) {
            rc = sg_store_forget_answer(s, rows[i].tenant, rows[i].key, rows[i].id);
        }
        free(rows[i].tenant);
        free(rows[i].key);
    }
    *ret_more = n == SG_COUNT_OF(rows);
    return rc;
}

/* The last of some records that are over their time, *ret_last zeroed when there is none. What the head kept apart speaks of stays, and so
 * does recorded damage with all that follows: it is evidence. */
static int find_old_audit(struct sg_store *s, int64_t cut_us, struct sg_audit_head *ret_last, bool *ret_more)
{
    sqlite3_stmt *find = s->stmts[SG_STMT_AUDIT_OLD];
    int seen = 0;
    int rc;
    pthread_mutex_lock(&s->head_lock);
    int64_t below = s->on_disk.seq;
    pthread_mutex_unlock(&s->head_lock);
    *ret_last = (struct sg_audit_head){0};
    sqlite3_bind_int(find, 1, AUDIT_BATCH);
    while ((rc = sqlite3_step(find)) == SQLITE_ROW) {
        const char *kind = (const char *)sqlite3_column_text(find, 3);
        int64_t seq = sqlite3_column_int64(find, 0);
        if (sqlite3_column_int64(find, 1) >= cut_us || seq >= below || kind == NULL || sg_streq(kind, "audit.damage") ||
            sqlite3_column_bytes(find, 2) != SG_SHA256_LEN) {
            break;
        }
        ret_last->seq = seq;
        memcpy(ret_last->mac, sqlite3_column_blob(find, 2), SG_SHA256_LEN);
        seen++;
    }
    *ret_more = seen == AUDIT_BATCH;
    sqlite3_reset(find);
    return rc == SQLITE_DONE || rc == SQLITE_ROW ? SQLITE_OK : rc;
}

/* Removes some audit records; the chain begins after the last of them from then on. */
static int some_audit(struct sg_store *s, int64_t cut_us, bool *ret_more)
{
    struct sg_audit_head last;
    char line[SG_AUDIT_HEAD_LINE];
    size_t key_len = 0;
    const char *key = sg_secret_expose(s->audit_key, &key_len);
    int rc = find_old_audit(s, cut_us, &last, ret_more);
    if (rc != SQLITE_OK || last.seq == 0) {
        return rc;
    }
    sg_audit_base_write(key, key_len, &last, line);
    sg_store_bind_text(s->stmts[SG_STMT_AUDIT_BASE], 1, line);
    sqlite3_bind_int64(s->stmts[SG_STMT_AUDIT_DROP], 1, last.seq);
    rc = sg_store_run(s, SG_STMT_AUDIT_BASE);
    return rc == SQLITE_OK ? sg_store_run(s, SG_STMT_AUDIT_DROP) : rc;
}

static int prune(struct sg_store *s, int64_t retention_ms, int (*some)(struct sg_store *s, int64_t cut_us, bool *ret_more),
                 bool *ret_more, struct sg_error *err)
{
    int rc = sg_store_sync(s, false);
    if (rc == SQLITE_OK) {
        rc = sg_store_run(s, SG_STMT_BEGIN);
    }
    if (rc == SQLITE_OK) {
        rc = some(s, sg_wall_us() - retention_ms * 1000, ret_more);
    }
    if (rc == SQLITE_OK) {
        rc = sg_store_run(s, SG_STMT_COMMIT);
    }
    if (rc == SQLITE_OK) {
        return 0;
    }
    sg_db_error(err, s->writer, rc, "drop old rows");
    if (sqlite3_get_autocommit(s->writer) == 0) {
        (void)sg_store_run(s, SG_STMT_ROLLBACK);
    }
    return -1;
}

int sg_store_prune(struct sg_store *s, bool *ret_more, struct sg_error *err)
{
    bool more = false;
    *ret_more = false;
    if (prune(s, s->retention_ms, some_leases, ret_more, err) < 0) {
        return -1;
    }
    if (s->audit_retention_ms > 0 && prune(s, s->audit_retention_ms, some_audit, &more, err) < 0) {
        return -1;
    }
    *ret_more = *ret_more || more;
    return 0;
}
