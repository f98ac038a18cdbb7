/* One file to or from a container, which engines take and give as a tar. In constant memory: workers go on as far as the pipes let them. */
#ifndef SG_DOCKER_CARRY_H
#define SG_DOCKER_CARRY_H

#include "base/pipe.h"
#include "base/workq.h"

#define SG_CARRY_MAX (UINT64_C(8) << 30) /* bytes that a file has fewer than */

/* The first bytes of fd as the tar of a file of that name, root's and for nobody else. fd is read from where it is, and copied. The tar has
 * *ret_size bytes. NULL with err. */
struct sg_pipe *sg_carry_in(struct sg_workq *q, const char *name, int fd, uint64_t bytes, int64_t *ret_size, struct sg_error *err);
/* What is in the one file of the tar that comes out of `from`, whose reader this is from now on. It fails as from does, and when there
 * is no file in it. The caller's reference. */
struct sg_pipe *sg_carry_out(struct sg_workq *q, struct sg_pipe *from);

#endif
