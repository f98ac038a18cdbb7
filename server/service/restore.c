#include "service/restore.h"

#include <errno.h>
#include <jansson.h>
#include <unistd.h>

#include "base/json.h"
#include "service/tar.h"

#define PIECE (256U * 1024U)
#define TURN_BYTES (8U * 1024U * 1024U)

struct restore {
    struct sg_restore_args a;
    struct sg_work work;
    struct sg_sha256_stream *hash;
    uint64_t read;
    unsigned dir; /* the next one to be unpacked */
};

static void end(struct restore *r, const struct sg_error *err)
{
    r->a.done(r->a.arg, err);
    sg_sha256_free(r->hash);
    free(r);
}

/* As of any part of a manifest: what the sandbox refuses is the request's fault, what may go away is worth a repetition. */
static void fail(struct restore *r, const struct sg_error *why)
{
    struct sg_error err = {0};
    int status = sg_code_status(why->code);

    if (why->code == SG_CANCELLED || why->code == SG_LEASE_GONE || why->code == SG_SANDBOX_LOST || status >= 500) {
        sg_error_copy(&err, why);
    } else {
        sg_error_field(&err, SG_MANIFEST_FAILED, "manifest.snapshot", "manifest.snapshot: %s", why->message);
        sg_error_reason(&err, why->reason[0] ? why->reason : sg_code_name(why->code));
    }
    sg_error_member(&err, "stage", json_string("snapshot"));
    end(r, &err);
    sg_error_clear(&err);
}

/* ---- unpacking ---- */

static void next_dir(struct restore *r);

static void unpacked(void *arg, const struct sg_tar_result *result SG_UNUSED, const struct sg_error *err)
{
    struct restore *r = arg;

    if (err)
        fail(r, err);
    else
        next_dir(r);
}

static void next_dir(struct restore *r)
{
    struct sg_error err = {0};

    while (r->dir < SG_KEPT_DIRS && !(r->a.snapshot->dirs >> r->dir & 1U))
        r->dir++;
    if (r->dir == SG_KEPT_DIRS) {
        end(r, NULL);
        return;
    }
    struct sg_tar_restore_args args = {.sb = r->a.sb,
                                       .cancel = r->a.cancel,
                                       .fd = r->a.fd,
                                       .prefix = sg_kept_dir_names[r->dir],
                                       .path = sg_kept_dir_paths[r->dir]};
    r->dir++;
    if (sg_tar_restore(&args, r->a.workq, &(struct sg_tar_stored){unpacked, r}, &err) < 0)
        fail(r, &err);
    sg_error_clear(&err);
}

/* ---- checking ---- */

static int damaged(struct sg_error *err)
{
    sg_error_set(err, SG_CONFLICT, "the stored snapshot is damaged: its digest does not fit");
    return sg_error_reason(err, "snapshot_damaged");
}

static int compare(struct restore *r, struct sg_error *err)
{
    char hex[SG_SHA256_HEX];

    sg_sha256_end(r->hash, hex);
    return sg_streq(hex, r->a.snapshot->sha256) ? 0 : damaged(err);
}

/* A turn's worth of the file. 1: there is more; 0: all of it is right. */
static int check_some(struct restore *r, struct sg_error *err)
{
    sg_cleanup(sg_free_p) uint8_t *piece = malloc(PIECE);
    ssize_t n = 1;

    if (!piece)
        return sg_error_set(err, SG_NO_MEMORY, "no memory to check the snapshot");
    for (size_t turn = 0; turn < TURN_BYTES && n > 0; turn += PIECE) {
        do
            n = pread(r->a.fd, piece, PIECE, (off_t)r->read);
        while (n < 0 && errno == EINTR);
        if (n < 0)
            return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot read the snapshot");
        sg_sha256_add(r->hash, piece, (size_t)n);
        r->read += (uint64_t)n;
    }
    return n > 0 ? 1 : compare(r, err);
}

static void check_on_worker(struct sg_work *w)
{
    struct restore *r = sg_container_of(w, struct restore, work);
    struct sg_error err = {0};

    int rc = sg_cancel_fired(r->a.cancel) != SG_CANCEL_NONE
                 ? sg_error_set(&err, SG_CANCELLED, "the lease was ended while its snapshot was read")
                 : check_some(r, &err);
    if (rc > 0)
        rc = sg_workq_submit(r->a.workq, &r->work, &err);
    else if (rc == 0)
        next_dir(r);
    if (rc < 0)
        fail(r, &err);
    sg_error_clear(&err);
}

void sg_restore(const struct sg_restore_args *args)
{
    struct restore *r = sg_xcalloc(1, sizeof *r);
    struct sg_error err = {0};

    r->a = *args;
    r->work.run = check_on_worker;
    r->hash = sg_sha256_begin();
    if (!r->hash)
        sg_error_set(&err, SG_NO_MEMORY, "no memory to check the snapshot");
    else if (sg_workq_submit(args->workq, &r->work, &err) == 0)
        return;
    fail(r, &err);
    sg_error_clear(&err);
}
