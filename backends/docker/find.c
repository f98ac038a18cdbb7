/* Containers of a server before this one: those of its leases, and those of nobody. */
#include "backends/docker/docker_priv.h"

#include <stdio.h>
#include <utlist.h>

#include "base/clock.h"

#define LIST_MS 30000
#define LIST_MAX ((size_t)16 << 20)
#define AGAIN_FIRST_MS 250
#define AGAIN_MOST_MS 5000
#define SWEEP_MS 60000

/* ---- adopt ---- */

static void find(struct box *b);

static void find_again(struct sg_timer *t)
{
    find(sg_container_of(t, struct box, timer));
}

static void nothing_there(struct box *b, bool ours, const char *what)
{
    struct sg_error err = {0};
    b->adopted = ours; /* what is not ours is not touched */
    sg_error_set(&err, SG_SANDBOX_LOST, "container %s %s", b->base.sb.id, what);
    make_failed(b, &err);
    sg_error_clear(&err);
}

static void take(struct box *b, const json_t *json)
{
    const json_t *labels = json_object_get(json_object_get(json, "Config"), "Labels");
    const char *instance = json_string_value(json_object_get(labels, LABEL_INSTANCE));
    const char *run = json_string_value(json_object_get(labels, LABEL_RUN));
    const char *image = json_string_value(json_object_get(labels, LABEL_IMAGE));
    const char *egress_name = json_string_value(json_object_get(labels, LABEL_EGRESS));
    enum sg_egress egress = SG_EGRESS_NONE;
    const char *agent = json_string_value(json_object_get(labels, LABEL_AGENT));
    struct sg_error err = {0};
    char what[96];
    if (instance == NULL || !sg_streq(instance, b->d->instance) || run == NULL || !sg_id_valid("run", run)) {
        nothing_there(b, false, "is not one of this server's");
        return;
    }
    (void)snprintf(b->run, sizeof b->run, "%s", run);
    b->image = sg_xstrdup(image != NULL ? image : "");
    (void)(egress_name != NULL && sg_egress_parse(egress_name, &egress));
    docker_set_egress(b, egress);
    b->far = agent != NULL && sg_streq(agent, "engine");
    if (make_take_inspect(b, json)) {
        if (!b->far && box_watch_dir(b, &err) < 0) {
            make_failed(b, &err);
        } else {
            make_await(b); /* it may have been started just before that server ended, and not listen yet */
        }
        sg_error_clear(&err);
        return;
    }
    const json_t *state = json_object_get(json, "State");
    (void)snprintf(what, sizeof what, "does not run any more (exit code %lld)", (long long)json_integer_value(json_object_get(state, "ExitCode")));
    nothing_there(b, true, what);
}

static void found(void *arg, const struct reply *r)
{
    struct box *b = arg;
    if (b->state != BOX_MAKING) {
        box_unref(b);
        return;
    }
    if (r->status == 200) {
        take(b, r->json);
    } else if (r->status == 404) {
        nothing_there(b, false, "is not there any more");
    } else { /* it goes on asking */
        int64_t wait = AGAIN_FIRST_MS << (b->tries < 5 ? b->tries : 5);
        b->tries++;
        b->timer.fire = find_again;
        sg_timer_set(b->d->parts.reactor, &b->timer, sg_now_ms() + (wait < AGAIN_MOST_MS ? wait : AGAIN_MOST_MS));
    }
    box_unref(b);
}

static void find(struct box *b)
{
    box_look(b, found);
}

static void adopt_run(struct sg_task *t)
{
    struct box *b = sg_container_of(t, struct box, begin_task);
    struct box *there = docker_find(b->d, b->base.sb.id);
    struct sg_error err = {0};
    if (there == NULL && !b->d->closing) {
        box_list(b);
        find(b);
    } else if (there != NULL && there->state == BOX_READY) {
        struct sg_sandbox_done done = b->done;
        done.fn(done.arg, &box_ref(there)->base.sb, NULL);
    } else {
        sg_error_set(&err, b->d->closing ? SG_SHUTTING_DOWN : SG_SANDBOX_LOST, "container %s is being ended", b->base.sb.id);
        b->done.fn(b->done.arg, NULL, &err);
    }
    sg_error_clear(&err);
    box_unref(b);
}

int docker_adopt(struct sg_driver *drv, const struct sg_adopt *a, const struct sg_sandbox_done *done, struct sg_error *err)
{
    struct docker *d = (struct docker *)drv;
    char name[NAME_LEN];
    (void)snprintf(name, sizeof name, "sandgate-%s", a->lease_id);
    struct box *b = box_new(d, name);
    (void)snprintf(b->lease, sizeof b->lease, "%s", a->lease_id);
    b->adopted = true;
    b->done = *done;
    b->begin_task.run = adopt_run;
    if (docker_post(d, &b->begin_task)) {
        return 0;
    }
    box_unref(b);
    return sg_error_set(err, SG_SHUTTING_DOWN, "the server is shutting down");
}

/* ---- nobody's ---- */

static void swept(void *arg, const struct reply *r)
{
    (void)r;
    docker_unref(arg);
}

static void remove_stranger(struct docker *d, const char *id)
{
    sg_cleanup(sg_free_p) char *escaped = sg_net_escape(id);
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/containers/%s?force=1&v=1", escaped);
    engine_ask(d, &(struct ask){.method = "DELETE", .path = path, .ms = LIST_MS, .idempotent = true, .fn = swept, .arg = docker_ref(d)});
}

bool docker_is_stranger(const struct docker *d, const char *name, const char *run)
{
    return docker_find(d, name) == NULL && (run == NULL || !docker_has_run(d, run)) && !docker_commits(d, name);
}

static void look_at(struct docker *d, const json_t *container)
{
    const json_t *labels = json_object_get(container, "Labels");
    const char *id = json_string_value(json_object_get(container, "Id"));
    const char *name = json_string_value(json_array_get(json_object_get(container, "Names"), 0));
    const char *instance = json_string_value(json_object_get(labels, LABEL_INSTANCE));
    if (id == NULL || name == NULL || instance == NULL || !sg_streq(instance, d->instance)) {
        return;
    }
    name += name[0] == '/';
    if (docker_is_stranger(d, name, json_string_value(json_object_get(labels, LABEL_RUN)))) {
        remove_stranger(d, id);
    }
}

static void listed(void *arg, const struct reply *r)
{
    struct docker *d = arg;
    size_t i;
    json_t *v;
    d->sweeping = false;
    if (r->status == 200 && json_is_array(r->json)) {
        json_array_foreach(r->json, i, v)
        {
            look_at(d, v);
        }
        (void)docker_sweep_dirs(d);
    }
    if (d->sweep_again) {
        docker_sweep(d);
    }
    docker_unref(d);
}

void docker_sweep(struct docker *d)
{
    d->sweep_again = d->sweeping; /* what this one is about may have come after what that one sees */
    if (!d->settled || d->sweeping || d->closing) {
        return;
    }
    sg_cleanup(sg_free_p) char *filters = sg_xasprintf("{\"label\":[\"" LABEL_INSTANCE "=%s\"]}", d->instance);
    sg_cleanup(sg_free_p) char *escaped = sg_net_escape(filters);
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/containers/json?all=1&filters=%s", escaped);
    d->sweeping = true;
    engine_ask(d, &(struct ask){.method = "GET", .path = path, .ms = LIST_MS, .idempotent = true, .max = LIST_MAX, .fn = listed, .arg = docker_ref(d)});
    sg_timer_set(d->parts.reactor, &d->sweep_timer, sg_now_ms() + SWEEP_MS);
}

void sweep_due(struct sg_timer *t)
{
    docker_sweep(sg_container_of(t, struct docker, sweep_timer));
}

static void settle_run(struct sg_task *t)
{
    struct docker *d = sg_container_of(t, struct docker, settle_task);
    d->settled = true;
    docker_sweep(d);
    warm_fill(d);
}

void docker_settled(struct sg_driver *drv)
{
    struct docker *d = (struct docker *)drv;
    d->settle_task.run = settle_run;
    (void)docker_post(d, &d->settle_task);
}
