/* A command and its outcome: plain values. */
#ifndef SG_EXEC_H
#define SG_EXEC_H

#include "model/sandbox.h"

#define SG_EXEC_ARGS_MAX 4096U
#define SG_EXEC_ARGS_BYTES_MAX (1024U * 1024U)

/* Characters; 0 rows: no terminal. */
struct sg_tty_size {
    uint16_t rows, cols;
};
#define SG_TTY_SIZE_MAX 4096

/* What is asked of a backend's exec_start slot. Borrowed for the call only. */
struct sg_exec_spec {
    const char *const *argv; /* NULL-terminated; shell text arrives as /bin/sh -c TEXT */
    const char *cwd;         /* absolute or relative to /workspace; NULL: /workspace */
    const struct sg_env *env; /* complete: base, pool, lease, exec already merged */
    bool stdin_open;         /* false: the command reads end of file at once */
    int64_t timeout_ms;      /* > 0; the driver kills with SG_KILLED_TIMEOUT when it is over */
    size_t pipe_bytes;       /* capacity of each pipe, > 0 */
    struct sg_tty_size tty;  /* rows > 0: on a terminal of that size */
};

enum sg_killed_by { SG_KILLED_NOT, SG_KILLED_CALLER, SG_KILLED_TIMEOUT, SG_KILLED_LEASE_END, SG_KILLED_HANGUP, SG_KILLED_OOM };
/* "caller", ...; NULL for SG_KILLED_NOT. */
const char *sg_killed_by_name(enum sg_killed_by k);

struct sg_exit {
    int returncode; /* valid when signal == 0 */
    int signal;     /* number, 0: exited */
    enum sg_killed_by killed_by;
    int64_t duration_us; /* from start to the end of the command's own process */
};

/* "SIGKILL"; "SIGRTMIN+1" and so on for real-time ones. Borrowed static text. */
const char *sg_signal_name(int signal);
/* Accepts "SIGTERM", "TERM", "15"; 0 when unknown. */
int sg_signal_parse(const char *s);

#endif
