/* The driver of the local pools: one bubblewrap sandbox per slot, built ahead of need. */
#ifndef SG_LOCAL_BWRAP_H
#define SG_LOCAL_BWRAP_H

#include "backends/driver.h"
#include "backends/local_bwrap/config.h"
#include "base/reactor.h"
#include "base/workq.h"

struct sg_spawner;

/* Checks one configuration without touching anything: SG_INVALID_REQUEST with `field` (a key of local_bwrap).
 */
int sg_local_pool_config_check(const struct sg_local_pool_config *c, struct sg_error *err);

/* What the pools work with. All borrowed; they must outlive the driver. */
struct sg_local_parts {
    struct sg_reactor *reactor;
    struct sg_workq *workq;
    struct sg_spawner
        *spawner; /* started and attached to the reactor; when it dies all slots become FAILED */
    /* MAY be NULL: what happens to slots. Reactor thread; must not block or call the driver. */
    void (*event)(void *arg, const struct sg_slot_event *e);
    /* MAY be NULL: what proxies refuse. Likewise. */
    void (*egress)(void *arg, const struct sg_egress_event *e);
    void *event_arg;
};

/* Makes the pools and starts building their slots; returns before they are READY. Slots are numbered through
 * all pools. SG_INVALID_REQUEST with `field` for a bad configuration; SG_UNAVAILABLE when this machine cannot
 * enforce what require_limits asks for. */
int sg_local_bwrap_new(const struct sg_local_parts *parts, const struct sg_local_pool_config *pools,
                       size_t n_pools, struct sg_driver **ret, struct sg_error *err);

#endif
