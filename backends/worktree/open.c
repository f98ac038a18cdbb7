/* The repositories and all they need, from the configuration. Everything here may block: it is the start, or the end. */
#include "backends/worktree/repos.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/worktree/repos_priv.h"
#include "backends/worktree/worktree.h"
#include "base/fd.h"

#define LOOK_MS 15000

/* ---- one run of git, waited for ---- */

struct looking {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool over;
    char *line; /* the first one of what it said; NULL: it failed */
    struct sg_error err;
};

static void looked(void *arg, const struct sg_capture_result *r, const struct sg_error *err)
{
    struct looking *l = arg;
    pthread_mutex_lock(&l->lock);
    if (err != NULL)
        sg_error_copy(&l->err, err);
    else if (r->exit.signal != 0 || r->exit.returncode != 0)
        (void)sg_git_error(&l->err, "it cannot be used", r);
    else
        l->line = sg_xstrndup(r->out != NULL ? r->out : "", r->out != NULL ? strcspn(r->out, "\n") : 0);
    l->over = true;
    pthread_cond_signal(&l->cond);
    pthread_mutex_unlock(&l->lock);
}

/* The first line that git says in dir; NULL with err. */
static char *look(struct sg_repos *r, const char *dir, const char *const *argv, struct sg_error *err)
{
    struct looking l = {.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    struct sg_git_args a = {.dir = dir, .argv = argv, .timeout_ms = LOOK_MS, .out_max = 8192, .done = looked, .arg = &l};
    int rc = sg_git_run(r->git, &a, &l.err);
    pthread_mutex_lock(&l.lock);
    while (rc == 0 && !l.over)
        pthread_cond_wait(&l.cond, &l.lock);
    pthread_mutex_unlock(&l.lock);
    if (l.line == NULL)
        sg_error_copy(err, &l.err);
    sg_error_clear(&l.err);
    return l.line;
}

static int look_at_repo(struct sg_repos *r, struct repo *repo, struct sg_error *err)
{
    static const char *const argv[] = {"rev-parse", "--path-format=absolute", "--git-common-dir", NULL};
    struct sg_error why = {0};
    repo->git_dir = look(r, repo->path, argv, &why);
    if (repo->git_dir != NULL && repo->git_dir[0] == '/')
        return 0;
    sg_error_field(err, SG_INVALID_REQUEST, "worktree.repos", "worktree.repos: %s (%s), as user %s: %s", repo->name, repo->path,
                   sg_host_user(r->host)->name, why.message);
    sg_error_clear(&why);
    return -1;
}

/* ---- the directory of worktrees ---- */

/* Others may not look in, but pass through: the worktrees below are the user's. */
static int make_dir(const char *path, struct sg_error *err)
{
    const char *last = strrchr(path, '/');
    sg_cleanup(sg_free_p) char *above = sg_xstrndup(path, (size_t)(last - path));
    if (above[0] != '\0' && sg_mkdirs(above, 0755, err) < 0)
        return sg_error_wrap(err, "worktree.dir");
    if (mkdir(path, 0711) == 0 && chmod(path, 0711) == 0)
        return 0;
    return errno == EEXIST ? 0 : sg_error_sys(err, SG_UNAVAILABLE, errno, "worktree.dir: %s", path);
}

static int check_dir(struct sg_repos *r, struct sg_error *err)
{
    static const char *const argv[] = {"version", NULL};
    struct sg_error why = {0};
    sg_cleanup(sg_free_p) char *version = look(r, r->dir, argv, &why);
    if (version != NULL)
        return 0;
    sg_error_field(err, SG_INVALID_REQUEST, "worktree.dir",
                   "worktree.dir: user %s cannot get to %s (%s): set it to a directory that user can reach", sg_host_user(r->host)->name,
                   r->dir, why.message);
    sg_error_clear(&why);
    return -1;
}

/* Clones that a former server was taking out. */
static void remove_leftovers(const char *path)
{
    DIR *d = opendir(path);
    for (struct dirent *e = d != NULL ? readdir(d) : NULL; e != NULL; e = readdir(d))
        if (strncmp(e->d_name, SG_REPO_EXPORT, sizeof SG_REPO_EXPORT - 1) == 0)
            (void)sg_remove_tree(dirfd(d), e->d_name, NULL);
    if (d != NULL)
        (void)closedir(d);
}

/* ---- start and end ---- */

static int check_config(const struct sg_worktree_config *c, struct sg_error *err)
{
    if (c->n_repos == 0 || c->n_repos > SG_WORKTREE_REPOS_MAX)
        return sg_error_field(err, SG_INVALID_REQUEST, "worktree.repos", "worktree.repos: 1 to %u repositories", SG_WORKTREE_REPOS_MAX);
    for (size_t i = 0; i < c->n_repos; i++)
        if (c->repos[i].path[0] != '/')
            return sg_error_field(err, SG_INVALID_REQUEST, "worktree.repos", "worktree.repos: %s: an absolute path is expected",
                                  c->repos[i].name);
    return c->dir[0] == '/' ? 0 : sg_error_field(err, SG_INVALID_REQUEST, "worktree.dir", "worktree.dir: an absolute path is expected");
}

static int build(struct sg_repos *r, const struct sg_worktree_config *c, const struct sg_worktree_parts *parts, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *lock = sg_xasprintf("%s/lock", c->records_dir);
    struct sg_host_config hc = {.agent_path = c->agent_path, .lock_path = lock, .user = c->user};
    if (check_config(c, err) < 0 || sg_mkdirs(c->records_dir, 0700, err) < 0 || make_dir(c->dir, err) < 0 ||
        sg_host_new(&hc, parts->reactor, &r->host, err) < 0)
        return -1;
    remove_leftovers(c->dir);
    if (sg_git_new(r->host, parts->reactor, parts->workq, &r->git, err) < 0 || check_dir(r, err) < 0)
        return -1;
    r->repos = sg_xcalloc(c->n_repos, sizeof *r->repos);
    for (size_t i = 0; i < c->n_repos; i++) {
        r->n = i + 1;
        r->repos[i].name = sg_xstrdup(c->repos[i].name);
        r->repos[i].path = sg_xstrdup(c->repos[i].path);
        if (look_at_repo(r, &r->repos[i], err) < 0)
            return -1;
    }
    return 0;
}

int sg_repos_open(const struct sg_worktree_config *cfg, const struct sg_worktree_parts *parts, struct sg_repos **ret, struct sg_error *err)
{
    struct sg_repos *r = sg_xcalloc(1, sizeof *r);
    r->workq = parts->workq;
    r->dir = sg_xstrdup(cfg->dir);
    pthread_mutex_init(&r->lock, NULL);
    if (build(r, cfg, parts, err) < 0) {
        sg_repos_close(r);
        return -1;
    }
    *ret = r;
    return 0;
}

struct sg_repos *sg_repos_close(struct sg_repos *r)
{
    if (r == NULL)
        return NULL;
    sg_git_free(r->git);
    sg_host_free(r->host);
    for (size_t i = 0; i < r->n; i++) {
        free(r->repos[i].name);
        free(r->repos[i].path);
        free(r->repos[i].git_dir);
    }
    free(r->repos);
    free(r->dir);
    pthread_mutex_destroy(&r->lock);
    free(r);
    return NULL;
}
