/* Directories of a lease as tar archives, both ways. Bytes move through bounded memory, a turn of a worker at a time; a client that goes
 * away and a lease that ends stop it, and nothing is left behind. */
#ifndef SG_TAR_H
#define SG_TAR_H

#include "backends/driver.h"
#include "base/cancel.h"
#include "base/digest.h"
#include "base/pipe.h"
#include "base/workq.h"
#include "lease/registry.h"

#define SG_TAR_ENTRIES_MAX 250000U
#define SG_TAR_BYTES_MAX ((uint64_t)64 << 30)      /* of all files of an archive together */
#define SG_TAR_RATIO 200U                          /* an archive may unpack to this many times its size, */
#define SG_TAR_RATIO_FLOOR ((uint64_t)64 << 20)    /* or to this much */
#define SG_TAR_DIRECTORY_MAX 50000U                /* entries of one directory on the way out */
#define SG_TAR_NAMES_MAX ((size_t)16 << 20)        /* bytes held of names on the way out */
#define SG_TAR_DIRECTORIES_MAX ((size_t)4 << 20)   /* bytes held of names of directories on the way in */

struct sg_tar_source_done {
    /* pipe: one reference for the callee; it fails when the archive cannot be completed. NULL with err. */
    void (*fn)(void *arg, struct sg_pipe *pipe, const struct sg_error *err);
    void *arg;
};
/* The directory (or file) path, as pax: names relative to it, in byte order; modes and times; symbolic links as links. Devices, FIFOs and
 * sockets are left out, and so is what vanishes meanwhile. */
int sg_service_tar_get(struct sg_entry *lease, const char *path, struct sg_workq *workq, const struct sg_tar_source_done *done,
                       struct sg_error *err);

#define SG_TAR_ROOTS_MAX 8U

struct sg_tar_root {
    const char *path;   /* a directory of the sandbox */
    const char *prefix; /* its name in the archive, "a" or "a/b" */
};
struct sg_tar_pack_args {
    struct sg_sandbox *sb;           /* a reference is taken; not in use by a lease's request: the caller keeps it from ending */
    struct sg_cancel *cancel;        /* ends it; a reference is taken; or NULL */
    const struct sg_tar_root *roots; /* copied; in their order */
    size_t n_roots;                  /* 1 to SG_TAR_ROOTS_MAX */
    bool anonymous;                  /* without times and owners: the same tree gives the same bytes */
};
/* Several directories of a sandbox as one archive, as above. */
int sg_tar_pack(const struct sg_tar_pack_args *args, struct sg_workq *workq, const struct sg_tar_source_done *done,
                struct sg_error *err);

struct sg_tar_put_args {
    const char *path;
    bool outside_links; /* keep symbolic links that point outside of path */
    struct sg_cancel *cancel; /* ends it while the target is untouched; a reference is taken */
};
struct sg_tar_result {
    bool created; /* path is new */
    uint64_t entries, bytes;
};
struct sg_tar_stored {
    void (*fn)(void *arg, const struct sg_tar_result *result, const struct sg_error *err);
    void *arg;
};
/* Unpacks the archive that comes out of body into the directory path, which may be missing. It is received whole, checked whole, unpacked beside
 * the target and only then moved in: until that last step an error leaves the target as it was. Directories are merged, files
 * and links replaced one by one, each whole. Errors as of sg_tar_reader, and those of the sandbox. */
struct sg_upload_body; /* service/files.h */
int sg_service_tar_put(struct sg_entry *lease, const struct sg_tar_put_args *args, const struct sg_digests *digests,
                       const struct sg_upload_body *body, struct sg_workq *workq, const struct sg_tar_stored *done,
                       struct sg_error *err);
/* The same into a sandbox that no lease has yet: the caller keeps it from ending. */
int sg_tar_unpack(struct sg_sandbox *sb, const struct sg_tar_put_args *args, struct sg_pipe *body, struct sg_workq *workq,
                  const struct sg_tar_stored *done, struct sg_error *err);

struct sg_tar_restore_args {
    struct sg_sandbox *sb;    /* a reference is taken; a new one, which nobody else uses yet */
    struct sg_cancel *cancel; /* ends it; a reference is taken */
    int fd;                   /* an archive that sg_tar_pack() made, for pread; duplicated */
    const char *prefix;       /* the root of it that is wanted, */
    const char *path;         /* and the directory it goes to, whose own mode stays */
};
/* Unpacks one root of an archive of the server's own. Files get the present time: such archives have none. Errors as above. */
int sg_tar_restore(const struct sg_tar_restore_args *args, struct sg_workq *workq, const struct sg_tar_stored *done,
                   struct sg_error *err);

#endif
