#include "model/exec_event.h"

#include "base/clock.h"
#include "base/base64.h"
#include "base/str.h"

const char *sg_event_type_name(enum sg_event_type t)
{
    static const char *const names[] = {"start",    "stdout",    "stderr",     "exit",   "error",   "ping", "creating",
                                        "ready",    "extended",  "releasing",  "terminated", "failed", "expired", "lost"};

    return names[t];
}

const char *sg_event_format_type(enum sg_event_format f)
{
    return f == SG_EVENT_SSE ? "text/event-stream" : "application/x-ndjson";
}

bool sg_event_is_text(const void *data, size_t len)
{
    return (len == 0 || !memchr(data, '\0', len)) && sg_utf8_valid(data, len);
}

static int add_base64(struct sg_buf *out, const char *data, size_t len)
{
    char *at = sg_buf_extend(out, sg_base64_length(len));

    if (!at)
        return -1;
    sg_base64_encode_to(data, len, at);
    return 0;
}

static int add_bytes(struct sg_buf *out, const struct sg_exec_event *e)
{
    if (!e->binary)
        return sg_buf_addf(out, ",\"data\":") < 0 || sg_json_add_string(out, e->data, e->len) < 0
                   ? -1
                   : sg_buf_addf(out, ",\"encoding\":\"utf-8\"}");
    return sg_buf_addf(out, ",\"data\":\"") < 0 || add_base64(out, e->data, e->len) < 0
               ? -1
               : sg_buf_addf(out, "\",\"encoding\":\"base64\"}");
}

/* The members of an object, into the one that is open: without its first brace. */
static int add_members(struct sg_buf *out, const struct sg_exec_event *e)
{
    if (e->len <= 2)
        return sg_buf_add(out, "}", 1);
    return sg_buf_add(out, ",", 1) < 0 ? -1 : sg_buf_add(out, e->data + 1, e->len - 1);
}

static int add_json(struct sg_buf *out, const struct sg_exec_event *e)
{
    bool bytes = e->type == SG_EVENT_STDOUT || e->type == SG_EVENT_STDERR;

    if (sg_buf_add(out, "{", 1) < 0 || (e->seq > 0 && sg_buf_addf(out, "\"seq\":%llu,", (unsigned long long)e->seq) < 0) ||
        sg_buf_addf(out, "\"type\":\"%s\"", sg_event_type_name(e->type)) < 0)
        return -1;
    return bytes ? add_bytes(out, e) : add_members(out, e);
}

static int add_frame(struct sg_buf *out, const struct sg_exec_event *e, enum sg_event_format f)
{
    if (f == SG_EVENT_NDJSON)
        return add_json(out, e) < 0 ? -1 : sg_buf_add(out, "\n", 1);
    if (e->seq > 0 && sg_buf_addf(out, "id: %llu\n", (unsigned long long)e->seq) < 0)
        return -1;
    if (sg_buf_addf(out, "event: %s\ndata: ", sg_event_type_name(e->type)) < 0 || add_json(out, e) < 0)
        return -1;
    return sg_buf_add(out, "\n\n", 2);
}

int sg_exec_event_encode(const struct sg_exec_event *e, enum sg_event_format f, struct sg_buf *out)
{
    size_t before = out->len;

    if (add_frame(out, e, f) == 0)
        return 0;
    out->len = before; /* no half events */
    if (out->data)
        out->data[before] = '\0';
    return -1;
}

/* ---- members ---- */

static char *text_of(json_t *v)
{
    char *text = v ? json_dumps(v, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;

    sg_json_unref(v);
    return text;
}

char *sg_exec_start_text(const char *exec_id, json_t *command, int64_t timeout_ms, int64_t started_us)
{
    char at[SG_TIME_LEN];

    sg_time_format(started_us, at);
    return text_of(json_pack("{s:s, s:o, s:f, s:s}", "exec_id", exec_id, "cmd", sg_json_ref(command), "timeout", (double)timeout_ms / 1000.0,
                             "started_at", at));
}

char *sg_exec_exit_text(const struct sg_exec_result *r)
{
    return text_of(sg_exec_exit_json(r));
}

char *sg_exec_error_text(const struct sg_error *err)
{
    json_t *v = json_pack("{s:s, s:s, s:s}", "code", sg_code_name(err->code), "title", sg_code_title(err->code), "detail",
                          err->message[0] ? err->message : sg_code_title(err->code));

    if (v && err->reason[0])
        json_object_set_new(v, "reason", json_string(err->reason));
    if (v && err->members)
        json_object_update_missing(v, err->members);
    return text_of(v);
}
