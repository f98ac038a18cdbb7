/* A disk that is full: typed refusals, reads go on, nothing that happened is forgotten, and it ends by
 * itself. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include "world.h"

static int submit_one(struct sg_store *s, size_t pad, unsigned how, struct sg_error *err)
{
    struct sg_lease l = make_lease("acme", SG_LEASE_READY);
    sg_cleanup(sg_free_p) char *text = sg_xcalloc(1, pad + 1);
    memset(text, 'x', pad);
    l.metadata = json_pack("{s:s}", "pad", text);
    struct sg_store_op *op = sg_store_op_new();
    sg_store_op_lease(op, &l);
    sg_store_op_audit(op, "lease.ready", "acme", l.id, NULL);
    int rc = write_wait(s, op, how, err);
    sg_lease_finish(&l);
    return rc;
}

static bool writable_within(struct sg_store *s, int ms)
{
    int64_t until = sg_now_ms() + ms;
    while (sg_store_check(s, NULL) < 0) {
        if (sg_now_ms() > until) {
            return false;
        }
        usleep(10000);
    }
    return true;
}

/* So full that not even the store's own attempts succeed: after a write that did not fit a smaller one may,
 * and copying the log into the database makes room in the log. */
static void until_full(struct sg_store *s, int max)
{
    static const size_t pads[] = {4000, 0};
    struct sg_error err = {0};
    int n = 0;
    do {
        for (size_t i = 0; i < SG_COUNT_OF(pads); i++) {
            while (submit_one(s, pads[i], SG_STORE_DURABLE, &err) == 0) {
                cr_assert_lt(n++, max, "it never got full");
            }
            cr_expect_eq(err.code, SG_STORE_UNAVAILABLE, "%s", err.message);
            cr_expect_gt(err.retry_after, 0);
        }
    } while (writable_within(s, 2500)); /* more than one attempt */
    cr_expect_eq(sg_store_check(s, &err), -1);
    cr_expect_eq(err.code, SG_STORE_UNAVAILABLE);
}

/* A full disk in the middle of the life of leases; make_room is what the operator does then. */
static void full_disk(const char *dir, void (*make_room)(const char *dir))
{
    static struct world w;
    memset(&w, 0, sizeof w);
    w.dir = sg_xstrdup(dir);
    world_open(&w);
    struct sg_error err = {0};
    struct sg_entry *e = lease(&w, &(struct ask){0});
    enum sg_reserved how;
    struct sg_entry *creating = NULL;
    cr_assert_eq(reserve(&w, &(struct ask){.max_leases = 2}, &how, &creating, NULL, &err), 0);
    until_full(w.store, 5000);

    /* Refused before anything is touched; what was under way fails whole. */
    struct sg_entry *none = NULL;
    cr_expect_eq(reserve(&w, &(struct ask){0}, &how, &none, NULL, &err), -1);
    cr_expect_eq(err.code, SG_STORE_UNAVAILABLE);
    cr_expect_eq(make_ready(&w, creating, &err), -1);
    cr_expect_eq(err.code, SG_STORE_UNAVAILABLE, "%s", err.message);
    sg_registry_failed(w.reg, creating, NULL, &err, NULL);
    sg_entry_unref(creating);
    struct sg_lease l;
    cr_expect_eq(sg_store_lease(w.store, "acme", sg_entry_id(e), &l, &err), 0, "reads go on");
    int64_t before = l.expires_us;
    sg_lease_finish(&l);

    /* An extension is refused and not granted; an end happens all the same. */
    struct outcome o;
    outcome_init(&o);
    struct sg_store_done done = {.fn = outcome_set, .arg = &o};
    if (sg_registry_extend(w.reg, e, 3600000, &(struct sg_spend_limit){0}, &done, &err) == 0) {
        sem_wait_all(&o.sem);
        cr_expect(o.failed);
    }
    sg_entry_lease(e, &l);
    cr_expect_lt(l.expires_us, before + 60000000);
    sg_lease_finish(&l);
    end_lease(&w, e);
    cr_expect_eq(state_of(e), SG_LEASE_TERMINATED);

    make_room(dir);
    cr_assert(writable_within(w.store, 10000));
    cr_expect_eq(submit_one(w.store, 10, SG_STORE_DURABLE, &err), 0, "%s", err.message);
    cr_assert_eq(sg_store_lease(w.store, "acme", sg_entry_id(e), &l, &err), 0);
    cr_expect_eq(l.state, SG_LEASE_TERMINATED, "what happened meanwhile is written now");
    sg_lease_finish(&l);
    struct sg_store_stats st;
    sg_store_stats(w.store, &st);
    cr_expect_eq(st.kept, 0);
    cr_expect_gt(st.failures, 0);
    sg_entry_unref(e);
    world_close(&w);
    struct sg_audit_report rep;
    cr_assert_eq(sg_audit_verify(dir, NULL, &rep, &err), 0, "%s", err.message);
    cr_expect(rep.ok, "%s at %ld: %s", rep.problem, (long)rep.at_seq, rep.detail);
    struct sg_store *s = open_store(dir);
    sg_store_free(s);
    free(w.dir);
}

static void lift_limit(const char *dir)
{
    (void)dir;
    struct rlimit lim;
    getrlimit(RLIMIT_FSIZE, &lim);
    lim.rlim_cur = lim.rlim_max;
    setrlimit(RLIMIT_FSIZE, &lim);
}

Test(store_faults, a_file_that_may_not_grow)
{
    char *dir = temp_dir();
    struct rlimit lim;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &lim);
    lim.rlim_cur = 400000;
    setrlimit(RLIMIT_FSIZE, &lim);
    full_disk(dir, lift_limit);
    remove_dir(dir);
}

static void remove_filler(const char *dir)
{
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("%s/filler", dir);
    unlink(path);
}

/* A file system of its own, where the kernel lets us have one. */
static bool own_tmpfs(const char *dir, const char *options)
{
    return (unshare(CLONE_NEWNS) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) &&
           mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("tmpfs", dir, "tmpfs", 0, options) == 0;
}

Test(store_faults, a_full_file_system)
{
    char *dir = temp_dir();
    if (!own_tmpfs(dir, "size=2m")) {
        remove_dir(dir);
        cr_skip_test("no file system of its own: %s", strerror(errno));
    }
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("%s/filler", dir);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    cr_assert_eq(posix_fallocate(fd, 0, 1 << 20), 0);
    close(fd);
    full_disk(dir, remove_filler);
    umount(dir);
    remove_dir(dir);
}

Test(store_faults, a_queue_has_an_end)
{
    char *dir = temp_dir();
    struct sg_store_config cfg = {.state_dir = dir, .queue_max = 8};
    struct sg_store *s = NULL;
    struct sg_error err = {0};
    cr_assert_eq(sg_store_open(&cfg, &s, &err), 0);
    struct outcome o;
    outcome_init(&o);
    struct sg_store_done done = {.fn = outcome_set, .arg = &o};
    int accepted = 0;
    bool refused = false;
    for (int i = 0; i < 100000 && !refused; i++) {
        struct sg_store_op *op = sg_store_op_new();
        sg_store_op_audit(op, "x", NULL, NULL, NULL);
        refused = sg_store_submit(s, op, SG_STORE_DURABLE, &done, &err) < 0;
        accepted += !refused;
    }
    cr_expect(refused);
    cr_expect_eq(err.code, SG_OVERLOADED);
    cr_expect_gt(err.retry_after, 0);
    while (accepted-- > 0) {
        sem_wait_all(&o.sem);
    }
    cr_expect_not(o.failed);
    struct sg_store_op *op = sg_store_op_new();
    sg_cleanup(sg_free_p) char *big = sg_xcalloc(1, (2U << 20) + 1);
    memset(big, 'x', 2U << 20);
    sg_store_op_answer(op, "acme", "k", "h", "l", 201, big);
    cr_expect_eq(sg_store_submit(s, op, SG_STORE_DURABLE, &done, &err), -1);
    cr_expect_eq(err.code, SG_PAYLOAD_TOO_LARGE);
    sg_store_free(s);
    remove_dir(dir);
}

Test(store_faults, garbage_instead_of_a_database)
{
    char *dir = temp_dir();
    sg_store_free(open_store(dir));
    sg_cleanup(sg_free_p) char *path = sg_xasprintf("%s/sandgate.db", dir);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    for (int i = 0; i < 16; i++) {
        cr_assert_eq(write(fd, "garbage garbage garbage garbage ", 32), 32);
    }
    close(fd);
    struct sg_store_config cfg = {.state_dir = dir};
    struct sg_store *s = NULL;
    struct sg_error err = {0};
    cr_expect_eq(sg_store_open(&cfg, &s, &err), -1);
    cr_expect_eq(err.code, SG_STORE_UNAVAILABLE, "%s", err.message);
    struct sg_audit_report rep;
    int rc = sg_audit_verify(dir, NULL, &rep, &err);
    cr_expect(rc < 0 || !rep.ok);
    remove_dir(dir);
}
