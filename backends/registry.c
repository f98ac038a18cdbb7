#include "backends/registry.h"

#include "backends/docker/docker.h"
#include "backends/fake/fake.h"
#include "backends/local_bwrap/local_bwrap.h"
#include "backends/worktree/worktree.h"

#define REGISTRY_MAX 64U

struct sg_backends {
    struct sg_driver *drivers[REGISTRY_MAX];
    size_t n;
};

static int make_local_bwrap(const struct sg_backend_settings *s, const struct sg_backend_parts *parts,
                            struct sg_driver **ret, struct sg_error *err)
{
    const struct sg_local_parts p = {.reactor = parts->reactor,
                                     .workq = parts->workq,
                                     .spawner = parts->spawner,
                                     .event = parts->slot_event,
                                     .egress = parts->egress_event,
                                     .event_arg = parts->slot_event_arg};
    if (parts->spawner == NULL) {
        return sg_error_set(err, SG_UNAVAILABLE, "there is no spawner to make sandboxes with");
    }
    return sg_local_bwrap_new(&p, s->local_pools, s->n_local_pools, ret, err);
}

static int make_worktree(const struct sg_backend_settings *s, const struct sg_backend_parts *parts,
                         struct sg_driver **ret, struct sg_error *err)
{
    const struct sg_worktree_parts p = {.reactor = parts->reactor, .workq = parts->workq};
    if (parts->repos == NULL || s->worktree == NULL) {
        return sg_error_set(err, SG_UNAVAILABLE, "there are no repositories to make worktrees of");
    }
    return sg_worktree_new(s->worktree, &p, parts->repos, ret, err);
}

static int make_docker(const struct sg_backend_settings *s, const struct sg_backend_parts *parts,
                       struct sg_driver **ret, struct sg_error *err)
{
    const struct sg_docker_parts p = {.reactor = parts->reactor,
                                      .workq = parts->workq,
                                      .net = parts->net,
                                      .egress = parts->egress_event,
                                      .pull = parts->docker_pull,
                                      .event_arg = parts->slot_event_arg};
    if (parts->net == NULL || s->docker == NULL) {
        return sg_error_set(err, SG_UNAVAILABLE, "there are no means to call an engine");
    }
    return sg_docker_new(s->docker, &p, ret, err);
}

static int make_e2b(const struct sg_backend_settings *s, const struct sg_backend_parts *parts, struct sg_driver **ret,
                    struct sg_error *err)
{
    const struct sg_e2b_parts p = {.net = parts->net,
                                   .reactor = parts->reactor,
                                   .workq = parts->workq,
                                   .live = parts->lease_live,
                                   .live_arg = parts->lease_live_arg,
                                   .orphan = parts->orphan,
                                   .orphan_arg = parts->orphan_arg};
    if (parts->net == NULL || s->e2b == NULL) {
        return sg_error_set(err, SG_UNAVAILABLE, "there is nothing to reach it with");
    }
    return sg_e2b_new(s->e2b, &p, ret, err);
}

static int make_fake(const struct sg_backend_settings *s, const struct sg_backend_parts *parts,
                     struct sg_driver **ret, struct sg_error *err)
{
    return sg_fake_new(parts->reactor, "fake", s->fake_script, ret, err);
}

static const struct sg_backend_row rows[] = {
    {"worktree", make_worktree},  {"docker", make_docker},  {"local_bwrap", make_local_bwrap},
    {"e2b", make_e2b},   {"modal", NULL},   {"daytona", NULL},
    {"blaxel", NULL},    {"runloop", NULL}, {"vercel", NULL},
    {"fake", make_fake}, /* for tests: nothing but a configuration that names it turns it on */
};

const struct sg_backend_row *sg_backend_row_at(size_t i)
{
    return i < SG_COUNT_OF(rows) ? &rows[i] : NULL;
}

const struct sg_backend_row *sg_backend_row(const char *name)
{
    for (size_t i = 0; i < SG_COUNT_OF(rows); i++) {
        if (sg_streq(rows[i].name, name)) {
            return &rows[i];
        }
    }
    return NULL;
}

static struct sg_driver *find(const struct sg_backends *r, const char *name)
{
    for (size_t i = 0; i < r->n; i++) {
        if (sg_streq(r->drivers[i]->facts.name, name)) {
            return r->drivers[i];
        }
    }
    return NULL;
}

static int make_one(struct sg_backends *r, const char *name, const struct sg_backend_settings *s,
                    const struct sg_backend_parts *parts, struct sg_error *err)
{
    const struct sg_backend_row *row = sg_backend_row(name);
    if (row == NULL) {
        return sg_error_field(err, SG_INVALID_REQUEST, "backends.enabled", "there is no backend \"%s\"",
                              name);
    }
    if (find(r, name) != NULL) {
        return sg_error_field(err, SG_INVALID_REQUEST, "backends.enabled", "backend \"%s\" is named twice",
                              name);
    }
    if (row->make == NULL) {
        return sg_error_field(err, SG_NOT_IMPLEMENTED, "backends.enabled",
                              "backend \"%s\" is known, but this build has no driver for it", name);
    }
    struct sg_driver *d = NULL;
    if (row->make(s, parts, &d, err) < 0) {
        return sg_error_wrap(err, "backend \"%s\"", name);
    }
    if (sg_backends_add(r, d, err) < 0) {
        sg_driver_free(d);
        return -1;
    }
    return 0;
}

int sg_backends_new(const char *const *enabled, size_t n, const struct sg_backend_settings *s,
                    const struct sg_backend_parts *parts, struct sg_backends **ret, struct sg_error *err)
{
    struct sg_backends *r = sg_xcalloc(1, sizeof *r);
    for (size_t i = 0; i < n; i++) {
        if (make_one(r, enabled[i], s, parts, err) < 0) {
            sg_backends_free(r);
            return -1;
        }
    }
    *ret = r;
    return 0;
}

int sg_backends_add(struct sg_backends *r, struct sg_driver *d, struct sg_error *err)
{
    if (find(r, d->facts.name) != NULL) {
        return sg_error_set(err, SG_CONFLICT, "there is a backend \"%s\" already", d->facts.name);
    }
    if (r->n == REGISTRY_MAX) {
        return sg_error_set(err, SG_LIMIT_EXCEEDED, "more than %u backends", REGISTRY_MAX);
    }
    r->drivers[r->n++] = d;
    return 0;
}

struct sg_backends *sg_backends_free(struct sg_backends *r)
{
    if (r == NULL) {
        return NULL;
    }
    while (r->n > 0) {
        sg_driver_free(r->drivers[--r->n]);
    }
    free(r);
    return NULL;
}

struct sg_driver *sg_backends_get(const struct sg_backends *r, const char *name, struct sg_error *err)
{
    struct sg_driver *d = find(r, name);
    if (d != NULL) {
        return d;
    }
    const struct sg_backend_row *row = sg_backend_row(name);
    if (row == NULL) {
        sg_error_set(err, SG_NOT_FOUND, "there is no backend \"%s\"", name);
        sg_error_reason(err, "backend_unknown");
    } else if (row->make == NULL) {
        sg_error_set(err, SG_NOT_FOUND, "backend \"%s\" is known, but this build has no driver for it", name);
        sg_error_reason(err, "backend_not_built");
    } else {
        sg_error_set(err, SG_NOT_FOUND, "backend \"%s\" is not enabled (backends.enabled)", name);
        sg_error_reason(err, "backend_not_configured");
    }
    return NULL;
}

struct sg_driver *sg_backends_at(const struct sg_backends *r, size_t i)
{
    return i < r->n ? r->drivers[i] : NULL;
}
