/* Calls to the engine, whose answers come back to the reactor. */
#include "backends/docker/docker_priv.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"

#define ANSWER_MAX ((size_t)1 << 20)
#define PING_MS 10000

struct asking {
    struct sg_task task;
    struct docker *d; /* one reference */
    char *method, *path, *body;
    struct ask a;
    int64_t deadline_ms;
    int status;
    json_t *json;
    char message[300];
    struct sg_error err;
};

static void asking_free(struct asking *k)
{
    sg_json_unref(k->json);
    sg_error_clear(&k->err);
    sg_cancel_unref(k->a.cancel);
    free(k->method);
    free(k->path);
    free(k->body);
    docker_unref(k->d);
    free(k);
}

static void deliver(struct sg_task *t)
{
    struct asking *k = sg_container_of(t, struct asking, task);
    const struct reply r = {.status = k->status, .json = k->json, .message = k->message, .err = k->status == 0 ? &k->err : NULL};
    k->a.fn(k->a.arg, &r);
    asking_free(k);
}

static void finish(struct asking *k)
{
    k->task.run = deliver;
    sg_reactor_post(k->d->parts.reactor, &k->task); /* also of a driver that is closing: it waits for all of them */
}

static void note_message(struct asking *k, const char *text, size_t len)
{
    while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == '\r')) {
        len--;
    }
    (void)snprintf(k->message, sizeof k->message, "%.*s", (int)(len < sizeof k->message ? len : sizeof k->message - 1), text);
}

static void read_answer(struct asking *k, const struct sg_net_response *r)
{
    size_t len;
    const char *text = sg_net_body(r, &len);
    k->status = sg_net_status(r);
    (void)sg_json_parse(text, len, &k->json, NULL);
    const char *message = json_string_value(json_object_get(k->json, "message"));
    if (k->status >= 300) {
        note_message(k, message != NULL ? message : text, message != NULL ? strlen(message) : len);
    }
}

static void answered(void *arg, const struct sg_net_response *r, const struct sg_error *err)
{
    struct asking *k = arg;
    if (err != NULL) {
        sg_error_copy(&k->err, err);
    } else {
        read_answer(k, r);
    }
    finish(k);
}

static void send_it(struct asking *k, unsigned api)
{
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/v1.%u%s", api, k->path);
    const struct sg_net_header headers[] = {{.name = "X-Registry-Auth", .secret = k->a.login},
                                            {.name = "Content-Type", .value = k->a.tar_len > 0 ? "application/x-tar" : "application/json"}};
    const char *body = k->a.tar_len > 0 ? k->a.body : k->body;
    size_t first = k->a.login != NULL ? 0 : 1;
    struct sg_net_request q = {.method = k->method,
                               .path = path,
                               .headers = headers + first,
                               .n_headers = (body != NULL ? 2U : 1U) - first,
                               .body = body,
                               .body_len = k->a.tar_len > 0 ? k->a.tar_len : body != NULL ? strlen(body) : 0,
                               .repeatable = k->a.idempotent,
                               .deadline_ms = k->deadline_ms,
                               .stall_ms = k->a.stall_ms,
                               .response_max = k->a.max,
                               .response = k->a.stream,
                               .cancel = k->a.cancel,
                               .done = answered,
                               .arg = k};
    if (sg_net_call(k->d->engine, &q, &k->err) < 0) {
        finish(k);
    }
}

/* "1.41" */
static unsigned minor_of(const char *version)
{
    int64_t minor = 0;
    return version != NULL && strncmp(version, "1.", 2) == 0 && sg_parse_int(version + 2, 0, 10000, &minor) ? (unsigned)minor : 0;
}

/* What became of the question before it says nothing of the question itself: that has not been asked. */
static void not_asked(struct asking *k, const struct sg_error *why)
{
    sg_error_copy(&k->err, why);
    if (why->code == SG_PROVIDER_FAILED || why->code == SG_PROVIDER_TIMEOUT) {
        k->err.code = SG_UNAVAILABLE;
        sg_error_retry_after(&k->err, 1);
    }
}

static void pinged(void *arg, const struct sg_net_response *r, const struct sg_error *err)
{
    struct asking *k = arg;
    if (err != NULL) {
        not_asked(k, err);
        finish(k);
        return;
    }
    const char *version = sg_net_header(r, "Api-Version");
    unsigned theirs = minor_of(version);
    if (sg_net_status(r) != 200 || theirs < DOCKER_API_MIN) {
        sg_error_set(&k->err, SG_UNAVAILABLE, "the engine at %s speaks API version %s, not 1.%u or newer", k->d->cfg.host,
                     version != NULL ? version : "(none)", DOCKER_API_MIN);
        sg_error_reason(&k->err, "engine_version");
        sg_error_retry_after(&k->err, 30);
        finish(k);
        return;
    }
    k->d->podman = sg_net_header(r, "Libpod-Api-Version") != NULL;
    unsigned api = theirs < DOCKER_API_MAX ? theirs : DOCKER_API_MAX;
    (void)pthread_mutex_lock(&k->d->lock);
    k->d->api = api;
    (void)pthread_mutex_unlock(&k->d->lock);
    send_it(k, api);
}

static void ping(struct asking *k)
{
    int64_t soon = sg_now_ms() + PING_MS;
    const struct sg_net_request q = {.method = "GET",
                                     .path = "/_ping",
                                     .deadline_ms = k->deadline_ms < soon ? k->deadline_ms : soon,
                                     .response_max = 4096,
                                     .cancel = k->a.cancel,
                                     .done = pinged,
                                     .arg = k};
    if (sg_net_call(k->d->engine, &q, &k->err) < 0) {
        finish(k);
    }
}

static unsigned known_api(struct docker *d)
{
    (void)pthread_mutex_lock(&d->lock);
    unsigned api = d->api;
    (void)pthread_mutex_unlock(&d->lock);
    return api;
}

bool engine_known(struct docker *d)
{
    return known_api(d) > 0;
}

unsigned engine_api(struct docker *d)
{
    unsigned api = known_api(d);
    return api > 0 ? api : DOCKER_API_MIN;
}

void engine_ask(struct docker *d, const struct ask *a)
{
    struct asking *k = sg_xcalloc(1, sizeof *k);
    k->d = docker_ref(d);
    k->a = *a;
    k->a.max = a->max > 0 ? a->max : ANSWER_MAX;
    k->a.cancel = a->cancel != NULL ? sg_cancel_ref(a->cancel) : NULL;
    k->method = sg_xstrdup(a->method);
    k->path = sg_xstrdup(a->path);
    k->body = a->body != NULL && a->tar_len == 0 ? sg_xstrdup(a->body) : NULL;
    k->deadline_ms = sg_now_ms() + a->ms;
    if (d->closing) {
        sg_error_set(&k->err, SG_SHUTTING_DOWN, "the server is shutting down");
        finish(k);
        return;
    }
    unsigned api = known_api(d);
    if (api == 0) {
        ping(k);
    } else {
        send_it(k, api);
    }
}

bool docker_says_full(const char *message)
{
    return strstr(message, "no space left on device") != NULL;
}

int engine_error(const struct reply *r, const char *what, struct sg_error *err)
{
    if (r->status == 0) {
        sg_error_copy(err, r->err);
        sg_error_wrap(err, "cannot %s", what);
    } else {
        bool full = docker_says_full(r->message);
        sg_error_set(err, full ? SG_UNAVAILABLE : SG_PROVIDER_FAILED, "the engine could not %s: %s", what,
                     r->message[0] != '\0' ? r->message : "no reason given");
        sg_error_reason(err, full ? "engine_disk_full" : "engine_error");
        if (full) {
            sg_error_retry_after(err, 30);
        }
        sg_error_member(err, "provider_status", json_integer(r->status));
    }
    sg_error_member(err, "provider", json_string("docker"));
    return -1;
}
