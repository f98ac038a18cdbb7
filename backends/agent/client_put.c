/* Uploads: a nameless file that gets its name, or is appended, when it is complete. */
#include "backends/agent/client_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* ---- an upload ---- */

static void forgotten(void *arg, const struct sg_error *err)
{
    (void)arg;
    (void)err; /* it is gone, or its sandbox is */
}

void sg_upload_finish(struct sg_upload *u)
{
    struct sg_done nobody = {.fn = forgotten};
    u->fd = sg_close(u->fd);
    if (u->temp != NULL)
        (void)sg_agent_remove(u->agent, u->temp, false, NULL, &nobody, NULL);
    free(u->path);
    free(u->temp);
    u->agent = sg_agent_unref(u->agent);
}

int sg_upload_commit(struct sg_upload *u, struct sg_call *c, uint32_t how, struct sg_error *err)
{
    struct sg_agent_msg m = {.type = SG_AGENT_COMMIT, .nfds = 1};
    m.u.file.path = u->path;
    m.u.file.path2 = u->temp != NULL ? u->temp : "";
    m.u.file.mode = u->mode & 0777;
    m.u.file.mtime_ns = u->mtime_ns;
    m.u.file.flags = how | (u->mode_given ? SG_AGENT_SET_MODE : 0) |
                     (u->mtime_given ? SG_AGENT_SET_MTIME : 0) | (u->no_links ? SG_AGENT_NO_LINKS : 0);
    sg_agent_condition_from(&m.u.file.condition, &u->only_if);
    return sg_agent_call(u->agent, c, &m, &u->fd, err);
}

/* ---- the sink that the caller writes to ---- */

struct sink {
    struct sg_file_sink pub; /* first */
    bool append;
    struct sg_upload u;
    struct sg_call call; /* of the opening, then of the commit */
    struct sg_file_sink_done opened;
    sg_commit_done *done;
    void *arg;
};

static void sink_free(struct sink *s)
{
    sg_upload_finish(&s->u);
    free(s);
}

/* What is written lies here, and not in a sandbox that is far. */
static int write_failed(const struct sink *s, int e, struct sg_error *err)
{
    bool ours = s->u.agent->o.far && (e == ENOSPC || e == EDQUOT);
    return sg_agent_error(err, ours ? SG_AGENT_ENOSPOOL : (uint32_t)e);
}

static int sink_write(struct sg_file_sink *pub, const void *data, size_t len, struct sg_error *err)
{
    struct sink *s = (struct sink *)pub;
    const char *p = data;
    if (data == NULL) {
        if (len > (size_t)(INT64_MAX - s->u.size) || ftruncate(s->u.fd, s->u.size + (off_t)len) < 0)
            return write_failed(s, len > (size_t)(INT64_MAX - s->u.size) ? EFBIG : errno, err);
        s->u.size += (off_t)len;
        return 0;
    }
    for (size_t at = 0; at < len;) {
        ssize_t n = pwrite(s->u.fd, p + at, len - at, s->u.size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return write_failed(s, n < 0 ? errno : ENOSPC, err);
        at += (size_t)n;
        s->u.size += n;
    }
    return 0;
}

static int commit_answer(struct sg_call *c, const struct sg_agent_msg *m, int fd, const struct sg_error *err)
{
    struct sink *s = sg_container_of(c, struct sink, call);
    struct sg_error e = {0};
    struct sg_file_stat st;
    sg_close(fd);
    s->u.fd = sg_close(s->u.fd); /* before anybody runs it: a program open for writing cannot be */
    if (sg_agent_answer_error(m, err, &e)) {
        s->done(s->arg, NULL, false, &e);
    } else {
        free(s->u.temp); /* it has its own name now */
        s->u.temp = NULL;
        sg_agent_stat_from(&st, &m->u.done.stat, NULL, 0);
        s->done(s->arg, &st, m->u.done.flags & SG_AGENT_DONE_CREATED, NULL);
    }
    sg_error_clear(&e);
    sink_free(s);
    return 0;
}

static void sink_commit(struct sg_file_sink *pub, sg_commit_done *done, void *arg)
{
    struct sink *s = (struct sink *)pub;
    struct sg_error err = {0};
    if (s->append) {
        sg_append_start(&s->u, done, arg);
        free(s);
        return;
    }
    s->done = done;
    s->arg = arg;
    s->call = (struct sg_call){.answer = commit_answer};
    if (sg_upload_commit(&s->u, &s->call, 0, &err) == 0)
        return;
    sink_free(s);
    done(arg, NULL, false, &err);
    sg_error_clear(&err);
}

static void sink_abort(struct sg_file_sink *pub)
{
    sink_free((struct sink *)pub);
}

static const struct sg_file_sink_ops sink_ops = {
    .write = sink_write, .commit = sink_commit, .abort = sink_abort};

/* ---- opening ---- */

static int open_answer(struct sg_call *c, const struct sg_agent_msg *m, int fd, const struct sg_error *err)
{
    struct sink *s = sg_container_of(c, struct sink, call);
    struct sg_error e = {0};
    struct stat st;
    bool wrong;
    int r = sg_agent_take_file(m, fd, O_RDWR, err, &st, &wrong, &e);
    if (r == 0 && (m->u.done.flags & SG_AGENT_DONE_NAMED)) {
        wrong = m->u.done.text[0] != '/';
        r = wrong ? sg_error_set(&e, SG_SANDBOX_LOST, "the agent broke the protocol") : 0;
        s->u.temp = wrong ? NULL : sg_xstrdup(m->u.done.text);
    }
    if (r == 0) {
        s->u.fd = fd;
        s->opened.fn(s->opened.arg, &s->pub, NULL);
    } else {
        sg_close(fd);
        s->opened.fn(s->opened.arg, NULL, &e);
        sink_free(s);
    }
    sg_error_clear(&e);
    return wrong ? -1 : 0;
}

int sg_agent_put(struct sg_agent *a, const struct sg_file_put_args *args,
                 const struct sg_file_sink_done *done, struct sg_error *err)
{
    char *path = sg_agent_path(a, args->path, err);
    if (path == NULL)
        return -1;
    struct sg_agent_msg m = {.type = SG_AGENT_OPEN, .u.file = {.path = path, .how = SG_AGENT_OPEN_TEMP}};
    m.u.file.flags = args->no_links ? SG_AGENT_NO_LINKS : 0;
    sg_agent_condition_from(&m.u.file.condition, args->only_if);
    struct sink *s = sg_xcalloc(1, sizeof *s);
    s->pub.ops = &sink_ops;
    s->append = args->append;
    s->u = (struct sg_upload){
        .agent = sg_agent_ref(a), .fd = -1, .path = path, .mode_given = args->mode_given, .mode = args->mode,
        .mtime_given = args->mtime_given, .mtime_ns = args->mtime_ns, .no_links = args->no_links};
    if (args->only_if != NULL)
        s->u.only_if = *args->only_if;
    s->call = (struct sg_call){.answer = open_answer, .wants_fd = true};
    s->opened = *done;
    if (sg_agent_call(a, &s->call, &m, NULL, err) == 0)
        return 0;
    sink_free(s);
    return -1;
}
