/* Locks that a killed git left in a repository. git has no staleness of its own: such a lock is in everybody's way for ever. */
#ifndef SG_WORKTREE_LOCKS_H
#define SG_WORKTREE_LOCKS_H

#include <time.h>

#include "base/error.h"

/* What was there at the first look. */
struct sg_locks;
struct sg_locks *sg_locks_free(struct sg_locks *l); /* NULL-safe, returns NULL */

struct sg_locks_args {
    const char *git_dir;   /* what all worktrees share */
    uint32_t uid;          /* of those who may have left some, and who are dead by now */
    struct timespec since; /* of the file systems' clock: when they began */
};
/* To be called again some seconds after the first call (*seen NULL), which notes the locks of refs, configuration and objects that user has made
 * since. Later calls remove those of them that nobody can hold any more: they are still the same, nobody has one open, and no git of that user's
 * or of root's runs that was there at the first call. git's locks are the process's that made them, so whoever made these is dead. Everything
 * else stays, in doubt too. True after the first call: nobody seems to hold them even now. Blocking, any thread. */
bool sg_locks_clear(const struct sg_locks_args *a, struct sg_locks **seen);
/* Is any of them still there? */
bool sg_locks_left(const char *git_dir, const struct sg_locks *l);

#endif
