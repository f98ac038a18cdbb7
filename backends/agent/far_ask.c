/* What the client asks for, with channels in the place of its descriptors. */
#include "backends/agent/far_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- calls ---- */

struct far_call *far_call_find(struct far *f, uint64_t id)
{
    struct far_call *k = NULL;
    HASH_FIND(hh, f->calls, &id, sizeof id, k);
    return k;
}

static struct far_call *call_new(struct far *f, uint64_t id, enum call_kind kind)
{
    struct far_call *k = sg_xcalloc(1, sizeof *k);
    *k = (struct far_call){.id = id, .kind = kind, .channel = ++f->last_channel, .fd = -1};
    HASH_ADD(hh, f->calls, id, sizeof k->id, k);
    return k;
}

void far_call_free(struct far *f, struct far_call *k)
{
    struct sg_mux_channel *c = f->over ? NULL : sg_mux_find(f->mux, k->channel);
    if (c != NULL && sg_mux_owner(c) == k)
        sg_mux_set_owner(c, NULL);
    HASH_DEL(f->calls, k);
    (void)sg_close(k->fd);
    k->io = far_io_free(k->io);
    free(k->held);
    free(k);
}

int far_spool(const struct far *f)
{
    return open(f->spool, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
}

/* ---- parcels ---- */

static void close_all(int *fds, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        fds[i] = sg_close(fds[i]);
}

void far_parcel_free(struct far *f, struct far_parcel *p)
{
    DL_DELETE(f->parcels, p);
    f->n_parcels--;
    p->io = far_io_free(p->io);
    close_all(p->fds, p->n);
    free(p);
}

static struct far_parcel *parcel_new(struct far *f, const void *data, size_t len, int *fds, unsigned n)
{
    struct far_parcel *p = sg_xcalloc(1, sizeof *p + len);
    p->len = len;
    p->n = n;
    for (unsigned i = 0; i < n; i++)
        p->fds[i] = fds[i];
    memcpy(p->data, data, len);
    DL_APPEND(f->parcels, p);
    f->n_parcels++;
    return p;
}

static void decode(const struct far_parcel *p, struct sg_agent_msg *m)
{
    (void)sg_agent_decode(p->data, p->len, p->n, SG_AGENT_FROM_SERVER, m); /* as it was before */
}

/* ---- commands ---- */

/* in, out and err: the client made them, so they do not block after this. */
static int attach(struct far *f, struct sg_mux_channel *c, int *fd)
{
    int own = *fd;
    *fd = -1;
    if (fcntl(own, F_SETFL, O_NONBLOCK) < 0) {
        (void)sg_close(own);
        return -1;
    }
    return sg_mux_attach(f->mux, c, own);
}

static void send_spawn(struct far *f, struct far_parcel *p, const struct sg_agent_msg *m)
{
    uint32_t names[SG_MUX_NAMED_MAX];
    struct sg_mux_channel *c[SG_MUX_NAMED_MAX] = {NULL};
    bool blob = m->u.spawn.flags & SG_AGENT_SPAWN_BLOB, in = m->u.spawn.flags & SG_AGENT_SPAWN_STDIN;
    unsigned first = blob ? 1 : 0;
    const struct far_call *terminal = far_call_find(f, m->id);
    names[0] = p->content;
    if (terminal != NULL) {
        names[first] = terminal->channel;
        sg_mux_send_packet(f->mux, names, first + 1, p->data, p->len);
        return;
    }
    for (unsigned i = first; i < p->n; i++) {
        names[i] = ++f->last_channel;
        c[i] = sg_mux_add(f->mux, names[i], in && i == first ? SG_MUX_OUT : SG_MUX_IN, NULL);
    }
    sg_mux_send_packet(f->mux, names, p->n, p->data, p->len);
    for (unsigned i = first; i < p->n; i++) {
        if (c[i] == NULL || attach(f, c[i], &p->fds[i]) < 0)
            f->crowded = true;
    }
}

/* ---- in order ---- */

/* Packing and unpacking does not wait for each answer (struct sg_tree_ops), and says so with NO_LINKS. */
static bool is_ordered(const struct sg_agent_msg *m)
{
    switch (m->type) {
    case SG_AGENT_COMMIT:
    case SG_AGENT_MKDIR:
    case SG_AGENT_LINK:
    case SG_AGENT_ATTRIBUTES:
    case SG_AGENT_MERGE:
        return (m->u.file.flags & SG_AGENT_NO_LINKS) != 0;
    default:
        return false;
    }
}

static void send_parcel(struct far *f, struct far_parcel *p)
{
    struct sg_agent_msg m;
    decode(p, &m);
    if (m.type == SG_AGENT_SPAWN)
        send_spawn(f, p, &m);
    else
        sg_mux_send_packet(f->mux, &p->content, p->content != 0 ? 1 : 0, p->data, p->len);
    far_parcel_free(f, p);
}

static void send_ready(struct far *f)
{
    bool blocked = false;
    struct far_parcel *p, *next;
    DL_FOREACH_SAFE(f->parcels, p, next)
    {
        if (p->ready && !(p->ordered && blocked))
            send_parcel(f, p);
        else
            blocked = blocked || p->ordered;
    }
}

void far_sent(void *arg, struct sg_mux_channel *c)
{
    struct far *f = arg;
    struct far_parcel *p = sg_mux_way(c) == SG_MUX_OUT ? sg_mux_owner(c) : NULL; /* a connection belongs to a call */
    if (p != NULL) {
        p->ready = true;
        send_ready(f);
    }
}

/* The content of the parcel goes first; its descriptor is the first one. */
static int send_content(struct far *f, struct far_parcel *p, const struct sg_agent_msg *m)
{
    p->content = ++f->last_channel;
    struct sg_mux_channel *c = sg_mux_add(f->mux, p->content, SG_MUX_OUT, p);
    int fd = p->fds[0];
    p->fds[0] = -1;
    if (c == NULL) {
        (void)sg_close(fd);
        return -1;
    }
    if (m->type == SG_AGENT_COMMIT) {
        unsigned char data[SG_AGENT_REQUEST_MAX];
        struct sg_agent_msg open = {.type = SG_AGENT_OPEN, .id = SG_RELAY_CONTENT | p->content};
        open.u.file.how = SG_AGENT_OPEN_TEMP;
        open.u.file.path = m->u.file.path;
        open.u.file.flags = m->u.file.flags & SG_AGENT_NO_LINKS;
        sg_mux_send_packet(f->mux, &p->content, 1, data, sg_agent_encode(&open, data, sizeof data));
    } else {
        sg_mux_send_open(f->mux, p->content);
    }
    p->io = far_io_new(f, p->content, fd, true);
    sg_mux_manual(f->mux, c);
    return 0;
}

/* ---- what is asked for ---- */

static void send_plain(struct far *f, const void *data, size_t len)
{
    static const uint32_t none = 0;
    sg_mux_send_packet(f->mux, &none, 0, data, len);
}

int far_make_end(const struct far *f, struct far_call *k)
{
    int ends[2];
    if (k->kind == CALL_READ)
        return far_spool(f);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) < 0)
        return -1;
    k->fd = ends[0];
    return ends[1];
}

/* fd: where the answer's content is wanted, taken over; or -1. */
static int ask_for(struct far *f, const struct sg_agent_msg *m, enum call_kind kind, int fd, const void *data, size_t len)
{
    struct far_call *k = call_new(f, m->id, kind);
    fd = fd >= 0 ? fd : far_make_end(f, k);
    if (fd < 0) {
        far_call_free(f, k);
        far_refuse(f, m, SG_AGENT_ENOSPOOL);
        return 0;
    }
    struct sg_mux_channel *c = sg_mux_add(f->mux, k->channel, kind == CALL_SOCKET || kind == CALL_CONTENT ? SG_MUX_BOTH : SG_MUX_IN, k);
    if (c == NULL) {
        (void)sg_close(fd);
        return -1;
    }
    sg_mux_send_packet(f->mux, &k->channel, 1, data, len);
    if (kind != CALL_READ)
        return sg_mux_attach(f->mux, c, fd);
    k->io = far_io_new(f, k->channel, fd, false);
    sg_mux_manual(f->mux, c);
    return 0;
}

static int ask_plain(struct far *f, const struct sg_agent_msg *m, const void *data, size_t len)
{
    if (is_ordered(m) && f->parcels != NULL) {
        struct far_parcel *p = parcel_new(f, data, len, NULL, 0);
        p->ordered = p->ready = true;
        send_ready(f);
        return 0;
    }
    send_plain(f, data, len);
    return 0;
}

/* Descriptors are spent on it when there is a connection. */
static int ask_accept(struct far *f, const struct sg_agent_msg *m, const void *data, size_t len)
{
    struct far_call *k = call_new(f, m->id, CALL_ACCEPT);
    if (sg_mux_add(f->mux, k->channel, SG_MUX_BOTH, k) == NULL)
        return -1;
    sg_mux_send_packet(f->mux, &k->channel, 1, data, len);
    return 0;
}

static int ask_open(struct far *f, const struct sg_agent_msg *m, const void *data, size_t len)
{
    switch (m->u.file.how) {
    case SG_AGENT_OPEN_READ:
        return ask_for(f, m, CALL_READ, -1, data, len);
    case SG_AGENT_OPEN_CONTENT:
        return ask_for(f, m, CALL_CONTENT, -1, data, len);
    case SG_AGENT_OPEN_TEMP:
        (void)call_new(f, m->id, CALL_TEMP);
        send_plain(f, data, len);
        return 0;
    case SG_AGENT_OPEN_SCRATCH: {
        struct sg_agent_msg done = {.type = SG_AGENT_DONE, .id = m->id, .u.done.text = ""};
        int fd = far_spool(f);
        if (fd < 0)
            far_refuse(f, m, SG_AGENT_ENOSPOOL);
        else
            far_done(f, &done, fd);
        return 0;
    }
    default:
        return -1;
    }
}

static int ask_with_content(struct far *f, const struct sg_agent_msg *m, const void *data, size_t len, int *fds, unsigned n)
{
    struct far_parcel *p = parcel_new(f, data, len, fds, n);
    p->ordered = is_ordered(m);
    return send_content(f, p, m);
}

/* The terminal's channel is there before it is asked for. */
static int ask_spawn(struct far *f, const struct sg_agent_msg *m, const void *data, size_t len, int *fds, unsigned n)
{
    if ((m->u.spawn.flags & SG_AGENT_SPAWN_TTY) != 0) {
        struct far_call *k = call_new(f, m->id, CALL_TERMINAL);
        int fd = far_make_end(f, k);
        if (fd < 0) {
            far_call_free(f, k);
            close_all(fds, n);
            far_spawn_failed(f, m->id, EMFILE);
            return 0;
        }
        struct sg_mux_channel *c = sg_mux_add(f->mux, k->channel, SG_MUX_BOTH, k);
        if (c == NULL)
            (void)sg_close(fd);
        if (c == NULL || sg_mux_attach(f->mux, c, fd) < 0) {
            close_all(fds, n);
            return -1;
        }
    }
    if ((m->u.spawn.flags & SG_AGENT_SPAWN_BLOB) != 0)
        return ask_with_content(f, m, data, len, fds, n);
    send_parcel(f, parcel_new(f, data, len, fds, n));
    return 0;
}

int far_ask(struct far *f, const void *data, size_t len, int *fds, unsigned n)
{
    struct sg_agent_msg m;
    int rc = n <= SG_MUX_NAMED_MAX ? sg_agent_decode(data, len, n, SG_AGENT_FROM_SERVER, &m) : -1;
    if (rc < 0) {
        close_all(fds, n);
        return -1;
    }
    switch (m.type) {
    case SG_AGENT_SPAWN:
        return ask_spawn(f, &m, data, len, fds, n);
    case SG_AGENT_COMMIT:
        return ask_with_content(f, &m, data, len, fds, n);
    case SG_AGENT_OPEN:
        return ask_open(f, &m, data, len);
    case SG_AGENT_LIST:
        return ask_for(f, &m, CALL_LIST, fds[0], data, len);
    case SG_AGENT_SOCKET:
        return ask_for(f, &m, CALL_SOCKET, -1, data, len);
    case SG_AGENT_ACCEPT:
        return ask_accept(f, &m, data, len);
    default:
        return ask_plain(f, &m, data, len);
    }
}
