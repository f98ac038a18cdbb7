/* The server's settings: one table of keys (config/keys.c) drives the file, the environment, the defaults, what
 * `check-config` prints and the table in the README.
 *
 * A value comes from, first found: the command line, the variable SANDGATE_<SECTION>_<KEY> (an empty one counts as not
 * there; lists are comma-separated, objects are JSON), the YAML file, the default. An unknown key or a bad value is an
 * error that names file and line, or the variable, and the key.
 */
#ifndef SG_CONFIG_H
#define SG_CONFIG_H

#include <jansson.h>

#include "backends/docker/config.h"
#include "backends/local_bwrap/config.h"
#include "base/log.h"
#include "base/secret.h"
#include "http/auth.h"

/* What becomes at the end of a server of leases whose sandboxes can outlive it. */
enum sg_leases_at_shutdown { SG_LEASES_TERMINATE, SG_LEASES_KEEP };

/* A local pool. The strings of `pool` belong to the configuration. */
struct sg_config_pool {
    struct sg_local_pool_config pool;
    struct sg_config_pair *images; /* name, path: they become pool.images in roots.c */
    size_t n_images;
    bool archive_enabled;
    const char *const *archive_dirs; /* of home, work, runtime, tmp */
    int64_t archive_ttl_ms;
    int64_t archive_max_per_slot;
    int64_t archive_max_bytes;
};

struct sg_config_remote {
    const char *name;
    const char *url;
    struct sg_secret *token; /* NULL: none */
    bool free;
    const char *const *capabilities;
};

/* An entry of a map: text, or dollars in micro-dollars. */
struct sg_config_pair {
    const char *name;
    const char *value;
    int64_t microusd;
};

struct sg_config_cloud {
    const char *api_url;
    const char *sandbox_url;
    const char *port_url;
    const char *domain;
    const char *template_name;
    struct sg_secret *proxy; /* NULL: none */
    const char *ca_file;
    unsigned max_concurrent;
    int64_t timeout_ms;
    int64_t sweep_ms;
    int64_t grace_ms;
};

/* Strings that were not given are NULL. */
struct sg_config {
    struct {
        const char *listen; /* HOST:PORT */
        const char *state_dir;
        const char *public_url;
        const char *public_domain;
        int64_t drain_timeout_ms;
        size_t max_body; /* of JSON bodies */
        size_t body_memory; /* of all of them together */
        unsigned workers_max;
        unsigned daemons;
    } server;
    struct {
        const char *const *enabled;
    } backends;
    struct {
        struct sg_token_config *tokens;
        size_t n;
    } auth;
    struct {
        const char *audit_file; /* NULL: in the state directory */
        const char *receipt_file;
        const char *endpoint_file;
    } keys;
    struct {
        int64_t retention_ms; /* 0: for ever */
    } audit;
    struct {
        int64_t timeout_default_ms;
        int64_t timeout_max_ms;
        int64_t retention_ms;
        int64_t idle_timeout_ms; /* 0: none */
        enum sg_leases_at_shutdown at_shutdown;
    } leases;
    struct {
        int64_t timeout_default_ms;
        int64_t timeout_max_ms;
        size_t max_output_bytes;
        size_t memory_max;
        size_t history_bytes;
        int64_t history_ttl_ms;
    } exec;
    struct {
        int64_t ttl_ms;
        int64_t max_bytes;      /* of one */
        int64_t total_bytes;
        int64_t max_per_tenant;
        int64_t sweep_ms;
    } snapshots;
    struct sg_config_pool local_bwrap; /* the default pool, named "default" */
    uint32_t uid_base;                 /* of all local pools */
    int64_t image_max_bytes;           /* likewise: of one archive, unpacked */
    struct sg_config_pool *local_pools; /* further ones */
    size_t n_local_pools;
    struct {
        struct sg_config_pair *repos; /* name, path */
        size_t n;
        const char *user; /* NULL: the server's own */
        const char *dir;  /* NULL: in the state directory */
        bool archive_enabled;
        int64_t archive_max_bytes;
    } worktree;
    struct {
        const char *host;
        const char *image;
        const char *const *images_allowed;
        const char *agent_host_dir;
        enum sg_docker_agent agent;
        const char *user;
        int64_t memory_max, pids_max, cpu_milli;
        enum sg_egress egress;
        const char *const *egress_allow;
        int64_t warm;
        int seccomp;   /* 0: this server's own profile; 1: the engine's */
        int snapshots; /* 0: the engine holds them; 1: the server */
        const char *tls_ca, *tls_cert, *tls_key;
        bool pull;
        int64_t pull_timeout_ms;
        int64_t disk_max;
        const char *network;
        int64_t start_timeout_ms;
        int64_t orphan_grace_ms;
    } docker;
    struct sg_config_cloud e2b, modal, daytona, blaxel, runloop, vercel;
    struct sg_config_remote *remotes;
    size_t n_remotes;
    json_t *pools; /* array of pool manifests, never NULL */
    struct sg_config_pair *prices; /* backend, micro-dollars per hour */
    size_t n_prices;
    struct {
        enum sg_log_level level;
    } log;
    struct {
        const char *listen; /* own address, NULL: none */
        bool public;        /* /metrics without a token on the main address */
    } metrics;
    struct {
        const char *script; /* JSON of the scriptable backend for tests */
    } fake;

    char *slots_dir; /* in the state directory, for what slots need on disk */
    char **origins;  /* where each key of the table comes from, in its order */
};

/* What the command line says; NULL: nothing. */
struct sg_config_args {
    const char *file;
    const char *state_dir;
    const char *listen;
};

/* Reads, checks and completes a configuration. args may be NULL. SG_INVALID_REQUEST with `field` (the key). */
int sg_config_load(const struct sg_config_args *args, struct sg_config **ret, struct sg_error *err);
struct sg_config *sg_config_free(struct sg_config *c); /* NULL-safe, returns NULL */

/* YAML (or JSON) text as JSON values; plain scalars become numbers, bools and null. */
int sg_yaml_to_json(const char *text, size_t len, json_t **ret, struct sg_error *err);

/* All local pools in order, the default one first, in one array that the caller frees; strings are borrowed. */
struct sg_local_pool_config *sg_config_local_pools(const struct sg_config *c, size_t *ret_n);
/* Entries of a NULL-terminated list, which may be NULL. */
size_t sg_config_count(const char *const *list);
/* Is a listen address one that only this machine reaches? */
bool sg_config_is_loopback(const char *listen);

/* Every key in the table's order: {key, variable, value, origin}; secrets and token hashes are left out. New value. */
json_t *sg_config_explain(const struct sg_config *c);
/* The table of all keys as Markdown, for the README. Caller frees. */
char *sg_config_table(void);

#endif
