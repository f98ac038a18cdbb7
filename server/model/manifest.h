/* What a new sandbox is to hold: the `manifest` of a lease request as plain values. Its env and timeout are the lease's and not here. */
#ifndef SG_MANIFEST_H
#define SG_MANIFEST_H

#include "base/json.h"
#include "model/sandbox.h"

#define SG_MANIFEST_FILES_MAX 1024U
#define SG_MANIFEST_ROOT "/workspace"

struct sg_manifest_file {
    char *path; /* as given: absolute, or relative to the root */
    uint8_t *data;
    size_t len;
    bool mode_given;
    uint32_t mode; /* permission bits */
};

/* Owns everything it points to. */
struct sg_manifest {
    char *root; /* absolute, without "." and ".."; NULL: not given */
    char *snapshot; /* NULL: not given */
    char *repo_name;
    char *repo_url;
    char *repo_ref; /* NULL: not given */
    struct sg_manifest_file *files;
    size_t n_files;
};

/* Strict parse of the object v, whose path in the request is `manifest`. Its env goes on top of *env, its timeout to *timeout_ms. On failure
 * *ret still needs to be finished. */
int sg_manifest_parse(const json_t *v, struct sg_manifest *ret, struct sg_env *env, int64_t *timeout_ms, struct sg_error *err);
void sg_manifest_finish(struct sg_manifest *m);

/* Can it be the name of a branch, a tag or a commit, and nothing that git would take for an option, a range or an expression? */
bool sg_ref_valid(const char *s);

#endif
