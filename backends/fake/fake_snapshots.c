/* Snapshots of the fake: copies of the files of a sandbox, in memory. */
#include <stdio.h>

#include "backends/fake/fake_priv.h"

static struct fake_snapshot *find(struct fake *f, const char *id, const char *ref)
{
    struct fake_snapshot *s = NULL;
    LL_FOREACH(f->snapshots, s)
    {
        if (sg_streq(s->id, id) || (ref[0] != '\0' && sg_streq(s->ref, ref))) {
            break;
        }
    }
    return s;
}

static void drop(struct fake *f, struct fake_snapshot *s)
{
    LL_DELETE(f->snapshots, s);
    fake_files_free(&s->files);
    free(s);
}

void fake_snapshots_finish(struct fake *f)
{
    while (f->snapshots != NULL) {
        drop(f, f->snapshots);
    }
}

int fake_snapshot_restore(struct fake_sandbox *sb, const char *ref, struct sg_error *err)
{
    const struct fake_snapshot *s = find(sb->f, "", ref);
    if (s == NULL) {
        return sg_error_field(err, SG_SNAPSHOT_NOT_FOUND, "manifest.snapshot", "the fake has no snapshot %s any more", ref);
    }
    fake_files_finish(sb);
    fake_files_copy(&sb->files, s->files);
    return 0;
}

/* ---- take ---- */

struct fake_take {
    struct fake_op op;
    char id[SG_ID_MAX];
    struct sg_snapshot_done done;
};

static void take_finish(struct fake_op *op, const struct sg_error *err)
{
    struct fake_take *t = (struct fake_take *)op;
    struct sg_snapshot_done done = t->done;
    struct sg_error own = {0};
    char ref[SG_ID_MAX + 8] = "";
    if (err == NULL && fake_sandbox_usable(op->sb, &own) < 0) {
        err = &own;
    }
    if (err == NULL) {
        struct fake_snapshot *s = sg_xcalloc(1, sizeof *s);
        (void)snprintf(s->id, sizeof s->id, "%s", t->id);
        (void)snprintf(s->ref, sizeof s->ref, "fake:%s", t->id);
        memcpy(ref, s->ref, sizeof ref);
        fake_files_copy(&s->files, op->sb->files);
        LL_PREPEND(op->f->snapshots, s);
    }
    fake_op_end(op);
    free(t);
    done.fn(done.arg, err == NULL ? ref : NULL, err);
    sg_error_clear(&own);
}

static int take(struct sg_sandbox *base, const struct sg_snapshot_args *a, const struct sg_snapshot_done *done, struct sg_error *err)
{
    struct fake_sandbox *sb = (struct fake_sandbox *)base;
    struct fake_take *t = sg_xcalloc(1, sizeof *t);
    (void)err;
    (void)snprintf(t->id, sizeof t->id, "%s", a->id);
    t->done = *done;
    t->op.finish = take_finish;
    fake_op_start(&t->op, sb->f, sb, FAKE_SNAPSHOT);
    return 0;
}

/* ---- drop ---- */

struct fake_drop {
    struct fake_op op;
    char id[SG_ID_MAX], ref[SG_SNAPSHOT_REF_MAX];
    struct sg_done done;
};

static void drop_finish(struct fake_op *op, const struct sg_error *err)
{
    struct fake_drop *x = (struct fake_drop *)op;
    struct fake_snapshot *s = find(op->f, x->id, x->ref);
    struct sg_done done = x->done;
    if (err == NULL && s != NULL) {
        drop(op->f, s);
    }
    fake_op_end(op);
    free(x);
    done.fn(done.arg, err);
}

static int start_drop(struct sg_driver *d, const char *id, const char *ref, const struct sg_done *done, struct sg_error *err)
{
    struct fake_drop *x = sg_xcalloc(1, sizeof *x);
    (void)err;
    (void)snprintf(x->id, sizeof x->id, "%s", id);
    (void)snprintf(x->ref, sizeof x->ref, "%s", ref);
    x->done = *done;
    x->op.finish = drop_finish;
    fake_op_start(&x->op, (struct fake *)d, NULL, FAKE_DROP);
    return 0;
}

/* ---- list ---- */

struct fake_listing {
    struct fake_op op;
    struct sg_snapshot_listed done;
};

static void list_finish(struct fake_op *op, const struct sg_error *err)
{
    struct fake_listing *l = (struct fake_listing *)op;
    struct sg_snapshot_listed done = l->done;
    const struct fake_snapshot *s = NULL;
    size_t n = 0;
    LL_COUNT(op->f->snapshots, s, n);
    sg_cleanup(sg_free_p) struct sg_snapshot_item *items = sg_xcalloc(n + 1, sizeof *items);
    n = 0;
    LL_FOREACH(op->f->snapshots, s)
    {
        memcpy(items[n++].id, s->id, sizeof s->id);
    }
    fake_op_end(op);
    free(l);
    done.fn(done.arg, err == NULL ? items : NULL, err == NULL ? n : 0, err);
}

static int list(struct sg_driver *d, const struct sg_snapshot_listed *done, struct sg_error *err)
{
    struct fake_listing *l = sg_xcalloc(1, sizeof *l);
    (void)err;
    l->done = *done;
    l->op.finish = list_finish;
    fake_op_start(&l->op, (struct fake *)d, NULL, FAKE_LISTS);
    return 0;
}

const struct sg_snapshot_ops fake_snapshot_ops = {.take = take, .drop = start_drop, .list = list};
