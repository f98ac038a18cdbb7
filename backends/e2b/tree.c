/* Whole directories: out of a script of ours that walks over them, and into one that makes them, as streams of records. */
#include "backends/e2b/files_priv.h"

#include <errno.h>
#include <stdatomic.h>

#include "backends/e2b/scripts.h"
#include "base/clock.h"
#include "base/json.h"

#define PIPE_BYTES ((size_t)256 * 1024)
#define SAID_MAX ((size_t)8192)
#define UNPACK_MS (30 * 60 * 1000)
#define SILENT_MS 60000
#define SIGNAL_MS 15000

/* ---- what is there ---- */

struct resolve {
    struct sg_text_done done;
};

static void resolved(void *arg, const char *out, size_t len, const struct sg_error *err)
{
    struct resolve *r = arg;
    struct sg_file_stat st = {0};
    struct sg_error why = {0};
    const char *end = out + len, *name, *path = err ? NULL : e2b_field(&out, end);

    if (!err && (!path || path[0] != '/' || !e2b_record(&out, end, &name, &st))) {
        e2b_file_nonsense(&why);
        err = &why;
    }
    r->done.fn(r->done.arg, err ? NULL : path, err ? NULL : &st, err);
    sg_error_clear(&why);
    free(r);
}

static int do_resolve(struct sg_sandbox *base, const char *path, const struct sg_text_done *done, struct sg_error *err SG_UNUSED)
{
    sg_cleanup(sg_free_p) char *hex = e2b_hex(path);
    struct resolve *r = sg_xcalloc(1, sizeof *r);

    r->done = *done;
    e2b_file_run((struct e2b_sandbox *)base, &(struct e2b_file_call){.args = {"resolve", hex}, .done = resolved, .arg = r});
    return 0;
}

struct scratch {
    struct e2b_sandbox *sb;
    struct sg_file_source_done done;
};

/* It is on this server's disk, as it is read and written a lot. */
static void permitted(void *arg, const char *out SG_UNUSED, size_t len SG_UNUSED, const struct sg_error *err)
{
    struct scratch *s = arg;
    struct sg_file_source src = {.fd = err ? -1 : e2b_spool(s->sb->d, UINT64_MAX)};
    struct sg_error why = {0};

    if (!err && src.fd < 0) {
        sg_error_sys(&why, SG_UNAVAILABLE, errno, "this server has no room for the archive on its way");
        sg_error_retry_after(&why, 5);
        err = &why;
    }
    s->done.fn(s->done.arg, err ? NULL : &src, err);
    sg_error_clear(&why);
    sg_sandbox_unref(&s->sb->base);
    free(s);
}

static int do_scratch(struct sg_sandbox *base, const char *path, const struct sg_file_source_done *done, struct sg_error *err SG_UNUSED)
{
    sg_cleanup(sg_free_p) char *hex = e2b_hex(path);
    struct scratch *s = sg_xcalloc(1, sizeof *s);

    *s = (struct scratch){.sb = (struct e2b_sandbox *)sg_sandbox_ref(base), .done = *done};
    e2b_file_run(s->sb, &(struct e2b_file_call){.args = {"may", hex}, .done = permitted, .arg = s});
    return 0;
}

/* ---- out ---- */

struct walk {
    _Atomic int refs; /* the stream's, the waker's, a call's */
    struct e2b_sandbox *sb;
    struct e2b_stream *stream;
    struct sg_pipe *out;
    struct sg_buf said;
    uint32_t pid;
    bool stopped;
};

static void walk_ref(void *arg)
{
    atomic_fetch_add(&((struct walk *)arg)->refs, 1);
}

static void walk_unref(void *arg)
{
    struct walk *w = arg;

    if (atomic_fetch_sub(&w->refs, 1) > 1)
        return;
    e2b_stream_unref(w->stream);
    sg_pipe_unref(w->out);
    sg_buf_finish(&w->said);
    sg_sandbox_unref(&w->sb->base);
    free(w);
}

static void walk_wake(void *arg)
{
    struct walk *w = arg;

    if (w->stream) /* else it has not begun */
        e2b_stream_resume(w->stream);
}

static void walk_began(void *arg, uint32_t pid)
{
    ((struct walk *)arg)->pid = pid;
}

static void signalled(void *arg, const struct sg_origin_answer *a SG_UNUSED, const struct sg_error *err SG_UNUSED)
{
    walk_unref(arg);
}

/* Nobody reads: it need not go on. */
static void stop(struct walk *w)
{
    struct sg_net_header headers[4];
    size_t n = e2b_headers(w->sb, "user", headers);
    sg_cleanup(sg_json_p) json_t *body = json_pack("{s:{s:I}, s:s}", "process", "pid", (json_int_t)w->pid, "signal", "SIGNAL_SIGKILL");

    if (w->stopped)
        return;
    w->stopped = true;
    walk_ref(w);
    sg_origin_call(w->sb->d->data, &(struct sg_origin_call){.method = "POST", .path = "/process.Process/SendSignal", .body = body, .headers = headers,
                                                            .n_headers = n, .deadline_ms = sg_now_ms() + SIGNAL_MS, .done = signalled, .arg = w});
}

static size_t walk_data(void *arg, bool to_stderr, const char *bytes, size_t len)
{
    struct walk *w = arg;

    if (to_stderr) {
        (void)sg_buf_add_some(&w->said, bytes, len);
        return len;
    }
    ssize_t n = sg_pipe_write(w->out, bytes, len);
    if (n >= 0)
        return (size_t)n;
    stop(w);
    return len;
}

/* err NULL: all of it is in the pipe. */
static void walk_ended(void *arg, const struct sg_error *err)
{
    struct walk *w = arg;

    if (err)
        sg_pipe_fail(w->out, err);
    else
        sg_pipe_close(w->out);
    sg_pipe_set_writer(w->out, NULL);
    walk_unref(w);
}

static void walk_over(void *arg, int code, const struct sg_error *err)
{
    struct walk *w = arg;
    struct sg_error why = {0};

    if (err) {
        e2b_blame(w->sb, err, walk_ended, w);
        return;
    }
    if (code == E2B_FILE_FAILED)
        e2b_file_error(w->said.len ? w->said.data : "", w->said.len, &why);
    else if (code != 0)
        sg_error_set(&why, SG_PROVIDER_FAILED, "the sandbox cannot run what is needed for its files (status %d)", code);
    walk_ended(w, why.code != SG_OK ? &why : NULL);
    sg_error_clear(&why);
}

static int do_pack(struct sg_sandbox *base, const char *path, struct sg_pipe **ret, struct sg_error *err)
{
    struct walk *w = sg_xcalloc(1, sizeof *w);
    const struct sg_waker room = {.wake = walk_wake, .ref = walk_ref, .unref = walk_unref, .arg = w};
    sg_cleanup(sg_free_p) char *hex = e2b_hex(path);
    const char *const argv[] = {"perl", "-e", e2b_script_common, "-e", e2b_script_tree, "pack", hex, NULL};
    const struct e2b_stream_args a = {.user = "user", .argv = argv, .cwd = "/", .tag = "sandgate", .started = walk_began, .data = walk_data,
                                      .over = walk_over, .arg = w};

    w->refs = 2; /* the stream's, and one until it has begun */
    w->sb = (struct e2b_sandbox *)sg_sandbox_ref(base);
    w->out = sg_pipe_new(PIPE_BYTES);
    sg_buf_init(&w->said, SAID_MAX);
    struct sg_pipe *out = sg_pipe_ref(w->out);
    sg_pipe_set_writer(w->out, &room);
    int rc = e2b_stream_start(w->sb, &a, &w->stream, err);
    if (rc < 0) {
        sg_pipe_set_writer(w->out, NULL);
        walk_unref(w);
        out = sg_pipe_unref(out);
    }
    walk_unref(w);
    *ret = out;
    return rc;
}

/* ---- in ---- */

struct unpacking {
    struct e2b_sandbox *sb;
    struct sg_pipe *records;
    char *path, *temp;
    struct sg_done done;
    struct sg_error why;
};

static void unpack_told(void *arg)
{
    struct unpacking *u = arg;

    u->done.fn(u->done.arg, u->why.code == SG_OK ? NULL : &u->why);
    sg_error_clear(&u->why);
    sg_pipe_stop(u->records);
    sg_pipe_unref(u->records);
    sg_sandbox_unref(&u->sb->base);
    free(u->path);
    free(u->temp);
    free(u);
}

static void unpack_over(struct unpacking *u, const struct sg_error *err)
{
    if (err)
        sg_error_copy(&u->why, err);
    if (err && u->temp)
        e2b_drop(u->sb, u->temp, err->code == SG_OUTCOME_UNKNOWN ? E2B_DROP_LATER : E2B_DROP_NOW_AND_LATER, unpack_told, u);
    else
        unpack_told(u);
}

static void unpacked(void *arg, const char *out SG_UNUSED, size_t len SG_UNUSED, const struct sg_error *err)
{
    unpack_over(arg, err);
}

static void send_failed(void *arg, const struct sg_error *err)
{
    struct sg_error why = {0};

    e2b_unchanged(err, &why);
    unpack_over(arg, &why);
    sg_error_clear(&why);
}

static void sent(void *arg, const struct sg_error *err)
{
    struct unpacking *u = arg;

    if (err) {
        e2b_blame(u->sb, err, send_failed, u);
        return;
    }
    sg_cleanup(sg_free_p) char *temp = e2b_hex(u->temp);
    sg_cleanup(sg_free_p) char *path = e2b_hex(u->path);
    e2b_file_run(u->sb, &(struct e2b_file_call){.script = e2b_script_tree, .args = {"unpack", temp, path}, .limit_ms = UNPACK_MS, .changes = true,
                                                .done = unpacked, .arg = u});
}

static void has_room(void *arg, const char *out, size_t len, const struct sg_error *err)
{
    struct unpacking *u = arg;
    struct sg_error why = {0};
    const char *temp = err ? NULL : e2b_field(&out, out + len);

    if (err) {
        unpack_over(u, err);
        return;
    }
    u->temp = temp && temp[0] == '/' ? sg_xstrdup(temp) : NULL;
    if (!u->temp)
        e2b_file_nonsense(&why);
    const struct e2b_send_args a = {.temp = u->temp, .pipe = u->records, .stall_ms = SILENT_MS, .done = sent, .arg = u};
    if (!u->temp || e2b_send(u->sb, &a, &why) < 0)
        unpack_over(u, &why);
    sg_error_clear(&why);
}

static int do_unpack(struct sg_sandbox *base, const char *to, struct sg_pipe *records, const struct sg_done *done, struct sg_error *err SG_UNUSED)
{
    struct unpacking *u = sg_xcalloc(1, sizeof *u);
    sg_cleanup(sg_free_p) char *hex = e2b_hex(to);

    *u = (struct unpacking){.sb = (struct e2b_sandbox *)sg_sandbox_ref(base), .records = sg_pipe_ref(records), .path = sg_xstrdup(to), .done = *done};
    e2b_file_run(u->sb, &(struct e2b_file_call){.args = {"room", hex}, .done = has_room, .arg = u});
    return 0;
}

const struct sg_tree_ops e2b_tree_ops = {.resolve = do_resolve, .scratch = do_scratch, .pack = do_pack, .unpack = do_unpack};
