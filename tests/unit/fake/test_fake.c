#include <criterion/criterion.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backends/fake/fake.h"
#include "base/clock.h"
#include "tests/support/calls.h"

static struct sg_reactor *reactor;

static void setup(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    cr_assert_eq(sg_reactor_new(&reactor, NULL), 0);
}

static void teardown(void)
{
    sg_reactor_free(reactor);
}

TestSuite(fake, .init = setup, .fini = teardown);

static struct sg_driver *fake(const char *script)
{
    struct sg_driver *d = NULL;
    struct sg_error err = {0};
    cr_assert_eq(sg_fake_new(reactor, "fake", script, &d, &err), 0, "%s", err.message);
    return d;
}

static struct sg_sandbox *lease(struct sg_driver *d)
{
    struct sg_sandbox_spec spec = call_spec("lse_1");
    struct sg_error err = {0};
    struct sg_sandbox *sb = call_create(d, &spec, &err);
    cr_assert_not_null(sb, "%s", err.message);
    return sb;
}

Test(fake, runs_the_scripted_commands)
{
    static const struct {
        const char *text, *input, *out, *err;
        int code, signal;
    } cases[] = {
        {"true", NULL, "", "", 0, 0},
        {"false", NULL, "", "", 1, 0},
        {"echo a b", NULL, "a b\n", "", 0, 0},
        {"stderr oh no; exit 3", NULL, "", "oh no\n", 3, 0},
        {"cat", "in\n", "in\n", "", 0, 0},
        {"cat", NULL, "", "", 0, 0},
        {"write f one; cat f; cat g", NULL, "one\n", "cat: no such file\n", 1, 0},
        {"pwd", NULL, "/workspace\n", "", 0, 0},
        {"sleep 10ms; echo late", NULL, "late\n", "", 0, 0},
        {"signal SEGV; echo never", NULL, "", "", 0, SIGSEGV},
        {"nosuchcmd", NULL, "", "nosuchcmd: not found\n", 127, 0},
    };
    struct sg_driver *d = fake(NULL);
    struct sg_sandbox *sb = lease(d);
    for (size_t i = 0; i < SG_COUNT_OF(cases); i++) {
        struct run r;
        call_exec(sb, cases[i].text, cases[i].input, &r);
        cr_expect_not(r.failed);
        cr_expect_str_eq(r.out, cases[i].out, "%s", cases[i].text);
        cr_expect_str_eq(r.errout, cases[i].err, "%s", cases[i].text);
        cr_expect_eq(r.exit.signal, cases[i].signal, "%s", cases[i].text);
        cr_expect(r.exit.signal != 0 || r.exit.returncode == cases[i].code, "%s", cases[i].text);
        call_exec_finish(&r);
    }
    call_end(sb);
    sg_driver_free(d);
}

Test(fake, kill_timeout_signal_and_lease_end_are_told_apart)
{
    struct sg_driver *d = fake(NULL);
    struct sg_sandbox *sb = lease(d);
    struct run r;
    cr_assert(call_exec_begin(sb, "echo first; sleep 60", false, 20, &r));
    call_exec_end(&r);
    cr_expect_eq(r.exit.killed_by, SG_KILLED_TIMEOUT);
    cr_expect_str_eq(r.out, "first\n");
    call_exec_finish(&r);

    cr_assert(call_exec_begin(sb, "sleep 60", false, CALL_MS, &r));
    r.x->ops->kill(r.x, SG_KILLED_CALLER);
    r.x->ops->kill(r.x, SG_KILLED_HANGUP);
    call_exec_end(&r);
    cr_expect_eq(r.exit.killed_by, SG_KILLED_CALLER);
    cr_expect_eq(r.x->ops->signal(r.x, SIGTERM, NULL), -1);
    call_exec_finish(&r);

    cr_assert(call_exec_begin(sb, "sleep 60", false, CALL_MS, &r));
    cr_assert(flag_wait(&r.started, 1, CALL_MS));
    cr_expect_eq(r.x->ops->signal(r.x, SIGTERM, NULL), 0);
    call_exec_end(&r);
    cr_expect_eq(r.exit.signal, SIGTERM);
    cr_expect_eq(r.exit.killed_by, SG_KILLED_NOT);
    call_exec_finish(&r);

    cr_assert(call_exec_begin(sb, "sleep 60", false, CALL_MS, &r));
    cr_expect_eq(call_terminate(sb, NULL), 0);
    call_exec_end(&r);
    cr_expect_eq(r.exit.killed_by, SG_KILLED_LEASE_END);
    call_exec_finish(&r);

    cr_expect_eq(call_terminate(sb, NULL), 0, "again is fine");
    cr_assert(call_exec_begin(sb, "true", false, CALL_MS, &r));
    call_exec_end(&r);
    cr_expect_eq(r.err.code, SG_LEASE_GONE);
    call_exec_finish(&r);
    sg_sandbox_unref(sb);
    sg_driver_free(d);
}

Test(fake, a_slow_reader_slows_the_command)
{
    struct sg_driver *d = fake(NULL);
    struct sg_sandbox *sb = lease(d);
    struct run r;
    cr_assert(call_exec_begin(sb, "yes", false, CALL_MS, &r));
    char chunk[1000];
    for (size_t n = 0; n < 300000;) {
        ssize_t got = sg_pipe_read(r.x->out, chunk, sizeof chunk);
        n += got > 0 ? (size_t)got : 0;
    }
    cr_expect_leq(sg_pipe_pending(r.x->out), 65536);
    sg_pipe_stop(r.x->out);
    call_exec_end(&r);
    cr_expect_eq(r.exit.signal, SIGPIPE);
    call_exec_finish(&r);
    call_end(sb);
    sg_driver_free(d);
}

Test(fake, steps_of_the_script_come_in_order)
{
    struct sg_driver *d =
        fake("{\"create\": [{\"error\": \"provider_failed\", \"message\": \"no luck\"},"
             "{\"delay_ms\": 30}, {\"error\": \"unavailable\", \"retry_after\": 7}],"
             "\"terminate\": [{\"error\": \"provider_timeout\"}], \"health\": {\"error\": \"unavailable\"}}");
    struct sg_sandbox_spec spec = call_spec("lse_1");
    struct sg_error err = {0};
    cr_expect_null(call_create(d, &spec, &err));
    cr_expect_eq(err.code, SG_PROVIDER_FAILED);
    cr_expect_str_eq(err.message, "no luck");
    int64_t before = sg_now_ms();
    struct sg_sandbox *sb = lease(d);
    cr_expect_geq(sg_now_ms() - before, 30);
    cr_expect_null(call_create(d, &spec, &err));
    cr_expect_eq(err.retry_after, 7);
    cr_expect_eq(call_terminate(sb, &err), -1);
    cr_expect_eq(err.code, SG_PROVIDER_TIMEOUT);
    cr_expect_eq(sg_fake_live(d), 1);
    cr_expect_eq(call_terminate(sb, &err), 0);
    cr_expect_eq(sg_fake_live(d), 0);
    cr_expect_eq(sg_driver_health(d, &err), -1);
    sg_sandbox_unref(sb);
    sg_driver_free(d);
}

Test(fake, bad_scripts_are_refused)
{
    static const char *const bad[] = {"{",
                                      "[]",
                                      "{\"nonsense\": 1}",
                                      "{\"create\": [{\"error\": \"no_such\"}]}",
                                      "{\"create\": [{\"delay_ms\": -1}]}",
                                      "{\"caps\": [\"fly\"]}",
                                      "{\"credentials\": [1]}",
                                      "{\"capacity\": 0}"};
    for (size_t i = 0; i < SG_COUNT_OF(bad); i++) {
        struct sg_driver *d = NULL;
        struct sg_error err = {0};
        cr_expect_eq(sg_fake_new(reactor, "fake", bad[i], &d, &err), -1, "%s", bad[i]);
        cr_expect_eq(err.code, SG_INVALID_REQUEST, "%s: %s", bad[i], err.message);
    }
}

Test(fake, a_cancel_ends_a_stalled_create)
{
    struct sg_driver *d = fake("{\"create\": [{\"stall\": true}, {\"stall\": true}]}");
    struct sg_sandbox_spec spec = call_spec("lse_1");
    struct sg_cancel *cancel = sg_cancel_new();
    struct creating c = {0};
    struct creating forever = {0};
    call_create_begin(d, &spec, cancel, &c);
    call_create_begin(d, &spec, NULL, &forever);
    cr_expect_not(flag_wait(&c.flag, 1, 20));
    sg_cancel_fire(cancel, SG_CANCEL_HANGUP);
    cr_expect_null(call_create_end(&c));
    cr_expect_eq(c.err.code, SG_CANCELLED);
    sg_driver_free(d);
    cr_expect_null(call_create_end(&forever));
    cr_expect_eq(forever.err.code, SG_SHUTTING_DOWN);
    sg_cancel_unref(cancel);
}

Test(fake, capacity_makes_creates_wait)
{
    struct sg_driver *d = fake("{\"capacity\": 1}");
    struct sg_sandbox *sb = lease(d);
    struct sg_sandbox_spec spec = call_spec("lse_2");
    struct sg_error err = {0};
    spec.acquire_timeout_ms = 20;
    cr_expect_null(call_create(d, &spec, &err));
    cr_expect_eq(err.code, SG_ACQUIRE_TIMEOUT);
    struct creating c = {0};
    spec.acquire_timeout_ms = CALL_MS;
    call_create_begin(d, &spec, NULL, &c);
    cr_expect_not(flag_wait(&c.flag, 1, 20));
    call_end(sb);
    sb = call_create_end(&c);
    cr_assert_not_null(sb);
    call_end(sb);
    sg_driver_free(d);
}

static void count_lost(void *arg, struct sg_sandbox *sb, const struct sg_error *why)
{
    (void)sb;
    cr_expect_eq(why->code, SG_SANDBOX_LOST);
    flag_raise(arg);
}

Test(fake, a_lost_sandbox_says_so_once)
{
    struct sg_driver *d = fake("{\"exec\": [{\"lost_after_ms\": 20}]}");
    struct sg_sandbox *sb = lease(d);
    struct flag lost = FLAG_INIT;
    struct run r;
    sg_sandbox_on_lost(sb, count_lost, &lost);
    cr_assert(call_exec_begin(sb, "echo a; sleep 60", false, CALL_MS, &r));
    call_exec_end(&r);
    cr_expect(r.failed);
    cr_expect_eq(r.err.code, SG_SANDBOX_LOST);
    cr_expect_str_eq(r.out, "a\n");
    call_exec_finish(&r);
    cr_expect(flag_wait(&lost, 1, CALL_MS));
    cr_expect_not(sg_fake_lose(d, sb->id));
    struct sg_error err = {0};
    cr_expect_null(call_get(sb, "f", NULL, &err));
    cr_expect_eq(err.code, SG_SANDBOX_LOST);
    cr_expect_eq(call_terminate(sb, NULL), 0);
    cr_expect_eq(lost.count, 1);
    sg_sandbox_unref(sb);
    sg_driver_free(d);
}

Test(fake, files)
{
    struct sg_driver *d = fake(NULL);
    struct sg_sandbox *sb = lease(d);
    struct sg_error err = {0};
    struct sg_file_stat st;
    struct sg_file_list list;
    size_t len = 0;
    cr_expect_eq(call_put(sb, "a/b/f", "one", 3, false, &err), 0, "%s", err.message);
    cr_expect_eq(call_put(sb, "a/b/f", "two", 3, true, &err), 0);
    char *data = call_get(sb, "/workspace/a/../a/./b//f", &len, &err);
    cr_assert_not_null(data);
    cr_expect_eq(len, 6);
    cr_expect_str_eq(data, "onetwo");
    free(data);
    cr_expect_eq(call_stat(sb, "a/b", &st, &err), 0);
    cr_expect_eq(st.type, SG_FILE_DIRECTORY);
    cr_expect_eq(call_stat(sb, "nope", &st, &err), -1);
    cr_expect_eq(err.code, SG_NOT_FOUND);
    cr_expect_null(call_get(sb, "a", NULL, &err));
    cr_expect_eq(err.code, SG_IS_A_DIRECTORY);
    cr_expect_eq(call_mkdir(sb, "a/b/f/g", &err), -1);
    cr_expect_eq(err.code, SG_NOT_A_DIRECTORY);
    cr_expect_eq(call_mkdir(sb, "c/d", &err), 0);
    cr_expect_eq(call_list(sb, ".", true, 100, &list, &err), 0);
    cr_assert_eq(list.n, 5);
    cr_expect_str_eq(list.entries[2].name, "a/b/f");
    sg_file_list_finish(&list);
    cr_expect_eq(call_list(sb, ".", false, 1, &list, &err), 0);
    cr_expect_eq(list.n, 1);
    cr_expect(list.more);
    sg_file_list_finish(&list);
    cr_expect_eq(call_move(sb, "a", "c/moved", &err), 0, "%s", err.message);
    cr_expect_eq(call_stat(sb, "c/moved/b/f", &st, &err), 0);
    cr_expect_eq(st.size, 6);
    cr_expect_eq(call_remove(sb, "c", false, &err), -1);
    cr_expect_eq(err.code, SG_DIRECTORY_NOT_EMPTY);
    cr_expect_eq(call_remove(sb, "c", true, &err), 0);
    cr_expect_eq(call_stat(sb, "c/d", &st, &err), -1);
    struct sg_file_sink *sink = call_put_open(sb, "never", false, &err);
    cr_assert_not_null(sink);
    sink->ops->abort(sink);
    cr_expect_eq(call_stat(sb, "never", &st, &err), -1);
    call_end(sb);
    sg_driver_free(d);
}

Test(fake, dial_reaches_the_scripted_port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(server, (struct sockaddr *)&at, len), 0);
    cr_assert_eq(listen(server, 1), 0);
    cr_assert_eq(getsockname(server, (struct sockaddr *)&at, &len), 0);
    char *script = sg_xasprintf("{\"ports\": {\"80\": %u}}", ntohs(at.sin_port));
    struct sg_driver *d = fake(script);
    struct sg_sandbox *sb = lease(d);
    struct sg_hold *hold = NULL;
    struct sg_error err = {0};
    int fd = call_dial(sb, 80, &hold, &err);
    cr_expect_geq(fd, 0);
    sg_close(fd);
    cr_expect_eq(call_dial(sb, 81, &hold, &err), -1);
    cr_expect_eq(err.code, SG_ENDPOINT_NOT_LISTENING);
    call_end(sb);
    sg_driver_free(d);
    free(script);
    sg_close(server);
}

Test(fake, the_end_of_the_driver_ends_everything)
{
    struct sg_driver *d = fake("{\"files\": [{\"stall\": true}]}");
    struct sg_sandbox *sb = lease(d);
    struct run r;
    cr_assert(call_exec_begin(sb, "sleep 60", false, CALL_MS, &r));
    cr_assert(flag_wait(&r.started, 1, CALL_MS));
    sg_driver_free(d);
    call_exec_end(&r);
    cr_expect_eq(r.exit.signal, SIGKILL);
    call_exec_finish(&r);
    cr_expect_eq(call_terminate(sb, NULL), 0);
    sg_sandbox_unref(sb);
}

/* ---- snapshots ---- */

struct snapping {
    struct flag flag;
    char ref[SG_SNAPSHOT_REF_MAX];
    size_t n;
    struct sg_error err;
};

static void snapped(void *arg, const char *ref, const struct sg_error *err)
{
    struct snapping *s = arg;
    if (err != NULL) {
        sg_error_copy(&s->err, err);
    } else {
        (void)snprintf(s->ref, sizeof s->ref, "%s", ref);
    }
    flag_raise(&s->flag);
}

static void dropped(void *arg, const struct sg_error *err)
{
    snapped(arg, "", err);
}

static void listed(void *arg, const struct sg_snapshot_item *items, size_t n, const struct sg_error *err)
{
    struct snapping *s = arg;
    s->n = n;
    snapped(arg, n > 0 ? items[0].id : "", err);
}

Test(fake, snapshots_are_held_until_they_are_dropped)
{
    struct sg_driver *d = fake("{\"caps\": [\"file_rw\", \"exec\", \"snapshot\"], \"snapshot\": [{}, {\"error\": \"conflict\"}],"
                               " \"drop\": [{\"error\": \"conflict\"}]}");
    struct sg_sandbox *sb = lease(d);
    struct snapping s[7] = {{.flag = FLAG_INIT}, {.flag = FLAG_INIT}, {.flag = FLAG_INIT}, {.flag = FLAG_INIT},
                            {.flag = FLAG_INIT}, {.flag = FLAG_INIT}, {.flag = FLAG_INIT}};
    struct run r;
    char id[SG_ID_MAX];
    sg_id_new("snap", id);
    const struct sg_snapshot_args a = {.id = id, .tenant = "t", .fd = -1};
    call_exec(sb, "write f one", NULL, &r);
    call_exec_finish(&r);
    cr_assert_eq(sg_sandbox_snapshot(sb, &a, &(struct sg_snapshot_done){snapped, &s[0]}, NULL), 0);
    cr_assert(flag_wait(&s[0].flag, 1, CALL_MS) && s[0].ref[0] != '\0');
    cr_assert_eq(sg_sandbox_snapshot(sb, &a, &(struct sg_snapshot_done){snapped, &s[1]}, NULL), 0);
    cr_assert(flag_wait(&s[1].flag, 1, CALL_MS));
    cr_expect_eq(s[1].err.code, SG_CONFLICT);
    cr_assert_eq(sg_driver_snapshot_list(d, &(struct sg_snapshot_listed){listed, &s[2]}, NULL), 0);
    cr_assert(flag_wait(&s[2].flag, 1, CALL_MS));
    cr_expect_eq(s[2].n, 1U);
    cr_expect_str_eq(s[2].ref, id);
    call_end(sb);
    struct sg_sandbox_spec spec = call_spec("lse_2");
    struct sg_error err = {0};
    spec.snapshot_ref = s[0].ref;
    cr_assert_eq(sg_driver_check(d, &spec, &err), 0);
    sb = call_create(d, &spec, &err);
    cr_assert_not_null(sb, "%s", err.message);
    call_exec(sb, "cat f", NULL, &r);
    cr_expect_str_eq(r.out, "one\n");
    call_exec_finish(&r);
    call_end(sb);
    for (size_t i = 3; i < 6; i++) { /* it is not let go, then it is, then there is none: the same */
        cr_assert_eq(sg_driver_snapshot_drop(d, id, i == 4 ? s[0].ref : "", &(struct sg_done){dropped, &s[i]}, NULL), 0);
        cr_assert(flag_wait(&s[i].flag, 1, CALL_MS));
        cr_expect_eq(s[i].err.code, i == 3 ? SG_CONFLICT : SG_OK);
    }
    cr_assert_eq(sg_driver_snapshot_list(d, &(struct sg_snapshot_listed){listed, &s[6]}, NULL), 0);
    cr_assert(flag_wait(&s[6].flag, 1, CALL_MS));
    cr_expect_eq(s[6].n, 0U);
    cr_assert_null(call_create(d, &spec, &err));
    cr_expect_eq(err.code, SG_SNAPSHOT_NOT_FOUND);
    cr_expect_eq(sg_fake_live(d), 0U);
    for (size_t i = 0; i < SG_COUNT_OF(s); i++) {
        sg_error_clear(&s[i].err);
    }
    sg_driver_free(d);
}
