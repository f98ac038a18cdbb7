/* What the files of the file operations share. */
#ifndef SG_E2B_FILES_PRIV_H
#define SG_E2B_FILES_PRIV_H

#include "backends/e2b/e2b_priv.h"

#define E2B_FILES_MS 60000
#define E2B_FILE_FAILED 3 /* how a script ends that says why */
#define E2B_LIST_BYTES ((size_t)64 * 1024 * 1024)

/* One run of files.pl, or of another script that takes part in common.pl. args: up to 8, NULL-terminated. changes: when what came of it is not known, that is what the error says. done: out
 * is what it said, NULL with err. It always comes. */
struct e2b_file_call {
    const char *script; /* NULL: files.pl */
    const char *args[10];
    int64_t limit_ms; /* 0: E2B_FILES_MS */
    bool changes;
    void (*done)(void *arg, const char *out, size_t len, const struct sg_error *err);
    void *arg;
};
void e2b_file_run(struct e2b_sandbox *sb, const struct e2b_file_call *c);
/* A path as an argument. Caller frees. */
char *e2b_hex(const char *path);
/* A condition as an argument. Caller frees. */
char *e2b_condition(const struct sg_condition *c);
/* The next field of what was said, or NULL at its end. */
const char *e2b_field(const char **at, const char *end);
/* A record of eleven fields; *ret_name is in the text. False: it is none. */
bool e2b_record(const char **at, const char *end, const char **ret_name, struct sg_file_stat *ret);

/* What a script has said that ended with E2B_FILE_FAILED; a NUL is behind it. Returns -1. */
int e2b_file_error(const char *said, size_t len, struct sg_error *err);
/* What it says cannot be understood. Returns -1. */
int e2b_file_nonsense(struct sg_error *err);

/* ---- send.c ---- */

/* temp: a file that is there. The pipe is read to its end; one that fails cuts it. done, always: err NULL: all of it is there. */
struct e2b_send_args {
    const char *temp;
    struct sg_pipe *pipe;
    struct sg_cancel *cancel; /* or NULL */
    int64_t stall_ms;         /* 0: never */
    void (*done)(void *arg, const struct sg_error *err);
    void *arg;
};
int e2b_send(struct e2b_sandbox *sb, const struct e2b_send_args *a, struct sg_error *err);
/* That name goes; a while later also because what was sent to it may still be on its way, or only then because it may be in use.
 * done (MAY be NULL): nothing more is done about it now, after 10 s at most. */
enum e2b_drop_when { E2B_DROP_NOW, E2B_DROP_NOW_AND_LATER, E2B_DROP_LATER };
void e2b_drop(struct e2b_sandbox *sb, const char *temp, enum e2b_drop_when when, void (*done)(void *arg), void *arg);
/* err of a step before any change, as the caller is to hear it. */
void e2b_unchanged(const struct sg_error *err, struct sg_error *ret);
/* Where the daemon has the bytes of the file path. Caller frees. */
char *e2b_files_path(const char *path);
/* What its answer means, or what kept it from coming: 0 or -1. */
int e2b_files_verdict(const struct e2b_sandbox *sb, const struct sg_net_response *r, const struct sg_error *failed, struct sg_error *err);

/* ---- put.c ---- */

/* A file of ours without a name for so many bytes: a descriptor, or -1 with errno. */
int e2b_spool(const struct e2b *d, uint64_t size);
int e2b_put(struct sg_sandbox *base, const struct sg_file_put_args *a, const struct sg_file_sink_done *done, struct sg_error *err);
int e2b_get(struct sg_sandbox *base, const char *path, const struct sg_file_source_done *done, struct sg_error *err);

extern const struct sg_tree_ops e2b_tree_ops; /* tree.c */

#endif
