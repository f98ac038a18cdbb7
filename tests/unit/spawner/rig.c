#include "rig.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/agent/protocol.h"
#include "base/clock.h"
#include "base/fd.h"

/* ---- waiting for callbacks ---- */

struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
    struct sg_error err;
    int result;
    struct sg_slot_built built;
    struct sg_spawner *sp;
    const struct sg_slot_spec *spec;
    uint32_t slot;
    struct sg_task task;
};

static void waiter_done(struct waiter *w, const struct sg_error *err)
{
    pthread_mutex_lock(&w->lock);
    w->result = err != NULL ? -1 : 0;
    if (err != NULL) {
        sg_error_copy(&w->err, err);
    }
    w->done = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

static int waiter_wait(struct waiter *w, struct sg_error *err)
{
    struct timespec until;
    int r = 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += RIG_WAIT_MS / 1000;
    pthread_mutex_lock(&w->lock);
    while (!w->done && r == 0) {
        r = pthread_cond_timedwait(&w->changed, &w->lock, &until);
    }
    pthread_mutex_unlock(&w->lock);
    cr_assert_eq(r, 0, "no answer of the spawner");
    if (err != NULL) {
        *err = w->err;
    }
    return w->result;
}

static void on_built(void *arg, struct sg_slot_built *b, const struct sg_error *err)
{
    struct waiter *w = arg;
    if (b != NULL) {
        w->built = *b;
    }
    waiter_done(w, err);
}

static void on_destroyed(void *arg, const struct sg_error *err)
{
    waiter_done(arg, err);
}

static void do_build(struct sg_task *t)
{
    struct waiter *w = (struct waiter *)((char *)t - offsetof(struct waiter, task));
    sg_spawner_build(w->sp, w->spec, on_built, w);
}

static void do_destroy(struct sg_task *t)
{
    struct waiter *w = (struct waiter *)((char *)t - offsetof(struct waiter, task));
    sg_spawner_destroy(w->sp, w->slot, on_destroyed, w);
}

static int ask(struct rig *r, struct waiter *w, void (*run)(struct sg_task *), struct sg_error *err)
{
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    w->sp = r->sp;
    w->task.run = run;
    sg_reactor_post(r->reactor, &w->task);
    return waiter_wait(w, err);
}

/* ---- life ---- */

static void copy_agent(struct rig *r)
{
    char *bytes;
    size_t len;
    struct sg_error err = {0};
    snprintf(r->agent, sizeof r->agent, "%s/agent-binary", r->state);
    cr_assert_eq(sg_read_file(AGENT_PATH, 64U << 20, &bytes, &len, &err), 0, "%s", err.message);
    cr_assert_eq(sg_write_file(r->agent, bytes, len, 0755, &err), 0, "%s", err.message);
    free(bytes);
}

uint32_t rig_user(void)
{
    return 100000000U + (uint32_t)getpid();
}

void rig_prepare(struct rig *r, unsigned flags)
{
    /* A test is a process of its own, and limits and counts of the kernel are by uid. */
    *r = (struct rig){.uid_base = 400000000U + 4096U * (uint32_t)(getpid() % 400000), .user = rig_user()};
    if (geteuid() != 0 && !(flags & RIG_USER_SERVER)) {
        cr_skip_test("needs root");
    }
    snprintf(r->state, sizeof r->state, "/tmp/sg-spawner-XXXXXX");
    cr_assert_not_null(mkdtemp(r->state));
    if (geteuid() == 0 && (flags & RIG_USER_SERVER)) {
        cr_assert_eq(chown(r->state, r->user, r->user), 0);
        cr_assert_eq(setgroups(0, NULL), 0);
        cr_assert_eq(setresgid(r->user, r->user, r->user), 0);
        cr_assert_eq(setresuid(r->user, r->user, r->user), 0);
        prctl(PR_SET_DUMPABLE, 1); /* as after an exec */
    }
    copy_agent(r);
}

void rig_config(const struct rig *r, struct sg_spawner_config *cfg, unsigned flags)
{
    *cfg = (struct sg_spawner_config){.state_dir = r->state,
                                      .agent_path = r->agent,
                                      .uid_base = r->uid_base,
                                      .no_cgroups = (flags & RIG_NO_CGROUPS) != 0};
}

static void on_died(void *arg)
{
    ((struct rig *)arg)->died = true;
}

void rig_attach(struct rig *r)
{
    struct sg_error err = {0};
    cr_assert_eq(sg_reactor_new(&r->reactor, &err), 0, "%s", err.message);
    cr_assert_eq(sg_spawner_attach(r->sp, r->reactor, on_died, r, &err), 0, "%s", err.message);
}

void rig_start(struct rig *r, unsigned flags)
{
    struct sg_error err = {0};
    struct sg_spawner_config cfg;
    rig_prepare(r, flags);
    rig_config(r, &cfg, flags);
    cr_assert_eq(sg_spawner_start(&r->sp, &cfg, &err), 0, "%s", err.message);
    rig_attach(r);
}

void rig_stop(struct rig *r)
{
    r->sp = sg_spawner_free(r->sp);
    r->reactor = sg_reactor_free(r->reactor);
    int dir = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    sg_remove_tree(dir, r->state + strlen("/tmp/"), NULL);
    sg_close(dir);
}

/* ---- slots ---- */

struct sg_slot_spec rig_spec(uint32_t n)
{
    return (struct sg_slot_spec){.slot = n,
                                 .disk_bytes = 64 << 20,
                                 .memory_bytes = 256 << 20,
                                 .pids = 128,
                                 .cpu_milli = 2000,
                                 .deadline_ms = sg_now_ms() + SG_SPAWNER_BUILD_MS};
}

int rig_build(struct rig *r, const struct sg_slot_spec *spec, struct rig_slot *s, struct sg_error *err)
{
    struct waiter w = {.spec = spec};
    *s = (struct rig_slot){.n = spec->slot, .next_id = 1};
    if (ask(r, &w, do_build, err) < 0) {
        return -1;
    }
    s->b = w.built;
    if (s->b.cgroup_fd >= 0) {
        cr_assert_eq(
            sg_cgroups_new(&s->groups, r->reactor, sg_steal_fd(&s->b.cgroup_fd), s->b.agent_uid, NULL), 0);
    }
    char hello[SG_AGENT_PACKET_MAX];
    cr_assert_gt(recv(s->b.agent_fd, hello, sizeof hello, 0), 0);
    return 0;
}

void rig_up(struct rig *r, uint32_t n, struct rig_slot *s)
{
    struct sg_error err = {0};
    struct sg_slot_spec spec = rig_spec(n);
    cr_assert_eq(rig_build(r, &spec, s, &err), 0, "%s", err.message);
}

int rig_destroy(struct rig *r, struct rig_slot *s, struct sg_error *err)
{
    struct waiter w = {.slot = s->n};
    sg_slot_built_finish(&s->b);
    s->groups = sg_cgroups_free(s->groups);
    return ask(r, &w, do_destroy, err);
}

/* ---- commands ---- */

bool rig_readable(int fd, int timeout_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, timeout_ms) == 1;
}

static void send_packet(int sock, const void *packet, size_t len, const int *fds, unsigned n)
{
    union {
        char space[CMSG_SPACE(sizeof(int) * SG_AGENT_FDS_MAX)];
        struct cmsghdr align;
    } control = {0};
    char copy[SG_AGENT_PACKET_MAX];
    memcpy(copy, packet, len);
    struct iovec iov = {copy, len};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.space,
                         .msg_controllen = CMSG_SPACE(sizeof(int) * n)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * n);
    memcpy(CMSG_DATA(c), fds, sizeof(int) * n);
    cr_assert_eq(sendmsg(sock, &msg, MSG_NOSIGNAL), (ssize_t)len, "agent is gone: %s", strerror(errno));
}

static uint64_t start(struct rig_slot *s, struct sg_cgroup *group, const char *const *argv, int *out)
{
    static const char *const env[] = {"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/home/sandbox",
                                      "USER=sandbox", "LANG=C.UTF-8", "TERM=dumb"};
    char strings[32768], packet[SG_AGENT_PACKET_MAX];
    size_t len = 0, argc = 0;
    len += (size_t)snprintf(strings, sizeof strings, "/workspace") + 1;
    for (; argv[argc] != NULL; argc++) {
        len += (size_t)snprintf(strings + len, sizeof strings - len, "%s", argv[argc]) + 1;
    }
    for (size_t i = 0; i < SG_COUNT_OF(env); i++) {
        len += (size_t)snprintf(strings + len, sizeof strings - len, "%s", env[i]) + 1;
    }
    int pipe_fds[2], fds[SG_AGENT_FDS_MAX];
    cr_assert_eq(pipe2(pipe_fds, O_CLOEXEC), 0);
    unsigned n = 0;
    fds[n++] = pipe_fds[1];
    fds[n++] = pipe_fds[1];
    if (group != NULL) {
        fds[n++] = sg_cgroup_dir(group);
        fds[n++] = sg_cgroup_procs(group);
    }
    for (unsigned i = 0; i < SG_SLOT_LIMIT_FDS; i++) {
        if (s->b.limit_fds[i] >= 0) {
            fds[n++] = s->b.limit_fds[i];
        }
    }
    struct sg_agent_msg m = {.type = SG_AGENT_SPAWN, .nfds = n, .id = s->next_id++};
    m.u.spawn.flags = group != NULL ? SG_AGENT_SPAWN_GROUP : SG_AGENT_SPAWN_HELPER;
    m.u.spawn.argc = (uint32_t)argc;
    m.u.spawn.envc = SG_COUNT_OF(env);
    m.u.spawn.len = (uint32_t)len;
    m.u.spawn.strings = strings;
    size_t size = sg_agent_encode(&m, packet, sizeof packet);
    cr_assert_gt(size, 0);
    send_packet(s->b.agent_fd, packet, size, fds, n);
    close(pipe_fds[1]);
    *out = pipe_fds[0];
    return m.id;
}

void rig_wait(struct rig_slot *s, uint64_t id, struct rig_result *ret)
{
    static _Thread_local char packet[SG_AGENT_PACKET_MAX]; /* some tests wait in several threads */
    struct sg_agent_msg m;
    *ret = (struct rig_result){.status = -1};
    for (;;) {
        cr_assert(rig_readable(s->b.agent_fd, RIG_WAIT_MS), "no event of the agent");
        ssize_t n = recv(s->b.agent_fd, packet, sizeof packet, 0);
        cr_assert_gt(n, 0, "the agent is gone");
        cr_assert_eq(sg_agent_decode(packet, (size_t)n, 0, SG_AGENT_FROM_AGENT, &m), 0);
        if (m.id != id) {
            continue;
        }
        if (m.type == SG_AGENT_SPAWN_FAILED) {
            ret->failed_stage = (int)m.u.failed.stage;
            ret->failed_error = (int)m.u.failed.error;
            return;
        }
        if (m.type == SG_AGENT_EXITED) {
            ret->status = (int)m.u.exited.status;
            ret->signal = (int)m.u.exited.signal;
            return;
        }
    }
}

void rig_run(struct rig_slot *s, struct sg_cgroup *group, const char *const *argv, struct rig_result *ret)
{
    char text[sizeof ret->out];
    size_t len = 0;
    int out;
    uint64_t id = start(s, group, argv, &out);
    while (len < sizeof text - 1 && rig_readable(out, RIG_WAIT_MS)) {
        ssize_t n = read(out, text + len, sizeof text - 1 - len);
        if (n <= 0) {
            break;
        }
        len += (size_t)n;
    }
    close(out);
    rig_wait(s, id, ret);
    memcpy(ret->out, text, len);
    ret->out[len] = '\0';
}

uint64_t rig_start_sh(struct rig_slot *s, struct sg_cgroup *group, const char *script, int *out)
{
    const char *const argv[] = {"/bin/sh", "-c", script, NULL};
    return start(s, group, argv, out);
}

int rig_sh(struct rig_slot *s, struct rig_result *ret, const char *script)
{
    const char *const argv[] = {"/bin/sh", "-c", script, NULL};
    struct sg_cgroup *group = NULL;
    if (s->groups != NULL) {
        cr_assert_eq(sg_cgroups_acquire(s->groups, &group, NULL), 0);
    }
    rig_run(s, group, argv, ret);
    if (group != NULL) {
        sg_cgroup_kill(group);
        sg_cgroup_release(group);
    }
    return ret->signal != 0 ? 128 + ret->signal : ret->status;
}

/* ---- looking at the host ---- */

unsigned rig_count_processes(unsigned from, unsigned to)
{
    unsigned n = 0;
    DIR *d = opendir("/proc");
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        char path[300];
        struct stat st;
        /* The directory belongs to root when the process is not dumpable, so the status is read. */
        snprintf(path, sizeof path, "/proc/%s/status", e->d_name);
        FILE *f = e->d_name[0] >= '0' && e->d_name[0] <= '9' ? fopen(path, "re") : NULL;
        char line[256];
        unsigned uid[4] = {0};
        (void)st;
        while (f != NULL && fgets(line, sizeof line, f) != NULL) {
            if (sscanf(line, "Uid: %u %u %u %u", &uid[0], &uid[1], &uid[2], &uid[3]) == 4) {
                break;
            }
        }
        if (f != NULL) {
            fclose(f);
        }
        n += uid[0] >= from && uid[0] < to;
    }
    closedir(d);
    return n;
}

unsigned rig_count_fds(pid_t pid)
{
    char path[64];
    unsigned n = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *d = opendir(path);
    while (d != NULL && readdir(d) != NULL) {
        n++;
    }
    if (d != NULL) {
        closedir(d);
    }
    return n;
}
