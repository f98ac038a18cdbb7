/* What unpacking asks of the sandbox. The sandbox carries out what it is told in the order it is told, so most orders need not be waited
 * for one by one: only their number is bounded, and the first failure counts. */
#include "service/tar_unpack_priv.h"

#include "base/fd.h"

void sg_unpack_answer_finish(struct answer *a)
{
    if (a->source.fd >= 0) {
        sg_close(a->source.fd);
        sg_hold_unref(a->source.hold);
    }
    if (a->sink)
        a->sink->ops->abort(a->sink);
    free(a->text);
    sg_error_clear(&a->error);
    *a = (struct answer){.source.fd = -1};
}

/* ---- questions ---- */

static void answered(struct unpack *u, const struct sg_error *err)
{
    pthread_mutex_lock(&u->stepper.lock);
    if (err)
        sg_error_copy(&u->next.error, err);
    u->answered = true;
    pthread_mutex_unlock(&u->stepper.lock);
    sg_stepper_kick(&u->stepper);
    sg_stepper_unref(&u->stepper);
}

void sg_unpack_got_text(void *arg, const char *text, const struct sg_file_stat *st, const struct sg_error *err)
{
    struct unpack *u = arg;

    if (!err) {
        u->next.text = sg_xstrdup(text);
        u->next.type = st->type;
    }
    answered(u, err);
}

void sg_unpack_got_scratch(void *arg, struct sg_file_source *src, const struct sg_error *err)
{
    struct unpack *u = arg;

    if (!err)
        u->next.source = *src;
    answered(u, err);
}

void sg_unpack_got_sink(void *arg, struct sg_file_sink *sink, const struct sg_error *err)
{
    struct unpack *u = arg;

    u->next.sink = sink;
    answered(u, err);
}

void sg_unpack_got_done(void *arg, const struct sg_error *err)
{
    answered(arg, err);
}

/* Before a question is put; its answer comes later. The reference is the answer's. */
void sg_unpack_asking(struct unpack *u)
{
    pthread_mutex_lock(&u->stepper.lock);
    u->asked = true;
    u->answered = false;
    pthread_mutex_unlock(&u->stepper.lock);
    sg_stepper_ref(&u->stepper);
}

/* After it: rc < 0 means that none will come. */
int sg_unpack_asked(struct unpack *u, int rc)
{
    if (rc < 0) {
        u->asked = false;
        sg_stepper_unref(&u->stepper);
    }
    return rc;
}

int sg_unpack_ask_text(struct unpack *u,
                       int (*what)(struct sg_sandbox *, const char *, const struct sg_text_done *, struct sg_error *),
                       struct sg_error *err)
{
    sg_unpack_asking(u);
    return sg_unpack_asked(u, what(u->sb, u->path, &(struct sg_text_done){sg_unpack_got_text, u}, err));
}

/* ---- orders ---- */

struct order *sg_unpack_order_new(struct unpack *u, const char *path)
{
    struct order *o = sg_xcalloc(1, sizeof *o);

    *o = (struct order){.u = u, .path = sg_xstrdup(path)};
    sg_stepper_ref(&u->stepper);
    pthread_mutex_lock(&u->stepper.lock);
    u->ahead++;
    pthread_mutex_unlock(&u->stepper.lock);
    return o;
}

static void order_end(struct order *o, const struct sg_error *err)
{
    struct unpack *u = o->u;

    pthread_mutex_lock(&u->stepper.lock);
    if (err && u->ahead_error.code == SG_OK) {
        sg_error_copy(&u->ahead_error, err);
        sg_error_wrap(&u->ahead_error, "%s", o->path);
    }
    /* The turn waits for room or for the last of them. */
    bool kick = u->ahead == AHEAD_MAX || u->ahead == 1 || err;
    u->ahead--;
    pthread_mutex_unlock(&u->stepper.lock);
    free(o->path);
    free(o);
    if (kick)
        sg_stepper_kick(&u->stepper);
    sg_stepper_unref(&u->stepper);
}

void sg_unpack_order_done(void *arg, const struct sg_error *err)
{
    order_end(arg, err);
}

void sg_unpack_order_stat(void *arg, const struct sg_file_stat *st SG_UNUSED, const struct sg_error *err)
{
    order_end(arg, err);
}

void sg_unpack_order_commit(void *arg, const struct sg_file_stat *st SG_UNUSED, bool created SG_UNUSED, const struct sg_error *err)
{
    order_end(arg, err);
}

/* rc < 0: the order was not even taken, and nobody will say more about it. */
int sg_unpack_ordered(struct order *o, int rc, struct sg_error *err)
{
    struct sg_error said = {0};

    if (rc == 0)
        return 0;
    sg_error_copy(&said, err);
    order_end(o, &said);
    sg_error_clear(&said);
    return -1;
}

/* 0: all orders have been carried out; 1: not yet; -1: one has failed. */
int sg_unpack_settle(struct unpack *u, struct sg_error *err)
{
    pthread_mutex_lock(&u->stepper.lock);
    int rc = u->ahead > 0 ? 1 : 0;
    if (u->ahead_error.code != SG_OK) {
        sg_error_copy(err, &u->ahead_error);
        rc = -1;
    }
    pthread_mutex_unlock(&u->stepper.lock);
    return rc;
}
