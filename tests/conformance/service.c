/* A service for sandboxes that have nothing but a shell: static, one process per connection.
 *
 *   conformance-service PORT [6]   listens on 127.0.0.1 (with 6: ::1), prints its port and goes on in the background
 *
 * GET /stream    five server-sent events, 100 ms apart
 * Upgrade        a WebSocket that sends every message back (for the one key of the tests, so that nobody needs SHA-1)
 * anything else  200 with the request as it came, head and body; the body may have a Content-Length or be chunked
 */
#include <arpa/inet.h>
#include <ctype.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define MESSAGE_MAX (1U << 21)
/* Of the key "dGhlIHNhbXBsZSBub25jZQ==", see RFC 6455. */
#define ACCEPT "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="

static const char *field(const char *head, const char *name)
{
    size_t n = strlen(name);
    for (const char *line = strchr(head, '\n'); line; line = strchr(line, '\n')) {
        line++;
        if (strncasecmp(line, name, n) == 0 && line[n] == ':') {
            return line + n + 1 + strspn(line + n + 1, " ");
        }
    }
    return NULL;
}

static bool websocket_message(FILE *in, FILE *out)
{
    unsigned char h[14];
    if (fread(h, 1, 2, in) != 2) {
        return false;
    }
    uint64_t len = h[1] & 0x7fU;
    size_t more = len == 126 ? 2 : len == 127 ? 8 : 0;
    if (fread(h + 2, 1, more + 4, in) != more + 4) {
        return false;
    }
    for (size_t i = 0; i < more; i++) {
        len = (i > 0 ? len << 8U : 0) | h[2 + i];
    }
    char *data = len <= MESSAGE_MAX ? malloc(len + 1) : NULL;
    if (!data || fread(data, 1, len, in) != len) {
        free(data);
        return false;
    }
    for (uint64_t i = 0; i < len; i++) {
        data[i] = (char)(data[i] ^ h[2 + more + i % 4]);
    }
    unsigned opcode = h[0] & 0x0fU;
    (void)putc((int)(opcode == 9 ? 0x8aU : h[0]), out); /* a ping is answered with a pong */
    (void)putc(h[1] & 0x7f, out);
    (void)fwrite(h + 2, 1, more, out);
    (void)fwrite(data, 1, len, out);
    free(data);
    return fflush(out) == 0 && opcode != 8;
}

static void copy_body(const char *head, FILE *in, FILE *out)
{
    const char *length = field(head, "content-length");
    long left = length ? strtol(length, NULL, 10) : 0;
    bool chunked = field(head, "transfer-encoding") != NULL;
    char line[64];
    do {
        if (chunked) {
            left = fgets(line, sizeof line, in) ? strtol(line, NULL, 16) : 0;
        }
        for (long i = 0; i < left; i++) {
            (void)putc(getc(in), out);
        }
        if (chunked && !fgets(line, sizeof line, in)) {
            return;
        }
    } while (chunked && left > 0);
}

static void events(FILE *out)
{
    (void)fputs("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n", out);
    for (int i = 0; i < 5; i++) {
        (void)fprintf(out, "data: %d\n\n", i);
        (void)fflush(out);
        (void)usleep(100000);
    }
}

static void echo(const char *head, FILE *in, FILE *out)
{
    char *text = NULL;
    size_t n = 0;
    FILE *whole = open_memstream(&text, &n);
    if (!whole) {
        return;
    }
    (void)fputs(head, whole);
    copy_body(head, in, whole);
    (void)fclose(whole);
    (void)fprintf(out, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %zu\r\n\r\n", n);
    if (strncmp(head, "HEAD ", 5) != 0) {
        (void)fwrite(text, 1, n, out);
    }
    (void)fflush(out);
    free(text);
}

static bool request(FILE *in, FILE *out)
{
    char head[65536] = "";
    char line[16384];
    size_t n = 0;
    while (fgets(line, sizeof line, in) && strcmp(line, "\r\n") != 0 && n + strlen(line) + 3 < sizeof head) {
        (void)stpcpy(head + n, line);
        n += strlen(line);
    }
    if (n == 0) {
        return false;
    }
    (void)strcpy(head + n, "\r\n");
    if (field(head, "upgrade")) {
        (void)fputs("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " ACCEPT "\r\n\r\n", out);
        (void)fflush(out);
        while (websocket_message(in, out)) {
        }
        return false;
    }
    if (strncmp(head, "GET /stream", 11) == 0) {
        events(out);
        return false;
    }
    echo(head, in, out);
    return true;
}

static int listen_on(uint16_t port, bool six)
{
    struct sockaddr_in a4 = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 a6 = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    const struct sockaddr *a = six ? (const struct sockaddr *)&a6 : (const struct sockaddr *)&a4;
    socklen_t size = six ? sizeof a6 : sizeof a4;
    int s = socket(six ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
    int on = 1;
    if (s < 0 || setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 || bind(s, a, size) < 0 || listen(s, 64) < 0 ||
        getsockname(s, six ? (struct sockaddr *)&a6 : (struct sockaddr *)&a4, &size) < 0) {
        perror("conformance-service");
        exit(1);
    }
    (void)printf("%d\n", ntohs(six ? a6.sin6_port : a4.sin_port));
    (void)fflush(stdout);
    return s;
}

int main(int argc, char **argv)
{
    int s = listen_on((uint16_t)(argc > 1 ? strtol(argv[1], NULL, 10) : 0), argc > 2);
    if (fork() > 0) {
        _exit(0);
    }
    (void)setsid();
    (void)signal(SIGCHLD, SIG_IGN);
    for (int fd = 0; fd < 3; fd++) {
        (void)dup2(open("/dev/null", O_RDWR), fd);
    }
    for (;;) {
        int c = accept(s, NULL, NULL);
        if (c >= 0 && fork() == 0) {
            FILE *in = fdopen(c, "r");
            FILE *out = fdopen(dup(c), "w");
            while (in && out && request(in, out)) {
            }
            _exit(0);
        }
        if (c >= 0) {
            (void)close(c);
        }
    }
}
