/* A lease as JSON: the one place that knows its field names, on the wire and in the store. */
#ifndef SG_LEASE_JSON_H
#define SG_LEASE_JSON_H

#include <jansson.h>

#include "model/lease.h"

#define SG_LEASE_ID_PREFIX "lease"

/* The lease of the API: {id, trajectory_id, provider, sandbox_id, state, reason, endpoints, capabilities,
 * metadata, created_at, expires_at, receipt_id}; absent values are null. endpoints: {name: {url, headers}},
 * stolen; NULL: {}. A new object, NULL when memory is out. */
json_t *sg_lease_json(const struct sg_lease *l, json_t *endpoints);

/* The terms for the store (also what the API never shows: env, request hash), and back. */
json_t *sg_lease_terms_json(const struct sg_lease_terms *t);
int sg_lease_terms_parse(const json_t *v, struct sg_lease_terms **ret, struct sg_error *err);

#endif
