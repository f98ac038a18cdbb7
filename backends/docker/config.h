/* How sandboxes are made on a container engine. Values are complete: whoever maps the configuration fills in defaults. */
#ifndef SG_DOCKER_CONFIG_H
#define SG_DOCKER_CONFIG_H

#include "model/sandbox.h"

/* How agents are reached: through a directory that this server and the engine's host both see, or through the engine alone. AUTO: through the directory
 * where the engine is reached over a unix socket, or host_dir is given. */
enum sg_docker_agent { SG_DOCKER_AGENT_AUTO, SG_DOCKER_AGENT_SHARE, SG_DOCKER_AGENT_ENGINE };

#define SG_DOCKER_WARM_MAX 1024U

/* Copied by the driver; strings are borrowed for the call. */
struct sg_docker_config {
    const char *host;                        /* unix:///PATH, tcp://HOST:PORT or https://HOST:PORT */
    const char *tls_ca, *tls_cert, *tls_key; /* PEM files, or NULL; with them tcp:// means TLS */
    const char *image;                       /* of a lease that names none; NULL: it must name one */
    const char *const *images_allowed;       /* those a lease may name, besides; NULL: none */
    bool pull;                               /* an image that is missing is pulled, */
    int64_t pull_ms;                         /* ... for so long */
    const char *dir;      /* the agent and its sockets lie below; made when missing, 0711 */
    const char *host_dir; /* the same directory as the engine's host sees it; NULL: as this process does */
    enum sg_docker_agent agent;
    const char *agent_path;
    uint32_t uid, gid; /* of commands, neither of them 0 */
    int64_t memory_max, pids_max, cpu_milli; /* ceilings and defaults; 0: no limit */
    bool own_profile;                        /* containers have this server's seccomp profile, where it has one; else the engine's */
    int64_t disk_max;                        /* bytes of /workspace; home and /tmp have a quarter of it each */
    enum sg_egress egress;
    const char *const *egress_allow;         /* NULL-terminated, or NULL; as in backends/egress/rules.h. Of SG_EGRESS_RESTRICTED not empty */
    const char *network;                     /* of the engine's, for open */
    unsigned warm;                           /* containers of the default image that are kept ready */
    bool commit;                             /* the engine holds new snapshots; else they are files of the server's */
    int64_t start_ms;                        /* how long a container may take to be ready once it has been started */
    int64_t orphan_grace_ms;                 /* how long a container waits for a server before it ends */
};

#define SG_DOCKER_HOST_FORM "unix:///PATH, tcp://HOST:PORT or https://HOST:PORT"

bool sg_docker_host_valid(const char *s);

/* Do the settings go together? No I/O. The error's field is the key, such as "docker.image", and its message does not repeat that. */
int sg_docker_config_check(const struct sg_docker_config *c, struct sg_error *err);

/* Are agents reached through the engine? */
bool sg_docker_is_far(const struct sg_docker_config *c);

/* A pull of an image that the engine lacked, for the log. */
enum sg_docker_pull_step { SG_DOCKER_PULL_BEGUN, SG_DOCKER_PULL_GOES_ON, SG_DOCKER_PULL_DONE, SG_DOCKER_PULL_FAILED };
struct sg_docker_pull {
    enum sg_docker_pull_step step;
    const char *image;
    const char *status; /* "resolving", "downloading", "extracting" */
    uint64_t current_bytes, total_bytes; /* of the layers that are known so far */
    unsigned waiters;   /* sandboxes */
    int64_t duration_ms;
    const struct sg_error *err; /* of a failure */
};

/* "1000:1000", or "1000" for both: numbers above 0. */
bool sg_docker_user_parse(const char *s, uint32_t *uid, uint32_t *gid);

#endif
