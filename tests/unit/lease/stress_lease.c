/* Everything of the registry and the store at once, from many threads, without Criterion: that one cannot run
 * under ThreadSanitizer. Ends with a non-zero status at the first thing that is not as promised. */
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "backends/driver.h"
#include "base/clock.h"
#include "base/fd.h"
#include "lease/registry.h"
#include "model/lease_json.h"

#define THREADS 8
#define ROUNDS 150
#define QUOTA 20

#define CHECK(x)                                                                                             \
    do {                                                                                                     \
        if (!(x)) {                                                                                          \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x);                                          \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

static struct sg_registry *reg;
static struct sg_store *store;
static _Atomic int sandboxes, live, refused, ends, made;

static struct sg_sandbox *box_ref(struct sg_sandbox *sb)
{
    atomic_fetch_add(&sb->refs, 1);
    return sb;
}

static struct sg_sandbox *box_unref(struct sg_sandbox *sb)
{
    if (sb != NULL && atomic_fetch_sub(&sb->refs, 1) == 1) {
        atomic_fetch_sub(&sandboxes, 1);
        free(sb);
    }
    return NULL;
}

static void on_end(void *arg, struct sg_entry *e, enum sg_end why)
{
    (void)arg;
    (void)why;
    ends++;
    live--; /* before the registry lets the next one in */
    sg_registry_ended(reg, e, NULL);
}

struct pause {
    sem_t sem;
    struct sg_waiter waiter;
    bool failed;
};

static void done(void *arg, const struct sg_error *err)
{
    struct pause *p = arg;
    p->failed = err != NULL;
    sem_post(&p->sem);
}

static void woken(struct sg_waiter *w)
{
    sem_post(&((struct pause *)((char *)w - offsetof(struct pause, waiter)))->sem);
}

static void pause_for(struct pause *p)
{
    while (sem_wait(&p->sem) != 0) {
    }
}

static void settle(struct sg_entry *e, enum sg_wait_for what)
{
    struct pause p = {.waiter = {.fn = woken}};
    sem_init(&p.sem, 0, 0);
    if (sg_entry_wait(e, what, &p.waiter)) {
        pause_for(&p);
    }
    sem_destroy(&p.sem);
}

static char *answer(void *arg, const struct sg_lease *l)
{
    (void)arg;
    return sg_xstrdup(l->id);
}

static void create(struct sg_entry *e)
{
    struct sg_error err = {0};
    struct pause p = {0};
    struct sg_store_done d = {.fn = done, .arg = &p};
    struct sg_sandbox *sb = sg_xcalloc(1, sizeof *sb);
    CHECK(atomic_fetch_add(&live, 1) < QUOTA);
    atomic_store(&sb->refs, 1);
    atomic_fetch_add(&sandboxes, 1);
    sem_init(&p.sem, 0, 0);
    struct sg_grant g = {
        .sandbox = sb, .provider = "local_bwrap", .sandbox_id = "s", .answer = answer, .answer_status = 201};
    if (sg_registry_ready(reg, e, &g, NULL, &d, &err) == 0) {
        pause_for(&p);
    } else {
        CHECK(err.code == SG_LEASE_GONE);
        p.failed = true;
    }
    box_unref(sb);
    if (p.failed) {
        live--;
        sg_error_set(&err, SG_LEASE_GONE, "ended meanwhile");
        sg_registry_failed(reg, e, NULL, &err, NULL);
    } else {
        made++;
    }
    sem_destroy(&p.sem);
}

static void look_around(unsigned *seed, struct sg_entry *e)
{
    struct sg_error err = {0};
    struct sg_lease_page page;
    struct sg_lease_query q = {.limit = 1 + (size_t)rand_r(seed) % 30, .tenant = "acme"};
    CHECK(sg_registry_list(reg, &q, &page, &err) == 0);
    sg_lease_page_finish(&page);
    struct sg_entry *found = NULL;
    CHECK(sg_registry_get(reg, "acme", sg_entry_id(e), &found, &err) == 1);
    struct sg_lease l;
    sg_entry_lease(found, &l);
    json_t *v = sg_lease_json(&l, NULL);
    CHECK(v != NULL);
    json_decref(v);
    sg_lease_finish(&l);
    sg_entry_unref(found);
    struct sg_registry_stats st;
    sg_registry_stats(reg, &st);
    struct sg_store_stats ss;
    sg_store_stats(store, &ss);
}

/* Follows a lease for as long as it lives, or not so long. */
struct listener {
    struct sg_follower f;
    _Atomic int refs;
    uint64_t last;
    _Atomic bool over;
    _Atomic int wakes;
};

static struct listener *listener_of(struct sg_follower *f)
{
    return sg_container_of(f, struct listener, f);
}

static void heard(struct sg_follower *f, const struct sg_lease_event *ev, const struct sg_lease *l)
{
    struct listener *g = listener_of(f);
    CHECK(!g->over && ev->seq == g->last + 1);
    char *text = sg_lease_event_text(ev, l);
    CHECK(text != NULL);
    free(text);
    g->last = ev->seq;
}

static void heard_all(struct sg_follower *f)
{
    CHECK(!listener_of(f)->over);
    listener_of(f)->over = true;
}

static void wake(struct sg_follower *f)
{
    listener_of(f)->wakes++;
}

static void listener_ref(struct sg_follower *f)
{
    listener_of(f)->refs++;
}

static void listener_unref(struct sg_follower *f)
{
    if (--listener_of(f)->refs == 0) {
        free(listener_of(f));
    }
}

static struct listener *follow(struct sg_entry *e)
{
    struct listener *g = sg_xcalloc(1, sizeof *g);
    g->f = (struct sg_follower){
        .event = heard, .over = heard_all, .wake = wake, .ref = listener_ref, .unref = listener_unref};
    g->refs = 1;
    CHECK(sg_entry_follow(e, 0, &g->f, NULL) == 0);
    return g;
}

/* ended: so did the lease, and that was told before. */
static void stop_following(struct sg_entry *e, struct listener *g, bool ended)
{
    CHECK(!ended || g->over);
    sg_entry_unfollow(e, &g->f);
    listener_unref(&g->f);
}

static void use(unsigned *seed, struct sg_entry *e)
{
    struct sg_error err = {0};
    struct sg_sandbox *sb = NULL;
    if (sg_entry_exec_begin(e, 1000, &sb, &err) == 0) {
        box_unref(sb);
        sg_entry_exec_end(e, rand_r(seed) % 2 == 0);
    }
    struct pause p = {0};
    struct sg_store_done d = {.fn = done, .arg = &p};
    sem_init(&p.sem, 0, 0);
    if (rand_r(seed) % 3 == 0 && sg_registry_extend(reg, e, 40 + rand_r(seed) % 100, &(struct sg_spend_limit){0}, &d, &err) == 0) {
        pause_for(&p);
    }
    sem_destroy(&p.sem);
}

static void *run(void *arg)
{
    unsigned seed = (unsigned)(uintptr_t)arg;
    for (int i = 0; i < ROUNDS; i++) {
        struct sg_error err = {0};
        struct sg_stored_answer a = {0};
        enum sg_reserved how;
        struct sg_entry *e = NULL;
        char name[32];
        struct sg_lease_terms *t = sg_lease_terms_new("acme");
        snprintf(name, sizeof name, "t%d", rand_r(&seed) % 30);
        t->trajectory_id = rand_r(&seed) % 2 == 0 ? sg_xstrdup(name) : NULL;
        t->idempotency_key = rand_r(&seed) % 3 == 0 ? sg_xasprintf("k%d", rand_r(&seed) % 400) : NULL;
        t->timeout_ms = 20 + rand_r(&seed) % 200;
        t->idle_timeout_ms = rand_r(&seed) % 2 == 0 ? 30 : 0;
        int rc = sg_registry_reserve(reg, &(struct sg_reserve){.terms = t, .max_leases = QUOTA}, &how, &e, &a,
                                     &err);
        sg_lease_terms_unref(t);
        if (rc < 0) {
            CHECK(err.code == SG_QUOTA_EXCEEDED);
            sg_error_clear(&err);
            refused++;
            usleep(500);
            continue;
        }
        if (how == SG_RESERVED_NEW) {
            create(e);
        } else if (how == SG_RESERVED_SAME) {
            settle(e, SG_WAIT_SETTLED);
        }
        sg_stored_answer_finish(&a);
        if (e != NULL) {
            struct listener *g = rand_r(&seed) % 2 == 0 ? follow(e) : NULL;
            look_around(&seed, e);
            use(&seed, e);
            bool end = rand_r(&seed) % 2 == 0;
            if (end) {
                sg_registry_end(reg, e, rand_r(&seed) % 8 == 0 ? SG_END_LOST : SG_END_DELETED, NULL);
                settle(e, SG_WAIT_ENDED);
            }
            if (g != NULL) {
                stop_following(e, g, end);
            }
        }
        sg_entry_unref(e);
    }
    return NULL;
}

int main(void)
{
    char dir[] = "/tmp/sg-lease-stress-XXXXXX";
    struct sg_error err = {0};
    struct sg_reactor *reactor;
    pthread_t threads[THREADS];
    CHECK(mkdtemp(dir) != NULL);
    struct sg_store_config sc = {.state_dir = dir, .retention_ms = 2000};
    CHECK(sg_store_open(&sc, &store, &err) == 0);
    CHECK(sg_reactor_new(&reactor, &err) == 0);
    struct sg_registry_config cfg = {.reactor = reactor,
                                     .store = store,
                                     .sandbox_ref = box_ref,
                                     .sandbox_unref = box_unref,
                                     .on_end = on_end,
                                     .recent_max = 50};
    reg = sg_registry_new(&cfg);
    for (uintptr_t i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, run, (void *)(i + 1)) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    sg_registry_end_all(reg, SG_END_SHUTDOWN);
    reg = sg_registry_free(reg);
    sg_reactor_free(reactor);
    sg_store_free(store);
    CHECK(sandboxes == 0);
    CHECK(live == 0);
    CHECK(made == ends);
    struct sg_audit_report rep;
    CHECK(sg_audit_verify(dir, NULL, &rep, &err) == 0);
    CHECK(rep.ok);
    CHECK(sg_remove_tree(AT_FDCWD, dir, &err) == 0);
    printf("%d leases made and ended, %d refused, %lld audit records\n", made, refused,
           (long long)rep.records);
    return 0;
}
