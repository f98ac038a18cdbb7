/* One command whose output is gathered in memory up to a cap, the head is kept, everything is counted; and which goes, where
 * somebody may want to follow it, into a log of events, too.
 *
 * Reference counted; every function may be called on any thread.
 */
#ifndef SG_RUN_H
#define SG_RUN_H

#include "backends/driver.h"
#include "model/exec_json.h"
#include "service/exec_log.h"

struct sg_run;

struct sg_run_args {
    /* When it is used up, output is counted and no longer kept, and no command with large stdin is started (SG_OVERLOADED). */
    struct sg_run_memory *memory;
    struct sg_sandbox *sb;
    struct sg_exec_spec spec;   /* borrowed for the call */
    const uint8_t *stdin_data;  /* borrowed until done; NULL: none */
    size_t stdin_len;
    bool stdin_stays;           /* without stdin_data: open until sg_run_stdin() is closed, else the command reads end of file */
    size_t max_output_bytes;    /* kept of each stream */
    struct sg_exec_log *log;    /* or NULL; a reference is taken. A full log stops the reading, and so the command. */
    /* MAY be NULL. The process exists; before anything is read of it. Maybe before sg_run_start() returns. No locks held. */
    void (*started)(void *arg);
    /* Exactly once when sg_run_start() returned 0, maybe before it returns (then on the same thread, *ret set). err NULL: it ended, see sg_run_outcome().
     * No locks held. */
    void (*done)(void *arg, struct sg_run *run, const struct sg_error *err);
    void *arg;
};

/* *ret, with a reference for the caller, is set before done can be called. -1: nothing was started. */
int sg_run_start(const struct sg_run_args *args, struct sg_run **ret, struct sg_error *err);
struct sg_run *sg_run_ref(struct sg_run *run);
struct sg_run *sg_run_unref(struct sg_run *run);

/* Kills the command and all its descendants; the first reason counts. */
void sg_run_kill(struct sg_run *run, enum sg_killed_by why);
/* SG_CONFLICT once the command has ended. */
int sg_run_signal(struct sg_run *run, int signo, struct sg_error *err);

/* Of a command with a terminal. SG_CONFLICT once that has ended; else done comes, on any thread. */
int sg_run_resize(struct sg_run *run, struct sg_tty_size size, const struct sg_done *done, struct sg_error *err);

/* The command's standard input, borrowed; NULL when it was not left open. */
struct sg_pipe *sg_run_stdin(const struct sg_run *run);

/* Did the command's process exist? After done: false means that nothing was started. */
bool sg_run_has_started(const struct sg_run *run);
/* After done(NULL): what came out and how it ended, into out, err, exit and keep; the output lives as long as that reference, which
 * is the caller's. */
void sg_run_outcome(struct sg_run *run, struct sg_exec_result *ret);
/* After done: bytes of output held. */
size_t sg_run_bytes(struct sg_run *run);
/* After done: what is kept of the output is given up; how much there was is still known. */
void sg_run_drop_output(struct sg_run *run);
/* After done with an error because the sandbox ended under it: turns the run into one that was killed by the end of its
 * lease, with the output so far. */
void sg_run_set_lease_end(struct sg_run *run);

#endif
