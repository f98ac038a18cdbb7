#include "service/archives_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
#include <uthash.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/json.h"
#include "service/keep.h"
#include "service/tar.h"

#define ROWS_MAX 50000U /* of both kinds together; the oldest go */
#define SNAPSHOTS_AT_ONCE 16U
#define SNAPSHOT_DIRS (1U << 0 | 1U << 1 | 1U << 3) /* home, work, tmp */

static void file_name(const char *id, char out[SG_ID_MAX + 8])
{
    snprintf(out, SG_ID_MAX + 8, "%s.tar", id);
}

char *sg_archives_path(const struct sg_archives *a, const char *id)
{
    char name[SG_ID_MAX + 8];

    file_name(id, name);
    return sg_xasprintf("%s/%s", a->dir, name);
}

/* ---- what is old or too much goes ---- */

/* done: MAY be NULL; once there is no row any more. -1: nothing happened. */
static int remove_kept(struct sg_archives *a, const char *id, const struct sg_store_done *done, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *path = sg_archives_path(a, id);
    struct sg_store_op *op = sg_store_op_new();

    sg_store_op_not_kept(op, id);
    if (sg_store_submit(a->s->parts.store, op, SG_STORE_LAZY, done, err) < 0)
        return -1;
    (void)unlink(path);
    return 0;
}

static const struct sg_archive_plan *plan_of(const struct sg_archives *a, const char *pool)
{
    for (size_t i = 0; i < a->cfg.n_plans; i++)
        if (sg_streq(a->plans[i].pool, pool))
            return &a->plans[i];
    return NULL;
}

/* What newer archives of a slot come to. */
struct tally {
    char slot[80];
    int64_t n;
    UT_hash_handle hh;
};

struct prune_state {
    int64_t *bytes; /* by plan */
    struct tally *slots;
};

/* Rows come newest first: is this archive beyond what its pool keeps? */
static bool beyond_plan(const struct sg_archives *a, struct prune_state *p, const struct sg_kept *row)
{
    const struct sg_archive_plan *plan = plan_of(a, row->pool);
    struct tally *t;

    if (!plan)
        return false; /* of a pool that is no more: until it expires */
    HASH_FIND_STR(p->slots, row->slot, t);
    if (!t) {
        t = sg_xcalloc(1, sizeof *t);
        memcpy(t->slot, row->slot, sizeof t->slot);
        HASH_ADD_STR(p->slots, slot, t);
    }
    int64_t *bytes = &p->bytes[plan - a->plans];
    *bytes += row->bytes;
    return ++t->n > plan->max_per_slot || *bytes > plan->max_bytes;
}

static void prune_once(struct sg_archives *a)
{
    struct prune_state p = {.bytes = sg_xcalloc(a->cfg.n_plans + 1, sizeof *p.bytes)};
    struct sg_kept *rows = NULL;
    struct tally *t, *next;
    size_t n = 0;
    int64_t now = sg_wall_us();

    if (sg_store_kept_all(a->s->parts.store, ROWS_MAX + ROWS_MAX / 10, &rows, &n, NULL) < 0)
        n = 0;
    for (size_t i = 0; i < n; i++) {
        bool old = i >= ROWS_MAX || (rows[i].expires_us > 0 && rows[i].expires_us <= now);
        if (rows[i].state != SG_KEPT_READY || rows[i].ref[0])
            sg_held_prune(a, &rows[i], old);
        else if (old || (rows[i].kind == SG_KEPT_ARCHIVE && beyond_plan(a, &p, &rows[i])))
            (void)remove_kept(a, rows[i].id, NULL, NULL); /* read-only: the next turn tries again */
    }
    HASH_ITER(hh, p.slots, t, next)
    {
        HASH_DEL(p.slots, t);
        free(t);
    }
    free(p.bytes);
    free(rows);
}

static void prune_on_worker(struct sg_work *w)
{
    struct sg_archives *a = sg_container_of(w, struct sg_archives, prune);

    if (!sg_archives_enter(a))
        return;
    do {
        a->again = false;
        prune_once(a);
    } while (a->again);
    if (atomic_exchange(&a->sweep_due, false))
        sg_held_sweep(a);
    a->pruning = false;
    sg_archives_leave(a);
}

/* One turn at a time; whoever asks during one gets another right after it, or the timer's. */
void sg_archives_prune(struct sg_archives *a)
{
    a->again = true;
    if (!atomic_exchange(&a->pruning, true) && sg_workq_submit(a->s->parts.workq, &a->prune, NULL) < 0)
        a->pruning = false;
}

static void timer_fired(struct sg_timer *t)
{
    struct sg_archives *a = sg_container_of(t, struct sg_archives, timer);

    a->sweep_due = true;
    sg_archives_prune(a);
    sg_timer_set(a->s->parts.reactor, t, sg_now_ms() + a->cfg.snapshot_sweep_ms);
}

static void arm(struct sg_task *t)
{
    struct sg_archives *a = sg_container_of(t, struct sg_archives, arm);

    sg_timer_set(a->s->parts.reactor, &a->timer, sg_now_ms() + a->cfg.snapshot_sweep_ms);
}

static void disarm(struct sg_task *t)
{
    struct sg_archives *a = sg_container_of(t, struct sg_archives, disarm);

    sg_timer_cancel(a->s->parts.reactor, &a->timer);
    sem_post(&a->disarmed);
}

bool sg_archives_enter(struct sg_archives *a)
{
    pthread_mutex_lock(&a->lock);
    bool in = !a->stopping;
    a->inside += in;
    pthread_mutex_unlock(&a->lock);
    return in;
}

void sg_archives_leave(struct sg_archives *a)
{
    pthread_mutex_lock(&a->lock);
    if (--a->inside == 0)
        pthread_cond_signal(&a->left);
    pthread_mutex_unlock(&a->lock);
}

/* ---- life ---- */

/* Is there a row about the file? */
static bool is_known(void *arg, const char *name)
{
    struct sg_archives *a = arg;
    struct sg_kept k;
    char id[SG_ID_MAX + 8];
    enum sg_kept_kind kind = strncmp(name, "snap_", 5) == 0 ? SG_KEPT_SNAPSHOT : SG_KEPT_ARCHIVE;
    struct sg_error err = {0};

    snprintf(id, sizeof id, "%.*s", (int)strcspn(name, "."), name);
    bool known = sg_store_kept(a->s->parts.store, kind, NULL, id, &k, &err) == 0 ? !k.ref[0] : err.code != SG_NOT_FOUND;
    sg_error_clear(&err);
    return known;
}

int sg_archives_new(struct sg_service *s, const struct sg_archives_config *cfg, struct sg_archives **ret, struct sg_error *err)
{
    struct sg_archives *a = sg_xcalloc(1, sizeof *a);

    a->s = s;
    a->cfg = *cfg;
    a->plans = sg_xcalloc(cfg->n_plans + 1, sizeof *a->plans);
    for (size_t i = 0; i < cfg->n_plans; i++)
        a->plans[i] = cfg->plans[i];
    a->dir = sg_xasprintf("%s/archives", cfg->state_dir);
    sem_init(&a->disarmed, 0, 0);
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->left, NULL);
    a->timer.fire = timer_fired;
    a->arm.run = arm;
    a->disarm.run = disarm;
    a->prune.run = prune_on_worker;
    if (sg_mkdirs(a->dir, 0700, err) < 0 || sg_keep_sweep(a->dir, is_known, a, err) < 0) {
        sg_archives_free(a);
        return -1;
    }
    sg_reactor_post(s->parts.reactor, &a->arm);
    a->sweep_due = true;
    sg_archives_prune(a);
    *ret = a;
    return 0;
}

void sg_archives_stop(struct sg_archives *a)
{
    if (!a)
        return;
    sg_reactor_post(a->s->parts.reactor, &a->disarm);
    while (sem_wait(&a->disarmed) < 0 && errno == EINTR)
        ;
    pthread_mutex_lock(&a->lock);
    a->stopping = true; /* the drivers are about to go */
    while (a->inside > 0)
        pthread_cond_wait(&a->left, &a->lock);
    pthread_mutex_unlock(&a->lock);
}

struct sg_archives *sg_archives_free(struct sg_archives *a)
{
    if (!a)
        return NULL;
    sem_destroy(&a->disarmed);
    pthread_cond_destroy(&a->left);
    pthread_mutex_destroy(&a->lock);
    free(a->plans);
    free(a->dir);
    free(a);
    return NULL;
}

/* ---- keeping: pack -> file -> row ---- */

static void keeping_unref(struct keeping *k)
{
    if (--k->refs > 0)
        return;
    sg_cancel_unref(k->cancel);
    sg_entry_unref(k->lease);
    sg_sandbox_unref(k->sb);
    free(k);
}

static void deadline_passed(struct sg_timer *t)
{
    sg_cancel_fire(sg_container_of(t, struct keeping, timer)->cancel, SG_CANCEL_TIMEOUT);
}

static void deadline_arm(struct sg_task *t)
{
    struct keeping *k = sg_container_of(t, struct keeping, arm);

    sg_timer_set(k->a->s->parts.reactor, &k->timer, k->due_ms);
    keeping_unref(k);
}

static void deadline_over(struct sg_task *t)
{
    struct keeping *k = sg_container_of(t, struct keeping, over);

    sg_timer_cancel(k->a->s->parts.reactor, &k->timer);
    keeping_unref(k);
}

/* The end, whatever came of it. */
void sg_keeping_ended(struct keeping *k, const struct sg_error *err)
{
    struct sg_reactor *reactor = k->a->s->parts.reactor;
    bool timed = k->due_ms > 0;

    k->done(k, err);
    if (timed)
        sg_reactor_post(reactor, &k->over); /* its reference goes with it */
    else
        keeping_unref(k);
}

static void written_down(void *arg, const struct sg_error *err)
{
    struct keeping *k = arg;

    if (err) /* the file has no row: nobody can find it */
        (void)remove_kept(k->a, k->kept.id, NULL, NULL);
    else
        sg_archives_prune(k->a);
    sg_keeping_ended(k, err);
}

static void file_kept(void *arg, const struct sg_keep_result *r, const struct sg_error *err)
{
    struct keeping *k = arg;
    struct sg_store_done done = {.fn = written_down, .arg = k};
    struct sg_error why = {0};

    if (err) {
        sg_keeping_ended(k, err);
        return;
    }
    memcpy(k->kept.sha256, r->sha256, sizeof k->kept.sha256);
    k->kept.bytes = (int64_t)r->bytes;
    if (k->held) {
        sg_held_begin(k);
        return;
    }
    struct sg_store_op *op = sg_store_op_new();
    sg_store_op_kept(op, &k->kept);
    if (sg_store_submit(k->a->s->parts.store, op, SG_STORE_DURABLE, &done, &why) == 0)
        return;
    written_down(k, &why);
    sg_error_clear(&why);
}

static void packed(void *arg, struct sg_pipe *pipe, const struct sg_error *err)
{
    struct keeping *k = arg;
    char name[SG_ID_MAX + 8];

    if (err) {
        sg_keeping_ended(k, err);
        return;
    }
    file_name(k->kept.id, name);
    sg_keep(&(struct sg_keep_args){.dir = k->a->dir, .name = name, .max_bytes = k->max_bytes}, pipe, k->a->s->parts.workq,
            &(struct sg_keep_done){file_kept, k});
}

/* k: its first reference ends with sg_keeping_ended(). */
static void begin(struct keeping *k, struct sg_sandbox *sb, bool anonymous)
{
    struct sg_tar_root roots[SG_KEPT_DIRS];
    struct sg_tar_pack_args pack = {.sb = sb, .cancel = k->cancel, .roots = roots, .anonymous = anonymous};
    struct sg_error err = {0};

    for (size_t i = 0; i < SG_KEPT_DIRS; i++)
        if (k->kept.dirs >> i & 1U)
            roots[pack.n_roots++] = (struct sg_tar_root){sg_kept_dir_paths[i], sg_kept_dir_names[i]};
    k->timer.fire = deadline_passed;
    k->arm.run = deadline_arm;
    k->over.run = deadline_over;
    if (k->due_ms > 0) {
        k->refs++;
        sg_reactor_post(k->a->s->parts.reactor, &k->arm);
    }
    if (sg_tar_pack(&pack, k->a->s->parts.workq, &(struct sg_tar_source_done){packed, k}, &err) < 0)
        sg_keeping_ended(k, &err);
    sg_error_clear(&err);
}

static struct keeping *keeping_new(struct sg_archives *a, enum sg_kept_kind kind, const struct sg_lease *l, int64_t ttl_ms)
{
    struct keeping *k = sg_xcalloc(1, sizeof *k);
    const char *slot = json_string_value(json_object_get(l->metadata, "slot"));
    const char *pool = json_string_value(json_object_get(l->metadata, "local_pool"));

    k->a = a;
    k->refs = 1;
    k->fd = -1;
    k->cancel = sg_cancel_new();
    k->kept.kind = kind;
    sg_id_new(kind == SG_KEPT_ARCHIVE ? "archive" : "snap", k->kept.id);
    snprintf(k->kept.tenant, sizeof k->kept.tenant, "%s", l->terms->tenant);
    snprintf(k->kept.lease_id, sizeof k->kept.lease_id, "%s", l->id);
    snprintf(k->kept.trajectory_id, sizeof k->kept.trajectory_id, "%s", l->terms->trajectory_id ? l->terms->trajectory_id : "");
    snprintf(k->kept.provider, sizeof k->kept.provider, "%s", l->provider);
    snprintf(k->kept.sandbox_id, sizeof k->kept.sandbox_id, "%s", l->sandbox_id);
    snprintf(k->kept.slot, sizeof k->kept.slot, "%s", slot ? slot : "");
    snprintf(k->kept.pool, sizeof k->kept.pool, "%s", pool ? pool : "");
    snprintf(k->kept.reason, sizeof k->kept.reason, "%s", l->reason);
    k->kept.generation = json_integer_value(json_object_get(l->metadata, "generation"));
    k->kept.created_us = sg_wall_us();
    k->kept.expires_us = k->kept.created_us + ttl_ms * 1000;
    return k;
}

/* ---- archives ---- */

static void log_archive(struct sg_service *s, const struct sg_kept *k, const struct sg_error *err)
{
    struct sg_log_line line;

    sg_log_begin(&line, s->parts.log, err ? SG_LOG_WARN : SG_LOG_INFO, err ? "archive_failed" : "archived");
    sg_log_str(&line, "lease_id", k->lease_id);
    sg_log_str(&line, "tenant", k->tenant);
    sg_log_str(&line, "archive_id", k->id);
    sg_log_str(&line, "slot", k->slot);
    sg_log_int(&line, "bytes", k->bytes);
    if (err)
        sg_log_error(&line, err);
    sg_log_end(&line);
}

static void archive_done(struct keeping *k, const struct sg_error *err)
{
    log_archive(k->a->s, &k->kept, err);
    k->at_end(k->arg);
}

void sg_archives_at_end(struct sg_archives *a, struct sg_entry *e, struct sg_sandbox *sb, int64_t deadline_ms, void (*done)(void *arg),
                        void *arg)
{
    struct sg_lease l;

    sg_entry_lease(e, &l);
    const char *pool = json_string_value(json_object_get(l.metadata, "local_pool"));
    const struct sg_archive_plan *plan = a && pool ? plan_of(a, pool) : NULL;
    if (!plan || plan->dirs == 0) {
        sg_lease_finish(&l);
        done(arg);
        return;
    }
    struct keeping *k = keeping_new(a, SG_KEPT_ARCHIVE, &l, plan->ttl_ms);
    sg_lease_finish(&l);
    k->kept.dirs = plan->dirs;
    k->max_bytes = (uint64_t)plan->max_bytes;
    k->due_ms = sg_now_ms() + deadline_ms;
    k->done = archive_done;
    k->at_end = done;
    k->arg = arg;
    begin(k, sb, false);
}

/* ---- snapshots ---- */

static void snapshot_done(struct keeping *k, const struct sg_error *err)
{
    pthread_mutex_lock(&k->a->lock);
    DL_DELETE(k->a->snapshots, k);
    pthread_mutex_unlock(&k->a->lock);
    if (k->held && k->held->tar) { /* the provider has it, or nobody */
        sg_cleanup(sg_free_p) char *path = sg_archives_path(k->a, k->kept.id);
        k->fd = sg_close(k->fd);
        (void)unlink(path);
    }
    sg_entry_use_end(k->lease, !err);
    k->snapshot.fn(k->snapshot.arg, err ? NULL : &k->kept, err);
}

static int over_quota(const char *tenant, size_t use, int64_t max, struct sg_error *err)
{
    sg_error_set(err, SG_QUOTA_EXCEEDED, "%s has %zu snapshots, which is the limit: delete one first", tenant, use);
    sg_error_member(err, "limit", json_integer((json_int_t)max));
    sg_error_member(err, "use", json_integer((json_int_t)use));
    sg_error_member(err, "owner", json_string(tenant));
    return sg_error_retry_after(err, 60);
}

static int no_room(int64_t use, int64_t max, struct sg_error *err)
{
    sg_error_set(err, SG_QUOTA_EXCEEDED, "the snapshots of all tenants have %lld bytes, of the %lld this server keeps: delete some first",
                 (long long)use, (long long)max);
    sg_error_member(err, "limit", json_integer((json_int_t)max));
    sg_error_member(err, "use", json_integer((json_int_t)use));
    sg_error_member(err, "owner", json_string("server"));
    return sg_error_retry_after(err, 60);
}

/* What a provider makes of a sandbox by itself has no bytes that we know of. */
static bool needs_room(const struct keeping *k)
{
    return !k->held || k->held->tar;
}

/* Counted before it is begun, so that nobody races past a limit: those that are kept, and those under way. */
static int admit(struct sg_archives *a, struct keeping *k, struct sg_error *err)
{
    size_t kept = 0, mine = 0, all = 0;
    int64_t bytes = 0, stored = 0;
    struct keeping *other;
    int rc = 0;

    pthread_mutex_lock(&a->lock);
    DL_FOREACH(a->snapshots, other)
    {
        all++;
        mine += sg_streq(other->kept.tenant, k->kept.tenant);
        bytes += (int64_t)other->max_bytes; /* what it may become */
    }
    if (all >= SNAPSHOTS_AT_ONCE) {
        sg_error_set(err, SG_OVERLOADED, "%zu snapshots are being made already", all);
        rc = sg_error_retry_after(err, 1);
    } else if (sg_store_kept_count(a->s->parts.store, SG_KEPT_SNAPSHOT, k->kept.tenant, &kept, &stored, err) < 0) {
        rc = -1;
    } else if (needs_room(k) && bytes + stored >= a->cfg.snapshot_total_bytes) {
        rc = no_room(bytes + stored, a->cfg.snapshot_total_bytes, err);
    } else if (kept + mine >= (size_t)a->cfg.snapshot_max_per_tenant) {
        rc = over_quota(k->kept.tenant, kept + mine, a->cfg.snapshot_max_per_tenant, err);
    } else {
        int64_t left = a->cfg.snapshot_total_bytes - bytes - stored;
        if (needs_room(k))
            k->max_bytes = (uint64_t)(left < a->cfg.snapshot_max_bytes ? left : a->cfg.snapshot_max_bytes);
        DL_APPEND(a->snapshots, k);
    }
    pthread_mutex_unlock(&a->lock);
    return rc;
}

static struct keeping *snapshot_new(struct sg_archives *a, struct sg_entry *e, struct sg_sandbox *sb, const struct sg_kept_done *done,
                                    struct sg_error *err)
{
    struct sg_lease l;
    struct keeping *k = NULL;

    sg_entry_lease(e, &l);
    if (l.caps & SG_CAP_SNAPSHOT) {
        k = keeping_new(a, SG_KEPT_SNAPSHOT, &l, a->cfg.snapshot_ttl_ms);
        sg_cancel_unref(k->cancel);
        k->cancel = sg_cancel_ref(sg_entry_cancel(e));
        k->held = sg_sandbox_snapshots(sb);
        k->sb = sg_sandbox_ref(sb);
        k->kept.dirs = needs_room(k) ? SNAPSHOT_DIRS : 0;
        k->lease = sg_entry_ref(e);
        k->done = snapshot_done;
        k->snapshot = *done;
    } else {
        sg_error_set(err, SG_NOT_SUPPORTED, "backend %s has no snapshots", l.provider);
    }
    sg_lease_finish(&l);
    return k;
}

int sg_service_snapshot(struct sg_service *s, struct sg_entry *e, const struct sg_kept_done *done, struct sg_error *err)
{
    struct sg_sandbox *sb = NULL;

    if (!s->archives)
        return sg_error_set(err, SG_NOT_SUPPORTED, "this server keeps no snapshots");
    if (sg_entry_use_begin(e, &sb, err) < 0)
        return -1;
    struct keeping *k = snapshot_new(s->archives, e, sb, done, err);
    if (k && admit(s->archives, k, err) == 0) {
        if (needs_room(k))
            begin(k, sb, true);
        else
            sg_held_begin(k);
        sg_sandbox_unref(sb);
        return 0;
    }
    if (k)
        keeping_unref(k);
    sg_sandbox_unref(sb);
    sg_entry_use_end(e, false);
    return -1;
}

/* ---- reading ---- */

/* The shape of an id, or of a digest. */
static bool names_kept(enum sg_kept_kind kind, const char *id)
{
    if (strncmp(id, "sha256:", 7) == 0)
        return strlen(id) == 7 + SG_SHA256_HEX - 1 && strspn(id + 7, "0123456789abcdef") == SG_SHA256_HEX - 1;
    return sg_id_valid(kind == SG_KEPT_ARCHIVE ? "archive" : "snap", id);
}

int sg_service_kept_find(struct sg_service *s, const struct sg_principal *who, enum sg_kept_kind kind, const char *id,
                         struct sg_kept *ret, struct sg_error *err)
{
    if (!s->archives || !names_kept(kind, id))
        return sg_error_set(err, SG_NOT_FOUND, "there is no such %s", kind == SG_KEPT_ARCHIVE ? "archive" : "snapshot");
    return sg_store_kept(s->parts.store, kind, sg_service_tenant(who), id, ret, err);
}

int sg_service_kept_open(struct sg_service *s, const struct sg_principal *who, enum sg_kept_kind kind, const char *id,
                         struct sg_kept *ret, int *ret_fd, struct sg_error *err)
{
    *ret_fd = -1;
    if (sg_service_kept_find(s, who, kind, id, ret, err) < 0)
        return -1;
    if (ret->ref[0])
        return 0;
    sg_cleanup(sg_free_p) char *path = sg_archives_path(s->archives, ret->id);
    *ret_fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (*ret_fd < 0 && errno == ENOENT)
        return sg_error_set(err, SG_NOT_FOUND, "the file of %s is gone", id);
    return *ret_fd < 0 ? sg_error_sys(err, SG_STORE_UNAVAILABLE, errno, "cannot open %s", id) : 0;
}

/* Whoever hears that it is gone does not find it in a list afterwards. */
static void forgotten(void *arg, const struct sg_error *err)
{
    struct sg_kept_gone *done = arg;

    done->fn(done->arg, !err, err);
    free(done);
}

static int forget(struct sg_archives *a, const char *id, const struct sg_kept_gone *done, struct sg_error *err)
{
    struct sg_kept_gone *told = sg_xcalloc(1, sizeof *told);

    *told = *done;
    if (remove_kept(a, id, &(struct sg_store_done){.fn = forgotten, .arg = told}, err) == 0)
        return 0;
    free(told);
    return -1;
}

int sg_service_kept_drop(struct sg_service *s, const struct sg_principal *who, enum sg_kept_kind kind, const char *id,
                         const struct sg_kept_gone *done, struct sg_error *err)
{
    struct sg_kept k;
    int fd = -1;

    if (sg_service_kept_open(s, who, kind, id, &k, &fd, err) < 0)
        return -1;
    sg_close(fd);
    if (sg_store_check(s->parts.store, err) < 0)
        return -1;
    if (!k.ref[0])
        return forget(s->archives, k.id, done, err);
    sg_held_drop(s->archives, &k, done);
    return 0;
}
