/* The spawner's side of control groups: where they can be made, one tree per spawner, one branch per slot.
 *
 * v2, when some cgroup2 mount is writable and knows cgroup.kill:
 *
 *     sandgate-<id>/slot-<n>/agent       bubblewrap and the agent
 *     sandgate-<id>/slot-<n>/cmds/x<k>   one group per exec (cgroup.h); limits, if v2 has the controllers,
 * sit on cmds
 *
 * v1, for each of memory, pids and cpu that v2 does not have: sandgate-<id>/slot-<n>, joined by commands
 * only.
 *
 * <id> comes from the state directory, so that a successor finds and removes what a crashed spawner left.
 */
#ifndef SG_GROUPS_H
#define SG_GROUPS_H

#include "backends/spawner/spawner.h"

enum sg_controller { SG_CTL_MEMORY, SG_CTL_PIDS, SG_CTL_CPU, SG_CTL_COUNT };

struct sg_groups {
    int v2; /* directory sandgate-<id>, or -1 */
    int v2_parent;
    bool v2_controllers;  /* v2 enforces all three */
    bool no_birth;        /* clone3(CLONE_INTO_CGROUP) does not work here */
    int v1[SG_CTL_COUNT]; /* likewise; -1 where v2 does it or nobody can */
    int v1_parent[SG_CTL_COUNT];
    char name[32]; /* sandgate-<id> */
};

/* A slot's branch; zero-filled descriptors are invalid, start with sg_slot_groups_init(). */
struct sg_slot_groups {
    int slot, agent, cmds; /* v2 directories or -1 */
    bool made, limited;
    int64_t limits[SG_CTL_COUNT]; /* those in force, when limited */
};

/* Finds what can be used, kills and removes what a predecessor left, makes the top. For the server, before it
 * forks the spawner: it may have to move itself into a leaf to use a group that was delegated to it. Does not
 * fail for want of groups: fields are -1 then. */
int sg_groups_open(struct sg_groups *g, const char *state_dir, struct sg_error *err);
void sg_groups_init(struct sg_groups *g); /* no groups at all */
/* Tries a birth; without any way into a group v2 is given up. In the spawner. */
void sg_groups_try(struct sg_groups *g);
/* Closes the descriptors, removes nothing. */
void sg_groups_finish(struct sg_groups *g);
/* Kills what is in them, waits until deadline_ms (sg_now_ms() time) and removes them. */
void sg_groups_close(struct sg_groups *g, int64_t deadline_ms);
/* Who enforces a limit of this kind. */
enum sg_means sg_groups_means(const struct sg_groups *g, enum sg_controller c);

void sg_slot_groups_init(struct sg_slot_groups *s);
/* Makes the branch of slot n once. agent_uid owns the files that let the agent move processes. */
int sg_slot_groups_make(struct sg_groups *g, struct sg_slot_groups *s, uint32_t n, uint32_t agent_uid,
                        struct sg_error *err);
/* After the first process has been born in `slot`: hands the controllers on to agent and cmds. */
int sg_slot_groups_enable(struct sg_groups *g, struct sg_slot_groups *s, struct sg_error *err);
/* Sets the limits for commands; 0: none. */
int sg_slot_groups_limit(struct sg_groups *g, struct sg_slot_groups *s, uint32_t n,
                         const int64_t limits[SG_CTL_COUNT], struct sg_error *err);
/* For the server: `tasks` files of the v1 groups that limit something, and the file that counts kills for
 * want of memory; -1: none. */
int sg_slot_groups_limit_fds(struct sg_groups *g, const struct sg_slot_groups *s, uint32_t n,
                             int fds[SG_SLOT_LIMIT_FDS], struct sg_error *err);
int sg_slot_groups_oom_fd(struct sg_groups *g, struct sg_slot_groups *s, uint32_t n);
void sg_slot_groups_finish(struct sg_slot_groups *s);

/* Forks into a v2 group (plainly for -1): the child is born there, or moves there first if g says that birth
 * does not work. 0 in the child, the pid in the parent, or -errno. Only in a process with one thread. */
pid_t sg_groups_fork(const struct sg_groups *g, int group);
/* The same for a child that runs `child` and becomes another program or exits there. It shares our memory and we stand still until then,
 * where that can be done: copying the mappings of the server takes longer than all that the child does. So it leaves nothing allocated. */
pid_t sg_groups_spawn(const struct sg_groups *g, int group, void (*child)(const void *arg), const void *arg);

/* Own group of a hierarchy as a path below its mount; controller NULL: v2. From the text of mountinfo and of
 * /proc/self/cgroup. false: not mounted or not visible. */
bool sg_groups_locate(const char *mountinfo, const char *own, const char *controller, char *mount, char *path,
                      size_t size);

#endif
