/* What the server knows of each worktree, on its own disk and out of reach of commands, written before anything of it exists: so that a
 * successor can take away what a killed server left. Blocking, for workers and the start. */
#ifndef SG_WORKTREE_RECORD_H
#define SG_WORKTREE_RECORD_H

#include <time.h>

#include "base/error.h"
#include "base/id.h"
#include "backends/repos.h"

struct sg_record {
    char id[SG_ID_MAX]; /* of the lease; names the file */
    char *repo;         /* its name */
    char *git_dir;
    char *home;   /* the directory that holds all of it; its last part is id */
    char *tree;   /* the worktree, below home */
    char *branch;
    char commit[SG_COMMIT_LEN];
};

void sg_record_finish(struct sg_record *r);
/* Letters, digits, '_' and '-', fit for the name of a file. */
bool sg_record_id_valid(const char *id);
/* Durable when it returns. */
int sg_record_write(const char *dir, const struct sg_record *r, struct sg_error *err);
/* When it was written, by the file system's clock. -1: there is none. */
int sg_record_time(const char *dir, const char *id, struct timespec *ret);
int sg_record_remove(const char *dir, const char *id, struct sg_error *err);
/* Calls found (which takes what is in *r) for each; what cannot be read is left alone and counted. -1: not even the directory can. */
int sg_record_each(const char *dir, void (*found)(void *arg, struct sg_record *r), void *arg, size_t *ret_bad, struct sg_error *err);

#endif
