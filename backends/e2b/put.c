/* The bytes of files: up into a temporary name that becomes the real one when all is there, down into a file of ours without a name. */
#include "backends/e2b/files_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/json.h"

#define PIPE_BYTES ((size_t)256 * 1024)
#define SILENT_MS 60000
#define WRITE_MS 30000 /* how long a write waits for the provider to take something */
#define IN_MEMORY (1024 * 1024)

/* ---- up ---- */

struct upload {
    struct sg_file_sink sink;
    _Atomic int refs; /* the sink's and the call's */
    struct e2b_sandbox *sb;
    struct sg_pipe *pipe;
    struct sg_cancel *cancel;
    char *path, *temp, *cond;
    bool append, mode_given, mtime_given, no_links;
    uint32_t mode;
    int64_t mtime_ns;
    struct sg_file_sink_done opened;
    void (*committed)(void *arg, const struct sg_file_stat *st, bool created, const struct sg_error *err);
    void *committed_arg;
    struct sg_error told; /* of a commit that failed */
    bool given_up;        /* a write has failed: an abort has nothing left to do */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t room;
    uint64_t wakes;
    bool sent;       /* the call is over */
    bool committing, aborted;
    bool gone; /* after a write that failed: its temporary name, and `told` says why */
    struct sg_alarm_set *silence; /* has a reference */
    struct sg_error why;
};

static void upload_unref(struct upload *u)
{
    if (atomic_fetch_sub(&u->refs, 1) > 1)
        return;
    sg_pipe_unref(u->pipe);
    sg_cancel_unref(u->cancel);
    sg_error_clear(&u->why);
    sg_error_clear(&u->told);
    pthread_cond_destroy(&u->room);
    pthread_mutex_destroy(&u->lock);
    sg_sandbox_unref(&u->sb->base);
    free(u->path);
    free(u->temp);
    free(u->cond);
    free(u);
}

static void commit_ran(void *arg, const char *out, size_t len, const struct sg_error *err)
{
    struct upload *u = arg;
    struct sg_file_stat st = {0};
    struct sg_error why = {0};
    const char *end = out + len, *name;
    const char *created = err ? NULL : e2b_field(&out, end);

    if (!err && (!created || !e2b_record(&out, end, &name, &st))) {
        e2b_file_nonsense(&why);
        err = &why;
    }
    u->committed(u->committed_arg, err ? NULL : &st, created && created[0] == '1', err);
    sg_error_clear(&why);
    upload_unref(u);
}

static void dropped(void *arg)
{
    struct upload *u = arg;

    if (u->committed)
        u->committed(u->committed_arg, NULL, false, &u->told);
    upload_unref(u);
}

/* The temporary name goes, and only then is told why; consumes a reference. Of a call that broke off the daemon may hear only later. */
static void drop(struct upload *u)
{
    bool unknown = u->why.code == SG_CANCELLED || sg_origin_unknown(&u->why);
    e2b_drop(u->sb, u->temp, unknown ? E2B_DROP_NOW_AND_LATER : E2B_DROP_NOW, dropped, u);
}

static void commit_failed(void *arg, const struct sg_error *err)
{
    struct upload *u = arg;

    e2b_unchanged(err, &u->told);
    drop(u);
}

/* All has been sent, or not, and the sink's owner has said what to do. */
static void conclude(struct upload *u)
{
    if (u->aborted) {
        drop(u);
        return;
    }
    if (u->why.code != SG_OK) {
        e2b_blame(u->sb, &u->why, commit_failed, u);
        return;
    }
    sg_cleanup(sg_free_p) char *temp = e2b_hex(u->temp);
    sg_cleanup(sg_free_p) char *path = e2b_hex(u->path);
    char mode[16] = "-", mtime[24] = "-";
    if (u->mode_given)
        snprintf(mode, sizeof mode, "%o", u->mode & 0777U);
    if (u->mtime_given)
        snprintf(mtime, sizeof mtime, "%lld", (long long)u->mtime_ns);
    e2b_file_run(u->sb, &(struct e2b_file_call){.args = {"commit", temp, path, u->append ? "1" : "0", mode, u->cond, mtime, u->no_links ? "1" : "0"},
                                                .changes = true, .done = commit_ran, .arg = u});
}

static void sent(void *arg, const struct sg_error *err)
{
    struct upload *u = arg;

    pthread_mutex_lock(&u->lock);
    u->sent = true;
    if (err)
        sg_error_copy(&u->why, err);
    bool go = u->committing || u->aborted;
    struct sg_alarm_set *silence = u->silence;
    u->silence = NULL;
    pthread_cond_broadcast(&u->room);
    pthread_mutex_unlock(&u->lock);
    sg_alarm_off(silence);
    if (go)
        conclude(u);
    upload_unref(u);
}

static void late(void *arg, bool over)
{
    struct upload *u = arg;

    if (!over)
        sg_cancel_fire(u->cancel, SG_CANCEL_TIMEOUT);
    upload_unref(u);
}

static void upload_ref(void *arg)
{
    atomic_fetch_add(&((struct upload *)arg)->refs, 1);
}

/* Also what is given up is sent to its end, which is short of what was meant: the daemon is then done with the name, and does not make it
 * anew when it has gone. */
static void end_sink(struct upload *u, bool commit)
{
    sg_pipe_close(u->pipe);
    sg_pipe_set_writer(u->pipe, NULL);
    pthread_mutex_lock(&u->lock);
    u->committing = commit;
    u->aborted = !commit;
    bool go = u->sent;
    if (!go) {
        upload_ref(u);
        u->silence = sg_alarm_set(u->sb->d->alarms, SILENT_MS, late, u);
    }
    pthread_mutex_unlock(&u->lock);
    if (go)
        conclude(u);
}

static void sink_commit(struct sg_file_sink *s,
                        void (*done)(void *arg, const struct sg_file_stat *st, bool created, const struct sg_error *err), void *arg)
{
    struct upload *u = (struct upload *)s;

    u->committed = done;
    u->committed_arg = arg;
    end_sink(u, true);
}

static void sink_abort(struct sg_file_sink *s)
{
    struct upload *u = (struct upload *)s;

    if (u->given_up)
        upload_unref(u);
    else
        end_sink(u, false);
}

static void room_wake(void *arg)
{
    struct upload *u = arg;

    pthread_mutex_lock(&u->lock);
    u->wakes++;
    pthread_cond_broadcast(&u->room);
    pthread_mutex_unlock(&u->lock);
}

/* How long a write waits, on CLOCK_MONOTONIC. */
static struct timespec write_deadline(void)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += WRITE_MS / 1000;
    return until;
}

/* Until there has been a wake after `seen`. */
static bool wait_for_room(struct upload *u, uint64_t seen)
{
    const struct timespec until = write_deadline();
    int rc = 0;

    pthread_mutex_lock(&u->lock);
    while (u->wakes == seen && !u->sent && rc == 0)
        rc = pthread_cond_timedwait(&u->room, &u->lock, &until);
    pthread_mutex_unlock(&u->lock);
    return rc == 0;
}

/* True: the flag, which is one of u's, has been set. */
static bool wait_for(struct upload *u, const bool *flag)
{
    const struct timespec until = write_deadline();
    int rc = 0;

    pthread_mutex_lock(&u->lock);
    while (!*flag && rc == 0)
        rc = pthread_cond_timedwait(&u->room, &u->lock, &until);
    bool set = *flag;
    pthread_mutex_unlock(&u->lock);
    return set;
}

static int write_late(struct sg_error *err)
{
    return sg_error_set(err, SG_PROVIDER_TIMEOUT, "e2b takes nothing of the file any more; nothing was changed");
}

static void gave_up(void *arg, const struct sg_file_stat *st SG_UNUSED, bool created SG_UNUSED, const struct sg_error *err SG_UNUSED)
{
    struct upload *u = arg;

    pthread_mutex_lock(&u->lock);
    u->gone = true;
    pthread_cond_broadcast(&u->room);
    pthread_mutex_unlock(&u->lock);
}

/* The call is over, or about to be, before all was written: as with a commit, what was sent goes before it is told. */
static int write_failed(struct upload *u, struct sg_error *err)
{
    if (!wait_for(u, &u->sent))
        return write_late(err);
    if (u->why.code == SG_OK)
        sg_error_set(&u->why, SG_PROVIDER_FAILED, "e2b does not take the file");
    u->given_up = true;
    u->committed = gave_up;
    u->committed_arg = u;
    upload_ref(u); /* the abort's: the end takes the sink's */
    end_sink(u, true);
    if (!wait_for(u, &u->gone))
        return write_late(err);
    sg_error_copy(err, &u->told);
    return -1;
}

static int sink_write(struct sg_file_sink *s, const void *data, size_t len, struct sg_error *err)
{
    static const char zeros[16384];
    struct upload *u = (struct upload *)s;
    const char *p = data;

    while (len > 0) {
        pthread_mutex_lock(&u->lock);
        uint64_t seen = u->wakes;
        pthread_mutex_unlock(&u->lock);
        ssize_t n = sg_pipe_write(u->pipe, p ? p : zeros, p || len < sizeof zeros ? len : sizeof zeros);
        if (n < 0)
            return write_failed(u, err);
        if (n == 0 && !wait_for_room(u, seen))
            return write_late(err);
        p = p ? p + n : NULL;
        len -= (size_t)n;
    }
    return 0;
}

static const struct sg_file_sink_ops sink_ops = {.write = sink_write, .commit = sink_commit, .abort = sink_abort};

static void upload_unref_cb(void *arg)
{
    upload_unref(arg);
}

static int begin_upload(struct upload *u, struct sg_error *err)
{
    const struct sg_waker w = {.wake = room_wake, .ref = upload_ref, .unref = upload_unref_cb, .arg = u};
    const struct e2b_send_args a = {.temp = u->temp, .pipe = u->pipe, .cancel = u->cancel, .done = sent, .arg = u};

    sg_pipe_set_writer(u->pipe, &w);
    upload_ref(u);
    if (e2b_send(u->sb, &a, err) == 0)
        return 0;
    sg_pipe_set_writer(u->pipe, NULL);
    upload_unref(u);
    return -1;
}

static void not_opened(void *arg, const struct sg_file_stat *st SG_UNUSED, bool created SG_UNUSED, const struct sg_error *err)
{
    struct upload *u = arg;

    u->opened.fn(u->opened.arg, NULL, err);
}

static void begun(void *arg, const char *out, size_t len, const struct sg_error *err)
{
    struct upload *u = arg;
    struct sg_error why = {0};
    const char *end = out + len;
    const char *temp = err ? NULL : e2b_field(&out, end);

    if (!err && (!temp || temp[0] != '/')) {
        e2b_file_nonsense(&why);
        err = &why;
    }
    if (!err) {
        u->temp = sg_xstrdup(temp);
        if (begin_upload(u, &why) == 0) {
            u->opened.fn(u->opened.arg, &u->sink, NULL);
            return;
        }
        sg_error_copy(&u->told, &why);
        sg_error_clear(&why);
        u->committed = not_opened;
        u->committed_arg = u;
        drop(u);
        return;
    }
    u->opened.fn(u->opened.arg, NULL, err);
    sg_error_clear(&why);
    upload_unref(u);
}

int e2b_put(struct sg_sandbox *base, const struct sg_file_put_args *a, const struct sg_file_sink_done *done, struct sg_error *err SG_UNUSED)
{
    struct upload *u = sg_xcalloc(1, sizeof *u);
    pthread_condattr_t attr;

    u->sink.ops = &sink_ops;
    u->refs = 1;
    u->sb = (struct e2b_sandbox *)sg_sandbox_ref(base);
    u->pipe = sg_pipe_new(PIPE_BYTES);
    u->cancel = sg_cancel_new();
    u->path = sg_xstrdup(a->path);
    u->cond = e2b_condition(a->only_if);
    u->append = a->append;
    u->mode_given = a->mode_given;
    u->mode = a->mode;
    u->mtime_given = a->mtime_given;
    u->mtime_ns = a->mtime_ns;
    u->no_links = a->no_links;
    u->opened = *done;
    pthread_mutex_init(&u->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&u->room, &attr);
    pthread_condattr_destroy(&attr);
    sg_cleanup(sg_free_p) char *hex = e2b_hex(a->path);
    e2b_file_run(u->sb, &(struct e2b_file_call){.args = {"begin", hex, u->cond, u->no_links ? "1" : "0"}, .done = begun, .arg = u});
    return 0;
}

/* ---- down ---- */

struct download {
    _Atomic int refs; /* the call's, the work's, the waker's */
    struct e2b_sandbox *sb;
    struct sg_pipe *pipe;
    struct sg_file_source src;
    struct sg_file_source_done done;
    struct sg_work work;
    int broken; /* errno of our own file */
    pthread_mutex_t lock; /* guards what follows */
    bool working, again, answered, told;
    struct sg_error why;
};

static void download_unref(void *arg)
{
    struct download *d = arg;

    if (atomic_fetch_sub(&d->refs, 1) > 1)
        return;
    sg_close(d->src.fd);
    sg_pipe_unref(d->pipe);
    sg_error_clear(&d->why);
    pthread_mutex_destroy(&d->lock);
    sg_sandbox_unref(&d->sb->base);
    free(d);
}

static void download_ref(void *arg)
{
    atomic_fetch_add(&((struct download *)arg)->refs, 1);
}

static void download_failed(void *arg, const struct sg_error *err)
{
    struct download *d = arg;

    d->done.fn(d->done.arg, NULL, err);
    download_unref(d);
}

/* Everything is there, or will never be. */
static void download_over(struct download *d)
{
    struct sg_error err = {0};

    sg_pipe_set_reader(d->pipe, NULL);
    download_ref(d);
    if (d->broken) {
        sg_error_sys(&err, SG_UNAVAILABLE, d->broken, "this server has no room for the file on its way");
        sg_error_retry_after(&err, 5);
        download_failed(d, &err);
    } else if (d->why.code == SG_PROVIDER_FAILED && json_integer_value(json_object_get(d->why.members, "provider_status")) == 400) {
        sg_error_set(&err, SG_CONFLICT, "it became something else while it was opened");
        download_failed(d, &err);
    } else if (d->why.code == SG_NOT_FOUND) {
        sg_error_set(&err, SG_NOT_FOUND, "no such file or directory");
        download_failed(d, &err);
    } else if (d->why.code != SG_OK) {
        e2b_blame(d->sb, &d->why, download_failed, d);
    } else {
        struct sg_file_source src = d->src;
        d->src.fd = -1;
        off_t size = lseek(src.fd, 0, SEEK_END);
        src.stat.size = size > 0 ? (uint64_t)size : 0;
        d->done.fn(d->done.arg, &src, NULL);
        download_unref(d);
    }
    sg_error_clear(&err);
}

/* On a worker. */
static void drain(struct sg_work *w)
{
    struct download *d = sg_container_of(w, struct download, work);
    bool over = false;

    for (;;) {
        ssize_t n = sg_pipe_read_to(d->pipe, d->src.fd);
        if (n > 0)
            continue;
        pthread_mutex_lock(&d->lock);
        if (n < 0 && n != -EAGAIN && n != -EIO) {
            d->broken = (int)-n;
            sg_pipe_stop(d->pipe);
        }
        bool all = n != -EAGAIN && (d->answered || d->broken);
        bool more = d->again && !all;
        d->again = false;
        d->working = more;
        over = all && !d->told;
        d->told = d->told || over;
        pthread_mutex_unlock(&d->lock);
        if (!more)
            break;
    }
    if (over)
        download_over(d);
    download_unref(d);
}

static void work(void *arg)
{
    struct download *d = arg;
    struct sg_error err = {0};

    pthread_mutex_lock(&d->lock);
    bool go = !d->working && !d->told;
    d->working = d->working || go;
    d->again = true;
    pthread_mutex_unlock(&d->lock);
    if (!go)
        return;
    download_ref(d);
    if (sg_workq_submit(d->sb->d->workq, &d->work, &err) < 0) {
        pthread_mutex_lock(&d->lock);
        d->working = false;
        d->broken = EAGAIN;
        bool over = !d->told;
        d->told = true;
        pthread_mutex_unlock(&d->lock);
        sg_pipe_stop(d->pipe);
        if (over)
            download_over(d);
        download_unref(d);
    }
    sg_error_clear(&err);
}

static void came(void *arg, const struct sg_net_response *r, const struct sg_error *failed)
{
    struct download *d = arg;
    struct sg_error why = {0};

    (void)e2b_files_verdict(d->sb, r, failed, &why);
    pthread_mutex_lock(&d->lock);
    d->answered = true;
    d->why = why;
    pthread_mutex_unlock(&d->lock);
    work(d);
    download_unref(d);
}

int e2b_spool(const struct e2b *d, uint64_t size)
{
    return size <= IN_MEMORY ? memfd_create("download", MFD_CLOEXEC) : open(d->spool_dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
}

static int begin_download(struct download *d, const char *path, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *url = e2b_files_path(path);
    struct sg_net_header headers[4];
    const struct sg_waker w = {.wake = work, .ref = download_ref, .unref = download_unref, .arg = d};

    d->src.fd = e2b_spool(d->sb->d, d->src.stat.size);
    if (d->src.fd < 0)
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "this server has no room for the file on its way");
    const struct sg_net_request q = {.method = "GET", .path = url, .headers = headers, .n_headers = e2b_headers(d->sb, NULL, headers),
                                     .stall_ms = SILENT_MS, .response_max = 65536, .response = d->pipe, .done = came, .arg = d};
    download_ref(d);
    sg_pipe_set_reader(d->pipe, &w);
    if (sg_net_call(d->sb->d->streams, &q, err) == 0)
        return 0;
    sg_pipe_set_reader(d->pipe, NULL);
    download_unref(d);
    return -1;
}

static void opened(void *arg, const char *out, size_t len, const struct sg_error *err)
{
    struct download *d = arg;
    struct sg_error why = {0};
    const char *end = out + len, *name;
    const char *path = err ? NULL : e2b_field(&out, end);

    if (!err && (!path || !e2b_record(&out, end, &name, &d->src.stat))) {
        e2b_file_nonsense(&why);
        err = &why;
    }
    if (!err && begin_download(d, path, &why) < 0)
        err = &why;
    if (err)
        d->done.fn(d->done.arg, NULL, err);
    sg_error_clear(&why);
    download_unref(d);
}

int e2b_get(struct sg_sandbox *base, const char *path, const struct sg_file_source_done *done, struct sg_error *err SG_UNUSED)
{
    struct download *d = sg_xcalloc(1, sizeof *d);
    sg_cleanup(sg_free_p) char *hex = e2b_hex(path);

    d->refs = 1;
    d->sb = (struct e2b_sandbox *)sg_sandbox_ref(base);
    d->pipe = sg_pipe_new(PIPE_BYTES);
    d->src.fd = -1;
    d->done = *done;
    d->work.run = drain;
    pthread_mutex_init(&d->lock, NULL);
    e2b_file_run(d->sb, &(struct e2b_file_call){.args = {"open", hex}, .done = opened, .arg = d});
    return 0;
}
