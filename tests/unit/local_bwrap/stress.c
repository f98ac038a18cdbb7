/* Many threads on one pool: leases, commands, files, kills and deaths at once. For ThreadSanitizer, which
 * Criterion cannot run under, and for figures: stress_local_bwrap [seconds [slots [threads [PER_SECOND]]]];
 * with the last one only creates and terminates, that many a second and thread (0: as fast as it goes). Exit
 * code 0: nothing went wrong. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/fd.h"
#include "tests/unit/local_bwrap/world.h"

#define SAMPLES 65536U

static struct world w;
static int64_t until_ms;
static int64_t pace_us; /* 0: as fast as it goes */
static atomic_size_t pairs, commands, losses, wrong;

/* How long something took its callers. */
static struct timing {
    const char *name;
    atomic_size_t n;
    int64_t us[SAMPLES];
} creates = {.name = "create"}, terminates = {.name = "terminate"};

static void note(struct timing *t, int64_t us)
{
    size_t i = atomic_fetch_add(&t->n, 1);
    if (i < SAMPLES) {
        t->us[i] = us;
    }
}

static void complain(const char *what, const struct sg_error *err)
{
    (void)fprintf(stderr, "%s: %s: %s\n", what, sg_code_name(err->code), err->message);
    atomic_fetch_add(&wrong, 1);
}

static void some_commands(struct sg_sandbox *sb, unsigned *seed)
{
    struct run r;
    switch (rand_r(seed) % 6) {
    case 0:
        call_exec(sb, "cat; echo done", "text\n", &r);
        if (!r.failed && !sg_streq(r.out, "text\ndone\n")) {
            (void)fprintf(stderr, "returncode %d, signal %d, out \"%s\", err \"%s\"\n", r.exit.returncode,
                          r.exit.signal, r.out, r.errout);
            complain("output", &r.err);
        }
        break;
    case 1:
        (void)call_exec_begin(sb, "sleep 1000", false, 5, &r);
        call_exec_end(&r);
        break;
    case 2:
        if (call_exec_begin(sb, "sleep 1000 & sleep 1000", false, CALL_MS, &r)) {
            r.x->ops->kill(r.x, SG_KILLED_CALLER);
        }
        call_exec_end(&r);
        break;
    default:
        call_exec(sb, "test -e /workspace/f && echo not fresh", NULL, &r);
        if (!r.failed && r.out_len > 0) {
            complain(r.out, &r.err);
        }
        break;
    }
    atomic_fetch_add(&commands, 1);
    if (r.failed && r.err.code != SG_SANDBOX_LOST) {
        complain("command", &r.err);
    }
    call_exec_finish(&r);
}

static void some_files(struct sg_sandbox *sb)
{
    struct sg_error err = {0};
    if (call_put(sb, "f", "content", 7, false, &err) < 0) {
        if (err.code != SG_SANDBOX_LOST) {
            complain("put", &err);
        }
        sg_error_clear(&err);
        return;
    }
    char *data = call_get(sb, "f", NULL, &err);
    if (data == NULL ? err.code != SG_SANDBOX_LOST : !sg_streq(data, "content")) {
        complain("get", &err);
    }
    free(data);
    sg_error_clear(&err);
}

static void lost(void *arg, struct sg_sandbox *sb, const struct sg_error *why)
{
    (void)arg;
    (void)sb;
    (void)why;
    atomic_fetch_add(&losses, 1);
}

static void one_lease(unsigned *seed)
{
    struct sg_error err = {0};
    struct sg_sandbox_spec spec = call_spec("lse_stress");
    struct creating c = {.lost = lost};
    call_create_begin(w.d, &spec, NULL, &c);
    struct sg_sandbox *sb = call_create_end(&c);
    if (sb == NULL) {
        complain("create", &c.err);
        sg_error_clear(&c.err);
        return;
    }
    note(&creates, c.took_us);
    for (int k = rand_r(seed) % 4; k > 0; k--) {
        some_commands(sb, seed);
    }
    if (rand_r(seed) % 3 == 0) {
        some_files(sb);
    }
    if (call_terminate(sb, &err) < 0) {
        complain("terminate", &err);
    }
    sg_sandbox_unref(sb);
    atomic_fetch_add(&pairs, 1);
}

static void *worker(void *arg)
{
    unsigned seed = (unsigned)(uintptr_t)arg;
    while (sg_now_ms() < until_ms) {
        one_lease(&seed);
    }
    return NULL;
}

/* Only creates and terminates: what a lease costs its caller. */
static void *pacer(void *arg)
{
    (void)arg;
    for (int64_t due_us = sg_now_us(); sg_now_ms() < until_ms; due_us += pace_us) {
        struct sg_sandbox_spec spec = call_spec("lse_pace");
        struct creating c = {0};
        struct timespec nap = {.tv_nsec = due_us > sg_now_us() ? (due_us - sg_now_us()) % 1000000 * 1000 : 0};
        (void)nanosleep(&nap, NULL);
        call_create_begin(w.d, &spec, NULL, &c);
        struct sg_sandbox *sb = call_create_end(&c);
        note(&creates, c.took_us);
        if (sb == NULL) {
            complain("create", &c.err);
            continue;
        }
        int64_t begun_us = sg_now_us();
        call_end(sb);
        note(&terminates, sg_now_us() - begun_us);
        atomic_fetch_add(&pairs, 1);
    }
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a;
    int64_t y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void print_timing(struct timing *t)
{
    size_t n = atomic_load(&t->n) < SAMPLES ? atomic_load(&t->n) : SAMPLES;
    if (n > 0) {
        qsort(t->us, n, sizeof *t->us, by_value);
        (void)printf("%s p50 %lld us, p99 %lld us\n", t->name, (long long)t->us[n / 2],
                     (long long)t->us[n * 99 / 100]);
    }
}

static void print_result(int64_t took_ms)
{
    (void)printf("%zu pairs (%.0f/s), %zu commands, %zu lost, %zu wrong\n", atomic_load(&pairs),
                 (double)atomic_load(&pairs) * 1000.0 / (double)took_ms, atomic_load(&commands),
                 atomic_load(&losses), atomic_load(&wrong));
    print_timing(&creates);
    print_timing(&terminates);
}

/* First of its PID namespace? A command that has not become another program yet has the agent's name too. */
static bool is_agent(pid_t pid)
{
    char path[64];
    char *text = NULL;
    size_t len = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    if (sg_read_file(path, 8192, &text, &len, NULL) < 0) {
        return false;
    }
    const char *line = strstr(text, "NSpid:");
    size_t n = line != NULL ? strcspn(line, "\n") : 0;
    bool yes = n > 2 && strncmp(line + n - 2, "\t1", 2) == 0;
    free(text);
    return yes;
}

/* Now and then an agent dies, as nobody wants. */
static void kill_some(int64_t every_ms)
{
    pid_t pids[64];
    struct timespec nap = {.tv_sec = every_ms / 1000, .tv_nsec = every_ms % 1000 * 1000000};
    while (sg_now_ms() < until_ms) {
        (void)nanosleep(&nap, NULL);
        size_t n = world_processes(&w, "agent", pids, SG_COUNT_OF(pids));
        pid_t pid = n > 0 ? pids[(size_t)sg_now_us() % (n < SG_COUNT_OF(pids) ? n : SG_COUNT_OF(pids))] : 0;
        if (pid > 0 && is_agent(pid)) {
            (void)kill(pid, SIGKILL);
        }
    }
}

int main(int argc, char **argv)
{
    long seconds = argc > 1 ? strtol(argv[1], NULL, 10) : 5;
    unsigned slots = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 8;
    unsigned n_threads = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 8;
    bool pairs_only = argc > 4;
    long per_second = pairs_only ? strtol(argv[4], NULL, 10) : 0;
    pace_us = per_second > 0 ? 1000000 / per_second : 0;
    pthread_t threads[64];
    struct sg_local_pool_config c = world_pool(slots);
    c.health_interval_ms = 100;
    world_open(&w, false, &c, 1);
    if (!world_wait_ready(&w) || n_threads > SG_COUNT_OF(threads)) {
        return 1;
    }
    int64_t begun = sg_now_ms();
    until_ms = begun + 1000 * seconds;
    for (unsigned i = 0; i < n_threads; i++) {
        (void)pthread_create(&threads[i], NULL, pairs_only ? pacer : worker, (void *)(uintptr_t)(i + 1));
    }
    if (!pairs_only) {
        kill_some(250);
    }
    for (unsigned i = 0; i < n_threads; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    print_result(sg_now_ms() - begun);
    world_close(&w);
    return atomic_load(&wrong) == 0 ? 0 : 1;
}
