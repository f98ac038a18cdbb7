/* The driver of the local pools: one bubblewrap sandbox per slot, built ahead of need. */
#ifndef SG_LOCAL_BWRAP_H
#define SG_LOCAL_BWRAP_H

#include "backends/driver.h"
#include "backends/local_bwrap/config.h"
#include "base/reactor.h"

struct sg_spawner;

extern const struct sg_driver_facts sg_local_bwrap_facts;

/* Checks one configuration without touching anything: SG_INVALID_REQUEST with `field` (a key of local_bwrap). */
int sg_local_pool_config_check(const struct sg_local_pool_config *c, struct sg_error *err);

/* Makes the pools and starts building their slots; returns before they are READY. The reactor and the spawner
 * must outlive the driver. SG_UNAVAILABLE when this machine cannot make such sandboxes: the message says what
 * is missing. */
int sg_local_bwrap_new(struct sg_reactor *reactor, struct sg_spawner *spawner, const struct sg_local_pool_config *pools,
                       size_t n_pools, struct sg_driver **ret, struct sg_error *err);

#endif
