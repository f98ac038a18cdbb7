/* A request's body on its way into a command's standard input: from one bounded pipe into another, moved by whoever wakes it. `busy` says that
 * a thread is moving, `again` that there was news meanwhile. */
#include "service/stdin.h"

#include <errno.h>

#include "service/execs_priv.h"

#define PIECE ((size_t)16 * 1024)

struct feed {
    _Atomic int refs; /* its own until it is over; the hook's; the wakers' */
    struct sg_command *cmd;
    struct sg_pipe *body, *in;
    struct sg_fan_seat seat; /* for space in `in` */
    struct sg_stdin_args args;
    struct sg_cancel *cancel;
    struct sg_cancel_hook hangup;
    pthread_mutex_t lock;
    bool busy, again, over;
    _Atomic bool left; /* the caller has */
    /* The moving thread's: */
    char piece[PIECE];
    size_t len, moved; /* of the piece */
    bool body_ended;
    uint64_t taken;
};

static void feed_ref(void *arg)
{
    ((struct feed *)arg)->refs++;
}

static void feed_unref(void *arg)
{
    struct feed *f = arg;

    if (--f->refs > 0)
        return;
    sg_pipe_unref(f->body);
    sg_pipe_unref(f->in);
    sg_cancel_unref(f->cancel);
    sg_command_unref(f->cmd);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

/* ---- one at a time ---- */

/* The table's lock is held. */
static int usable(const struct sg_command *c, struct sg_error *err)
{
    if (c->state != SG_EXEC_RUNNING)
        return sg_error_set(err, SG_CONFLICT, "the command has ended");
    if (!c->started || !c->exists)
        return sg_error_set(err, SG_CONFLICT, "the command is only just starting; send it again");
    if (!sg_run_stdin(c->run))
        return sg_error_set(err, SG_CONFLICT,
                            "the command's standard input was given when it started; only a detached command without one takes more");
    if (c->stdin_closed || sg_pipe_is_over(sg_run_stdin(c->run)))
        return sg_error_set(err, SG_CONFLICT, "the command's standard input is closed");
    if (c->stdin_busy)
        return sg_error_set(err, SG_CONFLICT, "another request is writing to the command's standard input");
    return 0;
}

/* The command with a reference, its standard input ours; NULL with err. */
static struct sg_command *claim(struct sg_execs *x, const struct sg_stdin_args *a, struct sg_error *err)
{
    pthread_mutex_lock(&x->lock);
    struct sg_command *c = sg_commands_find(x, a->lease, a->exec_id);
    if (!c)
        sg_error_set(err, SG_NOT_FOUND, "the lease has no exec of that id, running or kept");
    else if (usable(c, err) < 0)
        c = NULL;
    if (c) {
        c->stdin_busy = true;
        c->refs++;
    }
    pthread_mutex_unlock(&x->lock);
    return c;
}

static void release(struct sg_command *c, bool closed)
{
    pthread_mutex_lock(&c->s->execs->lock);
    c->stdin_busy = false;
    c->stdin_closed = c->stdin_closed || closed;
    pthread_mutex_unlock(&c->s->execs->lock);
}

/* ---- moving ---- */

static void finish(struct feed *f, const struct sg_error *err)
{
    bool closed = (!err && f->args.eof) || (err && err->code == SG_CONFLICT);

    if (!err && f->args.eof)
        sg_pipe_close(f->in);
    if (sg_cancel_unhook(f->cancel, &f->hangup))
        feed_unref(f);
    sg_pipe_set_reader(f->body, NULL);
    sg_fan_leave(f->cmd->typing, &f->seat);
    sg_pipe_stop(f->body);
    release(f->cmd, closed);
    sg_entry_use_end(f->cmd->lease, !err);
    uint64_t unread = sg_pipe_dropped(f->in); /* maybe of an earlier call, whose caller left */
    f->args.done(f->args.arg, unread < f->taken ? f->taken - unread : 0, err);
    feed_unref(f);
}

static int closed(struct sg_error *err)
{
    return sg_error_set(err, SG_CONFLICT, "the command closed its standard input, or ended, before it had read everything");
}

/* What is left of the piece: 0 nothing, 1 the pipe is full, -1. */
static int write_piece(struct feed *f, struct sg_error *err)
{
    while (f->moved < f->len) {
        ssize_t n = sg_pipe_write(f->in, f->piece + f->moved, f->len - f->moved);
        if (n <= 0)
            return n == 0 ? 1 : closed(err);
        f->moved += (size_t)n;
        f->taken += (uint64_t)n;
    }
    return 0;
}

/* The next piece: 0 there is one, or the end; 1 not yet; -1. */
static int read_piece(struct feed *f, struct sg_error *err)
{
    ssize_t n = sg_pipe_read(f->body, f->piece, PIECE);

    f->len = n > 0 ? (size_t)n : 0;
    f->moved = 0;
    f->body_ended = n == 0;
    if (n >= 0)
        return 0;
    if (n == -EAGAIN && !sg_pipe_is_over(f->in))
        return 1;
    /* A command may end with the last byte, before we hear that it was the last. */
    if (n == -EAGAIN && f->args.length >= 0 && f->taken == (uint64_t)f->args.length)
        f->body_ended = true;
    if (n == -EAGAIN)
        return f->body_ended ? 0 : closed(err);
    sg_pipe_error(f->body, err);
    return -1;
}

/* As far as it goes: 0 all of it was taken; 1 something is waited for; -1. */
static int move(struct feed *f, struct sg_error *err)
{
    for (;;) {
        int rc = f->left ? sg_error_set(err, SG_CANCELLED, "the caller has left") : write_piece(f, err);
        if (rc == 0 && !f->body_ended)
            rc = read_piece(f, err);
        if (rc != 0)
            return rc;
        if (!f->body_ended)
            continue;
        int n = sg_pipe_flush(f->in); /* what lies in our own pipe was not taken */
        return n == 0 ? 0 : n == -EAGAIN ? 1 : closed(err);
    }
}

/* True when nothing happened meanwhile: then whoever brings news goes on. */
static bool rest(struct feed *f, bool over)
{
    pthread_mutex_lock(&f->lock);
    f->over = over;
    bool stop = over || !f->again;
    f->again = false;
    f->busy = !stop;
    pthread_mutex_unlock(&f->lock);
    return stop;
}

static void pump(void *arg)
{
    struct feed *f = arg;
    struct sg_error err = {0};
    int rc;

    pthread_mutex_lock(&f->lock);
    bool mine = !f->busy && !f->over;
    f->again = !mine;
    f->busy = f->busy || mine;
    pthread_mutex_unlock(&f->lock);
    if (!mine)
        return;
    do {
        rc = move(f, &err);
    } while (!rest(f, rc <= 0));
    if (rc <= 0)
        finish(f, rc < 0 ? &err : NULL);
    sg_error_clear(&err);
}

static void hung_up(struct sg_cancel_hook *h, enum sg_cancel_reason why SG_UNUSED)
{
    struct feed *f = sg_container_of(h, struct feed, hangup);

    f->left = true;
    pump(f);
    feed_unref(f);
}

int sg_service_stdin(struct sg_service *s, const struct sg_stdin_args *args, struct sg_error *err)
{
    if (sg_entry_use_begin(args->lease, NULL, err) < 0)
        return -1;
    struct sg_command *c = claim(s->execs, args, err);
    if (!c) {
        sg_entry_use_end(args->lease, false);
        return -1;
    }
    struct feed *f = sg_xcalloc(1, sizeof *f);
    struct sg_waker w = {.wake = pump, .ref = feed_ref, .unref = feed_unref, .arg = f};
    f->refs = 3; /* its own, the hook's, ours here */
    f->cmd = c;
    f->in = sg_pipe_ref(sg_run_stdin(c->run));
    f->args = *args;
    f->cancel = sg_cancel_ref(args->cancel);
    f->hangup.fired = hung_up;
    f->busy = true; /* until everything is connected */
    pthread_mutex_init(&f->lock, NULL);
    f->body = sg_pipe_ref(args->body(args->arg));
    sg_cancel_hook(f->cancel, &f->hangup);
    sg_pipe_set_reader(f->body, &w);
    f->seat.waker = w;
    sg_fan_join(f->cmd->typing, &f->seat);
    pthread_mutex_lock(&f->lock);
    f->busy = false;
    pthread_mutex_unlock(&f->lock);
    pump(f);
    feed_unref(f);
    return 0;
}
