/* A clone of a repository on its way out to a sandbox that cannot reach it: made beside the worktrees, packed while it is read, removed.
 *
 * Not by git clone or fetch, which start a second git in the operator's repository on the word of its configuration: a new repository
 * borrows the other's objects, takes those that lead to the commit over into a pack of its own, and so stands alone.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/worktree/repos_priv.h"
#include "base/fd.h"

#define LINE_OUT 1024U
#define PIPE_BYTES (256U * 1024U)

struct export {
    struct sg_work work;
    struct sg_repos *repos;
    char *dir; /* that of clones: its removal may be the last thing of all, after the repositories' end */
    char *git_dir, *ref, *commit;
    char *name, *path;  /* of the clone */
    char *branch;       /* "refs/heads/..."; NULL: detached */
    char *borrowed;     /* for GIT_ALTERNATE_OBJECT_DIRECTORIES */
    struct sg_pipe *tar;
    struct sg_repos_exported done; /* fn NULL: told */
};

static void export_free(struct export *e)
{
    sg_pipe_unref(e->tar);
    free(e->dir);
    free(e->git_dir);
    free(e->ref);
    free(e->commit);
    free(e->name);
    free(e->path);
    free(e->branch);
    free(e->borrowed);
    free(e);
}

/* ---- the end: the clone goes, whatever became of it ---- */

static void remove_rest(struct sg_work *w)
{
    struct export *e = sg_container_of(w, struct export, work);
    sg_cleanup(sg_close_p) int dir = open(e->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir >= 0)
        (void)sg_remove_tree(dir, e->name, NULL); /* else the next start does */
    export_free(e);
}

static void clean(struct export *e)
{
    e->work.run = remove_rest;
    if (sg_workq_submit(e->repos->workq, &e->work, NULL) < 0)
        remove_rest(&e->work);
}

static void tell(struct export *e, struct sg_pipe *tar, const struct sg_error *err)
{
    struct sg_repos_exported done = e->done;
    e->done.fn = NULL;
    if (done.fn != NULL)
        done.fn(done.arg, tar, err);
}

static void fail(struct export *e, struct sg_error *err)
{
    tell(e, NULL, err);
    sg_error_clear(err);
    clean(e);
}

static bool went_well(struct export *e, const struct sg_capture_result *r, const struct sg_error *err)
{
    struct sg_error own = {0};
    if (err == NULL && r->exit.signal == 0 && r->exit.returncode == 0)
        return true;
    if (err != NULL) {
        sg_error_set(&own, SG_UNAVAILABLE, "cannot clone the repository: %s", err->message);
        sg_error_retry_after(&own, 1);
    } else {
        sg_git_error(&own, "cannot clone the repository", r);
    }
    fail(e, &own);
    return false;
}

/* ---- steps ---- */

typedef void git_done(void *arg, const struct sg_capture_result *r, const struct sg_error *err);

static void run(struct export *e, const char *const *argv, bool borrow, int64_t ms, git_done *next)
{
    const char *variables[] = {"GIT_ALTERNATE_OBJECT_DIRECTORIES", e->borrowed, NULL};
    struct sg_error err = {0};
    struct sg_git_args a = {.dir = e->path,
                            .argv = argv,
                            .variables = borrow ? variables : NULL,
                            .timeout_ms = ms,
                            .out_max = LINE_OUT,
                            .done = next,
                            .arg = e};
    if (sg_git_run(e->repos->git, &a, &err) < 0)
        fail(e, &err);
}

static void packed(void *arg, const struct sg_capture_result *r, const struct sg_error *err)
{
    (void)r;
    (void)err; /* whoever reads the pipe has been told by its end */
    clean(arg);
}

static void pack(struct export *e)
{
    static const char *const argv[] = {"tar", "-cf", "-", ".", NULL};
    struct sg_error err = {0};
    struct sg_git_args a = {.dir = e->path, .argv = argv, .timeout_ms = SG_GIT_TREE_MS, .to = e->tar, .done = packed, .arg = e};
    struct sg_pipe *tar = sg_pipe_ref(e->tar);
    struct sg_repos_exported done = e->done;
    e->done.fn = NULL;
    if (sg_git_run_other(e->repos->git, &a, &err) == 0) { /* e may be gone from here on */
        done.fn(done.arg, tar, NULL);
        return;
    }
    sg_pipe_unref(tar);
    e->done = done;
    fail(e, &err);
}

static void checked_out(void *arg, const struct sg_capture_result *r, const struct sg_error *err)
{
    if (went_well(arg, r, err))
        pack(arg);
}

static void stands_alone(void *arg, const struct sg_capture_result *r, const struct sg_error *err)
{
    static const char *const argv[] = {"reset", "--hard", "--quiet", NULL};
    if (went_well(arg, r, err))
        run(arg, argv, false, SG_GIT_TREE_MS, checked_out);
}

static void has_head(void *arg, const struct sg_capture_result *r, const struct sg_error *err)
{
    static const char *const argv[] = {"repack", "-a", "-d", "-q", NULL};
    if (went_well(arg, r, err))
        run(arg, argv, true, SG_GIT_TREE_MS, stands_alone);
}

static void has_branch(void *arg, const struct sg_capture_result *r, const struct sg_error *err)
{
    struct export *e = arg;
    const char *argv[] = {"symbolic-ref", "HEAD", e->branch, NULL};
    if (went_well(e, r, err))
        run(e, argv, false, SG_GIT_MS, has_head);
}

static void initialised(void *arg, const struct sg_capture_result *r, const struct sg_error *err)
{
    struct export *e = arg;
    const char *detached[] = {"update-ref", "--no-deref", "HEAD", e->commit, NULL};
    const char *on_branch[] = {"update-ref", e->branch, e->commit, NULL};
    if (!went_well(e, r, err))
        return;
    if (e->branch != NULL)
        run(e, on_branch, true, SG_GIT_MS, has_branch);
    else
        run(e, detached, true, SG_GIT_MS, has_head);
}

/* out: "refs/heads/main", or nothing of the kind. */
static void named(void *arg, const struct sg_capture_result *r, const struct sg_error *err)
{
    static const char *const argv[] = {"init", "--quiet", "--template=", ".", NULL};
    static const char heads[] = "refs/heads/";
    struct export *e = arg;
    if (!went_well(e, r, err))
        return;
    size_t n = r->out != NULL ? strcspn(r->out, "\n") : 0;
    if (n > sizeof heads && strncmp(r->out, heads, sizeof heads - 1) == 0)
        e->branch = sg_xstrndup(r->out, n);
    run(e, argv, false, SG_GIT_MS, initialised);
}

static void ask_name(struct export *e)
{
    const char *argv[] = {"rev-parse", "--symbolic-full-name", e->ref, NULL};
    struct sg_error err = {0};
    struct sg_git_args a = {.dir = e->git_dir, .git_dir = e->git_dir, .argv = argv, .timeout_ms = SG_GIT_MS, .out_max = LINE_OUT, .done = named, .arg = e};
    if (sg_git_run(e->repos->git, &a, &err) < 0)
        fail(e, &err);
}

/* ---- start ---- */

static void prepare(struct sg_work *w)
{
    struct export *e = sg_container_of(w, struct export, work);
    const struct sg_host_user *user = sg_host_user(e->repos->host);
    struct sg_error err = {0};
    if (mkdir(e->path, 0700) < 0 || (geteuid() == 0 && lchown(e->path, user->uid, user->gid) < 0)) {
        sg_error_sys(&err, SG_UNAVAILABLE, errno, "%s", e->path);
        fail(e, &err);
        return;
    }
    ask_name(e);
}

int sg_repos_export(struct sg_repos *r, const char *name, const char *ref, const char *commit, const struct sg_repos_exported *done,
                    struct sg_error *err)
{
    if (sg_repos_find(r, name, err) == NULL)
        return -1;
    struct export *e = sg_xcalloc(1, sizeof *e);
    e->repos = r;
    e->dir = sg_xstrdup(r->dir);
    e->git_dir = sg_xstrdup(sg_repos_git_dir(r, name));
    e->ref = sg_xstrdup(ref != NULL ? ref : "HEAD");
    e->commit = sg_xstrdup(commit);
    e->borrowed = sg_git_object_dir(e->git_dir);
    e->tar = sg_pipe_new(PIPE_BYTES);
    e->done = *done;
    (void)pthread_mutex_lock(&r->lock);
    e->name = sg_xasprintf(SG_REPO_EXPORT "%d-%llu", (int)getpid(), (unsigned long long)++r->exports);
    (void)pthread_mutex_unlock(&r->lock);
    e->path = sg_xasprintf("%s/%s", r->dir, e->name);
    e->work.run = prepare;
    if (sg_workq_submit(r->workq, &e->work, err) == 0)
        return 0;
    export_free(e);
    return -1;
}
