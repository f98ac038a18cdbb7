/* Many threads on one pool: leases, commands, files, kills and deaths at once. For ThreadSanitizer, which Criterion cannot
 * run under, and for figures: stress_local_bwrap [seconds [slots [threads [pairs]]]]; with `pairs` only creates and terminates. Exit code 0:
 * nothing went wrong. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "tests/unit/local_bwrap/world.h"

#define SAMPLES 65536U

static struct world w;
static int64_t until_ms;
static atomic_size_t pairs, commands, losses, wrong, n_samples;
static int64_t samples[SAMPLES];

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
    struct creating c = {0};
    call_create_begin(w.d, &spec, NULL, &c);
    struct sg_sandbox *sb = call_create_end(&c);
    if (sb == NULL) {
        complain("create", &c.err);
        sg_error_clear(&c.err);
        return;
    }
    size_t i = atomic_fetch_add(&n_samples, 1);
    if (i < SAMPLES) {
        samples[i] = c.took_us;
    }
    sg_sandbox_on_lost(sb, lost, NULL);
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

/* Only creates and terminates, from one thread: what a lease costs its caller. */
static void *pacer(void *arg)
{
    (void)arg;
    while (sg_now_ms() < until_ms) {
        struct sg_sandbox_spec spec = call_spec("lse_pace");
        struct creating c = {0};
        call_create_begin(w.d, &spec, NULL, &c);
        struct sg_sandbox *sb = call_create_end(&c);
        size_t i = atomic_fetch_add(&n_samples, 1);
        if (i < SAMPLES) {
            samples[i] = c.took_us;
        }
        if (sb == NULL) {
            complain("create", &c.err);
            continue;
        }
        call_end(sb);
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

static void print_result(int64_t took_ms)
{
    size_t n = atomic_load(&n_samples) < SAMPLES ? atomic_load(&n_samples) : SAMPLES;
    qsort(samples, n, sizeof *samples, by_value);
    (void)printf("%zu pairs (%.0f/s), %zu commands, %zu lost, create p50 %lld us, p99 %lld us, %zu wrong\n",
                 atomic_load(&pairs), (double)atomic_load(&pairs) * 1000.0 / (double)took_ms, atomic_load(&commands),
                 atomic_load(&losses), n > 0 ? (long long)samples[n / 2] : 0LL,
                 n > 0 ? (long long)samples[n * 99 / 100] : 0LL, atomic_load(&wrong));
}

/* Now and then an agent dies, as nobody wants. */
static void kill_some(int64_t every_ms)
{
    pid_t pids[64];
    struct timespec nap = {.tv_sec = every_ms / 1000, .tv_nsec = every_ms % 1000 * 1000000};
    while (sg_now_ms() < until_ms) {
        (void)nanosleep(&nap, NULL);
        size_t n = world_processes(&w, "agent", pids, SG_COUNT_OF(pids));
        if (n > 0) {
            (void)kill(pids[(size_t)sg_now_us() % (n < SG_COUNT_OF(pids) ? n : SG_COUNT_OF(pids))], SIGKILL);
        }
    }
}

int main(int argc, char **argv)
{
    long seconds = argc > 1 ? strtol(argv[1], NULL, 10) : 5;
    unsigned slots = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 8;
    unsigned n_threads = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 8;
    bool pairs_only = argc > 4;
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
