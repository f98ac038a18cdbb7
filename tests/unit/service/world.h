/* A whole service over the scriptable backend, without HTTP. Each call waits for its answer. */
#ifndef SG_TEST_SERVICE_WORLD_H
#define SG_TEST_SERVICE_WORLD_H

#include <criterion/criterion.h>

#include "base/clock.h"
#include "base/json.h"
#include "tests/support/calls.h"
#include "service/execs.h"
#include "service/files.h"
#include "backends/fake/fake.h"
#include "service/service.h"

struct world {
    char *dir;
    struct sg_reactor *reactor;
    struct sg_workq *workq;
    struct sg_store *store;
    struct sg_backends *backends;
    struct sg_names held;
    struct sg_service_config cfg;
    struct sg_service *service;
    struct sg_driver *fake;
    struct sg_principal who;
    int64_t patience_ms; /* of the end, with leases that do not */
};

/* script: of the fake backend, or NULL. Settings may be changed between prepare and start. */
void world_prepare(struct world *w);
void world_start(struct world *w, const char *script);
void world_finish(struct world *w);

/* An answered create. */
struct made {
    struct flag flag;
    struct sg_entry *entry; /* one reference, or NULL */
    struct sg_error err;
    bool fresh, replayed;
};
void world_create_begin(struct world *w, const char *body, const char *key, bool async, struct sg_cancel *cancel, struct made *m);
void world_create_end(struct made *m);
/* A ready lease; the test fails without one. */
struct sg_entry *world_lease(struct world *w);
/* Ends it and drops the reference. */
void world_end(struct world *w, struct sg_entry *e);
enum sg_lease_state world_state(struct sg_entry *e);

/* A command under way. */
struct ran {
    struct flag flag;
    bool failed;
    struct sg_error err;
    struct sg_exit exit;
    char *out; /* NUL-terminated copy */
    uint64_t total;
    size_t kept;
};
/* body: the JSON of the request. */
void world_exec_begin(struct world *w, struct sg_entry *e, const char *body, struct sg_cancel *cancel, struct ran *r);
void world_exec_end(struct ran *r);
void world_exec(struct world *w, struct sg_entry *e, const char *body, struct ran *r);
void ran_finish(struct ran *r);

#endif
