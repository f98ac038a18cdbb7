/* A snapshot back into a new sandbox: its file is checked against its digest first, then each place of it is unpacked. */
#ifndef SG_RESTORE_H
#define SG_RESTORE_H

#include "backends/driver.h"
#include "base/cancel.h"
#include "base/workq.h"
#include "model/kept.h"

struct sg_restore_args {
    struct sg_sandbox *sb; /* all borrowed, until done */
    const struct sg_kept *snapshot;
    int fd; /* its file */
    struct sg_cancel *cancel;
    struct sg_workq *workq;
    /* Once, on any thread, without locks held; maybe before the call returns. err (borrowed): the sandbox is in an unknown state and must
     * go. SG_MANIFEST_FAILED (reason snapshot_damaged, or what the sandbox said), SG_SANDBOX_DISK_FULL, SG_SANDBOX_LOST, SG_CANCELLED
     * and 503s; always with the member `stage` "snapshot". */
    void (*done)(void *arg, const struct sg_error *err);
    void *arg;
};
void sg_restore(const struct sg_restore_args *args);

#endif
