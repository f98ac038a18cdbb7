/* A port of the sandbox's own loopback that the server listens on, for as long as the sandbox lives. */
#include "backends/agent/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG 128

static int make(uint32_t port)
{
    const struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int on = 1; /* connections of a server before this one may still be ending */
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (fd < 0)
        return -errno;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 && bind(fd, (const struct sockaddr *)&at, sizeof at) == 0 &&
        listen(fd, BACKLOG) == 0)
        return fd;
    int e = errno;
    close(fd);
    return -e;
}

void ear_open(struct agent *a, const struct sg_agent_msg *m)
{
    if (a->isolation == SG_AGENT_HOST) {
        out_done(a, m->id, EPERM);
        return;
    }
    if (a->ear < 0 || a->ear_port != m->u.listen.port) {
        int fd = make(m->u.listen.port);
        if (fd < 0) {
            out_done(a, m->id, -fd);
            return;
        }
        if (a->ear >= 0)
            close(a->ear);
        a->ear = fd;
        a->ear_port = m->u.listen.port;
    }
    struct sg_agent_msg done = {.type = SG_AGENT_DONE, .id = m->id};
    int fd = fcntl(a->ear, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        out_done(a, m->id, errno);
    else
        out_send(a, &done, fd);
}
