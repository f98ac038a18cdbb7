#include "backends/driver.h"

#include <jansson.h>
#include <stdatomic.h>
#include <stdio.h>

static int unsupported(const struct sg_driver *d, const char *what, struct sg_error *err)
{
    return sg_error_set(err, SG_NOT_SUPPORTED, "%s does not support %s", d->facts.name, what);
}

/* ---- drivers ---- */

int sg_driver_check(struct sg_driver *d, const struct sg_sandbox_spec *spec, struct sg_error *err)
{
    if (spec->snapshot_ref != NULL && d->ops->snapshots == NULL) {
        unsupported(d, "snapshots that its provider holds", err);
        (void)snprintf(err->field, sizeof err->field, "manifest.snapshot");
        return sg_error_reason(err, "snapshot_backend");
    }
    return d->ops->check != NULL ? d->ops->check(d, spec, err) : 0;
}

int sg_driver_create(struct sg_driver *d, const struct sg_sandbox_spec *spec, struct sg_cancel *cancel,
                     const struct sg_sandbox_done *done, struct sg_error *err)
{
    if (d->ops->create == NULL) {
        return unsupported(d, "new sandboxes", err);
    }
    if (sg_cancel_fired(cancel) != SG_CANCEL_NONE) {
        return sg_error_set(err, SG_CANCELLED, "cancelled before the sandbox was asked for");
    }
    return d->ops->create(d, spec, cancel, done, err);
}

int sg_driver_adopt(struct sg_driver *d, const struct sg_adopt *a, const struct sg_sandbox_done *done, struct sg_error *err)
{
    return d->ops->adopt != NULL ? d->ops->adopt(d, a, done, err) : unsupported(d, "sandboxes of a server before this one", err);
}

void sg_driver_settled(struct sg_driver *d)
{
    if (d->ops->settled != NULL) {
        d->ops->settled(d);
    }
}

int sg_driver_health(struct sg_driver *d, struct sg_error *err)
{
    return d->ops->health != NULL ? d->ops->health(d, err) : 0;
}

int sg_driver_reload(struct sg_driver *d, struct sg_error *err)
{
    return d->ops->reload != NULL ? d->ops->reload(d, err) : 0;
}

bool sg_driver_report(struct sg_driver *d, struct sg_provider_report *ret)
{
    *ret = (struct sg_provider_report){0};
    if (d->ops->report != NULL) {
        d->ops->report(d, ret);
    }
    return d->ops->report != NULL;
}

struct sg_driver *sg_driver_free(struct sg_driver *d)
{
    if (d != NULL) {
        d->ops->free(d);
    }
    return NULL;
}

/* ---- sandboxes ---- */

struct sg_sandbox *sg_sandbox_ref(struct sg_sandbox *sb)
{
    (void)atomic_fetch_add(&sb->refs, 1);
    return sb;
}

struct sg_sandbox *sg_sandbox_unref(struct sg_sandbox *sb)
{
    if (sb != NULL && atomic_fetch_sub(&sb->refs, 1) == 1) {
        sb->driver->ops->sandbox_free(sb);
    }
    return NULL;
}

void sg_sandbox_on_lost(struct sg_sandbox *sb,
                        void (*lost)(void *, struct sg_sandbox *, const struct sg_error *), void *arg)
{
    sb->lost_arg = arg;
    sb->lost = lost;
}

void sg_sandbox_terminate(struct sg_sandbox *sb, const struct sg_done *done)
{
    sb->driver->ops->terminate(sb, done);
}

int sg_sandbox_extend(struct sg_sandbox *sb, int64_t left_ms, const struct sg_done *done, struct sg_error *err)
{
    if (sb->driver->ops->extend != NULL) {
        return sb->driver->ops->extend(sb, left_ms, done, err);
    }
    done->fn(done->arg, NULL);
    return 0;
}

int sg_sandbox_exec(struct sg_sandbox *sb, const struct sg_exec_spec *spec, const struct sg_exec_sink *sink,
                    struct sg_exec **ret, struct sg_error *err)
{
    const struct sg_driver *d = sb->driver;
    if (d->ops->exec_start == NULL || (d->facts.caps & SG_CAP_EXEC) == 0) {
        return unsupported(d, "commands", err);
    }
    if (spec->argv == NULL || spec->argv[0] == NULL || spec->timeout_ms <= 0 || spec->pipe_bytes == 0) {
        return sg_error_set(err, SG_INTERNAL, "a command without argv, timeout or pipe size");
    }
    if (spec->tty.rows > 0 && !d->facts.tty) {
        unsupported(d, "terminals", err);
        snprintf(err->field, sizeof err->field, "tty");
        return -1;
    }
    return d->ops->exec_start(sb, spec, sink, ret, err);
}

const struct sg_file_ops *sg_sandbox_files(struct sg_sandbox *sb, struct sg_error *err)
{
    const struct sg_driver *d = sb->driver;
    if (d->ops->files == NULL || (d->facts.caps & SG_CAP_FILE_RW) == 0) {
        (void)unsupported(d, "files", err);
        return NULL;
    }
    return d->ops->files;
}

int sg_sandbox_dial(struct sg_sandbox *sb, uint16_t port, int64_t deadline_ms, const struct sg_dial_done *done,
                    struct sg_error *err)
{
    const struct sg_driver *d = sb->driver;
    if (d->ops->dial == NULL) {
        return unsupported(d, "connections into the sandbox", err);
    }
    return d->ops->dial(sb, port, deadline_ms, done, err);
}

struct json_t *sg_sandbox_public_url(struct sg_sandbox *sb, uint16_t port)
{
    const struct sg_driver *d = sb->driver;
    return d->ops->public_url != NULL ? d->ops->public_url(sb, port) : NULL;
}

int sg_sandbox_ask_port(struct sg_sandbox *sb, uint16_t port, const char *path, int64_t deadline_ms, const struct sg_done *done,
                        struct sg_error *err)
{
    const struct sg_driver *d = sb->driver;
    if (d->ops->ask_port == NULL) {
        return sg_error_set(err, SG_NOT_SUPPORTED, "%s has no public place for ports", d->facts.name);
    }
    return d->ops->ask_port(sb, port, path, deadline_ms, done, err);
}

struct json_t *sg_sandbox_metadata(struct sg_sandbox *sb)
{
    const struct sg_driver *d = sb->driver;
    return d->ops->metadata != NULL ? d->ops->metadata(sb) : json_object();
}

/* ---- snapshots that the provider holds ---- */

const struct sg_snapshot_ops *sg_sandbox_snapshots(const struct sg_sandbox *sb)
{
    const struct sg_driver *d = sb->driver;
    bool can = (d->facts.caps & ~sb->lacks & SG_CAP_SNAPSHOT) != 0 && d->ops->snapshots != NULL && d->ops->snapshots->take != NULL;
    return can ? d->ops->snapshots : NULL;
}

int sg_sandbox_snapshot(struct sg_sandbox *sb, const struct sg_snapshot_args *a, const struct sg_snapshot_done *done, struct sg_error *err)
{
    const struct sg_snapshot_ops *ops = sg_sandbox_snapshots(sb);
    if (ops == NULL) {
        return unsupported(sb->driver, "snapshots that its provider holds", err);
    }
    if (!sg_id_valid("snap", a->id) || (ops->tar && a->fd < 0)) {
        return sg_error_set(err, SG_INTERNAL, "a snapshot without an id, or without what is to be in it");
    }
    return ops->take(sb, a, done, err);
}

bool sg_sandbox_snapshot_reads(const struct sg_sandbox *sb)
{
    const struct sg_snapshot_ops *ops = sb->driver->ops->snapshots;
    return ops != NULL && ops->tar;
}

int sg_sandbox_snapshot_read(struct sg_sandbox *sb, const struct sg_file_source_done *done, struct sg_error *err)
{
    if (!sg_sandbox_snapshot_reads(sb)) {
        return unsupported(sb->driver, "reading a snapshot", err);
    }
    return sb->driver->ops->snapshots->read(sb, done, err);
}

int sg_driver_snapshot_drop(struct sg_driver *d, const char *id, const char *ref, const struct sg_done *done, struct sg_error *err)
{
    return d->ops->snapshots != NULL ? d->ops->snapshots->drop(d, id, ref, done, err)
                                     : unsupported(d, "snapshots that its provider holds", err);
}

int sg_driver_snapshot_list(struct sg_driver *d, const struct sg_snapshot_listed *done, struct sg_error *err)
{
    return d->ops->snapshots != NULL ? d->ops->snapshots->list(d, done, err)
                                     : unsupported(d, "snapshots that its provider holds", err);
}
