/* A port of the sandbox's own loopback on which the server listens: the agent gives a socket of its network, the server binds it. */
#include "backends/agent/client_priv.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

struct ear {
    struct sg_call call;
    struct sg_agent *agent;
    struct sg_dial_done done;
    uint16_t port;
    int backlog;
};

static void end(struct ear *e, int fd, const struct sg_error *err)
{
    e->done.fn(e->done.arg, fd, fd >= 0 ? sg_hold_ref(e->agent->o.hold) : NULL, err);
    sg_agent_unref(e->agent);
    free(e);
}

static int answer(struct sg_call *c, const struct sg_agent_msg *m, int fd, const struct sg_error *err)
{
    struct ear *e = sg_container_of(c, struct ear, call);
    struct sg_error why = {0};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(e->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (sg_agent_answer_error(m, err, &why)) {
        end(e, -1, &why);
        sg_error_clear(&why);
        return 0;
    }
    int on = 1; /* connections of a server before this one may still be ending */
    const char *wrong = sg_agent_check_socket(fd, AF_INET, e->agent->facts.netns_cookie);
    if (wrong != NULL) {
        sg_error_set(&why, SG_SANDBOX_LOST, "%s", wrong);
    } else if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 || bind(fd, (const struct sockaddr *)&at, sizeof at) < 0 || listen(fd, e->backlog) < 0) {
        sg_error_sys(&why, SG_UNAVAILABLE, errno, "cannot listen on port %u of the sandbox", (unsigned)e->port);
    }
    if (why.code != SG_OK) {
        sg_close(fd);
        end(e, -1, &why);
        sg_error_clear(&why);
    } else {
        end(e, fd, NULL);
    }
    return wrong != NULL ? -1 : 0;
}

int sg_agent_listen(struct sg_agent *a, uint16_t port, int backlog, const struct sg_dial_done *done, struct sg_error *err)
{
    struct sg_agent_msg m = {.type = SG_AGENT_SOCKET, .u.socket = {AF_INET, port}};
    struct ear *e = sg_xcalloc(1, sizeof *e);
    *e = (struct ear){.call = {.answer = answer, .wants_fd = true}, .agent = sg_agent_ref(a), .done = *done, .port = port, .backlog = backlog};
    if (sg_agent_call(a, &e->call, &m, NULL, err) == 0) {
        return 0;
    }
    sg_agent_unref(e->agent);
    free(e);
    return -1;
}
