/* Appends: one after the other for each sandbox, so that two never mix, and whole or not at all. A file that
 * does not exist yet gets its name as in a put; one that does is opened by the agent and the upload copied to
 * its end on a worker, in space that was reserved before. */
#include "backends/agent/client_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define ROUNDS_MAX 8 /* of "it is not there" - "now it is" */
#define COPY_BYTES ((size_t)256 * 1024)

struct sg_append {
    struct sg_append *next;
    struct sg_upload u;
    struct sg_call call;
    struct sg_work work;
    sg_commit_done *done;
    void *arg;
    int rounds;
    int target; /* open for appending, or -1 */
    uint32_t uid;
};

static void step(struct sg_append *p);

/* The first in the queue is over: answers, and lets the next one start. */
static void end(struct sg_append *p, const struct sg_file_stat *st, bool created, const struct sg_error *err)
{
    struct sg_agent *a = sg_agent_ref(p->u.agent);
    p->target = sg_close(p->target);
    p->u.fd = sg_close(p->u.fd);
    p->done(p->arg, st, created, err);
    pthread_mutex_lock(&a->lock);
    a->append_first = p->next;
    if (a->append_first == NULL)
        a->append_tail = &a->append_first;
    struct sg_append *next = a->append_first;
    pthread_mutex_unlock(&a->lock);
    sg_upload_finish(&p->u);
    free(p);
    if (next != NULL)
        step(next);
    sg_agent_unref(a);
}

static int write_all(int fd, const char *p, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, p, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : ENOSPC;
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

static int copy_bytes(struct sg_append *p, char *buf)
{
    for (off_t at = 0; at < p->u.size;) {
        ssize_t n = pread(p->u.fd, buf, COPY_BYTES, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : EIO; /* somebody inside has cut the temp file */
        if (n > p->u.size - at)
            n = (ssize_t)(p->u.size - at);
        int e = write_all(p->target, buf, (size_t)n);
        if (e != 0)
            return e;
        at += n;
    }
    return 0;
}

/* 0 or an errno; on failure the file is as long as before. */
static int copy(struct sg_append *p)
{
    struct stat before;
    if (fstat(p->target, &before) < 0)
        return errno;
    if (p->u.size == 0)
        return 0;
    int r = fallocate(p->target, FALLOC_FL_KEEP_SIZE, before.st_size, p->u.size);
    if (r < 0 && errno != EOPNOTSUPP && errno != EINTR)
        return errno;
    char *buf = malloc(COPY_BYTES);
    int e = buf == NULL ? ENOMEM : copy_bytes(p, buf);
    free(buf);
    if (e != 0 && ftruncate(p->target, before.st_size) < 0)
        e = errno;
    return e;
}

static void copy_work(struct sg_work *w)
{
    struct sg_append *p = sg_container_of(w, struct sg_append, work);
    struct sg_error err = {0};
    struct sg_file_stat out;
    struct stat st;
    int e = copy(p);
    if (e == 0 && fstat(p->target, &st) < 0)
        e = errno;
    if (e != 0) {
        sg_agent_error(&err, (uint32_t)e);
        end(p, NULL, false, &err);
        sg_error_clear(&err);
        return;
    }
    sg_agent_stat_from_fd(&out, &st, p->uid);
    end(p, &out, false, NULL);
}

/* ---- the target ---- */

static int made(struct sg_call *c, const struct sg_agent_msg *m, int fd, const struct sg_error *err)
{
    struct sg_append *p = sg_container_of(c, struct sg_append, call);
    struct sg_error e = {0};
    sg_close(fd);
    if (m != NULL && m->u.done.error == EEXIST && p->rounds < ROUNDS_MAX) {
        step(p);
    } else if (sg_agent_answer_error(m, err, &e)) {
        end(p, NULL, false, &e);
    } else {
        struct sg_file_stat st;
        free(p->u.temp);
        p->u.temp = NULL;
        sg_agent_stat_from(&st, &m->u.done.stat, NULL, 0);
        end(p, &st, true, NULL);
    }
    sg_error_clear(&e);
    return 0;
}

static void make(struct sg_append *p)
{
    struct sg_error err = {0};
    p->call = (struct sg_call){.answer = made};
    if (sg_upload_commit(&p->u, &p->call, SG_AGENT_COMMIT_NEW, &err) < 0)
        end(p, NULL, false, &err);
    sg_error_clear(&err);
}

/* The condition of an append is about the file before it. */
static int check(struct sg_append *p, const struct stat *st, struct sg_error *err)
{
    struct sg_file_stat now;
    sg_agent_stat_from_fd(&now, st, p->uid);
    return sg_condition_holds(&p->u.only_if, &now) ? 0 : sg_agent_error(err, SG_AGENT_ECONDITION);
}

static int opened(struct sg_call *c, const struct sg_agent_msg *m, int fd, const struct sg_error *err)
{
    struct sg_append *p = sg_container_of(c, struct sg_append, call);
    struct sg_error e = {0};
    struct stat st;
    bool wrong = false;
    if (m != NULL && m->u.done.error == ENOENT) {
        make(p);
        return 0;
    }
    int r = sg_agent_take_file(m, fd, O_WRONLY, err, &st, &wrong, &e);
    if (r == 0 && (fcntl(fd, F_GETFL) & O_APPEND) == 0) {
        wrong = true;
        r = sg_error_set(&e, SG_SANDBOX_LOST, "the agent broke the protocol");
    }
    if (r < 0 || m == NULL) {
        sg_close(fd);
    } else {
        p->target = fd;
        p->uid = m->u.done.stat.uid;
        p->work.run = copy_work;
        r = check(p, &st, &e);
        if (r == 0)
            r = sg_workq_submit(p->u.agent->workq, &p->work, &e);
    }
    if (r < 0)
        end(p, NULL, false, &e);
    sg_error_clear(&e);
    return wrong ? -1 : 0;
}

/* The agent has what is there. */
static int far_answer(struct sg_call *c, const struct sg_agent_msg *m, int fd, const struct sg_error *err)
{
    struct sg_append *p = sg_container_of(c, struct sg_append, call);
    struct sg_error e = {0};
    struct sg_file_stat st;
    sg_close(fd);
    if (sg_agent_answer_error(m, err, &e)) {
        end(p, NULL, false, &e);
    } else {
        sg_agent_stat_from(&st, &m->u.done.stat, NULL, 0);
        end(p, &st, m->u.done.flags & SG_AGENT_DONE_CREATED, NULL);
    }
    sg_error_clear(&e);
    return 0;
}

static void far_step(struct sg_append *p)
{
    struct sg_error err = {0};
    p->call = (struct sg_call){.answer = far_answer};
    if (sg_upload_commit(&p->u, &p->call, SG_AGENT_COMMIT_APPEND, &err) < 0)
        end(p, NULL, false, &err);
    sg_error_clear(&err);
}

static void step(struct sg_append *p)
{
    if (p->u.agent->o.far) {
        far_step(p);
        return;
    }
    struct sg_agent_msg m = {.type = SG_AGENT_OPEN,
                             .u.file = {.path = p->u.path, .how = SG_AGENT_OPEN_APPEND}};
    struct sg_error err = {0};
    p->rounds++;
    p->call = (struct sg_call){.answer = opened, .wants_fd = true};
    if (sg_agent_call(p->u.agent, &p->call, &m, NULL, &err) < 0)
        end(p, NULL, false, &err);
    sg_error_clear(&err);
}

void sg_append_start(struct sg_upload *u, sg_commit_done *done, void *arg)
{
    struct sg_append *p = sg_xcalloc(1, sizeof *p);
    struct sg_agent *a = u->agent;
    p->u = *u;
    p->done = done;
    p->arg = arg;
    p->target = -1;
    pthread_mutex_lock(&a->lock);
    bool first = a->append_first == NULL;
    *a->append_tail = p;
    a->append_tail = &p->next;
    pthread_mutex_unlock(&a->lock);
    if (first)
        step(p);
}
