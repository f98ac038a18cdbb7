/* The nouns that a lease request becomes before a backend sees it: plain values, no I/O, no JSON. */
#ifndef SG_SANDBOX_H
#define SG_SANDBOX_H

#include "base/error.h"
#include "base/id.h"
#include "model/caps.h"

enum sg_mode { SG_MODE_WHITEBOX, SG_MODE_BLACKBOX };      /* metadata.paddock_mode */
enum sg_pool_mode { SG_POOL_COMMAND_ONLY, SG_POOL_BLACKBOX }; /* local_bwrap.mode */
enum sg_egress { SG_EGRESS_NONE, SG_EGRESS_LOOPBACK, SG_EGRESS_RESTRICTED, SG_EGRESS_OPEN }; /* narrow to wide */

const char *sg_mode_name(enum sg_mode m);
const char *sg_pool_mode_name(enum sg_pool_mode m);
const char *sg_egress_name(enum sg_egress e);
bool sg_mode_parse(const char *s, enum sg_mode *ret);
bool sg_pool_mode_parse(const char *s, enum sg_pool_mode *ret);
bool sg_egress_parse(const char *s, enum sg_egress *ret);
/* Is it with the capability network? */
bool sg_egress_reaches_out(enum sg_egress e);

/* An ordered set of NAME=VALUE pairs; a later set of the same name replaces. */
struct sg_env {
    struct sg_env_var {
        char *name;
        char *value;
    } *vars;
    size_t n;
    size_t bytes; /* of all names and values */
};

#define SG_ENV_BYTES_MAX (128U * 1024U)
#define SG_ENV_VARS_MAX 1024U

/* name: [A-Za-z_][A-Za-z0-9_]*, value: no NUL. SG_INVALID_REQUEST otherwise, or above the caps. */
int sg_env_set(struct sg_env *e, const char *name, const char *value, struct sg_error *err);
const char *sg_env_get(const struct sg_env *e, const char *name);
/* dst gets everything of src on top of its own. */
int sg_env_merge(struct sg_env *dst, const struct sg_env *src, struct sg_error *err);
/* What every command in a sandbox has: PATH, HOME, USER, LANG and TERM. */
int sg_env_base(struct sg_env *e, struct sg_error *err);
void sg_env_finish(struct sg_env *e);

struct sg_service_port {
    char name[64];
    uint16_t port;
    char *health_path;
};

struct sg_limits {
    int64_t memory_bytes; /* 0: the pool's */
    int64_t pids;         /* 0: the pool's */
    int64_t cpu_milli;    /* thousandths of one CPU, 0: the pool's */
    int64_t disk_bytes;   /* 0: the pool's */
};

/* What is asked of a backend's create slot. Borrowed by the driver for the call only. */
struct sg_sandbox_spec {
    const char *lease_id;
    const char *local_pool; /* name or NULL: the default one */
    enum sg_mode mode;
    bool egress_given;
    enum sg_egress egress;
    unsigned required_caps; /* enum sg_cap bits that the policy asked for */
    const struct sg_env *env; /* the lease's env, without the base set */
    struct sg_limits limits;
    const struct sg_service_port *services;
    size_t n_services;
    const char *image; /* or NULL */
    const char *snapshot_ref; /* what the sandbox is made of: the driver's own name of a snapshot that its provider holds; NULL: no such */
    bool brings_service; /* a blackbox runs what its image or template says by itself; else its service is started inside of it */
    int64_t setup_ms;    /* how long what is run inside may take before the lease is ready, on top of timeout_ms */
    const char *root;  /* where its commands start, absolute; NULL: /workspace */
    /* The repository in its root: for drivers that have it made themselves (facts.checks_out). NULL: none was asked for. */
    const char *repo_name;
    const char *repo_ref;
    const char *repo_commit; /* what the ref was when the lease was asked for; NULL: nobody has looked */
    int64_t timeout_ms;         /* how long the lease is to live once it is ready */
    int64_t acquire_timeout_ms; /* -1: the pool's own; 0: at once or not at all */
};

#endif
