/* Worktrees of a repository, made and forgotten. */
#include "backends/worktree/repos.h"

#include <errno.h>
#include <sys/stat.h>

#include "backends/worktree/repos_priv.h"

#define LIST_OUT ((size_t)4 << 20)

struct tree {
    struct sg_turn turn; /* first */
    struct sg_repos *repos;
    char *git_dir, *path, *branch, *commit;
    bool in_turn;
    struct sg_repo_filters filters;
    struct sg_tree_done done;
};

static void finish(struct tree *t, const struct sg_error *err)
{
    if (t->in_turn)
        sg_turn_over(t->repos, &t->turn);
    t->done.fn(t->done.arg, err);
    sg_repo_filters_finish(&t->filters);
    free(t->git_dir);
    free(t->path);
    free(t->branch);
    free(t->commit);
    free(t);
}

static struct tree *tree_new(struct sg_repos *r, const char *git_dir, const char *path, const char *branch, const struct sg_tree_done *done)
{
    struct tree *t = sg_xcalloc(1, sizeof *t);
    t->repos = r;
    t->git_dir = sg_xstrdup(git_dir);
    t->path = sg_xstrdup(path);
    t->branch = sg_xstrdup(branch);
    t->turn.git_dir = t->git_dir;
    t->done = *done;
    return t;
}

typedef void git_done(void *arg, const struct sg_capture_result *r, const struct sg_error *err);

/* In the repository, or (dir) in the worktree. A run that does not even start is the end. */
static void run(struct tree *t, const char *const *argv, const char *dir, int64_t ms, size_t out_max, git_done *next)
{
    struct sg_error err = {0};
    struct sg_git_args a = {.dir = dir != NULL ? dir : t->git_dir,
                            .git_dir = dir != NULL ? NULL : t->git_dir,
                            .argv = argv,
                            .config = (const char *const *)t->filters.settings,
                            .timeout_ms = ms,
                            .out_max = out_max,
                            .done = next,
                            .arg = t};
    if (sg_git_run(t->repos->git, &a, &err) < 0)
        finish(t, &err);
    sg_error_clear(&err);
}

/* True when the run went well; else everything has ended. */
static bool went_well(struct tree *t, const char *what, const struct sg_capture_result *r, const struct sg_error *err)
{
    struct sg_error own = {0};
    if (err != NULL) {
        sg_error_set(&own, SG_UNAVAILABLE, "%s: %s", what, err->message);
        sg_error_retry_after(&own, 1);
    } else if (r->exit.signal != 0 || r->exit.returncode != 0) {
        sg_git_error(&own, what, r);
    }
    bool well = own.code == SG_OK;
    if (!well)
        finish(t, &own);
    sg_error_clear(&own);
    return well;
}

/* ---- make ---- */

static void checked_out(void *arg, const struct sg_capture_result *r, const struct sg_error *err)
{
    struct tree *t = arg;
    if (went_well(t, "cannot check out the worktree", r, err))
        finish(t, NULL);
}

/* The repository's own files are written; those of the worktree are nobody else's. */
static void added(void *arg, const struct sg_capture_result *r, const struct sg_error *err)
{
    struct tree *t = arg;
    const char *argv[] = {"reset", "--hard", "--quiet", t->commit, NULL};
    sg_turn_over(t->repos, &t->turn);
    t->in_turn = false;
    if (went_well(t, "cannot make a worktree", r, err))
        run(t, argv, t->path, SG_GIT_TREE_MS, 0, checked_out);
}

static void add(struct sg_turn *turn)
{
    struct tree *t = (struct tree *)turn;
    const char *argv[] = {"worktree", "add", "--quiet", "--no-checkout", "--no-track", "-b", t->branch, t->path, t->commit, NULL};
    t->in_turn = true;
    run(t, argv, NULL, SG_GIT_MS, 0, added);
}

static void filters_known(void *arg, struct sg_repo_filters *f, const struct sg_error *err)
{
    struct tree *t = arg;
    if (err != NULL) {
        finish(t, err);
        return;
    }
    t->filters = *f;
    t->turn.fn = add;
    sg_turn_wait(t->repos, &t->turn);
}

int sg_tree_add(struct sg_repos *r, const char *git_dir, const char *path, const char *branch, const char *commit,
                const struct sg_tree_done *done, struct sg_error *err)
{
    struct tree *t = tree_new(r, git_dir, path, branch, done);
    t->commit = sg_xstrdup(commit);
    if (sg_repo_filters(r->git, git_dir, &(struct sg_repo_filters_done){filters_known, t}, err) == 0)
        return 0;
    t->done.fn = NULL;
    free(t->git_dir);
    free(t->path);
    free(t->branch);
    free(t->commit);
    free(t);
    return -1;
}

/* ---- forget ---- */

static void branch_deleted(void *arg, const struct sg_capture_result *r, const struct sg_error *err)
{
    struct tree *t = arg;
    if (went_well(t, "cannot delete the branch of a worktree", r, err))
        finish(t, NULL);
}

static void delete_branch(struct tree *t)
{
    sg_cleanup(sg_free_p) char *ref = sg_xasprintf("refs/heads/%s", t->branch);
    const char *argv[] = {"update-ref", "-d", ref, NULL};
    run(t, argv, NULL, SG_GIT_MS, 0, branch_deleted);
}

/* Does git still know the worktree? out: "worktree PATH" NUL ... of each. */
static bool lists(const struct sg_capture_result *r, const char *path)
{
    static const char word[] = "worktree ";
    for (size_t at = 0; at < r->out_len; at += strlen(r->out + at) + 1)
        if (strncmp(r->out + at, word, sizeof word - 1) == 0 && sg_streq(r->out + at + sizeof word - 1, path))
            return true;
    return false;
}

static void listed(void *arg, const struct sg_capture_result *r, const struct sg_error *err)
{
    struct tree *t = arg;
    struct sg_error own = {0};
    if (!went_well(t, "cannot list the worktrees", r, err))
        return;
    if (r->out_cut || lists(r, t->path)) {
        sg_error_set(&own, SG_UNAVAILABLE, "git does not forget the worktree %s", t->path);
        finish(t, &own);
        sg_error_clear(&own);
        return;
    }
    delete_branch(t);
}

static void removed(void *arg, const struct sg_capture_result *r, const struct sg_error *err)
{
    static const char *const argv[] = {"worktree", "list", "--porcelain", "-z", NULL};
    struct tree *t = arg;
    if (err == NULL && r->exit.signal == 0 && r->exit.returncode == 0)
        delete_branch(t);
    else if (err == NULL && r->exit.signal == 0) /* maybe it was never there */
        run(t, argv, NULL, SG_GIT_MS, LIST_OUT, listed);
    else
        (void)went_well(t, "cannot remove a worktree", r, err);
}

static void drop(struct sg_turn *turn)
{
    struct tree *t = (struct tree *)turn;
    const char *argv[] = {"worktree", "remove", "--force", "--force", t->path, NULL};
    struct stat st;
    t->in_turn = true;
    if (stat(t->git_dir, &st) < 0 && (errno == ENOENT || errno == ENOTDIR))
        finish(t, NULL); /* the operator took the repository away, and all this with it */
    else
        run(t, argv, NULL, SG_GIT_MS, 0, removed);
}

int sg_tree_drop(struct sg_repos *r, const char *git_dir, const char *path, const char *branch, const struct sg_tree_done *done,
                 struct sg_error *err)
{
    (void)err;
    struct tree *t = tree_new(r, git_dir, path, branch, done);
    t->turn.fn = drop;
    sg_turn_wait(r, &t->turn);
    return 0;
}
