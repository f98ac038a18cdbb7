/* What the relay says, for the client; all of it is hostile. */
#include "backends/agent/far_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static void tell(struct far *f, const void *data, size_t len, int fd)
{
    (void)sg_agent_post(&f->client, data, len, &fd, fd >= 0 ? 1 : 0); /* a client that is gone is heard of where it is read */
}

void far_done(struct far *f, struct sg_agent_msg *m, int fd)
{
    unsigned char data[SG_AGENT_REQUEST_MAX];
    m->nfds = fd >= 0 ? 1 : 0;
    tell(f, data, sg_agent_encode(m, data, sizeof data), fd);
}

void far_spawn_failed(struct far *f, uint64_t id, uint32_t error)
{
    unsigned char data[64];
    struct sg_agent_msg m = {.type = SG_AGENT_SPAWN_FAILED, .id = id, .u.failed = {SG_AGENT_STAGE_TTY, error}};
    tell(f, data, sg_agent_encode(&m, data, sizeof data), -1);
}

void far_refuse(struct far *f, const struct sg_agent_msg *asked, uint32_t error)
{
    struct sg_agent_msg m = {.type = SG_AGENT_DONE, .id = asked->id};
    m.u.done.error = error;
    m.u.done.text = "";
    far_done(f, &m, -1);
}

/* What has come, for reading alone; -1. */
static int reopen(int fd)
{
    char self[32];
    (void)snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    return open(self, O_RDONLY | O_CLOEXEC);
}

/* The content is what has come, whatever the answer says of it. */
static void file_for(struct far *f, struct far_call *k, struct sg_agent_msg *m)
{
    struct stat st;
    int fd = k->error == 0 ? reopen(k->fd) : -1;
    if (fd < 0 || fstat(fd, &st) < 0) {
        (void)sg_close(fd);
        far_refuse(f, m, SG_AGENT_ENOSPOOL);
        return;
    }
    m->u.done.stat.size = (uint64_t)st.st_size;
    far_done(f, m, fd);
}

/* The answer came before this machine's disk was done. */
static void tell_held(struct far *f, struct far_call *k)
{
    struct sg_agent_msg m;
    (void)sg_agent_decode(k->held, k->held_len, 1, SG_AGENT_FROM_AGENT, &m); /* as it was before */
    file_for(f, k, &m);
    far_call_free(f, k);
}

void far_received(void *arg, struct sg_mux_channel *c, int error)
{
    struct far *f = arg;
    struct far_call *k = sg_mux_owner(c);
    if (k == NULL || (k->kind != CALL_READ && k->kind != CALL_LIST))
        return;
    k->complete = true;
    k->error = error;
    sg_mux_set_owner(c, NULL);
    if (k->kind == CALL_READ)
        k->fd = far_io_take(k->io);
    if (k->held != NULL)
        tell_held(f, k);
}

void far_moved(void *arg, struct sg_mux_channel *c)
{
    bool sends = sg_mux_way(c) == SG_MUX_OUT;
    const struct far_parcel *p = sends ? sg_mux_owner(c) : NULL;
    const struct far_call *k = sends ? NULL : sg_mux_owner(c);
    (void)arg;
    if (p != NULL)
        far_io_moved(p->io, c);
    else if (k != NULL)
        far_io_moved(k->io, c);
}

/* A file: all of it has come, though it may not be on the disk yet. 0: it was answered; 1: it will be; -1. */
static int file_answered(struct far *f, struct far_call *k, struct sg_agent_msg *m, const void *data, size_t len)
{
    const struct sg_mux_channel *c = sg_mux_find(f->mux, k->channel);
    if ((m->u.done.flags & SG_AGENT_DONE_STAT) == 0 || k->held != NULL)
        return -1;
    if (k->complete) {
        file_for(f, k, m);
        return 0;
    }
    if (c == NULL || !sg_mux_ended(c))
        return -1;
    k->held = sg_xcalloc(1, len);
    k->held_len = len;
    memcpy(k->held, data, len);
    return 1;
}

/* A connection from inside: its bytes come behind this. */
static int accepted(struct far *f, struct far_call *k, const struct sg_agent_msg *m, const void *data, size_t len)
{
    struct sg_mux_channel *c = sg_mux_find(f->mux, k->channel);
    if (c == NULL || sg_mux_owner(c) != k)
        return -1;
    int fd = far_make_end(f, k);
    if (fd < 0) {
        far_refuse(f, m, EMFILE);
        sg_mux_abort(f->mux, c);
        return 0;
    }
    if (sg_mux_attach(f->mux, c, fd) < 0)
        return -1;
    tell(f, data, len, sg_steal_fd(&k->fd));
    return 0;
}

/* As file_answered(). */
static int answered(struct far *f, struct far_call *k, struct sg_agent_msg *m, const void *data, size_t len)
{
    bool good = m->u.done.error == 0;
    if (m->nfds != (good && k->kind != CALL_LIST ? 1U : 0U))
        return -1;
    if (!good || k->kind == CALL_LIST) {
        tell(f, data, len, -1);
        return good && !k->complete ? -1 : 0;
    }
    if (k->kind == CALL_CONTENT && (m->u.done.flags & SG_AGENT_DONE_STAT) == 0)
        return -1;
    if (k->kind == CALL_SOCKET || k->kind == CALL_CONTENT) {
        tell(f, data, len, sg_steal_fd(&k->fd));
        return 0;
    }
    if (k->kind == CALL_ACCEPT)
        return accepted(f, k, m, data, len);
    if (k->kind == CALL_READ)
        return file_answered(f, k, m, data, len);
    if ((m->u.done.flags & SG_AGENT_DONE_NAMED) != 0)
        return -1;
    int fd = far_spool(f);
    if (fd < 0)
        far_refuse(f, m, SG_AGENT_ENOSPOOL);
    else
        tell(f, data, len, fd);
    return 0;
}

int far_packet(void *arg, const uint32_t *names, unsigned n, const void *data, size_t len)
{
    struct far *f = arg;
    struct sg_agent_msg m;
    uint16_t nfds = 0;
    (void)names;
    (void)n;
    if (len >= SG_AGENT_HEADER)
        memcpy(&nfds, (const char *)data + 2, sizeof nfds);
    if (sg_agent_other_version(data, len)) { /* the client says so */
        tell(f, data, len, -1);
        return 0;
    }
    if (sg_agent_decode(data, len, nfds, SG_AGENT_FROM_AGENT, &m) < 0)
        return -1;
    struct far_call *k = far_call_find(f, m.id);
    bool of_terminal = k != NULL && k->kind == CALL_TERMINAL;
    if (of_terminal && (m.type == SG_AGENT_TERMINAL || m.type == SG_AGENT_SPAWN_FAILED)) {
        tell(f, data, len, m.type == SG_AGENT_TERMINAL ? sg_steal_fd(&k->fd) : -1);
        far_call_free(f, k);
        return 0;
    }
    if (of_terminal && m.type == SG_AGENT_DONE)
        return -1;
    if (k != NULL && m.type == SG_AGENT_DONE) {
        int rc = answered(f, k, &m, data, len);
        if (rc <= 0)
            far_call_free(f, k);
        return rc < 0 ? -1 : 0;
    }
    if (nfds != 0)
        return -1;
    tell(f, data, len, -1);
    return 0;
}

int far_oom(void *arg, uint64_t id)
{
    struct far *f = arg;
    f->agent->oom_id = id;
    return 0;
}
