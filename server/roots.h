/* Root file systems of the local pools: directories of the host as they are, tar archives unpacked into the state directory. */
#ifndef SG_ROOTS_H
#define SG_ROOTS_H

#include "config.h"

struct sg_roots;

/* Looks at every rootfs and image of the configuration, and unpacks what is an archive: once, into images/SHA256 of the state directory,
 * whole or not at all; what no setting names any more is removed there. Errors name the key. May take long, forks: for a process with
 * one thread, before the spawner. */
int sg_roots_open(const struct sg_config *c, const char *state_dir, struct sg_roots **ret, struct sg_error *err);
struct sg_roots *sg_roots_free(struct sg_roots *r); /* NULL-safe, returns NULL */

/* All of them, NULL-terminated, each once. */
const char *const *sg_roots_dirs(const struct sg_roots *r);
/* The pools of the configuration with directories for what they name. */
const struct sg_local_pool_config *sg_roots_pools(const struct sg_roots *r, size_t *ret_n);

#endif
