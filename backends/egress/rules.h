/* The allow-list of a pool with restricted egress.
 *
 * Entries are HOST:PORT. HOST is a name, "*." and a name (every name below it, not itself), or an address (IPv6 ones in brackets). A
 * name says nothing about addresses: one that leads to an address that is not public, or is this machine's own, is refused unless
 * that very address and port are an entry, too.
 */
#ifndef SG_EGRESS_RULES_H
#define SG_EGRESS_RULES_H

#include "backends/egress/host.h"
#include "base/error.h"

struct sg_egress_rules;

#define SG_EGRESS_RULES_MAX 1024U

/* list: NULL-terminated, or NULL. SG_INVALID_REQUEST with the field egress_allow. */
int sg_egress_rules_new(const char *const *list, struct sg_egress_rules **ret, struct sg_error *err);
struct sg_egress_rules *sg_egress_rules_free(struct sg_egress_rules *r); /* NULL-safe, returns NULL */

bool sg_egress_rules_empty(const struct sg_egress_rules *r);

enum sg_egress_match { SG_EGRESS_MATCH, SG_EGRESS_OTHER_PORT, SG_EGRESS_NO_MATCH };

/* OTHER_PORT: the host is there, but not with that port. */
enum sg_egress_match sg_egress_rules_match(const struct sg_egress_rules *r, const struct sg_host *h, uint16_t port);
/* Is that very address an entry? */
bool sg_egress_rules_name_address(const struct sg_egress_rules *r, const struct in6_addr *a, uint16_t port);

#endif
