#include "app_priv.h"

#include "base/clock.h"
#include "base/fd.h"
#include "backends/facts.h"
#include "roots.h"

#include <errno.h>
#include <malloc.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* The API description, embedded at build time. */
extern const char sg_openapi_yaml[];

#define WORKERS_QUEUE 4096U
#define CONNECTIONS_MAX 8192U
#define CANCEL_MS 2000
#define END_LEASES_MS 10000

/* ---- what HTTP calls back ---- */

static int check_token(void *arg, const char *token, size_t len, const struct sg_principal **ret, struct sg_error *err)
{
    return sg_auth_check(((struct sg_api *)arg)->auth, token, len, ret, err);
}

static bool asks_for_no_token(void *arg)
{
    return !sg_auth_has_tokens(((struct sg_api *)arg)->auth);
}

/* The one log line of a request. Without its query: that of a relayed one may hold the application's secrets, and that of a caller
 * who mistakes it for the place of a token ours. */
static void request_done(void *arg, const struct sg_http_event *e)
{
    struct sg_api *api = arg;
    struct sg_log_line l;

    sg_metrics_count_request(api->metrics, e);
    sg_log_begin(&l, api->log, e->status >= 500 ? SG_LOG_WARN : SG_LOG_INFO, "request");
    sg_log_str(&l, "method", e->method);
    sg_log_text(&l, "path", e->target, strcspn(e->target, "?"));
    sg_log_str(&l, "operation", e->operation_id);
    sg_log_int(&l, "status", e->status);
    sg_log_bool(&l, "complete", e->complete);
    sg_log_int(&l, "duration_us", e->duration_us);
    sg_log_int(&l, "bytes_in", (int64_t)e->bytes_in);
    sg_log_int(&l, "bytes_out", (int64_t)e->bytes_out);
    sg_log_str(&l, "request_id", e->request_id);
    sg_log_str(&l, "traceparent", e->traceparent);
    sg_log_str(&l, "lease_id", e->note);
    sg_log_str(&l, "tenant", e->principal ? e->principal->tenant : NULL);
    sg_log_str(&l, "token", e->principal ? e->principal->name : NULL);
    sg_log_str(&l, "peer", e->peer);
    sg_log_end(&l);
}

/* ---- building ---- */

/* Large buffers go back to the system when they are freed, and threads share what is left: by default the allocator learns from large
 * frees to keep such memory, per thread. */
static void tame_allocator(void)
{
    (void)mallopt(M_MMAP_THRESHOLD, 256 * 1024);
    (void)mallopt(M_TRIM_THRESHOLD, 1024 * 1024);
    (void)mallopt(M_ARENA_MAX, 4);
}

static void set_limits(void)
{
    /* What is in memory is not for a core dump. At one byte the kernel does not even start the program that may collect them. */
    const struct rlimit core = {1, 1};
    struct rlimit lim;

    if (setrlimit(RLIMIT_CORE, &core) < 0)
        (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    /* Thousands of leases and callers need more descriptors than the usual soft limit. */
    if (getrlimit(RLIMIT_NOFILE, &lim) == 0 && lim.rlim_cur < lim.rlim_max) {
        lim.rlim_cur = lim.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &lim);
    }
}

static int open_state(struct app *a, struct sg_error *err)
{
    const char *dir = a->cfg->server.state_dir;

    if (sg_mkdirs(dir, 0700, err) < 0)
        return sg_error_wrap(err, "cannot make the state directory");
    a->state_dir = realpath(dir, NULL);
    if (!a->state_dir)
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot resolve the state directory %s", dir);
    return sg_state_lock(a->state_dir, &a->lock_fd, err);
}

static void spawner_died(void *arg)
{
    struct app *a = arg;
    struct sg_error err = {0};

    sg_error_set(&err, SG_INTERNAL, "the spawner process died: no sandbox can be built any more; restart the server");
    sg_log_event(a->log, SG_LOG_ERROR, "spawner_died", &err);
    sg_error_clear(&err);
    a->spawner_dead = true;
}

static int start_threads(struct app *a, struct sg_error *err)
{
    if (sg_reactor_new(&a->reactor, err) < 0 || sg_workq_new(a->cfg->server.workers_max, WORKERS_QUEUE, &a->workq, err) < 0)
        return -1;
    return a->spawner ? sg_spawner_attach(a->spawner, a->reactor, spawner_died, a, err) : 0;
}

static int open_store(struct app *a, struct sg_error *err)
{
    struct sg_store_config sc = {.state_dir = a->state_dir,
                                 .lock_fd = sg_steal_fd(&a->lock_fd),
                                 .audit_key_file = a->cfg->keys.audit_file,
                                 .receipt_key_file = a->cfg->keys.receipt_file,
                                 .endpoint_key_file = a->cfg->keys.endpoint_file,
                                 .retention_ms = a->cfg->leases.retention_ms,
                                 .audit_retention_ms = a->cfg->audit.retention_ms,
                                 .log = a->log};

    return sg_store_open(&sc, &a->store, err);
}

static unsigned archive_dirs(const char *const *names)
{
    unsigned dirs = 0;

    for (size_t i = 0; i < sg_config_count(names); i++)
        for (unsigned k = 0; k < SG_KEPT_DIRS; k++)
            dirs |= sg_streq(names[i], sg_kept_dir_names[k]) ? 1U << k : 0;
    return dirs;
}

/* What each local pool keeps of its leases; the caller frees. */
static struct sg_archive_plan *archive_plans(const struct sg_config *c, size_t *ret_n)
{
    struct sg_archive_plan *plans = sg_xcalloc(c->n_local_pools + 1, sizeof *plans);

    *ret_n = c->n_local_pools + 1;
    for (size_t i = 0; i < *ret_n; i++) {
        const struct sg_config_pool *p = i == 0 ? &c->local_bwrap : &c->local_pools[i - 1];
        plans[i] = (struct sg_archive_plan){.pool = p->pool.name,
                                            .dirs = p->archive_enabled ? archive_dirs(p->archive_dirs) : 0,
                                            .ttl_ms = p->archive_ttl_ms,
                                            .max_per_slot = p->archive_max_per_slot,
                                            .max_bytes = p->archive_max_bytes};
    }
    return plans;
}

static int build_service(struct app *a, struct sg_error *err)
{
    const struct sg_config *c = a->cfg;
    size_t n_plans;
    sg_cleanup(sg_free_p) struct sg_archive_plan *plans = archive_plans(c, &n_plans);
    struct sg_service_config sc = {.lease_timeout_default_ms = c->leases.timeout_default_ms,
                                   .lease_timeout_max_ms = c->leases.timeout_max_ms,
                                   .lease_idle_timeout_ms = c->leases.idle_timeout_ms,
                                   .leave_leases = c->leases.at_shutdown == SG_LEASES_KEEP,
                                   .exec_timeout_default_ms = c->exec.timeout_default_ms,
                                   .exec_timeout_max_ms = c->exec.timeout_max_ms,
                                   .exec_output_max = c->exec.max_output_bytes,
                                   .exec_memory_max = c->exec.memory_max,
                                   .exec_history_max = c->exec.history_bytes,
                                   .exec_history_ttl_ms = c->exec.history_ttl_ms,
                                   .archives = {.state_dir = a->state_dir,
                                                .plans = plans,
                                                .n_plans = n_plans,
                                                .snapshot_ttl_ms = c->snapshots.ttl_ms,
                                                .snapshot_sweep_ms = c->snapshots.sweep_ms,
                                                .snapshot_max_bytes = c->snapshots.max_bytes,
                                                .snapshot_total_bytes = c->snapshots.total_bytes,
                                                .snapshot_max_per_tenant = c->snapshots.max_per_tenant}};
    a->prices = sg_xcalloc(c->n_prices + 1, sizeof *a->prices);
    for (size_t i = 0; i < c->n_prices; i++)
        a->prices[i] = (struct sg_service_price){.backend = c->prices[i].name, .microusd = c->prices[i].microusd};
    a->metrics = sg_metrics_new(sg_routes, sg_routes_count);
    struct sg_service_parts parts = {.exec_ended = sg_metrics_exec_ended,
                                     .exec_ended_arg = a->metrics,
                                     .reactor = a->reactor,
                                     .workq = a->workq,
                                     .store = a->store,
                                     .backends = a->backends,
                                     .repos = a->repos,
                                     .log = a->log,
                                     .held_credentials = &a->held,
                                     .prices = a->prices,
                                     .n_prices = c->n_prices};
    size_t lost = 0;

    if (sg_service_new(&sc, &parts, &a->service, err) < 0)
        return -1;
    if (sg_service_recover(a->service, &lost, err) < 0)
        return -1;
    a->recovered = true;
    if (lost > 0) {
        struct sg_log_line l;
        sg_log_begin(&l, a->log, SG_LOG_WARN, "leases_lost");
        sg_log_int(&l, "leases", (int64_t)lost);
        sg_log_str(&l, "reason", "server_restarted");
        sg_log_end(&l);
    }
    return 0;
}

static int build_api(struct app *a, struct sg_error *err)
{
    if (sg_auth_new(a->cfg->auth.tokens, a->cfg->auth.n, &a->auth, err) < 0)
        return -1;
    struct sg_upstream_config up = sg_upstream_defaults();
    a->upstreams = sg_upstreams_new(a->reactor, &up);
    a->api = (struct sg_api){.service = a->service,
                             .auth = a->auth,
                             .metrics = a->metrics,
                             .upstreams = a->upstreams,
                             .log = a->log,
                             .spawner_dead = &a->spawner_dead,
                             .public_url = a->cfg->server.public_url,
                             .public_domain = a->cfg->server.public_domain,
                             .metrics_public = a->cfg->metrics.public,
                             .openapi_yaml = sg_openapi_yaml,
                             .started_us = sg_wall_us()};
    return sg_yaml_to_json(sg_openapi_yaml, strlen(sg_openapi_yaml), &a->api.openapi, err);
}

/* Two descriptors for a connection that waits; at least a third is left for sandboxes and commands. */
static unsigned connections_max(void)
{
    struct rlimit lim;

    if (getrlimit(RLIMIT_NOFILE, &lim) < 0 || lim.rlim_cur / 3 > CONNECTIONS_MAX)
        return CONNECTIONS_MAX;
    return lim.rlim_cur < 48 ? 16 : (unsigned)(lim.rlim_cur / 3);
}

static struct sg_http_config http_config(struct app *a, int listen_fd)
{
    return (struct sg_http_config){.listen_fd = listen_fd,
                                   .daemons = a->cfg->server.daemons,
                                   .routes = sg_routes,
                                   .n_routes = sg_routes_count,
                                   .app = &a->api,
                                   .reactor = a->reactor,
                                   .log = a->log,
                                   .auth = check_token,
                                   .open = asks_for_no_token,
                                   .public_url = a->cfg->server.public_url,
                                   .done = request_done,
                                   .max_body = a->cfg->server.max_body,
                                   .body_memory = a->cfg->server.body_memory,
                                   .max_connections = connections_max()};
}

static void announce(struct app *a, const char *event, const char *address, uint16_t port, bool open_to_all)
{
    char url[160];
    const char *colon = strrchr(address, ':');
    struct sg_log_line l;

    snprintf(url, sizeof url, "http://%.*s:%u", (int)(colon ? colon - address : 0), address, (unsigned)port);
    sg_log_begin(&l, a->log, SG_LOG_INFO, event);
    sg_log_str(&l, "url", url);
    sg_log_str(&l, "version", SG_VERSION);
    if (open_to_all)
        sg_log_str(&l, "note", "no tokens are configured: everybody on this machine is an administrator");
    sg_log_end(&l);
}

/* Figures on an address of their own, for scrapers that have no token. */
static const struct sg_route metrics_routes[] = {
    {.method = "GET", .path = "/metrics", .operation_id = "metrics", .auth = SG_AUTH_NONE, .handle = sg_route_metrics_open, .always = true,
     .produces = SG_ANY_TYPE},
};

static int listen_for_metrics(struct app *a, struct sg_error *err)
{
    int fd = -1;

    if (!a->cfg->metrics.listen)
        return 0;
    if (sg_http_listen(a->cfg->metrics.listen, &fd, err) < 0)
        return -1;
    struct sg_http_config hc = http_config(a, fd);
    hc.routes = metrics_routes;
    hc.n_routes = SG_COUNT_OF(metrics_routes);
    if (sg_http_new(&hc, &a->metrics_http, err) < 0) {
        sg_close(fd);
        return -1;
    }
    announce(a, "metrics_listening", a->cfg->metrics.listen, sg_http_port(a->metrics_http), false);
    return 0;
}

static int listen_for_requests(struct app *a, struct sg_error *err)
{
    struct sg_http_config hc = http_config(a, a->listen_fd);

    hc.host_match = sg_api_is_endpoint_host;
    hc.host_route = &sg_endpoint_host_route;

    if (sg_http_new(&hc, &a->http, err) < 0)
        return -1;
    a->listen_fd = -1;
    if (listen_for_metrics(a, err) < 0)
        return -1;
    announce(a, "listening", a->cfg->server.listen, sg_http_port(a->http), !sg_auth_has_tokens(a->auth));
    return 0;
}

static int build(struct app *a, struct sg_error *err)
{
    tame_allocator();
    set_limits();
    if (open_state(a, err) < 0 || sg_http_listen(a->cfg->server.listen, &a->listen_fd, err) < 0 || sg_app_start_spawner(a, err) < 0)
        return -1;
    json_object_seed(0);
    if (start_threads(a, err) < 0 || open_store(a, err) < 0 || sg_facts_held_credentials(&a->held, err) < 0 || sg_app_build_backends(a, err) < 0 ||
        build_service(a, err) < 0 || build_api(a, err) < 0)
        return -1;
    return listen_for_requests(a, err);
}

/* ---- tear-down, in reverse; also of what was built halfway ---- */

static void tear_down(struct app *a)
{
    sg_http_free(a->metrics_http);
    sg_http_free(a->http);
    sg_upstreams_free(a->upstreams);
    if (a->service)
        sg_service_end_all(a->service, sg_now_ms() + END_LEASES_MS);
    sg_backends_free(a->backends);
    a->net = sg_net_free(a->net);
    a->repos = sg_repos_close(a->repos);
    a->spawner = sg_spawner_free(a->spawner);
    a->roots = sg_roots_free(a->roots);
    /* Workers and the store thread may still call into the service; once they have ended nobody does. */
    sg_workq_free(a->workq);
    sg_store_free(a->store);
    sg_service_free(a->service);
    free(a->prices);
    sg_reactor_free(a->reactor);
    sg_metrics_free(a->metrics);
    sg_auth_free(a->auth);
    sg_json_unref(a->api.openapi);
    sg_names_finish(&a->held);
    sg_close(a->listen_fd);
    sg_close(a->lock_fd);
    free(a->state_dir);
}

/* ---- serving ---- */

/* SIGHUP: tokens and credentials again; a broken file changes nothing. */
static void reload(struct app *a)
{
    struct sg_config *fresh = NULL;
    struct sg_error err = {0};
    struct sg_driver *d;

    if (sg_config_load(a->args, &fresh, &err) < 0 || sg_auth_replace(a->auth, fresh->auth.tokens, fresh->auth.n, &err) < 0)
        sg_log_event(a->log, SG_LOG_ERROR, "reload_failed", &err);
    else
        sg_log_event(a->log, SG_LOG_INFO, "reloaded", NULL);
    sg_error_clear(&err);
    for (size_t i = 0; (d = sg_backends_at(a->backends, i)) != NULL; i++) {
        if (sg_driver_reload(d, &err) < 0)
            sg_log_event(a->log, SG_LOG_ERROR, "reload_failed", &err);
        sg_error_clear(&err);
    }
    sg_config_free(fresh);
}

/* While running work may finish, a further signal to stop says that it need not. */
struct impatience {
    struct app *app;
    struct sg_watch watch;
    struct sg_task end;
    sem_t ended;
};

static void signalled(struct sg_watch *w, uint32_t events SG_UNUSED)
{
    struct impatience *i = sg_container_of(w, struct impatience, watch);
    struct signalfd_siginfo info;

    if (read(w->fd, &info, sizeof info) != (ssize_t)sizeof info)
        return;
    sg_log_event(i->app->log, SG_LOG_INFO, "drain_cut_short", NULL);
    sg_http_hurry(i->app->http);
}

static void end_impatience(struct sg_task *t)
{
    struct impatience *i = sg_container_of(t, struct impatience, end);

    sg_watch_del(i->app->reactor, &i->watch);
    sem_post(&i->ended);
}

static void drain(struct app *a)
{
    struct impatience i = {.app = a, .watch = {.ready = signalled, .fd = -1}, .end = {.run = end_impatience}};
    struct sg_error err = {0};
    sigset_t stop;

    sem_init(&i.ended, 0, 0);
    sigemptyset(&stop);
    sigaddset(&stop, SIGTERM);
    sigaddset(&stop, SIGINT);
    i.watch.fd = signalfd(-1, &stop, SFD_CLOEXEC | SFD_NONBLOCK);
    if (i.watch.fd < 0 || sg_watch_add(a->reactor, &i.watch, EPOLLIN, &err) < 0)
        sg_error_clear(&err); /* out of descriptors: then it takes its time */
    sg_http_wait_idle(a->http, a->cfg->server.drain_timeout_ms);
    sg_reactor_post(a->reactor, &i.end);
    while (sem_wait(&i.ended) != 0) {
    }
    sem_destroy(&i.ended);
    sg_close(i.watch.fd);
}

static void serve(struct app *a, const sigset_t *signals)
{
    int sig;

    while (sigwait(signals, &sig) == 0 && sig == SIGHUP)
        reload(a);
    sg_log_event(a->log, SG_LOG_INFO, "draining", NULL);
    sg_service_drain(a->service); /* readiness is false and nothing new begins, but health checks are still answered */
    drain(a);
    sg_http_stop(a->http, 0, CANCEL_MS);
}

int sg_app_run(const struct sg_config *cfg, const struct sg_config_args *args, struct sg_error *err)
{
    struct app a = {.cfg = cfg, .args = args, .lock_fd = -1, .listen_fd = -1};
    sigset_t signals;

    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    signal(SIGPIPE, SIG_IGN);
    a.log = sg_log_new(STDERR_FILENO, cfg->log.level);
    int rc = build(&a, err);
    if (rc == 0)
        serve(&a, &signals);
    tear_down(&a); /* its threads log to the end */
    if (rc == 0)
        sg_log_event(a.log, SG_LOG_INFO, "stopped", NULL);
    sg_log_free(a.log);
    return rc;
}
