#include "tests/support/calls.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

/* ---- flags ---- */

void flag_raise(struct flag *f)
{
    (void)pthread_mutex_lock(&f->lock);
    f->count++;
    (void)pthread_cond_broadcast(&f->cond);
    (void)pthread_mutex_unlock(&f->lock);
}

bool flag_wait(struct flag *f, unsigned n, int64_t ms)
{
    struct timespec at;
    (void)clock_gettime(CLOCK_REALTIME, &at);
    at.tv_sec += ms / 1000;
    at.tv_nsec += ms % 1000 * 1000000;
    if (at.tv_nsec >= 1000000000) {
        at.tv_sec++;
        at.tv_nsec -= 1000000000;
    }
    (void)pthread_mutex_lock(&f->lock);
    int rc = 0;
    while (f->count < n && rc == 0) {
        rc = pthread_cond_timedwait(&f->cond, &f->lock, &at);
    }
    bool ok = f->count >= n;
    (void)pthread_mutex_unlock(&f->lock);
    return ok;
}

static void must(struct flag *f, const char *what)
{
    if (!flag_wait(f, 1, CALL_MS)) {
        (void)fprintf(stderr, "no answer to %s\n", what);
        abort();
    }
}

/* ---- create, terminate ---- */

struct sg_sandbox_spec call_spec(const char *lease_id)
{
    return (struct sg_sandbox_spec){.lease_id = lease_id, .acquire_timeout_ms = CALL_MS};
}

static void created(void *arg, struct sg_sandbox *sb, const struct sg_error *err)
{
    struct creating *c = arg;
    if (sb != NULL && c->lost != NULL) {
        sg_sandbox_on_lost(sb, c->lost, c->lost_arg);
    }
    c->sb = sb;
    c->took_us = sg_now_us() - c->begun_us;
    c->place = c->order != NULL ? ++*c->order : 0;
    if (err != NULL) {
        sg_error_copy(&c->err, err);
    }
    flag_raise(&c->flag);
}

void call_create_begin(struct sg_driver *d, const struct sg_sandbox_spec *spec, struct sg_cancel *cancel,
                       struct creating *c)
{
    *c = (struct creating){
        .flag = FLAG_INIT, .order = c->order, .lost = c->lost, .lost_arg = c->lost_arg, .begun_us = sg_now_us()};
    const struct sg_sandbox_done done = {.fn = created, .arg = c};
    struct sg_error err = {0};
    if (sg_driver_create(d, spec, cancel, &done, &err) < 0) {
        sg_error_copy(&c->err, &err);
        sg_error_clear(&err);
        flag_raise(&c->flag);
    }
}

struct sg_sandbox *call_create_end(struct creating *c)
{
    must(&c->flag, "create");
    return c->sb;
}

struct sg_sandbox *call_create(struct sg_driver *d, const struct sg_sandbox_spec *spec, struct sg_error *err)
{
    struct creating c = {0};
    call_create_begin(d, spec, NULL, &c);
    struct sg_sandbox *sb = call_create_end(&c);
    if (sb == NULL && err != NULL) {
        sg_error_copy(err, &c.err);
    }
    sg_error_clear(&c.err);
    return sb;
}

struct plain {
    struct flag flag;
    bool failed;
    struct sg_error *err;
};

static void plain_done(void *arg, const struct sg_error *err)
{
    struct plain *p = arg;
    p->failed = err != NULL;
    if (err != NULL && p->err != NULL) {
        sg_error_copy(p->err, err);
    }
    flag_raise(&p->flag);
}

int call_terminate(struct sg_sandbox *sb, struct sg_error *err)
{
    struct plain p = {.flag = FLAG_INIT, .err = err};
    const struct sg_done done = {.fn = plain_done, .arg = &p};
    sg_sandbox_terminate(sb, &done);
    must(&p.flag, "terminate");
    return p.failed ? -1 : 0;
}

void call_end(struct sg_sandbox *sb)
{
    if (sb != NULL) {
        (void)call_terminate(sb, NULL);
        sg_sandbox_unref(sb);
    }
}

/* ---- exec ---- */

static void run_started(void *arg)
{
    flag_raise(&((struct run *)arg)->started);
}

static void run_failed(void *arg, const struct sg_error *err)
{
    struct run *r = arg;
    (void)pthread_mutex_lock(&r->flag.lock);
    r->failed = true;
    r->done = true;
    sg_error_copy(&r->err, err);
    (void)pthread_mutex_unlock(&r->flag.lock);
    flag_raise(&r->started);
    flag_raise(&r->flag);
}

static void run_exited(void *arg, const struct sg_exit *e)
{
    struct run *r = arg;
    (void)pthread_mutex_lock(&r->flag.lock);
    r->exit = *e;
    r->done = true;
    (void)pthread_mutex_unlock(&r->flag.lock);
    flag_raise(&r->flag);
}

static void run_progress(void *arg)
{
    flag_raise(&((struct run *)arg)->flag);
}

bool call_exec_argv_begin(struct sg_sandbox *sb, const char *const *argv, const struct sg_env *env,
                          const char *cwd, bool stdin_open, int64_t timeout_ms, struct run *r)
{
    static const struct sg_env none;
    *r = (struct run){.flag = FLAG_INIT, .started = FLAG_INIT};
    const struct sg_exec_spec spec = {.argv = argv,
                                      .cwd = cwd,
                                      .env = env != NULL ? env : &none,
                                      .stdin_open = stdin_open,
                                      .timeout_ms = timeout_ms,
                                      .pipe_bytes = 65536};
    const struct sg_exec_sink sink = {
        .started = run_started, .failed = run_failed, .exited = run_exited, .arg = r};
    if (sg_sandbox_exec(sb, &spec, &sink, &r->x, &r->err) < 0) {
        r->done = true;
        r->failed = true;
        return false;
    }
    r->in = r->x->in;
    const struct sg_waker w = {.wake = run_progress, .arg = r};
    sg_pipe_set_reader(r->x->out, &w);
    sg_pipe_set_reader(r->x->err, &w);
    return true;
}

bool call_exec_begin(struct sg_sandbox *sb, const char *text, bool stdin_open, int64_t timeout_ms,
                     struct run *r)
{
    const char *const argv[] = {"/bin/sh", "-c", text, NULL};
    struct sg_env env = {0};
    (void)sg_env_set(&env, "PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", NULL);
    bool ok = call_exec_argv_begin(sb, argv, &env, NULL, stdin_open, timeout_ms, r);
    sg_env_finish(&env);
    return ok;
}

/* Takes what is there; true at the end. */
static bool take(struct sg_pipe *p, char **data, size_t *len)
{
    char chunk[16384];
    for (;;) {
        ssize_t n = sg_pipe_read(p, chunk, sizeof chunk);
        if (n == -EAGAIN) {
            return false;
        }
        if (n <= 0) {
            return true;
        }
        *data = realloc(*data, *len + (size_t)n + 1);
        memcpy(*data + *len, chunk, (size_t)n);
        *len += (size_t)n;
        (*data)[*len] = '\0';
    }
}

static bool take_all(struct run *r)
{
    bool out = take(r->x->out, &r->out, &r->out_len);
    bool err = take(r->x->err, &r->errout, &r->errout_len);
    (void)pthread_mutex_lock(&r->flag.lock);
    bool done = r->done;
    (void)pthread_mutex_unlock(&r->flag.lock);
    return out && err && done;
}

void call_exec_end(struct run *r)
{
    unsigned seen = 0;
    while (r->x != NULL) {
        (void)pthread_mutex_lock(&r->flag.lock);
        seen = r->flag.count;
        (void)pthread_mutex_unlock(&r->flag.lock);
        if (take_all(r)) {
            break;
        }
        if (!flag_wait(&r->flag, seen + 1, CALL_MS)) {
            (void)fprintf(stderr, "a command does not end\n");
            abort();
        }
    }
    r->out = r->out != NULL ? r->out : sg_xstrdup("");
    r->errout = r->errout != NULL ? r->errout : sg_xstrdup("");
}

void call_exec_finish(struct run *r)
{
    if (r->x != NULL) {
        sg_pipe_set_reader(r->x->out, NULL);
        sg_pipe_set_reader(r->x->err, NULL);
        r->x->ops->release(r->x);
    }
    r->x = NULL;
    free(r->out);
    free(r->errout);
    sg_error_clear(&r->err);
}

void call_exec(struct sg_sandbox *sb, const char *text, const char *stdin_text, struct run *r)
{
    if (call_exec_begin(sb, text, stdin_text != NULL, CALL_MS, r) && stdin_text != NULL) {
        (void)sg_pipe_write(r->in, stdin_text, strlen(stdin_text));
        sg_pipe_close(r->in);
    }
    call_exec_end(r);
}

char *call_output(struct sg_sandbox *sb, const char *text)
{
    struct run r;
    call_exec(sb, text, NULL, &r);
    char *out = NULL;
    if (!r.failed && r.exit.signal == 0 && r.exit.returncode == 0) {
        out = sg_steal(&r.out);
    } else {
        (void)fprintf(stderr, "%s: returncode %d, signal %d, %s%s\n", text, r.exit.returncode, r.exit.signal,
                      r.err.message, r.errout);
    }
    call_exec_finish(&r);
    return out;
}

/* ---- files ---- */

struct answer {
    struct flag flag;
    bool failed;
    bool created;
    struct sg_error *err;
    struct sg_file_source src;
    struct sg_file_sink *sink;
    struct sg_file_stat st;
    struct sg_file_list list;
    int fd;
    struct sg_hold *hold;
};

static int wait_answer(struct answer *a, int rc, const char *what)
{
    if (rc < 0) {
        return -1;
    }
    must(&a->flag, what);
    return a->failed ? -1 : 0;
}

static void note(struct answer *a, const struct sg_error *err)
{
    a->failed = err != NULL;
    if (err != NULL && a->err != NULL) {
        sg_error_copy(a->err, err);
    }
}

static void got(void *arg, struct sg_file_source *src, const struct sg_error *err)
{
    struct answer *a = arg;
    note(a, err);
    if (src != NULL) {
        a->src = *src;
    }
    flag_raise(&a->flag);
}

int call_get_fd(struct sg_sandbox *sb, const char *path, struct sg_hold **hold, struct sg_file_stat *st,
                struct sg_error *err)
{
    struct answer a = {.flag = FLAG_INIT, .err = err};
    const struct sg_file_source_done done = {.fn = got, .arg = &a};
    const struct sg_file_ops *f = sg_sandbox_files(sb, err);
    if (f == NULL || wait_answer(&a, f->get(sb, path, &done, err), "get") < 0) {
        return -1;
    }
    *hold = a.src.hold;
    if (st != NULL) {
        *st = a.src.stat;
    }
    return a.src.fd;
}

char *call_get(struct sg_sandbox *sb, const char *path, size_t *len, struct sg_error *err)
{
    struct sg_hold *hold = NULL;
    int fd = call_get_fd(sb, path, &hold, NULL, err);
    if (fd < 0) {
        return NULL;
    }
    char *data = sg_xcalloc(1, 1);
    size_t n = 0;
    for (;;) {
        char chunk[65536];
        ssize_t got_bytes = pread(fd, chunk, sizeof chunk, (off_t)n);
        if (got_bytes <= 0) {
            break;
        }
        data = realloc(data, n + (size_t)got_bytes + 1);
        memcpy(data + n, chunk, (size_t)got_bytes);
        n += (size_t)got_bytes;
        data[n] = '\0';
    }
    sg_close(fd);
    sg_hold_unref(hold);
    if (len != NULL) {
        *len = n;
    }
    return data;
}

static void sink_opened(void *arg, struct sg_file_sink *sink, const struct sg_error *err)
{
    struct answer *a = arg;
    note(a, err);
    a->sink = sink;
    flag_raise(&a->flag);
}

struct sg_file_sink *call_put_open(struct sg_sandbox *sb, const char *path, bool append, struct sg_error *err)
{
    struct answer a = {.flag = FLAG_INIT, .err = err};
    const struct sg_file_put_args args = {.path = path, .append = append, .size_hint = -1};
    const struct sg_file_sink_done done = {.fn = sink_opened, .arg = &a};
    const struct sg_file_ops *f = sg_sandbox_files(sb, err);
    if (f == NULL || wait_answer(&a, f->put(sb, &args, &done, err), "put") < 0) {
        return NULL;
    }
    return a.sink;
}

static void committed(void *arg, const struct sg_file_stat *st, bool is_new, const struct sg_error *err)
{
    struct answer *a = arg;
    note(a, err);
    a->created = is_new;
    if (st != NULL) {
        a->st = *st;
    }
    flag_raise(&a->flag);
}

int call_put_commit(struct sg_file_sink *sink, struct sg_file_stat *st, bool *is_new, struct sg_error *err)
{
    struct answer a = {.flag = FLAG_INIT, .err = err};
    sink->ops->commit(sink, committed, &a);
    int rc = wait_answer(&a, 0, "commit");
    if (st != NULL) {
        *st = a.st;
    }
    if (is_new != NULL) {
        *is_new = a.created;
    }
    return rc;
}

int call_put(struct sg_sandbox *sb, const char *path, const char *data, size_t len, bool append,
             struct sg_error *err)
{
    struct sg_file_sink *sink = call_put_open(sb, path, append, err);
    if (sink == NULL) {
        return -1;
    }
    if (sink->ops->write(sink, data, len, err) < 0) {
        sink->ops->abort(sink);
        return -1;
    }
    return call_put_commit(sink, NULL, NULL, err);
}

static void stat_told(void *arg, const struct sg_file_stat *st, const struct sg_error *err)
{
    committed(arg, st, false, err);
}

int call_stat(struct sg_sandbox *sb, const char *path, struct sg_file_stat *st, struct sg_error *err)
{
    struct answer a = {.flag = FLAG_INIT, .err = err};
    const struct sg_file_stat_done done = {.fn = stat_told, .arg = &a};
    const struct sg_file_ops *f = sg_sandbox_files(sb, err);
    int rc = f == NULL ? -1 : wait_answer(&a, f->stat(sb, path, &done, err), "stat");
    *st = a.st;
    return rc;
}

int call_mkdir(struct sg_sandbox *sb, const char *path, struct sg_error *err)
{
    struct answer a = {.flag = FLAG_INIT, .err = err};
    const struct sg_file_stat_done done = {.fn = stat_told, .arg = &a};
    const struct sg_file_ops *f = sg_sandbox_files(sb, err);
    return f == NULL ? -1 : wait_answer(&a, f->mkdir(sb, path, 0755, &done, err), "mkdir");
}

static void listed(void *arg, struct sg_file_list *list, const struct sg_error *err)
{
    struct answer *a = arg;
    note(a, err);
    if (list != NULL) {
        a->list = *list;
    }
    flag_raise(&a->flag);
}

int call_list(struct sg_sandbox *sb, const char *path, bool recursive, size_t max, struct sg_file_list *list,
              struct sg_error *err)
{
    struct answer a = {.flag = FLAG_INIT, .err = err};
    const struct sg_file_list_done done = {.fn = listed, .arg = &a};
    const struct sg_file_list_args args = {.path = path, .recursive = recursive, .max = max};
    const struct sg_file_ops *f = sg_sandbox_files(sb, err);
    int rc = f == NULL ? -1 : wait_answer(&a, f->list(sb, &args, &done, err), "list");
    *list = a.list;
    return rc;
}

int call_remove(struct sg_sandbox *sb, const char *path, bool recursive, struct sg_error *err)
{
    struct plain p = {.flag = FLAG_INIT, .err = err};
    const struct sg_done done = {.fn = plain_done, .arg = &p};
    const struct sg_file_ops *f = sg_sandbox_files(sb, err);
    if (f == NULL || f->remove(sb, path, recursive, NULL, &done, err) < 0) {
        return -1;
    }
    must(&p.flag, "remove");
    return p.failed ? -1 : 0;
}

int call_move(struct sg_sandbox *sb, const char *from, const char *to, struct sg_error *err)
{
    struct plain p = {.flag = FLAG_INIT, .err = err};
    const struct sg_done done = {.fn = plain_done, .arg = &p};
    const struct sg_file_ops *f = sg_sandbox_files(sb, err);
    if (f == NULL || f->move(sb, from, to, &done, err) < 0) {
        return -1;
    }
    must(&p.flag, "move");
    return p.failed ? -1 : 0;
}

static void dialled(void *arg, int fd, struct sg_hold *hold, const struct sg_error *err)
{
    struct answer *a = arg;
    note(a, err);
    a->fd = fd;
    a->hold = hold;
    flag_raise(&a->flag);
}

int call_dial(struct sg_sandbox *sb, uint16_t port, struct sg_hold **hold, struct sg_error *err)
{
    struct answer a = {.flag = FLAG_INIT, .err = err, .fd = -1};
    const struct sg_dial_done done = {.fn = dialled, .arg = &a};
    if (wait_answer(&a, sg_sandbox_dial(sb, port, sg_now_ms() + 5000, &done, err), "dial") < 0) {
        return -1;
    }
    *hold = a.hold;
    return a.fd;
}
