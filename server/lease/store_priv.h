/* The inside of the store, shared by store*.c only.
 *
 * Threads: `writer` belongs to the store thread, `keeper` to the housekeeping thread (checkpoints, and asking
 * for pruning), `reader` to whoever holds read_lock. Locks, in this order: read_lock, lock, head_lock; none
 * is held while a callback runs.
 */
#ifndef SG_STORE_PRIV_H
#define SG_STORE_PRIV_H

#include <pthread.h>
#include <sqlite3.h>

#include "lease/store.h"
#include "model/audit.h"

#define SG_STORE_BATCH 256U          /* ops per commit */
#define SG_STORE_BODY_MAX (1U << 20) /* bytes of one text in a row */
#define SG_STORE_WAL_PAGES 1024      /* written pages after which the housekeeper checkpoints */
#define SG_STORE_WAL_PAGES_MAX 16384 /* written pages after which the store thread does it itself */
#define SG_STORE_FLUSH_MS 1000       /* lazy commits reach the disk after this */
#define SG_STORE_RETRY_MS 1000       /* between write attempts while read-only */
#define SG_STORE_PRUNE_MS 60000

#define SG_DB_NAME "sandgate.db"
#define SG_HEAD_NAME "audit.head"
#define SG_HEAD_LEN 512U /* the head file has always this size: one write replaces it */
#define SG_BOOT_ID_LEN 37

enum sg_row_kind {
    SG_ROW_LEASE,
    SG_ROW_LEASE_STATE,
    SG_ROW_EVENTS,
    SG_ROW_RECEIPT,
    SG_ROW_AUDIT,
    SG_ROW_ANSWER,
    SG_ROW_NO_ANSWER,
    SG_ROW_SPENT,
    SG_ROW_KEPT,
    SG_ROW_NOT_KEPT
};

#define SG_ROW_TEXTS 11
#define SG_ROW_INTS 7

/* One row to write: what the texts and integers mean is up to the kind (store_op.c and store_write.c). */
struct sg_row {
    struct sg_row *next;
    enum sg_row_kind kind;
    char *text[SG_ROW_TEXTS];
    int64_t num[SG_ROW_INTS];
};

struct sg_store_op {
    struct sg_store_op *next;
    struct sg_row *rows, **tail;
    bool no_memory, too_large;
    unsigned how;
    struct sg_store_done done;
    bool failed;         /* store thread: this op alone could not be written */
    struct sg_error err; /* store thread */
};

enum sg_stmt {
    SG_STMT_BEGIN,
    SG_STMT_COMMIT,
    SG_STMT_ROLLBACK,
    SG_STMT_SAVE,
    SG_STMT_SAVE_ROLLBACK,
    SG_STMT_SAVE_RELEASE,
    SG_STMT_LEASE,
    SG_STMT_LEASE_STATE,
    SG_STMT_EVENTS,
    SG_STMT_RECEIPT,
    SG_STMT_RECEIPT_OWNER,
    SG_STMT_AUDIT,
    SG_STMT_ANSWER,
    SG_STMT_NO_ANSWER,
    SG_STMT_SPENT,
    SG_STMT_PRUNE_FIND,
    SG_STMT_PRUNE_LEASE,
    SG_STMT_AUDIT_OLD,
    SG_STMT_AUDIT_DROP,
    SG_STMT_AUDIT_BASE,
    SG_STMT_PROBE,
    SG_STMT_KEPT,
    SG_STMT_NOT_KEPT,
    SG_STMT_COUNT
};

enum sg_read_stmt {
    SG_READ_LEASE,
    SG_READ_EVENTS,
    SG_READ_ANSWER,
    SG_READ_LEASES,
    SG_READ_LEASES_LIVE,
    SG_READ_LEASES_TENANT,
    SG_READ_LEASES_TRAJECTORY,
    SG_READ_RECEIPT,
    SG_READ_RECEIPT_OWNER,
    SG_READ_AUDIT,
    SG_READ_KEPT,
    SG_READ_KEPT_ROW,
    SG_READ_KEPT_PAGE,
    SG_READ_KEPT_ALL,
    SG_READ_KEPT_COUNT,
    SG_READ_SPENT,
    SG_READ_COUNT
};

struct sg_store {
    char *dir, *db_path;
    int lock_fd, head_fd;
    struct sg_log *log;
    int64_t retention_ms;
    int64_t audit_retention_ms; /* 0: for ever */
    size_t queue_max;
    struct sg_secret *audit_key, *receipt_key, *endpoint_key;
    char boot_id[SG_BOOT_ID_LEN];

    int64_t prune_every_ms;

    pthread_mutex_t lock;
    pthread_cond_t work;   /* for the store thread */
    pthread_cond_t chores; /* for the housekeeper */
    struct sg_store_op *queue, **queue_tail;
    size_t queued;
    bool stopping, stop_keeper, prune_wanted;
    bool read_only;
    char read_only_why[160];
    bool checkpoint_wanted; /* of the housekeeper */
    bool finish_wanted; /* the housekeeper has copied the bulk: the store thread copies the rest and the log
                           starts over */
    int64_t lazy_since_ms; /* the oldest commit not yet known to be on the disk, 0: none */
    uint64_t n_ops, n_commits, n_syncs, n_failures;
    size_t n_kept;
    bool threads_run;
    pthread_t thread, keeper_thread;

    sqlite3 *writer;
    sqlite3_stmt *stmts[SG_STMT_COUNT];
    bool full_sync;                        /* store thread: what PRAGMA synchronous stands at */
    struct sg_store_op *kept, **kept_tail; /* store thread: wait for the disk to come back */
    int wal_pages;                         /* store thread: from the WAL hook */
    int checkpoint_at;                     /* store thread: ask for one at that many pages */
    struct sg_audit_head head;             /* store thread: of the last commit */

    sqlite3 *keeper;

    pthread_mutex_t read_lock;
    sqlite3 *reader;
    sqlite3_stmt *reads[SG_READ_COUNT];

    pthread_mutex_t head_lock;
    struct sg_audit_head latest, on_disk; /* what the head file says */
};

/* ---- store_db.c ---- */

/* The error of a failed SQLite call, always SG_STORE_UNAVAILABLE with retry_after. Returns -1. */
int sg_db_error(struct sg_error *err, sqlite3 *db, int rc, const char *what);
/* Opens the three connections, migrates, prepares. */
int sg_db_open(struct sg_store *s, struct sg_error *err);
void sg_db_close(struct sg_store *s);
/* Brings a database to the newest schema; SG_CONFLICT when it is newer than this program. */
int sg_db_migrate(sqlite3 *db, struct sg_error *err);
int sg_db_exec(sqlite3 *db, const char *sql, struct sg_error *err);
/* Text of a column into a fixed buffer, cut if need be. */
void sg_db_column(sqlite3_stmt *st, int col, char *out, size_t size);

/* ---- store_thread.c, store_write.c ---- */

void *sg_store_thread(void *arg);
void *sg_keeper_thread(void *arg);
/* Drops some leases and audit records past retention; *ret_more: there may be further ones. */
int sg_store_prune(struct sg_store *s, bool *ret_more, struct sg_error *err);
/* Can it write again? */
int sg_store_probe(struct sg_store *s, struct sg_error *err);
/* Waits on one of the store's conditions, at most ms (< 0: for ever); s->lock is held. */
void sg_store_wait(struct sg_store *s, pthread_cond_t *cond, int64_t ms);
/* Copies the log into the database as far as nobody is in the way. True: all of it. */
bool sg_store_checkpoint(struct sg_store *s, sqlite3 *db);
/* One commit of these ops; each op's outcome is in op->failed/err. -1: the database as a whole refused (err).
 */
int sg_store_commit(struct sg_store *s, struct sg_store_op *ops, bool durable, struct sg_error *err);

/* ---- store_audit.c ---- */

/* Reads the end of the log, compares it with the head file (made when both are empty) and records damage in
 * the log. */
int sg_store_audit_open(struct sg_store *s, struct sg_error *err);
/* Writes the head file: the chain ends at `latest`; everything up to on_disk is on the disk when on_disk is
 * not NULL. */
void sg_store_head_set(struct sg_store *s, const struct sg_audit_head *latest,
                       const struct sg_audit_head *on_disk);
/* Appends one record in the running transaction and moves *head on. */
int sg_store_audit_append(struct sg_store *s, struct sg_audit_head *head, struct sg_audit_record *r,
                          struct sg_error *err);

/* ---- store_kept.c ---- */

int sg_store_write_kept(struct sg_store *s, const struct sg_row *r);
int sg_store_write_not_kept(struct sg_store *s, const struct sg_row *r);
extern const char sg_store_kept_held_schema[], sg_store_kept_row_sql[], sg_store_kept_schema[], sg_store_kept_insert[], sg_store_kept_one[],
    sg_store_kept_page_sql[], sg_store_kept_all_sql[], sg_store_kept_count_sql[];

/* Runs a statement that gives no rows. */
int sg_store_run(struct sg_store *s, enum sg_stmt which);
/* Makes the commits to come reach the disk before they return, or not. A code of SQLite's, as the next one. */
int sg_store_sync(struct sg_store *s, bool full);
int sg_store_forget_answer(struct sg_store *s, const char *tenant, const char *key, const char *lease_id);
void sg_store_bind_text(sqlite3_stmt *st, int i, const char *text); /* NULL: null */
/* Row of an op; NULL and "" texts both become NULL in it. */
struct sg_row *sg_store_op_row(struct sg_store_op *op, enum sg_row_kind kind);
void sg_store_op_text(struct sg_store_op *op, struct sg_row *r, int i, const char *text);

/* ---- store_keys.c ---- */

/* flock on DIR/lock. */
int sg_key_load(const char *dir, const char *file, const char *name, bool make, struct sg_secret **ret,
                struct sg_error *err);
void sg_boot_id(char out[SG_BOOT_ID_LEN]);

/* Row texts by kind. */
enum {
    SG_L_ID,
    SG_L_TENANT,
    SG_L_TRAJECTORY,
    SG_L_KEY,
    SG_L_PROVIDER,
    SG_L_SANDBOX,
    SG_L_REASON,
    SG_L_METADATA,
    SG_L_TERMS,
    SG_L_RECEIPT
};
enum { SG_L_STATE, SG_L_CAPS, SG_L_CREATED, SG_L_EXPIRES, SG_L_ENDED };
enum { SG_V_LEASE, SG_V_TEXT };
enum { SG_R_ID, SG_R_TENANT, SG_R_BODY, SG_R_PAYLOAD };
enum { SG_A_KIND, SG_A_TENANT, SG_A_LEASE, SG_A_PAYLOAD };
enum { SG_Q_ID, SG_Q_TENANT, SG_Q_LEASE, SG_Q_TRAJECTORY, SG_Q_PROVIDER, SG_Q_POOL, SG_Q_SANDBOX, SG_Q_SLOT, SG_Q_REASON, SG_Q_SHA256, SG_Q_REF };
enum { SG_Q_KIND, SG_Q_DIRS, SG_Q_GENERATION, SG_Q_BYTES, SG_Q_CREATED, SG_Q_EXPIRES, SG_Q_STATE };
enum { SG_K_TENANT, SG_K_KEY, SG_K_HASH, SG_K_LEASE, SG_K_BODY };

#endif
