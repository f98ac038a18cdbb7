#include "http/ws.h"

#include <errno.h>
#include <stdio.h>
#include <wslay/wslay.h>

/* Messages in line above which nothing is read: answers to pings and the like, whose number the peer decides. */
#define LINE_MAX 16U

/* Of a close: what fits a control frame besides the code. */
#define REASON_MAX 123U

struct sg_ws {
    wslay_event_context_ptr ctx;
    const struct sg_ws_ops *ops;
    void *arg;
    uint8_t opcode;  /* of the frame being read */
    uint8_t message; /* of the message that its fragments belong to */
    bool gone;    /* the transport is */
    bool deaf;    /* it broke the framing */
    bool closing;
    bool close_waits; /* until everything else is sent: in wslay a close overtakes messages */
    uint16_t code;
    char reason[REASON_MAX + 1];
    size_t text_len;
    char text[SG_WS_TEXT_MAX];
};

/* ---- wslay's callbacks ---- */

static ssize_t on_recv(wslay_event_context_ptr ctx, uint8_t *buf, size_t len, int flags, void *arg)
{
    struct sg_ws *w = arg;

    (void)flags;
    ssize_t n = sg_ws_is_full(w) ? -EAGAIN : w->ops->recv(w->arg, buf, len);
    if (n > 0)
        return n;
    w->gone = n != -EAGAIN;
    wslay_event_set_error(ctx, w->gone ? WSLAY_ERR_CALLBACK_FAILURE : WSLAY_ERR_WOULDBLOCK);
    return -1;
}

static ssize_t on_send(wslay_event_context_ptr ctx, const uint8_t *data, size_t len, int flags, void *arg)
{
    struct sg_ws *w = arg;

    (void)flags;
    ssize_t n = w->ops->send(w->arg, data, len);
    if (n > 0)
        return n;
    wslay_event_set_error(ctx, n == -EAGAIN ? WSLAY_ERR_WOULDBLOCK : WSLAY_ERR_CALLBACK_FAILURE);
    return -1;
}

static void on_frame(wslay_event_context_ptr ctx, const struct wslay_event_on_frame_recv_start_arg *f, void *arg)
{
    struct sg_ws *w = arg;

    (void)ctx;
    w->opcode = f->opcode;
    if (f->opcode == WSLAY_TEXT_FRAME || f->opcode == WSLAY_BINARY_FRAME) {
        w->message = f->opcode;
        w->text_len = 0;
    }
}

/* Bytes of the frame, unmasked; those of a text are known to be good so far. */
static void on_chunk(wslay_event_context_ptr ctx, const struct wslay_event_on_frame_recv_chunk_arg *c, void *arg)
{
    struct sg_ws *w = arg;

    (void)ctx;
    if (wslay_is_ctrl_frame(w->opcode) || c->data_length == 0 || w->closing)
        return;
    if (w->message == WSLAY_BINARY_FRAME) {
        w->ops->binary(w->arg, c->data, c->data_length);
        return;
    }
    if (c->data_length > sizeof w->text - w->text_len) {
        sg_ws_close(w, SG_WS_TOO_BIG, "text messages have at most 4096 bytes");
        wslay_event_shutdown_read(w->ctx);
        return;
    }
    memcpy(w->text + w->text_len, c->data, c->data_length);
    w->text_len += c->data_length;
}

static void on_message(wslay_event_context_ptr ctx, const struct wslay_event_on_msg_recv_arg *m, void *arg)
{
    struct sg_ws *w = arg;

    (void)ctx;
    if (m->opcode == WSLAY_TEXT_FRAME && !w->closing)
        w->ops->text(w->arg, w->text, w->text_len);
}

/* ---- life ---- */

static wslay_event_context_ptr context_new(struct sg_ws *w)
{
    static const struct wslay_event_callbacks callbacks = {
        .recv_callback = on_recv,
        .send_callback = on_send,
        .on_frame_recv_start_callback = on_frame,
        .on_frame_recv_chunk_callback = on_chunk,
        .on_msg_recv_callback = on_message,
    };
    wslay_event_context_ptr ctx;

    if (wslay_event_context_server_init(&ctx, &callbacks, w) != 0)
        return NULL;
    wslay_event_config_set_no_buffering(ctx, 1);
    wslay_event_config_set_max_recv_msg_length(ctx, SG_WS_FRAME_MAX);
    return ctx;
}

struct sg_ws *sg_ws_new(const struct sg_ws_ops *ops, void *arg)
{
    struct sg_ws *w = sg_xcalloc(1, sizeof *w);

    w->ops = ops;
    w->arg = arg;
    w->ctx = context_new(w);
    if (w->ctx)
        return w;
    free(w);
    return NULL;
}

struct sg_ws *sg_ws_free(struct sg_ws *w)
{
    if (w) {
        wslay_event_context_free(w->ctx);
        free(w);
    }
    return NULL;
}

/* ---- moving ---- */

/* For a malformed frame header wslay closes without a code. A new context says which, unless there was something in line: then a frame may
 * be half sent. */
static void misframed(struct sg_ws *w, bool was_sending)
{
    wslay_event_context_ptr fresh = was_sending ? NULL : context_new(w);

    w->deaf = true;
    if (fresh) {
        wslay_event_context_free(w->ctx);
        w->ctx = fresh;
    }
    sg_ws_close(w, SG_WS_PROTOCOL_ERROR, "");
}

int sg_ws_read(struct sg_ws *w)
{
    bool was_sending = wslay_event_want_write(w->ctx) != 0;

    if (w->deaf || wslay_event_recv(w->ctx) == 0)
        return 0;
    if (w->gone)
        return -1;
    misframed(w, was_sending);
    return 0;
}

int sg_ws_write(struct sg_ws *w)
{
    if (wslay_event_send(w->ctx) != 0)
        return -1;
    if (w->close_waits && !wslay_event_want_write(w->ctx)) {
        w->close_waits = false;
        (void)wslay_event_queue_close(w->ctx, w->code, (const uint8_t *)w->reason, strlen(w->reason)); /* refused if the peer was first */
        if (wslay_event_send(w->ctx) != 0)
            return -1;
    }
    return sg_ws_is_sending(w) ? 1 : 0;
}

static int queue(struct sg_ws *w, uint8_t opcode, const void *data, size_t len)
{
    struct wslay_event_msg m = {.opcode = opcode, .msg = data, .msg_length = len};

    return w->closing || wslay_event_queue_msg(w->ctx, &m) != 0 ? -1 : 0;
}

int sg_ws_send_binary(struct sg_ws *w, const void *data, size_t len)
{
    return queue(w, WSLAY_BINARY_FRAME, data, len);
}

int sg_ws_send_text(struct sg_ws *w, const char *text, size_t len)
{
    return queue(w, WSLAY_TEXT_FRAME, text, len);
}

int sg_ws_ping(struct sg_ws *w)
{
    return queue(w, WSLAY_PING, NULL, 0);
}

void sg_ws_close(struct sg_ws *w, uint16_t code, const char *reason)
{
    if (w->closing)
        return;
    w->closing = w->close_waits = true;
    w->code = code;
    snprintf(w->reason, sizeof w->reason, "%s", reason);
}

bool sg_ws_is_sending(const struct sg_ws *w)
{
    return w->close_waits || wslay_event_want_write(w->ctx) != 0;
}

bool sg_ws_is_full(const struct sg_ws *w)
{
    return wslay_event_get_queued_msg_count(w->ctx) > LINE_MAX;
}

bool sg_ws_is_deaf(const struct sg_ws *w)
{
    return w->deaf || wslay_event_want_read(w->ctx) == 0;
}

bool sg_ws_is_closed_by_peer(const struct sg_ws *w)
{
    return wslay_event_get_close_received(w->ctx) != 0;
}

bool sg_ws_is_over(const struct sg_ws *w)
{
    return sg_ws_is_deaf(w) && !sg_ws_is_sending(w);
}
