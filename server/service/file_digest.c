/* The digest of an open file, a turn of a worker at a time. */
#include "service/files.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/stepper.h"

#define PIECE ((size_t)128 << 10)
#define TURN_BYTES ((uint64_t)8 << 20)

struct hashing {
    struct sg_stepper stepper; /* first */
    struct sg_entry *lease;
    struct sg_cancel *cancel; /* the caller's */
    struct sg_cancel_hook lease_end, hangup;
    int fd;
    struct stat before;
    struct sg_file_digest_done done;
    bool begun;
    struct sg_digester *digester;
    char *piece;
    uint64_t at;

    /* under the stepper's lock */
    bool lease_over, left;
};

static void hashing_free(struct sg_stepper *s)
{
    struct hashing *h = sg_container_of(s, struct hashing, stepper);

    sg_digester_free(h->digester);
    sg_cancel_unref(h->cancel);
    sg_entry_unref(h->lease);
    free(h->piece);
    free(h);
}

static void finish(struct hashing *h, const struct sg_digests *d, const struct sg_error *err)
{
    if (h->begun && sg_cancel_unhook(sg_entry_cancel(h->lease), &h->lease_end))
        sg_stepper_unref(&h->stepper);
    if (h->begun && sg_cancel_unhook(h->cancel, &h->hangup))
        sg_stepper_unref(&h->stepper);
    h->done.fn(h->done.arg, d, err);
    sg_entry_use_end(h->lease, !err);
    sg_stepper_unref(&h->stepper);
}

static void no_worker(struct sg_stepper *s, const struct sg_error *err)
{
    finish(sg_container_of(s, struct hashing, stepper), NULL, err);
}

static void fired(struct hashing *h, bool *what)
{
    pthread_mutex_lock(&h->stepper.lock);
    *what = true;
    pthread_mutex_unlock(&h->stepper.lock);
    sg_stepper_kick(&h->stepper);
    sg_stepper_unref(&h->stepper);
}

static void lease_ended(struct sg_cancel_hook *k, enum sg_cancel_reason why SG_UNUSED)
{
    struct hashing *h = sg_container_of(k, struct hashing, lease_end);

    fired(h, &h->lease_over);
}

static void client_left(struct sg_cancel_hook *k, enum sg_cancel_reason why SG_UNUSED)
{
    struct hashing *h = sg_container_of(k, struct hashing, hangup);

    fired(h, &h->left);
}

static void begin(struct hashing *h)
{
    h->begun = true;
    sg_stepper_ref(&h->stepper);
    sg_stepper_ref(&h->stepper);
    sg_cancel_hook(sg_entry_cancel(h->lease), &h->lease_end);
    sg_cancel_hook(h->cancel, &h->hangup);
}

static int check_over(struct hashing *h, struct sg_error *err)
{
    pthread_mutex_lock(&h->stepper.lock);
    bool lease_over = h->lease_over, left = h->left;
    pthread_mutex_unlock(&h->stepper.lock);
    if (lease_over)
        return sg_error_set(err, SG_LEASE_GONE, "the lease ended while the file was read");
    return left ? sg_error_set(err, SG_CANCELLED, "the client has left") : 0;
}

static bool changed(const struct hashing *h)
{
    struct stat now;

    return fstat(h->fd, &now) != 0 || now.st_size != h->before.st_size ||
           now.st_ctim.tv_sec != h->before.st_ctim.tv_sec || now.st_ctim.tv_nsec != h->before.st_ctim.tv_nsec;
}

/* 1: more, 0: all of it, -1. */
static int read_turn(struct hashing *h, struct sg_error *err)
{
    for (uint64_t until = h->at + TURN_BYTES; h->at < until;) {
        ssize_t n = pread(h->fd, h->piece, PIECE, (off_t)h->at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return sg_error_sys(err, SG_INTERNAL, errno, "cannot read a file");
        if (n == 0)
            return 0;
        sg_digester_add(h->digester, h->piece, (size_t)n);
        h->at += (uint64_t)n;
        if (h->at > (uint64_t)h->before.st_size)
            return 0; /* it grows: it has changed, and somebody may write faster than this reads */
    }
    return 1;
}

static enum sg_step step(struct sg_stepper *s)
{
    struct hashing *h = sg_container_of(s, struct hashing, stepper);
    struct sg_error err = {0};
    struct sg_digests is;

    if (!h->begun)
        begin(h);
    int rc = check_over(h, &err);
    if (rc == 0)
        rc = read_turn(h, &err);
    if (rc > 0)
        return SG_STEP_MORE;
    sg_digester_result(h->digester, &is);
    pthread_mutex_lock(&s->lock);
    s->over = true; /* a kick that comes from now on finds nobody */
    pthread_mutex_unlock(&s->lock);
    finish(h, rc < 0 || changed(h) ? NULL : &is, rc < 0 ? &err : NULL);
    sg_error_clear(&err);
    return SG_STEP_OVER;
}

int sg_service_file_digest(struct sg_entry *lease, int fd, const struct sg_digests *wanted, struct sg_cancel *cancel,
                           struct sg_workq *workq, const struct sg_file_digest_done *done, struct sg_error *err)
{
    struct hashing *h = sg_xcalloc(1, sizeof *h);

    h->piece = malloc(PIECE);
    if (!h->piece || fstat(fd, &h->before) != 0 || sg_entry_use_begin(lease, NULL, err) < 0) {
        if (err && err->code == SG_OK)
            sg_error_set(err, SG_NO_MEMORY, "no memory to read a file");
        free(h->piece);
        free(h);
        return -1;
    }
    h->lease = sg_entry_ref(lease);
    h->cancel = sg_cancel_ref(cancel);
    h->lease_end.fired = lease_ended;
    h->hangup.fired = client_left;
    h->fd = fd;
    h->done = *done;
    h->digester = sg_digester_new(wanted);
    sg_stepper_init(&h->stepper, workq);
    h->stepper.step = step;
    h->stepper.failed = no_worker;
    h->stepper.free = hashing_free;
    sg_stepper_kick(&h->stepper);
    return 0;
}
