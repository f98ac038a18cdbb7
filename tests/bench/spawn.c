/* The floor under every exec: posix_spawn and waitpid, nothing else. And the floor under every promise: write
 * and fdatasync. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

extern char **environ;

struct spawner {
    pthread_t thread;
    char **argv;
    int64_t until_ns;
    size_t left;
    struct bench_samples samples;
};

static void *spawner_main(void *arg)
{
    struct spawner *s = arg;
    while (s->left-- > 0) {
        pid_t pid;
        int status;
        int64_t t = bench_now_ns();
        if (t >= s->until_ns)
            break;
        int rc = posix_spawnp(&pid, s->argv[0], NULL, NULL, s->argv, environ);
        if (rc != 0)
            bench_die("%s: %s", s->argv[0], strerror(rc));
        if (waitpid(pid, &status, 0) != pid || status != 0)
            bench_die("%s: status %d", s->argv[0], status);
        bench_samples_add(&s->samples, bench_now_ns() - t);
    }
    return NULL;
}

int bench_spawn(int argc, char **argv)
{
    if (argc < 4)
        bench_die("usage: sgbench spawn THREADS MILLISECONDS COUNT ARG...");
    size_t n = (size_t)bench_number(argv[0]);
    struct bench_samples all = {0};
    struct spawner *list = bench_alloc(n * sizeof *list);
    int64_t started = bench_now_ns();
    for (size_t i = 0; i < n; i++) {
        list[i].argv = argv + 3;
        list[i].until_ns = started + bench_number(argv[1]) * 1000000;
        list[i].left = bench_number(argv[2]) ? (size_t)bench_number(argv[2]) : SIZE_MAX;
        if (pthread_create(&list[i].thread, NULL, spawner_main, &list[i]) != 0)
            bench_die("pthread_create");
    }
    for (size_t i = 0; i < n; i++) {
        pthread_join(list[i].thread, NULL);
        bench_samples_join(&all, &list[i].samples);
    }
    double seconds = (double)(bench_now_ns() - started) / 1e9;
    printf("{\"n\":%zu,\"seconds\":%.4f,\"per_s\":%.1f,", all.n, seconds, (double)all.n / seconds);
    bench_print_percentiles("latency", &all);
    printf("}\n");
    return 0;
}

/* Writes BYTES at the end of a file and waits for the disk, like one commit of a journal does. */
int bench_fsync(int argc, char **argv)
{
    static char data[65536];
    if (argc != 3)
        bench_die("usage: sgbench fsync DIRECTORY BYTES COUNT");
    size_t size = (size_t)bench_number(argv[1]);
    struct bench_samples samples = {0};
    char path[4096];
    snprintf(path, sizeof path, "%s/fsync.bench", argv[0]);
    int fd = open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 || size > sizeof data)
        bench_die("%s: %s", path, strerror(errno));
    unlink(path);
    for (long i = 0; i < bench_number(argv[2]); i++) {
        int64_t t = bench_now_ns();
        if (write(fd, data, size) != (ssize_t)size || fdatasync(fd) < 0)
            bench_die("%s: %s", path, strerror(errno));
        bench_samples_add(&samples, bench_now_ns() - t);
    }
    close(fd);
    printf("{");
    bench_print_percentiles("fsync", &samples);
    printf("}\n");
    return 0;
}
