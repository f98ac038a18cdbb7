#include "backends/agent/setup.h"

#include "backends/agent/await.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

#define CAPS_KEPT ((1ULL << CAP_SETUID) | (1ULL << CAP_SETGID) | (1ULL << CAP_KILL))
#define WORKER_WAIT_MS 10000
#define FILES_MAX 65536 /* open ones of one command in a container */

static void __attribute__((noreturn)) die(int code, const char *what)
{
    dprintf(2, "sandgate-agent: %s\n", what);
    _exit(code);
}

static bool parse_number(const char *s, unsigned max, unsigned *ret)
{
    unsigned v = 0;
    if (*s == '\0')
        return false;
    for (; *s != '\0'; s++) {
        if (*s < '0' || *s > '9' || v > (max - (unsigned)(*s - '0')) / 10)
            return false;
        v = v * 10 + (unsigned)(*s - '0');
    }
    *ret = v;
    return true;
}

static bool parse_slot(struct agent *a, int argc, char **argv)
{
    unsigned uid = 1000, gid = 1000;
    if (strcmp(argv[3], "dumpable") == 0) {
        a->isolation = SG_AGENT_DUMPABLE;
        a->command_uid = geteuid();
        a->command_gid = getegid();
        return argc == 4;
    }
    if (strcmp(argv[3], "uid") != 0 || (argc != 4 && argc != 6))
        return false;
    if (argc == 6 && (!parse_number(argv[4], 1U << 30, &uid) || !parse_number(argv[5], 1U << 30, &gid)))
        return false;
    a->isolation = SG_AGENT_UID;
    a->command_uid = uid;
    a->command_gid = gid;
    return uid > 0 && gid > 0;
}

static bool parse_host(struct agent *a, int argc, char **argv)
{
    unsigned root;
    a->isolation = SG_AGENT_HOST;
    a->command_uid = geteuid();
    a->command_gid = getegid();
    if (argc != 4 || !parse_number(argv[3], 1 << 20, &root) || root <= 2)
        return false;
    a->root = (int)root;
    return true;
}

static bool parse_listen(struct agent *a, int argc, char **argv)
{
    unsigned uid, gid, grace;
    if (argc < 6 || argv[2][0] != '/' || !parse_number(argv[3], 1U << 30, &uid) || !parse_number(argv[4], 1U << 30, &gid) ||
        !parse_number(argv[5], 1U << 30, &grace) || uid == 0 || gid == 0)
        return false;
    a->isolation = SG_AGENT_UID;
    a->command_uid = uid;
    a->command_gid = gid;
    a->listen_dir = argv[2];
    a->grace_ms = grace;
    a->own = argv + 6;
    a->n_own = (unsigned)(argc - 6);
    return true;
}

static void parse(struct agent *a, int argc, char **argv)
{
    unsigned fd = AGENT_SOCK;
    a->relayed = argc > 1 && strcmp(argv[1], "listen-relay") == 0;
    bool listens = a->relayed || (argc > 1 && strcmp(argv[1], "listen") == 0);
    bool ok = listens || (argc >= 4 && parse_number(argv[2], 1 << 20, &fd) && fd > 2);
    a->root = a->listen = a->ear = -1;
    if (listens)
        ok = parse_listen(a, argc, argv);
    else if (ok && strcmp(argv[1], "slot") == 0)
        ok = parse_slot(a, argc, argv);
    else
        ok = ok && strcmp(argv[1], "host") == 0 && parse_host(a, argc, argv);
    if (!ok)
        die(EXIT_USAGE, "usage: sandgate-agent slot FD uid|dumpable [COMMAND_UID COMMAND_GID], host FD ROOT_FD, or "
                        "listen|listen-relay DIRECTORY COMMAND_UID COMMAND_GID GRACE_MS [DIRECTORY...]");
    a->sock = listens ? -1 : (int)fd;
}

/* A copy out of the way of those that get a number of their own; -1. */
static int out_of_the_way(int fd)
{
    return fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, FILES_ROOT + 1);
}

/* The socket becomes 3, the sandbox's root 4, standard input and output /dev/null, nothing else is open. stderr stays for die(). */
static void take_descriptors(struct agent *a)
{
    int null = out_of_the_way(open("/dev/null", O_RDWR | O_CLOEXEC));
    int root = out_of_the_way(a->root >= 0 ? a->root : open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
    int sock = out_of_the_way(a->listen_dir != NULL ? null : a->sock); /* a place to be taken by the first server */
    if (sock < 0)
        die(EXIT_SETUP, "the socket is not open");
    if (null < 0 || root < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0)
        die(EXIT_SETUP, "cannot arrange the standard descriptors");
    if (fcntl(2, F_GETFD) < 0)
        dup2(null, 2);
    if (dup3(sock, AGENT_SOCK, O_CLOEXEC) < 0 || dup3(root, FILES_ROOT, O_CLOEXEC) < 0)
        die(EXIT_SETUP, "cannot take the socket");
    int type = 0;
    socklen_t len = sizeof type;
    if (a->listen_dir == NULL) {
        a->sock = AGENT_SOCK;
        if (getsockopt(a->sock, SOL_SOCKET, SO_TYPE, &type, &len) != 0 || type != SOCK_SEQPACKET)
            die(EXIT_SETUP, "the descriptor is not a SOCK_SEQPACKET socket");
    }
    syscall(SYS_close_range, FILES_ROOT + 1U, ~0U, 0U);
    a->null = open("/dev/null", O_RDONLY | O_CLOEXEC); /* what a command without stdin reads */
}

/* What needs the rights of the beginning: a name for its socket, and directories for its commands. */
static void take_places(struct agent *a)
{
    if (a->listen_dir == NULL)
        return;
    a->listen = await_listen(a->listen_dir);
    if (a->listen < 0)
        die(EXIT_SETUP, a->listen == -EEXIST ? "this container has ended before" : "cannot listen in its directory");
    for (unsigned i = 0; i < a->n_own; i++) {
        struct stat st;
        if (stat(a->own[i], &st) != 0 ||
            (st.st_uid != a->command_uid && fchownat(AT_FDCWD, a->own[i], a->command_uid, a->command_gid, AT_SYMLINK_NOFOLLOW) != 0))
            die(EXIT_SETUP, "cannot give the command user its directories");
    }
}

static void get_caps(struct __user_cap_data_struct data[2])
{
    struct __user_cap_header_struct h = {.version = _LINUX_CAPABILITY_VERSION_3};
    memset(data, 0, 2 * sizeof data[0]);
    if (syscall(SYS_capget, &h, data) != 0)
        die(EXIT_SETUP, "cannot read the capabilities");
}

static uint64_t effective_caps(void)
{
    struct __user_cap_data_struct d[2];
    get_caps(d);
    return d[0].effective | (uint64_t)d[1].effective << 32;
}

/* Keeps at most `keep`, nothing inheritable (which empties the ambient set too), and what it can of the
 * bounding set. */
static void drop_caps(uint64_t keep)
{
    struct __user_cap_header_struct h = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct d[2];
    for (int cap = 0; prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) == 0; cap++)
        ; /* until the last one; EPERM at the first without SETPCAP, which a well-made sandbox does not give */
    get_caps(d);
    d[0].permitted &= (uint32_t)keep;
    d[1].permitted &= (uint32_t)(keep >> 32);
    for (int i = 0; i < 2; i++) {
        d[i].effective = d[i].permitted;
        d[i].inheritable = 0;
    }
    if (syscall(SYS_capset, &h, d) != 0)
        die(EXIT_SETUP, "cannot drop capabilities");
}

/* From here on files are opened as the command's user. */
static void drop_rights(struct agent *a)
{
    /* At one byte the kernel does not even start the program of the host that collects dumps. EPERM: it is zero already. */
    struct rlimit no_core = {1, 1};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || (setrlimit(RLIMIT_CORE, &no_core) != 0 && errno != EPERM))
        die(EXIT_SETUP, "cannot set no_new_privs");
    if (a->isolation == SG_AGENT_HOST && prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0)
        die(EXIT_SETUP, "cannot become a subreaper");
    if (a->isolation != SG_AGENT_UID) {
        drop_caps(0);
        return;
    }
    if (geteuid() != 0 || getuid() != 0)
        die(EXIT_SETUP, "mode uid needs uid 0 of the sandbox's user namespace");
    if (setgroups(0, NULL) != 0 && getgroups(0, NULL) != 0)
        die(EXIT_SETUP, "cannot drop supplementary groups");
    drop_caps(CAPS_KEPT);
    uint64_t need = (1ULL << CAP_SETUID) | (1ULL << CAP_SETGID);
    if ((effective_caps() & need) != need)
        die(EXIT_SETUP, "mode uid needs SETUID and SETGID");
    setfsgid(a->command_gid);
    setfsuid(a->command_uid);
    if (setfsgid((gid_t)-1) != (int)a->command_gid || setfsuid((uid_t)-1) != (int)a->command_uid)
        die(EXIT_SETUP, "the command's user is not mapped in this user namespace");
}

/* The kernel counts descriptors on their way through sockets per user, and compares with the sender's own limit. Where commands are of
 * our user theirs is lower, so that one who fills sockets with descriptors keeps no other sandbox from handing out its own. */
static void set_files_limit(struct agent *a)
{
    struct rlimit *files = &a->command_files;
    if (getrlimit(RLIMIT_NOFILE, files) != 0)
        die(EXIT_SETUP, "cannot read the limit of open files");
    const struct rlimit own = {files->rlim_max, files->rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &own) != 0)
        die(EXIT_SETUP, "cannot raise the limit of open files");
    if (a->isolation == SG_AGENT_DUMPABLE)
        files->rlim_max /= 2;
    else if (a->listen_dir != NULL && files->rlim_max > FILES_MAX)
        files->rlim_max = FILES_MAX; /* an engine lets a process have a million, and its host no more than some of those */
    if (files->rlim_cur > files->rlim_max)
        files->rlim_cur = files->rlim_max;
}

static void take_signals(struct agent *a)
{
    sigset_t all, chld;
    for (int s = 1; s <= 64; s++)
        if (s != SIGKILL && s != SIGSTOP)
            signal(s, SIG_DFL); /* what is ignored here would stay so in every command */
    sigfillset(&all);
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    if (sigprocmask(SIG_SETMASK, &all, NULL) != 0)
        die(EXIT_SETUP, "cannot block signals");
    a->signals = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK);
    a->epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event sock = {.events = EPOLLIN, .data.u64 = 0}, sig = {.events = EPOLLIN, .data.u64 = 1};
    if (a->signals < 0 || a->epoll < 0 || (a->sock >= 0 && epoll_ctl(a->epoll, EPOLL_CTL_ADD, a->sock, &sock) != 0) ||
        epoll_ctl(a->epoll, EPOLL_CTL_ADD, a->signals, &sig) != 0)
        die(EXIT_SETUP, "cannot set up epoll");
    struct epoll_event next = {.events = EPOLLIN, .data.u64 = AGENT_NEXT};
    if (a->relayed && epoll_ctl(a->epoll, EPOLL_CTL_ADD, a->listen, &next) != 0)
        die(EXIT_SETUP, "cannot watch its socket");
}

static void check_world(const struct agent *a)
{
    struct stat st;
    char path[32];
    int fd = files_resolve("/", O_PATH | O_DIRECTORY);
    if (fd < 0)
        die(EXIT_SETUP, "openat2 does not work here");
    close(fd);
    snprintf(path, sizeof path, "/proc/self/fd/%d", a->listen >= 0 ? a->listen : a->sock);
    if (stat(path, &st) != 0 || !S_ISSOCK(st.st_mode))
        die(EXIT_SETUP, "no usable /proc");
}

static uint64_t netns_cookie(void)
{
    uint64_t cookie = 0;
    socklen_t len = sizeof cookie;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &len) != 0 || len != sizeof cookie)
        cookie = 0;
    if (fd >= 0)
        close(fd);
    return cookie;
}

void setup_hello(struct agent *a)
{
    struct sg_agent_msg m = {.type = SG_AGENT_HELLO};
    m.u.hello.pid = (uint32_t)getpid();
    m.u.hello.isolation = a->isolation;
    m.u.hello.uid = geteuid();
    m.u.hello.gid = getegid();
    m.u.hello.command_uid = a->command_uid;
    m.u.hello.command_gid = a->command_gid;
    m.u.hello.caps = effective_caps();
    m.u.hello.netns_cookie = netns_cookie();
    if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)
        m.u.hello.flags |= SG_AGENT_HELLO_NO_NEW_PRIVS;
    if (prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 0)
        m.u.hello.flags |= SG_AGENT_HELLO_NOT_DUMPABLE;
    out_send(a, &m, -1);
}

void setup(struct agent *a, int argc, char **argv)
{
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0)
        die(EXIT_SETUP, "cannot hide from ptrace");
    umask(022);
    for (char **e = environ; *e != NULL; e++)
        memset(*e, 0, strlen(*e));
    environ[0] = NULL;
    parse(a, argc, argv);
    take_descriptors(a);
    take_places(a);
    drop_rights(a);
    set_files_limit(a);
    take_signals(a);
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) /* changing ids has set it anew */
        die(EXIT_SETUP, "cannot hide from ptrace");
    check_world(a);
    a->spoke = mmap(NULL, sizeof(bool[SG_AGENT_WORKERS_MAX]), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (a->spoke == MAP_FAILED)
        die(EXIT_SETUP, "no memory for its workers");
    dup2(a->null, 2);
}

/* Commands may make files as fast as a worker takes them away. */
#define WORKER_CPU_SECONDS 300

void setup_worker(struct agent *a)
{
    const struct rlimit cpu = {.rlim_cur = WORKER_CPU_SECONDS, .rlim_max = WORKER_CPU_SECONDS};
    (void)setrlimit(RLIMIT_CPU, &cpu);
    for (size_t i = 0; i < a->queue_len; i++) {
        struct out_packet *p = &a->queue[(a->queue_head + i) % SG_AGENT_QUEUE_MAX];
        if (p->fd >= 0)
            close(p->fd);
    }
    for (size_t i = 0; i < SG_AGENT_EXECS_MAX; i++)
        if (a->live[i].id != 0 && a->live[i].ctl >= 0)
            close(a->live[i].ctl); /* an end of file there is an order */
    close(a->epoll);
    a->epoll = epoll_create1(EPOLL_CLOEXEC); /* the shared one is the agent's to change */
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = 0};
    (void)epoll_ctl(a->epoll, EPOLL_CTL_ADD, a->sock, &e);
    a->queue_len = a->queue_head = a->queue_fds = 0;
}

void setup_worker_flush(struct agent *a)
{
    while (a->queue_len > 0) {
        struct pollfd p = {.fd = a->sock, .events = POLLOUT};
        if (poll(&p, 1, WORKER_WAIT_MS) <= 0)
            _exit(1);
        out_flush(a);
    }
}
