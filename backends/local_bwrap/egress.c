/* What of the network a sandbox reaches. Reactor only, but for what says otherwise. */
#include "backends/local_bwrap/pool_priv.h"

#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BACKLOG 128

/* ---- the proxy of a sandbox ---- */

static void refused(void *arg, enum sg_egress_outcome why, const char *target, uint64_t untold)
{
    const struct gen *g = arg;
    const struct slot *s = g->slot;
    const struct sg_egress_event e = {.why = why,
                                      .target = target,
                                      .untold = untold,
                                      .backend = "local_bwrap",
                                      .pool = s->pool->cfg.name,
                                      .slot = s->name,
                                      .generation = s->generation,
                                      .lease_id = s->lease_id};
    if (g->l->parts.egress != NULL) {
        g->l->parts.egress(g->l->parts.event_arg, &e);
    }
}

static void lost(void *arg, const struct sg_error *why)
{
    gen_died(arg, why, false);
}

static void listening(void *arg, int fd, struct sg_hold *hold, const struct sg_error *err)
{
    struct gen *g = arg;
    struct sg_error own = {0};
    const struct sg_egress_proxy_args a = {.egress = g->l->egress,
                                           .rules = g->slot->pool->rules,
                                           .counters = &g->slot->pool->egress,
                                           .fd = fd,
                                           .hold = hold,
                                           .refused = refused,
                                           .lost = lost,
                                           .arg = g};
    if (err == NULL && g->ending) {
        sg_close(fd);
        sg_hold_unref(hold);
    } else if (err == NULL && sg_egress_proxy_start(&a, &g->proxy, &own) < 0) {
        err = &own;
    }
    if (!g->ending) {
        g->egress_done(g, err);
    }
    sg_error_clear(&own);
    gen_unref(g);
}

int egress_listen(struct gen *g, void (*done)(struct gen *g, const struct sg_error *err), struct sg_error *err)
{
    const struct sg_dial_done d = {.fn = listening, .arg = gen_ref(g)};
    g->egress_done = done;
    if (sg_agent_listen(g->base.agent, SG_EGRESS_PORT, BACKLOG, &d, err) == 0) {
        return 0;
    }
    gen_unref(g);
    return -1;
}

/* ---- the helper of an open network ---- */

/* What asked for the change hears that there is no sandbox any more; not from inside of whatever ended it. */
static void cut_run(struct sg_task *t)
{
    struct gen *g = GEN_OF(t, cut_task);
    g->cut_done(g, NULL);
    gen_unref(g);
}

static void cut_off(struct gen *g, const struct sg_error *err)
{
    g->cutting = false;
    g->cut_done(g, err);
}

void egress_end(struct gen *g)
{
    g->proxy = sg_egress_proxy_stop(g->proxy);
    sg_watch_del(g->l->parts.reactor, &g->helper);
    if (g->cutting) {
        g->cutting = false;
        g->cut_task.run = cut_run;
        gen_ref(g);
        sg_reactor_post(g->l->parts.reactor, &g->cut_task);
    }
}

static void helper_ended(struct sg_watch *w, uint32_t events)
{
    struct gen *g = GEN_OF(w, helper);
    struct sg_error why = {0};
    (void)events;
    sg_watch_del(g->l->parts.reactor, w);
    if (!g->cutting) {
        sg_error_set(&why, SG_SANDBOX_LOST, "the process that joins the sandbox to the network has ended");
        sg_error_reason(&why, "network_lost");
        gen_died(g, &why, false);
    } else if (g->egress != SG_EGRESS_RESTRICTED) {
        cut_off(g, NULL);
    } else if (egress_listen(g, cut_off, &why) < 0) {
        cut_off(g, &why);
    }
    sg_error_clear(&why);
}

int egress_watch(struct gen *g, struct sg_error *err)
{
    g->helper = (struct sg_watch){.ready = helper_ended, .fd = g->built.net_fd};
    return g->built.net_fd < 0 ? 0 : sg_watch_add(g->l->parts.reactor, &g->helper, EPOLLIN, err);
}

bool egress_settle(struct gen *g, enum sg_egress e, void (*done)(struct gen *g, const struct sg_error *err))
{
    g->egress = e;
    g->base.sb.env = e == SG_EGRESS_RESTRICTED ? &g->l->proxy_env : NULL;
    g->base.sb.lacks = sg_egress_reaches_out(e) ? 0 : SG_CAP_NETWORK;
    if (g->built.net_fd >= 0 && e != SG_EGRESS_OPEN) {
        g->cutting = true;
        g->cut_done = done;
        (void)syscall(SYS_pidfd_send_signal, g->built.net_fd, SIGKILL, NULL, 0);
        return true;
    }
    if (e != SG_EGRESS_RESTRICTED) {
        g->proxy = sg_egress_proxy_stop(g->proxy);
    }
    return false;
}

/* ---- what a lease may ask for ---- */

int egress_check(const struct pool *p, const struct sg_sandbox_spec *spec, struct sg_error *err)
{
    char place[80];
    (void)snprintf(place, sizeof place, "local pool \"%s\"", p->cfg.name);
    return sg_egress_check(spec, p->cfg.egress, p->rules, place, err);
}

/* ---- figures. Any thread ---- */

void egress_report(const struct pool *p, struct sg_slot_pool_info *out)
{
    out->egress = p->cfg.egress;
    sg_egress_counters_read(&p->egress, &out->proxies);
}
