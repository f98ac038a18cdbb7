/* The one table of all backends, and the instances built from the configuration.
 *
 * Built once at start, before other threads use it, then only read: any thread.
 */
#ifndef SG_BACKENDS_H
#define SG_BACKENDS_H

#include "backends/docker/config.h"
#include "backends/driver.h"
#include "backends/e2b/e2b.h"
#include "backends/local_bwrap/config.h"
#include "backends/repos.h"
#include "backends/worktree/config.h"
#include "base/reactor.h"
#include "base/workq.h"

struct sg_net;
struct sg_spawner;
struct sg_backends;

/* What a constructor may use; all borrowed, they must outlive the registry. */
struct sg_backend_parts {
    struct sg_reactor *reactor;
    struct sg_workq *workq;
    struct sg_net *net;         /* NULL: what calls providers refuses with SG_UNAVAILABLE */
    struct sg_repos *repos;     /* NULL: worktree refuses with SG_UNAVAILABLE */
    struct sg_spawner *spawner; /* NULL: local_bwrap refuses with SG_UNAVAILABLE */
    /* Is it the id of a lease that has not ended? Asked from any thread. */
    bool (*lease_live)(void *arg, const char *lease_id);
    void *lease_live_arg;
    /* MAY: a provider had a sandbox of this server's that no lease has; it is being removed. Any thread. */
    void (*orphan)(void *arg, const char *provider, const char *sandbox_id, const char *lease_id);
    void *orphan_arg;
    /* MAY be NULL: what happens to slots of local pools. Reactor thread; must not block or call the driver. */
    void (*slot_event)(void *arg, const struct sg_slot_event *e);
    /* MAY be NULL: what is refused to their sandboxes on the way out. Likewise. */
    void (*egress_event)(void *arg, const struct sg_egress_event *e);
    /* MAY be NULL: how the engine pulls images. Likewise. */
    void (*docker_pull)(void *arg, const struct sg_docker_pull *e);
    void *slot_event_arg;
};

/* What a constructor is told; borrowed for the call. */
struct sg_backend_settings {
    const struct sg_local_pool_config *local_pools;
    size_t n_local_pools;
    const struct sg_worktree_config *worktree; /* or NULL */
    const struct sg_docker_config *docker;     /* or NULL */
    const struct sg_e2b_config *e2b;           /* or NULL */
    const char *fake_script; /* JSON, or NULL */
};

/* A row of the table. Every backend of the product has one, also those this build has no driver for; what is
 * known of each is in facts.h. */
struct sg_backend_row {
    const char *name;
    int (*make)(const struct sg_backend_settings *s, const struct sg_backend_parts *parts,
                struct sg_driver **ret, struct sg_error *err); /* NULL: known but not built */
};

/* Row by position, NULL after the last; row by name, NULL when there is none. */
const struct sg_backend_row *sg_backend_row_at(size_t i);
const struct sg_backend_row *sg_backend_row(const char *name);

/* Builds the named backends in order. SG_INVALID_REQUEST (field `backends.enabled`) for an unknown or
 * repeated name, SG_NOT_IMPLEMENTED for one that is known but not built; a constructor's own error is passed
 * on. On failure nothing is left. */
int sg_backends_new(const char *const *enabled, size_t n, const struct sg_backend_settings *s,
                    const struct sg_backend_parts *parts, struct sg_backends **ret, struct sg_error *err);
/* Adds an instance made elsewhere; its name must be free (SG_CONFLICT). The registry owns it then. */
int sg_backends_add(struct sg_backends *r, struct sg_driver *d, struct sg_error *err);
/* Ends all backends in reverse order. May block (shutdown only). NULL-safe. */
struct sg_backends *sg_backends_free(struct sg_backends *r);

/* The instance, borrowed. NULL with reason `backend_not_configured` (known and built, not enabled),
 * `backend_not_built` or `backend_unknown` in err (SG_NOT_FOUND). */
struct sg_driver *sg_backends_get(const struct sg_backends *r, const char *name, struct sg_error *err);
/* Instances in the order of the configuration; NULL after the last. */
struct sg_driver *sg_backends_at(const struct sg_backends *r, size_t i);

#endif
