/* The HTTP server with the reverse proxy and nothing behind it but the loopback: every lease id is let in,
 * and its ports are those of this machine. For tests and benchmarks of the proxy alone.
 *
 *     proxy_rig [--token TOKEN] [--public-url URL] [--first-byte-ms N] [--stall-ms N]
 *
 * Prints its port, then obeys lines on standard input until it ends: "end" ends the lease, which is then
 * answered "ended".
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/str.h"
#include "http/auth.h"
#include "http/listener.h"
#include "http/proxy.h"
#include "http/respond.h"

struct rig {
    struct sg_reactor *reactor;
    struct sg_upstreams *upstreams;
    struct sg_auth *auth;
    struct sg_http *http;
    const char *public_url;
    pthread_mutex_t lock;
    struct sg_cancel *lease_end;
    _Atomic unsigned running;
};

static int check_token(void *app, const char *token, size_t len, const struct sg_principal **ret,
                       struct sg_error *err)
{
    return sg_auth_check(((struct rig *)app)->auth, token, len, ret, err);
}

/* Blocks for the moment a loopback connect takes. */
static int dial(void *arg, uint16_t port, int64_t deadline_ms, const struct sg_dial_done *done,
                struct sg_error *err)
{
    (void)arg;
    (void)deadline_ms;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) < 0) {
        int e = errno;
        sg_close(fd);
        return sg_error_sys(err, SG_ENDPOINT_NOT_LISTENING, e, "nothing listens on port %u", (unsigned)port);
    }
    (void)fcntl(fd, F_SETFL, O_NONBLOCK);
    done->fn(done->arg, fd, NULL, NULL);
    return 0;
}

static void over(void *arg, bool answered)
{
    (void)answered;
    ((struct rig *)arg)->running--;
}

static void handle(struct sg_request *r, void *app)
{
    struct rig *rig = app;
    struct sg_error err = {0};
    int64_t port = 0;
    if (!sg_parse_int(sg_req_param(r, "port"), 1, 65535, &port))
        sg_error_field(&err, SG_INVALID_REQUEST, "port", "must be a port number");
    if (err.code != SG_OK || sg_req_authenticate(r, &err) < 0) {
        sg_proxy_refuse(r, &err);
        sg_error_clear(&err);
        return;
    }
    pthread_mutex_lock(&rig->lock);
    struct sg_cancel *end = sg_cancel_ref(rig->lease_end);
    pthread_mutex_unlock(&rig->lock);
    rig->running++;
    struct sg_proxy_args args = {
        .upstreams = rig->upstreams,
        .auth = rig->auth,
        .public_url = rig->public_url,
        .target = {.lease_id = sg_req_param(r, "id"), .port = (uint16_t)port, .lease_end = end, .dial = dial},
        .over = over,
        .over_arg = rig,
    };
    sg_proxy(r, &args);
    sg_cancel_unref(end);
}

static void handle_counts(struct sg_request *r, void *app)
{
    struct rig *rig = app;
    size_t exchanges;
    size_t conns;
    sg_upstreams_counts(rig->upstreams, &exchanges, &conns);
    sg_respond_json(r, 200,
                    json_pack("{s:I,s:I,s:I}", "exchanges", (json_int_t)exchanges, "connections",
                              (json_int_t)conns, "running", (json_int_t)rig->running));
}

static const struct sg_route routes[] = {
    {.method = "*",
     .path = "/leases/{id}/proxy/{port}/{rest...}",
     .operation_id = "proxy",
     .body = SG_BODY_STREAM,
     .auth = SG_AUTH_NONE,
     .handle = handle},
    {.method = "GET",
     .path = "/counts",
     .operation_id = "counts",
     .auth = SG_AUTH_NONE,
     .handle = handle_counts},
};

static int fail(const struct sg_error *err)
{
    fprintf(stderr, "proxy_rig: %s\n", err->message);
    return 1;
}

static int make_auth(struct rig *rig, const char *token, struct sg_error *err)
{
    char hex[SG_SHA256_HEX];
    sg_sha256_hex(token != NULL ? token : "", token != NULL ? strlen(token) : 0, hex);
    struct sg_token_config c = {.name = "t", .sha256 = hex, .tenant = "t", .role = SG_ROLE_TENANT};
    return sg_auth_new(&c, token != NULL ? 1 : 0, &rig->auth, err);
}

static int serve(struct rig *rig, const char *token, const struct sg_upstream_config *config,
                 struct sg_error *err)
{
    struct sg_http_config c = {.routes = routes,
                               .n_routes = SG_COUNT_OF(routes),
                               .app = rig,
                               .auth = check_token,
                               .reactor = rig->reactor};
    rig->upstreams = sg_upstreams_new(rig->reactor, config);
    if (make_auth(rig, token, err) < 0 || sg_http_listen("127.0.0.1:0", &c.listen_fd, err) < 0 ||
        sg_http_new(&c, &rig->http, err) < 0)
        return -1;
    printf("%u\n", (unsigned)sg_http_port(rig->http));
    fflush(stdout);
    return 0;
}

static void end_lease(struct rig *rig)
{
    pthread_mutex_lock(&rig->lock);
    struct sg_cancel *old = rig->lease_end;
    rig->lease_end = sg_cancel_new();
    pthread_mutex_unlock(&rig->lock);
    sg_cancel_fire(old, SG_CANCEL_LEASE_END);
    sg_cancel_unref(old);
    printf("ended\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"token", required_argument, NULL, 't'},
                                            {"public-url", required_argument, NULL, 'u'},
                                            {"first-byte-ms", required_argument, NULL, 'f'},
                                            {"stall-ms", required_argument, NULL, 's'},
                                            {NULL, 0, NULL, 0}};
    static struct rig rig = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct sg_upstream_config config = sg_upstream_defaults();
    struct sg_error err = {0};
    const char *token = NULL;
    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (o == 't')
            token = optarg;
        else if (o == 'u')
            rig.public_url = optarg;
        else if ((o != 'f' && o != 's') ||
                 !sg_parse_int(optarg, 1, 1000000, o == 'f' ? &config.first_byte_ms : &config.stall_ms))
            return 2;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    rig.lease_end = sg_cancel_new();
    if (sg_reactor_new(&rig.reactor, &err) < 0 || serve(&rig, token, &config, &err) < 0)
        return fail(&err);
    char line[64];
    while (fgets(line, sizeof line, stdin) != NULL)
        if (sg_streq(line, "end\n"))
            end_lease(&rig);
    sg_http_stop(rig.http, 0, 2000);
    sg_http_free(rig.http);
    sg_upstreams_free(rig.upstreams);
    sg_auth_free(rig.auth);
    sg_reactor_free(rig.reactor);
    sg_cancel_unref(rig.lease_end);
    if (rig.running != 0)
        fprintf(stderr, "proxy_rig: %u relays never ended\n", rig.running);
    return rig.running != 0;
}
