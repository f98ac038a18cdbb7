/* An archive on its way to the server's own disk: written under a name of its own, counted, hashed, synced, and only then given its
 * final name. What was not finished is removed, by the next start at the latest. */
#ifndef SG_KEEP_H
#define SG_KEEP_H

#include "base/hash.h"
#include "base/pipe.h"
#include "base/workq.h"

struct sg_keep_args {
    const char *dir;    /* exists; borrowed until done */
    const char *name;   /* of the file; copied */
    uint64_t max_bytes; /* SG_LIMIT_EXCEEDED above it */
};
struct sg_keep_result {
    char sha256[SG_SHA256_HEX];
    uint64_t bytes;
};
struct sg_keep_done {
    void (*fn)(void *arg, const struct sg_keep_result *r, const struct sg_error *err);
    void *arg;
};
/* Takes over the reference of from. done comes exactly once, on any thread, maybe before it returns; errors: those of the pipe,
 * SG_LIMIT_EXCEEDED, SG_STORE_UNAVAILABLE (the server's disk), SG_OVERLOADED. */
void sg_keep(const struct sg_keep_args *args, struct sg_pipe *from, struct sg_workq *workq, const struct sg_keep_done *done);

/* Removes from dir what an earlier server did not finish, and every file but those for which wanted(arg, name) is true. */
int sg_keep_sweep(const char *dir, bool (*wanted)(void *arg, const char *name), void *arg, struct sg_error *err);

#endif
