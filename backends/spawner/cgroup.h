/* Exec groups: one cgroup v2 group per running command, for killing exactly what it started.
 *
 * They live in the directory that sg_spawner_build() gives (struct sg_slot_built.cgroup_fd). Groups are
 * reused once they are empty, so an exec costs no mkdir. A command enters its group at birth, by
 * clone3(CLONE_INTO_CGROUP) with sg_cgroup_dir(), or by writing "0" to sg_cgroup_procs(). The latter is cheap
 * when it happens all the time, but after some 10 ms of quiet it waits for an RCU grace period (measured: 12
 * to 24 ms); the former never does.
 *
 * A group in which cgroup.kill was used is removed, not reused: kernels since 6.8 compare the kill count of
 * the parent's group with that of the group the child is born in, and kill at birth whoever enters a group
 * with another count (seen on 6.18). For the same reason nobody may use cgroup.kill on a slot's whole branch
 * and go on using it.
 *
 * Any thread; nothing blocks. A group that has become empty is heard of through its cgroup.events, never by
 * asking in a loop.
 */
#ifndef SG_CGROUP_H
#define SG_CGROUP_H

#include "base/error.h"
#include "base/reactor.h"

#define SG_CGROUPS_MAX 2048U /* exec groups of one slot */

struct sg_cgroups; /* of one slot; stays usable when the slot is rebuilt */
struct sg_cgroup;  /* one exec group, held by one exec */

/* dirfd is taken over, also on failure. agent_uid: the host uid that may move processes into the groups. */
int sg_cgroups_new(struct sg_cgroups **ret, struct sg_reactor *r, int dirfd, uint32_t agent_uid,
                   struct sg_error *err);
/* Reactor thread. Every acquired group must have been released. NULL-safe, returns NULL. */
struct sg_cgroups *sg_cgroups_free(struct sg_cgroups *gs);

/* An empty group: a reused or a new one. SG_OVERLOADED above SG_CGROUPS_MAX. */
int sg_cgroups_acquire(struct sg_cgroups *gs, struct sg_cgroup **ret, struct sg_error *err);
/* Gives it back: it is reused as soon as nothing runs in it any more. */
void sg_cgroup_release(struct sg_cgroup *g);

/* Borrowed: an O_PATH descriptor of the group, and its cgroup.procs open for writing. */
int sg_cgroup_dir(const struct sg_cgroup *g);
int sg_cgroup_procs(const struct sg_cgroup *g);
/* Anything alive in it? */
bool sg_cgroup_populated(const struct sg_cgroup *g);

/* SIGKILL for everything in the group, wherever it came from. Only once the agent has said that the command
 * is in it: what enters later is not killed. */
void sg_cgroup_kill(struct sg_cgroup *g);

/* How often the kernel has killed in the slot for want of memory, from struct sg_slot_built.oom_fd; 0 for -1.
 */
int64_t sg_oom_kills(int oom_fd);

#endif
