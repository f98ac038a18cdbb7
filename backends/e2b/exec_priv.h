/* What the files of commands share. */
#ifndef SG_E2B_EXEC_PRIV_H
#define SG_E2B_EXEC_PRIV_H

#include "backends/e2b/e2b_priv.h"

#include <pthread.h>
#include <stdatomic.h>

#define KEY_HEX 32U
#define NOTE_MAX 80U /* bytes of what the wrapper says */

struct e2b_ex {
    struct sg_exec base;
    _Atomic int refs;
    struct e2b_sandbox *sb;
    struct e2b_stream *stream;
    struct sg_exec_sink sink;
    char key[KEY_HEX + 1];
    bool tty;
    int64_t started_us;
    struct sg_task feed;
    _Atomic bool feed_posted; /* the task has a reference */

    /* whoever pumps the stream */
    char note[NOTE_MAX]; /* the beginning of what may be the wrapper's word */
    size_t note_len;
    char spill[NOTE_MAX]; /* what turned out not to be */
    size_t spill_len;

    pthread_mutex_t lock; /* guards what follows */
    uint32_t pid;         /* of the wrapper, 0: not yet */
    int64_t child;
    int64_t pts;          /* of a terminal: its number */
    bool told;            /* that it has started */
    bool exited, ended, released, killing, blocked, failing;
    int status;
    int64_t exited_us, exited_ms, last_ms;
    enum sg_killed_by why;
    unsigned kills;
    int pending_signal;
    struct sg_alarm_set *timeout; /* has a reference */
    bool feeding, input_over;
};

/* ---- exec.c ---- */

struct e2b_ex *e2b_ex_ref(struct e2b_ex *x);
void e2b_ex_unref(struct e2b_ex *x);
/* It ends here, with err; once. */
void e2b_ex_fail(struct e2b_ex *x, const struct sg_error *err);
/* The wrapper's word: the command runs as that process, on that terminal; it has ended, as of wait. */
void e2b_ex_command_began(struct e2b_ex *x, int64_t pid, int64_t pts);
void e2b_ex_command_ended(struct e2b_ex *x, int status);

/* ---- exec_note.c: what the wrapper says among what the command writes to its standard error ---- */

/* Bytes of [data, data + len) that p took; all when nobody reads. */
size_t e2b_ex_put(struct sg_pipe *p, const char *data, size_t len);
/* How many bytes of its standard error were taken. */
size_t e2b_ex_take_stderr(struct e2b_ex *x, const char *data, size_t len);

/* ---- exec_kill.c ---- */

void e2b_ex_kill(struct sg_exec *base, enum sg_killed_by why);
/* Of a command of which is not known whether it began: if it has not, it never will. */
void e2b_ex_kill_unknown(struct e2b_ex *x);
int e2b_ex_signal(struct sg_exec *base, int signo, struct sg_error *err);
void e2b_ex_send_signal(struct e2b_ex *x, int64_t pid, int signo);

/* ---- terminal.c ---- */

int e2b_ex_resize(struct sg_exec *base, unsigned rows, unsigned cols, const struct sg_done *done, struct sg_error *err);

/* ---- exec_input.c ---- */

/* Sends what is there. */
void e2b_ex_feed(struct e2b_ex *x);
/* The waker of x->base.in. */
void e2b_ex_in_wake(void *arg);

#endif
