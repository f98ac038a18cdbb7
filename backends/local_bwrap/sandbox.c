/* What is asked of a leased sandbox, but for files and ports, which its agent knows alone. Any thread. */
#include <jansson.h>

#include "backends/local_bwrap/pool_priv.h"

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

/* What kills a command and all it started, and tells why the kernel did. */
struct group {
    struct gen *g;            /* one reference: oom_fd */
    struct sg_cgroup *cgroup; /* NULL: the agent's helper does it */
    int64_t oom_before;
};

static void group_kill(void *arg)
{
    sg_cgroup_kill(((struct group *)arg)->cgroup);
}

static bool group_oom(void *arg)
{
    const struct group *group = arg;
    return sg_oom_kills(group->g->built.oom_fd) > group->oom_before;
}

static bool group_empty(void *arg)
{
    return !sg_cgroup_populated(((const struct group *)arg)->cgroup);
}

static void group_free(void *arg)
{
    struct group *group = arg;
    if (group->cgroup != NULL) {
        sg_cgroup_release(group->cgroup);
    }
    gen_unref(group->g);
    free(group);
}

int gen_group(struct gen *g, struct sg_agent_tree *tree, struct sg_error *err)
{
    struct sg_cgroup *cgroup = NULL;
    if (g->built.tree_kill == SG_TREE_KILL_CGROUP && sg_cgroups_acquire(g->slot->cgroups, &cgroup, err) < 0) {
        return -1;
    }
    struct group *group = sg_xcalloc(1, sizeof *group);
    group->g = gen_ref(g);
    group->cgroup = cgroup;
    group->oom_before = sg_oom_kills(g->built.oom_fd);
    *tree = (struct sg_agent_tree){.oom = group_oom,
                                   .free = group_free,
                                   .arg = group,
                                   .group_dir = -1,
                                   .group_procs = -1,
                                   .tasks = g->built.limit_fds,
                                   .n_tasks = g->n_limit_fds};
    if (cgroup != NULL) {
        tree->kill = group_kill;
        tree->empty = group_empty;
        tree->group_dir = sg_cgroup_dir(cgroup);
        tree->group_procs = sg_cgroup_procs(cgroup);
    }
    return 0;
}

int sandbox_exec(struct sg_sandbox *sb, const struct sg_exec_spec *spec, const struct sg_exec_sink *sink,
                 struct sg_exec **ret, struct sg_error *err)
{
    struct gen *g = (struct gen *)sb;
    struct sg_agent_tree tree = {0};
    struct sg_agent *a = sg_agent_sandbox_agent(sb, err);
    if (a == NULL) {
        return -1;
    }
    int rc = gen_group(g, &tree, err);
    if (rc == 0) {
        rc = sg_agent_exec_start(a, spec, &tree, sink, ret, err);
        if (rc < 0) {
            tree.free(tree.arg);
        }
    }
    sg_agent_unref(a);
    return rc;
}

/* ---- metadata ---- */

static json_t *number_or_null(int64_t n)
{
    return n > 0 ? json_integer((json_int_t)n) : json_null();
}

static json_t *limits_json(const struct sg_limits *l)
{
    return json_pack("{s:o, s:o, s:o, s:o}", "memory_max", number_or_null(l->memory_bytes), "pids_max", number_or_null(l->pids), "cpu_max",
                     l->cpu_milli > 0 ? json_real((double)l->cpu_milli / 1000.0) : json_null(), "disk_max",
                     number_or_null(l->disk_bytes));
}

struct json_t *sandbox_metadata(struct sg_sandbox *sb)
{
    struct gen *g = (struct gen *)sb;
    const struct slot *s = g->slot;
    const struct sg_slot_built *b = &g->built;
    const struct sg_local_pool_config *c = &s->pool->cfg;
    const char *dot = strrchr(sb->id, '.');
    json_t *v = json_pack("{s:s, s:s, s:I, s:s, s:s, s:s, s:s, s:{s:s, s:s, s:s, s:s, s:s}}", "isolation", "bwrap",
                     "slot", s->name, "generation", (json_int_t)strtoll(dot + 1, NULL, 10), "local_pool",
                     s->pool->cfg.name, "mode", sg_pool_mode_name(s->pool->cfg.mode), "agent_isolation",
                     sg_isolation_name(b->isolation), "tree_kill", sg_tree_kill_name(b->tree_kill),
                     "limits_enforced", "memory", sg_means_name(b->memory), "pids", sg_means_name(b->pids),
                     "cpu", sg_means_name(b->cpu), "disk", sg_means_name(b->disk), "open_files", sg_means_name(SG_MEANS_RLIMIT));
    if (v != NULL) {
        (void)json_object_set_new(v, "egress", json_string(sg_egress_name(g->egress)));
        (void)json_object_set_new(v, "limits", limits_json(&g->limits));
        (void)json_object_set_new(v, "image", g->image != NULL ? json_string(g->image->name) : json_null());
    }
    if (v != NULL && c->mode == SG_POOL_BLACKBOX) {
        (void)json_object_set_new(v, "service", json_pack("{s:i, s:s}", "port", (int)c->service_port, "health_path", c->service_health_path));
    }
    return v;
}
