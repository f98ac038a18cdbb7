/* The life of a slot: build, HELLO, death, release, rebuild. All on the reactor thread, but for the callbacks
 * that say otherwise and only post. */
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utlist.h>

#include "backends/local_bwrap/pool_priv.h"
#include "base/clock.h"

/* A sandbox that lived so long before it died is no sign of a slot that cannot work. */
#define PROVEN_MS 10000
#define RETRY_FIRST_MS 100
#define RETRY_MAX_MS 5000
#define FAILURES_FAILED 4U

/* How long the agent's client may take to notice that its agent has died. */
#define MOURN_MS 1000

static void slot_empty(struct slot *s);
static void gen_end(struct gen *g);
static void gen_destroyed(void *arg, const struct sg_error *err);
static void gen_dead(struct gen *g, const struct sg_error *err);
static void build_next(struct local *l);

/* ---- gen: memory ---- */

struct gen *gen_ref(struct gen *g)
{
    atomic_fetch_add(&g->refs, 1);
    return g;
}

void gen_unref(struct gen *g)
{
    if (atomic_fetch_sub(&g->refs, 1) > 1) {
        return;
    }
    struct local *l = g->l;
    sg_slot_built_finish(&g->built);
    sg_error_clear(&g->agent_why);
    sg_agent_sandbox_finish(&g->base);
    free(g);
    local_unref(l);
}

/* Posts t with a reference on g, which the task drops; without a driver the reference goes at once. */
static void gen_post(struct gen *g, struct sg_task *t)
{
    if (!local_post(g->l, t)) {
        gen_unref(g);
    }
}

/* ---- failures ---- */

/* Tries again: the first time at once, then ever later, from the fourth failure in a row as FAILED. */
static void retry_later(struct slot *s, enum sg_slot_state state)
{
    struct local *l = s->pool->l;
    int64_t delay = 0;
    for (unsigned i = 1; i < s->failures && delay < RETRY_MAX_MS; i++) {
        delay = delay == 0 ? RETRY_FIRST_MS : 4 * delay;
    }
    delay = delay < RETRY_MAX_MS ? delay : RETRY_MAX_MS;
    bool gives_up = s->failures >= FAILURES_FAILED || s->undead;
    if (gives_up && s->state != SG_SLOT_FAILED) {
        struct sg_error why = {0};
        sg_error_set(&why, SG_UNAVAILABLE, "%s", s->last_error);
        slot_event(s, SG_SLOT_GAVE_UP, &why);
    }
    slot_set_state(s, gives_up ? SG_SLOT_FAILED : state);
    sg_timer_set(l->parts.reactor, &s->retry, sg_now_ms() + (s->undead ? RETRY_MAX_MS : delay));
}

void slot_retry(struct sg_timer *t)
{
    struct slot *s = SLOT_OF(t, retry);
    if (s->undead) {
        s->undead = false;
        sg_spawner_destroy(s->pool->l->parts.spawner, s->number, gen_destroyed, gen_ref(s->gen));
        return;
    }
    slot_want(s);
}

/* ---- build ---- */

void slot_want(struct slot *s)
{
    struct local *l = s->pool->l;
    sg_timer_cancel(l->parts.reactor, &s->retry);
    if (l->closing || s->queued || s->gen != NULL) {
        return;
    }
    s->queued = true;
    DL_APPEND2(l->build_queue, s, bprev, bnext);
    build_next(l);
}

/* The build of g is over, one way or the other. */
static void build_over(struct gen *g)
{
    if (g->building) {
        g->building = false;
        g->l->building--;
        build_next(g->l);
    }
}

static void build_failed(struct slot *s, const struct sg_error *err)
{
    struct gen *g = s->gen;
    s->failures++;
    slot_set_last_error(s, err);
    slot_event(s, SG_SLOT_BUILD_FAILED, err);
    pool_build_failed(s, err);
    if (s->state == SG_SLOT_FAILED) {
        /* stays FAILED while it is tried again */
    } else if (s->state != SG_SLOT_STARTING) {
        slot_set_state(s, SG_SLOT_RESTARTING);
    }
    gen_end(g);
}

/* Any thread. */
static void hold_gone(void *arg)
{
    struct gen *g = arg;
    gen_post(g, &g->hold_gone_task); /* takes over the hold's reference */
}

static void hold_gone_run(struct sg_task *t)
{
    struct gen *g = GEN_OF(t, hold_gone_task);
    (void)pthread_mutex_lock(&g->l->lock);
    g->hold_gone = true;
    (void)pthread_mutex_unlock(&g->l->lock);
    slot_empty(g->slot);
    gen_unref(g);
}

static void start_over(struct gen *g)
{
    if (g->service.starting) {
        g->service.starting = false;
        g->slot->pool->starting--;
        build_next(g->l);
    }
}

void gen_offer(struct gen *g)
{
    g->ready = true;
    slot_set_born(g->slot, sg_now_ms());
    slot_event(g->slot, g->slot->state == SG_SLOT_FAILED ? SG_SLOT_RECOVERED : SG_SLOT_BUILT, NULL);
    build_over(g);
    start_over(g);
    pool_offer(g->slot);
}

/* A service may take its time: others are built meanwhile. */
static void gen_serve(struct gen *g, const struct sg_error *failed)
{
    struct sg_error err = {0};
    if (failed != NULL) {
        build_failed(g->slot, failed);
        return;
    }
    if (g->slot->pool->cfg.mode != SG_POOL_BLACKBOX) {
        gen_offer(g);
        return;
    }
    g->service.starting = true;
    g->slot->pool->starting++;
    build_over(g);
    if (service_start(g, &err) < 0) {
        build_failed(g->slot, &err);
        sg_error_clear(&err);
    }
}

/* The agent is there. */
static void gen_up(struct gen *g)
{
    struct sg_error err = {0};
    if (g->slot->pool->cfg.egress != SG_EGRESS_RESTRICTED) {
        gen_serve(g, NULL);
    } else if (egress_listen(g, gen_serve, &err) < 0) {
        build_failed(g->slot, &err);
    }
    sg_error_clear(&err);
}

/* May come before sg_agent_new() has returned. */
static void agent_ready(void *arg, const struct sg_agent_facts *facts)
{
    struct gen *g = arg;
    (void)facts;
    g->hello = true;
    if (!g->ending && g->base.agent != NULL) {
        gen_up(g);
    }
}

/* Its sandbox ends with it, or (answers) once the owner has taken what it wants to keep, and terminates it. */
static void lease_lost(struct gen *g, const struct sg_error *cause, bool answers)
{
    struct sg_error why = {0};
    if (g->base.lost) { /* and told */
        gen_end(g);
        return;
    }
    sg_error_set(&why, SG_SANDBOX_LOST, "%s", cause->message);
    sg_error_reason(&why, cause->reason[0] != '\0' ? cause->reason : "agent_died");
    (void)pthread_mutex_lock(&g->base.lock);
    g->base.lost = true;
    sg_error_copy(&g->base.why, &why);
    (void)pthread_mutex_unlock(&g->base.lock);
    slot_set_state(g->slot, SG_SLOT_LOST);
    slot_event(g->slot, SG_SLOT_TAKEN, &why);
    gen_ref(g);
    if (!answers || g->base.sb.lost == NULL) {
        gen_end(g);
    }
    if (g->base.sb.lost != NULL) {
        g->base.sb.lost(g->base.sb.lost_arg, &g->base.sb, &why);
    }
    gen_unref(g);
    sg_error_clear(&why);
}

void gen_died(struct gen *g, const struct sg_error *why, bool answers)
{
    struct slot *s = g->slot;
    if (g->ending) {
        return;
    }
    if (!g->ready) {
        build_failed(s, why);
        return;
    }
    slot_set_last_error(s, why);
    if (g->leased) {
        lease_lost(g, why, answers);
        return;
    }
    pool_withdraw(s);
    slot_event(s, SG_SLOT_DIED, why);
    s->failures = sg_now_ms() - s->born_ms >= PROVEN_MS ? 1 : s->failures + 1;
    slot_set_state(s, SG_SLOT_RESTARTING);
    gen_end(g);
}

static void agent_lost_run(struct sg_task *t)
{
    struct gen *g = GEN_OF(t, died_task);
    struct sg_error why = {0};
    (void)pthread_mutex_lock(&g->base.lock);
    sg_error_copy(&why, &g->agent_why);
    (void)pthread_mutex_unlock(&g->base.lock);
    gen_died(g, &why, false);
    sg_error_clear(&why);
    gen_unref(g);
}

/* Any thread. */
static void agent_lost(void *arg, const struct sg_error *why)
{
    struct gen *g = arg;
    (void)pthread_mutex_lock(&g->base.lock);
    sg_error_copy(&g->agent_why, why);
    (void)pthread_mutex_unlock(&g->base.lock);
    gen_post(gen_ref(g), &g->died_task);
}

/* The namespace is empty. Of a sandbox that is ending, that is what its endings wait for. Of one that was
 * not, the agent's client hears too, by the end of its connection, and then fails what is pending as lost;
 * cut off from here it would fail it as ended. So it goes first. */
static void process_died(struct sg_watch *w, uint32_t events)
{
    struct gen *g = GEN_OF(w, death);
    (void)events;
    sg_watch_del(g->l->parts.reactor, w);
    g->dead = true;
    if (g->ending) {
        gen_dead(g, NULL);
    } else {
        sg_timer_set(g->l->parts.reactor, &g->mourn, sg_now_ms() + MOURN_MS);
    }
}

static void mourn_over(struct sg_timer *t)
{
    struct gen *g = GEN_OF(t, mourn);
    struct sg_error why = {0};
    sg_error_set(&why, SG_SANDBOX_LOST, "the first process of the sandbox has ended");
    sg_error_reason(&why, "agent_died");
    gen_died(g, &why, false);
    sg_error_clear(&why);
}

static int adopt_groups(struct slot *s, struct gen *g, struct sg_error *err)
{
    if (g->built.cgroup_fd < 0) {
        return 0;
    }
    int fd = sg_steal_fd(&g->built.cgroup_fd);
    if (s->cgroups != NULL) {
        sg_close(fd); /* the same directory as before */
        return 0;
    }
    return sg_cgroups_new(&s->cgroups, s->pool->l->parts.reactor, fd, g->built.agent_uid, err);
}

void gen_take_limits(struct gen *g, struct sg_slot_built *b)
{
    int fds[SG_SLOT_LIMIT_FDS];
    memcpy(fds, b->limit_fds, sizeof fds);
    for (size_t i = 0; i < SG_SLOT_LIMIT_FDS; i++) {
        if (&g->built != b) {
            sg_close(g->built.limit_fds[i]);
        }
        g->built.limit_fds[i] = -1;
    }
    g->n_limit_fds = 0;
    for (size_t i = 0; i < SG_SLOT_LIMIT_FDS; i++) {
        if (fds[i] >= 0) {
            g->built.limit_fds[g->n_limit_fds++] = fds[i];
        }
    }
}

static int gen_open(struct gen *g, struct sg_slot_built *b, struct sg_error *err)
{
    struct local *l = g->l;
    struct sg_agent_options o = {
        .reactor = l->parts.reactor,
        .workq = l->parts.workq,
        .isolation = b->isolation == SG_ISOLATION_UID ? SG_AGENT_UID : SG_AGENT_DUMPABLE,
        .ready = agent_ready,
        .hold = g->hold,
        .lost = agent_lost,
        .arg = g,
    };
    g->built = *b;
    gen_take_limits(g, &g->built);
    const struct sg_local_pool_config *c = &g->slot->pool->cfg;
    g->limits = (struct sg_limits){.memory_bytes = c->memory_max,
                                   .pids = c->pids_max,
                                   .cpu_milli = c->cpu_milli,
                                   .disk_bytes = c->disk == SG_DISK_TMPFS ? c->disk_max : 0};
    int agent_fd = sg_steal_fd(&g->built.agent_fd);
    g->death = (struct sg_watch){.ready = process_died, .fd = g->built.pidfd};
    mounts_keep(g);
    if (adopt_groups(g->slot, g, err) < 0 || sg_watch_add(l->parts.reactor, &g->death, EPOLLIN, err) < 0 || egress_watch(g, err) < 0) {
        sg_close(agent_fd);
        return -1;
    }
    struct sg_agent *agent = NULL;
    if (sg_agent_new(agent_fd, &o, &agent, err) < 0) {
        return -1;
    }
    sg_agent_sandbox_set(&g->base, agent);
    if (g->hello) {
        gen_up(g);
    }
    return 0;
}

static void gen_built(void *arg, struct sg_slot_built *b, const struct sg_error *err)
{
    struct gen *g = arg;
    struct sg_error own = {0};
    g->spawning = false;
    if (err == NULL && g->l->closing) {
        sg_slot_built_finish(b);
        err = &own;
        sg_error_set(&own, SG_SHUTTING_DOWN, "the server is shutting down");
    } else if (err == NULL && gen_open(g, b, &own) < 0) {
        err = &own;
    }
    if (err != NULL) {
        build_failed(g->slot, err);
    }
    sg_error_clear(&own);
    gen_unref(g);
}

static struct gen *gen_new(struct slot *s)
{
    struct local *l = s->pool->l;
    struct gen *g = sg_xcalloc(1, sizeof *g);
    g->l = local_ref(l);
    g->slot = s;
    atomic_init(&g->refs, 1);
    sg_agent_sandbox_init(&g->base, &l->base);
    g->built = (struct sg_slot_built){
        .agent_fd = -1, .pidfd = -1, .cgroup_fd = -1, .limit_fds = {-1, -1, -1}, .oom_fd = -1, .net_fd = -1};
    g->mounts = -1;
    g->died_task.run = agent_lost_run;
    g->mourn.fire = mourn_over;
    g->hold_gone_task.run = hold_gone_run;
    g->hold = sg_hold_new(hold_gone, gen_ref(g));
    (void)snprintf(g->base.sb.id, sizeof g->base.sb.id, "%.40s.%llu", s->name, (unsigned long long)s->generation + 1);
    return g;
}

static void build_one(struct slot *s)
{
    struct local *l = s->pool->l;
    const struct sg_local_pool_config *c = &s->pool->cfg;
    struct sg_slot_spec spec = {
        .slot = s->number,
        .disk_bytes = c->disk_max,
        .disk_dir = c->disk == SG_DISK_DIR,
        .open_net = c->egress == SG_EGRESS_OPEN,
        .memory_bytes = c->memory_max,
        .pids = c->pids_max,
        .cpu_milli = c->cpu_milli,
        .deadline_ms = sg_now_ms() + SG_SPAWNER_BUILD_MS,
    };
    struct gen *g = gen_new(s);
    g->image = s->promised != NULL ? s->promised->image : NULL;
    spec.rootfs = g->image != NULL ? g->image->rootfs : c->rootfs;
    g->spawning = true;
    g->building = true;
    slot_set_gen(s, g);
    if (s->state == SG_SLOT_EMPTY) {
        slot_set_state(s, SG_SLOT_STARTING);
    }
    sg_spawner_build(l->parts.spawner, &spec, gen_built, gen_ref(g));
}

/* The first in the queue whose pool has not enough to do with its services already. */
static struct slot *next_to_build(const struct local *l)
{
    struct slot *s = l->build_queue;
    while (s != NULL && s->pool->starting >= STARTS_MAX) {
        s = s->bnext;
    }
    return s;
}

/* A build may fail at once and come back here from inside: the outermost call does the work. */
static void build_next(struct local *l)
{
    if (l->pumping) {
        return;
    }
    l->pumping = true;
    for (struct slot *s; !l->closing && l->building < BUILDS_MAX && (s = next_to_build(l)) != NULL;) {
        DL_DELETE2(l->build_queue, s, bprev, bnext);
        s->queued = false;
        l->building++;
        build_one(s);
    }
    l->pumping = false;
}

/* ---- end ---- */

static void tell_endings(struct gen *g, const struct sg_error *err)
{
    struct ending *e = g->endings;
    g->endings = NULL;
    while (e != NULL) {
        struct ending *next = e->next;
        if (e->done.fn != NULL) {
            e->done.fn(e->done.arg, err);
        }
        free(e);
        e = next;
    }
}

/* Nothing of it runs any more (err: it could not be brought about). */
static void gen_dead(struct gen *g, const struct sg_error *err)
{
    mounts_drop(g);
    if (g->slot->state == SG_SLOT_RELEASING && err == NULL) {
        slot_set_state(g->slot, SG_SLOT_RESETTING);
    }
    tell_endings(g, err);
}

/* Nothing of it is left. */
static void gen_destroyed(void *arg, const struct sg_error *err)
{
    struct gen *g = arg;
    struct slot *s = g->slot;
    if (err != NULL && err->code == SG_UNAVAILABLE) {
        err = NULL; /* the spawner has died, and everything it had made with it */
    }
    if (err != NULL && !g->l->closing) {
        slot_set_last_error(s, err);
        s->undead = true;
        gen_dead(g, err);
        retry_later(s, SG_SLOT_FAILED);
        gen_unref(g);
        return;
    }
    sg_watch_del(g->l->parts.reactor, &g->death);
    g->dead = true;
    g->destroyed = true;
    gen_dead(g, err);
    slot_empty(s);
    gen_unref(g);
}

/* Cuts the sandbox off and has it killed; what comes then is gen_destroyed. */
static void gen_end(struct gen *g)
{
    struct local *l = g->l;
    if (g->ending) {
        return;
    }
    g->ending = true;
    build_over(g);
    start_over(g);
    sg_timer_cancel(l->parts.reactor, &g->mourn);
    slot_set_born(g->slot, 0);
    service_end(g);
    egress_end(g);
    struct sg_agent *agent = sg_agent_sandbox_take(&g->base, NULL);
    (void)pthread_mutex_lock(&g->base.lock);
    struct sg_hold *hold = sg_steal(&g->hold);
    (void)pthread_mutex_unlock(&g->base.lock);
    (void)sg_agent_end(agent);
    sg_hold_unref(hold);
    if (g->built.pidfd >= 0) { /* without waiting for the spawner to do it */
        (void)syscall(SYS_pidfd_send_signal, g->built.pidfd, SIGKILL, NULL, 0);
    }
    if (g->dead) {
        gen_dead(g, NULL);
    }
    sg_spawner_destroy(l->parts.spawner, g->slot->number, gen_destroyed, gen_ref(g));
}

/* Nothing runs and nothing is open any more: the slot is empty and can have its next sandbox. A lost one
 * waits for its lease to let go. */
static void slot_empty(struct slot *s)
{
    struct gen *g = s->gen;
    struct local *l = s->pool->l;
    if (g == NULL || !g->destroyed || !g->hold_gone || g->leased) {
        return;
    }
    slot_set_gen(s, NULL);
    gen_unref(g);
    if (l->closing) {
        slot_set_state(s, SG_SLOT_DEAD);
        local_maybe_closed(l);
    } else if (s->failures > 0) {
        retry_later(s, s->state);
    } else {
        slot_want(s);
    }
}

void gen_release(struct gen *g, const struct sg_done *done)
{
    struct slot *s = g->slot;
    if (done != NULL && g->dead) {
        if (done->fn != NULL) {
            done->fn(done->arg, NULL);
        }
    } else if (done != NULL) {
        struct ending *e = sg_xcalloc(1, sizeof *e);
        e->done = *done;
        e->next = g->endings;
        g->endings = e;
    }
    if (!g->leased) {
        return;
    }
    g->leased = false;
    slot_event(s, SG_SLOT_RELEASED, NULL);
    slot_set_lease(s, "");
    if (s->state != SG_SLOT_FAILED) {
        slot_set_state(s, g->dead ? SG_SLOT_RESETTING : SG_SLOT_RELEASING);
    }
    if (!g->ending) {
        gen_end(g);
    } else {
        slot_empty(s);
    }
}

void slot_rebuild(struct slot *s)
{
    s->failures = 0;
    slot_set_state(s, SG_SLOT_RESETTING);
    gen_end(s->gen);
}

void slot_recycle(struct slot *s, bool hard)
{
    struct gen *g = s->gen;
    if (s->state == SG_SLOT_FAILED && s->retry.slot != 0) {
        sg_timer_cancel(s->pool->l->parts.reactor, &s->retry);
        slot_retry(&s->retry);
    } else if (g == NULL || g->ending || g->spawning) {
        return; /* it is being made or unmade */
    } else if (g->leased && hard) {
        struct sg_error why = {0};
        sg_error_set(&why, SG_SANDBOX_LOST, "an operator recycled its slot");
        sg_error_reason(&why, "slot_recycled");
        lease_lost(g, &why, false);
    } else if (!g->leased) {
        pool_withdraw(s);
        s->failures = 0;
        slot_event(s, SG_SLOT_RECYCLED, NULL);
        slot_set_state(s, SG_SLOT_RESTARTING);
        gen_end(g);
    }
}

void slot_close(struct slot *s)
{
    struct gen *g = s->gen;
    struct local *l = s->pool->l;
    sg_timer_cancel(l->parts.reactor, &s->retry);
    if (s->queued) {
        DL_DELETE2(l->build_queue, s, bprev, bnext);
        s->queued = false;
    }
    pool_withdraw(s);
    slot_set_state(s, g == NULL ? SG_SLOT_DEAD : SG_SLOT_RELEASING);
    if (g == NULL || g->spawning) {
        return; /* gen_built() ends what is still being made */
    }
    if (s->undead) {
        s->undead = false;
        g->destroyed = true; /* as far as it can be */
    }
    g->leased = false;
    gen_end(g);
    slot_empty(s);
}
