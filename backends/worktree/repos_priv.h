/* Between the files that make up repos.h; nobody else includes it. */
#ifndef SG_WORKTREE_REPOS_PRIV_H
#define SG_WORKTREE_REPOS_PRIV_H

#include "backends/worktree/repos.h"

#include <pthread.h>

struct repo {
    char *name, *path, *git_dir;
};

struct sg_repos {
    struct sg_host *host;
    struct sg_git *git;
    struct sg_workq *workq;
    char *dir; /* where clones on their way out lie */
    struct repo *repos;
    size_t n;
    pthread_mutex_t lock; /* guards the rest */
    struct sg_turn *turns; /* of all repositories; the first of each git_dir is at work */
    uint64_t exports;      /* names of clones */
};

/* How the names of clones on their way out begin. */
#define SG_REPO_EXPORT ".sandgate-export-"

#endif
