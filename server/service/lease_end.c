/* The end of a lease: its sandbox is terminated once, whoever began the end. */
#include "service/service_priv.h"

#include "base/clock.h"

#include <pthread.h>
#include <stdio.h>

#define ARCHIVE_MS 30000
#define ARCHIVE_SHUTDOWN_MS 5000

struct ending {
    struct sg_service *s;
    struct sg_entry *entry;
    struct sg_sandbox *sb;
};

/* The end of a lease may have no request of its own to be logged with: expiry, idle time, a lost sandbox. */
static void log_end(struct sg_service *s, struct sg_entry *e, const struct sg_error *err)
{
    struct sg_log_line line;
    struct sg_lease l;

    sg_entry_lease(e, &l);
    sg_log_begin(&line, s->parts.log, l.state == SG_LEASE_LOST || err ? SG_LOG_WARN : SG_LOG_INFO, "lease_ended");
    sg_log_str(&line, "lease_id", l.id);
    sg_log_str(&line, "tenant", l.terms->tenant);
    sg_log_str(&line, "state", sg_lease_state_name(l.state));
    sg_log_str(&line, "reason", l.reason);
    sg_log_str(&line, "provider", l.provider);
    sg_log_str(&line, "sandbox_id", l.sandbox_id);
    sg_log_int(&line, "lifetime_us", sg_wall_us() - l.created_us);
    if (err)
        sg_log_error(&line, err);
    sg_log_end(&line);
    sg_lease_finish(&l);
}

static void sandbox_gone(void *arg, const struct sg_error *err)
{
    struct ending *g = arg;

    if (!err || err->code != SG_SHUTTING_DOWN) { /* else the next server goes on from what is written down */
        sg_registry_ended(g->s->leases, g->entry, err);
        log_end(g->s, g->entry, err);
    }
    sg_sandbox_unref(g->sb);
    sg_entry_unref(g->entry);
    free(g);
}

static void archived(void *arg)
{
    struct ending *g = arg;
    struct sg_done done = {.fn = sandbox_gone, .arg = g};

    sg_sandbox_terminate(g->sb, &done);
}

static void found_again(void *arg, struct sg_sandbox *sb, const struct sg_error *err)
{
    struct ending *g = arg;

    g->sb = sb;
    if (sb)
        archived(g);
    else
        sandbox_gone(g, err->code == SG_SANDBOX_LOST ? NULL : err);
}

/* One of a server before this one that has not been found yet. */
static void find_and_end(struct ending *g)
{
    const struct sg_sandbox_done done = {.fn = found_again, .arg = g};
    struct sg_error err = {0};

    if (sg_service_find_sandbox(g->s, g->entry, &done, &err) < 0)
        sandbox_gone(g, err.code == SG_NOT_SUPPORTED ? NULL : &err);
    sg_error_clear(&err);
}

void sg_service_on_end(void *arg, struct sg_entry *e, enum sg_end why)
{
    struct ending *g = sg_xcalloc(1, sizeof *g);

    g->s = arg;
    g->entry = sg_entry_ref(e);
    g->sb = sg_entry_sandbox(e);
    if (g->sb)
        sg_archives_at_end(g->s->archives, e, g->sb, why == SG_END_SHUTDOWN ? ARCHIVE_SHUTDOWN_MS : ARCHIVE_MS, archived, g);
    else
        find_and_end(g);
}

/* ---- a sandbox that dies under its lease ---- */

static void sandbox_lost(void *arg, struct sg_sandbox *sb, const struct sg_error *why)
{
    struct sg_service *s = arg;
    struct sg_entry *e;
    char reason[sizeof why->reason + sizeof why->message + 2];

    if (sg_registry_peek(s->leases, NULL, sb->owner, &e) == 1) {
        snprintf(reason, sizeof reason, "%s: %s", why->reason[0] ? why->reason : "sandbox_lost", why->message);
        sg_registry_end(s->leases, e, SG_END_LOST, reason);
        sg_entry_unref(e);
    }
}

void sg_service_watch_sandbox(struct sg_service *s, struct sg_entry *e, struct sg_sandbox *sb)
{
    snprintf(sb->owner, sizeof sb->owner, "%s", sg_entry_id(e));
    sg_sandbox_on_lost(sb, sandbox_lost, s);
}

void sg_service_delete(struct sg_service *s, struct sg_entry *e, int64_t wait_ms, void (*done)(void *arg, bool gone), void *arg)
{
    sg_registry_end(s->leases, e, SG_END_DELETED, NULL);
    sg_service_wait_for(s, &(struct sg_wait_args){.lease = e, .what = SG_WAIT_ENDED, .wait_ms = wait_ms, .done = done, .arg = arg});
}

void sg_service_abandon(struct sg_service *s, struct sg_entry *e)
{
    sg_registry_end(s->leases, e, SG_END_DELETED, NULL);
}

/* ---- shutdown ---- */

/* Ends that are still to come. */
struct countdown {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t left;
    struct counted *list;
};

struct counted {
    struct sg_waiter waiter;
    struct sg_entry *entry;
    struct countdown *all;
    struct counted *next;
};

static void countdown_init(struct countdown *all)
{
    pthread_condattr_t attr;

    *all = (struct countdown){.left = 0};
    pthread_mutex_init(&all->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&all->changed, &attr);
    pthread_condattr_destroy(&attr);
}

static void count(struct countdown *all, bool up)
{
    pthread_mutex_lock(&all->lock);
    all->left += up ? 1 : (size_t)-1;
    pthread_cond_signal(&all->changed);
    pthread_mutex_unlock(&all->lock);
}

static void one_ended(struct sg_waiter *w)
{
    count(sg_container_of(w, struct counted, waiter)->all, false);
}

static void count_entry(struct sg_service *s, const char *id, struct countdown *all)
{
    struct sg_entry *e;

    if (sg_registry_peek(s->leases, NULL, id, &e) != 1)
        return;
    struct counted *c = sg_xcalloc(1, sizeof *c);
    c->waiter.fn = one_ended;
    c->entry = e;
    c->all = all;
    c->next = all->list;
    all->list = c;
    count(all, true);
    if (!sg_entry_wait(e, SG_WAIT_ENDED, &c->waiter))
        count(all, false);
}

static void wait_until(struct countdown *all, int64_t deadline_ms)
{
    struct timespec until;
    int64_t ms = deadline_ms - sg_now_ms();
    int rc = 0;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += ms > 0 ? ms / 1000 + 1 : 0;
    pthread_mutex_lock(&all->lock);
    while (all->left > 0 && rc == 0)
        rc = pthread_cond_timedwait(&all->changed, &all->lock, &until);
    pthread_mutex_unlock(&all->lock);
}

/* Waits no longer for those that have not ended. */
static void countdown_finish(struct countdown *all)
{
    for (struct counted *c = all->list; c; c = c->next) {
        if (sg_entry_unwait(c->entry, &c->waiter))
            count(all, false);
    }
    pthread_mutex_lock(&all->lock);
    while (all->left > 0) /* of these it is being said on another thread */
        pthread_cond_wait(&all->changed, &all->lock);
    pthread_mutex_unlock(&all->lock);
    while (all->list) {
        struct counted *c = all->list;
        all->list = c->next;
        sg_entry_unref(c->entry);
        free(c);
    }
    pthread_cond_destroy(&all->changed);
    pthread_mutex_destroy(&all->lock);
}

/* Waits for the end of one page of leases; false when there are none. */
static bool wait_for_page(struct sg_service *s, int64_t deadline_ms)
{
    struct sg_lease_query q = {
        .states = 1U << SG_LEASE_CREATING | 1U << SG_LEASE_READY | 1U << SG_LEASE_RELEASING, .limit = 1000};
    struct sg_lease_page page = {0};
    struct countdown all;

    bool some = sg_registry_list(s->leases, &q, &page, NULL) == 0 && page.n > 0;
    countdown_init(&all);
    for (size_t i = 0; some && i < page.n; i++)
        count_entry(s, page.items[i].id, &all);
    wait_until(&all, deadline_ms);
    countdown_finish(&all);
    sg_lease_page_finish(&page);
    return some;
}

/* Those that go on with the next server: how many. */
static size_t leave_all(struct sg_service *s)
{
    return s->cfg.leave_leases ? sg_registry_leave_all(s->leases) : 0;
}

void sg_service_end_all(struct sg_service *s, int64_t deadline_ms)
{
    struct sg_log_line line;
    size_t left = 0;

    sg_service_drain(s);
    do {
        left += leave_all(s);
        sg_registry_end_all(s->leases, SG_END_SHUTDOWN);
    } while (wait_for_page(s, deadline_ms) && sg_now_ms() < deadline_ms);
    if (left > 0) {
        sg_log_begin(&line, s->parts.log, SG_LOG_INFO, "leases_left");
        sg_log_int(&line, "leases", (int64_t)left);
        sg_log_end(&line);
    }
    sg_archives_stop(s->archives);
}
