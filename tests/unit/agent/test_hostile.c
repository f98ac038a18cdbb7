/* The test plays an agent that has been taken over: whatever it sends, the server loses that sandbox and
 * nothing else. */
#include "box.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"

#ifndef TIOCGPTPEER
#define TIOCGPTPEER _IO('T', 0x41)
#endif

static ssize_t send_raw(int sock, const void *data, size_t len, const int *fds, unsigned n)
{
    char control[CMSG_SPACE(sizeof(int) * 64)] = {0};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = len};
    struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n > 0) {
        h.msg_control = control;
        h.msg_controllen = CMSG_SPACE(sizeof(int) * n);
        struct cmsghdr *c = CMSG_FIRSTHDR(&h);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * n);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * n);
    }
    return sendmsg(sock, &h, MSG_NOSIGNAL);
}

/* Sends m with n descriptors, whatever the protocol says about their number. */
static void send_msg(int sock, struct sg_agent_msg *m, const int *fds, unsigned n)
{
    unsigned char data[2048];
    unsigned really = n <= 1 ? n : 1;
    m->nfds = really;
    size_t len = sg_agent_encode(m, data, sizeof data);
    cr_assert_gt(len, 0U);
    uint16_t count = (uint16_t)n;
    memcpy(data + 2, &count, sizeof count);
    ssize_t sent = send_raw(sock, data, len, fds, n);
    cr_assert(sent == (ssize_t)len || (sent < 0 && (errno == EPIPE || errno == ECONNRESET)), "it may be lost already");
}

/* The id of the next request of `type`; its descriptors are closed. */
static uint64_t expect(int sock, enum sg_agent_type type)
{
    static unsigned char data[SG_AGENT_PACKET_MAX];
    char control[CMSG_SPACE(sizeof(int) * SG_AGENT_FDS_MAX)];
    struct iovec iov = {.iov_base = data, .iov_len = sizeof data};
    struct msghdr h = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t n = recvmsg(sock, &h, 0);
    unsigned fds = 0;
    cr_assert_gt(n, 0);
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&h); c != NULL; c = CMSG_NXTHDR(&h, c)) {
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++, fds++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            close(fd);
        }
    }
    struct sg_agent_msg m;
    cr_assert_eq(sg_agent_decode(data, (size_t)n, fds, SG_AGENT_FROM_SERVER, &m), 0);
    cr_assert_eq(m.type, type);
    return m.id;
}

struct waiter {
    struct box *box;
    bool done;
    enum sg_code code;
    int fd;
};

static void end_with(struct waiter *w, const struct sg_error *err)
{
    w->code = err != NULL ? err->code : SG_OK;
    box_set(w->box, &w->done);
}

static void got_source(void *arg, struct sg_file_source *src, const struct sg_error *err)
{
    struct waiter *w = arg;
    if (src != NULL) {
        close(src->fd);
        sg_hold_unref(src->hold);
    }
    end_with(w, err);
}

static void got_sink(void *arg, struct sg_file_sink *sink, const struct sg_error *err)
{
    if (sink != NULL)
        sink->ops->abort(sink);
    end_with(arg, err);
}

static void got_stat(void *arg, const struct sg_file_stat *st, const struct sg_error *err)
{
    (void)st;
    end_with(arg, err);
}

static void got_done(void *arg, const struct sg_error *err)
{
    end_with(arg, err);
}

static void got_list(void *arg, struct sg_file_list *l, const struct sg_error *err)
{
    if (l != NULL)
        sg_file_list_finish(l);
    end_with(arg, err);
}

static void got_fd(void *arg, int fd, struct sg_hold *hold, const struct sg_error *err)
{
    if (fd >= 0)
        close(fd);
    sg_hold_unref(hold);
    end_with(arg, err);
}

struct scene {
    struct box b;
    int sock;
    unsigned fds;
    struct waiter w;
};

static void scene_start_hasty(struct scene *s, uint64_t cookie, int64_t tree_ms)
{
    *s = (struct scene){.sock = -1};
    free(sg_xstrdup("x"));
    s->fds = open_fds();
    s->sock = box_fake(&s->b, SG_AGENT_UID, tree_ms);
    unsigned char data[256];
    struct sg_agent_msg m = {.type = SG_AGENT_HELLO};
    m.u.hello.pid = 1;
    m.u.hello.isolation = SG_AGENT_UID;
    m.u.hello.command_uid = 1000;
    m.u.hello.flags = SG_AGENT_HELLO_NO_NEW_PRIVS | SG_AGENT_HELLO_NOT_DUMPABLE;
    m.u.hello.netns_cookie = cookie;
    size_t n = sg_agent_encode(&m, data, sizeof data);
    cr_assert_eq(send_raw(s->sock, data, n, NULL, 0), (ssize_t)n);
    box_wait(&s->b, &s->b.ready);
    s->w = (struct waiter){.box = &s->b};
}

static void scene_start(struct scene *s, uint64_t cookie)
{
    scene_start_hasty(s, cookie, 0);
}

/* lost: the sandbox must have been lost by now or soon. */
static void scene_end(struct scene *s, bool lost)
{
    if (lost) {
        box_wait(&s->b, &s->b.lost);
        cr_expect_eq(s->b.why.code, SG_SANDBOX_LOST);
        cr_expect(sg_agent_is_gone(s->b.agent));
    } else {
        cr_expect(!s->b.lost, "%s", s->b.why.message);
    }
    box_stop(&s->b);
    close(s->sock);
    cr_expect_eq(open_fds(), s->fds, "descriptors leak");
}

/* ---- HELLO ---- */

Test(hostile, a_hello_that_does_not_fit_is_refused)
{
    static const struct {
        uint32_t pid, isolation, uid, command_uid, flags;
        uint64_t caps;
    } bad[] = {
        {2, SG_AGENT_UID, 0, 1000, 3, 0},
        {1, SG_AGENT_DUMPABLE, 0, 1000, 3, 0},
        {1, SG_AGENT_UID, 1, 1000, 3, 0},
        {1, SG_AGENT_UID, 0, 0, 3, 0},
        {1, SG_AGENT_UID, 0, 1000, 1, 0},
        {1, SG_AGENT_UID, 0, 1000, 2, 0},
        {1, SG_AGENT_UID, 0, 1000, 3, 1ULL << CAP_SYS_ADMIN},
        {1, 77, 0, 1000, 3, 0},
    };
    for (size_t i = 0; i < SG_COUNT_OF(bad); i++) {
        struct box b;
        unsigned char data[256];
        int sock = box_fake(&b, SG_AGENT_UID, 0);
        struct sg_agent_msg m = {.type = SG_AGENT_HELLO};
        m.u.hello.pid = bad[i].pid;
        m.u.hello.isolation = bad[i].isolation;
        m.u.hello.uid = bad[i].uid;
        m.u.hello.command_uid = bad[i].command_uid;
        m.u.hello.flags = bad[i].flags;
        m.u.hello.caps = bad[i].caps;
        size_t n = sg_agent_encode(&m, data, sizeof data);
        cr_assert_eq(send_raw(sock, data, n, NULL, 0), (ssize_t)n);
        box_wait(&b, &b.lost);
        cr_expect(!b.ready, "case %zu", i);
        box_stop(&b);
        close(sock);
    }
}

Test(hostile, packets_that_are_none)
{
    static const unsigned char junk[] = "this is not a packet of the protocol, not even by far";
    unsigned char data[1024];
    for (int kind = 0; kind < 7; kind++) {
        struct scene s;
        scene_start(&s, 0);
        struct sg_agent_msg m = {.type = SG_AGENT_DONE, .id = 12345};
        size_t n = sg_agent_encode(&m, data, sizeof data);
        if (kind == 0)
            (void)send_raw(s.sock, junk, sizeof junk, NULL, 0);
        else if (kind == 1)
            (void)send_raw(s.sock, data, n - 1, NULL, 0); /* cut */
        else if (kind == 2)
            (void)send_raw(s.sock, data, n, NULL, 0); /* nobody asked */
        else if (kind == 3)
            (void)send_raw(s.sock, data, sizeof data, NULL, 0); /* more behind it */
        else if (kind == 4)
            (void)send_raw(s.sock, junk, 1, NULL, 0);
        else if (kind == 5)
            box_fake_hello(s.sock, SG_AGENT_UID); /* again */
        else
            (void)shutdown(s.sock, SHUT_RDWR);
        scene_end(&s, true);
    }
}

Test(hostile, a_huge_packet)
{
    struct scene s;
    static char big[100000];
    scene_start(&s, 0);
    (void)send_raw(s.sock, big, sizeof big, NULL, 0);
    scene_end(&s, true);
}

/* ---- files ---- */

enum { READ_FILE, TEMP_FILE };

/* Answers a get (or put) with fds; true: it was taken for a good one. */
static bool offer(int what, const int *fds, unsigned n, uint32_t flags, const char *text)
{
    struct scene s;
    scene_start(&s, 0);
    struct sg_file_source_done get = {.fn = got_source, .arg = &s.w};
    struct sg_file_sink_done put = {.fn = got_sink, .arg = &s.w};
    struct sg_file_put_args a = {.path = "f", .size_hint = -1};
    if (what == READ_FILE)
        cr_assert_eq(sg_agent_get(s.b.agent, "f", &get, NULL), 0);
    else
        cr_assert_eq(sg_agent_put(s.b.agent, &a, &put, NULL), 0);
    struct sg_agent_msg m = {.type = SG_AGENT_DONE, .id = expect(s.sock, SG_AGENT_OPEN)};
    m.u.done.flags = flags;
    m.u.done.text = text;
    send_msg(s.sock, &m, fds, n);
    box_wait(&s.b, &s.w.done);
    bool good = s.w.code == SG_OK;
    if (!good)
        cr_expect_eq(s.w.code, SG_SANDBOX_LOST);
    scene_end(&s, !good);
    return good;
}

Test(hostile, descriptors_that_are_no_ordinary_files)
{
    char dir[] = "/tmp/sg-hostile-XXXXXX", path[64];
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/f", dir);
    int rw = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    int ro = open(path, O_RDONLY | O_CLOEXEC), wo = open(path, O_WRONLY | O_CLOEXEC);
    int at = open(path, O_PATH | O_CLOEXEC);
    int d = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int proc = open("/proc/self/status", O_RDONLY | O_CLOEXEC),
        null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int procd = open("/proc", O_RDONLY | O_CLOEXEC);
    int p[2], u[2];
    cr_assert(pipe2(p, O_CLOEXEC) == 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, u) == 0);
    cr_expect(offer(READ_FILE, &ro, 1, 0, ""));
    cr_expect(offer(TEMP_FILE, &rw, 1, 0, ""));
    cr_expect(offer(TEMP_FILE, &rw, 1, SG_AGENT_DONE_NAMED, "/workspace/.name"));
    int bad_reads[] = {rw, wo, at, d, proc, null, procd, p[0], u[0]};
    for (size_t i = 0; i < SG_COUNT_OF(bad_reads); i++)
        cr_expect(!offer(READ_FILE, &bad_reads[i], 1, 0, ""), "read %zu", i);
    int bad_temps[] = {ro, wo, at, d, proc, null, p[1], u[0]};
    for (size_t i = 0; i < SG_COUNT_OF(bad_temps); i++)
        cr_expect(!offer(TEMP_FILE, &bad_temps[i], 1, 0, ""), "temp %zu", i);
    cr_expect(!offer(TEMP_FILE, &rw, 1, SG_AGENT_DONE_NAMED, "../up"));
    cr_expect(!offer(TEMP_FILE, &rw, 1, SG_AGENT_DONE_NAMED, ""));
    int two[] = {ro, ro}, many[40];
    for (size_t i = 0; i < SG_COUNT_OF(many); i++)
        many[i] = ro;
    cr_expect(!offer(READ_FILE, NULL, 0, 0, ""));
    cr_expect(!offer(READ_FILE, two, 2, 0, ""));
    cr_expect(!offer(READ_FILE, many, 16, 0, ""));
    cr_expect(!offer(READ_FILE, many, 40, 0, "")); /* cut by the kernel */
    int all[] = {rw, ro, wo, at, d, proc, null, procd, p[0], p[1], u[0], u[1]};
    for (size_t i = 0; i < SG_COUNT_OF(all); i++)
        close(all[i]);
    unlink(path);
    rmdir(dir);
}

Test(hostile, a_descriptor_nobody_asked_for)
{
    struct scene s;
    scene_start(&s, 0);
    struct sg_file_stat_done done = {.fn = got_stat, .arg = &s.w};
    cr_assert_eq(sg_agent_stat(s.b.agent, "f", &done, NULL), 0);
    struct sg_agent_msg m = {.type = SG_AGENT_DONE, .id = expect(s.sock, SG_AGENT_STAT)};
    m.u.done.flags = SG_AGENT_DONE_STAT;
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    send_msg(s.sock, &m, &null, 1);
    close(null);
    box_wait(&s.b, &s.w.done);
    cr_expect_eq(s.w.code, SG_SANDBOX_LOST);
    scene_end(&s, true);
}

static enum sg_code offer_list(uint64_t size, bool *lost)
{
    struct scene s;
    scene_start(&s, 0);
    struct sg_file_list_done done = {.fn = got_list, .arg = &s.w};
    cr_assert_eq(sg_agent_list(s.b.agent, &(struct sg_file_list_args){.path = "d", .recursive = true, .max = 100}, &done, NULL), 0);
    struct sg_agent_msg m = {.type = SG_AGENT_DONE, .id = expect(s.sock, SG_AGENT_LIST)};
    m.u.done.size = size;
    send_msg(s.sock, &m, NULL, 0);
    box_wait(&s.b, &s.w.done);
    enum sg_code code = s.w.code;
    *lost = code == SG_SANDBOX_LOST;
    scene_end(&s, *lost);
    return code;
}

Test(hostile, lists_that_are_none)
{
    bool lost;
    cr_expect_eq(offer_list(0, &lost), SG_OK);
    cr_expect_eq(offer_list(1000, &lost), SG_INTERNAL); /* zeroes are no records */
    cr_expect_eq(offer_list(SG_AGENT_LIST_BYTES_MAX, &lost), SG_INTERNAL);
    cr_expect_eq(offer_list(UINT64_MAX, &lost), SG_SANDBOX_LOST);
    cr_expect(lost);
}

/* ---- sockets ---- */

/* For a connection, or to listen at. */
static bool offer_socket(bool to_listen, int fd, uint64_t cookie)
{
    struct scene s;
    scene_start(&s, cookie);
    struct sg_dial_done done = {.fn = got_fd, .arg = &s.w};
    if (to_listen)
        cr_assert_eq(sg_agent_listen(s.b.agent, 61081, 1, &done, NULL), 0);
    else
        cr_assert_eq(sg_agent_dial(s.b.agent, 9, sg_now_ms() + 2000, &done, NULL), 0);
    struct sg_agent_msg m = {.type = SG_AGENT_DONE, .id = expect(s.sock, SG_AGENT_SOCKET)};
    send_msg(s.sock, &m, &fd, 1);
    bool good = true;
    if (!s.b.lost) {
        struct timespec t = {.tv_nsec = 50000000};
        nanosleep(&t, NULL);
    }
    pthread_mutex_lock(&s.b.lock);
    good = !s.b.lost;
    pthread_mutex_unlock(&s.b.lock);
    scene_end(&s, !good);
    return good;
}

Test(hostile, sockets_of_another_kind)
{
    int on = SOCK_NONBLOCK | SOCK_CLOEXEC;
    uint64_t cookie = 0;
    socklen_t len = sizeof cookie;
    int good = socket(AF_INET, SOCK_STREAM | on, 0), udp = socket(AF_INET, SOCK_DGRAM | on, 0);
    int six = socket(AF_INET6, SOCK_STREAM | on, 0), local = socket(AF_UNIX, SOCK_STREAM | on, 0);
    int blocking = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
        listening = socket(AF_INET, SOCK_STREAM | on, 0);
    int file = open("/etc/passwd", O_RDONLY | O_CLOEXEC);
    cr_assert_eq(listen(listening, 1), 0);
    struct sockaddr_in addr;
    socklen_t addr_len = sizeof addr;
    int connected = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(getsockname(listening, (struct sockaddr *)&addr, &addr_len), 0);
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    cr_assert_eq(connect(connected, (struct sockaddr *)&addr, addr_len), 0);
    fcntl(connected, F_SETFL, O_NONBLOCK);
    cr_assert_eq(getsockopt(good, SOL_SOCKET, 71 /* SO_NETNS_COOKIE */, &cookie, &len), 0);
    cr_expect(offer_socket(false, good, cookie));
    int lingering = socket(AF_INET, SOCK_STREAM | on, 0);
    cr_assert_eq(setsockopt(lingering, SOL_SOCKET, SO_LINGER, &(struct linger){1, 3600}, sizeof(struct linger)), 0);
    int bad[] = {udp, six, local, blocking, listening, connected, lingering, file};
    for (size_t i = 0; i < SG_COUNT_OF(bad); i++) {
        cr_expect(!offer_socket(false, bad[i], cookie), "%zu", i);
        cr_expect(!offer_socket(true, bad[i], cookie), "%zu to listen at", i);
    }
    int other = socket(AF_INET, SOCK_STREAM | on, 0);
    cr_expect(!offer_socket(false, other, cookie + 1), "a socket of another network");
    cr_expect(!offer_socket(true, other, cookie + 1), "a socket of another network to listen at");
    cr_expect(offer_socket(true, other, cookie));
    int all[] = {good, udp, six, local, blocking, listening, connected, lingering, file, other};
    for (size_t i = 0; i < SG_COUNT_OF(all); i++)
        close(all[i]);
}

/* A listener whose queue is full: a connect to it hangs, and is refused once the listener is gone and the kernel asks again. */
struct full_listener {
    int fd, queued;
    struct sockaddr_in addr;
};

static void listener_fill(struct full_listener *l)
{
    socklen_t len = sizeof l->addr;
    l->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    l->queued = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    l->addr = (struct sockaddr_in){.sin_family = AF_INET};
    l->addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    cr_assert_eq(bind(l->fd, (struct sockaddr *)&l->addr, sizeof l->addr), 0);
    cr_assert_eq(listen(l->fd, 0), 0);
    cr_assert_eq(getsockname(l->fd, (struct sockaddr *)&l->addr, &len), 0);
    cr_assert_eq(connect(l->queued, (struct sockaddr *)&l->addr, sizeof l->addr), 0);
}

static void socket_answer(struct scene *s, int family, uint64_t id)
{
    struct sg_agent_msg m = {.type = SG_AGENT_DONE, .id = id};
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    send_msg(s->sock, &m, &fd, 1);
    close(fd);
}

Test(hostile, a_dial_whose_time_is_up_while_the_agent_is_asked)
{
    struct scene s;
    struct full_listener l;
    int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    uint64_t cookie = 0;
    socklen_t len = sizeof cookie;
    cr_assert_eq(getsockopt(probe, SOL_SOCKET, 71 /* SO_NETNS_COOKIE */, &cookie, &len), 0);
    close(probe);
    scene_start(&s, cookie);
    listener_fill(&l);
    struct sg_dial_done done = {.fn = got_fd, .arg = &s.w};
    int64_t deadline = sg_now_ms() + 4000;
    cr_assert_eq(sg_agent_dial(s.b.agent, ntohs(l.addr.sin_port), deadline, &done, NULL), 0);
    socket_answer(&s, AF_INET, expect(s.sock, SG_AGENT_SOCKET));
    close(l.fd);
    close(l.queued);
    uint64_t second = expect(s.sock, SG_AGENT_SOCKET); /* 127.0.0.1 has refused at last */
    cr_assert_lt(sg_now_ms(), deadline);
    while (sg_now_ms() < deadline + 50)
        usleep(10000);
    socket_answer(&s, AF_INET6, second);
    box_wait(&s.b, &s.w.done);
    cr_expect(s.w.code == SG_ENDPOINT_NOT_LISTENING || s.w.code == SG_ENDPOINT_TIMEOUT, "%d", s.w.code);
    scene_end(&s, false);
}

/* ---- commands ---- */

Test(hostile, a_command_out_of_order)
{
    static const enum sg_agent_type orders[][3] = {{SG_AGENT_EXITED},
                                                   {SG_AGENT_STARTED, SG_AGENT_STARTED},
                                                   {SG_AGENT_STARTED, SG_AGENT_SPAWN_FAILED},
                                                   {SG_AGENT_DONE}};
    for (size_t i = 0; i < SG_COUNT_OF(orders); i++) {
        struct scene s;
        struct run r;
        scene_start(&s, 0);
        cr_assert_eq(run_start(&r, &s.b, &(struct run_args){.shell = "true", .stdin_open = true}), 0);
        uint64_t id = expect(s.sock, SG_AGENT_SPAWN);
        for (size_t k = 0; k < 3 && orders[i][k] != 0; k++) {
            struct sg_agent_msg m = {.type = orders[i][k], .id = id};
            if (m.type == SG_AGENT_SPAWN_FAILED)
                m.u.failed.stage = SG_AGENT_STAGE_CWD;
            send_msg(s.sock, &m, NULL, 0);
        }
        run_wait(&r);
        cr_expect(r.failed && r.error.code == SG_SANDBOX_LOST);
        run_finish(&r);
        scene_end(&s, true);
    }
}

/* ---- terminals ---- */

enum { T_NONE, T_PIPE, T_NULL, T_FILE, T_SOCKET, T_SLAVE, T_PTMX_PATH, T_TWICE, T_LATE, T_UNASKED, T_RIGHT, T_KINDS };

/* A master, and in *slave its other end. */
static int make_master(int *slave)
{
    int unlocked = 0;
    int m = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    cr_assert(m >= 0 && ioctl(m, TIOCSPTLCK, &unlocked) == 0);
    *slave = ioctl(m, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    cr_assert(*slave >= 0);
    return m;
}

static int make_wrong(int kind, int slave)
{
    int p[2];
    switch (kind) {
    case T_PIPE:
        cr_assert_eq(pipe2(p, O_CLOEXEC), 0);
        close(p[1]);
        return p[0];
    case T_NULL:
        return open("/dev/null", O_RDWR | O_CLOEXEC);
    case T_FILE:
        return memfd_create("x", MFD_CLOEXEC);
    case T_SOCKET:
        return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    case T_PTMX_PATH:
        return open("/dev/ptmx", O_PATH | O_CLOEXEC);
    default:
        return fcntl(slave, F_DUPFD_CLOEXEC, 0);
    }
}

static void say(int sock, enum sg_agent_type type, uint64_t id, int fd)
{
    struct sg_agent_msg m = {.type = type, .id = id};
    send_msg(sock, &m, &fd, fd >= 0 ? 1 : 0);
}

static void play(struct scene *s, int kind, uint64_t id, int master, int slave)
{
    bool mastered = kind >= T_TWICE && kind != T_LATE;
    int other = -1;
    if (mastered) {
        say(s->sock, SG_AGENT_TERMINAL, id, master);
    } else if (kind != T_NONE && kind != T_LATE) {
        other = make_wrong(kind, slave);
        cr_assert(other >= 0);
        say(s->sock, SG_AGENT_TERMINAL, id, other);
        close(other);
    }
    if (kind == T_TWICE)
        say(s->sock, SG_AGENT_TERMINAL, id, master);
    if (kind == T_UNASKED)
        return;
    say(s->sock, SG_AGENT_STARTED, id, -1);
    if (kind == T_LATE)
        say(s->sock, SG_AGENT_TERMINAL, id, master);
    say(s->sock, SG_AGENT_EXITED, id, -1);
}

Test(hostile, terminals_that_are_none)
{
    for (int kind = 0; kind < T_KINDS; kind++) {
        struct scene s;
        struct run r;
        int slave;
        int master = make_master(&slave);
        scene_start(&s, 0);
        struct run_args a = {.shell = "true", .stdin_open = kind == T_UNASKED};
        if (kind != T_UNASKED)
            a.tty = (struct sg_tty_size){24, 80};
        cr_assert_eq(run_start(&r, &s.b, &a), 0);
        uint64_t id = expect(s.sock, SG_AGENT_SPAWN);
        cr_assert_eq(write(slave, "said\n", 5), 5);
        play(&s, kind, id, master, slave);
        cr_assert_eq(close(slave), 0);
        run_wait(&r);
        if (kind == T_RIGHT)
            cr_expect(!r.failed && strcmp(r.out, "said\r\n") == 0, "%s", r.out);
        else
            cr_expect(r.failed && r.error.code == SG_SANDBOX_LOST, "kind %d", kind);
        cr_expect(kind != T_RIGHT || (fcntl(master, F_GETFL) & O_NONBLOCK) != 0, "the server's own never blocks");
        run_finish(&r);
        s.fds -= 1; /* the slave was open when they were counted */
        scene_end(&s, kind != T_RIGHT);
        close(master);
    }
}

Test(hostile, an_agent_that_does_not_read)
{
    struct scene s;
    scene_start(&s, 0);
    struct sg_error err = {0};
    static struct waiter w[5000];
    int n = 0;
    for (; n < 5000; n++) {
        w[n] = (struct waiter){.box = &s.b};
        struct sg_file_stat_done done = {.fn = got_stat, .arg = &w[n]};
        if (sg_agent_stat(s.b.agent, "f", &done, &err) < 0)
            break;
    }
    cr_assert(n > 10 && n < 5000);
    cr_expect_eq(err.code, SG_OVERLOADED);
    sg_error_clear(&err);
    close(s.sock);
    s.sock = -1;
    for (int i = 0; i < n; i++) {
        box_wait(&s.b, &w[i].done);
        cr_expect_eq(w[i].code, SG_SANDBOX_LOST);
    }
    box_wait(&s.b, &s.b.lost);
    box_stop(&s.b);
}

Test(hostile, an_agent_that_does_not_answer)
{
    struct scene s;
    scene_start(&s, 0);
    struct sg_file_stat_done done = {.fn = got_stat, .arg = &s.w};
    int64_t start = sg_now_ms();
    cr_assert_eq(sg_agent_stat(s.b.agent, "f", &done, NULL), 0);
    box_wait(&s.b, &s.w.done);
    cr_expect_eq(s.w.code, SG_SANDBOX_LOST);
    cr_expect(sg_now_ms() - start >= 9900);
    scene_end(&s, true);
}

/* A tree takes as long as it is large: whoever waits hears that it is not over, and nothing is lost. */
Test(hostile, a_tree_that_takes_too_long)
{
    struct scene s;
    scene_start_hasty(&s, 0, 50);
    struct waiter again = {.box = &s.b}, list = {.box = &s.b};
    struct sg_done done = {.fn = got_done, .arg = &s.w};
    struct sg_file_list_done listed = {.fn = got_list, .arg = &list};
    cr_assert_eq(sg_agent_remove(s.b.agent, "d", true, NULL, &done, NULL), 0);
    struct sg_agent_msg m = {.type = SG_AGENT_DONE, .id = expect(s.sock, SG_AGENT_REMOVE)};
    cr_assert_eq(sg_agent_list(s.b.agent, &(struct sg_file_list_args){.path = "d", .recursive = true, .max = 10}, &listed, NULL), 0);
    (void)expect(s.sock, SG_AGENT_LIST); /* never answered at all */
    box_wait(&s.b, &s.w.done);
    cr_expect_eq(s.w.code, SG_OUTCOME_UNKNOWN);
    box_wait(&s.b, &list.done);
    cr_expect_eq(list.code, SG_OUTCOME_UNKNOWN);
    send_msg(s.sock, &m, NULL, 0); /* at last */
    struct sg_file_stat_done stat = {.fn = got_stat, .arg = &again};
    cr_assert_eq(sg_agent_stat(s.b.agent, "f", &stat, NULL), 0);
    m = (struct sg_agent_msg){.type = SG_AGENT_DONE, .id = expect(s.sock, SG_AGENT_STAT)};
    m.u.done.error = ENOENT;
    send_msg(s.sock, &m, NULL, 0);
    box_wait(&s.b, &again.done);
    cr_expect_eq(again.code, SG_NOT_FOUND);
    scene_end(&s, false);
}
