/* Create and terminate leases, as fast as the callers can or at a given rate.
 *
 * Paced, pair i is due at start + i / rate, whoever is free takes it, and its time runs from then: a server
 * that falls behind is charged for the queue. A caller that slept until the due time is not charged for its
 * own waking up.
 *
 * Every lease must be a sandbox of its own: a sandbox_id (slot and generation) seen twice ends the run. Of
 * every SAMPLE-th lease the files are looked at too: the marker that each of them gets must not be there
 * before. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "bench.h"

#define SANDBOX_ID_MAX 64

struct pairs {
    int port;
    long rate, count, sample;
    int64_t started_ns, until_ns;
    atomic_long next;
};

struct caller {
    struct pairs *p;
    pthread_t thread;
    struct bench_conn conn;
    struct bench_samples create, terminate, pair;
    char (*ids)[SANDBOX_ID_MAX];
    size_t n_ids, cap_ids;
    long looked_at, unfinished;
};

static void member(const char *json, const char *name, char *out, size_t cap)
{
    char key[64];
    snprintf(key, sizeof key, "\"%s\":\"", name);
    const char *at = strstr(json, key);
    size_t len = at ? strcspn(at + strlen(key), "\"") : 0;
    if (!at || len >= cap)
        bench_die("no %s in %s", name, json);
    memcpy(out, at + strlen(key), len);
    out[len] = '\0';
}

static int call(struct caller *c, const char *method, const char *path, const char *body)
{
    char request[1024];
    int n = snprintf(
        request, sizeof request,
        "%s %s HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
        method, path, strlen(body), body);
    return bench_call(&c->conn, request, (size_t)n);
}

static void expect(struct caller *c, int status, int want, const char *what)
{
    if (status != want)
        bench_die("%s: status %d: %s", what, status, c->conn.buf + c->conn.head_len);
}

static void keep_id(struct caller *c, const char *id)
{
    if (c->n_ids == c->cap_ids) {
        c->cap_ids = c->cap_ids ? 2 * c->cap_ids : 1024;
        c->ids = realloc(c->ids, c->cap_ids * sizeof *c->ids);
        if (!c->ids)
            bench_die("out of memory");
    }
    snprintf(c->ids[c->n_ids++], sizeof *c->ids, "%s", id);
}

static void look_at_files(struct caller *c, const char *lease)
{
    static const char *const places[] = {"/workspace/marker", "/tmp/marker", "/home/sandbox/marker"};
    char path[256];
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(path, sizeof path, "/leases/%s/files?path=%s", lease, places[i]);
        expect(c, call(c, "GET", path, ""), 404, "a marker of another lease");
        expect(c, call(c, "PUT", path, "mine"), 201, "writing a marker");
    }
    c->looked_at++;
}

static void one_pair(struct caller *c, long i, int64_t from_ns)
{
    char lease[SANDBOX_ID_MAX], sandbox[SANDBOX_ID_MAX], path[128];
    expect(c, call(c, "POST", "/leases", "{\"timeout_sec\":60}"), 201, "create");
    int64_t created = bench_now_ns();
    member(c->conn.buf + c->conn.head_len, "id", lease, sizeof lease);
    member(c->conn.buf + c->conn.head_len, "sandbox_id", sandbox, sizeof sandbox);
    keep_id(c, sandbox);
    int64_t aside = bench_now_ns();
    if (c->p->sample && i % c->p->sample == 0)
        look_at_files(c, lease);
    int64_t ending = bench_now_ns();
    snprintf(path, sizeof path, "/leases/%s", lease);
    int status = call(c, "DELETE", path, "");
    if (status == 202)
        c->unfinished++;
    else
        expect(c, status, 200, "terminate");
    int64_t ended = bench_now_ns();
    bench_samples_add(&c->create, created - from_ns);
    bench_samples_add(&c->terminate, ended - ending);
    bench_samples_add(&c->pair, ended - from_ns - (ending - aside));
}

static int64_t wait_until(int64_t due_ns)
{
    struct timespec t = {.tv_sec = due_ns / 1000000000, .tv_nsec = due_ns % 1000000000};
    if (bench_now_ns() >= due_ns)
        return due_ns;
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        ;
    return bench_now_ns();
}

static void *caller_main(void *arg)
{
    struct caller *c = arg;
    struct pairs *p = c->p;
    prctl(PR_SET_TIMERSLACK, 1UL);
    for (;;) {
        long i = atomic_fetch_add(&p->next, 1);
        int64_t due = p->rate ? p->started_ns + i * (1000000000 / p->rate) : bench_now_ns();
        if (i >= p->count || due >= p->until_ns)
            return NULL;
        one_pair(c, i, p->rate ? wait_until(due) : due);
    }
}

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void check_fresh(struct caller *list, size_t n)
{
    struct caller all = {0};
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < list[i].n_ids; k++)
            keep_id(&all, list[i].ids[k]);
    if (all.n_ids > 1)
        qsort(all.ids, all.n_ids, sizeof *all.ids, by_text);
    for (size_t k = 1; k < all.n_ids; k++)
        if (strcmp(all.ids[k], all.ids[k - 1]) == 0)
            bench_die("two leases had the sandbox %s", all.ids[k]);
    free(all.ids);
}

static void report(struct pairs *p, struct caller *list, size_t n)
{
    struct bench_samples create = {0}, terminate = {0}, pair = {0};
    long looked_at = 0, unfinished = 0;
    double seconds = (double)(bench_now_ns() - p->started_ns) / 1e9;
    for (size_t i = 0; i < n; i++) {
        bench_samples_join(&create, &list[i].create);
        bench_samples_join(&terminate, &list[i].terminate);
        bench_samples_join(&pair, &list[i].pair);
        looked_at += list[i].looked_at;
        unfinished += list[i].unfinished;
    }
    printf("{\"n\":%zu,\"seconds\":%.3f,\"per_s\":%.1f,\"looked_at\":%ld,\"unfinished\":%ld,", pair.n,
           seconds, (double)pair.n / seconds, looked_at, unfinished);
    bench_print_percentiles("create", &create);
    printf(",");
    bench_print_percentiles("terminate", &terminate);
    printf(",");
    bench_print_percentiles("pair", &pair);
    printf("}\n");
}

int bench_pairs(int argc, char **argv)
{
    if (argc != 6)
        bench_die("usage: sgbench pairs PORT CALLERS RATE MILLISECONDS COUNT SAMPLE");
    size_t n = (size_t)bench_number(argv[1]);
    struct pairs p = {
        .port = (int)bench_number(argv[0]), .rate = bench_number(argv[2]), .sample = bench_number(argv[5])};
    struct caller *list = bench_alloc(n * sizeof *list);
    p.count = bench_number(argv[4]) ? bench_number(argv[4]) : 1000000000;
    p.started_ns = bench_now_ns();
    p.until_ns = p.started_ns + bench_number(argv[3]) * 1000000;
    for (size_t i = 0; i < n; i++) {
        list[i].p = &p;
        bench_connect(&list[i].conn, p.port, false);
        if (pthread_create(&list[i].thread, NULL, caller_main, &list[i]) != 0)
            bench_die("pthread_create");
    }
    for (size_t i = 0; i < n; i++)
        pthread_join(list[i].thread, NULL);
    check_fresh(list, n);
    report(&p, list, n);
    return 0;
}
