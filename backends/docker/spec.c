/* What is asked of a sandbox, against what the operator allows, and as the engine is told. */
#include "backends/docker/docker_priv.h"

#include <stdio.h>
#include <sys/resource.h>

#include "base/json.h"
#include "base/str.h"

#define HOME_SHARE 4 /* home, /tmp and /dev/shm have this part of the disk each */
#define BYTES_PER_FILE 4096
#define FILES_MIN 1024
#define PIDS_MIN 8
#define CPU_MILLI_MIN 10
#define PODMAN_FILES 1024
#define PODMAN_FILES_HARD 1048576
#define PODMAN_PROCESSES 32768 /* of all containers' commands together: what it has itself; pids is the limit of each */
#define PODMAN_CLOSED "ro,nosuid,nodev,noexec"
#define DISK_OF_MEMORY 2 /* the disk is memory: /workspace is at most this part of it, unless a lease says otherwise */

bool sg_docker_user_parse(const char *s, uint32_t *uid, uint32_t *gid)
{
    char first[16];
    size_t n = strcspn(s, ":");
    int64_t u, g;
    if (n >= sizeof first) {
        return false;
    }
    memcpy(first, s, n);
    first[n] = '\0';
    if (!sg_parse_int(first, 1, INT64_C(1) << 30, &u) || !sg_parse_int(s[n] == ':' ? s + n + 1 : first, 1, INT64_C(1) << 30, &g)) {
        return false;
    }
    *uid = (uint32_t)u;
    *gid = (uint32_t)g;
    return true;
}

/* ---- check ---- */

static int above(const char *field, int64_t asked, int64_t ceiling, struct sg_error *err)
{
    if (asked < 0) {
        return sg_error_field(err, SG_INVALID_REQUEST, field, "must not be negative");
    }
    if (ceiling == 0 || asked <= ceiling) {
        return 0;
    }
    sg_error_field(err, SG_LIMIT_EXCEEDED, field, "this server allows containers at most %lld", (long long)ceiling);
    sg_error_member(err, "limit", json_integer(ceiling));
    return -1;
}

static int check_limits(const struct sg_docker_config *c, const struct sg_limits *l, struct sg_error *err)
{
    int64_t memory = l->memory_bytes > 0 ? l->memory_bytes : c->memory_max;
    if (above("limits.memory_max", l->memory_bytes, c->memory_max, err) < 0 || above("limits.pids_max", l->pids, c->pids_max, err) < 0 ||
        above("limits.cpu_max", l->cpu_milli, c->cpu_milli, err) < 0 || above("limits.disk_max", l->disk_bytes, c->disk_max, err) < 0) {
        return -1;
    }
    if (l->memory_bytes > 0 && l->memory_bytes < (INT64_C(6) << 20)) {
        return sg_error_field(err, SG_NOT_SUPPORTED, "limits.memory_max", "an engine makes no container with less than 6 MiB");
    }
    if (l->pids > 0 && l->pids < PIDS_MIN) {
        return sg_error_field(err, SG_NOT_SUPPORTED, "limits.pids_max", "what leads the commands in a container counts, too: %d at least", PIDS_MIN);
    }
    if (l->cpu_milli > 0 && l->cpu_milli < CPU_MILLI_MIN) {
        return sg_error_field(err, SG_NOT_SUPPORTED, "limits.cpu_max", "an engine makes no container with less than 0.01 of a CPU");
    }
    if (memory > 0 && l->disk_bytes > memory) {
        return sg_error_field(err, SG_LIMIT_EXCEEDED, "limits.disk_max", "the disk of a container lies in its memory, of which it has %lld bytes",
                              (long long)memory);
    }
    return 0;
}

static bool image_allowed(const struct sg_docker_config *c, const char *image)
{
    bool ok = c->image != NULL && sg_streq(image, c->image);
    for (size_t i = 0; !ok && c->images_allowed != NULL && c->images_allowed[i] != NULL; i++) {
        ok = sg_streq(image, c->images_allowed[i]);
    }
    return ok;
}

static int unknown_image(const struct sg_docker_config *c, const char *image, struct sg_error *err)
{
    json_t *list = json_array();
    if (c->image != NULL) {
        (void)json_array_append_new(list, json_string(c->image));
    }
    for (size_t i = 0; c->images_allowed != NULL && c->images_allowed[i] != NULL; i++) {
        (void)json_array_append_new(list, json_string(c->images_allowed[i]));
    }
    sg_error_field(err, SG_NOT_SUPPORTED, "image", "image %s is not among those that may be used here (docker.images_allowed)", image);
    sg_error_member(err, "images", list);
    return sg_error_reason(err, "unknown_image");
}

/* What the lease names, or what its snapshot was made on; NULL: the default. */
static const char *image_of(const struct sg_sandbox_spec *spec)
{
    return spec->snapshot_ref != NULL ? docker_snapshot_base(spec->snapshot_ref) : spec->image;
}

static int check_snapshot(const struct sg_sandbox_spec *spec, struct sg_error *err)
{
    const char *base = docker_snapshot_base(spec->snapshot_ref);
    if (base == NULL) {
        return sg_error_field(err, SG_SNAPSHOT_NOT_FOUND, "manifest.snapshot", "this is no snapshot of a container");
    }
    if (spec->image != NULL && !sg_streq(spec->image, base)) {
        return sg_error_field(err, SG_NOT_SUPPORTED, "image", "the snapshot was made on image %s, and has it", base);
    }
    return 0;
}

int docker_check(struct sg_driver *drv, const struct sg_sandbox_spec *spec, struct sg_error *err)
{
    const struct docker *d = (const struct docker *)drv;
    const struct sg_docker_config *c = &d->cfg;
    if (spec->local_pool != NULL && spec->local_pool[0] != '\0') {
        return sg_error_field(err, SG_NOT_SUPPORTED, "local_pool", "containers are of no local pool");
    }
    if (spec->snapshot_ref != NULL && check_snapshot(spec, err) < 0) {
        return -1;
    }
    const char *image = image_of(spec);
    if (image == NULL && c->image == NULL) {
        return sg_error_field(err, SG_NOT_SUPPORTED, "image", "name an image: there is no default one (docker.image)");
    }
    if (image != NULL && !image_allowed(c, image)) {
        return unknown_image(c, image, err);
    }
    if (sg_egress_check(spec, c->egress, d->rules, "containers here (docker.egress)", err) < 0) {
        return -1;
    }
    return check_limits(c, &spec->limits, err);
}

/* ---- apply ---- */

void docker_set_egress(struct box *b, enum sg_egress e)
{
    b->egress = e;
    b->base.sb.lacks = sg_egress_reaches_out(e) ? 0 : SG_CAP_NETWORK;
}

void docker_apply(const struct docker *d, struct box *b, const struct sg_sandbox_spec *spec)
{
    const struct sg_docker_config *c = &d->cfg;
    struct sg_limits none = {0};
    const struct sg_limits *l = spec != NULL ? &spec->limits : &none;
    const char *image = spec != NULL ? image_of(spec) : NULL;
    b->image = sg_xstrdup(image != NULL ? image : c->image);
    b->snapshot = spec != NULL && spec->snapshot_ref != NULL ? docker_snapshot_image(spec->snapshot_ref) : NULL;
    b->far = d->far;
    docker_set_egress(b, sg_egress_of(spec, c->egress));
    b->limits.memory_bytes = l->memory_bytes > 0 ? l->memory_bytes : c->memory_max;
    b->limits.pids = l->pids > 0 ? l->pids : c->pids_max;
    b->limits.cpu_milli = l->cpu_milli > 0 ? l->cpu_milli : c->cpu_milli;
    int64_t most = b->limits.memory_bytes > 0 ? b->limits.memory_bytes / DISK_OF_MEMORY : c->disk_max;
    b->limits.disk_bytes = l->disk_bytes > 0 ? l->disk_bytes : c->disk_max < most ? c->disk_max : most;
}

/* ---- the body ---- */

/* Empty files take memory, too: there may be so many (Podman knows no such option). */
static json_t *tmpfs(const struct box *b, int64_t bytes, const char *mode)
{
    int64_t inodes = bytes / BYTES_PER_FILE > FILES_MIN ? bytes / BYTES_PER_FILE : FILES_MIN;
    sg_cleanup(sg_free_p) char *s = sg_xasprintf("rw,exec,nosuid,nodev,size=%lld,mode=%s", (long long)bytes, mode);
    sg_cleanup(sg_free_p) char *all = b->d->podman ? NULL : sg_xasprintf("%s,nr_inodes=%lld", s, (long long)inodes);
    return json_string(all != NULL ? all : s);
}

/* Never zero, which the kernel takes for no limit. */
static int64_t share_of_disk(const struct box *b)
{
    int64_t share = b->limits.disk_bytes / HOME_SHARE;
    return share > 0 ? share : 1;
}

/* The owner is the agent's to set: where the image has such a directory its own wins, and not all engines know uid= here. */
static json_t *writable(const struct box *b)
{
    int64_t disk = b->limits.disk_bytes, share = share_of_disk(b);
    json_t *v = json_pack("{s:o, s:o, s:o}", "/workspace", tmpfs(b, disk, "0755"), "/home/sandbox",
                          tmpfs(b, share, "0755"), "/tmp", tmpfs(b, share, "1777"));
    if (v != NULL && b->d->podman) { /* else it puts memory there for anybody to write to, with no bound of its own */
        (void)json_object_set_new(v, "/run", json_string(PODMAN_CLOSED));
        (void)json_object_set_new(v, "/var/tmp", json_string(PODMAN_CLOSED));
    }
    return v;
}

static json_t *mounts(const struct docker *d, const struct box *b)
{
    const char *dir = d->cfg.host_dir;
    if (b->far) { /* an anonymous volume, which goes with the container */
        return json_pack("[{s:s, s:s}]", "Type", "volume", "Target", "/.sandgate");
    }
    sg_cleanup(sg_free_p) char *agent = sg_xasprintf("%s/sandgate-agent", dir);
    sg_cleanup(sg_free_p) char *run = sg_xasprintf("%s/run/%s", dir, b->run);
    return json_pack("[{s:s, s:s, s:s, s:b}, {s:s, s:s, s:s}]", "Type", "bind", "Source", agent, "Target", "/.sandgate/agent", "ReadOnly", 1,
                     "Type", "bind", "Source", run, "Target", "/.sandgate/run");
}

static json_int_t lower(rlim_t own, json_int_t most)
{
    return own < (rlim_t)most ? (json_int_t)own : most;
}

/* Podman would else raise them to what a host without the right to do so refuses, and start nothing. */
static json_t *podman_ulimits(void)
{
    struct rlimit files = {0}, processes = {0};
    (void)getrlimit(RLIMIT_NOFILE, &files);
    (void)getrlimit(RLIMIT_NPROC, &processes);
    json_int_t n = lower(processes.rlim_max, PODMAN_PROCESSES);
    return json_pack("[{s:s, s:I, s:I}, {s:s, s:I, s:I}]", "Name", "nofile", "Soft", lower(files.rlim_max, PODMAN_FILES), "Hard",
                     lower(files.rlim_max, PODMAN_FILES_HARD), "Name", "nproc", "Soft", n, "Hard", n);
}

/* Podman takes the value for the name of a file of its host, where what is shared with it lies. */
static json_t *security(const struct docker *d, const struct box *b)
{
    json_t *list = json_pack("[s]", "no-new-privileges");
    sg_cleanup(sg_free_p) char *file = d->podman && !b->far ? sg_xasprintf("seccomp=%s/" PROFILE_NAME, d->cfg.host_dir) : NULL;
    if (d->profile != NULL && (!d->podman || file != NULL)) {
        (void)json_array_append_new(list, file != NULL ? json_string(file) : json_sprintf("seccomp=%s", d->profile));
    }
    return list;
}

/* SETUID, SETGID and KILL are the agent's for good; what the others do is done before it listens, and then they are dropped. Commands
 * have none of them, and cannot get any. */
static json_t *host_config(const struct docker *d, const struct box *b)
{
    json_t *h = json_pack("{s:o, s:o, s:b, s:[s], s:[s,s,s,s,s], s:o, s:s, s:b, s:s, s:s, s:{s:s}, s:{s:s}}", "Mounts", mounts(d, b), "Tmpfs",
                          writable(b), "ReadonlyRootfs", 1, "CapDrop", "ALL", "CapAdd", "SETUID", "SETGID", "KILL", "CHOWN",
                          "DAC_OVERRIDE", "SecurityOpt", security(d, b), "NetworkMode", b->egress == SG_EGRESS_OPEN ? d->cfg.network : "none", "Init", 0,
                          "IpcMode", "private", "CgroupnsMode", "private", "RestartPolicy", "Name", "no", "LogConfig", "Type", "none");
    if (h == NULL) {
        return NULL;
    }
    if (d->podman) {
        (void)json_object_set_new(h, "Ulimits", podman_ulimits());
    }
    (void)json_object_set_new(h, "ShmSize", json_integer(share_of_disk(b)));
    if (b->limits.memory_bytes > 0) {
        (void)json_object_set_new(h, "Memory", json_integer(b->limits.memory_bytes));
        (void)json_object_set_new(h, "MemorySwap", json_integer(b->limits.memory_bytes));
    }
    if (b->limits.pids > 0) {
        (void)json_object_set_new(h, "PidsLimit", json_integer(b->limits.pids));
    }
    if (b->limits.cpu_milli > 0) {
        (void)json_object_set_new(h, "NanoCpus", json_integer(b->limits.cpu_milli * NANO_PER_MILLI));
    }
    return h;
}

/* All labels are set, also empty ones: an image made of a sandbox brings along those of another. */
char *docker_body(const struct docker *d, const struct box *b)
{
    char uid[16], gid[16], grace[24];
    (void)snprintf(uid, sizeof uid, "%u", d->cfg.uid);
    (void)snprintf(gid, sizeof gid, "%u", d->cfg.gid);
    (void)snprintf(grace, sizeof grace, "%lld", (long long)d->cfg.orphan_grace_ms);
    sg_cleanup(sg_json_p) json_t *v = json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:[s,s,s,s,s,s,s,s,s], s:[], s:b, s:b, s:{s:[s]}, s:{s:s, s:s, s:s, s:s, s:s, s:s}, s:o}", "Image", b->image, "User", "0:0",
        "WorkingDir", "/", "Hostname", "sandbox", "StopSignal", "SIGKILL", "Entrypoint", "/.sandgate/agent", b->far ? "listen-relay" : "listen", "/.sandgate/run", uid, gid, grace,
        "/workspace", "/home/sandbox", "/tmp", "Cmd", "Tty", 0, "OpenStdin", 0, "Healthcheck", "Test", "NONE", "Labels", LABEL_INSTANCE,
        d->instance, LABEL_LEASE, b->lease, LABEL_RUN, b->run, LABEL_IMAGE, b->image, LABEL_EGRESS, sg_egress_name(b->egress), LABEL_AGENT,
        b->far ? "engine" : "share", "HostConfig", host_config(d, b));
    if (v != NULL && b->snapshot != NULL) {
        (void)json_object_set_new(v, "Image", json_string(b->snapshot));
    }
    return v != NULL ? sg_json_dump(v, NULL) : NULL;
}
