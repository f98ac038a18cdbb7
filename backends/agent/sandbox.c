#include "backends/agent/sandbox.h"

void sg_agent_sandbox_init(struct sg_agent_sandbox *s, struct sg_driver *d)
{
    s->sb.driver = d;
    (void)pthread_mutex_init(&s->lock, NULL);
}

void sg_agent_sandbox_finish(struct sg_agent_sandbox *s)
{
    sg_error_clear(&s->why);
    (void)pthread_mutex_destroy(&s->lock);
}

void sg_agent_sandbox_set(struct sg_agent_sandbox *s, struct sg_agent *a)
{
    (void)pthread_mutex_lock(&s->lock);
    s->agent = a;
    s->lost = false; /* it may have been, for a while */
    sg_error_clear(&s->why);
    (void)pthread_mutex_unlock(&s->lock);
}

struct sg_agent *sg_agent_sandbox_take(struct sg_agent_sandbox *s, const struct sg_error *why)
{
    (void)pthread_mutex_lock(&s->lock);
    struct sg_agent *a = sg_steal(&s->agent);
    if (why != NULL && (a != NULL || s->lost)) {
        s->lost = true;
        sg_error_copy(&s->why, why);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return a;
}

static struct sg_agent *agent_of(struct sg_sandbox *sb, bool also_lost, struct sg_error *err)
{
    struct sg_agent_sandbox *s = (struct sg_agent_sandbox *)sb;
    (void)pthread_mutex_lock(&s->lock);
    struct sg_agent *a = s->agent != NULL && (also_lost || !s->lost) ? sg_agent_ref(s->agent) : NULL;
    if (a == NULL && s->lost) {
        sg_error_copy(err, &s->why);
    } else if (a == NULL) {
        sg_error_set(err, SG_LEASE_GONE, "the sandbox has been terminated");
    }
    (void)pthread_mutex_unlock(&s->lock);
    return a;
}

struct sg_agent *sg_agent_sandbox_agent(struct sg_sandbox *sb, struct sg_error *err)
{
    return agent_of(sb, false, err);
}

/* ---- files; of a lost sandbox, too, as long as its agent is there: for what is kept of it ---- */

static int file_get(struct sg_sandbox *sb, const char *path, const struct sg_file_source_done *done,
                    struct sg_error *err)
{
    struct sg_agent *a = agent_of(sb, true, err);
    int rc = a != NULL ? sg_agent_get(a, path, done, err) : -1;
    sg_agent_unref(a);
    return rc;
}

static int file_open(struct sg_sandbox *sb, const char *path, const struct sg_file_source_done *done, struct sg_error *err)
{
    struct sg_agent *a = agent_of(sb, true, err);
    int rc = a != NULL ? sg_agent_open(a, path, done, err) : -1;
    sg_agent_unref(a);
    return rc;
}

static int file_put(struct sg_sandbox *sb, const struct sg_file_put_args *args,
                    const struct sg_file_sink_done *done, struct sg_error *err)
{
    struct sg_agent *a = agent_of(sb, true, err);
    int rc = a != NULL ? sg_agent_put(a, args, done, err) : -1;
    sg_agent_unref(a);
    return rc;
}

static int file_stat(struct sg_sandbox *sb, const char *path, const struct sg_file_stat_done *done,
                     struct sg_error *err)
{
    struct sg_agent *a = agent_of(sb, true, err);
    int rc = a != NULL ? sg_agent_stat(a, path, done, err) : -1;
    sg_agent_unref(a);
    return rc;
}

static int file_list(struct sg_sandbox *sb, const struct sg_file_list_args *args, const struct sg_file_list_done *done,
                     struct sg_error *err)
{
    struct sg_agent *a = agent_of(sb, true, err);
    int rc = a != NULL ? sg_agent_list(a, args, done, err) : -1;
    sg_agent_unref(a);
    return rc;
}

static int file_mkdir(struct sg_sandbox *sb, const char *path, uint32_t mode,
                      const struct sg_file_stat_done *done, struct sg_error *err)
{
    struct sg_agent *a = agent_of(sb, true, err);
    int rc = a != NULL ? sg_agent_mkdir(a, path, mode, done, err) : -1;
    sg_agent_unref(a);
    return rc;
}

static int file_remove(struct sg_sandbox *sb, const char *path, bool recursive, const struct sg_condition *only_if,
                       const struct sg_done *done, struct sg_error *err)
{
    struct sg_agent *a = agent_of(sb, true, err);
    int rc = a != NULL ? sg_agent_remove(a, path, recursive, only_if, done, err) : -1;
    sg_agent_unref(a);
    return rc;
}

static int file_move(struct sg_sandbox *sb, const char *from, const char *to, const struct sg_done *done,
                     struct sg_error *err)
{
    struct sg_agent *a = agent_of(sb, true, err);
    int rc = a != NULL ? sg_agent_move(a, from, to, done, err) : -1;
    sg_agent_unref(a);
    return rc;
}

static int tree_resolve(struct sg_sandbox *sb, const char *path, const struct sg_text_done *done, struct sg_error *err)
{
    struct sg_agent *a = agent_of(sb, true, err);
    int rc = a != NULL ? sg_agent_resolve(a, path, done, err) : -1;
    sg_agent_unref(a);
    return rc;
}

static int tree_list(struct sg_sandbox *sb, const char *path, size_t max, const struct sg_file_list_done *done, struct sg_error *err)
{
    struct sg_agent *a = agent_of(sb, true, err);
    int rc = a != NULL ? sg_agent_tree_list(a, path, max, done, err) : -1;
    sg_agent_unref(a);
    return rc;
}

static int tree_get(struct sg_sandbox *sb, const char *path, const struct sg_file_source_done *done, struct sg_error *err)
{
    struct sg_agent *a = agent_of(sb, true, err);
    int rc = a != NULL ? sg_agent_tree_get(a, path, done, err) : -1;
    sg_agent_unref(a);
    return rc;
}

static int tree_readlink(struct sg_sandbox *sb, const char *path, const struct sg_text_done *done, struct sg_error *err)
{
    struct sg_agent *a = agent_of(sb, true, err);
    int rc = a != NULL ? sg_agent_readlink(a, path, done, err) : -1;
    sg_agent_unref(a);
    return rc;
}

static int tree_scratch(struct sg_sandbox *sb, const char *path, const struct sg_file_source_done *done, struct sg_error *err)
{
    struct sg_agent *a = agent_of(sb, true, err);
    int rc = a != NULL ? sg_agent_scratch(a, path, done, err) : -1;
    sg_agent_unref(a);
    return rc;
}

static int tree_stage(struct sg_sandbox *sb, const char *path, const struct sg_text_done *done, struct sg_error *err)
{
    struct sg_agent *a = agent_of(sb, true, err);
    int rc = a != NULL ? sg_agent_stage(a, path, done, err) : -1;
    sg_agent_unref(a);
    return rc;
}

static int tree_mkdir(struct sg_sandbox *sb, const char *path, uint32_t mode, const struct sg_file_stat_done *done, struct sg_error *err)
{
    struct sg_agent *a = agent_of(sb, true, err);
    int rc = a != NULL ? sg_agent_tree_mkdir(a, path, mode, done, err) : -1;
    sg_agent_unref(a);
    return rc;
}

static int tree_symlink(struct sg_sandbox *sb, const char *path, const char *text, int64_t mtime_ns,
                        const struct sg_done *done, struct sg_error *err)
{
    struct sg_agent *a = agent_of(sb, true, err);
    int rc = a != NULL ? sg_agent_symlink(a, path, text, mtime_ns, done, err) : -1;
    sg_agent_unref(a);
    return rc;
}

static int tree_link(struct sg_sandbox *sb, const char *path, const char *existing, const struct sg_done *done, struct sg_error *err)
{
    struct sg_agent *a = agent_of(sb, true, err);
    int rc = a != NULL ? sg_agent_link(a, path, existing, done, err) : -1;
    sg_agent_unref(a);
    return rc;
}

static int tree_attributes(struct sg_sandbox *sb, const char *path, uint32_t mode, int64_t mtime_ns,
                           const struct sg_done *done, struct sg_error *err)
{
    struct sg_agent *a = agent_of(sb, true, err);
    int rc = a != NULL ? sg_agent_attributes(a, path, mode, mtime_ns, done, err) : -1;
    sg_agent_unref(a);
    return rc;
}

static int tree_merge(struct sg_sandbox *sb, const char *stage, const char *to, const struct sg_done *done, struct sg_error *err)
{
    struct sg_agent *a = agent_of(sb, true, err);
    int rc = a != NULL ? sg_agent_merge(a, stage, to, done, err) : -1;
    sg_agent_unref(a);
    return rc;
}

static const struct sg_tree_ops sandbox_tree = {
    .resolve = tree_resolve,
    .list = tree_list,
    .get = tree_get,
    .readlink = tree_readlink,
    .scratch = tree_scratch,
    .stage = tree_stage,
    .mkdir = tree_mkdir,
    .symlink = tree_symlink,
    .link = tree_link,
    .attributes = tree_attributes,
    .merge = tree_merge,
};

const struct sg_file_ops sg_agent_sandbox_files = {
    .get = file_get,
    .open = file_open,
    .put = file_put,
    .stat = file_stat,
    .list = file_list,
    .mkdir = file_mkdir,
    .remove = file_remove,
    .move = file_move,
    .tree = &sandbox_tree,
};

/* ---- dial ---- */

int sg_agent_sandbox_dial(struct sg_sandbox *sb, uint16_t port, int64_t deadline_ms, const struct sg_dial_done *done,
                 struct sg_error *err)
{
    struct sg_agent *a = sg_agent_sandbox_agent(sb, err);
    int rc = a != NULL ? sg_agent_dial(a, port, deadline_ms, done, err) : -1;
    sg_agent_unref(a);
    return rc;
}
