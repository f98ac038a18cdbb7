/* One command as the files about commands share it: client_exec.c (its life), client_output.c (what it writes) and
 * client_terminal.c. Reactor thread unless said otherwise. */
#ifndef SG_AGENT_CLIENT_EXEC_PRIV_H
#define SG_AGENT_CLIENT_EXEC_PRIV_H

#include "backends/agent/client_priv.h"

#define SG_AGENT_CHUNKS_PER_TURN 8 /* so that one loud command does not keep the others waiting */

/* States only move forward: STARTING, RUNNING, ENDED (its own process is gone, output may still be read), OVER (the last
 * callback was made). */
enum sg_agent_state { STARTING, RUNNING, ENDED, OVER };

struct sg_agent_exec;

/* The reading end of stdout or stderr. */
struct sg_agent_output {
    struct sg_watch watch;
    struct sg_timer pause; /* while throwing away */
    struct sg_agent_exec *x;
    struct sg_pipe *pipe;
    bool done;    /* the pipe has all it gets; fd may live on, thrown away */
    bool limited; /* the grace is over: only `left` bytes more */
    size_t left;
};

struct sg_agent_exec {
    struct sg_exec pub; /* first */
    struct sg_call call;
    atomic_int refs; /* the caller's; the command's until OVER; one per output that is open; the task's; the
                        wakers' */
    struct sg_agent *agent;
    struct sg_exec_sink sink;
    struct sg_agent_tree tree;
    atomic_uint asked;
    atomic_int why; /* enum sg_killed_by of the first kill */
    atomic_bool posted;
    atomic_bool ended; /* for signal() */
    struct sg_task task;

    pthread_mutex_t lock; /* the next two: release() waits for a callback that runs */
    pthread_cond_t idle;
    bool calling, released;
    int master; /* under lock: the terminal for resize(), which is also out.watch.fd; -1: none (any more) */

    /* reactor thread */
    enum sg_agent_state state;
    bool kill_sent, freed;
    struct sg_timer timer; /* the command's timeout, then the end of the wait for a killed one */
    struct sg_timer grace;
    struct sg_watch in;
    struct sg_agent_output out, err;
    int64_t start_us, timeout_ms;
    struct sg_exit exit;

    bool tty;              /* in and out are the terminal's master, err is nothing */
    int slave;             /* kept open until the command's own process ends: before that the terminal does not; or -1 */
    unsigned ends_typed;   /* end-of-file characters */
    struct sg_error unfit; /* its terminal got lost on our side: it is killed as soon as it has started */
};

struct sg_agent_exec *sg_agent_exec_ref(struct sg_agent_exec *x);
void sg_agent_exec_unref(struct sg_agent_exec *x);
/* Looks whether the next step can be made. */
void sg_agent_exec_turn(struct sg_agent_exec *x);

/* ---- client_output.c ---- */

void sg_agent_output_init(struct sg_agent_output *o, struct sg_agent_exec *x, struct sg_pipe *pipe);
/* Asks for readability. */
void sg_agent_output_want(struct sg_agent_output *o, bool want);
/* Moves what there is and what fits. */
void sg_agent_output_pump(struct sg_agent_output *o);
/* The grace is over: what the kernel holds now may still be the command's own, what comes later is not. */
void sg_agent_output_limit(struct sg_agent_output *o);
/* Is there something in its descriptor that has not been read? */
bool sg_agent_output_waits(const struct sg_agent_output *o);
/* The pipe gets no more; at_end: neither does the descriptor. */
void sg_agent_output_finish(struct sg_agent_output *o, bool at_end);
/* The command is OVER: a terminal that was still read, for nobody, ends now. */
void sg_agent_output_over(struct sg_agent_output *o);

/* ---- client_terminal.c ---- */

/* The master arrived. -1: it is not what may come. A lack of descriptors makes x unfit. */
int sg_agent_terminal_take(struct sg_agent_exec *x, int fd);
/* The terminal cannot be had: the command will be killed, and its outcome is unknown. */
void sg_agent_terminal_unfit(struct sg_agent_exec *x, const char *why);
/* The command's own process has ended: whoever else has the terminal open decides whether it has. */
void sg_agent_terminal_let_go(struct sg_agent_exec *x);
/* Types the end of input. 0; -ENOBUFS: the terminal takes nothing now; other -errno. */
int sg_agent_terminal_type_end(struct sg_agent_exec *x);
/* Closes a descriptor of the master; the last one hangs the terminal up, which waits for its readers and writers: on a worker. */
void sg_agent_terminal_close(struct sg_agent_exec *x, int fd);
/* The resize slot. Any thread. */
int sg_agent_terminal_resize(struct sg_exec *pub, unsigned rows, unsigned cols, const struct sg_done *done, struct sg_error *err);

#endif
