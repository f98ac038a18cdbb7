/* Is a service well? Against a real socket that answers as scripted. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backends/probe.h"
#include "base/clock.h"
#include "base/fd.h"
#include "tests/support/calls.h"

struct world {
    struct sg_reactor *reactor;
    struct flag done;
    struct sg_error err;
    bool well;
    const char *const *answers; /* one per connection; NULL in it: never answers; the last one is repeated */
    int listener;
    uint16_t port;
    _Atomic unsigned connections;
    _Atomic unsigned refusals; /* dials that fail first */
    _Atomic enum sg_code refusal;
    _Atomic bool ending;
    pthread_t thread;
    char request[512];
};

static void serve(struct world *w, int fd)
{
    const char *text = w->answers[0];
    for (unsigned i = 0; i <= w->connections && w->answers[i] != NULL; i++) {
        text = w->answers[i];
    }
    w->connections++;
    ssize_t n = recv(fd, w->request, sizeof w->request - 1, 0);
    w->request[n > 0 ? n : 0] = '\0';
    if (sg_streq(text, "silence")) {
        struct pollfd p = {.fd = fd, .events = POLLRDHUP};
        (void)poll(&p, 1, 20000);
    } else {
        for (const char *p = text; *p != '\0'; p++) { /* byte by byte */
            (void)send(fd, p, 1, MSG_NOSIGNAL);
        }
    }
    sg_close(fd);
}

static void *serve_all(void *arg)
{
    struct world *w = arg;
    while (!w->ending) {
        int fd = accept4(w->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0) {
            serve(w, fd);
        }
    }
    return NULL;
}

static int dial(void *arg, uint16_t port, int64_t deadline_ms, const struct sg_dial_done *done, struct sg_error *err)
{
    struct world *w = arg;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(w->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    cr_expect_eq(port, 8123);
    cr_expect_gt(deadline_ms, sg_now_ms());
    if (w->refusals > 0) {
        w->refusals--;
        if (w->refusals % 2 == 0) {
            return sg_error_set(err, w->refusal, "nothing there");
        }
        struct sg_error e = {0};
        sg_error_set(&e, w->refusal, "nothing there");
        done->fn(done->arg, -1, NULL, &e);
        return 0;
    }
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    (void)connect(fd, (struct sockaddr *)&a, sizeof a);
    done->fn(done->arg, fd, NULL, NULL);
    return 0;
}

/* An attempt elsewhere: as many fail as `refusals` says, some of them at once. */
static int ask(void *arg, uint16_t port, const char *path, int64_t deadline_ms, const struct sg_done *done, struct sg_error *err)
{
    struct world *w = arg;
    struct sg_error e = {0};
    cr_expect(port == 8123 && sg_streq(path, "/health?deep=1") && deadline_ms > sg_now_ms());
    w->connections++;
    if (w->refusals == 0) {
        done->fn(done->arg, NULL);
        return 0;
    }
    w->refusals--;
    if (w->refusals % 2 == 0) {
        return sg_error_set(err, w->refusal, "nothing there");
    }
    sg_error_set(&e, w->refusal, "nothing there");
    done->fn(done->arg, &e);
    return 0;
}

static void probed(void *arg, const struct sg_error *err)
{
    struct world *w = arg;
    w->well = err == NULL;
    if (err != NULL) {
        sg_error_copy(&w->err, err);
    }
    flag_raise(&w->done);
}

static void world_open(struct world *w, const char *const *answers)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    *w = (struct world){.done = FLAG_INIT, .answers = answers};
    w->refusal = SG_ENDPOINT_NOT_LISTENING;
    cr_assert_eq(sg_reactor_new(&w->reactor, NULL), 0);
    w->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert(bind(w->listener, (struct sockaddr *)&a, sizeof a) == 0 && listen(w->listener, 16) == 0);
    cr_assert_eq(getsockname(w->listener, (struct sockaddr *)&a, &len), 0);
    w->port = ntohs(a.sin_port);
    cr_assert_eq(pthread_create(&w->thread, NULL, serve_all, w), 0);
}

static void world_close(struct world *w)
{
    w->ending = true;
    (void)shutdown(w->listener, SHUT_RDWR);
    (void)pthread_join(w->thread, NULL);
    sg_close(w->listener);
    sg_reactor_free(w->reactor);
    sg_error_clear(&w->err);
}

/* The probe is started on the reactor, as everything about it. */
struct starting {
    struct sg_task task;
    struct world *w;
    int64_t ms;
    bool cancel, elsewhere;
    struct flag started;
};

static void start_run(struct sg_task *t)
{
    struct starting *s = (struct starting *)t;
    char path[] = "/health?deep=1";
    struct sg_probe *p = sg_probe_start(&(struct sg_probe_args){.reactor = s->w->reactor,
                                                                .dial = dial,
                                                                .ask = s->elsewhere ? ask : NULL,
                                                                .done = probed,
                                                                .arg = s->w,
                                                                .port = 8123,
                                                                .path = path,
                                                                .deadline_ms = sg_now_ms() + s->ms});
    memset(path, 'x', sizeof path - 1);
    if (s->cancel) {
        cr_expect_null(sg_probe_cancel(p));
    }
    flag_raise(&s->started);
}

static bool probe_at(struct world *w, bool elsewhere, int64_t ms)
{
    struct starting s = {.task.run = start_run, .w = w, .ms = ms, .elsewhere = elsewhere, .started = FLAG_INIT};
    sg_reactor_post(w->reactor, &s.task);
    cr_assert(flag_wait(&s.started, 1, CALL_MS) && flag_wait(&w->done, 1, CALL_MS));
    return w->well;
}

static bool probe(struct world *w, int64_t ms)
{
    return probe_at(w, false, ms);
}

#define OK "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

Test(probe, a_good_answer_is_enough)
{
    static const char *const good[][2] = {{OK, NULL},
                                          {"HTTP/1.0 204 \r\n\r\n", NULL},
                                          {"HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\n", NULL},
                                          {"HTTP/1.1 200\r\n\r\n", NULL}};
    for (size_t i = 0; i < SG_COUNT_OF(good); i++) {
        struct world w;
        world_open(&w, good[i]);
        cr_expect(probe(&w, 60000), "case %zu: %s", i, w.err.message);
        cr_expect_eq(w.connections, 1);
        cr_expect_eq(strncmp(w.request, "GET /health?deep=1 HTTP/1.1\r\nHost: 127.0.0.1:8123\r\n", 51), 0, "%s", w.request);
        cr_expect_not_null(strstr(w.request, "\r\nConnection: close\r\n"));
        world_close(&w);
    }
}

Test(probe, it_is_asked_until_it_is_well)
{
    static const char *const answers[] = {"HTTP/1.1 503 Not Yet\r\n\r\n", "", "HTTP/1.1 404 \r\n\r\n", "SSH-2.0-OpenSSH\r\n", "HTTP/1.1 2x0 \r\n\r\n", OK, NULL};
    struct world w;
    world_open(&w, answers);
    w.refusals = 5;
    cr_expect(probe(&w, 60000), "%s", w.err.message);
    cr_expect_eq(w.connections, 6);
    world_close(&w);
}

Test(probe, the_last_reason_is_told)
{
    static const struct {
        const char *answer;
        const char *says;
        enum sg_code code;
    } cases[] = {{"HTTP/1.1 500 Oops\r\n\r\n", "port 8123: GET /health?deep=1: the answer has status 500", SG_ENDPOINT_FAILED},
                 {"hello, world\r\n", "not HTTP", SG_ENDPOINT_FAILED},
                 {"", "without an answer", SG_ENDPOINT_FAILED},
                 {"HTTP/1.1 20", "without an answer", SG_ENDPOINT_FAILED},
                 {"silence", "in time", SG_ENDPOINT_TIMEOUT}};
    for (size_t i = 0; i < SG_COUNT_OF(cases); i++) {
        const char *answers[] = {cases[i].answer, NULL};
        struct world w;
        world_open(&w, answers);
        cr_expect_not(probe(&w, 300), "case %zu", i);
        cr_expect_eq(w.err.code, cases[i].code, "case %zu: %s", i, w.err.message);
        cr_expect_not_null(strstr(w.err.message, cases[i].says), "%s", w.err.message);
        world_close(&w);
    }
}

Test(probe, nothing_listening_is_told_and_a_dead_sandbox_ends_it_at_once)
{
    static const char *const answers[] = {OK, NULL};
    struct world w;
    world_open(&w, answers);
    w.refusals = 1000000;
    cr_expect_not(probe(&w, 200));
    cr_expect_eq(w.err.code, SG_ENDPOINT_NOT_LISTENING, "%s", w.err.message);
    cr_expect_gt(1000000 - w.refusals, 2);
    cr_expect_lt(1000000 - w.refusals, 50, "the pauses grow");
    world_close(&w);
    for (unsigned n = 1; n <= 2; n++) { /* at once and later */
        world_open(&w, answers);
        w.refusals = n;
        w.refusal = SG_SANDBOX_LOST;
        cr_expect_not(probe(&w, 60000));
        cr_expect_eq(w.err.code, SG_SANDBOX_LOST);
        world_close(&w);
    }
}

Test(probe, a_driver_may_ask_by_itself)
{
    static const char *const answers[] = {OK, NULL};
    struct world w;
    world_open(&w, answers);
    w.refusals = 2;
    cr_expect(probe_at(&w, true, 60000), "%s", w.err.message);
    cr_expect_eq(w.connections, 3);
    world_close(&w);
    world_open(&w, answers);
    w.refusals = 1000000;
    cr_expect_not(probe_at(&w, true, 100));
    cr_expect_eq(w.err.code, SG_ENDPOINT_NOT_LISTENING, "%s", w.err.message);
    cr_expect_not_null(strstr(w.err.message, "port 8123: GET /health?deep=1: nothing there"));
    world_close(&w);
    world_open(&w, answers);
    w.refusals = 2;
    w.refusal = SG_SANDBOX_LOST;
    cr_expect_not(probe_at(&w, true, 60000));
    cr_expect_eq(w.connections, 1);
    world_close(&w);
}

Test(probe, a_cancelled_one_says_nothing)
{
    static const char *const answers[] = {"silence", NULL};
    struct world w;
    world_open(&w, answers);
    struct starting s = {.task.run = start_run, .w = &w, .ms = 60000, .cancel = true, .started = FLAG_INIT};
    sg_reactor_post(w.reactor, &s.task);
    cr_assert(flag_wait(&s.started, 1, CALL_MS));
    cr_expect_not(flag_wait(&w.done, 1, 100));
    cr_expect_eq(w.connections, 0);
    world_close(&w);
}
