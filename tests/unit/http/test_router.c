#include <criterion/criterion.h>

#include "http/router.h"

static const char *const no_query[] = {NULL};

static const struct sg_route table[] = {
    {.method = "GET", .path = "/"},
    {.method = "GET", .path = "/leases"},
    {.method = "POST", .path = "/leases"},
    {.method = "GET", .path = "/leases/{id}"},
    {.method = "DELETE", .path = "/leases/{id}"},
    {.method = "POST", .path = "/leases/{id}/exec"},
    {.method = "GET", .path = "/leases/{id}/exec/{eid}"},
    {.method = "GET", .path = "/leases/{id}/files", .query = no_query},
    {.method = "GET", .path = "/leases/{id}/files/list"},
    {.method = "*", .path = "/leases/{id}/proxy/{port}/{rest...}"},
    {.method = "GET", .path = "/leases/special/exec/one"},
};

static struct sg_router *rt;
static struct sg_route_match m;
static char allow[160];
static struct sg_error err;

static void setup(void)
{
    cr_assert_eq(sg_router_new(table, SG_COUNT_OF(table), &rt, &err), 0);
}

static void teardown(void)
{
    rt = sg_router_free(rt);
    sg_error_clear(&err);
}

TestSuite(router, .init = setup, .fini = teardown);

static const char *find(const char *method, const char *path)
{
    sg_error_clear(&err);
    if (sg_router_find(rt, method, path, strlen(path), &m, allow, sizeof allow, &err) < 0)
        return sg_code_name(err.code);
    return m.route ? m.route->path : "OPTIONS";
}

static void param(size_t i, const char *name, const char *value)
{
    cr_assert_lt(i, m.n_params);
    cr_assert_eq(strncmp(m.names[i], name, strlen(name)), 0);
    cr_assert_eq(m.raw[i].len, strlen(value));
    cr_assert_eq(memcmp(m.raw[i].at, value, m.raw[i].len), 0);
}

Test(router, literals_and_parameters)
{
    cr_assert_str_eq(find("GET", "/"), "/");
    cr_assert_str_eq(find("GET", "/leases"), "/leases");
    cr_assert_str_eq(m.route->method, "GET");
    cr_assert_str_eq(find("POST", "/leases"), "/leases");
    cr_assert_str_eq(m.route->method, "POST");
    cr_assert_str_eq(find("GET", "/leases/ab"), "/leases/{id}");
    cr_assert_eq(m.n_params, 1);
    param(0, "id}", "ab");
    cr_assert_str_eq(find("GET", "/leases/a%2Fb/exec/e1"), "/leases/{id}/exec/{eid}");
    param(0, "id}", "a%2Fb");
    param(1, "eid}", "e1");
    cr_assert_str_eq(find("GET", "/leases/files/files"), "/leases/{id}/files");
}

Test(router, version_prefix_and_trailing_slash)
{
    cr_assert_str_eq(find("GET", "/v1"), "/");
    cr_assert_str_eq(find("GET", "/v1/"), "/");
    cr_assert_str_eq(find("GET", "/v1/leases/"), "/leases");
    cr_assert_str_eq(find("GET", "/leases/ab/"), "/leases/{id}");
    cr_assert_str_eq(find("GET", "/leases//"), "not_found");
    cr_assert_str_eq(find("GET", "/leases/ab//"), "not_found");
    cr_assert_str_eq(find("GET", "//"), "not_found");
    cr_assert_str_eq(find("GET", "/v1/v1/leases"), "not_found");
    cr_assert_str_eq(find("GET", "/v1leases"), "not_found");
    cr_assert_str_eq(find("GET", "/leases//files"), "not_found");
    cr_assert_str_eq(find("GET", "/lease"), "not_found");
    cr_assert_str_eq(find("GET", "/leasess"), "not_found");
    cr_assert_str_eq(find("GET", "/leases/a/nothing"), "not_found");
}

Test(router, literal_first_then_back_to_the_parameter)
{
    cr_assert_str_eq(find("GET", "/leases/special/exec/one"), "/leases/special/exec/one");
    cr_assert_eq(m.n_params, 0);
    cr_assert_str_eq(find("GET", "/leases/special/exec/two"), "/leases/{id}/exec/{eid}");
    param(0, "id}", "special");
    cr_assert_str_eq(find("GET", "/leases/special"), "/leases/{id}");
}

Test(router, tail)
{
    static const struct {
        const char *path, *rest;
    } cases[] = {
        {"/leases/a/proxy/80", ""},         {"/leases/a/proxy/80/", ""},     {"/leases/a/proxy/80/x", "x"},
        {"/leases/a/proxy/80/x/", "x/"},    {"/leases/a/proxy/80//", "/"},   {"/leases/a/proxy/80//x//y", "/x//y"},
        {"/leases/a/proxy/80/..%2f", "..%2f"}, {"/v1/leases/a/proxy/80/v1", "v1"},
    };
    for (size_t i = 0; i < SG_COUNT_OF(cases); i++) {
        cr_assert_str_eq(find("BREW", cases[i].path), "/leases/{id}/proxy/{port}/{rest...}", "%s", cases[i].path);
        param(1, "port}", "80");
        param(2, "rest...}", cases[i].rest);
    }
    cr_assert_str_eq(find("OPTIONS", "/leases/a/proxy/80/x"), "/leases/{id}/proxy/{port}/{rest...}");
    cr_assert_str_eq(find("GET", "/leases/a/proxy"), "not_found");
}

Test(router, methods)
{
    cr_assert_str_eq(find("HEAD", "/leases"), "/leases");
    cr_assert_str_eq(m.route->method, "GET");
    cr_assert_str_eq(find("PUT", "/leases"), "method_not_allowed");
    cr_assert_str_eq(allow, "GET, HEAD, POST, OPTIONS");
    cr_assert_str_eq(find("HEAD", "/leases/a/exec"), "method_not_allowed");
    cr_assert_str_eq(allow, "POST, OPTIONS");
    cr_assert_str_eq(find("BREW", "/leases"), "not_implemented");
    cr_assert_str_eq(find("BREW", "/nothing"), "not_found");
    cr_assert_str_eq(allow, "");
    cr_assert_str_eq(find("OPTIONS", "/leases/a"), "OPTIONS");
    cr_assert_str_eq(allow, "GET, HEAD, DELETE, OPTIONS");
    cr_assert_str_eq(find("OPTIONS", "/nothing"), "not_found");
}

Test(router, bad_tables)
{
    static const struct sg_route twice[] = {{.method = "GET", .path = "/a/{x}"}, {.method = "GET", .path = "/a/{y}"}};
    static const struct sg_route relative[] = {{.method = "GET", .path = "a"}};
    static const struct sg_route hole[] = {{.method = "GET", .path = "/a//b"}};
    static const struct sg_route middle[] = {{.method = "GET", .path = "/a/{x...}/b"}};
    struct sg_router *other = NULL;
    cr_assert_eq(sg_router_new(twice, 2, &other, &err), -1);
    cr_assert_eq(sg_router_new(relative, 1, &other, &err), -1);
    cr_assert_eq(sg_router_new(hole, 1, &other, &err), -1);
    cr_assert_eq(sg_router_new(middle, 1, &other, &err), -1);
    cr_assert_null(other);
}
