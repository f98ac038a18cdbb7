#include <criterion/criterion.h>
#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "upstream_rig.h"

static struct rig rig;
static struct rig_server server;
static struct rig_call call;
static struct sg_error err;
static sem_t arrived; /* once per request that serve_wait has read */

static void begin(const struct sg_upstream_config *config,
                  void (*serve)(struct rig_server *s, int fd, int nth))
{
    sem_init(&arrived, 0, 0);
    rig_server_start(&server, serve);
    rig_start(&rig, config, server.port);
}

static void end(void)
{
    rig_stop(&rig);
    cr_assert_eq(rig.holds_gone, rig.dial_error == SG_OK && !rig.dial_never ? rig.dials : 0);
    rig_server_stop(&server);
}

static void expect_failure(enum sg_code code, const char *reason)
{
    rig_wait(&call);
    cr_assert(call.failed);
    cr_assert_eq(call.err.code, code, "%s: %s", sg_code_name(call.err.code), call.err.message);
    if (reason != NULL)
        cr_assert_str_eq(call.err.reason, reason);
    rig_call_finish(&call);
}

static void get(void)
{
    cr_assert_eq(rig_call(&rig, &call, "GET", NULL, 0, NULL, &err), 0);
}

/* ---- small requests ---- */

static void serve_small(struct rig_server *s, int fd, int nth)
{
    char head[4096];
    (void)nth;
    while (rig_read_head(fd, head, sizeof head) > 0) {
        s->requests++;
        if (strncmp(head, "HEAD", 4) == 0)
            rig_send(fd, "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n");
        else
            rig_send(fd, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    }
}

Test(upstream, connections_are_kept)
{
    begin(NULL, serve_small);
    for (int i = 0; i < 20; i++) {
        cr_assert_eq(rig_call(&rig, &call, i % 3 == 0 ? "POST" : "GET", NULL, 0, NULL, &err), 0);
        rig_wait(&call);
        cr_assert(call.answered && call.whole);
        cr_assert_eq(call.whole_len, 5U);
        cr_assert_eq(memcmp(call.whole_body, "hello", 5), 0);
        rig_call_finish(&call);
    }
    cr_assert_eq(rig.dials, 1);
    cr_assert_eq(server.requests, 20);
    end();
}

Test(upstream, head_has_no_body)
{
    begin(NULL, serve_small);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(rig_call(&rig, &call, "HEAD", NULL, 0, NULL, &err), 0);
        rig_wait(&call);
        cr_assert(call.answered && call.whole && call.whole_len == 0);
        rig_call_finish(&call);
    }
    cr_assert_eq(rig.dials, 1);
    end();
}

static void serve_extra(struct rig_server *s, int fd, int nth)
{
    char head[4096];
    (void)s;
    (void)nth;
    if (rig_read_head(fd, head, sizeof head) > 0)
        rig_send(fd, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\nContent-Length: "
                     "4\r\n\r\nevil");
    rig_wait_closed(fd);
}

Test(upstream, bytes_nobody_asked_for_end_the_connection)
{
    begin(NULL, serve_extra);
    for (int i = 0; i < 3; i++) {
        get();
        rig_wait(&call);
        cr_assert(call.answered && call.whole_len == 5);
        rig_call_finish(&call);
    }
    cr_assert_eq(rig.dials, 3);
    end();
}

/* ---- streams ---- */

#define BIG (8U * 1024U * 1024U)

static void serve_big(struct rig_server *s, int fd, int nth)
{
    char head[4096];
    (void)s;
    rig_read_head(fd, head, sizeof head);
    char *data = malloc(BIG + 1);
    memset(data, 'd', BIG);
    data[BIG] = '\0';
    if (nth == 0) {
        rig_send(fd, "HTTP/1.1 200 OK\r\nContent-Length: 8388608\r\n\r\n");
        rig_send(fd, data);
    } else if (nth == 1) {
        rig_send(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        for (size_t off = 0, n = 1; off < BIG; off += n, n = n * 3 % 40000 + 1) {
            char line[32];
            n = BIG - off < n ? BIG - off : n;
            snprintf(line, sizeof line, "%zx;x=y\r\n", n);
            rig_send(fd, line);
            char keep = data[off + n];
            data[off + n] = '\0';
            rig_send(fd, data + off);
            data[off + n] = keep;
            rig_send(fd, "\r\n");
        }
        rig_send(fd, "0\r\nX-Trailer: dropped\r\n\r\n");
    } else {
        rig_send(fd, "HTTP/1.0 200 OK\r\n\r\n");
        rig_send(fd, data);
    }
    free(data);
}

Test(upstream, big_answers_arrive_whole)
{
    static char piece[100000];
    begin(NULL, serve_big);
    for (int nth = 0; nth < 3; nth++) {
        get();
        rig_wait(&call);
        cr_assert(call.answered && !call.whole);
        cr_assert_eq(call.length, nth == 0 ? (int64_t)BIG : -1);
        size_t total = 0;
        ssize_t n;
        while ((n = rig_pipe_read(call.pipe, piece, sizeof piece)) > 0) {
            cr_assert_leq(sg_pipe_pending(call.pipe), 256U * 1024U);
            for (ssize_t i = 0; i < n; i++)
                cr_assert(piece[i] == 'd');
            total += (size_t)n;
        }
        cr_assert_eq(n, 0);
        cr_assert_eq(total, BIG);
        rig_call_finish(&call);
    }
    end();
}

static int steps[2];

/* ---- which connections are used again ---- */

struct script {
    const char *method;
    const char *answer; /* all of it, or up to where the caller has its head */
    const char *rest;
    int64_t body; /* of the request: 0 none, 5 with its length, -1 chunked */
    bool upgrade;
};

static const struct script *played;

/* Answers request after request by the scripts, whatever the connection. */
static void serve_scripts(struct rig_server *s, int fd, int nth)
{
    char head[4096];
    char rest[64] = "";
    char step;
    (void)nth;
    while (rig_read_head(fd, head, sizeof head) > 0) {
        const struct script *now = &played[s->requests++];
        if (now->body > 0)
            cr_assert_eq(recv(fd, rest, 5, MSG_WAITALL), 5);
        else if (now->body < 0)
            cr_assert_eq(recv(fd, rest, 15, MSG_WAITALL), 15, "%s", rest);
        rig_send(fd, now->answer);
        if (now->rest == NULL)
            continue;
        cr_assert_eq(read(steps[0], &step, 1), 1);
        rig_send(fd, now->rest);
        if (now[1].answer == NULL)
            return;
    }
}

static void play(const struct script *now)
{
    char data[4096];
    struct sg_pipe *body = now->body != 0 ? sg_pipe_new(100) : NULL;
    if (body != NULL) {
        cr_assert_eq(sg_pipe_write(body, "hello", 5), 5);
        sg_pipe_close(body);
    }
    rig.upgrade = now->upgrade;
    cr_assert_eq(rig_call(&rig, &call, now->method, body, now->body, NULL, &err), 0);
    rig_wait(&call);
    cr_assert(call.answered, "%s", call.err.message);
    if (now->rest != NULL)
        cr_assert_eq(write(steps[1], "x", 1), 1);
    ssize_t n = 0;
    while (call.pipe != NULL && (n = rig_pipe_read(call.pipe, data, sizeof data)) > 0)
        continue;
    cr_assert_eq(n, 0, "%s", now->answer);
    rig_call_finish(&call);
    if (body != NULL)
        sg_pipe_unref(body);
}

static int play_all(const struct script *list)
{
    played = list;
    cr_assert_eq(pipe(steps), 0);
    begin(NULL, serve_scripts);
    rig.trailers = true;
    for (size_t i = 0; list[i].answer != NULL; i++)
        play(&list[i]);
    int dials = rig.dials;
    end();
    close(steps[0]);
    close(steps[1]);
    return dials;
}

/* Once an exchange has ended, the next one finds its connection: not sometimes, and however the answer was framed. */
Test(upstream, every_whole_answer_leaves_its_connection)
{
    static const struct script list[] = {
        {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", NULL, 0, false},
        {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "hello", 0, false},
        {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe", "llo", 0, false},
        {"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", NULL, 0, false},
        {"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "0\r\n\r\n", 0, false},
        {"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n", "\r\n", 0, false},
        {"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n", NULL, 0, false},
        {"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n", 0, false},
        {"GET", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", NULL, 0, false},
        {"GET", "HTTP/1.1 204 None\r\n\r\n", NULL, 0, false},
        {"GET", "HTTP/1.1 304 Same\r\nContent-Length: 99\r\n\r\n", NULL, 0, false},
        {"GET", "HTTP/1.1 200 OK\r\nKeep-Alive: timeout=60, max=9\r\nContent-Length: 0\r\n\r\n", NULL, 0, false},
        {"GET", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello", NULL, 0, false},
        {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", NULL, 0, false},
        {"HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", NULL, 0, false},
        {"POST", "HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno", NULL, 5, false},
        {"POST", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "hello", 5, false},
        {"PUT", "HTTP/1.1 201 Made\r\nContent-Length: 0\r\n\r\n", NULL, -1, false},
        {"GET", "HTTP/1.1 426 Upgrade Required\r\nUpgrade: other\r\nContent-Length: 2\r\n\r\nno", NULL, 0, true},
        {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", NULL, 0, false},
        {.answer = NULL},
    };
    cr_assert_eq(play_all(list), 1);
}

/* Each of these ends its connection, and the first a fresh one finds none. */
Test(upstream, connections_that_may_carry_more_are_not_used_again)
{
    static const struct script list[] = {
        {"GET", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello", NULL, 0, false},
        {"GET", "HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 5\r\n\r\nhello", NULL, 0, false},
        {"GET", "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", NULL, 0, false},
        {"GET", "HTTP/1.1 200 OK\r\nKeep-Alive: timeout=1\r\nContent-Length: 5\r\n\r\nhello", NULL, 0, false},
        {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello more", NULL, 0, false},
        {"GET", "HTTP/1.1 204 None\r\n\r\nmore", NULL, 0, false},
        {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", NULL, 0, false},
        {"GET", "HTTP/1.1 200 OK\r\n\r\n", "up to the end", 0, false},
        {.answer = NULL},
    };
    cr_assert_eq(play_all(list), 8);
}

static void serve_events(struct rig_server *s, int fd, int nth)
{
    char head[4096];
    char step;
    (void)s;
    (void)nth;
    rig_read_head(fd, head, sizeof head);
    rig_send(fd, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n");
    for (int i = 0; i < 5; i++) {
        rig_send(fd, "data: x\n\n");
        cr_assert_eq(read(steps[0], &step, 1), 1);
    }
}

Test(upstream, events_are_passed_one_by_one)
{
    cr_assert_eq(pipe(steps), 0);
    begin(NULL, serve_events);
    get();
    rig_wait(&call);
    char data[64];
    for (int i = 0; i < 5; i++) {
        cr_assert_eq(rig_pipe_read(call.pipe, data, sizeof data), 9, "event %d", i);
        cr_assert_eq(write(steps[1], "x", 1), 1); /* only now the server sends the next */
    }
    cr_assert_eq(rig_pipe_read(call.pipe, data, sizeof data), 0);
    rig_call_finish(&call);
    end();
}

static void serve_cut(struct rig_server *s, int fd, int nth)
{
    static const char *const scripts[] = {
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
    };
    char head[4096];
    (void)s;
    rig_read_head(fd, head, sizeof head);
    rig_send(fd, scripts[nth]);
}

Test(upstream, a_cut_answer_is_not_a_whole_one)
{
    begin(NULL, serve_cut);
    for (int i = 0; i < 3; i++) {
        char data[64];
        get();
        rig_wait(&call);
        cr_assert(call.answered && !call.whole);
        cr_assert_eq(rig_pipe_read(call.pipe, data, sizeof data), 5);
        cr_assert_eq(rig_pipe_read(call.pipe, data, sizeof data), -EIO);
        struct sg_error e = {0};
        sg_pipe_error(call.pipe, &e);
        cr_assert_eq(e.code, SG_ENDPOINT_FAILED);
        cr_assert_str_eq(e.reason, "closed_early");
        rig_call_finish(&call);
    }
    end();
}

static void serve_nonsense(struct rig_server *s, int fd, int nth)
{
    static const char *const scripts[] = {
        "SSH-2.0-x\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnonsense",
        "HTTP/1.1 200 OK\r\nA: b",
    };
    char head[4096];
    (void)s;
    rig_read_head(fd, head, sizeof head);
    rig_send(fd, scripts[nth]);
}

Test(upstream, nonsense_is_an_error)
{
    begin(NULL, serve_nonsense);
    for (int i = 0; i < 4; i++) {
        get();
        expect_failure(SG_ENDPOINT_FAILED, i < 3 ? "malformed_response" : "closed_early");
    }
    end();
}

/* ---- uploads ---- */

static uint64_t received;

static void serve_upload(struct rig_server *s, int fd, int nth)
{
    static char data[65536];
    char head[4096];
    (void)s;
    (void)nth;
    rig_read_head(fd, head, sizeof head);
    bool chunked = strstr(head, "Transfer-Encoding: chunked") != NULL;
    struct sg_h1_body b;
    sg_h1_body_init(&b, chunked ? SG_H1_CHUNKED : SG_H1_LENGTH, BIG);
    received = 0;
    while (!sg_h1_body_done(&b)) {
        ssize_t n = read(fd, data, sizeof data);
        size_t payload;
        if (n <= 0)
            return;
        cr_assert_eq(sg_h1_body_decode(&b, data, (size_t)n, &payload, NULL), n);
        received += payload;
    }
    rig_send(fd, "HTTP/1.1 201 Made\r\nContent-Length: 0\r\n\r\n");
}

static void upload(int64_t length)
{
    static char data[1024 * 1024];
    begin(NULL, serve_upload);
    struct sg_pipe *body = sg_pipe_new(65536);
    cr_assert_eq(rig_call(&rig, &call, "POST", body, length, NULL, &err), 0);
    for (size_t i = 0; i < BIG / sizeof data; i++)
        cr_assert_eq(rig_pipe_write(body, data, sizeof data), 0);
    sg_pipe_close(body);
    rig_wait(&call);
    cr_assert(call.answered);
    cr_assert_eq(call.status, 201);
    cr_assert_eq(received, BIG);
    rig_call_finish(&call);
    sg_pipe_unref(body);
    end();
}

Test(upstream, upload_with_a_length)
{
    upload(BIG);
}

Test(upstream, upload_in_chunks)
{
    upload(-1);
}

static void serve_empty_upload(struct rig_server *s, int fd, int nth)
{
    char head[4096];
    char rest[8] = "";
    (void)s;
    (void)nth;
    rig_read_head(fd, head, sizeof head);
    cr_assert_eq(recv(fd, rest, 5, MSG_WAITALL), 5);
    cr_assert_str_eq(rest, "0\r\n\r\n");
    rig_send(fd, "HTTP/1.1 204 Fine\r\n\r\n");
}

Test(upstream, empty_chunked_upload)
{
    begin(NULL, serve_empty_upload);
    struct sg_pipe *body = sg_pipe_new(100);
    sg_pipe_close(body);
    cr_assert_eq(rig_call(&rig, &call, "POST", body, -1, NULL, &err), 0);
    rig_wait(&call);
    cr_assert_eq(call.status, 204);
    rig_call_finish(&call);
    sg_pipe_unref(body);
    end();
}

static void serve_early(struct rig_server *s, int fd, int nth)
{
    char head[4096];
    (void)s;
    (void)nth;
    rig_read_head(fd, head, sizeof head);
    rig_send(fd, "HTTP/1.1 413 Too much\r\nContent-Length: 2\r\n\r\nno");
    rig_wait_closed(fd);
}

Test(upstream, an_early_answer_stops_the_upload)
{
    begin(NULL, serve_early);
    for (int i = 0; i < 2; i++) {
        struct sg_pipe *body = sg_pipe_new(65536);
        cr_assert_eq(rig_call(&rig, &call, "POST", body, i == 0 ? -1 : (int64_t)BIG, NULL, &err), 0);
        rig_wait(&call);
        cr_assert_eq(call.status, 413);
        cr_assert_eq(memcmp(call.whole_body, "no", 2), 0);
        static char data[1024 * 1024];
        cr_assert_eq(rig_pipe_write(body, data, sizeof data), -EPIPE);
        rig_call_finish(&call);
        sg_pipe_unref(body);
    }
    cr_assert_eq(rig.dials, 2, "a connection in the middle of a request was used again");
    end();
}

static void serve_echo(struct rig_server *s, int fd, int nth)
{
    char head[4096];
    char byte;
    (void)s;
    (void)nth;
    rig_read_head(fd, head, sizeof head);
    rig_send(fd, "HTTP/1.1 200 OK\r\n\r\n");
    for (int i = 0; i < 10 && recv(fd, &byte, 1, 0) == 1; i++)
        send(fd, &byte, 1, MSG_NOSIGNAL);
}

Test(upstream, both_directions_at_once)
{
    begin(NULL, serve_echo);
    struct sg_pipe *body = sg_pipe_new(65536);
    cr_assert_eq(rig_call(&rig, &call, "POST", body, 10, NULL, &err), 0);
    rig_wait(&call);
    cr_assert(call.answered && !call.whole);
    for (char i = 'a'; i < 'a' + 10; i++) {
        char back = 0;
        cr_assert_eq(rig_pipe_write(body, &i, 1), 0);
        cr_assert_eq(rig_pipe_read(call.pipe, &back, 1), 1);
        cr_assert_eq(back, i);
    }
    sg_pipe_close(body);
    char c;
    cr_assert_eq(rig_pipe_read(call.pipe, &c, 1), 0);
    rig_call_finish(&call);
    sg_pipe_unref(body);
    end();
}

static bool saw_close;

static void wait_arrival(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    cr_assert_eq(sem_timedwait(&arrived, &until), 0, "no request in 20 s");
}

static void serve_wait(struct rig_server *s, int fd, int nth)
{
    char head[4096];
    (void)nth;
    rig_read_head(fd, head, sizeof head);
    s->requests++;
    sem_post(&arrived);
    saw_close = rig_wait_closed(fd);
}

Test(upstream, a_broken_upload_closes_the_connection)
{
    begin(NULL, serve_wait);
    struct sg_pipe *body = sg_pipe_new(65536);
    cr_assert_eq(rig_call(&rig, &call, "POST", body, 1000, NULL, &err), 0);
    cr_assert_eq(rig_pipe_write(body, "some", 4), 0);
    wait_arrival();
    sg_pipe_fail(body, NULL);
    expect_failure(SG_CANCELLED, NULL);
    sg_pipe_unref(body);
    end();
    cr_assert(saw_close);
}

/* ---- ends ---- */

Test(upstream, cancel_closes_at_once)
{
    begin(NULL, serve_wait);
    struct sg_cancel *cancel = sg_cancel_new();
    cr_assert_eq(rig_call(&rig, &call, "POST", NULL, 0, cancel, &err), 0);
    wait_arrival();
    sg_cancel_fire(cancel, SG_CANCEL_HANGUP);
    expect_failure(SG_CANCELLED, NULL);
    cr_assert_eq(rig_call(&rig, &call, "GET", NULL, 0, cancel, &err), 0);
    expect_failure(SG_CANCELLED, NULL);
    sg_cancel_unref(cancel);
    end();
    cr_assert(saw_close);
}

Test(upstream, stopping_the_answer_closes_the_connection)
{
    begin(NULL, serve_big);
    get();
    rig_wait(&call);
    sg_pipe_stop(call.pipe);
    rig_call_finish(&call);
    size_t exchanges = 1;
    size_t conns = 1;
    for (int i = 0; i < 10000 && conns > 0; i++) {
        sg_upstreams_counts(rig.hub, &exchanges, &conns);
        usleep(1000);
    }
    cr_assert_eq(exchanges, 0U);
    cr_assert_eq(conns, 0U);
    end();
}

Test(upstream, lease_end_closes_everything)
{
    begin(NULL, serve_small);
    get();
    rig_wait(&call);
    rig_call_finish(&call);
    size_t exchanges;
    size_t conns;
    sg_upstreams_counts(rig.hub, &exchanges, &conns);
    cr_assert_eq(conns, 1U);
    sg_cancel_fire(rig.lease_end, SG_CANCEL_LEASE_END);
    for (int i = 0; i < 10000 && conns > 0; i++) {
        sg_upstreams_counts(rig.hub, &exchanges, &conns);
        usleep(1000);
    }
    cr_assert_eq(conns, 0U);
    if (rig_call(&rig, &call, "GET", NULL, 0, NULL, &err) < 0)
        cr_assert_eq(err.code, SG_LEASE_GONE);
    else
        expect_failure(SG_LEASE_GONE, NULL);
    end();
}

Test(upstream, lease_end_cuts_a_running_request)
{
    begin(NULL, serve_wait);
    get();
    sg_cancel_fire(rig.lease_end, SG_CANCEL_LEASE_END);
    expect_failure(SG_LEASE_GONE, NULL);
    end();
}

Test(upstream, shutdown_cuts_a_running_request)
{
    begin(NULL, serve_wait);
    get();
    end();
    expect_failure(SG_SHUTTING_DOWN, NULL);
}

Test(upstream, nothing_listens)
{
    begin(NULL, serve_wait);
    rig.dial_error = SG_ENDPOINT_NOT_LISTENING;
    get();
    expect_failure(SG_ENDPOINT_NOT_LISTENING, NULL);
    end();
}

Test(upstream, a_dial_that_comes_too_late)
{
    begin(NULL, serve_wait);
    rig.dial_never = true;
    struct sg_cancel *cancel = sg_cancel_new();
    cr_assert_eq(rig_call(&rig, &call, "GET", NULL, 0, cancel, &err), 0);
    sg_cancel_fire(cancel, SG_CANCEL_HANGUP);
    expect_failure(SG_CANCELLED, NULL);
    int fds[2];
    cr_assert_eq(pipe(fds), 0);
    rig.kept.fn(rig.kept.arg, fds[0], NULL, NULL);
    cr_assert_lt(write(fds[1], "x", 1), 0, "the late descriptor was not closed");
    close(fds[1]);
    sg_cancel_unref(cancel);
    end();
}

/* ---- deadlines and limits ---- */

Test(upstream, no_answer_in_time)
{
    struct sg_upstream_config c = sg_upstream_defaults();
    c.first_byte_ms = 50;
    begin(&c, serve_wait);
    get();
    expect_failure(SG_ENDPOINT_TIMEOUT, "no_answer");
    end();
}

static void serve_stall(struct rig_server *s, int fd, int nth)
{
    char head[4096];
    (void)nth;
    while (rig_read_head(fd, head, sizeof head) > 0 && s->requests++ == 0)
        rig_send(fd, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    rig_send(fd, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
    rig_wait_closed(fd);
}

Test(upstream, an_answer_that_stalls)
{
    struct sg_upstream_config c = sg_upstream_defaults();
    c.stall_ms = 50;
    begin(&c, serve_stall);
    get();
    rig_wait(&call);
    rig_call_finish(&call);
    get(); /* on the kept connection */
    rig_wait(&call);
    char data[64];
    cr_assert_eq(rig_pipe_read(call.pipe, data, sizeof data), 5);
    cr_assert_eq(rig_pipe_read(call.pipe, data, sizeof data), -EIO);
    struct sg_error e = {0};
    sg_pipe_error(call.pipe, &e);
    cr_assert_eq(e.code, SG_ENDPOINT_TIMEOUT);
    cr_assert_eq(rig.dials, 1);
    rig_call_finish(&call);
    end();
}

Test(upstream, idle_connections_are_closed)
{
    struct sg_upstream_config c = sg_upstream_defaults();
    c.idle_ms = 30;
    begin(&c, serve_small);
    get();
    rig_wait(&call);
    rig_call_finish(&call);
    size_t exchanges;
    size_t conns = 1;
    for (int i = 0; i < 10000 && conns > 0; i++) {
        sg_upstreams_counts(rig.hub, &exchanges, &conns);
        usleep(1000);
    }
    cr_assert_eq(conns, 0U);
    end();
}

Test(upstream, exchanges_are_bounded)
{
    struct sg_upstream_config c = sg_upstream_defaults();
    c.exchanges_max = 1;
    begin(&c, serve_wait);
    get();
    struct rig_call second;
    cr_assert_eq(rig_call(&rig, &second, "GET", NULL, 0, NULL, &err), -1);
    cr_assert_eq(err.code, SG_OVERLOADED);
    cr_assert_gt(err.retry_after, 0);
    sg_cancel_fire(rig.lease_end, SG_CANCEL_LEASE_END);
    expect_failure(SG_LEASE_GONE, NULL);
    end();
}

/* ---- sending again ---- */

/* Reads the second request of a connection and closes without an answer. */
static void serve_one_then_close(struct rig_server *s, int fd, int nth)
{
    char head[4096];
    (void)nth;
    rig_read_head(fd, head, sizeof head);
    s->requests++;
    rig_send(fd, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    if (rig_read_head(fd, head, sizeof head) > 0)
        s->requests++;
}

Test(upstream, a_get_on_a_stale_connection_is_sent_again)
{
    begin(NULL, serve_one_then_close);
    for (int i = 0; i < 2; i++) {
        get();
        rig_wait(&call);
        cr_assert(call.answered, "%s", call.err.message);
        rig_call_finish(&call);
    }
    cr_assert_eq(rig.dials, 2);
    end();
}

Test(upstream, a_post_is_never_sent_twice)
{
    begin(NULL, serve_one_then_close);
    get();
    rig_wait(&call);
    rig_call_finish(&call);
    cr_assert_eq(rig_call(&rig, &call, "POST", NULL, 0, NULL, &err), 0);
    expect_failure(SG_ENDPOINT_FAILED, "closed_without_answer");
    cr_assert_eq(rig.dials, 1);
    cr_assert_eq(server.requests, 2);
    end();
}

static void serve_closing(struct rig_server *s, int fd, int nth)
{
    char head[4096];
    (void)nth;
    rig_read_head(fd, head, sizeof head);
    s->requests++;
    (void)fd;
}

Test(upstream, a_get_on_a_fresh_connection_is_sent_once)
{
    begin(NULL, serve_closing);
    get();
    expect_failure(SG_ENDPOINT_FAILED, "closed_without_answer");
    cr_assert_eq(rig.dials, 1);
    end();
}

/* ---- many at once ---- */

static void *hammer(void *arg)
{
    (void)arg;
    for (int i = 0; i < 300; i++) {
        struct rig_call c;
        struct sg_error e = {0};
        struct sg_cancel *cancel = sg_cancel_new();
        cr_assert_eq(rig_call(&rig, &c, "GET", NULL, 0, cancel, &e), 0);
        if (i % 7 == 0)
            sg_cancel_fire(cancel, SG_CANCEL_HANGUP);
        rig_wait(&c);
        cr_assert(c.answered || c.err.code == SG_CANCELLED, "%s", c.err.message);
        rig_call_finish(&c);
        sg_cancel_unref(cancel);
    }
    return NULL;
}

static void serve_five(struct rig_server *s, int fd, int nth)
{
    char head[4096];
    (void)s;
    (void)nth;
    while (rig_read_head(fd, head, sizeof head) > 0)
        rig_send(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
}

Test(upstream, many_threads)
{
    struct sg_upstream_config config = sg_upstream_defaults();
    begin(&config, serve_five);
    pthread_t t[4];
    memset(server.conns, 0, sizeof server.conns);
    for (int i = 0; i < 4; i++)
        pthread_create(&t[i], NULL, hammer, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    end();
}
