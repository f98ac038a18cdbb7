/* What the files of packing share; nobody else includes it. */
#ifndef SG_TAR_PACK_PRIV_H
#define SG_TAR_PACK_PRIV_H

#include "base/buf.h"
#include "model/tree_record.h"
#include "base/stepper.h"
#include "service/tar.h"

#define PACK_PIECE (128U * 1024U)

struct item {
    char *name;
    enum sg_file_type type;
    uint32_t mode, uid;
    int64_t mtime_ns;
};

/* A directory that is being packed; they form a stack. */
struct level {
    struct level *up;
    char *path;   /* in the sandbox, without links */
    char *prefix; /* in the archive: "" or "a/b/" */
    struct item *items;
    size_t n, at, held;
};

/* What the sandbox answered last. */
enum asked { NOTHING, RESOLVE, LIST, OPEN, TARGET };

struct root {
    char *path;   /* in the sandbox */
    char *prefix; /* in the archive: "" or "a/b" */
};

struct pack {
    struct sg_stepper stepper; /* first */
    struct sg_entry *lease;    /* one that is in use for it, or NULL */
    struct sg_cancel *cancel;  /* ends it; the lease's, or the caller's */
    struct sg_sandbox *sb;
    const struct sg_tree_ops *ops;
    struct sg_tar_source_done done;
    struct sg_pipe *out;
    struct sg_cancel_hook cancelled;
    struct root roots[SG_TAR_ROOTS_MAX];
    size_t n_roots, at_root;
    bool anonymous;

    /* the turn's own */
    bool begun, hooked;
    bool told; /* done was called */
    struct archive *archive;
    locale_t locale;
    struct sg_buf pending; /* written by the library, not yet in the pipe */
    struct level *top;
    size_t held, depth;
    char *path;   /* resolved */
    char *name;   /* of the entry at hand, in the archive */
    struct item file; /* the entry at hand; its name is not set */
    int fd;
    struct sg_hold *hold;
    uint64_t size, offset;
    struct sg_pipe *records; /* what comes of the root at hand, where the driver has it so */
    struct sg_buf head;      /* bytes of it that are not a whole record yet */
    struct sg_tree_walk walk;
    bool in_file, at_end;
    char *piece;
    bool ended;

    /* under the stepper's lock */
    bool cancel_fired;
    enum asked asked;
    bool answered;
    struct sg_error error; /* of the answer */
    struct sg_file_source source;
    struct sg_file_list list;
    struct sg_file_stat stat;
    char *text;
};

/* tar_pack.c */
int sg_pack_header(struct pack *p, const char *target, struct sg_error *err);
int sg_pack_library_error(struct pack *p, struct sg_error *err);
/* Nothing can go wrong any more that has a status: the archive is handed over. */
void sg_pack_tell(struct pack *p);

/* tar_pack_stream.c: a root that comes as a stream. advance: 0; 1: there is nothing yet, and a kick when there is; -1. It ends with p->records NULL. */
int sg_pack_stream_begin(struct pack *p, struct sg_error *err);
int sg_pack_stream_advance(struct pack *p, struct sg_error *err);
void sg_pack_stream_drop(struct pack *p);

#endif
