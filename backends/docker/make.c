/* From the wish for a container to its agent's HELLO. One step asks for the next; what goes wrong anywhere ends in make_failed(), which
 * removes whatever there is before it answers. */
#include "backends/docker/pull.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/str.h"

#define MAKE_MS 60000
#define START_MS 60000
#define IMAGE_ENV_MAX 256U

/* ---- the answer ---- */

void make_answer(struct box *b, const struct sg_error *err)
{
    struct sg_sandbox_done done = b->done;
    b->done = (struct sg_sandbox_done){0};
    sg_timer_cancel(b->d->parts.reactor, &b->timer);
    if (b->cancel != NULL) {
        struct sg_cancel *c = b->cancel;
        b->cancel = NULL;
        if (sg_cancel_unhook(c, &b->hook)) {
            box_unref(b); /* else the hook's own task does */
        }
        sg_cancel_unref(c);
    }
    if (done.fn != NULL) {
        done.fn(done.arg, err == NULL ? &box_ref(b)->base.sb : NULL, err);
    }
}

/* What there was of it is gone, or nobody can be asked any more. */
static void failure_cleaned(void *arg, const struct sg_error *err)
{
    struct box *b = arg;
    (void)err;
    make_answer(b, &b->why);
    box_unref(b);
}

/* One that was never ready is no sandbox that somebody has lost. */
static void take_why(struct box *b, const struct sg_error *why)
{
    sg_error_clear(&b->why);
    if (why->code != SG_SANDBOX_LOST || b->adopted) {
        sg_error_copy(&b->why, why);
        return;
    }
    sg_error_set(&b->why, SG_PROVIDER_FAILED, "a container has ended before it was ready: %s", why->message);
    sg_error_reason(&b->why, "agent_not_ready");
    sg_error_member(&b->why, "provider", json_string("docker"));
}

void make_failed(struct box *b, const struct sg_error *why)
{
    if (b->state != BOX_MAKING) {
        return;
    }
    b->state = BOX_LOST;
    take_why(b, why);
    sg_timer_cancel(b->d->parts.reactor, &b->timer);
    box_end(b, &(struct sg_done){failure_cleaned, box_ref(b)});
}

static void failed(struct box *b, const struct reply *r, const char *what)
{
    struct sg_error err = {0};
    engine_error(r, what, &err);
    make_failed(b, &err);
    sg_error_clear(&err);
}

/* True: the wish is no more. */
static bool given_up(struct box *b)
{
    struct sg_error err = {0};
    if (b->state != BOX_MAKING) {
        return true;
    }
    if (!b->cancelled && !b->d->closing) {
        return false;
    }
    if (b->d->closing) {
        sg_error_set(&err, SG_SHUTTING_DOWN, "the server is shutting down");
        sg_error_retry_after(&err, 5);
    } else {
        sg_error_set(&err, SG_CANCELLED, "the caller gave up waiting");
    }
    make_failed(b, &err);
    sg_error_clear(&err);
    return true;
}

void make_cancel(struct box *b)
{
    b->cancelled = true;
    if (b->pull != NULL) {
        pull_leave(b);
        (void)given_up(b);
        box_unref(b);
    } else if (b->pid > 0) {
        (void)given_up(b); /* it waits for the agent; else the engine's answer is waited for, which comes soon */
    }
}

/* ---- the agent ---- */

void make_done(struct box *b)
{
    if (!given_up(b)) {
        box_become(b, b->warm ? BOX_WARM : BOX_READY);
        make_answer(b, NULL);
    }
}

void make_ready(struct box *b)
{
    struct sg_error err = {0};
    if (given_up(b)) {
        return;
    }
    sg_agent_sandbox_set(&b->base, sg_steal(&b->greeting));
    b->oom_fd = b->far ? -1 : docker_oom_fd(b->pid);
    if (b->egress != SG_EGRESS_RESTRICTED || b->warm) {
        make_serve(b);
    } else if (box_listen(b, &err) < 0) {
        make_failed(b, &err);
    }
    sg_error_clear(&err);
}

void make_serve(struct box *b)
{
    if (given_up(b)) {
        return;
    }
    if (b->blackbox) {
        b->serving = true;
        blackbox_start(b);
    } else {
        make_done(b);
    }
}

static void connect_now(struct box *b)
{
    struct sg_error err = {0};
    if (b->greeting == NULL && box_connect(b, &err) < 0) {
        make_failed(b, &err);
    }
    sg_error_clear(&err);
}

void make_named(struct box *b)
{
    b->named = true;
    if (b->state == BOX_MAKING && b->pid > 0) {
        connect_now(b);
    }
}

static void looked_again(void *arg, const struct reply *r)
{
    struct box *b = arg;
    struct sg_error err = {0};
    const json_t *state = json_object_get(r->json, "State");
    const char *text = json_string_value(json_object_get(state, "Error"));
    if (b->state == BOX_MAKING) {
        sg_error_set(&err, SG_PROVIDER_FAILED, "the agent in container %s was not ready in time (container: %s, exit code %lld%s%s)", b->base.sb.id,
                     state != NULL ? json_string_value(json_object_get(state, "Status")) : "unknown",
                     (long long)json_integer_value(json_object_get(state, "ExitCode")), text != NULL && *text != '\0' ? ": " : "",
                     text != NULL ? text : "");
        sg_error_reason(&err, "agent_not_ready");
        sg_error_member(&err, "provider", json_string("docker"));
        make_failed(b, &err);
        sg_error_clear(&err);
    }
    box_unref(b);
}

static void too_late(struct sg_timer *t)
{
    box_look(sg_container_of(t, struct box, timer), looked_again);
}

void make_await(struct box *b)
{
    struct stat st;
    char path[SG_ID_MAX + 32];
    b->timer.fire = too_late;
    sg_timer_set(b->d->parts.reactor, &b->timer, sg_now_ms() + b->d->cfg.start_ms);
    if (b->far) {
        reach_begin(b);
        return;
    }
    (void)snprintf(path, sizeof path, "%s/%s", b->run, SG_AGENT_SOCKET_NAME);
    if (b->named || fstatat(b->d->run_fd, path, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        connect_now(b);
    }
}

/* ---- the container ---- */

/* Podman says what it has added itself as if it were the image's. */
static bool podmans(const char *name)
{
    static const char *const names[] = {"container", "HOSTNAME", "HOME", "TERM"};
    bool is = false;
    for (size_t i = 0; i < SG_COUNT_OF(names); i++) {
        is = is || sg_streq(names[i], name);
    }
    return is;
}

/* What an image sets for its programs holds for commands, too; its PATH is better than ours. */
static void take_env(struct box *b, const json_t *env)
{
    size_t i;
    json_t *v;
    json_array_foreach(env, i, v)
    {
        const char *s = json_string_value(v);
        const char *eq = s != NULL ? strchr(s, '=') : NULL;
        if (eq == NULL || i >= IMAGE_ENV_MAX) {
            continue;
        }
        sg_cleanup(sg_free_p) char *name = sg_xstrndup(s, (size_t)(eq - s));
        if (b->d->podman && podmans(name)) {
            continue;
        }
        (void)sg_env_set(&b->env, name, eq + 1, NULL); /* one that is no name of a variable is left out */
    }
}

bool make_take_inspect(struct box *b, const json_t *json)
{
    const json_t *state = json_object_get(json, "State");
    const json_t *host = json_object_get(json, "HostConfig");
    json_int_t pid = json_integer_value(json_object_get(state, "Pid"));
    if (!json_is_true(json_object_get(state, "Running")) || pid <= 0) {
        return false;
    }
    b->pid = (pid_t)pid;
    b->set.memory_bytes = json_integer_value(json_object_get(host, "Memory"));
    b->set.pids = json_integer_value(json_object_get(host, "PidsLimit"));
    b->set.cpu_milli = json_integer_value(json_object_get(host, "NanoCpus")) / NANO_PER_MILLI;
    take_env(b, json_object_get(json_object_get(json, "Config"), "Env"));
    return true;
}

static void inspected(void *arg, const struct reply *r)
{
    struct box *b = arg;
    if (!given_up(b)) {
        if (r->status != 200) {
            failed(b, r, "look at the container that it has started");
        } else if (make_take_inspect(b, r->json)) {
            make_await(b);
        } else {
            looked_again(box_ref(b), r); /* it has ended already */
        }
    }
    box_unref(b);
}

static void started(void *arg, const struct reply *r)
{
    struct box *b = arg;
    if (!given_up(b)) {
        if (r->status == 204 || r->status == 304) {
            box_look(b, inspected);
        } else {
            failed(b, r, "start a container");
        }
    }
    box_unref(b);
}

static void start(struct box *b)
{
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/containers/%s/start", b->base.sb.id);
    engine_ask(b->d, &(struct ask){.method = "POST", .path = path, .ms = START_MS, .fn = started, .arg = box_ref(b)});
}

static void brought(void *arg, const struct reply *r)
{
    struct box *b = arg;
    if (!given_up(b)) {
        if (r->status == 200) {
            start(b);
        } else {
            failed(b, r, "bring the agent into a container");
        }
    }
    box_unref(b);
}

static void image_missing(struct box *b)
{
    struct sg_error err = {0};
    sg_error_set(&err, SG_UNAVAILABLE, "the engine has no image %s", b->image);
    sg_error_reason(&err, "image_missing");
    sg_error_retry_after(&err, 30);
    sg_error_member(&err, "image", json_string(b->image));
    make_failed(b, &err);
    sg_error_clear(&err);
}

static void snapshot_missing(struct box *b)
{
    struct sg_error err = {0};
    sg_error_field(&err, SG_SNAPSHOT_NOT_FOUND, "manifest.snapshot", "the engine has the image %s of the snapshot no more", b->snapshot);
    make_failed(b, &err);
    sg_error_clear(&err);
}

/* How many there are only the engine knows. */
static bool asks_too_many_cpus(const struct box *b, const struct reply *r)
{
    return r->status == 400 && b->limits.cpu_milli != b->d->cfg.cpu_milli && strstr(r->message, "CPUs") != NULL;
}

static void too_many_cpus(struct box *b, const struct reply *r)
{
    struct sg_error err = {0};
    sg_error_field(&err, SG_LIMIT_EXCEEDED, "limits.cpu_max", "the engine refuses it: %s", r->message);
    make_failed(b, &err);
    sg_error_clear(&err);
}

static void make(struct box *b);

void make_pulled(struct box *b, const struct sg_error *err)
{
    if (given_up(b)) {
        return;
    }
    if (err != NULL) {
        make_failed(b, err);
    } else {
        make(b);
    }
}

static void made(void *arg, const struct reply *r)
{
    struct box *b = arg;
    if (!given_up(b)) {
        /* Otherwise there is none: it was refused, or not even asked for. Where nobody knows it is removed. */
        b->created = r->status == 201 || (r->status == 0 && r->err->code != SG_UNAVAILABLE);
        if (r->status == 201 && b->far) {
            reach_bring(b, brought);
        } else if (r->status == 201) {
            start(b);
        } else if (r->status == 404 && b->snapshot != NULL) {
            snapshot_missing(b);
        } else if (r->status == 404 && b->d->cfg.pull && !b->pulled) {
            b->pulled = true;
            pull_for(b);
        } else if (r->status == 404) {
            image_missing(b);
        } else if (asks_too_many_cpus(b, r)) {
            too_many_cpus(b, r);
        } else {
            failed(b, r, "make a container");
        }
    }
    box_unref(b);
}

static void make(struct box *b)
{
    struct sg_error err = {0};
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/containers/create?name=%s", b->base.sb.id);
    sg_cleanup(sg_free_p) char *body = docker_body(b->d, b);
    if (body == NULL) {
        sg_error_set(&err, SG_NO_MEMORY, "no memory for a container");
        make_failed(b, &err);
        sg_error_clear(&err);
        return;
    }
    b->created = true; /* or it may have been */
    engine_ask(b->d, &(struct ask){.method = "POST", .path = path, .body = body, .ms = MAKE_MS, .fn = made, .arg = box_ref(b)});
}

static void met(void *arg, const struct reply *r)
{
    struct box *b = arg;
    if (!given_up(b)) {
        if (r->status == 200) {
            make(b);
        } else {
            failed(b, r, "make a container");
        }
    }
    box_unref(b);
}

/* What is asked for depends on whose engine it is. */
static void meet(struct box *b)
{
    if (engine_known(b->d)) {
        make(b);
    } else {
        engine_ask(b->d, &(struct ask){.method = "GET", .path = "/_ping", .ms = LOOK_MS, .idempotent = true, .fn = met, .arg = box_ref(b)});
    }
}

/* ---- the wish ---- */

static void cancel_run(struct sg_task *t)
{
    struct box *b = sg_container_of(t, struct box, cancel_task);
    if (b->state == BOX_MAKING) {
        make_cancel(b);
    }
    box_unref(b);
}

/* Any thread; takes over the hook's reference. */
static void cancel_fired(struct sg_cancel_hook *h, enum sg_cancel_reason why)
{
    struct box *b = sg_container_of(h, struct box, hook);
    (void)why;
    if (!docker_post(b->d, &b->cancel_task)) {
        box_unref(b); /* the driver has ended, so it has been answered */
    }
}

void make_cold(struct box *b)
{
    struct sg_error err = {0};
    if (given_up(b)) {
        return;
    }
    if (!b->far && (box_make_dir(b, &err) < 0 || box_watch_dir(b, &err) < 0)) {
        make_failed(b, &err);
    } else {
        meet(b);
    }
    sg_error_clear(&err);
}

void make_begin(struct box *b)
{
    box_list(b);
    if (b->cancel != NULL) {
        b->hook.fired = cancel_fired;
        (void)sg_cancel_hook(b->cancel, &box_ref(b)->hook);
    }
    if (!given_up(b) && (b->warm || !warm_take(b->d, b))) {
        make_cold(b);
    }
}

static void begin(struct sg_task *t)
{
    struct box *b = sg_container_of(t, struct box, begin_task);
    make_begin(b);
    box_unref(b);
}

int docker_create(struct sg_driver *drv, const struct sg_sandbox_spec *spec, struct sg_cancel *cancel, const struct sg_sandbox_done *done,
                  struct sg_error *err)
{
    struct docker *d = (struct docker *)drv;
    char name[NAME_LEN];
    if (docker_check(drv, spec, err) < 0) {
        return -1;
    }
    (void)snprintf(name, sizeof name, "sandgate-%s", spec->lease_id);
    struct box *b = box_new(d, name);
    (void)snprintf(b->lease, sizeof b->lease, "%s", spec->lease_id);
    sg_id_new("run", b->run);
    docker_apply(d, b, spec);
    b->done = *done;
    b->blackbox = spec->mode == SG_MODE_BLACKBOX && spec->brings_service;
    b->cancel = cancel != NULL ? sg_cancel_ref(cancel) : NULL;
    b->cancel_task.run = cancel_run;
    b->begin_task.run = begin;
    int rc = b->blackbox && spec->env != NULL ? sg_env_merge(&b->service_env, spec->env, err) : 0;
    if (rc == 0 && !docker_post(d, &b->begin_task)) {
        rc = sg_error_set(err, SG_SHUTTING_DOWN, "the server is shutting down");
    }
    if (rc < 0) {
        box_unref(b);
    }
    return rc;
}
