/* What a server before this one has left behind: its sandboxes that outlived it are found again, or ended. */
#include "service/service_priv.h"

#include "base/clock.h"

#include <stdio.h>

struct recovery {
    struct sg_service *s;
    struct sg_entry *entry;
    struct sg_sandbox *sb;
    bool creating; /* nobody waits for it any more */
};

static void recovery_free(struct recovery *r)
{
    sg_sandbox_unref(r->sb);
    sg_entry_unref(r->entry);
    free(r);
}

static void unfinished_gone(void *arg, const struct sg_error *err)
{
    struct recovery *r = arg;
    struct sg_error why = {0};

    if (!err || err->code != SG_SHUTTING_DOWN) {
        sg_error_set(&why, SG_UNAVAILABLE, "the server was restarted while the lease was being created");
        sg_error_reason(&why, "server_restarted");
        sg_registry_failed(r->s->leases, r->entry, NULL, &why, NULL);
        sg_error_clear(&why);
    }
    recovery_free(r);
}

static void log_found(struct sg_service *s, struct sg_entry *e, const struct sg_error *err)
{
    struct sg_log_line line;
    struct sg_lease l;

    sg_entry_lease(e, &l);
    sg_log_begin(&line, s->parts.log, err ? SG_LOG_WARN : SG_LOG_INFO, err ? "lease_not_recovered" : "lease_recovered");
    sg_log_str(&line, "lease_id", l.id);
    sg_log_str(&line, "provider", l.provider);
    sg_log_str(&line, "sandbox_id", l.sandbox_id);
    if (err)
        sg_log_error(&line, err);
    sg_log_end(&line);
    sg_lease_finish(&l);
}

static void lost(struct recovery *r, const struct sg_error *err)
{
    char reason[sizeof err->message + 32];

    snprintf(reason, sizeof reason, "sandbox_lost: %s", err->message);
    if (!sg_registry_end(r->s->leases, r->entry, SG_END_LOST, reason))
        sg_registry_ended(r->s->leases, r->entry, NULL); /* it was being released: that is done, then */
    recovery_free(r);
}

static void found(void *arg, struct sg_sandbox *sb, const struct sg_error *err)
{
    struct recovery *r = arg;

    r->sb = sb;
    if (!err || err->code != SG_SHUTTING_DOWN)
        log_found(r->s, r->entry, err);
    if (r->creating && sb) {
        sg_sandbox_terminate(sb, &(struct sg_done){unfinished_gone, r});
    } else if (r->creating) {
        unfinished_gone(r, err);
    } else if (sb) {
        sg_service_watch_sandbox(r->s, r->entry, sb);
        sg_registry_adopted(r->s->leases, r->entry, sb);
        recovery_free(r);
    } else if (err->code == SG_SHUTTING_DOWN) {
        recovery_free(r);
    } else {
        lost(r, err);
    }
}

static struct sg_driver *driver_of(struct sg_service *s, const char *provider)
{
    struct sg_driver *d = sg_backends_get(s->parts.backends, provider, NULL);

    return d && d->facts.outlives_server && d->ops->adopt ? d : NULL;
}

int sg_service_find_sandbox(struct sg_service *s, struct sg_entry *e, const struct sg_sandbox_done *done, struct sg_error *err)
{
    struct sg_lease l;
    int rc = -1;

    sg_entry_lease(e, &l);
    struct sg_driver *d = driver_of(s, l.provider);
    struct sg_adopt a = {.lease_id = l.id,
                         .sandbox_id = l.sandbox_id,
                         .root = l.terms->root,
                         .left_ms = l.state == SG_LEASE_READY ? (l.expires_us - sg_wall_us()) / 1000 : 0};
    if (d)
        rc = sg_driver_adopt(d, &a, done, err);
    else
        sg_error_set(err, SG_NOT_SUPPORTED, "sandboxes of backend \"%s\" do not outlive a server", l.provider);
    sg_lease_finish(&l);
    return rc;
}

static bool outlives(void *arg, const char *provider)
{
    return driver_of(arg, provider) != NULL;
}

static void adopt(void *arg, struct sg_entry *e)
{
    struct recovery *r = sg_xcalloc(1, sizeof *r);
    const struct sg_sandbox_done done = {.fn = found, .arg = r};
    struct sg_error err = {0};
    struct sg_lease l;

    r->s = arg;
    r->entry = sg_entry_ref(e);
    sg_entry_lease(e, &l);
    r->creating = l.state == SG_LEASE_CREATING;
    sg_lease_finish(&l);
    if (sg_service_find_sandbox(r->s, e, &done, &err) < 0)
        found(r, NULL, &err);
    sg_error_clear(&err);
}

int sg_service_recover(struct sg_service *s, size_t *ret_lost, struct sg_error *err)
{
    const struct sg_recover how = {.outlives = outlives, .adopt = adopt, .arg = s};

    struct sg_driver *d;

    if (sg_registry_recover(s->leases, &how, ret_lost, err) < 0)
        return -1;
    for (size_t i = 0; (d = sg_backends_at(s->parts.backends, i)) != NULL; i++)
        sg_driver_settled(d);
    return 0;
}
