#include "upstream_rig.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct conn_arg {
    struct rig_server *s;
    int fd;
    int nth;
};

static void *conn_main(void *arg)
{
    struct conn_arg a = *(struct conn_arg *)arg;
    free(arg);
    a.s->serve(a.s, a.fd, a.nth);
    close(a.fd);
    return NULL;
}

static void *accept_main(void *arg)
{
    struct rig_server *s = arg;
    for (;;) {
        int fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            return NULL;
        struct conn_arg *a = sg_xcalloc(1, sizeof *a);
        int nth = atomic_fetch_add(&s->n_conns, 1);
        *a = (struct conn_arg){s, fd, nth};
        pthread_create(&s->conns[nth], NULL, conn_main, a);
    }
}

void rig_server_start(struct rig_server *s, void (*serve)(struct rig_server *s, int fd, int nth))
{
    memset(s, 0, sizeof *s);
    s->serve = serve;
    s->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    cr_assert_eq(bind(s->listen_fd, (struct sockaddr *)&a, sizeof a), 0);
    cr_assert_eq(listen(s->listen_fd, 64), 0);
    cr_assert_eq(getsockname(s->listen_fd, (struct sockaddr *)&a, &len), 0);
    s->port = ntohs(a.sin_port);
    pthread_create(&s->thread, NULL, accept_main, s);
}

void rig_server_stop(struct rig_server *s)
{
    shutdown(s->listen_fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->listen_fd);
    for (int i = 0; i < s->n_conns; i++)
        pthread_join(s->conns[i], NULL);
}

size_t rig_read_head(int fd, char *head, size_t size)
{
    size_t n = 0;
    while (n + 1 < size && recv(fd, head + n, 1, 0) == 1) {
        n++;
        if (n >= 4 && memcmp(head + n - 4, "\r\n\r\n", 4) == 0)
            break;
    }
    head[n] = '\0';
    return n;
}

void rig_send(int fd, const char *text)
{
    size_t len = strlen(text);
    while (len > 0) {
        ssize_t n = send(fd, text, len, MSG_NOSIGNAL);
        if (n <= 0)
            return;
        text += n;
        len -= (size_t)n;
    }
}

bool rig_wait_closed(int fd)
{
    char junk[65536];
    struct timeval tv = {.tv_sec = 10};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    ssize_t n;
    while ((n = recv(fd, junk, sizeof junk, 0)) > 0)
        continue;
    return n == 0 || errno == ECONNRESET;
}

static void hold_gone(void *arg)
{
    atomic_fetch_add(&((struct rig *)arg)->holds_gone, 1);
}

static int rig_dial(void *arg, uint16_t port, int64_t deadline_ms, const struct sg_dial_done *done,
                    struct sg_error *err)
{
    struct rig *r = arg;
    (void)deadline_ms;
    atomic_fetch_add(&r->dials, 1);
    if (r->dial_error != SG_OK)
        return sg_error_set(err, r->dial_error, "nothing listens on port %u", (unsigned)port);
    if (r->dial_never) {
        r->kept = *done;
        return 0;
    }
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    cr_assert_eq(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    done->fn(done->arg, fd, sg_hold_new(hold_gone, r), NULL);
    return 0;
}

void rig_start(struct rig *r, const struct sg_upstream_config *config, uint16_t port)
{
    signal(SIGPIPE, SIG_IGN);
    memset(r, 0, sizeof *r);
    struct sg_upstream_config defaults = sg_upstream_defaults();
    cr_assert_eq(sg_reactor_new(&r->reactor, NULL), 0);
    r->hub = sg_upstreams_new(r->reactor, config != NULL ? config : &defaults);
    r->port = port;
    r->lease_end = sg_cancel_new();
    r->target = (struct sg_upstream_target){
        .lease_id = "lease_test", .port = port, .lease_end = r->lease_end, .dial = rig_dial, .arg = r};
}

void rig_stop(struct rig *r)
{
    sg_upstreams_free(r->hub);
    sg_reactor_free(r->reactor);
    sg_cancel_unref(r->lease_end);
}

static void answered(void *arg, const struct sg_upstream_answer *a)
{
    struct rig_call *c = arg;
    pthread_mutex_lock(&c->lock);
    cr_assert(!c->answered && !c->failed);
    c->status = a->head->status;
    c->length = a->length;
    c->whole = a->pipe == NULL;
    c->pipe = a->pipe;
    c->whole_len = a->whole_len;
    cr_assert_leq(a->whole_len, sizeof c->whole_body);
    if (a->whole_len > 0)
        memcpy(c->whole_body, a->whole, a->whole_len);
    c->answered = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static void trailers(void *arg, const char *lines, size_t len)
{
    (void)arg;
    cr_assert_gt(len, 0U);
    cr_assert_eq(lines[len - 1], '\n');
}

static void failed(void *arg, const struct sg_error *err)
{
    struct rig_call *c = arg;
    pthread_mutex_lock(&c->lock);
    cr_assert(!c->answered && !c->failed);
    sg_error_copy(&c->err, err);
    c->failed = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static void ended(void *arg)
{
    struct rig_call *c = arg;
    pthread_mutex_lock(&c->lock);
    cr_assert((c->answered || c->failed) && !c->ended);
    c->ended = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

int rig_call(struct rig *r, struct rig_call *c, const char *method, struct sg_pipe *body, int64_t length,
             struct sg_cancel *cancel, struct sg_error *err)
{
    memset(c, 0, sizeof *c);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    char head[256];
    int n = snprintf(head, sizeof head, "%s / HTTP/1.1\r\nHost: x\r\n", method);
    if (body != NULL && length >= 0)
        n += snprintf(head + n, sizeof head - (size_t)n, "Content-Length: %lld\r\n", (long long)length);
    else if (body != NULL)
        n += snprintf(head + n, sizeof head - (size_t)n, "Transfer-Encoding: chunked\r\n");
    n += snprintf(head + n, sizeof head - (size_t)n, "\r\n");
    struct sg_upstream_request q = {
        .head = head,
        .head_len = (size_t)n,
        .body = body,
        .body_length = length,
        .is_head = sg_streq(method, "HEAD"),
        .replayable = sg_streq(method, "GET") || sg_streq(method, "HEAD"),
        .upgrade = r->upgrade,
        .cancel = cancel,
    };
    struct sg_upstream_sink sink = {
        .answered = answered, .failed = failed, .trailers = r->trailers ? trailers : NULL, .ended = ended, .arg = c};
    return sg_upstream_start(r->hub, &r->target, &q, &sink, err);
}

void rig_wait(struct rig_call *c)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    pthread_mutex_lock(&c->lock);
    while (!c->answered && !c->failed)
        cr_assert_eq(pthread_cond_timedwait(&c->changed, &c->lock, &until), 0, "no answer in 20 s");
    pthread_mutex_unlock(&c->lock);
}

struct bell {
    _Atomic int refs;
    pthread_mutex_t lock;
    pthread_cond_t rung;
    bool ringing;
};

static void bell_ref(void *arg)
{
    atomic_fetch_add(&((struct bell *)arg)->refs, 1);
}

static void bell_unref(void *arg)
{
    struct bell *b = arg;
    if (atomic_fetch_sub(&b->refs, 1) == 1)
        free(b);
}

static struct bell *bell_new(void)
{
    struct bell *b = sg_xcalloc(1, sizeof *b);
    b->refs = 1;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->rung, NULL);
    return b;
}

static void ring(void *arg)
{
    struct bell *b = arg;
    pthread_mutex_lock(&b->lock);
    b->ringing = true;
    pthread_cond_broadcast(&b->rung);
    pthread_mutex_unlock(&b->lock);
}

static bool bell_wait(struct bell *b)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    int rc = 0;
    pthread_mutex_lock(&b->lock);
    while (!b->ringing && rc == 0)
        rc = pthread_cond_timedwait(&b->rung, &b->lock, &until);
    b->ringing = false;
    pthread_mutex_unlock(&b->lock);
    return rc == 0;
}

ssize_t rig_pipe_read(struct sg_pipe *p, void *data, size_t size)
{
    ssize_t n = sg_pipe_read(p, data, size);
    if (n != -EAGAIN)
        return n;
    struct bell *b = bell_new();
    struct sg_waker w = {ring, bell_ref, bell_unref, b};
    sg_pipe_set_reader(p, &w);
    while ((n = sg_pipe_read(p, data, size)) == -EAGAIN)
        if (!bell_wait(b))
            break;
    sg_pipe_set_reader(p, NULL);
    bell_unref(b);
    return n;
}

int rig_pipe_write(struct sg_pipe *p, const void *data, size_t len)
{
    struct bell *b = bell_new();
    struct sg_waker w = {ring, bell_ref, bell_unref, b};
    sg_pipe_set_writer(p, &w);
    ssize_t n = 0;
    while (len > 0 && n >= 0) {
        n = sg_pipe_write(p, data, len);
        if (n == 0 && !bell_wait(b))
            n = -ETIME;
        if (n > 0) {
            data = (const char *)data + n;
            len -= (size_t)n;
        }
    }
    sg_pipe_set_writer(p, NULL);
    bell_unref(b);
    return n < 0 ? (int)n : 0;
}

void rig_call_finish(struct rig_call *c)
{
    if (c->pipe != NULL)
        sg_pipe_stop(c->pipe);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    pthread_mutex_lock(&c->lock);
    while (!c->ended)
        cr_assert_eq(pthread_cond_timedwait(&c->changed, &c->lock, &until), 0, "no end in 20 s");
    pthread_mutex_unlock(&c->lock);
    sg_pipe_unref(c->pipe);
    sg_error_clear(&c->err);
}
