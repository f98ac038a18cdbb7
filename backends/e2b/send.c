/* Bytes into a file whose name is one for the time being: how everything that is large gets into a sandbox. */
#include "backends/e2b/files_priv.h"

#include "base/json.h"

#define DROP_MS 10000 /* somebody waits */
#define LATE_MS 10000 /* how late the daemon may be with what was sent to it */

void e2b_unchanged(const struct sg_error *err, struct sg_error *ret)
{
    if (err->code == SG_SANDBOX_LOST || err->code == SG_SHUTTING_DOWN || err->code == SG_SANDBOX_DISK_FULL || err->code == SG_UNAVAILABLE) {
        sg_error_copy(ret, err);
        return;
    }
    sg_error_set(ret, SG_UNAVAILABLE, "nothing was changed: %.400s", err->message);
    sg_error_retry_after(ret, 1);
    sg_error_member(ret, "provider", json_string("e2b"));
}

char *e2b_files_path(const char *path)
{
    sg_cleanup(sg_free_p) char *escaped = sg_net_escape(path);

    return sg_xasprintf("/files?path=%s&username=user", escaped);
}

int e2b_files_verdict(const struct e2b_sandbox *sb, const struct sg_net_response *r, const struct sg_error *failed, struct sg_error *err)
{
    if (failed) {
        sg_error_copy(err, failed);
        return -1;
    }
    if (sg_net_status(r) < 300)
        return 0;
    if (sg_net_status(r) == 507)
        return sg_error_set(err, SG_SANDBOX_DISK_FULL, "no space left in the sandbox");
    size_t len;
    const char *text = sg_net_body(r, &len);
    return sg_origin_refused("e2b", sg_net_status(r), sg_net_retry_after(r), text, len, sg_secret_expose(sb->token, NULL), err);
}

/* ---- there ---- */

struct send {
    struct e2b_sandbox *sb;
    void (*done)(void *arg, const struct sg_error *err);
    void *arg;
};

static void send_free(struct send *s)
{
    sg_sandbox_unref(&s->sb->base);
    free(s);
}

static void sent(void *arg, const struct sg_net_response *r, const struct sg_error *failed)
{
    struct send *s = arg;
    struct sg_error why = {0};

    s->done(s->arg, e2b_files_verdict(s->sb, r, failed, &why) < 0 ? &why : NULL);
    sg_error_clear(&why);
    send_free(s);
}

int e2b_send(struct e2b_sandbox *sb, const struct e2b_send_args *a, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *path = e2b_files_path(a->temp);
    struct sg_net_header headers[5];
    struct send *s = sg_xcalloc(1, sizeof *s);

    *s = (struct send){.sb = (struct e2b_sandbox *)sg_sandbox_ref(&sb->base), .done = a->done, .arg = a->arg};
    size_t n = e2b_headers(sb, NULL, headers);
    headers[n++] = (struct sg_net_header){.name = "Content-Type", .value = "application/octet-stream"};
    const struct sg_net_request q = {.method = "POST", .path = path, .headers = headers, .n_headers = n, .body_pipe = a->pipe, .body_size = -1,
                                     .stall_ms = a->stall_ms, .response_max = 65536, .cancel = a->cancel, .done = sent, .arg = s};
    if (sg_net_call(sb->d->streams, &q, err) == 0)
        return 0;
    send_free(s);
    return -1;
}

/* ---- and away ---- */

struct drop {
    struct e2b_sandbox *sb;
    char *temp;
    bool later; /* there is still to come one */
    void (*done)(void *arg);
    void *arg;
};

static void drop_now(struct drop *d);

static void drop_later(void *arg, bool over)
{
    struct drop *d = arg;

    d->later = false;
    if (!over && !d->sb->gone) {
        drop_now(d);
        return;
    }
    sg_sandbox_unref(&d->sb->base);
    free(d->temp);
    free(d);
}

static void dropped(void *arg, const char *out SG_UNUSED, size_t len SG_UNUSED, const struct sg_error *err SG_UNUSED)
{
    struct drop *d = arg;

    if (d->done != NULL)
        d->done(d->arg);
    d->done = NULL;
    if (d->later)
        sg_alarm(d->sb->d->alarms, LATE_MS, drop_later, d);
    else
        drop_later(d, true);
}

static void drop_now(struct drop *d)
{
    sg_cleanup(sg_free_p) char *temp = e2b_hex(d->temp);

    e2b_file_run(d->sb, &(struct e2b_file_call){.args = {"drop", temp}, .limit_ms = DROP_MS, .done = dropped, .arg = d});
}

void e2b_drop(struct e2b_sandbox *sb, const char *temp, enum e2b_drop_when when, void (*done)(void *arg), void *arg)
{
    struct drop *d = sg_xcalloc(1, sizeof *d);

    *d = (struct drop){.sb = (struct e2b_sandbox *)sg_sandbox_ref(&sb->base), .temp = sg_xstrdup(temp), .later = when != E2B_DROP_NOW, .done = done, .arg = arg};
    if (when == E2B_DROP_LATER)
        dropped(d, "", 0, NULL);
    else
        drop_now(d);
}
