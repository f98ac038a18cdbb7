/* Creates: who gets which slot, and who waits. */
#include <jansson.h>
#include <stdio.h>
#include <utlist.h>

#include "backends/local_bwrap/pool_priv.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"

/* ---- check ---- */

static int mode_mismatch(const struct pool *p, enum sg_mode asked, struct sg_error *err)
{
    char setting[96];
    size_t i = (size_t)(p - p->l->pools);
    if (i == 0) {
        (void)snprintf(setting, sizeof setting, "local_bwrap.mode");
    } else {
        (void)snprintf(setting, sizeof setting, "local_pools[%zu].mode", i - 1);
    }
    sg_error_field(err, SG_POOL_MODE_MISMATCH, "metadata.paddock_mode",
                   "a %s lease cannot come from local pool \"%s\", whose mode is %s (setting %s)"
                   "; ask for %s or for another local_pool",
                   sg_mode_name(asked), p->cfg.name, sg_pool_mode_name(p->cfg.mode), setting,
                   sg_mode_name(asked == SG_MODE_BLACKBOX ? SG_MODE_WHITEBOX : SG_MODE_BLACKBOX));
    if (err != NULL) {
        sg_error_member(err, "paddock_mode", json_string(sg_mode_name(asked)));
        sg_error_member(err, "pool_mode", json_string(sg_pool_mode_name(p->cfg.mode)));
        sg_error_member(err, "setting", json_string(setting));
    }
    return -1;
}

static int check_limit(const struct pool *p, const char *field, int64_t asked, int64_t ceiling,
                       struct sg_error *err)
{
    if (asked < 0) {
        return sg_error_field(err, SG_INVALID_REQUEST, field, "must not be negative");
    }
    if (ceiling == 0 || asked <= ceiling) {
        return 0;
    }
    sg_error_field(err, SG_LIMIT_EXCEEDED, field, "local pool \"%s\" allows at most %lld", p->cfg.name,
                   (long long)ceiling);
    if (err != NULL) {
        sg_error_member(err, "limit", json_integer(ceiling));
    }
    return -1;
}

/* Can it be set for one lease? Fields of what cannot are refused, never ignored. */
static int check_means(const struct pool *p, const struct sg_limits *l, struct sg_error *err)
{
    if (l->disk_bytes > 0 && p->cfg.disk == SG_DISK_DIR) {
        return sg_error_field(err, SG_NOT_SUPPORTED, "limits.disk_max", "nobody limits the disks of local pool \"%s\" (disk: dir)",
                              p->cfg.name);
    }
    if (l->cpu_milli > 0 && sg_spawner_facts(p->l->parts.spawner)->cpu == SG_MEANS_NONE) {
        return sg_error_field(err, SG_NOT_SUPPORTED, "limits.cpu_max", "without control groups nobody can limit CPUs");
    }
    /* Its service runs already, and would stay out of a group that there was not for it. */
    if (p->cfg.mode == SG_POOL_BLACKBOX && ((l->memory_bytes > 0 && p->cfg.memory_max == 0) || (l->pids > 0 && p->cfg.pids_max == 0) ||
                                            (l->cpu_milli > 0 && p->cfg.cpu_milli == 0))) {
        return sg_error_field(err, SG_NOT_SUPPORTED, "limits", "the service of local pool \"%s\" runs without such a limit", p->cfg.name);
    }
    return 0;
}

static int check_limits(const struct pool *p, const struct sg_limits *l, struct sg_error *err)
{
    if (check_limit(p, "limits.memory_max", l->memory_bytes, p->cfg.memory_max, err) < 0 ||
        check_limit(p, "limits.pids_max", l->pids, p->cfg.pids_max, err) < 0 ||
        check_limit(p, "limits.cpu_max", l->cpu_milli, p->cfg.cpu_milli, err) < 0 ||
        check_limit(p, "limits.disk_max", l->disk_bytes, p->cfg.disk == SG_DISK_TMPFS ? p->cfg.disk_max : 0,
                    err) < 0) {
        return -1;
    }
    return check_means(p, l, err);
}

/* The name "blackbox" is the pool's own service. */
static int check_service_port(const struct pool *p, const struct sg_sandbox_spec *spec, struct sg_error *err)
{
    for (size_t i = 0; i < spec->n_services; i++) {
        char field[48];
        (void)snprintf(field, sizeof field, "services[%zu].port", i);
        if (sg_streq(spec->services[i].name, "blackbox") && spec->services[i].port != p->cfg.service_port) {
            return sg_error_field(err, SG_NOT_SUPPORTED, field, "the service of local pool \"%s\" has port %u", p->cfg.name,
                                  (unsigned)p->cfg.service_port);
        }
    }
    return 0;
}

/* ---- images ---- */

/* NULL: the pool has none of that name. */
static const struct sg_local_image *find_image(const struct pool *p, const char *name)
{
    for (size_t i = 0; i < p->cfg.n_images; i++) {
        if (sg_streq(p->cfg.images[i].name, name)) {
            return &p->cfg.images[i];
        }
    }
    return NULL;
}

static int check_image(const struct pool *p, const char *name, struct sg_error *err)
{
    if (name == NULL || find_image(p, name) != NULL) {
        return 0;
    }
    struct sg_buf names;
    json_t *list = json_array();
    sg_buf_init(&names, 2048);
    for (size_t i = 0; i < p->cfg.n_images; i++) {
        (void)sg_buf_addf(&names, "%s%s", i > 0 ? ", " : "", p->cfg.images[i].name);
        (void)json_array_append_new(list, json_string(p->cfg.images[i].name));
    }
    if (p->cfg.n_images > 0) {
        sg_error_field(err, SG_NOT_SUPPORTED, "image", "local pool \"%s\" has no image of that name; it has %.*s", p->cfg.name, (int)names.len,
                       names.data);
    } else {
        sg_error_field(err, SG_NOT_SUPPORTED, "image", "local pool \"%s\" has no images to choose from", p->cfg.name);
    }
    sg_buf_finish(&names);
    if (err != NULL) {
        sg_error_member(err, "images", sg_json_ref(list));
    }
    sg_json_unref(list);
    return sg_error_reason(err, "unknown_image");
}

static int check_for(const struct pool *p, const struct sg_sandbox_spec *spec, struct sg_error *err)
{
    bool blackbox = spec->mode == SG_MODE_BLACKBOX;
    if (blackbox != (p->cfg.mode == SG_POOL_BLACKBOX)) {
        return mode_mismatch(p, spec->mode, err);
    }
    if (egress_check(p, spec, err) < 0) {
        return -1;
    }
    if (blackbox && check_service_port(p, spec, err) < 0) {
        return -1;
    }
    if (check_image(p, spec->image, err) < 0) {
        return -1;
    }
    return check_limits(p, &spec->limits, err);
}

int pool_check(struct sg_driver *d, const struct sg_sandbox_spec *spec, struct sg_error *err)
{
    const struct pool *p = local_pool((struct local *)d, spec->local_pool, err);
    return p == NULL ? -1 : check_for(p, spec, err);
}

/* ---- waiters ---- */

static void set_waiters(struct pool *p, size_t n)
{
    (void)pthread_mutex_lock(&p->l->lock);
    p->n_waiters = n;
    (void)pthread_mutex_unlock(&p->l->lock);
}

static void waiter_free(struct waiter *w)
{
    struct local *l = w->pool->l;
    sg_cancel_unref(w->cancel);
    free(w);
    local_unref(l);
}

static void break_promise(struct waiter *w)
{
    if (w->coming != NULL) {
        w->coming->promised = NULL;
        w->coming = NULL;
    }
}

static void leave_queue(struct waiter *w)
{
    break_promise(w);
    if (w->queued) {
        DL_DELETE(w->pool->waiters, w);
        w->queued = false;
        set_waiters(w->pool, w->pool->n_waiters - 1);
    }
    sg_timer_cancel(w->pool->l->parts.reactor, &w->timer);
}

/* Answers once. A cancel hook that has begun on another thread still has w: then its task frees it. */
static void waiter_answer(struct waiter *w, struct sg_sandbox *sb, const struct sg_error *err)
{
    struct sg_sandbox_done done = w->done;
    leave_queue(w);
    w->answered = true;
    if (w->cancel == NULL || sg_cancel_unhook(w->cancel, &w->hook)) {
        waiter_free(w);
    }
    done.fn(done.arg, sb, err);
}

static void waiter_cancelled(struct sg_task *t)
{
    struct waiter *w = WAITER_OF(t, cancel_task);
    if (w->limiting != NULL) {
        w->cancelled = true; /* limited() answers */
        return;
    }
    if (!w->answered) {
        struct sg_error err = {0};
        sg_error_set(&err, SG_CANCELLED, "the caller gave up waiting");
        waiter_answer(w, NULL, &err);
        sg_error_clear(&err);
    }
    waiter_free(w);
}

/* Any thread. */
static void cancel_fired(struct sg_cancel_hook *h, enum sg_cancel_reason why)
{
    struct waiter *w = WAITER_OF(h, hook);
    (void)why;
    if (!local_post(w->pool->l, &w->cancel_task)) {
        waiter_free(w); /* the driver has ended, so it has answered */
    }
}

static void waiter_timeout(struct sg_timer *t)
{
    struct waiter *w = WAITER_OF(t, timer);
    struct sg_error err = {0};
    sg_error_set(&err, SG_ACQUIRE_TIMEOUT, "no slot of local pool \"%s\" became %s within %lld ms", w->pool->cfg.name,
                 w->coming != NULL ? "ready with that image" : "free", (long long)(w->coming != NULL ? sg_now_ms() - w->began_ms : w->timeout_ms));
    sg_error_retry_after(&err, 1);
    waiter_answer(w, NULL, &err);
    sg_error_clear(&err);
}

void pool_fail_waiters(struct pool *p, const struct sg_error *err)
{
    while (p->waiters != NULL) {
        waiter_answer(p->waiters, NULL, err);
    }
}

/* ---- slots ---- */

static bool has_limits(const struct sg_limits *l)
{
    return l->memory_bytes > 0 || l->pids > 0 || l->cpu_milli > 0 || l->disk_bytes > 0;
}

static void note_limits(struct gen *g, const struct sg_limits *l, const struct sg_slot_built *b)
{
    g->limits.memory_bytes = l->memory_bytes > 0 ? l->memory_bytes : g->limits.memory_bytes;
    g->limits.pids = l->pids > 0 ? l->pids : g->limits.pids;
    g->limits.cpu_milli = l->cpu_milli > 0 ? l->cpu_milli : g->limits.cpu_milli;
    g->limits.disk_bytes = l->disk_bytes > 0 ? l->disk_bytes : g->limits.disk_bytes;
    g->built.memory = b->memory;
    g->built.pids = b->pids;
    g->built.cpu = b->cpu;
    g->built.disk = b->disk;
}

/* The spawner has answered: the sandbox is the waiter's, or ends. */
static void limited(void *arg, struct sg_slot_built *b, const struct sg_error *err)
{
    struct waiter *w = arg;
    struct gen *g = w->limiting;
    struct sg_error why = {0};
    bool cancelled = w->cancelled;
    w->limiting = NULL;
    if (cancelled) {
        sg_error_set(&why, SG_CANCELLED, "the caller gave up waiting");
        err = &why;
    } else if (err == NULL && g->ending) { /* nobody has been told of its death, for nobody had it */
        sg_error_set(&why, SG_UNAVAILABLE, "the sandbox died before the lease was ready");
        sg_error_reason(&why, "sandbox_lost");
        sg_error_retry_after(&why, 1);
        err = &why;
    }
    if (b != NULL) {
        gen_take_limits(g, b);
        note_limits(g, &w->limits, b);
    }
    if (err != NULL) {
        gen_release(g, NULL);
        gen_unref(g);
        waiter_answer(w, NULL, err);
    } else {
        waiter_answer(w, &g->base.sb, NULL);
    }
    if (cancelled) {
        waiter_free(w); /* the task that would have has run */
    }
    gen_unref(g);
    sg_error_clear(&why);
}

/* The sandbox gets limits of its own before anybody has it. */
static void limit(struct slot *s, struct waiter *w)
{
    struct sg_slot_spec spec = {.slot = s->number,
                                .disk_bytes = w->limits.disk_bytes,
                                .memory_bytes = w->limits.memory_bytes,
                                .pids = w->limits.pids,
                                .cpu_milli = w->limits.cpu_milli};
    sg_spawner_limit(s->pool->l->parts.spawner, &spec, limited, w);
}

/* It has no more of the network than asked for, or (err) that could not be brought about. */
static void narrowed(struct gen *g, const struct sg_error *err)
{
    struct waiter *w = sg_steal(&g->waiter);
    if (err == NULL && !g->ending && has_limits(&w->limits)) {
        limit(g->slot, w);
    } else {
        limited(w, NULL, err);
    }
}

static void give(struct slot *s, struct waiter *w)
{
    struct gen *g = s->gen;
    s->failures = 0;
    service_uncheck(g);
    g->leased = true;
    gen_ref(g); /* the sandbox's, until sandbox_free() */
    atomic_store(&g->base.sb.refs, 1);
    slot_set_lease(s, w->lease_id);
    slot_set_state(s, SG_SLOT_LEASED);
    bool slow = egress_settle(g, w->egress, narrowed);
    if (!slow && !has_limits(&w->limits)) {
        waiter_answer(w, &g->base.sb, NULL);
        return;
    }
    leave_queue(w);
    w->limiting = gen_ref(g);
    g->waiter = w;
    if (!slow) {
        narrowed(g, NULL);
    }
}

/* The first to whom no slot is promised. */
static struct waiter *next_waiter(const struct pool *p)
{
    struct waiter *w = p->waiters;
    while (w != NULL && w->coming != NULL) {
        w = w->next;
    }
    return w;
}

/* The slot's sandbox makes room for one with the image that w wants. That takes its own time, which w then has. */
static void promise(struct slot *s, struct waiter *w)
{
    const struct sg_local_pool_config *c = &s->pool->cfg;
    int64_t due_ms = sg_now_ms() + SG_SPAWNER_BUILD_MS + (c->mode == SG_POOL_BLACKBOX ? c->service_start_ms : 0);
    w->coming = s;
    s->promised = w;
    if (due_ms > w->due_ms) {
        w->due_ms = due_ms;
        sg_timer_set(s->pool->l->parts.reactor, &w->timer, due_ms);
    }
    slot_rebuild(s);
}

static void serve(struct slot *s, struct waiter *w)
{
    if (w->image == s->gen->image) {
        give(s, w);
    } else {
        promise(s, w);
    }
}

/* Who has been promised a slot that does not come may have one that is ready. */
static void serve_waiters(struct pool *p)
{
    for (struct waiter *w = next_waiter(p); w != NULL && p->ready != NULL; w = next_waiter(p)) {
        struct slot *s = p->ready;
        pool_withdraw(s);
        serve(s, w);
    }
}

void pool_offer(struct slot *s)
{
    struct pool *p = s->pool;
    struct waiter *w = s->promised;
    if (w != NULL) {
        break_promise(w);
    }
    if (s->draining) {
        serve_waiters(p);
        w = NULL;
    } else if (w == NULL || w->image != s->gen->image) {
        w = next_waiter(p);
    }
    if (w != NULL) {
        serve(s, w);
        return;
    }
    if (s->gen->image != NULL) {
        slot_rebuild(s); /* nobody wants it any more */
        return;
    }
    slot_set_state(s, SG_SLOT_READY);
    if (!s->draining) {
        s->offered = true;
        DL_APPEND(p->ready, s);
    }
}

void pool_build_failed(struct slot *s, const struct sg_error *err)
{
    struct waiter *w = s->promised;
    if (w == NULL) {
        return;
    }
    break_promise(w);
    if (w->image == NULL) {
        serve_waiters(s->pool);
        return;
    }
    struct sg_error why = {0};
    sg_error_set(&why, SG_UNAVAILABLE, "no sandbox with the image %s could be built: %s", w->image->name, err->message);
    sg_error_retry_after(&why, 5);
    waiter_answer(w, NULL, &why);
    sg_error_clear(&why);
}

void pool_withdraw(struct slot *s)
{
    if (s->offered) {
        s->offered = false;
        DL_DELETE(s->pool->ready, s);
    }
}

bool pool_is_drained(const struct pool *p)
{
    bool all = true;
    for (unsigned i = 0; i < p->cfg.size && all; i++) {
        all = p->slots[i].draining;
    }
    return all || p->draining;
}

/* A pool in which no slot works: waiting would be for nothing. */
static bool hopeless(const struct pool *p)
{
    for (unsigned i = 0; i < p->cfg.size; i++) {
        if (p->slots[i].state != SG_SLOT_FAILED && !p->slots[i].draining) {
            return false;
        }
    }
    return true;
}

static int admit(const struct pool *p, const struct waiter *w, struct sg_error *err)
{
    if (p->l->closing) {
        return sg_error_set(err, SG_SHUTTING_DOWN, "the server is shutting down");
    }
    if (sg_cancel_fired(w->cancel) != SG_CANCEL_NONE) {
        return sg_error_set(err, SG_CANCELLED, "the caller gave up waiting");
    }
    if (pool_is_drained(p)) {
        sg_error_set(err, SG_UNAVAILABLE, "local pool \"%s\" is drained", p->cfg.name);
        sg_error_reason(err, "pool_draining");
        return sg_error_retry_after(err, 10);
    }
    if (p->ready != NULL) {
        return 0;
    }
    if (hopeless(p)) {
        unsigned i = 0;
        while (i + 1 < p->cfg.size && p->slots[i].draining) {
            i++;
        }
        sg_error_set(err, SG_UNAVAILABLE, "no slot of local pool \"%s\" works: %s", p->cfg.name, p->slots[i].last_error);
        return sg_error_retry_after(err, 5);
    }
    if (p->n_waiters >= p->cfg.waiters_max) {
        sg_error_set(err, SG_OVERLOADED, "%zu callers wait for local pool \"%s\" already", p->n_waiters,
                     p->cfg.name);
        return sg_error_retry_after(err, 1);
    }
    return 0;
}

static void waiter_start(struct sg_task *t)
{
    struct waiter *w = WAITER_OF(t, start_task);
    struct pool *p = w->pool;
    struct sg_error err = {0};
    int rc = admit(p, w, &err);
    if (w->cancel != NULL) {
        (void)sg_cancel_hook(w->cancel, &w->hook);
    }
    if (rc < 0) {
        waiter_answer(w, NULL, &err);
        sg_error_clear(&err);
        return;
    }
    struct slot *s = p->ready;
    if (s != NULL && w->image == NULL) {
        pool_withdraw(s);
        give(s, w);
        return;
    }
    if (s == NULL && w->timeout_ms <= 0) {
        waiter_timeout(&w->timer);
        return;
    }
    w->queued = true;
    w->began_ms = sg_now_ms();
    w->due_ms = w->began_ms + w->timeout_ms;
    DL_APPEND(p->waiters, w);
    set_waiters(p, p->n_waiters + 1);
    sg_timer_set(p->l->parts.reactor, &w->timer, w->due_ms);
    if (s != NULL) {
        pool_withdraw(s);
        promise(s, w);
    }
}

int pool_create(struct sg_driver *d, const struct sg_sandbox_spec *spec, struct sg_cancel *cancel,
                const struct sg_sandbox_done *done, struct sg_error *err)
{
    struct local *l = (struct local *)d;
    struct pool *p = local_pool(l, spec->local_pool, err);
    if (p == NULL || check_for(p, spec, err) < 0) {
        return -1;
    }
    struct waiter *w = sg_xcalloc(1, sizeof *w);
    w->pool = p;
    w->done = *done;
    w->limits = spec->limits;
    w->egress = sg_egress_of(spec, p->cfg.egress);
    w->image = spec->image != NULL ? find_image(p, spec->image) : NULL;
    (void)snprintf(w->lease_id, sizeof w->lease_id, "%s", spec->lease_id != NULL ? spec->lease_id : "");
    w->timeout_ms = spec->acquire_timeout_ms >= 0 ? spec->acquire_timeout_ms : p->cfg.acquire_timeout_ms;
    w->cancel = cancel != NULL ? sg_cancel_ref(cancel) : NULL;
    w->start_task.run = waiter_start;
    w->timer.fire = waiter_timeout;
    w->hook.fired = cancel_fired;
    w->cancel_task.run = waiter_cancelled;
    local_ref(l);
    if (!local_post(l, &w->start_task)) {
        waiter_free(w);
        return sg_error_set(err, SG_SHUTTING_DOWN, "the server is shutting down");
    }
    return 0;
}
