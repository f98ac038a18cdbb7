#include "service/clone.h"

#include "service/errand.h"

#define SAID_MAX ((size_t)4096)
#define TELL_MAX 400 /* bytes of it in the error */

/* Nothing asks for a password, no transport runs a program, and what was cut off is noticed. */
static const char script[] =
    "GIT_TERMINAL_PROMPT=0; export GIT_TERMINAL_PROMPT; "
    "git -c protocol.allow=never -c protocol.https.allow=always -c protocol.http.allow=always "
    "clone --quiet --no-checkout -- \"$1\" \"$2\" && "
    "git -C \"$2\" -c advice.detachedHead=false checkout --quiet ${3:+\"$3\"} --";

struct clone {
    struct sg_clone_args a;
};

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

static void ended(void *arg, const struct sg_exec_result *r, const struct sg_error *err)
{
    struct clone *c = arg;
    struct sg_error own = {0};

    if (!r)
        sg_error_copy(&own, err);
    else if (r->exit.killed_by == SG_KILLED_TIMEOUT)
        clone_timed_out(c, &own);
    else if (r->exit.signal != 0 || r->exit.returncode != 0)
        say(&r->err, &own);
    c->a.done(c->a.arg, own.code != SG_OK ? &own : NULL);
    sg_error_clear(&own);
    free(c);
}

void sg_clone(const struct sg_clone_args *args)
{
    struct clone *c = sg_xcalloc(1, sizeof *c);
    const char *const argv[] = {"/bin/sh", "-c", script, "clone", args->url, args->root, args->ref ? args->ref : "", NULL};

    c->a = *args;
    sg_errand_unref(sg_errand_start(&(struct sg_errand_args){.sb = args->sb,
                                                             .argv = argv,
                                                             .cwd = "/",
                                                             .env = args->env,
                                                             .cancel = args->cancel,
                                                             .memory = args->memory,
                                                             .timeout_ms = args->timeout_ms,
                                                             .output_max = SAID_MAX,
                                                             .done = ended,
                                                             .arg = c}));
}
