/* The test plays a relay, honest and not: what is asked of an agent that is far travels as it should, and a relay that has been taken over gains
 * nothing but the loss of its sandbox. */
#include <criterion/criterion.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/agent/far.h"
#include "backends/agent/mux.h"
#include "base/clock.h"
#include "base/reactor.h"
#include "base/workq.h"

#define WAIT_MS 10000

/* What came of one operation. */
struct outcome {
    int done; /* eventfd */
    enum sg_code code;
    int fd;
    struct sg_file_stat stat;
    struct sg_file_content *content;
    struct sg_file_sink *sink;
};

static struct sg_reactor *reactor;
static struct sg_workq *workq;
static struct sg_agent *agent;
static struct sg_pipe *in, *out;
static int readable, closed, lost; /* eventfds */
static struct sg_error why;
static struct outcome o;
static char came[1 << 20];
static size_t came_len;
static char spool[] = "/tmp";

static void ring(int fd)
{
    const uint64_t one = 1;
    cr_assert_eq(write(fd, &one, sizeof one), (ssize_t)sizeof one);
}

static void await(int fd, const char *what)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    uint64_t n;
    cr_assert_eq(poll(&p, 1, WAIT_MS), 1, "%s", what);
    cr_assert_eq(read(fd, &n, sizeof n), (ssize_t)sizeof n);
}

static void wake(void *arg)
{
    (void)arg;
    ring(readable);
}

static void on_closed(void *arg)
{
    (void)arg;
    ring(closed);
}

static void on_lost(void *arg, const struct sg_error *err)
{
    (void)arg;
    sg_error_copy(&why, err);
    ring(lost);
}

static void start(struct sg_task *t)
{
    const struct sg_agent_far far = {.in = in, .out = out, .closed = on_closed, .spool = spool};
    const struct sg_agent_options options = {.reactor = reactor, .workq = workq, .isolation = SG_AGENT_UID, .lost = on_lost};
    (void)t;
    cr_assert_eq(sg_agent_new_far(&far, &options, &agent, NULL), 0);
    ring(o.done);
}

/* ---- frames ---- */

static void say(uint32_t channel, uint32_t type, const void *data, size_t len)
{
    static char frame[SG_MUX_HEADER + SG_MUX_DATA_MAX]; /* all at once: it may be the last that is heard */
    const uint32_t head[] = {channel, type, (uint32_t)len};
    memcpy(frame, head, sizeof head);
    memcpy(frame + sizeof head, data, len);
    cr_assert_eq(sg_pipe_write(in, frame, sizeof head + len), (ssize_t)(sizeof head + len));
}

static void tell(struct sg_agent_msg *m)
{
    unsigned char data[8192];
    size_t len = sg_agent_encode(m, data, sizeof data);
    cr_assert_gt(len, 0U);
    say(0, SG_MUX_PACKET, data, len);
}

static void done(uint64_t id, uint32_t error, unsigned nfds, uint32_t flags)
{
    struct sg_agent_msg m = {.type = SG_AGENT_DONE, .id = id, .nfds = nfds};
    m.u.done.error = error;
    m.u.done.flags = flags;
    m.u.done.stat = (struct sg_agent_stat){.type = S_IFREG, .mode = 0640, .uid = 1000, .size = 5, .mtime_ns = 77, .ino = 42};
    m.u.done.text = "";
    tell(&m);
}

struct heard {
    uint32_t channel, type, len;
    uint32_t n, names[SG_MUX_NAMED_MAX]; /* of a PACKET */
    struct sg_agent_msg m;
    char text[4096]; /* of DATA; the packet */
};

/* The next frame that is no CREDIT. */
static void hear(struct heard *h)
{
    for (;;) {
        uint32_t head[3] = {0};
        if (came_len >= sizeof head)
            memcpy(head, came, sizeof head);
        size_t all = sizeof head + head[2];
        if (came_len >= sizeof head && came_len >= all) {
            *h = (struct heard){.channel = head[0], .type = head[1], .len = head[2]};
            const char *p = came + sizeof head;
            size_t len = head[2];
            if (h->type == SG_MUX_PACKET) {
                uint16_t nfds;
                memcpy(&h->n, p, 4);
                cr_assert_leq(h->n, SG_MUX_NAMED_MAX);
                memcpy(h->names, p + 4, 4 * h->n);
                p += 4 + 4 * h->n;
                len -= 4 + 4 * h->n;
                memcpy(&nfds, p + 2, 2);
                memcpy(h->text, p, len);
                cr_assert_eq(sg_agent_decode(h->text, len, nfds, SG_AGENT_FROM_SERVER, &h->m), 0);
            } else {
                memcpy(h->text, p, len < sizeof h->text ? len : sizeof h->text);
            }
            came_len -= all;
            memmove(came, came + all, came_len);
            if (h->type != SG_MUX_CREDIT)
                return;
            continue;
        }
        ssize_t n = sg_pipe_read(out, came + came_len, sizeof came - came_len);
        if (n == -EAGAIN)
            await(readable, "the server says something");
        else
            cr_assert_gt(n, 0, "the connection ended");
        came_len += n > 0 ? (size_t)n : 0;
    }
}

static uint64_t expect(struct heard *h, enum sg_agent_type type)
{
    hear(h);
    cr_assert_eq(h->type, (uint32_t)SG_MUX_PACKET);
    cr_assert_eq(h->m.type, type);
    return h->m.id;
}

/* ---- life ---- */

static void connect_relay(void)
{
    const struct sg_waker w = {.wake = wake};
    struct sg_task task = {.run = start};
    signal(SIGPIPE, SIG_IGN);
    readable = eventfd(0, EFD_CLOEXEC);
    closed = eventfd(0, EFD_CLOEXEC);
    lost = eventfd(0, EFD_CLOEXEC);
    o = (struct outcome){.done = eventfd(0, EFD_CLOEXEC), .fd = -1};
    came_len = 0;
    cr_assert_eq(sg_reactor_new(&reactor, NULL), 0);
    cr_assert_eq(sg_workq_new(1, 64, &workq, NULL), 0);
    in = sg_pipe_new(1 << 20);
    out = sg_pipe_new(1 << 20);
    sg_pipe_set_reader(out, &w);
    sg_reactor_post(reactor, &task);
    await(o.done, "it begins");
}

static struct sg_agent_msg hello(void)
{
    struct sg_agent_msg m = {.type = SG_AGENT_HELLO};
    m.u.hello.pid = 1;
    m.u.hello.isolation = SG_AGENT_UID;
    m.u.hello.command_uid = 1000;
    m.u.hello.flags = SG_AGENT_HELLO_NO_NEW_PRIVS | SG_AGENT_HELLO_NOT_DUMPABLE;
    return m;
}

static void begin(void)
{
    struct sg_agent_msg m = hello();
    connect_relay();
    tell(&m);
}

static void end(void)
{
    sg_agent_close(agent);
    await(closed, "nothing of the connection is used any more");
    agent = sg_agent_unref(agent);
    sg_workq_free(workq);
    sg_reactor_free(reactor);
    sg_pipe_set_reader(out, NULL);
    sg_pipe_unref(in);
    sg_pipe_unref(out);
    sg_error_clear(&why);
    close(o.fd);
    close(o.done);
    close(readable);
    close(closed);
    close(lost);
}

TestSuite(far, .init = begin, .fini = end);

static void is_lost(const char *reason)
{
    await(lost, "the sandbox is lost");
    cr_assert_str_eq(why.reason, reason);
    cr_assert(sg_agent_is_gone(agent));
}

static void end_with(const struct sg_error *err)
{
    o.code = err != NULL ? err->code : SG_OK;
    ring(o.done);
}

static void got_source(void *arg, struct sg_file_source *src, const struct sg_error *err)
{
    (void)arg;
    if (src != NULL) {
        o.fd = src->fd;
        o.content = src->content;
        o.stat = src->stat;
    }
    end_with(err);
}

static void got_sink(void *arg, struct sg_file_sink *sink, const struct sg_error *err)
{
    (void)arg;
    o.sink = sink;
    end_with(err);
}

static void got_stat(void *arg, const struct sg_file_stat *st, const struct sg_error *err)
{
    (void)arg;
    (void)st;
    end_with(err);
}

static void got_list(void *arg, struct sg_file_list *l, const struct sg_error *err)
{
    (void)arg;
    if (l != NULL)
        sg_file_list_finish(l);
    end_with(err);
}

static void got_fd(void *arg, int fd, struct sg_hold *hold, const struct sg_error *err)
{
    (void)arg;
    sg_hold_unref(hold);
    o.fd = fd;
    end_with(err);
}

static void committed(void *arg, const struct sg_file_stat *st, bool created, const struct sg_error *err)
{
    (void)arg;
    (void)st;
    (void)created;
    end_with(err);
}

static void got_done(void *arg, const struct sg_error *err)
{
    (void)arg;
    end_with(err);
}

static void ask_for_file(struct heard *h)
{
    cr_assert_eq(sg_agent_get(agent, "f", &(struct sg_file_source_done){.fn = got_source}, NULL), 0);
    (void)expect(h, SG_AGENT_OPEN);
    cr_assert_eq(h->n, 1U);
}

/* ---- files ---- */

Test(far, a_file_comes_before_its_answer)
{
    struct heard h;
    char text[16] = "";
    ask_for_file(&h);
    say(h.names[0], SG_MUX_DATA, "con", 3);
    say(h.names[0], SG_MUX_DATA, "tent!", 5);
    say(h.names[0], SG_MUX_END, "", 0);
    done(h.m.id, 0, 1, SG_AGENT_DONE_STAT);
    await(o.done, "the file");
    cr_assert_eq(o.code, SG_OK);
    cr_assert_eq(read(o.fd, text, sizeof text), 8);
    cr_assert_str_eq(text, "content!");
    cr_assert_eq(o.stat.size, 8U, "what has come, not what was said");
    cr_assert_eq(o.stat.ino, 42U);
    cr_assert_eq(o.stat.mtime_ns, 77);
}

Test(far, holes_take_no_room)
{
    static const char zeros[SG_MUX_DATA_MAX];
    struct heard h;
    struct stat st;
    ask_for_file(&h);
    say(h.names[0], SG_MUX_DATA, "a", 1);
    for (int i = 0; i < 8; i++)
        say(h.names[0], SG_MUX_DATA, zeros, i == 7 ? 20000 : sizeof zeros);
    say(h.names[0], SG_MUX_END, "", 0);
    done(h.m.id, 0, 1, SG_AGENT_DONE_STAT);
    await(o.done, "the file");
    cr_assert_eq(o.code, SG_OK);
    cr_assert_eq(fstat(o.fd, &st), 0);
    cr_assert_eq(st.st_size, 1 + 7 * SG_MUX_DATA_MAX + 20000);
}

Test(far, a_file_that_is_not_there)
{
    struct heard h;
    ask_for_file(&h);
    say(h.names[0], SG_MUX_END, "", 0);
    done(h.m.id, ENOENT, 0, 0);
    await(o.done, "the answer");
    cr_assert_eq(o.code, SG_NOT_FOUND);
    cr_assert(!sg_agent_is_gone(agent));
}

/* ---- files as they come ---- */

static struct sg_pipe *open_content(struct heard *h, uint64_t first, uint64_t len)
{
    cr_assert_eq(sg_agent_open(agent, "f", &(struct sg_file_source_done){.fn = got_source}, NULL), 0);
    done(expect(h, SG_AGENT_OPEN), 0, 1, SG_AGENT_DONE_STAT);
    cr_assert_eq(h->m.u.file.how, (uint32_t)SG_AGENT_OPEN_CONTENT);
    cr_assert_eq(h->n, 1U);
    await(o.done, "the answer, before anything of the content");
    cr_assert_eq(o.code, SG_OK);
    cr_assert(o.fd < 0 && o.content != NULL && o.stat.size == 5 && o.stat.ino == 42);
    struct sg_pipe *p = o.content->ops->send(o.content, first, len);
    o.content->ops->close(o.content);
    return p;
}

/* What is wanted has been said, and no more will be. */
static uint32_t expect_wanted(struct heard *h, uint64_t first, uint64_t len)
{
    const struct sg_agent_wanted wanted = {first, len};
    uint32_t channel = h->names[0];
    hear(h);
    cr_assert(h->type == SG_MUX_DATA && h->channel == channel && h->len == sizeof wanted);
    cr_assert_arr_eq(h->text, &wanted, sizeof wanted);
    hear(h);
    cr_assert(h->type == SG_MUX_END && h->channel == channel);
    return channel;
}

/* The next bytes of p, or how it ends. */
static ssize_t next_of(struct sg_pipe *p, char *to, size_t len)
{
    const struct sg_waker w = {.wake = wake};
    ssize_t n;
    sg_pipe_set_reader(p, &w);
    while ((n = sg_pipe_read(p, to, len)) == -EAGAIN)
        await(readable, "something comes");
    sg_pipe_set_reader(p, NULL);
    return n;
}

Test(far, of_a_file_comes_what_is_wanted_as_it_comes)
{
    struct heard h;
    char text[8] = "";
    struct sg_pipe *p = open_content(&h, 1, 4);
    uint32_t channel = expect_wanted(&h, 1, 4);
    say(channel, SG_MUX_DATA, "o", 1);
    cr_assert_eq(next_of(p, text, sizeof text), 1, "the first byte, before the others");
    say(channel, SG_MUX_DATA, "nte", 3);
    say(channel, SG_MUX_END, "", 0);
    cr_assert_eq(next_of(p, text, sizeof text), 3);
    cr_assert_eq(next_of(p, text, sizeof text), 0);
    sg_pipe_unref(p);
}

Test(far, a_file_that_becomes_shorter_is_no_whole_one)
{
    struct heard h;
    char text[8];
    struct sg_pipe *p = open_content(&h, 0, 5);
    uint32_t channel = expect_wanted(&h, 0, 5);
    say(channel, SG_MUX_DATA, "cont", 4);
    say(channel, SG_MUX_END, "", 0);
    cr_assert_eq(next_of(p, text, sizeof text), 4);
    cr_assert_eq(next_of(p, text, sizeof text), -EIO);
    sg_pipe_unref(p);
    cr_assert(!sg_agent_is_gone(agent));
}

Test(far, a_file_whose_relay_ends_is_no_whole_one)
{
    struct heard h;
    char text[8];
    struct sg_pipe *p = open_content(&h, 0, 5);
    (void)expect_wanted(&h, 0, 5);
    sg_pipe_close(in);
    cr_assert_eq(next_of(p, text, sizeof text), -EIO);
    sg_pipe_unref(p);
}

Test(far, a_file_that_nobody_wants_any_more_is_stopped)
{
    struct heard h;
    struct sg_pipe *p = open_content(&h, 0, 1 << 20);
    uint32_t channel = expect_wanted(&h, 0, 1 << 20);
    sg_pipe_stop(p);
    sg_pipe_unref(p);
    hear(&h);
    cr_assert(h.type == SG_MUX_STOP && h.channel == channel);
    p = open_content(&h, 0, 0); /* nor one of which nothing is wanted from the beginning */
    cr_assert_eq(next_of(p, NULL, 0), 0);
    sg_pipe_unref(p);
    channel = h.names[0];
    for (hear(&h); h.type != SG_MUX_STOP; hear(&h))
        cr_assert(h.type == SG_MUX_END);
    cr_assert_eq(h.channel, channel);
}

/* One after the other although nobody waits: what names a file comes after it. */
Test(far, an_upload_and_what_comes_after_it_keep_their_order)
{
    struct heard h;
    const struct sg_file_put_args args = {.path = "f", .size_hint = -1, .no_links = true};
    cr_assert_eq(sg_agent_put(agent, &args, &(struct sg_file_sink_done){.fn = got_sink}, NULL), 0);
    done(expect(&h, SG_AGENT_OPEN), 0, 1, SG_AGENT_DONE_STAT);
    cr_assert_eq(h.n, 0U, "only whether it may be");
    await(o.done, "the sink");
    cr_assert_eq(o.sink->ops->write(o.sink, "content", 7, NULL), 0);
    o.sink->ops->commit(o.sink, committed, NULL);
    cr_assert_eq(sg_agent_link(agent, "g", "f", &(struct sg_done){.fn = got_done}, NULL), 0);
    uint64_t stage = expect(&h, SG_AGENT_OPEN);
    uint32_t channel = h.names[0];
    cr_assert_eq(stage, SG_RELAY_CONTENT | channel);
    hear(&h);
    cr_assert_eq(h.type, (uint32_t)SG_MUX_DATA);
    cr_assert_arr_eq(h.text, "content", 7);
    hear(&h);
    cr_assert_eq(h.type, (uint32_t)SG_MUX_END);
    uint64_t commit = expect(&h, SG_AGENT_COMMIT);
    cr_assert_eq(h.names[0], channel);
    uint64_t link = expect(&h, SG_AGENT_LINK);
    done(commit, 0, 0, SG_AGENT_DONE_STAT);
    await(o.done, "the commit");
    cr_assert_eq(o.code, SG_OK);
    done(link, 0, 0, 0);
    await(o.done, "the link");
    cr_assert_eq(o.code, SG_OK);
}

/* ---- connections ---- */

Test(far, a_connection_says_first_what_became_of_it)
{
    struct heard h;
    char text[8] = "";
    const char refused = ECONNREFUSED;
    cr_assert_eq(sg_agent_dial(agent, 80, sg_now_ms() + WAIT_MS, &(struct sg_dial_done){.fn = got_fd}, NULL), 0);
    done(expect(&h, SG_AGENT_SOCKET), 0, 1, 0);
    cr_assert_eq(h.m.u.socket.family, (uint32_t)AF_INET);
    say(h.names[0], SG_MUX_DATA, &refused, 1);
    say(h.names[0], SG_MUX_END, "", 0);
    say(h.names[0], SG_MUX_STOP, "", 0);
    for (hear(&h); h.type != SG_MUX_PACKET; hear(&h))
        ;
    cr_assert_eq(h.m.u.socket.family, (uint32_t)AF_INET6, "then the other address");
    uint32_t channel = h.names[0];
    done(h.m.id, 0, 1, 0);
    say(channel, SG_MUX_DATA, "\0hi", 3);
    await(o.done, "the connection");
    cr_assert_eq(o.code, SG_OK);
    struct pollfd p = {.fd = o.fd, .events = POLLIN};
    cr_assert_eq(poll(&p, 1, WAIT_MS), 1);
    cr_assert_eq(read(o.fd, text, sizeof text), 2);
    cr_assert_eq(write(o.fd, "ho", 2), 2);
    for (hear(&h); h.channel != channel || h.type != SG_MUX_DATA; hear(&h))
        ;
    cr_assert_arr_eq(h.text, "ho", 2);
}

Test(far, a_port_that_does_not_answer_in_time_is_given_up)
{
    struct heard h;
    cr_assert_eq(sg_agent_dial(agent, 80, sg_now_ms() + 50, &(struct sg_dial_done){.fn = got_fd}, NULL), 0);
    done(expect(&h, SG_AGENT_SOCKET), 0, 1, 0);
    await(o.done, "the deadline");
    cr_assert_eq(o.code, SG_ENDPOINT_TIMEOUT);
    hear(&h);
    cr_assert(h.type == SG_MUX_END || h.type == SG_MUX_STOP);
    cr_assert(!sg_agent_is_gone(agent));
}

/* What the relay says of a channel is not taken for what the server has asked of it: the answer brings this connection, and no other descriptor. */
Test(far, a_connection_whose_input_is_stopped_before_its_answer)
{
    struct heard h;
    char text[8] = "";
    cr_assert_eq(sg_agent_dial(agent, 80, sg_now_ms() + WAIT_MS, &(struct sg_dial_done){.fn = got_fd}, NULL), 0);
    uint64_t id = expect(&h, SG_AGENT_SOCKET);
    uint32_t channel = h.names[0];
    say(channel, SG_MUX_STOP, "", 0);
    done(id, 0, 1, 0);
    say(channel, SG_MUX_DATA, "\0hi", 3);
    await(o.done, "the connection");
    cr_assert_eq(o.code, SG_OK);
    struct pollfd p = {.fd = o.fd, .events = POLLIN};
    cr_assert_eq(poll(&p, 1, WAIT_MS), 1);
    cr_assert_eq(read(o.fd, text, sizeof text), 2);
    cr_assert_str_eq(text, "hi");
}

/* Half of a connection may end before the other. */
Test(far, a_connection_from_inside)
{
    struct heard h;
    char text[8] = "";
    cr_assert_eq(sg_agent_listen_far(agent, 61080, &(struct sg_done){.fn = got_done}, NULL), 0);
    uint64_t id = expect(&h, SG_AGENT_LISTEN);
    cr_assert(h.m.u.listen.port == 61080 && h.n == 0);
    done(id, 0, 0, 0);
    await(o.done, "it listens");
    cr_assert_eq(o.code, SG_OK);
    cr_assert_eq(sg_agent_accept(agent, &(struct sg_dial_done){.fn = got_fd}, NULL), 0);
    id = expect(&h, SG_AGENT_ACCEPT);
    uint32_t channel = h.names[0];
    cr_assert_eq(h.n, 1U);
    done(id, 0, 1, 0);
    say(channel, SG_MUX_DATA, "ask", 3);
    say(channel, SG_MUX_END, "", 0);
    await(o.done, "the connection");
    cr_assert_eq(o.code, SG_OK);
    for (size_t at = 0; at < 3;) {
        struct pollfd p = {.fd = o.fd, .events = POLLIN};
        cr_assert_eq(poll(&p, 1, WAIT_MS), 1);
        ssize_t n = read(o.fd, text + at, sizeof text - at);
        cr_assert_gt(n, 0);
        at += (size_t)n;
    }
    cr_assert_str_eq(text, "ask");
    struct pollfd p = {.fd = o.fd, .events = POLLIN};
    cr_assert_eq(poll(&p, 1, WAIT_MS), 1);
    cr_assert_eq(read(o.fd, text, sizeof text), 0, "no more is asked");
    cr_assert_eq(write(o.fd, "told", 4), 4);
    hear(&h);
    cr_assert(h.channel == channel && h.type == SG_MUX_DATA);
    cr_assert_arr_eq(h.text, "told", 4);
}

Test(far, a_port_that_somebody_else_has)
{
    struct heard h;
    cr_assert_eq(sg_agent_listen_far(agent, 61080, &(struct sg_done){.fn = got_done}, NULL), 0);
    done(expect(&h, SG_AGENT_LISTEN), EADDRINUSE, 0, 0);
    await(o.done, "the answer");
    cr_assert_eq(o.code, SG_UNAVAILABLE);
    cr_assert(!sg_agent_is_gone(agent));
}

/* ---- terminals ---- */

static struct sg_exec *command;
static struct sg_exit ended;

static void on_started(void *arg)
{
    (void)arg;
    end_with(NULL);
}

static void on_exited(void *arg, const struct sg_exit *e)
{
    (void)arg;
    ended = *e;
    end_with(NULL);
}

static void on_failed(void *arg, const struct sg_error *err)
{
    (void)arg;
    end_with(err);
}

/* Asks for a command on a terminal: the id, and its channel in h. */
static uint64_t ask_for_terminal(struct heard *h)
{
    static const char *const argv[] = {"sh", NULL};
    const struct sg_exec_spec spec = {.argv = argv, .stdin_open = true, .timeout_ms = 60000, .pipe_bytes = 65536, .tty = {24, 80}};
    const struct sg_exec_sink sink = {.started = on_started, .exited = on_exited, .failed = on_failed};
    cr_assert_eq(sg_agent_exec_start(agent, &spec, NULL, &sink, &command, NULL), 0);
    uint64_t id = expect(h, SG_AGENT_SPAWN);
    cr_assert_eq(h->n, 1U, "one channel, both ways");
    cr_assert_eq(h->m.u.spawn.rows, 24U);
    return id;
}

static void say_terminal(uint64_t id)
{
    tell(&(struct sg_agent_msg){.type = SG_AGENT_TERMINAL, .id = id, .nfds = 1});
}

static void say_started(uint64_t id)
{
    tell(&(struct sg_agent_msg){.type = SG_AGENT_STARTED, .id = id, .u.started = {7}});
}

static uint64_t start_on_terminal(struct heard *h)
{
    uint64_t id = ask_for_terminal(h);
    say_terminal(id);
    say_started(id);
    await(o.done, "it has started");
    cr_assert_eq(o.code, SG_OK);
    return id;
}

static void read_all(const char *expected)
{
    char text[64] = "";
    size_t at = 0;
    const struct sg_waker w = {.wake = wake};
    sg_pipe_set_reader(command->out, &w);
    for (;;) {
        ssize_t n = sg_pipe_read(command->out, text + at, sizeof text - 1 - at);
        if (n == -EAGAIN)
            await(readable, "output");
        else if (n <= 0)
            break;
        at += n > 0 ? (size_t)n : 0;
    }
    sg_pipe_set_reader(command->out, NULL);
    cr_assert_str_eq(text, expected);
}

Test(far, a_terminal_is_a_channel_of_both_ways)
{
    struct heard h;
    uint64_t id = start_on_terminal(&h);
    uint32_t channel = h.names[0];
    cr_assert_eq(sg_pipe_write(command->in, "typed", 5), 5);
    hear(&h);
    cr_assert(h.channel == channel && h.type == SG_MUX_DATA);
    cr_assert_arr_eq(h.text, "typed", 5);
    cr_assert_eq(command->ops->resize(command, 50, 132, &(struct sg_done){.fn = got_done}, NULL), 0);
    uint64_t resize = expect(&h, SG_AGENT_RESIZE);
    cr_assert(h.m.u.resize.command == id && h.m.u.resize.rows == 50 && h.m.u.resize.cols == 132);
    done(resize, 0, 0, 0);
    await(o.done, "the new size");
    cr_assert_eq(o.code, SG_OK);
    sg_pipe_close(command->in);
    hear(&h);
    cr_assert(h.channel == channel && h.type == SG_MUX_END, "which types the end");
    say(channel, SG_MUX_DATA, "shown", 5);
    tell(&(struct sg_agent_msg){.type = SG_AGENT_EXITED, .id = id, .u.exited = {3, 0}});
    say(channel, SG_MUX_DATA, "late", 4);
    say(channel, SG_MUX_END, "", 0);
    read_all("shownlate");
    await(o.done, "its end");
    cr_assert_eq(ended.returncode, 3);
    struct sg_error err = {0};
    cr_assert_eq(command->ops->resize(command, 1, 1, &(struct sg_done){.fn = got_done}, &err), -1);
    cr_assert_eq(err.code, SG_CONFLICT);
    sg_error_clear(&err);
    command->ops->release(command);
    cr_assert(!sg_agent_is_gone(agent));
}

Test(far, a_terminal_that_is_not_had)
{
    struct heard h;
    uint64_t id = ask_for_terminal(&h);
    tell(&(struct sg_agent_msg){.type = SG_AGENT_SPAWN_FAILED, .id = id, .u.failed = {SG_AGENT_STAGE_TTY, ENOSPC}});
    await(o.done, "the answer");
    cr_assert_eq(o.code, SG_OVERLOADED);
    command->ops->release(command);
    hear(&h);
    cr_assert(h.type == SG_MUX_END || h.type == SG_MUX_STOP, "the channel goes");
    cr_assert(!sg_agent_is_gone(agent));
}

Test(far, a_size_for_a_terminal_that_has_ended_meanwhile)
{
    struct heard h;
    (void)start_on_terminal(&h);
    cr_assert_eq(command->ops->resize(command, 50, 132, &(struct sg_done){.fn = got_done}, NULL), 0);
    done(expect(&h, SG_AGENT_RESIZE), ENXIO, 0, 0);
    await(o.done, "the answer");
    cr_assert_eq(o.code, SG_CONFLICT);
    command->ops->release(command);
}

/* ---- the end of the connection ---- */

Test(far, a_connection_that_breaks_leaves_an_unknown_outcome)
{
    struct heard h;
    struct sg_error broke = {0};
    cr_assert_eq(sg_agent_stat(agent, "f", &(struct sg_file_stat_done){.fn = got_stat}, NULL), 0);
    (void)expect(&h, SG_AGENT_STAT);
    sg_error_set(&broke, SG_PROVIDER_FAILED, "the wire was cut");
    sg_pipe_fail(in, &broke);
    sg_error_clear(&broke);
    await(o.done, "the answer");
    cr_assert_eq(o.code, SG_OUTCOME_UNKNOWN);
    is_lost(SG_AGENT_RELAY_GONE);
    cr_assert_not_null(strstr(why.message, "the wire was cut"));
}

Test(far, an_agent_of_another_version, .init = connect_relay)
{
    unsigned char data[256];
    struct sg_agent_msg m = hello();
    size_t len = sg_agent_encode(&m, data, sizeof data);
    cr_assert_gt(len, 0U);
    data[0]--;
    say(0, SG_MUX_PACKET, data, len);
    is_lost("agent_version");
}

/* ---- a relay that has been taken over ---- */

Test(far, an_answer_before_its_content)
{
    struct heard h;
    ask_for_file(&h);
    say(h.names[0], SG_MUX_DATA, "x", 1);
    done(h.m.id, 0, 1, SG_AGENT_DONE_STAT);
    is_lost("agent_protocol");
}

Test(far, a_list_before_its_content)
{
    struct heard h;
    const struct sg_file_list_args args = {.path = ".", .max = 10};
    cr_assert_eq(sg_agent_list(agent, &args, &(struct sg_file_list_done){.fn = got_list}, NULL), 0);
    done(expect(&h, SG_AGENT_LIST), 0, 0, 0);
    is_lost("agent_protocol");
}

Test(far, a_descriptor_that_nobody_asked_for)
{
    struct heard h;
    cr_assert_eq(sg_agent_stat(agent, "f", &(struct sg_file_stat_done){.fn = got_stat}, NULL), 0);
    done(expect(&h, SG_AGENT_STAT), 0, 1, SG_AGENT_DONE_STAT);
    is_lost("agent_protocol");
}

Test(far, a_terminal)
{
    struct sg_agent_msg m = {.type = SG_AGENT_TERMINAL, .id = 1, .nfds = 1};
    tell(&m);
    is_lost("agent_protocol");
}

static uint64_t accept_one(struct heard *h)
{
    cr_assert_eq(sg_agent_accept(agent, &(struct sg_dial_done){.fn = got_fd}, NULL), 0);
    return expect(h, SG_AGENT_ACCEPT);
}

/* As many connections as were asked for, and each once. */
Test(far, a_second_connection_for_one_question)
{
    struct heard h;
    uint64_t id = accept_one(&h);
    done(id, 0, 1, 0);
    await(o.done, "the connection");
    cr_assert_eq(o.code, SG_OK);
    done(id, 0, 1, 0);
    is_lost("agent_protocol");
}

Test(far, a_connection_without_being_asked)
{
    done(12, 0, 1, 0);
    is_lost("agent_protocol");
}

Test(far, a_connection_that_is_none)
{
    struct heard h;
    done(accept_one(&h), 0, 0, 0);
    is_lost("agent_protocol");
}

Test(far, a_connection_over_before_it_is_there)
{
    struct heard h;
    uint64_t id = accept_one(&h);
    say(h.names[0], SG_MUX_STOP, "", 0);
    say(h.names[0], SG_MUX_END, "", 0);
    done(id, 0, 1, 0);
    is_lost("agent_protocol");
}

Test(far, a_socket_in_place_of_its_port)
{
    struct heard h;
    cr_assert_eq(sg_agent_listen_far(agent, 61080, &(struct sg_done){.fn = got_done}, NULL), 0);
    done(expect(&h, SG_AGENT_LISTEN), 0, 1, 0);
    is_lost("agent_protocol");
}

Test(far, a_second_terminal)
{
    struct heard h;
    uint64_t id = start_on_terminal(&h);
    say_terminal(id);
    is_lost("agent_protocol");
    command->ops->release(command);
}

Test(far, a_start_without_the_terminal)
{
    struct heard h;
    say_started(ask_for_terminal(&h));
    is_lost("agent_protocol");
    command->ops->release(command);
}

Test(far, an_answer_in_place_of_a_terminal)
{
    struct heard h;
    done(ask_for_terminal(&h), 0, 0, 0);
    is_lost("agent_protocol");
    command->ops->release(command);
}

Test(far, more_than_a_terminal_may_say)
{
    static char much[SG_MUX_HEADER + SG_MUX_DATA_MAX];
    struct heard h;
    (void)start_on_terminal(&h);
    const uint32_t head[] = {h.names[0], SG_MUX_DATA, SG_MUX_DATA_MAX};
    memcpy(much, head, sizeof head);
    for (int i = 0; i < 28; i++) /* nobody reads, so there is no credit; less than the pipe holds, and nobody takes the last of it */
        (void)sg_pipe_write(in, much, sizeof much);
    is_lost("agent_protocol");
    command->ops->release(command);
}

Test(far, an_answer_that_nobody_asked_for)
{
    done(999, 0, 0, 0);
    is_lost("agent_protocol");
}

Test(far, a_second_answer_and_more_content)
{
    struct heard h;
    ask_for_file(&h);
    say(h.names[0], SG_MUX_END, "", 0);
    say(h.names[0], SG_MUX_DATA, "x", 1);
    is_lost("agent_protocol");
}

Test(far, a_question)
{
    say(7, SG_MUX_OPEN, "", 0);
    is_lost("agent_protocol");
}
