#include "backends/worktree/git.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "base/buf.h"

#define SETTINGS_MAX 256U
#define PLAIN_PATH "/usr/local/bin:/usr/bin:/bin"

struct sg_git {
    struct sg_host *host;
    struct sg_reactor *reactor;
    struct sg_workq *workq;
    char *program; /* absolute */
    int root;      /* the host's "/" */
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t idle;
    struct sg_agent *agent; /* NULL: there is none, or it was lost */
    uint64_t agent_id;
    size_t runs;
    bool stopped;
};

/* A run under way. */
struct run {
    struct sg_git *g;
    void (*done)(void *arg, const struct sg_capture_result *r, const struct sg_error *err);
    void *arg;
};

/* ---- the agent ---- */

/* Whether an agent lives is seen from its client. */
static void agent_gone(void *arg, const struct sg_error *err)
{
    (void)arg;
    (void)err;
}

/* Under the lock. */
static int start_agent(struct sg_git *g, struct sg_error *err)
{
    int sock = -1;
    if (sg_host_start(g->host, g->root, agent_gone, NULL, &sock, &g->agent_id, err) < 0)
        return -1;
    struct sg_agent_options o = {.reactor = g->reactor, .workq = g->workq, .isolation = SG_AGENT_HOST, .root = "/"};
    if (sg_agent_new(sock, &o, &g->agent, err) == 0)
        return 0;
    sg_host_kill(g->host, g->agent_id);
    return -1;
}

struct sg_agent *sg_git_agent(struct sg_git *g, struct sg_error *err)
{
    struct sg_agent *a = NULL;
    pthread_mutex_lock(&g->lock);
    if (g->agent != NULL && sg_agent_is_gone(g->agent)) {
        sg_host_kill(g->host, g->agent_id);
        g->agent = sg_agent_unref(g->agent);
    }
    if (g->stopped)
        sg_error_set(err, SG_SHUTTING_DOWN, "the server is shutting down");
    else if (g->agent != NULL || start_agent(g, err) == 0)
        a = sg_agent_ref(g->agent);
    pthread_mutex_unlock(&g->lock);
    return a;
}

/* ---- the environment ---- */

/* A string that may hold anything, so that it comes as a variable and not as an argument. */
static int add_setting(struct sg_env *env, unsigned *n, const char *key, const char *value, struct sg_error *err)
{
    char name[40];
    if (*n >= SETTINGS_MAX)
        return sg_error_set(err, SG_LIMIT_EXCEEDED, "the repository's configuration has too many filters");
    (void)snprintf(name, sizeof name, "GIT_CONFIG_KEY_%u", *n);
    if (sg_env_set(env, name, key, err) < 0)
        return -1;
    (void)snprintf(name, sizeof name, "GIT_CONFIG_VALUE_%u", *n);
    ++*n;
    return sg_env_set(env, name, value, err);
}

/* These win over what the repository says of itself. */
static const char *const settings[][2] = {
    {"core.hooksPath", "/dev/null"},    {"core.fsmonitor", "false"},
    {"core.attributesFile", "/dev/null"}, {"core.excludesFile", "/dev/null"},
    {"core.pager", "cat"},              {"core.editor", "false"},
    {"core.askPass", "false"},          {"core.sshCommand", "false"},
    {"core.gitProxy", "false"},         {"core.alternateRefsCommand", "false"},
    {"core.untrackedCache", "false"},   {"credential.helper", ""},
    {"diff.external", ""},              {"gpg.program", "false"},
    {"submodule.recurse", "false"},     {"fetch.recurseSubmodules", "false"},
    {"fetch.writeCommitGraph", "false"}, {"gc.auto", "0"},
    {"pack.threads", "1"},              {"pack.windowMemory", "64m"},
    {"maintenance.auto", "false"},      {"checkout.defaultRemote", ""},
    /* Whoever else holds a lock of the repository is waited for. */
    {"core.filesRefLockTimeout", "20000"}, {"core.packedRefsTimeout", "20000"},
};

static const char *const variables[][2] = {
    {"PATH", PLAIN_PATH},
    {"HOME", "/nonexistent"},
    {"LC_ALL", "C"},
    {"GIT_CONFIG_NOSYSTEM", "1"},
    {"GIT_CONFIG_SYSTEM", "/dev/null"},
    {"GIT_CONFIG_GLOBAL", "/dev/null"},
    {"GIT_ATTR_NOSYSTEM", "1"},
    {"GIT_TERMINAL_PROMPT", "0"},
    {"GIT_ASKPASS", "false"},
    {"GIT_EDITOR", "false"},
    {"GIT_PAGER", "cat"},
    {"GIT_OPTIONAL_LOCKS", "0"},
    {"GIT_NO_REPLACE_OBJECTS", "1"},
    {"GIT_NO_LAZY_FETCH", "1"},
    {"GIT_ADVICE", "0"},
    {"GIT_AUTHOR_NAME", "sandgate"},
    {"GIT_AUTHOR_EMAIL", "sandgate@localhost"},
    {"GIT_COMMITTER_NAME", "sandgate"},
    {"GIT_COMMITTER_EMAIL", "sandgate@localhost"},
};

static int fill_env(const struct sg_git_args *a, struct sg_env *env, struct sg_error *err)
{
    unsigned n = 0;
    char count[16];
    int rc = 0;
    for (size_t i = 0; i < SG_COUNT_OF(variables) && rc == 0; i++)
        rc = sg_env_set(env, variables[i][0], variables[i][1], err);
    for (size_t i = 0; i < SG_COUNT_OF(settings) && rc == 0; i++)
        rc = add_setting(env, &n, settings[i][0], settings[i][1], err);
    for (const char *const *c = a->config; rc == 0 && c != NULL && c[0] != NULL; c += 2)
        rc = add_setting(env, &n, c[0], c[1], err);
    /* The operator named the repository: whose it is does not matter. */
    if (rc == 0)
        rc = add_setting(env, &n, "safe.directory", "*", err);
    (void)snprintf(count, sizeof count, "%u", n);
    /* A directory that is no repository does not stand for one above it. */
    const char *last = strrchr(a->dir, '/');
    sg_cleanup(sg_free_p) char *above = sg_xstrndup(a->dir, last != NULL ? (size_t)(last - a->dir) : 0);
    if (rc == 0 && a->git_dir == NULL)
        rc = sg_env_set(env, "GIT_CEILING_DIRECTORIES", above[0] != '\0' ? above : "/", err);
    if (rc < 0 || sg_env_set(env, "GIT_CONFIG_COUNT", count, err) < 0 ||
        sg_env_set(env, "GIT_ALLOW_PROTOCOL", "none", err) < 0 ||
        (a->git_dir != NULL && sg_env_set(env, "GIT_DIR", a->git_dir, err) < 0))
        return -1;
    for (const char *const *v = a->variables; v != NULL && v[0] != NULL; v += 2)
        if (sg_env_set(env, v[0], v[1], err) < 0)
            return -1;
    return 0;
}

/* ---- runs ---- */

static void run_over(struct sg_git *g)
{
    pthread_mutex_lock(&g->lock);
    g->runs--;
    pthread_cond_broadcast(&g->idle);
    pthread_mutex_unlock(&g->lock);
}

static void run_done(void *arg, const struct sg_capture_result *r, const struct sg_error *err)
{
    struct run *run = arg;
    run->done(run->arg, r, err);
    run_over(run->g);
    free(run);
}

static int run(struct sg_git *g, const struct sg_git_args *a, const char *const *argv, const struct sg_env *env, struct sg_error *err)
{
    struct sg_agent *agent = sg_git_agent(g, err);
    if (agent == NULL)
        return -1;
    struct run *run = sg_xcalloc(1, sizeof *run);
    *run = (struct run){g, a->done, a->arg};
    struct sg_capture_args c = {.agent = agent,
                                .argv = argv,
                                .cwd = a->dir,
                                .env = env,
                                .timeout_ms = a->timeout_ms,
                                .out_max = a->out_max,
                                .to = a->to,
                                .done = run_done,
                                .arg = run};
    pthread_mutex_lock(&g->lock);
    g->runs++;
    pthread_mutex_unlock(&g->lock);
    int rc = sg_capture(&c, err);
    sg_agent_unref(agent);
    if (rc == 0)
        return 0;
    free(run);
    run_over(g);
    if (err != NULL && err->code != SG_OVERLOADED) {
        err->code = SG_UNAVAILABLE; /* it is not the caller's sandbox that is lost */
        sg_error_retry_after(err, 1);
    }
    return -1;
}

int sg_git_run(struct sg_git *g, const struct sg_git_args *a, struct sg_error *err)
{
    const char *argv[64];
    size_t n = 0;
    struct sg_env env = {0};
    argv[n++] = g->program;
    argv[n++] = "--no-pager";
    for (size_t i = 0; a->argv[i] != NULL; i++) {
        if (n + 1 == SG_COUNT_OF(argv))
            return sg_error_set(err, SG_INTERNAL, "too many arguments for git");
        argv[n++] = a->argv[i];
    }
    argv[n] = NULL;
    int rc = fill_env(a, &env, err);
    if (rc == 0)
        rc = run(g, a, argv, &env, err);
    sg_env_finish(&env);
    return rc;
}

int sg_git_run_other(struct sg_git *g, const struct sg_git_args *a, struct sg_error *err)
{
    struct sg_env env = {0};
    int rc = sg_env_set(&env, "PATH", PLAIN_PATH, err) < 0 ? -1 : sg_env_set(&env, "LC_ALL", "C", err);
    if (rc == 0)
        rc = run(g, a, a->argv, &env, err);
    sg_env_finish(&env);
    return rc;
}

int sg_git_error(struct sg_error *err, const char *what, const struct sg_capture_result *r)
{
    if (r->exit.killed_by == SG_KILLED_TIMEOUT) {
        sg_error_set(err, SG_UNAVAILABLE, "%s: git took too long", what);
        sg_error_reason(err, "git_timeout");
    } else {
        sg_error_set(err, SG_UNAVAILABLE, "%s: git says: %.300s", what, r->err[0] != '\0' ? r->err : "(nothing)");
        sg_error_reason(err, "git_failed");
    }
    return sg_error_retry_after(err, 1);
}

char *sg_git_object_dir(const char *path)
{
    struct sg_buf b;
    sg_buf_init(&b, 16384);
    (void)sg_buf_add(&b, "\"", 1);
    for (const char *p = path; *p != '\0'; p++)
        (void)sg_buf_addf(&b, *p == '"' || *p == '\\' ? "\\%c" : "%c", *p);
    (void)sg_buf_addf(&b, "/objects\"");
    return sg_buf_steal(&b, NULL);
}

/* ---- start and end ---- */

static char *find_program(const char *name)
{
    const char *dirs = getenv("PATH");
    char path[PATH_MAX];
    if (dirs == NULL)
        dirs = PLAIN_PATH;
    for (; *dirs != '\0'; dirs += *dirs == ':') {
        size_t n = strcspn(dirs, ":");
        if (n > 0 && dirs[0] == '/' && (size_t)snprintf(path, sizeof path, "%.*s/%s", (int)n, dirs, name) < sizeof path &&
            access(path, X_OK) == 0)
            return sg_xstrdup(path);
        dirs += n;
    }
    return NULL;
}

int sg_git_new(struct sg_host *h, struct sg_reactor *r, struct sg_workq *q, struct sg_git **ret, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *program = find_program("git");
    if (program == NULL)
        return sg_error_set(err, SG_UNAVAILABLE, "git is not in PATH: install the package git");
    int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "/");
    struct sg_git *g = sg_xcalloc(1, sizeof *g);
    g->host = h;
    g->reactor = r;
    g->workq = q;
    g->program = sg_steal(&program);
    g->root = root;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->idle, NULL);
    *ret = g;
    return 0;
}

void sg_git_stop(struct sg_git *g)
{
    pthread_mutex_lock(&g->lock);
    g->stopped = true;
    struct sg_agent *agent = sg_steal(&g->agent);
    uint64_t id = g->agent_id;
    pthread_mutex_unlock(&g->lock);
    if (agent != NULL) {
        (void)sg_agent_end(agent);
        sg_host_kill(g->host, id);
    }
    pthread_mutex_lock(&g->lock);
    while (g->runs > 0)
        pthread_cond_wait(&g->idle, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

struct sg_git *sg_git_free(struct sg_git *g)
{
    if (g == NULL)
        return NULL;
    sg_git_stop(g);
    sg_close(g->root);
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->idle);
    free(g->program);
    free(g);
    return NULL;
}
