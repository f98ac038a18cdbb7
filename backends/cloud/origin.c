#include "backends/cloud/origin.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "backends/cloud/scrub.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"

#define BACKOFF_MS 200
#define BACKOFF_MAX_MS 5000
#define ATTEMPT_LEAST_MS 1000
#define SAID_MAX 200U

struct sg_origin {
    const char *provider, *key_header;
    struct sg_alarms *alarms;
    struct sg_net_client *client;
    pthread_mutex_t lock; /* guards what follows */
    struct sg_secret *key;
    unsigned failures;
    uint64_t repeated, opened;
    int64_t closed_until_ms; /* of the breaker */
    struct sg_error why;
};

struct call {
    struct sg_origin *o;
    char *method, *path, *body;
    size_t body_len;
    struct sg_net_header headers[8]; /* copies */
    size_t n_headers;
    bool repeatable, insist;
    int64_t deadline_ms;
    unsigned attempt;
    struct sg_error last; /* why it is made again */
    void (*done)(void *arg, const struct sg_origin_answer *a, const struct sg_error *err);
    void *arg;
};

/* ---- the origin ---- */

/* What cannot be read now would fail every call. */
static int check_file(const char *path, struct sg_error *err)
{
    if (!path || access(path, R_OK) == 0)
        return 0;
    return sg_error_sys(err, SG_INVALID_REQUEST, errno, "cannot read %s", path);
}

int sg_origin_new(const struct sg_origin_config *c, struct sg_origin **ret, struct sg_error *err)
{
    struct sg_origin *o = sg_xcalloc(1, sizeof *o);

    o->provider = c->provider;
    o->key_header = c->key_header;
    o->alarms = c->alarms;
    o->key = c->key;
    pthread_mutex_init(&o->lock, NULL);
    if (check_file(c->client.ca_file, err) < 0 || sg_net_client_new(c->net, &c->client, &o->client, err) < 0) {
        sg_origin_free(o);
        return -1;
    }
    *ret = o;
    return 0;
}

struct sg_origin *sg_origin_free(struct sg_origin *o)
{
    if (!o)
        return NULL;
    sg_net_client_free(o->client);
    sg_secret_free(o->key);
    sg_error_clear(&o->why);
    pthread_mutex_destroy(&o->lock);
    free(o);
    return NULL;
}

void sg_origin_set_key(struct sg_origin *o, struct sg_secret *key)
{
    pthread_mutex_lock(&o->lock);
    struct sg_secret *old = o->key;
    o->key = key;
    pthread_mutex_unlock(&o->lock);
    sg_secret_free(old);
}

struct sg_net_client *sg_origin_client(struct sg_origin *o)
{
    return o->client;
}

/* ---- the breaker ---- */

static int broken(const struct sg_origin *o, int64_t now, struct sg_error *err)
{
    sg_error_set(err, SG_UNAVAILABLE, "%s does not work at the moment and is not asked: %.300s", o->provider, o->why.message);
    sg_error_reason(err, "provider_circuit_open");
    sg_error_member(err, "provider", json_string(o->provider));
    return sg_error_retry_after(err, now < o->closed_until_ms ? (int)((o->closed_until_ms - now) / 1000) + 1 : 1);
}

int sg_origin_health(struct sg_origin *o, struct sg_error *err)
{
    int64_t now = sg_now_ms();

    pthread_mutex_lock(&o->lock);
    int rc = o->failures >= SG_ORIGIN_BREAK_AFTER ? broken(o, now, err) : 0;
    pthread_mutex_unlock(&o->lock);
    return rc;
}

void sg_client_report(struct sg_net_client *c, enum sg_provider_kind kind, struct sg_provider_report *r)
{
    struct sg_net_counts n;
    struct sg_provider_calls *k = &r->calls[kind];

    sg_net_client_counts(c, &n);
    k->running += n.running;
    k->waiting += n.waiting;
    k->max_concurrent += n.max_concurrent;
    k->answered += n.answered;
    k->failed += n.failed;
    k->timed_out += n.timed_out;
    k->cancelled += n.cancelled;
    k->refused += n.refused;
    k->bytes_in += n.bytes_in;
    k->bytes_out += n.bytes_out;
}

void sg_origin_report(struct sg_origin *o, enum sg_provider_kind kind, struct sg_provider_report *r)
{
    int64_t now = sg_now_ms();

    sg_client_report(o->client, kind, r);
    pthread_mutex_lock(&o->lock);
    enum sg_breaker state = o->failures < SG_ORIGIN_BREAK_AFTER ? SG_BREAKER_CLOSED
                            : now < o->closed_until_ms          ? SG_BREAKER_OPEN
                                                                : SG_BREAKER_HALF_OPEN;
    r->breaker = state > r->breaker ? state : r->breaker;
    r->breaker_opened += o->opened;
    r->calls[kind].repeated += o->repeated;
    pthread_mutex_unlock(&o->lock);
}

/* While it is open one call goes through every now and then, to see. */
static int admit(struct sg_origin *o, struct sg_error *err)
{
    int64_t now = sg_now_ms();
    int rc = 0;

    pthread_mutex_lock(&o->lock);
    if (o->failures >= SG_ORIGIN_BREAK_AFTER) {
        if (now < o->closed_until_ms)
            rc = broken(o, now, err);
        else
            o->closed_until_ms = now + SG_ORIGIN_BREAK_MS;
    }
    pthread_mutex_unlock(&o->lock);
    return rc;
}

static void note(struct sg_origin *o, const struct sg_error *failure)
{
    pthread_mutex_lock(&o->lock);
    if (!failure) {
        o->failures = 0;
        sg_error_clear(&o->why);
    } else {
        bool broke = o->failures < SG_ORIGIN_BREAK_AFTER && ++o->failures == SG_ORIGIN_BREAK_AFTER;
        o->opened += broke;
        o->closed_until_ms = sg_now_ms() + SG_ORIGIN_BREAK_MS;
        sg_error_copy(&o->why, failure);
    }
    pthread_mutex_unlock(&o->lock);
}

/* ---- meaning ---- */

/* What the provider says in its `message`, as ": ..." into out; "" when there is none that can be shown. */
static void said(const json_t *v, const char *secret, char out[SAID_MAX + 8])
{
    const char *text = json_string_value(json_object_get(v, "message"));

    out[0] = '\0';
    if (!text || text[0] == '\0' || sg_gives_away(text, secret))
        return;
    int n = snprintf(out, SAID_MAX, ": %s", text);
    size_t len = sg_utf8_whole(out, n < (int)SAID_MAX ? (size_t)n : SAID_MAX - 1);
    out[len] = '\0';
    for (char *p = out; *p; p++)
        *p = (unsigned char)*p < 0x20 || *p == 0x7f ? ' ' : *p;
}

static int refused(const char *provider, int status, const char *what, struct sg_error *err)
{
    switch (status) {
    case 401:
    case 403:
        sg_error_set(err, SG_UNAVAILABLE, "%s refuses this server's credentials (status %d)%s", provider, status, what);
        return sg_error_reason(err, "provider_credentials");
    case 404:
        return sg_error_set(err, SG_NOT_FOUND, "%s does not know it%s", provider, what);
    case 409:
        return sg_error_set(err, SG_CONFLICT, "%s says that it cannot be done now%s", provider, what);
    case 429:
        sg_error_set(err, SG_UNAVAILABLE, "%s is at a limit%s", provider, what);
        return sg_error_reason(err, "provider_limit");
    case 408:
    case 499:
    case 504:
        return sg_error_set(err, SG_PROVIDER_TIMEOUT, "%s did not manage it in time (status %d)%s", provider, status, what);
    default:
        return sg_error_set(err, SG_PROVIDER_FAILED, "%s answers with status %d%s", provider, status, what);
    }
}

int sg_origin_refused(const char *provider, int status, int retry_after, const char *text, size_t len, const char *secret,
                      struct sg_error *err)
{
    sg_cleanup(sg_json_p) json_t *v = NULL;
    char what[SAID_MAX + 8] = "";

    if (len > 0 && sg_json_parse_object(text, len, &v, NULL) == 0)
        said(v, secret, what);
    const char *code = json_string_value(json_object_get(v, "error_code"));
    if (status == 503 && code && strncmp(code, "sandbox_", 8) == 0) {
        sg_error_set(err, SG_UNAVAILABLE, "%s has no room%s", provider, what);
        sg_error_reason(err, "provider_capacity");
    } else {
        refused(provider, status, what, err);
    }
    if (err && (err->code == SG_UNAVAILABLE || retry_after > 0))
        sg_error_retry_after(err, retry_after > 0 ? retry_after : 1);
    sg_error_member(err, "provider", json_string(provider));
    sg_error_member(err, "provider_status", json_integer(status));
    return -1;
}

bool sg_origin_unknown(const struct sg_error *err)
{
    return err->code == SG_PROVIDER_FAILED || err->code == SG_PROVIDER_TIMEOUT || err->code == SG_OUTCOME_UNKNOWN ||
           err->code == SG_SHUTTING_DOWN;
}

/* ---- calls ---- */

static void call_free(struct call *c)
{
    for (size_t i = 0; i < c->n_headers; i++) {
        char *name = (char *)(uintptr_t)c->headers[i].name, *value = (char *)(uintptr_t)c->headers[i].value;
        explicit_bzero(value, strlen(value));
        free(name);
        free(value);
    }
    sg_error_clear(&c->last);
    free(c->method);
    free(c->path);
    free(c->body);
    free(c);
}

static void finish(struct call *c, const struct sg_origin_answer *a, const struct sg_error *err)
{
    c->done(c->arg, a, err);
    call_free(c);
}

static void attempt(struct call *c);

static void again(void *arg, bool over)
{
    struct call *c = arg;
    struct sg_error err = {0};

    if (!over) {
        attempt(c);
        return;
    }
    sg_error_set(&err, SG_SHUTTING_DOWN, "the server is shutting down");
    sg_error_retry_after(&err, 5);
    finish(c, NULL, &err);
    sg_error_clear(&err);
}

/* Later, if there is time for it. */
static bool try_again(struct call *c, const struct sg_error *err)
{
    bool nothing = err->code == SG_UNAVAILABLE && !sg_streq(err->reason, "provider_credentials");
    bool hopeless = err->code == SG_NOT_FOUND || err->code == SG_CONFLICT || err->code == SG_SHUTTING_DOWN || err->code == SG_CANCELLED ||
                    sg_streq(err->reason, "response_too_large") || sg_streq(err->reason, "tls_failed");

    if (hopeless || !(nothing || (c->repeatable && sg_origin_unknown(err))) || ++c->attempt >= SG_ORIGIN_ATTEMPTS)
        return false;
    int64_t wait = sg_backoff_ms(c->attempt - 1, BACKOFF_MS, BACKOFF_MAX_MS);
    if (strncmp(err->reason, "provider_", 9) == 0 && err->retry_after * INT64_C(1000) > wait) /* the provider's own word */
        wait = err->retry_after * INT64_C(1000);
    if (sg_now_ms() + wait >= c->deadline_ms)
        return false;
    pthread_mutex_lock(&c->o->lock);
    c->o->repeated++;
    pthread_mutex_unlock(&c->o->lock);
    sg_error_copy(&c->last, err);
    sg_alarm(c->o->alarms, wait, again, c);
    return true;
}

static int judge(const struct call *c, const struct sg_net_response *r, const char *text, size_t len, struct sg_error *err)
{
    int status = sg_net_status(r);

    if (status >= 200 && status < 300)
        return 0;
    pthread_mutex_lock(&c->o->lock);
    const char *key = c->o->key ? sg_secret_expose(c->o->key, NULL) : NULL;
    sg_origin_refused(c->o->provider, status, sg_net_retry_after(r), text, len, key, err);
    pthread_mutex_unlock(&c->o->lock);
    for (size_t i = 0; i < c->n_headers && err; i++)
        if (sg_gives_away(err->message, c->headers[i].value))
            snprintf(err->message, sizeof err->message, "%s answers with status %d", c->o->provider, status);
    return -1;
}

static void answered(void *arg, const struct sg_net_response *r, const struct sg_error *failed)
{
    struct call *c = arg;
    struct sg_error err = {0};
    sg_cleanup(sg_json_p) json_t *body = NULL;
    struct sg_origin_answer a = {0};

    if (r) {
        size_t len;
        const char *text = sg_net_body(r, &len);
        a.status = sg_net_status(r);
        a.next = sg_net_header(r, "X-Next-Token");
        if (len > 0)
            (void)sg_json_parse(text, len, &body, NULL);
        a.body = body;
        (void)judge(c, r, text, len, &err);
    } else {
        sg_error_copy(&err, failed);
        sg_error_member(&err, "provider", json_string(c->o->provider));
    }
    if (err.code != SG_SHUTTING_DOWN && err.code != SG_CANCELLED && !sg_streq(err.reason, "busy"))
        note(c->o, (r && a.status < 500) ? NULL : &err);
    if (err.code == SG_OK)
        finish(c, &a, NULL);
    else if (!try_again(c, &err))
        finish(c, r ? &a : NULL, &err);
    sg_error_clear(&err);
}

/* One attempt that hangs leaves time for another. */
static int64_t attempt_deadline(const struct call *c)
{
    int64_t now = sg_now_ms();
    int64_t half = (c->deadline_ms - now) / 2;

    if (!c->repeatable || c->attempt + 1 >= SG_ORIGIN_ATTEMPTS || half < ATTEMPT_LEAST_MS)
        return c->deadline_ms;
    return now + half;
}

static int send_call(struct call *c, struct sg_error *err)
{
    struct sg_origin *o = c->o;
    struct sg_net_header headers[12];
    size_t n = 0;

    for (size_t i = 0; i < c->n_headers; i++)
        headers[n++] = c->headers[i];
    if (c->body)
        headers[n++] = (struct sg_net_header){.name = "Content-Type", .value = "application/json"};
    struct sg_net_request q = {.method = c->method,
                               .path = c->path,
                               .headers = headers,
                               .body = c->body,
                               .body_len = c->body_len,
                               .repeatable = c->repeatable,
                               .deadline_ms = attempt_deadline(c),
                               .response_max = SG_ORIGIN_ANSWER_MAX,
                               .done = answered,
                               .arg = c};
    pthread_mutex_lock(&o->lock); /* the key may be replaced */
    if (o->key_header && o->key)
        headers[n++] = (struct sg_net_header){.name = o->key_header, .secret = o->key};
    q.n_headers = n;
    int rc = sg_net_call(o->client, &q, err);
    pthread_mutex_unlock(&o->lock);
    return rc;
}

static void attempt(struct call *c)
{
    struct sg_error err = {0};

    if (!c->insist && admit(c->o, &err) < 0)
        finish(c, NULL, c->attempt > 0 ? &c->last : &err);
    else if (send_call(c, &err) < 0)
        finish(c, NULL, &err);
    sg_error_clear(&err);
}

void sg_origin_call(struct sg_origin *o, const struct sg_origin_call *q)
{
    struct call *c = sg_xcalloc(1, sizeof *c);

    c->o = o;
    c->method = sg_xstrdup(q->method);
    c->path = sg_xstrdup(q->path);
    c->body = q->body ? sg_json_dump(q->body, &c->body_len) : NULL;
    for (size_t i = 0; i < q->n_headers && i < SG_COUNT_OF(c->headers); i++) {
        const struct sg_net_header *h = &q->headers[i];
        c->headers[c->n_headers++] = (struct sg_net_header){
            .name = sg_xstrdup(h->name), .value = sg_xstrdup(h->secret ? sg_secret_expose(h->secret, NULL) : h->value)};
    }
    c->repeatable = q->repeatable;
    c->insist = q->insist;
    c->deadline_ms = q->deadline_ms;
    c->done = q->done;
    c->arg = q->arg;
    attempt(c);
}
