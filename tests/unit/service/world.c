#include "world.h"

#include <fcntl.h>
#include <stdlib.h>

#include "base/fd.h"

void world_prepare(struct world *w)
{
    *w = (struct world){.patience_ms = 10000,
                        .cfg = {.lease_timeout_default_ms = 60000,
                                .lease_timeout_max_ms = 3600000,
                                .exec_timeout_default_ms = 30000,
                                .exec_timeout_max_ms = 60000,
                                .exec_output_max = 1U << 20,
                                .exec_memory_max = 64U << 20,
                                .exec_history_max = 4U << 20,
                                .exec_history_ttl_ms = 60000},
                        .who = {.name = "test", .tenant = "default", .role = SG_ROLE_ADMIN}};
    w->dir = sg_xstrdup("/tmp/sg-service-XXXXXX");
    cr_assert_not_null(mkdtemp(w->dir));
}

void world_start(struct world *w, const char *script)
{
    static const char *const enabled[] = {"fake"};
    struct sg_error err = {0};
    struct sg_backend_settings settings = {.fake_script = script};

    cr_assert_eq(sg_reactor_new(&w->reactor, &err), 0, "%s", err.message);
    cr_assert_eq(sg_workq_new(2, 64, &w->workq, &err), 0, "%s", err.message);
    struct sg_store_config sc = {.state_dir = w->dir};
    cr_assert_eq(sg_store_open(&sc, &w->store, &err), 0, "%s", err.message);
    struct sg_backend_parts parts = {.reactor = w->reactor, .workq = w->workq};
    cr_assert_eq(sg_backends_new(enabled, 1, &settings, &parts, &w->backends, &err), 0, "%s", err.message);
    w->fake = sg_backends_at(w->backends, 0);
    struct sg_service_parts sp = {.reactor = w->reactor,
                                  .workq = w->workq,
                                  .store = w->store,
                                  .backends = w->backends,
                                  .held_credentials = &w->held};
    cr_assert_eq(sg_service_new(&w->cfg, &sp, &w->service, &err), 0, "%s", err.message);
}

void world_finish(struct world *w)
{
    struct sg_error err = {0};

    sg_service_end_all(w->service, sg_now_ms() + w->patience_ms);
    sg_backends_free(w->backends);
    sg_workq_free(w->workq);
    sg_store_free(w->store);
    sg_service_free(w->service);
    sg_reactor_free(w->reactor);
    cr_expect_eq(sg_remove_tree(AT_FDCWD, w->dir, &err), 0, "%s", err.message);
    free(w->dir);
}

/* ---- leases ---- */

static char *render(void *arg, const struct sg_lease *l)
{
    (void)arg;
    return sg_xasprintf("{\"id\":\"%s\"}", l->id);
}

static void created(void *arg, const struct sg_created *c, const struct sg_error *err)
{
    struct made *m = arg;

    if (err) {
        sg_error_copy(&m->err, err);
    } else {
        m->entry = c->entry ? sg_entry_ref(c->entry) : NULL;
        m->fresh = c->fresh;
        m->replayed = c->answer != NULL;
    }
    flag_raise(&m->flag);
}

void world_create_begin(struct world *w, const char *body, const char *key, bool async,
                        struct sg_cancel *cancel, struct made *m)
{
    struct sg_lease_request q;
    struct sg_error err = {0};

    *m = (struct made){.flag = FLAG_INIT};
    cr_assert_eq(sg_lease_request_parse(body, strlen(body), &q, &err), 0, "%s", err.message);
    struct sg_create_args a = {.who = &w->who,
                               .request = &q,
                               .idempotency_key = key,
                               .async = async,
                               .cancel = cancel,
                               .render = render,
                               .done = created,
                               .arg = m};
    sg_service_create(w->service, &a);
    sg_lease_request_finish(&q);
}

void world_create_end(struct made *m)
{
    cr_assert(flag_wait(&m->flag, 1, CALL_MS));
}

struct sg_entry *world_lease(struct world *w)
{
    struct made m;

    world_create_begin(w, "{\"policy\":{\"override\":\"fake\"}}", NULL, false, NULL, &m);
    world_create_end(&m);
    cr_assert_not_null(m.entry, "%s", m.err.message);
    return m.entry;
}

static void gone(void *arg, bool is)
{
    cr_expect(is);
    flag_raise(arg);
}

void world_end(struct world *w, struct sg_entry *e)
{
    struct flag f = FLAG_INIT;

    sg_service_delete(w->service, e, CALL_MS, gone, &f);
    cr_assert(flag_wait(&f, 1, CALL_MS));
    sg_entry_unref(e);
}

enum sg_lease_state world_state(struct sg_entry *e)
{
    struct sg_lease l;

    sg_entry_lease(e, &l);
    enum sg_lease_state state = l.state;
    sg_lease_finish(&l);
    return state;
}

/* ---- commands ---- */

static void ended(void *arg, const struct sg_exec_result *result, const struct sg_error *err)
{
    struct ran *r = arg;

    r->failed = err != NULL;
    if (err) {
        sg_error_copy(&r->err, err);
    } else {
        r->exit = result->exit;
        r->kept = result->out.len;
        r->total = result->out.total;
        r->out = sg_xstrndup(result->out.data ? result->out.data : "", result->out.len);
    }
    flag_raise(&r->flag);
}

void world_exec_begin(struct world *w, struct sg_entry *e, const char *body, struct sg_cancel *cancel,
                      struct ran *r)
{
    struct sg_exec_request q;
    struct sg_error err = {0};

    *r = (struct ran){.flag = FLAG_INIT};
    cr_assert_eq(sg_exec_request_parse(body, strlen(body), &q, &err), 0, "%s", err.message);
    struct sg_exec_args a = {
        .who = &w->who, .lease = e, .request = &q, .cancel = cancel, .done = ended, .arg = r};
    sg_service_exec(w->service, &a);
}

void world_exec_end(struct ran *r)
{
    cr_assert(flag_wait(&r->flag, 1, CALL_MS));
}

void world_exec(struct world *w, struct sg_entry *e, const char *body, struct ran *r)
{
    world_exec_begin(w, e, body, NULL, r);
    world_exec_end(r);
}

void ran_finish(struct ran *r)
{
    sg_error_clear(&r->err);
    free(r->out);
    r->out = NULL;
}
