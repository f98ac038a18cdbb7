/* What of the network a lease gets where a backend has some: the same rules and the same words for all of them. */
#ifndef SG_EGRESS_LEASE_H
#define SG_EGRESS_LEASE_H

#include "backends/egress/rules.h"
#include "model/sandbox.h"

/* A configuration's own pair of egress and egress_allow (list: NULL-terminated, or NULL). SG_INVALID_REQUEST with the one of the two that
 * is wrong as `field`. */
int sg_egress_settings_check(enum sg_egress has, const char *const *list, struct sg_error *err);

/* What a lease gets of a place that has `has`. spec MAY be NULL: nothing else was asked for. */
enum sg_egress sg_egress_of(const struct sg_sandbox_spec *spec, enum sg_egress has);
/* May it have that? place: whose egress it is, for people ("local pool \"x\""). SG_POOL_REFUSED with the reason egress_widened;
 * SG_NOT_SUPPORTED without rules for a restricted one, and for one without a network whose policy requires that capability. */
int sg_egress_check(const struct sg_sandbox_spec *spec, enum sg_egress has, const struct sg_egress_rules *rules, const char *place,
                    struct sg_error *err);

/* The variables by which commands find the proxy of restricted egress, on top of what is in env. */
int sg_egress_env(struct sg_env *env, struct sg_error *err);

#endif
