/* One command as the sandbox's daemon streams it: the Connect protocol, JSON in envelopes of five bytes and a payload. */
#include "backends/e2b/e2b_priv.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/base64.h"
#include "base/clock.h"
#include "base/json.h"

#define RAW_BYTES ((size_t)64 * 1024)
#define PAYLOAD_MAX ((size_t)1024 * 1024)
#define HEAD 5U
#define PING_S "20"
#define SILENT_MS 60000
#define LAST_FRAME 0x02

struct e2b_stream {
    _Atomic int refs;
    struct e2b_sandbox *sb;
    struct e2b_stream_args a;
    struct sg_cancel *cancel;
    struct sg_pipe *raw;
    _Atomic bool left;
    struct sg_task resume;
    _Atomic bool resuming; /* the task has a reference */

    pthread_mutex_t lock; /* guards these */
    bool pumping, again;
    bool answered; /* the call is over: */
    struct sg_error failed;

    /* whoever pumps */
    struct sg_buf frame;
    uint8_t *data; /* decoded, not taken yet */
    size_t data_len, data_at;
    bool to_stderr;
    bool ended, last;
    int code;
    struct sg_error why;
    bool told;
};

static struct e2b_stream *stream_ref(struct e2b_stream *s)
{
    atomic_fetch_add(&s->refs, 1);
    return s;
}

struct e2b_stream *e2b_stream_unref(struct e2b_stream *s)
{
    if (!s || atomic_fetch_sub(&s->refs, 1) > 1)
        return NULL;
    sg_pipe_unref(s->raw);
    sg_cancel_unref(s->cancel);
    sg_buf_finish(&s->frame);
    sg_error_clear(&s->failed);
    sg_error_clear(&s->why);
    free(s->data);
    pthread_mutex_destroy(&s->lock);
    sg_sandbox_unref(&s->sb->base);
    free(s);
    return NULL;
}

/* ---- what comes ---- */

static int broken(struct e2b_stream *s)
{
    if (s->why.code == SG_OK) {
        sg_error_set(&s->why, SG_PROVIDER_FAILED, "what e2b streams of the command cannot be understood");
        sg_error_member(&s->why, "provider", json_string("e2b"));
    }
    return -1;
}

/* Past blanks and the word, or NULL when something else is there. */
static const char *skip(const char *p, const char *end, const char *word)
{
    size_t len = strlen(word);

    while (p && p < end && (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\n'))
        p++;
    return p && (size_t)(end - p) >= len && memcmp(p, word, len) == 0 ? p + len : NULL;
}

/* What nearly all frames are, {"event":{"data":{"stdout":"..."}}}, without the detour over JSON values, which took most of the time. False:
 * it is something else, or written otherwise. */
static bool take_data_quickly(struct e2b_stream *s, const char *text, size_t len)
{
    static const char *const before[] = {"{", "\"event\"", ":", "{", "\"data\"", ":", "{"};
    const char *p = text, *end = text + len;

    for (size_t i = 0; i < SG_COUNT_OF(before); i++)
        p = skip(p, end, before[i]);
    const char *out = skip(p, end, "\"stdout\""), *err = skip(p, end, "\"stderr\"");
    p = skip(skip(out ? out : err, end, ":"), end, "\"");
    const char *quote = p ? memchr(p, '"', (size_t)(end - p)) : NULL;
    if (!quote)
        return false;
    const char *after = skip(skip(skip(quote + 1, end, "}"), end, "}"), end, "}");
    if (after != end || sg_base64_decode(p, (size_t)(quote - p), PAYLOAD_MAX, &s->data, &s->data_len, NULL) < 0)
        return false;
    s->data_at = 0;
    s->to_stderr = !out;
    return true;
}

static int take_data(struct e2b_stream *s, const json_t *v)
{
    const json_t *text = json_object_get(v, "stdout");

    s->to_stderr = !text;
    if (!text)
        text = json_object_get(v, "stderr");
    if (!text)
        return 0;
    if (!json_is_string(text) || sg_base64_decode(json_string_value(text), json_string_length(text), PAYLOAD_MAX, &s->data, &s->data_len, NULL) < 0)
        return broken(s);
    s->data_at = 0;
    return 0;
}

static int take_event(struct e2b_stream *s, const json_t *event)
{
    const json_t *v;

    if ((v = json_object_get(event, "start")) != NULL) {
        json_int_t pid = json_integer_value(json_object_get(v, "pid"));
        if (pid <= 0 || pid > UINT32_MAX)
            return broken(s);
        s->a.started(s->a.arg, (uint32_t)pid);
    } else if ((v = json_object_get(event, "data")) != NULL) {
        return take_data(s, v);
    } else if ((v = json_object_get(event, "end")) != NULL) {
        s->ended = true;
        s->code = (int)json_integer_value(json_object_get(v, "exitCode"));
    }
    return 0; /* a sign of life, or something newer than this */
}

static void take_error(struct e2b_stream *s, const json_t *e)
{
    const char *code = json_string_value(json_object_get(e, "code"));
    const char *text = json_string_value(json_object_get(e, "message"));

    if (!code || strspn(code, "abcdefghijklmnopqrstuvwxyz_") != strlen(code))
        code = "unknown"; /* who says this may say anything, such as what it was sent */
    if (sg_streq(code, "invalid_argument") && text && strstr(text, "cwd")) {
        sg_error_set(&s->why, SG_CWD_NOT_FOUND, "the directory to start in does not exist");
    } else if (sg_streq(code, "deadline_exceeded")) {
        s->ended = true;
        s->code = -1;
    } else {
        sg_error_set(&s->why, sg_streq(code, "resource_exhausted") ? SG_UNAVAILABLE : SG_PROVIDER_FAILED,
                     "e2b ended the command's stream: %.40s", code);
        sg_error_member(&s->why, "provider", json_string("e2b"));
    }
}

static int take_frame(struct e2b_stream *s, unsigned flags, const char *text, size_t len)
{
    sg_cleanup(sg_json_p) json_t *v = NULL;

    if (flags == 0 && take_data_quickly(s, text, len))
        return 0;
    if ((flags & 1U) != 0 || sg_json_parse_object(text, len, &v, NULL) < 0)
        return broken(s);
    if ((flags & LAST_FRAME) == 0)
        return take_event(s, json_object_get(v, "event"));
    s->last = true;
    if (json_object_get(v, "error"))
        take_error(s, json_object_get(v, "error"));
    return 0;
}

/* 1: a frame was taken; 0: there is none yet; -1: what comes is none. */
static int next_frame(struct e2b_stream *s)
{
    if (s->frame.len < HEAD)
        return 0;
    const unsigned char *p = (const unsigned char *)s->frame.data;
    size_t len = (size_t)p[1] << 24 | (size_t)p[2] << 16 | (size_t)p[3] << 8 | p[4];
    if (len > PAYLOAD_MAX)
        return broken(s);
    if (s->frame.len < HEAD + len)
        return 0;
    int rc = take_frame(s, p[0], s->frame.data + HEAD, len);
    sg_buf_consume(&s->frame, HEAD + len);
    return rc < 0 ? -1 : 1;
}

/* False: its reader has no room. */
static bool hand_over(struct e2b_stream *s)
{
    if (!s->data)
        return true;
    if (!s->left)
        s->data_at += s->a.data(s->a.arg, s->to_stderr, (const char *)s->data + s->data_at, s->data_len - s->data_at);
    if (!s->left && s->data_at < s->data_len)
        return false;
    free(s->data);
    s->data = NULL;
    return true;
}

static void tell_over(struct e2b_stream *s)
{
    bool fine = s->ended && s->last && s->why.code == SG_OK;

    s->told = true;
    if (!fine && s->why.code == SG_OK)
        sg_error_copy(&s->why, &s->failed);
    if (!fine && s->why.code == SG_OK) {
        sg_error_set(&s->why, SG_PROVIDER_FAILED, "the stream of the command broke off");
        sg_error_reason(&s->why, "connection_lost");
        sg_error_member(&s->why, "provider", json_string("e2b"));
    }
    s->a.over(s->a.arg, s->code, fine ? NULL : &s->why);
}

/* As far as it goes now. */
static void pump_once(struct e2b_stream *s)
{
    char bytes[16384];

    while (!s->told) {
        if (!hand_over(s))
            return;
        int rc = s->why.code == SG_OK || s->last ? next_frame(s) : -1;
        if (rc > 0)
            continue;
        if (rc < 0) {
            sg_pipe_stop(s->raw);
            sg_cancel_fire(s->cancel, SG_CANCEL_CALLER);
            tell_over(s);
            return;
        }
        ssize_t n = sg_pipe_read(s->raw, bytes, sizeof bytes);
        if (n > 0) {
            if (sg_buf_add(&s->frame, bytes, (size_t)n) < 0)
                (void)broken(s);
            continue;
        }
        pthread_mutex_lock(&s->lock);
        bool answered = s->answered;
        pthread_mutex_unlock(&s->lock);
        if (answered && (n != -EAGAIN || s->left))
            tell_over(s);
        return;
    }
}

static void pump(struct e2b_stream *s)
{
    pthread_mutex_lock(&s->lock);
    s->again = true;
    if (s->pumping) {
        pthread_mutex_unlock(&s->lock);
        return;
    }
    s->pumping = true;
    while (s->again) {
        s->again = false;
        pthread_mutex_unlock(&s->lock);
        pump_once(s);
        pthread_mutex_lock(&s->lock);
    }
    s->pumping = false;
    pthread_mutex_unlock(&s->lock);
}

static void raw_wake(void *arg)
{
    pump(arg);
}

static void raw_ref(void *arg)
{
    (void)stream_ref(arg);
}

static void raw_unref(void *arg)
{
    (void)e2b_stream_unref(arg);
}

static void answered(void *arg, const struct sg_net_response *r, const struct sg_error *err)
{
    struct e2b_stream *s = arg;
    struct sg_error why = {0};

    if (err) {
        sg_error_copy(&why, err);
    } else if (sg_net_status(r) >= 300) {
        size_t len;
        const char *text = sg_net_body(r, &len);
        (void)sg_origin_refused("e2b", sg_net_status(r), sg_net_retry_after(r), text, len, sg_secret_expose(s->sb->token, NULL), &why);
    }
    pthread_mutex_lock(&s->lock);
    s->answered = true;
    s->failed = why;
    pthread_mutex_unlock(&s->lock);
    pump(s);
    sg_pipe_set_reader(s->raw, NULL);
    (void)e2b_stream_unref(s);
}

/* ---- what is asked ---- */

static json_t *start_body(const struct e2b_stream_args *a)
{
    json_t *envs = json_object(), *args = json_array();

    if (a->marker) {
        sg_cleanup(sg_free_p) char *name = sg_xstrndup(a->marker, strcspn(a->marker, "="));
        json_object_set_new(envs, name, json_string(a->marker + strlen(name) + 1));
    }
    for (size_t i = 1; a->argv[i]; i++)
        json_array_append_new(args, json_string(a->argv[i]));
    json_t *process = json_pack("{s:s, s:o, s:o}", "cmd", a->argv[0], "args", args, "envs", envs);
    if (process && a->cwd)
        json_object_set_new(process, "cwd", json_string(a->cwd));
    return json_pack("{s:o, s:b, s:s}", "process", process, "stdin", a->stdin_open, "tag", a->tag);
}

/* The one envelope of a request. Caller frees. */
static char *envelope(const json_t *v, size_t *ret_len)
{
    size_t len;
    sg_cleanup(sg_free_p) char *text = v ? sg_json_dump(v, &len) : NULL;

    if (!text || len > UINT32_MAX)
        return NULL;
    char *out = malloc(HEAD + len);
    if (!out)
        return NULL;
    const unsigned char head[HEAD] = {0, (unsigned char)(len >> 24), (unsigned char)(len >> 16), (unsigned char)(len >> 8), (unsigned char)len};
    memcpy(out, head, HEAD);
    memcpy(out + HEAD, text, len);
    *ret_len = HEAD + len;
    return out;
}

static int ask(struct e2b_stream *s, const struct e2b_stream_args *a, struct sg_error *err)
{
    sg_cleanup(sg_json_p) json_t *body = start_body(a);
    size_t len = 0;
    sg_cleanup(sg_free_p) char *bytes = envelope(body, &len);
    struct sg_net_header headers[8];
    char limit[16];

    if (!bytes)
        return sg_error_set(err, SG_INVALID_REQUEST, "the command or its environment is not valid UTF-8");
    size_t n = e2b_headers(s->sb, a->user, headers);
    headers[n++] = (struct sg_net_header){.name = "Content-Type", .value = "application/connect+json"};
    headers[n++] = (struct sg_net_header){.name = "Connect-Protocol-Version", .value = "1"};
    headers[n++] = (struct sg_net_header){.name = "Keepalive-Ping-Interval", .value = PING_S};
    if (a->backstop_ms > 0 && a->backstop_ms < INT64_C(10000000000)) {
        snprintf(limit, sizeof limit, "%lld", (long long)a->backstop_ms);
        headers[n++] = (struct sg_net_header){.name = "Connect-Timeout-Ms", .value = limit};
    }
    const struct sg_net_request q = {.method = "POST", .path = "/process.Process/Start", .headers = headers, .n_headers = n,
                                     .body = bytes, .body_len = len, .stall_ms = SILENT_MS, .response_max = 65536, .response = s->raw,
                                     .cancel = s->cancel, .done = answered, .arg = s};
    return sg_net_call(s->sb->d->streams, &q, err);
}

int e2b_stream_start(struct e2b_sandbox *sb, const struct e2b_stream_args *a, struct e2b_stream **ret, struct sg_error *err)
{
    if (sb->d->closing)
        return sg_error_set(err, SG_SHUTTING_DOWN, "the server is shutting down");
    struct e2b_stream *s = sg_xcalloc(1, sizeof *s);
    s->refs = 2; /* the caller's and the call's */
    s->sb = (struct e2b_sandbox *)sg_sandbox_ref(&sb->base);
    s->a = *a;
    s->cancel = sg_cancel_new();
    s->raw = sg_pipe_new(RAW_BYTES);
    sg_buf_init(&s->frame, HEAD + PAYLOAD_MAX + 16384);
    pthread_mutex_init(&s->lock, NULL);
    const struct sg_waker w = {.wake = raw_wake, .ref = raw_ref, .unref = raw_unref, .arg = s};
    *ret = s;
    sg_pipe_set_reader(s->raw, &w);
    if (ask(s, a, err) == 0)
        return 0;
    *ret = NULL;
    sg_pipe_set_reader(s->raw, NULL);
    s->refs--;
    (void)e2b_stream_unref(s);
    return -1;
}

static void resumed(struct sg_task *t)
{
    struct e2b_stream *s = sg_container_of(t, struct e2b_stream, resume);

    atomic_store(&s->resuming, false);
    pump(s);
    (void)e2b_stream_unref(s);
}

/* Not here and now: whoever made room may hold a lock that what comes next needs. */
void e2b_stream_resume(struct e2b_stream *s)
{
    if (atomic_exchange(&s->resuming, true))
        return;
    s->resume.run = resumed;
    (void)stream_ref(s);
    sg_reactor_post(s->sb->d->reactor, &s->resume);
}

void e2b_stream_leave(struct e2b_stream *s)
{
    atomic_store(&s->left, true);
    sg_cancel_fire(s->cancel, SG_CANCEL_CALLER);
    sg_pipe_stop(s->raw);
    pump(s);
}
