/* The audit log: a changed byte, a missing record and a cut tail are found, and it is said where. */
#include <sched.h>
#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "support.h"

static char *dir;

#define RECORDS 12 /* server.started, then leases and receipts */

static void add_some(struct sg_store *s)
{
    struct sg_error err = {0};
    for (int i = 0; i < 5; i++) {
        struct sg_lease l = make_lease("acme", SG_LEASE_READY);
        struct sg_store_op *op = sg_store_op_new();
        char id[SG_SHA256_HEX];
        sg_sha256_hex(&i, sizeof i, id);
        sg_store_op_lease(op, &l);
        sg_store_op_receipt(op, "acme", id, "{\"some\":\"receipt\"}");
        sg_store_op_audit(op, "lease.ready", "acme", l.id, NULL);
        cr_assert_eq(write_wait(s, op, SG_STORE_DURABLE, &err), 0, "%s", err.message);
        sg_lease_finish(&l);
    }
    struct sg_store_op *op = sg_store_op_new();
    sg_store_op_audit(op, "lease.terminated", "acme", NULL, NULL);
    cr_assert_eq(write_wait(s, op, SG_STORE_LAZY, &err), 0, "%s", err.message);
}

static void setup(void)
{
    dir = temp_dir();
    struct sg_store *s = open_store(dir);
    add_some(s);
    sg_store_free(s);
}

static void teardown(void)
{
    remove_dir(dir);
}

TestSuite(audit, .init = setup, .fini = teardown);

static struct sg_audit_report verify(void)
{
    struct sg_audit_report r;
    struct sg_error err = {0};
    cr_assert_eq(sg_audit_verify(dir, NULL, &r, &err), 0, "%s", err.message);
    return r;
}

static void expect(const char *problem, int64_t at, const char *what)
{
    struct sg_audit_report r = verify();
    cr_expect_not(r.ok, "%s went unnoticed", what);
    cr_expect_str_eq(r.problem, problem, "%s: %s", what, r.problem);
    cr_expect_eq(r.at_seq, at, "%s: at %ld", what, (long)r.at_seq);
}

static void sql(const char *text)
{
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("%s/sandgate.db", dir);
    sqlite3 *db = NULL;
    char *msg = NULL;
    cr_assert_eq(sqlite3_open(path, &db), SQLITE_OK);
    cr_assert_eq(sqlite3_exec(db, text, NULL, NULL, &msg), SQLITE_OK, "%s", msg);
    cr_assert_eq(sqlite3_close(db), SQLITE_OK);
}

struct file {
    char *name;
    char *data;
    size_t len;
};

static struct file keep(const char *name)
{
    struct file f = {.name = sg_xasprintf("%s/%s", dir, name)};
    cr_assert_eq(sg_read_file(f.name, 64U << 20, &f.data, &f.len, NULL), 0);
    return f;
}

static void put_back(struct file *f)
{
    int fd = open(f->name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    cr_assert_eq(write(fd, f->data, f->len), (ssize_t)f->len);
    close(fd);
}

static void forget(struct file *f)
{
    free(f->name);
    free(f->data);
}

Test(audit, a_sound_log_is_sound)
{
    struct sg_audit_report r = verify();
    cr_expect(r.ok, "%s %s", r.problem, r.detail);
    cr_expect_eq(r.records, RECORDS);
    /* Also beside a running server. */
    struct sg_store *s = open_store(dir);
    add_some(s);
    r = verify();
    cr_expect(r.ok, "%s %s", r.problem, r.detail);
    cr_expect_eq(r.records, 2 * RECORDS);
    sg_store_free(s);
}

Test(audit, every_kind_of_change_is_found_and_located)
{
    static const struct {
        const char *sql, *problem;
        int64_t at;
    } cases[] = {
        {"UPDATE audit SET payload='{}' WHERE seq=4", "record_changed", 4},
        {"UPDATE audit SET payload=payload||' ' WHERE seq=3", "record_changed", 3},
        {"UPDATE audit SET time_us=time_us+1 WHERE seq=1", "record_changed", 1},
        {"UPDATE audit SET kind='lease.lost' WHERE seq=12", "record_changed", 12},
        {"UPDATE audit SET tenant='beta' WHERE seq=5", "record_changed", 5},
        {"UPDATE audit SET lease_id=NULL WHERE seq=5", "record_changed", 5},
        {"UPDATE audit SET mac=zeroblob(32) WHERE seq=7", "record_changed", 7},
        {"UPDATE audit SET mac=x'00' WHERE seq=7", "record_changed", 7},
        {"DELETE FROM audit WHERE seq=6", "record_missing", 6},
        {"DELETE FROM audit WHERE seq=1", "record_missing", 1},
        {"DELETE FROM audit WHERE seq=12", "tail_cut", 12},
        {"DELETE FROM audit WHERE seq>=3", "tail_cut", 3},
        {"DELETE FROM audit", "tail_cut", 1},
        {"UPDATE audit SET seq=-1 WHERE seq=4; UPDATE audit SET seq=4 WHERE seq=5; UPDATE audit SET seq=5 "
         "WHERE seq=-1",
         "record_changed", 4},
        {"INSERT INTO audit SELECT 13, time_us, kind, tenant, lease_id, receipt_id, payload, mac FROM audit "
         "WHERE seq=12",
         "record_changed", 13},
        {"UPDATE receipts SET body='{}' WHERE id=(SELECT receipt_id FROM audit WHERE seq=4)",
         "receipt_changed", 4},
        {"DELETE FROM receipts WHERE id=(SELECT receipt_id FROM audit WHERE seq=6)", "receipt_missing", 6},
        {"DROP TABLE audit", "database_malformed", 1},
    };
    struct file db = keep("sandgate.db");
    for (size_t i = 0; i < SG_COUNT_OF(cases); i++) {
        sql(cases[i].sql);
        expect(cases[i].problem, cases[i].at, cases[i].sql);
        put_back(&db);
    }
    cr_expect(verify().ok);
    forget(&db);
}

/* Everything the log says, as one text; NULL when the database cannot even be read. */
static char *content(void)
{
    static const char query[] = "SELECT "
                                "group_concat(quote(seq)||quote(time_us)||quote(kind)||quote(tenant)||quote("
                                "lease_id)||quote(receipt_id)||"
                                "quote(payload)||quote(mac)) FROM audit UNION ALL SELECT "
                                "group_concat(quote(id)||quote(body)) FROM receipts";
    sg_cleanup(sg_free_p) char *uri = sg_xasprintf("file:%s/sandgate.db?immutable=1", dir);
    sqlite3 *db = NULL;
    sqlite3_stmt *st = NULL;
    struct sg_buf b;
    sg_buf_init(&b, 1U << 20);
    int rc = sqlite3_open_v2(uri, &db, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, NULL);
    rc = rc == SQLITE_OK ? sqlite3_prepare_v2(db, query, -1, &st, NULL) : rc;
    while (rc == SQLITE_OK && (rc = sqlite3_step(st)) == SQLITE_ROW) {
        const char *text = (const char *)sqlite3_column_text(st, 0);
        sg_buf_addf(&b, "%s;", text != NULL ? text : "");
        rc = SQLITE_OK;
    }
    sqlite3_finalize(st);
    sqlite3_close(db);
    char *text = sg_buf_steal(&b, NULL);
    if (rc != SQLITE_DONE) {
        free(text);
        return NULL;
    }
    return text;
}

Test(audit, no_changed_byte_of_the_file_changes_what_it_says_unseen)
{
    struct file db = keep("sandgate.db");
    char *before = content();
    cr_assert_not_null(before);
    size_t found = 0;
    for (size_t at = 0; at < db.len; at += 61) {
        const char was = db.data[at];
        db.data[at] = (char)(was ^ (1 << at % 8));
        put_back(&db);
        db.data[at] = was;
        struct sg_audit_report r;
        struct sg_error err = {0};
        int rc = sg_audit_verify(dir, NULL, &r, &err);
        bool noticed = rc < 0 || !r.ok;
        char *after = content();
        cr_expect(noticed || (after != NULL && sg_streq(before, after)), "byte %zu went unnoticed", at);
        found += noticed;
        free(after);
    }
    cr_expect_gt(found, 10);
    free(before);
    forget(&db);
}

Test(audit, a_cut_file_is_found)
{
    struct file db = keep("sandgate.db");
    for (size_t len = 0; len < db.len; len += 4096) {
        struct sg_audit_report r;
        struct sg_error err = {0};
        put_back(&db);
        cr_assert_eq(truncate(db.name, (off_t)len), 0);
        int rc = sg_audit_verify(dir, NULL, &r, &err);
        cr_expect(rc < 0 || !r.ok, "cut to %zu", len);
    }
    forget(&db);
}

Test(audit, a_cut_log_after_a_kill_is_found)
{
    /* The state directory as a kill -9 leaves it: the newest records only in SQLite's own log. */
    struct sg_store *s = open_store(dir);
    add_some(s);
    const char *names[] = {"sandgate.db", "sandgate.db-wal", "audit.head"};
    struct file f[3];
    for (size_t i = 0; i < 3; i++) {
        f[i] = keep(names[i]);
    }
    sg_store_free(s);
    sg_cleanup(sg_free_p) char *shm = sg_xasprintf("%s/sandgate.db-shm", dir);
    cr_assert_gt(f[1].len, 0);
    for (size_t i = 0; i < 3; i++) {
        put_back(&f[i]);
    }
    cr_expect(verify().ok);
    for (size_t len = f[1].len - 1; len > 4000; len -= len < 4001 ? len : 4000) {
        for (size_t i = 0; i < 3; i++) {
            put_back(&f[i]);
        }
        unlink(shm);
        cr_assert_eq(truncate(f[1].name, (off_t)len), 0);
        struct sg_audit_report r = verify();
        cr_expect_not(r.ok, "cut to %zu of %zu", len, f[1].len);
        cr_expect_str_eq(r.problem, "tail_cut");
    }
    for (size_t i = 0; i < 3; i++) {
        forget(&f[i]);
    }
}

Test(audit, the_head_kept_apart)
{
    struct file head = keep("audit.head");
    size_t end = head.len;
    while (end > 0 && head.data[end - 1] == '\n') {
        end--;
    }
    for (size_t at = 0; at < end; at++) {
        const char was = head.data[at];
        head.data[at] = (char)(was ^ (1 << at % 7));
        put_back(&head);
        head.data[at] = was;
        cr_expect_not(verify().ok, "byte %zu of the head", at);
    }
    unlink(head.name);
    expect("head_missing", RECORDS, "no head");
    sg_cleanup(sg_free_p) char *key = sg_xasprintf("%s/audit.key", dir);
    put_back(&head);
    struct file k = keep("audit.key");
    k.data[0] ^= 1;
    put_back(&k);
    cr_expect_not(verify().ok);
    k.data[0] ^= 1;
    put_back(&k);
    cr_expect(verify().ok);
    unlink(key);
    struct sg_audit_report r;
    struct sg_error err = {0};
    cr_expect_eq(sg_audit_verify(dir, NULL, &r, &err), -1);
    forget(&head);
    forget(&k);
}

/* ---- retention ---- */

static struct sg_store *open_forgetful(int64_t retention_ms)
{
    struct sg_store_config cfg = {.state_dir = dir, .audit_retention_ms = retention_ms};
    struct sg_store *s = NULL;
    struct sg_error err = {0};
    cr_assert_eq(sg_store_open(&cfg, &s, &err), 0, "%s", err.message);
    return s;
}

/* Beside a server that drops records the log is sound at any moment. Returns when at least n are gone. */
static struct sg_audit_report until_dropped(int64_t n)
{
    int64_t until = sg_now_ms() + 20000;
    struct sg_audit_report r;
    do {
        r = verify();
        cr_assert(r.ok, "%s at %ld: %s", r.problem, (long)r.at_seq, r.detail);
        cr_assert_lt(sg_now_ms(), until, "%ld of %ld dropped", (long)r.dropped, (long)n);
        sched_yield();
    } while (r.dropped < n);
    return r;
}

static int64_t count(const char *sql_text)
{
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("%s/sandgate.db", dir);
    sqlite3 *db = NULL;
    sqlite3_stmt *st = NULL;
    cr_assert_eq(sqlite3_open(path, &db), SQLITE_OK);
    cr_assert_eq(sqlite3_prepare_v2(db, sql_text, -1, &st, NULL), SQLITE_OK);
    cr_assert_eq(sqlite3_step(st), SQLITE_ROW);
    int64_t n = sqlite3_column_int64(st, 0);
    sqlite3_finalize(st);
    sqlite3_close(db);
    return n;
}

Test(audit, records_over_their_time_are_dropped_and_the_rest_is_a_sound_chain)
{
    struct sg_store *s = open_forgetful(400);
    add_some(s);
    struct sg_audit_report r = until_dropped(RECORDS + 5);
    sg_store_free(s);
    r = verify();
    cr_expect(r.ok, "%s", r.problem);
    cr_expect_geq(r.records, 1); /* the newest stays, whatever its age */
    cr_expect_eq(count("SELECT min(seq) FROM audit"), r.dropped + 1);
    /* It goes on from there, also from a single record. */
    s = open_forgetful(400);
    add_some(s);
    (void)until_dropped(r.dropped + r.records);
    sg_store_free(s);
    cr_expect(verify().ok);
    cr_expect_eq(count("SELECT count(*) FROM audit WHERE kind='audit.damage'"), 0);
    sg_store_free(open_store(dir)); /* without a limit nothing more goes */
    cr_expect(verify().ok);
}

Test(audit, nothing_is_dropped_before_its_time_or_without_one)
{
    /* It looks when it starts, and does what it has begun before it stops. */
    struct sg_store *s = open_forgetful(3600 * 1000);
    add_some(s);
    sg_store_free(s);
    cr_expect_eq(verify().dropped, 0);
    s = open_forgetful(0);
    add_some(s);
    sg_store_free(s);
    cr_expect_eq(verify().dropped, 0);
}

Test(audit, many_records_go_in_pieces)
{
    sql("UPDATE audit SET time_us = 1"); /* breaks their MACs, which pruning does not look at */
    sql("WITH RECURSIVE n(i) AS (SELECT 13 UNION ALL SELECT i + 1 FROM n WHERE i < 1200)"
        " INSERT INTO audit SELECT i, 1, 'x', NULL, NULL, NULL, '{}', zeroblob(32) FROM n");
    struct sg_store *s = open_forgetful(3600 * 1000);
    int64_t until = sg_now_ms() + 20000;
    while (count("SELECT count(*) FROM audit") > 10 && sg_now_ms() < until) {
        sched_yield();
    }
    sg_store_free(s);
    cr_expect_eq(count("SELECT min(seq) FROM audit"), 1201); /* what opening it found */
}

Test(audit, what_was_dropped_cannot_be_made_up)
{
    struct sg_store *s = open_forgetful(400);
    add_some(s);
    int64_t dropped = until_dropped(RECORDS).dropped;
    sg_store_free(s);
    dropped = verify().dropped;
    struct file db = keep("sandgate.db");
    sql("DELETE FROM audit_base");
    expect("record_missing", 1, "no base");
    put_back(&db);
    sql("UPDATE audit_base SET line = replace(line, 'base 1 ', 'base 1 1')");
    expect("base_forged", 1, "another base");
    put_back(&db);
    /* A head is no base, though the server wrote it. */
    struct file head = keep("audit.head");
    sg_cleanup(sg_free_p) char *line =
        sg_xasprintf("UPDATE audit_base SET line = '%.*s\n'", (int)strcspn(head.data, "\n"), head.data);
    sql(line);
    expect("base_forged", 1, "a head as base");
    put_back(&db);
    sg_cleanup(sg_free_p) char *cut = sg_xasprintf("DELETE FROM audit WHERE seq=%ld", (long)dropped + 1);
    sql(cut);
    cr_expect_not(verify().ok, "one more than was dropped");
    put_back(&db);
    cr_expect(verify().ok);
    /* A server that starts over it writes that down. */
    sql("UPDATE audit_base SET line = 'x'");
    sg_store_free(open_store(dir));
    cr_expect_eq(count("SELECT count(*) FROM audit WHERE kind='audit.damage'"), 1);
    forget(&db);
    forget(&head);
}

Test(audit, recorded_damage_is_not_dropped)
{
    sql("DELETE FROM audit WHERE seq=12");
    struct sg_store *s = open_forgetful(200);
    add_some(s);
    int64_t until = sg_now_ms() + 20000;
    while (count("SELECT min(seq) FROM audit") < 12 && sg_now_ms() < until) {
        sched_yield();
    }
    add_some(s);
    sg_store_free(s);
    cr_expect_eq(count("SELECT min(seq) FROM audit"), 12);
    expect("damage_recorded", 12, "damage that is old");
}

Test(audit, starting_the_server_does_not_hide_damage)
{
    sql("DELETE FROM audit WHERE seq>=11");
    sg_store_free(open_store(dir));
    expect("damage_recorded", 11, "damage before a start");
}

/* Another boot of this machine, as far as this process can see. */
static bool another_boot(void)
{
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("%s/boot_id", dir);
    const char text[] = "00000000-1111-2222-3333-444444444444\n";
    return sg_write_file(path, text, sizeof text - 1, 0644, NULL) == 0 &&
           (unshare(CLONE_NEWNS) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) &&
           mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount(path, "/proc/sys/kernel/random/boot_id", NULL, MS_BIND, NULL) == 0;
}

Test(audit, what_a_power_loss_takes_is_no_damage_but_more_is)
{
    /* A durable record, then one that was answered but not yet on the disk. */
    struct sg_store *s = open_store(dir);
    struct sg_error err = {0};
    struct sg_store_op *op = sg_store_op_new();
    sg_store_op_audit(op, "lease.ready", "acme", NULL, NULL);
    cr_assert_eq(write_wait(s, op, SG_STORE_DURABLE, &err), 0);
    op = sg_store_op_new();
    sg_store_op_audit(op, "lease.terminated", "acme", NULL, NULL);
    cr_assert_eq(write_wait(s, op, SG_STORE_LAZY, &err), 0);
    struct file head = keep("audit.head");
    sg_store_free(s);
    put_back(&head);
    struct file db = keep("sandgate.db");
    sql("DELETE FROM audit WHERE seq=15");
    expect("tail_cut", 15, "a lost record without a reboot");
    if (!another_boot()) {
        cr_skip_test("no other boot id possible here");
    }
    cr_expect(verify().ok, "a power loss may take what was not on the disk");
    sql("DELETE FROM audit WHERE seq=14");
    expect("tail_cut", 14, "a durable record is gone");
    put_back(&db);
    sql("DELETE FROM audit WHERE seq=15");
    sg_store_free(open_store(dir));
    struct sg_audit_report r = verify();
    cr_expect(r.ok, "%s %s", r.problem, r.detail);
    s = open_store(dir);
    json_t *list = NULL;
    int64_t next = 0;
    cr_assert_eq(sg_store_audit(s, NULL, 14, 1, &list, &next, &err), 0);
    cr_expect_str_eq(json_string_value(json_object_get(json_array_get(list, 0), "event")),
                     "audit.power_loss");
    json_decref(list);
    sg_store_free(s);
    forget(&db);
    forget(&head);
}
