/* A short command run with an agent to its end, with what it says kept up to a cap; or its stdout moved into a pipe. */
#ifndef SG_CAPTURE_H
#define SG_CAPTURE_H

#include "backends/agent/client.h"

/* Borrowed for the callback. */
struct sg_capture_result {
    struct sg_exit exit;
    char *out; /* NUL-terminated, also when it holds NULs itself */
    size_t out_len;
    bool out_cut; /* there was more */
    const char *err; /* the first bytes of stderr, NUL-terminated */
};

struct sg_capture_args {
    struct sg_agent *agent; /* SG_AGENT_HOST or any other whose trees a helper kills; a reference is taken */
    const char *const *argv;
    const char *cwd;
    const struct sg_env *env;
    int64_t timeout_ms; /* then it is killed with all it started */
    size_t out_max;     /* bytes kept of stdout; the rest is read and thrown away */
    /* MAY be NULL: stdout goes there, as fast as it is read, and nothing of it is kept. Closed after the last byte of a command that exited
     * with 0, else failed. A reference is taken. A reader that stops kills the command. */
    struct sg_pipe *to;
    /* Once, on any thread, without locks held. err (no result): it could not be started, or its end was lost. */
    void (*done)(void *arg, const struct sg_capture_result *r, const struct sg_error *err);
    void *arg;
};
/* -1: not started, and done does not come. */
int sg_capture(const struct sg_capture_args *args, struct sg_error *err);

#endif
