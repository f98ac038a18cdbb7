/* Connections to services inside: the agent gives a socket of its network, the server connects it, to
 * 127.0.0.1 and then to
 * ::1. */
#include "backends/agent/client_priv.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

struct dial {
    struct sg_call call;
    struct sg_agent *agent;
    struct sg_dial_done done;
    uint16_t port;
    int64_t deadline_ms;
    int family;
    struct sg_watch watch; /* its fd is the socket */
    struct sg_timer timer;
};

static int ask(struct dial *d, struct sg_error *err);

static void end(struct dial *d, int fd, const struct sg_error *err)
{
    sg_watch_del(d->agent->reactor, &d->watch);
    sg_timer_cancel(d->agent->reactor, &d->timer);
    if (d->watch.fd != fd)
        sg_close(d->watch.fd);
    d->done.fn(d->done.arg, fd, fd >= 0 ? sg_hold_ref(d->agent->o.hold) : NULL, err);
    sg_agent_unref(d->agent);
    free(d);
}

static void fail(struct dial *d, enum sg_code code, const char *text)
{
    struct sg_error err = {0};
    sg_error_set(&err, code, "%s", text);
    if (code == SG_ENDPOINT_NOT_LISTENING)
        sg_error_retry_after(&err, 1);
    end(d, -1, &err);
    sg_error_clear(&err);
}

/* Nothing at this address: the next one, or the end. */
static void next_address(struct dial *d)
{
    struct sg_error err = {0};
    sg_watch_del(d->agent->reactor, &d->watch);
    sg_timer_cancel(d->agent->reactor, &d->timer); /* the agent is asked again, and only its answer may end that */
    d->watch.fd = sg_close(d->watch.fd);
    if (d->family == AF_INET6) {
        fail(d, SG_ENDPOINT_NOT_LISTENING, "nothing listens on that port in the sandbox");
        return;
    }
    d->family = AF_INET6;
    if (ask(d, &err) < 0)
        end(d, -1, &err);
    sg_error_clear(&err);
}

/* What became of the connect. */
static void settle(struct dial *d, int e)
{
    if (e == 0) {
        int on = 1;
        (void)setsockopt(d->watch.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        end(d, d->watch.fd, NULL);
    } else if (e == ECONNREFUSED || e == ENETUNREACH || e == EADDRNOTAVAIL || e == EHOSTUNREACH ||
               e == EAFNOSUPPORT) {
        next_address(d);
    } else if (e == ETIMEDOUT) {
        fail(d, SG_ENDPOINT_TIMEOUT, "the port in the sandbox does not answer");
    } else {
        fail(d, SG_ENDPOINT_FAILED, "cannot connect to the port in the sandbox");
    }
}

/* The relay connects, and says what became of it in the first byte. */
static int far_result(int fd)
{
    unsigned char e;
    ssize_t n = read(fd, &e, 1);
    if (n == 1)
        return e;
    return n == 0 ? ECONNRESET : errno;
}

static void connected(struct sg_watch *w, uint32_t events)
{
    (void)events;
    struct dial *d = sg_container_of(w, struct dial, watch);
    int e = 0;
    socklen_t len = sizeof e;
    if (d->agent->o.far)
        e = far_result(w->fd);
    else if (getsockopt(w->fd, SOL_SOCKET, SO_ERROR, &e, &len) < 0)
        e = errno;
    if (e != EAGAIN)
        settle(d, e);
}

static void too_late(struct sg_timer *t)
{
    fail(sg_container_of(t, struct dial, timer), SG_ENDPOINT_TIMEOUT,
         "the port in the sandbox does not answer");
}

static int start_connect(struct dial *d)
{
    struct sockaddr_in in4 = {.sin_family = AF_INET, .sin_port = htons(d->port)};
    struct sockaddr_in6 in6 = {
        .sin6_family = AF_INET6, .sin6_port = htons(d->port), .sin6_addr = in6addr_loopback};
    in4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const struct sockaddr *to =
        d->family == AF_INET ? (const struct sockaddr *)&in4 : (const struct sockaddr *)&in6;
    socklen_t len = d->family == AF_INET ? sizeof in4 : sizeof in6;
    return connect(d->watch.fd, to, len) < 0 ? errno : 0;
}

static int answer(struct sg_call *c, const struct sg_agent_msg *m, int fd, const struct sg_error *err)
{
    struct dial *d = sg_container_of(c, struct dial, call);
    struct sg_error e = {0};
    if (m != NULL && (m->u.done.error == EAFNOSUPPORT || m->u.done.error == EPROTONOSUPPORT ||
                      m->u.done.error == ECONNREFUSED)) {
        next_address(d);
        return 0;
    }
    if (sg_agent_answer_error(m, err, &e)) {
        end(d, -1, &e);
        sg_error_clear(&e);
        return 0;
    }
    d->watch.fd = fd;
    bool far = d->agent->o.far;
    const char *wrong = far ? NULL : sg_agent_check_socket(fd, d->family, d->agent->facts.netns_cookie);
    if (wrong != NULL) {
        fail(d, SG_SANDBOX_LOST, wrong);
        return -1;
    }
    int r = far ? EINPROGRESS : start_connect(d);
    if (r != EINPROGRESS) {
        settle(d, r);
    } else if (sg_watch_add(d->agent->reactor, &d->watch, far ? EPOLLIN : EPOLLOUT, &e) < 0) {
        end(d, -1, &e);
        sg_error_clear(&e);
    } else {
        sg_timer_set(d->agent->reactor, &d->timer, d->deadline_ms);
    }
    return 0;
}

static int ask(struct dial *d, struct sg_error *err)
{
    struct sg_agent_msg m = {.type = SG_AGENT_SOCKET, .u.socket = {(uint32_t)d->family, d->port}};
    d->call = (struct sg_call){.answer = answer, .wants_fd = true};
    return sg_agent_call(d->agent, &d->call, &m, NULL, err);
}

int sg_agent_dial(struct sg_agent *a, uint16_t port, int64_t deadline_ms, const struct sg_dial_done *done,
                  struct sg_error *err)
{
    if (port == 0)
        return sg_error_field(err, SG_INVALID_REQUEST, "port", "there is no port 0");
    struct dial *d = sg_xcalloc(1, sizeof *d);
    d->agent = sg_agent_ref(a);
    d->done = *done;
    d->port = port;
    d->deadline_ms = deadline_ms;
    d->family = AF_INET;
    d->watch = (struct sg_watch){.ready = connected, .fd = -1};
    d->timer.fire = too_late;
    if (ask(d, err) == 0)
        return 0;
    sg_agent_unref(d->agent);
    free(d);
    return -1;
}
