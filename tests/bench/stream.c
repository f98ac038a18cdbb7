/* Zeros that a command writes, to this process: as the events of a stream, through a pipe, and through a pipe, a process and a TCP
 * connection, which is what any server has to do with them. And the time until the first of them is here. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

extern char **environ;

#define BLOCK 131072 /* what `cat` reads and writes at a time */
#define TAIL 4096    /* of an answer: the last event is in it */

static char buffer[256 * 1024];

/* Starts `dd` with our pipe as its standard output; returns our end. */
static int start_zeros(size_t size, pid_t *ret)
{
    int p[2];
    char count[48];
    char name[] = "dd", from[] = "if=/dev/zero", block[] = "bs=131072", quiet[] = "status=none";
    char *argv[] = {name, from, block, count, quiet, NULL};
    posix_spawn_file_actions_t actions;
    snprintf(count, sizeof count, "count=%zu", size / BLOCK);
    posix_spawn_file_actions_init(&actions);
    if (pipe2(p, O_CLOEXEC) < 0)
        bench_die("pipe: %s", strerror(errno));
    posix_spawn_file_actions_adddup2(&actions, p[1], 1);
    if (posix_spawnp(ret, "dd", &actions, NULL, argv, environ) != 0)
        bench_die("dd does not start");
    posix_spawn_file_actions_destroy(&actions);
    close(p[1]);
    return p[0];
}

static void join(pid_t pid)
{
    int status;
    if (waitpid(pid, &status, 0) != pid || status != 0)
        bench_die("status %d of a child", status);
}

static size_t drain(int fd)
{
    size_t total = 0;
    for (;;) {
        ssize_t n = read(fd, buffer, sizeof buffer);
        if (n < 0)
            bench_die("read: %s", strerror(errno));
        if (n == 0)
            return total;
        total += (size_t)n;
    }
}

static void through_pipe(size_t size)
{
    pid_t pid;
    int fd = start_zeros(size, &pid);
    if (drain(fd) != size)
        bench_die("cut short");
    close(fd);
    join(pid);
}

/* ---- through a process and TCP: four bytes out for three in, as base64 has it, but whatever bytes ---- */

/* From a pipe, or (from < 0) size bytes out of nowhere. */
static void relay(int from, size_t size, int to)
{
    static char four_thirds[sizeof buffer * 4 / 3 + 4];
    for (;;) {
        ssize_t n = from >= 0 ? read(from, four_thirds, sizeof buffer) : size > 65536 ? 65536 : (ssize_t)size;
        if (n <= 0)
            _exit(n < 0);
        size -= from < 0 ? (size_t)n : 0;
        size_t left = ((size_t)n + 2) / 3 * 4;
        for (char *at = four_thirds; left > 0;) {
            ssize_t sent = send(to, at, left, MSG_NOSIGNAL);
            if (sent < 0)
                _exit(1);
            at += sent;
            left -= (size_t)sent;
        }
    }
}

static int listen_somewhere(int *ret_port)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t len = sizeof a;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, 1) < 0 || getsockname(fd, (struct sockaddr *)&a, &len) < 0)
        bench_die("listen: %s", strerror(errno));
    *ret_port = ntohs(a.sin_port);
    return fd;
}

static void through_tcp(size_t size, bool read_them)
{
    int port;
    int listener = listen_somewhere(&port);
    pid_t zeros = 0;
    int from = read_them ? start_zeros(size, &zeros) : -1;
    pid_t pid = fork();
    if (pid < 0)
        bench_die("fork: %s", strerror(errno));
    if (pid == 0)
        relay(from, size, accept(listener, NULL, NULL));
    struct bench_conn c;
    bench_connect(&c, port, false);
    close(listener);
    if (read_them)
        close(from);
    if (drain(c.fd) < size / 3 * 4)
        bench_die("cut short");
    bench_close(&c);
    if (read_them)
        join(zeros);
    join(pid);
}

/* ---- as events ---- */

static void ask(struct bench_conn *c, int port, const char *lease, const char *command, bool keep)
{
    char request[1024], body[512];
    int len = snprintf(body, sizeof body, "{\"command\":%s}", command);
    int n = snprintf(request, sizeof request,
                     "POST /leases/%s/exec HTTP/1.1\r\nHost: b\r\nAccept: application/x-ndjson\r\nContent-Type: application/json\r\n"
                     "Content-Length: %d\r\n%s\r\n%s",
                     lease, len, keep ? "" : "Connection: close\r\n", body);
    if (c->fd < 0)
        bench_connect(c, port, false);
    bench_send(c, request, (size_t)n);
}

/* Everything until the server closes. It counts only when the last event says that the command wrote it all. */
static void as_events(int port, const char *lease, size_t size)
{
    struct bench_conn c = {.fd = -1};
    char command[160], says[64];
    static char tail[2 * TAIL + 1];
    size_t kept = 0, total = 0;
    snprintf(command, sizeof command, "[\"dd\",\"if=/dev/zero\",\"bs=131072\",\"count=%zu\",\"status=none\"]", size / BLOCK);
    ask(&c, port, lease, command, false);
    for (;;) {
        ssize_t n = recv(c.fd, buffer, sizeof buffer, 0);
        if (n < 0)
            bench_die("recv: %s", strerror(errno));
        if (n == 0)
            break;
        total += (size_t)n;
        size_t take = (size_t)n < TAIL ? (size_t)n : TAIL;
        if (kept + take > 2 * TAIL) {
            memmove(tail, tail + kept - TAIL, TAIL);
            kept = TAIL;
        }
        memcpy(tail + kept, buffer + (size_t)n - take, take);
        kept += take;
    }
    snprintf(says, sizeof says, "\"stdout_bytes_total\":%zu,", size);
    if (total < size || !memmem(tail, kept, "\"type\":\"exit\"", 13) || !memmem(tail, kept, says, strlen(says)))
        bench_die("not a whole stream: %zu bytes, %.*s", total, (int)(kept < 600 ? kept : 600), tail + kept - (kept < 600 ? kept : 600));
    bench_close(&c);
}

/* ---- the first bytes ---- */

/* Until the answer holds what. Returns bytes held. */
static void until(struct bench_conn *c, char *held, size_t *len, size_t max, const char *what)
{
    while (!memmem(held, *len, what, strlen(what))) {
        ssize_t n = *len < max ? recv(c->fd, held + *len, max - *len, 0) : 0;
        if (n <= 0)
            bench_die("no answer");
        *len += (size_t)n;
    }
}

static int first(int port, const char *lease, long count)
{
    struct bench_samples head = {0}, output = {0};
    struct bench_conn c = {.fd = -1};
    for (long i = 0; i < count; i++) {
        char held[8192];
        size_t len = 0;
        int64_t t = bench_now_ns();
        ask(&c, port, lease, "\"echo hi\"", true);
        until(&c, held, &len, sizeof held, "\"start\"");
        bench_samples_add(&head, bench_now_ns() - t);
        until(&c, held, &len, sizeof held, "\"stdout\"");
        bench_samples_add(&output, bench_now_ns() - t);
        until(&c, held, &len, sizeof held, "\r\n0\r\n\r\n");
    }
    printf("{");
    bench_print_percentiles("first", &head);
    printf(",");
    bench_print_percentiles("output", &output);
    printf("}\n");
    return 0;
}

int bench_stream(int argc, char **argv)
{
    const char *what = argc > 0 ? argv[0] : "";
    size_t size = 0;
    int64_t t = bench_now_ns();
    if (strcmp(what, "first") == 0 && argc == 4)
        return first((int)bench_number(argv[1]), argv[2], bench_number(argv[3]));
    if (strcmp(what, "exec") == 0 && argc == 4)
        as_events((int)bench_number(argv[1]), argv[2], size = (size_t)bench_number(argv[3]) / BLOCK * BLOCK);
    else if (strcmp(what, "pipe") == 0 && argc == 2)
        through_pipe(size = (size_t)bench_number(argv[1]) / BLOCK * BLOCK);
    else if (strcmp(what, "tcp") == 0 && argc == 2)
        through_tcp(size = (size_t)bench_number(argv[1]) / BLOCK * BLOCK, true);
    else if (strcmp(what, "wire") == 0 && argc == 2)
        through_tcp(size = (size_t)bench_number(argv[1]) / BLOCK * BLOCK, false);
    else
        bench_die("usage: sgbench stream exec PORT LEASE BYTES | pipe BYTES | tcp BYTES | wire BYTES | first PORT LEASE COUNT");
    double seconds = (double)(bench_now_ns() - t) / 1e9;
    printf("{\"bytes\":%zu,\"seconds\":%.4f,\"per_s\":%.1f}\n", size, seconds, (double)size / seconds);
    return 0;
}
