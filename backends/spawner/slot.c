#include "backends/spawner/slot_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backends/spawner/build.h"
#include "backends/spawner/net.h"
#include "base/clock.h"
#include "base/fd.h"

static uint32_t agent_uid(const struct sg_daemon *d, uint32_t n)
{
    return d->args->own.root_server ? d->args->cfg->uid_base + 2 * n : 0;
}

static uint32_t command_uid(const struct sg_daemon *d, uint32_t n)
{
    return d->args->own.root_server ? d->args->cfg->uid_base + 2 * n + 1 : 0;
}

static struct sg_slot *slot_get(struct sg_daemon *d, uint32_t n)
{
    if (d->slots[n] == NULL) {
        struct sg_slot *s = sg_xcalloc(1, sizeof *s);
        s->n = n;
        s->ns = (struct sg_namespaces){.user = -1, .cgroup = -1};
        s->pidfd = s->server_end = s->info = s->errors = s->empty = s->net_fd = s->net_ready = s->net_errors = -1;
        sg_slot_groups_init(&s->groups);
        d->slots[n] = s;
    }
    return d->slots[n];
}

/* ---- the way up ---- */

/* Starts the helper of its network, which bwrap's child has from birth. */
static int join_outside(struct sg_daemon *d, struct sg_slot *s)
{
    char path[64];
    int ready[2], errors[2];
    snprintf(path, sizeof path, "/proc/%d/ns/net", (int)s->agent);
    sg_cleanup(sg_close_p) int netns = open(path, O_RDONLY | O_CLOEXEC);
    if (netns < 0 || pipe2(ready, O_CLOEXEC) < 0) {
        return -1;
    }
    s->net_ready = ready[0];
    sg_cleanup(sg_close_p) int ready_end = ready[1];
    if (pipe2(errors, O_CLOEXEC | O_NONBLOCK) < 0) {
        return -1;
    }
    s->net_errors = errors[0]; /* kept open, for who writes there must never fail; read when it has ended */
    sg_cleanup(sg_close_p) int errors_end = errors[1];
    const struct sg_net n = {.program = d->args->slirp,
                             .resolv = d->view.name_servers,
                             .root_server = d->args->own.root_server,
                             .uid = agent_uid(d, s->n),
                             .parent = getpid(),
                             .netns = netns,
                             .ready_fd = ready_end,
                             .error_fd = errors_end};
    pid_t pid = sg_groups_fork(&d->args->groups, s->groups.agent);
    if (pid == 0) {
        sg_net_child(&n);
    }
    if (pid < 0) {
        errno = -pid;
        return -1;
    }
    s->net = pid;
    s->net_fd = (int)syscall(SYS_pidfd_open, pid, 0); /* it is not reaped before we do that */
    return s->net_fd < 0 ? -1 : sg_daemon_watch(d, s->net_ready, EPOLLIN, SG_EV_NET, s->n);
}

static void read_net_ready(struct sg_daemon *d, struct sg_slot *s)
{
    char byte;
    ssize_t n = read(s->net_ready, &byte, 1);
    if (n < 0 && errno == EINTR) {
        return;
    }
    s->net_up = n == 1;
    epoll_ctl(d->epoll, EPOLL_CTL_DEL, s->net_ready, NULL); /* at its end the helper's exit tells more */
}

/* The helper sets the network's loopback up, which bwrap does, too, and fails when that is done already: so not before its child has run
 * the agent. */
static void join_when_made(struct sg_daemon *d, struct sg_slot *s)
{
    if (!s->build.open_net || !s->hello || s->pidfd < 0 || s->net_fd >= 0) {
        return;
    }
    if (join_outside(d, s) < 0) {
        char why[96];
        snprintf(why, sizeof why, "cannot be joined to the network: %s", strerror(errno));
        slot_fail(d, s, why);
    }
}

static void read_info(struct sg_daemon *d, struct sg_slot *s)
{
    ssize_t n = read(s->info, s->info_text + s->info_len, sizeof s->info_text - 1 - s->info_len);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    s->info_len += n > 0 ? (size_t)n : 0;
    s->info_text[s->info_len] = '\0';
    int pid;
    const char *found = strstr(s->info_text, "\"child-pid\":");
    if (n <= 0) {
        epoll_ctl(d->epoll, EPOLL_CTL_DEL, s->info, NULL);
    }
    bool whole =
        found != NULL && strpbrk(found, ",}\n") != NULL && sscanf(found, "\"child-pid\": %d", &pid) == 1;
    if (!whole) {
        if (n <= 0 || s->info_len == sizeof s->info_text - 1) {
            slot_fail(d, s, "bubblewrap failed");
        }
        return;
    }
    if (s->pidfd >= 0 || s->agent != 0) {
        return; /* the rest of what bwrap writes; the pipe stays open, or it would be killed by it */
    }
    s->agent = (pid_t)pid;
    s->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    /* The number is that of bwrap's child only while bwrap has not reaped it. */
    if (s->pidfd < 0 || !slot_is_child_of(s->agent, s->monitor)) {
        s->pidfd = sg_close(s->pidfd);
        slot_fail(d, s, "its first process is gone");
    } else {
        join_when_made(d, s);
    }
}

static void read_hello(struct sg_daemon *d, struct sg_slot *s)
{
    char byte;
    ssize_t n = recv(s->server_end, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (n <= 0) {
        slot_fail(d, s, "the sandbox did not come up");
        return;
    }
    s->hello = true;
    epoll_ctl(d->epoll, EPOLL_CTL_DEL, s->server_end, NULL);
    join_when_made(d, s);
}

static int64_t rlimit_for(const struct sg_daemon *d, enum sg_controller c, int64_t limit)
{
    return limit > 0 && sg_groups_means(&d->args->groups, c) == SG_MEANS_RLIMIT ? limit : 0;
}

/* Under an ordinary user they are set from outside and only now: set earlier they would also hold for all
 * processes of the user namespace around every slot. (A root server's slots have a user each, and it may lack
 * CAP_SYS_RESOURCE.) */
static int set_rlimits(struct sg_daemon *d, const struct sg_slot *s)
{
    if (d->args->own.root_server) {
        return 0;
    }
    return sg_build_limit(s->agent, rlimit_for(d, SG_CTL_PIDS, s->build.pids),
                          rlimit_for(d, SG_CTL_MEMORY, s->build.memory_bytes));
}

uint32_t slot_means(const struct sg_daemon *d, enum sg_controller c, int64_t limit)
{
    return limit > 0 ? sg_groups_means(&d->args->groups, c) : SG_MEANS_NONE;
}

static void fill_answer(struct sg_daemon *d, struct sg_slot *s, struct sg_wire_answer *a)
{
    a->agent_pid = s->agent;
    a->agent_uid = d->args->own.root_server ? agent_uid(d, s->n) : d->args->own.uid;
    a->command_uid = d->args->own.root_server ? command_uid(d, s->n) : d->args->own.uid;
    a->isolation = d->args->own.root_server ? SG_ISOLATION_UID : SG_ISOLATION_DUMPABLE;
    a->tree_kill = s->groups.cmds >= 0 ? SG_TREE_KILL_CGROUP : SG_TREE_KILL_HELPER;
    a->memory = slot_means(d, SG_CTL_MEMORY, s->build.memory_bytes);
    a->pids = slot_means(d, SG_CTL_PIDS, s->build.pids);
    a->cpu = slot_means(d, SG_CTL_CPU, s->build.cpu_milli);
    a->disk = s->build.disk_dir ? SG_MEANS_NONE : SG_MEANS_TMPFS;
}

static void send_built(struct sg_daemon *d, struct sg_slot *s)
{
    int limits[SG_SLOT_LIMIT_FDS] = {-1, -1, -1};
    if (sg_slot_groups_limit_fds(&d->args->groups, &s->groups, s->n, limits, &s->error) < 0) {
        for (unsigned i = 0; i < SG_SLOT_LIMIT_FDS; i++) {
            sg_close(limits[i]);
        }
        slot_begin_end(d, s);
        return;
    }
    int oom = sg_slot_groups_oom_fd(&d->args->groups, &s->groups, s->n);
    const int all[SG_WIRE_FDS_MAX] = {s->server_end, s->pidfd,  s->groups.cmds, oom,
                                      limits[0],     limits[1], limits[2],      s->net_fd};
    struct sg_wire_answer a = slot_answer_to(SG_WIRE_BUILT, s->build.id, NULL);
    fill_answer(d, s, &a);
    int fds[SG_WIRE_FDS_MAX];
    unsigned n = 0;
    for (unsigned i = 0; i < SG_WIRE_FDS_MAX; i++) {
        if (all[i] >= 0) {
            fds[n++] = all[i];
            a.fds |= 1U << i;
        }
    }
    s->state = UP;
    s->build_owed = false;
    sg_daemon_answer(d, &a, fds, n);
    sg_close(oom);
    for (unsigned i = 0; i < SG_SLOT_LIMIT_FDS; i++) {
        sg_close(limits[i]);
    }
    slot_close_build_fds(s);
}

static void finish_build(struct sg_daemon *d, struct sg_slot *s)
{
    if (s->state != BUILDING || !s->hello || s->pidfd < 0 || (s->build.open_net && !s->net_up)) {
        return;
    }
    int r = set_rlimits(d, s);
    if (r < 0) {
        char why[96];
        snprintf(why, sizeof why, "cannot set its resource limits: %s", strerror(-r));
        slot_fail(d, s, why);
        return;
    }
    send_built(d, s);
}

/* ---- the start of a build ---- */

static int prepare(struct sg_daemon *d, struct sg_slot *s, struct sg_error *err)
{
    struct sg_groups *g = &d->args->groups;
    const int64_t limits[SG_CTL_COUNT] = {s->build.memory_bytes, s->build.pids, s->build.cpu_milli};
    if (sg_slot_groups_make(g, &s->groups, s->n, agent_uid(d, s->n), err) < 0) {
        return -1;
    }
    if (!s->has_namespaces) {
        if (sg_namespaces_make(&s->ns, g, s->groups.slot, agent_uid(d, s->n), command_uid(d, s->n), err) <
                0 ||
            sg_slot_groups_enable(g, &s->groups, err) < 0) {
            return -1;
        }
        s->has_namespaces = true;
    }
    return sg_slot_groups_limit(g, &s->groups, s->n, limits, err);
}

struct ends { /* the child's */
    int agent, info, errors;
};

static void ends_finish(struct ends *e)
{
    sg_close(e->agent);
    sg_close(e->info);
    sg_close(e->errors);
}

static int make_channels(struct sg_daemon *d, struct sg_slot *s, struct ends *e, struct sg_error *err)
{
    int pair[2], info[2], errors[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot make the agent's socket");
    }
    s->server_end = pair[0];
    e->agent = pair[1];
    if (pipe2(info, O_CLOEXEC) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot make a pipe");
    }
    s->info = info[0];
    e->info = info[1];
    if (pipe2(errors, O_CLOEXEC) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot make a pipe");
    }
    s->errors = errors[0];
    e->errors = errors[1];
    if (fcntl(s->info, F_SETFL, O_NONBLOCK) < 0 || fcntl(s->errors, F_SETFL, O_NONBLOCK) < 0 ||
        sg_daemon_watch(d, s->server_end, EPOLLIN, SG_EV_AGENT, s->n) < 0 ||
        sg_daemon_watch(d, s->info, EPOLLIN, SG_EV_INFO, s->n) < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot watch a build");
    }
    return 0;
}

static int launch(struct sg_daemon *d, struct sg_slot *s, struct sg_error *err)
{
    sg_cleanup(ends_finish) struct ends e = {-1, -1, -1};
    sg_cleanup(sg_free_p) char *dir = NULL;
    if (make_channels(d, s, &e, err) < 0) {
        return -1;
    }
    if (s->build.disk_dir) {
        if (sg_daemon_slots_dir(d) < 0) {
            return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot make the directory of slots");
        }
        dir = sg_xasprintf("%s/slots/%u", d->args->cfg->state_dir, s->n);
        s->has_dir = true;
    }
    const struct sg_build b = {
        .bwrap = d->args->bwrap,
        .view = &d->view,
        .root = &d->view.roots[s->build.rootfs + 1],
        .ns = &s->ns,
        .root_server = d->args->own.root_server,
        .agent_uid = agent_uid(d, s->n),
        .command_uid = command_uid(d, s->n),
        .pids = rlimit_for(d, SG_CTL_PIDS, s->build.pids),
        .memory_bytes = rlimit_for(d, SG_CTL_MEMORY, s->build.memory_bytes),
        .disk_bytes = s->build.disk_bytes,
        .disk_dir = dir,
        .open_net = s->build.open_net != 0,
        .parent = getpid(),
        .agent_fd = e.agent,
        .info_fd = e.info,
        .error_fd = e.errors,
        .seccomp_fd = d->seccomp[s->ns.sealed && s->groups.agent >= 0],
    };
    pid_t pid = sg_build_start(&b, &d->args->groups, s->groups.agent);
    if (pid < 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, -pid, "cannot fork");
    }
    s->monitor = pid;
    return 0;
}

static const char *refuse_build(const struct sg_daemon *d, const struct sg_slot *s,
                                const struct sg_wire_request *r)
{
    if (s->state != EMPTY) {
        return "is in use";
    }
    if (r->rootfs < -1 || r->rootfs + 1 >= (int32_t)d->view.n_roots || r->disk_bytes <= 0 ||
        (r->open_net != 0 && d->args->slirp == NULL) || r->memory_bytes < 0 || r->pids < 0 || r->cpu_milli < 0) {
        return "cannot be built as asked";
    }
    return NULL;
}

void sg_slot_build(struct sg_daemon *d, const struct sg_wire_request *r)
{
    struct sg_slot *s = slot_get(d, r->slot);
    const char *refused = refuse_build(d, s, r);
    if (refused != NULL) {
        struct sg_error err = {0};
        sg_error_set(&err, SG_UNAVAILABLE, "slot %u %s", r->slot, refused);
        struct sg_wire_answer a = slot_answer_to(SG_WIRE_BUILT, r->id, &err);
        sg_daemon_answer(d, &a, NULL, 0);
        return;
    }
    s->build = *r;
    s->build_owed = true;
    s->deadline_ms = r->deadline_ms;
    s->state = BUILDING;
    s->hello = s->agent_dead = s->net_up = false;
    s->agent = 0;
    s->info_len = s->error_len = 0;
    s->error_text[0] = '\0';
    sg_error_clear(&s->error);
    if (prepare(d, s, &s->error) < 0 || launch(d, s, &s->error) < 0) {
        slot_begin_end(d, s);
    }
}

void sg_slot_destroy(struct sg_daemon *d, const struct sg_wire_request *r)
{
    struct sg_slot *s = slot_get(d, r->slot);
    struct sg_error replaced = {.code = SG_CONFLICT, .message = "destroyed twice"};
    slot_answer_destroy(d, s, &replaced);
    s->destroy_id = r->id;
    if (s->state == BUILDING) {
        slot_fail(d, s, "was destroyed while it was built");
    } else if (s->state == UP) {
        slot_begin_end(d, s);
    } else if (s->state == EMPTY) {
        slot_answer_destroy(d, s, NULL);
    } else {
        s->deadline_ms = sg_now_ms() + SG_SLOT_END_MS;
        slot_advance_end(d, s);
    }
}

/* ---- events ---- */

void sg_slot_on_event(struct sg_daemon *d, uint32_t n, enum sg_slot_event kind)
{
    struct sg_slot *s = d->slots[n];
    if (s == NULL) {
        return;
    }
    if (kind == SG_EV_INFO && s->state == BUILDING && s->info >= 0) {
        read_info(d, s);
    } else if (kind == SG_EV_AGENT && s->state == BUILDING && !s->hello) {
        read_hello(d, s);
    } else if (kind == SG_EV_NET && s->state == BUILDING && s->net_ready >= 0) {
        read_net_ready(d, s);
    } else if (kind == SG_EV_PIDFD && s->pidfd >= 0 && !s->agent_dead) {
        s->agent_dead = true;
        epoll_ctl(d->epoll, EPOLL_CTL_DEL, s->pidfd, NULL);
    }
    finish_build(d, s);
    slot_advance_end(d, s);
}

void sg_slot_on_exit(struct sg_daemon *d, pid_t pid)
{
    for (uint32_t n = 0; n < SG_SPAWNER_SLOTS_MAX; n++) {
        struct sg_slot *s = d->slots[n];
        if (s == NULL) {
            continue;
        }
        if (s->wiper == pid) {
            slot_wiper_ended(d, s);
        }
        if (s->monitor == pid) {
            s->monitor = 0;
            if (s->state == BUILDING) {
                slot_fail(d, s, "the sandbox ended while it was built");
            }
        }
        if (s->net == pid) { /* the server hears of it by its pidfd when the slot is up */
            s->net = 0;
            if (s->state == BUILDING) {
                slot_read_errors(s, s->net_errors);
                slot_fail(d, s, "the helper of its network ended");
            }
        }
        slot_advance_end(d, s); /* it may have waited for an orphan */
    }
}

int64_t sg_slot_on_time(struct sg_daemon *d, int64_t now_ms)
{
    int64_t next = INT64_MAX;
    for (uint32_t n = 0; n < SG_SPAWNER_SLOTS_MAX; n++) {
        struct sg_slot *s = d->slots[n];
        if (s == NULL || s->state == EMPTY || s->state == UP) {
            continue;
        }
        if (s->deadline_ms <= now_ms && s->state == BUILDING) {
            slot_fail(d, s, "did not come up in time");
        } else if (s->deadline_ms <= now_ms) {
            slot_give_up(d, s);
        }
        if (s->state != EMPTY && s->deadline_ms < next) {
            next = s->deadline_ms;
        }
    }
    return next;
}
