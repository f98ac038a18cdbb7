/* What the worktree backend and the repositories are made of. Values are complete: whoever maps the configuration fills in defaults. */
#ifndef SG_WORKTREE_CONFIG_H
#define SG_WORKTREE_CONFIG_H

#include "base/error.h"

#define SG_WORKTREE_REPOS_MAX 256U

struct sg_worktree_repo {
    const char *name;
    const char *path; /* absolute: a bare repository or one with a working tree */
};

/* Copied; strings are borrowed for the call. All paths are absolute. */
struct sg_worktree_config {
    const char *agent_path;  /* sandgate-agent */
    const char *records_dir; /* for the server alone; made when missing */
    const char *dir;         /* where worktrees are made; made when missing; the user must be able to get there */
    const char *user;        /* NULL: our own; see sg_host_config */
    const char *archive_dir; /* where what a lease had changed is kept; made when missing; NULL: nowhere */
    int64_t archive_max_bytes; /* of one archive; what is larger is not kept */
    const struct sg_worktree_repo *repos;
    size_t n_repos;
};

#endif
