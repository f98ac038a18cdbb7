/* Starts one command. The child borrows the parent's memory until its exec (as posix_spawn does): that is what makes a
 * start as cheap as a bare spawn, and how it tells the parent about a failure without a pipe. Every signal is blocked
 * in the parent, the memory is not dumpable, so nobody can attach to the child in between. */
#include "backends/agent/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEFAULT_PATH "/usr/local/bin:/usr/bin:/bin"

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
    c->argv[-1] = (char *)(uintptr_t)"/bin/sh";
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
            else if (e != ENOENT && e != ENOTDIR && e != ESTALE && e != ENODEV && e != ETIMEDOUT && e != ENAMETOOLONG)
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

static void join_groups(struct child *c)
{
    for (unsigned i = 0; i < c->n_procs; i++)
        if (write(c->procs[i], "0", 1) != 1)
            fail(c, SG_AGENT_STAGE_CGROUP);
}

/* Raw calls: the wrappers of libc keep all threads of the process in step, and this is a borrowed one. */
static void become_user(struct child *c)
{
    if (!c->set_user)
        return;
    if (syscall(SYS_setresgid, c->gid, c->gid, c->gid) != 0 || syscall(SYS_setresuid, c->uid, c->uid, c->uid) != 0)
        fail(c, SG_AGENT_STAGE_USER);
}

static int child_main(void *arg)
{
    struct child *c = arg;
    setsid();
    join_groups(c);
    if (dup2(c->in, 0) < 0 || dup2(c->out, 1) < 0 || dup2(c->err, 2) < 0)
        fail(c, SG_AGENT_STAGE_FORK);
    /* All are CLOEXEC from birth; this is the net below. */
    syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);
    if (chdir(c->cwd) != 0)
        fail(c, SG_AGENT_STAGE_CWD);
    become_user(c);
    uint64_t none = 0;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, sizeof none);
    int e = exec_lookup(c);
    complain(2, c->argv[0], e);
    _exit(e == ENOENT || e == ENOTDIR ? 127 : 126);
}

pid_t child_start(struct child *c)
{
    char stack[32 * 1024] __attribute__((aligned(16)));
    c->stage = 0;
    c->error = 0;
    pid_t pid = clone(child_main, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, c);
    if (pid < 0 && (errno == EAGAIN || errno == ENOMEM)) {
        complain(c->err, c->argv[0], EAGAIN);
        return 0;
    }
    if (pid < 0) {
        c->error = errno;
        c->stage = SG_AGENT_STAGE_FORK;
    }
    return c->stage != 0 ? -1 : pid;
}
