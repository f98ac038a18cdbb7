/* Snapshots, which the provider makes of a whole sandbox, memory and disk, and holds. Their names there are their labels: of this server and
 * of the snapshot. A sandbox is made of one as it is of a template. */
#include "backends/e2b/e2b_priv.h"

#include <stdatomic.h>
#include <stdio.h>

#include "base/json.h"

#define LOOKS 3U /* for what an answer that did not come may have made */
#define LOOK_FIRST_MS 300
#define LOOK_MAX_MS 8000
#define PAGES_MAX 100U
#define PREFIX "sandgate-"

/* ---- what the provider has ---- */

struct found {
    struct sg_snapshot_item item;
    char ref[SG_SNAPSHOT_REF_MAX];
};

struct look {
    struct e2b *d;
    char id[SG_ID_MAX]; /* only this one; "": all of this server's */
    struct found *found;
    size_t n;
    unsigned pages;
    void (*done)(void *arg, const struct found *found, size_t n, const struct sg_error *err);
    void *arg;
};

static char *name_of(const struct e2b *d, const char *id)
{
    return sg_xasprintf(PREFIX "%s-%s", d->server, id);
}

/* "TEAM/NAME:TAG", where team and tag may be missing: is it a name that we gave? */
static bool parse_name(const struct e2b *d, const char *full, char id[SG_ID_MAX])
{
    sg_cleanup(sg_free_p) char *prefix = name_of(d, "");
    const char *slash = full ? strrchr(full, '/') : NULL;
    const char *name = slash ? slash + 1 : full;

    if (!name || strncmp(name, prefix, strlen(prefix)) != 0)
        return false;
    name += strlen(prefix);
    size_t len = strcspn(name, ":");
    if (len >= SG_ID_MAX)
        return false;
    snprintf(id, SG_ID_MAX, "%.*s", (int)len, name);
    return sg_id_valid("snap", id);
}

static bool ref_ok(const char *ref)
{
    return ref && ref[0] && strlen(ref) < SG_SNAPSHOT_REF_MAX &&
           strspn(ref, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/") == strlen(ref);
}

static void look_take(struct look *l, const json_t *v)
{
    const char *ref = json_string_value(json_object_get(v, "snapshotID"));
    const json_t *names = json_object_get(v, "names");
    char id[SG_ID_MAX];
    bool ours = parse_name(l->d, ref, id);

    for (size_t i = 0; !ours && i < json_array_size(names) && i < 16; i++)
        ours = parse_name(l->d, json_string_value(json_array_get(names, i)), id);
    if (!ours || !ref_ok(ref) || (l->id[0] && !sg_streq(l->id, id)))
        return;
    struct found *f = &l->found[l->n++];
    memcpy(f->item.id, id, sizeof f->item.id);
    snprintf(f->ref, sizeof f->ref, "%s", ref);
}

static void look_end(struct look *l, const struct sg_error *err)
{
    l->done(l->arg, err ? NULL : l->found, err ? 0 : l->n, err);
    free(l->found);
    free(l);
}

static void look_page(struct look *l, const char *token);

static void looked(void *arg, const struct sg_origin_answer *a, const struct sg_error *err)
{
    struct look *l = arg;
    struct sg_error why = {0};
    size_t n = a ? json_array_size(a->body) : 0;

    if (err) {
        look_end(l, err);
        return;
    }
    if (!json_is_array(a->body) || ++l->pages > PAGES_MAX || n > 1000) {
        sg_error_set(&why, SG_PROVIDER_FAILED, "e2b answers with a list of snapshots that is none, or does not end");
        look_end(l, &why);
        sg_error_clear(&why);
        return;
    }
    struct found *more = realloc(l->found, (l->n + n + 1) * sizeof *more);
    if (!more)
        abort(); /* bounded by the pages: some megabytes */
    l->found = more;
    for (size_t i = 0; i < n; i++)
        look_take(l, json_array_get(a->body, i));
    if (a->next && a->next[0])
        look_page(l, a->next);
    else
        look_end(l, NULL);
}

static void look_page(struct look *l, const char *token)
{
    sg_cleanup(sg_free_p) char *next = token ? sg_net_escape(token) : NULL;
    sg_cleanup(sg_free_p) char *name = l->id[0] ? name_of(l->d, l->id) : NULL;
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/snapshots?limit=100%s%s%s%s", name ? "&name=" : "", name ? name : "",
                                                    next ? "&nextToken=" : "", next ? next : "");

    sg_origin_call(l->d->api, &(struct sg_origin_call){.method = "GET", .path = path, .repeatable = true, .insist = true,
                                                       .deadline_ms = e2b_deadline(l->d), .done = looked, .arg = l});
}

/* id: "" for all. Found ones are borrowed for the callback. */
static void look_for(struct e2b *d, const char *id, void (*done)(void *, const struct found *, size_t, const struct sg_error *), void *arg)
{
    struct look *l = sg_xcalloc(1, sizeof *l);

    l->d = d;
    snprintf(l->id, sizeof l->id, "%s", id);
    l->done = done;
    l->arg = arg;
    look_page(l, NULL);
}

/* ---- take ---- */

struct taking {
    struct e2b_sandbox *sb;
    char id[SG_ID_MAX];
    unsigned looks;
    struct sg_error why;
    struct sg_snapshot_done done;
};

static void taking_end(struct taking *t, const char *ref, const struct sg_error *err)
{
    t->done.fn(t->done.arg, ref, err);
    sg_error_clear(&t->why);
    sg_sandbox_unref(&t->sb->base);
    free(t);
}

static void taking_failed(void *arg, const struct sg_error *err)
{
    taking_end(arg, NULL, err);
}

static void look_again(void *arg, bool over);

/* It may have been made, and named, by the call whose answer is missing. */
static void taking_looked(void *arg, const struct found *found, size_t n, const struct sg_error *err)
{
    struct taking *t = arg;

    if (n > 0)
        taking_end(t, found[0].ref, NULL);
    else if (t->looks >= LOOKS || (err && err->code == SG_SHUTTING_DOWN))
        e2b_blame(t->sb, err && err->code == SG_SHUTTING_DOWN ? err : &t->why, taking_failed, t);
    else
        sg_alarm(t->sb->d->alarms, sg_backoff_ms(t->looks++, LOOK_FIRST_MS, LOOK_MAX_MS), look_again, t);
}

static void look_again(void *arg, bool over)
{
    struct taking *t = arg;
    struct sg_error err = {0};

    if (over) {
        sg_error_set(&err, SG_SHUTTING_DOWN, "the server is shutting down");
        taking_end(t, NULL, &err);
        sg_error_clear(&err);
    } else {
        look_for(t->sb->d, t->id, taking_looked, t);
    }
}

static void taken(void *arg, const struct sg_origin_answer *a, const struct sg_error *err)
{
    struct taking *t = arg;
    const char *ref = a && !err ? json_string_value(json_object_get(a->body, "snapshotID")) : NULL;

    if (ref_ok(ref)) {
        taking_end(t, ref, NULL);
        return;
    }
    if (!err) {
        sg_error_set(&t->why, SG_PROVIDER_FAILED, "e2b answers with a snapshot that has no name");
        sg_error_member(&t->why, "provider", json_string("e2b"));
    } else if (a && a->status == 400) {
        sg_error_set(&t->why, SG_NOT_SUPPORTED, "e2b makes no snapshot of this sandbox: %.300s", err->message);
        sg_error_reason(&t->why, "provider_refused");
    } else {
        sg_error_copy(&t->why, err);
    }
    if (!err || (sg_origin_unknown(err) && err->code != SG_SHUTTING_DOWN && (!a || a->status >= 500 || a->status == 408)))
        look_for(t->sb->d, t->id, taking_looked, t);
    else
        e2b_blame(t->sb, &t->why, taking_failed, t);
}

static int take(struct sg_sandbox *base, const struct sg_snapshot_args *a, const struct sg_snapshot_done *done, struct sg_error *err SG_UNUSED)
{
    struct e2b_sandbox *sb = (struct e2b_sandbox *)base;
    struct taking *t = sg_xcalloc(1, sizeof *t);
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/sandboxes/%s/snapshots", base->id);
    sg_cleanup(sg_free_p) char *name = name_of(sb->d, a->id);
    sg_cleanup(sg_json_p) json_t *body = json_pack("{s:s}", "name", name);

    t->sb = (struct e2b_sandbox *)sg_sandbox_ref(base);
    snprintf(t->id, sizeof t->id, "%s", a->id);
    t->done = *done;
    sg_origin_call(sb->d->api, &(struct sg_origin_call){.method = "POST", .path = path, .body = body, .deadline_ms = e2b_deadline(sb->d),
                                                        .done = taken, .arg = t});
    return 0;
}

/* ---- drop ---- */

struct dropping {
    struct e2b *d;
    _Atomic size_t waiting; /* calls, and who makes them */
    _Atomic bool failed;
    struct sg_error why; /* of the first that failed */
    struct sg_done done;
};

static void dropping_unref(struct dropping *x)
{
    if (atomic_fetch_sub(&x->waiting, 1) > 1)
        return;
    x->done.fn(x->done.arg, x->failed ? &x->why : NULL);
    sg_error_clear(&x->why);
    free(x);
}

static void dropping_failed(struct dropping *x, const struct sg_error *err)
{
    if (!atomic_exchange(&x->failed, true))
        sg_error_copy(&x->why, err);
}

static void deleted(void *arg, const struct sg_origin_answer *a, const struct sg_error *err)
{
    struct dropping *x = arg;

    if (err && !(a && a->status == 404))
        dropping_failed(x, err);
    dropping_unref(x);
}

static void delete_ref(struct dropping *x, const char *ref)
{
    sg_cleanup(sg_free_p) char *escaped = sg_net_escape(ref);
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/templates/%s", escaped);

    atomic_fetch_add(&x->waiting, 1);
    sg_origin_call(x->d->api, &(struct sg_origin_call){.method = "DELETE", .path = path, .repeatable = true, .insist = true,
                                                       .deadline_ms = e2b_deadline(x->d), .done = deleted, .arg = x});
}

static void drop_found(void *arg, const struct found *found, size_t n, const struct sg_error *err)
{
    struct dropping *x = arg;

    if (err)
        dropping_failed(x, err);
    for (size_t i = 0; i < n; i++)
        delete_ref(x, found[i].ref);
    dropping_unref(x);
}

static int drop(struct sg_driver *base, const char *id, const char *ref, const struct sg_done *done, struct sg_error *err SG_UNUSED)
{
    struct dropping *x = sg_xcalloc(1, sizeof *x);

    x->d = (struct e2b *)base;
    x->done = *done;
    atomic_store(&x->waiting, 1);
    if (!ref[0]) {
        look_for(x->d, id, drop_found, x);
        return 0;
    }
    delete_ref(x, ref);
    dropping_unref(x);
    return 0;
}

/* ---- list ---- */

static void listed(void *arg, const struct found *found, size_t n, const struct sg_error *err)
{
    struct sg_snapshot_listed *done = arg;
    sg_cleanup(sg_free_p) struct sg_snapshot_item *items = sg_xcalloc(n + 1, sizeof *items);

    for (size_t i = 0; i < n; i++)
        items[i] = found[i].item;
    done->fn(done->arg, err ? NULL : items, n, err);
    free(done);
}

static int list(struct sg_driver *base, const struct sg_snapshot_listed *done, struct sg_error *err SG_UNUSED)
{
    struct sg_snapshot_listed *copy = sg_xcalloc(1, sizeof *copy);

    *copy = *done;
    look_for((struct e2b *)base, "", listed, copy);
    return 0;
}

const struct sg_snapshot_ops e2b_snapshot_ops = {.take = take, .drop = drop, .list = list};
