/* What survives the process: leases, stored answers, receipts, the audit log and the keys, in SQLite in the
 * state directory. The only includer of sqlite3.h.
 *
 * One store thread writes. Callers build an op (a few rows that belong together), submit it and are called
 * back on the store thread; many ops share one commit. A durable op is called back once it is on the disk
 * (fsync). Any other op is called back once it survives the death of this process; the next durable commit,
 * or about a second, puts it on the disk too.
 *
 * When the disk is full or fails, submit answers SG_STORE_UNAVAILABLE (503) and the store is read-only until
 * a write succeeds again, which it tries by itself. Ops marked `keep` are not refused then: they wait in
 * memory.
 *
 * Reads run on the calling thread over a second, read-only connection; they are short but may touch the disk:
 * call them on a worker. Any thread. Lock rank: the store's locks are leaves.
 */
#ifndef SG_STORE_H
#define SG_STORE_H

#include "base/log.h"
#include "base/secret.h"
#include "model/kept.h"
#include "model/lease.h"
#include "model/lease_event.h"

struct sg_store;
struct sg_store_op;

struct sg_store_config {
    const char *state_dir;        /* made (0700) when absent */
    int lock_fd;                  /* of sg_state_lock(), the store's from here on; <= 0: it locks by itself */
    const char *audit_key_file;   /* NULL: audit.key in the state directory; made (0600) when absent */
    const char *receipt_key_file; /* NULL: receipt.key */
    const char *endpoint_key_file; /* NULL: endpoint.key */
    int64_t retention_ms;          /* ended leases and stored answers are dropped after it; 0: 24 h */
    int64_t audit_retention_ms;    /* audit records are dropped after it, oldest first; 0: never */
    size_t queue_max;              /* ops waiting; 0: 4096 */
    struct sg_log *log; /* or NULL; for what has no caller: read-only on and off, checkpoints that fail */
};

/* Locks a state directory (made when absent) before anything in it is touched; *ret_fd holds the lock while
 * it is open. SG_CONFLICT when another server holds it. */
int sg_state_lock(const char *dir, int *ret_fd, struct sg_error *err);

/* Locks the state directory (SG_CONFLICT when another server holds it), opens or makes the database, migrates
 * it, reads the keys, checks the end of the audit log and starts the store thread. */
int sg_store_open(const struct sg_store_config *cfg, struct sg_store **ret, struct sg_error *err);
/* Writes what is queued, checkpoints, unlocks. NULL-safe. No other call may be running. */
struct sg_store *sg_store_free(struct sg_store *s);

/* 0: writes are accepted; -1 SG_STORE_UNAVAILABLE with retry_after: do not even begin. */
int sg_store_check(struct sg_store *s, struct sg_error *err);

/* 32 bytes each, borrowed for the life of the store. */
#define SG_KEY_LEN 32
const struct sg_secret *sg_store_receipt_key(const struct sg_store *s);
const struct sg_secret *sg_store_endpoint_key(const struct sg_store *s);
int64_t sg_store_retention_ms(const struct sg_store *s);

/* ---- writing ---- */

enum sg_store_how {
    SG_STORE_LAZY = 0,         /* survives the process; fsynced soon */
    SG_STORE_DURABLE = 1 << 0, /* fsynced before done */
    SG_STORE_KEEP = 1 << 1,    /* happened outside already: never refused, written when the store can again */
};

/* A transaction in the making. Never fails: what is out of memory or above a cap shows when it is submitted.
 */
struct sg_store_op *sg_store_op_new(void);
struct sg_store_op *sg_store_op_free(struct sg_store_op *op); /* one that was not submitted; NULL-safe */
/* Inserts or replaces the lease row; copies. */
void sg_store_op_lease(struct sg_store_op *op, const struct sg_lease *l);
/* Only where it stands: state, reason, expires_at, ended_at of a row that is there (else nothing). */
void sg_store_op_lease_state(struct sg_store_op *op, const struct sg_lease *l);
/* What happened to a lease whose row is there (else nothing): all of it, in place of what was written before. */
void sg_store_op_events(struct sg_store_op *op, const char *lease_id, const struct sg_lease_events *l);
/* A receipt's canonical text (with id); an id that is there already only gains the tenant. Adds the audit
 * record `receipt_sealed`. */
void sg_store_op_receipt(struct sg_store_op *op, const char *tenant, const char *receipt_id,
                         const char *body);
/* An audit record of its own; detail: an object, borrowed, NULL: {}. lease_id, tenant may be NULL. */
void sg_store_op_audit(struct sg_store_op *op, const char *event, const char *tenant, const char *lease_id,
                       const struct json_t *detail);
/* The answer replayed for tenant's Idempotency-Key. */
void sg_store_op_answer(struct sg_store_op *op, const char *tenant, const char *key, const char *request_hash,
                        const char *lease_id, int status, const char *body);
/* Forgets it again, if it is lease_id's. */
void sg_store_op_no_answer(struct sg_store_op *op, const char *tenant, const char *key, const char *lease_id);

/* So much more has been spent for the tenant; micro-dollars. */
void sg_store_op_spent(struct sg_store_op *op, const char *tenant, int64_t microusd);

struct sg_store_done {
    /* On the store thread, without locks; err NULL: committed (and on the disk when durable). */
    void (*fn)(void *arg, const struct sg_error *err);
    void *arg;
};

/* Consumes op. -1 (SG_STORE_UNAVAILABLE, SG_OVERLOADED): nothing happened, done is not called. With
 * SG_STORE_KEEP it returns 0 unless memory is out, and done is called with the error when the row can only be
 * written later. done may be NULL. Never calls done before it returns. Ops of one thread commit in the order
 * they were submitted. */
int sg_store_submit(struct sg_store *s, struct sg_store_op *op, unsigned how,
                    const struct sg_store_done *done, struct sg_error *err);

/* ---- reading ---- */

/* A lease row; tenant NULL: of anyone. SG_NOT_FOUND, also past retention. */
int sg_store_lease(struct sg_store *s, const char *tenant, const char *id, struct sg_lease *ret,
                   struct sg_error *err);

/* What was written of a lease's events; none when there is no such lease. -1: also when they are damaged. */
int sg_store_events(struct sg_store *s, const char *lease_id, struct sg_lease_events *ret, struct sg_error *err);

struct sg_stored_answer {
    char request_hash[SG_SHA256_HEX];
    char lease_id[SG_ID_MAX];
    int status;
    char *body; /* owned */
};
void sg_stored_answer_finish(struct sg_stored_answer *a);
/* 1 found, 0 not, -1 err. */
int sg_store_answer(struct sg_store *s, const char *tenant, const char *key, struct sg_stored_answer *ret,
                    struct sg_error *err);

struct sg_lease_query {
    const char *tenant;        /* NULL: all */
    const char *provider;      /* NULL: any */
    const char *trajectory_id; /* NULL: any */
    unsigned states;           /* bits 1 << enum sg_lease_state; 0: any */
    const char *after;         /* last id of the page before, NULL: the first page */
    size_t limit;              /* 1..1000 */
};
struct sg_lease_page {
    struct sg_lease *items; /* newest first */
    size_t n;
    char next[SG_ID_MAX]; /* `after` of the next page, "" when this is the last one; a page may be short
                             before that */
};
void sg_lease_page_finish(struct sg_lease_page *p);
/* Rows of the store only; sg_registry_list() is the whole truth. */
int sg_store_leases(struct sg_store *s, const struct sg_lease_query *q, struct sg_lease_page *ret,
                    struct sg_error *err);

/* The receipt's text; caller frees. tenant NULL: of anyone. SG_NOT_FOUND. */
int sg_store_receipt(struct sg_store *s, const char *tenant, const char *id, char **ret,
                     struct sg_error *err);

/* Audit records after seq `after` (0: from the start), oldest first, at most limit, as a JSON array of {seq,
 * at, event, tenant, lease_id, receipt_id, detail, mac}. tenant NULL: all. *ret_next: `after` of the next
 * page, 0 when there is none; a page may be short before that. */
int sg_store_audit(struct sg_store *s, const char *tenant, int64_t after, size_t limit, struct json_t **ret,
                   int64_t *ret_next, struct sg_error *err);

/* What has been spent for each tenant, under a lock of the store. */
int sg_store_spent(struct sg_store *s, void (*each)(void *arg, const char *tenant, int64_t microusd), void *arg, struct sg_error *err);

/* ---- archives and snapshots: what is known of the files in which they are ---- */

/* A row with the same id is replaced. */
void sg_store_op_kept(struct sg_store_op *op, const struct sg_kept *k);
void sg_store_op_not_kept(struct sg_store_op *op, const char *id);

/* id: its id, or sha256: and its digest. tenant NULL: of anyone. SG_NOT_FOUND, also once it has expired, and unless it is READY. */
int sg_store_kept(struct sg_store *s, enum sg_kept_kind kind, const char *tenant, const char *id, struct sg_kept *ret,
                  struct sg_error *err);
/* The row of that id, whatever its state and age. SG_NOT_FOUND. */
int sg_store_kept_row(struct sg_store *s, const char *id, struct sg_kept *ret, struct sg_error *err);
/* One page, newest first, without expired ones: up to limit (1..1000) rows into ret, *ret_n of them; after: the last id of the page
 * before, or NULL. */
int sg_store_kept_page(struct sg_store *s, enum sg_kept_kind kind, const char *tenant, const char *after, size_t limit,
                       struct sg_kept *ret, size_t *ret_n, struct sg_error *err);
/* How many rows of a kind a tenant has, and the bytes of all tenants' together; without those that are MAKING. */
int sg_store_kept_count(struct sg_store *s, enum sg_kept_kind kind, const char *tenant, size_t *ret_n, int64_t *ret_bytes,
                        struct sg_error *err);
/* Every row of both kinds, newest first, expired ones too: *ret (caller frees), at most max. */
int sg_store_kept_all(struct sg_store *s, size_t max, struct sg_kept **ret, size_t *ret_n, struct sg_error *err);

/* ---- figures for /metrics ---- */

struct sg_store_stats {
    uint64_t ops, commits, syncs, failures;
    size_t queued, kept;
    bool read_only;
};
void sg_store_stats(struct sg_store *s, struct sg_store_stats *ret);

/* ---- offline: sandgate audit verify ---- */

struct sg_audit_report {
    bool ok;
    int64_t records;  /* good ones, from the first that is kept */
    int64_t dropped;  /* older ones that were, when their time was over */
    int64_t at_seq;   /* first bad record, or the first missing one; 0 when ok */
    char problem[64]; /* stable word: those of sg_audit_check, and head_missing, head_forged, base_forged, receipt_changed,
                       * receipt_missing, damage_recorded (the server found the end of the log damaged when it
                       * started), database_malformed */
    char detail[256];
};
/* Reads only; works beside a running server. key_file NULL: audit.key in state_dir. -1: it could not be
 * checked. */
int sg_audit_verify(const char *state_dir, const char *key_file, struct sg_audit_report *ret,
                    struct sg_error *err);

#endif
