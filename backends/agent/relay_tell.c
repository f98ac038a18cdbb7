/* What the agent says, with channels in the place of descriptors, and what becomes of those. */
#include "backends/agent/relay_priv.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FILE_MAX ((off_t)64 << 30) /* more than this is hardly more than holes, and no server has room for it */
#define GRACE_MS 250   /* for descendants that hold the output of a command that has ended */
#define RESTS_MAX 256U /* outputs of ended commands that are still read, and thrown away, */
#define REST_BYTES 65536U /* ... so much in one go, */
#define REST_PAUSE_MS 20  /* ... this far apart */

int64_t relay_now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_BOOTTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int64_t relay_oom(const struct relay *r)
{
    char text[1024];
    ssize_t n = r->oom < 0 ? -1 : pread(r->oom, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    const char *at = strstr(text, "oom_kill ");
    int64_t kills = 0;
    for (at = at != NULL ? at + strlen("oom_kill ") : ""; *at >= '0' && *at <= '9'; at++)
        kills = kills * 10 + (*at - '0');
    return kills;
}

static void pass_on(struct relay *r, const void *data, size_t len)
{
    sg_mux_send_packet(r->mux, NULL, 0, data, len);
}

static void hold(struct ask *k, const void *data, size_t len)
{
    k->held = malloc(len);
    if (k->held == NULL)
        relay_die(EXIT_SETUP, "no memory");
    memcpy(k->held, data, len);
    k->held_len = len;
}

/* ---- connections ---- */

/* What became of it is the first byte of the channel: 0 or an errno. */
static void settle(struct relay *r, struct ask *k, struct sg_mux_channel *c, int e)
{
    const unsigned char byte = (unsigned char)(e > 255 ? EIO : e);
    const int on = 1;
    int fd = k->fd;
    k->fd = -1;
    sg_mux_say(r->mux, c, &byte, 1);
    ask_free(r, k);
    if (e != 0) {
        close(fd);
        sg_mux_abort(r->mux, c);
        return;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (sg_mux_attach(r->mux, c, fd) < 0)
        sg_mux_abort(r->mux, c);
}

void relay_connected(struct relay *r, uint32_t number)
{
    struct sg_mux_channel *c = sg_mux_find(r->mux, number);
    struct ask *k = c != NULL ? sg_mux_owner(c) : NULL;
    struct epoll_event none = {0};
    int e = 0;
    socklen_t len = sizeof e;
    if (k == NULL || k->fd < 0)
        return; /* given up in this turn */
    if (getsockopt(k->fd, SOL_SOCKET, SO_ERROR, &e, &len) != 0)
        e = errno;
    (void)epoll_ctl(r->epoll, EPOLL_CTL_DEL, k->fd, &none);
    settle(r, k, c, e);
}

static void connect_it(struct relay *r, struct ask *k, struct sg_mux_channel *c, int fd)
{
    struct sockaddr_in in4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)k->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)k->port), .sin6_addr = in6addr_loopback};
    bool v4 = k->family == AF_INET;
    k->fd = fd;
    int e = connect(fd, v4 ? (const struct sockaddr *)&in4 : (const struct sockaddr *)&in6, v4 ? sizeof in4 : sizeof in6) == 0 ? 0 : errno;
    struct epoll_event ev = {.events = EPOLLOUT, .data.u64 = (uint64_t)k->names[0] << 3 | EVENT_CONNECT};
    if (e != EINPROGRESS)
        settle(r, k, c, e);
    else if (epoll_ctl(r->epoll, EPOLL_CTL_ADD, fd, &ev) != 0)
        settle(r, k, c, EMFILE);
}

/* ---- answers ---- */

/* Content goes out before the answer that it belongs to. */
static void send_content(struct relay *r, struct sg_mux_channel *c, int fd, uint64_t size)
{
    if (fd < 0 || sg_mux_attach(r->mux, c, fd) < 0)
        relay_die(EXIT_PROTOCOL, "the agent broke the protocol");
    sg_mux_limit(r->mux, c, size);
}

static void failed(struct relay *r, struct ask *k, struct sg_mux_channel *c, const void *data, size_t len)
{
    ask_free(r, k);
    if (c != NULL)
        sg_mux_abort(r->mux, c);
    pass_on(r, data, len);
}

static void staged(struct relay *r, struct ask *k, const struct sg_agent_msg *m, struct sg_mux_channel *c, int fd)
{
    k->answered = true;
    k->error = (int)m->u.done.error;
    if ((m->u.done.flags & SG_AGENT_DONE_NAMED) != 0)
        k->temp = strdup(m->u.done.text);
    if (fd >= 0 && (c == NULL || sg_mux_attach(r->mux, c, fd) < 0))
        relay_die(EXIT_PROTOCOL, "the agent broke the protocol");
    if (fd < 0 && c != NULL)
        sg_mux_abort(r->mux, c);
    relay_ungate(r);
}

static void checked(struct relay *r, struct sg_agent_msg *m, int fd)
{
    unsigned char data[OUT_PACKET_MAX];
    if (fd >= 0)
        close(fd);
    if ((m->u.done.flags & SG_AGENT_DONE_NAMED) != 0)
        relay_forget(r, m->u.done.text);
    m->u.done.flags &= ~SG_AGENT_DONE_NAMED;
    m->u.done.text = "";
    pass_on(r, data, sg_agent_encode(m, data, sizeof data));
}

static void done(struct relay *r, struct ask *k, struct sg_agent_msg *m, const void *data, size_t len, int fd)
{
    struct sg_mux_channel *c = k->n > 0 ? sg_mux_find(r->mux, k->names[0]) : NULL;
    struct stat st;
    bool wanted = c != NULL && sg_mux_owner(c) == k;
    switch (k->kind) {
    case ASK_STAGE:
        staged(r, k, m, c, fd);
        return;
    case ASK_CHECK:
        checked(r, m, fd);
        break;
    case ASK_LISTEN:
        relay_listens(r, m, fd);
        break;
    case ASK_READ:
    case ASK_CONTENT:
    case ASK_LIST:
    case ASK_SOCKET:
        if (m->u.done.error != 0 || !wanted) {
            if (fd >= 0)
                close(fd);
            failed(r, k, wanted ? c : NULL, data, len);
            return;
        }
        if (k->kind == ASK_CONTENT) {
            relay_content_opened(k, fd);
            pass_on(r, data, len);
            return;
        }
        if (k->kind == ASK_SOCKET) {
            pass_on(r, data, len);
            connect_it(r, k, c, fd);
            return;
        }
        if (k->kind == ASK_READ && (fstat(fd, &st) != 0 || st.st_size > FILE_MAX)) {
            close(fd);
            ask_free(r, k);
            sg_mux_abort(r->mux, c);
            relay_done(r, m->id, SG_AGENT_ENOSPOOL);
            return;
        }
        hold(k, data, len);
        if (k->kind == ASK_LIST) {
            fd = k->fd;
            k->fd = -1;
        }
        send_content(r, c, fd, k->kind == ASK_LIST ? m->u.done.size : (uint64_t)st.st_size);
        return;
    case ASK_COMMIT:
        if (m->u.done.error != 0)
            relay_forget(r, k->temp);
        pass_on(r, data, len);
        break;
    default:
        break;
    }
    ask_free(r, k);
}

/* ---- commands ---- */

static void exited(struct relay *r, struct ask *k, const struct sg_agent_msg *m)
{
    if (m->type == SG_AGENT_EXITED && m->u.exited.signal != 0 && relay_oom(r) > k->oom_before)
        sg_mux_send_oom(r->mux, k->id);
    if (k->live == 0) {
        ask_free(r, k);
        return;
    }
    k->due_ms = relay_now_ms() + GRACE_MS;
    r->ending++;
    if (k->terminal != NULL)
        relay_terminal_ended(r, k);
}

void relay_tell(struct relay *r, const void *data, size_t len, int fd)
{
    struct sg_agent_msg m;
    if (sg_agent_decode(data, len, fd >= 0 ? 1 : 0, SG_AGENT_FROM_AGENT, &m) < 0)
        relay_die(EXIT_PROTOCOL, "the agent broke the protocol");
    struct ask *k = ask_find(r, m.id);
    if (m.type == SG_AGENT_DONE && k != NULL && k->kind != ASK_SPAWN) {
        done(r, k, &m, data, len, fd);
        return;
    }
    if (m.type == SG_AGENT_TERMINAL && k != NULL && k->terminal != NULL) {
        relay_terminal_came(r, k, fd);
        pass_on(r, data, len);
        return;
    }
    if (fd >= 0)
        relay_die(EXIT_PROTOCOL, "the agent sent a descriptor that nobody asked for");
    if (k != NULL && k->kind == ASK_SPAWN && (m.type == SG_AGENT_EXITED || m.type == SG_AGENT_SPAWN_FAILED))
        exited(r, k, &m);
    pass_on(r, data, len);
}

/* ---- outputs ---- */

static void rest_end(struct relay *r, struct rest *s)
{
    DL_DELETE(r->rests, s);
    r->n_rests--;
    close(s->fd);
    free(s);
}

static bool rest_watch(struct relay *r, struct rest *s, int op)
{
    struct epoll_event e = {.events = EPOLLIN | EPOLLONESHOT, .data.u64 = (uint64_t)(uintptr_t)s | EVENT_REST};
    s->due_ms = 0;
    return epoll_ctl(r->epoll, op, s->fd, &e) == 0;
}

void relay_rest_ready(struct relay *r, struct rest *s)
{
    static char nowhere[REST_BYTES];
    ssize_t n = read(s->fd, nowhere, sizeof nowhere);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        rest_end(r, s);
    else
        s->due_ms = relay_now_ms() + REST_PAUSE_MS;
}

static void rest_begin(struct relay *r, int fd)
{
    struct rest *s = r->n_rests < RESTS_MAX ? calloc(1, sizeof *s) : NULL;
    if (s == NULL) {
        close(fd);
        return;
    }
    s->fd = fd;
    DL_APPEND(r->rests, s);
    r->n_rests++;
    if (!rest_watch(r, s, EPOLL_CTL_ADD))
        rest_end(r, s);
}

void relay_sent(void *arg, struct sg_mux_channel *c)
{
    struct relay *r = arg;
    struct ask *k = sg_mux_owner(c);
    if (k != NULL && k->held != NULL) {
        pass_on(r, k->held, k->held_len);
        ask_free(r, k);
    } else if (k != NULL && k->terminal != NULL) {
        relay_terminal_hang_up(r, k);
        sg_mux_rouse(r->mux, c); /* what is still typed is for nobody */
    } else if (k != NULL && k->kind == ASK_SPAWN && k->due_ms < 0 && !sg_mux_stopped(c)) {
        int fd = sg_mux_take(r->mux, c);
        if (fd >= 0)
            rest_begin(r, fd);
    }
}

void relay_gone(void *arg, struct sg_mux_channel *c)
{
    struct relay *r = arg;
    struct ask *k = sg_mux_owner(c);
    if (k == NULL || k->kind != ASK_SPAWN) {
        if (k != NULL && (k->kind == ASK_CONTENT || (k->kind == ASK_SOCKET && k->fd >= 0)))
            ask_free(r, k); /* its end; of a connection: given up while it was being made */
        else if (k != NULL && k->kind == ASK_ACCEPT)
            relay_accept_forget(r, k);
        return;
    }
    if (--k->live == 0 && k->due_ms != 0) {
        r->ending -= k->due_ms > 0;
        ask_free(r, k);
    }
}

void relay_moved(void *arg, struct sg_mux_channel *c)
{
    struct relay *r = arg;
    struct ask *k = sg_mux_owner(c);
    if (k != NULL && k->kind == ASK_CONTENT)
        relay_content_moved(r, k, c);
    else if (k != NULL && k->terminal != NULL)
        relay_terminal_moved(r, k, c);
}

/* ---- time ---- */

static void grace_over(struct relay *r, struct ask *k)
{
    k->due_ms = -1;
    r->ending--;
    if (k->terminal != NULL)
        relay_terminal_limit(r, k);
    for (unsigned i = 0; i < k->n; i++) {
        struct sg_mux_channel *c = sg_mux_find(r->mux, k->names[i]);
        if (c != NULL && sg_mux_owner(c) == k && k->terminal == NULL)
            sg_mux_limit(r->mux, c, sg_mux_waiting(c));
    }
}

int relay_due(struct relay *r)
{
    int64_t now = r->ending > 0 || r->rests != NULL || r->ear_due_ms > 0 ? relay_now_ms() : 0, next = INT64_MAX;
    struct ask *k, *other;
    struct rest *s, *after;
    if (r->ending > 0) {
        HASH_ITER(hh, r->asks, k, other)
        {
            if (k->kind == ASK_SPAWN && k->due_ms > 0 && k->due_ms <= now)
                grace_over(r, k);
            else if (k->kind == ASK_SPAWN && k->due_ms > 0)
                next = k->due_ms < next ? k->due_ms : next;
        }
    }
    DL_FOREACH_SAFE(r->rests, s, after)
    {
        if (s->due_ms > now)
            next = s->due_ms < next ? s->due_ms : next;
        else if (s->due_ms > 0 && !rest_watch(r, s, EPOLL_CTL_MOD))
            rest_end(r, s);
    }
    if (r->ear_due_ms > 0 && r->ear_due_ms <= now) {
        r->ear_due_ms = 0;
        relay_accept_some(r);
    }
    if (r->ear_due_ms > 0)
        next = r->ear_due_ms < next ? r->ear_due_ms : next;
    return next == INT64_MAX ? -1 : (int)(next - now);
}
