/* Deployments older than "/v2" have what is asked for there without it. */
#include "backends/e2b/e2b_priv.h"

#include <stdatomic.h>

#include "base/json.h"

enum e2b_age { AGE_UNKNOWN, AGE_NEW, AGE_OLD };

struct post {
    struct e2b *d;
    char *path;
    json_t *body;
    bool repeatable, insist, old;
    int64_t deadline_ms;
    void (*done)(void *arg, const struct sg_origin_answer *a, const struct sg_error *err);
    void *arg;
};

static void send_post(struct post *p);

static bool not_known(const struct sg_origin_answer *a)
{
    return a && (a->status == 404 || a->status == 405);
}

/* 404 also is the answer for what is not there: then both say so, and nothing has been learnt. */
static void posted(void *arg, const struct sg_origin_answer *a, const struct sg_error *err)
{
    struct post *p = arg;

    if (!p->old && not_known(a) && atomic_load(&p->d->api_age) != AGE_NEW) {
        p->old = true;
        send_post(p);
        return;
    }
    if (!err)
        atomic_store(&p->d->api_age, p->old ? AGE_OLD : AGE_NEW);
    p->done(p->arg, a, err);
    sg_json_unref(p->body);
    free(p->path);
    free(p);
}

static void send_post(struct post *p)
{
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("%s%s", p->old ? "" : "/v2", p->path);

    if (p->old && sg_streq(p->path, "/sandboxes"))
        json_object_set_new(p->body, "secure", json_true()); /* else their daemons would take orders from anybody */
    sg_origin_call(p->d->api, &(struct sg_origin_call){.method = "POST", .path = path, .body = p->body, .repeatable = p->repeatable, .insist = p->insist,
                                                       .deadline_ms = p->deadline_ms, .done = posted, .arg = p});
}

void e2b_post(struct e2b *d, const char *path, const json_t *body, bool repeatable, bool insist,
              void (*done)(void *arg, const struct sg_origin_answer *a, const struct sg_error *err), void *arg)
{
    struct post *p = sg_xcalloc(1, sizeof *p);

    *p = (struct post){.d = d, .path = sg_xstrdup(path), .body = json_copy((json_t *)(uintptr_t)body), .repeatable = repeatable, .insist = insist,
                       .old = atomic_load(&d->api_age) == AGE_OLD, .deadline_ms = e2b_deadline(d), .done = done, .arg = arg};
    send_post(p);
}
