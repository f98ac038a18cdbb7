/* What the files of the file operations share. */
#ifndef SG_E2B_FILES_PRIV_H
#define SG_E2B_FILES_PRIV_H

#include "backends/e2b/e2b_priv.h"

#define E2B_FILES_MS 60000
#define E2B_LIST_BYTES ((size_t)64 * 1024 * 1024)

/* One run of files.pl. args: up to 8, NULL-terminated. changes: when what came of it is not known, that is what the error says. done: out
 * is what it said, NULL with err. It always comes. */
struct e2b_file_call {
    const char *args[10];
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

int e2b_put(struct sg_sandbox *base, const struct sg_file_put_args *a, const struct sg_file_sink_done *done, struct sg_error *err);
int e2b_get(struct sg_sandbox *base, const char *path, const struct sg_file_source_done *done, struct sg_error *err);

#endif
