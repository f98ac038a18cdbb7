#include "service/typing.h"

#include "service/execs_priv.h"

struct sg_typist {
    struct sg_command *cmd; /* a reference */
    struct sg_fan_seat seat;
};

/* The table's lock is held. */
static int takes_input(const struct sg_command *c, struct sg_error *err)
{
    if (c->tty.rows == 0)
        return sg_error_set(err, SG_NO_TTY, "the command was started without a tty");
    if (c->state != SG_EXEC_RUNNING)
        return sg_error_set(err, SG_CONFLICT, "the command has ended");
    if (!c->started || !c->exists) {
        sg_error_set(err, SG_CONFLICT, "the command is only just starting; try again");
        return sg_error_reason(err, "starting");
    }
    if (!c->typing || !sg_run_stdin(c->run))
        return sg_error_set(err, SG_CONFLICT, "the command's input was given when it started; only a detached command without one takes more");
    return 0;
}

int sg_service_type(struct sg_service *s, struct sg_entry *lease, const char *exec_id, const struct sg_waker *wake, struct sg_typist **ret,
                    struct sg_error *err)
{
    struct sg_execs *x = s->execs;

    pthread_mutex_lock(&x->lock);
    struct sg_command *c = sg_commands_find(x, lease, exec_id);
    if (!c)
        sg_error_set(err, SG_NOT_FOUND, "the lease has no exec of that id, running or kept");
    else if (takes_input(c, err) < 0)
        c = NULL;
    else
        c->refs++;
    pthread_mutex_unlock(&x->lock);
    if (!c)
        return -1;
    struct sg_typist *t = sg_xcalloc(1, sizeof *t);
    t->cmd = c;
    t->seat.waker = *wake;
    sg_fan_join(c->typing, &t->seat);
    *ret = t;
    return 0;
}

ssize_t sg_typist_write(struct sg_typist *t, const void *data, size_t len)
{
    return sg_pipe_write(sg_run_stdin(t->cmd->run), data, len);
}

struct sg_typist *sg_typist_free(struct sg_typist *t)
{
    if (!t)
        return NULL;
    sg_fan_leave(t->cmd->typing, &t->seat);
    sg_command_unref(t->cmd);
    free(t);
    return NULL;
}
