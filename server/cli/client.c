#include "cli/client.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/secret.h"
#include "http/h1_response.h"

#define DEFAULT_URL "http://127.0.0.1:8080"
#define ANSWER_MAX ((size_t)64 << 20)
#define PAGES_MAX 10000
#define PATIENCE_MS 30000

struct target {
    char host[256];
    char port[8];
    char prefix[256]; /* of the path, without a slash at its end */
};

static void secret_p(struct sg_secret **s)
{
    *s = sg_secret_free(*s);
}

/* http://HOST[:PORT][/PREFIX]; IPv6 addresses in brackets. */
static int parse_url(const char *url, struct target *t, struct sg_error *err)
{
    if (strncmp(url, "http://", strlen("http://")) != 0) {
        return sg_error_set(err, SG_INVALID_REQUEST, "%s: only http://HOST[:PORT] is supported", url);
    }
    const char *p = url + strlen("http://");
    bool six = *p == '[';
    p += six ? 1 : 0;
    size_t n = strcspn(p, six ? "]" : ":/");
    if (n == 0 || n >= sizeof t->host || (six && p[n] != ']')) {
        return sg_error_set(err, SG_INVALID_REQUEST, "%s: no host", url);
    }
    (void)snprintf(t->host, sizeof t->host, "%.*s", (int)n, p);
    p += n + (six ? 1 : 0);
    (void)snprintf(t->port, sizeof t->port, "80");
    if (*p == ':') {
        n = strcspn(++p, "/");
        if (n == 0 || n > 5 || strspn(p, "0123456789") != n) {
            return sg_error_set(err, SG_INVALID_REQUEST, "%s: no port", url);
        }
        (void)snprintf(t->port, sizeof t->port, "%.*s", (int)n, p);
        p += n;
    }
    n = strlen(p);
    n -= n > 0 && p[n - 1] == '/' ? 1 : 0;
    if ((n > 0 && *p != '/') || n >= sizeof t->prefix || strpbrk(url, " ?#\r\n") != NULL) {
        return sg_error_set(err, SG_INVALID_REQUEST, "%s: not the URL of a server", url);
    }
    (void)snprintf(t->prefix, sizeof t->prefix, "%.*s", (int)n, p);
    return 0;
}

static int wait_for(int fd, short events, int64_t deadline)
{
    struct pollfd p = {.fd = fd, .events = events};
    int r;
    do {
        int64_t left = deadline - sg_now_ms();
        r = poll(&p, 1, left > 0 ? (int)left : 0);
    } while (r < 0 && errno == EINTR);
    return r > 0 ? 0 : -1;
}

static int try_address(const struct addrinfo *ai, int64_t deadline)
{
    int e = 0;
    socklen_t len = sizeof e;
    sg_cleanup(sg_close_p) int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || (connect(fd, ai->ai_addr, ai->ai_addrlen) < 0 && errno != EINPROGRESS)) {
        return -1;
    }
    if (wait_for(fd, POLLOUT, deadline) < 0) {
        errno = ETIMEDOUT;
        return -1;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &len) < 0 || e != 0) {
        errno = e;
        return -1;
    }
    return sg_steal_fd(&fd);
}

static int dial(const struct target *t, int64_t deadline, struct sg_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *all = NULL;
    int r = getaddrinfo(t->host, t->port, &hints, &all);
    if (r != 0) {
        return sg_error_set(err, SG_UNAVAILABLE, "%s: %s", t->host, gai_strerror(r));
    }
    int fd = -1;
    for (const struct addrinfo *ai = all; ai != NULL && fd < 0; ai = ai->ai_next) {
        fd = try_address(ai, deadline);
    }
    int e = errno;
    freeaddrinfo(all);
    return fd >= 0 ? fd : sg_error_sys(err, SG_UNAVAILABLE, e, "no server at %s port %s", t->host, t->port);
}

static int send_all(int fd, const char *data, size_t len, int64_t deadline, struct sg_error *err)
{
    while (len > 0) {
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
        if (n > 0) {
            data += n;
            len -= (size_t)n;
        } else if (n < 0 && errno != EAGAIN && errno != EINTR) {
            return sg_error_sys(err, SG_OUTCOME_UNKNOWN, errno, "sending");
        } else if (wait_for(fd, POLLOUT, deadline) < 0) {
            return sg_error_set(err, SG_OUTCOME_UNKNOWN, "the server takes no request");
        }
    }
    return 0;
}

static int write_request(struct sg_buf *b, const struct target *t, const char *method, const char *path,
                         const struct sg_secret *token, struct sg_error *err)
{
    const char *text = token != NULL ? sg_secret_expose(token, NULL) : "";
    if (text[strcspn(text, "\r\n")] != '\0') {
        return sg_error_set(err, SG_INVALID_REQUEST, "SANDGATE_TOKEN holds a line break");
    }
    bool six = strchr(t->host, ':') != NULL;
    int r = sg_buf_addf(b, "%s %s%s HTTP/1.1\r\nHost: %s%s%s:%s\r\nAccept: application/json\r\nConnection: close\r\n"
                           "User-Agent: sandgate/" SG_VERSION "\r\n", method, t->prefix, path, six ? "[" : "", t->host, six ? "]" : "", t->port);
    r = r < 0 || !sg_streq(method, "POST") ? r : sg_buf_addf(b, "Content-Length: 0\r\n");
    r = r < 0 || token == NULL ? r : sg_buf_addf(b, "Authorization: Bearer %s\r\n", text);
    r = r < 0 ? r : sg_buf_addf(b, "\r\n");
    return r < 0 ? sg_error_set(err, SG_INVALID_REQUEST, "the request is too long") : 0;
}

static int send_request(int fd, const struct target *t, const char *method, const char *path, int64_t deadline,
                        struct sg_error *err)
{
    sg_cleanup(secret_p) struct sg_secret *token = NULL;
    if (sg_secret_from_env("SANDGATE_TOKEN", &token, err) < 0) {
        return -1;
    }
    struct sg_buf b;
    sg_buf_init(&b, 128 << 10);
    int r = write_request(&b, t, method, path, token, err);
    r = r < 0 ? r : send_all(fd, b.data, b.len, deadline, err);
    if (b.data != NULL) {
        explicit_bzero(b.data, b.size);
    }
    sg_buf_finish(&b);
    return r;
}

/* Everything until the server closes: it was asked to. */
static int receive(int fd, struct sg_buf *b, int64_t deadline, struct sg_error *err)
{
    char piece[16384];
    for (;;) {
        ssize_t n = recv(fd, piece, sizeof piece, 0);
        if (n == 0) {
            return 0;
        }
        if (n > 0) {
            if (sg_buf_add(b, piece, (size_t)n) < 0) {
                return sg_error_set(err, SG_OUTCOME_UNKNOWN, "the answer is too large");
            }
        } else if (errno != EAGAIN && errno != EINTR) {
            return sg_error_sys(err, SG_OUTCOME_UNKNOWN, errno, "receiving");
        } else if (wait_for(fd, POLLIN, deadline) < 0) {
            return sg_error_set(err, SG_OUTCOME_UNKNOWN, "the server did not answer within %d seconds", PATIENCE_MS / 1000);
        }
    }
}

static int parse_answer(struct sg_buf *b, int *ret_status, json_t **ret, struct sg_error *err)
{
    struct sg_h1_head head;
    struct sg_h1_progress progress = {0};
    struct sg_h1_body body;
    size_t payload = 0;
    ssize_t n = b->len == 0 ? 0 : sg_h1_head_parse(&head, &progress, b->data, b->len, false, err);
    if (n <= 0) {
        return n < 0 ? -1 : sg_error_set(err, SG_OUTCOME_UNKNOWN, "the server closed without a whole answer");
    }
    sg_h1_body_init(&body, head.framing, head.length);
    if (sg_h1_body_decode(&body, b->data + n, b->len - (size_t)n, &payload, err) < 0 ||
        (!sg_h1_body_done(&body) && sg_h1_body_eof(&body, err) < 0)) {
        return -1;
    }
    *ret_status = head.status;
    *ret = NULL;
    return payload == 0 ? 0 : sg_json_parse(b->data + n, payload, ret, err);
}

int sg_cli_request(const struct sg_cli_args *a, const char *method, const char *path, int *ret_status, json_t **ret,
                   struct sg_error *err)
{
    struct target t;
    const char *url = sg_cli_value(a, "url");
    const char *variable = getenv("SANDGATE_URL");
    url = url != NULL ? url : variable != NULL && *variable != '\0' ? variable : DEFAULT_URL;
    if (parse_url(url, &t, err) < 0) {
        return -1;
    }
    int64_t deadline = sg_now_ms() + PATIENCE_MS;
    sg_cleanup(sg_close_p) int fd = dial(&t, deadline, err);
    if (fd < 0 || send_request(fd, &t, method, path, deadline, err) < 0) {
        return -1;
    }
    sg_cleanup(sg_buf_finish) struct sg_buf answer;
    sg_buf_init(&answer, ANSWER_MAX);
    if (receive(fd, &answer, deadline, err) < 0 || parse_answer(&answer, ret_status, ret, err) < 0) {
        return sg_error_wrap(err, "%s", url);
    }
    return 0;
}

int sg_cli_call(const struct sg_cli_args *a, const char *method, const char *path, json_t **ret, struct sg_error *err)
{
    sg_cleanup(sg_json_p) json_t *v = NULL;
    int status = 0;
    if (sg_cli_request(a, method, path, &status, &v, err) < 0) {
        return -1;
    }
    if (status >= 400) {
        sg_cleanup(sg_free_p) char *detail = sg_cli_text(v, "detail");
        sg_cleanup(sg_free_p) char *code = sg_cli_text(v, "code");
        return sg_error_set(err, SG_INVALID_REQUEST, "%s (%s, %d)", detail, code, status);
    }
    *ret = sg_steal(&v);
    return 0;
}

char *sg_cli_quote(const char *text)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
    size_t size = strlen(text) * 3 + 1;
    char *out = sg_xcalloc(size, 1);
    size_t n = 0;
    for (; *text != '\0'; text++) {
        bool keep = strchr(plain, *text) != NULL;
        n += (size_t)(keep ? snprintf(out + n, size - n, "%c", *text)
                           : snprintf(out + n, size - n, "%%%02X", (unsigned)(unsigned char)*text));
    }
    return out;
}

int sg_cli_list(const struct sg_cli_args *a, const char *path, json_t **ret, struct sg_error *err)
{
    sg_cleanup(sg_json_p) json_t *all = json_array();
    sg_cleanup(sg_free_p) char *next = sg_xstrdup(path);
    for (int pages = 0; pages < PAGES_MAX; pages++) {
        sg_cleanup(sg_json_p) json_t *page = NULL;
        if (sg_cli_call(a, "GET", next, &page, err) < 0) {
            return -1;
        }
        (void)json_array_extend(all, json_object_get(page, "items"));
        const char *cursor = json_string_value(json_object_get(page, "next_cursor"));
        if (cursor == NULL) {
            *ret = sg_steal(&all);
            return 0;
        }
        sg_cleanup(sg_free_p) char *quoted = sg_cli_quote(cursor);
        free(next);
        next = sg_xasprintf("%s%ccursor=%s", path, strchr(path, '?') != NULL ? '&' : '?', quoted);
    }
    return sg_error_set(err, SG_OUTCOME_UNKNOWN, "the list does not end");
}
