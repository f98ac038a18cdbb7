/* Lock rank: the table's lock is held for look-ups and list changes only, never across a callback or a call into a driver. */
#include "service/service_priv.h"

#include "base/clock.h"
#include "service/run.h"

#include <pthread.h>
#include <stdio.h>
#include <uthash.h>
#include <utlist.h>

/* Finished results kept per lease, besides the cap on their bytes. */
#define HISTORY_ENTRIES_MAX 256U

/* One caller waiting for a command's end. */
struct attached {
    _Atomic int refs; /* the command's and the hook's */
    struct command *cmd;
    struct sg_cancel *cancel; /* or NULL */
    struct sg_cancel_hook hangup;
    void (*done)(void *arg, const struct sg_exec_result *r, const struct sg_error *err);
    void *arg;
    struct attached *next, *prev;
};

/* One command, from its start until its result is dropped. */
struct command {
    _Atomic int refs;
    char id[SG_ID_MAX];
    bool chosen; /* the caller chose the id: the result is kept */
    struct sg_service *s;
    struct sg_entry *lease;
    struct sg_exec_request request;
    int64_t timeout_ms;
    int64_t started_us; /* wall clock */
    struct sg_cancel_hook lease_end;
    /* Under the table's lock: */
    bool listed;
    bool started;
    enum sg_killed_by early_kill; /* asked for before it was started */
    enum sg_exec_state state;
    struct attached *attached;
    struct sg_error failure; /* state lost: why */
    int64_t ended_ms;
    /* Set once by sg_run_start(), before anybody may use it (started, or done). */
    struct sg_run *run;
    struct command *next, *prev;
};

/* The commands of one lease, oldest first. */
struct lease_commands {
    char lease_id[SG_ID_MAX];
    struct command *list;
    size_t kept;
    size_t kept_bytes;
    UT_hash_handle hh;
};

struct sg_execs {
    struct sg_service *s;
    pthread_mutex_t lock;
    struct lease_commands *leases;
};

const char *sg_exec_state_name(enum sg_exec_state s)
{
    static const char *const names[] = {"running", "finished", "killed", "timed_out", "lost"};

    return names[s];
}

struct sg_execs *sg_execs_new(struct sg_service *s)
{
    struct sg_execs *x = sg_xcalloc(1, sizeof *x);

    x->s = s;
    pthread_mutex_init(&x->lock, NULL);
    return x;
}

static void attached_unref(struct attached *a);

static void command_unref(struct command *c)
{
    if (--c->refs > 0)
        return;
    sg_run_unref(c->run);
    sg_exec_request_finish(&c->request);
    sg_entry_unref(c->lease);
    sg_error_clear(&c->failure);
    free(c);
}

static void attached_unref(struct attached *a)
{
    if (--a->refs > 0)
        return;
    sg_cancel_unref(a->cancel);
    command_unref(a->cmd);
    free(a);
}

/* ---- the table; its lock is held ---- */

static struct lease_commands *commands_of(struct sg_execs *x, const char *lease_id)
{
    struct lease_commands *l;

    HASH_FIND_STR(x->leases, lease_id, l);
    return l;
}

/* Takes the command out of the table; the table's reference becomes the caller's. */
static void unlist(struct sg_execs *x, struct lease_commands *l, struct command *c)
{
    if (c->state != SG_EXEC_RUNNING) {
        l->kept--;
        l->kept_bytes -= c->run ? sg_run_bytes(c->run) : 0;
    }
    DL_DELETE(l->list, c);
    c->listed = false;
    if (!l->list) {
        HASH_DEL(x->leases, l);
        free(l);
    }
}

static void list(struct sg_execs *x, struct command *c)
{
    struct lease_commands *l = commands_of(x, sg_entry_id(c->lease));

    if (!l) {
        l = sg_xcalloc(1, sizeof *l);
        snprintf(l->lease_id, sizeof l->lease_id, "%s", sg_entry_id(c->lease));
        HASH_ADD_STR(x->leases, lease_id, l);
    }
    DL_APPEND(l->list, c);
    c->listed = true;
    c->refs++;
}

static bool too_old(const struct sg_execs *x, const struct command *c)
{
    return c->state != SG_EXEC_RUNNING && c->ended_ms + x->s->cfg.exec_history_ttl_ms <= sg_now_ms();
}

static struct command *find(struct sg_execs *x, struct sg_entry *lease, const char *id)
{
    struct lease_commands *l = commands_of(x, sg_entry_id(lease));
    struct command *c = NULL;

    if (l)
        DL_FOREACH(l->list, c) if (sg_streq(c->id, id)) break;
    return c && !too_old(x, c) ? c : NULL;
}

/* Drops finished results beyond age and caps, oldest first, into *ret (a list to be released without the lock). */
static void prune(struct sg_execs *x, const char *lease_id, struct command **ret)
{
    struct lease_commands *l = commands_of(x, lease_id);
    struct command *c, *tmp;

    if (!l)
        return;
    DL_FOREACH_SAFE(l->list, c, tmp)
    {
        bool over = l->kept > HISTORY_ENTRIES_MAX || l->kept_bytes > x->s->cfg.exec_history_max;
        if (c->state == SG_EXEC_RUNNING || (!over && !too_old(x, c)))
            continue;
        bool last = l->list == c && c->next == NULL;
        unlist(x, l, c);
        DL_APPEND(*ret, c);
        if (last)
            return;
    }
}

/* A command that is no longer listed needs no word of its lease's end any more. */
static void let_go(struct command *c)
{
    if (sg_cancel_unhook(sg_entry_cancel(c->lease), &c->lease_end))
        command_unref(c);
    command_unref(c);
}

static void let_go_all(struct command *dropped)
{
    struct command *c, *tmp;

    DL_FOREACH_SAFE(dropped, c, tmp)
    {
        DL_DELETE(dropped, c);
        let_go(c);
    }
}

struct sg_execs *sg_execs_free(struct sg_execs *x)
{
    struct lease_commands *l, *tmp;

    if (!x)
        return NULL;
    HASH_ITER(hh, x->leases, l, tmp)
    {
        HASH_DEL(x->leases, l);
        let_go_all(l->list);
        free(l);
    }
    pthread_mutex_destroy(&x->lock);
    free(x);
    return NULL;
}

/* ---- killing ---- */

static void kill_command(struct command *c, enum sg_killed_by why)
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
    struct command *c = sg_container_of(h, struct command, lease_end);
    struct sg_execs *x = c->s->execs;

    kill_command(c, SG_KILLED_LEASE_END);
    pthread_mutex_lock(&x->lock);
    bool drop = c->listed && c->state != SG_EXEC_RUNNING;
    if (drop)
        unlist(x, commands_of(x, sg_entry_id(c->lease)), c);
    pthread_mutex_unlock(&x->lock);
    if (drop)
        command_unref(c);
    command_unref(c);
}

/* A caller went away; the last one takes the command with it. */
static void caller_hung_up(struct sg_cancel_hook *h, enum sg_cancel_reason why)
{
    struct attached *a = sg_container_of(h, struct attached, hangup);
    struct command *c = a->cmd;
    bool others = false;
    struct attached *o;

    pthread_mutex_lock(&c->s->execs->lock);
    DL_FOREACH(c->attached, o)
    others |= o != a && (!o->cancel || sg_cancel_fired(o->cancel) == SG_CANCEL_NONE);
    pthread_mutex_unlock(&c->s->execs->lock);
    if (!others)
        kill_command(c, why == SG_CANCEL_SHUTDOWN ? SG_KILLED_LEASE_END : SG_KILLED_HANGUP);
    attached_unref(a);
}

/* ---- the end of a command ---- */

static void fill_result(struct command *c, struct sg_exec_result *r)
{
    *r = (struct sg_exec_result){.exec_id = c->id, .command = c->request.command, .timeout_ms = c->timeout_ms};
    sg_run_outcome(c->run, &r->out, &r->err, &r->exit);
}

static void answer_all(struct command *c, struct attached *attached, const struct sg_error *err)
{
    struct sg_exec_result r;
    struct attached *a, *tmp;

    if (!err)
        fill_result(c, &r);
    DL_FOREACH_SAFE(attached, a, tmp)
    {
        DL_DELETE(attached, a);
        if (a->cancel && sg_cancel_unhook(a->cancel, &a->hangup))
            attached_unref(a);
        a->done(a->arg, err ? NULL : &r, err);
        attached_unref(a);
    }
}

static enum sg_exec_state end_state(struct sg_run *run, const struct sg_error *err)
{
    struct sg_exec_output out, err_out;
    struct sg_exit exit;

    if (err)
        return SG_EXEC_LOST;
    sg_run_outcome(run, &out, &err_out, &exit);
    if (exit.killed_by == SG_KILLED_TIMEOUT)
        return SG_EXEC_TIMED_OUT;
    return exit.killed_by == SG_KILLED_NOT ? SG_EXEC_FINISHED : SG_EXEC_KILLED;
}

/* Marks the command ended and takes its callers. Kept when its id was chosen and its lease lives. */
static struct attached *settle(struct command *c, const struct sg_error *err, struct command **ret_dropped)
{
    struct sg_execs *x = c->s->execs;
    enum sg_exec_state state = end_state(c->run, err);

    pthread_mutex_lock(&x->lock);
    struct lease_commands *l = commands_of(x, sg_entry_id(c->lease));
    bool keep = c->chosen && sg_cancel_fired(sg_entry_cancel(c->lease)) == SG_CANCEL_NONE;
    if (!keep) {
        unlist(x, l, c);
        DL_APPEND(*ret_dropped, c);
    }
    c->state = state;
    c->ended_ms = sg_now_ms();
    if (err)
        sg_error_copy(&c->failure, err);
    if (keep) {
        l->kept++;
        l->kept_bytes += sg_run_bytes(c->run);
        prune(x, l->lease_id, ret_dropped);
    }
    struct attached *attached = c->attached;
    c->attached = NULL;
    pthread_mutex_unlock(&x->lock);
    return attached;
}

static void command_done(void *arg, struct sg_run *run, const struct sg_error *err)
{
    struct command *c = arg;
    struct command *dropped = NULL;

    /* The sandbox was taken down under it because its lease ended: that is how it ended, not a fault. */
    bool taken_down = err && (err->code == SG_SANDBOX_LOST || err->code == SG_LEASE_GONE);
    if (taken_down && sg_cancel_fired(sg_entry_cancel(c->lease)) != SG_CANCEL_NONE) {
        struct sg_lease l;
        sg_entry_lease(c->lease, &l);
        if (l.state != SG_LEASE_LOST) {
            sg_run_set_lease_end(run);
            err = NULL;
        }
        sg_lease_finish(&l);
    }
    struct attached *attached = settle(c, err, &dropped);
    sg_entry_exec_end(c->lease, !err);
    answer_all(c, attached, err);
    let_go_all(dropped);
    command_unref(c);
}

/* ---- the start ---- */

static int base_env(const struct command *c, struct sg_env *env, struct sg_error *err)
{
    static const char *const base[][2] = {{"PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
                                          {"HOME", "/home/sandbox"},
                                          {"USER", "sandbox"},
                                          {"LANG", "C.UTF-8"},
                                          {"TERM", "dumb"}};

    for (size_t i = 0; i < SG_COUNT_OF(base); i++)
        if (sg_env_set(env, base[i][0], base[i][1], err) < 0)
            return -1;
    if (sg_env_merge(env, &sg_entry_terms(c->lease)->env, err) < 0)
        return -1;
    return sg_env_merge(env, &c->request.env, err);
}

static int start_run(struct command *c, struct sg_sandbox *sb, struct sg_error *err)
{
    struct sg_env env = {0};
    int64_t cap = c->request.max_output_bytes;

    int rc = base_env(c, &env, err);
    if (rc == 0) {
        struct sg_run_args args = {.sb = sb,
                                   .spec = {.argv = (const char *const *)c->request.argv,
                                            .cwd = c->request.cwd,
                                            .env = &env,
                                            .timeout_ms = c->timeout_ms,
                                            .pipe_bytes = 64U * 1024U},
                                   .stdin_data = c->request.stdin_data,
                                   .stdin_len = c->request.stdin_len,
                                   .max_output_bytes = cap > 0 ? (size_t)cap : c->s->cfg.exec_output_max,
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

static void fail_start(struct command *c, const struct sg_error *err)
{
    struct sg_execs *x = c->s->execs;

    pthread_mutex_lock(&x->lock);
    struct attached *attached = c->attached;
    c->attached = NULL;
    unlist(x, commands_of(x, sg_entry_id(c->lease)), c);
    pthread_mutex_unlock(&x->lock);
    sg_entry_exec_end(c->lease, false);
    answer_all(c, attached, err);
    let_go(c);
}

static void start(struct command *c, struct sg_sandbox *sb)
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
    pthread_mutex_lock(&x->lock);
    c->started = true;
    enum sg_killed_by kill = c->early_kill;
    pthread_mutex_unlock(&x->lock);
    if (kill != SG_KILLED_NOT)
        sg_run_kill(c->run, kill);
}

/* ---- callers ---- */

/* The table's lock is held. The hook is put in by hook_caller(), without it. */
static struct attached *attach(struct command *c, const struct sg_exec_args *args)
{
    struct attached *a = sg_xcalloc(1, sizeof *a);

    a->refs = args->cancel ? 3 : 2; /* the command's, ours until hooked, the hook's */
    a->cmd = c;
    c->refs++;
    a->cancel = args->cancel ? sg_cancel_ref(args->cancel) : NULL;
    a->hangup.fired = caller_hung_up;
    a->done = args->done;
    a->arg = args->arg;
    DL_APPEND(c->attached, a);
    return a;
}

static void hook_caller(struct attached *a)
{
    if (a->cancel)
        sg_cancel_hook(a->cancel, &a->hangup);
    attached_unref(a);
}

static void fail(const struct sg_exec_args *args, struct sg_error *err)
{
    args->done(args->arg, NULL, err);
    sg_error_clear(err);
    sg_exec_request_finish(args->request);
}

/* A command of that id is there: attach to it or answer from it. */
static void repeat(struct sg_execs *x, struct command *c, const struct sg_exec_args *args)
{
    struct sg_error err = {0};
    struct attached *a = NULL;

    if (!sg_streq(c->request.hash, args->request->hash))
        sg_error_field(&err, SG_EXEC_ID_CONFLICT, "exec_id", "another command was started under the id \"%s\"", c->id);
    else if (c->state == SG_EXEC_LOST)
        sg_error_copy(&err, &c->failure);
    else if (c->state == SG_EXEC_RUNNING)
        a = attach(c, args);
    bool finished = !a && err.code == SG_OK;
    c->refs++;
    pthread_mutex_unlock(&x->lock);
    if (a)
        hook_caller(a);
    if (finished) {
        struct sg_exec_result r;
        fill_result(c, &r);
        args->done(args->arg, &r, NULL);
    }
    command_unref(c);
    if (err.code != SG_OK)
        fail(args, &err);
    else
        sg_exec_request_finish(args->request);
}

static struct command *command_new(struct sg_service *s, const struct sg_exec_args *args)
{
    struct command *c = sg_xcalloc(1, sizeof *c);

    c->refs = 1;
    c->s = s;
    c->lease = sg_entry_ref(args->lease);
    c->request = *args->request;
    *args->request = (struct sg_exec_request){0};
    c->chosen = c->request.exec_id[0] != '\0';
    if (c->chosen)
        snprintf(c->id, sizeof c->id, "%s", c->request.exec_id);
    else
        sg_id_new("exec", c->id);
    c->timeout_ms = c->request.timeout_ms > 0 ? c->request.timeout_ms : s->cfg.exec_timeout_default_ms;
    c->started_us = sg_wall_us();
    return c;
}

static int check_request(struct sg_service *s, const struct sg_exec_request *q, struct sg_error *err)
{
    if (q->detach || q->tty)
        return sg_error_field(err, SG_NOT_SUPPORTED, q->detach ? "detach" : "tty", "is not available on this server yet");
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
    struct command *c, *dropped = NULL;
    const char *id = args->request->exec_id;

    if (check_request(s, args->request, &err) < 0) {
        fail(args, &err);
        return;
    }
    pthread_mutex_lock(&x->lock);
    if (id[0] && (c = find(x, args->lease, id)) != NULL) {
        repeat(x, c, args);
        return;
    }
    pthread_mutex_unlock(&x->lock);
    if (sg_entry_exec_begin(args->lease, args->who->max_execs, &sb, &err) < 0) {
        fail(args, &err);
        return;
    }
    pthread_mutex_lock(&x->lock);
    if (id[0] && (c = find(x, args->lease, id)) != NULL) { /* another caller was faster */
        repeat(x, c, args);
        sg_entry_exec_end(args->lease, false);
        sg_sandbox_unref(sb);
        return;
    }
    prune(x, sg_entry_id(args->lease), &dropped);
    c = command_new(s, args);
    list(x, c);
    struct attached *a = attach(c, args);
    pthread_mutex_unlock(&x->lock);
    let_go_all(dropped);
    start(c, sb);
    hook_caller(a);
    command_unref(c);
    sg_sandbox_unref(sb);
}

/* ---- what is known of commands ---- */

static void fill_info(struct command *c, struct sg_exec_info *i)
{
    *i = (struct sg_exec_info){.state = c->state, .started_us = c->started_us};
    snprintf(i->exec_id, sizeof i->exec_id, "%s", c->id);
    i->has_result = c->state != SG_EXEC_RUNNING && c->state != SG_EXEC_LOST;
    if (i->has_result)
        fill_result(c, &i->result);
}

static struct command *get(struct sg_execs *x, struct sg_entry *lease, const char *id, struct sg_error *err)
{
    pthread_mutex_lock(&x->lock);
    struct command *c = find(x, lease, id);
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
    struct command *c = get(s->execs, lease, id, err);
    struct sg_exec_info info;

    if (!c)
        return -1;
    pthread_mutex_lock(&s->execs->lock);
    fill_info(c, &info);
    pthread_mutex_unlock(&s->execs->lock);
    fn(arg, &info);
    command_unref(c);
    return 0;
}

void sg_service_exec_list(struct sg_service *s, struct sg_entry *lease, const char *after, size_t limit,
                          void (*fn)(void *arg, const struct sg_exec_info *i), void *arg, bool *ret_more)
{
    struct sg_execs *x = s->execs;
    struct command *c;
    size_t n = 0;
    bool on = after == NULL;

    *ret_more = false;
    pthread_mutex_lock(&x->lock);
    struct lease_commands *l = commands_of(x, sg_entry_id(lease));
    if (l)
        DL_FOREACH(l->list, c)
        {
            struct sg_exec_info info;
            if (on && !too_old(x, c)) {
                if (n++ == limit) {
                    *ret_more = true;
                    break;
                }
                fill_info(c, &info);
                fn(arg, &info);
            }
            on = on || sg_streq(c->id, after);
        }
    pthread_mutex_unlock(&x->lock);
}

int sg_service_exec_kill(struct sg_service *s, struct sg_entry *lease, const char *id, struct sg_error *err)
{
    struct command *c = get(s->execs, lease, id, err);

    if (!c)
        return -1;
    kill_command(c, SG_KILLED_CALLER);
    command_unref(c);
    return 0;
}

int sg_service_exec_signal(struct sg_service *s, struct sg_entry *lease, const char *id, int signo, struct sg_error *err)
{
    struct command *c = get(s->execs, lease, id, err);

    if (!c)
        return -1;
    pthread_mutex_lock(&s->execs->lock);
    bool started = c->started;
    pthread_mutex_unlock(&s->execs->lock);
    int rc = started ? sg_run_signal(c->run, signo, err)
                     : sg_error_set(err, SG_CONFLICT, "the command is only just starting; send the signal again");
    command_unref(c);
    return rc;
}
