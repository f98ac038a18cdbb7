/* Restricted egress of a container, which has no network of the engine's: the proxy listens on its loopback, on a socket that its agent has
 * handed over, or keeps where that is far away; then it brings the connections. */
#include "backends/docker/docker_priv.h"

#include <unistd.h>

#define BACKLOG 128
#define ACCEPTS 16U /* connections from one container that are waited for at once */

static void refused(void *arg, enum sg_egress_outcome why, const char *target, uint64_t untold)
{
    const struct box *b = arg;
    const struct sg_egress_event e = {
        .why = why, .target = target, .untold = untold, .backend = "docker", .slot = b->base.sb.id, .lease_id = b->lease};
    if (b->d->parts.egress != NULL) {
        b->d->parts.egress(b->d->parts.event_arg, &e);
    }
}

static void lost(void *arg, const struct sg_error *why)
{
    box_cut_off(arg, why);
}

/* ---- an agent that is far away ---- */

static void accepted(void *arg, int fd, struct sg_hold *hold, const struct sg_error *err);

static int accept_next(struct box *b, struct sg_agent *a, struct sg_error *err)
{
    if (sg_agent_accept(a, &(struct sg_dial_done){.fn = accepted, .arg = box_ref(b)}, err) == 0) {
        return 0;
    }
    box_unref(b);
    return -1;
}

/* What became of the way there is the agent's own news. */
static void accepted(void *arg, int fd, struct sg_hold *hold, const struct sg_error *err)
{
    struct box *b = arg;
    struct sg_agent *a = err == NULL || err->code == SG_OVERLOADED ? sg_agent_sandbox_agent(&b->base.sb, NULL) : NULL;
    sg_hold_unref(hold);
    if (fd >= 0 && b->proxy != NULL) {
        sg_egress_proxy_take(b->proxy, fd);
    } else {
        (void)sg_close(fd);
    }
    if (a != NULL && b->proxy != NULL) {
        struct sg_error own = {0};
        if (accept_next(b, a, &own) < 0 && !sg_agent_is_gone(a)) {
            box_cut_off(b, &own);
        }
        sg_error_clear(&own);
    }
    sg_agent_unref(a);
    box_unref(b);
}

static int accept_all(struct box *b, struct sg_error *err)
{
    int rc = 0;
    for (unsigned i = 0; i < ACCEPTS && rc == 0; i++) {
        rc = accept_next(b, b->base.agent, err);
    }
    return rc;
}

/* ---- the proxy ---- */

static void listening(void *arg, int fd, struct sg_hold *hold, const struct sg_error *err)
{
    struct box *b = arg;
    struct sg_error own = {0};
    const struct sg_egress_proxy_args a = {.egress = b->d->hub,
                                           .rules = b->d->rules,
                                           .counters = &b->d->egress,
                                           .fd = fd,
                                           .hold = hold,
                                           .refused = refused,
                                           .lost = lost,
                                           .arg = b};
    if (err == NULL && b->state != BOX_MAKING) {
        (void)sg_close(fd);
        sg_hold_unref(hold);
    } else if (err == NULL && (sg_egress_proxy_start(&a, &b->proxy, &own) < 0 || (b->far && accept_all(b, &own) < 0))) {
        err = &own;
    }
    if (err != NULL) {
        make_failed(b, err);
    } else {
        make_serve(b);
    }
    sg_error_clear(&own);
    box_unref(b);
}

static void listening_far(void *arg, const struct sg_error *err)
{
    listening(arg, -1, NULL, err);
}

static void listening_again(void *arg, const struct sg_error *err)
{
    struct box *b = arg;
    struct sg_error own = {0};
    bool wanted = b->state == BOX_READY && b->proxy != NULL && b->base.agent != NULL && !sg_agent_is_gone(b->base.agent);
    if (wanted && err == NULL && accept_all(b, &own) < 0) {
        err = &own;
    }
    if (wanted && err != NULL) {
        box_cut_off(b, err);
    }
    sg_error_clear(&own);
    box_unref(b);
}

static int listen_far(struct box *b, void (*fn)(void *arg, const struct sg_error *err), struct sg_error *err)
{
    if (sg_agent_listen_far(b->base.agent, SG_EGRESS_PORT, &(struct sg_done){.fn = fn, .arg = box_ref(b)}, err) == 0) {
        return 0;
    }
    box_unref(b);
    return -1;
}

int box_listen(struct box *b, struct sg_error *err)
{
    if (sg_egress_env(&b->env, err) < 0) {
        return -1;
    }
    if (b->far) {
        return listen_far(b, listening_far, err);
    }
    const struct sg_dial_done done = {.fn = listening, .arg = box_ref(b)};
    if (sg_agent_listen(b->base.agent, SG_EGRESS_PORT, BACKLOG, &done, err) == 0) {
        return 0;
    }
    box_unref(b);
    return -1;
}

void box_listen_again(struct box *b)
{
    struct sg_error err = {0};
    if (b->proxy != NULL && listen_far(b, listening_again, &err) < 0 && !sg_agent_is_gone(b->base.agent)) {
        box_cut_off(b, &err);
    }
    sg_error_clear(&err);
}

int docker_egress_start(struct docker *d, const char *const *allow, struct sg_error *err)
{
    if (sg_egress_rules_new(allow, &d->rules, err) < 0) {
        return -1;
    }
    bool proxies = sg_egress_reaches_out(d->cfg.egress) && !sg_egress_rules_empty(d->rules);
    return proxies ? sg_egress_hub_new(d->parts.reactor, &d->hub, err) : 0;
}

bool docker_proxies(struct sg_driver *drv, struct sg_egress_figures *ret)
{
    struct docker *d = (struct docker *)drv;
    if (d->hub != NULL) {
        sg_egress_counters_read(&d->egress, ret);
    }
    return d->hub != NULL;
}
