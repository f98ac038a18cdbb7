/* From a worktree in which nothing runs any more to nothing at all: what has changed is kept, then go its files, the worktree and its branch in
 * the repository, and the record, last. Every step may have been done already. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/worktree/worktree_priv.h"
#include "base/fd.h"

#define LOCKS_ATTEMPTS 6U /* two minutes */
#define ARCHIVE_ATTEMPTS 3U /* then the changes are lost rather than kept in the way for ever */

static void next_on_worker(struct wt *w, void (*run)(struct sg_work *work))
{
    struct sg_error err = {0};
    w->work.run = run;
    if (sg_workq_submit(w->d->parts.workq, &w->work, &err) < 0)
        wt_cleaned(w, &err);
    sg_error_clear(&err);
}

/* ---- locks that its commands may have left ---- */

static void look_again(struct wt *w)
{
    struct sg_error err = {0};
    sg_error_set(&err, SG_UNAVAILABLE, "there are locks in %s whose git seems to have been killed", w->rec.git_dir);
    wt_cleaned(w, &err);
    sg_error_clear(&err);
}

/* True: not now; what is next would wait for them. */
static bool locks_in_the_way(struct wt *w)
{
    struct sg_locks_args a = {.git_dir = w->rec.git_dir, .uid = sg_host_user(sg_repos_host(w->d->repos))->uid};
    return sg_record_time(w->d->records_dir, w->rec.id, &a.since) == 0 && sg_locks_clear(&a, &w->locks);
}

static bool locks_left(const struct wt *w)
{
    return w->locks != NULL && w->attempts < LOCKS_ATTEMPTS && sg_locks_left(w->rec.git_dir, w->locks);
}

/* ---- the steps, from the last one on ---- */

static void forget(struct sg_work *work)
{
    struct wt *w = WT_OF(work, work);
    struct sg_error err = {0};
    if (locks_left(w)) {
        look_again(w);
        return;
    }
    int rc = sg_record_remove(w->d->records_dir, w->rec.id, &err);
    wt_cleaned(w, rc < 0 ? &err : NULL);
    sg_error_clear(&err);
}

static void dropped(void *arg, const struct sg_error *err)
{
    struct wt *w = arg;
    if (err != NULL)
        wt_cleaned(w, err);
    else
        next_on_worker(w, forget);
}

/* What its own user could not remove, and the directory around it all. */
static void remove_rest(struct sg_work *work)
{
    struct wt *w = WT_OF(work, work);
    const struct sg_record *r = &w->rec;
    struct sg_error err = {0};
    sg_cleanup(sg_free_p) char *above = sg_xstrndup(r->home, (size_t)(strrchr(r->home, '/') - r->home));
    sg_cleanup(sg_close_p) int dir = open(above[0] != '\0' ? above : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = dir >= 0 ? sg_remove_tree(dir, r->id, &err) : errno == ENOENT ? 0 : sg_error_sys(&err, SG_UNAVAILABLE, errno, "%s", above);
    if (rc == 0 && locks_in_the_way(w)) {
        look_again(w);
        return;
    }
    if (rc == 0)
        rc = sg_tree_drop(w->d->repos, r->git_dir, r->tree, r->branch, &(struct sg_tree_done){dropped, w}, &err);
    if (rc < 0)
        wt_cleaned(w, &err);
    sg_error_clear(&err);
}

static void files_removed(void *arg, const struct sg_error *err SG_UNUSED)
{
    next_on_worker(arg, remove_rest);
}

/* By an agent first, with the rights of those who wrote them, and beside the server's threads. */
static void remove_files(struct sg_work *work)
{
    struct wt *w = WT_OF(work, work);
    sg_cleanup(sg_close_p) int home = open(w->rec.home, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (home >= 0)
        (void)fchmod(home, 0700);
    struct sg_agent *a = sg_git_agent(sg_repos_git(w->d->repos), NULL);
    if (a == NULL || sg_agent_remove(a, w->rec.home, true, NULL, &(struct sg_done){files_removed, w}, NULL) < 0)
        files_removed(w, NULL);
    sg_agent_unref(a);
}

static void archived(struct wt *w, const struct sg_error *err)
{
    if (err != NULL && w->attempts + 1 < ARCHIVE_ATTEMPTS) {
        wt_cleaned(w, err);
        return;
    }
    w->keep = false; /* once is enough, should what follows be tried again */
    next_on_worker(w, remove_files);
}

void wt_clean(struct wt *w)
{
    wt_ref(w);
    if (w->keep)
        wt_archive(w, archived);
    else
        next_on_worker(w, remove_files);
}
