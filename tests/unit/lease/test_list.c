/* Lists: pages over memory and store while leases come and go. */
#include "world.h"

static struct world w;

static void setup(void)
{
    world_init(&w);
}

static void teardown(void)
{
    world_finish(&w);
}

TestSuite(list, .init = setup, .fini = teardown);

/* Walks all pages; returns how many leases, which must come newest first. fn is called between pages. */
static size_t walk(struct sg_lease_query q, char (*ids)[SG_ID_MAX], size_t max, void (*between)(void))
{
    char after[SG_ID_MAX] = "";
    size_t n = 0;
    do {
        struct sg_lease_page p;
        struct sg_error err = {0};
        q.after = after[0] != '\0' ? after : NULL;
        cr_assert_eq(sg_registry_list(w.reg, &q, &p, &err), 0, "%s", err.message);
        cr_expect_leq(p.n, q.limit);
        for (size_t i = 0; i < p.n && n < max; i++) {
            cr_expect(n == 0 || strcmp(ids[n - 1], p.items[i].id) > 0, "%s after %s", p.items[i].id,
                      ids[n - 1]);
            memcpy(ids[n++], p.items[i].id, SG_ID_MAX);
        }
        memcpy(after, p.next, sizeof after);
        sg_lease_page_finish(&p);
        if (between != NULL) {
            between();
        }
    } while (after[0] != '\0');
    return n;
}

static struct sg_entry *pool[400];
static size_t n_pool;

static void churn(void)
{
    static unsigned turn;
    for (int i = 0; i < 10; i++) {
        pool[n_pool++] = lease(&w, &(struct ask){.tenant = turn++ % 2 != 0 ? "beta" : "acme"});
        size_t victim = (turn * 7919U) % n_pool;
        sg_registry_end(w.reg, pool[victim], SG_END_DELETED, NULL);
    }
}

static char ids[1000][SG_ID_MAX];

Test(list, nothing_repeats_or_is_skipped_under_churn)
{
    for (int i = 0; i < 12; i++) {
        churn();
    }
    size_t before = n_pool;
    static char known[400][SG_ID_MAX];
    for (size_t i = 0; i < before; i++) {
        memcpy(known[i], sg_entry_id(pool[i]), SG_ID_MAX);
    }
    size_t n = walk((struct sg_lease_query){.limit = 7}, ids, SG_COUNT_OF(ids), churn);
    for (size_t i = 0; i < before; i++) {
        size_t seen = 0;
        for (size_t k = 0; k < n; k++) {
            seen += sg_streq(known[i], ids[k]);
        }
        cr_expect_eq(seen, 1, "%s seen %zu times", known[i], seen);
    }
    /* Quiet now: every page size gives the same whole. */
    for (size_t limit = 1; limit <= 512; limit *= 8) {
        cr_expect_eq(walk((struct sg_lease_query){.limit = limit}, ids, SG_COUNT_OF(ids), NULL), n_pool);
    }
    size_t mine = walk((struct sg_lease_query){.limit = 9, .tenant = "acme"}, ids, SG_COUNT_OF(ids), NULL);
    size_t theirs = walk((struct sg_lease_query){.limit = 9, .tenant = "beta"}, ids, SG_COUNT_OF(ids), NULL);
    cr_expect_eq(mine + theirs, n_pool);
    size_t ready = walk((struct sg_lease_query){.limit = 9, .states = 1U << SG_LEASE_READY}, ids,
                        SG_COUNT_OF(ids), NULL);
    size_t over = walk((struct sg_lease_query){.limit = 9, .states = 1U << SG_LEASE_TERMINATED}, ids,
                       SG_COUNT_OF(ids), NULL);
    cr_expect_eq(ready + over, n_pool);
    cr_expect_gt(ready, 0);
    struct sg_registry_stats st;
    sg_registry_stats(w.reg, &st);
    cr_expect_eq(st.by_state[SG_LEASE_READY], ready);
    sg_registry_end_all(w.reg, SG_END_SHUTDOWN);
    for (size_t i = 0; i < n_pool; i++) {
        sg_entry_unref(pool[i]);
    }
}

Test(list, filters_and_limits)
{
    struct sg_entry *a = lease(&w, &(struct ask){.trajectory = "t"});
    struct sg_entry *b = lease(&w, &(struct ask){.tenant = "beta", .trajectory = "t"});
    cr_expect_eq(walk((struct sg_lease_query){.limit = 5, .trajectory_id = "t"}, ids, 9, NULL), 2);
    cr_expect_eq(
        walk((struct sg_lease_query){.limit = 5, .trajectory_id = "t", .tenant = "beta"}, ids, 9, NULL), 1);
    cr_expect_str_eq(ids[0], sg_entry_id(b));
    cr_expect_eq(walk((struct sg_lease_query){.limit = 5, .provider = "local_bwrap"}, ids, 9, NULL), 2);
    cr_expect_eq(walk((struct sg_lease_query){.limit = 5, .provider = "e2b"}, ids, 9, NULL), 0);
    struct sg_lease_page p;
    struct sg_error err = {0};
    cr_expect_eq(sg_registry_list(w.reg, &(struct sg_lease_query){.limit = 0}, &p, &err), -1);
    cr_expect_eq(err.code, SG_INVALID_REQUEST);
    cr_expect_eq(sg_registry_list(w.reg, &(struct sg_lease_query){.limit = 1001}, &p, &err), -1);
    end_lease(&w, a);
    end_lease(&w, b);
    sg_entry_unref(a);
    sg_entry_unref(b);
    cr_expect_eq(walk((struct sg_lease_query){.limit = 1, .trajectory_id = "t"}, ids, 9, NULL), 2);
}
