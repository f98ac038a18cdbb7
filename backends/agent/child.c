/* Starts one command. The child borrows the parent's memory until its exec (as posix_spawn does): that is
 * what makes a start as cheap as a bare spawn, and how it tells the parent about a failure without a pipe.
 * Every signal is blocked in the parent, the memory is not dumpable, so nobody can attach to the child in
 * between. A command that manages to stop the child (SIGSTOP, in the moment between its change of user and
 * its exec) stops the agent: the server then waits for an answer in vain and loses that sandbox, nothing
 * else. */
#include "backends/agent/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEFAULT_PATH "/usr/local/bin:/usr/bin:/bin"
#define OOM_SCORE "500" /* half of the limit more than it has */

static void say(int fd, const char *s, size_t max)
{
    ssize_t n = write(fd, s, strnlen(s, max));
    (void)n; /* a command that cannot even take its own error message */
}

static const char *reason(int error)
{
    switch (error) {
    case ENOENT:
    case ENOTDIR:
        return "not found";
    case EACCES:
    case EPERM:
    case EISDIR:
        return "Permission denied";
    case ENOEXEC:
        return "Exec format error";
    case EAGAIN:
    case ENOMEM:
        return "cannot start: process or memory limit reached";
    case E2BIG:
        return "Argument list too long";
    case ETXTBSY:
        return "Text file busy";
    case ELOOP:
        return "Too many levels of symbolic links";
    case ENAMETOOLONG:
        return "File name too long";
    default:
        return "cannot be executed";
    }
}

static void complain(int fd, const char *name, int error)
{
    say(fd, "sandgate: ", 16);
    say(fd, name, 512);
    say(fd, ": ", 2);
    say(fd, reason(error), 64);
    say(fd, "\n", 1);
}

/* execve that gives a file without a known format to the shell, as execvp does. Returns the errno. */
static int try_exec(struct child *c, const char *path)
{
    execve(path, c->argv, c->envp);
    if (errno != ENOEXEC)
        return errno;
    char *first = c->argv[0];
    c->argv[-1] = (char *)(uintptr_t) "/bin/sh";
    c->argv[0] = (char *)(uintptr_t)path;
    execve("/bin/sh", c->argv - 1, c->envp);
    c->argv[0] = first;
    return ENOEXEC;
}

static const char *command_path(char **envp)
{
    for (; *envp != NULL; envp++)
        if (strncmp(*envp, "PATH=", 5) == 0)
            return *envp + 5;
    return DEFAULT_PATH;
}

/* Looks name up in the command's own PATH and becomes it. Returns the errno that tells most. */
static int exec_lookup(struct child *c)
{
    const char *name = c->argv[0];
    size_t name_len = strlen(name);
    if (memchr(name, '/', name_len) != NULL)
        return try_exec(c, name);
    if (name_len == 0 || name_len > 255)
        return name_len == 0 ? ENOENT : ENAMETOOLONG;
    int result = ENOENT;
    char full[SG_AGENT_PATH_MAX + 1];
    for (const char *dir = command_path(c->envp);; dir++) {
        size_t n = strcspn(dir, ":");
        if (n + name_len + 2 <= sizeof full) {
            memcpy(full, dir, n);
            full[n] = '/';
            memcpy(full + n + (n > 0), name, name_len + 1); /* an empty entry is the current directory */
            int e = try_exec(c, full);
            if (e == EACCES)
                result = EACCES;
            else if (e != ENOENT && e != ENOTDIR && e != ESTALE && e != ENODEV && e != ETIMEDOUT &&
                     e != ENAMETOOLONG)
                return e;
        }
        dir += n;
        if (*dir == '\0')
            return result;
    }
}

static void fail(struct child *c, enum sg_agent_stage stage)
{
    c->error = errno;
    c->stage = stage;
    _exit(127);
}

static void join(struct child *c, int file)
{
    if (write(file, "0", 1) != 1)
        fail(c, SG_AGENT_STAGE_CGROUP);
}

static void join_groups(struct child *c)
{
    if (c->group >= 0 && !c->born)
        join(c, c->group_procs);
    for (unsigned i = 0; i < c->n_tasks; i++)
        join(c, c->tasks[i]);
}

/* What the kernel ends when there is no memory left is never the agent, then, and with it the whole sandbox. The file is the agent's
 * uid's. Where there is none, or nothing may be written, the kernel decides by size as ever. */
static void go_first(const struct child *c)
{
    if (!c->goes_first)
        return;
    if (c->set_user)
        syscall(SYS_setfsuid, geteuid());
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        say(fd, OOM_SCORE, sizeof OOM_SCORE);
        close(fd);
    }
}

/* Raw calls: the wrappers of libc keep all threads of the process in step, and this is a borrowed one. */
static void become_user(struct child *c)
{
    if (!c->set_user)
        return;
    if (syscall(SYS_setresgid, c->gid, c->gid, c->gid) != 0 ||
        syscall(SYS_setresuid, c->uid, c->uid, c->uid) != 0)
        fail(c, SG_AGENT_STAGE_USER);
}

/* A system call filter over the sandbox cannot see what clone3 is asked for, so where it lets the agent have
 * clone3 the commands do without: libc falls back to clone. */
static void refuse_clone3(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};
    (void)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}

static void enter_directory(struct child *c)
{
    int dir = files_resolve(c->cwd, O_PATH | O_DIRECTORY);
    if (dir < 0)
        errno = -dir;
    if (dir < 0 || fchdir(dir) != 0)
        fail(c, SG_AGENT_STAGE_CWD);
}

static int child_main(void *arg)
{
    struct child *c = arg;
    setsid();
    join_groups(c);
    if (c->terminal >= 0 && ioctl(c->terminal, TIOCSCTTY, 0) != 0)
        fail(c, SG_AGENT_STAGE_TTY);
    if (dup2(c->in, 0) < 0 || dup2(c->out, 1) < 0 || dup2(c->err, 2) < 0)
        fail(c, SG_AGENT_STAGE_FORK);
    /* All are CLOEXEC from birth; this is the net below. */
    syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);
    if (syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, &c->files, NULL) != 0)
        fail(c, SG_AGENT_STAGE_FORK);
    go_first(c);
    become_user(c);
    enter_directory(c);
    if (c->born)
        refuse_clone3();
    uint64_t none = 0;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, sizeof none);
    int e = exec_lookup(c);
    complain(2, c->argv[0], e);
    _exit(e == ENOENT || e == ENOTDIR ? 127 : 126);
}

/* clone3 that runs child_main(c) on a stack of its own, which the wrapper of libc does not offer. -errno. */
static long clone_into(struct child *c, char *stack, size_t size)
{
    struct clone_args args = {
        .flags = CLONE_VM | CLONE_VFORK | CLONE_INTO_CGROUP,
        .exit_signal = SIGCHLD,
        .stack = (uintptr_t)stack,
        .stack_size = size,
        .cgroup = (unsigned)c->group,
    };
#if defined __x86_64__
    register int (*fn)(void *) __asm__("r12") = child_main;
    register void *arg __asm__("r13") = c;
    long r;
    __asm__ volatile("syscall\n\t"
                     "test %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "xor %%ebp, %%ebp\n\t"
                     "mov %[arg], %%rdi\n\t"
                     "call *%[fn]\n\t"
                     "hlt\n"
                     "1:"
                     : "=a"(r)
                     : "a"((long)SYS_clone3), "D"(&args), "S"(sizeof args), [fn] "r"(fn), [arg] "r"(arg)
                     : "rcx", "r11", "memory", "cc");
    return r;
#elif defined __aarch64__
    register int (*fn)(void *) __asm__("x20") = child_main;
    register void *arg __asm__("x21") = c;
    register long x0 __asm__("x0") = (long)(uintptr_t)&args;
    register long x1 __asm__("x1") = (long)sizeof args;
    register long x8 __asm__("x8") = SYS_clone3;
    __asm__ volatile("svc #0\n\t"
                     "cbnz x0, 1f\n\t"
                     "mov x0, %[arg]\n\t"
                     "blr %[fn]\n\t"
                     "brk #0\n"
                     "1:"
                     : "+r"(x0)
                     : "r"(x1), "r"(x8), [fn] "r"(fn), [arg] "r"(arg)
                     : "memory", "cc");
    return x0;
#else
    (void)args;
    return -ENOSYS;
#endif
}

/* The group's files belong to the agent's uid, and file access goes by the fsuid, which is the command's. */
static long clone_into_as_agent(struct child *c, char *stack, size_t size)
{
    if (c->set_user)
        setfsuid(geteuid());
    c->born = true;
    long pid = clone_into(c, stack, size);
    if (c->set_user)
        setfsuid(c->uid);
    if (pid < 0 && pid != -EAGAIN && pid != -ENOMEM)
        c->born = false; /* no clone3 here (an old kernel, a system call filter), or not this group */
    return pid;
}

pid_t child_start(struct child *c)
{
    char stack[32 * 1024] __attribute__((aligned(16)));
    c->stage = 0;
    c->error = 0;
    c->born = false;
    long pid = c->group >= 0 ? clone_into_as_agent(c, stack, sizeof stack) : -ENOSYS;
    if (pid < 0 && !c->born) {
        pid = clone(child_main, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, c);
        pid = pid < 0 ? -errno : pid;
    }
    if (pid == -EAGAIN || pid == -ENOMEM) {
        complain(c->err, c->argv[0], EAGAIN);
        return 0;
    }
    if (pid < 0) {
        c->error = (int)-pid;
        c->stage = SG_AGENT_STAGE_FORK;
    }
    return c->stage != 0 ? -1 : (pid_t)pid;
}
