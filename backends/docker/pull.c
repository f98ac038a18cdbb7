/* Pulls of images that the engine lacks. One of an image serves all containers that wait for it; when nobody does any more it is ended.
 *
 * The engine answers 200 at once and then tells how it goes, in JSON objects one after the other; a failure is one of them.
 */
#include "backends/docker/pull.h"

#include <stdio.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/pipe.h"

#define STALL_MS 60000
#define PIPE_BYTES ((size_t)64 * 1024)
#define TELL_MS 500  /* to those who wait */
#define LOG_MS 10000

struct pull {
    struct docker *d; /* one reference */
    atomic_int refs;  /* its own until the answer; one of a task under way. The pipe's waker takes none: it is removed before the last goes */
    struct pull *prev, *next;
    char *image;
    struct box *boxes; /* who waits, one reference each */
    unsigned waiters;
    struct sg_cancel *cancel;
    struct sg_pipe *stream;
    struct sg_task drain_task;
    atomic_bool draining; /* drain_task is on its way, with a reference */
    struct pull_progress progress;
    int64_t begun_ms, told_ms, logged_ms;
    struct sg_timer later; /* tells what was not told at once */
    bool over;
};

static struct pull *pull_ref(struct pull *p)
{
    (void)atomic_fetch_add(&p->refs, 1);
    return p;
}

static void pull_unref(struct pull *p)
{
    if (atomic_fetch_sub(&p->refs, 1) == 1) {
        sg_pipe_unref(p->stream);
        sg_cancel_unref(p->cancel);
        docker_unref(p->d);
        pull_progress_finish(&p->progress);
        free(p->image);
        free(p);
    }
}

/* ---- what others hear ---- */

static void tell(const struct pull *p, struct box *b)
{
    if (b->done.progress == NULL) {
        return;
    }
    struct pull_figures f;
    pull_figures(&p->progress, &f);
    sg_cleanup(sg_json_p) json_t *v = json_pack("{s:{s:s, s:s, s:I, s:I, s:i, s:i}}", "pull", "image", p->image, "status", f.status, "current_bytes",
                                                (json_int_t)f.current, "total_bytes", (json_int_t)f.total, "layers", (int)f.layers, "layers_done",
                                                (int)f.layers_done);
    b->done.progress(b->done.arg, v);
}

static void note(const struct pull *p, enum sg_docker_pull_step step, const struct sg_error *err)
{
    struct pull_figures f;
    pull_figures(&p->progress, &f);
    const struct sg_docker_pull e = {.step = step,
                                     .image = p->image,
                                     .status = f.status,
                                     .current_bytes = f.current,
                                     .total_bytes = f.total,
                                     .waiters = p->waiters,
                                     .duration_ms = sg_now_ms() - p->begun_ms,
                                     .err = err};
    if (p->d->parts.pull != NULL) {
        p->d->parts.pull(p->d->parts.event_arg, &e);
    }
}

static void tell_all(struct pull *p)
{
    int64_t now = sg_now_ms();
    struct box *b;
    if (now - p->told_ms < TELL_MS) {
        sg_timer_set(p->d->parts.reactor, &p->later, p->told_ms + TELL_MS);
    } else {
        p->told_ms = now;
        DL_FOREACH2(p->boxes, b, pull_next)
        {
            tell(p, b);
        }
    }
    if (now - p->logged_ms >= LOG_MS) {
        p->logged_ms = now;
        note(p, SG_DOCKER_PULL_GOES_ON, NULL);
    }
}

static void tell_later(struct sg_timer *t)
{
    tell_all(sg_container_of(t, struct pull, later));
}

/* ---- the stream ---- */

static void read_all(struct pull *p)
{
    const void *data;
    ssize_t n;
    while ((n = sg_pipe_peek(p->stream, &data)) > 0) {
        pull_progress_feed(&p->progress, data, (size_t)n);
        sg_pipe_consume(p->stream, (size_t)n);
    }
}

static void drain(struct sg_task *t)
{
    struct pull *p = sg_container_of(t, struct pull, drain_task);
    atomic_store(&p->draining, false);
    if (!p->over) {
        read_all(p);
        tell_all(p);
    }
    pull_unref(p);
}

static void wake(void *arg)
{
    struct pull *p = arg;
    if (!atomic_exchange(&p->draining, true)) {
        sg_reactor_post(p->d->parts.reactor, &pull_ref(p)->drain_task);
    }
}

/* ---- the end ---- */

/* Nothing has been made for whoever waits: whatever it was, it may be asked for again. */
static void failure(const struct pull *p, const struct reply *r, struct sg_error *err)
{
    const char *said = p->progress.error[0] != '\0' ? p->progress.error : r->message;
    if (r->status == 0 && r->err->code == SG_PROVIDER_TIMEOUT) {
        sg_error_set(err, SG_UNAVAILABLE, "the engine has no image %s: it could not be pulled in time", p->image);
    } else if (r->status == 0) {
        sg_error_copy(err, r->err);
        sg_error_wrap(err, "cannot pull image %s", p->image);
        err->code = err->code == SG_PROVIDER_FAILED ? SG_UNAVAILABLE : err->code;
    } else {
        sg_error_set(err, SG_UNAVAILABLE, "the engine has no image %s: %s", p->image, said[0] != '\0' ? said : "it could not be pulled");
    }
    bool broke = r->status == 0 && r->err->code != SG_PROVIDER_TIMEOUT;
    if (!broke) {
        sg_error_reason(err, docker_says_full(said) ? "engine_disk_full" : "image_missing");
    }
    sg_error_retry_after(err, 30);
    sg_error_member(err, "stage", json_string("pull"));
    sg_error_member(err, "image", json_string(p->image));
    sg_error_member(err, "provider", json_string("docker"));
}

static void pulled(void *arg, const struct reply *r)
{
    struct pull *p = arg;
    struct sg_error err = {0};
    sg_pipe_set_reader(p->stream, NULL);
    sg_timer_cancel(p->d->parts.reactor, &p->later);
    read_all(p);
    pull_progress_end(&p->progress);
    p->over = true;
    DL_DELETE(p->d->pulls, p);
    bool fine = r->status >= 200 && r->status < 300 && p->progress.error[0] == '\0';
    if (!fine) {
        failure(p, r, &err);
    }
    note(p, fine ? SG_DOCKER_PULL_DONE : SG_DOCKER_PULL_FAILED, fine ? NULL : &err);
    struct box *b, *next;
    DL_FOREACH_SAFE2(p->boxes, b, next, pull_next)
    {
        pull_leave(b);
        make_pulled(b, fine ? NULL : &err);
        box_unref(b);
    }
    sg_error_clear(&err);
    pull_unref(p);
}

void pull_leave(struct box *b)
{
    struct pull *p = b->pull;
    b->pull = NULL;
    DL_DELETE2(p->boxes, b, pull_prev, pull_next);
    p->waiters--;
    if (p->boxes == NULL && !p->over) {
        (void)sg_cancel_fire(p->cancel, SG_CANCEL_CALLER);
    }
}

/* ---- the beginning ---- */

/* A name without a tag would be all tags. Caller frees. */
static char *path_of(const char *image)
{
    const char *at = strchr(image, '@');
    const char *slash = strrchr(image, '/');
    const char *colon = strchr(slash != NULL ? slash : image, ':');
    size_t name_len = at != NULL ? (size_t)(at - image) : colon != NULL ? (size_t)(colon - image) : strlen(image);
    sg_cleanup(sg_free_p) char *name = sg_xstrndup(image, name_len);
    sg_cleanup(sg_free_p) char *name_escaped = sg_net_escape(name);
    sg_cleanup(sg_free_p) char *tag = sg_net_escape(at != NULL ? at + 1 : colon != NULL ? colon + 1 : "latest");
    return sg_xasprintf("/images/create?fromImage=%s&tag=%s", name_escaped, tag);
}

/* One that is being given up serves nobody new: its end may come as a failure. */
static struct pull *find(struct docker *d, const char *image)
{
    struct pull *p;
    DL_FOREACH(d->pulls, p)
    {
        if (sg_streq(p->image, image) && p->boxes != NULL) {
            break;
        }
    }
    return p;
}

static struct pull *begin(struct docker *d, const char *image)
{
    struct pull *p = sg_xcalloc(1, sizeof *p);
    atomic_init(&p->refs, 1);
    p->d = docker_ref(d);
    p->image = sg_xstrdup(image);
    p->cancel = sg_cancel_new();
    p->stream = sg_pipe_new(PIPE_BYTES);
    p->drain_task.run = drain;
    p->later.fire = tell_later;
    p->begun_ms = p->logged_ms = sg_now_ms();
    DL_APPEND(d->pulls, p);
    return p;
}

static void send_it(struct pull *p)
{
    const struct sg_waker waker = {.wake = wake, .arg = p};
    sg_cleanup(sg_free_p) char *path = path_of(p->image);
    sg_pipe_set_reader(p->stream, &waker);
    engine_ask(p->d, &(struct ask){.method = "POST",
                                   .path = path,
                                   .ms = p->d->cfg.pull_ms,
                                   .stall_ms = STALL_MS,
                                   .stream = p->stream,
                                   .login = login_for(p->d, p->image),
                                   .cancel = p->cancel,
                                   .fn = pulled,
                                   .arg = p});
}

void pull_for(struct box *b)
{
    struct docker *d = b->d;
    struct pull *there = find(d, b->image);
    struct pull *p = there != NULL ? there : begin(d, b->image);
    b->pull = p;
    (void)box_ref(b);
    DL_APPEND2(p->boxes, b, pull_prev, pull_next);
    p->waiters++;
    tell(p, b);
    if (there == NULL) {
        note(p, SG_DOCKER_PULL_BEGUN, NULL);
        send_it(p);
    }
}
