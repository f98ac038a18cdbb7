/* One request from head to completion: what to do at each call of the parser library.
 *
 * The library calls once for the head, then per block of body, then once with everything here; after a suspension it
 * calls again in the state it left. So the state is ours, never guessed from the arguments. An answer given at the
 * first call closes the connection: only refused bodies, and heads with doubtful framing, are answered there.
 */
#include <sys/socket.h>

#include "http/auth.h"
#include "http/request_priv.h"

#define GONE_MS 1000
#define TOLD_MS 5000 /* to close, for one that was told its answer before its body came */
/* Of a buffered body, that never has to wait for others' memory. */
#define BODY_ALWAYS ((size_t)16 * 1024)

static void refuse_stopping(struct sg_request *r)
{
    struct sg_error err = {0};
    sg_error_set(&err, SG_SHUTTING_DOWN, "the server is shutting down");
    sg_error_retry_after(&err, 1);
    r->close = true;
    sg_answer_refuse(r, &err, NULL);
}

static void dispatch(struct sg_request *r)
{
    r->dispatched = true;
    atomic_fetch_add(r->match.route->watches ? &r->http->watching : &r->http->working, 1);
    sg_req_ref(r);
    r->match.route->handle(r, r->http->cfg.app);
    sg_req_unref(r);
}

/* ---- head ---- */

/* A body is on its way. The parser can miss an end that comes with the last bytes: then it would wait for the rest. */
static void expect_body(struct sg_request *r)
{
    if (!sg_req_has_body(r))
        return;
    r->body_pending = true;
    sg_conn_wait(r->conn, r);
}

void sg_req_owe(struct sg_request *r)
{
    pthread_mutex_lock(&r->lock);
    r->owed = r->answered && r->answer.kind == SG_ANSWER_BYTES;
    bool owed = r->owed;
    pthread_mutex_unlock(&r->lock);
    if (!owed)
        return;
    atomic_store(&r->conn->owes, true);
    sg_conn_deadline(r->conn, SG_OWED_MS);
}

void sg_req_tell(struct sg_request *r)
{
    pthread_mutex_lock(&r->lock);
    if (r->mhd && r->owed && !r->told) {
        r->told = true;
        atomic_store(&r->conn->owes, false);
        sg_answer_raw(r);
        shutdown(r->conn->fd, SHUT_WR); /* and read on: what still comes would be answered with a reset */
        sg_conn_deadline(r->conn, TOLD_MS);
    }
    pthread_mutex_unlock(&r->lock);
}

/* The body has come, or the request is over. True: nobody is waiting for its answer any more. */
static bool owe_no_more(struct sg_request *r)
{
    if (!r->owed)
        return false;
    atomic_store(&r->conn->owes, false);
    pthread_mutex_lock(&r->lock);
    r->owed = false;
    bool told = r->told;
    pthread_mutex_unlock(&r->lock);
    return told;
}

/* Answered before the body was read. */
static enum MHD_Result answer_early(struct sg_request *r, struct MHD_Connection *mhd)
{
    bool small = !r->framing.expect_continue && !r->framing.chunked && r->framing.length <= SG_DRAIN_MAX;
    if (r->close || (sg_req_has_body(r) && !small)) {
        r->close = true;
        r->conn->linger = true;
        return sg_answer_queue(r, mhd);
    }
    expect_body(r);
    r->discard = true;
    r->state = SG_REQ_BODY;
    sg_conn_deadline(r->conn, r->http->cfg.body_ms);
    if (sg_req_has_body(r))
        sg_req_owe(r);
    return MHD_YES;
}

/* A STREAM handler has run and may still be thinking about whether it wants the body. */
static enum MHD_Result await_verdict(struct sg_request *r, struct MHD_Connection *mhd)
{
    for (;;) {
        pthread_mutex_lock(&r->lock);
        bool answered = r->answered;
        bool wanted = r->upload_open;
        pthread_mutex_unlock(&r->lock);
        if (answered && !(wanted && r->answer.kind == SG_ANSWER_PIPE))
            return answer_early(r, mhd);
        if (wanted) {
            r->state = SG_REQ_BODY;
            sg_conn_deadline(r->conn, r->http->cfg.body_ms);
            return MHD_YES;
        }
        int s = sg_req_suspend(r);
        if (s > 0)
            return MHD_YES;
        if (s < 0)
            refuse_stopping(r);
    }
}

static void answer_options(struct sg_request *r, const char *allow)
{
    sg_respond_header(r, "Allow", allow);
    sg_respond_empty(r, 204);
}

static enum MHD_Result on_head(struct sg_request *r, struct MHD_Connection *mhd, const char *method,
                               const char *version)
{
    struct sg_error err = {0};
    char allow[160];
    if (r->dispatched)
        return await_verdict(r, mhd);
    if (sg_admit(r, mhd, method, version, allow, sizeof allow, &err) < 0) {
        sg_answer_refuse(r, &err, allow);
        return answer_early(r, mhd);
    }
    if (!r->match.route) {
        answer_options(r, allow);
        return answer_early(r, mhd);
    }
    sg_conn_deadline(r->conn, sg_req_has_body(r) ? r->http->cfg.body_ms : 0);
    expect_body(r);
    if (r->match.route->body == SG_BODY_STREAM && sg_req_has_body(r)) {
        sg_conn_deadline(r->conn, 0);
        dispatch(r);
        return await_verdict(r, mhd);
    }
    r->discard = r->match.route->body == SG_BODY_NONE;
    sg_buf_init(&r->body, (size_t)sg_admit_max_body(r));
    r->state = SG_REQ_BODY;
    return MHD_YES;
}

/* ---- body ---- */

/* Throws a block away. No answer can be queued before the end of the body: a client that has much more to send, or who is
 * told to come back (at_once), gets its answer at once past the library, and no further attention. */
static enum MHD_Result drop_block(struct sg_request *r, size_t *size, bool at_once)
{
    sg_upload_moved(r, *size);
    r->drained += *size;
    *size = 0;
    bool much = r->framing.chunked ? r->drained > SG_DRAIN_MAX
                                   : r->framing.length - r->bytes_in > SG_DRAIN_MAX;
    if (!much && !at_once) {
        if (!r->owed)
            sg_req_owe(r);
        return MHD_YES;
    }
    if (!sg_req_answered(r)) {
        struct sg_error err = {0};
        sg_error_set(&err, SG_PAYLOAD_TOO_LARGE, "the body is too large");
        sg_answer_refuse(r, &err, NULL);
    }
    if (r->answer.kind != SG_ANSWER_BYTES)
        return MHD_YES;
    if (!owe_no_more(r))
        sg_answer_raw(r);
    return MHD_NO;
}

/* Is there room for n more bytes, as far as all bodies together go? What is small always has some. */
static bool take_room(struct sg_request *r, size_t n)
{
    size_t len = r->body.len + n;
    size_t more = len > BODY_ALWAYS ? len - BODY_ALWAYS - r->body_taken : 0;
    if (more == 0)
        return true;
    if (!sg_budget_take(r->http->bodies, more))
        return false;
    if (!r->budget)
        r->budget = sg_budget_ref(r->http->bodies);
    r->body_taken += more;
    return true;
}

static enum MHD_Result buffer_block(struct sg_request *r, const char *data, size_t *size)
{
    struct sg_error err = {0};
    if (*size > r->body.cap - r->body.len) {
        sg_error_set(&err, SG_PAYLOAD_TOO_LARGE, "the body is larger than %zu bytes", r->body.cap);
    } else if (!take_room(r, *size)) {
        sg_error_set(&err, SG_OVERLOADED, "the bodies of other requests take all the memory there is for them");
        sg_error_retry_after(&err, 1);
    } else if (sg_buf_add(&r->body, data, *size) < 0) {
        sg_error_set(&err, SG_NO_MEMORY, "no memory for the body");
        sg_error_retry_after(&err, 1);
    } else {
        r->bytes_in += *size;
        *size = 0;
        return MHD_YES;
    }
    bool come_back = err.retry_after > 0;
    sg_req_drop_body(r);
    sg_answer_refuse(r, &err, NULL);
    r->discard = true;
    return drop_block(r, size, come_back);
}

static enum MHD_Result on_body(struct sg_request *r, const char *data, size_t *size)
{
    pthread_mutex_lock(&r->lock);
    bool suspended = r->suspended; /* the library walks on through chunks it has, suspended or not */
    bool over = r->hung_up || r->aborted;
    bool answered = r->answered, told = r->told;
    pthread_mutex_unlock(&r->lock);
    if (suspended)
        return MHD_YES;
    if (told)
        return MHD_NO;
    if (over) {
        r->cut = true;
        return MHD_NO;
    }
    if (answered && r->answer.kind != SG_ANSWER_PIPE)
        r->discard = true;
    if (r->discard)
        return drop_block(r, size, false);
    if (r->match.route->body == SG_BODY_STREAM)
        return sg_upload_block(r, data, size);
    return buffer_block(r, data, size);
}

/* ---- all here ---- */

static void end_of_body(struct sg_request *r, struct MHD_Connection *mhd)
{
    r->state = SG_REQ_FULL;
    r->body_ended = true;
    sg_conn_deadline(r->conn, 0);
    if (r->match.route && r->match.route->body == SG_BODY_STREAM)
        sg_admit_trailers(r, mhd);
    sg_upload_end(r);
    if (r->match.route && r->match.route->body == SG_BODY_JSON && r->body.len == 0 && !sg_req_answered(r)) {
        struct sg_error err = {0};
        sg_error_set(&err, SG_INVALID_REQUEST, "a JSON body is required");
        sg_answer_refuse(r, &err, NULL);
    }
}

static enum MHD_Result on_full(struct sg_request *r, struct MHD_Connection *mhd)
{
    if (owe_no_more(r))
        return MHD_NO;
    if (!r->body_ended)
        end_of_body(r, mhd);
    if (!r->dispatched && !sg_req_answered(r))
        dispatch(r);
    while (!sg_req_answered(r)) {
        int s = sg_req_suspend(r);
        if (s > 0)
            return MHD_YES;
        if (s < 0)
            refuse_stopping(r);
    }
    return sg_answer_queue(r, mhd);
}

enum MHD_Result sg_exchange(struct sg_request *r, struct MHD_Connection *mhd, const char *method,
                            const char *version, const char *data, size_t *size)
{
    switch (r->state) {
    case SG_REQ_HEAD:
        return on_head(r, mhd, method, version);
    case SG_REQ_BODY:
        return *size > 0 ? on_body(r, data, size) : on_full(r, mhd);
    case SG_REQ_FULL:
        return on_full(r, mhd);
    case SG_REQ_QUEUED:
        break;
    }
    return MHD_YES;
}

/* ---- over ---- */

static void report(struct sg_request *r, bool complete)
{
    struct sg_http *h = r->http;
    if (!h->cfg.done)
        return;
    if (complete && r->answer.kind == SG_ANSWER_BYTES)
        r->bytes_out = r->answer.len;
    if (complete && r->answer.kind == SG_ANSWER_FD)
        r->bytes_out = r->answer.fd_len;
    char note[sizeof r->note];
    pthread_mutex_lock(&r->lock);
    memcpy(note, r->note, sizeof note);
    pthread_mutex_unlock(&r->lock);
    struct sg_http_event e = {
        .request = r,
        .method = r->method,
        .target = r->target,
        .operation_id = r->match.route ? r->match.route->operation_id : NULL,
        .request_id = r->id,
        .traceparent = r->traceparent,
        .peer = r->conn->peer,
        .note = note,
        .principal = r->principal,
        .status = r->sent_status,
        .complete = complete,
        .bytes_in = r->bytes_in,
        .bytes_out = r->bytes_out,
        .duration_us = sg_now_us() - r->started_us,
    };
    h->cfg.done(h->cfg.app, &e);
}

static void finish(struct sg_request *r, enum MHD_RequestTerminationCode how)
{
    struct sg_http *h = r->http;
    (void)owe_no_more(r);
    pthread_mutex_lock(&r->lock);
    r->mhd = NULL;
    r->suspended = false;
    bool answered = r->answered;
    r->answered = true; /* a late one is thrown away */
    bool source_used = sg_direct_is_busy(r);
    void (*on_end)(void *arg, bool delivered) = r->on_end;
    r->on_end = NULL;
    pthread_mutex_unlock(&r->lock);
    sg_conn_unwait(r->conn, r);
    sg_http_async_remove(h, r);

    bool complete = how == MHD_REQUEST_TERMINATED_COMPLETED_OK && !r->cut && r->sent_status != 0;
    if (!complete)
        sg_req_fire(r, atomic_load(&h->stopping) ? SG_CANCEL_SHUTDOWN : SG_CANCEL_HANGUP);
    if (!r->body_ended)
        sg_upload_abort(r);
    if (answered && r->answer.pipe) {
        sg_pipe_set_reader(r->answer.pipe, NULL);
        sg_pipe_stop(r->answer.pipe);
    }
    if (answered && r->answer.kind == SG_ANSWER_FD)
        sg_file_close(r); /* nobody reads on, and what it holds may hold this request */
    if (answered && !source_used)
        sg_answer_close_source(&r->answer);
    if (answered && r->answer.kind == SG_ANSWER_UPGRADE && !atomic_load(&r->upgraded))
        r->answer.taken(r->answer.taken_arg, NULL, -1, NULL, 0);
    report(r, complete);
    if (on_end)
        on_end(r->on_end_arg, complete && !r->too_late);
    if (r->counted)
        atomic_fetch_sub(&h->requests, 1);
    if (r->dispatched)
        atomic_fetch_sub(r->match.route->watches ? &h->watching : &h->working, 1);
    sg_http_went_down(h);
    sg_req_put(r);
}

static void finish_task(struct sg_task *t)
{
    struct sg_request *r = sg_container_of(t, struct sg_request, task);
    finish(r, r->how);
}

void sg_exchange_completed(struct sg_request *r, enum MHD_RequestTerminationCode how)
{
    /* The parser may have missed the end of a client that has stopped sending. */
    sg_conn_deadline(r->conn, sg_conn_hung(r->conn) ? GONE_MS : r->http->cfg.idle_ms);
    if (atomic_load(&r->upgraded)) {
        /* The library holds a lock of its own here that ranks above ours: only leave a note. */
        r->how = how;
        r->task.run = finish_task;
        sg_reactor_post(r->http->cfg.reactor, &r->task);
        return;
    }
    finish(r, how);
}
