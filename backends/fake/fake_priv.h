/* Inside of the fake backend.
 *
 * All state is touched on the reactor thread only. Slots called on other threads copy their arguments into an
 * operation and post it, so every answer comes on the reactor thread and in the order of the calls.
 */
#ifndef SG_FAKE_PRIV_H
#define SG_FAKE_PRIV_H

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <uthash.h>
#include <utlist.h>

#include "backends/fake/fake.h"

#define FAKE_FILE_MAX ((size_t)64 * 1024 * 1024)
#define FAKE_PATH_MAX 4096U

enum fake_list { FAKE_CREATE, FAKE_TERMINATE, FAKE_EXEC, FAKE_FILES, FAKE_SNAPSHOT, FAKE_DROP, FAKE_LISTS };

/* One line of the script. */
struct fake_step {
    int64_t delay_ms;
    int64_t lost_after_ms; /* -1: never */
    int64_t retry_after;
    bool stall;
    enum sg_code code; /* SG_OK: success */
    const char *message;
};

struct fake_node {
    char *path; /* key: absolute, normalised */
    struct sg_file_stat stat;
    char *data;
    UT_hash_handle hh;
};

struct fake;
struct fake_exec;

struct fake_snapshot {
    char id[SG_ID_MAX], ref[SG_ID_MAX + 8];
    struct fake_node *files;
    struct fake_snapshot *next;
};

struct fake_sandbox {
    struct sg_sandbox base;
    struct fake *f; /* one reference */
    bool live;      /* counted in f->live */
    bool lost;
    struct sg_timer lost_timer;
    struct sg_task free_task;
    struct fake_node *files;
    uint64_t next_ino;
    struct fake_exec *execs;
    struct fake_sandbox *prev, *next;
};

/* Something that was asked for and answers later. finish runs once and may not touch op afterwards. */
struct fake_op {
    struct sg_task task;
    struct sg_timer timer;
    struct fake *f;
    struct fake_sandbox *sb; /* one reference, or NULL */
    enum fake_list list;
    struct fake_step step;
    void (*finish)(struct fake_op *op, const struct sg_error *err);
    struct fake_op *prev, *next;
};

struct fake {
    struct sg_driver base;
    struct sg_driver_ops own_ops; /* what the script leaves of them */
    struct fake_snapshot *snapshots;
    struct sg_reactor *reactor;
    json_t *script;
    char *name;
    const char **credentials;
    size_t used[FAKE_LISTS];
    size_t capacity; /* 0: no limit */
    atomic_size_t live;
    atomic_int refs;
    struct fake_sandbox *sandboxes;
    struct fake_op *ops;
    struct fake_create *waiters;
    bool closing;
    pthread_mutex_t lock; /* guards idle */
    pthread_cond_t cond;
    bool idle;
    uint64_t serial;
    struct sg_task close_task;
};

struct fake *fake_ref(struct fake *f);
void fake_unref(struct fake *f);
/* Any thread: from now on op is the reactor's; takes its step of the script there, waits the delay, calls
 * finish. */
void fake_op_start(struct fake_op *op, struct fake *f, struct fake_sandbox *sb, enum fake_list list);
/* The task of an operation, for those that put something before it. */
void fake_op_run(struct sg_task *t);
/* Reactor: takes op off the books; finish calls it before it frees. */
void fake_op_end(struct fake_op *op);
/* Reactor: the step's own failure as an error; -1 when there is one. */
int fake_step_error(const struct fake_step *step, struct sg_error *err);
struct fake_step fake_step_take(struct fake *f, enum fake_list list);
/* Reactor: the sandbox is gone or lost: -1 with SG_SANDBOX_LOST or SG_LEASE_GONE. */
int fake_sandbox_usable(const struct fake_sandbox *sb, struct sg_error *err);
void fake_sandbox_lose(struct fake_sandbox *sb);

/* fake_exec.c */
int fake_exec_start(struct sg_sandbox *sb, const struct sg_exec_spec *spec, const struct sg_exec_sink *sink,
                    struct sg_exec **ret, struct sg_error *err);
/* Reactor: ends every running command of sb: killed, or failed when err is given. */
void fake_exec_end_all(struct fake_sandbox *sb, const struct sg_error *err);

/* fake_snapshots.c: they are gone with the fake */
extern const struct sg_snapshot_ops fake_snapshot_ops;
/* Reactor: sb gets the files of one; -1 SG_SNAPSHOT_NOT_FOUND. */
int fake_snapshot_restore(struct fake_sandbox *sb, const char *ref, struct sg_error *err);
void fake_snapshots_finish(struct fake *f);

/* fake_files.c */
extern const struct sg_file_ops fake_file_ops;
/* Reactor: a copy of all of them in *to, which is empty; frees all of *files. */
void fake_files_copy(struct fake_node **to, struct fake_node *from);
void fake_files_free(struct fake_node **files);
void fake_files_init(struct fake_sandbox *sb);
void fake_files_finish(struct fake_sandbox *sb);
/* Reactor: absolute form of path in out; -1 SG_PATH_REFUSED. */
int fake_path(const char *path, char out[FAKE_PATH_MAX], struct sg_error *err);
struct fake_node *fake_find(struct fake_sandbox *sb, const char *abs);
/* Reactor: whole new content under a path, parents made. */
int fake_write(struct fake_sandbox *sb, const char *path, const char *data, size_t len, bool append,
               uint32_t mode, bool *ret_created, struct sg_file_stat *ret_stat, struct sg_error *err);

#endif
