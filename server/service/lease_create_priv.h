/* A lease that is being created, for the files that do it. */
#ifndef SG_LEASE_CREATE_PRIV_H
#define SG_LEASE_CREATE_PRIV_H

#include "select/decide.h"
#include "service/service_priv.h"

#include <stdatomic.h>

struct sg_creation {
    _Atomic int refs; /* the walk's and the hang-up hook's */
    struct sg_service *s;
    struct sg_lease_request request;
    struct sg_lease_terms *terms;
    struct sg_decision decision;
    struct sg_driver *driver;
    const char *repo; /* the repository's name, borrowed; NULL: there is none in it */
    char commit[SG_COMMIT_LEN];
    struct sg_entry *entry;
    struct sg_sandbox *sandbox;
    json_t *commands; /* what came of env_args.sandbox_cmd, or NULL */
    struct sg_kept snapshot; /* to be restored, */
    int snapshot_fd;         /* or -1 */
    int64_t max_leases;
    struct sg_spend_limit budget;
    unsigned required_caps; /* of the policy */
    bool async;
    int64_t wait_ms;
    _Atomic bool answered; /* what comes later is nobody's answer */
    struct sg_cancel *cancel; /* the caller's */
    struct sg_cancel_hook hangup;
    bool hooked;
    struct sg_work work;
    struct sg_error why; /* a failure that is answered once it is written down */
    char *(*render)(void *arg, const struct sg_lease *l);
    void (*done)(void *arg, const struct sg_created *c, const struct sg_error *err);
    void *arg;
};

/* lease_plan.c: everything that is decided before anything is touched. 0: go on; 1: refused with a receipt to seal, c->why filled;
 * -1: c->why filled, nothing to seal. key: the caller's Idempotency-Key, or NULL. */
int sg_creation_plan(struct sg_creation *c, const struct sg_principal *who, const char *key);
/* How long the commands of env_args.sandbox_cmd have together, and after them the services of a blackbox. */
int64_t sg_creation_commands_ms(const struct sg_creation *c);
int64_t sg_creation_services_ms(const struct sg_creation *c);
/* What the driver is asked for; everything in it is borrowed from c. */
struct sg_sandbox_spec sg_creation_spec(const struct sg_creation *c);

#endif
