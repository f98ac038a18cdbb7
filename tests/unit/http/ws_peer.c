#include "ws_peer.h"

#include <errno.h>
#include <string.h>

static ssize_t peer_recv(void *arg, void *data, size_t max)
{
    struct ws_peer *p = arg;
    size_t n = p->in_len - p->in_at;

    if (n == 0)
        return p->eof ? 0 : -EAGAIN;
    n = n < max ? n : max;
    n = p->step > 0 && n > p->step ? p->step : n;
    memcpy(data, p->in + p->in_at, n);
    p->in_at += n;
    return (ssize_t)n;
}

static ssize_t peer_send(void *arg, const void *data, size_t len)
{
    struct ws_peer *p = arg;
    size_t n = len < p->room ? len : p->room;

    if (n == 0)
        return -EAGAIN;
    p->room -= n;
    return sg_buf_add(&p->out, data, n) < 0 ? -EIO : (ssize_t)n;
}

static void peer_binary(void *arg, const void *data, size_t len)
{
    struct ws_peer *p = arg;

    (void)sg_buf_add(&p->binary, data, len);
}

static void peer_text(void *arg, const char *text, size_t len)
{
    struct ws_peer *p = arg;

    p->n_texts++;
    (void)sg_buf_add(&p->texts, text, len);
    (void)sg_buf_add(&p->texts, "\n", 1);
}

void ws_peer_start(struct ws_peer *p)
{
    static const struct sg_ws_ops ops = {peer_recv, peer_send, peer_binary, peer_text};

    p->room = SIZE_MAX;
    sg_buf_init(&p->out, 64 << 20);
    sg_buf_init(&p->binary, 64 << 20);
    sg_buf_init(&p->texts, 64 << 20);
    p->ws = sg_ws_new(&ops, p);
}

void ws_peer_finish(struct ws_peer *p)
{
    sg_ws_free(p->ws);
    sg_buf_finish(&p->out);
    sg_buf_finish(&p->binary);
    sg_buf_finish(&p->texts);
}

void ws_frame(struct sg_buf *b, unsigned first, const void *data, size_t len)
{
    static const unsigned char mask[4] = {0x12, 0x34, 0x56, 0x78};
    unsigned char head[14] = {(unsigned char)first};
    size_t n = 2;

    if (len < 126) {
        head[1] = (unsigned char)(0x80 | len);
    } else {
        size_t bytes = len < 65536 ? 2 : 8;
        head[1] = bytes == 2 ? 0x80 | 126 : 0x80 | 127;
        for (size_t i = 0; i < bytes; i++)
            head[n++] = (unsigned char)(len >> 8 * (bytes - 1 - i));
    }
    memcpy(head + n, mask, sizeof mask);
    (void)sg_buf_add(b, head, n + sizeof mask);
    for (size_t i = 0; i < len; i++) {
        unsigned char c = ((const unsigned char *)data)[i] ^ mask[i % 4];
        (void)sg_buf_add(b, &c, 1);
    }
}

int ws_peer_run(struct ws_peer *p)
{
    size_t before;

    do {
        before = p->in_at + p->out.len;
        if (sg_ws_read(p->ws) < 0 || sg_ws_write(p->ws) < 0)
            return -1;
    } while (p->in_at + p->out.len != before);
    return 0;
}

int ws_peer_close_code(const struct ws_peer *p)
{
    const unsigned char *out = (const unsigned char *)p->out.data;

    for (size_t at = 0; at + 2 <= p->out.len;) {
        size_t len = out[at + 1];
        size_t head = 2;
        if (len >= 126) {
            size_t bytes = len == 126 ? 2 : 8;
            len = 0;
            for (size_t i = 0; i < bytes; i++)
                len = len << 8 | out[at + 2 + i];
            head += bytes;
        }
        if (out[at] == 0x88)
            return len >= 2 ? out[at + 2] << 8 | out[at + 3] : 0;
        at += head + len;
    }
    return -1;
}
