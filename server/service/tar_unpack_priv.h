/* What the files of unpacking share; nobody else includes it. */
#ifndef SG_TAR_UNPACK_PRIV_H
#define SG_TAR_UNPACK_PRIV_H

#include "base/stepper.h"
#include "model/tree_record.h"
#include "service/files.h"
#include "service/tar.h"
#include "service/tar_reader.h"

#define PIECE ((size_t)128 << 10)
#define TURN_BYTES ((size_t)8 << 20) /* a worker gives others a turn after this much, */
#define TURN_ENTRIES 256U            /* or this many entries */
#define AHEAD_MAX 64U                /* orders whose end is not waited for one by one */

enum state { BEGIN, LOOK, SCRATCH, RECEIVE, SCAN, STAGE, EXTRACT, TIMES, SEND, MERGE, SENT, MODES, CLEAN, OVER };

struct directory {
    char *path; /* below the target */
    uint32_t mode;
    int64_t mtime_ns;
};

/* What the sandbox said. */
struct answer {
    struct sg_error error;
    struct sg_file_source source;
    struct sg_file_sink *sink;
    char *text;
    enum sg_file_type type;
};

struct unpack {
    struct sg_stepper stepper; /* first */
    struct sg_entry *lease; /* one that is in use for it, or NULL */
    char *prefix;           /* of an archive of the server's own (no body) only this root is wanted, */
    int64_t now_ns;         /* and all of it gets this time */
    struct sg_sandbox *sb;
    const struct sg_file_ops *files;
    const struct sg_tree_ops *ops;
    struct sg_tar_stored done;
    struct sg_upload_body source; /* where body comes from, unless it is there from the beginning */
    struct sg_pipe *body;
    struct sg_cancel *cancel; /* the caller's */
    struct sg_cancel_hook lease_end, hangup;
    char *path;

    /* the turn's own */
    enum state state;
    bool hooked;
    struct sg_error why; /* what went wrong, while it is cleaned up */
    struct sg_digester *digester;
    struct sg_tar_limits limits;
    struct sg_tar_reader *reader;
    struct sg_tar_entry entry;
    int fd; /* scratch */
    struct sg_hold *hold;
    uint64_t received, read_at, given_back;
    char *piece;
    char *stage;  /* the directory beside the target, as long as it is there */
    char *target; /* the target's path without links, when it was there */
    struct sg_file_sink *sink;
    uint64_t written;
    struct sg_pipe *records;  /* where the driver takes them instead of a stage: */
    struct sg_buf head;       /* fields that are to go in, */
    const char *data;         /* then zeros, then bytes of the reader's */
    size_t data_len;
    uint64_t zeros;
    bool in_file;
    struct directory *dirs;
    size_t n_dirs, dirs_size, dirs_held, at_dir;
    struct sg_tar_result result;

    struct answer got; /* taken out of `next` */

    /* under the stepper's lock */
    bool lease_over, left;
    bool asked, answered;
    struct answer next; /* the answer's thread writes it before `answered` is set */
    unsigned ahead;     /* orders whose end is not known yet; the sandbox carries them out in order */
    struct sg_error ahead_error; /* of the first of them that failed */
};

/* One of those. */
struct order {
    struct unpack *u; /* a reference */
    char *path;
};

/* ---- the turns of each state; OVER with err: it failed ---- */

/* tar_unpack_scan.c: RECEIVE takes the body, SCAN reads it once without a trace. */
enum sg_step sg_unpack_receive(struct unpack *u, struct sg_error *err);
enum sg_step sg_unpack_scan(struct unpack *u, struct sg_error *err);
/* Begins to read the archive from its start; u->state says what for. */
int sg_unpack_open_reader(struct unpack *u, struct sg_error *err);

/* tar_unpack_extract.c: EXTRACT fills the stage. */
enum sg_step sg_unpack_extract(struct unpack *u, struct sg_error *err);
/* The next entry that is wanted, as sg_tar_next(). */
int sg_unpack_next(struct unpack *u, struct sg_error *err);
/* The archive has done its service: its space may be needed for what comes. */
void sg_unpack_close_archive(struct unpack *u);
/* Where the archive's path is in the stage, malloc'd. */
char *sg_unpack_staged(const struct unpack *u, const char *path);

/* tar_unpack_send.c: SEND gives all entries to the driver, whose answer comes when it is done with them. */
enum sg_step sg_unpack_begin_send(struct unpack *u, struct sg_error *err);
enum sg_step sg_unpack_send(struct unpack *u, struct sg_error *err);

/* tar_unpack_merge.c: TIMES completes the stage and has it merged; merged: that has been done; MODES ends. */
enum sg_step sg_unpack_times(struct unpack *u, struct sg_error *err);
enum sg_step sg_unpack_merged(struct unpack *u, struct sg_error *err);
enum sg_step sg_unpack_modes(struct unpack *u, struct sg_error *err);

/* ---- tar_unpack_ask.c: questions that a turn waits for, and orders that it does not ---- */

/* Lets go of what an answer brought. */
void sg_unpack_answer_finish(struct answer *a);
/* Before a question is put; its answer comes later, by one of the callbacks below with the unpack as arg, and kicks. */
void sg_unpack_asking(struct unpack *u);
/* After it: rc < 0 means that none will come. Returns rc. */
int sg_unpack_asked(struct unpack *u, int rc);
/* Both around a question about u->path. */
int sg_unpack_ask_text(struct unpack *u,
                       int (*what)(struct sg_sandbox *, const char *, const struct sg_text_done *, struct sg_error *),
                       struct sg_error *err);
void sg_unpack_got_text(void *arg, const char *text, const struct sg_file_stat *st, const struct sg_error *err);
void sg_unpack_got_scratch(void *arg, struct sg_file_source *src, const struct sg_error *err);
void sg_unpack_got_sink(void *arg, struct sg_file_sink *sink, const struct sg_error *err);
void sg_unpack_got_done(void *arg, const struct sg_error *err);
/* An order about path, to be given at once with one of the callbacks below and the order as arg. */
struct order *sg_unpack_order_new(struct unpack *u, const char *path);
void sg_unpack_order_done(void *arg, const struct sg_error *err);
void sg_unpack_order_stat(void *arg, const struct sg_file_stat *st, const struct sg_error *err);
void sg_unpack_order_commit(void *arg, const struct sg_file_stat *st, bool created, const struct sg_error *err);
/* After it: rc < 0 means that it was not even taken, and why is err. Returns rc. */
int sg_unpack_ordered(struct order *o, int rc, struct sg_error *err);
/* 0: all orders have been carried out; 1: not yet, there will be a kick; -1: one has failed. */
int sg_unpack_settle(struct unpack *u, struct sg_error *err);

#endif
