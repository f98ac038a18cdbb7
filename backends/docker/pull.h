/* Pulls: who waits for them, and what the engine says of how they go. Reactor thread throughout. */
#ifndef SG_DOCKER_PULL_H
#define SG_DOCKER_PULL_H

#include "backends/docker/docker_priv.h"
#include "backends/docker/pull_progress.h"

/* Gives b its image: make_pulled() comes, unless pull_leave() is called before. */
void pull_for(struct box *b);
/* b, which has a pull, waits no more; the caller drops the pull's reference on it. */
void pull_leave(struct box *b);

#endif
