/* What a lease had changed: everything that differs from the commit it began with, committed or not, without what the repository ignores. Kept as
 *
 *     archive_dir/ID/changes.patch   for git apply, on that commit
 *     archive_dir/ID/changes.tar     the changed and new files themselves
 *     archive_dir/ID/archive.json    which lease, repository and commit; which of the two are there
 *
 * in a directory that has its name only when it is complete. git looks through an index and an object store of its own beside the
 * worktree, so that nothing is added to the repository.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/worktree/tofile.h"
#include "backends/worktree/worktree_priv.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/json.h"

#define PIPE_BYTES (256U * 1024U)

struct archive {
    struct wt *w;
    void (*done)(struct wt *w, const struct sg_error *err);
    struct sg_work work;
    struct sg_repo_filters filters;
    char *stage; /* a directory of the user's beside the worktree; goes with it */
    char *index, *objects, *borrowed, *list, *list_option;
    int dir; /* the archive's, not yet under its name */
    bool has_patch, has_tar;
};

static char *dir_path(const struct archive *a, const char *suffix)
{
    return sg_xasprintf("%s/%s%s", a->w->d->archive_dir, a->w->rec.id, suffix);
}

static void finish(struct archive *a, const struct sg_error *err)
{
    struct wt *w = a->w;
    void (*done)(struct wt *, const struct sg_error *) = a->done;
    a->dir = sg_close(a->dir);
    if (err != NULL) {
        sg_cleanup(sg_free_p) char *partial = dir_path(a, ".partial");
        (void)sg_remove_tree(AT_FDCWD, partial, NULL);
    }
    sg_repo_filters_finish(&a->filters);
    free(a->stage);
    free(a->index);
    free(a->objects);
    free(a->borrowed);
    free(a->list);
    free(a->list_option);
    free(a);
    done(w, err);
}

static void fail(struct archive *a, struct sg_error *err)
{
    sg_error_wrap(err, "archive of %s", a->w->rec.id);
    finish(a, err);
    sg_error_clear(err);
}

/* ---- git ---- */

typedef void git_done(void *arg, const struct sg_capture_result *r, const struct sg_error *err);

static void run(struct archive *a, const char *const *argv, int64_t ms, struct sg_pipe *to, git_done *next)
{
    const struct sg_record *r = &a->w->rec;
    const char *variables[] = {"GIT_WORK_TREE", r->tree, "GIT_INDEX_FILE", a->index, "GIT_OBJECT_DIRECTORY", a->objects,
                               "GIT_ALTERNATE_OBJECT_DIRECTORIES", a->borrowed, NULL};
    struct sg_error err = {0};
    struct sg_git_args g = {.dir = r->tree,
                            .git_dir = r->git_dir,
                            .argv = argv,
                            .config = (const char *const *)a->filters.settings,
                            .variables = variables,
                            .timeout_ms = ms,
                            .to = to,
                            .done = next,
                            .arg = a};
    if (sg_git_run(sg_repos_git(a->w->d->repos), &g, &err) < 0)
        fail(a, &err);
}

/* most: the highest exit status that is fine. */
static bool went_well(struct archive *a, int most, const struct sg_capture_result *r, const struct sg_error *err)
{
    struct sg_error own = {0};
    if (err == NULL && r->exit.signal == 0 && r->exit.returncode <= most)
        return true;
    if (err != NULL)
        sg_error_copy(&own, err);
    else
        sg_git_error(&own, "cannot look for changes", r);
    fail(a, &own);
    return false;
}

/* ---- the last steps: names and all ---- */

static void keep(struct sg_work *work)
{
    struct archive *a = sg_container_of(work, struct archive, work);
    const struct sg_record *r = &a->w->rec;
    struct sg_error err = {0};
    char at[SG_TIME_LEN];
    sg_cleanup(sg_free_p) char *partial = dir_path(a, ".partial");
    sg_cleanup(sg_free_p) char *final = dir_path(a, "");
    sg_cleanup(sg_free_p) char *file = sg_xasprintf("%s/archive.json", partial);
    sg_time_format(sg_wall_us(), at);
    sg_cleanup(sg_json_p) json_t *v = json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:b}", "lease_id", r->id, "repo", r->repo, "commit", r->commit,
                                                "branch", r->branch, "created_at", at, "patch", a->has_patch, "tar", a->has_tar);
    size_t len = 0;
    sg_cleanup(sg_free_p) char *text = v != NULL ? sg_json_dump(v, &len) : NULL;
    if (text == NULL)
        sg_error_set(&err, SG_NO_MEMORY, "no memory for the archive");
    else if (sg_write_file(file, text, len, 0600, &err) == 0 && rename(partial, final) < 0)
        sg_error_sys(&err, SG_UNAVAILABLE, errno, "%s", final);
    if (err.code != SG_OK)
        fail(a, &err);
    else
        finish(a, NULL);
}

/* ---- the two files ---- */

static void ignore_end(void *arg, const struct sg_capture_result *r, const struct sg_error *err)
{
    (void)arg;
    (void)r;
    (void)err; /* the pipe tells */
}

/* Without one that is too large, the archive says so. */
static bool file_kept(struct archive *a, const char *name, const struct sg_error *err, bool *has)
{
    struct sg_error own = {0};
    *has = err == NULL;
    if (err == NULL)
        return true;
    (void)unlinkat(a->dir, name, 0);
    if (err->code == SG_PAYLOAD_TOO_LARGE)
        return true;
    sg_error_copy(&own, err);
    fail(a, &own);
    return false;
}

/* A pipe whose content goes to the file name; -1: everything has ended. */
static int open_file(struct archive *a, const char *name, struct sg_pipe **ret, int *ret_fd)
{
    struct sg_error err = {0};
    int fd = openat(a->dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        sg_error_sys(&err, SG_UNAVAILABLE, errno, "%s", name);
        fail(a, &err);
        return -1;
    }
    *ret = sg_pipe_new(PIPE_BYTES);
    *ret_fd = fd;
    return 0;
}

/* What runs moves into the pipe; a pipe that nothing was started for fails like any other. */
static void into_file(struct archive *a, const struct sg_git_args *g, bool git, const char *name, void (*done)(void *arg, const struct sg_error *err))
{
    struct sg_error err = {0};
    struct sg_pipe *pipe = NULL;
    int fd = -1;
    if (open_file(a, name, &pipe, &fd) < 0)
        return;
    struct sg_git_args args = *g;
    args.to = pipe;
    args.done = ignore_end;
    args.timeout_ms = SG_GIT_TREE_MS;
    struct sg_git *runner = sg_repos_git(a->w->d->repos);
    if ((git ? sg_git_run(runner, &args, &err) : sg_git_run_other(runner, &args, &err)) < 0)
        sg_pipe_fail(pipe, &err);
    sg_error_clear(&err);
    sg_tofile(pipe, fd, a->w->d->archive_max_bytes, a->w->d->parts.workq, done, a);
    sg_pipe_unref(pipe);
}

static void tar_kept(void *arg, const struct sg_error *err)
{
    struct archive *a = arg;
    struct sg_error own = {0};
    if (!file_kept(a, "changes.tar", err, &a->has_tar))
        return;
    a->work.run = keep;
    if (sg_workq_submit(a->w->d->parts.workq, &a->work, &own) < 0)
        fail(a, &own);
}

static void listed(void *arg, const struct sg_capture_result *r, const struct sg_error *err)
{
    struct archive *a = arg;
    if (!went_well(a, 0, r, err))
        return;
    const char *argv[] = {"tar", "--null", "--verbatim-files-from", "--no-recursion", "--ignore-failed-read", "-T", a->list, "-cf", "-", NULL};
    struct sg_git_args g = {.dir = a->w->rec.tree, .argv = argv};
    into_file(a, &g, false, "changes.tar", tar_kept);
}

static void patch_kept(void *arg, const struct sg_error *err)
{
    struct archive *a = arg;
    if (!file_kept(a, "changes.patch", err, &a->has_patch))
        return;
    const char *argv[] = {"diff", "--cached", "--name-only", "--no-renames", "--diff-filter=d", "-z", a->list_option, a->w->rec.commit, NULL};
    run(a, argv, SG_GIT_TREE_MS, NULL, listed);
}

static void write_patch(struct archive *a)
{
    const struct sg_record *r = &a->w->rec;
    const char *argv[] = {"diff", "--cached", "--binary", "--full-index", "--no-renames", "--no-color", "--no-ext-diff", "--no-textconv", r->commit, NULL};
    const char *variables[] = {"GIT_WORK_TREE", r->tree, "GIT_INDEX_FILE", a->index, "GIT_OBJECT_DIRECTORY", a->objects,
                               "GIT_ALTERNATE_OBJECT_DIRECTORIES", a->borrowed, NULL};
    struct sg_git_args g = {.dir = r->tree, .git_dir = r->git_dir, .argv = argv, .config = (const char *const *)a->filters.settings, .variables = variables};
    into_file(a, &g, true, "changes.patch", patch_kept);
}

/* ---- is there anything? ---- */

static void open_archive(struct sg_work *work)
{
    struct archive *a = sg_container_of(work, struct archive, work);
    struct sg_error err = {0};
    sg_cleanup(sg_free_p) char *partial = dir_path(a, ".partial");
    (void)sg_remove_tree(AT_FDCWD, partial, NULL);
    if (mkdir(partial, 0700) < 0 || (a->dir = open(partial, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) {
        sg_error_sys(&err, SG_UNAVAILABLE, errno, "%s", partial);
        fail(a, &err);
        return;
    }
    write_patch(a);
}

static void compared(void *arg, const struct sg_capture_result *r, const struct sg_error *err)
{
    struct archive *a = arg;
    struct sg_error own = {0};
    if (!went_well(a, 1, r, err))
        return;
    if (r->exit.returncode == 0) {
        finish(a, NULL);
        return;
    }
    a->work.run = open_archive;
    if (sg_workq_submit(a->w->d->parts.workq, &a->work, &own) < 0)
        fail(a, &own);
}

static void added(void *arg, const struct sg_capture_result *r, const struct sg_error *err)
{
    struct archive *a = arg;
    const char *argv[] = {"diff", "--cached", "--quiet", a->w->rec.commit, NULL};
    if (went_well(a, 1, r, err)) /* 1: some of it could not be read */
        run(a, argv, SG_GIT_TREE_MS, NULL, compared);
}

static void has_index(void *arg, const struct sg_capture_result *r, const struct sg_error *err)
{
    static const char *const argv[] = {"add", "--all", "--ignore-errors", ".", NULL};
    if (went_well(arg, 0, r, err))
        run(arg, argv, SG_GIT_TREE_MS, NULL, added);
}

static void filters_known(void *arg, struct sg_repo_filters *f, const struct sg_error *err)
{
    struct archive *a = arg;
    const char *argv[] = {"read-tree", a->w->rec.commit, NULL};
    struct sg_error own = {0};
    if (err == NULL) {
        a->filters = *f;
        run(a, argv, SG_GIT_MS, NULL, has_index);
        return;
    }
    sg_error_copy(&own, err);
    fail(a, &own);
}

static void staged(void *arg, const char *text, const struct sg_file_stat *st, const struct sg_error *err)
{
    struct archive *a = arg;
    struct sg_error own = {0};
    (void)st;
    if (err != NULL) {
        sg_error_copy(&own, err);
        fail(a, &own);
        return;
    }
    a->stage = sg_xstrdup(text);
    a->index = sg_xasprintf("%s/index", text);
    a->objects = sg_xstrdup(text);
    a->list = sg_xasprintf("%s/list", text);
    a->list_option = sg_xasprintf("--output=%s", a->list);
    a->borrowed = sg_git_object_dir(a->w->rec.git_dir);
    if (sg_repo_filters(sg_repos_git(a->w->d->repos), a->w->rec.git_dir, &(struct sg_repo_filters_done){filters_known, a}, &own) < 0)
        fail(a, &own);
}

/* ---- start ---- */

static void make_stage(struct archive *a);

/* What its commands had closed to themselves is to be read once more; what cannot be opened is not kept. */
static void opened_up(void *arg, const struct sg_capture_result *r, const struct sg_error *err)
{
    struct archive *a = arg;
    struct sg_error own = {0};
    (void)r;
    if (err == NULL) {
        make_stage(a);
        return;
    }
    sg_error_copy(&own, err);
    fail(a, &own);
}

static void open_up(struct archive *a)
{
    const char *argv[] = {"chmod", "-R", "-f", "u+rwX", a->w->rec.home, NULL};
    struct sg_error err = {0};
    struct sg_git_args g = {.dir = "/", .argv = argv, .timeout_ms = SG_GIT_TREE_MS, .done = opened_up, .arg = a};
    if (sg_git_run_other(sg_repos_git(a->w->d->repos), &g, &err) < 0)
        fail(a, &err);
}

static void make_stage(struct archive *a)
{
    struct sg_error err = {0};
    struct sg_agent *agent = sg_git_agent(sg_repos_git(a->w->d->repos), &err);
    int rc = agent != NULL ? sg_agent_stage(agent, a->w->rec.home, &(struct sg_text_done){staged, a}, &err) : -1;
    sg_agent_unref(agent);
    if (rc < 0)
        fail(a, &err);
}

static void begin(struct sg_work *work)
{
    struct archive *a = sg_container_of(work, struct archive, work);
    struct stat st;
    sg_cleanup(sg_free_p) char *final = dir_path(a, "");
    bool kept = stat(final, &st) == 0; /* by an earlier attempt */
    if (kept || lstat(a->w->rec.tree, &st) < 0 || !S_ISDIR(st.st_mode) || stat(a->w->rec.git_dir, &st) < 0)
        finish(a, NULL);
    else
        open_up(a);
}

void wt_archive(struct wt *w, void (*done)(struct wt *w, const struct sg_error *err))
{
    struct sg_error err = {0};
    if (w->d->archive_dir == NULL) {
        done(w, NULL);
        return;
    }
    struct archive *a = sg_xcalloc(1, sizeof *a);
    a->w = w;
    a->done = done;
    a->dir = -1;
    a->work.run = begin;
    if (sg_workq_submit(w->d->parts.workq, &a->work, &err) < 0)
        fail(a, &err);
}
