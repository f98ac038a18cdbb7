/* Reads: short queries over the read-only connection, on the caller's thread. */
#include "base/clock.h"
#include "base/json.h"
#include "lease/store_priv.h"
#include "model/lease_json.h"

#define SCAN_MAX                                                                                             \
    50000 /* rows looked at for one page: a filter that matches little gives a short page, not a long wait   \
           */

static int64_t cut_us(const struct sg_store *s)
{
    return sg_wall_us() - s->retention_ms * 1000;
}

static int damaged(struct sg_error *err, const char *id)
{
    return sg_error_set(err, SG_INTERNAL, "the stored lease %s cannot be read", id);
}

static int read_lease(sqlite3_stmt *st, struct sg_lease *l, struct sg_error *err)
{
    memset(l, 0, sizeof *l);
    sg_db_column(st, 0, l->id, sizeof l->id);
    sg_db_column(st, 4, l->provider, sizeof l->provider);
    sg_db_column(st, 5, l->sandbox_id, sizeof l->sandbox_id);
    sg_db_column(st, 7, l->reason, sizeof l->reason);
    sg_db_column(st, 11, l->receipt_id, sizeof l->receipt_id);
    int64_t state = sqlite3_column_int64(st, 6);
    if (state < 0 || state >= SG_LEASE_STATE_COUNT) {
        return damaged(err, l->id);
    }
    l->state = (enum sg_lease_state)state;
    l->caps = (unsigned)sqlite3_column_int64(st, 8);
    l->created_us = sqlite3_column_int64(st, 12);
    l->expires_us = sqlite3_column_int64(st, 13);
    l->ended_us = sqlite3_column_int64(st, 14);
    const char *metadata = (const char *)sqlite3_column_text(st, 9);
    if (metadata != NULL && sg_json_parse(metadata, strlen(metadata), &l->metadata, NULL) < 0) {
        return damaged(err, l->id);
    }
    sg_cleanup(sg_json_p) json_t *terms = NULL;
    const char *text = (const char *)sqlite3_column_text(st, 10);
    if (text == NULL || sg_json_parse(text, strlen(text), &terms, NULL) < 0 ||
        sg_lease_terms_parse(terms, &l->terms, NULL) < 0) {
        sg_json_unref(l->metadata);
        l->metadata = NULL;
        return damaged(err, l->id);
    }
    return 0;
}

static int read_failed(struct sg_store *s, int rc, struct sg_error *err)
{
    return sg_db_error(err, s->reader, rc, "read");
}

int sg_store_lease(struct sg_store *s, const char *tenant, const char *id, struct sg_lease *ret,
                   struct sg_error *err)
{
    pthread_mutex_lock(&s->read_lock);
    sqlite3_stmt *st = s->reads[SG_READ_LEASE];
    sqlite3_bind_text(st, 1, id, -1, SQLITE_STATIC);
    sqlite3_bind_int64(st, 2, cut_us(s));
    int rc = sqlite3_step(st);
    int result;
    if (rc == SQLITE_ROW) {
        result = read_lease(st, ret, err);
    } else if (rc == SQLITE_DONE) {
        result = sg_error_set(err, SG_NOT_FOUND, "there is no such lease");
    } else {
        result = read_failed(s, rc, err);
    }
    sqlite3_reset(st);
    pthread_mutex_unlock(&s->read_lock);
    if (result == 0 && tenant != NULL && !sg_streq(tenant, ret->terms->tenant)) {
        sg_lease_finish(ret);
        return sg_error_set(err, SG_NOT_FOUND, "there is no such lease");
    }
    return result;
}

int sg_store_events(struct sg_store *s, const char *lease_id, struct sg_lease_events *ret, struct sg_error *err)
{
    *ret = (struct sg_lease_events){0};
    pthread_mutex_lock(&s->read_lock);
    sqlite3_stmt *st = s->reads[SG_READ_EVENTS];
    sqlite3_bind_text(st, 1, lease_id, -1, SQLITE_STATIC);
    int rc = sqlite3_step(st);
    const char *text = rc == SQLITE_ROW ? (const char *)sqlite3_column_text(st, 0) : NULL;
    int result = 0;
    if (text != NULL) {
        result = sg_lease_events_parse(text, ret, err);
    } else if (rc != SQLITE_ROW && rc != SQLITE_DONE) {
        result = read_failed(s, rc, err);
    }
    sqlite3_reset(st);
    pthread_mutex_unlock(&s->read_lock);
    return result;
}

void sg_stored_answer_finish(struct sg_stored_answer *a)
{
    free(a->body);
    memset(a, 0, sizeof *a);
}

int sg_store_answer(struct sg_store *s, const char *tenant, const char *key, struct sg_stored_answer *ret,
                    struct sg_error *err)
{
    pthread_mutex_lock(&s->read_lock);
    sqlite3_stmt *st = s->reads[SG_READ_ANSWER];
    sqlite3_bind_text(st, 1, tenant, -1, SQLITE_STATIC);
    sqlite3_bind_text(st, 2, key, -1, SQLITE_STATIC);
    sqlite3_bind_int64(st, 3, cut_us(s));
    int rc = sqlite3_step(st);
    int result = 0;
    if (rc == SQLITE_ROW) {
        memset(ret, 0, sizeof *ret);
        sg_db_column(st, 0, ret->request_hash, sizeof ret->request_hash);
        sg_db_column(st, 1, ret->lease_id, sizeof ret->lease_id);
        ret->status = sqlite3_column_int(st, 2);
        const char *body = (const char *)sqlite3_column_text(st, 3);
        ret->body = body != NULL ? strdup(body) : NULL;
        result = body != NULL && ret->body == NULL
                     ? sg_error_set(err, SG_NO_MEMORY, "no memory for a stored answer")
                     : 1;
    } else if (rc != SQLITE_DONE) {
        result = read_failed(s, rc, err);
    }
    sqlite3_reset(st);
    pthread_mutex_unlock(&s->read_lock);
    return result;
}

void sg_lease_page_finish(struct sg_lease_page *p)
{
    for (size_t i = 0; i < p->n; i++) {
        sg_lease_finish(&p->items[i]);
    }
    free(p->items);
    memset(p, 0, sizeof *p);
}

#define LIVE_STATES ((1U << SG_LEASE_CREATING) | (1U << SG_LEASE_READY) | (1U << SG_LEASE_RELEASING))

/* The statement for the most selective condition of a query, bound. */
static sqlite3_stmt *pick(struct sg_store *s, const struct sg_lease_query *q)
{
    bool live_only = q->states != 0 && (q->states & ~LIVE_STATES) == 0;
    sqlite3_stmt *st = s->reads[SG_READ_LEASES];
    if (live_only) {
        st = s->reads[SG_READ_LEASES_LIVE];
    } else if (q->trajectory_id != NULL) {
        st = s->reads[SG_READ_LEASES_TRAJECTORY];
        sqlite3_bind_text(st, 2, q->trajectory_id, -1, SQLITE_STATIC);
    } else if (q->tenant != NULL) {
        st = s->reads[SG_READ_LEASES_TENANT];
        sqlite3_bind_text(st, 2, q->tenant, -1, SQLITE_STATIC);
    }
    sqlite3_bind_text(st, 1, q->after != NULL ? q->after : "~", -1, SQLITE_STATIC);
    return st;
}

static bool column_is(sqlite3_stmt *st, int col, const char *want)
{
    const char *have = (const char *)sqlite3_column_text(st, col);
    return want == NULL || (have != NULL && sg_streq(have, want));
}

static bool row_matches(sqlite3_stmt *st, const struct sg_lease_query *q, int64_t cut)
{
    int64_t ended = sqlite3_column_int64(st, 14);
    int64_t state = sqlite3_column_int64(st, 6);
    return (ended == 0 || ended >= cut) && (q->states == 0 || (q->states >> state & 1U) != 0) &&
           column_is(st, 1, q->tenant) && column_is(st, 4, q->provider) && column_is(st, 2, q->trajectory_id);
}

/* Rows into the page until it is full or enough was looked at. */
static int fill(struct sg_store *s, sqlite3_stmt *st, const struct sg_lease_query *q,
                struct sg_lease_page *ret, struct sg_error *err)
{
    const int64_t cut = cut_us(s);
    int rc;
    for (int seen = 0; (rc = sqlite3_step(st)) == SQLITE_ROW; seen++) {
        if (ret->n == q->limit || seen == SCAN_MAX) {
            return 0;
        }
        sg_db_column(st, 0, ret->next, sizeof ret->next);
        if (!row_matches(st, q, cut)) {
            continue;
        }
        if (read_lease(st, &ret->items[ret->n], err) < 0) {
            return -1;
        }
        ret->n++;
    }
    ret->next[0] = '\0';
    return rc == SQLITE_DONE ? 0 : read_failed(s, rc, err);
}

int sg_store_leases(struct sg_store *s, const struct sg_lease_query *q, struct sg_lease_page *ret,
                    struct sg_error *err)
{
    memset(ret, 0, sizeof *ret);
    if (q->limit < 1 || q->limit > 1000) {
        return sg_error_field(err, SG_INVALID_REQUEST, "limit", "limit must be between 1 and 1000");
    }
    ret->items = calloc(q->limit, sizeof *ret->items);
    if (ret->items == NULL) {
        return sg_error_set(err, SG_NO_MEMORY, "no memory for a page of leases");
    }
    pthread_mutex_lock(&s->read_lock);
    sqlite3_stmt *st = pick(s, q);
    int rc = fill(s, st, q, ret, err);
    sqlite3_reset(st);
    pthread_mutex_unlock(&s->read_lock);
    if (rc < 0) {
        sg_lease_page_finish(ret);
    }
    return rc;
}

int sg_store_receipt(struct sg_store *s, const char *tenant, const char *id, char **ret, struct sg_error *err)
{
    pthread_mutex_lock(&s->read_lock);
    sqlite3_stmt *st = s->reads[tenant != NULL ? SG_READ_RECEIPT_OWNER : SG_READ_RECEIPT];
    sqlite3_bind_text(st, 1, id, -1, SQLITE_STATIC);
    if (tenant != NULL) {
        sqlite3_bind_text(st, 2, tenant, -1, SQLITE_STATIC);
    }
    int rc = sqlite3_step(st);
    int result;
    if (rc == SQLITE_ROW) {
        *ret = strdup((const char *)sqlite3_column_text(st, 0));
        result = *ret != NULL ? 0 : sg_error_set(err, SG_NO_MEMORY, "no memory for a receipt");
    } else if (rc == SQLITE_DONE) {
        result = sg_error_set(err, SG_NOT_FOUND, "there is no such receipt");
    } else {
        result = read_failed(s, rc, err);
    }
    sqlite3_reset(st);
    pthread_mutex_unlock(&s->read_lock);
    return result;
}

static json_t *text_or_null(sqlite3_stmt *st, int col)
{
    const char *s = (const char *)sqlite3_column_text(st, col);
    return s != NULL ? json_string(s) : json_null();
}

static json_t *audit_json(sqlite3_stmt *st)
{
    char at[SG_TIME_LEN];
    char mac[2 * SG_SHA256_LEN + 1] = "";
    sg_time_format(sqlite3_column_int64(st, 1), at);
    if (sqlite3_column_bytes(st, 7) == SG_SHA256_LEN) {
        sg_hex(sqlite3_column_blob(st, 7), SG_SHA256_LEN, mac);
    }
    const char *payload = (const char *)sqlite3_column_text(st, 6);
    json_t *detail = NULL;
    if (payload == NULL || sg_json_parse(payload, strlen(payload), &detail, NULL) < 0) {
        detail = json_object();
    }
    return json_pack("{s:I, s:s, s:o, s:o, s:o, s:o, s:o, s:s}", "seq",
                     (json_int_t)sqlite3_column_int64(st, 0), "at", at, "event", text_or_null(st, 2),
                     "tenant", text_or_null(st, 3), "lease_id", text_or_null(st, 4), "receipt_id",
                     text_or_null(st, 5), "detail", detail, "mac", mac);
}

int sg_store_audit(struct sg_store *s, const char *tenant, int64_t after, size_t limit, struct json_t **ret,
                   int64_t *ret_next, struct sg_error *err)
{
    sg_cleanup(sg_json_p) json_t *list = json_array();
    int64_t last = after;
    bool more = false;
    int rc;
    pthread_mutex_lock(&s->read_lock);
    sqlite3_stmt *st = s->reads[SG_READ_AUDIT];
    sqlite3_bind_int64(st, 1, after);
    for (int seen = 0; (rc = sqlite3_step(st)) == SQLITE_ROW; seen++) {
        if (json_array_size(list) == limit || seen == SCAN_MAX) {
            more = true;
            rc = SQLITE_DONE;
            break;
        }
        last = sqlite3_column_int64(st, 0);
        if (column_is(st, 3, tenant)) {
            json_array_append_new(list, audit_json(st));
        }
    }
    int result = rc == SQLITE_DONE ? 0 : read_failed(s, rc, err);
    sqlite3_reset(st);
    pthread_mutex_unlock(&s->read_lock);
    if (result == 0) {
        *ret = sg_steal(&list);
        *ret_next = more ? last : 0;
    }
    return result;
}

int sg_store_spent(struct sg_store *s, void (*each)(void *arg, const char *tenant, int64_t microusd), void *arg, struct sg_error *err)
{
    int rc;
    pthread_mutex_lock(&s->read_lock);
    sqlite3_stmt *st = s->reads[SG_READ_SPENT];
    while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
        const char *tenant = (const char *)sqlite3_column_text(st, 0);
        if (tenant != NULL) {
            each(arg, tenant, sqlite3_column_int64(st, 1));
        }
    }
    int result = rc == SQLITE_DONE ? 0 : read_failed(s, rc, err);
    sqlite3_reset(st);
    pthread_mutex_unlock(&s->read_lock);
    return result;
}
