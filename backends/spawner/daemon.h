/* The spawner process itself. */
#ifndef SG_DAEMON_H
#define SG_DAEMON_H

#include "backends/spawner/groups.h"
#include "backends/spawner/view.h"

struct sg_daemon_args {
    const struct sg_spawner_config *cfg;
    const char *bwrap; /* absolute path */
    const char *slirp; /* likewise, or NULL: no slot has an open network */
    struct sg_view_user own;
    struct sg_groups groups;
    int sock; /* to the server */
    int lock; /* held while the process lives */
};

/* Says READY (or why not), serves until end of file, removes everything it made, exits. */
_Noreturn void sg_daemon_run(struct sg_daemon_args *a);

#endif
