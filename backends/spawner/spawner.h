/* The one process that starts bubblewrap, and the server's end of it.
 *
 * sg_spawner_start() forks it before any thread exists; it stays single-threaded, so that PDEATHSIG of what
 * it starts is tied to the process and not to some worker. It is also the first process of a PID namespace
 * around all sandboxes, so that not even SIGKILL leaves anything behind. The server talks to it over a
 * SOCK_SEQPACKET pair, whose end of file ends it.
 *
 * A slot is one sandbox, known by its number. It has its own user, PID, mount, network, IPC, UTS and cgroup
 * namespaces, read-only system directories, a generated /etc, a fresh /proc, a minimal /dev, no /sys, and
 * /workspace, /home/sandbox, /tmp, /run and /dev/shm on one sized tmpfs (or a host directory). Its first
 * process is the agent, which says HELLO by itself; a build is done when that has arrived (it is still unread
 * when the caller gets the socket).
 *
 *   Root server: slot n has two host uids, uid_base + 2n for the agent (uid 0 inside, with SETUID, SETGID and
 * KILL only) and uid_base + 2n + 1 for commands (uid 1000 inside, no capabilities): agent_isolation "uid".
 *   Ordinary-user server: one uid for both, 1000 inside: "dumpable", with a stricter system call filter.
 *
 * Functions are for the reactor thread unless they say otherwise and never block; callbacks run on the
 * reactor thread.
 */
#ifndef SG_SPAWNER_H
#define SG_SPAWNER_H

#include "base/error.h"
#include "base/reactor.h"

#define SG_SPAWNER_SLOTS_MAX 1024U
#define SG_SPAWNER_ROOTFS_MAX 16U
#define SG_SPAWNER_BUILD_MS 10000 /* the default deadline of a build */

/* Inside every sandbox. */
#define SG_SLOT_UID 1000U
#define SG_SLOT_GID 1000U

struct sg_spawner;

struct sg_spawner_config {
    const char *state_dir;     /* absolute, exists; `slots` below it is the spawner's own */
    const char *agent_path;    /* the sandgate-agent binary; read once, at the start */
    const char *bwrap_path;    /* NULL: bwrap from PATH */
    const char *const *rootfs; /* root file systems that slots may ask for, NULL-terminated; or NULL */
    uint32_t uid_base;         /* first host uid and gid of the slots; root server only */
    bool open_net;             /* slots may ask for open_net: what that needs must be there */
    bool no_cgroups;           /* leave control groups alone (for tests of the other means) */
};

enum sg_isolation { SG_ISOLATION_UID, SG_ISOLATION_DUMPABLE };
enum sg_tree_kill { SG_TREE_KILL_CGROUP, SG_TREE_KILL_HELPER };
/* By what a limit is enforced. */
enum sg_means { SG_MEANS_NONE, SG_MEANS_RLIMIT, SG_MEANS_CGROUP1, SG_MEANS_CGROUP2, SG_MEANS_TMPFS };

const char *sg_isolation_name(enum sg_isolation i); /* "uid", "dumpable" */
const char *sg_tree_kill_name(enum sg_tree_kill t); /* "cgroup", "helper" */
const char *sg_means_name(enum sg_means m);         /* "none", "rlimit", "cgroup1", "cgroup2", "tmpfs" */

/* What every slot of this spawner will have; known once it has started. */
struct sg_spawner_facts {
    enum sg_isolation isolation;
    enum sg_tree_kill tree_kill;
    enum sg_means memory, pids, cpu;
};

/* Forks the spawner; the process must have one thread. Returns once it is ready: it has looked for all it
 * needs, made what slots share and removed what a crashed predecessor with the same state_dir left.
 * SG_UNAVAILABLE with a message that says what is missing and how to get it. */
int sg_spawner_start(struct sg_spawner **ret, const struct sg_spawner_config *cfg, struct sg_error *err);

/* The checks of sg_spawner_start() and one real build of a throw-away sandbox, nothing kept. Blocks up to 10
 * s. */
int sg_spawner_probe(const struct sg_spawner_config *cfg, struct sg_error *err);

/* Any thread. */
const struct sg_spawner_facts *sg_spawner_facts(const struct sg_spawner *sp);
pid_t sg_spawner_pid(const struct sg_spawner *sp);
/* It has died, and nothing can be built any more. */
bool sg_spawner_gone(const struct sg_spawner *sp);

/* Reads the spawner's answers on r from now on. Once, before any build, on any thread. died is called when
 * the spawner is gone without having been asked to go, before anybody else hears of it; every pending callback then has
 * SG_UNAVAILABLE, and all slots must be closed. */
int sg_spawner_attach(struct sg_spawner *sp, struct sg_reactor *r, void (*died)(void *arg), void *arg,
                      struct sg_error *err);

/* Ends the spawner: every slot is killed, its groups and directories removed. Blocks (at most 10 s, then it
 * is killed). Callbacks still pending are dropped. Not on the reactor thread, whose reactor must still run or
 * be freed already. NULL-safe, returns NULL. */
struct sg_spawner *sg_spawner_free(struct sg_spawner *sp);

struct sg_slot_spec {
    uint32_t slot;        /* < SG_SPAWNER_SLOTS_MAX; must not be built or building now */
    const char *rootfs;   /* NULL: the host's system directories; else one of the configured ones */
    int64_t disk_bytes;   /* size of the tmpfs; > 0 */
    bool disk_dir;        /* a directory of the host instead, whose size nobody limits */
    bool open_net;        /* joined to the outside, see net.h; else it has its own loopback only */
    int64_t memory_bytes; /* 0: no limit; also the next two */
    int64_t pids;
    int64_t cpu_milli;
    int64_t deadline_ms; /* sg_now_ms() time */
};

/* One v1 group per controller at most. */
#define SG_SLOT_LIMIT_FDS 3U

struct sg_slot_built {
    int agent_fd; /* connected SOCK_SEQPACKET, non-blocking; HELLO is waiting in it */
    int pidfd; /* of the agent, the init of the slot's PID namespace; readable once the namespace is empty */
    int cgroup_fd; /* directory for sg_cgroups_new(), where exec groups go; -1 with SG_TREE_KILL_HELPER */
    int oom_fd;    /* for sg_oom_kills(); -1: nobody counts */
    int limit_fds[SG_SLOT_LIMIT_FDS]; /* open `tasks` files of v1 groups that commands must join; -1: unused
                                       */
    int net_fd; /* with open_net: pidfd of what joins it to the outside. When that has ended the slot is cut off for good; a signal
                 * through it cuts it off. Else -1 */
    pid_t agent_pid;                  /* for people; signals go through pidfd */
    uint32_t agent_uid, command_uid;  /* of the host */
    enum sg_isolation isolation;
    enum sg_tree_kill tree_kill;
    enum sg_means memory, pids, cpu,
        disk; /* how the limits asked for are enforced; NONE also when none was asked for */
};

/* Builds a sandbox. done is called exactly once: err NULL and b, whose descriptors then belong to the callee;
 * or err (SG_UNAVAILABLE, SG_INTERNAL), after which nothing of the attempt is left. Builds run side by side.
 */
void sg_spawner_build(struct sg_spawner *sp, const struct sg_slot_spec *spec,
                      void (*done)(void *arg, struct sg_slot_built *b, const struct sg_error *err),
                      void *arg);

/* Other limits for a slot that is built: each of them that is > 0; 0 leaves what it was built with. They last until it is destroyed. done
 * exactly once: err NULL and b, of which only limit_fds (all of them anew, the callee's) and the means are set; or err
 * (SG_NOT_SUPPORTED: not with the means there are here; SG_UNAVAILABLE), after which the slot may have some of them. */
void sg_spawner_limit(struct sg_spawner *sp, const struct sg_slot_spec *limits,
                      void (*done)(void *arg, struct sg_slot_built *b, const struct sg_error *err), void *arg);

/* Kills the slot and waits until nothing of it is left: no process, no group member, no file. The caller
 * should have closed its agent socket. done(NULL) exactly once; SG_INTERNAL when something would not die
 * within 10 s, then the slot stays unusable. A slot that was never built or has died succeeds too. */
void sg_spawner_destroy(struct sg_spawner *sp, uint32_t slot,
                        void (*done)(void *arg, const struct sg_error *err), void *arg);

/* Closes the descriptors of b that are still there. */
void sg_slot_built_finish(struct sg_slot_built *b);

#endif
