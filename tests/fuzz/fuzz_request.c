/* A request's head on its way to a route: what passes the preflight is sound, and what a handler gets of path
 * and query is decoded once, whole and clean. */
#include "fuzz_head.h"

#include "base/str.h"
#include "http/api.h"
#include "http/request_priv.h"

static void check_framing(const struct fuzz_head *h, const struct sg_framing *f)
{
    fuzz_require(!(f->chunked && f->has_length), "one kind of framing");
    fuzz_require(f->has_length || f->length == 0, "no length but a given one");
    fuzz_require(h->n <= SG_HEADERS_MAX, "so many headers");
    for (size_t i = 0; i < h->n; i++)
        fuzz_require(sg_token_ok(h->headers[i].name, strlen(h->headers[i].name)) &&
                         sg_header_value_ok(h->headers[i].value),
                     "clean");
}

static void check_decoded(struct sg_request *r, const struct sg_route *route)
{
    for (size_t i = 0; i < r->match.n_params; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s", r->match.names[i]);
        name[strcspn(name, ".}")] = '\0';
        const char *value = sg_req_param(r, name);
        fuzz_require(value != NULL, "every parameter has a value");
        if (strstr(r->match.names[i], "...") == NULL && strcmp(name, "rest") != 0)
            fuzz_require(*value != '\0' && strchr(value, '/') == NULL && strcmp(value, ".") != 0 &&
                             strcmp(value, "..") != 0,
                         "and it is one segment");
    }
    for (const char *const *q = route->query; q != NULL && *q != NULL; q++) {
        int64_t n = 1;
        bool b;
        (void)sg_req_query(r, *q);
        if (sg_req_query_int(r, *q, 1, 5, &n, NULL) > 0)
            fuzz_require(n >= 1 && n <= 5, "within its bounds");
        (void)sg_req_query_bool(r, *q, &b, NULL);
    }
}

/* As the server does, on a connection that is none. */
static void route(const struct sg_router *rt, const struct fuzz_head *h, size_t path_len)
{
    static struct sg_http http;
    char allow[160];
    struct sg_conn *conn = sg_xcalloc(1, sizeof *conn);
    conn->refs = 1;
    pthread_mutex_init(&conn->lock, NULL);
    struct sg_request *r = sg_req_new(&http, conn, h->target);
    r->path_len = path_len;
    int rc = sg_router_find(rt, h->method, r->target, path_len, &r->match, allow, sizeof allow, NULL);
    fuzz_require(rc < 0 || strstr(allow, "OPTIONS") != NULL || r->match.route != NULL,
                 "a path that exists says what it allows");
    if (rc == 0 && r->match.route != NULL && sg_req_decode(r, NULL) == 0)
        check_decoded(r, r->match.route);
    sg_req_put(r);
    sg_conn_unref(conn);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t odd;
    static struct sg_router *rt;
    struct fuzz_head h;
    struct sg_framing f;
    size_t path_len;
    if (rt == NULL)
        fuzz_require(sg_router_new(sg_routes, sg_routes_count, &rt, NULL) == 0, "the routes");
    fuzz_head_read(&h, data, size);
    const struct sg_head head = {.method = h.method,
                                 .version = "HTTP/1.1",
                                 .target = h.target,
                                 .headers = h.headers,
                                 .n_headers = h.n};
    if (sg_preflight_head(&head, &f, NULL) == 0)
        check_framing(&h, &f);
    if (sg_preflight_target(h.method, h.target, &path_len, &odd, NULL) == 0) {
        fuzz_require(path_len <= strlen(h.target) && path_len <= SG_TARGET_MAX, "a path within the target");
        fuzz_require(odd == SIZE_MAX || odd < strlen(h.target), "oddness within the target");
        route(rt, &h, path_len);
    }
    free(h.text);
    return 0;
}
