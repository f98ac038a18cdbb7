/* Archives and snapshots in the database: one table of what lies in which file. */
#include "base/clock.h"
#include "lease/store_priv.h"

#define DIGEST_PREFIX "sha256:"
#define COLUMNS                                                                                                                  \
    "id, kind, tenant, lease_id, trajectory_id, provider, pool, sandbox_id, slot, reason, sha256, dirs, generation, bytes,"       \
    " created_us, expires_us, ref, state"

const char sg_store_kept_schema[] =
    "CREATE TABLE kept("
    " id TEXT PRIMARY KEY, kind INTEGER NOT NULL, tenant TEXT NOT NULL, lease_id TEXT NOT NULL, trajectory_id TEXT,"
    " provider TEXT NOT NULL, pool TEXT, sandbox_id TEXT, slot TEXT, reason TEXT, sha256 TEXT NOT NULL, dirs INTEGER NOT NULL,"
    " generation INTEGER NOT NULL, bytes INTEGER NOT NULL, created_us INTEGER NOT NULL, expires_us INTEGER NOT NULL) WITHOUT ROWID;"
    "CREATE INDEX kept_tenant ON kept(kind, tenant, id);"
    "CREATE INDEX kept_digest ON kept(sha256);";

/* What a provider holds of snapshots: its name there, and how far that is. */
const char sg_store_kept_held_schema[] = "ALTER TABLE kept ADD COLUMN ref TEXT;"
                                         "ALTER TABLE kept ADD COLUMN state INTEGER NOT NULL DEFAULT 0;";

const char sg_store_kept_insert[] =
    "INSERT OR REPLACE INTO kept(" COLUMNS ") VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18)";

const char sg_store_kept_one[] =
    "SELECT " COLUMNS " FROM kept WHERE (id=?1 OR sha256=?5) AND kind=?2 AND (?3 IS NULL OR tenant=?3) AND"
    " (expires_us=0 OR expires_us>?4) AND state=0 LIMIT 1";
const char sg_store_kept_row_sql[] = "SELECT " COLUMNS " FROM kept WHERE id=?1";
const char sg_store_kept_page_sql[] =
    "SELECT " COLUMNS " FROM kept WHERE id<?1 AND kind=?2 AND (?3 IS NULL OR tenant=?3) AND (expires_us=0 OR expires_us>?4)"
    " AND state=0 ORDER BY id DESC LIMIT ?5";
const char sg_store_kept_all_sql[] = "SELECT " COLUMNS " FROM kept ORDER BY created_us DESC LIMIT ?1";

const char sg_store_kept_count_sql[] =
    "SELECT total(tenant=?3), total(bytes) FROM kept WHERE kind=?2 AND (expires_us=0 OR expires_us>?4) AND state<>1 AND ?1 IS NULL";

/* ---- writing ---- */

void sg_store_op_kept(struct sg_store_op *op, const struct sg_kept *k)
{
    struct sg_row *r = sg_store_op_row(op, SG_ROW_KEPT);
    const char *const texts[] = {[SG_Q_ID] = k->id,
                                 [SG_Q_TENANT] = k->tenant,
                                 [SG_Q_LEASE] = k->lease_id,
                                 [SG_Q_TRAJECTORY] = k->trajectory_id,
                                 [SG_Q_PROVIDER] = k->provider,
                                 [SG_Q_POOL] = k->pool,
                                 [SG_Q_SANDBOX] = k->sandbox_id,
                                 [SG_Q_SLOT] = k->slot,
                                 [SG_Q_REASON] = k->reason,
                                 [SG_Q_SHA256] = k->sha256,
                                 [SG_Q_REF] = k->ref};

    for (int i = 0; i < (int)SG_COUNT_OF(texts); i++)
        sg_store_op_text(op, r, i, texts[i]);
    r->num[SG_Q_KIND] = k->kind;
    r->num[SG_Q_DIRS] = k->dirs;
    r->num[SG_Q_GENERATION] = k->generation;
    r->num[SG_Q_BYTES] = k->bytes;
    r->num[SG_Q_CREATED] = k->created_us;
    r->num[SG_Q_EXPIRES] = k->expires_us;
    r->num[SG_Q_STATE] = k->state;
}

void sg_store_op_not_kept(struct sg_store_op *op, const char *id)
{
    sg_store_op_text(op, sg_store_op_row(op, SG_ROW_NOT_KEPT), SG_Q_ID, id);
}

int sg_store_write_kept(struct sg_store *s, const struct sg_row *r)
{
    sqlite3_stmt *st = s->stmts[SG_STMT_KEPT];

    sg_store_bind_text(st, 1, r->text[SG_Q_ID]);
    sqlite3_bind_int64(st, 2, r->num[SG_Q_KIND]);
    for (int i = SG_Q_TENANT; i <= SG_Q_SHA256; i++)
        sg_store_bind_text(st, 2 + i, r->text[i]);
    if (!r->text[SG_Q_SHA256])
        sqlite3_bind_text(st, 2 + SG_Q_SHA256, "", 0, SQLITE_STATIC); /* the column is never null */
    for (int i = SG_Q_DIRS; i <= SG_Q_EXPIRES; i++)
        sqlite3_bind_int64(st, 11 + i, r->num[i]);
    sg_store_bind_text(st, 17, r->text[SG_Q_REF]);
    sqlite3_bind_int64(st, 18, r->num[SG_Q_STATE]);
    return sg_store_run(s, SG_STMT_KEPT);
}

int sg_store_write_not_kept(struct sg_store *s, const struct sg_row *r)
{
    sg_store_bind_text(s->stmts[SG_STMT_NOT_KEPT], 1, r->text[SG_Q_ID]);
    return sg_store_run(s, SG_STMT_NOT_KEPT);
}

/* ---- reading ---- */

static void read_row(sqlite3_stmt *st, struct sg_kept *k)
{
    *k = (struct sg_kept){.kind = (enum sg_kept_kind)sqlite3_column_int(st, 1),
                          .dirs = (unsigned)sqlite3_column_int(st, 11),
                          .generation = sqlite3_column_int64(st, 12),
                          .bytes = sqlite3_column_int64(st, 13),
                          .created_us = sqlite3_column_int64(st, 14),
                          .expires_us = sqlite3_column_int64(st, 15),
                          .state = (enum sg_kept_state)sqlite3_column_int(st, 17)};
    sg_db_column(st, 0, k->id, sizeof k->id);
    sg_db_column(st, 2, k->tenant, sizeof k->tenant);
    sg_db_column(st, 3, k->lease_id, sizeof k->lease_id);
    sg_db_column(st, 4, k->trajectory_id, sizeof k->trajectory_id);
    sg_db_column(st, 5, k->provider, sizeof k->provider);
    sg_db_column(st, 6, k->pool, sizeof k->pool);
    sg_db_column(st, 7, k->sandbox_id, sizeof k->sandbox_id);
    sg_db_column(st, 8, k->slot, sizeof k->slot);
    sg_db_column(st, 9, k->reason, sizeof k->reason);
    sg_db_column(st, 10, k->sha256, sizeof k->sha256);
    sg_db_column(st, 16, k->ref, sizeof k->ref);
}

/* The rows of a statement that is bound, at most max; ends it. */
static int collect(struct sg_store *s, sqlite3_stmt *st, size_t max, struct sg_kept *ret, size_t *ret_n, struct sg_error *err)
{
    int rc = SQLITE_DONE;

    *ret_n = 0;
    while (*ret_n < max && (rc = sqlite3_step(st)) == SQLITE_ROW)
        read_row(st, &ret[(*ret_n)++]);
    sqlite3_reset(st);
    return rc == SQLITE_DONE || rc == SQLITE_ROW ? 0 : sg_db_error(err, s->reader, rc, "read");
}

static void bind_query(sqlite3_stmt *st, const char *id, enum sg_kept_kind kind, const char *tenant)
{
    sg_store_bind_text(st, 1, id);
    sqlite3_bind_int64(st, 2, kind);
    sg_store_bind_text(st, 3, tenant);
    sqlite3_bind_int64(st, 4, sg_wall_us());
}

int sg_store_kept(struct sg_store *s, enum sg_kept_kind kind, const char *tenant, const char *id, struct sg_kept *ret,
                  struct sg_error *err)
{
    sqlite3_stmt *st = s->reads[SG_READ_KEPT];
    size_t n = 0;

    pthread_mutex_lock(&s->read_lock);
    bind_query(st, id, kind, tenant);
    sg_store_bind_text(st, 5, strncmp(id, DIGEST_PREFIX, strlen(DIGEST_PREFIX)) == 0 ? id + strlen(DIGEST_PREFIX) : NULL);
    int rc = collect(s, st, 1, ret, &n, err);
    pthread_mutex_unlock(&s->read_lock);
    if (rc == 0 && n == 0)
        return sg_error_set(err, SG_NOT_FOUND, "there is no such %s", kind == SG_KEPT_ARCHIVE ? "archive" : "snapshot");
    return rc;
}

int sg_store_kept_row(struct sg_store *s, const char *id, struct sg_kept *ret, struct sg_error *err)
{
    sqlite3_stmt *st = s->reads[SG_READ_KEPT_ROW];
    size_t n = 0;

    pthread_mutex_lock(&s->read_lock);
    sg_store_bind_text(st, 1, id);
    int rc = collect(s, st, 1, ret, &n, err);
    pthread_mutex_unlock(&s->read_lock);
    return rc == 0 && n == 0 ? sg_error_set(err, SG_NOT_FOUND, "there is no row of %s", id) : rc;
}

int sg_store_kept_page(struct sg_store *s, enum sg_kept_kind kind, const char *tenant, const char *after, size_t limit,
                       struct sg_kept *ret, size_t *ret_n, struct sg_error *err)
{
    sqlite3_stmt *st = s->reads[SG_READ_KEPT_PAGE];

    pthread_mutex_lock(&s->read_lock);
    bind_query(st, after ? after : "~", kind, tenant);
    sqlite3_bind_int64(st, 5, (sqlite3_int64)limit);
    int rc = collect(s, st, limit, ret, ret_n, err);
    pthread_mutex_unlock(&s->read_lock);
    return rc;
}

int sg_store_kept_all(struct sg_store *s, size_t max, struct sg_kept **ret, size_t *ret_n, struct sg_error *err)
{
    sqlite3_stmt *st = s->reads[SG_READ_KEPT_ALL];
    sg_cleanup(sg_free_p) struct sg_kept *rows = calloc(max, sizeof *rows);

    if (!rows)
        return sg_error_set(err, SG_NO_MEMORY, "no memory for the list of archives");
    pthread_mutex_lock(&s->read_lock);
    sqlite3_bind_int64(st, 1, (sqlite3_int64)max);
    int rc = collect(s, st, max, rows, ret_n, err);
    pthread_mutex_unlock(&s->read_lock);
    if (rc == 0)
        *ret = sg_steal(&rows);
    return rc;
}

int sg_store_kept_count(struct sg_store *s, enum sg_kept_kind kind, const char *tenant, size_t *ret_n, int64_t *ret_bytes,
                        struct sg_error *err)
{
    sqlite3_stmt *st = s->reads[SG_READ_KEPT_COUNT];

    pthread_mutex_lock(&s->read_lock);
    bind_query(st, NULL, kind, tenant);
    int rc = sqlite3_step(st);
    if (rc == SQLITE_ROW) {
        *ret_n = (size_t)sqlite3_column_int64(st, 0);
        *ret_bytes = sqlite3_column_int64(st, 1);
    }
    sqlite3_reset(st);
    pthread_mutex_unlock(&s->read_lock);
    return rc == SQLITE_ROW ? 0 : sg_db_error(err, s->reader, rc, "read");
}
