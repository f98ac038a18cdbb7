/* Whose processes they are, when they die, and that nothing is left. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/hash.h"
#include "rig.h"

/* ---- host uids ---- */

struct proc {
    int pid, parent;
    unsigned uid[4], gid[4];
    char groups[64], name[32];
    unsigned long long effective;
};

static bool read_proc(const char *name, struct proc *p)
{
    char path[300], line[512];
    *p = (struct proc){.pid = atoi(name)};
    snprintf(path, sizeof path, "/proc/%s/status", name);
    FILE *f = p->pid > 0 ? fopen(path, "re") : NULL;
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        (void)(sscanf(line, "Name: %31s", p->name) + sscanf(line, "PPid: %d", &p->parent) +
               sscanf(line, "Uid: %u %u %u %u", &p->uid[0], &p->uid[1], &p->uid[2], &p->uid[3]) +
               sscanf(line, "Gid: %u %u %u %u", &p->gid[0], &p->gid[1], &p->gid[2], &p->gid[3]) +
               sscanf(line, "CapEff: %llx", &p->effective) + sscanf(line, "Groups: %63s", p->groups));
    }
    if (f != NULL) {
        fclose(f);
    }
    return f != NULL;
}

/* Everything below pid, that excluded; returns how many were put into list. */
static size_t descendants(int pid, struct proc *list, size_t max)
{
    static struct proc all[8192];
    size_t n_all = 0, n = 0;
    DIR *d = opendir("/proc");
    for (struct dirent *e = readdir(d); e != NULL && n_all < SG_COUNT_OF(all); e = readdir(d)) {
        if (e->d_name[0] >= '0' && e->d_name[0] <= '9' && read_proc(e->d_name, &all[n_all])) {
            n_all++;
        }
    }
    closedir(d);
    for (size_t i = 0; i < n_all; i++) {
        int up = all[i].parent;
        for (size_t depth = 0; depth < 32 && up > 1 && up != pid; depth++) {
            for (size_t k = 0; k < n_all; k++) {
                if (all[k].pid == up) {
                    up = all[k].parent;
                    break;
                }
            }
        }
        if (up == pid && n < max) {
            list[n++] = all[i];
        }
    }
    return n;
}

Test(rules, no_process_has_the_servers_uid)
{
    struct rig r;
    struct rig_slot s[2];
    struct proc list[64];
    int out[2];
    rig_start(&r, 0);
    for (unsigned i = 0; i < 2; i++) {
        rig_up(&r, 7 + i, &s[i]);
        struct sg_cgroup *g = NULL;
        if (s[i].groups != NULL) {
            cr_assert_eq(sg_cgroups_acquire(s[i].groups, &g, NULL), 0);
        }
        rig_start_sh(&s[i], g, "echo up; exec sleep 100", &out[i]);
        cr_assert(rig_readable(out[i], RIG_WAIT_MS));
        cr_expect_eq(s[i].b.agent_uid, r.uid_base + 2 * (7 + i));
        cr_expect_eq(s[i].b.command_uid, r.uid_base + 2 * (7 + i) + 1);
    }
    size_t n = descendants(sg_spawner_pid(r.sp), list, SG_COUNT_OF(list));
    cr_expect_geq(n, 6, "bwrap, agent and command of two slots; %zu", n);
    for (size_t i = 0; i < n; i++) {
        for (int k = 0; k < 4; k++) {
            cr_expect(list[i].uid[k] >= r.uid_base + 14 && list[i].uid[k] <= r.uid_base + 17, "%s has uid %u",
                      list[i].name, list[i].uid[k]);
            cr_expect(list[i].gid[k] >= r.uid_base + 14 && list[i].gid[k] <= r.uid_base + 17, "%s has gid %u",
                      list[i].name, list[i].gid[k]);
        }
        cr_expect_str_empty(list[i].groups, "%s has groups %s", list[i].name, list[i].groups);
        /* SETUID, SETGID and KILL for the agent; nothing for bwrap and commands. */
        unsigned long long caps =
            list[i].pid == s[0].b.agent_pid || list[i].pid == s[1].b.agent_pid ? 0xe0 : 0;
        cr_expect_eq(list[i].effective, caps, "%s has capabilities %llx", list[i].name, list[i].effective);
    }
    for (unsigned i = 0; i < 2; i++) {
        close(out[i]);
        cr_expect_eq(rig_destroy(&r, &s[i], NULL), 0);
    }
    cr_expect_eq(rig_count_processes(r.uid_base, r.uid_base + 2048), 0);
    rig_stop(&r);
}

/* Is the open directory of that name the root that the process itself sees? */
static bool is_own_root(int fds, const char *name)
{
    struct stat at, root;
    return fstatat(fds, name, &at, 0) == 0 && fstatat(fds, "../root", &root, 0) == 0 && at.st_dev == root.st_dev &&
           at.st_ino == root.st_ino;
}

/* The agent holds its socket, its own descriptors, its root and standard ones; nothing of bwrap's, the spawner's or the
 * server's. */
static void descriptors_of_the_agent(unsigned flags)
{
    struct rig r;
    struct rig_slot s;
    char path[64], target[256];
    rig_start(&r, flags);
    rig_up(&r, 1, &s);
    snprintf(path, sizeof path, "/proc/%d/fd", (int)s.b.agent_pid);
    DIR *d = opendir(path);
    if (d == NULL && geteuid() != 0) {
        cr_expect_eq(errno, EACCES, "not dumpable: its user cannot look");
    }
    for (struct dirent *e = d != NULL ? readdir(d) : NULL; e != NULL; e = readdir(d)) {
        ssize_t n = readlinkat(dirfd(d), e->d_name, target, sizeof target - 1);
        target[n > 0 ? n : 0] = '\0';
        bool fine = n <= 0 || strncmp(target, "socket:", 7) == 0 || strncmp(target, "anon_inode:", 11) == 0 ||
                    sg_streq(target, "/dev/null") || is_own_root(dirfd(d), e->d_name) ||
                    (e->d_name[0] == '2' && strncmp(target, "pipe:", 5) == 0);
        cr_expect(fine, "%s is %s", e->d_name, target);
    }
    if (d != NULL) {
        closedir(d);
    }
    cr_expect_eq(rig_destroy(&r, &s, NULL), 0);
    rig_stop(&r);
}

Test(rules, descriptors_of_the_agent_root_server)
{
    descriptors_of_the_agent(0);
}

Test(rules, descriptors_of_the_agent_ordinary_user)
{
    descriptors_of_the_agent(RIG_USER_SERVER);
}

/* ---- life and death ---- */

static void *build_one(void *arg)
{
    void **in = arg;
    rig_up(in[0], 1, in[1]);
    return NULL;
}

/* PDEATHSIG is tied to the forking thread; a thread that asks for a slot and ends must not take it along. */
Test(rules, slot_outlives_the_thread_that_asked_for_it)
{
    struct rig r;
    struct rig_slot s;
    struct rig_result res;
    pthread_t t;
    rig_start(&r, RIG_USER_SERVER);
    void *both[] = {&r, &s};
    cr_assert_eq(pthread_create(&t, NULL, build_one, both), 0);
    cr_assert_eq(pthread_join(t, NULL), 0);
    cr_expect_not(rig_readable(s.b.pidfd, 100));
    cr_expect_eq(rig_sh(&s, &res, "echo alive"), 0);
    cr_expect_eq(rig_destroy(&r, &s, NULL), 0);
    rig_stop(&r);
}

static void closing_the_agents_socket_ends_the_slot(unsigned flags)
{
    struct rig r;
    struct rig_slot s;
    int out;
    rig_start(&r, flags);
    rig_up(&r, 1, &s);
    rig_start_sh(&s, NULL, "sleep 100 & setsid sleep 100 & echo up; exec sleep 100", &out);
    cr_assert(rig_readable(out, RIG_WAIT_MS));
    s.b.agent_fd = sg_close(s.b.agent_fd);
    cr_expect(rig_readable(s.b.pidfd, RIG_WAIT_MS), "the namespace ends with the socket");
    close(out);
    cr_expect_eq(rig_destroy(&r, &s, NULL), 0);
    rig_stop(&r);
}

Test(rules, eof_root_server)
{
    closing_the_agents_socket_ends_the_slot(0);
}

Test(rules, eof_ordinary_user)
{
    closing_the_agents_socket_ends_the_slot(RIG_USER_SERVER);
}

/* The groups of this state directory, in any hierarchy. */
static void expect_no_groups(const char *state)
{
    static const char *const places[] = {"", "/unified", "/memory", "/pids", "/cpu"};
    char hex[SG_SHA256_HEX], path[256];
    sg_sha256_hex(state, strlen(state), hex);
    for (size_t i = 0; i < SG_COUNT_OF(places); i++) {
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/sandgate-%.12s", places[i], hex);
        cr_expect(access(path, F_OK) < 0, "%s is left", path);
    }
}

/* A server in a child process: how is what it leaves? */
static void killed(unsigned flags, bool kill_spawner)
{
    struct rig r;
    int ready[2];
    pid_t told[2];
    cr_assert_eq(pipe2(ready, O_CLOEXEC), 0);
    rig_prepare(&r, flags);
    pid_t server = fork();
    if (server == 0) {
        struct rig_slot s[2];
        int out;
        struct sg_spawner_config cfg;
        rig_config(&r, &cfg, flags);
        cr_assert_eq(sg_spawner_start(&r.sp, &cfg, NULL), 0);
        rig_attach(&r);
        for (unsigned i = 0; i < 2; i++) {
            rig_up(&r, i, &s[i]);
            rig_start_sh(&s[i], NULL, "setsid sleep 1000 & echo up; exec sleep 1000", &out);
            cr_assert(rig_readable(out, RIG_WAIT_MS));
        }
        told[0] = sg_spawner_pid(r.sp);
        told[1] = s[0].b.agent_pid;
        cr_assert_eq(write(ready[1], told, sizeof told), (ssize_t)sizeof told);
        for (;;) {
            pause();
        }
    }
    close(ready[1]);
    cr_assert(rig_readable(ready[0], RIG_WAIT_MS));
    cr_assert_eq(read(ready[0], told, sizeof told), (ssize_t)sizeof told);
    int spawner = (int)syscall(SYS_pidfd_open, told[0], 0), agent = (int)syscall(SYS_pidfd_open, told[1], 0);
    struct proc list[64];
    size_t n = descendants(told[0], list, SG_COUNT_OF(list));
    cr_expect_geq(n, 4);
    cr_assert_eq(kill(kill_spawner ? told[0] : server, SIGKILL), 0);
    cr_expect(rig_readable(agent, RIG_WAIT_MS), "the agent ends");
    cr_expect(rig_readable(spawner, RIG_WAIT_MS), "the spawner ends");
    for (size_t i = 0; i < n; i++) {
        cr_expect(kill(list[i].pid, 0) < 0 && errno == ESRCH, "%s lives", list[i].name);
    }
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    close(ready[0]);
    close(spawner);
    close(agent);
    /* A successor of the same state directory starts clean. */
    struct sg_spawner_config cfg;
    struct sg_error err = {0};
    struct rig_slot s;
    rig_config(&r, &cfg, flags);
    cr_assert_eq(sg_spawner_start(&r.sp, &cfg, &err), 0, "%s", err.message);
    rig_attach(&r);
    rig_up(&r, 1, &s);
    cr_expect_eq(rig_destroy(&r, &s, NULL), 0);
    rig_stop(&r);
    expect_no_groups(r.state);
}

Test(rules, server_killed_root_server)
{
    killed(0, false);
}

Test(rules, server_killed_ordinary_user)
{
    killed(RIG_USER_SERVER, false);
}

Test(rules, spawner_killed_root_server)
{
    killed(0, true);
}

Test(rules, spawner_killed_ordinary_user)
{
    killed(RIG_USER_SERVER, true);
}

static void spawner_dies(unsigned flags)
{
    struct rig r;
    struct rig_slot s;
    struct sg_error err = {0};
    rig_start(&r, flags);
    rig_up(&r, 1, &s);
    cr_assert_eq(kill(sg_spawner_pid(r.sp), SIGKILL), 0);
    cr_expect(rig_readable(s.b.pidfd, RIG_WAIT_MS));
    struct sg_slot_spec spec = rig_spec(2);
    struct rig_slot other;
    cr_expect_eq(rig_build(&r, &spec, &other, &err), -1);
    cr_expect_eq(err.code, SG_UNAVAILABLE);
    cr_expect(r.died);
    sg_error_clear(&err);
    cr_expect_eq(rig_destroy(&r, &s, NULL), 0);
    rig_stop(&r);
    expect_no_groups(r.state);
}

Test(rules, server_hears_of_the_spawners_death_root_server)
{
    spawner_dies(0);
}

Test(rules, server_hears_of_the_spawners_death_ordinary_user)
{
    spawner_dies(RIG_USER_SERVER);
}

/* ---- nothing is left ---- */

static unsigned count_lines(const char *path)
{
    unsigned n = 0;
    int c;
    FILE *f = fopen(path, "re");
    while (f != NULL && (c = fgetc(f)) != EOF) {
        n += c == '\n';
    }
    if (f != NULL) {
        fclose(f);
    }
    return n;
}

static void many_times(unsigned flags, unsigned times)
{
    struct rig r;
    struct rig_slot s;
    struct rig_result res;
    char mounts[64];
    unsigned fds = 0, own_fds = 0, n_mounts = 0;
    rig_start(&r, flags);
    pid_t pid = sg_spawner_pid(r.sp);
    snprintf(mounts, sizeof mounts, "/proc/%d/mounts", (int)pid);
    for (unsigned i = 0; i < times; i++) {
        rig_up(&r, i % 3, &s);
        if (i % 10 == 0) {
            cr_assert_eq(
                rig_sh(&s, &res,
                       "test ! -e /workspace/mark && test ! -e /tmp/mark && echo x >/workspace/mark && "
                       "echo x >/tmp/mark"),
                0, "not fresh: %s", res.out);
        }
        cr_assert_eq(rig_destroy(&r, &s, NULL), 0);
        if (i == 5) {
            fds = rig_count_fds(pid);
            own_fds = rig_count_fds(getpid());
            n_mounts = count_lines(mounts);
        }
    }
    cr_expect_eq(rig_count_fds(pid), fds, "descriptors of the spawner");
    cr_expect_eq(rig_count_fds(getpid()), own_fds, "own descriptors");
    cr_expect_eq(count_lines(mounts), n_mounts, "mounts");
    struct proc list[8];
    size_t n = descendants(pid, list, SG_COUNT_OF(list));
    for (size_t i = 0; i < n; i++) {
        cr_expect_fail("process %d (%s) of %d is left", list[i].pid, list[i].name, list[i].parent);
    }
    rig_stop(&r);
    expect_no_groups(r.state);
}

Test(rules, two_hundred_builds_root_server)
{
    many_times(0, 200);
}

Test(rules, builds_ordinary_user)
{
    many_times(RIG_USER_SERVER, 40);
}

/* ---- refusals ---- */

Test(rules, second_server_is_refused)
{
    struct rig r;
    struct sg_spawner *second = NULL;
    struct sg_error err = {0};
    struct sg_spawner_config cfg;
    rig_start(&r, RIG_USER_SERVER);
    rig_config(&r, &cfg, RIG_USER_SERVER);
    cr_expect_eq(sg_spawner_start(&second, &cfg, &err), -1);
    cr_expect_neq(strstr(err.message, "another sandgate"), NULL, "%s", err.message);
    sg_error_clear(&err);
    rig_stop(&r);
}

Test(rules, what_is_missing_is_said)
{
    struct rig r;
    struct sg_spawner *sp = NULL;
    struct sg_error err = {0};
    struct sg_spawner_config cfg;
    rig_prepare(&r, RIG_USER_SERVER);
    rig_config(&r, &cfg, RIG_USER_SERVER);
    cfg.bwrap_path = "/nonexistent/bwrap";
    cr_expect_eq(sg_spawner_start(&sp, &cfg, &err), -1);
    cr_expect_neq(strstr(err.message, "/nonexistent/bwrap"), NULL, "%s", err.message);
    sg_error_clear(&err);
    cfg.bwrap_path = NULL;
    setenv("PATH", "/nonexistent", 1);
    cr_expect_eq(sg_spawner_start(&sp, &cfg, &err), -1);
    cr_expect_neq(strstr(err.message, "bubblewrap"), NULL, "%s", err.message);
    sg_error_clear(&err);
    setenv("PATH", "/usr/bin:/bin", 1);
    cfg.agent_path = "/nonexistent/agent";
    cr_expect_eq(sg_spawner_start(&sp, &cfg, &err), -1);
    cr_expect_neq(strstr(err.message, "/nonexistent/agent"), NULL, "%s", err.message);
    sg_error_clear(&err);
    rig_stop(&r);
}

/* In a namespace of its own in which there are no further ones. */
_Noreturn static void start_without_namespaces(const struct sg_spawner_config *cfg)
{
    struct sg_error err = {0};
    FILE *f = unshare(CLONE_NEWUSER) == 0 ? fopen("/proc/sys/user/max_user_namespaces", "we") : NULL;
    if (f == NULL || fputs("0", f) < 0 || fclose(f) != 0) {
        _exit(77); /* this kernel or container lets nobody set it */
    }
    bool said = sg_spawner_probe(cfg, &err) < 0 && err.code == SG_UNAVAILABLE &&
                strstr(err.message, "user.max_user_namespaces") != NULL;
    if (!said) {
        fprintf(stderr, "%s\n", err.message);
    }
    _exit(said ? 0 : 1);
}

Test(rules, missing_user_namespaces_are_named)
{
    struct rig r;
    struct sg_spawner_config cfg;
    int status = -1;
    rig_prepare(&r, RIG_USER_SERVER);
    rig_config(&r, &cfg, RIG_USER_SERVER);
    pid_t pid = fork(); /* a process with one thread may unshare */
    if (pid == 0) {
        start_without_namespaces(&cfg);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    rig_stop(&r);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        cr_skip_test("cannot turn user namespaces off here");
    }
    cr_expect_eq(status, 0);
}

/* A bwrap that fails: the slot's error carries its words, and nothing is left. */
Test(rules, failed_build_explains_itself)
{
    struct rig r;
    struct sg_error err = {0};
    struct sg_spawner_config cfg;
    struct rig_slot s;
    char path[128];
    rig_prepare(&r, RIG_USER_SERVER);
    snprintf(path, sizeof path, "%s/bwrap", r.state);
    static const char script[] = "#!/bin/sh\necho 'no luck today' >&2\nexit 1\n";
    cr_assert_eq(sg_write_file(path, script, sizeof script - 1, 0755, &err), 0);
    rig_config(&r, &cfg, RIG_USER_SERVER);
    cfg.bwrap_path = path;
    cr_assert_eq(sg_spawner_start(&r.sp, &cfg, &err), 0, "%s", err.message);
    rig_attach(&r);
    struct sg_slot_spec spec = rig_spec(0);
    cr_expect_eq(rig_build(&r, &spec, &s, &err), -1);
    cr_expect_neq(strstr(err.message, "no luck today"), NULL, "%s", err.message);
    sg_error_clear(&err);
    rig_stop(&r);
}

/* A bwrap that hangs is cut off at the deadline. */
Test(rules, hanging_build_ends_at_its_deadline)
{
    struct rig r;
    struct sg_error err = {0};
    struct sg_spawner_config cfg;
    struct rig_slot s;
    struct proc list[8];
    char path[128];
    rig_prepare(&r, RIG_USER_SERVER);
    snprintf(path, sizeof path, "%s/bwrap", r.state);
    static const char script[] = "#!/bin/sh\nsleep 1000 &\nexec sleep 1000\n";
    cr_assert_eq(sg_write_file(path, script, sizeof script - 1, 0755, &err), 0);
    rig_config(&r, &cfg, RIG_USER_SERVER);
    cfg.bwrap_path = path;
    cr_assert_eq(sg_spawner_start(&r.sp, &cfg, &err), 0, "%s", err.message);
    rig_attach(&r);
    struct sg_slot_spec spec = rig_spec(0);
    spec.deadline_ms = sg_now_ms() + 300;
    cr_expect_eq(rig_build(&r, &spec, &s, &err), -1);
    cr_expect_neq(strstr(err.message, "in time"), NULL, "%s", err.message);
    cr_expect_eq(descendants(sg_spawner_pid(r.sp), list, SG_COUNT_OF(list)), 0, "the orphan is gone too");
    sg_error_clear(&err);
    rig_stop(&r);
}

Test(rules, bad_specifications)
{
    struct rig r;
    struct sg_error err = {0};
    struct rig_slot s, again;
    rig_start(&r, RIG_USER_SERVER);
    struct sg_slot_spec spec = rig_spec(SG_SPAWNER_SLOTS_MAX);
    cr_expect_eq(rig_build(&r, &spec, &s, &err), -1);
    spec = rig_spec(0);
    spec.rootfs = "/not/configured";
    cr_expect_eq(rig_build(&r, &spec, &s, &err), -1);
    spec = rig_spec(0);
    spec.disk_bytes = 0;
    cr_expect_eq(rig_build(&r, &spec, &s, &err), -1);
    rig_up(&r, 0, &s);
    spec = rig_spec(0);
    cr_expect_eq(rig_build(&r, &spec, &again, &err), -1);
    cr_expect_neq(strstr(err.message, "in use"), NULL, "%s", err.message);
    sg_error_clear(&err);
    cr_expect_eq(rig_destroy(&r, &s, NULL), 0);
    cr_expect_eq(rig_destroy(&r, &s, NULL), 0, "again is fine");
    rig_stop(&r);
}
