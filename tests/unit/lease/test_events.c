/* Events of leases: numbered, bounded, written with what they are about, told to each follower in order. */
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

TestSuite(lease_events, .init = setup, .fini = teardown);

struct log {
    struct sg_follower f;
    pthread_mutex_t lock;
    sem_t woken;
    uint64_t seq[256];
    enum sg_event_type type[256];
    int n, over, refs;
};

static struct log *log_of(struct sg_follower *f)
{
    return sg_container_of(f, struct log, f);
}

static void on_event(struct sg_follower *f, const struct sg_lease_event *ev, const struct sg_lease *l)
{
    struct log *g = log_of(f);
    pthread_mutex_lock(&g->lock);
    cr_assert_lt(g->n, 256);
    cr_expect_eq(g->over, 0);
    cr_expect_eq(l->state, l->state);
    g->seq[g->n] = ev->seq;
    g->type[g->n++] = sg_lease_event_type(ev);
    pthread_mutex_unlock(&g->lock);
}

static void on_over(struct sg_follower *f)
{
    log_of(f)->over++;
}

static void on_wake(struct sg_follower *f)
{
    sem_post(&log_of(f)->woken);
}

static void on_ref(struct sg_follower *f)
{
    log_of(f)->refs++;
}

static void on_unref(struct sg_follower *f)
{
    log_of(f)->refs--;
}

static void log_init(struct log *g)
{
    *g = (struct log){
        .f = {.event = on_event, .over = on_over, .wake = on_wake, .ref = on_ref, .unref = on_unref}};
    pthread_mutex_init(&g->lock, NULL);
    sem_init(&g->woken, 0, 0);
}

static void expect_types(const struct log *g, const enum sg_event_type *types, int n)
{
    cr_assert_eq(g->n, n, "%d", g->n);
    for (int i = 0; i < n; i++) {
        cr_expect_eq(g->type[i], types[i], "event %d is %s", i, sg_event_type_name(g->type[i]));
    }
}

static void extend(struct sg_entry *e, int64_t ms)
{
    struct sg_error err = {0};
    struct outcome o;
    outcome_init(&o);
    struct sg_store_done done = {.fn = outcome_set, .arg = &o};
    cr_assert_eq(sg_registry_extend(w.reg, e, ms, &(struct sg_spend_limit){0}, &done, &err), 0, "%s", err.message);
    sem_wait_all(&o.sem);
    cr_assert_not(o.failed);
}

static const enum sg_event_type whole[] = {SG_EVENT_CREATING, SG_EVENT_READY, SG_EVENT_EXTENDED, SG_EVENT_RELEASING,
                                           SG_EVENT_TERMINATED};

Test(lease_events, a_follower_hears_what_was_and_what_comes)
{
    struct sg_entry *e = lease(&w, &(struct ask){0});
    struct log g, late;
    log_init(&g);
    cr_assert_eq(sg_entry_follow(e, 0, &g.f, NULL), 0);
    expect_types(&g, whole, 2);
    extend(e, 120000);
    sem_wait_all(&g.woken);
    expect_types(&g, whole, 3);
    end_lease(&w, e);
    sem_wait_all(&g.woken);
    sem_wait_all(&g.woken);
    expect_types(&g, whole, 5);
    for (int i = 0; i < 5; i++) {
        cr_expect_eq(g.seq[i], (uint64_t)i + 1);
    }
    cr_expect_eq(g.over, 1);
    cr_expect_not(g.f.following);
    cr_expect_eq(g.refs, 0);
    sg_entry_unfollow(e, &g.f); /* late is fine */
    log_init(&late);
    cr_assert_eq(sg_entry_follow(e, 4, &late.f, NULL), 0);
    cr_assert_eq(late.n, 1);
    cr_expect_eq(late.seq[0], 5);
    cr_expect_eq(late.over, 1);
    sg_entry_unref(e);
}

Test(lease_events, after_it_unfollows_a_follower_hears_nothing)
{
    struct sg_entry *e = lease(&w, &(struct ask){0});
    struct log g;
    log_init(&g);
    cr_assert_eq(sg_entry_follow(e, 2, &g.f, NULL), 0);
    sg_entry_unfollow(e, &g.f);
    end_lease(&w, e);
    cr_expect_eq(g.n, 0);
    cr_expect_eq(g.over, 0);
    sg_entry_unref(e);
}

Test(lease_events, history_is_bounded_and_never_has_a_gap)
{
    struct sg_entry *e = lease(&w, &(struct ask){0});
    struct sg_error err = {0};
    struct log g;
    for (int i = 0; i < 80; i++) {
        extend(e, 120000 + i * 1000);
    }
    log_init(&g);
    cr_assert_eq(sg_entry_follow(e, 82 - SG_LEASE_EVENTS_MAX - 1, &g.f, &err), -1);
    cr_expect_eq(err.code, SG_HISTORY_DROPPED);
    cr_expect_eq(json_integer_value(json_object_get(err.members, "oldest_seq")), 82 - SG_LEASE_EVENTS_MAX + 1);
    cr_expect_eq(sg_entry_follow(e, 83, &g.f, &err), -1);
    cr_expect_eq(err.code, SG_INVALID_REQUEST);
    cr_expect_eq(g.n, 0);
    cr_assert_eq(sg_entry_follow(e, 82 - SG_LEASE_EVENTS_MAX, &g.f, NULL), 0);
    cr_assert_eq(g.n, SG_LEASE_EVENTS_MAX);
    for (int i = 0; i < g.n; i++) {
        cr_expect_eq(g.seq[i], (uint64_t)(82 - SG_LEASE_EVENTS_MAX + 1 + i));
    }
    sg_entry_unfollow(e, &g.f);
    end_lease(&w, e);
    sg_entry_unref(e);
    sg_error_clear(&err);
}

/* 64 entries are kept in memory; what is pushed out is read back. */
Test(lease_events, ended_long_ago_they_come_from_the_store)
{
    char id[SG_ID_MAX];
    struct sg_error err = {0};
    struct sg_entry *e = lease(&w, &(struct ask){0});
    snprintf(id, sizeof id, "%s", sg_entry_id(e));
    extend(e, 120000);
    end_lease(&w, e);
    sg_entry_unref(e);
    for (int i = 0; i < 70; i++) {
        struct sg_entry *other = lease(&w, &(struct ask){0});
        end_lease(&w, other);
        sg_entry_unref(other);
    }
    cr_assert_eq(sg_registry_peek(w.reg, "acme", id, &e), 0);
    cr_assert_eq(sg_registry_get(w.reg, "acme", id, &e, &err), 1, "%s", err.message);
    struct log g;
    log_init(&g);
    cr_assert_eq(sg_entry_follow(e, 0, &g.f, &err), 0, "%s", err.message);
    expect_types(&g, whole, 5);
    cr_expect_eq(g.over, 1);
    sg_entry_unref(e);
}

Test(lease_events, a_server_that_died_leaves_a_gap_and_no_number_twice)
{
    char id[SG_ID_MAX];
    struct sg_error err = {0};
    struct sg_entry *e = lease(&w, &(struct ask){0});
    snprintf(id, sizeof id, "%s", sg_entry_id(e));
    sg_entry_unref(e);
    world_close(&w); /* as it is: the registry forgets live entries */
    world_open(&w);
    cr_assert_eq(sg_registry_recover(w.reg, &(struct sg_recover){0}, NULL, &err), 0, "%s", err.message);
    cr_assert_eq(sg_registry_get(w.reg, "acme", id, &e, &err), 1, "%s", err.message);
    struct log g;
    log_init(&g);
    cr_assert_eq(sg_entry_follow(e, 0, &g.f, &err), 0, "%s", err.message);
    cr_assert_eq(g.n, 3);
    cr_expect_eq(g.type[2], SG_EVENT_LOST);
    cr_expect_eq(g.seq[2], 2 + SG_LEASE_EVENTS_GAP + 1);
    /* Whoever was told more than was written is not told that nothing happened. */
    log_init(&g);
    cr_assert_eq(sg_entry_follow(e, 4, &g.f, &err), 0, "%s", err.message);
    cr_assert_eq(g.n, 1);
    cr_expect_eq(g.type[0], SG_EVENT_LOST);
    sg_entry_unref(e);
}

Test(lease_events, a_row_of_a_version_without_events_has_its_end)
{
    struct sg_error err = {0};
    struct sg_lease l = make_lease("acme", SG_LEASE_EXPIRED);
    put_lease(w.store, &l);
    struct sg_entry *e = NULL;
    cr_assert_eq(sg_registry_get(w.reg, "acme", l.id, &e, &err), 1, "%s", err.message);
    struct log g;
    log_init(&g);
    cr_assert_eq(sg_entry_follow(e, 0, &g.f, &err), 0, "%s", err.message);
    cr_assert_eq(g.n, 1);
    cr_expect_eq(g.type[0], SG_EVENT_EXPIRED);
    cr_expect_eq(g.over, 1);
    sg_entry_unref(e);
    sg_lease_finish(&l);
}

Test(lease_events, damaged_text_is_an_error)
{
    static const char *const bad[] = {"",           "{}",  "[1]", "[[1,2,3,\"ready\",false]]", "[[0,1,1,\"ready\",false,null]]",
                                      "[[1,1,1,\"odd\",false,null]]",
                                      "[[2,1,1,\"ready\",false,null],[2,1,1,\"lost\",false,null]]"};
    struct sg_lease_events l;
    struct sg_error err = {0};
    for (size_t i = 0; i < SG_COUNT_OF(bad); i++) {
        cr_expect_eq(sg_lease_events_parse(bad[i], &l, &err), -1, "%s", bad[i]);
        cr_expect_eq(err.code, SG_INTERNAL);
    }
    cr_assert_eq(sg_lease_events_parse("[[3,5,7,\"lost\",false,\"a \\\"b\\\"\"]]", &l, &err), 0);
    cr_expect_eq(l.n, 1);
    cr_expect_eq(l.last, 3);
    cr_expect_str_eq(l.v[0].reason, "a \"b\"");
    sg_cleanup(sg_free_p) char *text = sg_lease_events_dump(&l);
    cr_expect_str_eq(text, "[[3,5,7,\"lost\",false,\"a \\\"b\\\"\"]]");
    sg_lease_events_finish(&l);
    sg_error_clear(&err);
}
