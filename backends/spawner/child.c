#include "backends/spawner/child.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/fd.h"

_Noreturn void sg_child_die(int error_fd, const char *what)
{
    dprintf(error_fd, "%s: %s\n", what, strerror(errno));
    _exit(1);
}

void sg_child_reset_signals(void)
{
    sigset_t none;
    sigemptyset(&none);
    for (int signo = 1; signo <= SIGRTMAX; signo++) {
        signal(signo, SIG_DFL);
    }
    sigprocmask(SIG_SETMASK, &none, NULL);
}

void sg_child_tie(pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(1);
    }
}

void sg_child_offer_to_oom_killer(void)
{
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd >= 0 && write(fd, "500", 3) != 3) {
        errno = 0; /* it stays as it was; nothing depends on it */
    }
    sg_close(fd);
}

int sg_child_become(uint32_t uid)
{
    return setgroups(0, NULL) < 0 || setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0 ? -1 : 0;
}

int sg_child_keep(int fd, int error_fd)
{
    if (fcntl(fd, F_SETFD, 0) < 0) {
        sg_child_die(error_fd, "cannot pass a descriptor on");
    }
    return fd;
}
