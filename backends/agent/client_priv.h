/* What the parts of the agent's client share; nobody else includes it. */
#ifndef SG_AGENT_CLIENT_PRIV_H
#define SG_AGENT_CLIENT_PRIV_H

#include "backends/agent/client.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#include <uthash.h>
#pragma GCC diagnostic pop

#define SG_AGENT_PENDING_MAX 4096U     /* requests without an answer and commands without an end */
#define SG_AGENT_ANSWER_MS 10000       /* the agent answers sooner or is broken */
#define SG_AGENT_TREE_ANSWER_MS 600000 /* nobody waits longer for something about a tree of files */
#define SG_AGENT_FAR_GRACE_MS 10000    /* ... of an agent that is far, whose relay ends them after SG_AGENT_GRACE_MS: without a byte for so long */
#define SG_AGENT_GRACE_MS 250          /* for descendants that hold the output of a command that has ended */
#define SG_AGENT_KILL_MS 10000         /* a killed command has ended by then, or nobody knows */
#define SG_AGENT_REST_MAX 256U         /* outputs of ended commands that are still read, and thrown away */
#define SG_AGENT_REST_BYTES 65536U     /* ... in one go, */
#define SG_AGENT_REST_PAUSE_MS 20      /* ... this far apart */
#define SG_AGENT_REQUEST_MAX 9216U     /* largest packet the server sends */

/* A request that waits for its answer, or a command that waits for its end; embedded in what it is about. */
struct sg_call;
typedef int sg_answer(struct sg_call *c, const struct sg_agent_msg *m, int fd, const struct sg_error *err);
struct sg_call {
    /* Reactor thread. m NULL: err says why no answer will come, and it is the last time. fd: the answer's
     * descriptor (-1: none), the callee's. Returns -1 when m is not what may come now: the agent is then
     * lost. */
    sg_answer *answer;
    bool command;   /* STARTED, SPAWN_FAILED, EXITED come for it; else one DONE */
    bool wants_fd;  /* a DONE without an error brings exactly one descriptor */
    bool tree;      /* takes as long as there are files: late is no fault, the caller hears SG_OUTCOME_UNKNOWN */
    bool lasting;   /* nobody knows when the answer comes: no deadline */
    uint64_t id;    /* set by sg_agent_call() */
    bool waiting;   /* in the agent's table */
    int64_t due_ms; /* 0: no deadline */
    UT_hash_handle hh;
};

struct sg_append; /* client_append.c */

struct sg_agent {
    atomic_int refs;
    struct sg_reactor *reactor;
    struct sg_workq *workq;
    struct sg_agent_options o;
    char *root, *seen_at;
    struct sg_agent_facts facts; /* set before ready */

    pthread_mutex_t lock; /* guards the next block */
    int fd;               /* -1: gone */
    bool gone, closing;
    struct sg_error why; /* of gone */
    uint64_t last_id;
    struct sg_call *calls;
    int64_t next_due_ms; /* when the timer will look, 0: it is not set and nobody has asked */
    bool arming;         /* arm is posted, with a reference */
    struct sg_append *append_first, **append_tail; /* appends one after the other; the first is at work */

    /* reactor thread */
    struct sg_watch watch;
    struct sg_timer timer;
    struct sg_task arm; /* sets the timer */
    bool greeted;
    uint64_t oom_id; /* of the command that the kernel has killed for want of memory, as a relay said last */
    unsigned rest; /* outputs being thrown away */
};

/* Sends m (its id is assigned) with fds, and c waits for the answer. 0: c->answer will be
 * called, maybe already has been. -1: it never will. fds are borrowed. */
int sg_agent_call(struct sg_agent *a, struct sg_call *c, struct sg_agent_msg *m, const int *fds, struct sg_error *err);
/* Sends m about the command m->id; no answer. */
int sg_agent_tell(struct sg_agent *a, struct sg_agent_msg *m, struct sg_error *err);
/* Reactor thread: c (a command) has started and may run without a deadline; or it is over. */
void sg_agent_call_started(struct sg_agent *a, struct sg_call *c);
void sg_agent_call_over(struct sg_agent *a, struct sg_call *c);
/* Reactor thread: the agent broke the rules. */
void sg_agent_lose(struct sg_agent *a, const char *reason, const char *what);

/* path as the agent takes it, malloc'd: absolute, at most SG_AGENT_PATH_MAX bytes. NULL with SG_PATH_REFUSED.
 */
char *sg_agent_path(struct sg_agent *a, const char *path, struct sg_error *err);

/* ---- check.c: descriptors that come from inside ---- */

/* A regular file of an ordinary file system, opened with access mode `access`? st is filled. NULL, or what is
 * wrong. */
const char *sg_agent_check_file(int fd, int access, struct stat *st);
/* A TCP socket of `family` and of the network namespace `cookie` (0: any), neither bound to a peer nor
 * listening? */
const char *sg_agent_check_socket(int fd, int family, uint64_t cookie);
/* The master of a terminal? Made non-blocking: only its maker, the agent, could have it otherwise. */
const char *sg_agent_check_terminal(int fd);

/* ---- errno_table.c ---- */

/* The agent's error as one of the API. */
int sg_agent_error(struct sg_error *err, uint32_t error);

/* The error of an answer, into e: of the connection (m NULL) or of the sandbox. False: there is none. */
bool sg_agent_answer_error(const struct sg_agent_msg *m, const struct sg_error *err, struct sg_error *e);
/* Did the answer bring the regular file that was asked for? 0 and st; -1 and e, *wrong when it is the agent's
 * fault. */
int sg_agent_take_file(const struct sg_agent_msg *m, int fd, int access, const struct sg_error *err,
                       struct stat *st, bool *wrong, struct sg_error *e);

/* ---- client_spawn.c ---- */

/* Where the server's ends of the command's pipes are put, before anything is sent; they are the caller's also
 * on failure. A command on a terminal has none. */
struct sg_spawn_ends {
    int *in, *out, *err;
};
/* Sends the request; c hears of the command from then on. */
int sg_agent_spawn(struct sg_agent *a, const struct sg_exec_spec *spec, const struct sg_agent_tree *tree,
                   struct sg_call *c, const struct sg_spawn_ends *ends, struct sg_error *err);

/* ---- client_files.c: values ---- */

void sg_agent_stat_from(struct sg_file_stat *out, const struct sg_agent_stat *st, const char *target,
                        size_t target_len);
void sg_agent_stat_from_fd(struct sg_file_stat *out, const struct stat *st, uint32_t uid);
void sg_agent_condition_from(struct sg_agent_condition *out, const struct sg_condition *c);
/* sg_agent_list with SG_AGENT_NO_LINKS or 0. */
int sg_agent_list_links(struct sg_agent *a, const struct sg_file_list_args *args, uint32_t links,
                        const struct sg_file_list_done *done, struct sg_error *err);

/* ---- client_content.c ---- */

/* Of a file that a relay has open; fd, which leads there, is taken over. */
struct sg_file_content *sg_agent_content_new(struct sg_agent *a, int fd);

/* ---- client_put.c and client_append.c ---- */

typedef void sg_commit_done(void *arg, const struct sg_file_stat *st, bool created,
                            const struct sg_error *err);

/* A finished upload on its way: everything is consumed. */
struct sg_upload {
    struct sg_agent *agent; /* a reference */
    int fd;                 /* of the temp file */
    char *path;             /* of the target */
    char *temp;             /* its path when it has one, or NULL */
    bool mode_given, mtime_given, no_links;
    uint32_t mode;
    int64_t mtime_ns;
    struct sg_condition only_if;
    int64_t size;
};
void sg_upload_finish(struct sg_upload *u); /* removes the temp file too */
/* Gives the temp file its name. how: 0; SG_AGENT_COMMIT_NEW: SG_ALREADY_EXISTS when there is one; SG_AGENT_COMMIT_APPEND. u->fd is closed before done; a
 * named temp file stays when it fails. c->answer and the rest of the message are the caller's. */
int sg_upload_commit(struct sg_upload *u, struct sg_call *c, uint32_t how, struct sg_error *err);
/* Appends u's content to the file of its path, in turn; consumes u. */
void sg_append_start(struct sg_upload *u, sg_commit_done *done, void *arg);

#endif
