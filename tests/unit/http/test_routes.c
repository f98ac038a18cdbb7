/* The route table and the API description say the same, in both directions. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "base/fd.h"
#include "base/json.h"
#include "config.h"
#include "http/api.h"

static json_t *api;

static void setup(void)
{
    struct sg_error err = {0};
    char *text = NULL;
    size_t len;
    cr_assert_eq(sg_read_file(SG_OPENAPI_YAML, (size_t)4 << 20, &text, &len, &err), 0, "%s", err.message);
    cr_assert_eq(sg_yaml_to_json(text, len, &api, &err), 0, "%s", err.message);
    free(text);
}

static void teardown(void)
{
    json_decref(api);
}

TestSuite(routes, .init = setup, .fini = teardown);

/* The path as the description writes it: tails look like parameters. */
static const char *described_path(const struct sg_route *r, char out[256])
{
    size_t n = strlen(r->path);
    const char *tail = strstr(r->path, "...}");
    snprintf(out, 256, "%.*s%s", (int)(tail ? (size_t)(tail - r->path) : n), r->path, tail ? "}" : "");
    return out;
}

static const char *described_method(const struct sg_route *r)
{
    static const char *const names[][2] = {{"GET", "get"}, {"POST", "post"}, {"PUT", "put"}, {"DELETE", "delete"}, {"*", "get"}};
    for (size_t i = 0; i < SG_COUNT_OF(names); i++)
        if (sg_streq(names[i][0], r->method))
            return names[i][1];
    return "?";
}

static const json_t *path_item(const struct sg_route *r)
{
    char path[256];
    return json_object_get(json_object_get(api, "paths"), described_path(r, path));
}

static const json_t *operation(const struct sg_route *r)
{
    const json_t *op = json_object_get(path_item(r), described_method(r));
    cr_assert_not_null(op, "%s %s is not described", r->method, r->path);
    return op;
}

static const struct sg_route *route_of(const char *operation_id)
{
    for (size_t i = 0; i < sg_routes_count; i++)
        if (sg_streq(sg_routes[i].operation_id, operation_id))
            return &sg_routes[i];
    return NULL;
}

/* What a {"$ref": "#/a/b"} stands for; anything else itself. */
static const json_t *resolved(const json_t *v)
{
    const char *ref = json_string_value(json_object_get(v, "$ref"));
    if (!ref)
        return v;
    const json_t *at = api;
    for (const char *p = ref + 1; *p == '/';) {
        size_t n = strcspn(p + 1, "/");
        at = json_object_getn(at, p + 1, n);
        p += n + 1;
    }
    cr_assert_not_null(at, "%s leads nowhere", ref);
    return at;
}

Test(routes, every_route_is_described)
{
    for (size_t i = 0; i < sg_routes_count; i++) {
        const struct sg_route *r = &sg_routes[i];
        cr_assert_str_eq(json_string_value(json_object_get(operation(r), "operationId")), r->operation_id);
        cr_assert_eq(route_of(r->operation_id), r, "%s is there twice", r->operation_id);
    }
}

Test(routes, everything_described_is_routed)
{
    size_t n = 0;
    const char *path, *method;
    json_t *item, *op;
    json_object_foreach(json_object_get(api, "paths"), path, item)
    {
        json_object_foreach(item, method, op)
        {
            if (sg_streq(method, "parameters"))
                continue;
            const char *id = json_string_value(json_object_get(op, "operationId"));
            cr_assert_not_null(id, "%s %s has no operationId", method, path);
            const struct sg_route *r = route_of(id);
            cr_assert_not_null(r, "%s %s (%s) has no route", method, path, id);
            char described[256];
            cr_assert_str_eq(described_path(r, described), path);
            cr_assert_str_eq(described_method(r), method);
            n++;
        }
    }
    cr_assert_eq(n, sg_routes_count);
}

/* The parameters of an operation in one place; both its own and its path's. Returns how many there are. */
static size_t parameters(const struct sg_route *r, const char *in, const char *name, bool *ret_found)
{
    const json_t *const lists[] = {json_object_get(operation(r), "parameters"), json_object_get(path_item(r), "parameters")};
    size_t n = 0;
    *ret_found = false;
    for (size_t l = 0; l < SG_COUNT_OF(lists); l++)
        for (size_t i = 0; i < json_array_size(lists[l]); i++) {
            const json_t *p = resolved(json_array_get(lists[l], i));
            if (!sg_streq(json_string_value(json_object_get(p, "in")), in))
                continue;
            n++;
            *ret_found = *ret_found || sg_streq(json_string_value(json_object_get(p, "name")), name);
        }
    return n;
}

Test(routes, query_parameters_are_those_described)
{
    for (size_t i = 0; i < sg_routes_count; i++) {
        const struct sg_route *r = &sg_routes[i];
        size_t n = 0;
        bool found;
        for (; r->query && r->query[n]; n++) {
            parameters(r, "query", r->query[n], &found);
            cr_assert(found, "%s: ?%s= is not described", r->operation_id, r->query[n]);
        }
        cr_assert_eq(parameters(r, "query", "", &found), n, "%s: a described query parameter is not known", r->operation_id);
    }
}

Test(routes, path_parameters_are_those_described)
{
    for (size_t i = 0; i < sg_routes_count; i++) {
        const struct sg_route *r = &sg_routes[i];
        size_t n = 0;
        bool found;
        for (const char *p = strchr(r->path, '{'); p; p = strchr(p + 1, '{'), n++) {
            char name[64];
            snprintf(name, sizeof name, "%.*s", (int)strcspn(p + 1, ".}"), p + 1);
            parameters(r, "path", name, &found);
            cr_assert(found, "%s: {%s} is not described", r->operation_id, name);
        }
        cr_assert_eq(parameters(r, "path", "", &found), n, "%s: parameters that the path does not have", r->operation_id);
    }
}

Test(routes, bodies_are_those_described)
{
    for (size_t i = 0; i < sg_routes_count; i++) {
        const struct sg_route *r = &sg_routes[i];
        const json_t *body = json_object_get(operation(r), "requestBody");
        if (sg_streq(r->method, "*"))
            continue; /* whatever the service takes */
        cr_assert_eq(body != NULL, r->body != SG_BODY_NONE, "%s", r->operation_id);
        cr_assert_eq(json_is_true(json_object_get(body, "required")), r->body == SG_BODY_JSON, "%s", r->operation_id);
        bool json = json_object_get(json_object_get(body, "content"), "application/json") != NULL;
        cr_assert_eq(json, r->body == SG_BODY_JSON || r->body == SG_BODY_JSON_OPTIONAL, "%s", r->operation_id);
    }
}

/* `security: []` means open. The proxy and the metrics check for themselves. */
Test(routes, who_may_call_is_as_described)
{
    for (size_t i = 0; i < sg_routes_count; i++) {
        const struct sg_route *r = &sg_routes[i];
        const json_t *op = operation(r);
        const json_t *security = json_object_get(op, "security");
        bool open = security && json_array_size(security) == 0;
        if (sg_streq(r->operation_id, "proxy") || sg_streq(r->operation_id, "metrics"))
            cr_assert(r->auth == SG_AUTH_NONE && !open);
        else
            cr_assert_eq(r->auth == SG_AUTH_NONE, open, "%s", r->operation_id);
        const json_t *responses = json_object_get(op, "responses");
        cr_assert_eq(json_object_get(responses, "401") != NULL, !open, "%s: 401", r->operation_id);
        if (r->auth == SG_AUTH_ADMIN)
            cr_assert_not_null(json_object_get(responses, "403"), "%s: 403", r->operation_id);
        if (strstr(r->path, "/leases/{id}"))
            cr_assert_not_null(json_object_get(responses, "404"), "%s: 404", r->operation_id);
        cr_assert_not_null(json_object_get(responses, "default"), "%s: default", r->operation_id);
    }
}

/* Answers with content of another type than JSON are those that say so. */
Test(routes, types_are_those_described)
{
    for (size_t i = 0; i < sg_routes_count; i++) {
        const struct sg_route *r = &sg_routes[i];
        const char *status;
        json_t *response;
        json_object_foreach(json_object_get(operation(r), "responses"), status, response)
        {
            const json_t *content = json_object_get(resolved(response), "content");
            if (status[0] != '2' || !content)
                continue;
            if (!r->produces && !sg_streq(r->method, "*"))
                cr_assert_not_null(json_object_get(content, "application/json"), "%s %s", r->operation_id, status);
        }
    }
}
