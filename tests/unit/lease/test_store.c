/* The store: rows survive, receipts and answers are found, migrations, lock, keys, retention. */
#include <sqlite3.h>
#include <sys/stat.h>

#include "support.h"

Test(store, a_lease_survives_reopening)
{
    char *dir = temp_dir();
    struct sg_store *s = open_store(dir);
    struct sg_lease l = make_lease("acme", SG_LEASE_READY);
    l.terms->trajectory_id = sg_xstrdup("t-1");
    l.terms->idle_timeout_ms = 5000;
    l.caps = SG_CAP_EXEC | SG_CAP_FILE_RW;
    l.metadata = json_pack("{s:s}", "paddock_mode", "whitebox");
    cr_assert_eq(sg_env_set(&l.terms->env, "A", "it's \"$HOME\"\n\xff", NULL), 0);
    l.terms->services = calloc(1, sizeof *l.terms->services);
    l.terms->services[0] =
        (struct sg_service_port){.name = "web", .port = 8080, .health_path = sg_xstrdup("/ok")};
    l.terms->n_services = 1;
    put_lease(s, &l);
    s = sg_store_free(s);

    s = open_store(dir);
    struct sg_lease r;
    struct sg_error err = {0};
    cr_assert_eq(sg_store_lease(s, "acme", l.id, &r, &err), 0, "%s", err.message);
    cr_expect_str_eq(r.terms->trajectory_id, "t-1");
    cr_expect_eq(r.state, SG_LEASE_READY);
    cr_expect_eq(r.expires_us, l.expires_us);
    cr_expect_eq(r.caps, l.caps);
    cr_expect_eq(r.terms->idle_timeout_ms, 5000);
    cr_expect_str_eq(sg_env_get(&r.terms->env, "A"), "it's \"$HOME\"\n\xff");
    cr_expect_eq(r.terms->n_services, 1);
    cr_expect_str_eq(r.terms->services[0].health_path, "/ok");
    cr_expect(json_equal(r.metadata, l.metadata));
    sg_lease_finish(&r);
    cr_expect_eq(sg_store_lease(s, "other", l.id, &r, &err), -1);
    cr_expect_eq(err.code, SG_NOT_FOUND);
    cr_expect_eq(sg_store_lease(s, NULL, l.id, &r, &err), 0);
    sg_lease_finish(&r);
    sg_lease_finish(&l);
    sg_store_free(s);
    remove_dir(dir);
}

Test(store, a_second_server_is_refused)
{
    char *dir = temp_dir();
    struct sg_store *s = open_store(dir);
    struct sg_store_config cfg = {.state_dir = dir};
    struct sg_store *second = NULL;
    struct sg_error err = {0};
    cr_assert_eq(sg_store_open(&cfg, &second, &err), -1);
    cr_expect_eq(err.code, SG_CONFLICT);
    cr_expect_not_null(strstr(err.message, "in use by another"), "%s", err.message);
    sg_store_free(s);
    s = open_store(dir); /* and the lock goes with its holder */
    sg_store_free(s);
    remove_dir(dir);
}

static mode_t mode_of(const char *dir, const char *name)
{
    struct stat st;
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("%s/%s", dir, name);
    cr_assert_eq(stat(path, &st), 0, "%s", path);
    return st.st_mode & 0777;
}

Test(store, files_are_private_and_keys_stay)
{
    umask(0);
    char *dir = temp_dir();
    struct sg_store *s = open_store(dir);
    size_t len = 0;
    const char *key = sg_secret_expose(sg_store_receipt_key(s), &len);
    char kept[SG_KEY_LEN];
    cr_assert_eq(len, SG_KEY_LEN);
    memcpy(kept, key, len);
    const char *names[] = {"sandgate.db", "sandgate.db-wal", "sandgate.db-shm", "audit.key",
                           "receipt.key", "endpoint.key",    "audit.head",      "lock"};
    for (size_t i = 0; i < SG_COUNT_OF(names); i++) {
        cr_expect_eq(mode_of(dir, names[i]), 0600, "%s has mode %o", names[i], mode_of(dir, names[i]));
    }
    sg_store_free(s);
    s = open_store(dir);
    cr_expect_eq(memcmp(kept, sg_secret_expose(sg_store_receipt_key(s), NULL), sizeof kept), 0);
    sg_store_free(s);

    sg_cleanup(sg_free_p) char *path = sg_xasprintf("%s/audit.key", dir);
    chmod(path, 0644);
    struct sg_store_config cfg = {.state_dir = dir};
    struct sg_error err = {0};
    cr_expect_eq(sg_store_open(&cfg, &s, &err), -1);
    cr_expect_not_null(strstr(err.message, "chmod 600"), "%s", err.message);
    remove_dir(dir);
}

Test(store, receipts_belong_to_those_who_got_them)
{
    char *dir = temp_dir();
    struct sg_store *s = open_store(dir);
    struct sg_error err = {0};
    const char *id = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    for (int i = 0; i < 3; i++) {
        struct sg_store_op *op = sg_store_op_new();
        sg_store_op_receipt(op, i < 2 ? "acme" : "beta", id, "{\"id\":\"aa\"}");
        cr_assert_eq(write_wait(s, op, SG_STORE_DURABLE, &err), 0, "%s", err.message);
    }
    char *text = NULL;
    cr_assert_eq(sg_store_receipt(s, "beta", id, &text, &err), 0);
    cr_expect_str_eq(text, "{\"id\":\"aa\"}");
    free(text);
    cr_expect_eq(sg_store_receipt(s, "gamma", id, &text, &err), -1);
    cr_expect_eq(err.code, SG_NOT_FOUND);
    cr_expect_eq(sg_store_receipt(s, NULL, id, &text, &err), 0);
    free(text);

    json_t *list = NULL;
    int64_t next = 0;
    cr_assert_eq(sg_store_audit(s, "acme", 0, 1, &list, &next, &err), 0);
    cr_expect_eq(json_array_size(list), 1);
    cr_expect_neq(next, 0);
    json_decref(list);
    cr_assert_eq(sg_store_audit(s, "acme", next, 10, &list, &next, &err), 0);
    cr_expect_eq(json_array_size(list), 1);
    cr_expect_eq(next, 0);
    cr_expect_str_eq(json_string_value(json_object_get(json_array_get(list, 0), "receipt_id")), id);
    json_decref(list);
    sg_store_free(s);
    remove_dir(dir);
}

Test(store, answers_are_kept_as_long_as_their_lease)
{
    char *dir = temp_dir();
    struct sg_store_config cfg = {.state_dir = dir, .retention_ms = 400};
    struct sg_store *s = NULL;
    struct sg_error err = {0};
    struct sg_stored_answer a;
    cr_assert_eq(sg_store_open(&cfg, &s, &err), 0, "%s", err.message);
    struct sg_lease l = make_lease("acme", SG_LEASE_READY);
    l.terms->idempotency_key = sg_xstrdup("k");
    struct sg_store_op *op = sg_store_op_new();
    sg_store_op_lease(op, &l);
    sg_store_op_answer(op, "acme", "k", "hash", l.id, 201, "{}");
    cr_assert_eq(write_wait(s, op, SG_STORE_DURABLE, &err), 0, "%s", err.message);
    usleep(500000); /* live leases keep theirs, however old */
    cr_assert_eq(sg_store_answer(s, "acme", "k", &a, &err), 1);
    cr_expect_eq(a.status, 201);
    cr_expect_str_eq(a.body, "{}");
    cr_expect_str_eq(a.lease_id, l.id);
    sg_stored_answer_finish(&a);
    cr_expect_eq(sg_store_answer(s, "beta", "k", &a, &err), 0);

    l.state = SG_LEASE_TERMINATED;
    l.ended_us = sg_wall_us();
    op = sg_store_op_new();
    sg_store_op_lease_state(op, &l);
    cr_assert_eq(write_wait(s, op, SG_STORE_LAZY, &err), 0, "%s", err.message);
    cr_expect_eq(sg_store_answer(s, "acme", "k", &a, &err), 1);
    sg_stored_answer_finish(&a);
    usleep(450000);
    struct sg_lease r;
    cr_expect_eq(sg_store_answer(s, "acme", "k", &a, &err), 0);
    cr_expect_eq(sg_store_lease(s, "acme", l.id, &r, &err), -1);
    sg_lease_finish(&l);
    sg_store_free(s);
    remove_dir(dir);
}

static int one_int(const char *dir, const char *sql)
{
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("%s/sandgate.db", dir);
    sqlite3 *db = NULL;
    sqlite3_stmt *st = NULL;
    int value = -1;
    cr_assert_eq(sqlite3_open(path, &db), SQLITE_OK);
    cr_assert_eq(sqlite3_prepare_v2(db, sql, -1, &st, NULL), SQLITE_OK, "%s", sqlite3_errmsg(db));
    if (sqlite3_step(st) == SQLITE_ROW) {
        value = sqlite3_column_int(st, 0);
    }
    sqlite3_finalize(st);
    sqlite3_close(db);
    return value;
}

Test(store, a_newer_schema_is_refused)
{
    char *dir = temp_dir();
    sg_store_free(open_store(dir));
    cr_expect_eq(one_int(dir, "PRAGMA user_version"), 6);
    (void)one_int(dir, "PRAGMA user_version=99");
    struct sg_store_config cfg = {.state_dir = dir};
    struct sg_store *s = NULL;
    struct sg_error err = {0};
    cr_expect_eq(sg_store_open(&cfg, &s, &err), -1);
    cr_expect_eq(err.code, SG_CONFLICT);
    cr_expect_not_null(strstr(err.message, "newer"), "%s", err.message);
    remove_dir(dir);
}

Test(store, a_migration_that_fails_changes_nothing)
{
    char *dir = temp_dir();
    (void)one_int(dir, "CREATE TABLE audit(mine)");
    struct sg_store_config cfg = {.state_dir = dir};
    struct sg_store *s = NULL;
    struct sg_error err = {0};
    cr_expect_eq(sg_store_open(&cfg, &s, &err), -1);
    cr_expect_not_null(strstr(err.message, "schema version 1"), "%s", err.message);
    cr_expect_eq(one_int(dir, "PRAGMA user_version"), 0);
    cr_expect_eq(one_int(dir, "SELECT count(*) FROM sqlite_schema"), 1);
    /* Once what was in the way is gone it goes through, and what is there already is not made again. */
    (void)one_int(dir, "DROP TABLE audit");
    sg_store_free(open_store(dir));
    sg_store_free(open_store(dir));
    cr_expect_eq(one_int(dir, "PRAGMA user_version"), 6);
    remove_dir(dir);
}

Test(store, one_op_is_whole_or_nothing_and_spares_its_neighbours)
{
    char *dir = temp_dir();
    struct sg_store *s = open_store(dir);
    struct sg_error err = {0};
    struct outcome o[3];
    struct sg_lease l = make_lease("acme", SG_LEASE_READY);
    for (int i = 0; i < 3; i++) {
        struct sg_store_op *op = sg_store_op_new();
        struct sg_lease one = l;
        sg_id_new(SG_LEASE_ID_PREFIX, one.id);
        sg_store_op_lease(op, &one);
        if (i == 1) {
            sg_store_op_audit(op, NULL, "acme", NULL, NULL); /* no kind: refused */
        }
        outcome_init(&o[i]);
        struct sg_store_done done = {.fn = outcome_set, .arg = &o[i]};
        cr_assert_eq(sg_store_submit(s, op, SG_STORE_DURABLE, &done, &err), 0);
    }
    for (int i = 0; i < 3; i++) {
        sem_wait_all(&o[i].sem);
        cr_expect_eq(o[i].failed, i == 1);
    }
    struct sg_lease_page page;
    struct sg_lease_query q = {.limit = 10};
    cr_assert_eq(sg_store_leases(s, &q, &page, &err), 0);
    cr_expect_eq(page.n, 2);
    sg_lease_page_finish(&page);
    sg_lease_finish(&l);
    sg_store_free(s);
    struct sg_audit_report rep;
    cr_assert_eq(sg_audit_verify(dir, NULL, &rep, &err), 0, "%s", err.message);
    cr_expect(rep.ok, "%s %s", rep.problem, rep.detail);
    remove_dir(dir);
}

Test(store, many_writers_share_syncs)
{
    char *dir = temp_dir();
    struct sg_store *s = open_store(dir);
    struct sg_error err = {0};
    struct outcome o;
    outcome_init(&o);
    struct sg_store_done done = {.fn = outcome_set, .arg = &o};
    struct sg_lease l = make_lease("acme", SG_LEASE_READY);
    for (int i = 0; i < 2000; i++) {
        struct sg_store_op *op = sg_store_op_new();
        sg_id_new(SG_LEASE_ID_PREFIX, l.id);
        sg_store_op_lease(op, &l);
        sg_store_op_audit(op, "lease.ready", "acme", l.id, NULL);
        cr_assert_eq(sg_store_submit(s, op, SG_STORE_DURABLE, &done, &err), 0, "%s", err.message);
    }
    for (int i = 0; i < 2000; i++) {
        sem_wait_all(&o.sem);
    }
    struct sg_store_stats st;
    sg_store_stats(s, &st);
    cr_expect_eq(st.ops, 2000);
    cr_expect_lt(st.syncs, 1000);
    cr_expect_not(o.failed);
    sg_lease_finish(&l);
    sg_store_free(s);
    remove_dir(dir);
}

Test(store, archives_are_found_by_id_and_digest_and_only_by_their_tenant)
{
    char *dir = temp_dir();
    struct sg_store *s = open_store(dir);
    struct sg_kept k = {.kind = SG_KEPT_SNAPSHOT, .dirs = 3, .bytes = 42, .created_us = sg_wall_us()};
    struct sg_kept r;
    struct sg_error err = {0};
    size_t n = 0;
    int64_t bytes = 0;
    sg_id_new("snap", k.id);
    snprintf(k.tenant, sizeof k.tenant, "acme");
    snprintf(k.lease_id, sizeof k.lease_id, "lease_x");
    snprintf(k.provider, sizeof k.provider, "local_bwrap");
    memset(k.sha256, 'a', SG_SHA256_HEX - 1);
    k.expires_us = k.created_us + 60000000;
    struct sg_store_op *op = sg_store_op_new();
    sg_store_op_kept(op, &k);
    cr_assert_eq(write_wait(s, op, SG_STORE_DURABLE, &err), 0, "%s", err.message);
    s = sg_store_free(s);
    s = open_store(dir);
    sg_cleanup(sg_free_p) char *by_digest = sg_xasprintf("sha256:%s", k.sha256);
    cr_assert_eq(sg_store_kept(s, SG_KEPT_SNAPSHOT, "acme", k.id, &r, &err), 0, "%s", err.message);
    cr_expect_eq(r.bytes, 42);
    cr_expect_eq(r.dirs, 3U);
    cr_expect_str_eq(r.provider, "local_bwrap");
    cr_expect_eq(sg_store_kept(s, SG_KEPT_SNAPSHOT, NULL, by_digest, &r, &err), 0);
    cr_expect_str_eq(r.id, k.id);
    cr_expect_eq(sg_store_kept(s, SG_KEPT_SNAPSHOT, "other", k.id, &r, &err), -1);
    cr_expect_eq(err.code, SG_NOT_FOUND);
    cr_expect_eq(sg_store_kept(s, SG_KEPT_SNAPSHOT, "other", by_digest, &r, &err), -1);
    cr_expect_eq(sg_store_kept(s, SG_KEPT_ARCHIVE, "acme", k.id, &r, &err), -1);
    cr_expect_eq(sg_store_kept_count(s, SG_KEPT_SNAPSHOT, "acme", &n, &bytes, &err), 0);
    cr_expect_eq(n, 1U);
    cr_expect_eq(sg_store_kept_count(s, SG_KEPT_SNAPSHOT, "other", &n, &bytes, &err), 0);
    cr_expect_eq(n, 0U);
    cr_expect_eq(bytes, 42);
    op = sg_store_op_new();
    sg_store_op_not_kept(op, k.id);
    cr_assert_eq(write_wait(s, op, SG_STORE_DURABLE, &err), 0, "%s", err.message);
    cr_expect_eq(sg_store_kept(s, SG_KEPT_SNAPSHOT, NULL, k.id, &r, &err), -1);
    sg_store_free(s);
    remove_dir(dir);
}

Test(store, what_a_provider_is_still_asked_about_is_nobodys_yet_but_written_down)
{
    char *dir = temp_dir();
    struct sg_store *s = open_store(dir);
    struct sg_kept k = {.kind = SG_KEPT_SNAPSHOT, .created_us = sg_wall_us(), .state = SG_KEPT_MAKING};
    static const enum sg_kept_state states[] = {SG_KEPT_MAKING, SG_KEPT_READY, SG_KEPT_DROPPING};
    sg_cleanup(sg_free_p) struct sg_kept *all = NULL;
    struct sg_kept r;
    struct sg_error err = {0};
    size_t n = 0;
    int64_t bytes = 0;
    sg_id_new("snap", k.id);
    snprintf(k.tenant, sizeof k.tenant, "acme");
    snprintf(k.lease_id, sizeof k.lease_id, "lease_x");
    snprintf(k.provider, sizeof k.provider, "e2b");
    for (size_t i = 0; i < SG_COUNT_OF(states); i++) {
        bool ready = states[i] == SG_KEPT_READY;
        k.state = states[i];
        snprintf(k.ref, sizeof k.ref, "%s", i > 0 ? "team/name:default" : "");
        struct sg_store_op *op = sg_store_op_new();
        sg_store_op_kept(op, &k);
        cr_assert_eq(write_wait(s, op, SG_STORE_DURABLE, &err), 0, "%s", err.message);
        cr_expect_eq(sg_store_kept(s, SG_KEPT_SNAPSHOT, "acme", k.id, &r, &err), ready ? 0 : -1);
        cr_expect_eq(sg_store_kept_page(s, SG_KEPT_SNAPSHOT, "acme", NULL, 1, &r, &n, &err), 0);
        cr_expect_eq(n, ready ? 1U : 0U);
        cr_assert_eq(sg_store_kept_row(s, k.id, &r, &err), 0, "%s", err.message);
        cr_expect_eq(r.state, states[i]);
        cr_expect_str_eq(r.ref, k.ref);
        cr_expect_str_eq(r.sha256, "");
        cr_expect_eq(sg_store_kept_count(s, SG_KEPT_SNAPSHOT, "acme", &n, &bytes, &err), 0);
        cr_expect_eq(n, states[i] == SG_KEPT_MAKING ? 0U : 1U, "the provider has it until it says otherwise");
        free(sg_steal(&all));
        cr_assert_eq(sg_store_kept_all(s, 10, &all, &n, &err), 0);
        cr_expect_eq(n, 1U);
    }
    cr_expect_eq(sg_store_kept_row(s, "snap_other", &r, &err), -1);
    cr_expect_eq(err.code, SG_NOT_FOUND);
    sg_store_free(s);
    remove_dir(dir);
}
