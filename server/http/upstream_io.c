#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "http/upstream_priv.h"

#define OUT_BYTES 65536U
#define OUT_FRAME 8U /* room before a piece for its size line */
/* After so many bytes one exchange lets the others have their turn. */
#define TURN_BYTES ((size_t)1024 * 1024)
/* A piece of a chunked body this long is read straight into the pipe; shorter ones together with their
 * framing. */
#define DIRECT_MIN 16384U

static void progressed(struct sg_up_exchange *x)
{
    x->deadline = sg_now_ms() + sg_up_config(x->hub)->stall_ms;
}

/* ---- the request ---- */

static void send_failed(struct sg_up_exchange *x)
{
    /* The server may have answered before it stopped listening, so reading goes on. */
    x->send_broken = true;
    x->send_blocked = false;
    if (x->body != NULL)
        sg_pipe_stop(x->body);
}

/* > 0 bytes were sent; 0: not now or not any more. */
static size_t send_bytes(struct sg_up_exchange *x, const char *data, size_t len)
{
    ssize_t n;
    do
        n = send(x->conn->fd, data, len, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n >= 0)
        return (size_t)n;
    if (errno == EAGAIN || errno == EWOULDBLOCK)
        x->send_blocked = true;
    else
        send_failed(x);
    return 0;
}

static void request_sent(struct sg_up_exchange *x)
{
    x->sent = true;
    if (!x->answered)
        x->deadline = sg_now_ms() + sg_up_config(x->hub)->first_byte_ms;
}

void sg_up_send_head(struct sg_up_exchange *x)
{
    while (x->head_off < x->head_len) {
        size_t n = send_bytes(x, x->head + x->head_off, x->head_len - x->head_off);
        if (n == 0)
            return;
        x->head_off += n;
    }
    if (x->body == NULL && !x->sent)
        request_sent(x);
}

static void client_broke(struct sg_up_exchange *x)
{
    struct sg_error err = {0};
    sg_error_set(&err, SG_CANCELLED, "the request body was cut off");
    sg_up_fail(x, &err);
}

/* sg_pipe_read_to() moved nothing and returned n. */
static void plain_body_stops(struct sg_up_exchange *x, ssize_t n)
{
    if (n == 0)
        request_sent(x);
    else if (n == -ENOBUFS)
        x->send_blocked = true;
    else if (n == -EIO)
        client_broke(x);
    else if (n != -EAGAIN)
        send_failed(x);
}

/* A body with its Content-Length goes from the pipe to the socket without a stop. */
static void send_plain_body(struct sg_up_exchange *x)
{
    for (size_t moved = 0; moved < TURN_BYTES;) {
        ssize_t n = sg_pipe_read_to(x->body, x->conn->fd);
        if (n > 0) {
            moved += (size_t)n;
            x->body_sent += (uint64_t)n;
            progressed(x);
        } else if (n != -EINTR) {
            plain_body_stops(x, n);
            return;
        }
    }
    x->send_blocked = true; /* not full, but EPOLLOUT brings us back */
}

static void end_pieces(struct sg_up_exchange *x)
{
    sg_cleanup(sg_free_p) char *trailers = x->body_trailers != NULL ? x->body_trailers(x->sink.arg) : NULL;
    bool fits = trailers != NULL && strlen(trailers) < OUT_BYTES - OUT_FRAME;
    x->out_off = 0;
    x->out_len = (size_t)snprintf(x->out, OUT_FRAME + OUT_BYTES, "0\r\n%s\r\n", fits ? trailers : "");
    x->last_piece = true;
}

/* Takes the next piece of the body and frames it as a chunk. False: nothing now, or the exchange ended. */
static bool next_piece(struct sg_up_exchange *x)
{
    if (x->out == NULL)
        x->out = sg_xcalloc(1, OUT_FRAME + OUT_BYTES + 2);
    ssize_t n = sg_pipe_read(x->body, x->out + OUT_FRAME, OUT_BYTES);
    if (n == -EIO)
        client_broke(x);
    if (n < 0)
        return false;
    if (n == 0) {
        end_pieces(x);
        return true;
    }
    char line[OUT_FRAME + 8];
    int line_len = snprintf(line, sizeof line, "%zx\r\n", (size_t)n);
    x->out_off = OUT_FRAME - (size_t)line_len;
    memcpy(x->out + x->out_off, line, (size_t)line_len);
    memcpy(x->out + OUT_FRAME + n, "\r\n", 2);
    x->out_len = OUT_FRAME + (size_t)n + 2;
    x->body_sent += (uint64_t)n;
    return true;
}

static void send_chunked_body(struct sg_up_exchange *x)
{
    for (size_t moved = 0; moved < TURN_BYTES;) {
        if (x->out_off == x->out_len) {
            if (x->last_piece)
                request_sent(x);
            if (x->last_piece || !next_piece(x))
                return;
        }
        size_t n = send_bytes(x, x->out + x->out_off, x->out_len - x->out_off);
        if (n == 0)
            return;
        x->out_off += n;
        moved += n;
        progressed(x);
    }
    x->send_blocked = true;
}

static void send_request(struct sg_up_exchange *x)
{
    if (x->sent || x->send_broken || x->send_blocked)
        return;
    sg_up_send_head(x);
    if (x->body == NULL || x->head_off < x->head_len || x->send_broken)
        return;
    if (!x->body_watched) {
        x->body_watched = true;
        struct sg_waker w = {sg_up_exchange_wake, sg_up_exchange_hold, sg_up_exchange_unref, x};
        sg_pipe_set_reader(x->body, &w);
    }
    if (x->body_length < 0)
        send_chunked_body(x);
    else
        send_plain_body(x);
}

/* ---- the answer ---- */

static bool reusable(const struct sg_up_exchange *x)
{
    bool whole = x->body == NULL || x->body_length < 0 || x->body_sent == (uint64_t)x->body_length;
    return x->keep_alive && x->sent && whole && x->in_off == x->in_len;
}

static void fail_answer(struct sg_up_exchange *x, struct sg_error *err)
{
    sg_up_fail(x, err);
    sg_error_clear(err);
}

static void end_stream(struct sg_up_exchange *x, bool reuse)
{
    sg_up_end(x, reuse);
    x->sink.ended(x->sink.arg);
}

static void end_answer(struct sg_up_exchange *x)
{
    if (x->decoder.trailers_len > 0)
        x->sink.trailers(x->sink.arg, x->decoder.trailers, x->decoder.trailers_len);
    sg_pipe_close(x->pipe);
    end_stream(x, reusable(x));
}

/* What is in x->in must outlive this turn. False: the exchange ended. */
static bool keep_in(struct sg_up_exchange *x)
{
    char *scratch = x->hub->scratch;
    if (x->in != scratch)
        return true;
    struct sg_error err = {0};
    x->in = malloc(SG_H1_HEAD_MAX);
    if (x->in != NULL) {
        memcpy(x->in, scratch, x->in_len);
        return true;
    }
    sg_error_set(&err, SG_NO_MEMORY, "no memory for an answer");
    fail_answer(x, &err);
    return false;
}

/* The end of a turn: nothing stays in the scratch buffer, and no buffer stays empty. */
static void leave_in(struct sg_up_exchange *x)
{
    if (!x->ended && x->in_off < x->in_len) {
        (void)keep_in(x);
        return;
    }
    if (x->in != x->hub->scratch)
        free(x->in);
    x->in = NULL;
    x->in_off = x->in_len = 0;
}

/* The body has begun but is not all here: the rest comes through a pipe. */
static void answer_pipe(struct sg_up_exchange *x, struct sg_upstream_answer *a, const char *begun,
                        size_t begun_len)
{
    size_t cap = sg_up_config(x->hub)->pipe_bytes;
    x->pipe = sg_pipe_new(cap < SG_H1_HEAD_MAX ? SG_H1_HEAD_MAX : cap);
    if (begun_len > 0)
        (void)sg_pipe_write(x->pipe, begun, begun_len); /* fits: it came out of a smaller buffer */
    a->pipe = sg_pipe_ref(x->pipe);
    if (a->head->framing == SG_H1_LENGTH)
        a->length = (int64_t)a->head->length;
    progressed(x);
    x->sink.answered(x->sink.arg, a);
    struct sg_waker w = {sg_up_exchange_wake, sg_up_exchange_hold, sg_up_exchange_unref, x};
    sg_pipe_set_writer(x->pipe, &w);
}

/* The server speaks another protocol from here on. */
static void answer_switch(struct sg_up_exchange *x, const struct sg_h1_head *head, size_t head_len)
{
    struct sg_upstream_answer a = {.head = head, .length = -1};
    if (!keep_in(x))
        return;
    x->answered = true;
    a.tunnel = sg_up_tunnel_new(x, head_len);
    x->sink.answered(x->sink.arg, &a);
}

/* A whole head is here, head_len bytes of x->in. */
static void answer(struct sg_up_exchange *x, const struct sg_h1_head *head, size_t head_len)
{
    struct sg_error err = {0};
    size_t payload = 0;
    char *body = x->in + head_len;
    sg_h1_body_init(&x->decoder, head->framing, head->length);
    if (head->framing == SG_H1_CHUNKED && x->sink.trailers != NULL)
        x->decoder.trailers = malloc(SG_H1_TRAILER_MAX); /* without memory they are dropped */
    ssize_t used = sg_h1_body_decode(&x->decoder, body, x->in_len - head_len, &payload, &err);
    if (used < 0) {
        fail_answer(x, &err);
        return;
    }
    x->in_off = head_len + (size_t)used;
    x->keep_alive = head->keep_alive;
    x->keep_alive_s = head->keep_alive_s;
    x->answered = true;
    struct sg_upstream_answer a = {.head = head, .length = -1};
    bool done = sg_h1_body_done(&x->decoder);
    if (!done || x->decoder.trailers_len > 0) {
        answer_pipe(x, &a, body, payload);
        if (done)
            end_answer(x);
        return;
    }
    a.whole = body;
    a.whole_len = payload;
    a.length = (int64_t)payload;
    sg_up_end(x, reusable(x)); /* first, so that the caller's next request finds the connection */
    x->sink.answered(x->sink.arg, &a);
    x->sink.ended(x->sink.arg);
}

/* More bytes at the end of x->in. False: none now, or the exchange ended. */
static bool receive(struct sg_up_exchange *x)
{
    size_t room = SG_H1_HEAD_MAX - x->in_len;
    ssize_t n;
    do
        n = recv(x->conn->fd, x->in + x->in_len, room, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n > 0) {
        x->in_len += (size_t)n;
        x->read_ready = (size_t)n == room;
        return true;
    }
    x->read_ready = false;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return false;
    struct sg_error err = {0};
    if (!x->answered && x->in_len == 0) {
        sg_up_no_answer(x, n < 0 ? errno : 0);
    } else if (!x->answered) {
        sg_error_set(&err, SG_ENDPOINT_FAILED,
                     "the service closed the connection in the middle of its answer");
        sg_error_reason(&err, "closed_early");
        fail_answer(x, &err);
    } else if (n < 0) {
        sg_error_sys(&err, SG_ENDPOINT_FAILED, errno, "the connection to the service broke");
        fail_answer(x, &err);
    } else if (sg_h1_body_eof(&x->decoder, &err) < 0) {
        fail_answer(x, &err);
    }
    return false;
}

static void read_head(struct sg_up_exchange *x)
{
    struct sg_error err = {0};
    ssize_t n = 0;
    while (n == 0 && x->read_ready && receive(x)) {
        struct sg_h1_head head;
        n = sg_h1_head_parse(&head, &x->progress, x->in, x->in_len, x->is_head, &err);
        if (n < 0)
            fail_answer(x, &err);
        if (n > 0 && head.status == 101)
            answer_switch(x, &head, (size_t)n);
        else if (n > 0)
            answer(x, &head, (size_t)n);
    }
}

/* Payload that is in x->in goes into the pipe. False: the pipe is full, or the exchange ended. */
static bool pass_buffered(struct sg_up_exchange *x)
{
    struct sg_error err = {0};
    while (x->in_off < x->in_len && !sg_h1_body_done(&x->decoder)) {
        ssize_t framed = sg_h1_body_frame(&x->decoder, x->in + x->in_off, x->in_len - x->in_off, &err);
        if (framed < 0) {
            fail_answer(x, &err);
            return false;
        }
        x->in_off += (size_t)framed;
        size_t n = x->in_len - x->in_off;
        if (n > x->decoder.payload)
            n = (size_t)x->decoder.payload;
        if (n == 0)
            continue;
        ssize_t taken = sg_pipe_write(x->pipe, x->in + x->in_off, n);
        if (taken < 0) {
            end_stream(x, false); /* nobody reads it */
            return false;
        }
        sg_h1_body_took(&x->decoder, (uint64_t)taken);
        x->in_off += (size_t)taken;
        x->pipe_full = (size_t)taken < n;
        if (x->pipe_full)
            return false;
    }
    if (x->in_off == x->in_len)
        x->in_off = x->in_len = 0;
    return true;
}

/* Payload goes from the socket into the pipe without a stop. Returns how much; 0: not now, or the exchange
 * ended. */
static size_t pass_direct(struct sg_up_exchange *x)
{
    size_t max = x->decoder.payload < TURN_BYTES ? (size_t)x->decoder.payload : TURN_BYTES;
    ssize_t n = sg_pipe_write_from(x->pipe, x->conn->fd, max);
    struct sg_error err = {0};
    if (n > 0) {
        sg_h1_body_took(&x->decoder, (uint64_t)n);
        return (size_t)n;
    }
    if (n == -EINTR)
        return 0;
    x->pipe_full = n == -ENOBUFS;
    if (n == -ENOBUFS)
        return 0;
    x->read_ready = false;
    if (n == -EPIPE)
        end_stream(x, false);
    else if (n == 0 && sg_h1_body_eof(&x->decoder, &err) < 0)
        fail_answer(x, &err);
    else if (n < 0 && n != -EAGAIN) {
        sg_error_sys(&err, SG_ENDPOINT_FAILED, (int)-n, "the connection to the service broke");
        fail_answer(x, &err);
    }
    return 0;
}

static void read_body(struct sg_up_exchange *x)
{
    x->pipe_full = false;
    for (size_t moved = 0; moved < TURN_BYTES;) {
        size_t before = x->in_len - x->in_off;
        if (!pass_buffered(x))
            break;
        moved += before;
        if (sg_h1_body_done(&x->decoder)) {
            end_answer(x);
            return;
        }
        if (!x->read_ready)
            break;
        bool direct = x->decoder.state == SG_H1_PAYLOAD &&
                      (x->decoder.framing != SG_H1_CHUNKED || x->decoder.payload >= DIRECT_MIN);
        if (direct) {
            size_t n = pass_direct(x);
            moved += n;
            if (n == 0 && (x->ended || x->pipe_full))
                break;
        } else if (!receive(x) && x->ended) {
            break;
        }
        if (!x->ended && x->read_ready)
            progressed(x);
    }
}

void sg_up_move(struct sg_up_exchange *x)
{
    if (x->in == NULL)
        x->in = x->hub->scratch;
    send_request(x);
    if (!x->ended && !x->answered && x->read_ready)
        read_head(x);
    if (!x->ended && x->conn != NULL && x->answered && x->tunnel == NULL)
        read_body(x);
    leave_in(x);
}
