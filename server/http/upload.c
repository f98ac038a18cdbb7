/* Streamed bodies: blocks go into a pipe; a full pipe suspends the connection with bytes left over, and TCP does
 * the rest. */
#include <errno.h>

#include "http/request_priv.h"

#define MOVES_AT_LEAST ((size_t)1024) /* per body_ms */

struct sg_pipe *sg_req_body_pipe(struct sg_request *r)
{
    pthread_mutex_lock(&r->lock);
    bool over = !r->mhd;
    bool empty = !r->body_pending;
    struct sg_pipe *p = r->upload;
    bool made = !p;
    if (made) {
        p = r->upload = sg_pipe_new(over || empty ? 1 : r->http->cfg.body_pipe);
        r->upload_open = true;
    }
    pthread_mutex_unlock(&r->lock);
    if (!made)
        return p;
    if (over) {
        struct sg_error err = {0};
        sg_error_set(&err, SG_CANCELLED, "the client has left");
        sg_pipe_fail(p, &err);
    } else if (empty) {
        sg_pipe_close(p);
    } else {
        struct sg_waker w = sg_req_waker(r);
        sg_pipe_set_writer(p, &w);
        pthread_mutex_lock(&r->lock);
        bool late = !r->mhd || !r->body_pending;
        sg_req_wake_locked(r); /* the head may be waiting for this decision */
        pthread_mutex_unlock(&r->lock);
        if (late)
            sg_pipe_set_writer(p, NULL); /* it ended meanwhile, and removed no waker */
    }
    return p;
}

void sg_upload_moved(struct sg_request *r, size_t n)
{
    r->bytes_in += n;
    r->moved += n;
    if (!r->match.route || r->match.route->body != SG_BODY_STREAM || r->owed)
        return; /* has one deadline for all of it */
    if (r->moved >= MOVES_AT_LEAST || r->suspended_before) {
        r->moved = 0;
        r->suspended_before = false;
        sg_conn_deadline(r->conn, r->http->cfg.body_ms);
    }
}

static enum MHD_Result too_large(struct sg_request *r, size_t *size)
{
    struct sg_error err = {0};
    sg_error_set(&err, SG_PAYLOAD_TOO_LARGE, "the body is larger than %llu bytes",
                 (unsigned long long)sg_admit_max_body(r));
    struct sg_error copy = err;
    sg_answer_refuse(r, &copy, NULL); /* before the handler, which hears of it through the pipe */
    sg_pipe_fail(r->upload, &err);
    r->discard = true;
    sg_req_owe(r);
    r->bytes_in += *size;
    r->drained += *size;
    *size = 0;
    return MHD_YES;
}

enum MHD_Result sg_upload_block(struct sg_request *r, const char *data, size_t *size)
{
    if (*size > sg_admit_max_body(r) - r->bytes_in)
        return too_large(r, size);
    for (;;) {
        ssize_t n = sg_pipe_write(r->upload, data, *size);
        if (n > 0) {
            sg_upload_moved(r, (size_t)n);
            data += n;
            *size -= (size_t)n;
        }
        if (*size == 0)
            return MHD_YES;
        /* Full, or the reader has stopped: then the answer is what we wait for. */
        if (n == -EPIPE && sg_req_answered(r)) {
            r->discard = true;
            r->bytes_in += *size;
            *size = 0;
            return MHD_YES;
        }
        sg_conn_deadline(r->conn, 0);
        r->suspended_before = true;
        int s = sg_req_suspend(r);
        if (s > 0)
            return MHD_YES;
        if (s < 0) {
            r->cut = true;
            return MHD_NO;
        }
    }
}

void sg_upload_end(struct sg_request *r)
{
    pthread_mutex_lock(&r->lock);
    bool pending = r->body_pending;
    r->body_pending = false;
    struct sg_pipe *p = r->upload;
    pthread_mutex_unlock(&r->lock);
    if (!p || !pending)
        return;
    sg_pipe_close(p);
    sg_pipe_set_writer(p, NULL);
}

void sg_upload_abort(struct sg_request *r)
{
    pthread_mutex_lock(&r->lock);
    struct sg_pipe *p = r->body_pending ? r->upload : NULL;
    r->body_pending = false;
    pthread_mutex_unlock(&r->lock);
    if (!p)
        return;
    struct sg_error err = {0};
    sg_error_set(&err, SG_CANCELLED, "the client left in the middle of the body");
    sg_pipe_fail(p, &err);
    sg_error_clear(&err);
    sg_pipe_set_writer(p, NULL);
}
