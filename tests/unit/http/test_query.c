/* Path parameters and query strings, on a request that has no connection behind it. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "http/request_priv.h"

static const char *const known[] = {"q", "limit", "flag", NULL};
static const struct sg_route table[] = {
    {.method = "GET", .path = "/things/{id}", .query = known},
    {.method = "GET", .path = "/none/{id}"},
    {.method = "GET", .path = "/raw/{id}", .raw_query = true},
    {.method = "GET", .path = "/tail/{id}/{rest...}"},
};

static struct sg_error err;
static struct sg_router *rt;
static struct sg_conn *conn;
static struct sg_http http;

static void setup(void)
{
    cr_assert_eq(sg_router_new(table, SG_COUNT_OF(table), &rt, &err), 0);
    conn = sg_xcalloc(1, sizeof *conn);
    conn->refs = 1;
    pthread_mutex_init(&conn->lock, NULL);
}

static void teardown(void)
{
    sg_error_clear(&err);
    sg_conn_unref(conn);
    rt = sg_router_free(rt);
}

TestSuite(query, .init = setup, .fini = teardown);

static struct sg_request *request(const char *target)
{
    char allow[160];
    size_t odd;
    struct sg_request *r = sg_req_new(&http, conn, target);
    sg_error_clear(&err);
    cr_assert_eq(sg_preflight_target("GET", r->target, &r->path_len, &odd, &err), 0, "%s", target);
    cr_assert_eq(sg_router_find(rt, "GET", r->target, r->path_len, &r->match, allow, sizeof allow, &err), 0, "%s", target);
    return r;
}

static void accepted(const char *target, const char *id, const char *q)
{
    struct sg_request *r = request(target);
    cr_assert_eq(sg_req_decode(r, &err), 0, "%s: %s", target, err.message);
    cr_assert_str_eq(sg_req_param(r, "id"), id);
    cr_assert_null(sg_req_param(r, "i"));
    if (q)
        cr_assert_str_eq(sg_req_query(r, "q"), q);
    else
        cr_assert_null(sg_req_query(r, "q"));
    sg_req_put(r);
}

static void refused(const char *target, const char *field)
{
    struct sg_request *r = request(target);
    cr_assert_eq(sg_req_decode(r, &err), -1, "%s", target);
    cr_assert_eq(err.code, SG_INVALID_REQUEST);
    cr_assert_str_eq(err.field, field);
    sg_req_put(r);
}

Test(query, accepted)
{
    accepted("/things/a", "a", NULL);
    accepted("/things/a?", "a", NULL);
    accepted("/things/a?q", "a", "");
    accepted("/things/a?q=", "a", "");
    accepted("/things/a?q==", "a", "=");
    accepted("/things/a?&q=1&&", "a", "1");
    accepted("/things/a?%71=b", "a", "b");
    accepted("/things/a?q=%26%3D+%2B?/", "a", "&= +?/");
    accepted("/things/%C3%A4%20+?q=%ff", "\xc3\xa4 +", "\xff"); /* a file name may be any bytes */
    accepted("/raw/a?q=1&q=2&x", "a", NULL);
    accepted("/tail/a/b?x=1&x=2", "a", NULL);
}

Test(query, refused)
{
    refused("/things/a?x=1", "x");
    refused("/things/a?q=1&q=2", "q");
    refused("/things/a?q=1&%71=2", "q");
    refused("/things/a?Q=1", "Q");
    refused("/things/a?%ff=1", "query");
    refused("/things/a?=1", "");
    refused("/none/a?q", "q");
    refused("/things/%2e", "id");
    refused("/things/..", "id");
    refused("/things/%2E.", "id");
    refused("/things/a%2fb", "id");
    refused("/things/%C3", "id");
}

Test(query, tail_keeps_its_bytes)
{
    struct sg_request *r = request("/tail/%41/%2e%2e//x%20/?a=%20");
    cr_assert_eq(sg_req_decode(r, &err), 0);
    cr_assert_str_eq(sg_req_param(r, "id"), "A");
    cr_assert_str_eq(sg_req_param(r, "rest"), "%2e%2e//x%20/");
    cr_assert_str_eq(sg_req_raw_query(r), "a=%20");
    cr_assert_str_eq(sg_req_raw_target(r), "/tail/%41/%2e%2e//x%20/?a=%20");
    sg_req_put(r);
}

Test(query, typed)
{
    int64_t n = 7;
    bool b = false;
    struct sg_request *r = request("/things/a?limit=12&flag&q=x");
    cr_assert_eq(sg_req_decode(r, &err), 0);
    cr_assert_eq(sg_req_query_int(r, "limit", 1, 100, &n, &err), 1);
    cr_assert_eq(n, 12);
    cr_assert_eq(sg_req_query_int(r, "limit", 1, 11, &n, &err), -1);
    cr_assert_str_eq(err.field, "limit");
    cr_assert_eq(sg_req_query_int(r, "q", 1, 11, &n, &err), -1);
    cr_assert_eq(sg_req_query_int(r, "absent", 1, 11, &n, &err), 0);
    cr_assert_eq(n, 12);
    cr_assert_eq(sg_req_query_bool(r, "flag", &b, &err), 1);
    cr_assert(b);
    cr_assert_eq(sg_req_query_bool(r, "q", &b, &err), -1);
    cr_assert_eq(sg_req_query_bool(r, "absent", &b, &err), 0);
    sg_req_put(r);
}

Test(query, many_parameters_are_bounded)
{
    static const char *names[SG_ROUTE_QUERY_MAX + 2];
    static char text[SG_ROUTE_QUERY_MAX + 2][4];
    struct sg_route route = {.method = "GET", .path = "/m/{id}", .query = names};
    char target[256] = "/m/a?";
    for (size_t i = 0; i <= SG_ROUTE_QUERY_MAX; i++) {
        text[i][0] = (char)('a' + i);
        names[i] = text[i];
        size_t at = strlen(target);
        snprintf(target + at, sizeof target - at, "%s&", text[i]);
    }
    rt = sg_router_free(rt);
    cr_assert_eq(sg_router_new(&route, 1, &rt, &err), 0);
    refused(target, "query");
}
