#include "backends/spawner/seccomp.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <seccomp.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"

/* Calls no sandbox needs, refused whatever their arguments. Names this libseccomp or machine does not have
 * are skipped. */
static const char *const refused[] = {
    "add_key",
    "request_key",
    "keyctl",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "mount",
    "umount",
    "umount2",
    "pivot_root",
    "chroot",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "open_tree",
    "move_mount",
    "mount_setattr",
    "setns",
    "open_by_handle_at",
    "name_to_handle_at",
    "kexec_load",
    "kexec_file_load",
    "init_module",
    "finit_module",
    "delete_module",
    "create_module",
    "query_module",
    "get_kernel_syms",
    "nfsservctl",
    "reboot",
    "swapon",
    "swapoff",
    "acct",
    "quotactl",
    "quotactl_fd",
    "settimeofday",
    "clock_settime",
    "clock_settime64",
    "stime",
    "iopl",
    "ioperm",
    "syslog",
    "sethostname",
    "setdomainname",
    "lookup_dcookie",
    "vm86",
    "vm86old",
    "modify_ldt",
    "uselib",
    "ustat",
    "sysfs",
    "_sysctl",
    "fanotify_init",
    "fanotify_mark",
    "pidfd_getfd",
    "vhangup",
    "kcmp",
    "move_pages",
    "migrate_pages",
};

/* More of them where commands have the uid of the first process. */
static const char *const refused_one_uid[] = {"pidfd_send_signal", "process_madvise", "process_mrelease"};

/* Calls whose argument `arg` names a process: refused when it is the first one. */
static const struct {
    const char *name;
    unsigned arg;
} aimed[] = {
    {"kill", 0},
    {"tkill", 0},
    {"tgkill", 0},
    {"tgkill", 1},
    {"rt_sigqueueinfo", 0},
    {"rt_tgsigqueueinfo", 0},
    {"rt_tgsigqueueinfo", 1},
    {"pidfd_open", 0},
    {"ptrace", 1},
    {"process_vm_readv", 0},
    {"process_vm_writev", 0},
    {"sched_setaffinity", 0},
    {"sched_setparam", 0},
    {"sched_setscheduler", 0},
    {"sched_setattr", 0},
    {"setpriority", 1},
    {"ioprio_set", 1},
};

static const uint64_t namespace_flags[] = {CLONE_NEWNS,   CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC,
                                           CLONE_NEWUSER, CLONE_NEWPID,    CLONE_NEWNET};

#define LOW32 0xffffffffULL /* the kernel looks at the low half of int arguments only */

struct filter {
    scmp_filter_ctx ctx;
    int failed; /* first libseccomp error, negative errno */
};

static void refuse(struct filter *f, const char *name, int error, unsigned n, const struct scmp_arg_cmp *args)
{
    int nr = seccomp_syscall_resolve_name(name);
    if (nr == __NR_SCMP_ERROR || f->failed != 0) {
        return;
    }
    int r = seccomp_rule_add_array(f->ctx, SCMP_ACT_ERRNO((uint16_t)error), nr, n, args);
    /* EDOM, EINVAL: this architecture reaches it another way or not at all. */
    if (r < 0 && r != -EDOM && !(r == -EINVAL && nr < 0)) {
        f->failed = r;
    }
}

static void refuse_arg(struct filter *f, const char *name, unsigned arg, enum scmp_compare op, uint64_t a,
                       uint64_t b)
{
    struct scmp_arg_cmp c = {.arg = arg, .op = op, .datum_a = a, .datum_b = b};
    refuse(f, name, EPERM, 1, &c);
}

static void refuse_namespaces(struct filter *f)
{
    for (size_t i = 0; i < SG_COUNT_OF(namespace_flags); i++) {
        refuse_arg(f, "clone", 0, SCMP_CMP_MASKED_EQ, namespace_flags[i], namespace_flags[i]);
        refuse_arg(f, "unshare", 0, SCMP_CMP_MASKED_EQ, namespace_flags[i], namespace_flags[i]);
    }
    /* For clone this bit is part of the exit signal. */
    refuse_arg(f, "unshare", 0, SCMP_CMP_MASKED_EQ, 0x80 /* CLONE_NEWTIME */, 0x80);
}

/* UNIX, INET, INET6 and route netlink; a value with high bits set counts as above the last. */
static void refuse_sockets(struct filter *f)
{
    for (uint64_t family = 0; family <= AF_NETLINK; family++) {
        if (family != AF_UNIX && family != AF_INET && family != AF_INET6 && family != AF_NETLINK) {
            refuse_arg(f, "socket", 0, SCMP_CMP_EQ, family, 0);
        }
    }
    refuse_arg(f, "socket", 0, SCMP_CMP_GT, AF_NETLINK, 0);
    const struct scmp_arg_cmp other_netlink[] = {SCMP_A0_64(SCMP_CMP_EQ, AF_NETLINK),
                                                 SCMP_A2_64(SCMP_CMP_NE, 0 /* NETLINK_ROUTE */)};
    refuse(f, "socket", EPERM, 2, other_netlink);
    static const uint64_t protocols[] = {33 /* DCCP */, 115 /* L2TP */, 132 /* SCTP */, 262 /* MPTCP */};
    for (size_t i = 0; i < SG_COUNT_OF(protocols); i++) {
        refuse_arg(f, "socket", 2, SCMP_CMP_MASKED_EQ, LOW32, protocols[i]);
    }
    refuse_arg(f, "socketpair", 0, SCMP_CMP_NE, AF_UNIX, 0);
}

/* Terminals: no typing into, no kernel line disciplines, no console. */
static void refuse_ioctls(struct filter *f)
{
    static const uint64_t requests[] = {TIOCSTI, TIOCLINUX, TIOCSETD, TIOCCONS};
    for (size_t i = 0; i < SG_COUNT_OF(requests); i++) {
        refuse_arg(f, "ioctl", 1, SCMP_CMP_MASKED_EQ, LOW32, requests[i]);
    }
}

static void refuse_for_one_uid(struct filter *f)
{
    for (size_t i = 0; i < SG_COUNT_OF(refused_one_uid); i++) {
        refuse(f, refused_one_uid[i], EPERM, 0, NULL);
    }
    for (size_t i = 0; i < SG_COUNT_OF(aimed); i++) {
        refuse_arg(f, aimed[i].name, aimed[i].arg, SCMP_CMP_MASKED_EQ, LOW32, 1);
    }
    /* "Everybody" would take the agent's helpers along, which have the same uid, and with them the lease. */
    refuse_arg(f, "kill", 0, SCMP_CMP_MASKED_EQ, LOW32, LOW32);
    /* Of oneself only: the first process may have threads, whose numbers nobody knows here. */
    refuse_arg(f, "prlimit64", 0, SCMP_CMP_NE, 0, 0);
}

static int add_rules(struct filter *f, unsigned flags)
{
    for (size_t i = 0; i < SG_COUNT_OF(refused); i++) {
        refuse(f, refused[i], EPERM, 0, NULL);
    }
    refuse_namespaces(f);
    refuse_sockets(f);
    refuse_ioctls(f);
    /* What it makes is counted once for the whole machine; who uses it has another way where it does not
     * exist. */
    refuse(f, "io_setup", ENOSYS, 0, NULL);
    if (!(flags & SG_SECCOMP_CLONE3)) {
        refuse(f, "clone3", ENOSYS, 0, NULL);
    }
    if (flags & SG_SECCOMP_ONE_UID) {
        refuse_for_one_uid(f);
    }
    return f->failed;
}

/* What libseccomp cannot say, put before its program for the native architecture (others are killed by it):
 * system calls newer than this file do not exist, x32 included, and personality takes harmless values only.
 */
static int write_prologue(int fd)
{
    const uint32_t first_unknown =
        457; /* statmount; numbers are the same on every architecture from 424 on */
    const uint32_t nr = (uint32_t)seccomp_syscall_resolve_name("personality");
    const struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, seccomp_arch_native(), 0, 10),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, first_unknown, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 6),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xffffffffU /* a question */, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ADDR_NO_RANDOMIZE, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PER_LINUX32, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
    };
    _Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "args[0] begins with its low half");
    return sg_write_all(fd, code, sizeof code);
}

static int export_filter(struct filter *f, int fd)
{
    /* A jump of BPF is relative, so the exported program works behind the prologue. */
    int r = write_prologue(fd);
    if (r == 0) {
        r = seccomp_export_bpf(f->ctx, fd);
    }
    if (r == 0 && lseek(fd, 0, SEEK_SET) < 0) {
        r = -errno;
    }
    if (r == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0) {
        r = -errno;
    }
    return r;
}

int sg_seccomp_filter(unsigned flags, int *ret, struct sg_error *err)
{
    struct filter f = {.ctx = seccomp_init(SCMP_ACT_ALLOW)};
    if (f.ctx == NULL) {
        return sg_error_set(err, SG_NO_MEMORY, "cannot make the system call filter");
    }
    sg_cleanup(sg_close_p) int fd = -1;
    int r = seccomp_attr_set(f.ctx, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
    if (r == 0) {
        r = seccomp_attr_set(f.ctx, SCMP_FLTATR_CTL_OPTIMIZE, 2);
    }
    if (r == 0) {
        r = add_rules(&f, flags);
    }
    if (r == 0) {
        fd = memfd_create("seccomp", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        r = fd < 0 ? -errno : export_filter(&f, fd);
    }
    seccomp_release(f.ctx);
    if (r < 0) {
        return sg_error_sys(err, SG_INTERNAL, -r, "cannot make the system call filter");
    }
    *ret = sg_steal_fd(&fd);
    return 0;
}
