/* A whole local pool with real parts: spawner, bubblewrap, agent, reactor. One per test process. */
#ifndef SG_TEST_WORLD_H
#define SG_TEST_WORLD_H

#include "backends/local_bwrap/local_bwrap.h"
#include "backends/spawner/spawner.h"
#include "tests/support/calls.h"

struct world {
    char dir[64];
    struct sg_spawner *spawner;
    struct sg_reactor *reactor;
    struct sg_workq *workq;
    struct sg_driver *d;
    char groups[64]; /* of world_groups() */
};

/* A pool of n slots with small limits. */
struct sg_local_pool_config world_pool(unsigned n);
/* True when nothing but root could open the world as that other user: the test has to be skipped. */
bool world_is_root(void);
/* user: become an ordinary user first (only as root). */
void world_open_parts(struct world *w, bool user, bool no_cgroups);
void world_open(struct world *w, bool user, const struct sg_local_pool_config *pools, size_t n);
void world_close(struct world *w);

/* Slot i of the pool, now. */
struct sg_slot_info world_slot(struct world *w, size_t pool, size_t i);
/* Waits until the slot has that state (false: not within 15 s). */
bool world_wait(struct world *w, size_t pool, size_t i, enum sg_slot_state state);
/* Waits until it is known that the spawner has died. */
bool world_wait_gone(const struct world *w);
/* Waits until every slot of the first pool is READY. */
bool world_wait_ready(struct world *w);
struct sg_sandbox *world_lease(struct world *w, const char *lease_id);

/* Processes below the spawner whose name is comm (NULL: any); at most max pids into ret. */
size_t world_processes(const struct world *w, const char *comm, pid_t *ret, size_t max);
size_t world_open_fds(void);
/* Lines of the spawner's mountinfo. */
size_t world_mounts(const struct world *w);
/* Control groups of this world, in all hierarchies; the first call needs a sandbox. 0 after world_close(). */
size_t world_groups(struct world *w);

#endif
