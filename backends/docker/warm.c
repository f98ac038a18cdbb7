/* Containers of the default image that are ready before anybody asks for one. */
#include "backends/docker/docker_priv.h"

#include <stdio.h>
#include <utlist.h>

#include "base/clock.h"

#define RENAME_MS 10000
#define AGAIN_MS 2000
#define AT_ONCE 2U /* that are being made at the same time */

static void refill(struct sg_timer *t)
{
    warm_fill(sg_container_of(t, struct docker, warm_timer));
}

void warm_later(struct docker *d)
{
    if (d->settled && !d->closing) {
        d->warm_timer.fire = refill;
        sg_timer_set(d->parts.reactor, &d->warm_timer, sg_now_ms() + AGAIN_MS);
    }
}

static void warmed(void *arg, struct sg_sandbox *sb, const struct sg_error *err)
{
    struct docker *d = arg;
    d->warming--;
    if (sb != NULL) {
        (void)sg_sandbox_unref(sb); /* it is listed */
        warm_fill(d);
    } else if (err->code != SG_SHUTTING_DOWN) {
        warm_later(d);
    }
    docker_unref(d);
}

static void make_one(struct docker *d)
{
    char id[SG_ID_MAX], name[NAME_LEN];
    sg_id_new("warm", id);
    (void)snprintf(name, sizeof name, "sandgate-%s", id);
    struct box *b = box_new(d, name);
    sg_id_new("run", b->run);
    b->warm = true;
    docker_apply(d, b, NULL);
    b->done = (struct sg_sandbox_done){.fn = warmed, .arg = docker_ref(d)};
    d->warming++;
    make_begin(b);
    box_unref(b);
}

bool docker_warm(struct sg_driver *drv, struct sg_warm_figures *ret)
{
    struct docker *d = (struct docker *)drv;
    *ret = (struct sg_warm_figures){.size = d->cfg.image != NULL ? d->cfg.warm : 0, .ready = atomic_load(&d->warm)};
    return ret->size > 0;
}

void warm_fill(struct docker *d)
{
    unsigned n = d->warming;
    struct box *b;
    if (d->cfg.image == NULL || !d->settled || d->closing) {
        return;
    }
    DL_FOREACH(d->boxes, b)
    {
        n += b->state == BOX_WARM;
    }
    while (n < d->cfg.warm && d->warming < AT_ONCE && d->warm_timer.slot == 0) {
        n++;
        make_one(d);
    }
}

/* ---- taking ---- */

static bool same(const struct box *a, const struct box *b)
{
    return b->snapshot == NULL && a->egress == b->egress && sg_streq(a->image, b->image) && a->limits.memory_bytes == b->limits.memory_bytes &&
           a->limits.pids == b->limits.pids && a->limits.cpu_milli == b->limits.cpu_milli && a->limits.disk_bytes == b->limits.disk_bytes;
}

/* The container of w is b's from now on; w stays behind as what its agent knows. */
static void hand_over(struct box *b, struct box *w)
{
    struct sg_env env = b->env;
    b->env = w->env;
    w->env = env;
    (void)snprintf(b->run, sizeof b->run, "%s", w->run);
    w->run[0] = '\0';
    b->wd = w->wd;
    w->wd = -1;
    b->pid = w->pid;
    b->set = w->set;
    b->created = true;
    b->greeting = sg_agent_sandbox_take(&w->base, NULL);
    w->became = b;
    b->shell = box_ref(w);
    w->state = BOX_GONE;
    box_unlist(w);
    make_ready(b);
}

static void renamed(void *arg, const struct reply *r)
{
    struct box *w = arg;
    struct box *b = w->became; /* a reference, until it is handed over */
    w->became = NULL;
    struct sg_agent *a = sg_agent_sandbox_agent(&w->base.sb, NULL);
    bool fine = r->status == 204 && a != NULL && !sg_agent_is_gone(a);
    sg_agent_unref(a);
    if (fine && b->state == BOX_MAKING) {
        hand_over(b, w);
    } else {
        if (r->status == 204) { /* that is its name now, and the new one's, too */
            (void)snprintf(w->base.sb.id, sizeof w->base.sb.id, "%s", b->base.sb.id);
        }
        if (w->state == BOX_TAKEN) {
            box_end(w, &(struct sg_done){0});
        }
        if (b->state == BOX_MAKING && r->status != 204) {
            make_cold(b);
        } else if (b->state == BOX_MAKING) {
            struct sg_error err = {0};
            sg_error_set(&err, SG_UNAVAILABLE, "the container died before the lease was ready");
            sg_error_reason(&err, "sandbox_lost");
            sg_error_retry_after(&err, 1);
            make_failed(b, &err);
            sg_error_clear(&err);
        }
    }
    warm_fill(w->d);
    box_unref(b);
    box_unref(w);
}

bool warm_take(struct docker *d, struct box *wanted)
{
    struct box *w;
    DL_FOREACH(d->boxes, w)
    {
        if (w->state == BOX_WARM && same(w, wanted)) {
            break;
        }
    }
    if (w == NULL) {
        return false;
    }
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/containers/%s/rename?name=%s", w->base.sb.id, wanted->base.sb.id);
    box_become(w, BOX_TAKEN);
    w->became = box_ref(wanted);
    engine_ask(d, &(struct ask){.method = "POST", .path = path, .ms = RENAME_MS, .fn = renamed, .arg = box_ref(w)});
    return true;
}
