/* What is known of commands, and what can be done to them from outside. */
#include "service/execs_priv.h"

#include <stdio.h>

const char *sg_exec_state_name(enum sg_exec_state s)
{
    static const char *const names[] = {"running", "finished", "killed", "timed_out", "lost"};

    return names[s];
}

/* Under the lock. has_result says whether there is one; it is not filled in. */
static void fill_info(const struct sg_command *c, struct sg_exec_info *i)
{
    *i = (struct sg_exec_info){.seq = c->seq, .state = c->state, .started_us = c->started_us, .tty = c->tty};
    snprintf(i->exec_id, sizeof i->exec_id, "%s", c->id);
    i->has_result = c->state != SG_EXEC_RUNNING && c->state != SG_EXEC_LOST;
}

void sg_command_info(struct sg_command *c, struct sg_exec_info *i)
{
    pthread_mutex_lock(&c->s->execs->lock);
    fill_info(c, i);
    pthread_mutex_unlock(&c->s->execs->lock);
    if (i->has_result)
        sg_command_result(c, &i->result);
}

void sg_command_info_end(struct sg_exec_info *i)
{
    sg_hold_unref(i->result.keep);
}

static struct sg_command *get(struct sg_execs *x, struct sg_entry *lease, const char *id, struct sg_error *err)
{
    pthread_mutex_lock(&x->lock);
    struct sg_command *c = sg_commands_find(x, lease, id);
    if (c)
        c->refs++;
    pthread_mutex_unlock(&x->lock);
    if (!c)
        sg_error_set(err, SG_NOT_FOUND, "the lease has no exec of that id, running or kept");
    return c;
}

int sg_service_exec_get(struct sg_service *s, struct sg_entry *lease, const char *id,
                        void (*fn)(void *arg, const struct sg_exec_info *i), void *arg, struct sg_error *err)
{
    struct sg_command *c = get(s->execs, lease, id, err);
    struct sg_exec_info info;

    if (!c)
        return -1;
    sg_command_info(c, &info);
    fn(arg, &info);
    sg_command_info_end(&info);
    sg_command_unref(c);
    return 0;
}

void sg_service_exec_list(struct sg_service *s, struct sg_entry *lease, uint64_t after, size_t limit,
                          void (*fn)(void *arg, const struct sg_exec_info *i), void *arg, bool *ret_more)
{
    struct sg_execs *x = s->execs;
    struct sg_command *c;
    size_t n = 0;

    *ret_more = false;
    pthread_mutex_lock(&x->lock);
    struct sg_lease_commands *l = sg_commands_of(x, sg_entry_id(lease));
    if (l)
        DL_FOREACH(l->list, c)
        {
            struct sg_exec_info info;
            if (c->seq <= after || sg_commands_too_old(x, c))
                continue;
            if (n++ == limit) {
                *ret_more = true;
                break;
            }
            fill_info(c, &info);
            fn(arg, &info);
        }
    pthread_mutex_unlock(&x->lock);
}

static int new_reader(struct sg_command *c, uint64_t after, bool attached, struct sg_exec_reader **ret, struct sg_error *err)
{
    return c->log ? sg_exec_reader_new(c->log, after, attached, ret, err)
                  : sg_error_set(err, SG_CONFLICT, "the command was started without an exec_id: its output goes to its caller alone");
}

int sg_service_exec_follow(struct sg_service *s, struct sg_entry *lease, const char *id, uint64_t after,
                           struct sg_exec_reader **ret, struct sg_error *err)
{
    struct sg_command *c = get(s->execs, lease, id, err);

    if (!c)
        return -1;
    int rc = new_reader(c, after, false, ret, err);
    sg_command_unref(c);
    return rc;
}

int sg_service_exec_attach(struct sg_service *s, struct sg_entry *lease, const char *id, uint64_t after, struct sg_exec_reader **ret,
                           struct sg_error *err)
{
    struct sg_command *c = get(s->execs, lease, id, err);

    if (!c)
        return -1;
    pthread_mutex_lock(&s->execs->lock);
    bool tty = c->tty.rows > 0;
    pthread_mutex_unlock(&s->execs->lock);
    int rc = tty ? new_reader(c, after, true, ret, err) : sg_error_set(err, SG_NO_TTY, "the command was started without a tty");
    sg_command_unref(c);
    return rc;
}

int sg_service_exec_kill(struct sg_service *s, struct sg_entry *lease, const char *id, struct sg_error *err)
{
    struct sg_command *c = get(s->execs, lease, id, err);

    if (!c)
        return -1;
    sg_command_kill(c, SG_KILLED_CALLER);
    sg_command_unref(c);
    return 0;
}

int sg_service_exec_signal(struct sg_service *s, struct sg_entry *lease, const char *id, int signo, struct sg_error *err)
{
    struct sg_command *c = get(s->execs, lease, id, err);

    if (!c)
        return -1;
    pthread_mutex_lock(&s->execs->lock);
    bool started = c->started;
    pthread_mutex_unlock(&s->execs->lock);
    int rc = started ? sg_run_signal(c->run, signo, err)
                     : sg_error_set(err, SG_CONFLICT, "the command is only just starting; send the signal again");
    sg_command_unref(c);
    return rc;
}

/* ---- the size of its terminal ---- */

struct resize {
    struct sg_command *cmd;
    struct sg_tty_size size;
    struct sg_done done;
};

static void resized(void *arg, const struct sg_error *err)
{
    struct resize *z = arg;

    if (!err) {
        pthread_mutex_lock(&z->cmd->s->execs->lock);
        z->cmd->tty = z->size;
        pthread_mutex_unlock(&z->cmd->s->execs->lock);
    }
    z->done.fn(z->done.arg, err);
    sg_command_unref(z->cmd);
    free(z);
}

static int may_resize(struct sg_command *c, struct sg_error *err)
{
    pthread_mutex_lock(&c->s->execs->lock);
    bool tty = c->tty.rows > 0, started = c->started && c->exists, running = c->state == SG_EXEC_RUNNING;
    pthread_mutex_unlock(&c->s->execs->lock);
    if (!tty)
        return sg_error_set(err, SG_NO_TTY, "the command was started without a tty");
    if (!running)
        return sg_error_set(err, SG_CONFLICT, "the command has ended");
    return started ? 0 : sg_error_set(err, SG_CONFLICT, "the command is only just starting; resize it again");
}

int sg_service_exec_resize(struct sg_service *s, struct sg_entry *lease, const char *id, struct sg_tty_size size,
                           const struct sg_done *done, struct sg_error *err)
{
    struct sg_command *c = get(s->execs, lease, id, err);

    if (!c)
        return -1;
    if (may_resize(c, err) < 0) {
        sg_command_unref(c);
        return -1;
    }
    struct resize *z = sg_xcalloc(1, sizeof *z);
    *z = (struct resize){.cmd = c, .size = size, .done = *done};
    if (sg_run_resize(c->run, size, &(struct sg_done){resized, z}, err) == 0)
        return 0;
    sg_command_unref(c);
    free(z);
    return -1;
}
