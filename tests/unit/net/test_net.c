/* HTTP calls against a real origin (tests/fakes/origin.py), each test with its own. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backends/net/http.h"
#include "base/clock.h"
#include "base/fd.h"
#include "tests/support/calls.h"

struct origin {
    pid_t pid;
    int in;
    char base[160];
    char dir[64];
};

static void start_origin(struct origin *o, const char *const *args)
{
    int in[2], out[2];
    char line[32] = "";
    cr_assert_eq(pipe2(in, O_CLOEXEC), 0);
    cr_assert_eq(pipe2(out, O_CLOEXEC), 0);
    o->pid = fork();
    if (o->pid == 0) {
        const char *argv[8] = {"/usr/bin/python3", ORIGIN};
        for (size_t i = 0; args[i] != NULL; i++) {
            argv[2 + i] = args[i];
        }
        dup2(in[0], 0);
        dup2(out[1], 1);
        execv(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    o->in = in[1];
    for (size_t n = 0; n + 1 < sizeof line; n++) {
        cr_assert_eq(read(out[0], line + n, 1), 1, "the origin does not start");
        if (line[n] == '\n') {
            line[n] = '\0';
            break;
        }
    }
    close(out[0]);
    if (o->base[0] == '\0') {
        snprintf(o->base, sizeof o->base, "http://127.0.0.1:%s", line);
    } else if (strncmp(o->base, "https", 5) == 0) {
        snprintf(o->base, sizeof o->base, "https://localhost:%s", line);
    }
}

static void stop_origin(struct origin *o)
{
    close(o->in);
    waitpid(o->pid, NULL, 0);
}

/* ---- one call and what came of it ---- */

struct call {
    struct flag done;
    struct flag head;
    int status;
    char *body;
    size_t len;
    char origin_header[64];
    int retry_after;
    struct sg_error err;
};

static void on_head(void *arg, const struct sg_net_response *r)
{
    struct call *c = arg;
    c->status = sg_net_status(r);
    flag_raise(&c->head);
}

static void on_done(void *arg, const struct sg_net_response *r, const struct sg_error *err)
{
    struct call *c = arg;
    cr_assert_eq(c->done.count, 0);
    cr_assert((r == NULL) != (err == NULL));
    if (err != NULL) {
        sg_error_copy(&c->err, err);
    } else {
        const char *h = sg_net_header(r, "x-origin");
        c->status = sg_net_status(r);
        const char *text = sg_net_body(r, &c->len);
        c->body = malloc(c->len + 1);
        memcpy(c->body, text, c->len + 1);
        snprintf(c->origin_header, sizeof c->origin_header, "%s", h != NULL ? h : "");
        c->retry_after = sg_net_retry_after(r);
    }
    flag_raise(&c->done);
}

static struct call *new_call(void)
{
    struct call *c = calloc(1, sizeof *c);
    c->done = (struct flag)FLAG_INIT;
    c->head = (struct flag)FLAG_INIT;
    return c;
}

static struct sg_net_request request(const char *method, const char *path, struct call *c)
{
    return (struct sg_net_request){.method = method, .path = path, .response_max = 1 << 20, .deadline_ms = sg_now_ms() + 20000,
                                   .head = on_head, .done = on_done, .arg = c};
}

static void free_call(struct call *c)
{
    sg_error_clear(&c->err);
    free(c->body);
    free(c);
}

static struct call *ask(struct sg_net_client *k, struct sg_net_request q)
{
    struct call *c = new_call();
    struct sg_error err = {0};
    q.arg = c;
    cr_assert_eq(sg_net_call(k, &q, &err), 0, "%s", err.message);
    cr_assert(flag_wait(&c->done, 1, 30000));
    return c;
}

static struct call *get(struct sg_net_client *k, const char *path)
{
    return ask(k, request("GET", path, NULL));
}

/* ---- a rig: origin, net, client ---- */

struct rig {
    struct origin o;
    struct sg_net *net;
    struct sg_net_client *k;
};

static void rig_start(struct rig *r, struct sg_net_client_config cfg, const char *const *args)
{
    signal(SIGPIPE, SIG_IGN);
    start_origin(&r->o, args);
    cr_assert_eq(sg_net_new(&r->net, NULL), 0);
    cfg.base = r->o.base;
    cr_assert_eq(sg_net_client_new(r->net, &cfg, &r->k, NULL), 0);
}

static struct rig *rig(unsigned concurrent, unsigned waiting)
{
    static const char *const none[] = {NULL};
    struct rig *r = calloc(1, sizeof *r);
    rig_start(r, (struct sg_net_client_config){.max_concurrent = concurrent, .max_waiting = waiting}, none);
    return r;
}

static void rig_stop(struct rig *r)
{
    sg_net_client_free(r->k);
    sg_net_free(r->net);
    stop_origin(&r->o);
    free(r);
}

/* ---- plain calls ---- */

Test(net, a_request_arrives_as_it_was_given)
{
    struct rig *r = rig(0, 0);
    struct sg_secret *s = sg_secret_new("open sesame", 11);
    const struct sg_net_header h[] = {{.name = "X-Plain", .value = "a b"},
                                      {.name = "X-Key", .secret = s, .prefix = "Bearer "},
                                      {.name = "X-Empty", .value = ""}};
    struct sg_net_request q = request("POST", "/echo?x=%20y", NULL);
    q.headers = h;
    q.n_headers = 3;
    q.body = "12345";
    q.body_len = 5;
    struct call *c = ask(r->k, q);
    cr_assert_eq(c->status, 200);
    cr_assert_str_eq(c->origin_header, "here");
    cr_assert_eq(c->retry_after, 7);
    cr_assert_str_eq(c->body, "POST\n/echo?x=%20y\n5\n255\nX-Plain: a b\nX-Key: Bearer open sesame\nX-Empty: ");
    free_call(c);
    sg_secret_free(s);
    rig_stop(r);
}

Test(net, every_method_and_every_status_is_passed_on)
{
    static const char *const methods[] = {"GET", "PUT", "DELETE", "PATCH", "POST"};
    struct rig *r = rig(0, 0);
    for (size_t i = 0; i < SG_COUNT_OF(methods); i++) {
        struct call *c = ask(r->k, request(methods[i], "/echo?status=418", NULL));
        cr_assert_eq(c->status, 418);
        cr_assert_eq(strncmp(c->body, methods[i], strlen(methods[i])), 0, "%s", c->body);
        free_call(c);
    }
    struct call *c = ask(r->k, request("HEAD", "/echo", NULL));
    cr_assert_eq(c->status, 200);
    cr_assert_eq(c->len, 0);
    free_call(c);
    c = get(r->k, "/moved");
    cr_assert_eq(c->status, 302, "redirects are not followed");
    free_call(c);
    rig_stop(r);
}

Test(net, what_cannot_be_a_request_is_refused_at_once)
{
    struct rig *r = rig(0, 0);
    struct sg_error err = {0};
    struct call *c = new_call();
    const struct sg_net_header bad = {.name = "X", .value = "a\r\nY: b"};
    struct sg_net_request q = request("GET", "/echo", c);
    q.headers = &bad;
    q.n_headers = 1;
    cr_assert_eq(sg_net_call(r->k, &q, &err), -1);
    cr_assert_eq(err.code, SG_INTERNAL);
    q = request("GET", "/a b", c);
    cr_assert_eq(sg_net_call(r->k, &q, &err), -1);
    q = request("GET", "echo", c);
    cr_assert_eq(sg_net_call(r->k, &q, &err), -1);
    static const char *const hosts[] = {"", "a/b", "u@h", "h?q", "h#f", "a b", "a\r\nb"};
    for (size_t i = 0; i < SG_COUNT_OF(hosts); i++) {
        q = request("GET", "/echo", c);
        q.host = hosts[i];
        cr_assert_eq(sg_net_call(r->k, &q, &err), -1, "%s", hosts[i]);
    }
    struct sg_net_client *k = NULL;
    static const char *const places[] = {"", "h", ":1", "h:", "u@h:1", "h:1/x", "a b:1"};
    for (size_t i = 0; i < SG_COUNT_OF(places); i++) {
        const struct sg_net_client_config cfg = {.base = "http://h", .connect_to = places[i]};
        cr_assert_eq(sg_net_client_new(r->net, &cfg, &k, &err), -1, "%s", places[i]);
        cr_assert_eq(err.code, SG_INVALID_REQUEST);
    }
    static const char *const bases[] = {"", "ftp://x", "http://", "http://u@h", "http://h?q", "unix://relative", "unix:///", "http://a b"};
    for (size_t i = 0; i < SG_COUNT_OF(bases); i++) {
        const struct sg_net_client_config cfg = {.base = bases[i]};
        cr_assert_eq(sg_net_client_new(r->net, &cfg, &k, &err), -1, "%s", bases[i]);
        cr_assert_eq(err.code, SG_INVALID_REQUEST);
    }
    sg_error_clear(&err);
    free_call(c);
    rig_stop(r);
}

/* ---- limits ---- */

Test(net, a_response_above_its_cap_is_cut_off)
{
    struct rig *r = rig(0, 0);
    struct sg_net_request q = request("GET", "/big?n=5000000", NULL);
    q.response_max = 100000;
    struct call *c = ask(r->k, q);
    cr_assert_eq(c->err.code, SG_PROVIDER_FAILED);
    cr_assert_str_eq(c->err.reason, "response_too_large");
    free_call(c);
    c = get(r->k, "/heads?n=80");
    cr_assert_eq(c->err.code, SG_PROVIDER_FAILED);
    cr_assert_str_eq(c->err.reason, "response_too_large");
    free_call(c);
    rig_stop(r);
}

Test(net, turns_are_taken_in_order_and_too_many_are_refused)
{
    struct rig *r = rig(1, 2);
    struct call *c[4];
    struct sg_error err = {0};
    struct sg_net_counts n;
    for (size_t i = 0; i < 3; i++) {
        c[i] = new_call();
        struct sg_net_request q = request("GET", i == 0 ? "/wait?gate=a" : "/echo", c[i]);
        if (i == 2) {
            q.deadline_ms = sg_now_ms() + 100;
        }
        cr_assert_eq(sg_net_call(r->k, &q, &err), 0);
        if (i == 0) {
            do { /* until it runs: the others are behind it then */
                sg_net_client_counts(r->k, &n);
            } while (n.running == 0);
        }
    }
    c[3] = new_call();
    struct sg_net_request q = request("GET", "/echo", c[3]);
    cr_assert_eq(sg_net_call(r->k, &q, &err), -1);
    cr_assert_eq(err.code, SG_OVERLOADED);
    cr_assert(err.retry_after > 0);
    cr_assert(flag_wait(&c[2]->done, 1, 20000));
    cr_assert_eq(c[2]->err.code, SG_UNAVAILABLE, "its deadline came before its turn");
    cr_assert_str_eq(c[2]->err.reason, "busy");
    cr_assert_eq(c[1]->done.count, 0);
    struct sg_net_client *other = NULL;
    const struct sg_net_client_config cfg = {.base = r->o.base};
    cr_assert_eq(sg_net_client_new(r->net, &cfg, &other, NULL), 0);
    free_call(get(other, "/open?gate=a"));
    cr_assert(flag_wait(&c[1]->done, 1, 20000));
    cr_assert_eq(c[0]->status, 200);
    cr_assert_eq(c[1]->status, 200);
    sg_net_client_counts(r->k, &n);
    cr_assert_eq(n.calls, 3);
    cr_assert_eq(n.answered, 2);
    cr_assert_eq(n.failed, 1);
    cr_assert_eq(n.running + n.waiting, 0);
    for (size_t i = 0; i < 4; i++) {
        free_call(c[i]);
    }
    sg_net_client_free(other);
    sg_error_clear(&err);
    rig_stop(r);
}

/* ---- failures and what they mean ---- */

Test(net, failures_say_whether_anything_was_sent)
{
    struct rig *r = rig(0, 0);
    struct call *c = get(r->k, "/drop");
    cr_assert_eq(c->err.code, SG_PROVIDER_FAILED);
    cr_assert_str_eq(c->err.reason, "connection_lost");
    free_call(c);
    c = get(r->k, "/garbage");
    cr_assert_eq(c->err.code, SG_PROVIDER_FAILED);
    free_call(c);
    struct sg_net_request q = request("POST", "/wait?gate=never", NULL);
    q.deadline_ms = sg_now_ms() + 300;
    c = ask(r->k, q);
    cr_assert_eq(c->err.code, SG_PROVIDER_TIMEOUT);
    cr_assert_str_eq(c->err.reason, "deadline");
    free_call(c);
    q = request("GET", "/half?gate=never", NULL);
    q.stall_ms = 1000;
    c = ask(r->k, q);
    cr_assert_eq(c->err.code, SG_PROVIDER_TIMEOUT);
    cr_assert_str_eq(c->err.reason, "stalled");
    free_call(c);
    struct sg_net_client *gone = NULL;
    const struct sg_net_client_config cfg = {.base = "http://127.0.0.1:1"};
    cr_assert_eq(sg_net_client_new(r->net, &cfg, &gone, NULL), 0);
    c = get(gone, "/");
    cr_assert_eq(c->err.code, SG_UNAVAILABLE);
    cr_assert_str_eq(c->err.reason, "unreachable");
    cr_assert(c->err.retry_after > 0);
    free_call(c);
    sg_net_client_free(gone);
    rig_stop(r);
}

Test(net, a_post_is_never_sent_twice)
{
    struct rig *r = rig(0, 0);
    static const struct {
        const char *before; /* leaves a connection that is closed, or kept and closed once the POST has been read */
        const char *body;
    } all[] = {{"/fickle", NULL}, {"/echo", NULL}, {"/echo", "what is to be done once"}};
    long arrived = 0;
    for (size_t i = 0; i < SG_COUNT_OF(all); i++) {
        free_call(get(r->k, all[i].before));
        struct sg_net_request q = request("POST", "/drop", NULL);
        q.body = all[i].body;
        q.body_len = all[i].body != NULL ? strlen(all[i].body) : 0;
        struct call *c = ask(r->k, q);
        cr_assert_eq(c->err.code, SG_PROVIDER_FAILED);
        cr_assert_str_eq(c->err.reason, "connection_lost");
        free_call(c);
        c = get(r->k, "/counts");
        const char *drops = strstr(c->body, "/drop=");
        long n = drops != NULL ? strtol(drops + 6, NULL, 10) : 0;
        cr_assert(n == arrived + 1 || (n == arrived && i == 0), "%s", c->body); /* the closing may have been on its way */
        arrived = n;
        free_call(c);
    }
    rig_stop(r);
}

Test(net, connections_are_kept)
{
    struct rig *r = rig(0, 0);
    for (int i = 0; i < 20; i++) {
        free_call(i % 2 == 0 ? get(r->k, "/echo") : ask(r->k, request("POST", "/echo", NULL)));
    }
    struct call *c = get(r->k, "/counts");
    cr_assert_eq(strncmp(c->body, "1 ", 2), 0, "%s", c->body);
    free_call(c);
    rig_stop(r);
}

Test(net, a_cancelled_call_ends_wherever_it_is)
{
    struct rig *r = rig(1, 4);
    struct sg_cancel *token[3];
    struct call *c[3];
    for (size_t i = 0; i < 3; i++) {
        token[i] = sg_cancel_new();
        c[i] = new_call();
        struct sg_net_request q = request("GET", "/half?gate=no", c[i]);
        q.cancel = token[i];
        cr_assert_eq(sg_net_call(r->k, &q, NULL), 0);
    }
    cr_assert(flag_wait(&c[0]->head, 1, 20000));
    for (size_t i = 3; i > 0; i--) {
        sg_cancel_fire(token[i - 1], SG_CANCEL_CALLER);
        cr_assert(flag_wait(&c[i - 1]->done, 1, 20000));
        cr_assert_eq(c[i - 1]->err.code, SG_CANCELLED);
    }
    struct call *late = new_call();
    struct sg_error err = {0};
    struct sg_net_request q = request("GET", "/echo", late);
    q.cancel = token[0];
    cr_assert_eq(sg_net_call(r->k, &q, &err), -1);
    cr_assert_eq(err.code, SG_CANCELLED);
    sg_error_clear(&err);
    for (size_t i = 0; i < 3; i++) {
        sg_cancel_unref(token[i]);
        free_call(c[i]);
    }
    free_call(late);
    rig_stop(r);
}

Test(net, the_end_of_a_client_ends_its_calls)
{
    struct rig *r = rig(1, 8);
    struct call *c[4];
    struct sg_pipe *p = sg_pipe_new(1000);
    for (size_t i = 0; i < 4; i++) {
        c[i] = new_call();
        struct sg_net_request q = request("GET", "/big?n=1000000", c[i]);
        q.response = p;
        cr_assert_eq(sg_net_call(r->k, &q, NULL), 0);
    }
    cr_assert(flag_wait(&c[0]->head, 1, 20000));
    r->k = sg_net_client_free(r->k);
    for (size_t i = 0; i < 4; i++) {
        cr_assert_eq(c[i]->done.count, 1);
        cr_assert_eq(c[i]->err.code, SG_SHUTTING_DOWN);
        free_call(c[i]);
    }
    sg_pipe_unref(p);
    rig_stop(r);
}

/* ---- streams ---- */

struct reader {
    struct flag woken;
};

static void reader_wake(void *arg)
{
    flag_raise(&((struct reader *)arg)->woken);
}

/* Reads all of p in pieces of at most `piece`; -1 when it broke off. Checks what /big sends. */
static ssize_t drain(struct sg_pipe *p, size_t piece)
{
    struct reader r = {.woken = FLAG_INIT};
    const struct sg_waker w = {.wake = reader_wake, .arg = &r};
    unsigned char buf[8192];
    size_t total = 0;
    sg_pipe_set_reader(p, &w);
    for (unsigned seen = 0;;) {
        ssize_t n = sg_pipe_read(p, buf, piece);
        if (n == -EAGAIN) {
            cr_assert(flag_wait(&r.woken, ++seen, 20000));
        } else if (n <= 0) {
            sg_pipe_set_reader(p, NULL);
            return n == 0 ? (ssize_t)total : -1;
        } else {
            for (ssize_t i = 0; i < n; i++) {
                cr_assert_eq(buf[i], (total + (size_t)i) % 251, "at %zu", total + (size_t)i);
            }
            total += (size_t)n;
        }
    }
}

Test(net, a_response_streams_through_a_small_pipe)
{
    struct rig *r = rig(0, 0);
    struct sg_pipe *p = sg_pipe_new(5000);
    struct call *c = new_call();
    struct sg_net_request q = request("GET", "/big?n=3000000", c);
    q.response = p;
    q.stall_ms = 1000;
    cr_assert_eq(sg_net_call(r->k, &q, NULL), 0);
    cr_assert(flag_wait(&c->head, 1, 20000));
    cr_assert_not(flag_wait(&c->done, 1, 1500), "nobody reads: that is no stall, and no end");
    cr_assert_leq(sg_pipe_pending(p), 5000);
    cr_assert_eq(drain(p, 777), 3000000);
    cr_assert(flag_wait(&c->done, 1, 20000));
    cr_assert_eq(c->status, 200);
    cr_assert_eq(c->len, 0);
    free_call(c);
    sg_pipe_unref(p);

    p = sg_pipe_new(5000);
    q = request("GET", "/big?n=3000&status=500", NULL);
    q.response = p;
    c = ask(r->k, q);
    cr_assert_eq(c->status, 500);
    cr_assert_eq(c->len, 3000, "what an error says is kept, not streamed");
    cr_assert_eq(drain(p, 100), 0);
    free_call(c);
    sg_pipe_unref(p);
    rig_stop(r);
}

Test(net, a_stream_that_breaks_or_is_not_read_ends)
{
    struct rig *r = rig(0, 0);
    struct sg_pipe *p = sg_pipe_new(5000);
    struct call *c = new_call();
    struct sg_net_request q = request("GET", "/half?gate=g", c);
    q.response = p;
    cr_assert_eq(sg_net_call(r->k, &q, NULL), 0);
    cr_assert(flag_wait(&c->head, 1, 20000));
    free_call(get(r->k, "/open?gate=g"));
    cr_assert(flag_wait(&c->done, 1, 20000));
    cr_assert_eq(c->err.code, SG_PROVIDER_FAILED);
    char byte;
    cr_assert_eq(sg_pipe_read(p, &byte, 1), 1);
    cr_assert_eq(sg_pipe_read(p, &byte, 1), -EIO);
    free_call(c);
    sg_pipe_unref(p);

    p = sg_pipe_new(5000);
    c = new_call();
    q = request("GET", "/big?n=100000000", c);
    q.response = p;
    cr_assert_eq(sg_net_call(r->k, &q, NULL), 0);
    cr_assert(flag_wait(&c->head, 1, 20000));
    sg_pipe_stop(p);
    cr_assert(flag_wait(&c->done, 1, 20000));
    cr_assert_eq(c->err.code, SG_CANCELLED);
    free_call(c);
    sg_pipe_unref(p);
    rig_stop(r);
}

static struct call *upload(struct rig *r, int64_t size, size_t given, bool fail)
{
    struct sg_pipe *p = sg_pipe_new(3000);
    struct reader w = {.woken = FLAG_INIT};
    const struct sg_waker waker = {.wake = reader_wake, .arg = &w};
    struct call *c = new_call();
    struct sg_net_request q = request("PUT", "/echo", c);
    static const char zeros[2000];
    q.body_pipe = p;
    q.body_size = size;
    sg_pipe_set_writer(p, &waker);
    cr_assert_eq(sg_net_call(r->k, &q, NULL), 0);
    for (unsigned seen = 0; given > 0;) {
        ssize_t n = sg_pipe_write(p, zeros, given < sizeof zeros ? given : sizeof zeros);
        if (n == -EPIPE) {
            break;
        }
        given -= (size_t)n;
        if (n == 0) {
            cr_assert(flag_wait(&w.woken, ++seen, 20000));
        }
    }
    if (fail) {
        struct sg_error err = {0};
        sg_error_set(&err, SG_SANDBOX_LOST, "the source is gone");
        sg_pipe_fail(p, &err);
    } else {
        sg_pipe_close(p);
    }
    cr_assert(flag_wait(&c->done, 1, 20000));
    sg_pipe_set_writer(p, NULL);
    sg_pipe_unref(p);
    return c;
}

Test(net, a_body_streams_out_of_a_pipe)
{
    struct rig *r = rig(0, 0);
    struct call *c = upload(r, 1000000, 1000000, false);
    cr_assert_not_null(strstr(c->body, "\n1000000\n"), "%s", c->body);
    free_call(c);
    c = upload(r, -1, 654321, false);
    cr_assert_not_null(strstr(c->body, "\n654321\n"), "%s", c->body);
    free_call(c);
    c = upload(r, 1000, 500, false);
    cr_assert_eq(c->err.code, SG_INTERNAL, "%s", c->err.message);
    free_call(c);
    c = upload(r, -1, 500, true);
    cr_assert_eq(c->err.code, SG_SANDBOX_LOST, "%s", c->err.message);
    free_call(c);
    rig_stop(r);
}

/* ---- other transports ---- */

Test(net, over_a_unix_socket)
{
    struct rig *r = calloc(1, sizeof *r);
    char dir[] = "/tmp/sg-net-XXXXXX";
    cr_assert_not_null(mkdtemp(dir));
    char path[64];
    snprintf(path, sizeof path, "%s/s", dir);
    snprintf(r->o.base, sizeof r->o.base, "unix://%s", path);
    const char *const args[] = {"--unix", path, NULL};
    rig_start(r, (struct sg_net_client_config){0}, args);
    struct call *c = get(r->k, "/echo");
    cr_assert_eq(c->status, 200, "%s", c->err.message);
    free_call(c);
    rig_stop(r);
    cr_assert_eq(sg_remove_tree(AT_FDCWD, dir, NULL), 0);
}

static void make_certificate(const char *dir)
{
    char cert[96], key[96];
    snprintf(cert, sizeof cert, "%s/cert", dir);
    snprintf(key, sizeof key, "%s/key", dir);
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        dup2(null, 2);
        execlp("openssl", "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key,
               "-out", cert, "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", (char *)NULL);
        _exit(127);
    }
    int status;
    waitpid(pid, &status, 0);
    cr_assert_eq(status, 0);
}

/* ---- connections that stop being HTTP ---- */

struct wire {
    struct call *c;
    struct sg_pipe *in, *out;
    size_t got;
    char text[64]; /* the first of it */
};

static struct wire *wire_open(struct sg_net_client *k, const char *path, size_t cap)
{
    struct wire *w = calloc(1, sizeof *w);
    struct sg_error err = {0};
    w->in = sg_pipe_new(cap);
    w->out = sg_pipe_new(cap);
    w->c = new_call();
    struct sg_net_request q = request("POST", path, w->c);
    q.upgrade = "tcp";
    q.body = "begin ";
    q.body_len = 6;
    q.body_pipe = w->in;
    q.response = w->out;
    cr_assert_eq(sg_net_call(k, &q, &err), 0, "%s", err.message);
    return w;
}

static void wire_close(struct wire *w)
{
    sg_pipe_unref(w->in);
    sg_pipe_unref(w->out);
    free_call(w->c);
    free(w);
}

static void woken(void *arg)
{
    flag_raise(arg);
}

/* Writes n bytes of 'a' and reads all that comes back, side by side. */
static void wire_talk(struct wire *w, size_t n)
{
    static char data[65536];
    struct flag news = FLAG_INIT;
    const struct sg_waker waker = {.wake = woken, .arg = &news};
    memset(data, 'a', sizeof data);
    sg_pipe_set_writer(w->in, &waker);
    sg_pipe_set_reader(w->out, &waker);
    ssize_t r = -EAGAIN;
    for (bool closed = false; r != 0 && r != -EIO;) {
        unsigned seen = news.count;
        ssize_t put = n > 0 ? sg_pipe_write(w->in, data, n < sizeof data ? n : sizeof data) : 0;
        n = put < 0 ? 0 : n - (size_t)put;
        if (n == 0 && !closed) {
            sg_pipe_close(w->in);
            closed = true;
        }
        char back[65536];
        r = sg_pipe_read(w->out, back, sizeof back);
        for (ssize_t i = 0; i < r; i++) {
            if (w->got < sizeof w->text - 1) {
                w->text[w->got] = back[i];
            }
            w->got++;
        }
        if (r == -EAGAIN && put <= 0) {
            cr_assert(flag_wait(&news, seen + 1, 20000), "nothing moves any more");
        }
    }
    sg_pipe_set_writer(w->in, NULL);
    sg_pipe_set_reader(w->out, NULL);
    cr_assert(flag_wait(&w->c->done, 1, 30000));
}

static void check_echo(struct sg_net_client *k, const char *path, int status, size_t n)
{
    struct wire *w = wire_open(k, path, 4096);
    wire_talk(w, n);
    cr_assert_eq(w->c->status, status, "%s", w->c->err.message);
    cr_assert_str_eq(w->c->origin_header, "tcp");
    cr_assert_eq(w->got, (strstr(path, "split") != NULL ? 0 : 6) + n + 3);
    if (n == 4) {
        cr_assert_str_eq(w->text, strstr(path, "split") != NULL ? "bbbbend" : "begin bbbbend");
    }
    wire_close(w);
}

Test(net, tls_is_verified)
{
    struct rig *r = calloc(1, sizeof *r);
    char dir[] = "/tmp/sg-net-XXXXXX";
    cr_assert_not_null(mkdtemp(dir));
    char cert[64], key[64];
    make_certificate(dir);
    snprintf(cert, sizeof cert, "%s/cert", dir);
    snprintf(key, sizeof key, "%s/key", dir);
    snprintf(r->o.base, sizeof r->o.base, "https:");
    const char *const args[] = {"--tls", cert, key, NULL};
    rig_start(r, (struct sg_net_client_config){.ca_file = cert}, args);
    struct call *c = get(r->k, "/echo");
    cr_assert_eq(c->status, 200, "%s", c->err.message);
    free_call(c);
    check_echo(r->k, "/upgrade?deaf=4", 101, 4);
    check_echo(r->k, "/upgrade?deaf=300000", 101, 300000);
    struct sg_net_client *elsewhere = NULL;
    const struct sg_net_client_config to = {.base = "https://far.invalid", .ca_file = cert, .connect_to = r->o.base + strlen("https://")};
    cr_assert_eq(sg_net_client_new(r->net, &to, &elsewhere, NULL), 0);
    struct sg_net_request q = request("GET", "/echo", NULL);
    q.host = "localhost:9";
    c = ask(elsewhere, q);
    cr_assert_eq(c->status, 200, "%s", c->err.message);
    free_call(c);
    q.host = "other.invalid";
    c = ask(elsewhere, q);
    cr_assert_str_eq(c->err.reason, "tls_failed", "the certificate is held to the name, wherever it leads");
    free_call(c);
    sg_net_client_free(elsewhere);
    struct sg_net_client *wary = NULL;
    const struct sg_net_client_config cfg = {.base = r->o.base};
    cr_assert_eq(sg_net_client_new(r->net, &cfg, &wary, NULL), 0);
    c = get(wary, "/echo");
    cr_assert_eq(c->err.code, SG_UNAVAILABLE, "nobody vouches for it");
    cr_assert_str_eq(c->err.reason, "tls_failed");
    free_call(c);
    sg_net_client_free(wary);
    rig_stop(r);
    cr_assert_eq(sg_remove_tree(AT_FDCWD, dir, NULL), 0);
}

Test(net, an_upgraded_connection_goes_both_ways_and_ends_in_halves)
{
    struct rig *r = rig(0, 0);
    check_echo(r->k, "/upgrade", 101, 4);
    check_echo(r->k, "/upgrade?as=200", 200, 4);
    check_echo(r->k, "/upgrade?split=1", 101, 4);
    check_echo(r->k, "/upgrade", 101, 0);
    check_echo(r->k, "/upgrade", 101, 3000000);
    rig_stop(r);
}

Test(net, who_stops_reading_may_still_answer)
{
    struct rig *r = rig(0, 0);
    struct wire *w = wire_open(r->k, "/upgrade?deaf=10", 65536);
    wire_talk(w, 5000000);
    cr_assert_geq(w->got, 16);
    cr_assert_eq(strncmp(w->text, "begin bbbbbbbbbb", 16), 0, "%s", w->text);
    wire_close(w);
    rig_stop(r);
}

Test(net, an_upgrade_that_is_refused_is_an_ordinary_response)
{
    struct rig *r = rig(0, 0);
    struct wire *w = wire_open(r->k, "/nothing", 4096);
    wire_talk(w, 0);
    cr_assert_eq(w->c->status, 404);
    cr_assert_str_eq(w->c->body, "no such thing\n");
    cr_assert_eq(w->got, 0);
    wire_close(w);
    w = wire_open(r->k, "/garbage", 4096);
    wire_talk(w, 0);
    cr_assert_eq(w->c->err.code, SG_PROVIDER_FAILED);
    wire_close(w);
    w = wire_open(r->k, "/big?n=1", 4096);
    wire_talk(w, 0);
    cr_assert_eq(w->c->err.code, SG_PROVIDER_FAILED, "no stream");
    wire_close(w);
    rig_stop(r);
}

Test(net, an_upgraded_connection_ends_with_its_token_its_reader_and_its_client)
{
    struct rig *r = rig(0, 0);
    struct wire *w = wire_open(r->k, "/upgrade", 4096);
    cr_assert(flag_wait(&w->c->head, 1, 20000));
    sg_pipe_stop(w->out);
    cr_assert(flag_wait(&w->c->done, 1, 20000));
    cr_assert_eq(w->c->err.code, SG_CANCELLED);
    wire_close(w);
    w = wire_open(r->k, "/upgrade", 4096);
    cr_assert(flag_wait(&w->c->head, 1, 20000));
    r->k = sg_net_client_free(r->k);
    cr_assert_eq(w->c->err.code, SG_SHUTTING_DOWN);
    wire_close(w);
    rig_stop(r);
}

Test(net, a_response_to_an_upgrade_has_a_deadline)
{
    struct rig *r = rig(0, 0);
    struct wire w = {.c = new_call(), .in = sg_pipe_new(64), .out = sg_pipe_new(64)};
    struct sg_net_request q = request("POST", "/wait?gate=never", w.c);
    q.upgrade = "tcp";
    q.body_pipe = w.in;
    q.response = w.out;
    q.deadline_ms = sg_now_ms() + 200;
    cr_assert_eq(sg_net_call(r->k, &q, NULL), 0);
    cr_assert(flag_wait(&w.c->done, 1, 10000));
    cr_assert_eq(w.c->err.code, SG_PROVIDER_TIMEOUT);
    struct call *c = get(r->k, "/open?gate=never");
    free_call(c);
    sg_pipe_unref(w.in);
    sg_pipe_unref(w.out);
    free_call(w.c);
    rig_stop(r);
}

Test(net, a_time_to_come_again_is_a_number_or_a_date)
{
    struct rig *r = rig(0, 0);
    static const struct {
        const char *given;
        int least, most;
    } all[] = {{"0", 0, 0}, {"120", 120, 120}, {"99999999999", 86400, 86400}, {"soon", 0, 0}, {"-5", 0, 0},
               {"Sun%2C%2006%20Nov%201994%2008%3A49%3A37%20GMT", 0, 0}, {"Fri%2C%2031%20Dec%202100%2023%3A59%3A59%20GMT", 86400, 86400}, {NULL, 85, 90}};
    for (size_t i = 0; i < SG_COUNT_OF(all); i++) {
        char path[128], date[64];
        time_t soon = time(NULL) + 90;
        struct tm tm;
        strftime(date, sizeof date, "%a%%2C%%20%d%%20%b%%20%Y%%20%H%%3A%M%%3A%S%%20GMT", gmtime_r(&soon, &tm));
        snprintf(path, sizeof path, "/echo?retry_after=%s", all[i].given != NULL ? all[i].given : date);
        struct call *c = get(r->k, path);
        cr_expect(c->retry_after >= all[i].least && c->retry_after <= all[i].most, "%s: %d", path, c->retry_after);
        free_call(c);
    }
    rig_stop(r);
}

Test(net, a_proxy_is_an_http_one_or_refused)
{
    struct rig *r = rig(0, 0);
    static const char *const bad[] = {"https://h:1", "socks5://h", "h:1", "http://", "http://u:p@", "http://h/x", "http://h:1?x", "http://a b:1"};
    for (size_t i = 0; i < SG_COUNT_OF(bad); i++) {
        struct sg_net_client *k = NULL;
        struct sg_error err = {0};
        struct sg_secret *proxy = sg_secret_new(bad[i], strlen(bad[i]));
        const struct sg_net_client_config cfg = {.base = r->o.base, .proxy = proxy};
        cr_expect_eq(sg_net_client_new(r->net, &cfg, &k, &err), -1, "%s", bad[i]);
        cr_expect_eq(err.code, SG_INVALID_REQUEST);
        cr_expect_null(strstr(err.message, "u:p"), "%s", err.message);
        sg_error_clear(&err);
        sg_secret_free(proxy);
    }
    rig_stop(r);
}

Test(net, escapes)
{
    char *s = sg_net_escape("a/b c~{\"x\":[\"\xc3\xa9\"]}");
    cr_assert_str_eq(s, "a%2Fb%20c~%7B%22x%22%3A%5B%22%C3%A9%22%5D%7D");
    free(s);
}
