/* The two threads of the store: the one that writes, and the housekeeper. */
#include <errno.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "lease/store_priv.h"

void sg_store_wait(struct sg_store *s, pthread_cond_t *cond, int64_t ms)
{
    if (ms < 0) {
        (void)pthread_cond_wait(cond, &s->lock);
        return;
    }
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(ms / 1000);
    until.tv_nsec += (long)(ms % 1000) * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000L;
    }
    (void)pthread_cond_timedwait(cond, &s->lock, &until);
}

static void answer(struct sg_store_op *op, const struct sg_error *err)
{
    struct sg_store_done done = op->done;
    op->done.fn = NULL;
    if (done.fn != NULL) {
        done.fn(done.arg, err);
    }
}

/* Tells what became of each op and frees it; those to be kept wait for the disk. */
static void settle(struct sg_store *s, struct sg_store_op *ops, const struct sg_error *whole)
{
    size_t kept = 0;
    for (struct sg_store_op *op = ops; op != NULL;) {
        struct sg_store_op *next = op->next;
        op->next = NULL;
        answer(op, whole != NULL ? whole : op->failed ? &op->err : NULL);
        if (whole != NULL && (op->how & SG_STORE_KEEP) != 0) {
            *s->kept_tail = op;
            s->kept_tail = &op->next;
            kept++;
        } else {
            sg_store_op_free(op);
        }
        op = next;
    }
    if (kept > 0) {
        pthread_mutex_lock(&s->lock);
        s->n_kept += kept;
        pthread_mutex_unlock(&s->lock);
    }
}

static void set_read_only(struct sg_store *s, const struct sg_error *why)
{
    pthread_mutex_lock(&s->lock);
    bool news = s->read_only != (why != NULL);
    s->read_only = why != NULL;
    if (why != NULL) {
        (void)snprintf(s->read_only_why, sizeof s->read_only_why, "%.*s", (int)sizeof s->read_only_why - 1,
                       why->message);
        s->n_failures++;
    }
    pthread_mutex_unlock(&s->lock);
    if (news && why != NULL) {
        sg_log_event(s->log, SG_LOG_ERROR, "store_read_only", why);
    } else if (news) {
        sg_log_event(s->log, SG_LOG_INFO, "store_writable", NULL);
    }
}

/* Bookkeeping after a commit. */
static void committed(struct sg_store *s, size_t n, bool durable)
{
    if (s->wal_pages < SG_STORE_WAL_PAGES) {
        s->checkpoint_at = SG_STORE_WAL_PAGES;
    }
    pthread_mutex_lock(&s->lock);
    s->n_ops += n;
    s->n_commits++;
    s->n_syncs += durable;
    if (durable) {
        s->lazy_since_ms = 0;
    } else if (s->lazy_since_ms == 0) {
        s->lazy_since_ms = sg_now_ms();
        pthread_cond_signal(&s->chores);
    }
    if (s->wal_pages >= s->checkpoint_at && !s->checkpoint_wanted) {
        s->checkpoint_wanted = true;
        s->checkpoint_at = s->wal_pages + SG_STORE_WAL_PAGES;
        pthread_cond_signal(&s->chores);
    }
    bool too_long = s->wal_pages >= SG_STORE_WAL_PAGES_MAX;
    pthread_mutex_unlock(&s->lock);
    if (too_long) {
        (void)sg_store_checkpoint(s, s->writer);
    }
}

static void write_batch(struct sg_store *s, struct sg_store_op *ops, bool read_only)
{
    struct sg_error err = {0};
    if (read_only) {
        (void)sg_store_check(s, &err);
        settle(s, ops, &err);
        sg_error_clear(&err);
        return;
    }
    size_t n = 0;
    bool durable = false;
    for (struct sg_store_op *op = ops; op != NULL; op = op->next) {
        durable = durable || (op->how & SG_STORE_DURABLE) != 0;
        n++;
    }
    if (sg_store_commit(s, ops, durable, &err) < 0) {
        set_read_only(s, &err);
        settle(s, ops, &err);
        sg_error_clear(&err);
        return;
    }
    committed(s, n, durable);
    settle(s, ops, NULL);
}

/* Tries what was kept, in order and in pieces; true when nothing is left and the store can write. */
static bool write_kept(struct sg_store *s)
{
    while (s->kept != NULL) {
        struct sg_store_op *batch = s->kept;
        struct sg_store_op *last = batch;
        size_t n = 1;
        for (; n < SG_STORE_BATCH && last->next != NULL; n++) {
            last = last->next;
        }
        struct sg_store_op *rest = last->next;
        last->next = NULL;
        if (sg_store_commit(s, batch, true, NULL) < 0) {
            last->next = rest;
            return false;
        }
        s->kept = rest;
        if (rest == NULL) {
            s->kept_tail = &s->kept;
        }
        committed(s, n, true);
        pthread_mutex_lock(&s->lock);
        s->n_kept -= n;
        pthread_mutex_unlock(&s->lock);
        settle(s, batch, NULL);
    }
    return sg_store_probe(s, NULL) == 0;
}

static void do_prune(struct sg_store *s)
{
    struct sg_error err = {0};
    bool more = false;
    if (sg_store_prune(s, &more, &err) < 0) {
        sg_log_event(s->log, SG_LOG_WARN, "store_prune_failed", &err);
        sg_error_clear(&err);
        return;
    }
    committed(s, 0, false);
    if (more) {
        pthread_mutex_lock(&s->lock);
        s->prune_wanted = true;
        pthread_mutex_unlock(&s->lock);
    }
}

/* Takes the next batch off the queue; s->lock is held. */
static struct sg_store_op *take(struct sg_store *s)
{
    struct sg_store_op *first = s->queue;
    struct sg_store_op **end = &first;
    size_t n = 0;
    while (*end != NULL && n < SG_STORE_BATCH) {
        end = &(*end)->next;
        n++;
    }
    s->queue = *end;
    if (s->queue == NULL) {
        s->queue_tail = &s->queue;
    }
    *end = NULL;
    s->queued -= n;
    return first;
}

void *sg_store_thread(void *arg)
{
    struct sg_store *s = arg;
    int64_t retry_at = 0;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        int64_t now = sg_now_ms();
        bool retry = s->read_only && now >= retry_at;
        bool idle = s->queue == NULL && !retry && !s->prune_wanted && !s->finish_wanted;
        if (idle && s->stopping) {
            break;
        }
        if (idle) {
            sg_store_wait(s, &s->work, s->read_only ? retry_at - now : -1);
            continue;
        }
        struct sg_store_op *ops = take(s);
        bool read_only = s->read_only;
        bool prune = s->prune_wanted && !read_only && ops == NULL;
        bool finish = s->finish_wanted;
        s->prune_wanted = s->prune_wanted && !prune && !read_only;
        s->finish_wanted = false;
        pthread_mutex_unlock(&s->lock);
        if (ops != NULL) {
            write_batch(s, ops, read_only);
        }
        if (finish) {
            (void)sg_store_checkpoint(s, s->writer);
        }
        if (prune) {
            do_prune(s);
        }
        if (retry && write_kept(s)) {
            set_read_only(s, NULL);
        }
        if (retry) {
            retry_at = sg_now_ms() + SG_STORE_RETRY_MS;
        }
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    if (s->kept != NULL && !write_kept(s)) {
        sg_log_event(s->log, SG_LOG_ERROR, "store_ends_unwritten", NULL);
    }
    return NULL;
}

/* Puts lazy commits on the disk and keeps the log short, beside the store thread. Called with s->lock, which
 * is let go meanwhile. */
static void copy_log(struct sg_store *s)
{
    s->checkpoint_wanted = false;
    s->lazy_since_ms = 0;
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_lock(&s->head_lock);
    struct sg_audit_head latest = s->latest;
    pthread_mutex_unlock(&s->head_lock);
    bool all = sg_store_checkpoint(s, s->keeper);
    if (all) {
        sg_store_head_set(s, &latest, &latest);
    }
    pthread_mutex_lock(&s->lock);
    if (!all && s->lazy_since_ms == 0) {
        s->lazy_since_ms = sg_now_ms();
    }
    s->finish_wanted = !s->read_only;
    pthread_cond_signal(&s->work);
}

void *sg_keeper_thread(void *arg)
{
    struct sg_store *s = arg;
    int64_t prune_at = sg_now_ms();
    pthread_mutex_lock(&s->lock);
    while (!s->stop_keeper) {
        int64_t now = sg_now_ms();
        int64_t due = prune_at;
        if (s->lazy_since_ms > 0 && s->lazy_since_ms + SG_STORE_FLUSH_MS < due) {
            due = s->lazy_since_ms + SG_STORE_FLUSH_MS;
        }
        if (!s->checkpoint_wanted && now < due) {
            sg_store_wait(s, &s->chores, due - now);
            continue;
        }
        if (now >= prune_at) {
            s->prune_wanted = true;
            prune_at = now + s->prune_every_ms;
            pthread_cond_signal(&s->work);
        }
        if (s->checkpoint_wanted || (s->lazy_since_ms > 0 && now >= s->lazy_since_ms + SG_STORE_FLUSH_MS)) {
            copy_log(s);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}
