/* The driver and the life of its worktrees. */
#include "backends/worktree/worktree.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <utlist.h>

#include "backends/worktree/worktree_priv.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/json.h"

#define DIE_MS 12000          /* what was killed is dead by then */
#define RETRY_FIRST_MS 2000   /* cleaning up is tried again, */
#define RETRY_MAX_MS 300000   /* ever later */
#define CLOSE_S 12            /* at the end of the driver */

/* ---- references ---- */

static struct worktree *d_ref(struct worktree *d)
{
    atomic_fetch_add(&d->refs, 1);
    return d;
}

static void d_unref(struct worktree *d)
{
    if (atomic_fetch_sub(&d->refs, 1) > 1)
        return;
    free(d->dir);
    free(d->records_dir);
    free(d->archive_dir);
    sg_close(d->dir_fd);
    sg_error_clear(&d->broken);
    (void)pthread_mutex_destroy(&d->lock);
    (void)pthread_cond_destroy(&d->changed);
    free(d);
}

struct wt *wt_ref(struct wt *w)
{
    atomic_fetch_add(&w->refs, 1);
    return w;
}

void wt_unref(struct wt *w)
{
    if (atomic_fetch_sub(&w->refs, 1) > 1)
        return;
    sg_record_finish(&w->rec);
    free(w->ref);
    free(w->root);
    sg_env_finish(&w->env);
    sg_cancel_unref(w->cancel);
    sg_close(w->dir_fd);
    sg_locks_free(w->locks);
    sg_error_clear(&w->why);
    sg_error_clear(&w->end_why);
    sg_agent_sandbox_finish(&w->base);
    struct worktree *d = w->d;
    free(w);
    d_unref(d);
}

/* Adds it to the list, which has a reference then. */
static int enlist(struct wt *w, struct sg_error *err)
{
    struct worktree *d = w->d;
    (void)pthread_mutex_lock(&d->lock);
    bool closing = d->closing;
    if (!closing) {
        wt_ref(w);
        DL_APPEND(d->all, w);
    }
    (void)pthread_mutex_unlock(&d->lock);
    return closing ? sg_error_set(err, SG_SHUTTING_DOWN, "the server is shutting down") : 0;
}

static void delist(struct wt *w)
{
    struct worktree *d = w->d;
    (void)pthread_mutex_lock(&d->lock);
    DL_DELETE(d->all, w);
    w->prev = w->next = NULL;
    (void)pthread_cond_signal(&d->changed);
    (void)pthread_mutex_unlock(&d->lock);
    wt_unref(w);
}

static bool is_closing(struct worktree *d)
{
    (void)pthread_mutex_lock(&d->lock);
    bool closing = d->closing;
    (void)pthread_mutex_unlock(&d->lock);
    return closing;
}

int wt_check_wanted(struct wt *w, struct sg_error *err)
{
    if (sg_cancel_fired(w->cancel) != SG_CANCEL_NONE)
        return sg_error_set(err, SG_CANCELLED, "the caller gave up waiting");
    if (is_closing(w->d))
        return sg_error_set(err, SG_SHUTTING_DOWN, "the server is shutting down");
    return 0;
}

/* ---- answers ---- */

/* What went wrong for no fault of the caller's is what health says, until something goes well. */
static void note(struct worktree *d, const struct sg_error *err)
{
    bool ours = err != NULL && sg_code_status(err->code) >= 500;
    (void)pthread_mutex_lock(&d->lock);
    if (err == NULL)
        sg_error_clear(&d->broken);
    else if (ours)
        sg_error_copy(&d->broken, err);
    (void)pthread_mutex_unlock(&d->lock);
}

static void answer(struct wt *w, struct sg_sandbox *sb, const struct sg_error *err)
{
    struct sg_sandbox_done done = w->created;
    w->created.fn = NULL;
    if (done.fn == NULL)
        return;
    note(w->d, err);
    done.fn(done.arg, sb, err);
}

static void tell_endings(struct wt *w, const struct sg_error *err)
{
    struct ending *e = w->endings;
    w->endings = NULL;
    while (e != NULL) {
        struct ending *next = e->next;
        if (e->done.fn != NULL)
            e->done.fn(e->done.arg, err);
        free(e);
        e = next;
    }
}

/* ---- the way down; reactor ---- */

static void to_cleaning(struct wt *w)
{
    sg_timer_cancel(w->d->parts.reactor, &w->timer);
    w->phase = WT_CLEANING;
    wt_clean(w);
}

static void begin_end(struct wt *w)
{
    if (w->phase >= WT_ENDING)
        return;
    w->phase = WT_ENDING;
    (void)sg_agent_end(sg_agent_sandbox_take(&w->base, NULL));
    if (!w->started || w->gone) {
        to_cleaning(w);
        return;
    }
    sg_host_kill(sg_repos_host(w->d->repos), w->agent_id);
    sg_timer_set(w->d->parts.reactor, &w->timer, sg_now_ms() + DIE_MS);
}

/* Something of it does not die, or cleaning up is to be tried again. */
static void time_over(struct sg_timer *t)
{
    struct wt *w = WT_OF(t, timer);
    struct sg_error err = {0};
    if (w->phase == WT_CLEANING) {
        wt_clean(w);
        return;
    }
    sg_error_set(&err, SG_INTERNAL, "a process of the worktree did not die within %d s of being killed", DIE_MS / 1000);
    answer(w, NULL, w->why.code != SG_OK ? &w->why : &err);
    tell_endings(w, &err);
    w->late = true;
    sg_error_clear(&err);
}

static void agent_gone(void *arg, const struct sg_error *err);

static void lose(struct wt *w, const struct sg_error *why)
{
    struct sg_agent *agent = sg_agent_sandbox_take(&w->base, why);
    if (agent == NULL)
        return;
    (void)sg_agent_end(agent);
    sg_host_kill(sg_repos_host(w->d->repos), w->agent_id);
    if (w->base.sb.lost != NULL)
        w->base.sb.lost(w->base.sb.lost_arg, &w->base.sb, why);
}

/* err: its keeper has died, and does not know. */
static void agent_gone(void *arg, const struct sg_error *err)
{
    struct wt *w = arg;
    w->gone = true;
    if (w->phase == WT_ENDING)
        to_cleaning(w);
    else if (w->phase == WT_READY && err != NULL)
        lose(w, err);
    wt_unref(w); /* the agent's */
}

static void agent_lost(void *arg, const struct sg_error *why)
{
    struct wt *w = arg;
    if (w->phase == WT_MAKING)
        wt_fail(w, why);
    else if (w->phase == WT_READY)
        lose(w, why);
}

static void cleaned_run(struct sg_task *t)
{
    struct wt *w = WT_OF(t, cleaned_task);
    bool left = w->end_why.code != SG_OK;
    int64_t delay = RETRY_FIRST_MS;
    answer(w, NULL, &w->why);
    tell_endings(w, NULL); /* nothing of it runs; what is left on the disk is ours to remove */
    for (unsigned i = 0; i < w->attempts && delay < RETRY_MAX_MS; i++)
        delay *= 2;
    w->attempts++;
    if (left && !is_closing(w->d))
        sg_timer_set(w->d->parts.reactor, &w->timer, sg_now_ms() + (delay < RETRY_MAX_MS ? delay : RETRY_MAX_MS));
    else
        delist(w); /* or its record is what a successor goes by */
    wt_unref(w);
}

void wt_cleaned(struct wt *w, const struct sg_error *err)
{
    sg_error_clear(&w->end_why);
    if (err != NULL)
        sg_error_copy(&w->end_why, err);
    sg_reactor_post(w->d->parts.reactor, &w->cleaned_task); /* with wt_clean()'s reference */
}

static void end_run(struct sg_task *t)
{
    struct wt *w = WT_OF(t, end_task);
    sg_error_copy(&w->why, &w->end_why);
    begin_end(w);
    wt_unref(w);
}

void wt_fail(struct wt *w, const struct sg_error *why)
{
    sg_error_copy(&w->end_why, why);
    wt_ref(w);
    sg_reactor_post(w->d->parts.reactor, &w->end_task);
}

/* ---- the way up; reactor ---- */

static void agent_ready(void *arg, const struct sg_agent_facts *facts)
{
    struct wt *w = arg;
    (void)facts;
    struct sg_error err = {0};
    if (w->phase != WT_MAKING)
        return;
    if (wt_check_wanted(w, &err) < 0) {
        wt_fail(w, &err);
        sg_error_clear(&err);
        return;
    }
    w->phase = WT_READY;
    wt_ref(w); /* the sandbox's, until sandbox_free() */
    atomic_store(&w->base.sb.refs, 1);
    answer(w, &w->base.sb, NULL);
}

static void start_agent(struct sg_task *t)
{
    struct wt *w = WT_OF(t, agent_task);
    struct worktree *d = w->d;
    struct sg_error err = {0};
    struct sg_agent *agent = NULL;
    int sock = -1;
    int rc = sg_host_start(sg_repos_host(d->repos), w->dir_fd, agent_gone, wt_ref(w), &sock, &w->agent_id, &err);
    if (rc < 0)
        wt_unref(w);
    w->started = rc == 0;
    struct sg_agent_options o = {.reactor = d->parts.reactor,
                                 .workq = d->parts.workq,
                                 .isolation = SG_AGENT_HOST,
                                 .seen_at = w->rec.home,
                                 .ready = agent_ready,
                                 .lost = agent_lost,
                                 .arg = w};
    if (rc == 0)
        rc = sg_agent_new(sock, &o, &agent, &err);
    if (rc == 0)
        sg_agent_sandbox_set(&w->base, agent);
    else
        wt_fail(w, &err);
    sg_error_clear(&err);
    wt_unref(w);
}

void wt_start_agent(struct wt *w)
{
    wt_ref(w);
    sg_reactor_post(w->d->parts.reactor, &w->agent_task);
}

static void begin_run(struct sg_task *t)
{
    struct wt *w = WT_OF(t, begin_task);
    wt_clean(w);
    wt_unref(w);
}

static struct wt *wt_new(struct worktree *d)
{
    struct wt *w = sg_xcalloc(1, sizeof *w);
    atomic_init(&w->refs, 1);
    w->d = d_ref(d);
    w->dir_fd = -1;
    sg_agent_sandbox_init(&w->base, &d->base);
    w->base.sb.env = &w->env;
    w->timer.fire = time_over;
    w->begin_task.run = begin_run;
    w->end_task.run = end_run;
    w->agent_task.run = start_agent;
    w->cleaned_task.run = cleaned_run;
    return w;
}

/* ---- requests ---- */

static int refuse(struct sg_error *err, const char *field, const char *why)
{
    return sg_error_field(err, SG_NOT_SUPPORTED, field, "a worktree %s", why);
}

static int check(struct sg_driver *base, const struct sg_sandbox_spec *spec, struct sg_error *err)
{
    struct worktree *d = (struct worktree *)base;
    const struct sg_limits *l = &spec->limits;
    const char *root = spec->root != NULL ? spec->root : "/workspace";
    if (spec->local_pool != NULL && spec->local_pool[0] != '\0')
        return refuse(err, "local_pool", "comes from no local pool");
    if (spec->image != NULL)
        return refuse(err, "image", "has no image: its commands run on the host");
    if (spec->egress_given && spec->egress != SG_EGRESS_OPEN)
        return refuse(err, "network_egress_class", "has the host's network: only open can be promised");
    if (l->memory_bytes > 0 || l->pids > 0 || l->cpu_milli > 0 || l->disk_bytes > 0)
        return refuse(err, "limits", "has no limits of its own");
    if (strncmp(root, "/workspace", 10) != 0 || (root[10] != '\0' && root[10] != '/'))
        return refuse(err, "manifest.root", "can only be at /workspace or below");
    return sg_repos_find(d->repos, spec->repo_name, err) != NULL ? 0 : -1;
}

static int fill(struct wt *w, const struct sg_sandbox_spec *spec, struct sg_error *err)
{
    struct worktree *d = w->d;
    const struct sg_host_user *user = sg_host_user(sg_repos_host(d->repos));
    const char *id = spec->lease_id;
    struct sg_record *r = &w->rec;
    if (id == NULL || !sg_record_id_valid(id))
        return sg_error_set(err, SG_INTERNAL, "a worktree needs the id of its lease");
    const char *name = sg_repos_find(d->repos, spec->repo_name, err);
    if (name == NULL)
        return -1;
    w->root = sg_xstrdup(spec->root != NULL ? spec->root : "/workspace");
    w->ref = sg_xstrdup(spec->repo_ref != NULL ? spec->repo_ref : "HEAD");
    (void)snprintf(r->id, sizeof r->id, "%s", id);
    (void)snprintf(r->commit, sizeof r->commit, "%s", spec->repo_commit != NULL ? spec->repo_commit : "");
    (void)snprintf(w->base.sb.id, sizeof w->base.sb.id, "%s", id);
    r->repo = sg_xstrdup(name);
    r->git_dir = sg_xstrdup(sg_repos_git_dir(d->repos, name));
    r->home = sg_xasprintf("%s/%s", d->dir, id);
    r->tree = sg_xasprintf("%s%s", r->home, w->root);
    r->branch = sg_xasprintf("sandgate/%s", id);
    sg_cleanup(sg_free_p) char *home = sg_xasprintf("%s/home/sandbox", r->home);
    sg_cleanup(sg_free_p) char *tmp = sg_xasprintf("%s/tmp", r->home);
    if (sg_env_set(&w->env, "HOME", home, err) < 0 || sg_env_set(&w->env, "TMPDIR", tmp, err) < 0)
        return -1;
    return user->name[0] != '\0' ? sg_env_set(&w->env, "USER", user->name, err) : 0;
}

static int create(struct sg_driver *base, const struct sg_sandbox_spec *spec, struct sg_cancel *cancel, const struct sg_sandbox_done *done,
                  struct sg_error *err)
{
    struct worktree *d = (struct worktree *)base;
    if (check(base, spec, err) < 0)
        return -1;
    struct wt *w = wt_new(d);
    w->created = *done;
    w->cancel = cancel != NULL ? sg_cancel_ref(cancel) : NULL;
    if (fill(w, spec, err) < 0 || enlist(w, err) < 0) {
        wt_unref(w);
        return -1;
    }
    wt_make(w);
    wt_unref(w);
    return 0;
}

struct terminate_call {
    struct sg_task task;
    struct wt *w; /* one reference */
    struct sg_done done;
};

static void terminate_run(struct sg_task *t)
{
    struct terminate_call *c = (struct terminate_call *)t;
    struct wt *w = c->w;
    bool told = w->late || w->attempts > 0;
    if (!told) {
        struct ending *e = sg_xcalloc(1, sizeof *e);
        e->done = c->done;
        e->next = w->endings;
        w->endings = e;
        w->keep = true;
        begin_end(w);
    } else if (c->done.fn != NULL) {
        c->done.fn(c->done.arg, NULL);
    }
    wt_unref(w);
    free(c);
}

static void post_terminate(struct wt *w, const struct sg_done *done)
{
    struct terminate_call *c = sg_xcalloc(1, sizeof *c);
    c->task.run = terminate_run;
    c->w = wt_ref(w);
    c->done = *done;
    sg_reactor_post(w->d->parts.reactor, &c->task);
}

static void terminate(struct sg_sandbox *sb, const struct sg_done *done)
{
    post_terminate((struct wt *)sb, done);
}

static void sandbox_free(struct sg_sandbox *sb)
{
    struct wt *w = (struct wt *)sb;
    post_terminate(w, &(struct sg_done){NULL, NULL});
    wt_unref(w);
}

static int exec_start(struct sg_sandbox *sb, const struct sg_exec_spec *spec, const struct sg_exec_sink *sink, struct sg_exec **ret,
                      struct sg_error *err)
{
    struct sg_agent *a = sg_agent_sandbox_agent(sb, err);
    int rc = a != NULL ? sg_agent_exec_start(a, spec, NULL, sink, ret, err) : -1;
    sg_agent_unref(a);
    return rc;
}

static struct json_t *metadata(struct sg_sandbox *sb)
{
    const struct wt *w = (const struct wt *)sb;
    const struct sg_host_user *user = sg_host_user(sg_repos_host(w->d->repos));
    char number[16];
    (void)snprintf(number, sizeof number, "%u", user->uid);
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:{s:s, s:s, s:s}, s:{s:s, s:s, s:s, s:s}}", "isolation", "none", "agent_isolation",
                     "none", "tree_kill", "helper", "user", user->name[0] != '\0' ? user->name : number, "directory", w->rec.tree, "branch", w->rec.branch, "repo", "name",
                     w->rec.repo, "ref", w->ref, "commit", w->rec.commit, "limits_enforced", "memory", "none", "pids", "none", "cpu",
                     "none", "disk", "none");
}

static int health(struct sg_driver *base, struct sg_error *err)
{
    struct worktree *d = (struct worktree *)base;
    (void)pthread_mutex_lock(&d->lock);
    bool broken = d->broken.code != SG_OK;
    if (broken)
        sg_error_copy(err, &d->broken);
    (void)pthread_mutex_unlock(&d->lock);
    return broken ? -1 : 0;
}

/* ---- start and end ---- */

struct close_call {
    struct sg_task task;
    struct worktree *d; /* one reference */
};

/* Those of which only files are left, that are waiting to be tried again, are a successor's. Those on their way up see for themselves. */
static void close_run(struct sg_task *t)
{
    struct close_call *c = (struct close_call *)t;
    struct worktree *d = c->d;
    struct wt *w, *next;
    (void)pthread_mutex_lock(&d->lock);
    struct wt *all = d->all;
    (void)pthread_mutex_unlock(&d->lock); /* from here on only this thread takes any out */
    DL_FOREACH_SAFE(all, w, next)
    {
        if (w->phase == WT_READY) {
            w->keep = true;
            begin_end(w);
        } else if (w->phase == WT_CLEANING && w->timer.slot != 0) {
            sg_timer_cancel(d->parts.reactor, &w->timer);
            delist(w);
        }
    }
    free(c);
    d_unref(d);
}

static bool wait_empty(struct worktree *d, int seconds)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += seconds;
    int rc = 0;
    (void)pthread_mutex_lock(&d->lock);
    while (d->all != NULL && rc == 0)
        rc = pthread_cond_timedwait(&d->changed, &d->lock, &until);
    bool empty = d->all == NULL;
    (void)pthread_mutex_unlock(&d->lock);
    return empty;
}

static void driver_free(struct sg_driver *base)
{
    struct worktree *d = (struct worktree *)base;
    (void)pthread_mutex_lock(&d->lock);
    d->closing = true;
    (void)pthread_mutex_unlock(&d->lock);
    struct close_call *c = sg_xcalloc(1, sizeof *c);
    c->task.run = close_run;
    c->d = d_ref(d);
    sg_reactor_post(d->parts.reactor, &c->task);
    if (!wait_empty(d, CLOSE_S)) {
        sg_git_stop(sg_repos_git(d->repos)); /* what is under way fails, and its record stays */
        (void)wait_empty(d, CLOSE_S);
    }
    d_unref(d);
}

static const struct sg_driver_ops ops = {
    .create = create,
    .check = check,
    .terminate = terminate,
    .sandbox_free = sandbox_free,
    .exec_start = exec_start,
    .files = &sg_agent_sandbox_files,
    .dial = sg_agent_sandbox_dial,
    .metadata = metadata,
    .health = health,
    .free = driver_free,
};

/* What a former server left: nothing of it runs any more. */
static void found(void *arg, struct sg_record *r)
{
    struct worktree *d = arg;
    struct wt *w = wt_new(d);
    w->rec = *r;
    *r = (struct sg_record){0};
    w->phase = WT_CLEANING;
    w->keep = true;
    if (enlist(w, NULL) == 0) {
        wt_ref(w);
        sg_reactor_post(d->parts.reactor, &w->begin_task);
    }
    wt_unref(w);
}

static int open_dirs(struct worktree *d, struct sg_error *err)
{
    if (sg_mkdirs(d->records_dir, 0700, err) < 0 || (d->archive_dir != NULL && sg_mkdirs(d->archive_dir, 0700, err) < 0))
        return sg_error_wrap(err, "worktree");
    d->dir_fd = open(d->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return d->dir_fd < 0 ? sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", d->dir) : 0;
}

int sg_worktree_new(const struct sg_worktree_config *cfg, const struct sg_worktree_parts *parts, struct sg_repos *repos,
                    struct sg_driver **ret, struct sg_error *err)
{
    struct worktree *d = sg_xcalloc(1, sizeof *d);
    pthread_condattr_t attr;
    size_t bad = 0;
    atomic_init(&d->refs, 1);
    d->base.ops = &ops;
    d->base.facts = (struct sg_driver_facts){.name = "worktree",
                                             .caps = (unsigned)SG_CAP_FILE_RW | (unsigned)SG_CAP_EXEC | (unsigned)SG_CAP_NETWORK,
                                             .free = true,
                                             .checks_out = true};
    d->parts = *parts;
    d->repos = repos;
    d->dir_fd = -1;
    d->dir = sg_xstrdup(cfg->dir);
    d->records_dir = sg_xstrdup(cfg->records_dir);
    d->archive_dir = cfg->archive_dir != NULL ? sg_xstrdup(cfg->archive_dir) : NULL;
    d->archive_max_bytes = cfg->archive_max_bytes;
    (void)pthread_mutex_init(&d->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&d->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    if (open_dirs(d, err) < 0 || sg_record_each(d->records_dir, found, d, &bad, err) < 0) {
        d_unref(d);
        return -1;
    }
    if (bad > 0)
        sg_error_set(&d->broken, SG_UNAVAILABLE, "%zu records of worktrees in %s cannot be read", bad, d->records_dir);
    *ret = &d->base;
    return 0;
}
