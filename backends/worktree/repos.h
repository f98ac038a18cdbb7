/* Repositories and what is done to them: the inside of backends/repos.h, and the worktrees. */
#ifndef SG_WORKTREE_REPOS_H
#define SG_WORKTREE_REPOS_H

#include "backends/repos.h"
#include "backends/worktree/config.h"
#include "backends/worktree/git.h"

/* Borrowed. */
struct sg_git *sg_repos_git(const struct sg_repos *r);
struct sg_host *sg_repos_host(const struct sg_repos *r);
/* Of a repository that sg_repos_find() found: the directory git keeps it in. */
const char *sg_repos_git_dir(const struct sg_repos *r, const char *name);

/* ---- filters: programs that a repository's configuration wants its files to go through ---- */

struct sg_repo_filters {
    char **settings; /* KEY VALUE ... NULL, for sg_git_args.config: each of them turned off */
};
void sg_repo_filters_finish(struct sg_repo_filters *f);
struct sg_repo_filters_done {
    /* f: moved to the callee. */
    void (*fn)(void *arg, struct sg_repo_filters *f, const struct sg_error *err);
    void *arg;
};
int sg_repo_filters(struct sg_git *g, const char *git_dir, const struct sg_repo_filters_done *done, struct sg_error *err);

/* ---- worktrees ---- */

struct sg_tree_done {
    void (*fn)(void *arg, const struct sg_error *err);
    void *arg;
};
/* Makes the worktree path (a directory of the user's holds it; it does not exist) with a new branch at commit, and checks it out. One after the
 * other for each repository; the files are written side by side. An error may leave parts: sg_tree_drop(). */
int sg_tree_add(struct sg_repos *r, const char *git_dir, const char *path, const char *branch, const char *commit,
                const struct sg_tree_done *done, struct sg_error *err);
/* Forgets the worktree path, whose files are gone, and the branch; also when there never were any, and when the whole repository is gone. */
int sg_tree_drop(struct sg_repos *r, const char *git_dir, const char *path, const char *branch, const struct sg_tree_done *done,
                 struct sg_error *err);

/* ---- turns: what changes a repository's own files, one at a time ---- */

struct sg_turn {
    void (*fn)(struct sg_turn *t); /* it is its turn; ends with sg_turn_over() */
    const char *git_dir;
    struct sg_turn *prev, *next;
    bool at_work;
};
/* Any git_dir, also one that is no longer configured. */
void sg_turn_wait(struct sg_repos *r, struct sg_turn *t);
void sg_turn_over(struct sg_repos *r, struct sg_turn *t);

#endif
