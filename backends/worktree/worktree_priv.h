/* Inside of the driver.
 *
 * A worktree's life is decided on the reactor thread: MAKING -> READY -> ENDING -> CLEANING -> (gone). What takes time in between is one
 * step after the other, each begun by the answer to the one before, on whichever thread that comes.
 */
#ifndef SG_WORKTREE_PRIV_H
#define SG_WORKTREE_PRIV_H

#include <pthread.h>
#include <stdatomic.h>

#include "backends/agent/sandbox.h"
#include "backends/worktree/locks.h"
#include "backends/worktree/record.h"
#include "backends/worktree/repos.h"
#include "backends/worktree/worktree.h"

#define WT_OF(ptr, member) ((struct wt *)(void *)((char *)(ptr)-offsetof(struct wt, member)))

struct worktree;

struct ending {
    struct sg_done done;
    struct ending *next;
};

enum wt_phase { WT_MAKING, WT_READY, WT_ENDING, WT_CLEANING };

/* One worktree. References: the driver's while it is in its list, the sandbox's while leased, steps under way. */
struct wt {
    struct sg_agent_sandbox base; /* first */
    atomic_int refs;
    struct worktree *d; /* one reference */
    struct wt *prev, *next;

    struct sg_record rec; /* constant from the first step on, as the next four */
    char *ref, *root;
    struct sg_env env;
    struct sg_sandbox_done created; /* fn NULL: answered, or nobody asked */
    struct sg_cancel *cancel;

    int dir_fd; /* of rec.home, or -1 */
    struct sg_locks *locks; /* of the steps: that were in the repository when all of it was dead */
    struct sg_work work;

    /* reactor only */
    enum wt_phase phase;
    bool started;  /* there has been an agent, */
    bool gone;     /* and nothing of it is left */
    bool keep;     /* there may be changes worth an archive */
    bool late;     /* it did not die in time; then `endings` have been told */
    uint64_t agent_id;
    unsigned attempts; /* at cleaning */
    struct sg_timer timer;
    struct sg_error why; /* of a create that failed, or of an attempt at cleaning */
    struct ending *endings;
    struct sg_task begin_task, end_task, agent_task, cleaned_task;
    struct sg_error end_why; /* for end_task: code SG_OK: the lease lets go */
};

struct worktree {
    struct sg_driver base;
    atomic_int refs; /* the driver's own and one per wt */
    struct sg_worktree_parts parts;
    struct sg_repos *repos;
    char *dir, *records_dir, *archive_dir;
    int64_t archive_max_bytes;
    int dir_fd;

    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    struct wt *all;
    bool closing;
    struct sg_error broken; /* why the latest create failed for no fault of its caller's; code SG_OK: it did not */
};

/* worktree.c */
struct wt *wt_ref(struct wt *w);
void wt_unref(struct wt *w);
/* Any thread: something of the way to READY failed; what there is goes again, then create is answered with why. */
void wt_fail(struct wt *w, const struct sg_error *why);
/* Any thread: all of the way down has been tried. err: something is left, to be tried again. */
void wt_cleaned(struct wt *w, const struct sg_error *err);

/* Any thread: is there still somebody who wants it? -1: SG_CANCELLED, SG_SHUTTING_DOWN. */
int wt_check_wanted(struct wt *w, struct sg_error *err);

/* make.c: from a request to a worktree with an agent in it. Any thread. */
void wt_make(struct wt *w);
/* Reactor. */
void wt_start_agent(struct wt *w);

/* clean.c: from a worktree in which nothing runs any more to nothing. Takes a reference, ends in wt_cleaned(). Reactor. */
void wt_clean(struct wt *w);

/* archive.c: keeps what has changed since the worktree was made, in archive_dir. Ends in done, once, on any thread; without changes (or without a
 * place for archives) nothing is written. This is the one place that knows where and how; an archive store takes over here. */
void wt_archive(struct wt *w, void (*done)(struct wt *w, const struct sg_error *err));

#endif
