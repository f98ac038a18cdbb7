/* What the server asks for, with descriptors of this side in the place of channels. */
#include "backends/agent/relay_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- questions ---- */

struct ask *ask_new(struct relay *r, uint64_t id, enum ask_kind kind)
{
    struct ask *k = ask_find(r, id) != NULL ? NULL : calloc(1, sizeof *k);
    if (k == NULL)
        relay_die(EXIT_PROTOCOL, "a question came twice, or there is no memory for it");
    k->id = id;
    k->kind = kind;
    k->fd = -1;
    HASH_ADD(hh, r->asks, id, sizeof k->id, k);
    return k;
}

struct ask *ask_find(struct relay *r, uint64_t id)
{
    struct ask *k = NULL;
    HASH_FIND(hh, r->asks, &id, sizeof id, k);
    return k;
}

void ask_free(struct relay *r, struct ask *k)
{
    for (unsigned i = 0; i < k->n; i++) {
        struct sg_mux_channel *c = sg_mux_find(r->mux, k->names[i]);
        if (c != NULL && sg_mux_owner(c) == k)
            sg_mux_set_owner(c, NULL);
    }
    HASH_DEL(r->asks, k);
    if (k->fd >= 0)
        close(k->fd);
    relay_terminal_free(r, k);
    free(k->temp);
    free(k->held);
    free(k);
}

struct sg_mux_channel *ask_add(struct relay *r, struct ask *k, uint32_t name, enum sg_mux_direction way)
{
    struct sg_mux_channel *c = sg_mux_add(r->mux, name, way, k);
    if (c == NULL)
        relay_die(EXIT_PROTOCOL, "a channel came twice, or there are too many");
    k->names[k->n++] = name;
    return c;
}

static void post(struct relay *r, const void *data, size_t len, const int *fds, unsigned n)
{
    int e = sg_agent_post(&r->agent, data, len, fds, n);
    if (e != 0)
        relay_die(EXIT_SETUP, "the agent has ended");
}

void relay_ask(struct relay *r, struct sg_agent_msg *m, const int *fds, unsigned n)
{
    static unsigned char data[SG_AGENT_PACKET_MAX];
    m->nfds = n;
    size_t len = sg_agent_encode(m, data, sizeof data);
    if (len == 0)
        relay_die(EXIT_PROTOCOL, "a question breaks its limits");
    post(r, data, len, fds, n);
}

void relay_done(struct relay *r, uint64_t id, int error)
{
    unsigned char data[OUT_PACKET_MAX];
    struct sg_agent_msg m = {.type = SG_AGENT_DONE, .id = id};
    m.u.done.error = (uint32_t)error;
    m.u.done.text = "";
    size_t len = sg_agent_encode(&m, data, sizeof data);
    sg_mux_send_packet(r->mux, NULL, 0, data, len);
}

/* ---- commands ---- */

/* A pipe whose end here does not block. -1 when there are no descriptors. */
static int make_pipe(int *here, int *there, bool there_reads)
{
    int p[2];
    if (pipe2(p, O_CLOEXEC) != 0)
        return -1;
    *here = p[there_reads ? 1 : 0];
    *there = p[there_reads ? 0 : 1];
    return fcntl(*here, F_SETFL, O_NONBLOCK);
}

static void spawn_failed(struct relay *r, uint64_t id, int error)
{
    unsigned char data[64];
    struct sg_agent_msg m = {.type = SG_AGENT_SPAWN_FAILED, .id = id};
    m.u.failed.stage = SG_AGENT_STAGE_FORK;
    m.u.failed.error = (uint32_t)error;
    size_t len = sg_agent_encode(&m, data, sizeof data);
    sg_mux_send_packet(r->mux, NULL, 0, data, len);
}

/* The strings that came before. */
static int take_blob(struct relay *r, uint32_t name)
{
    struct ask *k = ask_find(r, SG_RELAY_CONTENT | name);
    if (k == NULL || k->kind != ASK_BLOB || !k->complete)
        relay_die(EXIT_PROTOCOL, "a command came without its strings");
    int fd = k->fd;
    k->fd = -1;
    ask_free(r, k);
    return fd;
}

static void spawn(struct relay *r, struct sg_agent_msg *m, const uint32_t *names, unsigned n)
{
    bool blob = m->u.spawn.flags & SG_AGENT_SPAWN_BLOB, in = m->u.spawn.flags & SG_AGENT_SPAWN_STDIN;
    int fds[SG_MUX_NAMED_MAX], here[SG_MUX_NAMED_MAX];
    bool tty = m->u.spawn.flags & SG_AGENT_SPAWN_TTY;
    unsigned first = blob ? 1 : 0, at = first;
    if (n != first + (tty ? 1U : in ? 3U : 2U) || (m->u.spawn.flags & SG_AGENT_SPAWN_GROUP) != 0)
        relay_die(EXIT_PROTOCOL, "a command came with other channels than it needs");
    if (blob)
        fds[0] = take_blob(r, names[0]);
    if (tty) {
        relay_terminal_spawn(r, m, names[first], blob ? fds[0] : -1);
        return;
    }
    while (at < n && make_pipe(&here[at], &fds[at], in && at == first) == 0)
        at++;
    struct ask *k = ask_new(r, m->id, ASK_SPAWN);
    for (unsigned i = first; i < n; i++) {
        struct sg_mux_channel *c = ask_add(r, k, names[i], in && i == first ? SG_MUX_IN : SG_MUX_OUT);
        k->live++;
        if (i >= at || sg_mux_attach(r->mux, c, here[i]) < 0)
            sg_mux_abort(r->mux, c);
    }
    if (at == n) {
        k->oom_before = relay_oom(r);
        relay_ask(r, m, fds, n);
        return;
    }
    for (unsigned i = 0; i < at; i++)
        close(fds[i]);
    ask_free(r, k);
    spawn_failed(r, m->id, EMFILE);
}

/* ---- files and sockets ---- */

static int make_memory(size_t size)
{
    int fd = memfd_create("relay", MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t)size) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* A question whose answer brings content, or a socket. */
static void with_answer(struct relay *r, struct sg_agent_msg *m, enum ask_kind kind, uint32_t name)
{
    struct ask *k = ask_new(r, m->id, kind);
    struct sg_mux_channel *c = ask_add(r, k, name, kind == ASK_SOCKET || kind == ASK_CONTENT ? SG_MUX_BOTH : SG_MUX_OUT);
    int fd = -1;
    if (kind == ASK_LIST) {
        k->fd = make_memory(SG_AGENT_LIST_BYTES_MAX);
        fd = k->fd < 0 ? -1 : fcntl(k->fd, F_DUPFD_CLOEXEC, 3);
        if (fd < 0) {
            sg_mux_abort(r->mux, c);
            ask_free(r, k);
            relay_done(r, m->id, EMFILE);
            return;
        }
    } else if (kind == ASK_SOCKET) {
        k->family = m->u.socket.family;
        k->port = m->u.socket.port;
    } else if (kind == ASK_CONTENT) {
        m->u.file.how = SG_AGENT_OPEN_READ;
        sg_mux_manual(r->mux, c);
    }
    relay_ask(r, m, &fd, fd >= 0 ? 1 : 0);
}

int relay_open(void *arg, uint32_t number)
{
    struct relay *r = arg;
    struct ask *k = ask_new(r, SG_RELAY_CONTENT | number, ASK_BLOB);
    struct sg_mux_channel *c = ask_add(r, k, number, SG_MUX_IN);
    int fd = make_memory(0);
    if (fd < 0 || sg_mux_attach(r->mux, c, fd) < 0)
        relay_die(EXIT_SETUP, "no descriptors");
    return 0;
}

/* The server's content for a COMMIT goes into a temp file of the agent's. */
static void stage(struct relay *r, struct sg_agent_msg *m, uint32_t name)
{
    if (m->id != (SG_RELAY_CONTENT | name))
        relay_die(EXIT_PROTOCOL, "content came under another name than its channel's");
    struct ask *k = ask_new(r, m->id, ASK_STAGE);
    (void)ask_add(r, k, name, SG_MUX_IN);
    relay_ask(r, m, NULL, 0);
}

static void open_file(struct relay *r, struct sg_agent_msg *m, const uint32_t *names, unsigned n)
{
    if (m->u.file.how == SG_AGENT_OPEN_READ && n == 1) {
        with_answer(r, m, ASK_READ, names[0]);
    } else if (m->u.file.how == SG_AGENT_OPEN_CONTENT && n == 1) {
        with_answer(r, m, ASK_CONTENT, names[0]);
    } else if (m->u.file.how == SG_AGENT_OPEN_TEMP && n == 1) {
        stage(r, m, names[0]);
    } else if (m->u.file.how == SG_AGENT_OPEN_TEMP && n == 0) {
        (void)ask_new(r, m->id, ASK_CHECK);
        relay_ask(r, m, NULL, 0);
    } else {
        relay_die(EXIT_PROTOCOL, "a file cannot be opened like that from here");
    }
}

void relay_forget(struct relay *r, const char *temp)
{
    struct sg_agent_msg m = {.type = SG_AGENT_REMOVE, .id = SG_RELAY_OWN | ++r->own_ids, .u.file = {.path = temp}};
    (void)ask_new(r, m.id, ASK_FORGET);
    relay_ask(r, &m, NULL, 0);
}

/* Its content is here, or there is none. */
static void commit(struct relay *r, struct sg_agent_msg *m, struct ask *k)
{
    uint64_t id = m->id;
    int fd = k->fd, error = fd < 0 && k->error == 0 ? EIO : k->error;
    char *temp = k->temp;
    k->fd = -1;
    k->temp = NULL;
    ask_free(r, k);
    if (error == 0) {
        m->u.file.path2 = temp != NULL ? temp : "";
        relay_ask(r, m, &fd, 1);
        if (temp != NULL)
            ask_new(r, id, ASK_COMMIT)->temp = temp;
        return;
    }
    if (fd >= 0)
        close(fd);
    if (temp != NULL)
        relay_forget(r, temp);
    free(temp);
    relay_done(r, id, error);
}

/* ---- in order ---- */

/* False: it is not time for it yet. */
static bool commit_when_ready(struct relay *r, struct sg_agent_msg *m, uint32_t name)
{
    struct ask *k = ask_find(r, SG_RELAY_CONTENT | name);
    if (k == NULL || k->kind != ASK_STAGE)
        relay_die(EXIT_PROTOCOL, "a file came without its content");
    if (k->answered && k->complete) {
        commit(r, m, k);
        return true;
    }
    r->gate = k;
    return false;
}

static bool take(struct relay *r, const uint32_t *names, unsigned n, const void *data, size_t len)
{
    struct sg_agent_msg m;
    uint16_t nfds = 0;
    if (len >= SG_AGENT_HEADER)
        memcpy(&nfds, (const char *)data + 2, sizeof nfds);
    if (sg_agent_decode(data, len, nfds, SG_AGENT_FROM_SERVER, &m) < 0)
        relay_die(EXIT_PROTOCOL, "the server broke the protocol");
    bool one = n == 1;
    if (m.type == SG_AGENT_COMMIT && one)
        return commit_when_ready(r, &m, names[0]);
    if (m.type == SG_AGENT_SPAWN)
        spawn(r, &m, names, n);
    else if (m.type == SG_AGENT_OPEN)
        open_file(r, &m, names, n);
    else if (m.type == SG_AGENT_LIST && one)
        with_answer(r, &m, ASK_LIST, names[0]);
    else if (m.type == SG_AGENT_SOCKET && one)
        with_answer(r, &m, ASK_SOCKET, names[0]);
    else if (m.type == SG_AGENT_ACCEPT && one)
        relay_accept(r, ask_new(r, m.id, ASK_ACCEPT), names[0]);
    else if (m.type == SG_AGENT_LISTEN && n == 0)
        relay_listen(r, &m);
    else if (m.type == SG_AGENT_RESIZE && n == 0)
        relay_terminal_resize(r, &m);
    else if (n == 0 && nfds == 0)
        post(r, data, len, NULL, 0);
    else
        relay_die(EXIT_PROTOCOL, "a question came with channels that it has no use for");
    return true;
}

static void keep(struct relay *r, const uint32_t *names, unsigned n, const void *data, size_t len)
{
    struct gated *g = malloc(sizeof *g + len);
    if (g == NULL)
        relay_die(EXIT_SETUP, "no memory");
    g->n = n;
    g->len = len;
    if (n > 0)
        memcpy(g->names, names, n * sizeof *names);
    memcpy(g->data, data, len);
    DL_APPEND(r->gated, g);
}

/* What names new channels does not wait: their bytes come right behind it. */
static bool waits(unsigned n, const void *data, size_t len)
{
    return n == 0 || (len > 1 && ((const unsigned char *)data)[1] == SG_AGENT_COMMIT);
}

int relay_take(void *arg, const uint32_t *names, unsigned n, const void *data, size_t len)
{
    struct relay *r = arg;
    if ((r->gate != NULL && waits(n, data, len)) || !take(r, names, n, data, len))
        keep(r, names, n, data, len);
    return 0;
}

void relay_ungate(struct relay *r)
{
    if (r->gate == NULL || !r->gate->answered || !r->gate->complete)
        return;
    r->gate = NULL;
    for (struct gated *g = r->gated; g != NULL && take(r, g->names, g->n, g->data, g->len); g = r->gated) {
        DL_DELETE(r->gated, g);
        free(g);
    }
}

void relay_received(void *arg, struct sg_mux_channel *c, int error)
{
    struct relay *r = arg;
    struct ask *k = sg_mux_owner(c);
    if (k != NULL && k->terminal != NULL && error == 0)
        relay_terminal_no_more(r, k, c);
    if (k == NULL || (k->kind != ASK_STAGE && k->kind != ASK_BLOB))
        return;
    k->fd = sg_mux_take(r->mux, c);
    k->complete = true;
    k->error = k->error != 0 ? k->error : error;
    relay_ungate(r);
}
