/* Exec groups: what they kill, when they are used again; where hierarchies are found. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/spawner/groups.h"
#include "base/clock.h"
#include "rig.h"

/* ---- finding ---- */

static const char hybrid[] =
    "20 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
    "30 20 0:26 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory\n"
    "31 20 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    "32 20 0:28 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw\n";

static void expect_found(const char *mountinfo, const char *own, const char *controller, const char *mount,
                         const char *path)
{
    char m[4096], p[4096];
    cr_assert(sg_groups_locate(mountinfo, own, controller, m, p, sizeof p), "%s", own);
    cr_expect_str_eq(m, mount);
    cr_expect_str_eq(p, path);
}

Test(groups, locate)
{
    char m[4096], p[4096];
    expect_found(hybrid, "4:memory:/a/b\n0::/c\n", "memory", "/sys/fs/cgroup/memory", "/a/b");
    expect_found(hybrid, "2:cpu,cpuacct:/x\n0::/\n", "cpu", "/sys/fs/cgroup/cpu,cpuacct", "/x");
    expect_found(hybrid, "4:memory:/a/b\n0::/c\n", NULL, "/sys/fs/cgroup/unified", "/c");
    expect_found(hybrid, "0::/\n", NULL, "/sys/fs/cgroup/unified", "");
    cr_expect_not(sg_groups_locate(hybrid, "0::/\n", "pids", m, p, sizeof p));
    cr_expect_not(sg_groups_locate("", "0::/\n", NULL, m, p, sizeof p));
    cr_expect_not(sg_groups_locate("nonsense\n1 2\n\n", "0::/\n", NULL, m, p, sizeof p));
}

/* A container sees a part of the hierarchy: below the mount's root, or not at all. */
Test(groups, locate_part)
{
    static const char part[] = "32 20 0:28 /docker/abc /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n";
    expect_found(part, "0::/docker/abc/sub\n", NULL, "/sys/fs/cgroup", "/sub");
    expect_found(part, "0::/docker/abc\n", NULL, "/sys/fs/cgroup", "");
    expect_found(part, "0::/docker/abcd\n", NULL, "/sys/fs/cgroup", "");
    expect_found(part, "0::/../other\n", NULL, "/sys/fs/cgroup", "");
    expect_found(part, "garbage", NULL, "/sys/fs/cgroup", "");
}

/* ---- exec groups ---- */

static void need_groups(struct rig *r, struct rig_slot *s)
{
    rig_start(r, 0);
    rig_up(r, 2, s);
    if (s->groups == NULL) {
        cr_skip_test("no writable cgroup2 mount here");
    }
}

static void end(struct rig *r, struct rig_slot *s)
{
    cr_expect_eq(rig_destroy(r, s, NULL), 0);
    rig_stop(r);
}

static struct sg_cgroup *acquire(struct rig_slot *s)
{
    struct sg_cgroup *g;
    struct sg_error err = {0};
    cr_assert_eq(sg_cgroups_acquire(s->groups, &g, &err), 0, "%s", err.message);
    return g;
}

Test(groups, empty_group_is_used_again)
{
    struct rig r;
    struct rig_slot s;
    struct rig_result res;
    need_groups(&r, &s);
    struct sg_cgroup *first = acquire(&s), *second = acquire(&s);
    cr_expect_neq(first, second);
    sg_cgroup_release(first);
    cr_expect_eq(acquire(&s), first);
    const char *const argv[] = {"/bin/cat", "/proc/self/cgroup", NULL};
    rig_run(&s, first, argv, &res);
    cr_expect_neq(strstr(res.out, "0::/cmds/x1\n"), NULL, "%s", res.out);
    sg_cgroup_release(first);
    sg_cgroup_release(second);
    end(&r, &s);
}

/* Whatever a command leaves behind, wherever it went: setsid, double fork, ignored signals. */
Test(groups, kill_takes_everything)
{
    struct rig r;
    struct rig_slot s;
    struct rig_result res;
    int out;
    char text[64];
    need_groups(&r, &s);
    struct sg_cgroup *g = acquire(&s), *other = acquire(&s);
    int other_out;
    uint64_t other_id = rig_start_sh(&s, other, "echo up; exec sleep 1000", &other_out);
    uint64_t id =
        rig_start_sh(&s, g,
                     "trap '' TERM HUP INT; setsid sh -c 'sleep 1000 & sleep 1000 & (sleep 1000 &)' & "
                     "for i in 1 2 3 4 5; do (setsid sleep 1000 &); done; echo up; exec sleep 1000",
                     &out);
    cr_assert(rig_readable(out, RIG_WAIT_MS) && rig_readable(other_out, RIG_WAIT_MS));
    sg_cgroup_kill(g);
    rig_wait(&s, id, &res);
    cr_expect_eq(res.signal, SIGKILL);
    while (read(out, text, sizeof text) > 0) {
    } /* every holder of the pipe is gone */
    /* A process closes its files a little before it leaves its group. */
    for (int i = 0; i < 1000 && sg_cgroup_populated(g); i++) {
        rig_sh(&s, &res, "true");
    }
    cr_expect_not(sg_cgroup_populated(g));
    cr_expect(sg_cgroup_populated(other));
    sg_cgroup_release(g);
    sg_cgroup_kill(other);
    rig_wait(&s, other_id, &res);
    sg_cgroup_release(other);
    close(out);
    close(other_out);
    end(&r, &s);
}

/* The kernel kills at birth what enters a group that was killed before. */
Test(groups, killed_group_is_not_used_again)
{
    struct rig r;
    struct rig_slot s;
    struct rig_result res;
    need_groups(&r, &s);
    for (int i = 0; i < 20; i++) {
        struct sg_cgroup *g = acquire(&s);
        const char *const argv[] = {"/bin/true", NULL};
        rig_run(&s, g, argv, &res);
        cr_assert(res.status == 0 && res.signal == 0, "round %d: status %d signal %d", i, res.status,
                  res.signal);
        sg_cgroup_kill(g);
        sg_cgroup_kill(g);
        sg_cgroup_release(g);
    }
    end(&r, &s);
}

/* Released with a background child in it: used again only once that has ended. */
Test(groups, busy_group_waits)
{
    struct rig r;
    struct rig_slot s;
    struct rig_result res;
    need_groups(&r, &s);
    struct sg_cgroup *g = acquire(&s);
    rig_run(&s, g, (const char *const[]){"/bin/sh", "-c", "sleep 0.3 >/dev/null 2>&1 &", NULL}, &res);
    cr_assert_eq(res.status, 0);
    sg_cgroup_release(g);
    struct sg_cgroup *next = acquire(&s);
    cr_expect_neq(next, g);
    int64_t give_up = sg_now_ms() + 10000;
    struct sg_cgroup *again = NULL;
    while (again != g && sg_now_ms() < give_up) {
        rig_sh(&s, &res, "sleep 0.05");
        again = acquire(&s);
        if (again != g) {
            sg_cgroup_kill(again);
            sg_cgroup_release(again);
        }
    }
    cr_expect_eq(again, g, "the group came back");
    sg_cgroup_release(g);
    sg_cgroup_release(next);
    end(&r, &s);
}

Test(groups, limit_on_their_number)
{
    struct rig r;
    struct rig_slot s;
    struct sg_error err = {0};
    static struct sg_cgroup *held[SG_CGROUPS_MAX];
    need_groups(&r, &s);
    for (unsigned i = 0; i < SG_CGROUPS_MAX; i++) {
        held[i] = acquire(&s);
    }
    struct sg_cgroup *more;
    cr_expect_eq(sg_cgroups_acquire(s.groups, &more, &err), -1);
    cr_expect_eq(err.code, SG_OVERLOADED);
    sg_error_clear(&err);
    for (unsigned i = 0; i < SG_CGROUPS_MAX; i++) {
        sg_cgroup_release(held[i]);
    }
    end(&r, &s);
}

/* ---- a group that was handed to an ordinary user, as systemd does ---- */

static void write_text(const char *dir, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "we");
    cr_assert(f != NULL && fputs(text, f) >= 0 && fclose(f) == 0, "%s", path);
}

static void one_exec_in_a_group(void)
{
    struct rig r;
    struct rig_slot s;
    struct rig_result res;
    rig_start(&r, RIG_USER_SERVER);
    rig_up(&r, 0, &s);
    cr_assert_not_null(s.groups);
    cr_assert_eq(s.b.tree_kill, SG_TREE_KILL_CGROUP);
    cr_assert_eq(rig_sh(&s, &res, "cat /proc/self/cgroup; setsid sleep 1000 >/dev/null 2>&1 &"), 0, "%s",
                 res.out);
    cr_assert(strstr(res.out, "0::/cmds/x1\n") != NULL, "%s", res.out);
    cr_assert_eq(rig_destroy(&r, &s, NULL), 0);
    rig_stop(&r);
}

Test(groups, delegated_to_a_user)
{
    char dir[64];
    int status = -1;
    snprintf(dir, sizeof dir, "/sys/fs/cgroup/unified/sg-test-%d", (int)getpid());
    if (geteuid() != 0 || mkdir(dir, 0755) < 0) {
        cr_skip_test("needs root and a cgroup2 mount at /sys/fs/cgroup/unified");
    }
    pid_t pid = fork();
    if (pid == 0) {
        char procs[128];
        snprintf(procs, sizeof procs, "%s/cgroup.procs", dir);
        write_text(dir, "cgroup.procs", "0");
        const uid_t user = rig_user();
        cr_assert_eq(chown(dir, user, user) | chown(procs, user, user), 0);
        one_exec_in_a_group();
        _exit(0);
    }
    cr_expect_eq(waitpid(pid, &status, 0), pid);
    cr_expect_eq(status, 0);
    cr_expect_eq(rmdir(dir), 0, "nothing is left in it");
}

/* ---- limits ---- */

Test(groups, limits_hold_commands_and_not_the_agent)
{
    struct rig r;
    struct rig_slot s;
    struct rig_result res;
    char path[64], text[2048] = "";
    need_groups(&r, &s);
    if (s.b.pids != SG_MEANS_CGROUP1 && s.b.pids != SG_MEANS_CGROUP2) {
        cr_skip_test("no pids controller here");
    }
    snprintf(path, sizeof path, "/proc/%d/cgroup", (int)s.b.agent_pid);
    FILE *f = fopen(path, "re");
    cr_assert_not_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    cr_expect_eq(strstr(text, "/cmds"), NULL, "%s", text);
    cr_expect_neq(strstr(text, "/slot-2/agent"), NULL, "%s", text);
    if (s.b.pids == SG_MEANS_CGROUP1) {
        cr_expect_eq(strstr(text, "slot-2\n"), NULL, "the agent is in no v1 group of the slot: %s", text);
        cr_expect_eq(rig_sh(&s, &res, "grep -c 'slot-2$' /proc/self/cgroup"), 0);
        cr_expect_geq(atoi(res.out), 2, "%s", res.out);
    }
    cr_expect_neq(rig_sh(&s, &res, "for i in $(seq 200); do sleep 5 & done 2>&1; wait"), 0, "%s", res.out);
    end(&r, &s);
}
