/* A command of the server's own in a new sandbox that nobody else has yet: a clone, what its lease asks to be run first. It ends with
 * the lease. Any thread; nothing blocks. */
#ifndef SG_ERRAND_H
#define SG_ERRAND_H

#include "backends/driver.h"
#include "base/cancel.h"
#include "model/exec_json.h"
#include "service/run_memory.h"

struct sg_errand;

struct sg_errand_args {
    struct sg_sandbox *sb;    /* borrowed until done, as cancel and memory are */
    const char *const *argv;  /* borrowed for the call, as cwd and env are */
    const char *cwd;          /* NULL: /workspace */
    const struct sg_env *env; /* of the lease, on top of the base and the sandbox's */
    struct sg_cancel *cancel; /* of the lease: kills the command, which ends with SG_CANCELLED */
    struct sg_run_memory *memory;
    int64_t timeout_ms;
    size_t output_max; /* kept of each stream */
    /* Once, on any thread, without locks held, maybe before the call returns. r: how it ended, borrowed for the callback; exec_id and
     * command are not set. NULL with err: SG_CANCELLED, or what the sandbox's commands fail with. */
    void (*done)(void *arg, const struct sg_exec_result *r, const struct sg_error *err);
    void *arg;
};
/* One reference for the caller. */
struct sg_errand *sg_errand_start(const struct sg_errand_args *args);
struct sg_errand *sg_errand_unref(struct sg_errand *e); /* NULL-safe, returns NULL */
/* To the command's own process; nothing happens once it has ended. */
void sg_errand_signal(struct sg_errand *e, int signo);

#endif
