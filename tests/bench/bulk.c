/* One large body, to or from this process: over HTTP, or through a pipe from or to `cat`. Same buffer, same
 * thread. */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

extern char **environ;

static char buffer[256 * 1024];

static size_t drain(int fd, size_t most)
{
    size_t total = 0;
    while (total < most) {
        ssize_t n = read(fd, buffer, sizeof buffer);
        if (n < 0)
            bench_die("read: %s", strerror(errno));
        if (n == 0)
            break;
        total += (size_t)n;
    }
    return total;
}

static void pour(int fd, size_t left)
{
    while (left > 0) {
        ssize_t n = write(fd, buffer, left < sizeof buffer ? left : sizeof buffer);
        if (n < 0)
            bench_die("write: %s", strerror(errno));
        left -= (size_t)n;
    }
}

static size_t http_get(int port, const char *target)
{
    struct bench_conn c;
    char request[1024];
    bench_connect(&c, port, false);
    int n = snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: b\r\n\r\n", target);
    bench_send(&c, request, (size_t)n);
    c.cap = 4096; /* a part of the body comes with the head */
    char *head_end = NULL;
    while (!head_end) {
        ssize_t got = recv(c.fd, c.buf + c.len, c.cap - c.len, 0);
        if (got <= 0)
            bench_die("no answer");
        c.len += (size_t)got;
        head_end = memmem(c.buf, c.len, "\r\n\r\n", 4);
    }
    c.buf[c.len] = '\0';
    char *length = strcasestr(c.buf, "\r\ncontent-length: ");
    size_t want = 0;
    if (strncmp(c.buf, "HTTP/1.1 200 ", 13) != 0 || !length || sscanf(length + 18, "%zu", &want) != 1)
        bench_die("GET %s: %.200s", target, c.buf);
    size_t here = c.len - (size_t)(head_end + 4 - c.buf);
    if (here + drain(c.fd, want - here) != want)
        bench_die("GET %s: cut short", target);
    bench_close(&c);
    return want;
}

static void http_put(int port, const char *target, size_t size)
{
    struct bench_conn c;
    char request[1024];
    bench_connect(&c, port, false);
    int n = snprintf(request, sizeof request, "PUT %s HTTP/1.1\r\nHost: b\r\nContent-Length: %zu\r\n\r\n",
                     target, size);
    bench_send(&c, request, (size_t)n);
    pour(c.fd, size);
    while (!bench_answer_more(&c))
        ;
    if (c.status != 200 && c.status != 201)
        bench_die("PUT %s: %.300s", target, c.buf + c.head_len);
    bench_close(&c);
}

/* Starts `cat` with our pipe as its file descriptor `theirs` and the file as the other one; returns our end.
 */
static int start_cat(const char *path, int theirs, pid_t *ret)
{
    int p[2];
    char name[] = "cat";
    char *argv[] = {name, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    if (pipe2(p, O_CLOEXEC) < 0)
        bench_die("pipe: %s", strerror(errno));
    posix_spawn_file_actions_adddup2(&actions, p[theirs], theirs);
    posix_spawn_file_actions_addopen(&actions, 1 - theirs, path,
                                     theirs ? O_RDONLY : O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (posix_spawnp(ret, "cat", &actions, NULL, argv, environ) != 0)
        bench_die("cat does not start");
    posix_spawn_file_actions_destroy(&actions);
    close(p[theirs]);
    return p[1 - theirs];
}

static size_t cat(const char *path, int theirs, size_t size)
{
    pid_t pid;
    int status;
    int fd = start_cat(path, theirs, &pid);
    if (theirs)
        size = drain(fd, SIZE_MAX);
    else
        pour(fd, size);
    close(fd);
    if (waitpid(pid, &status, 0) != pid || status != 0)
        bench_die("cat: status %d", status);
    return size;
}

int bench_bulk(int argc, char **argv)
{
    const char *what = argc > 0 ? argv[0] : "";
    size_t size = 0;
    memset(buffer, 'x', sizeof buffer);
    int64_t t = bench_now_ns();
    if (strcmp(what, "get") == 0 && argc == 3) {
        size = http_get((int)bench_number(argv[1]), argv[2]);
    } else if (strcmp(what, "put") == 0 && argc == 4) {
        size = (size_t)bench_number(argv[3]);
        http_put((int)bench_number(argv[1]), argv[2], size);
    } else if (strcmp(what, "catget") == 0 && argc == 2) {
        size = cat(argv[1], 1, 0);
    } else if (strcmp(what, "catput") == 0 && argc == 3) {
        size = cat(argv[1], 0, (size_t)bench_number(argv[2]));
    } else {
        bench_die(
            "usage: sgbench bulk get PORT TARGET | put PORT TARGET BYTES | catget FILE | catput FILE BYTES");
    }
    double seconds = (double)(bench_now_ns() - t) / 1e9;
    printf("{\"bytes\":%zu,\"seconds\":%.4f,\"per_s\":%.1f}\n", size, seconds, (double)size / seconds);
    return 0;
}
