#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

#define ANSWER_MAX ((size_t)1 << 20)

int64_t bench_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void bench_die(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    exit(1);
}

void *bench_alloc(size_t size)
{
    void *p = calloc(1, size);
    if (!p)
        bench_die("out of memory");
    return p;
}

long bench_number(const char *s)
{
    char *end;
    errno = 0;
    long v = strtol(s, &end, 10);
    if (errno || end == s || *end || v < 0)
        bench_die("not a number: %s", s);
    return v;
}

char *bench_file(const char *path, size_t *ret_len)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        bench_die("%s: %s", path, strerror(errno));
    char *data = bench_alloc((size_t)st.st_size + 1);
    if (read(fd, data, (size_t)st.st_size) != st.st_size)
        bench_die("%s: short read", path);
    close(fd);
    *ret_len = (size_t)st.st_size;
    return data;
}

/* ---- samples ---- */

void bench_samples_add(struct bench_samples *s, int64_t ns)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 1024;
        s->ns = realloc(s->ns, s->cap * sizeof *s->ns);
        if (!s->ns)
            bench_die("out of memory");
    }
    s->ns[s->n++] = ns;
}

void bench_samples_join(struct bench_samples *into, struct bench_samples *from)
{
    for (size_t i = 0; i < from->n; i++)
        bench_samples_add(into, from->ns[i]);
    free(from->ns);
    *from = (struct bench_samples){0};
}

static int by_value(const void *a, const void *b)
{
    const int64_t *x = a;
    const int64_t *y = b;
    return (*x > *y) - (*x < *y);
}

int64_t bench_percentile(struct bench_samples *s, double p)
{
    if (s->n == 0)
        return 0;
    qsort(s->ns, s->n, sizeof *s->ns, by_value);
    size_t i = (size_t)(p * (double)s->n);
    return s->ns[i < s->n ? i : s->n - 1];
}

void bench_print_percentiles(const char *name, struct bench_samples *s)
{
    printf("\"%s_p50_us\":%.1f,\"%s_p99_us\":%.1f", name, (double)bench_percentile(s, 0.50) / 1e3, name,
           (double)bench_percentile(s, 0.99) / 1e3);
}

/* ---- client ---- */

void bench_connect(struct bench_conn *c, int port, bool nonblocking)
{
    int one = 1;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&a, sizeof a) < 0)
        bench_die("connect to port %d: %s", port, strerror(errno));
    (void)setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (nonblocking && fcntl(c->fd, F_SETFL, O_NONBLOCK) < 0)
        bench_die("O_NONBLOCK: %s", strerror(errno));
    c->cap = ANSWER_MAX;
    c->buf = malloc(c->cap + 1); /* not touched beyond what answers need */
    if (!c->buf)
        bench_die("out of memory");
    bench_answer_begin(c);
}

void bench_close(struct bench_conn *c)
{
    close(c->fd);
    free(c->buf);
    c->buf = NULL;
}

void bench_send(struct bench_conn *c, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = send(c->fd, data, len, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) {
            struct pollfd p = {.fd = c->fd, .events = POLLOUT};
            (void)poll(&p, 1, 10000);
            continue;
        }
        if (n <= 0)
            bench_die("send: %s", strerror(errno));
        data += n;
        len -= (size_t)n;
    }
}

void bench_answer_begin(struct bench_conn *c)
{
    c->len = c->head_len = c->body_len = 0;
    c->status = 0;
}

static size_t content_length(const char *head)
{
    for (const char *p = strstr(head, "\r\n"); p; p = strstr(p + 2, "\r\n"))
        if (strncasecmp(p + 2, "content-length:", 15) == 0)
            return (size_t)strtoull(p + 17, NULL, 10);
    bench_die("an answer without Content-Length:\n%s", head);
}

static void parse_head(struct bench_conn *c)
{
    char *end = memmem(c->buf, c->len, "\r\n\r\n", 4);
    if (!end)
        return;
    end[2] = '\0';
    c->head_len = (size_t)(end - c->buf) + 4;
    if (sscanf(c->buf, "HTTP/1.1 %3d", &c->status) != 1)
        bench_die("not an HTTP/1.1 answer: %.60s", c->buf);
    c->body_len = c->status == 204 ? 0 : content_length(c->buf);
    if (c->head_len + c->body_len > c->cap)
        bench_die("an answer of %zu bytes", c->body_len);
}

bool bench_answer_more(struct bench_conn *c)
{
    for (;;) {
        ssize_t n = recv(c->fd, c->buf + c->len, c->cap - c->len, 0);
        if (n < 0 && errno == EAGAIN)
            return false;
        if (n <= 0)
            bench_die("recv: %s", n == 0 ? "the server closed the connection" : strerror(errno));
        c->len += (size_t)n;
        if (c->head_len == 0)
            parse_head(c);
        if (c->head_len > 0 && c->len >= c->head_len + c->body_len) {
            c->buf[c->head_len + c->body_len] = '\0';
            return true;
        }
    }
}

int bench_call(struct bench_conn *c, const char *request, size_t len)
{
    bench_answer_begin(c);
    bench_send(c, request, len);
    while (!bench_answer_more(c))
        ;
    return c->status;
}
