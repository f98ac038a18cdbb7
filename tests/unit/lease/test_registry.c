/* Reserving: repetition, conflict, quota; creating: ready, failed, ended meanwhile. */
#include "world.h"

static struct world w;

static void setup(void)
{
    world_init(&w);
}

static void teardown(void)
{
    world_finish(&w);
}

TestSuite(registry, .init = setup, .fini = teardown);

Test(registry, a_lease_from_create_to_delete)
{
    struct sg_entry *e = lease(&w, &(struct ask){0});
    struct sg_lease l;
    struct sg_error err = {0};
    sg_entry_lease(e, &l);
    cr_expect_eq(l.state, SG_LEASE_READY);
    cr_expect_str_eq(l.provider, "local_bwrap");
    cr_expect_gt(l.expires_us, l.created_us);
    sg_cleanup(sg_json_p) json_t *v = sg_lease_json(&l, NULL);
    cr_expect_str_eq(json_string_value(json_object_get(v, "state")), "ready");
    cr_expect(json_is_null(json_object_get(v, "trajectory_id")));
    cr_expect_eq(json_object_size(v), 12);
    sg_lease_finish(&l);

    cr_expect(sg_registry_end(w.reg, e, SG_END_DELETED, NULL));
    cr_expect_not(sg_registry_end(w.reg, e, SG_END_EXPIRED, NULL));
    cr_expect(wait_for(e, SG_WAIT_ENDED, 5000));
    cr_expect_eq(state_of(e), SG_LEASE_TERMINATED);
    cr_expect_eq(w.ends, 1);
    cr_expect_eq(sg_entry_use_begin(e, NULL, &err), -1);
    cr_expect_eq(err.code, SG_LEASE_GONE);
    cr_expect_str_eq(err.reason, "terminated");

    struct sg_entry *again = NULL;
    cr_expect_eq(sg_registry_get(w.reg, "acme", sg_entry_id(e), &again, &err), 1);
    cr_expect_eq(again, e);
    sg_entry_unref(again);
    cr_expect_eq(sg_registry_get(w.reg, "beta", sg_entry_id(e), &again, &err), -1);
    cr_expect_eq(err.code, SG_NOT_FOUND);
    sg_entry_unref(e);
}

Test(registry, the_same_trajectory_is_the_same_lease)
{
    struct sg_error err = {0};
    enum sg_reserved how;
    struct sg_entry *e = lease(&w, &(struct ask){.trajectory = "t", .hash = "a"});
    struct sg_entry *same = NULL;
    cr_assert_eq(reserve(&w, &(struct ask){.trajectory = "t", .hash = "a"}, &how, &same, NULL, &err), 0);
    cr_expect_eq(how, SG_RESERVED_SAME);
    cr_expect_eq(same, e);
    sg_entry_unref(same);
    cr_expect_eq(reserve(&w, &(struct ask){.trajectory = "t", .hash = "b"}, &how, &same, NULL, &err), -1);
    cr_expect_eq(err.code, SG_TRAJECTORY_CONFLICT);
    /* Another tenant's trajectory of the same name is another one. */
    struct sg_entry *other = lease(&w, &(struct ask){.tenant = "beta", .trajectory = "t", .hash = "b"});
    cr_expect_neq(other, e);
    /* Once it ends the trajectory is free, at once. */
    w.hold_end = true;
    sg_registry_end(w.reg, e, SG_END_DELETED, NULL);
    struct sg_entry *next = lease(&w, &(struct ask){.trajectory = "t", .hash = "b"});
    cr_expect_neq(next, e);
    sg_registry_ended(w.reg, e, NULL);
    w.hold_end = false;
    end_lease(&w, next);
    end_lease(&w, other);
    sg_entry_unref(e);
    sg_entry_unref(next);
    sg_entry_unref(other);
}

Test(registry, an_idempotency_key_replays_its_answer_beyond_the_end)
{
    struct sg_error err = {0};
    struct sg_stored_answer a;
    enum sg_reserved how;
    struct ask ask = {.key = "k", .hash = "a"};
    struct sg_entry *e = lease(&w, &ask);
    struct sg_entry *got = NULL;
    char *want = sg_xasprintf("{\"id\":\"%s\"}", sg_entry_id(e));
    for (int round = 0; round < 3; round++) {
        cr_assert_eq(reserve(&w, &ask, &how, &got, &a, &err), 0, "%s", err.message);
        cr_expect_eq(how, SG_RESERVED_ANSWERED);
        cr_expect_eq(a.status, 201);
        cr_expect_str_eq(a.body, want);
        sg_stored_answer_finish(&a);
        sg_entry_unref(got);
        cr_expect_eq(reserve(&w, &(struct ask){.key = "k", .hash = "b"}, &how, &got, &a, &err), -1);
        cr_expect_eq(err.code, SG_IDEMPOTENCY_CONFLICT);
        if (round == 0) {
            end_lease(&w, e);
            sg_entry_unref(e);
        } else if (round == 1) { /* and from the store, after others pushed it out of memory and the server
                                    was started again */
            world_close(&w);
            world_open(&w);
        }
    }
    free(want);
}

Test(registry, what_left_memory_is_read_from_the_store)
{
    struct sg_error err = {0};
    char first[SG_ID_MAX] = "";
    for (int i = 0; i < 100; i++) {
        struct sg_entry *e = lease(&w, &(struct ask){.key = i == 0 ? "first" : NULL});
        if (i == 0) {
            memcpy(first, sg_entry_id(e), sizeof first);
        }
        end_lease(&w, e);
        sg_entry_unref(e);
    }
    struct sg_entry *e = NULL;
    cr_expect_eq(sg_registry_peek(w.reg, "acme", first, &e), 0);
    cr_assert_eq(sg_registry_get(w.reg, "acme", first, &e, &err), 1, "%s", err.message);
    cr_expect_eq(state_of(e), SG_LEASE_TERMINATED);
    cr_expect_not(sg_registry_end(w.reg, e, SG_END_DELETED, NULL));
    cr_expect(wait_for(e, SG_WAIT_ENDED, 0));
    sg_entry_unref(e);
    struct sg_stored_answer a;
    enum sg_reserved how;
    cr_assert_eq(reserve(&w, &(struct ask){.key = "first"}, &how, &e, &a, &err), 0);
    cr_expect_eq(how, SG_RESERVED_ANSWERED);
    cr_expect_null(e);
    sg_stored_answer_finish(&a);
}

Test(registry, a_failed_create_frees_everything)
{
    struct sg_error err = {0};
    struct sg_error why = {0};
    struct sg_stored_answer a;
    enum sg_reserved how;
    struct ask ask = {.trajectory = "t", .key = "k", .hash = "a", .max_leases = 1};
    struct sg_entry *e = NULL;
    struct sg_entry *second = NULL;
    cr_assert_eq(reserve(&w, &ask, &how, &e, &a, &err), 0);
    cr_assert_eq(reserve(&w, &ask, &how, &second, &a, &err), 0);
    cr_expect_eq(how, SG_RESERVED_SAME);
    cr_expect_eq(second, e);
    cr_expect_eq(reserve(&w, &(struct ask){.max_leases = 1}, &how, &second, NULL, &err), -1);
    cr_expect_eq(err.code, SG_QUOTA_EXCEEDED);
    cr_expect_eq(sg_entry_use_begin(e, NULL, &err), -1);
    cr_expect_eq(err.code, SG_LEASE_NOT_READY);
    struct sem_waiter sw = {.w = {.fn = waiter_fn}};
    sem_init(&sw.sem, 0, 0);
    cr_assert(sg_entry_wait(e, SG_WAIT_SETTLED, &sw.w));
    sg_error_set(&why, SG_ACQUIRE_TIMEOUT, "no slot");
    sg_registry_failed(w.reg, e, NULL, &why, NULL);
    sem_wait_all(&sw.sem);
    cr_expect_eq(state_of(e), SG_LEASE_FAILED);
    sg_entry_failure(e, &err);
    cr_expect_eq(err.code, SG_ACQUIRE_TIMEOUT);
    sg_error_clear(&err);
    sg_entry_unref(e);
    sg_entry_unref(e);
    e = lease(&w, &ask); /* the same key, trajectory and place again */
    end_lease(&w, e);
    sg_entry_unref(e);
}

Test(registry, a_refusal_is_answered_once_its_receipt_is_sealed)
{
    struct sg_error err = {0};
    struct sg_error why = {0};
    enum sg_reserved how;
    struct sg_entry *e = NULL;
    char *text = NULL;
    const char *id = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
    for (int with_receipt = 0; with_receipt < 2; with_receipt++) {
        struct outcome o;
        outcome_init(&o);
        struct sg_store_done done = {.fn = outcome_set, .arg = &o};
        cr_assert_eq(reserve(&w, &(struct ask){.max_leases = 1}, &how, &e, NULL, &err), 0);
        struct sg_store_op *op = with_receipt ? sg_store_op_new() : NULL;
        if (op != NULL) {
            sg_store_op_receipt(op, "acme", id, "{}");
        }
        sg_error_set(&why, SG_ACQUIRE_TIMEOUT, "no slot");
        sg_registry_failed(w.reg, e, op, &why, &done);
        sem_wait_all(&o.sem);
        cr_expect_not(o.failed);
        cr_expect(wait_for(e, SG_WAIT_ENDED, 0));
        sg_entry_unref(e);
    }
    cr_assert_eq(sg_store_receipt(w.store, "acme", id, &text, &err), 0);
    free(text);
}

Test(registry, a_lease_deleted_while_it_is_created_never_becomes_ready)
{
    struct sg_error err = {0};
    enum sg_reserved how;
    struct sg_entry *e = NULL;
    cr_assert_eq(reserve(&w, &(struct ask){.max_leases = 1}, &how, &e, NULL, &err), 0);
    cr_expect(sg_registry_end(w.reg, e, SG_END_DELETED, NULL));
    cr_expect_eq(sg_cancel_fired(sg_entry_cancel(e)), SG_CANCEL_LEASE_END);
    cr_expect_eq(w.ends, 0);
    cr_expect_eq(make_ready(&w, e, &err), -1);
    cr_expect_eq(err.code, SG_LEASE_GONE);
    cr_expect_eq(state_of(e), SG_LEASE_RELEASING);
    sg_registry_failed(w.reg, e, NULL, &err, NULL);
    cr_expect_eq(state_of(e), SG_LEASE_TERMINATED);
    cr_expect(wait_for(e, SG_WAIT_ENDED, 5000));
    sg_entry_unref(e);
    e = lease(&w, &(struct ask){.max_leases = 1});
    end_lease(&w, e);
    sg_entry_unref(e);
}

Test(registry, a_lease_deleted_during_its_commit)
{
    /* However the two meet, the outcome is one of two: ready and then ended by on_end, or never ready. */
    for (int i = 0; i < 200; i++) {
        struct sg_error err = {0};
        struct sg_stored_answer a;
        enum sg_reserved how;
        struct sg_entry *e = NULL;
        struct ask ask = {.key = "k", .max_leases = 1};
        int ends = w.ends;
        cr_assert_eq(reserve(&w, &ask, &how, &e, &a, &err), 0, "%s", err.message);
        cr_assert_eq(how, SG_RESERVED_NEW);
        struct sg_sandbox *sb = test_sandbox_new(&w);
        struct outcome o;
        outcome_init(&o);
        struct sg_store_done done = {.fn = outcome_set, .arg = &o};
        struct sg_grant g = {
            .sandbox = sb, .provider = "p", .sandbox_id = "s", .answer = test_answer, .answer_status = 201};
        cr_assert_eq(sg_registry_ready(w.reg, e, &g, NULL, &done, &err), 0);
        test_sandbox_unref(sb);
        usleep((useconds_t)(i * 5));
        cr_expect(sg_registry_end(w.reg, e, SG_END_DELETED, NULL));
        sem_wait_all(&o.sem);
        if (o.failed) {
            cr_expect_eq(o.err.code, SG_LEASE_GONE);
            cr_expect_eq(w.ends, ends);
            sg_registry_failed(w.reg, e, NULL, &o.err, NULL);
        } else {
            cr_expect_eq(w.ends, ends + 1);
        }
        cr_expect(wait_for(e, SG_WAIT_ENDED, 5000));
        cr_expect_eq(state_of(e), SG_LEASE_TERMINATED);
        bool answered = !o.failed;
        sg_entry_unref(e);
        if (answered) {
            break; /* from here on the key answers */
        }
        cr_expect_eq(sg_store_answer(w.store, "acme", "k", &a, &err), 0);
    }
}

/* ---- races ---- */

struct racers {
    struct ask ask;
    pthread_barrier_t start;
    _Atomic int made, same, answered, refused;
    struct sg_entry *_Atomic entry;
    bool keep;
};

static void *racer(void *arg)
{
    struct racers *r = arg;
    struct sg_error err = {0};
    struct sg_stored_answer a = {0};
    enum sg_reserved how;
    struct sg_entry *e = NULL;
    pthread_barrier_wait(&r->start);
    if (reserve(&w, &r->ask, &how, &e, &a, &err) < 0) {
        cr_expect_eq(err.code, SG_QUOTA_EXCEEDED, "%s", err.message);
        cr_expect_eq(json_integer_value(json_object_get(err.members, "limit")), r->ask.max_leases);
        cr_expect_eq(json_integer_value(json_object_get(err.members, "use")), r->ask.max_leases);
        cr_expect_str_eq(json_string_value(json_object_get(err.members, "owner")), "acme");
        cr_expect_gt(err.retry_after, 0);
        r->refused++;
        sg_error_clear(&err);
        return NULL;
    }
    if (how == SG_RESERVED_NEW) {
        cr_expect_eq(make_ready(&w, e, &err), 0, "%s", err.message);
        atomic_store(&r->entry, e);
        r->made++;
    } else if (how == SG_RESERVED_SAME) {
        cr_expect(wait_for(e, SG_WAIT_SETTLED, 5000));
        cr_expect_eq(state_of(e), SG_LEASE_READY);
        r->same++;
    } else {
        r->answered++;
        sg_stored_answer_finish(&a);
    }
    sg_entry_unref(e);
    return NULL;
}

static void race(struct racers *r, int n)
{
    pthread_t threads[100];
    pthread_barrier_init(&r->start, NULL, (unsigned)n);
    for (int i = 0; i < n; i++) {
        cr_assert_eq(pthread_create(&threads[i], NULL, racer, r), 0);
    }
    for (int i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
    }
    pthread_barrier_destroy(&r->start);
}

Test(registry, twenty_same_creates_make_one)
{
    struct racers r = {.ask = {.key = "k", .hash = "x"}};
    race(&r, 20);
    cr_expect_eq(r.made, 1);
    cr_expect_eq(r.made + r.same + r.answered, 20);
    struct racers t = {.ask = {.trajectory = "t", .hash = "x"}};
    race(&t, 20);
    cr_expect_eq(t.made, 1);
    cr_expect_eq(t.made + t.same, 20);
    cr_expect_eq(sg_registry_end_all(w.reg, SG_END_SHUTDOWN), 2);
}

Test(registry, after_the_shutdown_nothing_begins)
{
    struct sg_error err = {0};
    struct sg_entry *e = lease(&w, &(struct ask){0}), *none = NULL;
    enum sg_reserved how;
    cr_expect_eq(sg_registry_end_all(w.reg, SG_END_SHUTDOWN), 1);
    cr_expect_eq(reserve(&w, &(struct ask){0}, &how, &none, NULL, &err), -1);
    cr_expect_eq(err.code, SG_SHUTTING_DOWN);
    cr_expect_null(none);
    sg_error_clear(&err);
    sg_entry_unref(e);
}

Test(registry, a_quota_of_ten_is_exact)
{
    struct racers r = {.ask = {.max_leases = 10}};
    race(&r, 100);
    cr_expect_eq(r.made, 10);
    cr_expect_eq(r.refused, 90);
    struct sg_entry *e = atomic_load(&r.entry);
    sg_entry_ref(e); /* the registry still has it */
    end_lease(&w, e);
    sg_entry_unref(e);
    struct racers again = {.ask = {.max_leases = 10}};
    race(&again, 5);
    cr_expect_eq(again.made, 1);
    sg_registry_end_all(w.reg, SG_END_SHUTDOWN);
}

Test(registry, exec_slots_are_counted_per_tenant)
{
    struct sg_error err = {0};
    struct sg_entry *a = lease(&w, &(struct ask){0});
    struct sg_entry *b = lease(&w, &(struct ask){0});
    cr_assert_eq(sg_entry_exec_begin(a, 2, NULL, &err), 0);
    cr_assert_eq(sg_entry_exec_begin(b, 2, NULL, &err), 0);
    cr_expect_eq(sg_entry_exec_begin(b, 2, NULL, &err), -1);
    cr_expect_eq(err.code, SG_QUOTA_EXCEEDED);
    cr_expect_eq(json_integer_value(json_object_get(err.members, "use")), 2);
    sg_error_clear(&err);
    struct sg_registry_stats st;
    sg_registry_stats(w.reg, &st);
    cr_expect_eq(st.execs, 2);
    cr_expect_eq(st.by_state[SG_LEASE_READY], 2);
    sg_entry_exec_end(a, true);
    cr_expect_eq(sg_entry_exec_begin(b, 2, NULL, &err), 0);
    sg_entry_exec_end(b, true);
    sg_entry_exec_end(b, true);
    end_lease(&w, a);
    end_lease(&w, b);
    sg_registry_stats(w.reg, &st);
    cr_expect_eq(st.by_state[SG_LEASE_READY], 0);
    cr_expect_eq(st.by_state[SG_LEASE_TERMINATED], 2);
    sg_entry_unref(a);
    sg_entry_unref(b);
}

Test(registry, a_lost_sandbox_is_lost_at_once_and_held_until_it_is_gone)
{
    struct sg_error err = {0};
    enum sg_reserved how;
    struct sg_entry *none = NULL;
    struct sg_entry *e = lease(&w, &(struct ask){.max_leases = 1});
    w.hold_end = true;
    cr_expect(sg_registry_end(w.reg, e, SG_END_LOST, "agent_died: signal 9"));
    cr_expect_eq(state_of(e), SG_LEASE_LOST);
    cr_expect_eq(w.last_why, SG_END_LOST);
    cr_expect_eq(sg_entry_use_begin(e, NULL, &err), -1);
    cr_expect_eq(err.code, SG_SANDBOX_LOST);
    cr_expect_not_null(strstr(err.message, "agent_died"));
    cr_expect_eq(reserve(&w, &(struct ask){.max_leases = 1}, &how, &none, NULL, &err), -1);
    cr_expect_not(wait_for(e, SG_WAIT_ENDED, 20));
    sg_registry_ended(w.reg, e, NULL);
    cr_expect(wait_for(e, SG_WAIT_ENDED, 5000));
    cr_expect_eq(state_of(e), SG_LEASE_LOST);
    struct sg_lease l;
    cr_assert_eq(sg_store_lease(w.store, "acme", sg_entry_id(e), &l, &err), 0);
    cr_expect_eq(l.state, SG_LEASE_LOST);
    sg_lease_finish(&l);
    sg_error_clear(&err);
    sg_entry_unref(e);
}

Test(registry, a_terminate_that_cannot_be_confirmed_is_lost)
{
    struct sg_error why = {0};
    struct sg_entry *e = lease(&w, &(struct ask){0});
    w.hold_end = true;
    sg_registry_end(w.reg, e, SG_END_DELETED, NULL);
    sg_error_set(&why, SG_PROVIDER_FAILED, "no answer");
    sg_registry_ended(w.reg, e, &why);
    cr_expect_eq(state_of(e), SG_LEASE_LOST);
    sg_entry_unref(e);
}
