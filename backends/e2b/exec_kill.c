/* The end of a command by force, and signals. */
#include "backends/e2b/exec_priv.h"

#include <stdio.h>

#include "backends/e2b/scripts.h"

#define KILL_MS 15000
#define KILLS 4U
#define SIGNAL_MS 15000

/* ---- killing ---- */

static void kill_later(void *arg, bool over);

static void killed(void *arg, const struct e2b_ran *r, const struct sg_error *err)
{
    struct e2b_ex *x = arg;
    struct sg_error why = {0};

    pthread_mutex_lock(&x->lock);
    bool done = r && r->code == 0;
    /* One that nobody waits for any more must not run on: it is repeated for as long as there is the sandbox. */
    bool again = !done && (++x->kills < KILLS || x->ended) && !x->sb->gone && !(err && err->code == SG_SANDBOX_LOST);
    if (!again)
        x->killing = false;
    pthread_mutex_unlock(&x->lock);
    if (again) {
        sg_alarm(x->sb->d->alarms, sg_backoff_ms(x->kills, 200, x->kills < KILLS ? 5000 : 30000), kill_later, x);
        return;
    }
    if (!done) {
        if (err && err->code == SG_SANDBOX_LOST)
            sg_error_copy(&why, err);
        else
            sg_error_set(&why, SG_OUTCOME_UNKNOWN, "the command was to be killed, but e2b does not do it");
        e2b_ex_fail(x, &why);
        sg_error_clear(&why);
    }
    e2b_ex_unref(x);
}

static void kill_now(struct e2b_ex *x)
{
    char pid[16];
    pthread_mutex_lock(&x->lock);
    snprintf(pid, sizeof pid, "%u", x->pid);
    pthread_mutex_unlock(&x->lock);
    const char *const argv[] = {"perl", "-e", e2b_script_kill, pid, x->key, NULL};
    e2b_run(x->sb, &(struct e2b_run_args){.user = "root", .argv = argv, .out_max = 4096, .limit_ms = KILL_MS, .done = killed, .arg = x});
}

static void kill_later(void *arg, bool over)
{
    struct e2b_ex *x = arg;
    struct sg_error err = {0};

    if (!over) {
        kill_now(x);
        return;
    }
    sg_error_set(&err, SG_SHUTTING_DOWN, "the server is shutting down");
    e2b_ex_fail(x, &err);
    sg_error_clear(&err);
    e2b_ex_unref(x);
}

void e2b_ex_kill(struct sg_exec *base, enum sg_killed_by why)
{
    struct e2b_ex *x = (struct e2b_ex *)base;

    pthread_mutex_lock(&x->lock);
    if (x->why == SG_KILLED_NOT && !x->exited)
        x->why = why;
    bool begin = !x->killing && x->pid != 0; /* else when it has started */
    x->killing = x->killing || begin;
    if (begin)
        x->kills = 0;
    pthread_mutex_unlock(&x->lock);
    if (begin) /* not here and now: the caller may hold a lock */
        sg_alarm(x->sb->d->alarms, 0, kill_later, e2b_ex_ref(x));
}

void e2b_ex_kill_unknown(struct e2b_ex *x)
{
    pthread_mutex_lock(&x->lock);
    bool begin = !x->killing;
    x->killing = true;
    x->kills = 0;
    pthread_mutex_unlock(&x->lock);
    if (begin)
        kill_now(e2b_ex_ref(x));
}

/* ---- signals ---- */

static void signalled(void *arg, const struct e2b_ran *r SG_UNUSED, const struct sg_error *err SG_UNUSED)
{
    e2b_ex_unref(arg);
}

void e2b_ex_send_signal(struct e2b_ex *x, int64_t pid, int signo)
{
    char number[16], target[24];

    snprintf(number, sizeof number, "-%d", signo);
    snprintf(target, sizeof target, "%lld", (long long)pid);
    const char *const argv[] = {"/bin/sh", "-c", "kill \"$0\" \"$1\"", number, target, NULL};
    e2b_run(x->sb, &(struct e2b_run_args){.user = "root", .argv = argv, .out_max = 4096, .limit_ms = SIGNAL_MS, .done = signalled, .arg = e2b_ex_ref(x)});
}

int e2b_ex_signal(struct sg_exec *base, int signo, struct sg_error *err)
{
    struct e2b_ex *x = (struct e2b_ex *)base;

    pthread_mutex_lock(&x->lock);
    bool over = x->exited || x->ended;
    int64_t child = x->child;
    if (!over && child == 0)
        x->pending_signal = signo;
    pthread_mutex_unlock(&x->lock);
    if (over)
        return sg_error_set(err, SG_CONFLICT, "the command has ended");
    if (child > 0)
        e2b_ex_send_signal(x, child, signo);
    return 0;
}
