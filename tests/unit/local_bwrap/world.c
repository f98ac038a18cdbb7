#include "tests/unit/local_bwrap/world.h"

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"

#define WAIT_MS 15000

struct sg_local_pool_config world_pool(unsigned n)
{
    return (struct sg_local_pool_config){.name = "default",
                                         .size = n,
                                         .mode = SG_POOL_COMMAND_ONLY,
                                         .acquire_timeout_ms = CALL_MS,
                                         .disk = SG_DISK_TMPFS,
                                         .disk_max = (int64_t)64 * 1024 * 1024,
                                         .memory_max = (int64_t)256 * 1024 * 1024,
                                         .pids_max = 128,
                                         .cpu_milli = 1000,
                                         .egress = SG_EGRESS_NONE};
}

bool world_is_root(void)
{
    return geteuid() == 0;
}

static void die(const char *what, const struct sg_error *err)
{
    (void)fprintf(stderr, "%s: %s\n", what, err->message);
    abort();
}

static void become_ordinary(struct world *w)
{
    const uid_t user =
        100000000U + (uid_t)getpid(); /* limits of the kernel are by uid, and tests run side by side */
    if (chown(w->dir, user, user) < 0 || setgroups(0, NULL) < 0 || setgid(user) < 0 || setuid(user) < 0 ||
        prctl(PR_SET_DUMPABLE, 1) < 0) {
        perror("cannot become an ordinary user");
        abort();
    }
}

static void spawner_died(void *arg)
{
    (void)arg;
}

void world_open_parts(struct world *w, bool user, bool no_cgroups)
{
    struct sg_error err = {0};
    *w = (struct world){.dir = "/tmp/sg-pool-XXXXXX"};
    (void)signal(SIGPIPE, SIG_IGN);
    if (mkdtemp(w->dir) == NULL) {
        abort();
    }
    const struct sg_spawner_config cfg = {
        .state_dir = w->dir,
        .agent_path = AGENT_PATH,
        .uid_base = 400000000U + 4096U * (uint32_t)(getpid() % 400000), /* tests run side by side */
        .no_cgroups = no_cgroups,
    };
    if (user) {
        become_ordinary(w);
    }
    if (sg_spawner_start(&w->spawner, &cfg, &err) < 0) {
        die("spawner", &err);
    }
    if (sg_reactor_new(&w->reactor, &err) < 0 || sg_workq_new(2, 256, &w->workq, &err) < 0 ||
        sg_spawner_attach(w->spawner, w->reactor, spawner_died, NULL, &err) < 0) {
        die("reactor", &err);
    }
}

void world_open(struct world *w, bool user, const struct sg_local_pool_config *pools, size_t n)
{
    struct sg_error err = {0};
    world_open_parts(w, user, false);
    const struct sg_local_parts parts = {.reactor = w->reactor, .workq = w->workq, .spawner = w->spawner};
    if (sg_local_bwrap_new(&parts, pools, n, &w->d, &err) < 0) {
        die("local_bwrap", &err);
    }
}

void world_close(struct world *w)
{
    w->d = sg_driver_free(w->d);
    w->spawner = sg_spawner_free(w->spawner);
    w->workq = sg_workq_free(w->workq);
    w->reactor = sg_reactor_free(w->reactor);
    (void)sg_remove_tree(AT_FDCWD, w->dir, NULL);
}

/* ---- slots ---- */

struct sg_slot_info world_slot(struct world *w, size_t pool, size_t i)
{
    struct sg_slot_report r = {0};
    w->d->ops->slots->report(w->d, &r);
    struct sg_slot_info info = r.pools[pool].slots[i];
    sg_slot_report_finish(&r);
    return info;
}

static void nap(void)
{
    const struct timespec ms = {.tv_nsec = 2000000};
    (void)nanosleep(&ms, NULL);
}

bool world_wait(struct world *w, size_t pool, size_t i, enum sg_slot_state state)
{
    for (int64_t until = sg_now_ms() + WAIT_MS; sg_now_ms() < until; nap()) {
        if (world_slot(w, pool, i).state == state) {
            return true;
        }
    }
    struct sg_slot_info info = world_slot(w, pool, i);
    (void)fprintf(stderr, "slot %s is %s: %s\n", info.name, sg_slot_state_name(info.state), info.last_error);
    return false;
}

bool world_wait_gone(const struct world *w)
{
    for (int64_t until = sg_now_ms() + WAIT_MS; sg_now_ms() < until; nap()) {
        if (sg_spawner_gone(w->spawner)) {
            return true;
        }
    }
    return false;
}

bool world_wait_ready(struct world *w)
{
    struct sg_slot_report r = {0};
    w->d->ops->slots->report(w->d, &r);
    size_t n = r.pools[0].n;
    sg_slot_report_finish(&r);
    for (size_t i = 0; i < n; i++) {
        if (!world_wait(w, 0, i, SG_SLOT_READY)) {
            return false;
        }
    }
    return true;
}

struct sg_sandbox *world_lease(struct world *w, const char *lease_id)
{
    struct sg_sandbox_spec spec = call_spec(lease_id);
    struct sg_error err = {0};
    struct sg_sandbox *sb = call_create(w->d, &spec, &err);
    if (sb == NULL) {
        (void)fprintf(stderr, "no lease: %s\n", err.message);
    }
    sg_error_clear(&err);
    return sb;
}

/* ---- what the machine sees ---- */

struct process {
    pid_t pid, parent;
    char comm[32];
};

static bool read_process(const char *pid, struct process *p)
{
    char path[64];
    char *text = NULL;
    size_t len = 0;
    (void)snprintf(path, sizeof path, "/proc/%.16s/stat", pid);
    if (sg_read_file(path, 4096, &text, &len, NULL) < 0) {
        return false;
    }
    const char *open = strchr(text, '(');
    const char *close = strrchr(text, ')');
    bool ok = open != NULL && close != NULL && strlen(close) > 4 && close[2] != 'Z';
    if (ok) {
        size_t n = (size_t)(close - open - 1);
        n = n < sizeof p->comm ? n : sizeof p->comm - 1;
        memcpy(p->comm, open + 1, n);
        p->comm[n] = '\0';
        p->pid = (pid_t)strtol(text, NULL, 10);
        p->parent = (pid_t)strtol(close + 4, NULL, 10);
    }
    free(text);
    return ok;
}

static size_t all_processes(struct process *list, size_t max)
{
    DIR *dir = opendir("/proc");
    size_t n = 0;
    for (const struct dirent *e = readdir(dir); e != NULL && n < max; e = readdir(dir)) {
        n += e->d_name[0] >= '1' && e->d_name[0] <= '9' && read_process(e->d_name, &list[n]);
    }
    (void)closedir(dir);
    return n;
}

size_t world_processes(const struct world *w, const char *comm, pid_t *ret, size_t max)
{
    static struct process list[8192];
    static bool below[8192];
    size_t n = all_processes(list, SG_COUNT_OF(list));
    memset(below, 0, sizeof below);
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < n; i++) {
            bool in = below[i] || list[i].parent == sg_spawner_pid(w->spawner);
            for (size_t k = 0; k < n && !in; k++) {
                in = below[k] && list[k].pid == list[i].parent;
            }
            more = more || in != below[i];
            below[i] = in;
        }
    }
    size_t found = 0;
    for (size_t i = 0; i < n; i++) {
        if (below[i] && (comm == NULL || sg_streq(comm, list[i].comm))) {
            if (found < max) {
                ret[found] = list[i].pid;
            }
            found++;
        }
    }
    return found;
}

size_t world_open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    size_t n = 0;
    for (const struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        n++;
    }
    (void)closedir(dir);
    return n;
}

size_t world_mounts(const struct world *w)
{
    char path[64];
    char *text = NULL;
    size_t len = 0;
    size_t n = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/mountinfo", (int)sg_spawner_pid(w->spawner));
    if (sg_read_file(path, 1024UL * 1024, &text, &len, NULL) == 0) {
        for (const char *p = text; *p != '\0'; p++) {
            n += *p == '\n';
        }
    }
    free(text);
    return n;
}

/* Name of the spawner's groups, from where an agent is; "" without groups. */
static void group_name(const struct world *w, char out[64])
{
    pid_t pid = 0;
    char path[64];
    char *text = NULL;
    size_t len = 0;
    out[0] = '\0';
    if (world_processes(w, "agent", &pid, 1) == 0) {
        return;
    }
    (void)snprintf(path, sizeof path, "/proc/%d/cgroup", (int)pid);
    if (sg_read_file(path, 16384, &text, &len, NULL) == 0 && strstr(text, "/sandgate-") != NULL) {
        const char *name = strstr(text, "/sandgate-") + 1;
        (void)snprintf(out, 64, "%.*s", (int)(strcspn(name, "/\n") < 63 ? strcspn(name, "/\n") : 63), name);
    }
    free(text);
}

static size_t count_groups(const char *dir, const char *name, bool inside, int depth)
{
    size_t n = 0;
    DIR *d = opendir(dir);
    for (const struct dirent *e = d != NULL ? readdir(d) : NULL; e != NULL && depth < 12; e = readdir(d)) {
        if (e->d_type == DT_DIR && e->d_name[0] != '.') {
            char *below = sg_xasprintf("%s/%s", dir, e->d_name);
            bool in = inside || sg_streq(e->d_name, name);
            n += in + count_groups(below, name, in, depth + 1);
            free(below);
        }
    }
    if (d != NULL) {
        (void)closedir(d);
    }
    return n;
}

size_t world_groups(struct world *w)
{
    if (w->groups[0] == '\0' && w->spawner != NULL) {
        group_name(w, w->groups);
    }
    return w->groups[0] == '\0' ? 0 : count_groups("/sys/fs/cgroup", w->groups, false, 0);
}
