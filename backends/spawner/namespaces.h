/* The namespaces a slot keeps from build to build: its cgroup namespace and, under a root server, its user
 * namespace. */
#ifndef SG_NAMESPACES_H
#define SG_NAMESPACES_H

#include "backends/spawner/groups.h"

struct sg_namespaces {
    int user;    /* descriptor, -1 under an ordinary-user server: bwrap makes that one */
    int cgroup;  /* descriptor */
    bool sealed; /* nobody in `user` can make a further user namespace */
};

/* Makes them: a short-lived process is born in the v2 group `group` of g (-1: none), which becomes what the
 * slot sees as the top of the tree. agent_uid, command_uid: host ids (also gids) of the two-line map;
 * agent_uid 0: no user namespace. */
int sg_namespaces_make(struct sg_namespaces *ns, const struct sg_groups *g, int group, uint32_t agent_uid,
                       uint32_t command_uid, struct sg_error *err);
void sg_namespaces_finish(struct sg_namespaces *ns);

#endif
