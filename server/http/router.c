/* A tree of path segments; literal segments win over parameters, parameters over tails. */
#include "http/router.h"

#include <stdio.h>

#define ROUTES_PER_NODE 8

struct node {
    struct sg_slice literal; /* of the edge into this node */
    struct node *children;   /* literal edges: first child, then next */
    struct node *next;
    struct node *param;
    const struct sg_route *ends[ROUTES_PER_NODE]; /* routes whose path ends here */
    size_t n_ends;
    const struct sg_route *tails[ROUTES_PER_NODE]; /* routes with a {rest...} from here */
    size_t n_tails;
};

struct sg_router {
    struct node root;
    const struct sg_route *routes;
    size_t n;
};

static const char *const known_methods[] = {"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"};

static bool slice_eq(struct sg_slice s, const char *at, size_t len)
{
    return s.len == len && memcmp(s.at, at, len) == 0;
}

static struct node *literal_child(struct node *n, const char *at, size_t len, bool make)
{
    for (struct node *c = n->children; c; c = c->next)
        if (slice_eq(c->literal, at, len))
            return c;
    if (!make)
        return NULL;
    struct node *c = sg_xcalloc(1, sizeof *c);
    c->literal = (struct sg_slice){at, len};
    c->next = n->children;
    n->children = c;
    return c;
}

static bool ends_with(const char *at, size_t len, const char *tail)
{
    size_t n = strlen(tail);
    return len >= n && memcmp(at + len - n, tail, n) == 0;
}

static int add_to(const struct sg_route **list, size_t *n, const struct sg_route *r, struct sg_error *err)
{
    for (size_t i = 0; i < *n; i++)
        if (sg_streq(list[i]->method, r->method))
            return sg_error_set(err, SG_INTERNAL, "route %s %s is there twice", r->method, r->path);
    if (*n == ROUTES_PER_NODE)
        return sg_error_set(err, SG_INTERNAL, "too many methods for %s", r->path);
    list[(*n)++] = r;
    return 0;
}

static int add_route(struct sg_router *rt, const struct sg_route *r, struct sg_error *err)
{
    struct node *n = &rt->root;
    const char *p = r->path;
    size_t params = 0;
    if (*p != '/')
        return sg_error_set(err, SG_INTERNAL, "route path %s does not begin with '/'", p);
    if (p[1] == '\0')
        return add_to(n->ends, &n->n_ends, r, err);
    while (*p == '/') {
        const char *at = ++p;
        size_t len = strcspn(p, "/");
        p += len;
        if (len == 0)
            return sg_error_set(err, SG_INTERNAL, "empty segment in route path %s", r->path);
        if (*at == '{' && ++params > SG_ROUTE_PARAMS_MAX)
            return sg_error_set(err, SG_INTERNAL, "too many parameters in %s", r->path);
        if (*at == '{' && ends_with(at, len, "...}"))
            return *p ? sg_error_set(err, SG_INTERNAL, "tail is not last in %s", r->path)
                      : add_to(n->tails, &n->n_tails, r, err);
        if (*at != '{') {
            n = literal_child(n, at, len, true);
            continue;
        }
        if (!n->param)
            n->param = sg_xcalloc(1, sizeof *n);
        n = n->param;
    }
    return add_to(n->ends, &n->n_ends, r, err);
}

int sg_router_new(const struct sg_route *routes, size_t n, struct sg_router **ret, struct sg_error *err)
{
    struct sg_router *rt = sg_xcalloc(1, sizeof *rt);
    rt->routes = routes;
    rt->n = n;
    for (size_t i = 0; i < n; i++)
        if (add_route(rt, &routes[i], err) < 0) {
            sg_router_free(rt);
            return -1;
        }
    *ret = rt;
    return 0;
}

static void free_node(struct node *n)
{
    while (n->children) {
        struct node *c = n->children;
        n->children = c->next;
        free_node(c);
        free(c);
    }
    if (n->param) {
        free_node(n->param);
        free(n->param);
    }
}

struct sg_router *sg_router_free(struct sg_router *rt)
{
    if (rt) {
        free_node(&rt->root);
        free(rt);
    }
    return NULL;
}

/* ---- looking up ---- */

struct walk {
    const char *end; /* of the path */
    struct sg_slice params[SG_ROUTE_PARAMS_MAX];
    size_t n_params;
    const struct sg_route *const *found;
    size_t n_found;
};

static bool walk_to(const struct node *n, const char *p, struct walk *w);

static bool found(struct walk *w, const struct sg_route *const *list, size_t n)
{
    w->found = list;
    w->n_found = n;
    return n > 0;
}

static bool walk_segment(const struct node *n, const char *p, struct walk *w)
{
    const char *slash = memchr(p, '/', (size_t)(w->end - p));
    size_t len = (size_t)((slash ? slash : w->end) - p);
    if (len == 0)
        return false;
    const struct node *c = n->children;
    while (c && !slice_eq(c->literal, p, len))
        c = c->next;
    if (c && walk_to(c, p + len, w))
        return true;
    if (!n->param || w->n_params == SG_ROUTE_PARAMS_MAX)
        return false;
    w->params[w->n_params++] = (struct sg_slice){p, len};
    if (walk_to(n->param, p + len, w))
        return true;
    w->n_params--;
    return false;
}

/* p: the end, or the '/' before the next segment. */
static bool walk_to(const struct node *n, const char *p, struct walk *w)
{
    bool at_end = p == w->end || p + 1 == w->end;
    if (at_end && n->n_ends)
        return found(w, n->ends, n->n_ends);
    if (!at_end && walk_segment(n, p + 1, w))
        return true;
    if (n->n_tails == 0 || w->n_params == SG_ROUTE_PARAMS_MAX)
        return false;
    const char *rest = p == w->end ? p : p + 1;
    w->params[w->n_params++] = (struct sg_slice){rest, (size_t)(w->end - rest)};
    return found(w, n->tails, n->n_tails);
}

static const struct sg_route *pick(const struct walk *w, const char *method)
{
    const struct sg_route *any = NULL;
    const struct sg_route *get = NULL;
    for (size_t i = 0; i < w->n_found; i++) {
        const char *m = w->found[i]->method;
        if (sg_streq(m, method))
            return w->found[i];
        if (sg_streq(m, "*"))
            any = w->found[i];
        if (sg_streq(m, "GET"))
            get = w->found[i];
    }
    return get && sg_streq(method, "HEAD") ? get : any;
}

static void list_methods(const struct walk *w, char *allow, size_t size)
{
    size_t at = 0;
    allow[0] = '\0';
    for (size_t i = 0; i < w->n_found && at < size; i++) {
        const char *m = w->found[i]->method;
        if (!sg_streq(m, "*"))
            at += (size_t)snprintf(allow + at, size - at, sg_streq(m, "GET") ? "%s, HEAD, " : "%s, ", m);
    }
    if (at < size)
        snprintf(allow + at, size - at, "OPTIONS");
}

static bool method_known(const struct sg_router *rt, const char *method)
{
    for (size_t i = 0; i < SG_COUNT_OF(known_methods); i++)
        if (sg_streq(method, known_methods[i]))
            return true;
    for (size_t i = 0; i < rt->n; i++)
        if (sg_streq(method, rt->routes[i].method))
            return true;
    return false;
}

static void name_params(const struct walk *w, struct sg_route_match *m)
{
    size_t i = 0;
    for (const char *p = m->route->path; i < w->n_params && (p = strchr(p, '{')); p++, i++) {
        m->names[i] = p + 1;
        m->raw[i] = w->params[i];
    }
    m->n_params = i;
}

int sg_router_find(const struct sg_router *rt, const char *method, const char *path, size_t len,
                   struct sg_route_match *m, char *allow, size_t allow_size, struct sg_error *err)
{
    struct walk w = {.end = path + len};
    const char *from = path;
    allow[0] = '\0';
    m->route = NULL;
    m->n_params = 0;
    if (len >= 3 && memcmp(path, "/v1", 3) == 0 && (len == 3 || path[3] == '/'))
        from += 3;
    if (!walk_to(&rt->root, from, &w))
        return sg_error_set(err, SG_NOT_FOUND, "there is nothing at %.*s", len > 200 ? 200 : (int)len, path);
    if (sg_streq(method, "CONNECT")) /* also where any method is: what answers it with success has no end */
        return sg_error_set(err, SG_NOT_IMPLEMENTED, "method CONNECT is not implemented");
    m->route = pick(&w, method);
    if (m->route) {
        name_params(&w, m);
        return 0;
    }
    list_methods(&w, allow, allow_size);
    if (sg_streq(method, "OPTIONS"))
        return 0;
    if (!method_known(rt, method))
        return sg_error_set(err, SG_NOT_IMPLEMENTED, "method %.32s is not implemented", method);
    return sg_error_set(err, SG_METHOD_NOT_ALLOWED, "%.32s is not allowed here, only %s", method, allow);
}
