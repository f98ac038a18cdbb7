/* The server's end of a command's terminal: its master. */
#include "backends/agent/client_exec_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>

#include "base/clock.h"

#ifndef TIOCGPTPEER
#define TIOCGPTPEER _IO('T', 0x41)
#endif

#define CLOSE_AGAIN_MS 20

/* A single one only sends off a line that was begun. */
#define ENDS 2U

void sg_agent_terminal_unfit(struct sg_agent_exec *x, const char *why)
{
    if (x->unfit.code == SG_OK)
        sg_error_set(&x->unfit, SG_OUTCOME_UNKNOWN, "the command was killed at its start: its terminal could not be taken over (%s)", why);
}

int sg_agent_terminal_take(struct sg_agent_exec *x, int fd)
{
    bool far = x->agent->o.far; /* its relay has the terminal, and this is a way there */
    if (x->state != STARTING || !x->tty || x->master >= 0 || x->unfit.code != SG_OK || (!far && sg_agent_check_terminal(fd) != NULL)) {
        sg_close(fd);
        return -1;
    }
    x->in.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (x->in.fd < 0) {
        sg_agent_terminal_unfit(x, "the server is out of descriptors");
        sg_close(fd);
        return 0;
    }
    /* Without it the terminal counts as ended whenever no process has it open. */
    x->slave = far ? -1 : ioctl(fd, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    x->out.watch.fd = fd;
    pthread_mutex_lock(&x->lock);
    x->master = fd;
    pthread_mutex_unlock(&x->lock);
    return 0;
}

void sg_agent_terminal_let_go(struct sg_agent_exec *x)
{
    if (x->slave >= 0)
        x->slave = sg_close(x->slave);
}

int sg_agent_terminal_type_end(struct sg_agent_exec *x)
{
    struct termios t;
    if (x->agent->o.far)
        return shutdown(x->in.fd, SHUT_WR) != 0 ? -errno : 0;
    if (tcgetattr(x->in.fd, &t) != 0)
        return -errno;
    char end = (char)t.c_cc[VEOF];
    while (x->ends_typed < ENDS && end != (char)_POSIX_VDISABLE) {
        ssize_t n = write(x->in.fd, &end, 1);
        if (n <= 0)
            return n == 0 || errno == EAGAIN ? -ENOBUFS : -errno;
        x->ends_typed++;
    }
    return 0;
}

static int terminal_ended(struct sg_error *err)
{
    return sg_error_set(err, SG_CONFLICT, "the command's terminal has ended");
}

/* ---- what may have to wait for processes of the sandbox ---- */

struct job {
    struct sg_work work;
    struct sg_timer again; /* the workers had too much to do */
    struct sg_agent *agent; /* a reference: its hold stays until fd is closed */
    int fd;
    struct winsize size; /* of a resize */
    struct sg_done done; /* of a resize; fn NULL: fd is only closed */
};

static void job_run(struct sg_work *w)
{
    struct job *j = sg_container_of(w, struct job, work);
    struct sg_error err = {0};
    bool failed = j->done.fn != NULL && ioctl(j->fd, TIOCSWINSZ, &j->size) != 0;
    if (failed)
        sg_error_sys(&err, SG_INTERNAL, errno, "cannot resize the terminal");
    sg_close(j->fd);
    sg_agent_unref(j->agent);
    if (j->done.fn != NULL)
        j->done.fn(j->done.arg, failed ? &err : NULL);
    sg_error_clear(&err);
    free(j);
}

static void close_again(struct sg_timer *t);

static struct job *job_new(struct sg_agent_exec *x, int fd)
{
    struct job *j = sg_xcalloc(1, sizeof *j);
    j->work.run = job_run;
    j->again.fire = close_again;
    j->agent = sg_agent_ref(x->agent);
    j->fd = fd;
    return j;
}

static void close_later(struct job *j)
{
    if (sg_workq_submit(j->agent->workq, &j->work, NULL) < 0)
        sg_timer_set(j->agent->reactor, &j->again, sg_now_ms() + CLOSE_AGAIN_MS);
}

static void close_again(struct sg_timer *t)
{
    close_later(sg_container_of(t, struct job, again));
}

void sg_agent_terminal_close(struct sg_agent_exec *x, int fd)
{
    if (fd < 0)
        return;
    pthread_mutex_lock(&x->lock);
    if (x->master == fd)
        x->master = -1;
    pthread_mutex_unlock(&x->lock);
    if (x->agent->o.far)
        sg_close(fd);
    else
        close_later(job_new(x, fd));
}

/* ---- a terminal that a relay has ---- */

struct far_resize {
    struct sg_call call;
    struct sg_done done;
};

static int far_resized(struct sg_call *c, const struct sg_agent_msg *m, int fd, const struct sg_error *err)
{
    struct far_resize *z = sg_container_of(c, struct far_resize, call);
    struct sg_error why = {0};
    (void)fd;
    if (m == NULL)
        sg_error_copy(&why, err);
    else if (m->u.done.error != 0)
        terminal_ended(&why);
    z->done.fn(z->done.arg, why.code != SG_OK ? &why : NULL);
    sg_error_clear(&why);
    free(z);
    return 0;
}

static int far_resize(struct sg_agent_exec *x, unsigned rows, unsigned cols, const struct sg_done *done, struct sg_error *err)
{
    struct sg_agent_msg m = {.type = SG_AGENT_RESIZE, .u.resize = {x->call.id, rows, cols}};
    struct far_resize *z = sg_xcalloc(1, sizeof *z);
    *z = (struct far_resize){.call = {.answer = far_resized}, .done = *done};
    if (sg_agent_call(x->agent, &z->call, &m, NULL, err) == 0)
        return 0;
    free(z);
    return -1;
}

static int terminal_dup(struct sg_agent_exec *x, int *ret, struct sg_error *err)
{
    pthread_mutex_lock(&x->lock);
    bool open = x->master >= 0;
    bool far = x->agent->o.far;
    *ret = open && !far ? fcntl(x->master, F_DUPFD_CLOEXEC, 0) : -1;
    int e = errno;
    pthread_mutex_unlock(&x->lock);
    if (!open)
        return terminal_ended(err);
    if (!far && *ret < 0) {
        sg_error_sys(err, SG_OVERLOADED, e, "cannot resize the terminal");
        return sg_error_retry_after(err, 1);
    }
    return 0;
}

int sg_agent_terminal_resize(struct sg_exec *pub, unsigned rows, unsigned cols, const struct sg_done *done, struct sg_error *err)
{
    struct sg_agent_exec *x = (struct sg_agent_exec *)pub;
    int fd;
    if (terminal_dup(x, &fd, err) < 0)
        return -1;
    if (x->agent->o.far)
        return far_resize(x, rows, cols, done, err);
    struct job *j = job_new(x, fd);
    j->size = (struct winsize){.ws_row = (unsigned short)rows, .ws_col = (unsigned short)cols};
    j->done = *done;
    if (sg_workq_submit(x->agent->workq, &j->work, err) == 0)
        return 0;
    sg_close(fd);
    sg_agent_unref(j->agent);
    free(j);
    return -1;
}
