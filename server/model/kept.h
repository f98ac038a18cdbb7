/* An archive that the server keeps: of a lease that ended, or of one that goes on (a snapshot). Plain values. */
#ifndef SG_KEPT_H
#define SG_KEPT_H

#include "base/hash.h"
#include "base/id.h"

struct json_t;

enum sg_kept_kind { SG_KEPT_ARCHIVE, SG_KEPT_SNAPSHOT };

#define SG_KEPT_DIRS 4U
/* The places of a sandbox by their names in an archive: bits, names and paths in one order. */
extern const char *const sg_kept_dir_names[SG_KEPT_DIRS + 1]; /* home, work, runtime, tmp; NULL-terminated */
extern const char *const sg_kept_dir_paths[SG_KEPT_DIRS];

struct sg_kept {
    char id[SG_ID_MAX]; /* "archive_..." or "snap_..." */
    enum sg_kept_kind kind;
    char tenant[64];
    char lease_id[SG_ID_MAX];
    char trajectory_id[260]; /* or "" */
    char provider[64];
    char pool[64];       /* local pool, or "" */
    char sandbox_id[64]; /* the slot with its generation, for local pools */
    char slot[80];       /* or "" */
    int64_t generation;
    char reason[160]; /* why the lease ended; "" for a snapshot */
    unsigned dirs;    /* bits: what is in it */
    char sha256[SG_SHA256_HEX];
    int64_t bytes;
    int64_t created_us, expires_us; /* wall clock; expires_us 0: never */
};

/* A new object. */
struct json_t *sg_kept_json(const struct sg_kept *k);

#endif
