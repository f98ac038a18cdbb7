#include "service/clone.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/hold.h"
#include "service/run.h"

#define SAID_MAX ((size_t)4096)
#define TELL_MAX 400 /* bytes of it in the error */

/* Nothing asks for a password, no transport runs a program, and what was cut off is noticed. */
static const char script[] =
    "git -c protocol.allow=never -c protocol.https.allow=always -c protocol.http.allow=always "
    "clone --quiet --no-checkout -- \"$1\" \"$2\" && "
    "git -C \"$2\" -c advice.detachedHead=false checkout --quiet ${3:+\"$3\"} --";

struct clone {
    _Atomic int refs; /* the run's, the hook's, the start's */
    struct sg_clone_args a;
    struct sg_cancel_hook hook;
    pthread_mutex_t lock; /* guards what follows */
    struct sg_run *run;   /* once it is known here, which may be after its end */
    bool cancelled;
};

static void clone_unref(struct clone *c)
{
    if (--c->refs > 0)
        return;
    sg_run_unref(c->run);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* The last line of it that says something, without its end. */
static void say(const struct sg_exec_output *said, struct sg_error *err)
{
    char text[TELL_MAX + 1] = "";
    size_t n = said->len < TELL_MAX ? said->len : TELL_MAX;

    memcpy(text, said->data + (said->len - n), n);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < 0x20 || (unsigned char)text[i] >= 0x7f)
            text[i] = ' ';
    while (n > 0 && text[n - 1] == ' ')
        text[--n] = '\0';
    sg_error_field(err, SG_MANIFEST_FAILED, "manifest.repo.url", "git in the sandbox could not make it: %s",
                   n > 0 ? text : "it said nothing");
    sg_error_reason(err, "clone_failed");
}

static void clone_timed_out(const struct clone *c, struct sg_error *err)
{
    sg_error_field(err, SG_MANIFEST_FAILED, "manifest.repo.url", "the clone took longer than %lld s",
                   (long long)(c->a.timeout_ms / 1000));
    sg_error_reason(err, "clone_timed_out");
}

static void ended(void *arg, struct sg_run *run, const struct sg_error *err)
{
    struct clone *c = arg;
    struct sg_exec_result r;
    struct sg_error own = {0};

    if (sg_cancel_unhook(c->a.cancel, &c->hook))
        clone_unref(c);
    if (err) {
        c->a.done(c->a.arg, err);
    } else {
        sg_run_outcome(run, &r);
        if (sg_cancel_fired(c->a.cancel) != SG_CANCEL_NONE)
            sg_error_set(&own, SG_CANCELLED, "the lease was ended while its repository was cloned");
        else if (r.exit.killed_by == SG_KILLED_TIMEOUT)
            clone_timed_out(c, &own);
        else if (r.exit.signal != 0 || r.exit.returncode != 0)
            say(&r.err, &own);
        sg_hold_unref(r.keep);
        c->a.done(c->a.arg, own.code != SG_OK ? &own : NULL);
        sg_error_clear(&own);
    }
    clone_unref(c);
}

static void cancelled(struct sg_cancel_hook *h, enum sg_cancel_reason why SG_UNUSED)
{
    struct clone *c = sg_container_of(h, struct clone, hook);

    pthread_mutex_lock(&c->lock);
    c->cancelled = true;
    struct sg_run *run = c->run ? sg_run_ref(c->run) : NULL;
    pthread_mutex_unlock(&c->lock);
    if (run)
        sg_run_kill(run, SG_KILLED_LEASE_END);
    sg_run_unref(run);
    clone_unref(c);
}

static int start(struct clone *c, struct sg_run **run, struct sg_error *err)
{
    struct sg_env env = {0};
    const char *argv[] = {"/bin/sh", "-c", script, "clone", c->a.url, c->a.root, c->a.ref ? c->a.ref : "",
                          NULL};
    int rc = sg_env_base(&env, err) < 0 || sg_env_merge(&env, c->a.sb->env, err) < 0 ||
                     sg_env_merge(&env, c->a.env, err) < 0 ||
                     sg_env_set(&env, "GIT_TERMINAL_PROMPT", "0", err) < 0
                 ? -1
                 : 0;

    if (rc == 0) {
        struct sg_run_args args = {.memory = c->a.memory,
                                   .sb = c->a.sb,
                                   .spec = {.argv = argv,
                                            .cwd = "/",
                                            .env = &env,
                                            .timeout_ms = c->a.timeout_ms,
                                            .pipe_bytes = SAID_MAX},
                                   .max_output_bytes = SAID_MAX,
                                   .done = ended,
                                   .arg = c};
        rc = sg_run_start(&args, run, err);
    }
    sg_env_finish(&env);
    return rc;
}

void sg_clone(const struct sg_clone_args *args)
{
    struct clone *c = sg_xcalloc(1, sizeof *c);
    struct sg_error err = {0};
    struct sg_run *run = NULL;

    c->a = *args;
    c->refs = 3;
    c->hook.fired = cancelled;
    pthread_mutex_init(&c->lock, NULL);
    sg_cancel_hook(args->cancel, &c->hook);
    if (start(c, &run, &err) < 0) {
        if (sg_cancel_unhook(args->cancel, &c->hook))
            clone_unref(c);
        c->a.done(c->a.arg, &err);
        sg_error_clear(&err);
        clone_unref(c); /* the run's */
    } else {
        pthread_mutex_lock(&c->lock);
        c->run = run;
        bool kill = c->cancelled;
        pthread_mutex_unlock(&c->lock);
        if (kill)
            sg_run_kill(run, SG_KILLED_LEASE_END);
    }
    clone_unref(c);
}
