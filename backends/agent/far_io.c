/* Contents on their way, in files of this machine: workers read and write them, as a disk may take its time. */
#include "backends/agent/far_priv.h"

#include <errno.h>
#include <unistd.h>

#include "base/clock.h"

#define READ_BYTES ((size_t)256 * 1024)
#define AGAIN_MS 20 /* the workers had too much to do */

struct far_io {
    struct sg_work work;
    struct sg_task task;
    struct sg_timer again;
    struct far *f; /* a reference while it is at work, borrowed else */
    uint32_t channel;
    int fd;
    bool out;          /* from the file to the relay */
    bool busy, orphan; /* at work; nobody wants it any more */

    /* the worker's while it is busy */
    char *buf;
    size_t len; /* of what is to be written, or the most to be read */
    size_t done;
    off_t at;
    int error;
};

static void io_free(struct far_io *io)
{
    (void)sg_close(io->fd);
    free(io->buf);
    free(io);
}

/* ---- on a worker ---- */

static bool only_zeros(const char *p, size_t n)
{
    return p[0] == 0 && memcmp(p, p + 1, n - 1) == 0;
}

/* A hole stays one, so that what takes no room in the sandbox takes none here. */
static void write_it(struct far_io *io)
{
    if (only_zeros(io->buf, io->len)) {
        io->error = ftruncate(io->fd, io->at + (off_t)io->len) < 0 ? errno : 0;
        io->done = io->len;
        return;
    }
    while (io->done < io->len && io->error == 0) {
        ssize_t n = pwrite(io->fd, io->buf + io->done, io->len - io->done, io->at + (off_t)io->done);
        if (n > 0) {
            io->done += (size_t)n;
        } else if (n == 0 || errno != EINTR) {
            io->error = n == 0 ? EIO : errno;
        }
    }
}

static void read_it(struct far_io *io)
{
    while (io->done < io->len && io->error == 0) {
        ssize_t n = pread(io->fd, io->buf + io->done, io->len - io->done, io->at + (off_t)io->done);
        if (n > 0) {
            io->done += (size_t)n;
        } else if (n == 0) {
            return;
        } else if (errno != EINTR) {
            io->error = errno;
        }
    }
}

static void work(struct sg_work *w)
{
    struct far_io *io = sg_container_of(w, struct far_io, work);
    io->done = 0;
    io->error = 0;
    if (io->out) {
        io->buf = sg_xcalloc(1, io->len);
        read_it(io);
    } else {
        write_it(io);
    }
    sg_reactor_post(io->f->reactor, &io->task);
}

/* ---- on the reactor ---- */

static void give(struct far_io *io)
{
    if (sg_workq_submit(io->f->agent->workq, &io->work, NULL) < 0) {
        sg_timer_set(io->f->reactor, &io->again, sg_now_ms() + AGAIN_MS);
    }
}

static void give_again(struct sg_timer *t)
{
    give(sg_container_of(t, struct far_io, again));
}

static void begin(struct far_io *io)
{
    io->busy = true;
    far_ref(io->f);
    give(io);
}

static void send_it(struct far_io *io, struct sg_mux_channel *c)
{
    struct sg_mux *m = io->f->mux;
    for (size_t at = 0, n; at < io->done; at += n) {
        n = io->done - at < SG_MUX_DATA_MAX ? io->done - at : SG_MUX_DATA_MAX;
        sg_mux_say(m, c, io->buf + at, n);
    }
    io->at += (off_t)io->done;
    free(io->buf);
    io->buf = NULL;
    if (io->done < io->len) {
        sg_mux_end(m, c); /* the last of it; on a fault of the disk the relay has less than the packet says, and refuses it */
    } else {
        sg_mux_rouse(m, c);
    }
}

static void over(struct sg_task *t)
{
    struct far_io *io = sg_container_of(t, struct far_io, task);
    struct far *f = io->f;
    struct sg_mux_channel *c = f->over || io->orphan ? NULL : sg_mux_find(f->mux, io->channel);
    io->busy = false;
    if (io->orphan) {
        io_free(io);
    } else if (c != NULL && io->out) {
        send_it(io, c);
    } else if (c != NULL) {
        io->at += (off_t)io->len;
        free(io->buf);
        io->buf = NULL;
        sg_mux_took(f->mux, c, io->len, io->error);
    }
    far_wake(f);
    far_unref(f);
}

void far_io_moved(struct far_io *io, struct sg_mux_channel *c)
{
    if (io->busy) {
        return;
    }
    if (io->out) {
        io->len = sg_mux_allowed(io->f->mux, c);
        io->len = io->len < READ_BYTES ? io->len : READ_BYTES;
    } else {
        io->buf = sg_mux_grab(io->f->mux, c, &io->len);
    }
    if (io->len > 0) {
        begin(io);
    }
}

struct far_io *far_io_new(struct far *f, uint32_t channel, int fd, bool out)
{
    struct far_io *io = sg_xcalloc(1, sizeof *io);
    io->work.run = work;
    io->task.run = over;
    io->again.fire = give_again;
    io->f = f;
    io->channel = channel;
    io->fd = fd;
    io->out = out;
    return io;
}

int far_io_take(struct far_io *io)
{
    return sg_steal_fd(&io->fd);
}

struct far_io *far_io_free(struct far_io *io)
{
    if (io != NULL && io->busy) {
        io->orphan = true;
    } else if (io != NULL) {
        io_free(io);
    }
    return NULL;
}
