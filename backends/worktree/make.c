/* From a request to a worktree with an agent in it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/worktree/worktree_priv.h"

static void fail(struct wt *w, struct sg_error *err)
{
    wt_fail(w, err);
    sg_error_clear(err);
    wt_unref(w);
}

/* ---- the worktree ---- */

static void tree_added(void *arg, const struct sg_error *err)
{
    struct wt *w = arg;
    struct sg_error own = {0};
    if (err != NULL)
        sg_error_copy(&own, err);
    else if (fchmod(w->dir_fd, 0500) < 0) /* beside its places nothing can be made: no command would see it there */
        sg_error_sys(&own, SG_UNAVAILABLE, errno, "%s", w->rec.home);
    if (own.code != SG_OK || wt_check_wanted(w, &own) < 0) {
        fail(w, &own);
        return;
    }
    wt_start_agent(w);
    wt_unref(w);
}

/* ---- its surroundings; on a worker ---- */

/* Below a directory that is still ours alone, so that nobody can put something else in the way. */
static int make_below(int dir, const char *name, mode_t mode, const struct sg_host_user *user)
{
    if (mkdirat(dir, name, mode) < 0)
        return -1;
    return geteuid() == 0 ? fchownat(dir, name, user->uid, user->gid, AT_SYMLINK_NOFOLLOW) : 0;
}

static int make_home(struct wt *w, struct sg_error *err)
{
    const struct sg_host_user *user = sg_host_user(sg_repos_host(w->d->repos));
    const struct sg_record *r = &w->rec;
    if (mkdirat(w->d->dir_fd, r->id, 0700) < 0)
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", r->home);
    w->dir_fd = openat(w->d->dir_fd, r->id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (w->dir_fd < 0 || make_below(w->dir_fd, "home", 0755, user) < 0 || make_below(w->dir_fd, "home/sandbox", 0755, user) < 0 ||
        make_below(w->dir_fd, "tmp", 0700, user) < 0 || (geteuid() == 0 && fchown(w->dir_fd, user->uid, user->gid) < 0))
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "%s", r->home);
    return 0;
}

static void prepare(struct sg_work *work)
{
    struct wt *w = WT_OF(work, work);
    const struct sg_record *r = &w->rec;
    struct sg_error err = {0};
    if (wt_check_wanted(w, &err) < 0 || sg_record_write(w->d->records_dir, r, &err) < 0 || make_home(w, &err) < 0 ||
        sg_tree_add(w->d->repos, r->git_dir, r->tree, r->branch, r->commit, &(struct sg_tree_done){tree_added, w}, &err) < 0)
        fail(w, &err);
}

/* ---- what the ref is ---- */

static void go_on(struct wt *w)
{
    struct sg_error err = {0};
    w->work.run = prepare;
    if (sg_workq_submit(w->d->parts.workq, &w->work, &err) < 0)
        fail(w, &err);
}

static void resolved(void *arg, const char *commit, const struct sg_error *err)
{
    struct wt *w = arg;
    struct sg_error own = {0};
    if (err == NULL) {
        (void)snprintf(w->rec.commit, sizeof w->rec.commit, "%s", commit);
        go_on(w);
        return;
    }
    sg_error_copy(&own, err);
    fail(w, &own);
}

void wt_make(struct wt *w)
{
    struct sg_error err = {0};
    wt_ref(w); /* of the steps; start_agent() has one of its own */
    if (w->rec.commit[0] != '\0')
        go_on(w);
    else if (sg_repos_resolve(w->d->repos, w->rec.repo, w->ref, &(struct sg_repos_resolved){resolved, w}, &err) < 0)
        fail(w, &err);
}
