/* Running commands: their start, their callers, their end. */
#include "service/execs_priv.h"

#include "base/clock.h"

#include <stdio.h>

struct sg_run_memory *sg_execs_memory(struct sg_execs *x)
{
    return &x->memory;
}

struct sg_execs *sg_execs_new(struct sg_service *s)
{
    struct sg_execs *x = sg_xcalloc(1, sizeof *x);

    x->s = s;
    x->memory.max = s->cfg.exec_memory_max;
    pthread_mutex_init(&x->lock, NULL);
    return x;
}

void sg_command_unref(struct sg_command *c)
{
    if (--c->refs > 0)
        return;
    sg_run_unref(c->run);
    sg_exec_log_unref(c->log);
    sg_fan_unref(c->typing);
    sg_exec_request_finish(&c->request);
    sg_entry_unref(c->lease);
    sg_error_clear(&c->failure);
    free(c);
}

static void caller_unref(struct sg_caller *a)
{
    if (--a->refs > 0)
        return;
    sg_cancel_unref(a->cancel);
    sg_exec_reader_free(a->reader);
    sg_command_unref(a->cmd);
    free(a);
}

struct sg_execs *sg_execs_free(struct sg_execs *x)
{
    struct sg_lease_commands *l, *tmp;

    if (!x)
        return NULL;
    HASH_ITER(hh, x->leases, l, tmp)
    {
        HASH_DEL(x->leases, l);
        sg_commands_let_go(l->list);
        free(l);
    }
    pthread_mutex_destroy(&x->lock);
    free(x);
    return NULL;
}

/* ---- killing ---- */

void sg_command_kill(struct sg_command *c, enum sg_killed_by why)
{
    struct sg_execs *x = c->s->execs;

    pthread_mutex_lock(&x->lock);
    bool started = c->started;
    if (!started && c->early_kill == SG_KILLED_NOT)
        c->early_kill = why;
    pthread_mutex_unlock(&x->lock);
    if (started)
        sg_run_kill(c->run, why);
}

/* The lease ends: a running command is killed, a kept result is dropped. */
static void lease_ended(struct sg_cancel_hook *h, enum sg_cancel_reason why SG_UNUSED)
{
    struct sg_command *c = sg_container_of(h, struct sg_command, lease_end);
    struct sg_execs *x = c->s->execs;

    sg_command_kill(c, SG_KILLED_LEASE_END);
    pthread_mutex_lock(&x->lock);
    bool drop = c->listed && c->state != SG_EXEC_RUNNING;
    if (drop)
        sg_commands_remove(x, c);
    pthread_mutex_unlock(&x->lock);
    if (drop)
        sg_command_unref(c);
    sg_command_unref(c);
}

/* A caller went away; the last one takes the command with it. */
static void caller_hung_up(struct sg_cancel_hook *h, enum sg_cancel_reason why)
{
    struct sg_caller *a = sg_container_of(h, struct sg_caller, hangup);
    struct sg_command *c = a->cmd;
    bool others = false;
    struct sg_caller *o;

    pthread_mutex_lock(&c->s->execs->lock);
    DL_FOREACH(c->callers, o)
    others |= o != a && (!o->cancel || sg_cancel_fired(o->cancel) == SG_CANCEL_NONE);
    pthread_mutex_unlock(&c->s->execs->lock);
    if (!others)
        sg_command_kill(c, why == SG_CANCEL_SHUTDOWN ? SG_KILLED_LEASE_END : SG_KILLED_HANGUP);
    caller_unref(a);
}

/* ---- the start of its process ---- */

static void tell(struct sg_caller *a)
{
    struct sg_exec_info info;

    sg_command_info(a->cmd, &info);
    a->started(a->arg, &info, sg_steal(&a->reader));
    sg_command_info_end(&info);
}

/* Tells those that wait for it: once its process exists, and whatever they may then ask of it can be done. */
static void tell_started(struct sg_command *c)
{
    struct sg_caller *a, *list = NULL;

    pthread_mutex_lock(&c->s->execs->lock);
    if (c->exists && c->started)
        DL_FOREACH(c->callers, a)
        {
            if (!a->started || a->told)
                continue;
            a->told = true;
            a->refs++;
            a->tell_next = list;
            list = a;
        }
    pthread_mutex_unlock(&c->s->execs->lock);
    while ((a = list)) {
        list = a->tell_next;
        tell(a);
        caller_unref(a);
    }
}

static void process_exists(void *arg)
{
    struct sg_command *c = arg;

    if (c->log) {
        sg_cleanup(sg_free_p) char *text = sg_exec_start_text(c->id, c->request.command, c->timeout_ms, c->started_us);
        sg_exec_log_start(c->log, text);
        sg_exec_log_wake(c->log);
    }
    pthread_mutex_lock(&c->s->execs->lock);
    c->exists = true;
    pthread_mutex_unlock(&c->s->execs->lock);
    tell_started(c);
}

/* ---- the end of a command ---- */

void sg_command_result(struct sg_command *c, struct sg_exec_result *r)
{
    *r = (struct sg_exec_result){.exec_id = c->id, .command = c->request.command, .timeout_ms = c->timeout_ms};
    sg_run_outcome(c->run, r);
}

static void tell_ended(struct sg_service *s, const struct sg_exec_result *r, const struct sg_error *err)
{
    if (s->parts.exec_ended)
        s->parts.exec_ended(s->parts.exec_ended_arg, r, err);
}

/* r NULL: err. A caller that is only just being hooked unhooks itself. */
static void answer_all(struct sg_caller *callers, const struct sg_exec_result *r, const struct sg_error *err)
{
    struct sg_caller *a, *tmp;

    DL_FOREACH_SAFE(callers, a, tmp)
    {
        DL_DELETE(callers, a);
        a->answered = true;
        if (a->cancel && sg_cancel_unhook(a->cancel, &a->hangup))
            caller_unref(a);
        if (a->started && !a->told && a->cmd->exists)
            tell(a);
        else if (!a->told)
            a->done(a->arg, r, err);
        caller_unref(a);
    }
}

static enum sg_exec_state end_state(const struct sg_exec_result *r)
{
    if (!r)
        return SG_EXEC_LOST;
    if (r->exit.killed_by == SG_KILLED_TIMEOUT)
        return SG_EXEC_TIMED_OUT;
    return r->exit.killed_by == SG_KILLED_NOT ? SG_EXEC_FINISHED : SG_EXEC_KILLED;
}

/* What a kept command needs no more; what it keeps counts. */
static void strip(struct sg_command *c)
{
    struct sg_exec_request *q = &c->request;

    c->weight = sizeof *c;
    for (size_t i = 0; q->argv && q->argv[i]; i++)
        c->weight += strlen(q->argv[i]) + 64; /* they live on in `command` */
    struct sg_exec_request rest = {.command = sg_json_ref(q->command)};
    memcpy(rest.hash, q->hash, sizeof rest.hash);
    sg_exec_request_finish(q);
    *q = rest;
}

/* Marks the command ended and takes its callers. Its result is kept when its id was chosen, something was started and its lease
 * lives. */
static struct sg_caller *settle(struct sg_command *c, const struct sg_exec_result *r, const struct sg_error *err,
                                struct sg_command **ret_dropped)
{
    struct sg_execs *x = c->s->execs;
    sg_cleanup(sg_free_p) char *text = !c->log ? NULL : r ? sg_exec_exit_text(r) : sg_exec_error_text(err);

    pthread_mutex_lock(&x->lock);
    if (c->log) /* in one step with the state: who sees one sees the other */
        sg_exec_log_end(c->log, r ? SG_EVENT_EXIT : SG_EVENT_ERROR, text);
    bool keep = c->keeps && sg_run_has_started(c->run) && sg_cancel_fired(sg_entry_cancel(c->lease)) == SG_CANCEL_NONE;
    if (!keep) {
        sg_commands_remove(x, c);
        DL_APPEND(*ret_dropped, c);
    }
    c->state = end_state(r);
    c->ended_ms = sg_now_ms();
    if (err)
        sg_error_copy(&c->failure, err);
    strip(c);
    if (keep) {
        sg_commands_keep(x, c);
        sg_commands_prune(x, sg_entry_id(c->lease), ret_dropped);
    }
    struct sg_caller *callers = c->callers;
    c->callers = NULL;
    pthread_mutex_unlock(&x->lock);
    if (c->log)
        sg_exec_log_wake(c->log);
    return callers;
}

/* Was the sandbox taken down under the running command because its lease ended? That is how it ended, not a fault. */
static bool ended_with_lease(struct sg_command *c, struct sg_run *run, const struct sg_error *err)
{
    struct sg_lease l;

    if ((err->code != SG_SANDBOX_LOST && err->code != SG_LEASE_GONE) || !sg_run_has_started(run) ||
        sg_cancel_fired(sg_entry_cancel(c->lease)) == SG_CANCEL_NONE)
        return false;
    sg_entry_lease(c->lease, &l);
    bool lost = l.state == SG_LEASE_LOST;
    sg_lease_finish(&l);
    return !lost;
}

static void command_done(void *arg, struct sg_run *run, const struct sg_error *err)
{
    struct sg_command *c = arg;
    struct sg_command *dropped = NULL;
    struct sg_exec_result r;

    if (err && ended_with_lease(c, run, err)) {
        sg_run_set_lease_end(run);
        err = NULL;
    }
    if (!err)
        sg_command_result(c, &r);
    struct sg_caller *callers = settle(c, err ? NULL : &r, err, &dropped);
    sg_entry_exec_end(c->lease, !err);
    tell_ended(c->s, err ? NULL : &r, err);
    answer_all(callers, err ? NULL : &r, err);
    if (!err)
        sg_hold_unref(r.keep);
    sg_commands_let_go(dropped);
    sg_command_unref(c);
}

/* ---- the start ---- */

static int command_env(const struct sg_command *c, const struct sg_sandbox *sb, struct sg_env *env, struct sg_error *err)
{
    if (sg_env_base(env, err) < 0 || sg_env_merge(env, sb->env, err) < 0 || (c->request.tty.rows && sg_env_set(env, "TERM", "xterm-256color", err) < 0) ||
        sg_env_merge(env, &sg_entry_terms(c->lease)->env, err) < 0)
        return -1;
    return sg_env_merge(env, &c->request.env, err);
}

static int start_run(struct sg_command *c, struct sg_sandbox *sb, struct sg_error *err)
{
    struct sg_env env = {0};
    int64_t cap = c->request.max_output_bytes;
    bool collects = c->keeps || !c->log; /* else the events are all there is of its output */

    int rc = command_env(c, sb, &env, err);
    if (rc == 0) {
        struct sg_run_args args = {.memory = &c->s->execs->memory,
                                   .sb = sb,
                                   .spec = {.argv = (const char *const *)c->request.argv,
                                            .cwd = c->request.cwd ? c->request.cwd : sg_entry_terms(c->lease)->root,
                                            .env = &env,
                                            .timeout_ms = c->timeout_ms,
                                            .pipe_bytes = 64U * 1024U,
                                            .tty = c->request.tty},
                                   .stdin_data = c->request.stdin_data,
                                   .stdin_len = c->request.stdin_len,
                                   .stdin_stays = c->typing != NULL,
                                   .max_output_bytes = !collects ? 0 : cap > 0 ? (size_t)cap : c->s->cfg.exec_output_max,
                                   .log = c->log,
                                   .started = process_exists,
                                   .done = command_done,
                                   .arg = c};
        c->refs++; /* command_done's */
        rc = sg_run_start(&args, &c->run, err);
        if (rc < 0)
            c->refs--;
    }
    sg_env_finish(&env);
    return rc;
}

static void fail_start(struct sg_command *c, const struct sg_error *err)
{
    struct sg_execs *x = c->s->execs;
    struct sg_command *dropped = NULL;

    pthread_mutex_lock(&x->lock);
    struct sg_caller *callers = c->callers;
    c->callers = NULL;
    sg_commands_remove(x, c);
    DL_APPEND(dropped, c);
    pthread_mutex_unlock(&x->lock);
    sg_entry_exec_end(c->lease, false);
    tell_ended(c->s, NULL, err);
    answer_all(callers, NULL, err);
    sg_commands_let_go(dropped);
}

static void start(struct sg_command *c, struct sg_sandbox *sb)
{
    struct sg_execs *x = c->s->execs;
    struct sg_error err = {0};

    c->lease_end.fired = lease_ended;
    c->refs++;
    sg_cancel_hook(sg_entry_cancel(c->lease), &c->lease_end);
    if (start_run(c, sb, &err) < 0) {
        fail_start(c, &err);
        sg_error_clear(&err);
        return;
    }
    if (c->typing && sg_run_stdin(c->run)) {
        struct sg_waker all = sg_fan_waker(c->typing);
        sg_pipe_set_writer(sg_run_stdin(c->run), &all);
    }
    pthread_mutex_lock(&x->lock);
    c->started = true;
    enum sg_killed_by kill = c->early_kill;
    pthread_mutex_unlock(&x->lock);
    if (kill != SG_KILLED_NOT)
        sg_run_kill(c->run, kill);
    tell_started(c);
}

/* ---- callers ---- */

/* The table's lock is held. The hook is put in by hook_caller(), without it. NULL: the events asked for are not there. */
static struct sg_caller *attach(struct sg_command *c, const struct sg_exec_args *args, struct sg_error *err)
{
    bool detached = c->detached;
    struct sg_exec_reader *reader = NULL;

    if (args->stream && !c->log) {
        sg_error_field(err, SG_EXEC_ID_CONFLICT, "exec_id", "the command of that id was started without a stream");
        return NULL;
    }
    if (args->stream && sg_exec_reader_new(c->log, args->after, !detached, &reader, err) < 0)
        return NULL;
    struct sg_caller *a = sg_xcalloc(1, sizeof *a);
    a->cmd = c;
    c->refs++;
    a->cancel = args->cancel && !detached ? sg_cancel_ref(args->cancel) : NULL;
    a->refs = a->cancel ? 3 : 2; /* the command's, ours until hooked, the hook's */
    a->hangup.fired = caller_hung_up;
    a->started = args->stream || detached ? args->started : NULL;
    a->done = args->done;
    a->arg = args->arg;
    a->reader = reader;
    DL_APPEND(c->callers, a);
    return a;
}

/* The command may have ended meanwhile: then the token, which would hold on to all of it, must not keep the hook. */
static void hook_caller(struct sg_caller *a)
{
    if (a->cancel) {
        sg_cancel_hook(a->cancel, &a->hangup);
        if (a->answered && sg_cancel_unhook(a->cancel, &a->hangup))
            caller_unref(a);
    }
    caller_unref(a);
}

static void fail(struct sg_service *s, const struct sg_exec_args *args, struct sg_error *err)
{
    tell_ended(s, NULL, err);
    args->done(args->arg, NULL, err);
    sg_error_clear(err);
    sg_exec_request_finish(args->request);
}

/* From a command that has ended. reader: given to the caller. */
static void answer_kept(struct sg_command *c, const struct sg_exec_args *args, bool wants_start, struct sg_exec_reader *reader)
{
    struct sg_exec_info info;

    sg_command_info(c, &info);
    if (wants_start)
        args->started(args->arg, &info, reader);
    else
        args->done(args->arg, &info.result, NULL);
    sg_command_info_end(&info);
}

/* A command of that id is there: attach to it or answer from it. */
static void repeat(struct sg_execs *x, struct sg_command *c, const struct sg_exec_args *args)
{
    struct sg_error err = {0};
    struct sg_caller *a = NULL;
    struct sg_exec_reader *reader = NULL;
    bool wants_start = args->stream || c->detached;
    bool running = c->state == SG_EXEC_RUNNING;

    if (!sg_streq(c->request.hash, args->request->hash))
        sg_error_field(&err, SG_EXEC_ID_CONFLICT, "exec_id", "another command was started under the id \"%s\"", c->id);
    else if (running)
        a = attach(c, args, &err);
    else if (c->state == SG_EXEC_LOST && !wants_start)
        sg_error_copy(&err, &c->failure);
    else if (args->stream)
        sg_exec_reader_new(c->log, args->after, false, &reader, &err);
    c->refs++;
    pthread_mutex_unlock(&x->lock);
    if (a) {
        hook_caller(a);
        tell_started(c);
    } else if (err.code == SG_OK) {
        answer_kept(c, args, wants_start, reader);
    }
    sg_command_unref(c);
    if (err.code != SG_OK)
        fail(x->s, args, &err);
    else
        sg_exec_request_finish(args->request);
}

static struct sg_command *command_new(struct sg_service *s, const struct sg_exec_args *args)
{
    struct sg_command *c = sg_xcalloc(1, sizeof *c);

    c->refs = 1;
    c->s = s;
    c->lease = sg_entry_ref(args->lease);
    c->request = *args->request;
    *args->request = (struct sg_exec_request){0};
    c->detached = c->request.detach;
    c->tty = c->request.tty;
    c->typing = c->detached && !c->request.stdin_given ? sg_fan_new() : NULL;
    c->keeps = c->detached || c->request.exec_id[0] != '\0';
    if (c->keeps || args->stream)
        c->log = sg_exec_log_new(c->keeps ? s->cfg.exec_history_max : 0, SG_EXEC_WINDOW, &s->execs->memory);
    if (c->request.exec_id[0])
        snprintf(c->id, sizeof c->id, "%s", c->request.exec_id);
    else
        sg_id_new("exec", c->id);
    c->timeout_ms = c->request.timeout_ms > 0 ? c->request.timeout_ms : s->cfg.exec_timeout_default_ms;
    c->started_us = sg_wall_us();
    return c;
}

static int check_request(struct sg_service *s, const struct sg_exec_request *q, struct sg_error *err)
{
    if (q->timeout_ms > s->cfg.exec_timeout_max_ms)
        return sg_error_field(err, SG_TIMEOUT_ABOVE_MAXIMUM, "timeout", "is above this server's maximum of %lld seconds",
                              (long long)(s->cfg.exec_timeout_max_ms / 1000));
    if (q->max_output_bytes > 0 && (uint64_t)q->max_output_bytes > s->cfg.exec_output_max)
        return sg_error_field(err, SG_LIMIT_EXCEEDED, "max_output_bytes", "is above this server's maximum of %zu bytes",
                              s->cfg.exec_output_max);
    return 0;
}

void sg_service_exec(struct sg_service *s, const struct sg_exec_args *args)
{
    struct sg_execs *x = s->execs;
    struct sg_error err = {0};
    struct sg_sandbox *sb = NULL;
    struct sg_command *c, *dropped = NULL;
    const char *id = args->request->exec_id;

    if (check_request(s, args->request, &err) < 0) {
        fail(s, args, &err);
        return;
    }
    pthread_mutex_lock(&x->lock);
    if (id[0] && (c = sg_commands_find(x, args->lease, id)) != NULL) {
        repeat(x, c, args);
        return;
    }
    pthread_mutex_unlock(&x->lock);
    if (sg_entry_exec_begin(args->lease, args->who->max_execs, &sb, &err) < 0) {
        fail(s, args, &err);
        return;
    }
    pthread_mutex_lock(&x->lock);
    if (id[0] && (c = sg_commands_find(x, args->lease, id)) != NULL) { /* another caller was faster */
        repeat(x, c, args);
        sg_entry_exec_end(args->lease, false);
        sg_sandbox_unref(sb);
        return;
    }
    sg_commands_prune(x, sg_entry_id(args->lease), &dropped);
    c = command_new(s, args);
    struct sg_caller *a = attach(c, args, &err);
    if (a)
        sg_commands_add(x, c);
    pthread_mutex_unlock(&x->lock);
    sg_commands_let_go(dropped);
    if (a) {
        start(c, sb);
        hook_caller(a);
    } else {
        sg_entry_exec_end(args->lease, false);
        fail(s, args, &err);
    }
    sg_command_unref(c);
    sg_sandbox_unref(sb);
}
