/* Snapshots that a provider holds. A row says so before the provider is asked, and stays until the provider has confirmed that there is
 * nothing left: a crash anywhere between leaves a row by which the next turn finds what there may be, and removes it. */
#include "service/archives_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/json.h"
#include "service/keep.h"

#define DROPS_AT_ONCE 16U

static struct sg_driver *driver_of(struct sg_archives *a, const char *provider, struct sg_error *err)
{
    return sg_backends_get(a->s->parts.backends, provider, err);
}

static int write_row(struct sg_archives *a, const struct sg_kept *k, void (*fn)(void *, const struct sg_error *), void *arg,
                     struct sg_error *err)
{
    struct sg_store_op *op = sg_store_op_new();

    sg_store_op_kept(op, k);
    return sg_store_submit(a->s->parts.store, op, SG_STORE_DURABLE, &(struct sg_store_done){.fn = fn, .arg = arg}, err);
}

static void log_held(struct sg_archives *a, const struct sg_kept *k, const char *event, const struct sg_error *err)
{
    struct sg_log_line line;

    sg_log_begin(&line, a->s->parts.log, SG_LOG_WARN, event);
    sg_log_str(&line, "snapshot_id", k->id);
    sg_log_str(&line, "provider", k->provider);
    if (k->tenant[0])
        sg_log_str(&line, "tenant", k->tenant);
    if (err)
        sg_log_error(&line, err);
    sg_log_end(&line);
}

/* ---- removal ---- */

struct dropping {
    struct sg_archives *a;
    struct sg_kept k;
    bool again; /* it was asked for before */
    struct sg_kept_gone done;
    struct dropping *prev, *next;
};

/* False: it is being removed already, or enough others are. */
static bool drop_admit(struct dropping *x, bool wanted)
{
    struct sg_archives *a = x->a;
    struct dropping *other;
    bool in = true;

    pthread_mutex_lock(&a->lock);
    DL_FOREACH(a->drops, other)
    {
        in = in && !sg_streq(other->k.id, x->k.id);
    }
    if (in && !wanted && a->n_drops >= DROPS_AT_ONCE) {
        a->more_drops = true;
        in = false;
    }
    if (in) {
        DL_APPEND(a->drops, x);
        a->n_drops++;
    }
    pthread_mutex_unlock(&a->lock);
    return in;
}

static void drop_over(struct dropping *x, bool gone, const struct sg_error *err)
{
    struct sg_archives *a = x->a;

    pthread_mutex_lock(&a->lock);
    DL_DELETE(a->drops, x);
    a->n_drops--;
    bool more = gone && a->more_drops;
    a->more_drops = a->more_drops && !more;
    pthread_mutex_unlock(&a->lock);
    if (x->done.fn)
        x->done.fn(x->done.arg, gone, err);
    free(x);
    if (more)
        sg_archives_prune(a);
}

static void dropped(void *arg, const struct sg_error *err)
{
    struct dropping *x = arg;
    struct sg_store_op *op;

    if (err) {
        if (err->code != SG_SHUTTING_DOWN && !(err->code == SG_CONFLICT && x->again)) /* one line of what is still needed */
            log_held(x->a, &x->k, "snapshot_not_removed", err);
        drop_over(x, false, NULL); /* the row stays: the next turn asks again */
        return;
    }
    op = sg_store_op_new();
    sg_store_op_not_kept(op, x->k.id);
    (void)sg_store_submit(x->a->s->parts.store, op, SG_STORE_LAZY, NULL, NULL); /* if not, the next turn finds that it is gone */
    drop_over(x, true, NULL);
}

static void drop_ask(struct dropping *x)
{
    struct sg_error err = {0};
    struct sg_driver *d = driver_of(x->a, x->k.provider, &err);

    if (!d || sg_driver_snapshot_drop(d, x->k.id, x->k.ref, &(struct sg_done){dropped, x}, &err) < 0)
        dropped(x, &err);
    sg_error_clear(&err);
}

static void drop_marked(void *arg, const struct sg_error *err)
{
    struct dropping *x = arg;

    if (err) {
        drop_over(x, false, err);
    } else if (!sg_archives_enter(x->a)) {
        drop_over(x, false, NULL);
    } else {
        struct sg_archives *a = x->a;
        drop_ask(x);
        sg_archives_leave(a);
    }
}

static void drop_begin(struct sg_archives *a, const struct sg_kept *k, const struct sg_kept_gone *done)
{
    struct dropping *x = sg_xcalloc(1, sizeof *x);
    struct sg_error err = {0};

    x->a = a;
    x->k = *k;
    if (done)
        x->done = *done;
    if (!drop_admit(x, done != NULL)) {
        free(x);
        if (done)
            done->fn(done->arg, false, NULL);
        return;
    }
    x->k.state = SG_KEPT_DROPPING;
    x->again = k->state == SG_KEPT_DROPPING;
    if (k->state == SG_KEPT_DROPPING)
        drop_marked(x, NULL);
    else if (write_row(a, &x->k, drop_marked, x, &err) < 0)
        drop_over(x, false, &err);
    sg_error_clear(&err);
}

void sg_held_drop(struct sg_archives *a, const struct sg_kept *k, const struct sg_kept_gone *done)
{
    drop_begin(a, k, done);
}

static bool is_made(struct sg_archives *a, const char *id)
{
    struct keeping *k;
    bool made = false;

    pthread_mutex_lock(&a->lock);
    DL_FOREACH(a->snapshots, k)
    {
        made = made || sg_streq(k->kept.id, id);
    }
    pthread_mutex_unlock(&a->lock);
    return made;
}

/* The row may be older than the end of its making: what it says now counts, which is final once it is no longer made. */
void sg_held_prune(struct sg_archives *a, const struct sg_kept *row, bool old)
{
    struct sg_kept now;

    if ((!old && row->state == SG_KEPT_READY) || is_made(a, row->id) || sg_store_kept_row(a->s->parts.store, row->id, &now, NULL) < 0)
        return;
    if (old || now.state != SG_KEPT_READY)
        drop_begin(a, &now, NULL);
}

/* ---- making ---- */

/* Nobody gets it, so nothing may be left of it. What the end of the server leaves is the next one's to remove: the row is there. */
static void give_back(struct keeping *k, const struct sg_error *err)
{
    struct sg_archives *a = k->a;
    struct sg_kept row = k->kept;
    bool over = err->code == SG_SHUTTING_DOWN;

    row.state = SG_KEPT_MAKING;
    sg_keeping_ended(k, err);
    if (!over)
        drop_begin(a, &row, NULL);
}

static void completed(void *arg, const struct sg_error *err)
{
    struct keeping *k = arg;

    if (err)
        give_back(k, err);
    else
        sg_keeping_ended(k, NULL);
}

static void taken(void *arg, const char *ref, const struct sg_error *err)
{
    struct keeping *k = arg;
    struct sg_error own = {0};

    if (err) {
        give_back(k, err);
        return;
    }
    snprintf(k->kept.ref, sizeof k->kept.ref, "%s", ref);
    k->kept.state = SG_KEPT_READY;
    if (write_row(k->a, &k->kept, completed, k, &own) < 0)
        give_back(k, &own);
    sg_error_clear(&own);
}

static int open_tar(struct keeping *k, struct sg_error *err)
{
    if (!k->held->tar)
        return 0;
    sg_cleanup(sg_free_p) char *path = sg_archives_path(k->a, k->kept.id);
    k->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    return k->fd < 0 ? sg_error_sys(err, SG_STORE_UNAVAILABLE, errno, "cannot open what is to be in the snapshot") : 0;
}

static void intent_written(void *arg, const struct sg_error *err)
{
    struct keeping *k = arg;
    struct sg_error own = {0};

    if (err) {
        sg_keeping_ended(k, err);
        return;
    }
    const struct sg_snapshot_args args = {
        .id = k->kept.id, .tenant = k->kept.tenant, .fd = k->fd, .bytes = (uint64_t)k->kept.bytes, .sha256 = k->kept.sha256};
    if (sg_sandbox_snapshot(k->sb, &args, &(struct sg_snapshot_done){taken, k}, &own) < 0)
        give_back(k, &own);
    sg_error_clear(&own);
}

void sg_held_begin(struct keeping *k)
{
    struct sg_error err = {0};

    k->kept.state = SG_KEPT_MAKING;
    if (open_tar(k, &err) < 0 || write_row(k->a, &k->kept, intent_written, k, &err) < 0)
        sg_keeping_ended(k, &err);
    sg_error_clear(&err);
}

/* ---- sweeps ---- */

struct sweep {
    struct sg_archives *a;
    char provider[64];
    struct sg_work work;
    struct sg_snapshot_item *items;
    size_t n;
};

static void sweep_free(struct sweep *w)
{
    atomic_fetch_sub(&w->a->sweeping, 1);
    free(w->items);
    free(w);
}

/* A row is there before its snapshot is, so that one without a row is nobody's, however young. */
static void sweep_item(struct sweep *w, const struct sg_snapshot_item *item)
{
    struct sg_kept k;
    struct sg_error err = {0};

    if (sg_id_valid("snap", item->id) && sg_store_kept_row(w->a->s->parts.store, item->id, &k, &err) < 0 && err.code == SG_NOT_FOUND) {
        k = (struct sg_kept){.kind = SG_KEPT_SNAPSHOT, .state = SG_KEPT_DROPPING};
        snprintf(k.id, sizeof k.id, "%s", item->id);
        snprintf(k.provider, sizeof k.provider, "%s", w->provider);
        log_held(w->a, &k, "orphan_snapshot", NULL);
        drop_begin(w->a, &k, NULL);
    }
    sg_error_clear(&err);
}

static void sweep_on_worker(struct sg_work *work)
{
    struct sweep *w = sg_container_of(work, struct sweep, work);
    struct sg_archives *a = w->a;

    if (sg_archives_enter(a)) {
        for (size_t i = 0; i < w->n; i++)
            sweep_item(w, &w->items[i]);
        sg_archives_leave(a);
    }
    sweep_free(w);
}

static void swept(void *arg, const struct sg_snapshot_item *items, size_t n, const struct sg_error *err)
{
    struct sweep *w = arg;

    if (!err && n > 0) {
        w->items = calloc(n, sizeof *w->items);
        w->n = w->items ? n : 0;
    }
    if (w->n > 0)
        memcpy(w->items, items, n * sizeof *items);
    w->work.run = sweep_on_worker;
    if (w->n == 0 || sg_workq_submit(w->a->s->parts.workq, &w->work, NULL) < 0)
        sweep_free(w); /* the next one sees it again */
}

void sg_held_sweep(struct sg_archives *a)
{
    struct sg_driver *d;

    if (a->sweeping > 0)
        return;
    for (size_t i = 0; (d = sg_backends_at(a->s->parts.backends, i)) != NULL; i++) {
        struct sg_error err = {0};
        struct sweep *w = sg_xcalloc(1, sizeof *w);
        w->a = a;
        snprintf(w->provider, sizeof w->provider, "%s", d->facts.name);
        atomic_fetch_add(&a->sweeping, 1);
        if (sg_driver_snapshot_list(d, &(struct sg_snapshot_listed){swept, w}, &err) < 0)
            sweep_free(w);
        sg_error_clear(&err);
    }
}

/* ---- what is in one ---- */

struct fetch {
    struct sg_archives *a;
    char name[SG_ID_MAX];
    uint64_t bytes;
    struct sg_held_fetched done;
};

static void fetch_end(struct fetch *f, int fd, const struct sg_error *err)
{
    f->done.fn(f->done.arg, fd, err);
    free(f);
}

static void fetch_kept(void *arg, const struct sg_keep_result *r SG_UNUSED, const struct sg_error *err)
{
    struct fetch *f = arg;
    struct sg_error own = {0};

    if (err && err->code == SG_LIMIT_EXCEEDED) { /* more than was given to the provider: as a digest that does not fit */
        sg_error_field(&own, SG_MANIFEST_FAILED, "manifest.snapshot", "what the provider holds of the snapshot is damaged: it is too large");
        sg_error_reason(&own, "snapshot_damaged");
        sg_error_member(&own, "stage", json_string("snapshot"));
        fetch_end(f, -1, &own);
        sg_error_clear(&own);
        return;
    }
    if (err) {
        fetch_end(f, -1, err);
        return;
    }
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("%s/%s", f->a->dir, f->name);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        sg_error_sys(&own, SG_STORE_UNAVAILABLE, errno, "cannot open what the provider holds of the snapshot");
    (void)unlink(path);
    fetch_end(f, fd, fd < 0 ? &own : NULL);
    sg_error_clear(&own);
}

static void fetch_opened(void *arg, struct sg_file_source *src, const struct sg_error *err)
{
    struct fetch *f = arg;

    if (err) {
        fetch_end(f, -1, err);
        return;
    }
    sg_keep(&(struct sg_keep_args){.dir = f->a->dir, .name = f->name, .max_bytes = f->bytes}, src->pipe, f->a->s->parts.workq,
            &(struct sg_keep_done){fetch_kept, f});
}

void sg_service_held_fetch(struct sg_service *s, struct sg_sandbox *sb, const struct sg_kept *k, const struct sg_held_fetched *done)
{
    struct fetch *f = sg_xcalloc(1, sizeof *f);
    struct sg_error err = {0};

    f->a = s->archives;
    f->bytes = (uint64_t)k->bytes;
    f->done = *done;
    sg_id_new("fetch", f->name);
    if (sg_sandbox_snapshot_read(sb, &(struct sg_file_source_done){fetch_opened, f}, &err) < 0)
        fetch_end(f, -1, &err);
    sg_error_clear(&err);
}
