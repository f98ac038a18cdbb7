/* The audit chain: every record's MAC covers its content and the record before it.
 *
 * Pure functions: whoever stores records (in order of seq, 1, 2, 3...) keeps the head, too, in another place,
 * and writes it after the record. Then a changed byte, a record taken out, put in or moved, and a cut tail
 * are all found. Threads: any; one writer must take seq and prev in order.
 */
#ifndef SG_AUDIT_H
#define SG_AUDIT_H

#include "base/error.h"
#include "base/hash.h"

struct json_t;

#define SG_AUDIT_KEY_MIN 32U
#define SG_AUDIT_PAYLOAD_MAX ((size_t)1 << 20)

/* One record. Strings are borrowed; tenant, lease_id and receipt_id may be NULL. */
struct sg_audit_record {
    int64_t seq;      /* 1 for the first */
    int64_t time_us;  /* wall clock */
    const char *kind; /* "lease.created", "receipt.sealed", ... */
    const char *tenant;
    const char *lease_id;
    const char *receipt_id;
    const char *payload;         /* text, usually canonical JSON; at most SG_AUDIT_PAYLOAD_MAX bytes */
    uint8_t prev[SG_SHA256_LEN]; /* mac of the record before, zeros for the first */
    uint8_t mac[SG_SHA256_LEN];
};

/* Where a chain ends. Zeroed: an empty chain. */
struct sg_audit_head {
    int64_t seq;
    uint8_t mac[SG_SHA256_LEN];
};

/* Makes r the record after *head: fills seq, prev and mac (the rest is given) and moves *head on to it.
 * -1 (SG_INTERNAL): no kind or payload, payload too long, key too short; *head is then untouched. */
int sg_audit_append(const void *key, size_t key_len, struct sg_audit_head *head, struct sg_audit_record *r,
                    struct sg_error *err);

/* The head as one line to keep apart ("sandgate-audit 1 SEQ MAC SEAL\n") and back. The seal keeps anyone
 * without the key from making a head out of a stored record. read: SG_INVALID_REQUEST for a malformed or
 * forged line. */
#define SG_AUDIT_HEAD_LINE 192
void sg_audit_head_write(const void *key, size_t key_len, const struct sg_audit_head *head,
                         char out[SG_AUDIT_HEAD_LINE]);
int sg_audit_head_read(const void *key, size_t key_len, const char *line, size_t len,
                       struct sg_audit_head *ret, struct sg_error *err);

/* Likewise the record before the first one that is still kept, when old ones were dropped ("sandgate-audit-base 1 ..."). Neither line
 * passes for the other. */
void sg_audit_base_write(const void *key, size_t key_len, const struct sg_audit_head *base,
                         char out[SG_AUDIT_HEAD_LINE]);
int sg_audit_base_read(const void *key, size_t key_len, const char *line, size_t len,
                       struct sg_audit_head *ret, struct sg_error *err);

/* Walking a chain from its beginning, record by record, in constant memory. */
struct sg_audit_check {
    const void *key; /* borrowed */
    size_t key_len;
    struct sg_audit_head at;   /* the last good record */
    struct sg_audit_head kept; /* what the head kept apart says */
    bool kept_seen;
    bool ok;
    int64_t bad_seq; /* where the first fault is, when !ok */
    char reason[64]; /* a stable word: record_changed, record_missing, record_out_of_order, chain_broken,
                        tail_cut, head_mismatch */
};
/* base: of the records that are kept, zeroed: all are. */
void sg_audit_check_init(struct sg_audit_check *c, const void *key, size_t key_len,
                         const struct sg_audit_head *base, const struct sg_audit_head *kept);
/* False from the first fault on (then stop); records in the order they are stored. */
bool sg_audit_check_next(struct sg_audit_check *c, const struct sg_audit_record *r);
/* After the last record: compares the end with the kept head. A chain longer than its head is fine (the head
 * is written after the record); a shorter one is `tail_cut`, bad_seq being the first record that is gone. */
bool sg_audit_check_end(struct sg_audit_check *c);

#endif
