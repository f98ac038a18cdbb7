/* What is asked of a sandbox, but for what its agent does alone. Any thread. */
#include "backends/docker/docker_priv.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "backends/spawner/cgroup.h"
#include "base/fd.h"

/* ---- exec ---- */

/* The agent's helper holds a command and all it starts together. The kernel's word for one that was killed for want of memory is the
 * container's. */
struct tree {
    struct box *b; /* one reference */
    int64_t oom_before;
};

static bool tree_oom(void *arg)
{
    const struct tree *t = arg;
    return sg_oom_kills(t->b->oom_fd) > t->oom_before;
}

static void tree_free(void *arg)
{
    struct tree *t = arg;
    box_unref(t->b);
    free(t);
}

int docker_exec(struct sg_sandbox *sb, const struct sg_exec_spec *spec, const struct sg_exec_sink *sink, struct sg_exec **ret,
                struct sg_error *err)
{
    struct box *b = (struct box *)sb;
    struct sg_agent *a = sg_agent_sandbox_agent(sb, err);
    if (a == NULL) {
        return -1;
    }
    struct tree *t = sg_xcalloc(1, sizeof *t);
    t->b = box_ref(b);
    t->oom_before = sg_oom_kills(b->oom_fd);
    const struct sg_agent_tree tree = {.oom = tree_oom, .free = tree_free, .arg = t, .group_dir = -1, .group_procs = -1};
    int rc = sg_agent_exec_start(a, spec, &tree, sink, ret, err);
    if (rc < 0) {
        tree_free(t);
    }
    sg_agent_unref(a);
    return rc;
}

/* ---- memory ---- */

/* The path of the group in `text` (/proc/PID/cgroup) whose line has `key` after its number; at most size - 1 bytes. */
static bool group_of(const char *text, const char *key, char *ret, size_t size)
{
    const char *at = strstr(text, key);
    if (at == NULL) {
        return false;
    }
    at += strlen(key);
    int n = snprintf(ret, size, "%.*s", (int)strcspn(at, "\n"), at);
    return n > 1 && (size_t)n < size && strstr(ret, "..") == NULL;
}

int docker_oom_fd(pid_t pid)
{
    char name[64], group[1024];
    sg_cleanup(sg_free_p) char *text = NULL;
    sg_cleanup(sg_free_p) char *path = NULL;
    (void)snprintf(name, sizeof name, "/proc/%d/cgroup", (int)pid);
    if (sg_read_file(name, 65536, &text, NULL, NULL) < 0) {
        return -1;
    }
    if (group_of(text, ":memory:", group, sizeof group)) {
        path = sg_xasprintf("/sys/fs/cgroup/memory%s/memory.oom_control", group);
    } else if (group_of(text, "0::", group, sizeof group)) {
        path = sg_xasprintf("/sys/fs/cgroup%s/memory.events", group);
    } else {
        return -1;
    }
    return open(path, O_RDONLY | O_CLOEXEC);
}

/* ---- metadata ---- */

static json_t *number_or_null(int64_t n)
{
    return n > 0 ? json_integer((json_int_t)n) : json_null();
}

/* An engine takes also what its host cannot hold, and does without. */
static const char *means(int64_t asked, int64_t set)
{
    return asked > 0 && set == asked ? "engine" : "none";
}

json_t *docker_metadata(struct sg_sandbox *sb)
{
    const struct box *b = (const struct box *)sb;
    const struct sg_limits *l = &b->limits;
    json_t *v = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:{s:s, s:s, s:s, s:s, s:s}}", "isolation", "container", "container", sb->id, "image", b->image,
                          "agent_isolation", "uid", "agent_path", b->far ? "engine" : "share", "tree_kill", "helper", "limits_enforced", "memory", means(l->memory_bytes, b->set.memory_bytes), "pids",
                          means(l->pids, b->set.pids), "cpu", means(l->cpu_milli, b->set.cpu_milli), "disk", "tmpfs", "open_files", "rlimit");
    if (v != NULL) {
        (void)json_object_set_new(v, "limits",
                                  json_pack("{s:o, s:o, s:o, s:o}", "memory_max", number_or_null(l->memory_bytes), "pids_max",
                                            number_or_null(l->pids), "cpu_max",
                                            l->cpu_milli > 0 ? json_real((double)l->cpu_milli / 1000.0) : json_null(), "disk_max",
                                            number_or_null(l->disk_bytes)));
        (void)json_object_set_new(v, "egress", json_string(sg_egress_name(b->egress)));
    }
    return v;
}
