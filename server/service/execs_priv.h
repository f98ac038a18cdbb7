/* The inside of the commands' table, shared by its files only.
 *
 * Lock rank: the table's lock is held for look-ups and list changes only, never across a callback, the last drop of a reference or
 * a call into a driver.
 */
#ifndef SG_EXECS_PRIV_H
#define SG_EXECS_PRIV_H

#include "service/execs.h"
#include "service/run.h"
#include "service/service_priv.h"

#include <pthread.h>

#include <uthash.h>
#include <utlist.h>

/* One caller waiting for a command's end. */
struct sg_caller {
    _Atomic int refs; /* the command's, the starter's until it is hooked, the hook's */
    struct sg_command *cmd;
    struct sg_cancel *cancel; /* or NULL */
    struct sg_cancel_hook hangup;
    _Atomic bool answered;
    void (*done)(void *arg, const struct sg_exec_result *r, const struct sg_error *err);
    void *arg;
    struct sg_caller *next, *prev;
};

/* One command, from its start until its result is dropped. */
struct sg_command {
    _Atomic int refs;
    char id[SG_ID_MAX];
    uint64_t seq; /* of its start: the order of lists */
    bool chosen;  /* the caller chose the id: the result is kept */
    struct sg_service *s;
    struct sg_entry *lease;
    struct sg_exec_request request; /* once it has ended only what a repetition needs: hash and command */
    int64_t timeout_ms;
    int64_t started_us; /* wall clock */
    struct sg_cancel_hook lease_end;
    /* Under the table's lock: */
    bool listed;
    bool started;
    enum sg_killed_by early_kill; /* asked for before it was started */
    enum sg_exec_state state;
    struct sg_caller *callers;
    struct sg_error failure; /* state lost: why */
    int64_t ended_ms;
    size_t weight; /* bytes it counts for besides its output, once it is kept */
    /* Set once by sg_run_start(), before anybody may use it (started, or done). */
    struct sg_run *run;
    struct sg_command *next, *prev;
};

/* The commands of one lease, oldest first. */
struct sg_lease_commands {
    char lease_id[SG_ID_MAX];
    struct sg_command *list;
    size_t kept;
    size_t kept_bytes;
    UT_hash_handle hh;
};

struct sg_execs {
    struct sg_service *s;
    struct sg_run_memory memory;
    pthread_mutex_t lock;
    uint64_t last_seq;
    struct sg_lease_commands *leases;
};

void sg_command_unref(struct sg_command *c);
/* With the reference of r.keep; the rest is borrowed from c, which has ended. */
void sg_command_result(struct sg_command *c, struct sg_exec_result *r);
/* Kills it, or has it killed as soon as it runs. Without the lock. */
void sg_command_kill(struct sg_command *c, enum sg_killed_by why);

/* ---- exec_table.c: with the table's lock held, but for let_go ---- */

struct sg_lease_commands *sg_commands_of(struct sg_execs *x, const char *lease_id);
/* Adds c as the newest; the table takes a reference. */
void sg_commands_add(struct sg_execs *x, struct sg_command *c);
/* Takes c out; the table's reference becomes the caller's. */
void sg_commands_remove(struct sg_execs *x, struct sg_command *c);
/* The lease's command of that id, unless its result is too old. */
struct sg_command *sg_commands_find(struct sg_execs *x, struct sg_entry *lease, const char *id);
bool sg_commands_too_old(const struct sg_execs *x, const struct sg_command *c);
/* c has ended and is kept from here on. */
void sg_commands_keep(struct sg_execs *x, struct sg_command *c);
/* Drops what is beyond age and caps, oldest first: output before whole results. Commands that go are put into *ret, to be let
 * go without the lock. */
void sg_commands_prune(struct sg_execs *x, const char *lease_id, struct sg_command **ret);
/* Without the lock: commands that are no longer in the table need no word of their lease's end any more. */
void sg_commands_let_go(struct sg_command *dropped);

#endif
