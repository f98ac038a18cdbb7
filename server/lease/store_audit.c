/* The audit log's two ends: the head that is kept apart from the database, and the check of the whole chain.
 *
 * The head file holds two sealed heads and the id of this boot. The first is where the chain ends now; the
 * second how far it is known to be on the disk. After a power loss the chain may rightly end between the two,
 * so the first one only counts as long as the machine has not been started again.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/secret.h"
#include "lease/store_priv.h"

struct heads {
    struct sg_audit_head latest, on_disk;
    bool same_boot;
};

static void seal_boot(const struct sg_secret *secret, const char *text, size_t len,
                      char out[2 * SG_SHA256_LEN + 1])
{
    size_t key_len = 0;
    const char *key = sg_secret_expose(secret, &key_len);
    uint8_t mac[SG_SHA256_LEN];
    sg_hmac_sha256(key, key_len, text, len, mac);
    sg_hex(mac, sizeof mac, out);
}

static void heads_write(const struct sg_secret *secret, const struct heads *h, const char *boot,
                        char out[SG_HEAD_LEN])
{
    size_t key_len = 0;
    const char *key = sg_secret_expose(secret, &key_len);
    char line[SG_AUDIT_HEAD_LINE];
    char seal[2 * SG_SHA256_LEN + 1];
    memset(out, '\n', SG_HEAD_LEN);
    sg_audit_head_write(key, key_len, &h->latest, line);
    size_t n = strlen(line);
    memcpy(out, line, n);
    sg_audit_head_write(key, key_len, &h->on_disk, line);
    memcpy(out + n, line, strlen(line));
    n += strlen(line);
    int more = snprintf(out + n, SG_HEAD_LEN - n, "boot %s ", boot);
    n += (size_t)more;
    seal_boot(secret, out, n, seal);
    memcpy(out + n, seal, sizeof seal - 1);
    out[n + sizeof seal - 1] = '\n';
}

static int head_line(const struct sg_secret *secret, const char **text, struct sg_audit_head *ret)
{
    size_t key_len = 0;
    const char *key = sg_secret_expose(secret, &key_len);
    const char *end = strchr(*text, '\n');
    if (end == NULL) {
        return -1;
    }
    size_t len = (size_t)(end + 1 - *text);
    int rc = sg_audit_head_read(key, key_len, *text, len, ret, NULL);
    *text = end + 1;
    return rc;
}

/* False: forged or damaged. */
static bool heads_parse(const struct sg_secret *secret, const char *text, const char *boot, struct heads *ret)
{
    const char *p = text;
    char id[SG_BOOT_ID_LEN];
    char seal[2 * SG_SHA256_LEN + 1];
    if (head_line(secret, &p, &ret->latest) < 0 || head_line(secret, &p, &ret->on_disk) < 0) {
        return false;
    }
    int used = 0;
    if (sscanf(p, "boot %36s %n", id, &used) != 1 || used == 0 ||
        strlen(p) < (size_t)used + sizeof seal - 1) {
        return false;
    }
    seal_boot(secret, text, (size_t)(p - text) + (size_t)used, seal);
    if (!sg_equal_const_time(p + used, seal, sizeof seal - 1)) {
        return false;
    }
    ret->same_boot = sg_streq(id, boot) && !sg_streq(id, "unknown");
    return true;
}

/* 1 read, 0 there is none, -1 forged, damaged or unreadable. A read that meets a write is tried again. */
static int heads_read(const char *dir, const struct sg_secret *secret, const char *boot, struct heads *ret)
{
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("%s/" SG_HEAD_NAME, dir);
    for (int i = 0; i < 3; i++) {
        sg_cleanup(sg_free_p) char *text = NULL;
        size_t len = 0;
        if (access(path, F_OK) < 0 && errno == ENOENT) {
            return 0;
        }
        if (sg_read_file(path, SG_HEAD_LEN, &text, &len, NULL) == 0 && heads_parse(secret, text, boot, ret)) {
            return 1;
        }
    }
    return -1;
}

void sg_store_head_set(struct sg_store *s, const struct sg_audit_head *latest,
                       const struct sg_audit_head *on_disk)
{
    char text[SG_HEAD_LEN];
    pthread_mutex_lock(&s->head_lock);
    bool news = false;
    if (latest->seq > s->latest.seq) {
        s->latest = *latest;
        news = true;
    }
    if (on_disk != NULL && on_disk->seq > s->on_disk.seq) {
        s->on_disk = *on_disk;
        news = true;
    }
    if (news && s->head_fd >= 0) {
        struct heads h = {.latest = s->latest, .on_disk = s->on_disk};
        heads_write(s->audit_key, &h, s->boot_id, text);
        /* The file keeps its size, so this needs no space; a head that lags behind is no fault of the chain.
         */
        (void)!pwrite(s->head_fd, text, sizeof text, 0);
    }
    pthread_mutex_unlock(&s->head_lock);
}

static void read_record(sqlite3_stmt *st, const struct sg_audit_head *before, struct sg_audit_record *r)
{
    memset(r, 0, sizeof *r);
    r->seq = sqlite3_column_int64(st, 0);
    r->time_us = sqlite3_column_int64(st, 1);
    r->kind = (const char *)sqlite3_column_text(st, 2);
    r->tenant = (const char *)sqlite3_column_text(st, 3);
    r->lease_id = (const char *)sqlite3_column_text(st, 4);
    r->receipt_id = (const char *)sqlite3_column_text(st, 5);
    r->payload = (const char *)sqlite3_column_text(st, 6);
    r->kind = r->kind != NULL ? r->kind : "";
    r->payload = r->payload != NULL ? r->payload : "";
    memcpy(r->prev, before->mac, sizeof r->prev);
    if (sqlite3_column_bytes(st, 7) == SG_SHA256_LEN) {
        memcpy(r->mac, sqlite3_column_blob(st, 7), SG_SHA256_LEN);
    }
}

#define RECORD_COLUMNS "seq, time_us, kind, tenant, lease_id, receipt_id, payload, mac"

/* Where the records that are kept begin. 1; 0: with the first there was (*ret zeroed); -1: forged. */
static int read_base(sqlite3 *db, const struct sg_secret *secret, struct sg_audit_head *ret)
{
    size_t key_len = 0;
    const char *key = sg_secret_expose(secret, &key_len);
    sqlite3_stmt *st = NULL;
    int have = 0;
    *ret = (struct sg_audit_head){0};
    /* A database of an older version has no such table. */
    if (sqlite3_prepare_v2(db, "SELECT line FROM audit_base", -1, &st, NULL) == SQLITE_OK &&
        sqlite3_step(st) == SQLITE_ROW) {
        const char *line = (const char *)sqlite3_column_text(st, 0);
        size_t len = (size_t)sqlite3_column_bytes(st, 0);
        have = line != NULL && sg_audit_base_read(key, key_len, line, len, ret, NULL) == 0 ? 1 : -1;
    }
    sqlite3_finalize(st);
    return have;
}

/* The last record (its head into s->head) and whether its MAC is right. 1, 0 when there is none, -1. */
static int read_tail(struct sg_store *s, bool *ret_good, struct sg_error *err)
{
    static const char sql[] =
        "SELECT * FROM (SELECT " RECORD_COLUMNS " FROM audit ORDER BY seq DESC LIMIT 2) ORDER BY seq";
    size_t key_len = 0;
    const char *key = sg_secret_expose(s->audit_key, &key_len);
    sqlite3_stmt *st = NULL;
    int n = 0;
    int rc = sqlite3_prepare_v2(s->writer, sql, -1, &st, NULL);
    while (rc == SQLITE_OK && (rc = sqlite3_step(st)) == SQLITE_ROW) {
        struct sg_audit_record r;
        struct sg_audit_check check;
        const struct sg_audit_head none = {0};
        read_record(st, &s->head, &r);
        sg_audit_check_init(&check, key, key_len, &s->head, &none);
        *ret_good = sg_audit_check_next(&check, &r);
        s->head.seq = r.seq;
        memcpy(s->head.mac, r.mac, sizeof s->head.mac);
        n++;
        rc = SQLITE_OK;
    }
    sqlite3_finalize(st);
    if (rc != SQLITE_DONE) {
        return sg_db_error(err, s->writer, rc, "read the end of the audit log");
    }
    return n > 0;
}

static bool mac_at(struct sg_store *s, const struct sg_audit_head *want)
{
    if (want->seq == 0) {
        return true;
    }
    sqlite3_stmt *st = NULL;
    bool same = false;
    if (sqlite3_prepare_v2(s->writer, "SELECT mac FROM audit WHERE seq=?1", -1, &st, NULL) == SQLITE_OK) {
        sqlite3_bind_int64(st, 1, want->seq);
        same = sqlite3_step(st) == SQLITE_ROW && sqlite3_column_bytes(st, 0) == SG_SHA256_LEN &&
               memcmp(sqlite3_column_blob(st, 0), want->mac, SG_SHA256_LEN) == 0;
    }
    sqlite3_finalize(st);
    return same;
}

/* The first problem at the end of the log, or NULL; *ret_event is what to record. */
static const char *tail_problem(struct sg_store *s, bool any, bool good, bool base_good, const char **ret_event,
                                int64_t *ret_expected)
{
    struct heads h;
    int have = heads_read(s->dir, s->audit_key, s->boot_id, &h);
    *ret_event = "audit.damage";
    *ret_expected = have > 0 ? h.latest.seq : s->head.seq;
    if (any && !good) {
        return "record_changed";
    }
    if (!base_good) {
        return "base_forged";
    }
    if (have <= 0) {
        return have < 0 ? "head_forged" : any ? "head_missing" : NULL;
    }
    if (s->head.seq < h.latest.seq) {
        bool rightly = !h.same_boot && s->head.seq >= h.on_disk.seq && mac_at(s, &h.on_disk);
        *ret_event = rightly ? "audit.power_loss" : "audit.damage";
        return "tail_cut";
    }
    return mac_at(s, &h.latest) ? NULL : "head_mismatch";
}

static int make_head_file(struct sg_store *s, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("%s/" SG_HEAD_NAME, s->dir);
    char text[SG_HEAD_LEN];
    struct heads h = {.latest = s->latest, .on_disk = s->on_disk};
    heads_write(s->audit_key, &h, s->boot_id, text);
    if (sg_write_file(path, text, sizeof text, 0600, err) < 0) {
        return -1;
    }
    s->head_fd = open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    return s->head_fd >= 0 ? 0 : sg_error_sys(err, SG_STORE_UNAVAILABLE, errno, "cannot open %s", path);
}

int sg_store_audit_open(struct sg_store *s, struct sg_error *err)
{
    bool good = true;
    bool base_good = read_base(s->writer, s->audit_key, &s->head) >= 0;
    int any = read_tail(s, &good, err);
    if (any < 0) {
        return -1;
    }
    const char *event;
    int64_t expected;
    const char *problem = tail_problem(s, any > 0, good, base_good, &event, &expected);
    struct sg_store_op *op = sg_store_op_new();
    if (problem != NULL) {
        sg_cleanup(sg_json_p) json_t *detail =
            json_pack("{s:s, s:I, s:I}", "problem", problem, "expected_seq", (json_int_t)expected,
                      "found_seq", (json_int_t)s->head.seq);
        sg_store_op_audit(op, event, NULL, NULL, detail);
    }
    sg_cleanup(sg_json_p) json_t *about = json_pack("{s:s}", "version", SG_VERSION);
    sg_store_op_audit(op, "server.started", NULL, NULL, about);
    int rc = sg_store_commit(s, op, true, err);
    if (rc == 0 && op->failed) {
        sg_error_copy(err, &op->err);
        rc = -1;
    }
    sg_store_op_free(op);
    if (rc == 0 && problem != NULL) {
        struct sg_error why = {0};
        (void)sg_error_set(&why, SG_INTERNAL,
                           "the audit log ends at record %lld, the head kept apart says %lld: %s",
                           (long long)s->head.seq, (long long)expected, problem);
        sg_log_event(s->log, SG_LOG_ERROR, "audit_damage", &why);
    }
    return rc == 0 ? make_head_file(s, err) : -1;
}

/* ---- the check of the whole chain ---- */

struct verify {
    sqlite3 *db;
    sqlite3_stmt *records, *receipt;
    struct sg_audit_report *report;
    char last_receipt[SG_SHA256_HEX]; /* the one checked last: placements of one kind share it */
};

static void problem(struct sg_audit_report *r, int64_t seq, const char *word, const char *detail)
{
    r->ok = false;
    r->at_seq = seq;
    (void)snprintf(r->problem, sizeof r->problem, "%s", word);
    (void)snprintf(r->detail, sizeof r->detail, "%s", detail);
}

static int open_read_only(const char *dir, struct verify *v, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("%s/" SG_DB_NAME, dir);
    sg_cleanup(sg_free_p) char *wal = sg_xasprintf("%s-wal", path);
    struct stat st;
    if (stat(path, &st) < 0) {
        return sg_error_sys(err, SG_NOT_FOUND, errno, "cannot open %s", path);
    }
    /* Without a log nobody has the database open, and a read-only directory must not stop the check. */
    bool quiet = stat(wal, &st) < 0 || st.st_size == 0;
    sg_cleanup(sg_free_p) char *uri = NULL;
    if (quiet) {
        if (strpbrk(path, "?#%") == NULL) {
            uri = sg_xasprintf("file:%s?immutable=1", path);
        }
    }
    int flags = SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX | (uri != NULL ? SQLITE_OPEN_URI : 0);
    int rc = sqlite3_open_v2(uri != NULL ? uri : path, &v->db, flags, NULL);
    if (rc != SQLITE_OK) {
        return sg_db_error(err, v->db, rc, "open its database");
    }
    sqlite3_busy_timeout(v->db, 5000);
    return 0;
}

/* Does the stored receipt still have the digest that was recorded when it was sealed? */
static bool check_receipt(struct verify *v, const struct sg_audit_record *r)
{
    if (r->receipt_id == NULL || !sg_streq(r->kind, "receipt.sealed") ||
        sg_streq(r->receipt_id, v->last_receipt)) {
        return true;
    }
    sg_cleanup(sg_json_p) json_t *payload = json_loads(r->payload, 0, NULL);
    const char *want = json_string_value(json_object_get(payload, "sha256"));
    sqlite3_bind_text(v->receipt, 1, r->receipt_id, -1, SQLITE_STATIC);
    bool there = sqlite3_step(v->receipt) == SQLITE_ROW;
    char digest[SG_SHA256_HEX] = "";
    if (there) {
        const void *body = sqlite3_column_text(v->receipt, 0);
        sg_sha256_hex(body, (size_t)sqlite3_column_bytes(v->receipt, 0), digest);
    }
    sqlite3_reset(v->receipt);
    if (!there || want == NULL || !sg_streq(want, digest)) {
        problem(v->report, r->seq, there ? "receipt_changed" : "receipt_missing", r->receipt_id);
        return false;
    }
    (void)snprintf(v->last_receipt, sizeof v->last_receipt, "%s", r->receipt_id);
    return true;
}

/* Walks the chain; the report is complete afterwards. */
static void walk(struct verify *v, const struct sg_secret *secret, const struct sg_audit_head *kept)
{
    size_t key_len = 0;
    const char *key = sg_secret_expose(secret, &key_len);
    struct sg_audit_check check;
    struct sg_audit_head base;
    if (read_base(v->db, secret, &base) < 0) {
        problem(v->report, 1, "base_forged", "where the records that are kept begin was not written by the server");
        return;
    }
    v->report->dropped = base.seq;
    sg_audit_check_init(&check, key, key_len, &base, kept);
    int rc;
    while ((rc = sqlite3_step(v->records)) == SQLITE_ROW) {
        struct sg_audit_record r;
        read_record(v->records, &check.at, &r);
        if (!sg_audit_check_next(&check, &r)) {
            problem(v->report, check.bad_seq, check.reason, "the record does not continue the chain");
            return;
        }
        v->report->records++;
        if (sg_streq(r.kind, "audit.damage")) {
            problem(v->report, r.seq, "damage_recorded", r.payload);
            return;
        }
        if (!check_receipt(v, &r)) {
            return;
        }
    }
    if (rc != SQLITE_DONE) {
        problem(v->report, check.at.seq + 1, "database_malformed", sqlite3_errmsg(v->db));
    } else if (!sg_audit_check_end(&check)) {
        problem(v->report, check.bad_seq, check.reason,
                "the end of the log is not what the head kept apart says");
    }
}

static void verify_finish(struct verify *v)
{
    sqlite3_finalize(v->records);
    sqlite3_finalize(v->receipt);
    sqlite3_close(v->db);
}

static void secret_p(struct sg_secret **s)
{
    sg_secret_free(*s);
}

int sg_audit_verify(const char *state_dir, const char *key_file, struct sg_audit_report *ret,
                    struct sg_error *err)
{
    sg_cleanup(secret_p) struct sg_secret *key = NULL;
    sg_cleanup(verify_finish) struct verify v = {.report = ret};
    char boot[SG_BOOT_ID_LEN];
    struct heads h;
    memset(ret, 0, sizeof *ret);
    ret->ok = true;
    if (sg_key_load(state_dir, key_file, "audit.key", false, &key, err) < 0) {
        return -1;
    }
    sg_boot_id(boot);
    int have = heads_read(state_dir, key, boot, &h);
    if (open_read_only(state_dir, &v, err) < 0) {
        return -1;
    }
    /* The base and the records as of one moment: a server may be dropping some. */
    int rc = sqlite3_exec(v.db, "BEGIN", NULL, NULL, NULL);
    if (rc == SQLITE_OK) {
        rc = sqlite3_prepare_v2(v.db, "SELECT " RECORD_COLUMNS " FROM audit ORDER BY seq", -1, &v.records, NULL);
    }
    if (rc == SQLITE_OK) {
        rc = sqlite3_prepare_v2(v.db, "SELECT body FROM receipts WHERE id=?1", -1, &v.receipt, NULL);
    }
    if ((rc & 0xff) == SQLITE_CANTOPEN || (rc & 0xff) == SQLITE_BUSY || (rc & 0xff) == SQLITE_NOMEM) {
        return sg_db_error(err, v.db, rc, "read the audit log");
    }
    if (rc != SQLITE_OK) {
        problem(ret, 1, "database_malformed", sqlite3_errmsg(v.db));
        return 0;
    }
    const struct sg_audit_head none = {0};
    walk(&v, key, have <= 0 ? &none : h.same_boot ? &h.latest : &h.on_disk);
    if (ret->ok && have <= 0) {
        problem(ret, ret->dropped + ret->records, have < 0 ? "head_forged" : "head_missing",
                "without the head kept apart a cut end cannot be ruled out");
    }
    return 0;
}
