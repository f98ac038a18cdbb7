/* A descriptor that comes out of a sandbox may be anything the sandbox could make. */
#include "backends/agent/client_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

/* /dev/ptmx on every Linux. */
#define PTMX_MAJOR 5
#define PTMX_MINOR 2

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

const char *sg_agent_check_file(int fd, int access, struct stat *st)
{
    struct statfs fs;
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || (flags & O_PATH) != 0 || (flags & O_ACCMODE) != access)
        return "a file opened in another way than asked for";
    if (fstat(fd, st) < 0 || !S_ISREG(st->st_mode))
        return "a descriptor that is not a regular file";
    if (fstatfs(fd, &fs) < 0 || sg_agent_fs_refused((unsigned long)fs.f_type))
        return "a file of a pseudo file system";
    return NULL;
}

const char *sg_agent_check_terminal(int fd)
{
    struct stat st;
    unsigned number;
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || (flags & O_PATH) != 0 || (flags & O_ACCMODE) != O_RDWR)
        return "a terminal opened in another way than asked for";
    if (fstat(fd, &st) < 0 || !S_ISCHR(st.st_mode) || st.st_rdev != makedev(PTMX_MAJOR, PTMX_MINOR) ||
        ioctl(fd, TIOCGPTN, &number) < 0)
        return "a descriptor that is not the master of a terminal";
    return fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? "a terminal that cannot be made non-blocking" : NULL;
}

static bool option_is(int fd, int name, int want)
{
    int v = 0;
    socklen_t len = sizeof v;
    return getsockopt(fd, SOL_SOCKET, name, &v, &len) == 0 && v == want;
}

const char *sg_agent_check_socket(int fd, int family, uint64_t cookie)
{
    if (!option_is(fd, SO_DOMAIN, family) || !option_is(fd, SO_TYPE, SOCK_STREAM) ||
        !option_is(fd, SO_PROTOCOL, IPPROTO_TCP))
        return "a descriptor that is not a TCP socket of the family asked for";
    if (!option_is(fd, SO_ACCEPTCONN, 0))
        return "a listening socket";
    struct sockaddr_storage peer;
    socklen_t len = sizeof peer;
    if (getpeername(fd, (struct sockaddr *)&peer, &len) == 0 || errno != ENOTCONN)
        return "a connected socket";
    uint64_t own = 0;
    len = sizeof own;
    if (cookie != 0 && (getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &own, &len) < 0 || own != cookie))
        return "a socket of another network";
    struct linger linger = {.l_onoff = 1};
    len = sizeof linger;
    if (getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &len) < 0 || linger.l_onoff != 0)
        return "a socket whose end would be waited for";
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || (flags & O_NONBLOCK) == 0)
        return "a blocking socket";
    return NULL;
}
