/* The inside of the commands' table, shared by its files only.
 *
 * Lock rank: the table's lock is held for look-ups and list changes only, never across a callback, the last drop of a reference or
 * a call into a driver.
 */
#ifndef SG_EXECS_PRIV_H
#define SG_EXECS_PRIV_H

#include "base/fan.h"
#include "service/execs.h"
#include "service/run.h"
#include "service/service_priv.h"

#include <pthread.h>

#include <uthash.h>
#include <utlist.h>

/* How far an attached reader may be behind before its command is no longer read from. */
#define SG_EXEC_WINDOW (256U * 1024U)

/* One caller waiting for a command's end, or for its start. */
struct sg_caller {
    _Atomic int refs; /* the command's, the starter's until it is hooked, the hook's */
    struct sg_command *cmd;
    struct sg_cancel *cancel; /* or NULL */
    struct sg_cancel_hook hangup;
    _Atomic bool answered;
    void (*started)(void *arg, const struct sg_exec_info *i, struct sg_exec_reader *reader); /* or NULL: done it is */
    void (*done)(void *arg, const struct sg_exec_result *r, const struct sg_error *err);
    void *arg;
    struct sg_exec_reader *reader; /* until it is given to started */
    bool told;                     /* under the table's lock: started was or is being called */
    struct sg_caller *next, *prev;
    struct sg_caller *tell_next;
};

/* One command, from its start until its result is dropped. */
struct sg_command {
    _Atomic int refs;
    char id[SG_ID_MAX];
    uint64_t seq; /* of its start: the order of lists */
    bool detached;
    bool keeps;   /* its result is kept: the caller chose the id, or it is detached */
    struct sg_exec_log *log; /* or NULL: nobody can follow it */
    struct sg_fan *typing;   /* those that write to its standard input; NULL: that does not stay open */
    struct sg_service *s;
    struct sg_entry *lease;
    struct sg_exec_request request; /* once it has ended only what a repetition needs: hash and command */
    int64_t timeout_ms;
    int64_t started_us; /* wall clock */
    struct sg_cancel_hook lease_end;
    /* Under the table's lock: */
    bool listed;
    bool started; /* sg_run_start() is through */
    bool exists;  /* its process does, or did */
    enum sg_killed_by early_kill; /* asked for before it was started */
    bool stdin_busy; /* a request writes to it */
    bool stdin_closed;
    enum sg_exec_state state;
    struct sg_tty_size tty; /* its terminal's present size, 0 rows: it has none */
    struct sg_caller *callers;
    struct sg_error failure; /* state lost: why */
    int64_t ended_ms;
    size_t weight;     /* bytes it counts for besides its output, once it is kept */
    size_t log_weight; /* and those of its log */
    /* Set once by sg_run_start(), before anybody may use it (started, or done). */
    struct sg_run *run;
    struct sg_command *next, *prev;
};

/* The commands of one lease, oldest first. */
struct sg_lease_commands {
    char lease_id[SG_ID_MAX];
    struct sg_command *list;
    struct sg_command *newest; /* the one that was kept last, or NULL */
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
/* What is known of it, with the reference of i.result.keep, for sg_command_info_end(). Without the lock. */
void sg_command_info(struct sg_command *c, struct sg_exec_info *i);
void sg_command_info_end(struct sg_exec_info *i);
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
/* c has ended and is kept from here on; its output at least until another one is. */
void sg_commands_keep(struct sg_execs *x, struct sg_command *c);
/* Drops what is beyond age and caps, oldest first: output before whole results. Commands that go are put into *ret, to be let
 * go without the lock. */
void sg_commands_prune(struct sg_execs *x, const char *lease_id, struct sg_command **ret);
/* Without the lock: commands that are no longer in the table need no word of their lease's end any more. */
void sg_commands_let_go(struct sg_command *dropped);

#endif
