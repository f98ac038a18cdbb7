/* The end of containers: wanted, or found to have come by itself. */
#include "backends/docker/docker_priv.h"

#include <stdio.h>
#include <utlist.h>

#include "base/clock.h"

#define REMOVE_MS 60000
#define RETRY_FIRST_MS 500
#define RETRY_MOST_MS 30000
#define WHY_MS 3000

struct ending {
    struct sg_done done;
    struct ending *next;
};

static void tell_endings(struct box *b, const struct sg_error *err)
{
    struct ending *all = sg_steal(&b->endings);
    while (all != NULL) {
        struct ending *e = all;
        all = e->next;
        if (e->done.fn != NULL) {
            e->done.fn(e->done.arg, err);
        }
        free(e);
    }
}

static void drop_agent(struct box *b, const struct sg_error *why)
{
    struct sg_agent *agent = sg_agent_sandbox_take(&b->base, why);
    b->proxy = sg_egress_proxy_stop(b->proxy);
    b->again = false;
    (void)sg_agent_end(agent);
    (void)sg_agent_end(sg_steal(&b->greeting));
}

/* ---- removal ---- */

static void remove_it(struct box *b);

static void retry(struct sg_timer *t)
{
    remove_it(sg_container_of(t, struct box, timer));
}

static void gone(struct box *b)
{
    b->state = BOX_GONE;
    box_remove_dir(b);
    tell_endings(b, NULL);
    box_unlist(b);
}

static void removed(void *arg, const struct reply *r)
{
    struct box *b = arg;
    b->removing = false;
    if (b->state == BOX_GONE) {
        box_unref(b);
        return;
    }
    if (r->status == 204 || r->status == 404) {
        gone(b);
        if (r->status == 404 && b->pid > 0) {
            docker_sweep(b->d); /* somebody may have given it another name */
        }
    } else if (b->d->closing) {
        box_shut(b);
    } else { /* being removed by somebody else already (409), or the engine is away, or it has troubles */
        int64_t wait = RETRY_FIRST_MS << (b->tries < 6 ? b->tries : 6);
        b->tries++;
        if (b->why.code != SG_OK) {
            tell_endings(b, NULL); /* of a create that failed: nobody waits longer for an engine that is away */
        }
        b->timer.fire = retry;
        sg_timer_set(b->d->parts.reactor, &b->timer, sg_now_ms() + (wait < RETRY_MOST_MS ? wait : RETRY_MOST_MS));
    }
    box_unref(b);
}

static void remove_it(struct box *b)
{
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/containers/%s?force=1&v=1", b->base.sb.id);
    b->removing = true;
    engine_ask(b->d, &(struct ask){.method = "DELETE", .path = path, .ms = REMOVE_MS, .idempotent = true, .fn = removed, .arg = box_ref(b)});
}

static bool never_was(const struct box *b)
{
    return !b->created && !b->adopted;
}

void box_end(struct box *b, const struct sg_done *done)
{
    if (b->state == BOX_GONE) {
        if (done->fn != NULL) {
            done->fn(done->arg, NULL);
        }
        return;
    }
    struct ending *e = sg_xcalloc(1, sizeof *e);
    e->done = *done;
    LL_PREPEND(b->endings, e);
    bool begun = b->state == BOX_ENDING;
    box_become(b, BOX_ENDING);
    if (begun) {
        return;
    }
    drop_agent(b, NULL);
    sg_timer_cancel(b->d->parts.reactor, &b->timer);
    if (never_was(b)) {
        gone(b);
    } else {
        remove_it(b);
    }
}

struct terminating {
    struct sg_task task;
    struct box *b; /* one reference */
    struct sg_done done;
};

static void terminate_run(struct sg_task *t)
{
    struct terminating *k = sg_container_of(t, struct terminating, task);
    box_end(k->b, &k->done);
    box_unref(k->b);
    free(k);
}

void docker_terminate(struct sg_sandbox *sb, const struct sg_done *done)
{
    struct terminating *k = sg_xcalloc(1, sizeof *k);
    struct box *b = (struct box *)sb;
    k->task.run = terminate_run;
    k->b = box_ref(b);
    k->done = *done;
    if (docker_post(b->d, &k->task)) {
        return;
    }
    struct sg_error err = {0};
    sg_error_set(&err, SG_SHUTTING_DOWN, "the server ends; the next one asks the engine again");
    if (done->fn != NULL) {
        done->fn(done->arg, b->state == BOX_GONE ? NULL : &err);
    }
    sg_error_clear(&err);
    box_unref(b);
    free(k);
}

/* ---- lost ---- */

static void tell_lost(struct box *b, const char *reason, const char *what)
{
    struct sg_error why = {0};
    sg_error_set(&why, SG_SANDBOX_LOST, "the sandbox is lost: %s", what);
    sg_error_reason(&why, reason);
    if (b->base.sb.lost != NULL) {
        b->base.sb.lost(b->base.sb.lost_arg, &b->base.sb, &why);
    }
    sg_error_clear(&why);
}

static void told_why(void *arg, const struct reply *r)
{
    struct box *b = arg;
    const json_t *state = json_object_get(r->json, "State");
    char what[160];
    if (b->state == BOX_LOST) {
        if (r->status == 404) {
            tell_lost(b, "container_removed", "somebody has removed its container");
        } else if (r->status != 200) {
            tell_lost(b, "agent_gone", "its agent is gone, and the engine cannot be asked why");
        } else if (json_is_true(json_object_get(state, "Running"))) {
            tell_lost(b, "agent_gone", "its agent has closed the connection");
        } else {
            (void)snprintf(what, sizeof what, "its container has ended (exit code %lld%s)",
                           (long long)json_integer_value(json_object_get(state, "ExitCode")),
                           json_is_true(json_object_get(state, "OOMKilled")) ? ", out of memory" : "");
            tell_lost(b, "container_died", what);
        }
    }
    box_unref(b);
}

/* The engine hears of the end of a process later than we of that of its connections. */
static void waited(void *arg, const struct reply *r)
{
    struct box *b = arg;
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/containers/%s/json", b->base.sb.id);
    (void)r;
    engine_ask(b->d, &(struct ask){.method = "GET", .path = path, .ms = WHY_MS, .idempotent = true, .fn = told_why, .arg = b});
}

void box_lost(struct box *b, const struct sg_error *why)
{
    if (b->state == BOX_WARM) {
        box_end(b, &(struct sg_done){0});
        warm_later(b->d);
        return;
    }
    if (b->state != BOX_READY) {
        return;
    }
    b->state = BOX_LOST;
    drop_agent(b, why);
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/containers/%s/wait?condition=not-running", b->base.sb.id);
    engine_ask(b->d, &(struct ask){.method = "POST", .path = path, .ms = WHY_MS, .fn = waited, .arg = box_ref(b)});
}

void box_cut_off(struct box *b, const struct sg_error *why)
{
    struct sg_error err = {0};
    sg_error_set(&err, SG_SANDBOX_LOST, "the proxy of its network no longer listens: %s", why->message);
    sg_error_reason(&err, "network_lost");
    if (b->state == BOX_READY) {
        b->state = BOX_LOST;
        drop_agent(b, &err);
        tell_lost(b, err.reason, err.message);
    } else {
        make_failed(b, &err);
    }
    sg_error_clear(&err);
}

/* ---- shutdown ---- */

void box_shut(struct box *b)
{
    struct sg_error err = {0};
    sg_error_set(&err, SG_SHUTTING_DOWN, "the server ends; the next one asks the engine again");
    sg_timer_cancel(b->d->parts.reactor, &b->timer);
    box_become(b, b->state == BOX_GONE ? BOX_GONE : BOX_LOST);
    drop_agent(b, &err);
    if (b->done.fn != NULL) {
        make_answer(b, &err);
    }
    tell_endings(b, &err);
    box_unlist(b);
    sg_error_clear(&err);
}
