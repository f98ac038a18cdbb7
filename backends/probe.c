#include "backends/probe.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/fd.h"

#define ATTEMPT_MS 5000
#define PAUSE_FIRST_MS 5
#define PAUSE_MAX_MS 250
#define ASK_PAUSE_FIRST_MS 50 /* of somebody far away */
#define ASK_PAUSE_MAX_MS 1000
/* A good answer is read to its end, so that the service sees no broken connection; but not for long. */
#define REST_MS 100
#define REST_BYTES ((size_t)64 * 1024)

struct sg_probe {
    atomic_int refs; /* the owner's until done or cancel; one of a dial under way */
    struct sg_probe_args a;
    char *path;
    char *request;
    size_t request_len, sent;
    struct sg_watch watch; /* its fd is the connection */
    struct sg_hold *hold;
    struct sg_timer timer; /* the pause, the attempt's end, the end of the rest */
    struct sg_task task;   /* the first attempt, then what became of each dial */
    int64_t pause_ms;
    int64_t until_ms; /* of this attempt */
    char line[256];
    size_t line_len;
    size_t rest;
    bool well; /* the status was good, the rest is being read */
    bool over;

    /* from the dial to the task */
    int dialled;
    struct sg_hold *dialled_hold;
    struct sg_error dial_error; /* or of an ask */
};

static void attempt(struct sg_probe *p);

static void probe_unref(struct sg_probe *p)
{
    if (atomic_fetch_sub(&p->refs, 1) > 1) {
        return;
    }
    sg_error_clear(&p->dial_error);
    free(p->path);
    free(p->request);
    free(p);
}

static void hang_up(struct sg_probe *p)
{
    sg_timer_cancel(p->a.reactor, &p->timer);
    sg_watch_del(p->a.reactor, &p->watch);
    p->watch.fd = sg_close(p->watch.fd);
    p->hold = sg_hold_unref(p->hold);
}

static void finish(struct sg_probe *p, const struct sg_error *err)
{
    hang_up(p);
    p->over = true;
    p->a.done(p->a.arg, err);
    probe_unref(p);
}

static void pause_over(struct sg_timer *t)
{
    attempt(sg_container_of(t, struct sg_probe, timer));
}

/* The attempt has failed: another one later, unless there is no later. */
static void failed(struct sg_probe *p, struct sg_error *why)
{
    int64_t now = sg_now_ms();
    bool final = why->code == SG_SANDBOX_LOST || why->code == SG_LEASE_GONE || why->code == SG_NOT_SUPPORTED;
    hang_up(p);
    if (final || now + p->pause_ms >= p->a.deadline_ms) {
        if (!final) {
            (void)sg_error_wrap(why, "port %u: GET %.200s", (unsigned)p->a.port, p->path);
        }
        finish(p, why);
    } else {
        p->timer.fire = pause_over;
        sg_timer_set(p->a.reactor, &p->timer, now + p->pause_ms);
        int64_t max_ms = p->a.ask != NULL ? ASK_PAUSE_MAX_MS : PAUSE_MAX_MS;
        p->pause_ms = 2 * p->pause_ms < max_ms ? 2 * p->pause_ms : max_ms;
    }
    sg_error_clear(why);
}

static void broken(struct sg_probe *p, const char *text)
{
    struct sg_error why = {0};
    sg_error_set(&why, SG_ENDPOINT_FAILED, "%s", text);
    failed(p, &why);
}

static void too_late(struct sg_timer *t)
{
    struct sg_probe *p = sg_container_of(t, struct sg_probe, timer);
    struct sg_error why = {0};
    if (p->well) {
        finish(p, NULL);
        return;
    }
    sg_error_set(&why, SG_ENDPOINT_TIMEOUT, "no answer in time");
    failed(p, &why);
}

/* ---- the answer ---- */

/* 0: the first line is not complete; -1: it is no HTTP; else the status. */
static int status_of(const struct sg_probe *p)
{
    static const char start[] = "HTTP/1.";
    const char *s = p->line;
    size_t n = p->line_len < sizeof start - 1 ? p->line_len : sizeof start - 1;
    if (memcmp(s, start, n) != 0) {
        return -1;
    }
    if (p->line_len < 13) {
        return 0;
    }
    bool digits = (s[7] == '0' || s[7] == '1') && s[8] == ' ' && (s[12] == ' ' || s[12] == '\r' || s[12] == '\n');
    for (int i = 9; i < 12; i++) {
        digits = digits && s[i] >= '0' && s[i] <= '9';
    }
    return digits ? 100 * (s[9] - '0') + 10 * (s[10] - '0') + (s[11] - '0') : -1;
}

static void look(struct sg_probe *p)
{
    struct sg_error why = {0};
    int status = status_of(p);
    if (status == 0) {
        return;
    }
    if (status < 0) {
        broken(p, "the answer is not HTTP/1.1");
    } else if (status >= 200 && status < 400) {
        p->well = true;
        sg_timer_set(p->a.reactor, &p->timer, sg_now_ms() + REST_MS);
    } else {
        sg_error_set(&why, SG_ENDPOINT_FAILED, "the answer has status %d", status);
        failed(p, &why);
    }
}

static void read_answer(struct sg_probe *p)
{
    char nowhere[4096];
    char *to = p->well ? nowhere : p->line + p->line_len;
    size_t max = p->well ? sizeof nowhere : sizeof p->line - p->line_len;
    ssize_t n = recv(p->watch.fd, to, max, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (p->well) {
        p->rest += n > 0 ? (size_t)n : 0;
        if (n <= 0 || p->rest > REST_BYTES) {
            finish(p, NULL);
        }
    } else if (n <= 0) {
        broken(p, "the connection was closed without an answer");
    } else {
        p->line_len += (size_t)n;
        look(p);
    }
}

static void send_request(struct sg_probe *p)
{
    ssize_t n = send(p->watch.fd, p->request + p->sent, p->request_len - p->sent, MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN && errno != EINTR) {
        broken(p, "the connection was closed before the request");
        return;
    }
    p->sent += n > 0 ? (size_t)n : 0;
    if (p->sent == p->request_len) {
        sg_watch_mod(p->a.reactor, &p->watch, EPOLLIN);
    }
}

static void ready(struct sg_watch *w, uint32_t events)
{
    struct sg_probe *p = sg_container_of(w, struct sg_probe, watch);
    if (p->sent < p->request_len && (events & EPOLLIN) == 0) {
        send_request(p);
    } else {
        read_answer(p);
    }
}

/* ---- the connection ---- */

static void dialled_run(struct sg_task *t)
{
    struct sg_probe *p = sg_container_of(t, struct sg_probe, task);
    struct sg_error err = {0};
    p->watch.fd = p->dialled;
    p->hold = sg_steal(&p->dialled_hold);
    if (p->over) {
        hang_up(p);
    } else if (p->watch.fd < 0) {
        failed(p, &p->dial_error);
    } else if (sg_watch_add(p->a.reactor, &p->watch, EPOLLOUT, &err) < 0) {
        failed(p, &err);
    } else {
        p->timer.fire = too_late;
        sg_timer_set(p->a.reactor, &p->timer, p->until_ms);
    }
    probe_unref(p);
}

/* Any thread. */
static void dialled(void *arg, int fd, struct sg_hold *hold, const struct sg_error *err)
{
    struct sg_probe *p = arg;
    p->dialled = fd;
    p->dialled_hold = hold;
    if (fd < 0) {
        sg_error_copy(&p->dial_error, err);
    }
    p->task.run = dialled_run;
    sg_reactor_post(p->a.reactor, &p->task);
}

static void asked_run(struct sg_task *t)
{
    struct sg_probe *p = sg_container_of(t, struct sg_probe, task);
    if (p->over) {
        sg_error_clear(&p->dial_error);
    } else if (p->dial_error.code != SG_OK) {
        failed(p, &p->dial_error);
    } else {
        finish(p, NULL);
    }
    probe_unref(p);
}

/* Any thread. */
static void asked(void *arg, const struct sg_error *err)
{
    struct sg_probe *p = arg;
    if (err != NULL) {
        sg_error_copy(&p->dial_error, err);
    }
    p->task.run = asked_run;
    sg_reactor_post(p->a.reactor, &p->task);
}

static int begin_attempt(struct sg_probe *p, struct sg_error *err)
{
    const struct sg_dial_done to = {.fn = dialled, .arg = p};
    const struct sg_done answer = {.fn = asked, .arg = p};
    return p->a.ask != NULL ? p->a.ask(p->a.arg, p->a.port, p->path, p->until_ms, &answer, err)
                            : p->a.dial(p->a.arg, p->a.port, p->until_ms, &to, err);
}

static void attempt(struct sg_probe *p)
{
    struct sg_error err = {0};
    int64_t now = sg_now_ms();
    p->until_ms = p->a.deadline_ms < now + ATTEMPT_MS ? p->a.deadline_ms : now + ATTEMPT_MS;
    p->until_ms = p->until_ms > now + PAUSE_MAX_MS ? p->until_ms : now + PAUSE_MAX_MS;
    p->sent = p->line_len = 0;
    atomic_fetch_add(&p->refs, 1);
    if (begin_attempt(p, &err) < 0) { /* else it answers, for it has a deadline */
        failed(p, &err);
        probe_unref(p);
    }
}

static void first_attempt(struct sg_task *t)
{
    struct sg_probe *p = sg_container_of(t, struct sg_probe, task);
    if (!p->over) {
        attempt(p);
    }
    probe_unref(p);
}

struct sg_probe *sg_probe_start(const struct sg_probe_args *a)
{
    struct sg_probe *p = sg_xcalloc(1, sizeof *p);
    atomic_init(&p->refs, 2);
    p->a = *a;
    p->path = sg_xstrdup(a->path);
    p->request = sg_xasprintf("GET %s HTTP/1.1\r\nHost: 127.0.0.1:%u\r\nUser-Agent: sandgate-health\r\nAccept: */*\r\n"
                              "Connection: close\r\n\r\n",
                              a->path, (unsigned)a->port);
    p->request_len = strlen(p->request);
    p->pause_ms = a->ask != NULL ? ASK_PAUSE_FIRST_MS : PAUSE_FIRST_MS;
    p->watch = (struct sg_watch){.ready = ready, .fd = -1};
    p->task.run = first_attempt;
    sg_reactor_post(a->reactor, &p->task);
    return p;
}

struct sg_probe *sg_probe_cancel(struct sg_probe *p)
{
    if (p != NULL) {
        hang_up(p);
        p->over = true;
        probe_unref(p);
    }
    return NULL;
}
