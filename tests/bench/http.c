/* Closed-loop load: every connection has one request under way. One thread, so that the client costs both
 * sides of a comparison the same; a single connection is served without epoll. With `spin` the client does
 * not sleep between answers: what it costs to wake it (an interrupt to another processor, tens of
 * microseconds on a virtual machine) is charged to the server that sends, and a server fast enough to keep
 * the client busy would not pay it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "bench.h"

#define SILENCE_NS ((int64_t)60 * 1000000000)

struct load {
    int port;
    size_t n_conns, n_files;
    int64_t until_ns; /* no new request after this */
    size_t left;      /* requests still to be sent */
    bool spin;
    size_t under_way, bytes;
    struct bench_conn *conns;
    int64_t *sent_ns;
    char **files;
    size_t *lengths;
    struct bench_samples samples;
};

static bool send_next(struct load *l, size_t i)
{
    int64_t now = bench_now_ns();
    if (l->left == 0 || now >= l->until_ns)
        return false;
    l->left--;
    l->under_way++;
    l->sent_ns[i] = now;
    bench_answer_begin(&l->conns[i]);
    bench_send(&l->conns[i], l->files[i % l->n_files], l->lengths[i % l->n_files]);
    return true;
}

static void answered(struct load *l, size_t i)
{
    struct bench_conn *c = &l->conns[i];
    if (c->status < 200 || c->status > 299)
        bench_die("status %d: %.400s", c->status, c->buf + c->head_len);
    l->under_way--;
    l->bytes += c->body_len;
    bench_samples_add(&l->samples, bench_now_ns() - l->sent_ns[i]);
}

static void run_one(struct load *l)
{
    while (send_next(l, 0)) {
        while (!bench_answer_more(&l->conns[0]))
            ;
        answered(l, 0);
    }
}

static void run_many(struct load *l)
{
    struct epoll_event ready[64];
    int ep = epoll_create1(EPOLL_CLOEXEC);
    for (size_t i = 0; i < l->n_conns; i++) {
        struct epoll_event e = {.events = EPOLLIN, .data.u64 = i};
        if (epoll_ctl(ep, EPOLL_CTL_ADD, l->conns[i].fd, &e) < 0)
            bench_die("epoll_ctl: %s", strerror(errno));
        send_next(l, i);
    }
    int64_t heard = bench_now_ns();
    while (l->under_way > 0) {
        int n = epoll_wait(ep, ready, 64, l->spin ? 0 : 1000);
        if (n < 0 || (n == 0 && bench_now_ns() - heard > SILENCE_NS))
            bench_die("no answer within a minute");
        if (n > 0)
            heard = bench_now_ns();
        for (int k = 0; k < n; k++) {
            size_t i = (size_t)ready[k].data.u64;
            if (!bench_answer_more(&l->conns[i]))
                continue;
            answered(l, i);
            send_next(l, i);
        }
    }
    close(ep);
}

int bench_http(int argc, char **argv)
{
    if (argc < 6)
        bench_die("usage: sgbench http PORT CONNECTIONS MILLISECONDS COUNT spin|sleep FILE...");
    struct load l = {.port = (int)bench_number(argv[0]),
                     .n_conns = (size_t)bench_number(argv[1]),
                     .n_files = (size_t)argc - 5};
    l.spin = strcmp(argv[4], "spin") == 0;
    l.left = bench_number(argv[3]) ? (size_t)bench_number(argv[3]) : SIZE_MAX;
    l.conns = bench_alloc(l.n_conns * sizeof *l.conns);
    l.sent_ns = bench_alloc(l.n_conns * sizeof *l.sent_ns);
    l.files = bench_alloc(l.n_files * sizeof *l.files);
    l.lengths = bench_alloc(l.n_files * sizeof *l.lengths);
    for (size_t i = 0; i < l.n_files; i++)
        l.files[i] = bench_file(argv[5 + i], &l.lengths[i]);
    for (size_t i = 0; i < l.n_conns; i++)
        bench_connect(&l.conns[i], l.port, l.n_conns > 1);
    int64_t started = bench_now_ns();
    l.until_ns = started + bench_number(argv[2]) * 1000000;
    if (l.n_conns == 1)
        run_one(&l);
    else
        run_many(&l);
    double seconds = (double)(bench_now_ns() - started) / 1e9;
    printf("{\"n\":%zu,\"seconds\":%.4f,\"per_s\":%.1f,\"bytes\":%zu,", l.samples.n, seconds,
           (double)l.samples.n / seconds, l.bytes);
    bench_print_percentiles("latency", &l.samples);
    printf("}\n");
    for (size_t i = 0; i < l.n_conns; i++)
        bench_close(&l.conns[i]);
    return 0;
}
