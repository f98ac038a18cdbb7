#include "backends/cloud/fleet.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/clock.h"

struct suspect {
    char id[64];
    bool seen; /* by the sweep that is under way */
    UT_hash_handle hh;
};

struct sg_fleet {
    struct sg_fleet_config c;
    pthread_mutex_t lock; /* guards what follows */
    struct sg_fleet_member *members;
    struct suspect *suspects; /* orphans as of the sweep before */
    int64_t swept_from_ms;
    unsigned removals; /* under way */
    uint64_t sweeps, sweeps_failed, orphans;
};

/* ---- members ---- */

void sg_fleet_add(struct sg_fleet *f, struct sg_fleet_member *m, struct sg_sandbox *sb, const char *lease)
{
    m->sb = sb;
    snprintf(m->lease, sizeof m->lease, "%s", lease);
    m->since_ms = sg_now_ms();
    pthread_mutex_lock(&f->lock);
    HASH_ADD_KEYPTR(hh, f->members, sb->id, strlen(sb->id), m);
    pthread_mutex_unlock(&f->lock);
}

void sg_fleet_take_out(struct sg_fleet *f, struct sg_fleet_member *m)
{
    pthread_mutex_lock(&f->lock);
    if (m->sb)
        HASH_DEL(f->members, m);
    m->sb = NULL;
    pthread_mutex_unlock(&f->lock);
}

static struct sg_fleet_member *find_locked(struct sg_fleet *f, const char *id, const char *lease)
{
    struct sg_fleet_member *m = NULL, *next;

    if (id[0]) {
        HASH_FIND_STR(f->members, id, m);
        return m;
    }
    HASH_ITER(hh, f->members, m, next)
        if (sg_streq(m->lease, lease))
            return m;
    return NULL;
}

/* A member whose last reference is going is none any more. */
static struct sg_sandbox *ref_unless_going(struct sg_sandbox *sb)
{
    int n = atomic_load(&sb->refs);

    while (n > 0)
        if (atomic_compare_exchange_weak(&sb->refs, &n, n + 1))
            return sb;
    return NULL;
}

struct sg_sandbox *sg_fleet_find(struct sg_fleet *f, const char *id, const char *lease)
{
    pthread_mutex_lock(&f->lock);
    struct sg_fleet_member *m = find_locked(f, id, lease);
    struct sg_sandbox *sb = m ? ref_unless_going(m->sb) : NULL;
    pthread_mutex_unlock(&f->lock);
    return sb;
}

/* ---- removal ---- */

struct removal {
    struct sg_fleet *f;
    char id[64];
    unsigned attempt;
    struct sg_done done;
};

static void count_removal(struct sg_fleet *f, bool begins)
{
    pthread_mutex_lock(&f->lock);
    f->removals += begins ? 1U : -1U;
    pthread_mutex_unlock(&f->lock);
}

static void removal_over(struct removal *r, const struct sg_error *err)
{
    count_removal(r->f, false);
    if (r->done.fn)
        r->done.fn(r->done.arg, err);
    free(r);
}

static void removal_try(void *arg, bool over);

static void removal_tried(void *arg, const struct sg_error *err)
{
    struct removal *r = arg;

    if (err)
        sg_alarm(r->f->c.alarms, sg_backoff_ms(r->attempt++, SG_FLEET_REMOVE_FIRST_MS, SG_FLEET_REMOVE_MAX_MS), removal_try, r);
    else
        removal_over(r, NULL);
}

static void removal_try(void *arg, bool over)
{
    struct removal *r = arg;
    const struct sg_done done = {.fn = removal_tried, .arg = r};
    struct sg_error err = {0};

    if (!over) {
        r->f->c.remove(r->f->c.arg, r->id, &done);
        return;
    }
    sg_error_set(&err, SG_SHUTTING_DOWN, "the server ends before the provider has confirmed that sandbox %s is gone", r->id);
    removal_over(r, &err);
    sg_error_clear(&err);
}

void sg_fleet_remove(struct sg_fleet *f, const char *id, const struct sg_done *done)
{
    struct removal *r = sg_xcalloc(1, sizeof *r);

    r->f = f;
    snprintf(r->id, sizeof r->id, "%s", id);
    if (done)
        r->done = *done;
    count_removal(f, true);
    removal_try(r, false);
}

/* ---- sweeps ---- */

static void sweep(void *arg, bool over);

static void next_sweep(struct sg_fleet *f)
{
    sg_alarm(f->c.alarms, f->c.sweep_ms, sweep, f);
}

/* True: this sweep and the one before say so. */
static bool suspected(struct sg_fleet *f, const char *id)
{
    struct suspect *s = NULL;

    HASH_FIND_STR(f->suspects, id, s);
    if (s) {
        s->seen = true;
        return true;
    }
    s = sg_xcalloc(1, sizeof *s);
    snprintf(s->id, sizeof s->id, "%s", id);
    s->seen = true;
    HASH_ADD_STR(f->suspects, id, s);
    return false;
}

static void forget_suspects(struct sg_fleet *f, bool all)
{
    struct suspect *s, *next;

    HASH_ITER(hh, f->suspects, s, next)
    {
        bool keep = s->seen && !all;
        s->seen = false;
        if (!keep) {
            HASH_DEL(f->suspects, s);
            free(s);
        }
    }
}

/* A sandbox of a lease that has another one is an orphan too: two were made. */
static bool is_orphan(struct sg_fleet *f, const struct sg_fleet_item *item)
{
    if (item->age_ms < f->c.grace_ms || !f->c.live)
        return false;
    bool live = item->lease[0] && f->c.live(f->c.live_arg, item->lease);
    pthread_mutex_lock(&f->lock);
    bool has = find_locked(f, item->id, "") != NULL;
    bool other = live && !has && find_locked(f, "", item->lease) != NULL;
    bool orphan = !has && (!live || other) && suspected(f, item->id);
    f->orphans += orphan;
    pthread_mutex_unlock(&f->lock);
    return orphan;
}

static bool listed(const struct sg_fleet_item *items, size_t n, const char *id)
{
    for (size_t i = 0; i < n; i++)
        if (sg_streq(items[i].id, id))
            return true;
    return false;
}

/* Up to 64 members that were there before the sweep began and that it did not see, nor the one before; a reference each. */
static size_t find_missing(struct sg_fleet *f, const struct sg_fleet_item *items, size_t n, struct sg_sandbox *ret[64])
{
    struct sg_fleet_member *m, *next;
    size_t n_missing = 0;

    pthread_mutex_lock(&f->lock);
    HASH_ITER(hh, f->members, m, next)
    {
        bool gone = m->since_ms < f->swept_from_ms && !listed(items, n, m->sb->id);
        m->missed = gone ? m->missed + 1 : 0;
        if (m->missed >= 1 && n_missing < 64 && (ret[n_missing] = ref_unless_going(m->sb)))
            n_missing++;
    }
    pthread_mutex_unlock(&f->lock);
    return n_missing;
}

static void swept(void *arg, const struct sg_fleet_item *items, size_t n, const struct sg_error *err)
{
    struct sg_fleet *f = arg;
    struct sg_sandbox *missing[64];

    pthread_mutex_lock(&f->lock);
    f->sweeps++;
    f->sweeps_failed += err != NULL;
    pthread_mutex_unlock(&f->lock);
    if (err) {
        next_sweep(f);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (!is_orphan(f, &items[i]))
            continue;
        if (f->c.orphan)
            f->c.orphan(f->c.orphan_arg, &items[i]);
        sg_fleet_remove(f, items[i].id, NULL);
    }
    pthread_mutex_lock(&f->lock);
    forget_suspects(f, false);
    pthread_mutex_unlock(&f->lock);
    size_t n_missing = find_missing(f, items, n, missing);
    for (size_t i = 0; i < n_missing; i++) {
        f->c.missing(f->c.arg, missing[i]);
        sg_sandbox_unref(missing[i]);
    }
    next_sweep(f);
}

static void sweep(void *arg, bool over)
{
    struct sg_fleet *f = arg;
    const struct sg_fleet_listed done = {.fn = swept, .arg = f};

    if (over)
        return;
    pthread_mutex_lock(&f->lock);
    f->swept_from_ms = sg_now_ms();
    pthread_mutex_unlock(&f->lock);
    f->c.list(f->c.arg, NULL, &done);
}

void sg_fleet_report(struct sg_fleet *f, struct sg_provider_report *r)
{
    pthread_mutex_lock(&f->lock);
    r->sandboxes += HASH_COUNT(f->members);
    r->removals_pending += f->removals;
    r->sweeps += f->sweeps;
    r->sweeps_failed += f->sweeps_failed;
    r->orphans += f->orphans;
    pthread_mutex_unlock(&f->lock);
}

struct sg_fleet *sg_fleet_new(const struct sg_fleet_config *c)
{
    struct sg_fleet *f = sg_xcalloc(1, sizeof *f);

    f->c = *c;
    pthread_mutex_init(&f->lock, NULL);
    sg_alarm(c->alarms, 0, sweep, f);
    return f;
}

struct sg_fleet *sg_fleet_free(struct sg_fleet *f)
{
    if (!f)
        return NULL;
    forget_suspects(f, true);
    pthread_mutex_destroy(&f->lock);
    free(f);
    return NULL;
}
