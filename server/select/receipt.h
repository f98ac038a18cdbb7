/* Receipts: the canonical, hashed record of one placement decision. Pure functions over JSON values of the
 * shape {id, schema_version, pool_name, pool_hash, template_hash, overrides_hash, effective_manifest_hash,
 * selector_inputs, chosen_backend, outcome}; `id` is the SHA-256 of the canonical JSON of the rest,
 * `signature` and `key_id` left out.
 */
#ifndef SG_RECEIPT_H
#define SG_RECEIPT_H

#include <jansson.h>

#include "base/error.h"
#include "base/hash.h"

#define SG_RECEIPT_SCHEMA_VERSION 1

/* The receipt of a placement that the selector made and something later refused (a mode mismatch, no free
 * slot...): the same inputs and chosen backend, the outcome of err's code, reason and field. New value into
 * *ret. */
int sg_receipt_refused(const json_t *receipt, const struct sg_error *why, json_t **ret, struct sg_error *err);

/* The id that a receipt's members give. -1 when they have no canonical form. */
int sg_receipt_id(const json_t *receipt, char ret[SG_SHA256_HEX], struct sg_error *err);

/* Checks a receipt: exact shape, the id recomputes, and the selector run again over selector_inputs gives the
 * same chosen_backend and outcome. 0: *ok is set, and when it is false reason is a stable word (`malformed`,
 * `id_mismatch`, `outcome_mismatch`, `unsupported_schema_version`) and detail a sentence. -1: SG_NO_MEMORY
 * only. Anything may come as receipt: it is hostile input. */
struct sg_receipt_check {
    bool ok;
    char reason[32];
    char detail[256];
};
int sg_receipt_verify(const json_t *receipt, struct sg_receipt_check *ret, struct sg_error *err);

#endif
