/* What of the network a sandbox reaches. Reactor only, but for what says otherwise. */
#include "backends/local_bwrap/pool_priv.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BACKLOG 128

bool egress_reaches_out(enum sg_egress e)
{
    return e == SG_EGRESS_RESTRICTED || e == SG_EGRESS_OPEN;
}

int egress_env(struct sg_env *env, struct sg_error *err)
{
    static const char *const proxies[] = {"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"};
    static const char *const none[] = {"NO_PROXY", "no_proxy"};
    for (size_t i = 0; i < SG_COUNT_OF(proxies); i++) {
        if (sg_env_set(env, proxies[i], SG_EGRESS_URL, err) < 0) {
            return -1;
        }
    }
    for (size_t i = 0; i < SG_COUNT_OF(none); i++) {
        if (sg_env_set(env, none[i], "localhost,127.0.0.1,::1", err) < 0) {
            return -1;
        }
    }
    return 0;
}

/* ---- the proxy of a sandbox ---- */

static void refused(void *arg, enum sg_egress_outcome why, const char *target, uint64_t untold)
{
    const struct gen *g = arg;
    const struct slot *s = g->slot;
    const struct sg_egress_event e = {.why = why,
                                      .target = target,
                                      .untold = untold,
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
    gen_died(arg, why);
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
        gen_died(g, &why);
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
    g->base.sb.lacks = egress_reaches_out(e) ? 0 : SG_CAP_NETWORK;
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

static int cannot_reach(const struct pool *p, const struct sg_sandbox_spec *spec, struct sg_error *err)
{
    if (spec->egress_given) {
        return sg_error_field(err, SG_NOT_SUPPORTED, "network_egress_class", "egress %s is without the capability network, which the policy requires",
                              sg_egress_name(spec->egress));
    }
    return sg_error_field(err, SG_NOT_SUPPORTED, "policy.required_capabilities",
                          "local pool \"%s\" has egress %s, which is without the capability network; ask for another local_pool", p->cfg.name,
                          sg_egress_name(p->cfg.egress));
}

int egress_check(const struct pool *p, const struct sg_sandbox_spec *spec, struct sg_error *err)
{
    enum sg_egress has = p->cfg.egress;
    if (spec->egress_given && spec->egress > SG_EGRESS_LOOPBACK && spec->egress > has) {
        sg_error_field(err, SG_POOL_REFUSED, "network_egress_class", "egress %s is wider than %s, which local pool \"%s\" has",
                       sg_egress_name(spec->egress), sg_egress_name(has), p->cfg.name);
        return sg_error_reason(err, "egress_widened");
    }
    enum sg_egress e = egress_of(p, spec);
    if (e == SG_EGRESS_RESTRICTED && sg_egress_rules_empty(p->rules)) {
        return sg_error_field(err, SG_NOT_SUPPORTED, "network_egress_class", "local pool \"%s\" has no egress_allow that a restricted lease could use",
                              p->cfg.name);
    }
    if ((spec->required_caps & SG_CAP_NETWORK) != 0 && !egress_reaches_out(e)) {
        return cannot_reach(p, spec, err);
    }
    return 0;
}

enum sg_egress egress_of(const struct pool *p, const struct sg_sandbox_spec *spec)
{
    return spec->egress_given ? spec->egress : p->cfg.egress;
}

/* ---- figures. Any thread ---- */

void egress_report(const struct pool *p, struct sg_slot_pool_info *out)
{
    out->egress = p->cfg.egress;
    for (size_t i = 0; i < SG_EGRESS_OUTCOMES; i++) {
        out->egress_outcomes[i] = atomic_load(&p->egress.outcomes[i]);
    }
    out->egress_bytes_out = atomic_load(&p->egress.bytes_out);
    out->egress_bytes_in = atomic_load(&p->egress.bytes_in);
    out->egress_open = atomic_load(&p->egress.open);
}
