/* Descriptors: CLOEXEC from birth, whole writes, files read with a cap. */
#ifndef SG_FD_H
#define SG_FD_H

#include "base/error.h"

/* Writes everything to a blocking descriptor; -errno on failure. */
int sg_write_all(int fd, const void *data, size_t len);
/* Reads a whole file of at most cap bytes; NUL-terminated, caller frees. */
int sg_read_file(const char *path, size_t cap, char **ret, size_t *ret_len, struct sg_error *err);
/* Writes a file through a temporary name, fsync, rename; mode e.g. 0600. */
int sg_write_file(const char *path, const void *data, size_t len, mode_t mode, struct sg_error *err);
/* mkdir -p. */
int sg_mkdirs(const char *path, mode_t mode, struct sg_error *err);
/* Removes a directory tree without following links; missing is fine. */
int sg_remove_tree(int dirfd, const char *name, struct sg_error *err);

#endif
