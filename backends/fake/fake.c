/* The fake's driver: script, creates, ends. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>

#include "backends/fake/fake_priv.h"
#include "base/clock.h"
#include "base/json.h"

#define ACQUIRE_DEFAULT_MS 30000 /* for a create that names none */

#define CAPS_DEFAULT ((unsigned)SG_CAP_FILE_RW | (unsigned)SG_CAP_EXEC | (unsigned)SG_CAP_PUBLIC_URL)

static const char *const list_names[FAKE_LISTS] = {"create", "terminate", "exec", "files", "snapshot", "drop"};

/* A create: waits for a place when the fake has a capacity. */
struct fake_create {
    struct fake_op op;
    struct sg_sandbox_done done;
    int64_t acquire_timeout_ms;
    char snapshot_ref[SG_SNAPSHOT_REF_MAX]; /* or "" */
    struct sg_cancel *cancel;
    struct sg_cancel_hook hook;
    struct sg_task cancel_task;
    bool answered;
    struct fake_create *prev, *next; /* waiters */
    bool waiting;
};

/* ---- script ---- */

static enum sg_code code_of(const char *name)
{
    for (int c = SG_OK + 1; c < SG_CODE_COUNT; c++) {
        if (sg_streq(sg_code_name((enum sg_code)c), name)) {
            return (enum sg_code)c;
        }
    }
    return SG_OK;
}

static int step_parse(const json_t *v, const char *path, struct fake_step *ret, struct sg_error *err)
{
    struct sg_json_reader r;
    struct fake_step s = {.lost_after_ms = -1};
    const char *code = NULL;
    if (sg_json_begin(&r, v, path, err) < 0 ||
        sg_json_int(&r, "delay_ms", 0, 3600000, &s.delay_ms, err) < 0 ||
        sg_json_int(&r, "lost_after_ms", 0, 3600000, &s.lost_after_ms, err) < 0 ||
        sg_json_int(&r, "retry_after", 0, 3600, &s.retry_after, err) < 0 ||
        sg_json_bool(&r, "stall", &s.stall, err) < 0 || sg_json_str(&r, "message", &s.message, err) < 0 ||
        sg_json_str(&r, "error", &code, err) < 0 || sg_json_end(&r, err) < 0) {
        return -1;
    }
    if (code != NULL) {
        s.code = code_of(code);
        if (s.code == SG_OK) {
            return sg_error_field(err, SG_INVALID_REQUEST, path, "there is no error code \"%s\"", code);
        }
    }
    *ret = s;
    return 0;
}

static int steps_check(struct sg_json_reader *r, const char *name, struct sg_error *err)
{
    json_t *list = NULL;
    int n = sg_json_array(r, name, &list, err);
    for (size_t i = 0; n > 0 && i < json_array_size(list); i++) {
        struct fake_step s;
        char path[64];
        (void)snprintf(path, sizeof path, "%s[%zu]", name, i);
        if (step_parse(json_array_get(list, i), path, &s, err) < 0) {
            return -1;
        }
    }
    return n < 0 ? -1 : 0;
}

struct fake_step fake_step_take(struct fake *f, enum fake_list list)
{
    struct fake_step s = {.lost_after_ms = -1};
    if (list == FAKE_LISTS) {
        return s;
    }
    const json_t *steps = json_object_get(f->script, list_names[list]);
    size_t i = f->used[list];
    if (i < json_array_size(steps)) {
        f->used[list]++;
        (void)step_parse(json_array_get(steps, i), "", &s, NULL); /* checked when the fake was made */
    }
    return s;
}

int fake_step_error(const struct fake_step *step, struct sg_error *err)
{
    if (step->code == SG_OK) {
        return 0;
    }
    sg_error_set(err, step->code, "%s", step->message != NULL ? step->message : "the script says so");
    return sg_error_retry_after(err, (int)step->retry_after);
}

static int names_parse(struct fake *f, struct sg_json_reader *r, struct sg_error *err)
{
    json_t *caps = NULL;
    json_t *creds = NULL;
    if (sg_json_array(r, "caps", &caps, err) < 0 || sg_json_array(r, "credentials", &creds, err) < 0) {
        return -1;
    }
    if (caps != NULL) {
        f->base.facts.caps = 0;
    }
    for (size_t i = 0; i < json_array_size(caps); i++) {
        const char *name = json_string_value(json_array_get(caps, i));
        unsigned bit = name != NULL ? sg_cap_parse(name) : 0;
        if (bit == 0) {
            return sg_error_field(err, SG_INVALID_REQUEST, "caps", "item %zu is not the name of a capability",
                                  i);
        }
        f->base.facts.caps |= bit;
    }
    f->credentials = sg_xcalloc(json_array_size(creds) + 1, sizeof *f->credentials);
    for (size_t i = 0; i < json_array_size(creds); i++) {
        f->credentials[i] = json_string_value(json_array_get(creds, i));
        if (f->credentials[i] == NULL) {
            return sg_error_field(err, SG_INVALID_REQUEST, "credentials", "item %zu is not a string", i);
        }
    }
    f->base.facts.credentials = creds != NULL ? f->credentials : NULL;
    return 0;
}

static int script_load(struct fake *f, const char *text, struct sg_error *err)
{
    struct sg_json_reader r;
    json_t *ports = NULL;
    json_t *health = NULL;
    struct fake_step s;
    int64_t capacity = 0;
    if (text == NULL || *text == '\0') {
        text = "{}";
    }
    if (sg_json_parse_object(text, strlen(text), &f->script, err) < 0 ||
        sg_json_begin(&r, f->script, "", err) < 0 || names_parse(f, &r, err) < 0 ||
        sg_json_bool(&r, "free", &f->base.facts.free, err) < 0 ||
        sg_json_bool(&r, "outlives_server", &f->base.facts.outlives_server, err) < 0 ||
        sg_json_int(&r, "capacity", 1, 1000000, &capacity, err) < 0 ||
        sg_json_object(&r, "ports", &ports, err) < 0 || sg_json_object(&r, "health", &health, err) < 0) {
        return -1;
    }
    f->capacity = (size_t)capacity;
    for (size_t i = 0; i < FAKE_LISTS; i++) {
        if (steps_check(&r, list_names[i], err) < 0) {
            return -1;
        }
    }
    if (health != NULL && step_parse(health, "health", &s, err) < 0) {
        return -1;
    }
    return sg_json_end(&r, err);
}

/* ---- operations ---- */

static void closed(struct fake *f)
{
    (void)pthread_mutex_lock(&f->lock);
    f->idle = true;
    (void)pthread_cond_signal(&f->cond);
    (void)pthread_mutex_unlock(&f->lock);
}

void fake_op_end(struct fake_op *op)
{
    sg_timer_cancel(op->f->reactor, &op->timer);
    DL_DELETE(op->f->ops, op);
    if (op->sb != NULL) {
        sg_sandbox_unref(&op->sb->base);
    }
    struct fake *f = op->f;
    fake_unref(f);
}

static void op_due(struct sg_timer *t)
{
    struct fake_op *op = (struct fake_op *)(void *)((char *)t - offsetof(struct fake_op, timer));
    struct sg_error err = {0};
    if (fake_step_error(&op->step, &err) < 0) {
        op->finish(op, &err);
    } else {
        op->finish(op, NULL);
    }
    sg_error_clear(&err);
}

void fake_op_run(struct sg_task *t)
{
    struct fake_op *op = (struct fake_op *)(void *)((char *)t - offsetof(struct fake_op, task));
    struct sg_error err = {0};
    DL_APPEND(op->f->ops, op);
    if (op->f->closing) {
        sg_error_set(&err, SG_SHUTTING_DOWN, "the server is shutting down");
        op->finish(op, &err);
        sg_error_clear(&err);
        return;
    }
    op->step = fake_step_take(op->f, op->list);
    if (op->step.stall && op->list != FAKE_EXEC) { /* a stalled command starts, but never ends */
        return;
    }
    if (op->step.delay_ms > 0) {
        sg_timer_set(op->f->reactor, &op->timer, sg_now_ms() + op->step.delay_ms);
        return;
    }
    op_due(&op->timer);
}

void fake_op_start(struct fake_op *op, struct fake *f, struct fake_sandbox *sb, enum fake_list list)
{
    op->f = fake_ref(f);
    op->sb = sb;
    if (sb != NULL) {
        sg_sandbox_ref(&sb->base);
    }
    op->list = list;
    if (op->task.run == NULL) {
        op->task.run = fake_op_run;
    }
    op->timer.fire = op_due;
    sg_reactor_post(f->reactor, &op->task);
}

/* ---- create ---- */

static void create_free(struct fake_create *c)
{
    sg_cancel_unref(c->cancel);
    free(c);
}

/* Answers; c lives on until a cancel hook that has begun elsewhere has posted its task. */
static void create_answer(struct fake_create *c, struct fake_sandbox *sb, const struct sg_error *err)
{
    struct fake *f = c->op.f;
    if (c->waiting) {
        DL_DELETE(f->waiters, c);
        c->waiting = false;
    }
    c->answered = true;
    struct sg_sandbox_done done = c->done;
    bool mine = c->cancel == NULL || sg_cancel_unhook(c->cancel, &c->hook);
    fake_op_end(&c->op);
    if (mine) {
        create_free(c);
    }
    done.fn(done.arg, sb != NULL ? &sb->base : NULL, err);
}

static void create_cancelled(struct sg_task *t)
{
    struct fake_create *c =
        (struct fake_create *)(void *)((char *)t - offsetof(struct fake_create, cancel_task));
    if (c->answered) {
        create_free(c);
        return;
    }
    struct sg_error err = {0};
    sg_error_set(&err, SG_CANCELLED, "the caller gave up");
    create_answer(c, NULL, &err);
    sg_error_clear(&err);
    create_free(c);
}

static void create_hook(struct sg_cancel_hook *h, enum sg_cancel_reason why)
{
    struct fake_create *c = (struct fake_create *)(void *)((char *)h - offsetof(struct fake_create, hook));
    (void)why;
    sg_reactor_post(c->op.f->reactor, &c->cancel_task);
}

static void sandbox_lost_due(struct sg_timer *t)
{
    fake_sandbox_lose((struct fake_sandbox *)(void *)((char *)t - offsetof(struct fake_sandbox, lost_timer)));
}

static void sandbox_unlive(struct fake_sandbox *sb);

static struct fake_sandbox *sandbox_new(struct fake *f, int64_t lost_after_ms)
{
    struct fake_sandbox *sb = sg_xcalloc(1, sizeof *sb);
    sb->base.driver = &f->base;
    atomic_init(&sb->base.refs, 2); /* the caller's and ours while it lives */
    (void)snprintf(sb->base.id, sizeof sb->base.id, "fake-%llu", (unsigned long long)++f->serial);
    sb->f = fake_ref(f);
    sb->live = true;
    sb->lost_timer.fire = sandbox_lost_due;
    fake_files_init(sb);
    DL_APPEND(f->sandboxes, sb);
    atomic_fetch_add(&f->live, 1);
    if (lost_after_ms >= 0) {
        sg_timer_set(f->reactor, &sb->lost_timer, sg_now_ms() + lost_after_ms);
    }
    return sb;
}

static void create_now(struct fake_create *c)
{
    struct fake_sandbox *sb = sandbox_new(c->op.f, c->op.step.lost_after_ms);
    struct sg_error err = {0};
    if (c->snapshot_ref[0] == '\0' || fake_snapshot_restore(sb, c->snapshot_ref, &err) == 0) {
        create_answer(c, sb, NULL);
        return;
    }
    if (c->waiting) { /* no more: the place that becomes free is the next one's */
        DL_DELETE(c->op.f->waiters, c);
        c->waiting = false;
    }
    sandbox_unlive(sb);
    sg_sandbox_unref(&sb->base);
    create_answer(c, NULL, &err);
    sg_error_clear(&err);
}

static void create_timeout(struct sg_timer *t)
{
    struct fake_create *c =
        (struct fake_create *)(void *)((char *)t - offsetof(struct fake_create, op.timer));
    struct sg_error err = {0};
    sg_error_set(&err, SG_ACQUIRE_TIMEOUT, "no sandbox became free in time");
    sg_error_retry_after(&err, 1);
    create_answer(c, NULL, &err);
    sg_error_clear(&err);
}

static void create_finish(struct fake_op *op, const struct sg_error *err)
{
    struct fake_create *c = (struct fake_create *)(void *)((char *)op - offsetof(struct fake_create, op));
    struct fake *f = op->f;
    if (err != NULL) {
        create_answer(c, NULL, err);
        return;
    }
    if (f->capacity > 0 && atomic_load(&f->live) >= f->capacity) {
        c->waiting = true;
        DL_APPEND(f->waiters, c);
        op->timer.fire = create_timeout;
        sg_timer_set(f->reactor, &op->timer, sg_now_ms() + c->acquire_timeout_ms);
        return;
    }
    create_now(c);
}

static int check(struct sg_driver *d, const struct sg_sandbox_spec *spec, struct sg_error *err)
{
    const struct sg_limits *l = &spec->limits;
    const char *field = spec->local_pool != NULL && spec->local_pool[0] != '\0' ? "local_pool"
                        : spec->image != NULL                                    ? "image"
                        : l->memory_bytes > 0 || l->pids > 0 || l->cpu_milli > 0 || l->disk_bytes > 0 ? "limits"
                                                                                                      : NULL;
    (void)d;
    return field == NULL ? 0 : sg_error_field(err, SG_NOT_SUPPORTED, field, "a fake sandbox has no such thing");
}

/* The hook is set here and not in the slot, where the answer could already have freed c. */
static void create_begin(struct sg_task *t)
{
    struct fake_create *c = (struct fake_create *)(void *)((char *)t - offsetof(struct fake_create, op.task));
    if (c->cancel != NULL) {
        (void)sg_cancel_hook(c->cancel, &c->hook);
    }
    fake_op_run(t);
}

static int create(struct sg_driver *d, const struct sg_sandbox_spec *spec, struct sg_cancel *cancel,
                  const struct sg_sandbox_done *done, struct sg_error *err)
{
    (void)err;
    struct fake_create *c = sg_xcalloc(1, sizeof *c);
    c->done = *done;
    c->acquire_timeout_ms = spec->acquire_timeout_ms >= 0 ? spec->acquire_timeout_ms : ACQUIRE_DEFAULT_MS;
    (void)snprintf(c->snapshot_ref, sizeof c->snapshot_ref, "%s", spec->snapshot_ref != NULL ? spec->snapshot_ref : "");
    c->op.finish = create_finish;
    c->op.task.run = create_begin;
    c->cancel_task.run = create_cancelled;
    c->hook.fired = create_hook;
    c->cancel = cancel != NULL ? sg_cancel_ref(cancel) : NULL;
    fake_op_start(&c->op, (struct fake *)d, NULL, FAKE_CREATE);
    return 0;
}

/* ---- sandboxes ---- */

int fake_sandbox_usable(const struct fake_sandbox *sb, struct sg_error *err)
{
    if (sb->lost) {
        return sg_error_set(err, SG_SANDBOX_LOST, "the sandbox died");
    }
    if (!sb->live) {
        return sg_error_set(err, SG_LEASE_GONE, "the sandbox has been terminated");
    }
    return 0;
}

static void sandbox_unlive(struct fake_sandbox *sb)
{
    struct fake *f = sb->f;
    if (!sb->live) {
        return;
    }
    sb->live = false;
    sg_timer_cancel(f->reactor, &sb->lost_timer);
    DL_DELETE(f->sandboxes, sb);
    atomic_fetch_sub(&f->live, 1);
    struct fake_create *w = f->waiters;
    if (w != NULL && !f->closing) {
        sg_timer_cancel(f->reactor, &w->op.timer);
        create_now(w);
    }
    sg_sandbox_unref(&sb->base);
}

void fake_sandbox_lose(struct fake_sandbox *sb)
{
    struct sg_error err = {0};
    if (!sb->live) {
        return;
    }
    sg_sandbox_ref(&sb->base);
    sb->lost = true;
    sg_error_set(&err, SG_SANDBOX_LOST, "the sandbox died");
    sg_error_reason(&err, "agent_died");
    fake_exec_end_all(sb, &err);
    sandbox_unlive(sb);
    if (sb->base.lost != NULL) {
        sb->base.lost(sb->base.lost_arg, &sb->base, &err);
    }
    sg_error_clear(&err);
    sg_sandbox_unref(&sb->base);
}

struct fake_terminate {
    struct fake_op op;
    struct sg_done done;
};

static void terminate_finish(struct fake_op *op, const struct sg_error *err)
{
    struct fake_terminate *t = (struct fake_terminate *)op;
    struct sg_done done = t->done;
    if (!op->sb->live) {
        err = NULL; /* there is nothing left to fail at */
    }
    if (err == NULL) {
        fake_exec_end_all(op->sb, NULL);
        sandbox_unlive(op->sb);
    }
    fake_op_end(op);
    free(t);
    if (done.fn != NULL) {
        done.fn(done.arg, err);
    }
}

static void terminate(struct sg_sandbox *sb, const struct sg_done *done)
{
    struct fake_sandbox *s = (struct fake_sandbox *)sb;
    struct fake_terminate *t = sg_xcalloc(1, sizeof *t);
    t->done = *done;
    t->op.finish = terminate_finish;
    fake_op_start(&t->op, s->f, s, FAKE_TERMINATE);
}

static void sandbox_free_task(struct sg_task *t)
{
    struct fake_sandbox *sb =
        (struct fake_sandbox *)(void *)((char *)t - offsetof(struct fake_sandbox, free_task));
    fake_files_finish(sb);
    fake_unref(sb->f);
    free(sb);
}

static void sandbox_free(struct sg_sandbox *sb)
{
    struct fake_sandbox *s = (struct fake_sandbox *)sb;
    s->free_task.run = sandbox_free_task;
    sg_reactor_post(s->f->reactor, &s->free_task);
}

/* ---- dial ---- */

struct fake_dial {
    struct fake_op op;
    uint16_t port;
    struct sg_dial_done done;
};

static int dial_now(const struct fake_dial *d, int *ret, struct sg_error *err)
{
    char key[8];
    (void)snprintf(key, sizeof key, "%u", (unsigned)d->port);
    json_int_t port = json_integer_value(json_object_get(json_object_get(d->op.f->script, "ports"), key));
    if (fake_sandbox_usable(d->op.sb, err) < 0) {
        return -1;
    }
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return sg_error_sys(err, SG_INTERNAL, errno, "cannot make a socket");
    }
    /* Blocking: on loopback that is decided at once. */
    if (port <= 0 || port > 65535 || connect(fd, (const struct sockaddr *)&to, sizeof to) < 0 ||
        fcntl(fd, F_SETFL, O_NONBLOCK) < 0) {
        sg_close(fd);
        return sg_error_set(err, SG_ENDPOINT_NOT_LISTENING, "nothing listens on port %s", key);
    }
    *ret = fd;
    return 0;
}

static void dial_finish(struct fake_op *op, const struct sg_error *err)
{
    struct fake_dial *d = (struct fake_dial *)op;
    struct sg_dial_done done = d->done;
    struct sg_error own = {0};
    int fd = -1;
    if (err == NULL && dial_now(d, &fd, &own) < 0) {
        err = &own;
    }
    fake_op_end(op);
    free(d);
    done.fn(done.arg, fd, NULL, err);
    sg_error_clear(&own);
}

static int dial(struct sg_sandbox *sb, uint16_t port, int64_t deadline_ms, const struct sg_dial_done *done,
                struct sg_error *err)
{
    struct fake_sandbox *s = (struct fake_sandbox *)sb;
    (void)deadline_ms;
    (void)err;
    struct fake_dial *d = sg_xcalloc(1, sizeof *d);
    d->port = port;
    d->done = *done;
    d->op.finish = dial_finish;
    fake_op_start(&d->op, s->f, s, FAKE_LISTS);
    return 0;
}

/* ---- the rest ---- */

static struct json_t *metadata(struct sg_sandbox *sb)
{
    return json_pack("{s:s, s:s}", "isolation", "fake", "fake_sandbox", sb->id);
}

static int health(struct sg_driver *d, struct sg_error *err)
{
    struct fake *f = (struct fake *)d;
    struct fake_step s;
    const json_t *h = json_object_get(f->script, "health");
    if (h == NULL || step_parse(h, "health", &s, NULL) < 0) {
        return 0;
    }
    return fake_step_error(&s, err);
}

struct fake *fake_ref(struct fake *f)
{
    atomic_fetch_add(&f->refs, 1);
    return f;
}

void fake_unref(struct fake *f)
{
    if (atomic_fetch_sub(&f->refs, 1) > 1) {
        return;
    }
    free((void *)f->credentials);
    free(f->name);
    sg_json_unref(f->script);
    (void)pthread_mutex_destroy(&f->lock);
    (void)pthread_cond_destroy(&f->cond);
    free(f);
}

static void close_run(struct sg_task *t)
{
    struct fake *f = (struct fake *)(void *)((char *)t - offsetof(struct fake, close_task));
    struct sg_error err = {0};
    fake_ref(f);
    f->closing = true;
    sg_error_set(&err, SG_SHUTTING_DOWN, "the server is shutting down");
    while (f->ops != NULL) {
        f->ops->finish(f->ops, &err);
    }
    sg_error_clear(&err);
    fake_snapshots_finish(f);
    while (f->sandboxes != NULL) {
        fake_exec_end_all(f->sandboxes, NULL);
        sandbox_unlive(f->sandboxes);
    }
    closed(f);
    fake_unref(f);
}

static void driver_free(struct sg_driver *d)
{
    struct fake *f = (struct fake *)d;
    f->close_task.run = close_run;
    sg_reactor_post(f->reactor, &f->close_task);
    (void)pthread_mutex_lock(&f->lock);
    while (!f->idle) {
        (void)pthread_cond_wait(&f->cond, &f->lock);
    }
    (void)pthread_mutex_unlock(&f->lock);
    fake_unref(f);
}

static const struct sg_driver_ops fake_ops = {
    .create = create,
    .check = check,
    .terminate = terminate,
    .sandbox_free = sandbox_free,
    .exec_start = fake_exec_start,
    .files = &fake_file_ops,
    .dial = dial,
    .snapshots = &fake_snapshot_ops,
    .metadata = metadata,
    .health = health,
    .free = driver_free,
};

int sg_fake_new(struct sg_reactor *reactor, const char *name, const char *script, struct sg_driver **ret,
                struct sg_error *err)
{
    struct fake *f = sg_xcalloc(1, sizeof *f);
    f->base = (struct sg_driver){.ops = &fake_ops, .facts = {.caps = CAPS_DEFAULT, .free = true}};
    f->name = sg_xstrdup(name);
    f->base.facts.name = f->name;
    f->reactor = reactor;
    atomic_init(&f->refs, 1);
    (void)pthread_mutex_init(&f->lock, NULL);
    (void)pthread_cond_init(&f->cond, NULL);
    if (script_load(f, script, err) < 0) {
        fake_unref(f);
        return sg_error_wrap(err, "script of the fake backend");
    }
    f->own_ops = fake_ops;
    f->base.ops = &f->own_ops;
    if ((f->base.facts.caps & SG_CAP_PUBLIC_URL) == 0) {
        f->own_ops.dial = NULL;
    }
    if ((f->base.facts.caps & SG_CAP_SNAPSHOT) == 0) {
        f->own_ops.snapshots = NULL;
    }
    *ret = &f->base;
    return 0;
}

/* ---- for tests ---- */

struct lose_call {
    struct sg_task task;
    struct fake *f;
    const char *id;
    bool found;
    bool finished;
};

static void lose_run(struct sg_task *t)
{
    struct lose_call *c = (struct lose_call *)t;
    struct fake_sandbox *sb = NULL;
    DL_FOREACH(c->f->sandboxes, sb)
    {
        if (sg_streq(sb->base.id, c->id)) {
            break;
        }
    }
    if (sb != NULL) {
        fake_sandbox_lose(sb);
    }
    (void)pthread_mutex_lock(&c->f->lock);
    c->found = sb != NULL;
    c->finished = true;
    (void)pthread_cond_signal(&c->f->cond);
    (void)pthread_mutex_unlock(&c->f->lock);
}

bool sg_fake_lose(struct sg_driver *d, const char *id)
{
    struct lose_call c = {.task.run = lose_run, .f = (struct fake *)d, .id = id};
    sg_reactor_post(c.f->reactor, &c.task);
    (void)pthread_mutex_lock(&c.f->lock);
    while (!c.finished) {
        (void)pthread_cond_wait(&c.f->cond, &c.f->lock);
    }
    (void)pthread_mutex_unlock(&c.f->lock);
    return c.found;
}

size_t sg_fake_live(struct sg_driver *d)
{
    return atomic_load(&((struct fake *)d)->live);
}
