/* The connection: requests out from any thread, answers in on the reactor, one way to be lost. */
#include "backends/agent/client_priv.h"
#include "backends/agent/far.h"
#include "backends/agent/packets.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

#define PACKETS_PER_TURN 64
#define ANSWER_MAX 4608 /* the agent's packets are smaller */

/* ---- life ---- */

struct sg_agent *sg_agent_ref(struct sg_agent *a)
{
    atomic_fetch_add(&a->refs, 1);
    return a;
}

struct sg_agent *sg_agent_unref(struct sg_agent *a)
{
    if (a == NULL || atomic_fetch_sub(&a->refs, 1) != 1)
        return NULL;
    struct sg_hold *hold = a->o.hold;
    sg_error_clear(&a->why);
    pthread_mutex_destroy(&a->lock);
    free(a->root);
    free(a->seen_at);
    free(a);
    sg_hold_unref(hold);
    return NULL;
}

bool sg_agent_is_gone(const struct sg_agent *a)
{
    struct sg_agent *v = (struct sg_agent *)(uintptr_t)a; /* the lock is not part of the value */
    pthread_mutex_lock(&v->lock);
    bool gone = v->gone || v->closing;
    pthread_mutex_unlock(&v->lock);
    return gone;
}

void sg_agent_close(struct sg_agent *a)
{
    pthread_mutex_lock(&a->lock);
    if (!a->gone && !a->closing) {
        a->closing = true;
        (void)shutdown(a->fd, SHUT_RDWR); /* the reactor hears the end of file and does the rest */
    }
    pthread_mutex_unlock(&a->lock);
}

struct sg_agent *sg_agent_end(struct sg_agent *a)
{
    if (a)
        sg_agent_close(a);
    return sg_agent_unref(a);
}

/* Ends everything. Reactor thread. */
static void end(struct sg_agent *a, const char *reason, const char *what)
{
    pthread_mutex_lock(&a->lock);
    if (a->gone) {
        pthread_mutex_unlock(&a->lock);
        return;
    }
    a->gone = true;
    bool closing = a->closing;
    if (closing) {
        sg_error_set(&a->why, SG_LEASE_GONE, "the sandbox has ended");
    } else if (sg_streq(reason, SG_AGENT_RELAY_GONE)) {
        sg_error_set(&a->why, SG_OUTCOME_UNKNOWN, "the connection to the sandbox broke: %s", what);
        sg_error_reason(&a->why, reason);
    } else {
        sg_error_set(&a->why, SG_SANDBOX_LOST, "the sandbox is lost: %s", what);
        sg_error_reason(&a->why, reason);
    }
    sg_watch_del(a->reactor, &a->watch);
    a->fd = sg_close(a->fd);
    struct sg_call *calls = a->calls;
    a->calls = NULL;
    pthread_mutex_unlock(&a->lock);

    sg_timer_cancel(a->reactor, &a->timer);
    struct sg_call *c, *next;
    HASH_ITER(hh, calls, c, next)
    {
        HASH_DEL(calls, c);
        c->waiting = false;
        (void)c->answer(c, NULL, -1, &a->why);
    }
    if (!closing && a->o.lost != NULL)
        a->o.lost(a->o.arg, &a->why);
    sg_agent_unref(a);
}

void sg_agent_lose(struct sg_agent *a, const char *reason, const char *what)
{
    end(a, reason, what);
}

/* ---- out ---- */

/* Under the lock. */
static int gone_error(struct sg_agent *a, struct sg_error *err)
{
    if (!a->gone)
        return sg_error_set(err, SG_LEASE_GONE, "the sandbox has ended");
    if (err != NULL)
        sg_error_copy(err, &a->why);
    return -1;
}

static int busy_error(struct sg_error *err)
{
    sg_error_set(err, SG_OVERLOADED, "the sandbox takes no more requests now");
    return sg_error_retry_after(err, 1);
}

/* Under the lock. */
static int send_locked(struct sg_agent *a, const struct sg_agent_msg *m, const int *fds, struct sg_error *err)
{
    unsigned char data[SG_AGENT_REQUEST_MAX];
    size_t len = sg_agent_encode(m, data, sizeof data);
    if (len == 0)
        return sg_error_set(err, SG_INTERNAL, "a request to the sandbox breaks its own limits");
    int e = sg_agent_transmit(a->fd, data, len, fds, m->nfds);
    if (e == 0)
        return 0;
    if (e == EPIPE || e == ECONNRESET || e == ENOTCONN)
        return sg_error_set(err, SG_SANDBOX_LOST, "the sandbox is gone"); /* the reactor hears of it too */
    if (e == EAGAIN || e == ETOOMANYREFS || e == ENOBUFS || e == ENOMEM)
        return busy_error(err);
    return sg_error_sys(err, SG_INTERNAL, e, "cannot reach the sandbox");
}

int sg_agent_tell(struct sg_agent *a, struct sg_agent_msg *m, struct sg_error *err)
{
    pthread_mutex_lock(&a->lock);
    int r = a->gone || a->closing ? gone_error(a, err) : send_locked(a, m, NULL, err);
    pthread_mutex_unlock(&a->lock);
    return r;
}

/* Under the lock: makes sure that the timer looks in time. Few calls get here: it stays set while anything
 * waits. */
static void need_timer(struct sg_agent *a, int64_t due_ms)
{
    if (a->next_due_ms != 0 && a->next_due_ms <= due_ms)
        return;
    a->next_due_ms = due_ms;
    if (a->arming)
        return;
    a->arming = true;
    sg_agent_ref(a);
    sg_reactor_post(a->reactor, &a->arm);
}

static int64_t patience_ms(const struct sg_agent *a, const struct sg_call *c)
{
    if (!c->tree)
        return SG_AGENT_ANSWER_MS;
    return a->o.tree_ms > 0 ? a->o.tree_ms : SG_AGENT_TREE_ANSWER_MS;
}

/* With an agent that is far content travels before the answer, or what is to be done in order waits for that of others. */
static bool waits_for_content(const struct sg_agent *a, enum sg_agent_type type)
{
    return a->o.far && (type == SG_AGENT_OPEN || type == SG_AGENT_COMMIT || type == SG_AGENT_MKDIR || type == SG_AGENT_LINK ||
                        type == SG_AGENT_ATTRIBUTES);
}

int sg_agent_call(struct sg_agent *a, struct sg_call *c, struct sg_agent_msg *m, const int *fds, struct sg_error *err)
{
    c->tree = c->tree || waits_for_content(a, m->type);
    pthread_mutex_lock(&a->lock);
    int r = 0;
    if (a->gone || a->closing) {
        r = gone_error(a, err);
    } else if (HASH_COUNT(a->calls) >= SG_AGENT_PENDING_MAX) {
        r = busy_error(err);
    } else {
        c->id = m->id = ++a->last_id;
        c->due_ms = c->lasting ? 0 : sg_now_ms() + patience_ms(a, c);
        r = send_locked(a, m, fds, err); /* the answer waits for the lock */
        if (r == 0) {
            c->waiting = true;
            HASH_ADD(hh, a->calls, id, sizeof c->id, c);
            if (c->due_ms != 0)
                need_timer(a, c->due_ms);
        }
    }
    pthread_mutex_unlock(&a->lock);
    return r;
}

/* ---- deadlines ---- */

static int nobody_waits(struct sg_call *c, const struct sg_agent_msg *m, int fd, const struct sg_error *err)
{
    (void)m;
    (void)err;
    sg_close(fd);
    free(c);
    return 0;
}

/* Under the lock: moves a call that has waited too long into *late. Its answer will still come, for nobody. */
static void stop_waiting(struct sg_agent *a, struct sg_call *c, struct sg_call **late)
{
    struct sg_call *stand_in = sg_xcalloc(1, sizeof *stand_in);
    *stand_in = (struct sg_call){.answer = nobody_waits, .wants_fd = c->wants_fd, .id = c->id, .waiting = true};
    HASH_DEL(a->calls, c);
    HASH_ADD(hh, a->calls, id, sizeof stand_in->id, stand_in);
    c->waiting = false;
    HASH_ADD(hh, *late, id, sizeof c->id, c);
}

static void tell_late(struct sg_call *late)
{
    struct sg_error err = {0};
    struct sg_call *c, *next;
    sg_error_set(&err, SG_OUTCOME_UNKNOWN, "the sandbox is still at work on it: look before you repeat");
    HASH_ITER(hh, late, c, next)
    {
        HASH_DEL(late, c);
        (void)c->answer(c, NULL, -1, &err);
    }
    sg_error_clear(&err);
}

/* Under the lock: when to look again, 0: never. *late: what has waited too long. False: the agent is silent. */
static bool look_at_calls(struct sg_agent *a, int64_t *ret_next, struct sg_call **late)
{
    int64_t now = sg_now_ms();
    struct sg_call *c, *next;
    *ret_next = 0;
    HASH_ITER(hh, a->calls, c, next)
    {
        if (c->due_ms == 0)
            continue;
        if (c->due_ms > now)
            *ret_next = *ret_next == 0 || c->due_ms < *ret_next ? c->due_ms : *ret_next;
        else if (c->tree)
            stop_waiting(a, c, late);
        else
            return false;
    }
    return true;
}

static void look(struct sg_timer *t)
{
    struct sg_agent *a = sg_agent_ref(sg_container_of(t, struct sg_agent, timer));
    struct sg_call *late = NULL;
    int64_t next = 0;
    pthread_mutex_lock(&a->lock);
    bool silent = !a->greeted || !look_at_calls(a, &next, &late);
    a->next_due_ms = next;
    pthread_mutex_unlock(&a->lock);
    tell_late(late);
    if (silent) /* of one that is far nobody knows whether it is the agent that does not, or what is on the way to it */
        end(a, a->o.far ? SG_AGENT_RELAY_GONE : "agent_silent", "the agent does not answer");
    else if (next != 0)
        sg_timer_set(a->reactor, &a->timer, next);
    sg_agent_unref(a);
}

static void arm(struct sg_task *t)
{
    struct sg_agent *a = sg_container_of(t, struct sg_agent, arm);
    pthread_mutex_lock(&a->lock);
    int64_t due = a->gone ? 0 : a->next_due_ms;
    a->arming = false;
    pthread_mutex_unlock(&a->lock);
    if (due != 0)
        sg_timer_set(a->reactor, &a->timer, due);
    sg_agent_unref(a);
}

/* ---- in ---- */

static bool hello_right(struct sg_agent *a, const struct sg_agent_msg *m)
{
    const uint64_t may = (1ULL << CAP_SETUID) | (1ULL << CAP_SETGID) | (1ULL << CAP_KILL);
    const uint32_t must = SG_AGENT_HELLO_NO_NEW_PRIVS | SG_AGENT_HELLO_NOT_DUMPABLE;
    if ((m->u.hello.pid != 1 && a->o.isolation != SG_AGENT_HOST) || m->u.hello.isolation != (uint32_t)a->o.isolation ||
        (m->u.hello.flags & must) != must)
        return false;
    if (a->o.isolation == SG_AGENT_UID)
        return m->u.hello.uid == 0 && (m->u.hello.caps & ~may) == 0 && m->u.hello.command_uid != 0;
    if (a->o.isolation == SG_AGENT_HOST && m->u.hello.uid == 0)
        return false;
    return m->u.hello.caps == 0 && m->u.hello.command_uid == m->u.hello.uid;
}

static int hello(struct sg_agent *a, const struct sg_agent_msg *m)
{
    if (a->greeted || m->type != SG_AGENT_HELLO || !hello_right(a, m))
        return -1;
    a->greeted = true;
    a->facts = (struct sg_agent_facts){
        .isolation = a->o.isolation,
        .uid = m->u.hello.uid,
        .gid = m->u.hello.gid,
        .command_uid = m->u.hello.command_uid,
        .command_gid = m->u.hello.command_gid,
        .netns_cookie = m->u.hello.netns_cookie,
    };
    if (a->o.ready != NULL)
        a->o.ready(a->o.arg, &a->facts);
    return 0;
}

void sg_agent_call_started(struct sg_agent *a, struct sg_call *c)
{
    pthread_mutex_lock(&a->lock);
    c->due_ms = 0;
    pthread_mutex_unlock(&a->lock);
}

void sg_agent_call_over(struct sg_agent *a, struct sg_call *c)
{
    pthread_mutex_lock(&a->lock);
    if (c->waiting)
        HASH_DEL(a->calls, c);
    c->waiting = false;
    pthread_mutex_unlock(&a->lock);
}

/* The call that m answers; a DONE ends it. NULL when nobody asked. */
static struct sg_call *find_call(struct sg_agent *a, const struct sg_agent_msg *m, unsigned n_fds)
{
    struct sg_call *c = NULL;
    pthread_mutex_lock(&a->lock);
    HASH_FIND(hh, a->calls, &m->id, sizeof m->id, c);
    if (c != NULL && c->command != (m->type != SG_AGENT_DONE))
        c = NULL;
    if (c != NULL && !c->command && n_fds != (c->wants_fd && m->u.done.error == 0 ? 1U : 0U))
        c = NULL;
    if (c != NULL && !c->command) {
        HASH_DEL(a->calls, c);
        c->waiting = false;
    }
    pthread_mutex_unlock(&a->lock);
    return c;
}

/* 0, or -1: the packet breaks the protocol; its descriptors have been taken or are still in fds. */
static int handle(struct sg_agent *a, const void *data, size_t len, int *fds, unsigned n_fds)
{
    struct sg_agent_msg m;
    if (sg_agent_decode(data, len, n_fds, SG_AGENT_FROM_AGENT, &m) < 0)
        return -1;
    if (!a->greeted || m.type == SG_AGENT_HELLO)
        return hello(a, &m);
    struct sg_call *c = find_call(a, &m, n_fds);
    if (c == NULL)
        return -1;
    return c->answer(c, &m, n_fds == 1 ? sg_steal_fd(&fds[0]) : -1, NULL);
}

/* What the kernel lets one packet carry: a control buffer of this size is cut only when we are out of descriptors ourselves. */
#define KERNEL_FDS_MAX 253U

/* Takes the descriptors of a packet; more than an agent ever sends are closed, but still count. */
static unsigned collect(struct msghdr *h, int fds[SG_AGENT_FDS_MAX])
{
    unsigned n = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c != NULL; c = CMSG_NXTHDR(h, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            if (n < SG_AGENT_FDS_MAX)
                fds[n] = fd;
            else
                sg_close(fd);
            n++;
        }
    }
    return n;
}

/* The answer's descriptor got lost on our side: that is no fault of the agent's. */
static int starved(struct sg_agent *a, const void *data, size_t len)
{
    struct sg_agent_msg m;
    struct sg_error err = {0};
    if (!a->greeted || sg_agent_decode(data, len, 1, SG_AGENT_FROM_AGENT, &m) < 0)
        return -1;
    struct sg_call *c = find_call(a, &m, 1);
    if (c == NULL)
        return -1;
    sg_error_set(&err, SG_OVERLOADED, "the server is out of descriptors");
    sg_error_retry_after(&err, 1);
    (void)c->answer(c, NULL, -1, &err);
    sg_error_clear(&err);
    return 0;
}

/* One packet. False when there is none, or the agent is gone. */
static bool receive(struct sg_agent *a)
{
    unsigned char data[ANSWER_MAX];
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int) * KERNEL_FDS_MAX)];
    } control;
    struct iovec iov = {.iov_base = data, .iov_len = sizeof data};
    struct msghdr h = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t n = recvmsg(a->fd, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0) {
        end(a, "agent_gone", "its first process has ended");
        return false;
    }
    int fds[SG_AGENT_FDS_MAX];
    unsigned n_fds = collect(&h, fds);
    int r = -1;
    if ((h.msg_flags & MSG_CTRUNC) != 0 && (h.msg_flags & MSG_TRUNC) == 0 && n_fds == 0)
        r = starved(a, data, (size_t)n);
    else if ((h.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0)
        r = handle(a, data, (size_t)n, fds, n_fds);
    for (unsigned i = 0; i < n_fds && i < SG_AGENT_FDS_MAX; i++)
        sg_close(fds[i]);
    if (r < 0 && !a->greeted && sg_agent_other_version(data, (size_t)n))
        end(a, "agent_version", "its agent is another version's than this server");
    else if (r < 0)
        end(a, "agent_protocol", "the agent broke the protocol");
    return r == 0 && !a->gone;
}

static void ready(struct sg_watch *w, uint32_t events)
{
    (void)events;
    struct sg_agent *a = sg_agent_ref(sg_container_of(w, struct sg_agent, watch));
    for (int i = 0; i < PACKETS_PER_TURN && receive(a); i++)
        ;
    sg_agent_unref(a);
}

/* ---- start ---- */

static int check_connection(int fd, struct sg_error *err)
{
    int type = 0;
    socklen_t len = sizeof type;
    int flags = fcntl(fd, F_GETFL);
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) < 0 || type != SOCK_SEQPACKET || flags < 0)
        return sg_error_set(err, SG_INTERNAL, "the agent's descriptor is not a SOCK_SEQPACKET socket");
    if (fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
        return sg_error_sys(err, SG_INTERNAL, errno, "cannot set up the agent's socket");
    return 0;
}

int sg_agent_new(int fd, const struct sg_agent_options *o, struct sg_agent **ret, struct sg_error *err)
{
    if (check_connection(fd, err) < 0) {
        sg_close(fd);
        return -1;
    }
    struct sg_agent *a = sg_xcalloc(1, sizeof *a);
    atomic_init(&a->refs, 3); /* the caller's, the connection's, the first arm()'s */
    a->reactor = o->reactor;
    a->workq = o->workq;
    a->o = *o;
    a->o.hold = sg_hold_ref(o->hold);
    a->root = sg_xstrdup(o->root != NULL ? o->root : "/workspace");
    a->seen_at = o->seen_at != NULL ? sg_xstrdup(o->seen_at) : NULL;
    a->o.root = a->o.seen_at = NULL;
    a->fd = fd;
    a->append_tail = &a->append_first;
    a->watch = (struct sg_watch){.ready = ready, .fd = fd};
    a->timer.fire = look;
    a->arm.run = arm;
    a->arming = true;
    a->next_due_ms = sg_now_ms() + SG_AGENT_ANSWER_MS; /* of HELLO */
    pthread_mutex_init(&a->lock, NULL);
    *ret = a;
    if (sg_watch_add(a->reactor, &a->watch, EPOLLIN, err) < 0) {
        *ret = NULL;
        sg_close(fd);
        atomic_store(&a->refs, 1);
        sg_agent_unref(a);
        return -1;
    }
    sg_reactor_post(a->reactor, &a->arm);
    return 0;
}
