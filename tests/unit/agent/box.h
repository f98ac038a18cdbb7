/* A real sandbox with the real agent in it, for tests; and ways to wait for what it does. */
#ifndef SG_TEST_BOX_H
#define SG_TEST_BOX_H

#include "backends/agent/client.h"

#include <pthread.h>

#define BOX_DISK (16L * 1024 * 1024) /* of /workspace */

enum box_tree { BOX_HELPER, BOX_CGROUP };

struct box {
    struct sg_reactor *reactor;
    struct sg_workq *workq;
    struct sg_agent *agent;
    struct sg_hold *hold;
    struct sg_agent_facts facts;
    pid_t pid; /* of bwrap, outside */
    enum box_tree tree;
    enum sg_agent_isolation isolation;
    char group[128]; /* cgroup v2 directory, or "" */
    pthread_mutex_t lock;
    pthread_cond_t news;
    bool ready, lost, closed;
    struct sg_error why;
};

/* Starts bwrap with the agent. isolation SG_AGENT_UID needs root: box_can(). */
bool box_can(enum sg_agent_isolation isolation, enum box_tree tree);
void box_start(struct box *b, enum sg_agent_isolation isolation, enum box_tree tree);
/* A box without a sandbox: the test plays the agent. Returns its end of the socket. tree_ms: as in the options. */
int box_fake(struct box *b, enum sg_agent_isolation isolation, int64_t tree_ms);
void box_fake_hello(int sock, enum sg_agent_isolation isolation);
void box_stop(struct box *b);
/* Waits (10 s at most, then the test fails) until *flag, which changes under b->lock. */
void box_wait(struct box *b, const bool *flag);
void box_set(struct box *b, bool *flag);

/* A command and what came of it. */
struct run {
    struct box *box;
    struct sg_exec *x;
    struct sg_agent_tree tree;
    char group[192];
    bool started, ended, failed, freed;
    bool freed_first; /* before the end was told */
    struct sg_exit exit;
    struct sg_error error;
    char *out, *err; /* NUL-terminated */
    size_t out_len, err_len;
};
struct run_args {
    const char *const *argv;
    const char *shell; /* instead of argv */
    const char *cwd;
    const char *path;    /* PATH, or NULL */
    const char *big_env; /* value of BIG, or NULL */
    const void *input;
    size_t input_len;
    bool stdin_open;
    struct sg_tty_size tty;
    int64_t timeout_ms; /* 0: 10 s */
    size_t pipe_bytes;  /* 0: 64 KiB */
};
/* 0 or the code of an error at once. */
int run_start(struct run *r, struct box *b, const struct run_args *a);
/* Reads everything until the end. */
void run_wait(struct run *r);
void run_finish(struct run *r); /* releases */
/* All three. */
void run_shell(struct run *r, struct box *b, const char *text);
/* Runs text and returns its stdout; it must exit with 0. */
char *box_sh(struct box *b, const char *text);

/* File operations, waited for: the code of the error, or SG_OK. */
struct file_result {
    struct box *box;
    bool done;
    struct sg_error error;
    struct sg_file_stat stat;
    bool created;
    struct sg_file_source source;
    struct sg_file_sink *sink;
    struct sg_file_list list;
    int fd; /* dial */
};
enum sg_code box_put(struct box *b, const char *path, const void *data, size_t len, bool append,
                     struct file_result *r);
enum sg_code box_put_open(struct box *b, const struct sg_file_put_args *a, struct file_result *r);
void box_commit_start(struct file_result *r);
enum sg_code box_commit(struct box *b, struct file_result *r);
enum sg_code box_get(struct box *b, const char *path, struct file_result *r);
/* Content of a file, NUL-terminated; NULL when it cannot be had. */
char *box_read(struct box *b, const char *path, size_t *len);
enum sg_code box_stat(struct box *b, const char *path, struct file_result *r);
enum sg_code box_list(struct box *b, const char *path, bool recursive, size_t max, struct file_result *r);
enum sg_code box_mkdir(struct box *b, const char *path, uint32_t mode);
enum sg_code box_remove(struct box *b, const char *path, bool recursive);
enum sg_code box_move(struct box *b, const char *from, const char *to);
enum sg_code box_dial(struct box *b, uint16_t port, int64_t ms, struct file_result *r);

unsigned open_fds(void);

#endif
