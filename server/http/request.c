#include <stdio.h>
#include <strings.h>

#include "base/id.h"
#include "base/str.h"
#include "http/auth.h"
#include "http/request_priv.h"

/* ---- life ---- */

struct sg_request *sg_req_new(struct sg_http *h, struct sg_conn *c, const char *target)
{
    /* The arena is left as it comes: clearing it would cost more than the rest. */
    struct sg_request *r = atomic_exchange(&c->spare, NULL);
    if (!r)
        r = malloc(sizeof *r);
    if (!r)
        return NULL;
    memset(r, 0, offsetof(struct sg_request, arena));
    atomic_init(&r->refs, 1);
    r->http = h;
    r->conn = c;
    atomic_fetch_add(&c->refs, 1);
    pthread_mutex_init(&r->lock, NULL);
    r->arena_at = r->arena;
    r->arena_left = sizeof r->arena;
    r->answer.fd = -1;
    r->started_us = sg_now_us();
    sg_conn_deadline_at(c, r->started_us / 1000 + h->cfg.header_ms);
    r->method = r->version = r->id = "";
    r->target_at = target;
    r->target_len = target ? strlen(target) : 0;
    r->target = sg_req_copy(r, target ? target : "", r->target_len);
    return r;
}

struct sg_request *sg_req_get(struct sg_request *r)
{
    atomic_fetch_add(&r->refs, 1);
    return r;
}

void sg_req_drop_body(struct sg_request *r)
{
    sg_buf_finish(&r->body);
    if (!r->budget)
        return;
    sg_budget_give(r->budget, r->body_taken);
    r->budget = sg_budget_unref(r->budget);
    r->body_taken = 0;
}

/* A connection's requests come one after the other: each leaves its memory to the next. */
static void give_back(struct sg_request *r)
{
    struct sg_conn *c = r->conn;
#ifdef __SANITIZE_ADDRESS__
    free(r); /* so that uses of what is over are seen */
#else
    free(atomic_exchange(&c->spare, r));
#endif
    sg_conn_unref(c);
}

static void req_free(struct sg_request *r)
{
    while (r->blocks) {
        struct sg_block *b = r->blocks;
        r->blocks = b->next;
        free(b);
    }
    sg_req_drop_body(r);
    sg_answer_finish(&r->answer);
    sg_direct_free(r->direct);
    sg_answer_free_headers(r->pending_headers);
    sg_answer_free_headers(r->trailers);
    sg_pipe_unref(r->upload);
    sg_cancel_unref(r->cancel);
    sg_principal_unref(r->principal);
    pthread_mutex_destroy(&r->lock);
    give_back(r);
}

struct sg_request *sg_req_put(struct sg_request *r)
{
    if (r && atomic_fetch_sub(&r->refs, 1) == 1)
        req_free(r);
    return NULL;
}

struct sg_request *sg_req_ref(struct sg_request *r)
{
    atomic_fetch_add(&r->users, 1);
    return sg_req_get(r);
}

struct sg_request *sg_req_unref(struct sg_request *r)
{
    if (!r)
        return NULL;
    if (atomic_fetch_sub(&r->users, 1) == 1 && !sg_req_answered(r)) {
        struct sg_error err = {0};
        sg_error_set(&err, SG_INTERNAL, "the request was given up without an answer");
        sg_respond_error(r, &err); /* nothing if there is one */
        sg_error_clear(&err);
    }
    return sg_req_put(r);
}

void sg_req_p(struct sg_request **r)
{
    sg_req_unref(*r);
}

void *sg_req_alloc(struct sg_request *r, size_t size)
{
    size = (size + 15) & ~(size_t)15;
    if (size > r->arena_left) {
        size_t room = size > 4096 ? size : 4096;
        struct sg_block *b = malloc(sizeof *b + 16 + room);
        if (!b)
            abort(); /* bounded by the connection's memory: as small as any fixed object */
        b->next = r->blocks;
        r->blocks = b;
        r->arena_at = b->bytes;
        r->arena_left = room;
        uintptr_t odd = (uintptr_t)r->arena_at & 15;
        if (odd)
            r->arena_at += 16 - odd;
    }
    void *p = r->arena_at;
    r->arena_at += size;
    r->arena_left -= size;
    return p;
}

char *sg_req_copy(struct sg_request *r, const char *s, size_t len)
{
    char *p = sg_req_alloc(r, len + 1);
    memcpy(p, s, len);
    p[len] = '\0';
    return p;
}

/* ---- what the handler reads ---- */

const char *sg_req_method(const struct sg_request *r)
{
    return r->method;
}

bool sg_req_is_head(const struct sg_request *r)
{
    return sg_streq(r->method, "HEAD");
}

const struct sg_route *sg_req_route(const struct sg_request *r)
{
    return r->match.route;
}

const char *sg_req_id(const struct sg_request *r)
{
    return r->id;
}

const char *sg_req_traceparent(const struct sg_request *r)
{
    return r->traceparent;
}

const char *sg_req_peer(const struct sg_request *r)
{
    return r->conn->peer;
}

const char *sg_req_version(const struct sg_request *r)
{
    return sg_streq(r->version, "HTTP/1.0") ? "1.0" : "1.1";
}

const char *sg_req_raw_target(const struct sg_request *r)
{
    return r->target;
}

const char *sg_req_raw_query(const struct sg_request *r)
{
    return r->path_len < r->target_len ? r->target + r->path_len + 1 : NULL;
}

static bool param_named(const char *in_path, const char *name)
{
    size_t len = strlen(name);
    return strncmp(in_path, name, len) == 0 && (in_path[len] == '}' || strncmp(in_path + len, "...}", 4) == 0);
}

const char *sg_req_param(const struct sg_request *r, const char *name)
{
    for (size_t i = 0; i < r->match.n_params; i++)
        if (param_named(r->match.names[i], name))
            return r->params[i];
    return NULL;
}

const char *sg_req_query(const struct sg_request *r, const char *name)
{
    for (size_t i = 0; i < r->n_query; i++)
        if (sg_streq(r->query[i].name, name))
            return r->query[i].value;
    return NULL;
}

int sg_req_query_int(const struct sg_request *r, const char *name, int64_t min, int64_t max, int64_t *ret,
                     struct sg_error *err)
{
    const char *v = sg_req_query(r, name);
    if (!v)
        return 0;
    if (!sg_parse_int(v, min, max, ret))
        return sg_error_field(err, SG_INVALID_REQUEST, name, "%s must be an integer from %lld to %lld", name,
                              (long long)min, (long long)max);
    return 1;
}

int sg_req_query_bool(const struct sg_request *r, const char *name, bool *ret, struct sg_error *err)
{
    const char *v = sg_req_query(r, name);
    if (!v)
        return 0;
    bool yes = sg_streq(v, "1") || sg_streq(v, "true") || sg_streq(v, "");
    if (!yes && !sg_streq(v, "0") && !sg_streq(v, "false"))
        return sg_error_field(err, SG_INVALID_REQUEST, name, "%s must be true or false", name);
    *ret = yes;
    return 1;
}

const char *sg_req_header(const struct sg_request *r, const char *name)
{
    const char *v = NULL;
    for (size_t i = 0; i < r->n_headers; i++) {
        const char *have = r->headers[i].name;
        if ((have[0] | 0x20) != (name[0] | 0x20) || strcasecmp(have, name) != 0)
            continue;
        if (v)
            return NULL;
        v = r->headers[i].value;
    }
    return v;
}

const struct sg_header *sg_req_headers(const struct sg_request *r, size_t *ret_n)
{
    *ret_n = r->n_headers;
    return r->headers;
}

const char *sg_req_body(const struct sg_request *r, size_t *ret_len)
{
    *ret_len = r->body.len;
    return r->body.len ? r->body.data : "";
}

int64_t sg_req_content_length(const struct sg_request *r)
{
    return r->framing.chunked ? -1 : (int64_t)r->framing.length;
}

const struct sg_header *sg_req_trailers(const struct sg_request *r, size_t *ret_n)
{
    *ret_n = r->n_body_trailers;
    return r->body_trailers;
}

const struct sg_principal *sg_req_principal(const struct sg_request *r)
{
    return r->principal;
}

bool sg_req_has_body(const struct sg_request *r)
{
    return r->framing.chunked || r->framing.length > 0;
}

bool sg_req_answered(struct sg_request *r)
{
    pthread_mutex_lock(&r->lock);
    bool answered = r->answered;
    pthread_mutex_unlock(&r->lock);
    return answered;
}

int sg_req_authenticate(struct sg_request *r, struct sg_error *err)
{
    return r->principal ? 0 : sg_admit_authenticate(r, err);
}

void sg_req_set_note(struct sg_request *r, const char *note)
{
    size_t n = strnlen(note, sizeof r->note - 1);
    pthread_mutex_lock(&r->lock); /* the client may be gone and the exchange reported just now */
    memcpy(r->note, note, n);
    r->note[n] = '\0';
    pthread_mutex_unlock(&r->lock);
}

/* ---- path and query ---- */

static int decode_param(struct sg_request *r, size_t i, struct sg_error *err)
{
    struct sg_slice raw = r->match.raw[i];
    const char *name = r->match.names[i];
    size_t name_len = strcspn(name, ".}");
    char field[64];
    size_t len = 0;
    if (strncmp(name + name_len, "...}", 4) == 0) {
        r->params[i] = sg_req_copy(r, raw.at, raw.len);
        return 0;
    }
    char *out = sg_req_alloc(r, raw.len + 1);
    r->params[i] = out;
    if (sg_percent_decode(raw.at, raw.len, false, out, &len) && !strchr(out, '/') && !sg_streq(out, ".") &&
        !sg_streq(out, "..") && sg_utf8_valid(out, len))
        return 0;
    snprintf(field, sizeof field, "%.*s", (int)name_len, name);
    return sg_error_field(err, SG_INVALID_REQUEST, field, "malformed %s in the path", field);
}

static bool query_known(const struct sg_route *route, const char *name)
{
    for (const char *const *q = route->query; q && *q; q++)
        if (sg_streq(*q, name))
            return true;
    return false;
}

static const char *decode_part(struct sg_request *r, const char *at, size_t len)
{
    size_t out_len;
    char *out = sg_req_alloc(r, len + 1);
    return sg_percent_decode(at, len, true, out, &out_len) ? out : NULL;
}

static int decode_pair(struct sg_request *r, const char *at, size_t len, struct sg_error *err)
{
    const char *eq = memchr(at, '=', len);
    size_t name_len = eq ? (size_t)(eq - at) : len;
    const char *name = decode_part(r, at, name_len);
    const char *value = eq ? decode_part(r, eq + 1, len - name_len - 1) : "";
    if (!name || !value)
        return sg_error_field(err, SG_INVALID_REQUEST, "query", "malformed escape in the query");
    if (!sg_utf8_valid(name, strlen(name)) || !query_known(r->match.route, name))
        return sg_error_field(err, SG_INVALID_REQUEST, sg_utf8_valid(name, strlen(name)) ? name : "query",
                              "unknown query parameter");
    if (sg_req_query(r, name))
        return sg_error_field(err, SG_INVALID_REQUEST, name, "query parameter sent more than once");
    if (r->n_query == SG_ROUTE_QUERY_MAX)
        return sg_error_field(err, SG_INVALID_REQUEST, "query", "too many query parameters");
    r->query[r->n_query++] = (struct sg_pair){name, value};
    return 0;
}

int sg_req_decode(struct sg_request *r, struct sg_error *err)
{
    const struct sg_route *route = r->match.route;
    for (size_t i = 0; i < r->match.n_params; i++)
        if (decode_param(r, i, err) < 0)
            return -1;
    const char *p = sg_req_raw_query(r);
    if (!p || route->raw_query || strstr(route->path, "...}"))
        return 0;
    while (*p) {
        size_t len = strcspn(p, "&");
        if (len > 0 && decode_pair(r, p, len, err) < 0)
            return -1;
        p += len + (p[len] == '&');
    }
    return 0;
}

/* ---- cancel, suspend, wake ---- */

struct sg_cancel *sg_req_cancel(struct sg_request *r)
{
    pthread_mutex_lock(&r->lock);
    bool made = !r->cancel;
    if (made)
        r->cancel = sg_cancel_new();
    struct sg_cancel *c = r->cancel;
    enum sg_cancel_reason why = made ? r->cancel_reason : SG_CANCEL_NONE;
    pthread_mutex_unlock(&r->lock);
    if (why != SG_CANCEL_NONE)
        sg_cancel_fire(c, why); /* what happened before anybody asked */
    return c;
}

void sg_req_fire(struct sg_request *r, enum sg_cancel_reason why)
{
    pthread_mutex_lock(&r->lock);
    if (r->cancel_reason == SG_CANCEL_NONE)
        r->cancel_reason = why;
    struct sg_cancel *c = r->cancel ? sg_cancel_ref(r->cancel) : NULL;
    pthread_mutex_unlock(&r->lock);
    if (c)
        sg_cancel_fire(c, why);
    sg_cancel_unref(c);
}

void sg_req_on_end(struct sg_request *r, void (*fn)(void *arg, bool delivered), void *arg)
{
    pthread_mutex_lock(&r->lock);
    bool over = !r->mhd;
    if (!over) {
        r->on_end = fn;
        r->on_end_arg = arg;
    }
    pthread_mutex_unlock(&r->lock);
    if (over)
        fn(arg, false);
}

void sg_req_wake_locked(struct sg_request *r)
{
    if (r->suspended && r->mhd) {
        r->suspended = false;
        MHD_resume_connection(r->mhd);
    } else {
        r->wake = true;
    }
}

static void wake(void *arg)
{
    struct sg_request *r = arg;
    pthread_mutex_lock(&r->lock);
    sg_req_wake_locked(r);
    pthread_mutex_unlock(&r->lock);
}

static void waker_ref(void *arg)
{
    sg_req_get(arg);
}

static void waker_unref(void *arg)
{
    sg_req_put(arg);
}

struct sg_waker sg_req_waker(struct sg_request *r)
{
    return (struct sg_waker){.wake = wake, .ref = waker_ref, .unref = waker_unref, .arg = r};
}

int sg_req_suspend(struct sg_request *r)
{
    int result = 1;
    sg_conn_wait(r->conn, r);
    sg_http_async_add(r->http, r);
    pthread_mutex_lock(&r->lock);
    if (r->aborted || atomic_load(&r->http->stopping)) {
        result = -1;
    } else if (r->wake) {
        r->wake = false;
        result = 0;
    } else {
        r->suspended = true;
        MHD_suspend_connection(r->mhd);
    }
    pthread_mutex_unlock(&r->lock);
    /* One seen before the flag was set may have been left for later. */
    if (result == 1 && sg_conn_hung(r->conn))
        sg_req_hangup(r, true);
    return result;
}

bool sg_req_hangup(struct sg_request *r, bool sure)
{
    pthread_mutex_lock(&r->lock);
    bool over = !r->mhd || r->hung_up;
    bool judged = over || sure || r->suspended || !r->body_pending;
    if (!over && judged) {
        r->hung_up = true;
        sg_req_wake_locked(r);
    }
    pthread_mutex_unlock(&r->lock);
    if (!over && judged)
        sg_req_fire(r, SG_CANCEL_HANGUP);
    return judged;
}
