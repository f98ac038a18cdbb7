/* What is kept of sandboxes: archives of leases that ended, and snapshots of ones that go on. A file lies under its id in a directory of
 * the state directory, a row about it in the store; files without a row are removed at the start. Snapshots of backends whose providers
 * hold them have a row and no file (held.c). */
#ifndef SG_ARCHIVES_H
#define SG_ARCHIVES_H

#include "lease/registry.h"
#include "model/kept.h"
#include "model/principal.h"

struct sg_service;
struct sg_archives;

/* What is kept of the leases of one local pool when they end. */
struct sg_archive_plan {
    const char *pool; /* its name */
    unsigned dirs;    /* bits of sg_kept_dir_names; 0: nothing */
    int64_t ttl_ms;
    int64_t max_per_slot;
    int64_t max_bytes; /* of all archives of the pool together; an archive that alone is larger is not kept */
};

/* Copied but for strings, which must outlive the service. */
struct sg_archives_config {
    const char *state_dir; /* NULL: nothing is kept and there are no snapshots */
    const struct sg_archive_plan *plans;
    size_t n_plans;
    int64_t snapshot_ttl_ms;
    int64_t snapshot_max_bytes;       /* of one, */
    int64_t snapshot_total_bytes;     /* and of all together */
    int64_t snapshot_max_per_tenant;  /* how many of them */
    int64_t snapshot_sweep_ms;        /* between two looks for what is old, and at what providers hold */
};

/* Makes the directories and removes what no row speaks of. Blocks: at the start only. */
int sg_archives_new(struct sg_service *s, const struct sg_archives_config *cfg, struct sg_archives **ret, struct sg_error *err);
/* No timer of theirs fires any more. Blocks for a moment; not on the reactor. NULL-safe. */
void sg_archives_stop(struct sg_archives *a);
/* After all leases and all workers have ended. NULL-safe, returns NULL. */
struct sg_archives *sg_archives_free(struct sg_archives *a);

/* The lease has begun to end and its sandbox is still there: keeps what its pool's plan says, at most deadline_ms long, then calls done,
 * whatever came of it (a failure is logged). Any thread; done may come before it returns. */
void sg_archives_at_end(struct sg_archives *a, struct sg_entry *e, struct sg_sandbox *sb, int64_t deadline_ms, void (*done)(void *arg),
                        void *arg);

struct sg_kept_done {
    void (*fn)(void *arg, const struct sg_kept *k, const struct sg_error *err); /* borrowed */
    void *arg;
};
/* A snapshot of the sandbox, durable before done: of its writable places, or as the provider makes and holds them. Errors: SG_NOT_SUPPORTED,
 * SG_QUOTA_EXCEEDED, SG_LIMIT_EXCEEDED, SG_CONFLICT (a file got shorter while it was read), SG_STORE_UNAVAILABLE, those of the lease and
 * of the provider. Reads the store: on a worker. */
int sg_service_snapshot(struct sg_service *s, struct sg_entry *e, const struct sg_kept_done *done, struct sg_error *err);

/* Finds an archive or snapshot of the caller's, by id, or by digest as sha256:... Blocks: on a worker. */
int sg_service_kept_find(struct sg_service *s, const struct sg_principal *who, enum sg_kept_kind kind, const char *id,
                         struct sg_kept *ret, struct sg_error *err);
/* The same, and opens its file: *ret_fd is the caller's, -1 for what the provider holds. */
int sg_service_kept_open(struct sg_service *s, const struct sg_principal *who, enum sg_kept_kind kind, const char *id,
                         struct sg_kept *ret, int *ret_fd, struct sg_error *err);

struct sg_kept_gone {
    /* gone: nothing of it is left; else the provider has not confirmed its removal yet and is asked again. err (borrowed): nothing
     * happened. Any thread. */
    void (*fn)(void *arg, bool gone, const struct sg_error *err);
    void *arg;
};
/* Forgets one and removes what there is of it. Blocks: on a worker. SG_NOT_FOUND, SG_STORE_UNAVAILABLE. */
int sg_service_kept_drop(struct sg_service *s, const struct sg_principal *who, enum sg_kept_kind kind, const char *id,
                         const struct sg_kept_gone *done, struct sg_error *err);

/* Brings the tar that the provider holds, of a sandbox that was made of it, into a file without a name: *fd is the callee's. Errors as
 * those of sg_restore(). done comes on any thread. */
struct sg_held_fetched {
    void (*fn)(void *arg, int fd, const struct sg_error *err);
    void *arg;
};
void sg_service_held_fetch(struct sg_service *s, struct sg_sandbox *sb, const struct sg_kept *k, const struct sg_held_fetched *done);

#endif
