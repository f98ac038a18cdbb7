/* Moves what comes out of a pipe into a file, on workers, a turn at a time. */
#ifndef SG_TOFILE_H
#define SG_TOFILE_H

#include "base/pipe.h"
#include "base/workq.h"

/* fd: taken over and closed before done. More than max bytes: SG_PAYLOAD_TOO_LARGE, and the pipe is stopped. done: once, on any thread; err
 * NULL: the pipe ended well and everything is in the file. A reference on the pipe is taken. */
void sg_tofile(struct sg_pipe *p, int fd, int64_t max, struct sg_workq *q, void (*done)(void *arg, const struct sg_error *err), void *arg);

#endif
