#include "service/healthy.h"

#include "backends/probe.h"
#include "base/json.h"
#include "service/service_priv.h"

struct await {
    _Atomic int refs; /* the wait's, the start's and the hook's */
    struct sg_service *s;
    struct sg_await_args a;
    struct sg_cancel_hook hook;
    struct sg_task start, cancelled;
    struct sg_probe *probe; /* reactor only, as what follows */
    size_t next;
    bool over;
};

static void ask_next(struct await *w);

static void await_unref(struct await *w)
{
    if (--w->refs > 0)
        return;
    sg_sandbox_unref(w->a.sandbox);
    sg_cancel_unref(w->a.cancel);
    free(w);
}

static void finish(struct await *w, const struct sg_error *err)
{
    w->over = true;
    if (sg_cancel_unhook(w->a.cancel, &w->hook))
        await_unref(w); /* the hook's */
    w->a.done(w->a.arg, err);
    await_unref(w);
}

static int dial(void *arg, uint16_t port, int64_t deadline_ms, const struct sg_dial_done *done, struct sg_error *err)
{
    return sg_sandbox_dial(((struct await *)arg)->a.sandbox, port, deadline_ms, done, err);
}

static int ask(void *arg, uint16_t port, const char *path, int64_t deadline_ms, const struct sg_done *done, struct sg_error *err)
{
    return sg_sandbox_ask_port(((struct await *)arg)->a.sandbox, port, path, deadline_ms, done, err);
}

static void asked(void *arg, const struct sg_error *err)
{
    struct await *w = arg;
    struct sg_error why = {0};

    w->probe = NULL;
    if (!err) {
        w->next++;
        ask_next(w);
        return;
    }
    if (err->code == SG_SANDBOX_LOST || err->code == SG_LEASE_GONE) {
        sg_error_set(&why, SG_UNAVAILABLE, "the sandbox died before its services were ready: %s", err->message);
        sg_error_reason(&why, "sandbox_lost");
    } else {
        sg_error_set(&why, SG_ACQUIRE_TIMEOUT, "a sandbox was there, but its service \"%s\" was not ready in time: %s",
                     w->a.terms->services[w->next].name, err->message);
        sg_error_reason(&why, "service_not_ready");
    }
    sg_error_member(&why, "stage", json_string("services"));
    sg_error_retry_after(&why, 1);
    finish(w, &why);
    sg_error_clear(&why);
}

static void ask_next(struct await *w)
{
    if (w->next == w->a.terms->n_services) {
        finish(w, NULL);
        return;
    }
    const struct sg_service_port *p = &w->a.terms->services[w->next];
    struct sg_probe_args args = {.reactor = w->s->parts.reactor,
                                 .dial = dial,
                                 .ask = w->a.sandbox->driver->ops->dial ? NULL : ask,
                                 .done = asked,
                                 .arg = w,
                                 .port = p->port,
                                 .path = p->health_path,
                                 .deadline_ms = w->a.deadline_ms};
    w->probe = sg_probe_start(&args);
}

static void cancel_run(struct sg_task *t)
{
    struct await *w = sg_container_of(t, struct await, cancelled);
    struct sg_error why = {0};

    if (!w->over) {
        w->probe = sg_probe_cancel(w->probe);
        sg_error_set(&why, SG_CANCELLED, "the caller gave up waiting");
        finish(w, &why);
        sg_error_clear(&why);
    }
    await_unref(w);
}

/* Any thread. */
static void fired(struct sg_cancel_hook *h, enum sg_cancel_reason why SG_UNUSED)
{
    struct await *w = sg_container_of(h, struct await, hook);

    sg_reactor_post(w->s->parts.reactor, &w->cancelled);
}

static void start(struct sg_task *t)
{
    struct await *w = sg_container_of(t, struct await, start);

    if (!w->over)
        ask_next(w);
    await_unref(w);
}

void sg_service_await(struct sg_service *s, const struct sg_await_args *a)
{
    struct await *w = sg_xcalloc(1, sizeof *w);

    w->refs = 3;
    w->s = s;
    w->a = *a;
    w->a.sandbox = sg_sandbox_ref(a->sandbox);
    w->a.cancel = sg_cancel_ref(a->cancel);
    w->start.run = start;
    w->cancelled.run = cancel_run;
    w->hook.fired = fired;
    sg_cancel_hook(w->a.cancel, &w->hook);
    sg_reactor_post(s->parts.reactor, &w->start);
}
