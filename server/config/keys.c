/* The one table of settings. A row here is a key of the file, a variable, a line of `check-config --explain` and a line
 * of the README's table. */
#include <stdio.h>

#include "backends/docker/config.h"
#include "base/buf.h"
#include "config/priv.h"

#define KIB INT64_C(1024)
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)
#define SECOND INT64_C(1000)
#define MINUTE (60 * SECOND)
#define HOUR (60 * MINUTE)
#define DAY (24 * HOUR)
#define NUMBER_MAX INT64_MAX

/* Where a member lies and how wide it is. */
#define AT(type, member) .offset = offsetof(type, member), .size = sizeof(((type *)0)->member)
#define TOP(member) AT(struct sg_config, member)
#define COUNT(type, member) .extra = offsetof(type, member)
#define RANGE(low, high) .min = (low), .max = (high)

static const char *const roles[] = {[SG_ROLE_TENANT] = "tenant", [SG_ROLE_ADMIN] = "admin", NULL};
static const char *const pool_modes[] = {[SG_POOL_COMMAND_ONLY] = "command_only", [SG_POOL_BLACKBOX] = "blackbox", NULL};
static const char *const docker_profiles[] = {"native", "engine", NULL};
static const char *const docker_snapshots[] = {"commit", "tar", NULL};
static const char *const egresses[] = {[SG_EGRESS_NONE] = "none", [SG_EGRESS_LOOPBACK] = "loopback",
                                       [SG_EGRESS_RESTRICTED] = "restricted", [SG_EGRESS_OPEN] = "open", NULL};
static const char *const disks[] = {[SG_DISK_TMPFS] = "tmpfs", [SG_DISK_DIR] = "dir", NULL};
static const char *const archives[] = {"home", "work", "runtime", "tmp", NULL};
static const char *const at_shutdown[] = {[SG_LEASES_TERMINATE] = "terminate", [SG_LEASES_KEEP] = "keep", NULL};
static const char *const docker_agents[] = {[SG_DOCKER_AGENT_AUTO] = "auto", [SG_DOCKER_AGENT_SHARE] = "share", [SG_DOCKER_AGENT_ENGINE] = "engine", NULL};
static const char *const levels[] = {[SG_LOG_DEBUG] = "debug", [SG_LOG_INFO] = "info", [SG_LOG_WARN] = "warn",
                                     [SG_LOG_ERROR] = "error", NULL};
static const char *const capabilities[] = {"file_rw", "exec", "network", "gpu", "snapshot", "persistent_volumes",
                                           "public_url", NULL};

#define NAME .valid = conf_valid_name, .expected = "a name of letters, digits, '.', '_' and '-'"
#define PATH .valid = conf_valid_path, .expected = "an absolute path"
#define URL .valid = conf_valid_url, .expected = "an http or https URL"
#define IMAGE .valid = conf_valid_image, .expected = "the name of an image"
#define LISTEN .valid = conf_valid_listen, .expected = "HOST:PORT"

static const struct conf_key token_keys[] = {
    {.name = "name", .type = CONF_STRING, AT(struct sg_token_config, name), .required = true, NAME},
    {.name = "sha256", .type = CONF_STRING, AT(struct sg_token_config, sha256), .required = true, .hidden = true,
     .valid = conf_valid_sha256, .expected = "the SHA-256 of the token, 64 hex digits,"},
    {.name = "tenant", .type = CONF_STRING, AT(struct sg_token_config, tenant), .required = true, NAME},
    {.name = "role", .type = CONF_ENUM, AT(struct sg_token_config, role), .def = "tenant", .choices = roles},
    {.name = "max_leases", .type = CONF_INT, AT(struct sg_token_config, max_leases), .def = "0", RANGE(0, NUMBER_MAX)},
    {.name = "max_execs", .type = CONF_INT, AT(struct sg_token_config, max_execs), .def = "0", RANGE(0, NUMBER_MAX)},
    {.name = "allow_paid", .type = CONF_BOOL, AT(struct sg_token_config, allow_paid), .def = "false"},
    {.name = "backends", .type = CONF_STRINGS, AT(struct sg_token_config, backends), NAME},
    {.name = "budget_usd", .type = CONF_USD, AT(struct sg_token_config, budget_microusd),
     COUNT(struct sg_token_config, budget_set), RANGE(0, INT64_C(1000000000000000))},
};
static const struct conf_table token_table = {token_keys, SG_COUNT_OF(token_keys), sizeof(struct sg_token_config)};

/* The keys of a local pool: those of the section local_bwrap, and of each entry of local_pools. `prefix` names the member
 * of the owner that holds them. */
#define POOL_KEYS(sec, owner, prefix) \
    {.section = sec, .name = "size", .type = CONF_INT, AT(owner, prefix pool.size), .def = "4", RANGE(1, SG_LOCAL_POOL_SIZE_MAX), \
     .help = "sandboxes (slots) kept in the pool"}, \
    {.section = sec, .name = "mode", .type = CONF_ENUM, AT(owner, prefix pool.mode), .def = "command_only", .choices = pool_modes, \
     .help = "command_only: bare shell and files; blackbox: each slot runs a service"}, \
    {.section = sec, .name = "acquire_timeout", .type = CONF_DURATION, AT(owner, prefix pool.acquire_timeout_ms), .def = "30s", \
     RANGE(0, HOUR), .help = "longest wait for a free slot"}, \
    {.section = sec, .name = "health_interval", .type = CONF_DURATION, AT(owner, prefix pool.health_interval_ms), .def = "10s", \
     RANGE(0, HOUR), .help = "between checks of a waiting slot, 0: none"}, \
    {.section = sec, .name = "rootfs", .type = CONF_STRING, AT(owner, prefix pool.rootfs), PATH, \
     .help = "root file system of the sandboxes, read-only: a directory or a tar archive (plain, gzip, zstd); without it the host's system directories"}, \
    {.section = sec, .name = "images", .type = CONF_TEXTS, AT(owner, prefix images), COUNT(owner, prefix n_images), PATH, \
     .help = "further ones, which leases may ask for with `image`: {name: path}"}, \
    {.section = sec, .name = "egress", .type = CONF_ENUM, AT(owner, prefix pool.egress), .def = "none", .choices = egresses, \
     .help = "what of the network a sandbox reaches"}, \
    {.section = sec, .name = "egress_allow", .type = CONF_STRINGS, AT(owner, prefix pool.egress_allow), \
     .help = "what restricted egress reaches: HOST:PORT, *.DOMAIN:PORT, ADDRESS:PORT"}, \
    {.section = sec, .name = "disk", .type = CONF_ENUM, AT(owner, prefix pool.disk), .def = "tmpfs", .choices = disks, \
     .help = "where the writable places of a slot live; dir: in the state directory, as large as the host's disk"}, \
    {.section = sec, .name = "disk_max", .type = CONF_SIZE, AT(owner, prefix pool.disk_max), .def = "1GiB", RANGE(MIB, 1024 * GIB), \
     .help = "bytes of a slot's writable places together, with tmpfs"}, \
    {.section = sec, .name = "memory_max", .type = CONF_SIZE, AT(owner, prefix pool.memory_max), .def = "1GiB", \
     RANGE(0, 4096 * GIB), .help = "memory of a slot's commands, 0: no limit"}, \
    {.section = sec, .name = "pids_max", .type = CONF_INT, AT(owner, prefix pool.pids_max), .def = "512", RANGE(0, 4194304), \
     .help = "processes of a slot's commands, 0: no limit"}, \
    {.section = sec, .name = "cpu_max", .type = CONF_MILLI, AT(owner, prefix pool.cpu_milli), .def = "0", RANGE(0, 1024000), \
     .help = "CPUs of a slot's commands, e.g. 1.5; 0: no limit"}, \
    {.section = sec, .name = "require_limits", .type = CONF_BOOL, AT(owner, prefix pool.require_limits), .def = "false", \
     .help = "refuse to start when a limit cannot be enforced by a cgroup"}, \
    {.section = sec, .name = "service_command", .type = CONF_STRINGS, AT(owner, prefix pool.service_command), \
     .help = "argv of the service of a blackbox slot, which stays in the foreground; {slot}, {port}, {work}, {home}, {tmp}, {runtime}"}, \
    {.section = sec, .name = "service_port", .type = CONF_INT, AT(owner, prefix pool.service_port), .def = "0", RANGE(0, 65535), \
     .help = "port of that service"}, \
    {.section = sec, .name = "service_health_path", .type = CONF_STRING, AT(owner, prefix pool.service_health_path), .def = "/health", \
     PATH, .help = "what must answer before a blackbox slot is ready"}, \
    {.section = sec, .name = "service_start_timeout", .type = CONF_DURATION, AT(owner, prefix pool.service_start_ms), .def = "60s", \
     RANGE(100, HOUR), .help = "how long it may take to answer there"}, \
    {.section = sec, .name = "archive_enabled", .type = CONF_BOOL, AT(owner, prefix archive_enabled), .def = "false", \
     .help = "keep an archive of released slots"}, \
    {.section = sec, .name = "archive_dirs", .type = CONF_STRINGS, AT(owner, prefix archive_dirs), .def = "home,work", \
     .choices = archives, .help = "what goes into an archive"}, \
    {.section = sec, .name = "archive_ttl", .type = CONF_DURATION, AT(owner, prefix archive_ttl_ms), .def = "24h", \
     RANGE(SECOND, 3650 * DAY), .help = "how long archives are kept"}, \
    {.section = sec, .name = "archive_max_per_slot", .type = CONF_INT, AT(owner, prefix archive_max_per_slot), .def = "5", \
     RANGE(1, 100000), .help = "archives kept per slot"}, \
    {.section = sec, .name = "archive_max_bytes", .type = CONF_SIZE, AT(owner, prefix archive_max_bytes), .def = "256MiB", \
     RANGE(1, 1024 * GIB), .help = "most bytes of a pool's archives together, the oldest go first; one that alone has more is not kept"}

static const struct conf_key pool_keys[] = {
    {.name = "name", .type = CONF_STRING, AT(struct sg_config_pool, pool.name), .required = true,
     .valid = conf_valid_pool_name, .expected = "a name of at most 63 of a-z, 0-9, '_' and '-'"},
    POOL_KEYS(NULL, struct sg_config_pool, ),
};
static const struct conf_table pool_table = {pool_keys, SG_COUNT_OF(pool_keys), sizeof(struct sg_config_pool)};

static const struct conf_key remote_keys[] = {
    {.name = "name", .type = CONF_STRING, AT(struct sg_config_remote, name), .required = true, NAME},
    {.name = "url", .type = CONF_STRING, AT(struct sg_config_remote, url), .required = true, URL},
    {.name = "token", .type = CONF_SECRET, AT(struct sg_config_remote, token)},
    {.name = "free", .type = CONF_BOOL, AT(struct sg_config_remote, free), .def = "false"},
    {.name = "capabilities", .type = CONF_STRINGS, AT(struct sg_config_remote, capabilities), .def = "file_rw,exec",
     .choices = capabilities},
};
static const struct conf_table remote_table = {remote_keys, SG_COUNT_OF(remote_keys), sizeof(struct sg_config_remote)};

/* The same for every cloud; the README shows those of the first (`again` false) only. */
#define CLOUD_KEYS(sec, repeated) \
    {.section = #sec, .name = "api_url", .type = CONF_STRING, TOP(sec.api_url), URL, .again = repeated, \
     .help = "the provider's API, if not its public one; likewise for modal, daytona, blaxel, runloop and vercel, as for the next ten"}, \
    {.section = #sec, .name = "sandbox_url", .type = CONF_STRING, TOP(sec.sandbox_url), .again = repeated, \
     .help = "URL of a sandbox, if not the provider's own"}, \
    {.section = #sec, .name = "port_url", .type = CONF_STRING, TOP(sec.port_url), URL, .again = repeated, \
     .help = "where the server itself reaches the public names of ports, such as https://10.0.0.7, if not by their names; callers are told the names"}, \
    {.section = #sec, .name = "domain", .type = CONF_STRING, TOP(sec.domain), .again = repeated, \
     .help = "the provider's domain, if not its own"}, \
    {.section = #sec, .name = "template", .type = CONF_STRING, TOP(sec.template_name), .again = repeated, \
     .help = "template or image of new sandboxes"}, \
    {.section = #sec, .name = "proxy", .type = CONF_PRIVATE, TOP(sec.proxy), .again = repeated, .valid = conf_valid_proxy, \
     .expected = "http://[USER:PASSWORD@]HOST:PORT", .help = "goes to the provider through a tunnel (CONNECT) of this: http://[USER:PASSWORD@]HOST:PORT; never shown"}, \
    {.section = #sec, .name = "ca_file", .type = CONF_STRING, TOP(sec.ca_file), PATH, .again = repeated, \
     .help = "certificates (PEM) that the provider's are checked with, in place of the system's"}, \
    {.section = #sec, .name = "max_concurrent", .type = CONF_INT, TOP(sec.max_concurrent), .def = "64", RANGE(1, 4096), .again = repeated, \
     .help = "calls at a time to the provider's API, and to what runs in its sandboxes; 16 times as many (but at most 1024) may wait, more get 503"}, \
    {.section = #sec, .name = "timeout", .type = CONF_DURATION, TOP(sec.timeout_ms), .def = "60s", RANGE(SECOND, HOUR), \
     .again = repeated, .help = "of a call to the provider"}, \
    {.section = #sec, .name = "sweep_interval", .type = CONF_DURATION, TOP(sec.sweep_ms), .def = "60s", RANGE(100, DAY), \
     .again = repeated, .help = "between two looks at what the provider has of this server's"}, \
    {.section = #sec, .name = "orphan_grace", .type = CONF_DURATION, TOP(sec.grace_ms), .def = "5m", RANGE(0, 30 * DAY), \
     .again = repeated, .help = "how old a sandbox there must be that no lease has, to be removed"}

static const struct conf_key top_keys[] = {
    {.section = "server", .name = "listen", .type = CONF_STRING, TOP(server.listen), .def = "127.0.0.1:8080", LISTEN,
     .help = "address of the API; without tokens a loopback one"},
    {.section = "server", .name = "state_dir", .type = CONF_STRING, TOP(server.state_dir),
     .help = "database, keys, lock; by default $STATE_DIRECTORY, /var/lib/sandgate for root, else ~/.local/state/sandgate"},
    {.section = "server", .name = "public_url", .type = CONF_STRING, TOP(server.public_url), URL,
     .help = "how callers reach the API; used in endpoint URLs"},
    {.section = "server", .name = "public_domain", .type = CONF_STRING, TOP(server.public_domain),
     .valid = conf_valid_domain, .expected = "a domain name",
     .help = "endpoints also answer at {port}-{lease}.this; neither the API's domain nor a parent of it"},
    {.section = "server", .name = "drain_timeout", .type = CONF_DURATION, TOP(server.drain_timeout_ms), .def = "30s",
     RANGE(0, HOUR), .help = "how long running work may finish at SIGTERM"},
    {.section = "server", .name = "body_memory", .type = CONF_SIZE, TOP(server.body_memory), .def = "256MiB",
     RANGE(MIB, INT64_C(1024) * GIB), .help = "most that JSON bodies hold together; beyond, 503"},
    {.section = "server", .name = "max_body", .type = CONF_SIZE, TOP(server.max_body), .def = "8MiB",
     RANGE(KIB, GIB), .help = "largest JSON body"},
    {.section = "server", .name = "workers_max", .type = CONF_INT, TOP(server.workers_max), .def = "4", RANGE(1, 64),
     .help = "threads for short blocking calls"},
    {.section = "server", .name = "daemons", .type = CONF_INT, TOP(server.daemons), .def = "1", RANGE(1, 64),
     .help = "threads that serve HTTP"},

    {.section = "backends", .name = "enabled", .type = CONF_STRINGS, TOP(backends.enabled), .def = "local_bwrap", NAME,
     .help = "backends that may be picked"},

    {.section = "auth", .name = "tokens", .type = CONF_OBJECTS, TOP(auth.tokens), COUNT(struct sg_config, auth.n),
     .sub = &token_table,
     .help = "who may call: {name, sha256, tenant, role (admin or tenant), max_leases, max_execs, allow_paid, backends, budget_usd}"},

    {.section = "keys", .name = "audit_file", .type = CONF_STRING, TOP(keys.audit_file), PATH,
     .help = "key of the audit chain; by default audit.key in the state directory"},
    {.section = "keys", .name = "receipt_file", .type = CONF_STRING, TOP(keys.receipt_file), PATH,
     .help = "key of receipts; by default receipt.key in the state directory"},
    {.section = "keys", .name = "endpoint_file", .type = CONF_STRING, TOP(keys.endpoint_file), PATH,
     .help = "key of endpoint tokens; by default endpoint.key in the state directory"},

    {.section = "audit", .name = "retention", .type = CONF_DURATION, TOP(audit.retention_ms), .def = "2160h",
     RANGE(0, 3650 * DAY), .help = "how long audit records are kept, 0: for ever"},

    {.section = "leases", .name = "timeout_default", .type = CONF_DURATION, TOP(leases.timeout_default_ms), .def = "1h",
     RANGE(SECOND, 365 * DAY), .help = "of a lease that names none"},
    {.section = "leases", .name = "timeout_max", .type = CONF_DURATION, TOP(leases.timeout_max_ms), .def = "24h",
     RANGE(SECOND, 365 * DAY), .help = "longest lease"},
    {.section = "leases", .name = "lease_retention", .type = CONF_DURATION, TOP(leases.retention_ms), .def = "24h",
     RANGE(SECOND, 365 * DAY), .help = "how long ended leases and stored answers are remembered"},
    {.section = "leases", .name = "idle_timeout", .type = CONF_DURATION, TOP(leases.idle_timeout_ms), .def = "0",
     RANGE(0, 365 * DAY), .help = "ends leases nobody uses, 0: never"},
    {.section = "leases", .name = "at_shutdown", .type = CONF_ENUM, TOP(leases.at_shutdown), .def = "terminate", .choices = at_shutdown,
     .help = "what becomes of leases when the server is stopped; keep: those of docker and e2b go on with the next server, the others end"},

    {.section = "exec", .name = "timeout_default", .type = CONF_DURATION, TOP(exec.timeout_default_ms), .def = "5m",
     RANGE(1, 365 * DAY), .help = "of a command that names none"},
    {.section = "exec", .name = "timeout_max", .type = CONF_DURATION, TOP(exec.timeout_max_ms), .def = "24h",
     RANGE(1, 365 * DAY), .help = "longest command"},
    {.section = "exec", .name = "max_output_bytes", .type = CONF_SIZE, TOP(exec.max_output_bytes), .def = "16MiB",
     RANGE(KIB, GIB), .help = "most that is kept of each of stdout and stderr"},
    {.section = "exec", .name = "memory_max", .type = CONF_SIZE, TOP(exec.memory_max), .def = "1GiB",
     RANGE(MIB, INT64_C(1024) * GIB), .help = "most that is kept of all commands' output together, and of stdin that waits for them; more output is only counted, more stdin refused"},
    {.section = "exec", .name = "history_bytes", .type = CONF_SIZE, TOP(exec.history_bytes), .def = "4MiB",
     RANGE(KIB, GIB), .help = "output kept of detached and finished commands"},
    {.section = "exec", .name = "history_ttl", .type = CONF_DURATION, TOP(exec.history_ttl_ms), .def = "10m",
     RANGE(SECOND, DAY), .help = "how long it is kept"},

    {.section = "snapshots", .name = "ttl", .type = CONF_DURATION, TOP(snapshots.ttl_ms), .def = "720h", RANGE(SECOND, 3650 * DAY),
     .help = "how long snapshots are kept"},
    {.section = "snapshots", .name = "max_bytes", .type = CONF_SIZE, TOP(snapshots.max_bytes), .def = "4GiB", RANGE(1, 1024 * GIB),
     .help = "most bytes of one snapshot"},
    {.section = "snapshots", .name = "total_bytes", .type = CONF_SIZE, TOP(snapshots.total_bytes), .def = "64GiB", RANGE(1, 1024 * 1024 * GIB),
     .help = "most bytes of all snapshots together"},
    {.section = "snapshots", .name = "max_per_tenant", .type = CONF_INT, TOP(snapshots.max_per_tenant), .def = "100", RANGE(0, 100000),
     .help = "snapshots a tenant may have"},
    {.section = "snapshots", .name = "sweep_interval", .type = CONF_DURATION, TOP(snapshots.sweep_ms), .def = "60s", RANGE(100, DAY),
     .help = "time between two looks for snapshots and archives that are over, and at those that providers hold"},

    POOL_KEYS("local_bwrap", struct sg_config, local_bwrap.),
    {.section = "local_bwrap", .name = "uid_base", .type = CONF_INT, TOP(uid_base), .def = "200000",
     RANGE(1000, INT64_C(4294900000)),
     .help = "a root server runs slot n (of all pools) as the host uids base + 2n and base + 2n + 1"},
    {.section = "local_bwrap", .name = "image_max_bytes", .type = CONF_SIZE, TOP(image_max_bytes), .def = "16GiB", RANGE(1, 1024 * GIB),
     .help = "most bytes of a root file system (of any pool) that is unpacked from an archive"},
    {.section = "local_pools", .name = "", .type = CONF_OBJECTS, TOP(local_pools), COUNT(struct sg_config, n_local_pools),
     .sub = &pool_table, .help = "further local pools: {name, and the keys of local_bwrap}"},

    {.section = "worktree", .name = "repos", .type = CONF_TEXTS, TOP(worktree.repos), COUNT(struct sg_config, worktree.n),
     PATH, .help = "repositories whose worktrees may be used: {name: path}"},
    {.section = "worktree", .name = "user", .type = CONF_STRING, TOP(worktree.user), NAME,
     .help = "user that commands run as, by name or number: needed by a server that runs as root"},
    {.section = "worktree", .name = "dir", .type = CONF_STRING, TOP(worktree.dir), PATH,
     .help = "where worktrees are made; the user must be able to get there. Without it, `worktrees` in the state directory"},
    {.section = "worktree", .name = "archive_enabled", .type = CONF_BOOL, TOP(worktree.archive_enabled), .def = "true",
     .help = "keep what a lease had changed, as a patch and a tar in the state directory"},
    {.section = "worktree", .name = "archive_max_bytes", .type = CONF_SIZE, TOP(worktree.archive_max_bytes), .def = "256MiB",
     RANGE(1, 1024 * GIB), .help = "most bytes of each of the two"},

    {.section = "docker", .name = "host", .type = CONF_STRING, TOP(docker.host), .def = "unix:///var/run/docker.sock",
     .valid = sg_docker_host_valid, .expected = SG_DOCKER_HOST_FORM,
     .help = "the engine's API: unix:///PATH, tcp://HOST:PORT or https://HOST:PORT"},
    {.section = "docker", .name = "tls_ca", .type = CONF_STRING, TOP(docker.tls_ca), PATH,
     .help = "certificates (PEM) that the engine's is checked with; with this or the next, tcp:// means TLS"},
    {.section = "docker", .name = "tls_cert", .type = CONF_STRING, TOP(docker.tls_cert), PATH, .help = "this server's own certificate (PEM)"},
    {.section = "docker", .name = "tls_key", .type = CONF_STRING, TOP(docker.tls_key), PATH, .help = "its key (PEM)"},
    {.section = "docker", .name = "image", .type = CONF_STRING, TOP(docker.image), IMAGE, .help = "image of a lease that names none"},
    {.section = "docker", .name = "images_allowed", .type = CONF_STRINGS, TOP(docker.images_allowed), IMAGE,
     .help = "images a lease may name, besides that one"},
    {.section = "docker", .name = "pull", .type = CONF_BOOL, TOP(docker.pull), .def = "true", .help = "pull an image that the engine lacks"},
    {.section = "docker", .name = "pull_timeout", .type = CONF_DURATION, TOP(docker.pull_timeout_ms), .def = "10m", RANGE(SECOND, DAY),
     .help = "how long that may take"},
    {.section = "docker", .name = "agent", .type = CONF_ENUM, TOP(docker.agent), .def = "auto", .choices = docker_agents,
     .help = "how agents are reached: share, through a directory that the engine's host sees, too; engine, through the engine alone; "
             "auto: share for unix:// or with agent_host_dir"},
    {.section = "docker", .name = "agent_host_dir", .type = CONF_STRING, TOP(docker.agent_host_dir), PATH,
     .help = "where the engine's host sees `docker` in the state directory, if not there: for a server that is in a container itself"},
    {.section = "docker", .name = "user", .type = CONF_STRING, TOP(docker.user), .def = "1000:1000",
     .valid = conf_valid_container_user, .expected = "two numbers above 0, such as 1000:1000, a user and a group other than root,",
     .help = "user and group that commands run as, two numbers"},
    {.section = "docker", .name = "memory_max", .type = CONF_SIZE, TOP(docker.memory_max), .def = "1GiB",
     RANGE(0, 4096 * GIB), .help = "memory of a container, its disk included; 0: no limit"},
    {.section = "docker", .name = "pids_max", .type = CONF_INT, TOP(docker.pids_max), .def = "512", RANGE(0, 4194304),
     .help = "processes of a container, 0: no limit"},
    {.section = "docker", .name = "cpu_max", .type = CONF_MILLI, TOP(docker.cpu_milli), .def = "0", RANGE(0, 1024000),
     .help = "CPUs of a container, 0: no limit"},
    {.section = "docker", .name = "disk_max", .type = CONF_SIZE, TOP(docker.disk_max), .def = "1GiB", RANGE(MIB, 1024 * GIB),
     .help = "bytes of /workspace, but at most half of the memory; home and /tmp have a quarter of that each"},
    {.section = "docker", .name = "seccomp", .type = CONF_ENUM, TOP(docker.seccomp), .def = "native", .choices = docker_profiles,
     .help = "system calls of a container: native: this server's list, for programs of the machine's own architecture; engine: as the engine is set "
             "up, for instance for 32-bit programs, too. A Podman that shares no directory always has its own"},
    {.section = "docker", .name = "egress", .type = CONF_ENUM, TOP(docker.egress), .def = "none", .choices = egresses,
     .help = "what of the network a container reaches"},
    {.section = "docker", .name = "egress_allow", .type = CONF_STRINGS, TOP(docker.egress_allow),
     .help = "what restricted egress reaches: HOST:PORT, *.DOMAIN:PORT, ADDRESS:PORT"},
    {.section = "docker", .name = "network", .type = CONF_STRING, TOP(docker.network), .def = "bridge", NAME,
     .help = "the engine's network for open"},
    {.section = "docker", .name = "warm", .type = CONF_INT, TOP(docker.warm), .def = "0", RANGE(0, 1024),
     .help = "containers of the default image kept ready"},
    {.section = "docker", .name = "snapshots", .type = CONF_ENUM, TOP(docker.snapshots), .def = "commit", .choices = docker_snapshots,
     .help = "who holds new snapshots: commit: the engine, as an image with labels; tar: this server, in a file"},
    {.section = "docker", .name = "start_timeout", .type = CONF_DURATION, TOP(docker.start_timeout_ms), .def = "20s", RANGE(SECOND, HOUR),
     .help = "how long a container may take to be ready once it has been started"},
    {.section = "docker", .name = "orphan_grace", .type = CONF_DURATION, TOP(docker.orphan_grace_ms), .def = "10m", RANGE(SECOND, 7 * DAY),
     .help = "how long a container waits for a server that has gone before it ends"},

    CLOUD_KEYS(e2b, false),
    CLOUD_KEYS(modal, true),
    CLOUD_KEYS(daytona, true),
    CLOUD_KEYS(blaxel, true),
    CLOUD_KEYS(runloop, true),
    CLOUD_KEYS(vercel, true),

    {.section = "remotes", .name = "", .type = CONF_OBJECTS, TOP(remotes), COUNT(struct sg_config, n_remotes),
     .sub = &remote_table,
     .help = "other servers as backends: {name, url, token (name of the variable that holds it), free, capabilities}"},
    {.section = "pools", .name = "", .type = CONF_JSON, TOP(pools), .help = "pool manifests"},
    {.section = "prices", .name = "", .type = CONF_PRICES, TOP(prices), COUNT(struct sg_config, n_prices),
     .help = "dollars per hour: {backend: amount}"},

    {.section = "log", .name = "level", .type = CONF_ENUM, TOP(log.level), .def = "info", .choices = levels,
     .help = "least level that is written"},
    {.section = "metrics", .name = "listen", .type = CONF_STRING, TOP(metrics.listen), LISTEN,
     .help = "an address of its own for /metrics"},
    {.section = "metrics", .name = "public", .type = CONF_BOOL, TOP(metrics.public), .def = "false",
     .help = "/metrics needs no token"},
    {.section = "fake", .name = "script", .type = CONF_STRING, TOP(fake.script),
     .help = "what the backend `fake` does, for tests (JSON)"},
};

const struct conf_table conf_top = {top_keys, SG_COUNT_OF(top_keys), sizeof(struct sg_config)};

void conf_key_name(const struct conf_key *k, char *out, size_t size)
{
    (void)snprintf(out, size, "%s%s%s", k->section, *k->name != '\0' ? "." : "", k->name);
}

void conf_variable_name(const struct conf_key *k, char *out, size_t size)
{
    (void)snprintf(out, size, "SANDGATE_%s%s%s", k->section, *k->name != '\0' ? "_" : "", k->name);
    for (char *p = out; *p != '\0'; p++) {
        *p = (char)(*p >= 'a' && *p <= 'z' ? *p - 'a' + 'A' : *p);
    }
}

static void add_type(struct sg_buf *b, const struct conf_key *k)
{
    static const char *const names[] = {
        [CONF_STRING] = "text",      [CONF_ENUM] = "",         [CONF_BOOL] = "true or false", [CONF_INT] = "number",
        [CONF_DURATION] = "duration", [CONF_SIZE] = "size",    [CONF_MILLI] = "number",       [CONF_USD] = "dollars",
        [CONF_STRINGS] = "list",     [CONF_OBJECTS] = "objects", [CONF_TEXTS] = "map",        [CONF_PRICES] = "map",
        [CONF_JSON] = "objects",     [CONF_SECRET] = "secret", [CONF_PRIVATE] = "text",
    };
    (void)sg_buf_addf(b, "%s", names[k->type]);
    for (size_t i = 0; k->type == CONF_ENUM && k->choices[i] != NULL; i++) {
        (void)sg_buf_addf(b, "%s`%s`", i > 0 ? ", " : "", k->choices[i]);
    }
}

char *sg_config_table(void)
{
    struct sg_buf b;
    sg_buf_init(&b, (size_t)MIB);
    (void)sg_buf_addf(&b, "| Key | Value | Default | |\n| --- | --- | --- | --- |\n");
    for (size_t i = 0; i < conf_top.n; i++) {
        const struct conf_key *k = &conf_top.keys[i];
        char name[96];
        if (k->again) {
            continue;
        }
        conf_key_name(k, name, sizeof name);
        (void)sg_buf_addf(&b, "| `%s` | ", name);
        add_type(&b, k);
        (void)sg_buf_addf(&b, k->def != NULL ? " | `%s` | %s |\n" : " | %s | %s |\n", k->def != NULL ? k->def : "", k->help);
    }
    return sg_buf_steal(&b, NULL);
}
