/* The way to an agent that is reached through the engine may break while the agent goes on: then another relay is started. Only when that cannot be is
 * the sandbox lost. */
#include "backends/docker/docker_priv.h"

#include "base/clock.h"

#define FIRST_MS 100
#define MOST_MS 5000

static void away(struct box *b)
{
    struct sg_error err = {0};
    sg_error_set(&err, SG_UNAVAILABLE, "the connection to the sandbox broke, and another one is being made");
    sg_error_reason(&err, "reconnecting");
    sg_error_retry_after(&err, 1);
    (void)sg_agent_end(sg_agent_sandbox_take(&b->base, &err));
    sg_error_clear(&err);
}

static void lost(struct box *b, const char *what)
{
    struct sg_error err = {0};
    b->again = false;
    b->tries = 0;
    sg_error_set(&err, SG_SANDBOX_LOST, "the sandbox is lost: %s", what);
    sg_error_reason(&err, SG_AGENT_RELAY_GONE);
    box_lost(b, &err);
    sg_error_clear(&err);
}

/* Only what has gone on since then is what the lease has: a container that was started again has another agent, and nothing in its workspace. */
static void looked(void *arg, const struct reply *r)
{
    struct box *b = arg;
    if (!b->again) {
        box_unref(b);
        return;
    }
    struct sg_error err = {0};
    const json_t *state = json_object_get(r->json, "State");
    bool same = json_is_true(json_object_get(state, "Running")) && json_integer_value(json_object_get(state, "Pid")) == b->pid;
    if (r->status != 200) {
        engine_error(r, "look at a container", &err);
        again_failed(b, r, &err);
    } else if (!same) {
        lost(b, "its container has ended");
    } else if (json_is_true(json_object_get(state, "Paused"))) {
        sg_error_set(&err, SG_UNAVAILABLE, "its container is paused");
        again_failed(b, NULL, &err);
    } else {
        reach_begin(b);
    }
    sg_error_clear(&err);
    box_unref(b);
}

bool again_begin(struct box *b, const struct sg_error *why)
{
    if (!b->far || b->state != BOX_READY || b->d->closing || !sg_streq(why->reason, SG_AGENT_RELAY_GONE)) {
        return false;
    }
    away(b);
    b->again = true;
    b->tries = 0;
    b->until_ms = sg_now_ms() + b->d->cfg.orphan_grace_ms; /* then the agent has given up, too */
    box_look(b, looked);
    return true;
}

static void try_again(struct sg_timer *t)
{
    box_look(sg_container_of(t, struct box, timer), looked);
}

void again_failed(struct box *b, const struct reply *r, const struct sg_error *why)
{
    bool final = r != NULL && r->status == 404; /* whether it still runs is seen at the next look */
    int64_t wait = FIRST_MS << (b->tries < 6 ? b->tries : 6);
    int64_t at = sg_now_ms() + (wait < MOST_MS ? wait : MOST_MS);
    (void)sg_agent_end(sg_steal(&b->greeting));
    b->tries++;
    if (final || b->d->closing || at > b->until_ms) {
        lost(b, why->message);
    } else {
        b->timer.fire = try_again;
        sg_timer_set(b->d->parts.reactor, &b->timer, at);
    }
}

void again_ready(struct box *b)
{
    b->again = false;
    b->tries = 0;
    sg_agent_sandbox_set(&b->base, sg_steal(&b->greeting));
    box_listen_again(b);
}
