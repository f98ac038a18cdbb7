/* A port of the sandbox's own loopback on which the server listens, where it cannot have the socket: connections are brought one by one. */
#include "backends/agent/client_priv.h"

#include <errno.h>

struct ear {
    struct sg_call call;
    struct sg_done done;
    uint16_t port;
};

static int listens(struct sg_call *c, const struct sg_agent_msg *m, int fd, const struct sg_error *err)
{
    struct ear *e = sg_container_of(c, struct ear, call);
    struct sg_error why = {0};
    (void)fd;
    if (m == NULL)
        sg_error_copy(&why, err);
    else if (m->u.done.error != 0)
        sg_error_sys(&why, SG_UNAVAILABLE, (int)(m->u.done.error & 0xffff), "cannot listen on port %u of the sandbox", (unsigned)e->port);
    e->done.fn(e->done.arg, why.code != SG_OK ? &why : NULL);
    sg_error_clear(&why);
    free(e);
    return 0;
}

int sg_agent_listen_far(struct sg_agent *a, uint16_t port, const struct sg_done *done, struct sg_error *err)
{
    struct sg_agent_msg m = {.type = SG_AGENT_LISTEN, .u.listen = {port}};
    struct ear *e = sg_xcalloc(1, sizeof *e);
    *e = (struct ear){.call = {.answer = listens}, .done = *done, .port = port};
    if (sg_agent_call(a, &e->call, &m, NULL, err) == 0)
        return 0;
    free(e);
    return -1;
}

struct next {
    struct sg_call call;
    struct sg_agent *agent;
    struct sg_dial_done done;
};

static int accepted(struct sg_call *c, const struct sg_agent_msg *m, int fd, const struct sg_error *err)
{
    struct next *x = sg_container_of(c, struct next, call);
    struct sg_error why = {0};
    if (m == NULL)
        sg_error_copy(&why, err);
    else if (m->u.done.error != 0)
        sg_error_sys(&why, SG_OVERLOADED, (int)(m->u.done.error & 0xffff), "a connection from inside could not be taken");
    x->done.fn(x->done.arg, fd, fd >= 0 ? sg_hold_ref(x->agent->o.hold) : NULL, why.code != SG_OK ? &why : NULL);
    sg_error_clear(&why);
    sg_agent_unref(x->agent);
    free(x);
    return 0;
}

int sg_agent_accept(struct sg_agent *a, const struct sg_dial_done *done, struct sg_error *err)
{
    struct sg_agent_msg m = {.type = SG_AGENT_ACCEPT};
    struct next *x = sg_xcalloc(1, sizeof *x);
    *x = (struct next){.call = {.answer = accepted, .wants_fd = true, .lasting = true}, .agent = sg_agent_ref(a), .done = *done};
    if (sg_agent_call(a, &x->call, &m, NULL, err) == 0)
        return 0;
    sg_agent_unref(x->agent);
    free(x);
    return -1;
}
