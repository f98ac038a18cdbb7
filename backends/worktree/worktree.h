/* The driver: a git worktree per lease, from repositories of the operator's. Commands run on the host as one configured user, with no isolation,
 * and that is what the lease says. */
#ifndef SG_WORKTREE_H
#define SG_WORKTREE_H

#include "backends/driver.h"
#include "backends/worktree/config.h"
#include "base/reactor.h"
#include "base/workq.h"

struct sg_repos;

/* All borrowed; they must outlive what is made with them. */
struct sg_worktree_parts {
    struct sg_reactor *reactor;
    struct sg_workq *workq;
};

/* The repositories, and what runs git for them (backends/repos.h). Blocks: start only. */
int sg_repos_open(const struct sg_worktree_config *cfg, const struct sg_worktree_parts *parts, struct sg_repos **ret, struct sg_error *err);
/* Ends what is still under way. Blocks: shutdown only; the reactor must still run. NULL-safe, returns NULL. */
struct sg_repos *sg_repos_close(struct sg_repos *r);

/* The driver over them; takes away what a former server left. Blocks for a moment: start only. */
int sg_worktree_new(const struct sg_worktree_config *cfg, const struct sg_worktree_parts *parts, struct sg_repos *repos,
                    struct sg_driver **ret, struct sg_error *err);

#endif
