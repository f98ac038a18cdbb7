/* The database file: schema, migrations, connections, prepared statements. */
#include "base/log.h"
#include "lease/store_priv.h"

/* Version N of the schema is what the first N steps make. A step that has been released is never changed. */
static const char *const migrations[] = {
    /* 1 */
    "CREATE TABLE leases("
    " id TEXT PRIMARY KEY, tenant TEXT NOT NULL, trajectory_id TEXT, idempotency_key TEXT, provider TEXT,"
    " sandbox_id TEXT, state INTEGER NOT NULL, reason TEXT, caps INTEGER NOT NULL, metadata TEXT, terms TEXT "
    "NOT NULL,"
    " receipt_id TEXT, created_us INTEGER NOT NULL, expires_us INTEGER NOT NULL, ended_us INTEGER NOT NULL"
    ") WITHOUT ROWID;"
    "CREATE INDEX leases_tenant ON leases(tenant, id);"
    "CREATE INDEX leases_trajectory ON leases(trajectory_id, id) WHERE trajectory_id IS NOT NULL;"
    "CREATE INDEX leases_ended ON leases(ended_us) WHERE ended_us > 0;"
    "CREATE INDEX leases_live ON leases(id) WHERE ended_us = 0;"
    "CREATE TABLE answers("
    " tenant TEXT NOT NULL, key TEXT NOT NULL, request_hash TEXT NOT NULL, lease_id TEXT NOT NULL,"
    " status INTEGER NOT NULL, body TEXT, created_us INTEGER NOT NULL, PRIMARY KEY(tenant, key)) WITHOUT "
    "ROWID;"
    "CREATE TABLE receipts(id TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE receipt_owners(receipt_id TEXT NOT NULL, tenant TEXT NOT NULL,"
    " PRIMARY KEY(receipt_id, tenant)) WITHOUT ROWID;"
    "CREATE TABLE audit("
    " seq INTEGER PRIMARY KEY, time_us INTEGER NOT NULL, kind TEXT NOT NULL, tenant TEXT, lease_id TEXT,"
    " receipt_id TEXT, payload TEXT NOT NULL, mac BLOB NOT NULL);"
    "CREATE TABLE probe(id INTEGER PRIMARY KEY CHECK(id = 1), n INTEGER NOT NULL);",
    /* 2 */
    "ALTER TABLE leases ADD COLUMN events TEXT;",
    /* 3 */
    sg_store_kept_schema,
    /* 4 */
    "CREATE TABLE audit_base(id INTEGER PRIMARY KEY CHECK(id = 1), line TEXT NOT NULL);",
    /* 5 */
    "CREATE TABLE spent(tenant TEXT PRIMARY KEY, microusd INTEGER NOT NULL) WITHOUT ROWID;",
    /* 6 */
    sg_store_kept_held_schema,
};

static const char *const write_sql[SG_STMT_COUNT] = {
    [SG_STMT_BEGIN] = "BEGIN IMMEDIATE",
    [SG_STMT_COMMIT] = "COMMIT",
    [SG_STMT_ROLLBACK] = "ROLLBACK",
    [SG_STMT_SAVE] = "SAVEPOINT op",
    [SG_STMT_SAVE_ROLLBACK] = "ROLLBACK TO op",
    [SG_STMT_SAVE_RELEASE] = "RELEASE op",
    [SG_STMT_LEASE] =
        "INSERT INTO leases(id, tenant, trajectory_id, idempotency_key, provider, sandbox_id, state, reason, "
        "caps,"
        " metadata, terms, receipt_id, created_us, expires_us, ended_us)"
        " VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15) ON CONFLICT(id) DO UPDATE SET"
        " provider=?5, sandbox_id=?6, state=?7, reason=?8, caps=?9, metadata=?10, receipt_id=?12, "
        "expires_us=?14,"
        " ended_us=?15",
    [SG_STMT_LEASE_STATE] = "UPDATE leases SET state=?2, reason=?3, expires_us=?4, ended_us=?5 WHERE id=?1",
    [SG_STMT_EVENTS] = "UPDATE leases SET events=?2 WHERE id=?1",
    [SG_STMT_RECEIPT] = "INSERT INTO receipts(id, body) VALUES(?1, ?2) ON CONFLICT(id) DO NOTHING",
    [SG_STMT_RECEIPT_OWNER] =
        "INSERT INTO receipt_owners(receipt_id, tenant) VALUES(?1, ?2) ON CONFLICT DO NOTHING",
    [SG_STMT_AUDIT] = "INSERT INTO audit(seq, time_us, kind, tenant, lease_id, receipt_id, payload, mac)"
                      " VALUES(?1,?2,?3,?4,?5,?6,?7,?8)",
    [SG_STMT_ANSWER] =
        "INSERT OR REPLACE INTO answers(tenant, key, request_hash, lease_id, status, body, created_us)"
        " VALUES(?1,?2,?3,?4,?5,?6,?7)",
    [SG_STMT_NO_ANSWER] = "DELETE FROM answers WHERE tenant=?1 AND key=?2 AND lease_id=?3",
    [SG_STMT_SPENT] = "INSERT INTO spent(tenant, microusd) VALUES(?1, ?2) ON CONFLICT(tenant) DO UPDATE SET microusd = microusd + ?2",
    [SG_STMT_PRUNE_FIND] =
        "SELECT id, tenant, idempotency_key FROM leases WHERE ended_us > 0 AND ended_us < ?1"
        " ORDER BY ended_us LIMIT 200",
    [SG_STMT_PRUNE_LEASE] = "DELETE FROM leases WHERE id=?1",
    [SG_STMT_KEPT] = sg_store_kept_insert,
    [SG_STMT_NOT_KEPT] = "DELETE FROM kept WHERE id=?1",
    [SG_STMT_AUDIT_OLD] = "SELECT seq, time_us, mac, kind FROM audit ORDER BY seq LIMIT ?1",
    [SG_STMT_AUDIT_DROP] = "DELETE FROM audit WHERE seq<=?1",
    [SG_STMT_AUDIT_BASE] =
        "INSERT INTO audit_base(id, line) VALUES(1, ?1) ON CONFLICT(id) DO UPDATE SET line=?1",
    [SG_STMT_PROBE] = "INSERT INTO probe(id, n) VALUES(1, 1) ON CONFLICT(id) DO UPDATE SET n = n + 1",
};

#define LEASE_COLUMNS                                                                                        \
    "id, tenant, trajectory_id, idempotency_key, provider, sandbox_id, state, reason, caps, metadata, "      \
    "terms, receipt_id,"                                                                                     \
    " created_us, expires_us, ended_us"

static const char *const read_sql[SG_READ_COUNT] = {
    [SG_READ_LEASE] = "SELECT " LEASE_COLUMNS " FROM leases WHERE id=?1 AND (ended_us=0 OR ended_us>=?2)",
    [SG_READ_EVENTS] = "SELECT events FROM leases WHERE id=?1",
    [SG_READ_ANSWER] =
        "SELECT a.request_hash, a.lease_id, a.status, a.body FROM answers a JOIN leases l ON l.id=a.lease_id"
        " WHERE a.tenant=?1 AND a.key=?2 AND (l.ended_us=0 OR l.ended_us>=?3)",
    [SG_READ_LEASES] = "SELECT " LEASE_COLUMNS " FROM leases WHERE id<?1 ORDER BY id DESC",
    [SG_READ_LEASES_LIVE] =
        "SELECT " LEASE_COLUMNS " FROM leases WHERE ended_us=0 AND id<?1 ORDER BY id DESC",
    [SG_READ_LEASES_TENANT] =
        "SELECT " LEASE_COLUMNS " FROM leases WHERE tenant=?2 AND id<?1 ORDER BY id DESC",
    [SG_READ_LEASES_TRAJECTORY] =
        "SELECT " LEASE_COLUMNS " FROM leases WHERE trajectory_id=?2 AND id<?1 ORDER BY id DESC",
    [SG_READ_RECEIPT] = "SELECT body FROM receipts WHERE id=?1",
    [SG_READ_RECEIPT_OWNER] = "SELECT r.body FROM receipts r JOIN receipt_owners o ON o.receipt_id=r.id"
                              " WHERE r.id=?1 AND o.tenant=?2",
    [SG_READ_KEPT] = sg_store_kept_one,
    [SG_READ_KEPT_ROW] = sg_store_kept_row_sql,
    [SG_READ_KEPT_PAGE] = sg_store_kept_page_sql,
    [SG_READ_KEPT_ALL] = sg_store_kept_all_sql,
    [SG_READ_KEPT_COUNT] = sg_store_kept_count_sql,
    [SG_READ_SPENT] = "SELECT tenant, microusd FROM spent",
    [SG_READ_AUDIT] =
        "SELECT seq, time_us, kind, tenant, lease_id, receipt_id, payload, mac FROM audit WHERE seq>?1"
        " ORDER BY seq",
};

int sg_db_error(struct sg_error *err, sqlite3 *db, int rc, const char *what)
{
    int sys = db != NULL ? sqlite3_system_errno(db) : 0;
    const char *text = db != NULL ? sqlite3_errmsg(db) : sqlite3_errstr(rc);
    if (db != NULL && (sqlite3_errcode(db) & 0xff) != (rc & 0xff)) {
        text = sqlite3_errstr(rc);
    }
    sg_error_set(err, SG_STORE_UNAVAILABLE, "the store cannot %s: %s", what, text);
    sg_error_retry_after(err, 1);
    if (err != NULL) {
        err->sys = sys;
    }
    return -1;
}

int sg_db_exec(sqlite3 *db, const char *sql, struct sg_error *err)
{
    int rc = sqlite3_exec(db, sql, NULL, NULL, NULL);
    return rc == SQLITE_OK ? 0 : sg_db_error(err, db, rc, "run a statement");
}

void sg_db_column(sqlite3_stmt *st, int col, char *out, size_t size)
{
    const unsigned char *s = sqlite3_column_text(st, col);
    size_t n = s != NULL ? (size_t)sqlite3_column_bytes(st, col) : 0;
    n = n < size ? n : size - 1;
    if (s != NULL) {
        memcpy(out, s, n);
    }
    out[n] = '\0';
}

static int schema_version(sqlite3 *db, int *ret, struct sg_error *err)
{
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(db, "PRAGMA user_version", -1, &st, NULL);
    if (rc == SQLITE_OK) {
        rc = sqlite3_step(st);
        *ret = rc == SQLITE_ROW ? sqlite3_column_int(st, 0) : 0;
    }
    sqlite3_finalize(st);
    return rc == SQLITE_ROW ? 0 : sg_db_error(err, db, rc, "read the schema version");
}

int sg_db_migrate(sqlite3 *db, struct sg_error *err)
{
    int have = 0;
    const int newest = (int)SG_COUNT_OF(migrations);
    if (schema_version(db, &have, err) < 0) {
        return -1;
    }
    if (have > newest) {
        return sg_error_set(err, SG_CONFLICT,
                            "the database has schema version %d, this sandgate knows up to %d: it was "
                            "written by a newer one",
                            have, newest);
    }
    for (; have < newest; have++) {
        sg_cleanup(sg_free_p) char *mark = sg_xasprintf("PRAGMA user_version = %d", have + 1);
        if (sg_db_exec(db, "BEGIN IMMEDIATE", err) < 0) {
            return -1;
        }
        if (sg_db_exec(db, migrations[have], err) < 0 || sg_db_exec(db, mark, err) < 0 ||
            sg_db_exec(db, "COMMIT", err) < 0) {
            (void)sg_db_exec(db, "ROLLBACK", NULL);
            return sg_error_wrap(err, "migration to schema version %d", have + 1);
        }
    }
    return 0;
}

static int open_one(const char *path, int flags, sqlite3 **ret, struct sg_error *err)
{
    int rc = sqlite3_open_v2(path, ret, flags | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_NOFOLLOW, NULL);
    if (rc != SQLITE_OK) {
        return sg_db_error(err, *ret, rc, "open its database");
    }
    sqlite3_busy_timeout(*ret, 5000);
    return 0;
}

static int prepare_all(sqlite3 *db, const char *const *sql, sqlite3_stmt **stmts, size_t n,
                       struct sg_error *err)
{
    for (size_t i = 0; i < n; i++) {
        int rc = sqlite3_prepare_v3(db, sql[i], -1, SQLITE_PREPARE_PERSISTENT, &stmts[i], NULL);
        if (rc != SQLITE_OK) {
            return sg_db_error(err, db, rc, "prepare its statements");
        }
    }
    return 0;
}

static int note_wal_pages(void *arg, sqlite3 *db, const char *name, int pages)
{
    (void)db;
    (void)name;
    ((struct sg_store *)arg)->wal_pages = pages;
    return SQLITE_OK;
}

static int open_all(struct sg_store *s, struct sg_error *err)
{
    /* Checkpoints are the housekeeper's, so that a commit never waits for one. */
    static const char setup[] =
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=0;"
        "PRAGMA journal_size_limit=67108864; PRAGMA temp_store=MEMORY; PRAGMA cache_size=-8192;";
    const int rw = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
    if (open_one(s->db_path, rw, &s->writer, err) < 0 || sg_db_exec(s->writer, setup, err) < 0 ||
        sg_db_migrate(s->writer, err) < 0 ||
        open_one(s->db_path, SQLITE_OPEN_READWRITE, &s->keeper, err) < 0 ||
        sg_db_exec(s->keeper, "PRAGMA wal_autocheckpoint=0; PRAGMA synchronous=FULL; PRAGMA cache_size=-256",
                   err) < 0 ||
        open_one(s->db_path, SQLITE_OPEN_READONLY, &s->reader, err) < 0) {
        return -1;
    }
    s->full_sync = true;
    sqlite3_wal_hook(s->writer, note_wal_pages, s);
    if (prepare_all(s->writer, write_sql, s->stmts, SG_STMT_COUNT, err) < 0 ||
        prepare_all(s->reader, read_sql, s->reads, SG_READ_COUNT, err) < 0) {
        return -1;
    }
    return 0;
}

int sg_db_open(struct sg_store *s, struct sg_error *err)
{
    if (open_all(s, err) == 0) {
        return 0;
    }
    int rc = s->writer != NULL ? sqlite3_errcode(s->writer) & 0xff : SQLITE_OK;
    bool damaged = rc == SQLITE_NOTADB || rc == SQLITE_CORRUPT;
    return sg_error_wrap(err, "%s%s", s->db_path,
                         damaged ? " is damaged (put a backup in its place, or move it away, with its -wal file, to begin anew)" : "");
}

void sg_db_close(struct sg_store *s)
{
    for (size_t i = 0; i < SG_STMT_COUNT; i++) {
        sqlite3_finalize(s->stmts[i]);
    }
    for (size_t i = 0; i < SG_READ_COUNT; i++) {
        sqlite3_finalize(s->reads[i]);
    }
    sqlite3_close(s->reader);
    sqlite3_close(s->keeper);
    sqlite3_close(s->writer); /* the last one: checkpoints and removes the log */
}
