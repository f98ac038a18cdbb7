/* What a local pool is made of. Values are complete: whoever maps the configuration fills in defaults. The
 * agent's path, uid_base and the root file systems are the spawner's settings, the same for all pools. */
#ifndef SG_LOCAL_BWRAP_CONFIG_H
#define SG_LOCAL_BWRAP_CONFIG_H

#include "model/sandbox.h"

enum sg_disk { SG_DISK_TMPFS, SG_DISK_DIR };

#define SG_LOCAL_POOL_SIZE_MAX 1024U
#define SG_LOCAL_WAITERS_DEFAULT 1024U

/* A root file system that leases may name. */
struct sg_local_image {
    const char *name;
    const char *rootfs; /* as that of the pool */
};

/* Copied by the driver; strings are borrowed for the call. */
struct sg_local_pool_config {
    const char *name;           /* [a-z0-9_-]{1,63}, unique; the first pool is the default one */
    unsigned size;              /* slots, 1 ... SG_LOCAL_POOL_SIZE_MAX */
    enum sg_pool_mode mode;
    int64_t acquire_timeout_ms; /* longest wait of a create that names none, >= 0 */
    size_t waiters_max;         /* creates waiting at once, 0: SG_LOCAL_WAITERS_DEFAULT */
    int64_t health_interval_ms; /* between checks of a READY slot, 0: none */
    enum sg_disk disk;
    int64_t disk_max;    /* bytes of the writable places together, > 0; nobody limits SG_DISK_DIR */
    int64_t memory_max;  /* bytes, 0: no limit */
    int64_t pids_max;    /* 0: no limit */
    int64_t cpu_milli;   /* thousandths of one CPU, 0: no limit */
    bool require_limits; /* refuse to start when a limit cannot be enforced by a cgroup */
    const char *rootfs;  /* NULL: the host's system directories, read-only; else one that the spawner knows */
    const struct sg_local_image *images; /* further ones, which leases may ask for by name; names are unique */
    size_t n_images;
    enum sg_egress egress; /* open: the spawner was started with open_net */
    const char *const *egress_allow; /* NULL-terminated, or NULL; as in backends/egress/rules.h. Of SG_EGRESS_RESTRICTED not empty */

    /* SG_POOL_BLACKBOX: what runs in every slot, and when it counts as well. */
    const char *const *service_command; /* argv, NULL-terminated, not empty; placeholders as in sg_service_text() */
    uint16_t service_port;              /* > 0 */
    const char *service_health_path;    /* starts with '/', no blanks */
    int64_t service_start_ms;           /* how long it may take to answer there, > 0 */
};

/* text with its placeholders filled in; the caller frees. {slot}, {port}, {work}, {home}, {tmp}, {runtime}: the slot's name, the
 * service's port, the writable directories. "{{name}" stands for "{name}", and "${name}" and what else is in braces is left as it is;
 * an unknown {name} of a-z and '_' is NULL with SG_INVALID_REQUEST. */
char *sg_service_text(const char *text, const char *slot, uint16_t port, struct sg_error *err);

#endif
