/* What all slots see of the machine: the spawner's private root, a small read-only tmpfs that shows the
 * system directories and the configured ones at their own paths and holds the agent's binary and, for the
 * host and for each configured root file system, the skeleton of a sandbox's root. */
#ifndef SG_VIEW_H
#define SG_VIEW_H

#include "backends/spawner/spawner.h"

#define SG_VIEW_BINDS_MAX 96U
#define SG_VIEW_AGENT "/.sandgate/agent" /* inside every sandbox */

struct sg_view_bind {
    const char *from, *to;
};

/* One kind of root: a directory with mount points and generated files, and what is bound over it, read-only.
 */
struct sg_view_root {
    char *path;
    struct sg_view_bind binds[SG_VIEW_BINDS_MAX];
    size_t n_binds;
    bool has_resolv; /* there is a file /etc/resolv.conf to bind another over */
};

struct sg_view {
    const char *anchor; /* where our own files are */
    const char
        *slot; /* empty directory: each build mounts the slot's own tmpfs here, in its own mount namespace */
    const char *devices;   /* /dev of every sandbox; shm and pts in it are empty */
    const char *name_servers;  /* resolv.conf of the host, as it was at the start; these two: NULL without any */
    const char *resolv_inside; /* resolv.conf of a sandbox with an open network */
    const char *empty; /* a directory, and a file, that nobody can read: for covering others */
    const char *nothing;
    struct sg_view_bind covered[16]; /* files of /proc, and what is bound over them */
    size_t n_covered;
    struct sg_view_root roots[1 + SG_SPAWNER_ROOTFS_MAX]; /* [0]: the host's */
    size_t n_roots;
};

/* Who the server is. */
struct sg_view_user {
    bool root_server;
    unsigned uid, gid;
};

/* In the spawner, which was born into its own mount and PID namespaces and, under an ordinary user, its own
 * user namespace: becomes uid 0 of that, changes to the new root and fills it. */
struct sg_daemon_args;
int sg_view_make(struct sg_view *v, const struct sg_daemon_args *a, struct sg_error *err);

/* Of sg_view_make(): makes the new root, with a generated /etc at SG_VIEW_ETC, and changes to it. */
int sg_view_enter(const struct sg_daemon_args *a, struct sg_error *err);
#define SG_VIEW_OWN "/.sandgate"
#define SG_VIEW_ETC SG_VIEW_OWN "/etc"
#define SG_VIEW_NAME_SERVERS SG_VIEW_OWN "/name-servers"
#define SG_VIEW_IMAGE SG_VIEW_OWN "/image-%zu" /* the n-th configured root file system */
#define SG_VIEW_SYSTEM_DIRS 7U
extern const char *const sg_view_system_dirs[SG_VIEW_SYSTEM_DIRS]; /* directories or links at the top */

#endif
