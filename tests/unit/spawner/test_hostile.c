/* Commands that try to get out, run through the agent of real slots, under a root and an ordinary-user
 * server. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <limits.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "rig.h"

static void with_slot(unsigned flags, void (*test)(struct rig *r, struct rig_slot *s))
{
    struct rig r;
    struct rig_slot s;
    rig_start(&r, flags);
    rig_up(&r, 5, &s);
    test(&r, &s);
    cr_assert_eq(rig_destroy(&r, &s, NULL), 0);
    rig_stop(&r);
}

#define BOTH(name)                                                                                           \
    Test(hostile, name##_root_server)                                                                        \
    {                                                                                                        \
        with_slot(0, name);                                                                                  \
    }                                                                                                        \
    Test(hostile, name##_ordinary_user)                                                                      \
    {                                                                                                        \
        with_slot(RIG_USER_SERVER, name);                                                                    \
    }

/* The script must print nothing: each line of output is something that should not have worked. */
static void expect_silence(struct rig_slot *s, const char *script)
{
    struct rig_result res;
    cr_expect_eq(rig_sh(s, &res, script), 0, "status %d signal %d: %s", res.status, res.signal, res.out);
    cr_expect_str_empty(res.out, "%s", res.out);
}

/* ---- files ---- */

static void kernel_settings(struct rig *r, struct rig_slot *s)
{
    (void)r;
    /* Its own value, so that a success harms nobody. */
    expect_silence(
        s, "find /proc/sys /proc/sysrq-trigger /proc/irq -type f 2>/dev/null | while read -r f; do "
           "v=$(cat \"$f\" 2>/dev/null); (printf '%s\\n' \"$v\" >\"$f\") 2>/dev/null && echo \"$f\"; done; "
           "[ ! -e /sys ] || ls -d /sys; true");
}
BOTH(kernel_settings)

static void host_files(struct rig *r, struct rig_slot *s)
{
    char script[1024];
    snprintf(script, sizeof script,
             "cat /etc/shadow /etc/gshadow /etc/sudoers /etc/ssh/* 2>/dev/null; ls /root /mnt /opt /srv "
             "/var/lib /var/log "
             "/lost+found /work %s 2>/dev/null | grep -v ':$' | grep .; grep -v -e '^root:' -e '^sandbox:' "
             "-e '^nobody:' "
             "/etc/passwd; ls -A /home | grep -v '^sandbox$'; ls -A / | grep -v -x -E "
             "'\\.sandgate|bin|dev|etc|home|lib|"
             "lib32|lib64|libx32|mnt|opt|proc|root|run|sbin|srv|tmp|usr|var|workspace'; true",
             r->state);
    expect_silence(s, script);
}
BOTH(host_files)

static void read_only_places(struct rig *r, struct rig_slot *s)
{
    (void)r;
    expect_silence(s,
                   "for d in / /etc /usr /usr/bin /dev /root /home /.sandgate /var /var/lib /proc /mnt; do "
                   "(: >$d/x) 2>/dev/null && echo $d; done; "
                   "for f in /etc/passwd /.sandgate/agent /usr/bin/env /bin/sh; do "
                   "(: >>$f) 2>/dev/null && echo $f; chmod 777 $f 2>/dev/null && echo chmod $f; done; true");
    expect_silence(
        s, "for d in /workspace /home/sandbox /tmp /run /dev/shm /var/tmp; do : >$d/x || echo $d; done");
}
BOTH(read_only_places)

static void devices(struct rig *r, struct rig_slot *s)
{
    (void)r;
    expect_silence(
        s,
        "ls /dev | grep -v -x -E "
        "'console|core|fd|full|null|ptmx|pts|random|shm|stderr|stdin|stdout|tty|urandom"
        "|zero'; echo x >/dev/null || echo null; head -c 1 /dev/urandom >/dev/null || echo urandom; "
        "mknod /tmp/sda b 8 0 2>/dev/null && echo mknod; cat /proc/kcore /proc/kmsg /proc/keys 2>/dev/null; "
        "true");
}
BOTH(devices)

/* ---- system calls ---- */

struct call {
    const char *name;
    long nr;
    const char *args; /* in Perl */
    int error;
};

/* Perl is on every Debian, and its syscall() needs no compiler inside. */
static void expect_errors(struct rig_slot *s, const struct call *calls, size_t n)
{
    static char script[32768];
    struct rig_result res;
    size_t len = (size_t)snprintf(
        script, sizeof script,
        "sub S { my $x = shift; $x } my $b = S(\"\\0\" x 4096); my $p = pack('P8 Q', $b, 8); "
        "my $q = pack('Q Q', 0x400000, 8);\n");
    for (size_t i = 0; i < n; i++) {
        len += (size_t)snprintf(
            script + len, sizeof script - len,
            "$! = 0; my $r%zu = syscall(%ld%s%s); print \"%s: $r%zu \" . ($!+0) . \"\\n\" if $r%zu != -1 || "
            "$!+0 != %d;\n",
            i, calls[i].nr, calls[i].args[0] ? ", " : "", calls[i].args, calls[i].name, i, i, calls[i].error);
    }
    const char *const argv[] = {"perl", "-e", script, NULL};
    struct sg_cgroup *group = NULL;
    if (s->groups != NULL) {
        cr_assert_eq(sg_cgroups_acquire(s->groups, &group, NULL), 0);
    }
    rig_run(s, group, argv, &res);
    if (group != NULL) {
        sg_cgroup_release(group);
    }
    cr_expect_eq(res.status, 0, "%d", res.status);
    cr_expect_str_empty(res.out, "%s", res.out);
}

static void refused_calls(struct rig *r, struct rig_slot *s)
{
    (void)r;
    static const struct call calls[] = {
        {"add_key", SYS_add_key, "S('user'), S('x'), S('y'), 1, -3", EPERM},
        {"request_key", SYS_request_key, "S('user'), S('x'), 0, 0", EPERM},
        {"keyctl", SYS_keyctl, "0, -3, 1, 0, 0", EPERM},
        {"bpf", SYS_bpf, "0, $b, 64", EPERM},
        {"perf_event_open", SYS_perf_event_open, "$b, 0, -1, -1, 0", EPERM},
        {"userfaultfd", SYS_userfaultfd, "1", EPERM},
        {"io_uring_setup", SYS_io_uring_setup, "1, $b", EPERM},
        {"io_setup", SYS_io_setup, "1, $b", ENOSYS},
        {"mount", SYS_mount, "S('none'), S('/tmp'), S('tmpfs'), 0, 0", EPERM},
        {"umount", SYS_umount2, "S('/proc'), 2", EPERM},
        {"pivot_root", SYS_pivot_root, "S('/tmp'), S('/tmp')", EPERM},
        {"chroot", SYS_chroot, "S('/tmp')", EPERM},
        {"fsopen", SYS_fsopen, "S('tmpfs'), 0", EPERM},
        {"open_tree", SYS_open_tree, "-100, S('/'), 1", EPERM},
        {"move_mount", SYS_move_mount, "3, S(''), -100, S('/tmp'), 4", EPERM},
        {"mount_setattr", SYS_mount_setattr, "-100, S('/'), 0, $b, 32", EPERM},
        {"unshare user", SYS_unshare, "0x10000000", EPERM},
        {"unshare mount", SYS_unshare, "0x20000", EPERM},
        {"unshare time", SYS_unshare, "0x80", EPERM},
        {"unshare user, high bits", SYS_unshare, "0x110000000", EPERM},
        {"clone user", SYS_clone, "0x10000011, 0, 0, 0, 0", EPERM},
        {"clone pid", SYS_clone, "0x20000011, 0, 0, 0, 0", EPERM},
        {"clone3", SYS_clone3, "$b, 64", ENOSYS},
        {"setns", SYS_setns, "0, 0", EPERM},
        {"open_by_handle_at", SYS_open_by_handle_at, "-100, $b, 0", EPERM},
        {"name_to_handle_at", SYS_name_to_handle_at, "-100, S('/'), $b, $b, 0", EPERM},
        {"kexec_load", SYS_kexec_load, "0, 0, 0, 0", EPERM},
        {"init_module", SYS_init_module, "$b, 1, S('')", EPERM},
        {"finit_module", SYS_finit_module, "0, S(''), 0", EPERM},
        {"reboot", SYS_reboot, "0, 0, 0, 0", EPERM},
        {"swapon", SYS_swapon, "S('/tmp/x'), 0", EPERM},
        {"acct", SYS_acct, "0", EPERM},
        {"quotactl", SYS_quotactl, "0, 0, 0, 0", EPERM},
        {"syslog", SYS_syslog, "3, $b, 100", EPERM},
        {"fanotify_init", SYS_fanotify_init, "0, 0", EPERM},
        {"personality READ_IMPLIES_EXEC", SYS_personality, "0x400000", EPERM},
        {"personality, almost a question", SYS_personality, "0x80400000", EPERM},
        {"sethostname", SYS_sethostname, "S('x'), 1", EPERM},
        {"statmount", 457, "$b, $b, 100, 0", ENOSYS},
        {"open_tree_attr", 467, "-100, S('/'), 1, $b, 32", ENOSYS},
    };
    expect_errors(s, calls, SG_COUNT_OF(calls));
}
BOTH(refused_calls)

/* Where the filter leaves clone3 to the agent the user namespace itself allows no other: also for what the
 * agent forgets. */
static void clone3_without_the_filter(struct rig *r, struct rig_slot *s)
{
    struct rig_result res;
    char script[512];
    snprintf(
        script, sizeof script,
        "for my $f (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x80, 0x10020000) { my $a = pack('Q11', $f, "
        "0, 0, 0, 17, 0, 0, "
        "0, 0, 0, 0); my $p = syscall(%ld, $a, 88); exit 0 if $p == 0; printf \"%%x\\n\", $f if $p > 0; }",
        (long)SYS_clone3);
    const char *const argv[] = {"perl", "-e", script, NULL};
    (void)r;
    rig_run(s, NULL, argv, &res);
    cr_expect_eq(res.status, 0);
    cr_expect_str_empty(res.out, "%s", res.out);
}
BOTH(clone3_without_the_filter)

/* The first process and what can be done to one from outside. */
static void first_process(struct rig *r, struct rig_slot *s)
{
    (void)r;
    static const struct call calls[] = {
        {"kill", SYS_kill, "1, 9", EPERM},
        {"kill, high bits", SYS_kill, "0x100000001, 9", EPERM},
        {"kill 0", SYS_kill, "1, 0", EPERM},
        {"tkill", SYS_tkill, "1, 9", EPERM},
        {"tgkill", SYS_tgkill, "1, 1, 9", EPERM},
        {"rt_sigqueueinfo", SYS_rt_sigqueueinfo, "1, 15, $b", EPERM},
        {"ptrace attach", SYS_ptrace, "16, 1, 0, 0", EPERM},
        {"ptrace seize", SYS_ptrace, "0x4206, 1, 0, 0", EPERM},
        {"process_vm_readv", SYS_process_vm_readv, "1, $p, 1, $q, 1, 0", EPERM},
        {"process_vm_writev", SYS_process_vm_writev, "1, $p, 1, $q, 1, 0", EPERM},
        {"prlimit", SYS_prlimit64, "1, 7, S(\"\\0\" x 16), 0", EPERM},
        {"pidfd_getfd", SYS_pidfd_getfd, "0, 0, 0", EPERM},
    };
    expect_errors(s, calls, SG_COUNT_OF(calls));
    expect_silence(
        s, "for f in mem environ maps auxv stack syscall; do cat /proc/1/$f 2>/dev/null | head -c 1; done; "
           "for n in fd ns map_files; do ls -l /proc/1/$n 2>/dev/null | grep -- '->'; done; "
           "readlink /proc/1/exe /proc/1/cwd /proc/1/root; (echo 0 >/proc/1/oom_score_adj) 2>/dev/null && "
           "echo oom_score_adj; (echo 0 >/proc/1/mem) 2>/dev/null && echo mem; true");
    struct rig_result res;
    if (s->b.isolation == SG_ISOLATION_DUMPABLE && s->groups == NULL) {
        return;
    } /* the helper over a command has the command's uid: killing it loses the slot, and nothing
                        else */
    cr_expect_eq(rig_sh(s, &res, "sleep 100 & kill -9 -1; kill -0 $! && sleep 0.05; true"), 0, "%s", res.out);
    cr_expect_eq(rig_sh(s, &res, "echo alive"), 0, "the agent lives on");
}
BOTH(first_process)

/* With a pidfd as with a number. */
static void first_process_by_pidfd(struct rig *r, struct rig_slot *s)
{
    char script[512];
    struct rig_result res;
    snprintf(script, sizeof script,
             "my $f = syscall(%ld, 1, 0); open(my $d, '<', '/proc/1'); sysopen($d, '/proc/1', 0x10000); "
             "for my $fd ($f, fileno($d)) { next if !defined $fd || $fd < 0; "
             "my $r = syscall(%ld, $fd, 9, 0, 0); print \"sent $fd\" if $r == 0; }",
             (long)SYS_pidfd_open, (long)SYS_pidfd_send_signal);
    const char *const argv[] = {"perl", "-e", script, NULL};
    rig_run(s, NULL, argv, &res);
    if (s->b.isolation == SG_ISOLATION_UID || res.status == 0) {
        cr_expect_str_empty(res.out, "%s", res.out);
    }
    cr_expect_eq(rig_sh(s, &res, "echo alive"), 0, "the agent lives on");
    (void)r;
}
BOTH(first_process_by_pidfd)

static void sockets(struct rig *r, struct rig_slot *s)
{
    (void)r;
    static const struct call calls[] = {
        {"packet", SYS_socket, "17, 3, 0x300", EPERM},
        {"packet, high bits", SYS_socket, "0x100000011, 3, 0", EPERM},
        {"raw", SYS_socket, "2, 3, 255", EPERM},
        {"raw icmp6", SYS_socket, "10, 3, 58", EPERM},
        {"alg", SYS_socket, "38, 5, 0", EPERM},
        {"vsock", SYS_socket, "40, 1, 0", EPERM},
        {"bluetooth", SYS_socket, "31, 3, 1", EPERM},
        {"can", SYS_socket, "29, 3, 1", EPERM},
        {"tipc", SYS_socket, "30, 1, 0", EPERM},
        {"netlink audit", SYS_socket, "16, 3, 9", EPERM},
        {"netlink netfilter", SYS_socket, "16, 3, 12", EPERM},
        {"netlink, high bits", SYS_socket, "16, 3, 0x100000009", EPERM},
        {"sctp", SYS_socket, "2, 1, 132", EPERM},
        {"xdp", SYS_socket, "44, 3, 0", EPERM},
        {"unspec", SYS_socket, "0, 1, 0", EPERM},
        {"ax25", SYS_socket, "3, 5, 0", EPERM},
    };
    expect_errors(s, calls, SG_COUNT_OF(calls));
    struct rig_result res;
    cr_expect_eq(
        rig_sh(
            s, &res,
            "perl -MSocket -e 'for my $f (AF_UNIX, AF_INET) { socket(my $s, $f, SOCK_STREAM, 0) or die $!; "
            "} socket(my $n, 16, SOCK_RAW, 0) or die $!; socket(my $c, AF_INET, SOCK_STREAM, 0); "
            "bind($c, sockaddr_in(8080, INADDR_LOOPBACK)) or die $!;'"),
        0, "%s", res.out);
}
BOTH(sockets)

static void host_network(struct rig *r, struct rig_slot *s)
{
    (void)r;
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof in;
    char script[1024];
    int a = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0),
        t = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int n = snprintf(un.sun_path + 1, sizeof un.sun_path - 1, "sg-test-%d", (int)getpid());
    cr_assert_eq(
        bind(a, (struct sockaddr *)&un, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)),
        0);
    cr_assert_eq(bind(t, (struct sockaddr *)&in, sizeof in), 0);
    cr_assert_eq(listen(a, 1) | listen(t, 1) | getsockname(t, (struct sockaddr *)&in, &len), 0);
    snprintf(
        script, sizeof script,
        "perl -MSocket -e 'socket(my $s, AF_UNIX, SOCK_STREAM, 0); print \"abstract\" if connect($s, "
        "pack(\"S a*\", 1, \"\\0%s\")); socket(my $t, AF_INET, SOCK_STREAM, 0); print \"tcp\" if connect($t, "
        "sockaddr_in(%d, INADDR_LOOPBACK));'; grep -v -e lo: -e Inter -e face /proc/net/dev; true",
        un.sun_path + 1, ntohs(in.sin_port));
    expect_silence(s, script);
    close(a);
    close(t);
}
BOTH(host_network)

static void privileges(struct rig *r, struct rig_slot *s)
{
    (void)r;
    struct rig_result res;
    expect_silence(
        s,
        "grep -E '^Cap(Inh|Prm|Eff|Amb)' /proc/self/status | grep -v 0000000000000000; "
        "grep -q 'NoNewPrivs:.*1' /proc/self/status || echo nnp; grep -q 'Seccomp:.*2' /proc/self/status || "
        "echo seccomp; su -c id 2>/dev/null </dev/null | grep uid; mount -t tmpfs x /tmp 2>/dev/null && "
        "echo mount; perl -e '$< = 0; $> = 0; print \"root\" if $> == 0 || $< == 0'; id | grep -v -x "
        "'uid=1000(sandbox) gid=1000(sandbox) groups=1000(sandbox)\\(,65534(nogroup)\\)*'; true");
    cr_expect_eq(rig_sh(s, &res, "cp /bin/sh /tmp/s && chmod 4755 /tmp/s && /tmp/s -c 'id -u'"), 0, "%s",
                 res.out);
    cr_expect_str_eq(res.out, "1000\n");
}
BOTH(privileges)

static void terminals(struct rig *r, struct rig_slot *s)
{
    (void)r;
    char script[512];
    snprintf(script, sizeof script,
             "open(my $m, '+<', '/dev/ptmx') or die \"ptmx: $!\"; my $c = 'x'; for my $q (0x5412, 0x541c, "
             "0x5423, 0x541d) { "
             "for my $h (0, 1 << 32) { my $r = syscall(%ld, fileno($m), $q | $h, $c); "
             "printf \"%%x: %%d %%d\\n\", $q | $h, $r, $!+0 if $r != -1 || $!+0 != %d; } }",
             (long)SYS_ioctl, EPERM);
    const char *const argv[] = {"perl", "-e", script, NULL};
    struct rig_result res;
    rig_run(s, NULL, argv, &res);
    cr_expect_eq(res.status, 0);
    cr_expect_str_empty(res.out, "%s", res.out);
}
BOTH(terminals)

/* ---- exhaustion ---- */

static void tmpfs_full(struct rig *r, struct rig_slot *s)
{
    (void)r;
    struct rig_result res;
    /* All writable places are one file system of 64 MiB with a bounded number of inodes. */
    rig_sh(
        s, &res,
        "for d in /workspace /home/sandbox /tmp /run /dev/shm; do head -c 40m /dev/zero >$d/big 2>/dev/null; "
        "done; cat /workspace/big /home/sandbox/big /tmp/big /run/big /dev/shm/big | wc -c");
    cr_expect_leq(strtoll(res.out, NULL, 10), 64 << 20, "%s", res.out);
    cr_expect_gt(strtoll(res.out, NULL, 10), 50 << 20, "%s", res.out);
    rig_sh(s, &res,
           "rm -f /*/big /home/sandbox/big /dev/shm/big; perl -e 'for (1..100000) { open(my $f, \">\", "
           "\"/tmp/$_\") or "
           "do { print $_; exit 0 } }'");
    cr_expect_leq(strtoll(res.out, NULL, 10), 16384, "%s", res.out);
    cr_expect_gt(strtoll(res.out, NULL, 10), 1000, "%s", res.out);
}
BOTH(tmpfs_full)

static void fork_bomb(struct rig *r, struct rig_slot *s)
{
    struct sg_cgroup *group = NULL;
    struct rig_result res;
    int out;
    unsigned base = s->b.isolation == SG_ISOLATION_UID ? r->uid_base : r->user;
    if (s->groups != NULL) {
        cr_assert_eq(sg_cgroups_acquire(s->groups, &group, NULL), 0);
    }
    uint64_t id = rig_start_sh(s, group, "b() { b | b & }; b; echo started; exec sleep 100", &out);
    char text[64];
    for (int i = 0; i < 40 && rig_count_processes(base, base + 100) < 100; i++) {
        cr_assert(rig_readable(out, 200) || true);
    }
    /* Those that come while others go are counted, too, so one count may be too high; not each of them. */
    unsigned n = UINT_MAX;
    for (int i = 0; i < 10 && n > 128 + 24; i++) {
        n = rig_count_processes(base, base + 100);
    }
    cr_expect_leq(n, 128 + 24, "%u processes", n);
    /* The agent still answers: with a command or with the process limit. */
    rig_sh(s, &res, "echo alive");
    if (group != NULL) {
        sg_cgroup_kill(group);
        rig_wait(s, id, &res);
        cr_expect_eq(res.signal, SIGKILL);
        sg_cgroup_release(group);
        for (int i = 0; i < 400 && rig_sh(s, &res, "echo alive") != 0; i++) {
            ;
        }
        cr_expect_str_eq(res.out, "alive\n");
    }
    while (read(out, text, sizeof text) > 0 && group != NULL) {
        ;
    }
    close(out);
}
BOTH(fork_bomb)

static void memory_bomb(struct rig *r, struct rig_slot *s)
{
    struct rig_result res;
    (void)r;
    int64_t before = sg_oom_kills(s->b.oom_fd);
    int status =
        rig_sh(s, &res, "perl -e 'my @a; for (1..40) { push @a, \"x\" x (16 << 20) } print \"all\"'");
    cr_expect_neq(status, 0, "%s", res.out);
    if (s->b.memory == SG_MEANS_CGROUP1 || s->b.memory == SG_MEANS_CGROUP2) {
        cr_expect_gt(sg_oom_kills(s->b.oom_fd), before);
    }
    cr_expect_eq(rig_sh(s, &res, "echo alive"), 0, "%s", res.out);
}
BOTH(memory_bomb)

Test(hostile, memory_bomb_by_rlimit)
{
    with_slot(RIG_NO_CGROUPS, memory_bomb);
}

Test(hostile, fork_bomb_by_rlimit)
{
    with_slot(RIG_NO_CGROUPS, fork_bomb);
}
