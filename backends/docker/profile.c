#include "backends/docker/docker_priv.h"

#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/personality.h>
#include <sys/socket.h>

#include "base/json.h"
#include "base/str.h"

/* What the engine's own profile lets through without a capability, less what sandboxes have no use for: file handles, watches of whole
 * file systems, io_uring, memory policies, segment descriptors, and asynchronous I/O, which is counted once for the whole machine. Names
 * that an engine does not know it passes over. */
static const char *const allowed[] = {
    "accept", "accept4", "access", "adjtimex", "alarm", "arch_prctl", "bind", "brk", "cachestat", "capget", "capset", "chdir", "chmod",
    "chown", "clock_getres", "clock_gettime", "clock_nanosleep", "close", "close_range", "connect", "copy_file_range", "creat", "dup",
    "dup2", "dup3", "epoll_create", "epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_pwait2", "epoll_wait", "eventfd", "eventfd2",
    "execve", "execveat", "exit", "exit_group", "faccessat", "faccessat2", "fadvise64", "fallocate", "fchdir", "fchmod", "fchmodat",
    "fchmodat2", "fchown", "fchownat", "fcntl", "fdatasync", "fgetxattr", "flistxattr", "flock", "fork", "fremovexattr", "fsetxattr",
    "fstat", "fstatfs", "fsync", "ftruncate", "futex", "futex_requeue", "futex_wait", "futex_waitv", "futex_wake", "futimesat",
    "get_robust_list", "get_thread_area", "getcpu", "getcwd", "getdents", "getdents64", "getegid", "geteuid", "getgid", "getgroups",
    "getitimer", "getpeername", "getpgid", "getpgrp", "getpid", "getppid", "getpriority", "getrandom", "getresgid", "getresuid",
    "getrlimit", "getrusage", "getsid", "getsockname", "getsockopt", "gettid", "gettimeofday", "getuid", "getxattr", "inotify_add_watch",
    "inotify_init", "inotify_init1", "inotify_rm_watch", "ioctl", "ioprio_get", "ioprio_set", "kill", "landlock_add_rule",
    "landlock_create_ruleset", "landlock_restrict_self", "lchown", "lgetxattr", "link", "linkat", "listen", "listxattr", "llistxattr",
    "lremovexattr", "lseek", "lsetxattr", "lstat", "madvise", "map_shadow_stack", "membarrier", "memfd_create", "memfd_secret", "mincore",
    "mkdir", "mkdirat", "mknod", "mknodat", "mlock", "mlock2", "mlockall", "mmap", "mprotect", "mq_getsetattr", "mq_notify", "mq_open",
    "mq_timedreceive", "mq_timedsend", "mq_unlink", "mremap", "mseal", "msgctl", "msgget", "msgrcv", "msgsnd", "msync", "munlock",
    "munlockall", "munmap", "nanosleep", "newfstatat", "open", "openat", "openat2", "pause", "pidfd_open", "pidfd_send_signal", "pipe",
    "pipe2", "poll", "ppoll", "prctl", "pread64", "preadv", "preadv2", "prlimit64", "process_mrelease", "pselect6", "ptrace", "pwrite64",
    "pwritev", "pwritev2", "read", "readahead", "readlink", "readlinkat", "readv", "recvfrom", "recvmmsg", "recvmsg", "remap_file_pages",
    "removexattr", "rename", "renameat", "renameat2", "restart_syscall", "rmdir", "rseq", "rt_sigaction", "rt_sigpending", "rt_sigprocmask",
    "rt_sigqueueinfo", "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait", "rt_tgsigqueueinfo", "sched_get_priority_max",
    "sched_get_priority_min", "sched_getaffinity", "sched_getattr", "sched_getparam", "sched_getscheduler", "sched_rr_get_interval",
    "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler", "sched_yield", "seccomp", "select", "semctl", "semget",
    "semop", "semtimedop", "sendfile", "sendmmsg", "sendmsg", "sendto", "set_robust_list", "set_thread_area", "set_tid_address", "setfsgid",
    "setfsuid", "setgid", "setgroups", "setitimer", "setpgid", "setpriority", "setregid", "setresgid", "setresuid", "setreuid", "setrlimit",
    "setsid", "setsockopt", "setuid", "setxattr", "shmat", "shmctl", "shmdt", "shmget", "shutdown", "sigaltstack", "signalfd", "signalfd4",
    "splice", "stat", "statfs", "statx", "symlink", "symlinkat", "sync", "sync_file_range", "syncfs", "sysinfo", "tee", "tgkill", "time",
    "timer_create", "timer_delete", "timer_getoverrun", "timer_gettime", "timer_settime", "timerfd_create", "timerfd_gettime",
    "timerfd_settime", "times", "tkill", "truncate", "umask", "uname", "unlink", "unlinkat", "utime", "utimensat", "utimes", "vfork",
    "vmsplice", "wait4", "waitid", "write", "writev",
};

#define NAMESPACES ((json_int_t)(CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET))

static json_t *names_json(void)
{
    json_t *list = json_array();
    for (size_t i = 0; i < SG_COUNT_OF(allowed); i++) {
        (void)json_array_append_new(list, json_string(allowed[i]));
    }
    return list;
}

/* Appends: `name` is allowed where its arguments are like `args`, an array, which is taken. */
static void allow_with(json_t *rules, const char *name, json_t *args)
{
    (void)json_array_append_new(rules, json_pack("{s:[s], s:s, s:o}", "names", name, "action", "SCMP_ACT_ALLOW", "args", args));
}

static json_t *equals(int arg, json_int_t value)
{
    return json_pack("{s:i, s:I, s:s}", "index", arg, "value", value, "op", "SCMP_CMP_EQ");
}

static void allow_personalities(json_t *rules)
{
    static const json_int_t harmless[] = {PER_LINUX, PER_LINUX32, 0xffffffff /* a question */};
    for (size_t i = 0; i < SG_COUNT_OF(harmless); i++) {
        allow_with(rules, "personality", json_pack("[o]", equals(0, harmless[i])));
    }
}

/* UNIX, IP with protocols that every host has, and what asks for addresses and routes. */
static void allow_sockets(json_t *rules)
{
    static const json_int_t protocols[] = {0, IPPROTO_ICMP, IPPROTO_TCP, IPPROTO_UDP, IPPROTO_ICMPV6};
    for (size_t i = 0; i < SG_COUNT_OF(protocols); i++) {
        allow_with(rules, "socket", json_pack("[o, o]", equals(0, AF_INET), equals(2, protocols[i])));
        allow_with(rules, "socket", json_pack("[o, o]", equals(0, AF_INET6), equals(2, protocols[i])));
    }
    allow_with(rules, "socket", json_pack("[o]", equals(0, AF_UNIX)));
    allow_with(rules, "socket", json_pack("[o, o]", equals(0, AF_NETLINK), equals(2, 0 /* routes */)));
    allow_with(rules, "socketpair", json_pack("[o]", equals(0, AF_UNIX)));
}

/* clone3 hides its flags from a filter: told that it does not exist, callers take clone. The same for who would have io_setup. */
static void refuse_as_unknown(json_t *rules)
{
    (void)json_array_append_new(rules, json_pack("{s:[s, s], s:s, s:i}", "names", "clone3", "io_setup", "action", "SCMP_ACT_ERRNO", "errnoRet", ENOSYS));
}

/* Of this server, and so of the engine: its containers run this server's agent. */
static const char *machine(void)
{
#if defined(__x86_64__)
    return "SCMP_ARCH_X86_64";
#elif defined(__aarch64__)
    return "SCMP_ARCH_AARCH64";
#else
    return NULL;
#endif
}

char *docker_profile(void)
{
    if (machine() == NULL) {
        return NULL;
    }
    json_t *rules = json_array();
    (void)json_array_append_new(rules, json_pack("{s:o, s:s}", "names", names_json(), "action", "SCMP_ACT_ALLOW"));
    allow_with(rules, "clone", json_pack("[{s:i, s:I, s:i, s:s}]", "index", 0, "value", NAMESPACES, "valueTwo", 0, "op", "SCMP_CMP_MASKED_EQ"));
    allow_personalities(rules);
    allow_sockets(rules);
    refuse_as_unknown(rules);
    /* A program for an architecture that is not listed is killed by its first system call. Where one is listed, calls newer than those above do not
     * exist; without any they would be forbidden, which nobody takes for a reason to try an older one. */
    sg_cleanup(sg_json_p) json_t *v = json_pack("{s:s, s:[s], s:o}", "defaultAction", "SCMP_ACT_ERRNO", "architectures", machine(), "syscalls", rules);
    return v != NULL ? sg_json_dump(v, NULL) : NULL;
}
