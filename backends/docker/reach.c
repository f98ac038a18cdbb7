/* The agent of a container on an engine that shares no directory with this server: its program is brought into an anonymous volume of the container,
 * and a relay that the engine starts there (backends/agent/relay.h) leads to it. */
#include "backends/docker/docker_priv.h"

#include <archive.h>
#include <archive_entry.h>
#include <stdio.h>

#include "backends/docker/stream.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"

#define AGENT_BYTES_MAX ((size_t)32 << 20)
#define BRING_MS 60000
#define ASK_MS 20000
#define PIPE_BYTES ((size_t)256 * 1024)
#define SAID_MAX 300U

/* One relay and its connection. */
struct reach {
    atomic_int refs; /* the call's, the agent's, and of whoever starts it */
    struct docker *d;
    struct sg_pipe *in, *out;
    struct sg_docker_stream frames;
    atomic_int status; /* of the engine's answer, 0: not yet */
    char said[SAID_MAX]; /* reactor thread: by the relay, of itself */
    size_t said_len;
};

static struct reach *reach_ref(struct reach *r)
{
    (void)atomic_fetch_add(&r->refs, 1);
    return r;
}

static void reach_unref(void *arg)
{
    struct reach *r = arg;
    if (atomic_fetch_sub(&r->refs, 1) == 1) {
        sg_pipe_unref(r->in);
        sg_pipe_unref(r->out);
        docker_unref(r->d);
        free(r);
    }
}

/* ---- bytes ---- */

static void note(struct reach *r, const char *text, size_t len)
{
    for (size_t i = 0; i < len && r->said_len < sizeof r->said - 1; i++) {
        r->said[r->said_len++] = text[i] >= ' ' && text[i] <= '~' ? text[i] : ' ';
    }
}

/* What the relay writes to its standard error, and the engine instead of it, is about itself. */
static ssize_t unwrap(void *arg, const void *data, size_t len, const void **ret_piece, size_t *ret_len, struct sg_error *err)
{
    struct reach *r = arg;
    enum sg_docker_output output = SG_DOCKER_STDOUT;
    ssize_t n = sg_docker_stream_next(&r->frames, data, len, &output, ret_piece, ret_len, err);
    if (n > 0 && output == SG_DOCKER_STDERR) {
        note(r, *ret_piece, *ret_len);
        *ret_len = 0;
    }
    return n;
}

static void explain(void *arg, struct sg_error *err)
{
    struct reach *r = arg;
    int status = atomic_load(&r->status);
    if (status != 0 && status != 101 && status != 200) {
        sg_error_wrap(err, "the engine answered %d to its start", status);
    }
    if (r->said_len > 0) {
        sg_error_wrap(err, "%s", r->said);
    }
}

/* ---- the engine's command ---- */

static void head(void *arg, const struct sg_net_response *q)
{
    struct reach *r = arg;
    atomic_store(&r->status, sg_net_status(q));
}

static void over(void *arg, const struct sg_net_response *q, const struct sg_error *err)
{
    (void)q;
    (void)err; /* both pipes say so */
    reach_unref(arg);
}

static int start_relay(struct reach *r, const char *exec, struct sg_error *err)
{
    static const char body[] = "{\"Detach\":false,\"Tty\":false}";
    const struct sg_net_header type = {.name = "Content-Type", .value = "application/json"};
    sg_cleanup(sg_free_p) char *escaped = sg_net_escape(exec);
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/v1.%u/exec/%s/start", engine_api(r->d), escaped);
    const struct sg_net_request q = {.method = "POST",
                                     .path = path,
                                     .headers = &type,
                                     .n_headers = 1,
                                     .body = body,
                                     .body_len = sizeof body - 1,
                                     .upgrade = "tcp",
                                     .body_pipe = r->out,
                                     .response = r->in,
                                     .response_max = 65536,
                                     .deadline_ms = sg_now_ms() + ASK_MS,
                                     .head = head,
                                     .done = over,
                                     .arg = reach_ref(r)};
    if (sg_net_call(r->d->streams, &q, err) == 0) {
        return 0;
    }
    reach_unref(r);
    return -1;
}

static int reach_agent(struct box *b, const char *exec, struct sg_error *err)
{
    struct docker *d = b->d;
    struct reach *r = sg_xcalloc(1, sizeof *r);
    atomic_init(&r->refs, 1);
    r->d = docker_ref(d);
    r->in = sg_pipe_new(PIPE_BYTES);
    r->out = sg_pipe_new(PIPE_BYTES);
    int rc = start_relay(r, exec, err);
    if (rc == 0) {
        const struct sg_agent_far far = {
            .in = r->in, .out = r->out, .unwrap = unwrap, .explain = explain, .closed = reach_unref, .arg = reach_ref(r), .spool = d->cfg.dir};
        const struct sg_agent_options o = box_agent_options(b);
        rc = sg_agent_new_far(&far, &o, &b->greeting, err);
        if (rc < 0) {
            reach_unref(r);
        }
    }
    reach_unref(r);
    return rc;
}

static void exec_made(void *arg, const struct reply *r)
{
    struct box *b = arg;
    struct sg_error err = {0};
    const char *id = json_string_value(json_object_get(r->json, "Id"));
    if ((b->state == BOX_MAKING || b->again) && b->greeting == NULL) {
        if (r->status != 201 || id == NULL) {
            engine_error(r, "start a relay in a container", &err);
        } else {
            (void)reach_agent(b, id, &err);
        }
        if (err.code != SG_OK && b->again) {
            again_failed(b, r, &err);
        } else if (err.code != SG_OK) {
            make_failed(b, &err);
        }
        sg_error_clear(&err);
    }
    box_unref(b);
}

void reach_begin(struct box *b)
{
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/containers/%s/exec", b->base.sb.id);
    engine_ask(b->d, &(struct ask){.method = "POST",
                                   .path = path,
                                   .body = "{\"Cmd\":[\"/.sandgate/agent\",\"relay\",\"/.sandgate/run\"],\"AttachStdin\":true,\"AttachStdout\":true,"
                                           "\"AttachStderr\":true,\"Tty\":false,\"Privileged\":false,\"User\":\"0:0\"}",
                                   .ms = ASK_MS,
                                   .fn = exec_made,
                                   .arg = box_ref(b)});
}

/* ---- its program ---- */

static la_ssize_t keep(struct archive *a, void *arg, const void *data, size_t len)
{
    (void)a;
    return sg_buf_add(arg, data, len) == 0 ? (la_ssize_t)len : -1;
}

static bool add(struct archive *a, const char *name, unsigned type, unsigned mode, const char *data, size_t len)
{
    struct archive_entry *e = archive_entry_new();
    archive_entry_set_pathname(e, name);
    archive_entry_set_filetype(e, type);
    archive_entry_set_perm(e, mode);
    archive_entry_set_size(e, (la_int64_t)len);
    bool ok = archive_write_header(a, e) == ARCHIVE_OK && (len == 0 || archive_write_data(a, data, len) == (la_ssize_t)len);
    archive_entry_free(e);
    return ok;
}

int reach_load(struct docker *d, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *program = NULL;
    size_t len;
    if (sg_read_file(d->cfg.agent_path, AGENT_BYTES_MAX, &program, &len, err) < 0) {
        return sg_error_wrap(err, "cannot read the agent");
    }
    sg_buf_init(&d->bring, 2 * AGENT_BYTES_MAX);
    struct archive *a = archive_write_new();
    bool ok = a != NULL && archive_write_set_format_ustar(a) == ARCHIVE_OK && archive_write_set_bytes_per_block(a, 0) == ARCHIVE_OK &&
              archive_write_open(a, &d->bring, NULL, keep, NULL) == ARCHIVE_OK && add(a, "agent", AE_IFREG, 0755, program, len) &&
              add(a, "run", AE_IFDIR, 0700, NULL, 0) && archive_write_close(a) == ARCHIVE_OK;
    (void)archive_write_free(a);
    return ok ? 0 : sg_error_set(err, SG_NO_MEMORY, "cannot pack the agent");
}

void reach_bring(struct box *b, reply_fn *fn)
{
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("/containers/%s/archive?path=%%2F.sandgate", b->base.sb.id);
    engine_ask(b->d, &(struct ask){.method = "PUT",
                                   .path = path,
                                   .body = b->d->bring.data,
                                   .tar_len = b->d->bring.len,
                                   .ms = BRING_MS,
                                   .fn = fn,
                                   .arg = box_ref(b)});
}
