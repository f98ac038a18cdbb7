/* What the files about archives and snapshots share. */
#ifndef SG_ARCHIVES_PRIV_H
#define SG_ARCHIVES_PRIV_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "service/service_priv.h"

struct keeping;
struct dropping;

struct sg_archives {
    struct sg_service *s;
    struct sg_archives_config cfg;
    struct sg_archive_plan *plans;
    char *dir;
    struct sg_timer timer;
    struct sg_task arm, disarm;
    sem_t disarmed;
    struct sg_work prune;
    _Atomic bool pruning, again, sweep_due;
    _Atomic unsigned sweeping; /* lists of providers that are awaited */
    pthread_mutex_t lock;      /* guards what follows */
    pthread_cond_t left;
    struct keeping *snapshots; /* under way */
    struct dropping *drops;    /* under way */
    size_t n_drops;
    bool more_drops; /* than may be under way at once */
    bool stopping;
    unsigned inside; /* workers that may call drivers */
};

/* What is being kept: pack -> file -> row; or, of what a provider holds, (pack -> file ->) row -> provider -> row. */
struct keeping {
    struct sg_archives *a;
    struct sg_kept kept;
    struct sg_cancel *cancel;
    struct sg_timer timer; /* reactor */
    struct sg_task arm, over;
    int64_t due_ms; /* 0: none */
    uint64_t max_bytes;
    void (*done)(struct keeping *k, const struct sg_error *err);
    /* an archive's */
    void (*at_end)(void *arg);
    void *arg;
    /* a snapshot's */
    struct sg_entry *lease;
    struct sg_sandbox *sb;
    const struct sg_snapshot_ops *held; /* the provider's to hold; NULL: ours */
    int fd;                             /* of the file that it is given, or -1 */
    struct sg_kept_done snapshot;
    struct keeping *prev, *next;
    _Atomic int refs;
};

/* The end, whatever came of it. */
void sg_keeping_ended(struct keeping *k, const struct sg_error *err);
/* The file of an id. Caller frees. */
char *sg_archives_path(const struct sg_archives *a, const char *id);
/* Any thread: a turn of what is old or too much, and of what is still to be removed. */
void sg_archives_prune(struct sg_archives *a);
/* Around what calls drivers on a worker. False: they are about to go. */
bool sg_archives_enter(struct sg_archives *a);
void sg_archives_leave(struct sg_archives *a);

/* ---- held.c ---- */

/* The row, the provider, the row again; ends in sg_keeping_ended(). */
void sg_held_begin(struct keeping *k);
/* Writes down that it is to go and asks the provider for it. done MAY be NULL. */
void sg_held_drop(struct sg_archives *a, const struct sg_kept *k, const struct sg_kept_gone *done);
/* A row that is not READY, or of what a provider holds; old: it has expired. */
void sg_held_prune(struct sg_archives *a, const struct sg_kept *row, bool old);
/* Looks at what providers hold with our label: what has no row is nobody's and goes. */
void sg_held_sweep(struct sg_archives *a);

#endif
