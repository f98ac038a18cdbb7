/* Frames: what goes out, and what comes in. */
#include "backends/agent/mux_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- what goes out ---- */

char *mux_room(struct sg_mux *m, size_t n)
{
    if (m->out_at > 0 && m->out_at + m->out_len + n > m->out_cap) {
        memmove(m->out, m->out + m->out_at, m->out_len);
        m->out_at = 0;
    }
    if (m->out_len + n > m->out_cap) {
        size_t cap = m->out_cap > 0 ? m->out_cap : 65536;
        while (cap < m->out_len + n)
            cap *= 2;
        char *p = cap <= SG_MUX_OUT_MAX ? realloc(m->out, cap) : NULL;
        if (p == NULL) {
            m->broken = true;
            return NULL;
        }
        m->out = p;
        m->out_cap = cap;
    }
    return m->out + m->out_at + m->out_len;
}

void mux_put_head(char *to, uint32_t channel, enum sg_mux_type type, size_t len)
{
    const uint32_t head[3] = {channel, (uint32_t)type, (uint32_t)len};
    memcpy(to, head, sizeof head);
}

void mux_frame(struct sg_mux *m, uint32_t channel, enum sg_mux_type type, const void *data, size_t len)
{
    char *to = mux_room(m, SG_MUX_HEADER + len);
    if (to == NULL)
        return;
    mux_put_head(to, channel, type, len);
    if (len > 0)
        memcpy(to + SG_MUX_HEADER, data, len);
    m->out_len += SG_MUX_HEADER + len;
}

void sg_mux_send_packet(struct sg_mux *m, const uint32_t *channels, unsigned n, const void *data, size_t len)
{
    size_t names = channels != NULL ? 4 + 4 * (size_t)n : 0;
    char *to = mux_room(m, SG_MUX_HEADER + names + len);
    if (to == NULL)
        return;
    mux_put_head(to, 0, SG_MUX_PACKET, names + len);
    to += SG_MUX_HEADER;
    if (channels != NULL) {
        const uint32_t count = n;
        memcpy(to, &count, 4);
        memcpy(to + 4, channels, 4 * (size_t)n);
    }
    memcpy(to + names, data, len);
    m->out_len += SG_MUX_HEADER + names + len;
}

void sg_mux_send_open(struct sg_mux *m, uint32_t number)
{
    mux_frame(m, number, SG_MUX_OPEN, NULL, 0);
}

void sg_mux_send_oom(struct sg_mux *m, uint64_t id)
{
    mux_frame(m, 0, SG_MUX_OOM, &id, sizeof id);
}

const char *sg_mux_out(const struct sg_mux *m, size_t *ret_len)
{
    *ret_len = m->out_len;
    return m->out + m->out_at;
}

void sg_mux_went(struct sg_mux *m, size_t n)
{
    m->out_at += n;
    m->out_len -= n;
    if (m->out_len == 0) {
        m->out_at = 0;
        if (m->out_cap > 4 * SG_MUX_OUT_HIGH) {
            free(m->out);
            m->out = NULL;
            m->out_cap = 0;
        }
    }
}

bool sg_mux_broken(const struct sg_mux *m)
{
    return m->broken;
}

/* ---- what comes in ---- */

static int keep(struct sg_mux_channel *c, const char *data, size_t len)
{
    if (c->pending == NULL)
        c->pending = malloc(SG_MUX_WINDOW);
    if (c->pending == NULL)
        return -1;
    if (c->at > 0 && c->at + c->len + len > SG_MUX_WINDOW) {
        memmove(c->pending, c->pending + c->at, c->len);
        c->at = 0;
    }
    memcpy(c->pending + c->at + c->len, data, len);
    c->len += len;
    return 0;
}

static int take_data(struct sg_mux *m, struct sg_mux_channel *c, const char *data, size_t len)
{
    if (len == 0 || len > SG_MUX_DATA_MAX || c->in_end || len > c->window)
        return -1;
    c->window -= (uint32_t)len;
    if (c->deaf)
        return 0;
    if (c->manual)
        mux_activate(m, c);
    size_t n = c->len == 0 ? mux_take_what_fits(m, c, data, len) : 0;
    if (n < len && keep(c, data + n, len - n) < 0)
        return -1;
    mux_pump_in(m, c);
    return 0;
}

/* What may arrive for a channel that is gone here is only what was sent before the other side knew. */
static int take_control(struct sg_mux *m, struct sg_mux_channel *c, uint32_t type, const void *data, size_t len)
{
    uint32_t n = 0;
    if (len != (type == SG_MUX_CREDIT ? sizeof n : 0) || (c == NULL && type == SG_MUX_END))
        return -1;
    if (c == NULL)
        return 0;
    if (type == SG_MUX_CREDIT) {
        memcpy(&n, data, sizeof n);
        c->credit += n;
        mux_activate(m, c);
        return n == 0 || c->credit > SG_MUX_WINDOW ? -1 : 0;
    }
    if (type == SG_MUX_END && c->in_end)
        return -1;
    if (type == SG_MUX_END) {
        c->in_end = true;
    } else {
        c->stopped = !c->out_over;
        mux_end_out(m, c);
        if (c->fd < 0 && !c->manual) /* nobody waits for what was to be opened */
            mux_deafen(m, c, ECANCELED);
    }
    mux_pump_in(m, c);
    mux_let_go(m, c);
    (void)mux_gone(m, c);
    return 0;
}

static int take_packet(struct sg_mux *m, const char *data, size_t len)
{
    uint32_t n = 0, names[SG_MUX_NAMED_MAX];
    if (m->ops->open == NULL)
        return m->ops->packet(m->arg, NULL, 0, data, len);
    if (len < sizeof n)
        return -1;
    memcpy(&n, data, sizeof n);
    if (n > SG_MUX_NAMED_MAX || len - sizeof n < n * sizeof names[0])
        return -1;
    memcpy(names, data + sizeof n, n * sizeof names[0]);
    size_t used = (n + 1) * sizeof n;
    return m->ops->packet(m->arg, names, n, data + used, len - used);
}

static int take_oom(struct sg_mux *m, uint32_t number, const char *data, size_t len)
{
    uint64_t id;
    if (number != 0 || len != sizeof id || m->ops->oom == NULL)
        return -1;
    memcpy(&id, data, sizeof id);
    return m->ops->oom(m->arg, id);
}

static int take_frame(struct sg_mux *m, const uint32_t head[3], const char *data)
{
    size_t len = head[2];
    struct sg_mux_channel *c = sg_mux_find(m, head[0]);
    switch (head[1]) {
    case SG_MUX_PACKET:
        return head[0] == 0 ? take_packet(m, data, len) : -1;
    case SG_MUX_OPEN:
        return len == 0 && c == NULL && m->ops->open != NULL ? m->ops->open(m->arg, head[0]) : -1;
    case SG_MUX_DATA:
        return c != NULL ? take_data(m, c, data, len) : -1;
    case SG_MUX_END:
    case SG_MUX_STOP:
    case SG_MUX_CREDIT:
        return head[0] != 0 ? take_control(m, c, head[1], data, len) : -1;
    case SG_MUX_OOM:
        return take_oom(m, head[0], data, len);
    default:
        return -1;
    }
}

int sg_mux_feed(struct sg_mux *m, const void *data, size_t len)
{
    const char *p = data;
    uint32_t head[3];
    while (len > 0) {
        size_t want = SG_MUX_HEADER;
        if (m->have >= SG_MUX_HEADER) {
            memcpy(head, m->head, sizeof head);
            want += head[2];
        }
        size_t n = want - m->have < len ? want - m->have : len;
        memcpy(m->head + m->have, p, n);
        m->have += n;
        p += n;
        len -= n;
        if (m->have < SG_MUX_HEADER)
            continue;
        memcpy(head, m->head, sizeof head);
        if (head[2] > MUX_PAYLOAD_MAX)
            return -1;
        if (m->have < SG_MUX_HEADER + head[2])
            continue;
        m->have = 0;
        if (take_frame(m, head, (const char *)m->head + SG_MUX_HEADER) < 0)
            return -1;
    }
    return m->broken ? -1 : 0;
}
