/* Commands of leases: starting them, telling repetitions from conflicts, and what is known of each afterwards. */
#ifndef SG_EXECS_H
#define SG_EXECS_H

#include "lease/registry.h"
#include "service/exec_log.h"
#include "model/exec_json.h"
#include "model/principal.h"

struct sg_service;
struct sg_execs;
struct sg_done;

struct sg_execs *sg_execs_new(struct sg_service *s);
/* What all commands share for their output, also those of the server itself. Borrowed. */
struct sg_run_memory *sg_execs_memory(struct sg_execs *x);
/* No command may be running. NULL-safe. */
struct sg_execs *sg_execs_free(struct sg_execs *x);

enum sg_exec_state { SG_EXEC_RUNNING, SG_EXEC_FINISHED, SG_EXEC_KILLED, SG_EXEC_TIMED_OUT, SG_EXEC_LOST };
const char *sg_exec_state_name(enum sg_exec_state s);

struct sg_exec_info;

struct sg_exec_args {
    const struct sg_principal *who;
    struct sg_entry *lease;
    struct sg_exec_request *request; /* moved from */
    /* The caller's: a hang-up of the last caller attached kills the command, unless it is detached. */
    struct sg_cancel *cancel;
    bool stream;    /* the caller reads the events, from the one after `after`; unless detached, at the command's expense */
    uint64_t after;
    /* For stream or request->detach, instead of done: the process exists, or did if this is a repetition. i is borrowed for the callback;
     * reader is the callee's, NULL without stream. */
    void (*started)(void *arg, const struct sg_exec_info *i, struct sg_exec_reader *reader);
    /* r is borrowed for the callback, its output for as long as a reference on r->keep; NULL with err. */
    void (*done)(void *arg, const struct sg_exec_result *r, const struct sg_error *err);
    void *arg;
};
/* Runs a command; one of started and done comes, exactly once. With a caller-chosen id a repetition of the same body attaches to the running command or gets
 * its kept result (of which older output may be gone: then it counts as truncated); another body is SG_EXEC_ID_CONFLICT. An attempt that
 * started nothing is forgotten. */
void sg_service_exec(struct sg_service *s, const struct sg_exec_args *a);

/* What is known of one command. */
struct sg_exec_info {
    char exec_id[SG_ID_MAX];
    uint64_t seq; /* by the order of starts */
    enum sg_exec_state state;
    int64_t started_us; /* wall clock */
    struct sg_tty_size tty; /* 0 rows: no terminal */
    bool has_result;
    struct sg_exec_result result; /* borrowed for the callback; only filled in by sg_service_exec_get() */
};
/* Calls fn with what is known of exec `id`; SG_NOT_FOUND. fn must not call back into the service. */
int sg_service_exec_get(struct sg_service *s, struct sg_entry *lease, const char *id,
                        void (*fn)(void *arg, const struct sg_exec_info *i), void *arg, struct sg_error *err);
/* The same, without results, for every command of the lease that is running or kept, oldest first, those whose seq is above `after`; at
 * most limit; true in *ret_more when there are further ones. fn is called with a lock held. */
void sg_service_exec_list(struct sg_service *s, struct sg_entry *lease, uint64_t after, size_t limit,
                          void (*fn)(void *arg, const struct sg_exec_info *i), void *arg, bool *ret_more);
/* Reads the events of a command that has an id of its caller's or is detached, or streams to its caller; never at its expense. SG_NOT_FOUND,
 * SG_CONFLICT for others, and as sg_exec_reader_new(). */
int sg_service_exec_follow(struct sg_service *s, struct sg_entry *lease, const char *id, uint64_t after,
                           struct sg_exec_reader **ret, struct sg_error *err);
/* Reads the events of a command with a terminal, at its expense. SG_NO_TTY for others, and as above. */
int sg_service_exec_attach(struct sg_service *s, struct sg_entry *lease, const char *id, uint64_t after, struct sg_exec_reader **ret,
                           struct sg_error *err);
/* Kills the command and all its descendants, also of a finished one. */
int sg_service_exec_kill(struct sg_service *s, struct sg_entry *lease, const char *id, struct sg_error *err);
/* SG_CONFLICT once it has ended. */
int sg_service_exec_signal(struct sg_service *s, struct sg_entry *lease, const char *id, int signo, struct sg_error *err);
/* SG_NO_TTY for a command without a terminal; SG_CONFLICT once that has ended. 0: done comes, on any thread; after it everybody sees
 * the size. */
int sg_service_exec_resize(struct sg_service *s, struct sg_entry *lease, const char *id, struct sg_tty_size size,
                           const struct sg_done *done, struct sg_error *err);

#endif
