/* What the system call filter says to every number there is: static, for sandboxes that have nothing but a shell.
 *
 *   conformance-calls   prints "NUMBER ERRNO" for each, with arguments that no call can do anything with, 0 for what came back well or did not
 *                       come back; then "NAME ERRNO" for calls that differ by their arguments; -SIGNAL for what killed its caller
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define NUMBERS 470

struct attempt {
    const char *name;
    long nr, a, b, c;
};

static const struct attempt attempts[] = {
    {"clone_newuser", SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0},
    {"clone_newnet", SYS_clone, CLONE_NEWNET | SIGCHLD, 0, 0},
    {"clone_newns", SYS_clone, CLONE_NEWNS | SIGCHLD, 0, 0},
    {"clone3", SYS_clone3, 0, 0, 0},
    {"unshare_user", SYS_unshare, CLONE_NEWUSER, 0, 0},
    {"unshare_files", SYS_unshare, CLONE_FILES, 0, 0},
    {"io_setup", SYS_io_setup, 1, 0, 0},
    {"io_uring_setup", SYS_io_uring_setup, 1, 0, 0},
    {"name_to_handle_at", SYS_name_to_handle_at, AT_FDCWD, 0, 0},
    {"fanotify_mark", SYS_fanotify_mark, -1, 0, 0},
    {"userfaultfd", SYS_userfaultfd, 1, 0, 0},
    {"keyctl", SYS_keyctl, 0, -3, 0},
    {"bpf", SYS_bpf, 0, 0, 0},
    {"perf_event_open", SYS_perf_event_open, 0, 0, -1},
    {"personality_question", SYS_personality, 0xffffffff, 0, 0},
    {"personality_read_implies_exec", SYS_personality, READ_IMPLIES_EXEC, 0, 0},
    {"socket_unix", SYS_socket, AF_UNIX, SOCK_STREAM, 0},
    {"socket_tcp", SYS_socket, AF_INET, SOCK_STREAM, 0},
    {"socket_tcp6", SYS_socket, AF_INET6, SOCK_STREAM, 6},
    {"socket_udp", SYS_socket, AF_INET, SOCK_DGRAM, 17},
    {"socket_routes", SYS_socket, AF_NETLINK, SOCK_RAW, NETLINK_ROUTE},
    {"socket_audit", SYS_socket, AF_NETLINK, SOCK_RAW, NETLINK_AUDIT},
    {"socket_nftables", SYS_socket, AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER},
    {"socket_packet", SYS_socket, AF_PACKET, SOCK_DGRAM, 0},
    {"socket_vsock", SYS_socket, AF_VSOCK, SOCK_STREAM, 0},
    {"socket_alg", SYS_socket, AF_ALG, SOCK_SEQPACKET, 0},
    {"socket_mptcp", SYS_socket, AF_INET, SOCK_STREAM, 262},
    {"socket_sctp", SYS_socket, AF_INET, SOCK_STREAM, 132},
    {"getpid_of_i386", -1, 0, 0, 0},
};

/* A 32-bit program's call, from a 64-bit one. */
static long call_i386(void)
{
#ifdef __x86_64__
    long r = 20; /* getpid */
    __asm__ volatile("int $0x80" : "+a"(r) : : "memory", "r8", "r9", "r10", "r11");
    return r;
#else
    errno = ENOSYS;
    return -1;
#endif
}

static long make(const struct attempt *a)
{
    return a->nr < 0 ? call_i386() : syscall(a->nr, a->a, a->b, a->c, -1L, -1L, -1L);
}

/* In a process of its own; *said is shared with it. */
static int outcome(const struct attempt *a, volatile int *said)
{
    *said = 0;
    pid_t pid = fork();
    if (pid < 0) {
        perror("fork");
        exit(1);
    }
    if (pid == 0) {
        pid_t self = getpid();
        long r = make(a);
        int e = errno;
        if (getpid() == self) { /* not a child that the call made */
            *said = r < 0 ? e : 0;
        }
        _exit(0);
    }
    int status = 0;
    if (waitpid(pid, &status, 0) < 0) {
        perror("waitpid");
        exit(1);
    }
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS ? -SIGSYS : *said;
}

/* Those that would wait for ever, or whose failure says nothing. */
static int left_out(long nr)
{
    return nr == SYS_pause || nr == SYS_rt_sigreturn || nr == SYS_exit || nr == SYS_exit_group;
}

int main(void)
{
    volatile int *said = mmap(NULL, sizeof *said, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (said == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* nothing is in the buffer when a child is made */
    for (long nr = 0; nr < NUMBERS; nr++) {
        const struct attempt a = {.nr = nr, .a = -1, .b = -1, .c = -1};
        if (!left_out(nr)) {
            (void)printf("%ld %d\n", nr, outcome(&a, said));
        }
    }
    for (size_t i = 0; i < sizeof attempts / sizeof attempts[0]; i++) {
        (void)printf("%s %d\n", attempts[i].name, outcome(&attempts[i], said));
    }
    return 0;
}
