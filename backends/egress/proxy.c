#include "backends/egress/proxy_priv.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <utlist.h>

#include "base/clock.h"

#define CONNS_MAX 128U    /* of one sandbox */
#define CONNS_REFUSED 32U /* more that are told so; further ones are closed at once */
#define CONNS_SURE 8U     /* ... that it has however many others there are */
#define ALL_CONNS_MAX 16384U
#define LOOKUPS_MAX 2U /* of one sandbox at once */
#define ACCEPTS_MAX 16U /* in one turn */
#define PAUSE_MS 100
#define HEAD_MS 5000
#define RESOLVE_MS 15000
#define CONNECT_MS 10000 /* of each address */
#define TOLD_BURST_MS 10000
#define TOLD_EACH_MS 1000

static void try_next(struct conn *c);
static void look_up_more(struct sg_egress_proxy *p);

/* ---- life of a connection ---- */

static void conn_unref(struct conn *c)
{
    if (--c->refs == 0) {
        sg_buf_finish(&c->out);
        free(c->up.buf);
        free(c->down.buf);
        free(c);
    }
}

void conn_end(struct conn *c)
{
    struct sg_egress_proxy *p = sg_steal(&c->p);
    if (p == NULL) {
        return;
    }
    sg_timer_cancel(c->e->reactor, &c->timer);
    sg_watch_del(c->e->reactor, &c->client);
    sg_watch_del(c->e->reactor, &c->server);
    c->client.fd = sg_close(c->client.fd);
    c->server.fd = sg_close(c->server.fd);
    DL_DELETE(p->conns, c);
    p->n--;
    c->e->open--;
    atomic_fetch_sub(&p->a.counters->open, 1);
    sg_hold_unref(p->a.hold);
    conn_unref(c);
}

/* ---- answers ---- */

static const struct {
    int status;
    const char *title;
} answers[SG_EGRESS_OUTCOMES] = {
    [SG_EGRESS_ALLOWED] = {200, "OK"},
    [SG_EGRESS_HOST_NOT_ALLOWED] = {403, "Forbidden"},
    [SG_EGRESS_PORT_NOT_ALLOWED] = {403, "Forbidden"},
    [SG_EGRESS_ADDRESS_NOT_ALLOWED] = {403, "Forbidden"},
    [SG_EGRESS_MALFORMED] = {400, "Bad Request"},
    [SG_EGRESS_TOO_LARGE] = {431, "Request Header Fields Too Large"},
    [SG_EGRESS_TOO_MANY] = {503, "Service Unavailable"},
    [SG_EGRESS_TOO_SLOW] = {408, "Request Timeout"},
    [SG_EGRESS_NAME_NOT_FOUND] = {502, "Bad Gateway"},
    [SG_EGRESS_UNREACHABLE] = {502, "Bad Gateway"},
    [SG_EGRESS_TIMED_OUT] = {504, "Gateway Timeout"},
};

static bool is_refusal(enum sg_egress_outcome o)
{
    return answers[o].status == 403 || answers[o].status == 400 || answers[o].status == 431 || o == SG_EGRESS_TOO_MANY;
}

/* One line a second on average, ten at once. */
static void tell(struct sg_egress_proxy *p, enum sg_egress_outcome why, const char *target)
{
    int64_t now = sg_now_ms();
    p->told_until_ms = p->told_until_ms > now ? p->told_until_ms : now;
    if (p->a.refused == NULL || p->told_until_ms - now >= TOLD_BURST_MS) {
        p->untold++;
        return;
    }
    p->told_until_ms += TOLD_EACH_MS;
    p->a.refused(p->a.arg, why, target, p->untold);
    p->untold = 0;
}

void conn_answer(struct conn *c, enum sg_egress_outcome why, const char *detail)
{
    struct sg_egress_proxy *p = c->p;
    char target[SG_HOST_MAX + 8] = "", body[1024];
    int status = answers[why].status;
    if (c->head.host.text[0] != '\0' && why != SG_EGRESS_MALFORMED) {
        sg_host_port_format(&c->head.host, c->head.port, target);
    }
    atomic_fetch_add(&p->a.counters->outcomes[why], 1);
    int n = snprintf(body, sizeof body,
                     "{\"type\":\"urn:sandgate:error:egress_%s\",\"title\":\"%s\",\"status\":%d,\"code\":\"egress_%s\",\"detail\":\"%s%s%s\"}\n",
                     sg_egress_outcome_name(why), answers[why].title, status, sg_egress_outcome_name(why), target,
                     target[0] != '\0' ? ": " : "", detail);
    sg_watch_del(c->e->reactor, &c->server);
    c->server.fd = sg_close(c->server.fd);
    free(c->down.buf);
    c->down.buf = sg_xasprintf("HTTP/1.1 %d %s\r\nContent-Type: application/problem+json\r\nContent-Length: %d\r\n"
                               "Cache-Control: no-store\r\nConnection: close\r\nSandgate-Error: egress_%s\r\n%s\r\n%s",
                               status, answers[why].title, n, sg_egress_outcome_name(why),
                               status == 503 ? "Retry-After: 1\r\n" : "", body);
    c->down.off = 0;
    c->down.len = strlen(c->down.buf);
    if (is_refusal(why)) {
        tell(p, why, target[0] != '\0' ? target : detail);
    }
    relay_linger(c);
}

/* ---- connecting ---- */

static void connected(struct conn *c)
{
    int on = 1;
    (void)setsockopt(c->server.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    atomic_fetch_add(&c->p->a.counters->outcomes[SG_EGRESS_ALLOWED], 1);
    relay_start(c);
}

static void next_after(struct conn *c, bool in_time)
{
    sg_watch_del(c->e->reactor, &c->server);
    c->server.fd = sg_close(c->server.fd);
    if (c->at < c->found.n) {
        try_next(c);
    } else if (in_time) {
        conn_answer(c, SG_EGRESS_UNREACHABLE, "the connection was refused, or there is no route");
    } else {
        conn_answer(c, SG_EGRESS_TIMED_OUT, "does not answer");
    }
}

static void server_ready(struct sg_watch *w, uint32_t events)
{
    struct conn *c = sg_container_of(w, struct conn, server);
    int e = 0;
    socklen_t len = sizeof e;
    (void)events;
    if (c->state != CONN_CONNECT) {
        relay_ready(c);
    } else if (getsockopt(w->fd, SOL_SOCKET, SO_ERROR, &e, &len) < 0 || e != 0) {
        next_after(c, true);
    } else {
        connected(c);
    }
}

/* To the address that was checked, and no other. */
static void try_next(struct conn *c)
{
    struct sockaddr_storage to;
    socklen_t len = sg_address_to(&c->found.address[c->at++], c->head.port, &to);
    c->state = CONN_CONNECT;
    c->server.fd = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->server.fd >= 0 && connect(c->server.fd, (const struct sockaddr *)&to, len) == 0) {
        connected(c);
        return;
    }
    if (c->server.fd < 0 || errno != EINPROGRESS || sg_watch_add(c->e->reactor, &c->server, EPOLLOUT, NULL) < 0) {
        next_after(c, true);
        return;
    }
    sg_timer_set(c->e->reactor, &c->timer, sg_now_ms() + CONNECT_MS);
}

/* ---- names ---- */

static void lookups_unref(struct lookups *l)
{
    if (--l->refs == 0) {
        free(l);
    }
}

static void keep_allowed(struct conn *c)
{
    struct sg_resolved *f = &c->found;
    size_t n = 0;
    for (size_t i = 0; i < f->n; i++) {
        const struct in6_addr a = f->address[i];
        if ((sg_address_is_public(&a) && !f->own[i]) || sg_egress_rules_name_address(c->p->a.rules, &a, c->head.port)) {
            f->address[n++] = a;
        }
    }
    f->n = n;
}

static void resolved_run(struct sg_task *t)
{
    struct conn *c = sg_container_of(t, struct conn, resolved_task);
    struct lookups *l = sg_steal(&c->looking);
    if (c->p != NULL && c->state == CONN_RESOLVE) {
        bool found = c->found.n > 0;
        keep_allowed(c);
        if (!found) {
            conn_answer(c, SG_EGRESS_NAME_NOT_FOUND, "the name has no address");
        } else if (c->found.n == 0) {
            conn_answer(c, SG_EGRESS_ADDRESS_NOT_ALLOWED,
                        "the name leads to an address that is not public; egress_allow must name that address itself, too");
        } else {
            try_next(c);
        }
    }
    conn_unref(c);
    l->n--;
    look_up_more(l->p);
    lookups_unref(l);
}

/* A worker. */
static void resolved(void *arg, const struct sg_resolved *a)
{
    struct conn *c = arg;
    c->found = *a; /* nobody looks there before the task */
    sg_reactor_post(c->e->reactor, &c->resolved_task);
}

static void look_up(struct conn *c)
{
    struct sg_error err = {0};
    c->looking = c->p->lookups;
    c->looking->refs++;
    c->looking->n++;
    c->refs++;
    if (sg_resolve(c->e->resolver, c->head.host.text, resolved, c, &err) == 0) {
        return;
    }
    c->refs--;
    c->looking->n--;
    c->looking->refs--;
    c->looking = NULL;
    conn_answer(c, SG_EGRESS_TOO_MANY, "too many names are being looked up");
    sg_error_clear(&err);
}

/* Those who wait for their turn, in order of arrival. p may be NULL. */
static void look_up_more(struct sg_egress_proxy *p)
{
    struct conn *c, *next;
    if (p == NULL) {
        return;
    }
    DL_FOREACH_SAFE(p->conns, c, next)
    {
        if (p->lookups->n < LOOKUPS_MAX && c->state == CONN_RESOLVE && c->looking == NULL) {
            look_up(c);
        }
    }
}

static void decide(struct conn *c)
{
    enum sg_egress_match m = sg_egress_rules_match(c->p->a.rules, &c->head.host, c->head.port);
    if (m == SG_EGRESS_NO_MATCH) {
        conn_answer(c, SG_EGRESS_HOST_NOT_ALLOWED, "no entry of egress_allow names this host");
    } else if (m == SG_EGRESS_OTHER_PORT) {
        conn_answer(c, SG_EGRESS_PORT_NOT_ALLOWED, "egress_allow names this host with another port only");
    } else if (c->head.host.is_address) {
        c->found = (struct sg_resolved){.address = {c->head.host.address}, .n = 1};
        try_next(c);
    } else {
        c->state = CONN_RESOLVE;
        sg_timer_set(c->e->reactor, &c->timer, sg_now_ms() + RESOLVE_MS);
        look_up_more(c->p);
    }
}

/* ---- the request ---- */

static void read_head(struct conn *c)
{
    const char *why = NULL;
    ssize_t n = recv(c->client.fd, c->up.buf + c->up.len, SG_EGRESS_HEAD_MAX - c->up.len, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (n <= 0) {
        conn_end(c);
        return;
    }
    c->up.len += (size_t)n;
    ssize_t end = sg_egress_head_end(c->up.buf, c->up.len, &c->scanned);
    if (end < 0) {
        conn_answer(c, SG_EGRESS_MALFORMED, "lines end with CR LF, and hold no zero bytes");
    } else if (end == 0 && c->up.len == SG_EGRESS_HEAD_MAX) {
        conn_answer(c, SG_EGRESS_TOO_LARGE, "the head of the request is larger than 16 KiB");
    } else if (end > 0) {
        sg_watch_del(c->e->reactor, &c->client); /* what follows waits for its server */
        c->up.off = (size_t)end;
        c->up.len -= (size_t)end;
        if (sg_egress_head_parse(c->up.buf, (size_t)end, &c->head, &c->out, &why) < 0) {
            conn_answer(c, SG_EGRESS_MALFORMED, why);
        } else {
            decide(c);
        }
    }
}

static void client_ready(struct sg_watch *w, uint32_t events)
{
    struct conn *c = sg_container_of(w, struct conn, client);
    (void)events;
    if (c->state == CONN_HEAD) {
        read_head(c);
    } else if (c->state == CONN_LINGER) {
        relay_linger_ready(c);
    } else {
        relay_ready(c);
    }
}

static void conn_due(struct sg_timer *t)
{
    struct conn *c = sg_container_of(t, struct conn, timer);
    if (c->state == CONN_HEAD) {
        conn_answer(c, SG_EGRESS_TOO_SLOW, "the head of the request did not come in time");
    } else if (c->state == CONN_RESOLVE) {
        conn_answer(c, SG_EGRESS_TIMED_OUT, "its name servers do not answer");
    } else if (c->state == CONN_CONNECT) {
        next_after(c, false);
    } else if (c->state == CONN_RELAY) {
        relay_timer(c);
    } else {
        conn_end(c);
    }
}

/* ---- the listener ---- */

static void conn_new(struct sg_egress_proxy *p, int fd)
{
    struct conn *c = sg_xcalloc(1, sizeof *c);
    const struct linger none = {.l_onoff = 0}; /* inherited from a socket that was made inside: closing must never wait */
    int on = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    c->refs = 1;
    c->p = p;
    c->e = p->a.egress;
    c->client = (struct sg_watch){.ready = client_ready, .fd = fd};
    c->server = (struct sg_watch){.ready = server_ready, .fd = -1};
    c->timer.fire = conn_due;
    c->resolved_task.run = resolved_run;
    c->up = (struct way){.from = &c->client, .buf = sg_xcalloc(1, WAY_BYTES)};
    c->down = (struct way){.to = &c->client};
    sg_buf_init(&c->out, SG_EGRESS_HEAD_MAX + 512);
    DL_APPEND(p->conns, c);
    sg_hold_ref(p->a.hold);
    atomic_fetch_add(&p->a.counters->open, 1);
    c->e->open++;
    if (++p->n > CONNS_MAX || (c->e->open > c->e->open_max && p->n > CONNS_SURE)) {
        conn_answer(c, SG_EGRESS_TOO_MANY, "too many connections are open");
        return;
    }
    sg_timer_set(c->e->reactor, &c->timer, sg_now_ms() + HEAD_MS);
    if (sg_watch_add(c->e->reactor, &c->client, EPOLLIN, NULL) < 0) {
        conn_end(c);
    }
}

static void pause_over(struct sg_timer *t)
{
    struct sg_egress_proxy *p = sg_container_of(t, struct sg_egress_proxy, pause);
    sg_watch_mod(p->a.egress->reactor, &p->listener, EPOLLIN);
}

static void listener_broken(struct sg_egress_proxy *p, int e)
{
    struct sg_error why = {0};
    sg_timer_cancel(p->a.egress->reactor, &p->pause);
    sg_watch_del(p->a.egress->reactor, &p->listener);
    sg_error_sys(&why, SG_SANDBOX_LOST, e, "the sandbox's proxy no longer listens");
    sg_error_reason(&why, "egress_lost");
    p->a.lost(p->a.arg, &why); /* may stop it */
    sg_error_clear(&why);
}

void sg_egress_proxy_take(struct sg_egress_proxy *p, int fd)
{
    if (p->n >= CONNS_MAX + CONNS_REFUSED || (p->a.egress->open > p->a.egress->open_max && p->n >= CONNS_REFUSED)) {
        atomic_fetch_add(&p->a.counters->outcomes[SG_EGRESS_TOO_MANY], 1);
        tell(p, SG_EGRESS_TOO_MANY, "too many connections are open");
        sg_close(fd);
    } else {
        conn_new(p, fd);
    }
}

static void accept_some(struct sg_watch *w, uint32_t events)
{
    struct sg_egress_proxy *p = sg_container_of(w, struct sg_egress_proxy, listener);
    struct sg_reactor *r = p->a.egress->reactor;
    (void)events;
    for (unsigned i = 0; i < ACCEPTS_MAX; i++) {
        int fd = accept4(w->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            sg_egress_proxy_take(p, fd);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            sg_watch_mod(r, w, 0);
            sg_timer_set(r, &p->pause, sg_now_ms() + PAUSE_MS);
            return;
        } else if (errno == EAGAIN) {
            return;
        } else if (errno == EINVAL || errno == EBADF || errno == ENOTSOCK || errno == EOPNOTSUPP) {
            listener_broken(p, errno);
            return;
        }
    }
}

int sg_egress_proxy_start(const struct sg_egress_proxy_args *a, struct sg_egress_proxy **ret, struct sg_error *err)
{
    struct sg_egress_proxy *p = sg_xcalloc(1, sizeof *p);
    p->a = *a;
    p->lookups = sg_xcalloc(1, sizeof *p->lookups);
    *p->lookups = (struct lookups){.refs = 1, .p = p};
    p->listener = (struct sg_watch){.ready = accept_some, .fd = a->fd};
    p->pause.fire = pause_over;
    if (a->fd >= 0 && sg_watch_add(a->egress->reactor, &p->listener, EPOLLIN, err) < 0) {
        sg_egress_proxy_stop(p);
        return -1;
    }
    *ret = p;
    return 0;
}

struct sg_egress_proxy *sg_egress_proxy_stop(struct sg_egress_proxy *p)
{
    if (p == NULL) {
        return NULL;
    }
    while (p->conns != NULL) {
        conn_end(p->conns);
    }
    sg_timer_cancel(p->a.egress->reactor, &p->pause);
    sg_watch_del(p->a.egress->reactor, &p->listener);
    sg_close(p->listener.fd);
    sg_hold_unref(p->a.hold);
    p->lookups->p = NULL;
    lookups_unref(p->lookups);
    free(p);
    return NULL;
}

void sg_egress_counters_read(const struct sg_egress_counters *c, struct sg_egress_figures *ret)
{
    for (size_t i = 0; i < SG_EGRESS_OUTCOMES; i++) {
        ret->outcomes[i] = atomic_load(&c->outcomes[i]);
    }
    ret->bytes_out = atomic_load(&c->bytes_out);
    ret->bytes_in = atomic_load(&c->bytes_in);
    ret->open = atomic_load(&c->open);
}

/* ---- what all of them share ---- */

int sg_egress_hub_new(struct sg_reactor *reactor, struct sg_egress_hub **ret, struct sg_error *err)
{
    struct sg_egress_hub *e = sg_xcalloc(1, sizeof *e);
    struct rlimit files = {ALL_CONNS_MAX, ALL_CONNS_MAX};
    (void)getrlimit(RLIMIT_NOFILE, &files);
    rlim_t most = files.rlim_cur / 4; /* two descriptors each, three where it was brought from far away, and the rest is for others */
    e->open_max = most < ALL_CONNS_MAX ? (unsigned)most : ALL_CONNS_MAX;
    e->reactor = reactor;
    if (sg_resolver_new(&e->resolver, err) < 0) {
        free(e);
        return -1;
    }
    *ret = e;
    return 0;
}

struct sg_egress_hub *sg_egress_hub_free(struct sg_egress_hub *e)
{
    if (e != NULL) {
        sg_resolver_free(e->resolver);
        free(e);
    }
    return NULL;
}
