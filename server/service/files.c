#include "service/files.h"

/* One call under way: the use of the lease that it is, and whom to tell. */
struct call {
    struct sg_entry *lease;
    struct sg_sandbox *sb;
    const struct sg_file_ops *ops;
    struct sg_file_source_done source;
    struct sg_file_stat_done stat;
    struct sg_file_list_done list;
    struct sg_done plain;
};

static void call_end(struct call *c, bool counts)
{
    sg_entry_use_end(c->lease, counts);
    sg_sandbox_unref(c->sb);
    sg_entry_unref(c->lease);
    free(c);
}

static struct call *call_begin(struct sg_entry *lease, struct sg_error *err)
{
    struct sg_sandbox *sb = NULL;

    if (sg_entry_use_begin(lease, &sb, err) < 0)
        return NULL;
    struct call *c = sg_xcalloc(1, sizeof *c);
    c->lease = sg_entry_ref(lease);
    c->sb = sb;
    c->ops = sg_sandbox_files(sb, err);
    if (!c->ops) {
        call_end(c, false);
        return NULL;
    }
    return c;
}

/* The end of a starter: rc < 0 means that no callback will come. */
static int started(struct call *c, int rc)
{
    if (rc < 0)
        call_end(c, false);
    return rc;
}

static void source_done(void *arg, struct sg_file_source *src, const struct sg_error *err)
{
    struct call *c = arg;

    c->source.fn(c->source.arg, src, err);
    call_end(c, !err);
}

static void stat_done(void *arg, const struct sg_file_stat *st, const struct sg_error *err)
{
    struct call *c = arg;

    c->stat.fn(c->stat.arg, st, err);
    call_end(c, !err);
}

static void list_done(void *arg, struct sg_file_list *list, const struct sg_error *err)
{
    struct call *c = arg;

    c->list.fn(c->list.arg, list, err);
    call_end(c, !err);
}

static void plain_done(void *arg, const struct sg_error *err)
{
    struct call *c = arg;

    c->plain.fn(c->plain.arg, err);
    call_end(c, !err);
}

int sg_service_file_get(struct sg_entry *lease, const char *path, bool once, const struct sg_file_source_done *done, struct sg_error *err)
{
    struct call *c = call_begin(lease, err);

    if (!c)
        return -1;
    c->source = *done;
    return started(c, (once && c->ops->open ? c->ops->open : c->ops->get)(c->sb, path, &(struct sg_file_source_done){source_done, c}, err));
}

int sg_service_file_stat(struct sg_entry *lease, const char *path, const struct sg_file_stat_done *done, struct sg_error *err)
{
    struct call *c = call_begin(lease, err);

    if (!c)
        return -1;
    c->stat = *done;
    return started(c, c->ops->stat(c->sb, path, &(struct sg_file_stat_done){stat_done, c}, err));
}

int sg_service_file_list(struct sg_entry *lease, const struct sg_file_list_args *args, const struct sg_file_list_done *done,
                         struct sg_error *err)
{
    struct call *c = call_begin(lease, err);

    if (!c)
        return -1;
    c->list = *done;
    return started(c, c->ops->list(c->sb, args, &(struct sg_file_list_done){list_done, c}, err));
}

int sg_service_file_mkdir(struct sg_entry *lease, const char *path, uint32_t mode, const struct sg_file_stat_done *done,
                          struct sg_error *err)
{
    struct call *c = call_begin(lease, err);

    if (!c)
        return -1;
    c->stat = *done;
    return started(c, c->ops->mkdir(c->sb, path, mode, &(struct sg_file_stat_done){stat_done, c}, err));
}

int sg_service_file_remove(struct sg_entry *lease, const char *path, bool recursive, const struct sg_condition *only_if,
                           const struct sg_done *done, struct sg_error *err)
{
    struct call *c = call_begin(lease, err);

    if (!c)
        return -1;
    c->plain = *done;
    return started(c, c->ops->remove(c->sb, path, recursive, only_if, &(struct sg_done){plain_done, c}, err));
}

int sg_service_file_move(struct sg_entry *lease, const char *from, const char *to, const struct sg_done *done,
                         struct sg_error *err)
{
    struct call *c = call_begin(lease, err);

    if (!c)
        return -1;
    c->plain = *done;
    return started(c, c->ops->move(c->sb, from, to, &(struct sg_done){plain_done, c}, err));
}
