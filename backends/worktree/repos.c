/* Which repositories there are, what their refs mean, whose turn it is. */
#include "backends/worktree/repos.h"

#include <stdio.h>
#include <utlist.h>

#include "backends/worktree/repos_priv.h"

#define COMMIT_OUT 256U
#define FILTERS_OUT 65536U
#define FILTERS_MAX 50U

struct sg_git *sg_repos_git(const struct sg_repos *r)
{
    return r->git;
}

struct sg_host *sg_repos_host(const struct sg_repos *r)
{
    return r->host;
}

static const struct repo *find(const struct sg_repos *r, const char *name)
{
    for (size_t i = 0; r != NULL && i < r->n; i++)
        if (name != NULL ? sg_streq(r->repos[i].name, name) : r->n == 1)
            return &r->repos[i];
    return NULL;
}

const char *sg_repos_find(const struct sg_repos *r, const char *name, struct sg_error *err)
{
    const struct repo *found = find(r, name);
    if (found != NULL)
        return found->name;
    if (name != NULL)
        sg_error_field(err, SG_REPO_NOT_FOUND, "manifest.repo.name", "this server has no repository \"%s\"", name);
    else
        sg_error_field(err, SG_REPO_NOT_FOUND, "manifest.repo.name", "which repository? this server has %zu", r != NULL ? r->n : 0);
    return NULL;
}

const char *sg_repos_git_dir(const struct sg_repos *r, const char *name)
{
    return find(r, name)->git_dir;
}

/* ---- refs ---- */

struct resolving {
    struct sg_repos_resolved done;
    char name[64], ref[256];
};

/* The first line, if it is all hex. */
static bool take_commit(const struct sg_capture_result *r, char commit[SG_COMMIT_LEN])
{
    size_t n = strspn(r->out, "0123456789abcdef");
    if ((n != 40 && n != 64) || r->out[n] != '\n')
        return false;
    memcpy(commit, r->out, n);
    commit[n] = '\0';
    return true;
}

static void resolved(void *arg, const struct sg_capture_result *r, const struct sg_error *err)
{
    struct resolving *q = arg;
    struct sg_error own = {0};
    char commit[SG_COMMIT_LEN];

    if (err != NULL) {
        sg_error_set(&own, SG_UNAVAILABLE, "repository \"%s\": %s", q->name, err->message);
        sg_error_retry_after(&own, 1);
    } else if (r->exit.signal == 0 && r->exit.returncode == 1) {
        sg_error_field(&own, SG_REF_NOT_FOUND, "manifest.repo.ref", "repository \"%s\" has no branch, tag or commit \"%s\"", q->name, q->ref);
    } else if (r->exit.signal != 0 || r->exit.returncode != 0 || !take_commit(r, commit)) {
        char what[96];
        (void)snprintf(what, sizeof what, "repository \"%s\"", q->name);
        sg_git_error(&own, what, r);
    }
    q->done.fn(q->done.arg, own.code == SG_OK ? commit : NULL, own.code == SG_OK ? NULL : &own);
    sg_error_clear(&own);
    free(q);
}

int sg_repos_resolve(struct sg_repos *r, const char *name, const char *ref, const struct sg_repos_resolved *done, struct sg_error *err)
{
    const struct repo *repo = find(r, name);
    char what[300];
    if (repo == NULL)
        return sg_repos_find(r, name, err) == NULL ? -1 : 0;
    struct resolving *q = sg_xcalloc(1, sizeof *q);
    q->done = *done;
    (void)snprintf(q->name, sizeof q->name, "%s", repo->name);
    (void)snprintf(q->ref, sizeof q->ref, "%s", ref != NULL ? ref : "HEAD");
    (void)snprintf(what, sizeof what, "%s^{commit}", q->ref);
    const char *argv[] = {"rev-parse", "--verify", "--quiet", what, NULL};
    struct sg_git_args a = {.dir = repo->git_dir, .git_dir = repo->git_dir, .argv = argv, .timeout_ms = SG_GIT_MS, .out_max = COMMIT_OUT, .done = resolved, .arg = q};
    if (sg_git_run(r->git, &a, err) == 0)
        return 0;
    free(q);
    return -1;
}

/* ---- filters ---- */

void sg_repo_filters_finish(struct sg_repo_filters *f)
{
    for (size_t i = 0; f->settings != NULL && f->settings[i] != NULL; i++)
        free(f->settings[i]);
    free(f->settings);
    *f = (struct sg_repo_filters){0};
}

static bool known_filter(char **settings, size_t n, const char *name, size_t len)
{
    for (size_t i = 0; i < n; i += 8)
        if (strncmp(settings[i] + sizeof "filter" , name, len) == 0 && sg_streq(settings[i] + sizeof "filter" + len, ".clean"))
            return true;
    return false;
}

/* names: "filter.NAME.KEY" NUL and so on. Each NAME gives four settings. */
static int turn_off(const char *names, size_t len, struct sg_repo_filters *f, struct sg_error *err)
{
    static const char *const off[][2] = {{"clean", ""}, {"smudge", ""}, {"process", ""}, {"required", "false"}};
    size_t n = 0, filters = 0;
    f->settings = sg_xcalloc(FILTERS_MAX * 8 + 1, sizeof *f->settings);
    for (const char *at = names; at < names + len; at += strlen(at) + 1) {
        const char *name = at + sizeof "filter", *dot = strrchr(at, '.');
        if (strncmp(at, "filter.", sizeof "filter") != 0 || dot < name || known_filter(f->settings, n, name, (size_t)(dot - name)))
            continue;
        if (filters++ == FILTERS_MAX)
            return sg_error_set(err, SG_LIMIT_EXCEEDED, "the repository's configuration has more than %u filters", FILTERS_MAX);
        for (size_t i = 0; i < SG_COUNT_OF(off); i++) {
            f->settings[n++] = sg_xasprintf("filter.%.*s.%s", (int)(dot - name), name, off[i][0]);
            f->settings[n++] = sg_xstrdup(off[i][1]);
        }
    }
    return 0;
}

static void filters_listed(void *arg, const struct sg_capture_result *r, const struct sg_error *err)
{
    struct sg_repo_filters_done *done = arg;
    struct sg_repo_filters f = {0};
    struct sg_error own = {0};

    if (err != NULL)
        sg_error_copy(&own, err);
    else if (r->exit.signal != 0 || r->exit.returncode > 1)
        sg_git_error(&own, "the repository's configuration", r);
    else if (r->out_cut)
        sg_error_set(&own, SG_LIMIT_EXCEEDED, "the repository's configuration has too many filters");
    else
        (void)turn_off(r->out != NULL ? r->out : "", r->out_len, &f, &own);
    if (own.code != SG_OK)
        sg_repo_filters_finish(&f);
    done->fn(done->arg, own.code == SG_OK ? &f : NULL, own.code == SG_OK ? NULL : &own);
    sg_error_clear(&own);
    free(done);
}

int sg_repo_filters(struct sg_git *g, const char *git_dir, const struct sg_repo_filters_done *done, struct sg_error *err)
{
    static const char *const argv[] = {"config", "--name-only", "-z", "--get-regexp", "^filter\\.", NULL};
    struct sg_repo_filters_done *copy = sg_xcalloc(1, sizeof *copy);
    *copy = *done;
    struct sg_git_args a = {.dir = git_dir, .git_dir = git_dir, .argv = argv, .timeout_ms = SG_GIT_MS, .out_max = FILTERS_OUT, .done = filters_listed, .arg = copy};
    if (sg_git_run(g, &a, err) == 0)
        return 0;
    free(copy);
    return -1;
}

/* ---- turns ---- */

/* Under the lock. */
static struct sg_turn *next_turn(struct sg_repos *r, const char *git_dir)
{
    struct sg_turn *t;
    DL_FOREACH(r->turns, t)
    {
        if (sg_streq(t->git_dir, git_dir))
            return t->at_work ? NULL : t;
    }
    return NULL;
}

static void begin_turn(struct sg_repos *r, const char *git_dir)
{
    pthread_mutex_lock(&r->lock);
    struct sg_turn *t = next_turn(r, git_dir);
    if (t != NULL)
        t->at_work = true;
    pthread_mutex_unlock(&r->lock);
    if (t != NULL)
        t->fn(t);
}

void sg_turn_wait(struct sg_repos *r, struct sg_turn *t)
{
    const char *git_dir = t->git_dir;
    pthread_mutex_lock(&r->lock);
    t->at_work = false;
    DL_APPEND(r->turns, t);
    pthread_mutex_unlock(&r->lock);
    begin_turn(r, git_dir);
}

void sg_turn_over(struct sg_repos *r, struct sg_turn *t)
{
    const char *git_dir = t->git_dir;
    pthread_mutex_lock(&r->lock);
    DL_DELETE(r->turns, t);
    pthread_mutex_unlock(&r->lock);
    begin_turn(r, git_dir);
}
