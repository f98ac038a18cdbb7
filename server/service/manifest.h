/* Putting what a manifest asks for into a new sandbox, one stage after the other: root, repo, files. */
#ifndef SG_SERVICE_MANIFEST_H
#define SG_SERVICE_MANIFEST_H

#include "backends/driver.h"
#include "backends/repos.h"
#include "base/cancel.h"
#include "base/workq.h"
#include "model/manifest.h"
#include "service/run_memory.h"

struct sg_manifest_args {
    struct sg_sandbox *sb;             /* all borrowed, until done */
    const struct sg_manifest *manifest;
    struct sg_cancel *cancel; /* of the lease: ends it with SG_CANCELLED */
    struct sg_workq *workq;
    struct sg_repos *repos;
    const char *repo, *commit; /* what to put into the root; NULL: nothing, or it is there already */
    /* For a repository by its URL. */
    const struct sg_env *env;
    struct sg_run_memory *memory;
    int64_t timeout_ms;
    /* Once, on any thread, without locks held; maybe before the call returns. err (borrowed): the sandbox is in an unknown state and must
     * go; its member `stage` says how far things had come, `field` what was at fault. SG_MANIFEST_FAILED (reason: what the sandbox
     * said), SG_SANDBOX_DISK_FULL, SG_SANDBOX_LOST, SG_CANCELLED, or what makes repeating it worth while (503). */
    void (*done)(void *arg, const struct sg_error *err);
    void *arg;
};
void sg_manifest_apply(const struct sg_manifest_args *args);

#endif
