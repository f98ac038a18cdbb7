/* An archive that a stranger made, read entry by entry: tar (any dialect), plain or compressed by gzip or zstd. What comes out of it is safe to
 * make below one directory: paths are relative and without "..", links stay inside, nothing is a device, limits hold.
 *
 * Pure: bytes come through a callback, and nothing is written. One thread at a time.
 */
#ifndef SG_TAR_READER_H
#define SG_TAR_READER_H

#include "base/error.h"

struct sg_tar_limits {
    uint64_t entries;
    uint64_t bytes;       /* of all files together, as they would be read */
    uint64_t unpacked;    /* of the archive when it is no longer compressed, and of all files together */
    bool outside_links;   /* symbolic links may point anywhere */
};

enum sg_tar_kind { SG_TAR_FILE, SG_TAR_DIRECTORY, SG_TAR_SYMLINK, SG_TAR_HARDLINK };

/* Strings are the reader's, until the next call. */
struct sg_tar_entry {
    enum sg_tar_kind kind;
    const char *path;   /* "a/b"; "" is the directory itself */
    const char *target; /* SYMLINK: its text; HARDLINK: the path of an earlier entry */
    uint32_t mode;      /* 0777 */
    int64_t mtime_ns;
    uint64_t size; /* FILE */
};

/* *data: bytes valid until the next call. Their number; 0 at the end; -1 with err. */
typedef ssize_t sg_tar_pull(void *arg, const void **data, struct sg_error *err);

struct sg_tar_reader;

/* Errors of all three: SG_INVALID_REQUEST with field "body" and reason malformed_archive, unsafe_path, unsafe_link or unsupported_entry;
 * SG_PAYLOAD_TOO_LARGE with reason too_many_entries, too_many_bytes or expands_too_much; those of pull. */
int sg_tar_reader_new(const struct sg_tar_limits *limits, sg_tar_pull *pull, void *arg, struct sg_tar_reader **ret,
                      struct sg_error *err);
/* 1: *ret; 0: no more; -1. Skips what is left of the entry before. */
int sg_tar_next(struct sg_tar_reader *t, struct sg_tar_entry *ret, struct sg_error *err);
/* The next piece of a FILE, in ascending order, without overlap and within its size; what is in no piece is zeros. 1, 0: no more, -1. */
int sg_tar_data(struct sg_tar_reader *t, const void **data, size_t *len, uint64_t *offset, struct sg_error *err);
uint64_t sg_tar_entries(const struct sg_tar_reader *t);
uint64_t sg_tar_bytes(const struct sg_tar_reader *t);
struct sg_tar_reader *sg_tar_reader_free(struct sg_tar_reader *t); /* NULL-safe, returns NULL */

#endif
