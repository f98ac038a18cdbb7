/* /leases/{id}/exec: run commands and look after them. */
#include "http/api.h"
#include "http/accept.h"
#include "http/exec_answer.h"
#include "http/attach.h"
#include "http/exec_stream.h"
#include "service/execs.h"
#include "service/stdin.h"

#include "base/clock.h"
#include "base/str.h"

#include <stdio.h>

/* {exec_id, state, started_at, tty} */
static json_t *brief_json(const struct sg_exec_info *i)
{
    char at[SG_TIME_LEN];

    sg_time_format(i->started_us, at);
    return json_pack("{s:s, s:s, s:s, s:o}", "exec_id", i->exec_id, "state", sg_exec_state_name(i->state), "started_at", at, "tty",
                     sg_tty_size_json(i->tty));
}

struct info_call {
    struct sg_request *r;
    struct sg_api *api;
    int status;
};

/* With the result, null while there is none. */
static void respond_info(void *arg, const struct sg_exec_info *i)
{
    struct info_call *c = arg;
    json_t *v = brief_json(i);

    if (i->has_result) {
        sg_exec_respond(c->r, sg_service_parts(c->api->service)->workq, c->status, &i->result, v);
    } else {
        json_object_set_new(v, "result", json_null());
        sg_respond_json(c->r, c->status, v);
    }
}

/* ---- run ---- */

struct exec_call {
    struct sg_request *r;
    struct sg_api *api;
    bool stream;
    enum sg_event_format format;
    char path[SG_ID_MAX + 32]; /* of the lease's execs */
};

static void call_free(struct exec_call *c)
{
    sg_req_unref(c->r);
    free(c);
}

static void exec_done(void *arg, const struct sg_exec_result *result, const struct sg_error *err)
{
    struct exec_call *c = arg;

    if (err)
        sg_respond_error(c->r, err);
    else
        sg_exec_respond(c->r, sg_service_parts(c->api->service)->workq, 200, result, NULL);
    call_free(c);
}

/* The command's process exists: only now is it certain that this will not be an error. */
static void exec_started(void *arg, const struct sg_exec_info *i, struct sg_exec_reader *reader)
{
    struct exec_call *c = arg;
    char location[sizeof c->path + SG_ID_MAX];

    snprintf(location, sizeof location, "%s/%s", c->path, i->exec_id);
    sg_respond_header(c->r, "Location", location);
    if (c->stream)
        sg_exec_stream_respond(c->r, sg_service_parts(c->api->service)->reactor, reader, c->format, true);
    else
        respond_info(&(struct info_call){c->r, c->api, 202}, i);
    call_free(c);
}

/* Which of sg_exec_types from `first` on the caller wants. */
static size_t wanted(const struct sg_request *r, size_t first)
{
    size_t n;
    const struct sg_header *headers = sg_req_headers(r, &n);

    return first + sg_accept_best(headers, n, sg_exec_types + first);
}

static void exec_in_lease(struct sg_request *r, struct sg_api *api, struct sg_entry *e)
{
    struct sg_exec_request q;
    struct sg_error err = {0};
    int64_t after;
    size_t len;
    const char *body = sg_req_body(r, &len);
    size_t type = wanted(r, 0);

    if (sg_event_after(r, NULL, &after, &err) < 0 || sg_exec_request_parse(body, len, &q, &err) < 0) {
        sg_api_fail(r, &err);
        return;
    }
    sg_req_drop_body(r); /* the command may run for long */
    struct exec_call *c = sg_xcalloc(1, sizeof *c);
    *c = (struct exec_call){.r = sg_req_ref(r), .api = api, .stream = type > 0, .format = type == 2 ? SG_EVENT_SSE : SG_EVENT_NDJSON};
    snprintf(c->path, sizeof c->path, "/leases/%s/exec", sg_entry_id(e));
    struct sg_exec_args args = {.who = sg_req_principal(r),
                                .lease = e,
                                .request = &q,
                                .cancel = sg_req_cancel(r),
                                .stream = c->stream,
                                .after = (uint64_t)after,
                                .started = exec_started,
                                .done = exec_done,
                                .arg = c};
    sg_service_exec(api->service, &args);
}

void sg_route_exec(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, exec_in_lease);
}

/* ---- look after them ---- */

/* A lease that ended has no execs to show: 410, as for every work on it. */
static int usable(struct sg_entry *e, struct sg_error *err)
{
    if (sg_entry_use_begin(e, NULL, err) < 0)
        return -1;
    sg_entry_use_end(e, false);
    return 0;
}

static void get_exec(struct sg_request *r, struct sg_api *api, struct sg_entry *e)
{
    struct info_call c = {r, api, 200};
    struct sg_error err = {0};

    if (usable(e, &err) < 0 || sg_service_exec_get(api->service, e, sg_req_param(r, "eid"), respond_info, &c, &err) < 0)
        sg_api_fail(r, &err);
}

void sg_route_exec_get(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, get_exec);
}

struct exec_page {
    json_t *items;
    uint64_t last;
};

static void add_info(void *arg, const struct sg_exec_info *i)
{
    struct exec_page *p = arg;

    /* Without results, which could be very large: each has its own URL. */
    json_array_append_new(p->items, brief_json(i));
    p->last = i->seq;
}

static int seq_of_cursor(struct sg_request *r, int64_t *ret, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *key = NULL;
    int has = sg_api_cursor_key(r, &key, err);

    if (has > 0 && !sg_parse_int(key, 0, INT64_MAX, ret))
        return sg_error_field(err, SG_INVALID_REQUEST, "cursor", "is not a next_cursor of this list");
    return has;
}

static void list_execs(struct sg_request *r, struct sg_api *api, struct sg_entry *e)
{
    struct exec_page page = {0};
    struct sg_error err = {0};
    int64_t after = 0;
    size_t limit;
    bool more;

    if (usable(e, &err) < 0 || sg_api_limit(r, &limit, &err) < 0 || seq_of_cursor(r, &after, &err) < 0) {
        sg_api_fail(r, &err);
        return;
    }
    page.items = json_array();
    sg_service_exec_list(api->service, e, (uint64_t)after, limit, add_info, &page, &more);
    char key[24];
    snprintf(key, sizeof key, "%llu", (unsigned long long)page.last);
    sg_cleanup(sg_free_p) char *cursor = more ? sg_api_cursor(key) : NULL;
    sg_respond_json(r, 200, sg_api_page(page.items, cursor));
}

void sg_route_exec_list(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, list_execs);
}

static void kill_exec(struct sg_request *r, struct sg_api *api, struct sg_entry *e)
{
    struct info_call c = {r, api, 200};
    struct sg_error err = {0};

    const char *eid = sg_req_param(r, "eid");
    if (usable(e, &err) < 0 || sg_service_exec_kill(api->service, e, eid, &err) < 0 ||
        sg_service_exec_get(api->service, e, eid, respond_info, &c, &err) < 0)
        sg_api_fail(r, &err);
}

void sg_route_exec_kill(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, kill_exec);
}

static int parse_signal(struct sg_request *r, int *ret, struct sg_error *err)
{
    sg_cleanup(sg_json_p) json_t *body = NULL;
    struct sg_json_reader rd;
    const char *name = NULL;
    size_t len;
    const char *text = sg_req_body(r, &len);

    if (sg_json_parse_object(text, len, &body, err) < 0 || sg_json_begin(&rd, body, "", err) < 0 ||
        sg_json_str(&rd, "signal", &name, err) < 0 || sg_json_end(&rd, err) < 0)
        return -1;
    *ret = name ? sg_signal_parse(name) : 0;
    if (*ret == 0)
        return sg_error_field(err, SG_INVALID_REQUEST, "signal", "must be the name of a signal, for example \"SIGTERM\"");
    return 0;
}

static void signal_exec(struct sg_request *r, struct sg_api *api, struct sg_entry *e)
{
    struct sg_error err = {0};
    int signo;

    if (parse_signal(r, &signo, &err) < 0 || usable(e, &err) < 0 ||
        sg_service_exec_signal(api->service, e, sg_req_param(r, "eid"), signo, &err) < 0)
        sg_api_fail(r, &err);
    else
        sg_respond_json(r, 200, json_pack("{s:s, s:s}", "exec_id", sg_req_param(r, "eid"), "signal", sg_signal_name(signo)));
}

void sg_route_exec_signal(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, signal_exec);
}

/* ---- the size of a terminal ---- */

struct resize_call {
    struct sg_request *r;
    struct sg_tty_size size;
};

static void resize_done(void *arg, const struct sg_error *err)
{
    struct resize_call *c = arg;

    if (err)
        sg_respond_error(c->r, err);
    else
        sg_respond_json(c->r, 200, json_pack("{s:s, s:i, s:i}", "exec_id", sg_req_param(c->r, "eid"), "rows", (int)c->size.rows, "cols",
                                             (int)c->size.cols));
    sg_req_unref(c->r);
    free(c);
}

static int parse_size(struct sg_request *r, struct sg_tty_size *ret, struct sg_error *err)
{
    sg_cleanup(sg_json_p) json_t *body = NULL;
    struct sg_json_reader rd;
    size_t len;
    const char *text = sg_req_body(r, &len);

    return sg_json_parse_object(text, len, &body, err) < 0 || sg_json_begin(&rd, body, "", err) < 0 ||
                   sg_tty_size_read(&rd, true, ret, err) < 0
               ? -1
               : sg_json_end(&rd, err);
}

static void resize_exec(struct sg_request *r, struct sg_api *api, struct sg_entry *e)
{
    struct sg_error err = {0};
    struct sg_tty_size size;

    if (parse_size(r, &size, &err) < 0 || usable(e, &err) < 0) {
        sg_api_fail(r, &err);
        return;
    }
    struct resize_call *c = sg_xcalloc(1, sizeof *c);
    *c = (struct resize_call){.r = sg_req_ref(r), .size = size};
    if (sg_service_exec_resize(api->service, e, sg_req_param(r, "eid"), size, &(struct sg_done){resize_done, c}, &err) == 0)
        return;
    sg_api_fail(r, &err);
    sg_req_unref(r);
    free(c);
}

void sg_route_exec_resize(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, resize_exec);
}

/* ---- a terminal in a browser ---- */

static int attach(struct sg_request *r, struct sg_api *api, struct sg_entry *e, struct sg_error *err)
{
    struct sg_ws_offer offer;
    int64_t after = -1;
    size_t n;
    const struct sg_header *headers = sg_req_headers(r, &n);

    if (usable(e, err) < 0 || sg_ws_offer_read(headers, sg_req_is_head(r) ? 0 : n, &offer, err) < 0 ||
        sg_req_query_int(r, "after", 0, INT64_MAX, &after, err) < 0)
        return -1;
    struct sg_attach_args args = {.api = api,
                                  .lease = e,
                                  .exec_id = sg_req_param(r, "eid"),
                                  .after = after < 0 ? SG_EXEC_OLDEST : (uint64_t)after,
                                  .offer = &offer};
    return sg_attach(r, &args, err);
}

static void attach_exec(struct sg_request *r, struct sg_api *api, struct sg_entry *e)
{
    struct sg_error err = {0};

    if (attach(r, api, e, &err) < 0)
        sg_api_fail(r, &err);
}

void sg_route_exec_attach(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, attach_exec);
}

/* ---- output ---- */

static void follow_exec(struct sg_request *r, struct sg_api *api, struct sg_entry *e)
{
    struct sg_exec_reader *reader;
    struct sg_error err = {0};
    bool follow = false;
    int64_t after;

    if (sg_event_after(r, "after", &after, &err) < 0 || sg_req_query_bool(r, "follow", &follow, &err) < 0 || usable(e, &err) < 0 ||
        sg_service_exec_follow(api->service, e, sg_req_param(r, "eid"), (uint64_t)after, &reader, &err) < 0) {
        sg_api_fail(r, &err);
        return;
    }
    sg_exec_stream_respond(r, sg_service_parts(api->service)->reactor, reader, sg_event_format_of(r), follow);
}

void sg_route_exec_output(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, follow_exec);
}

/* ---- input ---- */

struct stdin_call {
    struct sg_request *r;
    bool eof;
};

static struct sg_pipe *stdin_body(void *arg)
{
    return sg_req_body_pipe(((struct stdin_call *)arg)->r);
}

static void stdin_done(void *arg, uint64_t taken, const struct sg_error *err)
{
    struct stdin_call *c = arg;
    struct sg_error full = {0};

    if (err) {
        sg_error_copy(&full, err);
        sg_error_member(&full, "bytes_taken", json_integer((json_int_t)taken));
        sg_api_fail(c->r, &full);
    } else {
        sg_respond_json(c->r, 200, json_pack("{s:s, s:I, s:b}", "exec_id", sg_req_param(c->r, "eid"), "bytes", (json_int_t)taken, "eof",
                                             (int)c->eof));
    }
    sg_req_unref(c->r);
    free(c);
}

static void write_stdin(struct sg_request *r, struct sg_api *api, struct sg_entry *e)
{
    struct sg_error err = {0};
    bool eof = false;

    if (sg_req_query_bool(r, "eof", &eof, &err) < 0) {
        sg_api_fail(r, &err);
        return;
    }
    struct stdin_call *c = sg_xcalloc(1, sizeof *c);
    *c = (struct stdin_call){.r = sg_req_ref(r), .eof = eof};
    struct sg_stdin_args args = {.lease = e,
                                 .exec_id = sg_req_param(r, "eid"),
                                 .body = stdin_body,
                                 .length = sg_req_content_length(r),
                                 .eof = eof,
                                 .cancel = sg_req_cancel(r),
                                 .done = stdin_done,
                                 .arg = c};
    if (sg_service_stdin(api->service, &args, &err) == 0)
        return;
    sg_api_fail(r, &err);
    sg_req_unref(r);
    free(c);
}

void sg_route_exec_stdin(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, write_stdin);
}
