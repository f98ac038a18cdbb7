/* Restricted egress of a container, which has no network of the engine's: the proxy listens on its loopback, on a socket that its agent has
 * handed over. */
#include "backends/docker/docker_priv.h"

#include <unistd.h>

#define BACKLOG 128

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
    } else if (err == NULL && sg_egress_proxy_start(&a, &b->proxy, &own) < 0) {
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

int box_listen(struct box *b, struct sg_error *err)
{
    const struct sg_dial_done done = {.fn = listening, .arg = box_ref(b)};
    if (sg_egress_env(&b->env, err) == 0 && sg_agent_listen(b->base.agent, SG_EGRESS_PORT, BACKLOG, &done, err) == 0) {
        return 0;
    }
    box_unref(b);
    return -1;
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
