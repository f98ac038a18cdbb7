/* The driver: its life, its directory, its health. */
#include "backends/docker/docker_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utlist.h>

#include "backends/facts.h"
#include "base/clock.h"
#include "base/fd.h"

#define AGENT_BYTES_MAX ((size_t)32 << 20)
#define RETIRE_MS 5000
#define ENGINE_CALLS 32U
#define ENGINE_WAITING 4096U

/* ---- references ---- */

static char *copy(const char *s)
{
    return s != NULL ? sg_xstrdup(s) : NULL;
}

static void drop(const char *s)
{
    free((void *)(uintptr_t)s);
}

static void drop_config(struct sg_docker_config *c)
{
    drop(c->host);
    drop(c->tls_ca);
    drop(c->tls_cert);
    drop(c->tls_key);
    drop(c->image);
    for (size_t i = 0; c->images_allowed != NULL && c->images_allowed[i] != NULL; i++) {
        drop(c->images_allowed[i]);
    }
    free((void *)(uintptr_t)c->images_allowed);
    drop(c->dir);
    drop(c->host_dir);
    drop(c->agent_path);
    drop(c->network);
}

static void take_config(struct docker *d, const struct sg_docker_config *c)
{
    size_t n = 0;
    while (c->images_allowed != NULL && c->images_allowed[n] != NULL) {
        n++;
    }
    const char **images = sg_xcalloc(n + 1, sizeof *images);
    for (size_t i = 0; i < n; i++) {
        images[i] = sg_xstrdup(c->images_allowed[i]);
    }
    d->cfg = *c;
    d->cfg.host = copy(c->host);
    d->cfg.tls_ca = copy(c->tls_ca);
    d->cfg.tls_cert = copy(c->tls_cert);
    d->cfg.tls_key = copy(c->tls_key);
    d->cfg.image = copy(c->image);
    d->cfg.images_allowed = images;
    d->cfg.egress_allow = NULL; /* that is what the rules are made of */
    d->cfg.dir = copy(c->dir);
    d->cfg.host_dir = copy(c->host_dir != NULL ? c->host_dir : c->dir);
    d->cfg.agent_path = copy(c->agent_path);
    d->cfg.network = copy(c->network);
    d->profile = c->own_profile ? docker_profile() : NULL;
}

struct docker *docker_ref(struct docker *d)
{
    (void)atomic_fetch_add(&d->refs, 1);
    return d;
}

void docker_unref(struct docker *d)
{
    if (atomic_fetch_sub(&d->refs, 1) > 1) {
        return;
    }
    drop_config(&d->cfg);
    login_drop(d);
    free(d->profile);
    sg_egress_rules_free(d->rules);
    sg_error_clear(&d->why_not);
    sg_buf_finish(&d->bring);
    (void)sg_close(d->run_fd);
    (void)sg_close(d->inotify);
    (void)pthread_cond_destroy(&d->changed);
    (void)pthread_mutex_destroy(&d->lock);
    free(d);
}

bool docker_post(struct docker *d, struct sg_task *t)
{
    (void)pthread_mutex_lock(&d->lock);
    bool open = !d->closed;
    if (open) {
        sg_reactor_post(d->parts.reactor, t);
    }
    (void)pthread_mutex_unlock(&d->lock);
    return open;
}

struct box *docker_find(const struct docker *d, const char *name)
{
    struct box *b;
    DL_FOREACH(d->boxes, b)
    {
        if (sg_streq(b->base.sb.id, name)) {
            return b;
        }
    }
    return NULL;
}

/* ---- health ---- */

void docker_set_well(struct docker *d, bool well, const struct sg_error *why)
{
    (void)pthread_mutex_lock(&d->lock);
    d->well = well;
    sg_error_clear(&d->why_not);
    if (why != NULL) {
        sg_error_copy(&d->why_not, why);
    }
    (void)pthread_mutex_unlock(&d->lock);
}

static int health(struct sg_driver *drv, struct sg_error *err)
{
    struct docker *d = (struct docker *)drv;
    (void)pthread_mutex_lock(&d->lock);
    bool well = d->well;
    if (!well && err != NULL) {
        sg_error_copy(err, &d->why_not);
    }
    (void)pthread_mutex_unlock(&d->lock);
    return well ? 0 : -1;
}

/* ---- the end ---- */

static void step_over(struct docker *d)
{
    (void)pthread_mutex_lock(&d->lock);
    d->closed = true;
    d->stepped = true;
    (void)pthread_cond_broadcast(&d->changed);
    (void)pthread_mutex_unlock(&d->lock);
}

static void retired(struct docker *d)
{
    if (d->retiring) {
        d->retiring = false;
        sg_timer_cancel(d->parts.reactor, &d->retire_timer);
        (void)pthread_mutex_lock(&d->lock);
        d->stepped = true;
        (void)pthread_cond_broadcast(&d->changed);
        (void)pthread_mutex_unlock(&d->lock);
    }
}

/* Boxes that are ready have leases, which go on with the next server. */
static bool all_stay(const struct docker *d)
{
    const struct box *b;
    DL_FOREACH(d->boxes, b)
    {
        if (b->state != BOX_READY) {
            return false;
        }
    }
    return true;
}

void docker_unlisted(struct docker *d)
{
    if (d->retiring && all_stay(d)) {
        retired(d);
    }
}

static void retire_late(struct sg_timer *t)
{
    retired(sg_container_of(t, struct docker, retire_timer));
}

/* What is kept warm is nobody's, and goes with the server. An engine that is away is asked by the next one. */
static void retire_begin(struct sg_task *t)
{
    struct docker *d = sg_container_of(t, struct docker, close_task);
    struct box *b, *next;
    d->settled = false;
    d->retiring = true;
    sg_timer_cancel(d->parts.reactor, &d->warm_timer);
    d->retire_timer.fire = retire_late;
    sg_timer_set(d->parts.reactor, &d->retire_timer, sg_now_ms() + RETIRE_MS);
    DL_FOREACH_SAFE(d->boxes, b, next)
    {
        if (b->warm && b->state == BOX_MAKING) {
            make_cancel(b);
        } else if (b->state == BOX_WARM) {
            box_end(b, &(struct sg_done){0});
        }
    }
    if (all_stay(d) || !d->well) {
        retired(d);
    }
}

static void close_begin(struct sg_task *t)
{
    struct docker *d = sg_container_of(t, struct docker, close_task);
    struct box *b, *next;
    d->closing = true;
    watch_stop(d);
    sg_timer_cancel(d->parts.reactor, &d->sweep_timer);
    sg_timer_cancel(d->parts.reactor, &d->warm_timer);
    DL_FOREACH_SAFE(d->boxes, b, next)
    {
        box_shut(b);
    }
    sg_watch_del(d->parts.reactor, &d->news);
    step_over(d);
}

static void close_finish(struct sg_task *t)
{
    step_over(sg_container_of(t, struct docker, close_task));
}

static void run_and_wait(struct docker *d, void (*run)(struct sg_task *t))
{
    d->close_task.run = run;
    (void)pthread_mutex_lock(&d->lock);
    d->stepped = false;
    sg_reactor_post(d->parts.reactor, &d->close_task);
    while (!d->stepped) {
        (void)pthread_cond_wait(&d->changed, &d->lock);
    }
    (void)pthread_mutex_unlock(&d->lock);
}

static void driver_free(struct sg_driver *drv)
{
    struct docker *d = (struct docker *)drv;
    run_and_wait(d, retire_begin);
    run_and_wait(d, close_begin);
    d->streams = sg_net_client_free(d->streams);
    d->engine = sg_net_client_free(d->engine);
    d->hub = sg_egress_hub_free(d->hub); /* every container has been cut off */
    run_and_wait(d, close_finish); /* after the last answers */
    docker_unref(d);
}

/* ---- start ---- */

static const struct sg_driver_ops docker_ops = {
    .create = docker_create,
    .check = docker_check,
    .adopt = docker_adopt,
    .settled = docker_settled,
    .terminate = docker_terminate,
    .sandbox_free = docker_sandbox_free,
    .exec_start = docker_exec,
    .files = &sg_agent_sandbox_files,
    .dial = sg_agent_sandbox_dial,
    .proxies = docker_proxies,
    .warm = docker_warm,
    .metadata = docker_metadata,
    .health = health,
    .free = driver_free,
};

/* Containers get the program from here: the server's own may lie where the engine's host does not see it. */
static int place_agent(const struct sg_docker_config *c, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *to = sg_xasprintf("%s/sandgate-agent", c->dir);
    sg_cleanup(sg_free_p) char *program = NULL;
    size_t len;
    if (sg_read_file(c->agent_path, AGENT_BYTES_MAX, &program, &len, err) < 0) {
        return sg_error_wrap(err, "cannot read the agent");
    }
    return sg_write_file(to, program, len, 0755, err);
}

static int place_profile(const struct docker *d, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *to = sg_xasprintf("%s/" PROFILE_NAME, d->cfg.dir);
    return d->profile != NULL ? sg_write_file(to, d->profile, strlen(d->profile), 0644, err) : 0;
}

static int read_instance(struct docker *d, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("%s/instance", d->cfg.dir);
    sg_cleanup(sg_free_p) char *text = NULL;
    size_t len;
    if (access(path, F_OK) < 0) {
        sg_id_new("inst", d->instance);
        return sg_write_file(path, d->instance, strlen(d->instance), 0600, err);
    }
    if (sg_read_file(path, SG_ID_MAX, &text, &len, err) < 0) {
        return -1;
    }
    if (!sg_id_valid("inst", text)) {
        return sg_error_set(err, SG_UNAVAILABLE, "%s does not hold the name of this server", path);
    }
    (void)snprintf(d->instance, sizeof d->instance, "%s", text);
    return 0;
}

static int make_places(struct docker *d, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *run = sg_xasprintf("%s/run", d->cfg.dir);
    if (sg_mkdirs(d->cfg.dir, 0711, err) < 0 || sg_mkdirs(run, 0711, err) < 0 || place_agent(&d->cfg, err) < 0 ||
        place_profile(d, err) < 0 || read_instance(d, err) < 0) {
        return -1;
    }
    d->run_fd = open(run, O_PATH | O_DIRECTORY | O_CLOEXEC);
    d->inotify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (d->run_fd < 0 || d->inotify < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot watch %s", run);
    }
    return 0;
}

/* "tcp://..." is http or https, as there are certificates. */
static char *base_of(const struct sg_docker_config *c)
{
    if (strncmp(c->host, "tcp://", 6) != 0) {
        return sg_xstrdup(c->host);
    }
    return sg_xasprintf("%s://%s", c->tls_ca != NULL || c->tls_cert != NULL ? "https" : "http", c->host + 6);
}

static int open_engine(struct docker *d, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *base = base_of(&d->cfg);
    const struct sg_net_client_config nc = {.base = base,
                                            .ca_file = d->cfg.tls_ca,
                                            .cert_file = d->cfg.tls_cert,
                                            .key_file = d->cfg.tls_key,
                                            .max_concurrent = ENGINE_CALLS,
                                            .max_waiting = ENGINE_WAITING};
    struct sg_net_client_config lasting = nc;
    lasting.max_concurrent = ENGINE_WAITING;
    if (sg_net_client_new(d->parts.net, &nc, &d->engine, err) < 0 || sg_net_client_new(d->parts.net, &lasting, &d->streams, err) < 0) {
        return sg_error_wrap(err, "docker.host");
    }
    return d->far ? reach_load(d, err) : 0;
}

int sg_docker_new(const struct sg_docker_config *c, const struct sg_docker_parts *parts, struct sg_driver **ret, struct sg_error *err)
{
    if (sg_docker_config_check(c, err) < 0) {
        return -1;
    }
    struct docker *d = sg_xcalloc(1, sizeof *d);
    const struct sg_facts_settings settings = {.docker_egress = c->egress};
    atomic_init(&d->refs, 1);
    atomic_init(&d->warm, 0);
    d->ops = docker_ops;
    d->ops.snapshots = c->commit ? &docker_commit_ops : &docker_commit_old_ops;
    d->base.ops = &d->ops;
    (void)sg_facts_get("docker", &settings, &d->base.facts);
    d->parts = *parts;
    d->run_fd = d->inotify = -1;
    (void)pthread_mutex_init(&d->lock, NULL);
    (void)pthread_cond_init(&d->changed, NULL);
    take_config(d, c);
    d->far = sg_docker_is_far(c);
    sg_error_set(&d->why_not, SG_UNAVAILABLE, "the engine at %s has not answered yet", d->cfg.host);
    sg_error_reason(&d->why_not, "engine_starting");
    sg_error_retry_after(&d->why_not, 1);
    d->sweep_timer.fire = sweep_due;
    d->news.ready = docker_news;
    bool fine = login_load(d, err) == 0 && make_places(d, err) == 0 && open_engine(d, err) == 0 && docker_egress_start(d, c->egress_allow, err) == 0;
    d->news.fd = d->inotify;
    if (!fine || sg_watch_add(d->parts.reactor, &d->news, EPOLLIN, err) < 0) {
        d->streams = sg_net_client_free(d->streams);
        d->engine = sg_net_client_free(d->engine);
        d->hub = sg_egress_hub_free(d->hub);
        docker_unref(d);
        return -1;
    }
    watch_start(d);
    *ret = &d->base;
    return 0;
}
