/* Root file systems that an operator has as tar archives. */
#ifndef SG_TAR_IMAGE_H
#define SG_TAR_IMAGE_H

#include "base/error.h"
#include "base/hash.h"

/* Unpacks the archive at fd (tar, plain or compressed by gzip or zstd; from its beginning) into the directory `dir`, which is empty: for
 * sandboxes to read and for nobody to write, without set-user-id bits, owners and attributes. Nothing lands outside, whatever the archive
 * says; more than max_bytes or a million entries are refused, as are devices. There is an /etc afterwards, with what is generated for
 * every sandbox at least empty. *ret: the SHA-256 of the bytes read, which are all.
 *
 * For a process of its own: changes to `dir`, and may block for long. Errors are those of sg_tar_next(). */
int sg_tar_image(int fd, const char *dir, int64_t max_bytes, char ret[SG_SHA256_HEX], struct sg_error *err);

#endif
