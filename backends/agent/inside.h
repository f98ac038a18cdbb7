/* The agent's own parts: the program inside the sandbox, single-threaded, static, its libc use kept small.
 * Nothing of the server includes this. */
#ifndef SG_AGENT_INSIDE_H
#define SG_AGENT_INSIDE_H

#include "backends/agent/protocol.h"

#include <sys/resource.h>
#include <sys/types.h>

/* Exit codes; protocol.h lists them. */
enum { EXIT_EOF = 0, EXIT_USAGE = 64, EXIT_PROTOCOL = 70, EXIT_SETUP = 71 };

#define OUT_PACKET_MAX 4224U /* the largest packet the agent sends: DONE with its text */

struct out_packet {
    unsigned char data[OUT_PACKET_MAX];
    size_t len;
    int fd; /* -1: none; the queue's */
};

/* A command, or the helper over one. */
struct live {
    uint64_t id; /* 0: free entry; SG_AGENT_NOBODYS: of a server that is gone */
    pid_t pid;   /* of the command; of the helper when ctl >= 0 */
    int ctl;     /* socket to the helper, or -1 */
    bool ended;  /* EXITED was sent, or the start failed: only the helper is left */
};

struct worker {
    uint64_t id; /* as in live */
    pid_t pid;
};

struct agent {
    int sock, epoll, signals, null; /* sock -1: no server now */
    int listen; /* where servers come to, or -1 */
    int ear; /* a socket that listens inside for servers, on ear_port; or -1 */
    uint32_t ear_port;
    bool relayed; /* these are relays */
    int64_t grace_ms; /* how long it waits for one */
    unsigned n_own;
    char **own; /* directories that are to be the command user's */
    const char *listen_dir;
    int root; /* as it was passed; FILES_ROOT later */
    enum sg_agent_isolation isolation;
    uid_t command_uid;
    gid_t command_gid;
    struct rlimit command_files; /* RLIMIT_NOFILE of commands */
    uint64_t temp_names; /* counts the names of temporary files */
    uint64_t commits;
    struct live live[SG_AGENT_EXECS_MAX];
    struct worker workers[SG_AGENT_WORKERS_MAX];
    volatile bool *spoke;  /* for each of them whether it has answered; shared memory */
    volatile bool *speaks; /* in a worker: its own of these, else NULL */
    struct out_packet queue[SG_AGENT_QUEUE_MAX]; /* ring */
    size_t queue_head, queue_len, queue_fds;
    unsigned char packet[SG_AGENT_PACKET_MAX]; /* the request being handled */
    char *argv[SG_AGENT_ARGC_MAX + 3];
    char *envp[SG_AGENT_ENVC_MAX + 1];
};

/* ---- out.c: packets to the server; never waits ---- */

/* Sends m, or queues it; fd (or -1) is consumed. Ends the program when the queue overflows or the server is
 * gone, unless it waits for the next one: then it is thrown away. */
void out_send(struct agent *a, struct sg_agent_msg *m, int fd);
/* The socket takes packets again. */
void out_flush(struct agent *a);
void out_done(struct agent *a, uint64_t id, int error);
/* About what a server that is gone had asked for: nobody is told. */
#define SG_AGENT_NOBODYS UINT64_MAX
/* Sends the master of the terminal of command id; fd is consumed. 0, or an errno when too many descriptors are in flight: then it
 * was not sent. */
int out_terminal(struct agent *a, uint64_t id, int fd);

/* ---- child.c: one command ---- */

struct child {
    char **argv; /* argv[-1] is writable, for the shell of a script without an interpreter line */
    char **envp;
    const char *cwd;
    int in, out, err;
    int terminal;    /* in, out and err are this one: becomes its controlling terminal; or -1 */
    int group;       /* directory of a cgroup v2 group to be born in, or -1 */
    int group_procs; /* its cgroup.procs, for where that cannot be */
    int tasks[SG_AGENT_TASKS_MAX];
    unsigned n_tasks;
    bool set_user; /* drop to uid and gid; else they are the caller's already */
    uid_t uid;
    gid_t gid;
    struct rlimit files; /* RLIMIT_NOFILE */
    bool goes_first; /* it and the agent share a memory limit: when that is reached it ends before the agent does */
    bool born; /* child.c's: came into the world inside the group */
    /* out: why it did not start; 0: it did, or it ended with 126 or 127 and a message */
    volatile uint32_t stage;
    volatile int error;
};

/* Starts it and waits (for the time of an exec) until it runs. Its pid; 0: the process limit refused it, a
 * message is in its stderr and it counts as ended with 126; -1: c->stage and c->error tell. */
pid_t child_start(struct child *c);

/* ---- kin.c: who descends from whom ---- */

struct process;
struct kin {
    int proc; /* directory /proc */
    pid_t top; /* whose descendants; 0: this process's */
    struct process *all;
};
/* 0, or -1 with errno. Its table is one per process. */
int kin_open(struct kin *k);
/* Calls fn for one after the other until it is true. */
bool kin_each(struct kin *k, bool (*fn)(void *arg, pid_t pid), void *arg);
/* Kills every descendant of this process but the n processes in spare and what descends from them. True when there was any. */
bool kin_kill(struct kin *k, const pid_t *spare, size_t n);
/* Before they are killed: stops them, so that a bomb cannot outgrow the killing, but for those that are git: killed outright it would leave its
 * locks in a repository, for ever and in everybody's way. It may end by itself, and is asked to end then (which leaves a lock that is being
 * made at that moment). One pass; true: once more, and after a while if c->git. */
struct kin_calm { /* begins with zeros */
    int64_t git_ms; /* when the first git was seen; 0: there was none */
    unsigned passes;
    bool git; /* of the latest pass: there are some to wait for */
};
bool kin_calm(struct kin *k, struct kin_calm *c, const pid_t *spare, size_t n);
#define KIN_GIT_ALONE_MS 200
#define KIN_GIT_MS 2000 /* then it is killed like any other */
#define KIN_STOP_PASSES 8
/* The longest wait between passes. */
#define KIN_PASS_WAIT_MS 20
/* Reaps what has died; reaped (MAY be NULL) hears of each. True when no child is left. */
bool kin_reap(void (*reaped)(void *arg, pid_t pid, int status), void *arg);
/* Kills all descendants and reaps them: returns when there are none, or when they would not die in patience_ms. signals: a signalfd of
 * SIGCHLD. */
void kin_kill_all(struct kin *k, int signals, int patience_ms, void (*reaped)(void *arg, pid_t pid, int status), void *arg);

/* ---- listen.c ---- */

/* Do all who would take a connection to that port of the loopback address descend from process top? No when there is nobody. */
bool listen_is_ours(int family, uint16_t port, pid_t top);

/* ---- ear.c ---- */

void ear_open(struct agent *a, const struct sg_agent_msg *m);

/* ---- keeper.c ---- */

/* The program in its mode `keeper`. */
int keeper_main(int argc, char **argv);

/* ---- terminal.c ---- */

/* A new terminal of that size: the command's end, and in *master the server's. -errno. */
int terminal_open(uint32_t rows, uint32_t cols, int *master);

/* ---- helper.c: a subreaper over one command ---- */

enum helper_word { HELPER_STARTED = 1, HELPER_FAILED, HELPER_EXITED, HELPER_SIGNAL };
struct helper_msg {
    uint32_t word, a, b;
};
/* Forks the helper and starts c under it. *ctl: the agent's end of a SOCK_SEQPACKET pair of helper_msg;
 * closing it kills all descendants. The helper's pid or -errno. */
pid_t helper_start(struct child *c, int *ctl);

/* ---- names.c, files.c, put.c ---- */

void files_open(struct agent *a, const struct sg_agent_msg *m);
void files_commit(struct agent *a, const struct sg_agent_msg *m, int fd);
void files_stat(struct agent *a, const struct sg_agent_msg *m);
void files_mkdir(struct agent *a, const struct sg_agent_msg *m);
void files_rename(struct agent *a, const struct sg_agent_msg *m);
void files_remove(struct agent *a, const struct sg_agent_msg *m);
void files_list(struct agent *a, const struct sg_agent_msg *m, int fd);

/* ---- tree.c ---- */

void tree_link(struct agent *a, const struct sg_agent_msg *m);
void tree_attributes(struct agent *a, const struct sg_agent_msg *m);
void tree_merge(struct agent *a, const struct sg_agent_msg *m);

/* The directory that paths start at and cannot leave: the sandbox's "/". Open in the agent and its workers. */
#define FILES_ROOT 4
/* Opens an absolute path of the sandbox, below FILES_ROOT whatever its links and ".." say; never through a magic link. fd or -errno. */
int files_resolve(const char *path, int flags);
/* A flag for it, beside those of open(2): follow no link at all. */
#define FILES_NO_LINKS 0x40000000
/* FILES_NO_LINKS when m wants that, else 0: what `links` means below. */
int files_links(const struct sg_agent_msg *m);
/* Opens the directory that holds path's last component, which goes to name (SG_AGENT_PATH_MAX + 1 bytes).
 * -errno. */
int files_parent(const char *path, char *name, int links);
/* A rename between two directories; fresh: EEXIST when there is something of the new name. 0, or -1 with errno. */
int files_replace(int from_dir, const char *from, int to_dir, const char *to, bool fresh);
/* The same, making the directories that are missing; files_unmake_parent takes them back. */
struct made_dirs {
    char path[SG_AGENT_PATH_MAX + 1];
    int links;
    unsigned n;
};
int files_make_parent(const char *path, char *name, int links, struct made_dirs *made);
void files_unmake_parent(const struct made_dirs *made);
/* Cuts path into the directory (dir) and the last component (name); both have room for a whole path. "/a/b/"
 * is "/a" and "b"; the root itself has the name ".". -errno. */
int files_split(const char *path, char *dir, char *name);
/* "." or ".."? */
bool files_no_name(const char *name);
/* Opens directory path, making what is missing of it. *made: how many levels are new. fd, or -errno and what was
 * made is gone again. */
int files_make_dirs(const char *path, mode_t mode, int links, unsigned *made);
/* Takes back the last levels that were made; what has been filled meanwhile stays. */
void files_unmake_dirs(const char *path, int links, unsigned made);
/* The nearest existing directory on the way to path, so that parents appear only with the file. fd or -errno. */
int files_nearest_dir(const char *path, int links);
/* The regular file path of an ordinary file system: fd and st, or -errno or -SG_AGENT_ENOTREG. */
struct stat;
int files_open_regular(const char *path, int flags, int links, struct stat *st);
/* Gives the temp file fd its name: 0 and what it is now, or an errno. */
int files_commit_run(struct agent *a, const struct sg_agent_msg *m, int fd, struct stat *st, bool *created);
/* append.c, in a worker: a COMMIT with COMMIT_APPEND. */
void append_job(struct agent *a, const struct sg_agent_msg *m, int fd);
/* For futimens: the modification time of m if it has one. */
struct timespec;
void files_times(const struct sg_agent_msg *m, struct timespec times[2]);
int files_temp_name(struct agent *a, char *name, size_t cap);
/* Answers with st (NULL: none), flags and text; fd (-1: none) is consumed. */
void files_done_stat(struct agent *a, uint64_t id, const struct stat *st, uint32_t flags, const char *text, int fd);
/* Where an open file of this process is, as the sandbox sees it; -errno. */
int files_path_of(int fd, char *path, size_t cap);
/* st NULL: there is no file. 0 or -SG_AGENT_ECONDITION. */
int files_condition_check(const struct sg_agent_condition *c, const struct stat *st);
/* What OPEN_TEMP and OPEN_SCRATCH want: fd or -errno. temp: its path, "" when it has none. */
int files_open_temp(struct agent *a, const struct sg_agent_msg *m, char *temp, size_t cap);
int files_open_scratch(struct agent *a, const struct sg_agent_msg *m);
void files_stat_fill(struct sg_agent_stat *out, const struct stat *st);

/* An open directory and the entries read ahead of it. */
struct level {
    int fd;
    size_t path_len; /* of this directory's path below the root of the walk */
    long len, at;
    unsigned char type; /* of the entry that was read last, DT_UNKNOWN: look */
    char buf[4096] __attribute__((aligned(8)));
};
void level_open(struct level *l, int fd, size_t path_len);
/* The next name other than . and ..; NULL at the end, *e set on failure. */
const char *level_next(struct level *l, int *e);

/* ---- list.c ---- */

struct listing {
    int fd; /* the memfd */
    bool recursive;
    const char *after; /* names up to this one are left out; NULL: none */
    uint32_t max_entries;
    uint64_t max_bytes;
    uint32_t budget; /* entries before it gives up with EAGAIN so that a worker does it; 0: none */
    uint64_t written;
    bool more;      /* there are names behind the last one */
    bool truncated; /* something is so deep that it cannot be listed */
};
/* 0 or an errno. dir is consumed. */
int list_run(struct listing *w, int dir);

/* ---- walk.c, copy.c ---- */

/* Opens a directory that is to be removed, making it accessible to its own user. fd, or -1 and errno. */
int walk_open(int dir, const char *name);
/* Removes everything below dir (consumed), read-only directories included: 0 or an errno. */
int walk_remove(int dir);

/* Moves an entry of one directory into another on another file system: 0 or an errno. */
int copy_move(int from, const char *name, int to, const char *as);

/* Runs job(a, m, fd) in a short-lived process whose exit code is ignored but for 0: it has answered itself
 * with out_send on the shared socket. Answers EAGAIN when too many run. */
void worker_run(struct agent *a, const struct sg_agent_msg *m, int fd,
                void (*job)(struct agent *a, const struct sg_agent_msg *m, int fd));

#endif
