/* Snapshots that the engine holds, as images.
 *
 * The writable places of a container lie in memory, of which a commit of it would hold nothing. So what is to be kept, a tar of them, is put
 * into a container of the same image that is never started, and that one is committed: an image with one file more, which no command can
 * read. A sandbox is a container of that image, into whose places the service puts the file's content back.
 *
 * The image's name has the snapshot's id, and its labels say whose it is. All of it is the reactor thread's. */
#include "backends/docker/docker_priv.h"

#include <stdio.h>
#include <utlist.h>

#include "backends/docker/carry.h"
#include "base/clock.h"
#include "base/json.h"

#define LABEL_SNAPSHOT "sandgate.snapshot"
#define LABEL_TENANT "sandgate.tenant"
#define LABEL_DIGEST "sandgate.digest"
#define REPO "sandgate-snapshot"
#define FILE_NAME ".sandgate-snapshot" /* in the root directory: what is below /.sandgate may be hidden */
#define ASK_MS 30000
#define CARRY_STALL_MS 60000
#define COMMIT_MS 600000
#define LIST_MAX ((size_t)16 << 20)
#define PIPE_BYTES ((size_t)256 * 1024)

/* ---- names: a ref is "ID IMAGE", the image that the snapshot was made on ---- */

const char *docker_snapshot_base(const char *ref)
{
    const char *space = strchr(ref, ' ');
    return space != NULL && space[1] != '\0' ? space + 1 : NULL;
}

char *docker_snapshot_image(const char *ref)
{
    return sg_xasprintf(REPO ":%.*s", (int)strcspn(ref, " "), ref);
}

static void helper_name(const char *id, char ret[NAME_LEN])
{
    (void)snprintf(ret, NAME_LEN, "sandgate-%s", id);
}

/* ---- take ---- */

struct commit {
    struct sg_task task;
    struct docker *d;
    struct box *b; /* one reference */
    char id[SG_ID_MAX], helper[NAME_LEN], ref[SG_SNAPSHOT_REF_MAX];
    char *tenant, *sha256;
    int fd;
    uint64_t bytes;
    int status; /* of the answer to the file; 0: none, err says why */
    char said[200];
    struct sg_error err;
    struct sg_error why; /* of a failure */
    struct sg_snapshot_done done;
    struct commit *prev, *next;
};

bool docker_commits(const struct docker *d, const char *name)
{
    const struct commit *c;
    DL_FOREACH(d->commits, c)
    {
        if (sg_streq(c->helper, name)) {
            return true;
        }
    }
    return false;
}

static void end(struct commit *c)
{
    DL_DELETE(c->d->commits, c);
    c->done.fn(c->done.arg, c->why.code == SG_OK ? c->ref : NULL, c->why.code == SG_OK ? NULL : &c->why);
    sg_error_clear(&c->why);
    sg_error_clear(&c->err);
    free(c->tenant);
    free(c->sha256);
    struct docker *d = c->d;
    box_unref(c->b);
    docker_unref(d);
    free(c);
}

/* If it is not gone, the next sweep finds it. */
static void helper_gone(void *arg, const struct reply *r)
{
    (void)r;
    end(arg);
}

static void remove_helper(struct docker *d, const char *id, reply_fn *fn, void *arg)
{
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/containers/sandgate-%s?force=1&v=1", id);
    engine_ask(d, &(struct ask){.method = "DELETE", .path = path, .ms = ASK_MS, .idempotent = true, .fn = fn, .arg = arg});
}

/* Ends it, when the driver does, in this very turn: the next server removes what there is. */
static bool closing(struct commit *c)
{
    if (!c->d->closing) {
        return false;
    }
    sg_error_clear(&c->why);
    sg_error_set(&c->why, SG_SHUTTING_DOWN, "the server is shutting down");
    end(c);
    return true;
}

static void failed(struct commit *c, const struct reply *r, const char *what)
{
    if (!closing(c)) {
        engine_error(r, what, &c->why);
        remove_helper(c->d, c->id, helper_gone, c);
    }
}

static void committed(void *arg, const struct reply *r)
{
    struct commit *c = arg;
    if (r->status != 201) {
        failed(c, r, "commit a snapshot");
    } else if (!closing(c)) {
        remove_helper(c->d, c->id, helper_gone, c);
    }
}

static void commit(struct commit *c)
{
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/commit?container=%s&repo=" REPO "&tag=%s&pause=0", c->helper, c->id);
    engine_ask(c->d, &(struct ask){.method = "POST", .path = path, .body = "{}", .ms = COMMIT_MS, .fn = committed, .arg = c});
}

static void brought(struct sg_task *t)
{
    struct commit *c = sg_container_of(t, struct commit, task);
    const struct reply r = {.status = c->status, .message = c->said, .err = c->status == 0 ? &c->err : NULL};
    if (c->status != 200) {
        failed(c, &r, "take what is to be in a snapshot");
    } else if (!closing(c)) {
        commit(c);
    }
}

/* Net thread. */
static void file_taken(void *arg, const struct sg_net_response *r, const struct sg_error *err)
{
    struct commit *c = arg;
    if (err != NULL) {
        sg_error_copy(&c->err, err);
    } else {
        c->status = sg_net_status(r);
        (void)snprintf(c->said, sizeof c->said, "%.180s", sg_net_body(r, NULL));
    }
    c->task.run = brought;
    sg_reactor_post(c->d->parts.reactor, &c->task); /* also of a driver that is closing: it waits for all of them */
}

static void bring(struct commit *c)
{
    int64_t size = 0;
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/v1.%u/containers/%s/archive?path=/", engine_api(c->d), c->helper);
    struct sg_pipe *body = sg_carry_in(c->d->parts.workq, FILE_NAME, c->fd, c->bytes, &size, &c->err);
    const struct sg_net_header type = {.name = "Content-Type", .value = "application/x-tar"};
    const struct sg_net_request q = {.method = "PUT",
                                     .path = path,
                                     .headers = &type,
                                     .n_headers = 1,
                                     .body_pipe = body,
                                     .body_size = size,
                                     .stall_ms = CARRY_STALL_MS,
                                     .response_max = 65536,
                                     .done = file_taken,
                                     .arg = c};
    int rc = body != NULL ? sg_net_call(c->d->engine, &q, &c->err) : -1;
    if (rc < 0) {
        if (body != NULL) {
            sg_pipe_stop(body);
        }
        brought(&c->task);
    }
    sg_pipe_unref(body);
}

static void helper_made(void *arg, const struct reply *r)
{
    struct commit *c = arg;
    if (r->status != 201) {
        failed(c, r, "make a container for a snapshot");
    } else if (!closing(c)) {
        bring(c);
    }
}

/* Labels of ours that the image brings along from another are all set anew. */
static char *helper_body(const struct commit *c, const char *image)
{
    sg_cleanup(sg_free_p) char *digest = sg_xasprintf("sha256:%s", c->sha256);
    sg_cleanup(sg_json_p) json_t *v = json_pack(
        "{s:s, s:[s], s:{s:s, s:s, s:s, s:s, s:s, s:s, s:s}, s:{s:s, s:{s:s}}}", "Image", image, "Cmd", "true", "Labels",
        LABEL_INSTANCE, c->d->instance, LABEL_LEASE, "", LABEL_RUN, "", LABEL_IMAGE, c->b->image, LABEL_SNAPSHOT, c->id, LABEL_TENANT, c->tenant,
        LABEL_DIGEST, digest, "HostConfig", "NetworkMode", "none", "LogConfig", "Type", "none");
    return v != NULL ? sg_json_dump(v, NULL) : NULL;
}

/* What its image was when the container was made, unless that is a snapshot itself: they do not pile up. */
static void box_seen(void *arg, const struct reply *r)
{
    struct commit *c = arg;
    const char *of = json_string_value(json_object_get(json_object_get(json_object_get(r->json, "Config"), "Labels"), LABEL_SNAPSHOT));
    const char *image = json_string_value(json_object_get(r->json, "Image"));
    if (closing(c)) {
        return;
    }
    if (r->status != 200 || image == NULL) {
        engine_error(r, "look at the container", &c->why);
        end(c);
        return;
    }
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/containers/create?name=%s", c->helper);
    sg_cleanup(sg_free_p) char *body = helper_body(c, of != NULL && of[0] != '\0' ? c->b->image : image);
    engine_ask(c->d, &(struct ask){.method = "POST", .path = path, .body = body, .ms = ASK_MS, .fn = helper_made, .arg = c});
}

static void begin(struct sg_task *t)
{
    struct commit *c = sg_container_of(t, struct commit, task);
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/containers/%s/json", c->b->base.sb.id);
    DL_APPEND(c->d->commits, c);
    engine_ask(c->d, &(struct ask){.method = "GET", .path = path, .ms = ASK_MS, .idempotent = true, .fn = box_seen, .arg = c});
}

static int take(struct sg_sandbox *sb, const struct sg_snapshot_args *a, const struct sg_snapshot_done *done, struct sg_error *err)
{
    struct box *b = (struct box *)sb;
    if (SG_ID_MAX + strlen(b->image) + 1 > SG_SNAPSHOT_REF_MAX) {
        return sg_error_set(err, SG_NOT_SUPPORTED, "the name of image %.100s... is too long for a snapshot of it", b->image);
    }
    struct commit *c = sg_xcalloc(1, sizeof *c);
    c->d = docker_ref(b->d);
    c->b = box_ref(b);
    (void)snprintf(c->id, sizeof c->id, "%s", a->id);
    helper_name(a->id, c->helper);
    (void)snprintf(c->ref, sizeof c->ref, "%s %s", a->id, b->image);
    c->tenant = sg_xstrdup(a->tenant);
    c->sha256 = sg_xstrdup(a->sha256);
    c->fd = a->fd;
    c->bytes = a->bytes;
    c->done = *done;
    c->task.run = begin;
    if (docker_post(c->d, &c->task)) {
        return 0;
    }
    free(c->tenant);
    free(c->sha256);
    free(c);
    struct docker *d = b->d;
    box_unref(b);
    docker_unref(d);
    return sg_error_set(err, SG_SHUTTING_DOWN, "the server is shutting down");
}

/* ---- read ---- */

static void read_over(void *arg, const struct sg_net_response *r, const struct sg_error *err)
{
    struct sg_pipe *raw = arg;
    struct sg_error why = {0};
    if (err == NULL && sg_net_status(r) >= 300) { /* nobody has written into it */
        sg_error_set(&why, SG_PROVIDER_FAILED, "the engine does not give what is in the snapshot: %.200s", sg_net_body(r, NULL));
        sg_error_member(&why, "provider", json_string("docker"));
        sg_error_member(&why, "provider_status", json_integer(sg_net_status(r)));
        sg_pipe_fail(raw, &why);
        sg_error_clear(&why);
    }
    sg_pipe_unref(raw);
}

static int read_back(struct sg_sandbox *sb, const struct sg_file_source_done *done, struct sg_error *err)
{
    struct docker *d = ((struct box *)sb)->d;
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/v1.%u/containers/%s/archive?path=/" FILE_NAME, engine_api(d), sb->id);
    struct sg_pipe *raw = sg_pipe_new(PIPE_BYTES);
    const struct sg_net_request q = {.method = "GET",
                                     .path = path,
                                     .repeatable = true,
                                     .stall_ms = CARRY_STALL_MS,
                                     .response_max = 65536,
                                     .response = raw,
                                     .done = read_over,
                                     .arg = sg_pipe_ref(raw)};
    if (sg_net_call(d->engine, &q, err) < 0) {
        sg_pipe_unref(raw);
        sg_pipe_unref(raw);
        return -1;
    }
    struct sg_file_source src = {.fd = -1, .pipe = sg_carry_out(d->parts.workq, raw)};
    sg_pipe_unref(raw);
    done->fn(done->arg, &src, NULL);
    return 0;
}

/* ---- drop ---- */

struct dropping {
    struct sg_task task;
    struct docker *d; /* one reference */
    char id[SG_ID_MAX];
    bool finished; /* it is known to have been made: there is no helper */
    struct sg_done done;
};

static void drop_end(struct dropping *x, const struct sg_error *err)
{
    x->done.fn(x->done.arg, err);
    docker_unref(x->d);
    free(x);
}

static void image_gone(void *arg, const struct reply *r)
{
    struct dropping *x = arg;
    struct sg_error err = {0};
    if (r->status == 200 || r->status == 404) {
        drop_end(x, NULL);
        return;
    }
    if (r->status == 409) {
        sg_error_set(&err, SG_CONFLICT, "leases that began with the snapshot still need its image: %.200s", r->message);
        sg_error_reason(&err, "image_in_use");
    } else {
        engine_error(r, "remove a snapshot", &err);
    }
    drop_end(x, &err);
    sg_error_clear(&err);
}

static void drop_image(struct dropping *x)
{
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/images/" REPO ":%s", x->id);
    engine_ask(x->d, &(struct ask){.method = "DELETE", .path = path, .ms = ASK_MS, .idempotent = true, .fn = image_gone, .arg = x});
}

static void drop_helper_gone(void *arg, const struct reply *r)
{
    struct dropping *x = arg;
    struct sg_error err = {0};
    if ((r->status == 204 || r->status == 404) && !x->d->closing) {
        drop_image(x);
        return;
    }
    if (x->d->closing) {
        sg_error_set(&err, SG_SHUTTING_DOWN, "the server is shutting down");
    } else {
        engine_error(r, "remove the container of a snapshot", &err);
    }
    drop_end(x, &err);
    sg_error_clear(&err);
}

static void drop_begin(struct sg_task *t)
{
    struct dropping *x = sg_container_of(t, struct dropping, task);
    if (x->finished) {
        drop_image(x);
    } else {
        remove_helper(x->d, x->id, drop_helper_gone, x);
    }
}

static int drop(struct sg_driver *drv, const char *id, const char *ref, const struct sg_done *done, struct sg_error *err)
{
    struct dropping *x = sg_xcalloc(1, sizeof *x);
    x->d = docker_ref((struct docker *)drv);
    (void)snprintf(x->id, sizeof x->id, "%s", id);
    x->finished = ref[0] != '\0';
    x->done = *done;
    x->task.run = drop_begin;
    if (docker_post(x->d, &x->task)) {
        return 0;
    }
    docker_unref(x->d);
    free(x);
    return sg_error_set(err, SG_SHUTTING_DOWN, "the server is shutting down");
}

/* ---- list ---- */

struct listing {
    struct sg_task task;
    struct docker *d; /* one reference */
    struct sg_snapshot_listed done;
};

/* Ours by its label and by its name: what somebody has made of a container of ours has the labels alone. */
static bool take_image(const struct docker *d, const json_t *v, struct sg_snapshot_item *ret)
{
    const json_t *labels = json_object_get(v, "Labels");
    const char *instance = json_string_value(json_object_get(labels, LABEL_INSTANCE));
    const char *id = json_string_value(json_object_get(labels, LABEL_SNAPSHOT));
    bool named = false;
    size_t i;
    json_t *tag;
    if (instance == NULL || !sg_streq(instance, d->instance) || id == NULL || !sg_id_valid("snap", id)) {
        return false;
    }
    sg_cleanup(sg_free_p) char *name = docker_snapshot_image(id);
    json_array_foreach(json_object_get(v, "RepoTags"), i, tag)
    {
        const char *full = json_string_value(tag); /* Podman's have a registry in front */
        const char *slash = full != NULL ? strrchr(full, '/') : NULL;
        named = named || (full != NULL && sg_streq(slash != NULL ? slash + 1 : full, name));
    }
    (void)snprintf(ret->id, sizeof ret->id, "%s", id);
    return named;
}

static void images_listed(void *arg, const struct reply *r)
{
    struct listing *l = arg;
    struct sg_error err = {0};
    size_t n = 0, i;
    json_t *v;
    sg_cleanup(sg_free_p) struct sg_snapshot_item *items = sg_xcalloc(json_array_size(r->json) + 1, sizeof *items);
    if (r->status != 200 || !json_is_array(r->json)) {
        engine_error(r, "list snapshots", &err);
    } else {
        json_array_foreach(r->json, i, v)
        {
            n += take_image(l->d, v, &items[n]);
        }
    }
    l->done.fn(l->done.arg, err.code == SG_OK ? items : NULL, n, err.code == SG_OK ? NULL : &err);
    sg_error_clear(&err);
    docker_unref(l->d);
    free(l);
}

static void list_begin(struct sg_task *t)
{
    struct listing *l = sg_container_of(t, struct listing, task);
    sg_cleanup(sg_free_p) char *filters = sg_xasprintf("{\"label\":[\"" LABEL_INSTANCE "=%s\"]}", l->d->instance);
    sg_cleanup(sg_free_p) char *escaped = sg_net_escape(filters);
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/images/json?filters=%s", escaped);
    engine_ask(l->d, &(struct ask){.method = "GET", .path = path, .ms = ASK_MS, .idempotent = true, .max = LIST_MAX, .fn = images_listed, .arg = l});
}

static int list(struct sg_driver *drv, const struct sg_snapshot_listed *done, struct sg_error *err)
{
    struct listing *l = sg_xcalloc(1, sizeof *l);
    l->d = docker_ref((struct docker *)drv);
    l->done = *done;
    l->task.run = list_begin;
    if (docker_post(l->d, &l->task)) {
        return 0;
    }
    docker_unref(l->d);
    free(l);
    return sg_error_set(err, SG_SHUTTING_DOWN, "the server is shutting down");
}

const struct sg_snapshot_ops docker_commit_ops = {.tar = true, .take = take, .read = read_back, .drop = drop, .list = list};
const struct sg_snapshot_ops docker_commit_old_ops = {.tar = true, .read = read_back, .drop = drop, .list = list};
