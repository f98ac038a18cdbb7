/* Answers that come out of a pipe or another source: pulled by the parser library, suspended while there is nothing to pull. */
#include <errno.h>
#include <unistd.h>

#include "http/request_priv.h"

bool sg_req_is_gone(struct sg_request *r)
{
    pthread_mutex_lock(&r->lock);
    bool is = r->hung_up || r->aborted;
    pthread_mutex_unlock(&r->lock);
    return is;
}

static bool suspended(struct sg_request *r)
{
    pthread_mutex_lock(&r->lock);
    bool is = r->suspended;
    pthread_mutex_unlock(&r->lock);
    return is;
}

static ssize_t cut(struct sg_request *r)
{
    r->cut = true;
    return MHD_CONTENT_READER_END_WITH_ERROR;
}

/* The library writes them behind the last chunk. Adding them takes no lock of its own. */
static ssize_t end_of_stream(struct sg_request *r)
{
    pthread_mutex_lock(&r->lock);
    struct sg_answer_header *trailers = r->trailers;
    r->trailers = NULL;
    pthread_mutex_unlock(&r->lock);
    for (struct sg_answer_header *t = trailers; t && r->response; t = t->next)
        MHD_add_response_footer(r->response, t->name, t->value);
    sg_answer_free_headers(trailers);
    return MHD_CONTENT_READER_END_OF_STREAM;
}

static ssize_t take(struct sg_request *r, char *buf, size_t max)
{
    const struct sg_body_source *s = &r->answer.source;
    return r->answer.kind == SG_ANSWER_SOURCE ? s->read(s->arg, buf, max) : sg_pipe_read(r->answer.pipe, buf, max);
}

/* Runs with the library's lock on the response held: bytes are made or copied, nothing else. */
static ssize_t read_pipe(void *arg, uint64_t pos, char *buf, size_t max)
{
    struct sg_request *r = arg;
    (void)pos;
    if (suspended(r))
        return 0;
    if (r->direct) {
        ssize_t n = sg_direct_read(r);
        return n == -EAGAIN ? 0 : n == 0 ? end_of_stream(r) : cut(r);
    }
    for (;;) {
        if (sg_req_is_gone(r))
            return cut(r);
        ssize_t n = take(r, buf, max);
        if (n > 0) {
            r->bytes_out += (uint64_t)n;
            return n;
        }
        if (n == 0 && (r->answer.content_length < 0 || r->bytes_out == (uint64_t)r->answer.content_length))
            return end_of_stream(r);
        if (n != -EAGAIN)
            return cut(r);
        int s = sg_req_suspend(r);
        if (s > 0)
            return 0;
        if (s < 0)
            return cut(r);
    }
}

static void release(void *arg)
{
    sg_req_put(arg);
}

static void wake_direct(void *arg)
{
    sg_direct_wake(arg);
}

struct MHD_Response *sg_stream_response(struct sg_request *r)
{
    uint64_t size = r->answer.content_length < 0 ? MHD_SIZE_UNKNOWN : (uint64_t)r->answer.content_length;
    struct MHD_Response *resp = MHD_create_response_from_callback(size, SG_BLOCK, read_pipe, sg_req_get(r), release);
    if (!resp) {
        sg_req_put(r);
        return NULL;
    }
    r->response = r->answer.content_length < 0 ? resp : NULL;
    if (r->answer.kind == SG_ANSWER_SOURCE && r->answer.content_length < 0)
        r->direct = sg_direct_new(r);
    struct sg_waker w = sg_req_waker(r);
    if (r->direct)
        w.wake = wake_direct;
    if (r->answer.kind == SG_ANSWER_SOURCE)
        r->answer.source.set_waker(r->answer.source.arg, &w);
    else
        sg_pipe_set_reader(r->answer.pipe, &w);
    return resp;
}

/* ---- files ----
 *
 * Not by the library's own sendfile: it waits for ever for the end of a file that got shorter (the sandbox may do
 * that at any time), and does not tell when it has closed the descriptor. */

/* Files are read in larger pieces: one turn of the event loop moves one. Only downloads under way hold such a buffer. */
#define FILE_BLOCK ((size_t)256 * 1024)

static ssize_t read_file(void *arg, uint64_t pos, char *buf, size_t max)
{
    struct sg_request *r = arg;
    ssize_t n;
    do {
        n = pread(r->answer.fd, buf, max, (off_t)(r->answer.offset + pos));
    } while (n < 0 && errno == EINTR);
    return n > 0 ? n : cut(r); /* 0: the file got shorter */
}

void sg_file_close(struct sg_request *r)
{
    r->answer.fd = sg_close(r->answer.fd);
    r->answer.hold = sg_hold_unref(r->answer.hold);
}

static void release_file(void *arg)
{
    struct sg_request *r = arg;
    sg_file_close(r);
    sg_req_put(r);
}

struct MHD_Response *sg_file_response(struct sg_request *r)
{
    if (r->answer.fd_len == 0) {
        sg_file_close(r);
        return MHD_create_response_from_buffer(0, (void *)(uintptr_t) "", MHD_RESPMEM_PERSISTENT);
    }
    struct MHD_Response *resp =
        MHD_create_response_from_callback(r->answer.fd_len, FILE_BLOCK, read_file, sg_req_get(r), release_file);
    if (!resp)
        sg_req_put(r);
    return resp;
}
