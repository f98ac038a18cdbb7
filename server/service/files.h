/* Files of leases. Each call is a use of the lease; paths are the sandbox's own (see backends/driver.h). */
#ifndef SG_FILES_H
#define SG_FILES_H

#include "backends/driver.h"
#include "base/digest.h"
#include "base/workq.h"
#include "lease/registry.h"

/* once: it is read once at most, and then the source may be content. */
int sg_service_file_get(struct sg_entry *lease, const char *path, bool once, const struct sg_file_source_done *done, struct sg_error *err);
int sg_service_file_stat(struct sg_entry *lease, const char *path, const struct sg_file_stat_done *done, struct sg_error *err);
int sg_service_file_list(struct sg_entry *lease, const struct sg_file_list_args *args, const struct sg_file_list_done *done,
                         struct sg_error *err);
int sg_service_file_mkdir(struct sg_entry *lease, const char *path, uint32_t mode, const struct sg_file_stat_done *done,
                          struct sg_error *err);
int sg_service_file_remove(struct sg_entry *lease, const char *path, bool recursive, const struct sg_condition *only_if,
                           const struct sg_done *done, struct sg_error *err);
int sg_service_file_move(struct sg_entry *lease, const char *from, const char *to, const struct sg_done *done,
                         struct sg_error *err);

/* Where the bytes of an upload come from. open is called at most once, on any thread, when the sandbox has agreed to take them: who is
 * refused need not send them. What it gives is borrowed, a reference is taken. */
struct sg_upload_body {
    struct sg_pipe *(*open)(void *arg);
    void *arg; /* lives until done */
};

/* Writes what comes out of `body` to a file: nothing is visible under its name until all of it is there. Bytes are written on
 * workers, a piece at a time, as they come; a body that fails leaves nothing behind. */
struct sg_file_stored {
    void (*fn)(void *arg, const struct sg_file_stat *st, bool created, const struct sg_error *err);
    void *arg;
};
/* digests: what the bytes must hash to, else nothing is written and the error has the reason digest_mismatch; NULL: anything. */
int sg_service_file_put(struct sg_entry *lease, const struct sg_file_put_args *args, const struct sg_digests *digests,
                        const struct sg_upload_body *body, struct sg_workq *workq, const struct sg_file_stored *done,
                        struct sg_error *err);

struct sg_file_digest_done {
    /* digests: what the file hashes to; NULL without err when it was written to meanwhile. */
    void (*fn)(void *arg, const struct sg_digests *digests, const struct sg_error *err);
    void *arg;
};
/* Reads the whole of an open file (the caller's, who keeps it open until done) on workers and computes the digests that `wanted` has
 * as given, at least one. SG_LEASE_GONE; SG_CANCELLED when cancel (a reference is taken) fires. */
int sg_service_file_digest(struct sg_entry *lease, int fd, const struct sg_digests *wanted, struct sg_cancel *cancel,
                           struct sg_workq *workq, const struct sg_file_digest_done *done, struct sg_error *err);

#endif
