/* Names to addresses, on threads of its own: a name server that does not answer holds up nothing else. */
#ifndef SG_EGRESS_RESOLVE_H
#define SG_EGRESS_RESOLVE_H

#include <netinet/in.h>

#include "base/error.h"

#define SG_RESOLVE_MAX 8U

struct sg_resolver;

struct sg_resolved {
    struct in6_addr address[SG_RESOLVE_MAX]; /* IPv4 as ::ffff:a.b.c.d */
    bool own[SG_RESOLVE_MAX];                /* an interface of this machine has it */
    size_t n;
};

int sg_resolver_new(struct sg_resolver **ret, struct sg_error *err);
/* Waits for the lookups under way (some seconds at most), drops the others: their done comes with n 0. NULL-safe, returns NULL. */
struct sg_resolver *sg_resolver_free(struct sg_resolver *r);

/* Any thread. done exactly once, on another thread, unless -1: too many are waiting (SG_OVERLOADED). n 0: the name has no address. */
int sg_resolve(struct sg_resolver *r, const char *name, void (*done)(void *arg, const struct sg_resolved *a), void *arg,
               struct sg_error *err);

#endif
