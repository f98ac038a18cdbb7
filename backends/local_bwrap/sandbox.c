/* What is asked of a leased sandbox: handed on to its agent, with the descriptors that come out counted. Any thread. */
#include <jansson.h>

#include "backends/local_bwrap/pool_priv.h"

/* One reference on the agent, or NULL with why there is none. */
static struct sg_agent *agent_of(struct gen *g, struct sg_error *err)
{
    (void)pthread_mutex_lock(&g->lock);
    struct sg_agent *a = g->agent != NULL ? sg_agent_ref(g->agent) : NULL;
    if (a == NULL && g->fate == GEN_LOST) {
        if (err != NULL) {
            sg_error_copy(err, &g->why);
        }
    } else if (a == NULL) {
        sg_error_set(err, SG_LEASE_GONE, "the sandbox has been terminated");
    }
    (void)pthread_mutex_unlock(&g->lock);
    return a;
}

static struct sg_hold *hold_of(struct gen *g)
{
    (void)pthread_mutex_lock(&g->lock);
    struct sg_hold *h = sg_hold_ref(g->hold);
    (void)pthread_mutex_unlock(&g->lock);
    return h;
}

/* ---- end ---- */

struct terminate_call {
    struct sg_task task;
    struct gen *g; /* one reference */
    struct sg_done done;
};

static void terminate_run(struct sg_task *t)
{
    struct terminate_call *c = (struct terminate_call *)t;
    gen_release(c->g, &c->done);
    gen_unref(c->g);
    free(c);
}

void sandbox_terminate(struct sg_sandbox *sb, const struct sg_done *done)
{
    struct gen *g = (struct gen *)sb;
    struct terminate_call *c = sg_xcalloc(1, sizeof *c);
    c->task.run = terminate_run;
    c->g = gen_ref(g);
    c->done = *done;
    if (!local_post(g->l, &c->task)) { /* the driver has ended, and every sandbox with it */
        gen_unref(g);
        free(c);
        if (done->fn != NULL) {
            done->fn(done->arg, NULL);
        }
    }
}

static void freed_run(struct sg_task *t)
{
    struct gen *g = GEN_OF(t, freed_task);
    gen_release(g, NULL);
    gen_unref(g);
}

/* Takes over the sandbox's reference on its gen. */
void sandbox_free(struct sg_sandbox *sb)
{
    struct gen *g = (struct gen *)sb;
    g->freed_task.run = freed_run;
    if (!local_post(g->l, &g->freed_task)) {
        gen_unref(g);
    }
}

/* ---- exec ---- */

static void group_kill(void *arg)
{
    sg_cgroup_kill(arg);
}

static void group_free(void *arg)
{
    sg_cgroup_release(arg);
}

static int tree_for(struct gen *g, struct sg_agent_tree *tree, struct sg_error *err)
{
    struct sg_cgroup *group = NULL;
    if (g->built.tree_kill != SG_TREE_KILL_CGROUP) {
        return 0; /* the agent puts a helper over the command */
    }
    if (sg_cgroups_acquire(g->slot->cgroups, &group, err) < 0) {
        return -1;
    }
    *tree = (struct sg_agent_tree){.kill = group_kill, .free = group_free, .arg = group};
    tree->procs[tree->n_procs++] = sg_cgroup_procs(group);
    for (size_t i = 0; i < SG_SLOT_LIMIT_FDS; i++) {
        if (g->built.limit_fds[i] >= 0) {
            tree->procs[tree->n_procs++] = g->built.limit_fds[i];
        }
    }
    return 0;
}

int sandbox_exec(struct sg_sandbox *sb, const struct sg_exec_spec *spec, const struct sg_exec_sink *sink,
                 struct sg_exec **ret, struct sg_error *err)
{
    struct gen *g = (struct gen *)sb;
    struct sg_agent_tree tree = {0};
    struct sg_agent *a = agent_of(g, err);
    if (a == NULL) {
        return -1;
    }
    int rc = tree_for(g, &tree, err);
    if (rc == 0) {
        rc = sg_agent_exec_start(a, spec, tree.kill != NULL ? &tree : NULL, sink, ret, err);
        if (rc < 0 && tree.free != NULL) {
            tree.free(tree.arg);
        }
    }
    sg_agent_unref(a);
    return rc;
}

/* ---- files ---- */

struct get_call {
    struct sg_hold *hold; /* one reference, goes along with the source */
    struct sg_file_source_done done;
};

static void get_done(void *arg, struct sg_file_source *src, const struct sg_error *err)
{
    struct get_call *c = arg;
    if (src != NULL) {
        src->hold = sg_steal(&c->hold);
    }
    sg_hold_unref(c->hold);
    c->done.fn(c->done.arg, src, err);
    free(c);
}

static int file_get(struct sg_sandbox *sb, const char *path, const struct sg_file_source_done *done,
                    struct sg_error *err)
{
    struct gen *g = (struct gen *)sb;
    struct sg_agent *a = agent_of(g, err);
    if (a == NULL) {
        return -1;
    }
    struct get_call *c = sg_xcalloc(1, sizeof *c);
    c->hold = hold_of(g);
    c->done = *done;
    const struct sg_file_source_done mine = {.fn = get_done, .arg = c};
    int rc = sg_agent_get(a, path, &mine, err);
    if (rc < 0) {
        sg_hold_unref(c->hold);
        free(c);
    }
    sg_agent_unref(a);
    return rc;
}

static int file_put(struct sg_sandbox *sb, const struct sg_file_put_args *args, const struct sg_file_sink_done *done,
                    struct sg_error *err)
{
    struct sg_agent *a = agent_of((struct gen *)sb, err);
    int rc = a != NULL ? sg_agent_put(a, args, done, err) : -1;
    sg_agent_unref(a);
    return rc;
}

static int file_stat(struct sg_sandbox *sb, const char *path, const struct sg_file_stat_done *done,
                     struct sg_error *err)
{
    struct sg_agent *a = agent_of((struct gen *)sb, err);
    int rc = a != NULL ? sg_agent_stat(a, path, done, err) : -1;
    sg_agent_unref(a);
    return rc;
}

static int file_list(struct sg_sandbox *sb, const char *path, bool recursive, size_t max,
                     const struct sg_file_list_done *done, struct sg_error *err)
{
    struct sg_agent *a = agent_of((struct gen *)sb, err);
    int rc = a != NULL ? sg_agent_list(a, path, recursive, max, done, err) : -1;
    sg_agent_unref(a);
    return rc;
}

static int file_mkdir(struct sg_sandbox *sb, const char *path, uint32_t mode, const struct sg_file_stat_done *done,
                      struct sg_error *err)
{
    struct sg_agent *a = agent_of((struct gen *)sb, err);
    int rc = a != NULL ? sg_agent_mkdir(a, path, mode, done, err) : -1;
    sg_agent_unref(a);
    return rc;
}

static int file_remove(struct sg_sandbox *sb, const char *path, bool recursive, const struct sg_done *done,
                       struct sg_error *err)
{
    struct sg_agent *a = agent_of((struct gen *)sb, err);
    int rc = a != NULL ? sg_agent_remove(a, path, recursive, done, err) : -1;
    sg_agent_unref(a);
    return rc;
}

static int file_move(struct sg_sandbox *sb, const char *from, const char *to, const struct sg_done *done,
                     struct sg_error *err)
{
    struct sg_agent *a = agent_of((struct gen *)sb, err);
    int rc = a != NULL ? sg_agent_move(a, from, to, done, err) : -1;
    sg_agent_unref(a);
    return rc;
}

const struct sg_file_ops sandbox_files = {
    .get = file_get,
    .put = file_put,
    .stat = file_stat,
    .list = file_list,
    .mkdir = file_mkdir,
    .remove = file_remove,
    .move = file_move,
};

/* ---- dial ---- */

struct dial_call {
    struct sg_hold *hold; /* one reference, goes along with the socket */
    struct sg_dial_done done;
};

static void dial_done(void *arg, int fd, struct sg_hold *none, const struct sg_error *err)
{
    struct dial_call *c = arg;
    struct sg_hold *hold = fd >= 0 ? sg_steal(&c->hold) : NULL;
    (void)none; /* the agent's client counts only its own */
    sg_hold_unref(c->hold);
    c->done.fn(c->done.arg, fd, hold, err);
    free(c);
}

int sandbox_dial(struct sg_sandbox *sb, uint16_t port, int64_t deadline_ms, const struct sg_dial_done *done,
                 struct sg_error *err)
{
    struct gen *g = (struct gen *)sb;
    struct sg_agent *a = agent_of(g, err);
    if (a == NULL) {
        return -1;
    }
    struct dial_call *c = sg_xcalloc(1, sizeof *c);
    c->hold = hold_of(g);
    c->done = *done;
    const struct sg_dial_done mine = {.fn = dial_done, .arg = c};
    int rc = sg_agent_dial(a, port, deadline_ms, &mine, err);
    if (rc < 0) {
        sg_hold_unref(c->hold);
        free(c);
    }
    sg_agent_unref(a);
    return rc;
}

/* ---- metadata ---- */

struct json_t *sandbox_metadata(struct sg_sandbox *sb)
{
    struct gen *g = (struct gen *)sb;
    const struct slot *s = g->slot;
    const struct sg_slot_built *b = &g->built;
    const char *dot = strrchr(sb->id, '.');
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:s, s:s, s:{s:s, s:s, s:s, s:s}}", "isolation", "bwrap", "slot",
                     s->name, "generation", (json_int_t)strtoll(dot + 1, NULL, 10), "local_pool", s->pool->cfg.name,
                     "mode", sg_pool_mode_name(s->pool->cfg.mode), "agent_isolation", sg_isolation_name(b->isolation),
                     "tree_kill", sg_tree_kill_name(b->tree_kill), "limits_enforced", "memory",
                     sg_means_name(b->memory), "pids", sg_means_name(b->pids), "cpu", sg_means_name(b->cpu), "disk",
                     sg_means_name(b->disk));
}
