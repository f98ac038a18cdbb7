/* git, run as the host's user: a child with a deadline, an environment of its own, capped output, and no shell.
 *
 * The real git and not a library: worktrees must be what the operator's own git takes them for, with its locks and its bookkeeping; it runs
 * with the rights of the user, which a library inside of a root server could not; and whatever it hangs in, it can be killed.
 *
 * Repositories are hostile: commands of earlier leases could change their configuration and hooks. Nothing that git would start on
 * their word is started: hooks, file system monitors, filters, external diffs, transports, credential helpers, editors.
 *
 * Any thread, nothing blocks.
 */
#ifndef SG_GIT_H
#define SG_GIT_H

#include "backends/worktree/capture.h"
#include "backends/worktree/host.h"
#include "base/workq.h"

#define SG_GIT_MS 60000       /* deadline of what only looks or writes a few files */
#define SG_GIT_TREE_MS 600000 /* ... of what moves whole trees */

struct sg_git;

/* Looks for git in PATH. h, r and q must outlive it. SG_UNAVAILABLE. */
int sg_git_new(struct sg_host *h, struct sg_reactor *r, struct sg_workq *q, struct sg_git **ret, struct sg_error *err);
/* Ends what runs and waits until it has; nothing can be run from then on. Not on the reactor thread. */
void sg_git_stop(struct sg_git *g);
/* The same, and frees it. NULL-safe, returns NULL. */
struct sg_git *sg_git_free(struct sg_git *g);

struct sg_git_args {
    const char *dir;            /* a repository's or a worktree's; where it runs */
    const char *const *argv;    /* without the name of the program */
    const char *const *config;  /* MAY be NULL: further settings, KEY VALUE KEY VALUE ... NULL */
    const char *git_dir;          /* MAY be NULL: GIT_DIR, instead of what the directory says of itself */
    const char *const *variables; /* MAY be NULL: further variables, NAME VALUE NAME VALUE ... NULL */
    int64_t timeout_ms;
    size_t out_max;
    struct sg_pipe *to;         /* as in sg_capture_args, as the next two */
    void (*done)(void *arg, const struct sg_capture_result *r, const struct sg_error *err);
    void *arg;
};
int sg_git_run(struct sg_git *g, const struct sg_git_args *a, struct sg_error *err);
/* Another program in the same way, without git's environment. argv: with its name, an absolute path. */
int sg_git_run_other(struct sg_git *g, const struct sg_git_args *a, struct sg_error *err);

/* The agent itself, for files: as the host's user, "/" is the host's. One reference; NULL with err. */
struct sg_agent *sg_git_agent(struct sg_git *g, struct sg_error *err);

/* The object store of a repository as GIT_ALTERNATE_OBJECT_DIRECTORIES takes it: a list separated by colons, with quotes. Caller frees. */
char *sg_git_object_dir(const char *git_dir);

/* What a run that failed has to say: SG_UNAVAILABLE with git's own words; of one that was killed by its deadline, that. */
int sg_git_error(struct sg_error *err, const char *what, const struct sg_capture_result *r);

#endif
