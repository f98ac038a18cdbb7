/* Where sandboxes come from: what the configuration says of each backend, and what backends tell and ask the rest. */
#include "app_priv.h"

#include "base/hash.h"
#include "roots.h"

#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#define SERVER_LABEL 24

/* The agent lies beside the server's own binary. */
static char *agent_path(void)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

    if (n <= 0)
        return sg_xstrdup("sandgate-agent");
    self[n] = '\0';
    char *slash = strrchr(self, '/');
    if (slash)
        *slash = '\0';
    return sg_xasprintf("%s/sandgate-agent", self);
}

static bool enabled(const struct app *a, const char *name)
{
    for (size_t i = 0; i < sg_config_count(a->cfg->backends.enabled); i++)
        if (sg_streq(a->cfg->backends.enabled[i], name))
            return true;
    return false;
}

int sg_app_start_spawner(struct app *a, struct sg_error *err)
{
    if (!enabled(a, "local_bwrap"))
        return 0;
    sg_cleanup(sg_free_p) char *agent = agent_path();
    if (sg_roots_open(a->cfg, a->state_dir, &a->roots, err) < 0)
        return -1;
    bool open_net = a->cfg->local_bwrap.pool.egress == SG_EGRESS_OPEN;
    for (size_t i = 0; i < a->cfg->n_local_pools; i++)
        open_net = open_net || a->cfg->local_pools[i].pool.egress == SG_EGRESS_OPEN;
    struct sg_spawner_config sc = {.state_dir = a->state_dir,
                                   .open_net = open_net,
                                   .agent_path = agent,
                                   .rootfs = sg_roots_dirs(a->roots),
                                   .uid_base = a->cfg->uid_base};
    return sg_spawner_start(&a->spawner, &sc, err);
}

/* What goes on by itself, and has no request to be logged with. */
static void slot_event(void *arg, const struct sg_slot_event *e)
{
    static const enum sg_log_level levels[SG_SLOT_EVENTS] = {
        [SG_SLOT_BUILT] = SG_LOG_DEBUG, [SG_SLOT_BUILD_FAILED] = SG_LOG_WARN, [SG_SLOT_GAVE_UP] = SG_LOG_ERROR,
        [SG_SLOT_RECOVERED] = SG_LOG_INFO, [SG_SLOT_DIED] = SG_LOG_WARN, [SG_SLOT_TAKEN] = SG_LOG_WARN,
        [SG_SLOT_RELEASED] = SG_LOG_DEBUG, [SG_SLOT_RECYCLED] = SG_LOG_INFO};
    struct app *a = arg;
    struct sg_log_line l;
    char event[32];

    snprintf(event, sizeof event, "slot_%s", sg_slot_event_name(e->kind));
    sg_log_begin(&l, a->log, levels[e->kind], event);
    sg_log_str(&l, "pool", e->pool);
    sg_log_str(&l, "slot", e->slot);
    sg_log_int(&l, "generation", (int64_t)e->generation);
    sg_log_str(&l, "lease_id", e->lease_id);
    if (e->err) {
        sg_log_str(&l, "reason", e->err->reason);
        sg_log_error(&l, e->err);
    }
    sg_log_end(&l);
}

/* What a sandbox asked for on its way out and did not get. */
static void egress_event(void *arg, const struct sg_egress_event *e)
{
    struct app *a = arg;
    struct sg_log_line l;

    sg_log_begin(&l, a->log, SG_LOG_WARN, "egress_refused");
    sg_log_str(&l, "provider", e->backend);
    sg_log_str(&l, "pool", e->pool);
    sg_log_str(&l, "slot", e->slot);
    if (e->pool)
        sg_log_int(&l, "generation", (int64_t)e->generation);
    sg_log_str(&l, "lease_id", e->lease_id);
    sg_log_str(&l, "reason", sg_egress_outcome_name(e->why));
    sg_log_str(&l, "target", e->target);
    if (e->untold > 0)
        sg_log_int(&l, "refusals_not_logged", (int64_t)e->untold);
    sg_log_end(&l);
}

static void docker_pull(void *arg, const struct sg_docker_pull *e)
{
    static const char *const events[] = {[SG_DOCKER_PULL_BEGUN] = "image_pull_begun", [SG_DOCKER_PULL_GOES_ON] = "image_pull_goes_on",
                                         [SG_DOCKER_PULL_DONE] = "image_pulled", [SG_DOCKER_PULL_FAILED] = "image_pull_failed"};
    struct app *a = arg;
    struct sg_log_line l;

    sg_log_begin(&l, a->log, e->err ? SG_LOG_WARN : SG_LOG_INFO, events[e->step]);
    sg_log_str(&l, "provider", "docker");
    sg_log_str(&l, "image", e->image);
    if (e->step == SG_DOCKER_PULL_GOES_ON)
        sg_log_str(&l, "status", e->status);
    if (e->step != SG_DOCKER_PULL_BEGUN) {
        sg_log_int(&l, "current_bytes", (int64_t)e->current_bytes);
        sg_log_int(&l, "total_bytes", (int64_t)e->total_bytes);
        sg_log_int(&l, "duration_ms", e->duration_ms);
    }
    sg_log_int(&l, "waiting", e->waiters);
    if (e->err) {
        sg_log_str(&l, "reason", e->err->reason);
        sg_log_error(&l, e->err);
    }
    sg_log_end(&l);
}

/* The repositories are there for every backend; worktrees of them for one. */
static int open_repos(struct app *a, const struct sg_worktree_config *wc, struct sg_error *err)
{
    struct sg_worktree_parts parts = {.reactor = a->reactor, .workq = a->workq};

    return wc->n_repos > 0 ? sg_repos_open(wc, &parts, &a->repos, err) : 0;
}

static int docker_config(const struct app *a, const char *dir, const char *agent, struct sg_docker_config *ret, struct sg_error *err)
{
    const struct sg_config *c = a->cfg;

    *ret = (struct sg_docker_config){.host = c->docker.host,
                                     .tls_ca = c->docker.tls_ca,
                                     .tls_cert = c->docker.tls_cert,
                                     .tls_key = c->docker.tls_key,
                                     .image = c->docker.image,
                                     .images_allowed = c->docker.images_allowed,
                                     .pull = c->docker.pull,
                                     .pull_ms = c->docker.pull_timeout_ms,
                                     .dir = dir,
                                     .host_dir = c->docker.agent_host_dir,
                                     .agent_path = agent,
                                     .agent = c->docker.agent,
                                     .memory_max = c->docker.memory_max,
                                     .pids_max = c->docker.pids_max,
                                     .cpu_milli = c->docker.cpu_milli,
                                     .own_profile = c->docker.seccomp == 0,
                                     .disk_max = c->docker.disk_max,
                                     .egress = c->docker.egress,
                                     .egress_allow = c->docker.egress_allow,
                                     .network = c->docker.network,
                                     .warm = (unsigned)c->docker.warm,
                                     .commit = c->docker.snapshots == 0,
                                     .start_ms = c->docker.start_timeout_ms,
                                     .orphan_grace_ms = c->docker.orphan_grace_ms};
    if (!sg_docker_user_parse(c->docker.user, &ret->uid, &ret->gid))
        return sg_error_field(err, SG_INVALID_REQUEST, "docker.user", "docker.user must be the numbers of a user and a group other than root, such as 1000:1000");
    return 0;
}

/* Asked by backends about what they find, also before there are any leases in memory: then all are. */
static bool lease_live(void *arg, const char *lease_id)
{
    struct app *a = arg;
    struct sg_entry *e;
    struct sg_lease l;

    if (!a->recovered)
        return true;
    if (sg_registry_peek(sg_service_leases(a->service), NULL, lease_id, &e) != 1)
        return false;
    sg_entry_lease(e, &l);
    bool live = !sg_lease_state_ended(l.state);
    sg_lease_finish(&l);
    sg_entry_unref(e);
    return live;
}

static void orphan_found(void *arg, const char *provider, const char *sandbox_id, const char *lease_id)
{
    struct app *a = arg;
    struct sg_log_line l;

    sg_log_begin(&l, a->log, SG_LOG_WARN, "orphan_removed");
    sg_log_str(&l, "provider", provider);
    sg_log_str(&l, "sandbox_id", sandbox_id);
    sg_log_str(&l, "lease_id", lease_id);
    sg_log_end(&l);
}

/* A name for this server on what it makes elsewhere: it is the same as long as the state directory is. */
static void server_label(const struct app *a, char out[SERVER_LABEL + 1])
{
    static const char what[] = "server-label";
    uint8_t mac[SG_SHA256_LEN];
    char hex[2 * SG_SHA256_LEN + 1];
    size_t len;
    const char *key = sg_secret_expose(sg_store_endpoint_key(a->store), &len);

    sg_hmac_sha256(key, len, what, sizeof what - 1, mac);
    sg_hex(mac, sizeof mac, hex);
    snprintf(out, SERVER_LABEL + 1, "%.*s", SERVER_LABEL, hex);
}

static struct sg_e2b_config e2b_config(const struct app *a, const char *label)
{
    const struct sg_config_cloud *c = &a->cfg->e2b;

    return (struct sg_e2b_config){.api_url = c->api_url, .sandbox_url = c->sandbox_url, .port_url = c->port_url, .domain = c->domain,
                                  .template_name = c->template_name, .ca_file = c->ca_file, .proxy = c->proxy,
                                  .max_concurrent = c->max_concurrent, .timeout_ms = c->timeout_ms, .sweep_ms = c->sweep_ms,
                                  .grace_ms = c->grace_ms, .spool_dir = a->state_dir, .server = label};
}

/* Only for those that call somebody. */
static int start_net(struct app *a, struct sg_error *err)
{
    return enabled(a, "docker") || enabled(a, "e2b") ? sg_net_new(&a->net, err) : 0;
}

static int make_backends(struct app *a, const struct sg_worktree_config *wc, struct sg_error *err)
{
    size_t n = 0;
    struct sg_docker_config dc;
    sg_cleanup(sg_free_p) char *docker_dir = sg_xasprintf("%s/docker", a->state_dir);
    const struct sg_local_pool_config *pools = a->roots ? sg_roots_pools(a->roots, &n) : NULL;
    char label[SERVER_LABEL + 1];
    server_label(a, label);
    const struct sg_e2b_config ec = e2b_config(a, label);
    struct sg_backend_settings settings = {.local_pools = pools, .n_local_pools = n, .worktree = wc, .docker = &dc, .e2b = &ec,
                                           .fake_script = a->cfg->fake.script};
    if (docker_config(a, docker_dir, wc->agent_path, &dc, err) < 0 || start_net(a, err) < 0)
        return -1;
    struct sg_backend_parts parts = {.reactor = a->reactor, .workq = a->workq, .net = a->net, .repos = a->repos, .spawner = a->spawner,
                                     .lease_live = lease_live, .lease_live_arg = a, .orphan = orphan_found, .orphan_arg = a,
                                     .slot_event = slot_event, .egress_event = egress_event, .docker_pull = docker_pull, .slot_event_arg = a};

    return sg_backends_new(a->cfg->backends.enabled, sg_config_count(a->cfg->backends.enabled), &settings, &parts, &a->backends,
                           err);
}

int sg_app_build_backends(struct app *a, struct sg_error *err)
{
    const struct sg_config *c = a->cfg;
    struct sg_worktree_repo repos[SG_WORKTREE_REPOS_MAX];
    size_t n = c->worktree.n < SG_COUNT_OF(repos) ? c->worktree.n : SG_COUNT_OF(repos);

    for (size_t i = 0; i < n; i++)
        repos[i] = (struct sg_worktree_repo){c->worktree.repos[i].name, c->worktree.repos[i].value};
    sg_cleanup(sg_free_p) char *agent = agent_path();
    sg_cleanup(sg_free_p) char *records = sg_xasprintf("%s/worktree", a->state_dir);
    sg_cleanup(sg_free_p) char *dir = c->worktree.dir ? sg_xstrdup(c->worktree.dir) : sg_xasprintf("%s/worktrees", a->state_dir);
    sg_cleanup(sg_free_p) char *archives = c->worktree.archive_enabled ? sg_xasprintf("%s/worktree-archives", a->state_dir) : NULL;
    struct sg_worktree_config wc = {.agent_path = agent,
                                    .records_dir = records,
                                    .dir = dir,
                                    .user = c->worktree.user,
                                    .archive_dir = archives,
                                    .archive_max_bytes = c->worktree.archive_max_bytes,
                                    .repos = repos,
                                    .n_repos = n};
    return open_repos(a, &wc, err) < 0 ? -1 : make_backends(a, &wc, err);
}
