/* The server's end of an agent: commands, files and sockets of one local sandbox.
 *
 * A struct sg_agent lives on a reactor; unless said otherwise its functions may be called on any thread and
 * never block. The agent and all it sends are hostile: a packet that does not decode, a descriptor that is
 * not exactly what was asked for, a missing answer (10 s) or the end of the connection make it lost, once and for
 * good. Everything pending then fails with SG_SANDBOX_LOST, and the process must ignore SIGPIPE. What is asked about
 * a tree of files fails with SG_OUTCOME_UNKNOWN when it takes too long, and the agent goes on with it.
 *
 * Completion callbacks come exactly once, on the reactor's or a worker's thread or before the call returns,
 * without locks held.
 */
#ifndef SG_AGENT_CLIENT_H
#define SG_AGENT_CLIENT_H

#include "backends/agent/protocol.h"
#include "backends/driver.h"
#include "base/reactor.h"
#include "base/workq.h"

struct sg_agent;

/* What the agent said of itself before any command had run; checked against the options. */
struct sg_agent_facts {
    enum sg_agent_isolation isolation;
    uint32_t uid, gid;                 /* its own, as the sandbox sees them */
    uint32_t command_uid, command_gid; /* of commands and files */
    uint64_t netns_cookie;             /* 0: this kernel cannot tell */
};

struct sg_agent_options {
    struct sg_reactor *reactor;        /* outlives the agent */
    struct sg_workq *workq;            /* for appends and large lists; outlives the agent */
    enum sg_agent_isolation isolation; /* the one it was started with; another in HELLO is a violation */
    struct sg_hold *hold; /* or NULL. The agent keeps a reference until it and every descriptor it has of the
                           * sandbox are gone; files and sockets handed to callers carry one each. */
    const char *root;     /* where relative paths start; NULL: /workspace. Copied. */
    int64_t tree_ms;      /* how long a caller waits for something about a tree of files; 0: 10 minutes */
    /* MAY be NULL: where commands see the directory that the agent calls "/" (SG_AGENT_HOST): paths that start with it are taken for those
     * below "/". Copied. */
    const char *seen_at;
    bool far; /* of sg_agent_new_far() */
    /* HELLO came and is right: usable from now on. Reactor thread, at most once, before anything else. */
    void (*ready)(void *arg, const struct sg_agent_facts *facts);
    /* It is lost (also instead of ready). At most once; never after sg_agent_close(). */
    void (*lost)(void *arg, const struct sg_error *why);
    void *arg;
};

/* Takes over fd, a connected SOCK_SEQPACKET socket (also on failure), and waits for HELLO. One reference. */
int sg_agent_new(int fd, const struct sg_agent_options *o, struct sg_agent **ret, struct sg_error *err);
struct sg_agent *sg_agent_ref(struct sg_agent *a);
struct sg_agent *sg_agent_unref(struct sg_agent *a); /* NULL-safe, returns NULL */
/* The owner's end: shuts the connection (the agent exits, and the sandbox with it) and fails everything
 * pending with SG_LEASE_GONE; running commands end as failed. Keeps the caller's reference. Idempotent. */
void sg_agent_close(struct sg_agent *a);
/* The same, and drops the reference. NULL-safe, returns NULL. */
struct sg_agent *sg_agent_end(struct sg_agent *a);
/* Lost or closed? */
bool sg_agent_is_gone(const struct sg_agent *a);

/* ---- commands ---- */

/* The owner's means to hold a command and all it starts together. Callbacks: reactor thread. */
struct sg_agent_tree {
    /* Kills all that is in the group; idempotent, not blocking. Called only once the command is in it. NULL:
     * there is no group, the agent puts a subreaper helper over the command. */
    void (*kill)(void *arg);
    /* MAY be NULL: did the kernel kill in this group for want of memory? Asked when SIGKILL came from nobody
     * here. */
    bool (*oom)(void *arg);
    /* MAY be NULL: nobody is in the group now. Asked when the command has ended: with nothing left to kill it
     * is freed before the sink hears `exited`, so that a caller's next command finds it idle again. */
    bool (*empty)(void *arg);
    /* MAY be NULL. The command no longer needs arg (it has ended, and it was released or nothing is left of it);
     * background children may still be in the group. Exactly once if sg_agent_exec_start succeeded. */
    void (*free)(void *arg);
    void *arg;
    int group_dir;   /* with kill: the cgroup v2 group the command is born in, borrowed for the call; */
    int group_procs; /* and its cgroup.procs, open for writing */
    const int
        *tasks; /* further `tasks` or cgroup.procs files it joins before it runs, borrowed for the call */
    unsigned n_tasks; /* at most SG_AGENT_TASKS_MAX */
};

/* The exec_start slot of backends/driver.h. ret->ops->release waits for a sink callback that is running on
 * the reactor thread: hold no lock there that a sink callback takes. The pipe ends inside *ret are the
 * exec's; take a reference for use beyond release. tree NULL: no group, nothing to join. Errors at once:
 * SG_INVALID_REQUEST (too long), SG_OVERLOADED, SG_SANDBOX_LOST, SG_LEASE_GONE. After `exited`, what
 * background children still write to the command's pipes is read and thrown away. */
int sg_agent_exec_start(struct sg_agent *a, const struct sg_exec_spec *spec, const struct sg_agent_tree *tree,
                        const struct sg_exec_sink *sink, struct sg_exec **ret, struct sg_error *err);

/* ---- files: the slots of struct sg_file_ops ---- */

int sg_agent_get(struct sg_agent *a, const char *path, const struct sg_file_source_done *done,
                 struct sg_error *err);
int sg_agent_open(struct sg_agent *a, const char *path, const struct sg_file_source_done *done, struct sg_error *err);
int sg_agent_put(struct sg_agent *a, const struct sg_file_put_args *args,
                 const struct sg_file_sink_done *done, struct sg_error *err);
int sg_agent_stat(struct sg_agent *a, const char *path, const struct sg_file_stat_done *done,
                  struct sg_error *err);
int sg_agent_list(struct sg_agent *a, const struct sg_file_list_args *args, const struct sg_file_list_done *done,
                  struct sg_error *err);
int sg_agent_mkdir(struct sg_agent *a, const char *path, uint32_t mode, const struct sg_file_stat_done *done,
                   struct sg_error *err);
int sg_agent_remove(struct sg_agent *a, const char *path, bool recursive, const struct sg_condition *only_if,
                    const struct sg_done *done, struct sg_error *err);
int sg_agent_move(struct sg_agent *a, const char *from, const char *to, const struct sg_done *done,
                  struct sg_error *err);

/* ---- ... and of struct sg_tree_ops ---- */

int sg_agent_resolve(struct sg_agent *a, const char *path, const struct sg_text_done *done, struct sg_error *err);
int sg_agent_tree_list(struct sg_agent *a, const char *path, size_t max, const struct sg_file_list_done *done,
                       struct sg_error *err);
int sg_agent_tree_get(struct sg_agent *a, const char *path, const struct sg_file_source_done *done, struct sg_error *err);
int sg_agent_readlink(struct sg_agent *a, const char *path, const struct sg_text_done *done, struct sg_error *err);
int sg_agent_scratch(struct sg_agent *a, const char *path, const struct sg_file_source_done *done, struct sg_error *err);
int sg_agent_stage(struct sg_agent *a, const char *path, const struct sg_text_done *done, struct sg_error *err);
int sg_agent_tree_mkdir(struct sg_agent *a, const char *path, uint32_t mode, const struct sg_file_stat_done *done,
                        struct sg_error *err);
int sg_agent_symlink(struct sg_agent *a, const char *path, const char *text, int64_t mtime_ns, const struct sg_done *done,
                     struct sg_error *err);
int sg_agent_link(struct sg_agent *a, const char *path, const char *existing, const struct sg_done *done,
                  struct sg_error *err);
int sg_agent_attributes(struct sg_agent *a, const char *path, uint32_t mode, int64_t mtime_ns, const struct sg_done *done,
                        struct sg_error *err);
int sg_agent_merge(struct sg_agent *a, const char *stage, const char *to, const struct sg_done *done, struct sg_error *err);

/* ---- sockets: the dial slot ---- */

/* A socket that listens on 127.0.0.1:port of the sandbox's network (not of an agent without one). Reactor thread: done, too. */
int sg_agent_listen(struct sg_agent *a, uint16_t port, int backlog, const struct sg_dial_done *done, struct sg_error *err);

/* The same of an agent that is far: it keeps the socket, for as long as it lives, and connections are asked for one by one. */
int sg_agent_listen_far(struct sg_agent *a, uint16_t port, const struct sg_done *done, struct sg_error *err);
/* The next connection there, once one comes; it is a stream socket, not of the Internet's families. SG_OVERLOADED: one was closed for want of
 * descriptors. */
int sg_agent_accept(struct sg_agent *a, const struct sg_dial_done *done, struct sg_error *err);

/* deadline_ms: sg_now_ms() time. */
int sg_agent_dial(struct sg_agent *a, uint16_t port, int64_t deadline_ms, const struct sg_dial_done *done,
                  struct sg_error *err);

#endif
