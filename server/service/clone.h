/* A repository by its URL, cloned by the sandbox's own git: it reaches what the sandbox reaches and nothing
 * of the server's network. */
#ifndef SG_SERVICE_CLONE_H
#define SG_SERVICE_CLONE_H

#include "backends/driver.h"
#include "base/cancel.h"
#include "service/run_memory.h"

struct sg_clone_args {
    struct sg_sandbox *sb;    /* all borrowed until done */
    const char *url, *root;   /* into which, missing or empty */
    const char *ref;          /* branch, tag or commit; NULL: the repository's own HEAD */
    const struct sg_env *env; /* of the lease, on top of the base and the sandbox's */
    struct sg_cancel *cancel; /* of the lease: ends it with SG_CANCELLED */
    struct sg_run_memory *memory;
    int64_t timeout_ms;
    /* Once, on any thread, without locks held, maybe before the call returns. err (borrowed):
     * SG_MANIFEST_FAILED with what git said, SG_CANCELLED, or what the sandbox's commands fail with. */
    void (*done)(void *arg, const struct sg_error *err);
    void *arg;
};
void sg_clone(const struct sg_clone_args *args);

#endif
