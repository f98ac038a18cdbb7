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

bool again_begin(struct box *b, const struct sg_error *why)
{
    if (!b->far || b->state != BOX_READY || b->d->closing || !sg_streq(why->reason, SG_AGENT_RELAY_GONE)) {
        return false;
    }
    away(b);
    b->again = true;
    b->tries = 0;
    b->until_ms = sg_now_ms() + b->d->cfg.orphan_grace_ms; /* then the agent has given up, too */
    reach_begin(b);
    return true;
}

static void try_again(struct sg_timer *t)
{
    reach_begin(sg_container_of(t, struct box, timer));
}

void again_failed(struct box *b, const struct reply *r, const struct sg_error *why)
{
    struct sg_error lost = {0};
    /* Podman says 500 of a container that does not run. */
    bool final = r != NULL && (r->status == 404 || r->status == 409 || (r->status == 500 && b->d->podman));
    int64_t wait = FIRST_MS << (b->tries < 6 ? b->tries : 6);
    int64_t at = sg_now_ms() + (wait < MOST_MS ? wait : MOST_MS);
    (void)sg_agent_end(sg_steal(&b->greeting));
    b->tries++;
    if (final || b->d->closing || at > b->until_ms) {
        b->again = false;
        b->tries = 0;
        sg_error_set(&lost, SG_SANDBOX_LOST, "the sandbox is lost: %s", why->message);
        sg_error_reason(&lost, SG_AGENT_RELAY_GONE);
        box_lost(b, &lost);
        sg_error_clear(&lost);
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
}
