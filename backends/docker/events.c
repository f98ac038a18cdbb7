/* Whether the engine is there: a stream of its events that never ends unless it does. Deaths of containers are heard of from their agents,
 * and sooner; what a break in the stream may have hidden is looked up after it. What counts in it is a container that comes when nobody waits for
 * it any more: the engine had been asked for it by a server before this one, or was given up. */
#include "backends/docker/docker_priv.h"

#include <errno.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/json.h"

#define FIRST_MS 250
#define MOST_MS 5000
#define PIPE_BYTES 65536U
#define EVENT_BYTES 16384U
#define PING_MS 10000

struct watch_engine {
    struct docker *d; /* one reference while anything is under way */
    atomic_int refs;
    struct sg_pipe *events;
    struct sg_task drain_task, over_task, open_task;
    struct sg_timer again;
    struct sg_error err; /* of the end of the stream, before over_task */
    unsigned tries;
    atomic_bool draining; /* drain_task is on its way, with a reference */
    bool stopped;
    char event[EVENT_BYTES]; /* a line that is not complete yet */
    size_t len;
    bool too_long;
};

static void watch_unref(struct watch_engine *w)
{
    if (atomic_fetch_sub(&w->refs, 1) == 1) {
        sg_error_clear(&w->err);
        docker_unref(w->d);
        free(w);
    }
}

static struct watch_engine *watch_ref(struct watch_engine *w)
{
    (void)atomic_fetch_add(&w->refs, 1);
    return w;
}

static void ask(struct watch_engine *w);

static void ask_again(struct sg_timer *t)
{
    ask(sg_container_of(t, struct watch_engine, again));
}

static void unwell(struct watch_engine *w, const struct sg_error *why)
{
    docker_set_well(w->d, false, why);
    int64_t wait = FIRST_MS << (w->tries < 5 ? w->tries : 5);
    w->tries++;
    if (!w->stopped) {
        sg_timer_set(w->d->parts.reactor, &w->again, sg_now_ms() + (wait < MOST_MS ? wait : MOST_MS));
    }
}

/* ---- the stream ---- */

static bool brings_a_stranger(const struct docker *d, const char *line, size_t len)
{
    sg_cleanup(sg_json_p) json_t *v = NULL;
    if (sg_json_parse(line, len, &v, NULL) < 0) {
        return false;
    }
    const json_t *attributes = json_object_get(json_object_get(v, "Actor"), "Attributes");
    const char *type = json_string_value(json_object_get(v, "Type")), *action = json_string_value(json_object_get(v, "Action"));
    const char *name = json_string_value(json_object_get(attributes, "name"));
    return type != NULL && sg_streq(type, "container") && action != NULL && sg_streq(action, "create") && name != NULL &&
           docker_is_stranger(d, name, json_string_value(json_object_get(attributes, LABEL_RUN)));
}

/* One that is too long to be looked at may be of any kind. */
static void take_event(struct watch_engine *w)
{
    if (w->too_long || brings_a_stranger(w->d, w->event, w->len)) {
        docker_sweep(w->d);
    }
    w->too_long = false;
    w->len = 0;
}

static void take_events(struct watch_engine *w, const char *data, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (data[i] == '\n') {
            take_event(w);
        } else if (w->len < sizeof w->event) {
            w->event[w->len++] = data[i];
        } else {
            w->too_long = true;
        }
    }
}

static void drain(struct sg_task *t)
{
    struct watch_engine *w = sg_container_of(t, struct watch_engine, drain_task);
    char buf[4096];
    atomic_store(&w->draining, false);
    for (ssize_t n = 1; w->events != NULL && n > 0;) {
        n = sg_pipe_read(w->events, buf, sizeof buf);
        take_events(w, buf, n > 0 ? (size_t)n : 0);
    }
    watch_unref(w);
}

static void wake(void *arg)
{
    struct watch_engine *w = arg;
    if (!atomic_exchange(&w->draining, true)) {
        sg_reactor_post(w->d->parts.reactor, &watch_ref(w)->drain_task);
    }
}

static void over(struct sg_task *t)
{
    struct watch_engine *w = sg_container_of(t, struct watch_engine, over_task);
    struct sg_error err = {0};
    if (w->events != NULL) {
        sg_pipe_set_reader(w->events, NULL);
        w->events = sg_pipe_unref(w->events);
    }
    sg_error_set(&err, SG_UNAVAILABLE, "the engine at %s is gone: %s", w->d->cfg.host,
                 w->err.code != SG_OK ? w->err.message : "it has ended its stream of events");
    sg_error_reason(&err, "engine_gone");
    sg_error_retry_after(&err, 1);
    (void)pthread_mutex_lock(&w->d->lock);
    w->d->api = 0; /* another one may come back */
    (void)pthread_mutex_unlock(&w->d->lock);
    unwell(w, &err);
    sg_error_clear(&w->err);
    sg_error_clear(&err);
    watch_unref(w);
}

static void opened(struct sg_task *t)
{
    struct watch_engine *w = sg_container_of(t, struct watch_engine, open_task);
    w->tries = 0;
    docker_set_well(w->d, true, NULL);
    docker_sweep(w->d);
    warm_fill(w->d);
    watch_unref(w);
}

static void stream_head(void *arg, const struct sg_net_response *r)
{
    struct watch_engine *w = arg;
    if (sg_net_status(r) == 200) {
        sg_reactor_post(w->d->parts.reactor, &watch_ref(w)->open_task);
    }
}

static void stream_done(void *arg, const struct sg_net_response *r, const struct sg_error *err)
{
    struct watch_engine *w = arg;
    if (err != NULL) {
        sg_error_copy(&w->err, err);
    } else if (sg_net_status(r) != 200) {
        sg_error_set(&w->err, SG_PROVIDER_FAILED, "the engine answers with status %d to a request for its events", sg_net_status(r));
    }
    sg_reactor_post(w->d->parts.reactor, &w->over_task); /* with the call's reference */
}

static void open_stream(struct watch_engine *w)
{
    const struct sg_waker waker = {.wake = wake, .arg = w};
    struct sg_error err = {0};
    sg_cleanup(sg_free_p) char *filters = sg_xasprintf("{\"label\":[\"" LABEL_INSTANCE "=%s\"]}", w->d->instance);
    sg_cleanup(sg_free_p) char *escaped = sg_net_escape(filters);
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/v1.%u/events?filters=%s", w->d->api, escaped);
    w->len = 0;
    w->too_long = false;
    w->events = sg_pipe_new(PIPE_BYTES);
    sg_pipe_set_reader(w->events, &waker);
    const struct sg_net_request q = {.method = "GET",
                                     .path = path,
                                     .response_max = 4096,
                                     .response = w->events,
                                     .head = stream_head,
                                     .done = stream_done,
                                     .arg = watch_ref(w)};
    if (sg_net_call(w->d->engine, &q, &err) < 0) {
        sg_pipe_set_reader(w->events, NULL);
        w->events = sg_pipe_unref(w->events);
        unwell(w, &err);
        watch_unref(w);
    }
    sg_error_clear(&err);
}

/* ---- the beginning ---- */

static void asked(void *arg, const struct reply *r)
{
    struct watch_engine *w = arg;
    struct sg_error err = {0};
    if (w->stopped) {
        watch_unref(w);
        return;
    }
    if (r->status == 200) {
        open_stream(w);
    } else {
        sg_error_set(&err, SG_UNAVAILABLE, "the engine at %s does not answer: %s", w->d->cfg.host, r->status == 0 ? r->err->message : r->message);
        sg_error_reason(&err, r->status == 0 && r->err->reason[0] != '\0' ? r->err->reason : "engine_error");
        sg_error_retry_after(&err, 1);
        unwell(w, &err);
    }
    sg_error_clear(&err);
    watch_unref(w);
}

static void ask(struct watch_engine *w)
{
    engine_ask(w->d, &(struct ask){.method = "GET", .path = "/_ping", .ms = PING_MS, .idempotent = true, .fn = asked, .arg = watch_ref(w)});
}

static void begin(struct sg_task *t)
{
    struct watch_engine *w = sg_container_of(t, struct watch_engine, open_task);
    w->open_task.run = opened;
    if (!w->stopped) {
        ask(w);
    }
    watch_unref(w);
}

void watch_start(struct docker *d)
{
    struct watch_engine *w = sg_xcalloc(1, sizeof *w);
    atomic_init(&w->refs, 2);
    w->d = docker_ref(d);
    w->drain_task.run = drain;
    w->over_task.run = over;
    w->open_task.run = begin;
    w->again.fire = ask_again;
    d->watching = w;
    sg_reactor_post(d->parts.reactor, &w->open_task);
}

void watch_stop(struct docker *d)
{
    struct watch_engine *w = d->watching;
    d->watching = NULL;
    w->stopped = true;
    sg_timer_cancel(d->parts.reactor, &w->again);
    watch_unref(w);
}
