/* Following what happens to a lease. */
#ifndef SG_LEASE_EVENTS_H
#define SG_LEASE_EVENTS_H

#include "lease/registry.h"
#include "service/exec_log.h"

struct sg_service;
struct sg_lease_follow;

/* Reads a lease's events from the one after `after` on: *ret_reader gets those there are at once, and each further one when it comes, to
 * the last there will be; it is never waited for. When cancel (the caller's) fires for a shutdown, what is read last is an error event
 * (shutting_down). -1: as sg_entry_follow(), and SG_OVERLOADED when what slow followers have not read yet is too much.
 *
 * The reader is the caller's, to be freed first; then sg_lease_follow_end(). */
int sg_service_follow_lease(struct sg_service *s, struct sg_entry *e, uint64_t after, struct sg_cancel *cancel,
                            struct sg_lease_follow **ret, struct sg_exec_reader **ret_reader, struct sg_error *err);
void sg_lease_follow_end(struct sg_lease_follow *w);

#endif
