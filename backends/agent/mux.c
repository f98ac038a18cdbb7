/* Channels, and how their bytes move. */
#include "backends/agent/mux_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define EVENTS_PER_TURN 64
#define STEPS_PER_TURN 64
#define UNLIMITED UINT64_MAX

/* ---- channels ---- */

void mux_activate(struct sg_mux *m, struct sg_mux_channel *c)
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
    c->manual = false;
    if (!c->is_file) {
        struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = c};
        if (epoll_ctl(m->epoll, EPOLL_CTL_ADD, fd, &e) != 0)
            return -1;
        c->watched = true;
    }
    mux_activate(m, c);
    return 0;
}

void sg_mux_read_from(struct sg_mux_channel *c, uint64_t first)
{
    c->read_at = (off_t)first; /* beyond what there can be: nothing is read there */
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

bool mux_gone(struct sg_mux *m, struct sg_mux_channel *c)
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

void mux_end_out(struct sg_mux *m, struct sg_mux_channel *c)
{
    if (c->out_over)
        return;
    c->out_over = true;
    mux_frame(m, c->number, SG_MUX_END, NULL, 0);
    m->ops->sent(m->arg, c);
}

void mux_deafen(struct sg_mux *m, struct sg_mux_channel *c, int error)
{
    if (c->deaf || c->in_over)
        return;
    c->deaf = true;
    c->error = error;
    if (!c->in_end)
        mux_frame(m, c->number, SG_MUX_STOP, NULL, 0);
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

size_t mux_take_what_fits(struct sg_mux *m, struct sg_mux_channel *c, const char *p, size_t len)
{
    size_t at = 0;
    while (at < len && c->fd >= 0 && c->writable && !c->deaf) {
        ssize_t n = take_some(c, p + at, len - at);
        if (n > 0)
            at += (size_t)n;
        else if (n < 0 && errno == EAGAIN)
            c->writable = false;
        else if (n == 0 || errno != EINTR)
            mux_deafen(m, c, n == 0 ? EIO : errno);
    }
    c->owed += (uint32_t)at;
    return c->deaf ? len : at;
}

static void give_credit(struct sg_mux *m, struct sg_mux_channel *c)
{
    if (c->owed >= SG_MUX_WINDOW / 4 && !c->in_end && !c->deaf) {
        mux_frame(m, c->number, SG_MUX_CREDIT, &c->owed, sizeof c->owed);
        c->window += c->owed;
        c->owed = 0;
    }
}

void mux_pump_in(struct sg_mux *m, struct sg_mux_channel *c)
{
    size_t n = c->len > 0 ? mux_take_what_fits(m, c, c->pending + c->at, c->len) : 0;
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
        mux_end_out(m, c);
        return;
    }
    max = c->credit < max ? (size_t)c->credit : max;
    char *to = max == 0 ? NULL : mux_room(m, SG_MUX_HEADER + max);
    if (to == NULL)
        return;
    ssize_t n = c->is_file ? pread(c->fd, to + SG_MUX_HEADER, max, c->read_at) : read(c->fd, to + SG_MUX_HEADER, max);
    if (n > 0) {
        mux_put_head(to, c->number, SG_MUX_DATA, (size_t)n);
        m->out_len += SG_MUX_HEADER + (size_t)n;
        c->credit -= (uint64_t)n;
        c->left -= c->left != UNLIMITED ? (uint64_t)n : 0;
        c->read_at += n;
    } else if (n < 0 && errno == EAGAIN) {
        c->readable = false;
    } else if (n == 0 || errno != EINTR) {
        mux_end_out(m, c);
    }
}

void sg_mux_say(struct sg_mux *m, struct sg_mux_channel *c, const void *data, size_t len)
{
    if (!c->out_over && c->credit >= len) {
        c->credit -= len;
        mux_frame(m, c->number, SG_MUX_DATA, data, len);
    }
}

void sg_mux_limit(struct sg_mux *m, struct sg_mux_channel *c, uint64_t left)
{
    c->left = left;
    c->readable = true; /* also for the end alone */
    mux_activate(m, c);
}

size_t sg_mux_waiting(const struct sg_mux_channel *c)
{
    int n = 0;
    return c->fd >= 0 && !c->out_over && ioctl(c->fd, FIONREAD, &n) == 0 && n > 0 ? (size_t)n : 0;
}

void mux_let_go(struct sg_mux *m, struct sg_mux_channel *c)
{
    if (c->out_over && (c->deaf || c->in_over) && !c->is_file)
        close_fd(m, c);
}

void sg_mux_abort(struct sg_mux *m, struct sg_mux_channel *c)
{
    mux_deafen(m, c, ECANCELED);
    mux_end_out(m, c);
    mux_let_go(m, c);
    mux_pump_in(m, c);
    (void)mux_gone(m, c);
}

static void take_event(struct sg_mux *m, struct sg_mux_channel *c, uint32_t events)
{
    c->readable = c->readable || (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    c->writable = c->writable || (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0;
    /* Nobody reads on the other side. A pipe that is only read says EPOLLHUP when it ends, which is no news here. */
    if ((events & (EPOLLHUP | EPOLLERR)) != 0)
        mux_deafen(m, c, EPIPE);
    mux_activate(m, c);
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
            mux_activate(m, c);
        else
            m->ops->moved(m->arg, c);
        return;
    }
    mux_pump_in(m, c);
    if (!full)
        pump_out(m, c);
    mux_let_go(m, c);
    if (!mux_gone(m, c) && !c->out_over && c->fd >= 0 && c->readable && (c->credit > 0 || c->left == 0))
        mux_activate(m, c);
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
    mux_activate(m, c);
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
        mux_deafen(m, c, error);
    mux_activate(m, c);
    mux_pump_in(m, c);
    (void)mux_gone(m, c);
}

size_t sg_mux_allowed(struct sg_mux *m, struct sg_mux_channel *c)
{
    return c->out_over || m->out_len >= SG_MUX_OUT_HIGH ? 0 : (size_t)c->credit;
}

void sg_mux_rouse(struct sg_mux *m, struct sg_mux_channel *c)
{
    mux_activate(m, c);
}

void sg_mux_end(struct sg_mux *m, struct sg_mux_channel *c)
{
    mux_end_out(m, c);
    mux_let_go(m, c);
    (void)mux_gone(m, c);
}

bool sg_mux_ended(const struct sg_mux_channel *c)
{
    return c->in_end;
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
