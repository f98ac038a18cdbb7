#include <errno.h>
#include <stdio.h>
#include <strings.h>
#include <sys/socket.h>

#include "base/json.h"
#include "base/str.h"
#include "http/request_priv.h"

/* What the parser library keeps of a request's header line beside name and value, and what an answer's head has beside its headers. */
#define HEADER_RECORD 72U
#define OWN_HEADERS 1024U

/* ---- storing an answer: any thread ---- */

void sg_answer_finish(struct sg_answer *a)
{
    free(a->data);
    a->data = NULL;
    a->fd = sg_close(a->fd);
    a->hold = sg_hold_unref(a->hold);
    a->pipe = sg_pipe_unref(a->pipe);
    sg_answer_free_headers(a->headers);
    a->headers = NULL;
}

void sg_answer_close_source(struct sg_answer *a)
{
    if (a->kind != SG_ANSWER_SOURCE || !a->source.close)
        return;
    a->source.set_waker(a->source.arg, NULL);
    a->source.close(a->source.arg);
    a->source.close = NULL;
}

/* What nobody will read: whoever produces it must hear of it. */
static void throw_away(struct sg_answer *a)
{
    if (a->pipe)
        sg_pipe_stop(a->pipe);
    sg_answer_close_source(a);
    if (a->kind == SG_ANSWER_UPGRADE)
        a->taken(a->taken_arg, NULL, -1, NULL, 0);
    sg_answer_finish(a);
}

static void give(struct sg_request *r, struct sg_answer a)
{
    pthread_mutex_lock(&r->lock);
    bool first = !r->answered;
    if (first) {
        r->answer = a;
        r->answered = true;
        sg_req_wake_locked(r);
    }
    pthread_mutex_unlock(&r->lock);
    if (!first)
        throw_away(&a);
}

/* An answer of the handler's: takes the headers it has added so far. */
static struct sg_answer answer(struct sg_request *r, int status, const char *literal_type)
{
    struct sg_answer a = {.status = status, .content_type = literal_type, .fd = -1};
    a.headers = r->pending_headers;
    r->pending_headers = NULL;
    return a;
}

void sg_answer_free_headers(struct sg_answer_header *h)
{
    while (h) {
        struct sg_answer_header *next = h->next;
        free(h);
        h = next;
    }
}

static void add_header(struct sg_answer_header **list, const char *name, const char *value)
{
    size_t name_len = strlen(name) + 1;
    size_t value_len = strlen(value) + 1;
    struct sg_answer_header *h = malloc(sizeof *h + name_len + value_len);
    if (!h)
        return;
    memcpy(h->value, value, value_len);
    memcpy(h->value + value_len, name, name_len);
    h->name = h->value + value_len;
    h->next = NULL;
    while (*list)
        list = &(*list)->next;
    *list = h;
}

static bool framing_header(const char *name)
{
    static const char *const ours[] = {"Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive",
                                       "X-Request-Id",   "Upgrade"};
    for (size_t i = 0; i < SG_COUNT_OF(ours); i++)
        if (((name[0] ^ ours[i][0]) & ~0x20) == 0 && strcasecmp(name, ours[i]) == 0)
            return true;
    return false;
}

bool sg_respond_header(struct sg_request *r, const char *name, const char *value)
{
    if (!sg_token_ok(name, strlen(name)) || !*value || !sg_header_value_ok(value) || framing_header(name))
        return false;
    add_header(&r->pending_headers, name, value);
    return true;
}

/* Cookies are there twice, and each has a record. */
static size_t parsed_again(const struct sg_header *h)
{
    if (strcasecmp(h->name, "Cookie") != 0)
        return 0;
    size_t size = strlen(h->value) + HEADER_RECORD;
    for (const char *p = strchr(h->value, ';'); p != NULL; p = strchr(p + 1, ';'))
        size += HEADER_RECORD;
    return size;
}

/* The parser library writes the head into what the request has left of the connection's memory, and cuts the connection when it does not
 * fit: the request's head is still there, with a record for each of its headers. */
size_t sg_respond_room(const struct sg_request *r)
{
    size_t used = r->target_len + OWN_HEADERS;
    for (size_t i = 0; i < r->n_headers; i++)
        used += strlen(r->headers[i].name) + strlen(r->headers[i].value) + HEADER_RECORD + parsed_again(&r->headers[i]);
    return used < r->http->cfg.connection_memory ? r->http->cfg.connection_memory - used : 0;
}

void sg_respond_trailer(struct sg_request *r, const char *name, const char *value)
{
    if (!sg_token_ok(name, strlen(name)) || !*value || !sg_header_value_ok(value) || framing_header(name))
        return;
    pthread_mutex_lock(&r->lock);
    add_header(&r->trailers, name, value);
    pthread_mutex_unlock(&r->lock);
}

static void add_type(struct sg_request *r, const char *name, const char *type)
{
    if (type && *type && sg_header_value_ok(type))
        add_header(&r->pending_headers, name, type);
}

void sg_respond_owned(struct sg_request *r, int status, const char *content_type, void *data, size_t len)
{
    add_type(r, "Content-Type", content_type);
    struct sg_answer a = answer(r, status, NULL);
    a.data = data;
    a.len = len;
    give(r, a);
}

static void no_memory(struct sg_answer *a)
{
    static const char text[] = "{\"type\":\"urn:sandgate:error:out_of_memory\",\"title\":\"Out of memory\",\"status\":503,"
                               "\"detail\":\"no memory for the answer\",\"code\":\"out_of_memory\",\"request_id\":\"\"}\n";
    a->status = 503;
    a->content_type = "application/problem+json";
    a->data = sg_xstrdup(text);
    a->len = sizeof text - 1;
}

void sg_respond_bytes(struct sg_request *r, int status, const char *content_type, const void *data, size_t len)
{
    char *copy = malloc(len + 1);
    add_type(r, "Content-Type", copy ? content_type : NULL);
    struct sg_answer a = answer(r, status, NULL);
    if (copy) {
        memcpy(copy, data, len);
        a.data = copy;
        a.len = len;
    } else {
        no_memory(&a);
    }
    give(r, a);
}

static int add_text(const char *text, size_t len, void *arg)
{
    return sg_buf_add(arg, text, len);
}

/* Steals v. */
static void fill_json(struct sg_answer *a, const char *type, json_t *v)
{
    struct sg_buf b;
    sg_buf_init(&b, SIZE_MAX / 2);
    if (!v || json_dump_callback(v, add_text, &b, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15)) < 0 ||
        sg_buf_add(&b, "\n", 1) < 0) {
        no_memory(a);
    } else {
        a->content_type = type;
        a->data = sg_buf_steal(&b, &a->len);
    }
    sg_buf_finish(&b);
    sg_json_unref(v);
}

void sg_respond_json(struct sg_request *r, int status, json_t *v)
{
    struct sg_answer a = answer(r, status, NULL);
    fill_json(&a, "application/json", v);
    give(r, a);
}

void sg_respond_empty(struct sg_request *r, int status)
{
    give(r, answer(r, status, NULL));
}

void sg_respond_fd(struct sg_request *r, int status, const char *content_type, int fd, struct sg_hold *hold,
                   uint64_t offset, uint64_t len)
{
    add_type(r, "Content-Type", content_type);
    struct sg_answer a = answer(r, status, NULL);
    a.kind = SG_ANSWER_FD;
    a.fd = fd;
    a.hold = hold;
    a.offset = offset;
    a.fd_len = len;
    give(r, a);
}

void sg_respond_pipe(struct sg_request *r, int status, const char *content_type, struct sg_pipe *p,
                     int64_t content_length)
{
    add_type(r, "Content-Type", content_type);
    struct sg_answer a = answer(r, status, NULL);
    a.kind = SG_ANSWER_PIPE;
    a.pipe = sg_pipe_ref(p);
    a.content_length = content_length;
    give(r, a);
}

void sg_respond_length(struct sg_request *r, int status, uint64_t length)
{
    struct sg_pipe *nothing = sg_pipe_new(1);
    sg_pipe_close(nothing);
    sg_respond_pipe(r, status, NULL, nothing, (int64_t)length);
    sg_pipe_unref(nothing);
}

void sg_respond_source(struct sg_request *r, int status, const char *content_type, const struct sg_body_source *source)
{
    add_type(r, "Content-Type", content_type);
    struct sg_answer a = answer(r, status, NULL);
    a.kind = SG_ANSWER_SOURCE;
    a.source = *source;
    a.content_length = -1;
    give(r, a);
}

void sg_respond_upgrade(struct sg_request *r, const char *protocol,
                        void (*taken)(void *arg, struct sg_upgrade *up, int fd, const void *early, size_t early_len),
                        void *arg)
{
    add_type(r, "Upgrade", protocol);
    struct sg_answer a = answer(r, 101, NULL);
    a.kind = SG_ANSWER_UPGRADE;
    a.taken = taken;
    a.taken_arg = arg;
    give(r, a);
}

/* ---- problems ---- */

/* A sentence needs its subject: messages about a member that do not name it get its name in front. */
static json_t *problem_detail(const struct sg_error *err)
{
    char text[sizeof err->field + sizeof err->message + 2];
    bool named = err->field[0] == '\0' || strstr(err->message, err->field) != NULL;

    snprintf(text, sizeof text, "%s%s%s", named ? "" : err->field, named ? "" : ": ", err->message);
    size_t whole = sg_utf8_whole(text, strlen(text)); /* a long name may have been cut inside a character */
    json_t *v = json_stringn(text, whole);
    return v ? v : json_string("the reason is not valid text");
}

static json_t *problem(struct sg_request *r, const struct sg_error *err, int status)
{
    char type[96];
    json_t *doc = json_object();
    snprintf(type, sizeof type, "urn:sandgate:error:%s", sg_code_name(err->code));
    json_object_set_new(doc, "type", json_string(type));
    json_object_set_new(doc, "title", json_string(sg_code_title(err->code)));
    json_object_set_new(doc, "status", json_integer(status));
    json_object_set_new(doc, "detail", problem_detail(err));
    json_object_set_new(doc, "code", json_string(sg_code_name(err->code)));
    json_object_set_new(doc, "request_id", json_string(r->id));
    if (err->field[0])
        json_object_set_new(doc, "field", json_stringn(err->field, sg_utf8_whole(err->field, strlen(err->field))));
    if (err->reason[0])
        json_object_set_new(doc, "reason", json_string(err->reason));
    if (err->members)
        json_object_update(doc, err->members);
    return doc;
}

static void fill_problem(struct sg_request *r, struct sg_answer *a, const struct sg_error *err)
{
    int status = sg_code_status(err->code);
    int retry = err->retry_after;
    if (status < 400)
        status = 500;
    if (retry <= 0 && (status == 503 || status == 429))
        retry = 1;
    a->status = status;
    json_t *doc = problem(r, err, status);
    if (retry > 0) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%d", retry);
        add_header(&a->headers, "Retry-After", seconds);
        json_object_set_new(doc, "retry_after", json_integer(retry));
    }
    if (status == 401)
        add_header(&a->headers, "WWW-Authenticate", "Bearer");
    if (status == 426) {
        add_header(&a->headers, "Upgrade", "websocket");
        add_header(&a->headers, "Sec-WebSocket-Version", "13");
    }
    add_header(&a->headers, "Cache-Control", "no-store");
    fill_json(a, "application/problem+json", doc);
}

void sg_respond_error(struct sg_request *r, const struct sg_error *err)
{
    struct sg_answer a = answer(r, 0, NULL);
    fill_problem(r, &a, err);
    give(r, a);
}

void sg_answer_refuse(struct sg_request *r, struct sg_error *err, const char *allow)
{
    struct sg_answer a = {.fd = -1};
    if (allow && *allow)
        add_header(&a.headers, "Allow", allow);
    fill_problem(r, &a, err);
    give(r, a);
    sg_error_clear(err);
}

/* ---- handing it to the parser library: daemon thread ---- */

static bool body_allowed(const struct sg_answer *a)
{
    return a->status >= 200 && a->status != 204 && a->status != 304;
}

static struct MHD_Response *bytes_response(struct sg_request *r)
{
    struct sg_answer *a = &r->answer;
    if (a->len == 0)
        return MHD_create_response_from_buffer(0, (void *)(uintptr_t) "", MHD_RESPMEM_PERSISTENT);
    struct MHD_Response *resp = MHD_create_response_from_buffer(a->len, a->data, MHD_RESPMEM_MUST_FREE);
    if (resp)
        a->data = NULL;
    return resp;
}

static struct MHD_Response *pipe_response(struct sg_request *r)
{
    /* Without a body to come the size must be fixed, or a chunk terminator follows that nobody expects. */
    if (r->answer.content_length < 0 && (sg_req_is_head(r) || !body_allowed(&r->answer)))
        return MHD_create_response_from_buffer(0, (void *)(uintptr_t) "", MHD_RESPMEM_PERSISTENT);
    return sg_stream_response(r);
}

static struct MHD_Response *make_response(struct sg_request *r)
{
    switch (r->answer.kind) {
    case SG_ANSWER_BYTES:
        return bytes_response(r);
    case SG_ANSWER_FD:
        return sg_file_response(r);
    case SG_ANSWER_PIPE:
    case SG_ANSWER_SOURCE:
        return pipe_response(r);
    case SG_ANSWER_UPGRADE:
        return sg_upgrade_response(r);
    }
    return NULL;
}

static void add_headers(struct sg_request *r, struct MHD_Response *resp)
{
    const struct sg_answer *a = &r->answer;
    if (*r->id)
        MHD_add_response_header(resp, "X-Request-Id", r->id);
    if (a->content_type)
        MHD_add_response_header(resp, "Content-Type", a->content_type);
    for (const struct sg_answer_header *h = a->headers; h; h = h->next)
        MHD_add_response_header(resp, h->name, h->value);
    if (a->kind != SG_ANSWER_UPGRADE && (r->close || atomic_load(&r->http->draining) || sg_conn_hung(r->conn)))
        MHD_add_response_header(resp, "Connection", "close");
}

/* The client's end of stream is here already, whether or not the watch has told yet. */
static bool has_left(const struct sg_conn *c)
{
    char byte;

    return recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

enum MHD_Result sg_answer_queue(struct sg_request *r, struct MHD_Connection *mhd)
{
    struct MHD_Response *resp = make_response(r);
    r->state = SG_REQ_QUEUED;
    pthread_mutex_lock(&r->lock);
    r->too_late = r->hung_up || (r->on_end && has_left(r->conn)); /* who leaves later may have had the answer first */
    pthread_mutex_unlock(&r->lock);
    if (!resp) {
        r->cut = true;
        return MHD_NO;
    }
    add_headers(r, resp);
    enum MHD_Result ok = MHD_queue_response(mhd, (unsigned)r->answer.status, resp);
    MHD_destroy_response(resp);
    if (ok == MHD_YES)
        r->sent_status = r->answer.status;
    else
        r->cut = true;
    return ok;
}

void sg_answer_raw(struct sg_request *r)
{
    const struct sg_answer *a = &r->answer;
    struct sg_buf b;
    sg_buf_init(&b, 64 * 1024 + a->len);
    sg_buf_addf(&b, "HTTP/1.1 %d Refused\r\nConnection: close\r\nContent-Length: %zu\r\nX-Request-Id: %s\r\n",
                a->status, a->len, r->id);
    if (a->content_type)
        sg_buf_addf(&b, "Content-Type: %s\r\n", a->content_type);
    for (const struct sg_answer_header *h = a->headers; h; h = h->next)
        sg_buf_addf(&b, "%s: %s\r\n", h->name, h->value);
    sg_buf_add(&b, "\r\n", 2);
    if (a->len && !sg_req_is_head(r))
        sg_buf_add(&b, a->data, a->len);
    /* Nothing of this exchange was sent but perhaps a whole "100 Continue": the socket's buffer has room. */
    ssize_t n = b.len ? send(r->conn->fd, b.data, b.len, MSG_DONTWAIT | MSG_NOSIGNAL) : -1;
    r->sent_status = a->status;
    r->cut = n < 0 || (size_t)n < b.len;
    r->conn->linger = true;
    sg_buf_finish(&b);
}

void sg_respond_cut(struct sg_request *r)
{
    pthread_mutex_lock(&r->lock);
    bool going = r->mhd != NULL;
    if (going)
        sg_conn_shutdown(r->conn); /* under the lock: it cannot be the next request's connection yet */
    pthread_mutex_unlock(&r->lock);
}
