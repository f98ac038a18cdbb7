#include "service/setup.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/clock.h"
#include "service/errand.h"
#include "service/healthy.h"
#include "service/service_priv.h"

#define LOG_MS 5000         /* for reading what the service wrote */
#define LET_GO_MS 30000     /* for leaving it to itself */

/* args: WATCH COMMAND. Runs the command in the background; its output goes to a file of its own place for such, the first MiB of it (or two, as shells count).
 * WATCH 1: ends as the command does, after a failure with all its output in the file (a second is enough for what others still write);
 * or, saying so, with 0 at SIGUSR1, and then the command is left to itself. That signal ends it as such as long as the command has not
 * been started. */
static const char launch[] =
    "trap 'echo left; exit 0' USR1\n"
    "( { { /bin/sh -c \"$2\" </dev/null 2>&1 3>&-; s=$?; echo $s >&3; exec >/dev/null 2>&1; test $s = 0 || sleep 1; echo end >&3; } |"
    " { exec >/dev/null 2>&1; (ulimit -f 2048; exec cat >\"${TMPDIR:-/tmp}/service.log\") 3>&-; cat 3>&-; echo end >&3; } & } 3>&1 |"
    " { read s; test \"$s\" = 0 || read end; exit \"${s:-1}\"; } ) >/dev/null 2>&1 &\n"
    "test \"$1\" = 1 || { echo left; exit 0; }\n"
    "wait $!\n";

/* A byte more than is told, so that a cut is seen. */
static const char read_log[] = "f=${TMPDIR:-/tmp}/service.log; head -c 4097 \"$f\" 2>/dev/null || cat \"$f\"";

struct setup {
    struct sg_setup_args a;
    int64_t until_ms; /* of the commands */
    size_t at;        /* the command under way */
    json_t *report;

    /* the service's command and the wait for the services, side by side */
    _Atomic int parts; /* of the two that are not over */
    _Atomic int refs;  /* the parts' and the hook's */
    struct sg_cancel *wait; /* ends the wait: with the lease, and when the command has failed */
    struct sg_cancel_hook hook;
    int64_t services_until_ms;
    pthread_mutex_t lock; /* guards what follows */
    struct sg_errand *launcher;
    bool asked, answered; /* the wait is over, with success */
    bool ended_first;     /* the launcher was over before */
    bool left;            /* the command was still running then */
    struct sg_exit exit;  /* of the launcher */
    struct sg_error launcher_why, services_why;
};

static void setup_end(struct setup *p, const struct sg_error *err)
{
    p->a.done(p->a.arg, err ? NULL : p->report, err);
    sg_errand_unref(p->launcher);
    sg_cancel_unref(p->wait);
    sg_error_clear(&p->launcher_why);
    sg_error_clear(&p->services_why);
    sg_json_unref(p->report);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

static bool serves(const struct setup *p)
{
    return p->a.terms->mode == SG_MODE_BLACKBOX && !p->a.sandbox->driver->ops->slots; /* a pool's service is its own */
}

static bool has_services(const struct setup *p)
{
    const struct sg_driver_ops *ops = p->a.sandbox->driver->ops;

    return p->a.terms->mode == SG_MODE_BLACKBOX && p->a.terms->n_services > 0 && (ops->dial || ops->ask_port);
}

/* ---- what is told of a command ---- */

/* r: how it ended; NULL: it has not, or that is not known. */
static json_t *entry_of(const struct setup *p, const struct sg_exec_result *r, const struct sg_exec_output *log)
{
    sg_cleanup(sg_json_p) json_t *cmd = json_string(p->a.commands[p->at]);
    struct sg_exec_result of = r ? *r : (struct sg_exec_result){0};

    of.command = cmd;
    if (log)
        of.out = *log;
    return sg_exec_step_json(&of, r != NULL);
}

/* The command at fault: err gets what is known of it. */
static void add_members(const struct setup *p, json_t *entry, struct sg_error *err)
{
    const char *name;
    json_t *v;

    sg_error_member(err, "stage", json_string("sandbox_cmd"));
    sg_error_member(err, "index", json_integer((json_int_t)p->at));
    json_object_foreach(entry, name, v)
        sg_error_member(err, name, sg_json_ref(v));
}

static void fail_command(struct setup *p, const struct sg_exit *x, json_t *entry)
{
    struct sg_error err = {0};
    char field[64];

    snprintf(field, sizeof field, "env_args.sandbox_cmd[%zu]", p->at);
    if (x->killed_by == SG_KILLED_TIMEOUT)
        sg_error_field(&err, SG_SANDBOX_CMD_FAILED, field, "%s: the commands took longer than the %g s they have together", field,
                       (double)p->a.commands_timeout_ms / 1000);
    else if (x->signal)
        sg_error_field(&err, SG_SANDBOX_CMD_FAILED, field, "%s was ended by %s", field, sg_signal_name(x->signal));
    else
        sg_error_field(&err, SG_SANDBOX_CMD_FAILED, field, "%s ended with %d", field, x->returncode);
    sg_error_reason(&err, x->killed_by == SG_KILLED_TIMEOUT ? "command_timed_out" : "command_failed");
    add_members(p, entry, &err);
    setup_end(p, &err);
    sg_error_clear(&err);
}

/* Those before it took all the time. */
static void fail_late(struct setup *p)
{
    const struct sg_exec_result r = {.exit = {.signal = SIGKILL, .killed_by = SG_KILLED_TIMEOUT}};
    sg_cleanup(sg_json_p) json_t *entry = entry_of(p, &r, NULL);

    fail_command(p, &r.exit, entry);
}

/* It was not started, or its fate is not known. */
static void fail_unknown(struct setup *p, const struct sg_error *why)
{
    sg_cleanup(sg_json_p) json_t *cmd = json_string(p->a.commands[p->at]);
    struct sg_error err = {0};

    sg_error_copy(&err, why);
    sg_error_member(&err, "stage", json_string("sandbox_cmd"));
    sg_error_member(&err, "index", json_integer((json_int_t)p->at));
    sg_error_member(&err, "cmd", sg_json_ref(cmd));
    setup_end(p, &err);
    sg_error_clear(&err);
}

/* ---- commands ---- */

static void next(struct setup *p);

static bool well(const struct sg_exit *x)
{
    return x->signal == 0 && x->returncode == 0 && x->killed_by == SG_KILLED_NOT;
}

static struct sg_errand *run(struct setup *p, const char *const *argv, int64_t timeout_ms,
                             void (*done)(void *arg, const struct sg_exec_result *r, const struct sg_error *err))
{
    return sg_errand_start(&(struct sg_errand_args){.sb = p->a.sandbox,
                                                    .argv = argv,
                                                    .cwd = p->a.terms->root,
                                                    .env = &p->a.terms->env,
                                                    .cancel = p->a.cancel,
                                                    .memory = sg_execs_memory(p->a.service->execs),
                                                    .timeout_ms = timeout_ms > 0 ? timeout_ms : 1,
                                                    .output_max = SG_SETUP_OUTPUT_MAX,
                                                    .done = done,
                                                    .arg = p});
}

static void command_ended(void *arg, const struct sg_exec_result *r, const struct sg_error *err)
{
    struct setup *p = arg;

    if (!r) {
        fail_unknown(p, err);
    } else if (!well(&r->exit)) {
        sg_cleanup(sg_json_p) json_t *entry = entry_of(p, r, NULL);
        fail_command(p, &r->exit, entry);
    } else {
        json_array_append_new(p->report, entry_of(p, r, NULL));
        p->at++;
        next(p);
    }
}

/* ---- the service, and services ---- */

static void start_service(struct setup *p, bool watch);

static bool never_begun(const struct setup *p)
{
    return p->answered && p->exit.signal == SIGUSR1; /* somebody else answers; the command is to run all the same */
}

static void fail_services(struct setup *p, json_t *entry)
{
    struct sg_error err = {0};

    sg_error_copy(&err, &p->services_why);
    add_members(p, entry, &err);
    sg_error_member(&err, "stage", json_string("services"));
    setup_end(p, &err);
    sg_error_clear(&err);
}

static void log_read(void *arg, const struct sg_exec_result *r, const struct sg_error *err SG_UNUSED)
{
    struct setup *p = arg;
    const struct sg_exec_output nothing = {0};
    const struct sg_exec_result ended = {.exit = p->exit};
    bool failed = !well(&p->exit) && (p->ended_first || p->answered);
    bool known = !p->left && p->launcher_why.code == SG_OK;
    sg_cleanup(sg_json_p) json_t *entry = entry_of(p, known ? &ended : NULL, r ? &r->out : &nothing);

    if (failed) {
        fail_command(p, &p->exit, entry);
    } else if (!p->answered) {
        fail_services(p, entry);
    } else {
        json_array_append(p->report, entry);
        setup_end(p, NULL);
    }
}

/* Both are over. */
static void conclude(struct setup *p)
{
    static const char *const argv[] = {"/bin/sh", "-c", read_log, NULL};

    if (p->launcher_why.code != SG_OK && (p->ended_first || p->answered))
        fail_unknown(p, &p->launcher_why);
    else if (p->services_why.code == SG_CANCELLED && !p->ended_first)
        fail_unknown(p, &p->services_why);
    else if (never_begun(p))
        start_service(p, false);
    else
        sg_errand_unref(run(p, argv, LOG_MS, log_read));
}

static void drop(struct setup *p, int n)
{
    if (atomic_fetch_sub(&p->refs, n) == n)
        conclude(p);
}

static void part_over(struct setup *p)
{
    if (atomic_fetch_sub(&p->parts, 1) == 1)
        drop(p, sg_cancel_unhook(p->a.cancel, &p->hook) ? 2 : 1);
}

static void lease_ended(struct sg_cancel_hook *h, enum sg_cancel_reason why)
{
    struct setup *p = sg_container_of(h, struct setup, hook);

    sg_cancel_fire(p->wait, why);
    drop(p, 1);
}

static void launcher_over(void *arg, const struct sg_exec_result *r, const struct sg_error *err)
{
    struct setup *p = arg;

    pthread_mutex_lock(&p->lock);
    p->ended_first = !p->asked;
    if (!r)
        sg_error_copy(&p->launcher_why, err);
    p->exit = r ? r->exit : (struct sg_exit){0};
    p->left = r && r->out.len > 0;
    pthread_mutex_unlock(&p->lock);
    if (!r || !well(&r->exit))
        sg_cancel_fire(p->wait, SG_CANCEL_CALLER);
    part_over(p);
}

/* The command is left to itself, whatever came of the wait: the sandbox stays as it is, or goes. */
static void services_over(void *arg, const struct sg_error *err)
{
    struct setup *p = arg;

    pthread_mutex_lock(&p->lock);
    p->asked = true;
    p->answered = !err;
    if (err)
        sg_error_copy(&p->services_why, err);
    struct sg_errand *launcher = p->launcher;
    pthread_mutex_unlock(&p->lock);
    if (launcher)
        sg_errand_signal(launcher, SIGUSR1);
    part_over(p);
}

static void await_services(struct setup *p, struct sg_cancel *cancel, void (*done)(void *arg, const struct sg_error *err))
{
    sg_service_await(p->a.service, &(struct sg_await_args){.sandbox = p->a.sandbox, .terms = p->a.terms, .cancel = cancel,
                                                           .deadline_ms = p->services_until_ms, .done = done, .arg = p});
}

/* watch: until the services answer; else they do already, or there are none. */
static void start_service(struct setup *p, bool watch)
{
    const char *const argv[] = {"/bin/sh", "-c", launch, "service", watch ? "1" : "0", p->a.commands[p->at], NULL};

    sg_cancel_unref(p->wait);
    p->wait = sg_cancel_new();
    p->launcher = sg_errand_unref(p->launcher);
    p->ended_first = false;
    p->asked = p->answered = !watch;
    p->exit = (struct sg_exit){0};
    p->parts = watch ? 2 : 1;
    p->refs = 3; /* and ours, until both have begun */
    p->hook.fired = lease_ended;
    sg_cancel_hook(p->a.cancel, &p->hook);
    if (watch)
        await_services(p, p->wait, services_over);
    struct sg_errand *launcher = run(p, argv, (watch ? p->services_until_ms - sg_now_ms() : 0) + LET_GO_MS, launcher_over);
    pthread_mutex_lock(&p->lock);
    p->launcher = launcher;
    bool let_go = watch && p->asked;
    pthread_mutex_unlock(&p->lock);
    if (let_go)
        sg_errand_signal(launcher, SIGUSR1);
    drop(p, 1);
}

static void services_alone(void *arg, const struct sg_error *err)
{
    setup_end(arg, err);
}

/* ---- the order of things ---- */

static void next(struct setup *p)
{
    int64_t now = sg_now_ms(), left = p->until_ms - now;
    bool last = p->at + 1 == p->a.n_commands;

    p->services_until_ms = now + p->a.services_timeout_ms;
    if (p->at < p->a.n_commands && left <= 0) {
        fail_late(p);
    } else if (last && serves(p)) {
        start_service(p, has_services(p));
    } else if (p->at < p->a.n_commands) {
        const char *const argv[] = {"/bin/sh", "-c", p->a.commands[p->at], NULL};
        sg_errand_unref(run(p, argv, left, command_ended));
    } else if (has_services(p)) {
        await_services(p, p->a.cancel, services_alone);
    } else {
        setup_end(p, NULL);
    }
}

void sg_setup(const struct sg_setup_args *args)
{
    struct setup *p = sg_xcalloc(1, sizeof *p);

    p->a = *args;
    p->until_ms = sg_now_ms() + args->commands_timeout_ms;
    p->report = args->n_commands > 0 ? json_array() : NULL;
    pthread_mutex_init(&p->lock, NULL);
    next(p);
}
