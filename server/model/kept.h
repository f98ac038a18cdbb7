/* An archive that the server keeps: of a lease that ended, or of one that goes on (a snapshot). Plain values. */
#ifndef SG_KEPT_H
#define SG_KEPT_H

#include "base/hash.h"
#include "base/id.h"

struct json_t;

enum sg_kept_kind { SG_KEPT_ARCHIVE, SG_KEPT_SNAPSHOT };
/* MAKING and DROPPING: only of what a provider holds. It is being asked for, or to be removed there until the provider confirms. */
enum sg_kept_state { SG_KEPT_READY, SG_KEPT_MAKING, SG_KEPT_DROPPING };

#define SG_SNAPSHOT_REF_MAX 256

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
    char sha256[SG_SHA256_HEX]; /* "": not known, as the provider has no such thing */
    int64_t bytes;              /* 0 then */
    enum sg_kept_state state;
    char ref[SG_SNAPSHOT_REF_MAX]; /* what the provider calls what it holds; "": it lies in a file of the server's, or is MAKING */
    int64_t created_us, expires_us; /* wall clock; expires_us 0: never */
};

/* A new object. */
struct json_t *sg_kept_json(const struct sg_kept *k);

#endif
