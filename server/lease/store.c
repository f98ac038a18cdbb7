/* Opening, closing, submitting: the store as its callers see it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "lease/store_priv.h"

#define RETENTION_DEFAULT_MS (24 * 3600 * INT64_C(1000))
#define QUEUE_DEFAULT 4096

static void init_locks(struct sg_store *s)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->work, &attr);
    pthread_cond_init(&s->chores, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->read_lock, NULL);
    pthread_mutex_init(&s->head_lock, NULL);
}

static int find_dir(struct sg_store *s, const char *dir, struct sg_error *err)
{
    if (sg_mkdirs(dir, 0700, err) < 0) {
        return sg_error_wrap(err, "cannot make the state directory");
    }
    s->dir = realpath(dir, NULL);
    if (s->dir == NULL) {
        return sg_error_sys(err, SG_UNAVAILABLE, errno, "cannot resolve the state directory %s", dir);
    }
    s->db_path = sg_xasprintf("%s/" SG_DB_NAME, s->dir);
    return 0;
}

static int load_keys(struct sg_store *s, const struct sg_store_config *cfg, struct sg_error *err)
{
    if (sg_key_load(s->dir, cfg->audit_key_file, "audit.key", true, &s->audit_key, err) < 0 ||
        sg_key_load(s->dir, cfg->receipt_key_file, "receipt.key", true, &s->receipt_key, err) < 0 ||
        sg_key_load(s->dir, cfg->endpoint_key_file, "endpoint.key", true, &s->endpoint_key, err) < 0) {
        return -1;
    }
    return 0;
}

static int start_threads(struct sg_store *s, struct sg_error *err)
{
    int rc = pthread_create(&s->thread, NULL, sg_store_thread, s);
    if (rc != 0) {
        return sg_error_sys(err, SG_UNAVAILABLE, rc, "cannot start the store thread");
    }
    rc = pthread_create(&s->keeper_thread, NULL, sg_keeper_thread, s);
    if (rc != 0) {
        pthread_mutex_lock(&s->lock);
        s->stopping = true;
        pthread_cond_signal(&s->work);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
        return sg_error_sys(err, SG_UNAVAILABLE, rc, "cannot start the store's second thread");
    }
    s->threads_run = true;
    return 0;
}

static int open_parts(struct sg_store *s, const struct sg_store_config *cfg, struct sg_error *err)
{
    if (find_dir(s, cfg->state_dir, err) < 0 ||
        (s->lock_fd < 0 && sg_state_lock(s->dir, &s->lock_fd, err) < 0) || load_keys(s, cfg, err) < 0) {
        return -1;
    }
    /* Readable by the owner alone, whatever the umask: leases hold environments. SQLite gives its side files
     * the same mode. */
    int fd = open(s->db_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        return sg_error_sys(err, SG_STORE_UNAVAILABLE, errno, "cannot open %s", s->db_path);
    }
    sg_close(fd);
    if (sg_db_open(s, err) < 0 || sg_store_audit_open(s, err) < 0) {
        return -1;
    }
    return start_threads(s, err);
}

int sg_store_open(const struct sg_store_config *cfg, struct sg_store **ret, struct sg_error *err)
{
    struct sg_store *s = sg_xcalloc(1, sizeof *s);
    init_locks(s);
    s->lock_fd = cfg->lock_fd > 0 ? cfg->lock_fd : -1;
    s->head_fd = -1;
    s->log = cfg->log;
    s->retention_ms = cfg->retention_ms > 0 ? cfg->retention_ms : RETENTION_DEFAULT_MS;
    s->audit_retention_ms = cfg->audit_retention_ms;
    s->prune_every_ms = s->retention_ms / 4 < SG_STORE_PRUNE_MS ? s->retention_ms / 4 : SG_STORE_PRUNE_MS;
    if (s->audit_retention_ms > 0 && s->audit_retention_ms / 4 < s->prune_every_ms) {
        s->prune_every_ms = s->audit_retention_ms / 4;
    }
    s->prune_every_ms = s->prune_every_ms > 100 ? s->prune_every_ms : 100;
    s->queue_max = cfg->queue_max > 0 ? cfg->queue_max : QUEUE_DEFAULT;
    s->queue_tail = &s->queue;
    s->kept_tail = &s->kept;
    s->checkpoint_at = SG_STORE_WAL_PAGES;
    sg_boot_id(s->boot_id);
    if (open_parts(s, cfg, err) < 0) {
        sg_store_free(s);
        return -1;
    }
    *ret = s;
    return 0;
}

static void stop_threads(struct sg_store *s)
{
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_mutex_lock(&s->lock);
    s->stop_keeper = true;
    pthread_cond_signal(&s->chores);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->keeper_thread, NULL);
}

struct sg_store *sg_store_free(struct sg_store *s)
{
    if (s == NULL) {
        return NULL;
    }
    if (s->threads_run) {
        stop_threads(s);
        if (sg_store_checkpoint(s, s->writer)) {
            sg_store_head_set(s, &s->head, &s->head);
        }
        (void)fdatasync(s->head_fd);
    }
    sg_db_close(s);
    while (s->kept != NULL) {
        struct sg_store_op *next = s->kept->next;
        sg_store_op_free(s->kept);
        s->kept = next;
    }
    sg_secret_free(s->audit_key);
    sg_secret_free(s->receipt_key);
    sg_secret_free(s->endpoint_key);
    sg_close(s->head_fd);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->chores);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->read_lock);
    pthread_mutex_destroy(&s->head_lock);
    free(s->dir);
    free(s->db_path);
    sg_close(s->lock_fd); /* last: from here on another server may come */
    free(s);
    return NULL;
}

const struct sg_secret *sg_store_receipt_key(const struct sg_store *s)
{
    return s->receipt_key;
}

const struct sg_secret *sg_store_endpoint_key(const struct sg_store *s)
{
    return s->endpoint_key;
}

int64_t sg_store_retention_ms(const struct sg_store *s)
{
    return s->retention_ms;
}

static int refuse_read_only(const struct sg_store *s, struct sg_error *err)
{
    (void)sg_error_set(err, SG_STORE_UNAVAILABLE, "read-only for now: %s", s->read_only_why);
    return sg_error_retry_after(err, 1);
}

int sg_store_check(struct sg_store *s, struct sg_error *err)
{
    pthread_mutex_lock(&s->lock);
    int rc = s->read_only ? refuse_read_only(s, err) : 0;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

static int acceptable(const struct sg_store *s, const struct sg_store_op *op, struct sg_error *err)
{
    if (op->no_memory) {
        return sg_error_set(err, SG_NO_MEMORY, "no memory to write it down");
    }
    if (op->too_large) {
        return sg_error_set(err, SG_PAYLOAD_TOO_LARGE, "a text of more than %u bytes cannot be written down",
                            SG_STORE_BODY_MAX);
    }
    if ((op->how & SG_STORE_KEEP) != 0) {
        return 0;
    }
    if (s->read_only) {
        return refuse_read_only(s, err);
    }
    if (s->queued >= s->queue_max || s->stopping) {
        (void)sg_error_set(err, SG_OVERLOADED, "%zu writes wait for the store already", s->queued);
        return sg_error_retry_after(err, 1);
    }
    return 0;
}

int sg_store_submit(struct sg_store *s, struct sg_store_op *op, unsigned how,
                    const struct sg_store_done *done, struct sg_error *err)
{
    op->how = how;
    if (done != NULL) {
        op->done = *done;
    }
    pthread_mutex_lock(&s->lock);
    int rc = acceptable(s, op, err);
    if (rc == 0) {
        op->next = NULL;
        *s->queue_tail = op;
        s->queue_tail = &op->next;
        s->queued++;
        pthread_cond_signal(&s->work);
    }
    pthread_mutex_unlock(&s->lock);
    if (rc < 0) {
        sg_store_op_free(op);
    }
    return rc;
}

void sg_store_stats(struct sg_store *s, struct sg_store_stats *ret)
{
    pthread_mutex_lock(&s->lock);
    *ret = (struct sg_store_stats){.ops = s->n_ops,
                                   .commits = s->n_commits,
                                   .syncs = s->n_syncs,
                                   .failures = s->n_failures,
                                   .queued = s->queued,
                                   .kept = s->n_kept,
                                   .read_only = s->read_only};
    pthread_mutex_unlock(&s->lock);
}
