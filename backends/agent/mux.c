#include "backends/agent/mux.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/agent/protocol.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#include <uthash.h>
#include <utlist.h>
#pragma GCC diagnostic pop

#define EVENTS_PER_TURN 64
#define STEPS_PER_TURN 64
#define PAYLOAD_MAX (4U + 4U * SG_MUX_NAMED_MAX + SG_AGENT_PACKET_MAX)
#define UNLIMITED UINT64_MAX

struct sg_mux_channel {
    uint32_t number;
    enum sg_mux_direction way;
    void *owner;
    int fd; /* -1: none yet, or none any more */
    bool is_file, watched, manual;
    bool readable, writable;

    /* here to there */
    bool out_over; /* END has gone out */
    bool stopped;  /* ... as the other side takes no more */
    uint64_t credit, left;
    off_t read_at;

    /* there to here */
    bool in_end;  /* END has come */
    bool in_over; /* ... and all before it has been taken */
    bool deaf;    /* STOP has gone out: what comes is thrown away */
    int error;
    uint32_t window; /* what may still come */
    uint32_t owed;   /* taken, and not told yet */
    char *pending;   /* SG_MUX_WINDOW, while there is something in it */
    size_t at, len;
    size_t grabbed; /* of what has been taken away and not been taken yet */
    off_t write_at;

    bool active; /* in the list of those that may have something to do */
    struct sg_mux_channel *prev, *next;
    UT_hash_handle hh;
};

struct sg_mux {
    const struct sg_mux_ops *ops;
    void *arg;
    int epoll;
    bool broken;
    struct sg_mux_channel *channels, *active;
    unsigned n;
    char *out;
    size_t out_at, out_len, out_cap;
    unsigned char head[SG_MUX_HEADER + PAYLOAD_MAX]; /* a frame that is not complete yet */
    size_t have;
};

/* ---- what goes out ---- */

/* Room for n bytes at the end; NULL, and it is broken. */
static char *room(struct sg_mux *m, size_t n)
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

static void put_head(char *to, uint32_t channel, enum sg_mux_type type, size_t len)
{
    const uint32_t head[3] = {channel, (uint32_t)type, (uint32_t)len};
    memcpy(to, head, sizeof head);
}

static void frame(struct sg_mux *m, uint32_t channel, enum sg_mux_type type, const void *data, size_t len)
{
    char *to = room(m, SG_MUX_HEADER + len);
    if (to == NULL)
        return;
    put_head(to, channel, type, len);
    if (len > 0)
        memcpy(to + SG_MUX_HEADER, data, len);
    m->out_len += SG_MUX_HEADER + len;
}

void sg_mux_send_packet(struct sg_mux *m, const uint32_t *channels, unsigned n, const void *data, size_t len)
{
    size_t names = channels != NULL ? 4 + 4 * (size_t)n : 0;
    char *to = room(m, SG_MUX_HEADER + names + len);
    if (to == NULL)
        return;
    put_head(to, 0, SG_MUX_PACKET, names + len);
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
    frame(m, number, SG_MUX_OPEN, NULL, 0);
}

void sg_mux_send_oom(struct sg_mux *m, uint64_t id)
{
    frame(m, 0, SG_MUX_OOM, &id, sizeof id);
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

/* ---- channels ---- */

static void activate(struct sg_mux *m, struct sg_mux_channel *c)
{
    if (!c->active) {
        c->active = true;
        DL_APPEND(m->active, c);
    }
}

static void deactivate(struct sg_mux *m, struct sg_mux_channel *c)
{
    if (c->active) {
        c->active = false;
        DL_DELETE(m->active, c);
    }
}

struct sg_mux_channel *sg_mux_find(const struct sg_mux *m, uint32_t number)
{
    struct sg_mux_channel *c = NULL;
    HASH_FIND(hh, m->channels, &number, sizeof number, c);
    return c;
}

struct sg_mux_channel *sg_mux_add(struct sg_mux *m, uint32_t number, enum sg_mux_direction way, void *owner)
{
    struct sg_mux_channel *c = number == 0 || m->n >= SG_MUX_CHANNELS_MAX || sg_mux_find(m, number) != NULL ? NULL : calloc(1, sizeof *c);
    if (c == NULL)
        return NULL;
    *c = (struct sg_mux_channel){.number = number, .way = way, .owner = owner, .fd = -1, .credit = SG_MUX_WINDOW, .window = SG_MUX_WINDOW, .left = UNLIMITED};
    c->out_over = (way & SG_MUX_OUT) == 0;
    c->in_end = c->in_over = (way & SG_MUX_IN) == 0;
    HASH_ADD(hh, m->channels, number, sizeof c->number, c);
    m->n++;
    return c;
}

void *sg_mux_owner(const struct sg_mux_channel *c)
{
    return c->owner;
}

void sg_mux_set_owner(struct sg_mux_channel *c, void *owner)
{
    c->owner = owner;
}

int sg_mux_attach(struct sg_mux *m, struct sg_mux_channel *c, int fd)
{
    struct stat st;
    c->fd = fd;
    c->is_file = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    c->readable = c->writable = true;
    if (!c->is_file) {
        struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = c};
        if (epoll_ctl(m->epoll, EPOLL_CTL_ADD, fd, &e) != 0)
            return -1;
        c->watched = true;
    }
    activate(m, c);
    return 0;
}

enum sg_mux_direction sg_mux_way(const struct sg_mux_channel *c)
{
    return c->way;
}

bool sg_mux_stopped(const struct sg_mux_channel *c)
{
    return c->stopped;
}

int sg_mux_take(struct sg_mux *m, struct sg_mux_channel *c)
{
    int fd = c->fd;
    struct epoll_event e = {0};
    if (c->watched)
        (void)epoll_ctl(m->epoll, EPOLL_CTL_DEL, fd, &e);
    c->watched = false;
    c->fd = -1;
    return fd;
}

static void close_fd(struct sg_mux *m, struct sg_mux_channel *c)
{
    int fd = sg_mux_take(m, c);
    if (fd >= 0)
        close(fd);
}

/* True: it was over, and is gone. */
static bool gone(struct sg_mux *m, struct sg_mux_channel *c)
{
    if (!c->in_over || !c->out_over)
        return false;
    m->ops->gone(m->arg, c);
    deactivate(m, c);
    HASH_DEL(m->channels, c);
    m->n--;
    close_fd(m, c);
    free(c->pending);
    free(c);
    return true;
}

static void end_out(struct sg_mux *m, struct sg_mux_channel *c)
{
    if (c->out_over)
        return;
    c->out_over = true;
    frame(m, c->number, SG_MUX_END, NULL, 0);
    m->ops->sent(m->arg, c);
}

/* Nothing of what comes can be taken any more. */
static void deafen(struct sg_mux *m, struct sg_mux_channel *c, int error)
{
    if (c->deaf || c->in_over)
        return;
    c->deaf = true;
    c->error = error;
    if (!c->in_end)
        frame(m, c->number, SG_MUX_STOP, NULL, 0);
}

static void end_in(struct sg_mux *m, struct sg_mux_channel *c)
{
    c->in_over = true;
    if (c->fd >= 0 && !c->is_file && !c->out_over)
        (void)shutdown(c->fd, SHUT_WR);
    else if (c->fd >= 0 && !c->is_file)
        close_fd(m, c);
    m->ops->received(m->arg, c, c->error);
}

/* ---- moving bytes ---- */

static ssize_t take_some(struct sg_mux_channel *c, const char *p, size_t n)
{
    if (!c->is_file)
        return write(c->fd, p, n);
    ssize_t done = pwrite(c->fd, p, n, c->write_at);
    c->write_at += done > 0 ? done : 0;
    return done;
}

/* How many of the bytes have been taken; of one that is deaf, all. */
static size_t take_what_fits(struct sg_mux *m, struct sg_mux_channel *c, const char *p, size_t len)
{
    size_t at = 0;
    while (at < len && c->fd >= 0 && c->writable && !c->deaf) {
        ssize_t n = take_some(c, p + at, len - at);
        if (n > 0)
            at += (size_t)n;
        else if (n < 0 && errno == EAGAIN)
            c->writable = false;
        else if (n == 0 || errno != EINTR)
            deafen(m, c, n == 0 ? EIO : errno);
    }
    c->owed += (uint32_t)at;
    return c->deaf ? len : at;
}

static void give_credit(struct sg_mux *m, struct sg_mux_channel *c)
{
    if (c->owed >= SG_MUX_WINDOW / 4 && !c->in_end && !c->deaf) {
        frame(m, c->number, SG_MUX_CREDIT, &c->owed, sizeof c->owed);
        c->window += c->owed;
        c->owed = 0;
    }
}

static void pump_in(struct sg_mux *m, struct sg_mux_channel *c)
{
    size_t n = c->len > 0 ? take_what_fits(m, c, c->pending + c->at, c->len) : 0;
    c->at += n;
    c->len -= n < c->len ? n : c->len;
    if (c->len == 0) {
        c->at = 0;
        free(c->pending);
        c->pending = NULL;
    }
    give_credit(m, c);
    if (c->in_end && !c->in_over && c->len == 0 && c->grabbed == 0 && (c->deaf || c->fd >= 0 || c->manual))
        end_in(m, c);
}

/* At most one frame. */
static void pump_out(struct sg_mux *m, struct sg_mux_channel *c)
{
    if (c->out_over || c->fd < 0 || !c->readable)
        return;
    size_t max = c->left < SG_MUX_DATA_MAX ? (size_t)c->left : SG_MUX_DATA_MAX;
    if (max == 0) {
        end_out(m, c);
        return;
    }
    max = c->credit < max ? (size_t)c->credit : max;
    char *to = max == 0 ? NULL : room(m, SG_MUX_HEADER + max);
    if (to == NULL)
        return;
    ssize_t n = c->is_file ? pread(c->fd, to + SG_MUX_HEADER, max, c->read_at) : read(c->fd, to + SG_MUX_HEADER, max);
    if (n > 0) {
        put_head(to, c->number, SG_MUX_DATA, (size_t)n);
        m->out_len += SG_MUX_HEADER + (size_t)n;
        c->credit -= (uint64_t)n;
        c->left -= c->left != UNLIMITED ? (uint64_t)n : 0;
        c->read_at += n;
    } else if (n < 0 && errno == EAGAIN) {
        c->readable = false;
    } else if (n == 0 || errno != EINTR) {
        end_out(m, c);
    }
}

void sg_mux_say(struct sg_mux *m, struct sg_mux_channel *c, const void *data, size_t len)
{
    if (!c->out_over && c->credit >= len) {
        c->credit -= len;
        frame(m, c->number, SG_MUX_DATA, data, len);
    }
}

void sg_mux_limit(struct sg_mux *m, struct sg_mux_channel *c, uint64_t left)
{
    c->left = left;
    c->readable = true; /* also for the end alone */
    activate(m, c);
}

size_t sg_mux_waiting(const struct sg_mux_channel *c)
{
    int n = 0;
    return c->fd >= 0 && !c->out_over && ioctl(c->fd, FIONREAD, &n) == 0 && n > 0 ? (size_t)n : 0;
}

/* One direction may have gone with its descriptor while the other is still to be closed by the other side. */
static void let_go(struct sg_mux *m, struct sg_mux_channel *c)
{
    if (c->out_over && (c->deaf || c->in_over) && !c->is_file)
        close_fd(m, c);
}

void sg_mux_abort(struct sg_mux *m, struct sg_mux_channel *c)
{
    deafen(m, c, ECANCELED);
    end_out(m, c);
    let_go(m, c);
    pump_in(m, c);
    (void)gone(m, c);
}

static void take_event(struct sg_mux *m, struct sg_mux_channel *c, uint32_t events)
{
    c->readable = c->readable || (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    c->writable = c->writable || (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0;
    /* Nobody reads on the other side. A pipe that is only read says EPOLLHUP when it ends, which is no news here. */
    if ((events & (EPOLLHUP | EPOLLERR)) != 0)
        deafen(m, c, EPIPE);
    activate(m, c);
}

static void hear(struct sg_mux *m)
{
    struct epoll_event events[EVENTS_PER_TURN];
    int n = epoll_wait(m->epoll, events, EVENTS_PER_TURN, 0);
    for (int i = 0; i < n; i++)
        take_event(m, events[i].data.ptr, events[i].events);
}

/* One step of one channel, which goes to the end of the list if there is more. */
static void step(struct sg_mux *m, struct sg_mux_channel *c)
{
    bool full = m->out_len >= SG_MUX_OUT_HIGH;
    deactivate(m, c);
    if (c->manual) {
        if (full && !c->out_over)
            activate(m, c);
        else
            m->ops->moved(m->arg, c);
        return;
    }
    pump_in(m, c);
    if (!full)
        pump_out(m, c);
    let_go(m, c);
    if (!gone(m, c) && !c->out_over && c->fd >= 0 && c->readable && (c->credit > 0 || c->left == 0))
        activate(m, c);
}

bool sg_mux_turn(struct sg_mux *m)
{
    hear(m);
    for (int i = 0; i < STEPS_PER_TURN && m->active != NULL && !m->broken; i++)
        step(m, m->active);
    return m->active != NULL;
}

/* ---- moved by hand ---- */

void sg_mux_manual(struct sg_mux *m, struct sg_mux_channel *c)
{
    c->manual = true;
    activate(m, c);
}

char *sg_mux_grab(struct sg_mux *m, struct sg_mux_channel *c, size_t *ret_len)
{
    char *p = c->pending;
    *ret_len = c->len;
    c->grabbed += c->len;
    c->owed += (uint32_t)c->len;
    c->pending = NULL;
    c->len = c->at = 0;
    give_credit(m, c);
    return p;
}

void sg_mux_took(struct sg_mux *m, struct sg_mux_channel *c, size_t len, int error)
{
    c->grabbed -= len;
    if (error != 0)
        deafen(m, c, error);
    activate(m, c);
    pump_in(m, c);
    (void)gone(m, c);
}

size_t sg_mux_allowed(struct sg_mux *m, struct sg_mux_channel *c)
{
    return c->out_over || m->out_len >= SG_MUX_OUT_HIGH ? 0 : (size_t)c->credit;
}

void sg_mux_rouse(struct sg_mux *m, struct sg_mux_channel *c)
{
    activate(m, c);
}

void sg_mux_end(struct sg_mux *m, struct sg_mux_channel *c)
{
    end_out(m, c);
    let_go(m, c);
    (void)gone(m, c);
}

bool sg_mux_ended(const struct sg_mux_channel *c)
{
    return c->in_end;
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
        activate(m, c);
    size_t n = c->len == 0 ? take_what_fits(m, c, data, len) : 0;
    if (n < len && keep(c, data + n, len - n) < 0)
        return -1;
    pump_in(m, c);
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
        activate(m, c);
        return n == 0 || c->credit > SG_MUX_WINDOW ? -1 : 0;
    }
    if (type == SG_MUX_END && c->in_end)
        return -1;
    if (type == SG_MUX_END) {
        c->in_end = true;
    } else {
        c->stopped = !c->out_over;
        end_out(m, c);
        if (c->fd < 0 && !c->manual) /* nobody waits for what was to be opened */
            deafen(m, c, ECANCELED);
    }
    pump_in(m, c);
    let_go(m, c);
    (void)gone(m, c);
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
        if (head[2] > PAYLOAD_MAX)
            return -1;
        if (m->have < SG_MUX_HEADER + head[2])
            continue;
        m->have = 0;
        if (take_frame(m, head, (const char *)m->head + SG_MUX_HEADER) < 0)
            return -1;
    }
    return m->broken ? -1 : 0;
}

/* ---- life ---- */

struct sg_mux *sg_mux_new(const struct sg_mux_ops *ops, void *arg)
{
    struct sg_mux *m = calloc(1, sizeof *m);
    if (m == NULL)
        return NULL;
    m->ops = ops;
    m->arg = arg;
    m->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (m->epoll < 0) {
        free(m);
        return NULL;
    }
    return m;
}

void sg_mux_free(struct sg_mux *m)
{
    if (m == NULL)
        return;
    struct sg_mux_channel *c, *next;
    HASH_ITER(hh, m->channels, c, next)
    {
        HASH_DEL(m->channels, c);
        close_fd(m, c);
        free(c->pending);
        free(c);
    }
    close(m->epoll);
    free(m->out);
    free(m);
}

int sg_mux_fd(const struct sg_mux *m)
{
    return m->epoll;
}
