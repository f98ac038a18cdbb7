/* Terminals of commands: the relay holds their masters, as a server on the same machine would. */
#include "backends/agent/relay_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <termios.h>
#include <unistd.h>

#ifndef TIOCGPTPEER
#define TIOCGPTPEER _IO('T', 0x41)
#endif

#define ENDS 2U /* a single one only sends off a line that was begun */
#define WRITES_PER_TURN 8
#define BUFFERED ((size_t)16 * 1024) /* what a terminal may hold besides what it says it has */

struct terminal {
    int master; /* -1: it has not come yet, or was hung up */
    int slave;  /* kept open until the command ends: before that the terminal does not; or -1 */
    bool watched, hung;
    bool deaf; /* what is typed is for nobody any more */
    char *in; /* what is typed: grabbed, and not taken by the terminal yet */
    size_t in_at, in_len;
    bool no_more; /* is typed: its end-of-file characters are due */
    unsigned ends_typed;
    bool limited; /* only `left` bytes more come out of it */
    size_t left;
};

void relay_terminal_spawn(struct relay *r, struct sg_agent_msg *m, uint32_t name, int blob)
{
    struct ask *k = ask_new(r, m->id, ASK_SPAWN);
    struct sg_mux_channel *c = ask_add(r, k, name, SG_MUX_BOTH);
    k->terminal = calloc(1, sizeof *k->terminal);
    if (k->terminal == NULL)
        relay_die(EXIT_SETUP, "no memory");
    *k->terminal = (struct terminal){.master = -1, .slave = -1};
    k->live = 1;
    k->oom_before = relay_oom(r);
    sg_mux_manual(r->mux, c);
    relay_ask(r, m, &blob, blob >= 0 ? 1 : 0);
}

void relay_terminal_came(struct relay *r, struct ask *k, int fd)
{
    struct terminal *t = k->terminal;
    struct sg_mux_channel *c = sg_mux_find(r->mux, k->names[0]);
    if (fd < 0 || t->master >= 0)
        relay_die(EXIT_PROTOCOL, "the agent broke the protocol");
    t->master = fd;
    t->slave = ioctl(fd, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (c == NULL || t->hung)
        relay_terminal_hang_up(r, k); /* nobody wants it any more */
    else
        sg_mux_rouse(r->mux, c);
}

void relay_terminal_resize(struct relay *r, const struct sg_agent_msg *m)
{
    const struct ask *k = ask_find(r, m->u.resize.command);
    const struct winsize size = {.ws_row = (unsigned short)m->u.resize.rows, .ws_col = (unsigned short)m->u.resize.cols};
    bool open = k != NULL && k->terminal != NULL && k->terminal->master >= 0;
    relay_done(r, m->id, !open ? ENXIO : ioctl(k->terminal->master, TIOCSWINSZ, &size) != 0 ? errno : 0);
}

/* ---- bytes ---- */

/* 0: done; else an errno. */
static int type_end(struct terminal *t)
{
    struct termios attributes;
    if (tcgetattr(t->master, &attributes) != 0)
        return errno;
    char end = (char)attributes.c_cc[VEOF];
    while (t->ends_typed < ENDS && end != (char)_POSIX_VDISABLE) {
        ssize_t n = write(t->master, &end, 1);
        if (n <= 0)
            return n == 0 ? EAGAIN : errno;
        t->ends_typed++;
    }
    t->ends_typed = ENDS;
    return 0;
}

/* 0: done, EINTR: there is more to do at once, EAGAIN: when it takes something again. */
static int type_some(struct relay *r, struct terminal *t, struct sg_mux_channel *c)
{
    if (t->deaf)
        return 0;
    for (int i = 0; i < WRITES_PER_TURN; i++) {
        if (t->in_len == 0) {
            free(t->in);
            t->in = sg_mux_grab(r->mux, c, &t->in_len);
            t->in_at = 0;
        }
        if (t->in_len == 0)
            return t->no_more && t->ends_typed < ENDS ? type_end(t) : 0;
        ssize_t n = write(t->master, t->in + t->in_at, t->in_len);
        if (n <= 0)
            return n == 0 ? EAGAIN : errno;
        t->in_at += (size_t)n;
        t->in_len -= (size_t)n;
        sg_mux_took(r->mux, c, (size_t)n, 0); /* not the end of the channel: its other direction is open */
    }
    return EINTR;
}

/* As type_some(), and EIO: nothing more will come out of it. */
static int read_some(struct relay *r, struct terminal *t, struct sg_mux_channel *c)
{
    static char buf[SG_MUX_DATA_MAX];
    size_t max = sg_mux_allowed(r->mux, c);
    max = max < sizeof buf ? max : sizeof buf;
    if (t->limited && t->left == 0)
        return EIO;
    max = t->limited && t->left < max ? t->left : max;
    if (max == 0)
        return 0; /* the other side says when it takes more */
    ssize_t n = read(t->master, buf, max);
    if (n < 0)
        return errno == EAGAIN && t->limited ? EIO : errno;
    if (n == 0)
        return EIO;
    t->left -= t->limited ? (size_t)n : 0;
    sg_mux_say(r->mux, c, buf, (size_t)n);
    return EINTR;
}

static void watch(const struct relay *r, struct terminal *t, uint32_t number, uint32_t events)
{
    /* Once: what has ended would say so for ever while the other side takes nothing. */
    struct epoll_event e = {.events = events | EPOLLONESHOT, .data.u64 = (uint64_t)number << 3 | EVENT_TERMINAL};
    if (events != 0 && epoll_ctl(r->epoll, t->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, t->master, &e) != 0)
        relay_die(EXIT_SETUP, "cannot watch a terminal");
    t->watched = t->watched || events != 0;
}

static void deafen(struct relay *r, struct terminal *t, struct sg_mux_channel *c)
{
    size_t len = t->in_len;
    if (t->deaf)
        return;
    t->deaf = true;
    free(t->in);
    t->in = NULL;
    t->in_len = 0;
    sg_mux_took(r->mux, c, len, EPIPE);
}

void relay_terminal_moved(struct relay *r, const struct ask *k, struct sg_mux_channel *c)
{
    struct terminal *t = k->terminal;
    if (t->master < 0 && !t->hung)
        return;
    if (t->hung) {
        deafen(r, t, c);
        return;
    }
    int out = read_some(r, t, c);
    if (out != 0 && out != EINTR && out != EAGAIN) {
        sg_mux_end(r->mux, c); /* and with it the terminal */
        return;
    }
    int in = type_some(r, t, c);
    if (in != 0 && in != EINTR && in != EAGAIN)
        deafen(r, t, c);
    if (in == EINTR || out == EINTR)
        sg_mux_rouse(r->mux, c);
    else
        watch(r, t, k->names[0], (in == EAGAIN ? EPOLLOUT : 0U) | (out == EAGAIN ? EPOLLIN : 0U));
}

void relay_terminal_ready(struct relay *r, uint32_t number)
{
    struct sg_mux_channel *c = sg_mux_find(r->mux, number);
    if (c != NULL)
        sg_mux_rouse(r->mux, c);
}

void relay_terminal_no_more(struct relay *r, struct ask *k, struct sg_mux_channel *c)
{
    k->terminal->no_more = true;
    sg_mux_rouse(r->mux, c);
}

/* ---- its end ---- */

/* The last one to close it hangs it up, which waits for whoever is writing to it, and may be kept from it for as long as it likes: a child. */
static void close_apart(int fd)
{
    int go[2];
    pid_t pid = pipe2(go, O_CLOEXEC) == 0 ? fork() : -1;
    if (pid == 0) {
        char none;
        if (dup2(fd, 3) < 0 || dup2(go[0], 4) < 0)
            _exit(EXIT_SETUP);
        (void)syscall(SYS_close_range, 5U, ~0U, 0U);
        (void)syscall(SYS_close_range, 0U, 2U, 0U);
        (void)read(4, &none, 1);
        _exit(0);
    }
    close(fd); /* where there is no room for a child, here */
    if (pid >= 0) {
        close(go[0]);
        close(go[1]);
    }
}

void relay_terminal_hang_up(struct relay *r, struct ask *k)
{
    struct terminal *t = k->terminal;
    struct epoll_event none = {0};
    t->hung = true;
    if (t->slave >= 0)
        close(t->slave);
    if (t->watched)
        (void)epoll_ctl(r->epoll, EPOLL_CTL_DEL, t->master, &none);
    if (t->master >= 0)
        close_apart(t->master);
    t->master = t->slave = -1;
    t->watched = false;
}

void relay_terminal_ended(struct relay *r, struct ask *k)
{
    struct terminal *t = k->terminal;
    struct sg_mux_channel *c = sg_mux_find(r->mux, k->names[0]);
    if (t->slave >= 0)
        close(t->slave);
    t->slave = -1;
    if (c == NULL)
        return;
    if (t->master < 0)
        sg_mux_abort(r->mux, c); /* it never came */
    else
        sg_mux_rouse(r->mux, c);
}

void relay_terminal_limit(struct relay *r, struct ask *k)
{
    struct terminal *t = k->terminal;
    struct sg_mux_channel *c = sg_mux_find(r->mux, k->names[0]);
    int n = 0;
    if (c == NULL || t->master < 0)
        return;
    t->limited = true;
    t->left = BUFFERED + (ioctl(t->master, FIONREAD, &n) == 0 && n > 0 ? (size_t)n : 0);
    sg_mux_rouse(r->mux, c);
}

void relay_terminal_free(struct relay *r, struct ask *k)
{
    if (k->terminal == NULL)
        return;
    relay_terminal_hang_up(r, k);
    free(k->terminal->in);
    free(k->terminal);
}
