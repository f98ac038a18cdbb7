/* Waiting until the services that a lease asks for answer at their health paths. */
#ifndef SG_HEALTHY_H
#define SG_HEALTHY_H

#include "service/service.h"

struct sg_await_args {
    struct sg_sandbox *sandbox;
    const struct sg_lease_terms *terms; /* whose services; must live until done */
    struct sg_cancel *cancel;           /* ends the wait with SG_CANCELLED */
    int64_t deadline_ms;                /* sg_now_ms() time; each service is asked once in any case */
    /* Reactor thread, exactly once. err: SG_ACQUIRE_TIMEOUT with reason service_not_ready, SG_UNAVAILABLE with reason
     * sandbox_lost, SG_CANCELLED. */
    void (*done)(void *arg, const struct sg_error *err);
    void *arg;
};
/* Any thread. */
void sg_service_await(struct sg_service *s, const struct sg_await_args *a);

#endif
