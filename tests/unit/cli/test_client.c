#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "cli/client.h"

static const struct sg_cli_command command = {.name = "x", .options = {SG_CLI_URL_OPTION}};

/* Answers one connection after the other with canned text and keeps what was asked. */
struct canned {
    int listener;
    const char *const *answers; /* NULL-terminated */
    char asked[4][1024];
};

static void *serve(void *arg)
{
    struct canned *c = arg;
    for (size_t i = 0; c->answers[i] != NULL; i++) {
        int fd = accept(c->listener, NULL, NULL);
        if (fd < 0) {
            break; /* stop() came first */
        }
        size_t n = 0;
        while (strstr(c->asked[i], "\r\n\r\n") == NULL) {
            ssize_t got = read(fd, c->asked[i] + n, sizeof c->asked[i] - 1 - n);
            cr_assert_gt(got, 0);
            n += (size_t)got;
        }
        cr_assert_eq(sg_write_all(fd, c->answers[i], strlen(c->answers[i])), 0);
        close(fd);
    }
    return NULL;
}

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static struct canned canned;
static pthread_t server;
static char url[64];

static struct sg_cli_args start(const char *const *answers)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    canned = (struct canned){.answers = answers};
    canned.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(canned.listener, (struct sockaddr *)&a, len), 0);
    cr_assert_eq(listen(canned.listener, 4), 0);
    cr_assert_eq(getsockname(canned.listener, (struct sockaddr *)&a, &len), 0);
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%d/base/", ntohs(a.sin_port));
    cr_assert_eq(pthread_create(&server, NULL, serve, &canned), 0);
    return (struct sg_cli_args){.command = &command, .values = {url}};
}

static void stop(void)
{
    shutdown(canned.listener, SHUT_RDWR);
    pthread_join(server, NULL);
    close(canned.listener);
}

TestSuite(client, .timeout = 30);

Test(client, follows_cursors_through_all_framings)
{
    static const char *const answers[] = {
        "HTTP/1.1 200 OK\r\nContent-Length: 38\r\n\r\n{\"items\": [1], \"next_cursor\": \"a/b+c\"}",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n{\"items\":[2, 3],\r\n13\r\n\"next_cursor\":null}\r\n0\r\n\r\n", NULL};
    setenv("SANDGATE_TOKEN", "tok", 1);
    struct sg_cli_args a = start(answers);
    struct sg_error err = {0};
    json_t *items = NULL;
    int r = sg_cli_list(&a, "/leases?limit=1", &items, &err);
    stop();
    cr_assert_eq(r, 0, "%s", err.message);
    cr_assert_eq(json_array_size(items), 3);
    cr_assert(begins(canned.asked[0], "GET /base/leases?limit=1 HTTP/1.1\r\n"), "%s", canned.asked[0]);
    cr_assert_not_null(strstr(canned.asked[0], "\r\nAuthorization: Bearer tok\r\n"));
    cr_assert(begins(canned.asked[1], "GET /base/leases?limit=1&cursor=a%2Fb%2Bc HTTP/1.1\r\n"), "%s", canned.asked[1]);
    json_decref(items);
}

Test(client, problems_become_errors)
{
    static const char *const answers[] = {
        "HTTP/1.1 404 Not Found\r\n\r\n{\"detail\": \"there is no such lease\", \"code\": \"not_found\"}",
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"cut\":", "not HTTP at all\r\n\r\n", NULL};
    struct sg_cli_args a = start(answers);
    struct sg_error err = {0};
    json_t *v = NULL;
    cr_expect_eq(sg_cli_call(&a, "DELETE", "/leases/x", &v, &err), -1);
    cr_expect_str_eq(err.message, "there is no such lease (not_found, 404)");
    cr_expect_eq(sg_cli_call(&a, "POST", "/x", &v, &err), -1, "a cut answer is not an answer");
    cr_expect_eq(sg_cli_call(&a, "GET", "/x", &v, &err), -1);
    stop();
    cr_expect_not_null(strstr(canned.asked[1], "\r\nContent-Length: 0\r\n"));
    cr_expect_null(v);
}

Test(client, urls)
{
    static const char *const bad[] = {"https://x", "x", "http://", "http://:1", "http://[::1", "http://x:port", "http://x:1?q", "http://x y"};
    for (size_t i = 0; i < SG_COUNT_OF(bad); i++) {
        struct sg_cli_args a = {.command = &command, .values = {bad[i]}};
        struct sg_error err = {0};
        json_t *v = NULL;
        int status;
        cr_expect_eq(sg_cli_request(&a, "GET", "/", &status, &v, &err), -1);
        cr_expect_eq(err.code, SG_INVALID_REQUEST, "%s: %s", bad[i], err.message);
    }
    struct sg_cli_args a = {.command = &command, .values = {"http://[::1]:1"}}; /* nobody listens there */
    struct sg_error err = {0};
    json_t *v = NULL;
    int status;
    cr_assert_eq(sg_cli_request(&a, "GET", "/", &status, &v, &err), -1);
    cr_assert_eq(err.code, SG_UNAVAILABLE, "%s", err.message);
    char *q = sg_cli_quote("a b/\xc3\xa9~");
    cr_assert_str_eq(q, "a%20b%2F%C3%A9~");
    free(q);
}
