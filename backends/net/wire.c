/* A connection that stops being HTTP: curl makes it (and its TLS), the request and the head of the response are written and read here,
 * and then bytes go both ways until one side has had enough. Net thread but for sg_wire_new(). */
#include "backends/net/net_priv.h"

#include <errno.h>
#include <stdio.h>
#include <strings.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/str.h"

#define TURN_BYTES ((size_t)1 << 20) /* one of many goes this far before the others have their turn */

/* ---- making ---- */

/* "http://host:port/prefix" in its parts. */
static void split_url(const char *url, const char **host, size_t *host_len, const char **prefix)
{
    const char *at = strstr(url, "://");
    *host = at != NULL ? at + 3 : url;
    *host_len = strcspn(*host, "/");
    *prefix = *host + *host_len;
}

static int add_fields(struct sg_buf *b, const struct sg_net_call *c)
{
    int rc = 0;
    for (const struct curl_slist *l = c->headers; l != NULL; l = l->next) {
        size_t len = strlen(l->data);
        if (len > 0 && l->data[len - 1] != ':') { /* that would be one that is not to be sent */
            rc |= sg_buf_addf(b, "%s\r\n", l->data);
        }
    }
    return rc;
}

int sg_wire_new(struct sg_net_call *c, const char *protocol, struct sg_error *err)
{
    const char *host, *prefix;
    size_t host_len;
    struct sg_wire *w = sg_xcalloc(1, sizeof *w);
    c->wire = w;
    sg_buf_init(&w->head, SG_NET_HEAD_MAX);
    sg_buf_init(&w->request, SG_NET_HEAD_MAX + c->body_len);
    split_url(c->client->url, &host, &host_len, &prefix);
    int rc = sg_buf_addf(&w->request, "%s %s%s HTTP/1.1\r\nHost: %.*s\r\nConnection: Upgrade\r\nUpgrade: %s\r\nContent-Length: %zu\r\n", c->method,
                         prefix, c->path, (int)host_len, host, protocol, c->body_len);
    rc |= add_fields(&w->request, c);
    rc |= sg_buf_add(&w->request, "\r\n", 2);
    rc |= sg_buf_add(&w->request, c->body, c->body_len);
    return rc < 0 ? sg_error_set(err, SG_INTERNAL, "the head of a call to %s is too long", c->client->shown) : 0;
}

void sg_wire_free(struct sg_wire *w)
{
    if (w != NULL) {
        explicit_bzero(w->request.data, w->request.data != NULL ? w->request.size : 0);
        sg_buf_finish(&w->request);
        sg_buf_finish(&w->head);
        free(w);
    }
}

/* ---- bytes ---- */

static int broken(struct sg_net_call *c, const char *what)
{
    sg_error_set(&c->why, SG_PROVIDER_FAILED, "the connection to %s broke: %s", c->client->shown, what);
    return sg_error_reason(&c->why, "connection_lost");
}

static int no_http(struct sg_net_call *c, const char *what)
{
    sg_error_set(&c->why, SG_PROVIDER_FAILED, "%s answers with %s", c->client->shown, what);
    return sg_error_reason(&c->why, "connection_lost");
}

/* > 0 bytes that went out, 0: not now, -1: they never will. */
static ssize_t put(struct sg_net_call *c, const void *data, size_t len)
{
    size_t n = 0;
    CURLcode rc = curl_easy_send(c->easy, data, len, &n);
    if (rc == CURLE_AGAIN || (rc == CURLE_OK && n == 0)) {
        c->wire->blocked = true;
        return 0;
    }
    return rc == CURLE_OK ? (ssize_t)n : -1;
}

static int send_request(struct sg_net_call *c)
{
    struct sg_wire *w = c->wire;
    while (w->request.len > w->sent) {
        ssize_t n = put(c, w->request.data + w->sent, w->request.len - w->sent);
        if (n <= 0) {
            return n < 0 ? broken(c, "the request could not be sent") : 0;
        }
        w->sent += (size_t)n;
        c->body_sent = w->sent > w->request.len - c->body_len ? (int64_t)(w->sent - (w->request.len - c->body_len)) : 0;
    }
    w->state = SG_WIRE_HEAD;
    return 0;
}

/* Whoever does not read any more may still have something to say: that is waited for. */
static void stop_sending(struct sg_net_call *c)
{
    c->wire->deaf = true;
    sg_pipe_set_reader(c->body_pipe, NULL);
    sg_pipe_stop(c->body_pipe);
}

static int send_some(struct sg_net_call *c)
{
    struct sg_wire *w = c->wire;
    const void *data = NULL;
    for (size_t total = 0; !w->deaf && !w->blocked && total < TURN_BYTES;) {
        ssize_t n = sg_pipe_peek(c->body_pipe, &data);
        if (n == 0) {
            (void)shutdown(w->fd, SHUT_WR);
            stop_sending(c);
        } else if (n == -EAGAIN) {
            return 0;
        } else if (n < 0) {
            sg_pipe_error(c->body_pipe, &c->why);
            return c->why.code != SG_OK ? -1 : sg_error_set(&c->why, SG_INTERNAL, "what goes to %s broke off", c->client->shown);
        } else {
            n = put(c, data, (size_t)n);
            if (n < 0) {
                stop_sending(c);
                return 0;
            }
            sg_pipe_consume(c->body_pipe, (size_t)n);
            c->body_sent += n;
            total += (size_t)n;
        }
    }
    w->more = w->more || (!w->deaf && !w->blocked);
    return 0;
}

/* ---- the head of the response ---- */

/* "HTTP/1.1 101 Switching Protocols" */
static int take_status(struct sg_net_call *c, const char *line, size_t len)
{
    int64_t status = 0;
    char digits[4] = "";
    bool ok = len >= 12 && (memcmp(line, "HTTP/1.1 ", 9) == 0 || memcmp(line, "HTTP/1.0 ", 9) == 0);
    if (ok) {
        memcpy(digits, line + 9, 3);
    }
    if (!ok || !sg_parse_int(digits, 100, 599, &status) || (len > 12 && line[12] != ' ')) {
        return no_http(c, "what is no HTTP");
    }
    c->response.status = (int)status;
    return 0;
}

static int take_head(struct sg_net_call *c, const char *text, size_t len)
{
    for (size_t at = 0, n = 0; at < len; at += n + 2) {
        const char *end = memmem(text + at, len - at, "\r\n", 2);
        n = end != NULL ? (size_t)(end - text) - at : len - at;
        if ((at == 0 ? take_status(c, text, n) : sg_call_take_field(c, text + at, n)) < 0) {
            return -1;
        }
    }
    return 0;
}

/* What is left to read of a response that is no upgrade, as far as it can be kept. */
static int64_t body_left(const struct sg_net_call *c)
{
    const char *length = sg_net_header(&c->response, "Content-Length");
    int64_t n = 0;
    bool known = length != NULL && sg_parse_int(length, 0, INT64_MAX, &n);
    return known && n <= (int64_t)c->response_max ? n : 0;
}

static int head_over(struct sg_net_call *c)
{
    struct sg_wire *w = c->wire;
    int status = c->response.status;
    c->headed = true;
    c->streams = status == 101 || status == 200;
    if (c->streams && (sg_net_header(&c->response, "Content-Length") != NULL || sg_net_header(&c->response, "Transfer-Encoding") != NULL)) {
        return no_http(c, "an ordinary response instead of a stream");
    }
    w->state = c->streams ? SG_WIRE_OPEN : SG_WIRE_REFUSED;
    w->left = c->streams ? 0 : body_left(c);
    if (c->head != NULL) {
        c->head(c->arg, &c->response);
    }
    return 0;
}

/* How many of the bytes in `chunk` belong to the head; the rest is the stream's. */
static int read_head(struct sg_net_call *c)
{
    struct sg_wire *w = c->wire;
    size_t before = w->head.len;
    if (sg_buf_add(&w->head, w->chunk + w->at, w->len - w->at) < 0) {
        return sg_call_head_too_large(c);
    }
    const char *end = memmem(w->head.data, w->head.len, "\r\n\r\n", 4);
    if (end == NULL) {
        w->at = w->len;
        return 0;
    }
    size_t len = (size_t)(end - w->head.data) + 4;
    w->at += len - before;
    int rc = take_head(c, w->head.data, len - 4);
    sg_buf_finish(&w->head);
    sg_buf_init(&w->head, SG_NET_HEAD_MAX);
    if (rc < 0) {
        return -1;
    }
    if (c->response.status < 200 && c->response.status != 101) {
        sg_buf_finish(&c->response.head); /* an interim one */
        sg_buf_init(&c->response.head, SG_NET_HEAD_MAX);
        return 0;
    }
    return head_over(c);
}

/* ---- in ---- */

static int keep_body(struct sg_net_call *c)
{
    struct sg_wire *w = c->wire;
    size_t n = w->len - w->at;
    n = n < (size_t)w->left ? n : (size_t)w->left;
    if (sg_buf_add(&c->response.body, w->chunk + w->at, n) < 0) {
        return sg_error_set(&c->why, SG_NO_MEMORY, "no memory for an answer of %s", c->client->shown);
    }
    w->left -= (int64_t)n;
    w->at = w->len;
    return 0;
}

static int nobody_reads(struct sg_net_call *c)
{
    return sg_error_set(&c->why, SG_CANCELLED, "nobody reads what comes any more");
}

static int pass_on(struct sg_net_call *c)
{
    struct sg_wire *w = c->wire;
    ssize_t n = sg_pipe_write(c->response_pipe, w->chunk + w->at, w->len - w->at);
    if (n < 0) {
        return nobody_reads(c);
    }
    w->at += (size_t)n;
    c->bytes_in += (uint64_t)n;
    return 0;
}

static int use_chunk(struct sg_net_call *c)
{
    switch (c->wire->state) {
    case SG_WIRE_HEAD:
        return read_head(c);
    case SG_WIRE_OPEN:
        return pass_on(c);
    default:
        return keep_body(c);
    }
}

static int end_of_input(struct sg_net_call *c)
{
    c->wire->over = true;
    return c->headed ? 0 : broken(c, "it was closed before the response was complete");
}

static int receive_some(struct sg_net_call *c)
{
    struct sg_wire *w = c->wire;
    for (size_t total = 0; total < TURN_BYTES; total += w->len) {
        while (w->at < w->len) {
            size_t before = w->at;
            enum sg_wire_state state = w->state;
            if (use_chunk(c) < 0) {
                return -1;
            }
            if (w->at == before && state == w->state) {
                return 0; /* the pipe is full: whoever reads it calls again */
            }
        }
        if (w->state == SG_WIRE_REFUSED && w->left == 0) {
            w->over = true;
            return 0;
        }
        w->at = w->len = 0;
        CURLcode rc = curl_easy_recv(c->easy, w->chunk, sizeof w->chunk, &w->len);
        if (rc == CURLE_AGAIN) {
            return 0;
        }
        if (rc != CURLE_OK) {
            return c->wire->deaf && c->headed ? end_of_input(c) : broken(c, curl_easy_strerror(rc));
        }
        if (w->len == 0) {
            return end_of_input(c);
        }
    }
    w->more = true;
    return 0;
}

/* ---- turns ---- */

int sg_wire_begin(struct sg_net_call *c)
{
    curl_socket_t fd = CURL_SOCKET_BAD;
    if (curl_easy_getinfo(c->easy, CURLINFO_ACTIVESOCKET, &fd) != CURLE_OK || fd == CURL_SOCKET_BAD) {
        return broken(c, "no connection");
    }
    c->wire->fd = (int)fd;
    c->wire->state = SG_WIRE_REQUEST;
    return sg_wire_step(c);
}

int sg_wire_step(struct sg_net_call *c)
{
    struct sg_wire *w = c->wire;
    w->blocked = w->more = false;
    if (sg_pipe_is_over(c->response_pipe)) {
        return nobody_reads(c);
    }
    if (w->state == SG_WIRE_REQUEST && send_request(c) < 0) {
        return -1;
    }
    if (w->state == SG_WIRE_OPEN && send_some(c) < 0) {
        return -1;
    }
    if (w->state != SG_WIRE_REQUEST && receive_some(c) < 0) {
        return -1;
    }
    if (w->state == SG_WIRE_OPEN && !w->over && !w->blocked && send_some(c) < 0) { /* it may have been opened just now */
        return -1;
    }
    if (!c->headed && c->deadline_ms > 0 && sg_now_ms() >= c->deadline_ms) {
        sg_error_set(&c->why, SG_PROVIDER_TIMEOUT, "%s did not answer in time", c->client->shown);
        return sg_error_reason(&c->why, "deadline");
    }
    return w->over ? 1 : 0;
}

bool sg_wire_wants(const struct sg_net_call *c, struct curl_waitfd *ret)
{
    const struct sg_wire *w = c->wire;
    bool full = w->at < w->len; /* somebody has to read first */
    *ret = (struct curl_waitfd){.fd = w->fd, .events = (short)((full ? 0 : CURL_WAIT_POLLIN) | (w->blocked ? CURL_WAIT_POLLOUT : 0))};
    return ret->events != 0;
}
