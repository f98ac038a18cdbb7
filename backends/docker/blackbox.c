/* What a blackbox runs whose lease names no command: its image's own. It is started before anybody has the container, and is what a command
 * has left in the background: it outlives the server as the container does. */
#include "backends/docker/docker_priv.h"

#include <stdio.h>

#include "base/clock.h"

#define START_MS 30000
#define ARGS_MAX 256U

/* The first MiB (or two, as shells count) of what it writes is kept for people. */
#define IN_THE_BACKGROUND \
    "{ \"$@\" </dev/null 2>&1 | { (ulimit -f 2048; exec cat >/tmp/service.log); exec cat >/dev/null; } ; } >/dev/null 2>&1 &"

static void fail(struct box *b, const char *why)
{
    struct sg_error err = {0};
    sg_error_set(&err, SG_UNAVAILABLE, "the service of container %s could not be started: %s", b->base.sb.id, why);
    sg_error_reason(&err, "service_not_ready");
    sg_error_retry_after(&err, 1);
    make_failed(b, &err);
    sg_error_clear(&err);
}

/* The sink's last word has been heard. */
static void over(struct sg_task *t)
{
    struct box *b = sg_container_of(t, struct box, service_task);
    b->service->ops->release(b->service);
    b->service = NULL;
    if (b->state == BOX_MAKING && b->service_ok) {
        make_done(b);
    } else {
        fail(b, b->service_why);
    }
    box_unref(b);
}

static void started(void *arg)
{
    (void)arg;
}

static void failed(void *arg, const struct sg_error *err)
{
    struct box *b = arg;
    (void)snprintf(b->service_why, sizeof b->service_why, "%.150s", err->message);
    b->service_task.run = over;
    sg_reactor_post(b->d->parts.reactor, &b->service_task);
}

static void exited(void *arg, const struct sg_exit *exit)
{
    struct box *b = arg;
    b->service_ok = exit->signal == 0 && exit->returncode == 0;
    (void)snprintf(b->service_why, sizeof b->service_why, "/bin/sh of its image ended with %d", exit->signal != 0 ? 128 + exit->signal : exit->returncode);
    b->service_task.run = over;
    sg_reactor_post(b->d->parts.reactor, &b->service_task);
}

static int merged(const struct box *b, struct sg_env *env, struct sg_error *err)
{
    return sg_env_base(env, err) < 0 || sg_env_merge(env, &b->env, err) < 0 || sg_env_merge(env, &b->service_env, err) < 0 ? -1 : 0;
}

static void run(struct box *b, const char *const *argv)
{
    const struct sg_exec_sink sink = {.started = started, .failed = failed, .exited = exited, .arg = b};
    struct sg_env env = {0};
    struct sg_error err = {0};
    const struct sg_exec_spec spec = {.argv = argv, .cwd = b->cwd, .env = &env, .timeout_ms = START_MS, .pipe_bytes = 4096};
    (void)box_ref(b);
    if (merged(b, &env, &err) < 0 || docker_exec(&b->base.sb, &spec, &sink, &b->service, &err) < 0) {
        fail(b, err.message);
        box_unref(b);
    }
    sg_env_finish(&env);
    sg_error_clear(&err);
}

static size_t add(const char **argv, size_t n, const json_t *list)
{
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v)
    {
        if (json_is_string(v) && n < ARGS_MAX) {
            argv[n++] = json_string_value(v);
        }
    }
    return n;
}

static void image_seen(void *arg, const struct reply *r)
{
    struct box *b = arg;
    const json_t *config = json_object_get(r->json, "Config");
    const char *dir = json_string_value(json_object_get(config, "WorkingDir"));
    const char *argv[ARGS_MAX + 1] = {"/bin/sh", "-c", IN_THE_BACKGROUND, "service"};
    if (b->state == BOX_MAKING) {
        size_t n = add(argv, 4, json_object_get(config, "Entrypoint"));
        n = add(argv, n, json_object_get(config, "Cmd"));
        if (r->status != 200) {
            fail(b, "the engine does not say what its image runs");
        } else if (n == 4 || n == ARGS_MAX) {
            fail(b, "its image has no command of its own; name one (env_args.sandbox_cmd)");
        } else {
            b->cwd = dir != NULL && dir[0] == '/' ? sg_xstrdup(dir) : NULL;
            run(b, argv);
        }
    }
    box_unref(b);
}

void blackbox_start(struct box *b)
{
    sg_cleanup(sg_free_p) char *name = sg_net_escape(b->image);
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/images/%s/json", name);
    engine_ask(b->d, &(struct ask){.method = "GET", .path = path, .ms = LOOK_MS, .idempotent = true, .fn = image_seen, .arg = box_ref(b)});
}
