/* A short script of ours inside a sandbox, with its output in memory. */
#include "backends/e2b/e2b_priv.h"

#include "base/buf.h"


#define ERR_MAX 4096U

struct run {
    struct e2b_stream *stream;
    struct e2b_sandbox *sb;
    struct sg_buf out, err;
    bool too_much;
    void (*done)(void *arg, const struct e2b_ran *r, const struct sg_error *err);
    void *arg;
};

static void run_free(struct run *r)
{
    sg_buf_finish(&r->out);
    sg_buf_finish(&r->err);
    e2b_stream_unref(r->stream);
    sg_sandbox_unref(&r->sb->base);
    free(r);
}

static void run_failed(void *arg, const struct sg_error *err)
{
    struct run *r = arg;

    r->done(r->arg, NULL, err);
    run_free(r);
}

static void run_end(struct run *r, int code, const struct sg_error *err)
{
    struct sg_error why = {0};
    const struct e2b_ran ran = {.code = code, .out = r->out.len ? r->out.data : "", .out_len = r->out.len, .err = r->err.len ? r->err.data : ""};

    if (err)
        sg_error_copy(&why, err);
    else if (r->too_much)
        sg_error_set(&why, SG_PROVIDER_FAILED, "the sandbox answers with more than %zu bytes", r->out.cap);
    else if (code < 0)
        sg_error_set(&why, SG_PROVIDER_TIMEOUT, "the sandbox did not manage it in time");
    if (why.code != SG_OK) {
        e2b_blame(r->sb, &why, run_failed, r);
    } else {
        r->done(r->arg, &ran, NULL);
        run_free(r);
    }
    sg_error_clear(&why);
}

static void started(void *arg SG_UNUSED, uint32_t pid SG_UNUSED)
{
}

static size_t data(void *arg, bool to_stderr, const char *bytes, size_t len)
{
    struct run *r = arg;

    if (to_stderr)
        (void)sg_buf_add_some(&r->err, bytes, len);
    else if (sg_buf_add(&r->out, bytes, len) < 0)
        r->too_much = true;
    return len;
}

static void over(void *arg, int code, const struct sg_error *err)
{
    run_end(arg, code, err);
}

void e2b_run(struct e2b_sandbox *sb, const struct e2b_run_args *a)
{
    struct run *r = sg_xcalloc(1, sizeof *r);
    struct sg_error err = {0};
    const struct e2b_stream_args s = {.user = a->user, .argv = a->argv, .cwd = "/", .tag = "sandgate", .backstop_ms = a->limit_ms,
                                      .started = started, .data = data, .over = over, .arg = r};

    r->sb = (struct e2b_sandbox *)sg_sandbox_ref(&sb->base);
    r->done = a->done;
    r->arg = a->arg;
    sg_buf_init(&r->out, a->out_max);
    sg_buf_init(&r->err, ERR_MAX);
    if (e2b_stream_start(sb, &s, &r->stream, &err) < 0)
        run_end(r, 0, &err);
    sg_error_clear(&err);
}
