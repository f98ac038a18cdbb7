/* What all slots see of the machine: the spawner's private mount namespace with one small read-only tmpfs
 * that holds the agent's binary and, for the host and for each configured root file system, the skeleton of a
 * sandbox's root. */
#ifndef SG_VIEW_H
#define SG_VIEW_H

#include "backends/spawner/spawner.h"

#define SG_VIEW_BINDS_MAX 96U
#define SG_VIEW_AGENT "/.sandgate/agent" /* inside every sandbox */

struct sg_view_bind {
    char *from, *to;
};

/* One kind of root: a directory with mount points and generated files, and what is bound over it, read-only.
 */
struct sg_view_root {
    char *path;
    struct sg_view_bind binds[SG_VIEW_BINDS_MAX];
    size_t n_binds;
};

struct sg_view {
    char *anchor; /* where the tmpfs is mounted */
    char *slot;   /* empty directory in it: each build mounts the slot's own tmpfs here, in its own mount
                     namespace */
    char *empty;  /* a directory, and a file, that nobody can read: for covering others */
    char *nothing;
    struct sg_view_root roots[1 + SG_SPAWNER_ROOTFS_MAX]; /* [0]: the host's */
    size_t n_roots;
};

/* Who the server is. */
struct sg_view_user {
    bool root_server;
    unsigned uid, gid;
};

/* In the spawner, which was born into its own mount and PID namespaces and, under an ordinary user, its own
 * user namespace: becomes uid 0 of that, mounts the PID namespace's /proc, then makes the tmpfs. */
int sg_view_make(struct sg_view *v, const struct sg_spawner_config *cfg, const struct sg_view_user *own,
                 struct sg_error *err);

#endif
