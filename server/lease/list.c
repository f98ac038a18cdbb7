/* Lists: what is in memory and what is in the store, merged by id, newest first. Memory is looked at first:
 * an entry can only move from there into the store, so nothing falls between the two, and what is seen in
 * both counts as memory has it. */
#include "base/clock.h"
#include "lease/registry_priv.h"

struct seen {
    char id[SG_ID_MAX];
    bool match;
    struct sg_lease lease; /* of a match */
};

struct memory {
    struct seen *items; /* newest first */
    size_t n;
};

static int newest_first(const void *a, const void *b)
{
    return strcmp(((const struct seen *)b)->id, ((const struct seen *)a)->id);
}

static bool text_is(const char *have, const char *want)
{
    return want == NULL || (have != NULL && sg_streq(have, want));
}

static bool matches(const struct sg_entry *e, const struct sg_lease_query *q)
{
    const struct sg_lease *l = &e->lease;
    return (q->states == 0 || (q->states >> l->state & 1U) != 0) && text_is(l->terms->tenant, q->tenant) &&
           text_is(l->provider, q->provider) && text_is(l->terms->trajectory_id, q->trajectory_id) &&
           !sg_entry_is_left(e) && !sg_entry_past_retention(e);
}

static int look(struct sg_registry *r, const struct sg_lease_query *q, struct memory *ret,
                struct sg_error *err)
{
    struct sg_entry *e, *next;
    ret->n = 0;
    pthread_mutex_lock(&r->lock);
    ret->items = calloc(HASH_CNT(by_id, r->by_id) + 1, sizeof *ret->items);
    if (ret->items == NULL) {
        pthread_mutex_unlock(&r->lock);
        return sg_error_set(err, SG_NO_MEMORY, "no memory for a list of leases");
    }
    HASH_ITER(by_id, r->by_id, e, next)
    {
        if (q->after != NULL && strcmp(e->lease.id, q->after) >= 0) {
            continue;
        }
        struct seen *s = &ret->items[ret->n++];
        memcpy(s->id, e->lease.id, sizeof s->id);
        if (matches(e, q)) {
            s->match = true;
            sg_lease_copy(&s->lease, &e->lease);
        }
    }
    pthread_mutex_unlock(&r->lock);
    qsort(ret->items, ret->n, sizeof *ret->items, newest_first);
    return 0;
}

static void memory_finish(struct memory *m)
{
    for (size_t i = 0; i < m->n; i++) {
        if (m->items[i].match) {
            sg_lease_finish(&m->items[i].lease);
        }
    }
    free(m->items);
}

static bool in_memory(const struct memory *m, const char *id)
{
    struct seen key;
    (void)strncpy(key.id, id, sizeof key.id - 1);
    key.id[sizeof key.id - 1] = '\0';
    return m->n > 0 && bsearch(&key, m->items, m->n, sizeof *m->items, newest_first) != NULL;
}

struct merge {
    const struct sg_lease_query *q;
    struct memory *mem;
    size_t at; /* next of mem */
    struct sg_lease_page *out;
};

static void skip_unmatched(struct merge *m)
{
    while (m->at < m->mem->n && !m->mem->items[m->at].match) {
        m->at++;
    }
}

/* Matches of memory that are newer than id (NULL: all), as far as the page takes them. */
static void take_newer(struct merge *m, const char *id)
{
    for (skip_unmatched(m); m->at < m->mem->n && m->out->n < m->q->limit; skip_unmatched(m)) {
        const struct seen *s = &m->mem->items[m->at];
        if (id != NULL && strcmp(s->id, id) < 0) {
            return;
        }
        sg_lease_copy(&m->out->items[m->out->n++], &s->lease);
        m->at++;
    }
}

/* Merges one page of the store. */
static void take_rows(struct merge *m, struct sg_lease_page *rows)
{
    for (size_t i = 0; i < rows->n; i++) {
        if (in_memory(m->mem, rows->items[i].id)) {
            continue;
        }
        take_newer(m, rows->items[i].id);
        if (m->out->n == m->q->limit) {
            /* One row is left over at least, so there is a next page. */
            memcpy(m->out->next, m->out->items[m->out->n - 1].id, sizeof m->out->next);
            return;
        }
        sg_lease_copy(&m->out->items[m->out->n++], &rows->items[i]);
    }
    take_newer(m, rows->next[0] != '\0' ? rows->next : NULL);
    skip_unmatched(m);
    bool full = m->out->n == m->q->limit;
    if (full && (rows->next[0] != '\0' || m->at < m->mem->n)) {
        memcpy(m->out->next, m->out->items[m->out->n - 1].id, sizeof m->out->next);
    }
}

static int merge_store(struct sg_registry *r, struct merge *m, struct sg_error *err)
{
    struct sg_lease_query q = *m->q;
    char after[SG_ID_MAX] = "";
    for (;;) {
        struct sg_lease_page rows;
        if (sg_store_leases(r->cfg.store, &q, &rows, err) < 0) {
            return -1;
        }
        take_rows(m, &rows);
        memcpy(after, rows.next, sizeof after);
        bool short_page = rows.n < q.limit;
        sg_lease_page_finish(&rows);
        if (after[0] == '\0' || m->out->n == m->q->limit) {
            return 0;
        }
        if (short_page) {
            /* The store has looked at enough rows for one call. */
            memcpy(m->out->next, after, sizeof after);
            return 0;
        }
        q.after = after;
    }
}

int sg_registry_list(struct sg_registry *r, const struct sg_lease_query *q, struct sg_lease_page *ret,
                     struct sg_error *err)
{
    struct memory mem;
    memset(ret, 0, sizeof *ret);
    if (q->limit < 1 || q->limit > 1000) {
        return sg_error_field(err, SG_INVALID_REQUEST, "limit", "limit must be between 1 and 1000");
    }
    ret->items = calloc(q->limit, sizeof *ret->items);
    if (ret->items == NULL || look(r, q, &mem, err) < 0) {
        free(ret->items);
        memset(ret, 0, sizeof *ret);
        return sg_error_set(err, SG_NO_MEMORY, "no memory for a list of leases");
    }
    struct merge m = {.q = q, .mem = &mem, .out = ret};
    int rc = merge_store(r, &m, err);
    memory_finish(&mem);
    if (rc < 0) {
        sg_lease_page_finish(ret);
    }
    return rc;
}
