#include "service/manifest.h"

#include "service/clone.h"
#include "service/tar.h"

#include <stdio.h>

/* One manifest on its way in. At any time exactly one thing is under way: a request to the sandbox or a turn of a worker. */
struct apply {
    struct sg_manifest_args a;
    const struct sg_file_ops *files;
    const char *root;
    struct sg_work work;
    size_t at; /* the file under way */
    struct sg_file_sink *sink;
    char *path; /* of that file */
};

static void end(struct apply *p, const struct sg_error *err)
{
    p->a.done(p->a.arg, err);
    free(p->path);
    free(p);
}

/* What the sandbox says of its files would be a 4xx of its own; here it is the manifest that does not fit the sandbox. */
static void fail(struct apply *p, const char *stage, const char *field, const struct sg_error *why)
{
    struct sg_error err = {0};
    int status = sg_code_status(why->code);

    if (why->code == SG_CANCELLED || why->code == SG_LEASE_GONE || why->code == SG_SANDBOX_LOST ||
        why->code == SG_MANIFEST_FAILED || status >= 500) {
        sg_error_copy(&err, why);
    } else {
        sg_error_field(&err, SG_MANIFEST_FAILED, field, "%s: %s", field, why->message);
        sg_error_reason(&err, sg_code_name(why->code));
    }
    sg_error_member(&err, "stage", json_string(stage));
    end(p, &err);
    sg_error_clear(&err);
}

static void fail_file(struct apply *p, const struct sg_error *why)
{
    char field[64];

    snprintf(field, sizeof field, "manifest.files[%zu]", p->at);
    fail(p, "files", field, why);
}

/* ---- files ---- */

static void next_file(struct apply *p);

static void stored(void *arg, const struct sg_file_stat *st SG_UNUSED, bool created SG_UNUSED, const struct sg_error *err)
{
    struct apply *p = arg;

    if (err) {
        fail_file(p, err);
        return;
    }
    p->at++;
    next_file(p);
}

static void write_on_worker(struct sg_work *w)
{
    struct apply *p = sg_container_of(w, struct apply, work);
    const struct sg_manifest_file *f = &p->a.manifest->files[p->at];
    struct sg_file_sink *sink = sg_steal(&p->sink);
    struct sg_error err = {0};

    if (f->len > 0 && sink->ops->write(sink, f->data, f->len, &err) < 0) {
        sink->ops->abort(sink);
        fail_file(p, &err);
        sg_error_clear(&err);
        return;
    }
    sink->ops->commit(sink, stored, p);
}

static void opened(void *arg, struct sg_file_sink *sink, const struct sg_error *err)
{
    struct apply *p = arg;
    struct sg_error own = {0};

    if (!sink) {
        fail_file(p, err);
        return;
    }
    p->sink = sink;
    p->work.run = write_on_worker;
    if (sg_workq_submit(p->a.workq, &p->work, &own) < 0) {
        sink->ops->abort(sink);
        fail_file(p, &own);
        sg_error_clear(&own);
    }
}

static void open_on_worker(struct sg_work *w)
{
    struct apply *p = sg_container_of(w, struct apply, work);
    const struct sg_manifest_file *f = &p->a.manifest->files[p->at];
    struct sg_error err = {0};

    free(p->path);
    p->path = f->path[0] == '/' ? sg_xstrdup(f->path) : sg_xasprintf("%s/%s", p->root, f->path);
    struct sg_file_put_args put = {.path = p->path, .mode_given = f->mode_given, .mode = f->mode, .size_hint = (int64_t)f->len};
    if (sg_cancel_fired(p->a.cancel) != SG_CANCEL_NONE)
        sg_error_set(&err, SG_CANCELLED, "the lease was ended while its files were written");
    else if (p->files->put(p->a.sb, &put, &(struct sg_file_sink_done){opened, p}, &err) == 0)
        return;
    fail_file(p, &err);
    sg_error_clear(&err);
}

/* On a worker, also so that answers that come at once do not pile up on one stack. */
static void next_file(struct apply *p)
{
    struct sg_error err = {0};

    if (p->at == p->a.manifest->n_files) {
        end(p, NULL);
        return;
    }
    p->work.run = open_on_worker;
    if (sg_workq_submit(p->a.workq, &p->work, &err) < 0) {
        fail_file(p, &err);
        sg_error_clear(&err);
    }
}

/* ---- repo ---- */

static void unpacked(void *arg, const struct sg_tar_result *result SG_UNUSED, const struct sg_error *err)
{
    struct apply *p = arg;

    if (err)
        fail(p, "repo", "manifest.repo", err);
    else
        next_file(p);
}

static void exported(void *arg, struct sg_pipe *tar, const struct sg_error *err)
{
    struct apply *p = arg;
    struct sg_tar_put_args put = {.path = p->root, .outside_links = true, .cancel = p->a.cancel};
    struct sg_error own = {0};

    if (!tar) {
        fail(p, "repo", "manifest.repo", err);
        return;
    }
    int rc = sg_tar_unpack(p->a.sb, &put, tar, p->a.workq, &(struct sg_tar_stored){unpacked, p}, &own);
    if (rc < 0) {
        sg_pipe_stop(tar);
        fail(p, "repo", "manifest.repo", &own);
        sg_error_clear(&own);
    }
    sg_pipe_unref(tar);
}

static void cloned(void *arg, const struct sg_error *err)
{
    struct apply *p = arg;

    if (err)
        fail(p, "repo", "manifest.repo.url", err);
    else
        next_file(p);
}

static void clone_repo(struct apply *p)
{
    struct sg_clone_args args = {.sb = p->a.sb,
                                 .url = p->a.manifest->repo_url,
                                 .root = p->root,
                                 .ref = p->a.manifest->repo_ref,
                                 .env = p->a.env,
                                 .cancel = p->a.cancel,
                                 .memory = p->a.memory,
                                 .timeout_ms = p->a.timeout_ms,
                                 .done = cloned,
                                 .arg = p};

    sg_clone(&args);
}

static void put_repo(struct apply *p)
{
    struct sg_error err = {0};

    if (p->a.manifest->repo_url)
        clone_repo(p);
    else if (!p->a.repo)
        next_file(p);
    else if (sg_repos_export(p->a.repos, p->a.repo, p->a.manifest->repo_ref, p->a.commit, &(struct sg_repos_exported){exported, p}, &err) < 0) {
        fail(p, "repo", "manifest.repo", &err);
        sg_error_clear(&err);
    }
}

/* ---- root ---- */

static void root_made(void *arg, const struct sg_file_stat *st SG_UNUSED, const struct sg_error *err)
{
    struct apply *p = arg;

    if (err)
        fail(p, "root", "manifest.root", err);
    else
        put_repo(p);
}

void sg_manifest_apply(const struct sg_manifest_args *args)
{
    struct apply *p = sg_xcalloc(1, sizeof *p);
    const struct sg_manifest *m = args->manifest;
    struct sg_error err = {0};

    p->a = *args;
    p->root = m->root ? m->root : SG_MANIFEST_ROOT;
    if (!m->root && m->n_files == 0 && !args->repo && !m->repo_url) {
        end(p, NULL);
        return;
    }
    p->files = sg_sandbox_files(args->sb, &err);
    if (p->files && !m->root) {
        put_repo(p);
        return;
    }
    if (p->files && p->files->mkdir(args->sb, m->root, 0755, &(struct sg_file_stat_done){root_made, p}, &err) == 0)
        return;
    fail(p, "root", "manifest.root", &err);
    sg_error_clear(&err);
}
