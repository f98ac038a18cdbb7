/* What the tests of leases share: a state directory that goes away, and writes that are waited for. */
#ifndef SG_TEST_LEASE_SUPPORT_H
#define SG_TEST_LEASE_SUPPORT_H

#include <criterion/criterion.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/json.h"
#include "lease/store.h"
#include "model/lease_json.h"

static inline char *temp_dir(void)
{
    char *dir = sg_xstrdup("/tmp/sg-lease-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    return dir;
}

/* Removes it and frees the name. */
static inline void remove_dir(char *dir)
{
    struct sg_error err = {0};
    cr_expect_eq(sg_remove_tree(AT_FDCWD, dir, &err), 0, "%s", err.message);
    free(dir);
}

static inline struct sg_store *open_store(const char *dir)
{
    struct sg_store_config cfg = {.state_dir = dir};
    struct sg_store *s = NULL;
    struct sg_error err = {0};
    cr_assert_eq(sg_store_open(&cfg, &s, &err), 0, "%s", err.message);
    return s;
}

struct outcome {
    sem_t sem;
    struct sg_error err;
    bool failed;
};

static inline void outcome_set(void *arg, const struct sg_error *err)
{
    struct outcome *o = arg;
    if (err != NULL) {
        o->failed = true;
        sg_error_copy(&o->err, err);
    }
    sem_post(&o->sem);
}

static inline void outcome_init(struct outcome *o)
{
    memset(o, 0, sizeof *o);
    sem_init(&o->sem, 0, 0);
}

static inline void sem_wait_all(sem_t *sem)
{
    while (sem_wait(sem) != 0) {
    }
}

/* 0 or -1 as the write came out. */
static inline int write_wait(struct sg_store *s, struct sg_store_op *op, unsigned how, struct sg_error *err)
{
    struct outcome o;
    outcome_init(&o);
    struct sg_store_done done = {.fn = outcome_set, .arg = &o};
    if (sg_store_submit(s, op, how, &done, err) < 0) {
        return -1;
    }
    sem_wait_all(&o.sem);
    if (o.failed && err != NULL) {
        sg_error_copy(err, &o.err);
    }
    sg_error_clear(&o.err);
    sem_destroy(&o.sem);
    return o.failed ? -1 : 0;
}

/* A lease of `tenant` in state ready; finish it. */
static inline struct sg_lease make_lease(const char *tenant, enum sg_lease_state state)
{
    struct sg_lease l = {.state = state, .created_us = sg_wall_us()};
    sg_id_new(SG_LEASE_ID_PREFIX, l.id);
    l.terms = sg_lease_terms_new(tenant);
    l.terms->timeout_ms = 60000;
    l.expires_us = l.created_us + 60000000;
    l.ended_us = sg_lease_state_ended(state) ? l.created_us : 0;
    snprintf(l.provider, sizeof l.provider, "local_bwrap");
    snprintf(l.sandbox_id, sizeof l.sandbox_id, "default-0");
    return l;
}

static inline void put_lease(struct sg_store *s, const struct sg_lease *l)
{
    struct sg_error err = {0};
    struct sg_store_op *op = sg_store_op_new();
    sg_store_op_lease(op, l);
    sg_store_op_audit(op, "lease.ready", l->terms->tenant, l->id, NULL);
    cr_assert_eq(write_wait(s, op, SG_STORE_DURABLE, &err), 0, "%s", err.message);
}

#endif
