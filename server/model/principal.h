/* Who calls: what a token stands for. Filled by server/http/auth, read by the service layer. */
#ifndef SG_PRINCIPAL_H
#define SG_PRINCIPAL_H

#include "base/base.h"

enum sg_role { SG_ROLE_TENANT, SG_ROLE_ADMIN };

/* Immutable once built; shared by reference count with the token set it belongs to. */
struct sg_principal {
    char name[64];   /* of the token, for logs */
    char tenant[64]; /* "default" for the loopback administrator */
    enum sg_role role;
    int64_t max_leases; /* 0: no limit of its own */
    int64_t max_execs;  /* 0: no limit of its own */
    bool allow_paid;
    const char *const *backends; /* NULL-terminated names it may use; NULL: all */
    bool budget_set;
    int64_t budget_microusd;
};

#endif
