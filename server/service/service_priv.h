/* What the files of the service layer share. */
#ifndef SG_SERVICE_PRIV_H
#define SG_SERVICE_PRIV_H

#include "service/archives.h"
#include "service/endpoints.h"
#include "service/execs.h"
#include "service/service.h"

struct sg_service {
    struct sg_service_config cfg;
    struct sg_service_parts parts;
    struct sg_registry *leases;
    struct sg_execs *execs;
    struct sg_endpoints *endpoints;
    struct sg_run_memory follow_memory; /* what followers of leases have not read yet */
    struct sg_archives *archives; /* or NULL */
    struct sg_candidates candidates;
    struct sg_environment environment;
    _Atomic bool draining;
};

/* lease_end.c: what the registry calls when a lease ends, and what a sandbox calls when it dies. */
void sg_service_on_end(void *arg, struct sg_entry *e, enum sg_end why);
/* Asks the driver of a recovered lease for its sandbox. SG_NOT_SUPPORTED: there is no such driver, or its sandboxes end with the server. */
int sg_service_find_sandbox(struct sg_service *s, struct sg_entry *e, const struct sg_sandbox_done *done, struct sg_error *err);
void sg_service_watch_sandbox(struct sg_service *s, struct sg_entry *e, struct sg_sandbox *sb);

#endif
