/* The operator's git repositories, by name: what a manifest's `repo` is made from. One driver has worktrees of them; for the others a clone is
 * taken out as an archive.
 *
 * Any thread, nothing blocks; callbacks come exactly once, on any thread, without locks held, maybe before the call returns.
 */
#ifndef SG_REPOS_H
#define SG_REPOS_H

#include "base/error.h"
#include "base/pipe.h"

struct sg_repos;

#define SG_COMMIT_LEN 65 /* hex of SHA-1 or SHA-256, with NUL */

/* The name itself if there is such a repository; for NULL the name of the only one. Borrowed from r. NULL with SG_REPO_NOT_FOUND (field
 * manifest.repo.name). r NULL: there are none. */
const char *sg_repos_find(const struct sg_repos *r, const char *name, struct sg_error *err);

struct sg_repos_resolved {
    /* commit: the full id of what the ref is now. err: SG_REF_NOT_FOUND (field manifest.repo.ref), SG_UNAVAILABLE. */
    void (*fn)(void *arg, const char *commit, const struct sg_error *err);
    void *arg;
};
/* ref: sg_ref_valid(), or NULL for HEAD. -1: done does not come. */
int sg_repos_resolve(struct sg_repos *r, const char *name, const char *ref, const struct sg_repos_resolved *done, struct sg_error *err);

struct sg_repos_exported {
    /* tar: one reference for the callee; it fails when the archive cannot be completed. NULL with err. */
    void (*fn)(void *arg, struct sg_pipe *tar, const struct sg_error *err);
    void *arg;
};
/* A clone of the repository with that commit and all that leads to it checked out (on the branch of that name if ref is one), without a
 * remote, submodules and filters, as an archive. */
int sg_repos_export(struct sg_repos *r, const char *name, const char *ref, const char *commit, const struct sg_repos_exported *done,
                    struct sg_error *err);

#endif
