/* Commands on a terminal. */
#include "box.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"

#define TTY(r, c) .tty = (struct sg_tty_size) { (r), (c) }

static void each(void (*body)(struct box *b))
{
    static const struct {
        enum sg_agent_isolation isolation;
        enum box_tree tree;
    } kinds[] = {{SG_AGENT_UID, BOX_CGROUP},
                 {SG_AGENT_UID, BOX_HELPER},
                 {SG_AGENT_DUMPABLE, BOX_CGROUP},
                 {SG_AGENT_DUMPABLE, BOX_HELPER}};
    for (size_t i = 0; i < SG_COUNT_OF(kinds); i++) {
        struct box b;
        if (!box_can(kinds[i].isolation, kinds[i].tree))
            continue;
        box_start(&b, kinds[i].isolation, kinds[i].tree);
        body(&b);
        cr_assert(!b.lost, "%s", b.why.message);
        box_stop(&b);
    }
}

static void check(struct box *b, const struct run_args *a, int status, int signo, const char *out)
{
    struct run r;
    cr_assert_eq(run_start(&r, b, a), 0);
    run_wait(&r);
    cr_assert(!r.failed, "%s", r.error.message);
    cr_expect_eq(r.exit.signal, signo, "%s: signal %d", a->shell, r.exit.signal);
    cr_expect_eq(r.exit.returncode, status, "%s: status %d: %s", a->shell, r.exit.returncode, r.out);
    cr_expect_str_eq(r.err, "");
    if (out != NULL)
        cr_expect_str_eq(r.out, out, "%s: %s", a->shell, r.out);
    run_finish(&r);
}

#define ON(text) (&(struct run_args){.shell = (text), TTY(24, 80)})
#define WITH(text, ...) (&(struct run_args){.shell = (text), TTY(24, 80), __VA_ARGS__})

static void its_own(struct box *b)
{
    check(b, ON("test -t 0 && test -t 1 && test -t 2 && tty && stty size && echo x >/dev/tty; echo y >&2"), 0, 0,
          "/dev/pts/0\r\n24 80\r\nx\r\ny\r\n");
    check(b, &(struct run_args){.shell = "stty size", TTY(4096, 1)}, 0, 0, "4096 1\r\n");
    check(b, ON("set -- $(cat /proc/$$/stat); test $1 = $5 && test $1 = $6 && test $1 = $8 && echo session and foreground"), 0, 0,
          "session and foreground\r\n");
    check(b, ON("stat -c '%U %a' $(tty)"), 0, 0, NULL);
    check(b, ON("exec nosuchprogram 2>/dev/null || exit 3"), 127, 0, "");
    check(b, &(struct run_args){.argv = (const char *const[]){"nosuch", NULL}, TTY(24, 80)}, 127, 0, "sandgate: nosuch: not found\r\n");
}

Test(terminal, is_the_commands_own)
{
    each(its_own);
}

static void input(struct box *b)
{
    check(b, ON("cat"), 0, 0, "");
    check(b, ON("cat; cat; echo end"), 0, 0, "end\r\n");
    check(b, WITH("stty -echo; cat", .input = "one\ntwo\n", .input_len = 8), 0, 0, NULL);
    check(b, WITH("cat", .input = "begun", .input_len = 5), 0, 0, "begunbegun");
    check(b, WITH("cat", .input = "a\nb", .input_len = 3), 0, 0, NULL);
    check(b, &(struct run_args){.argv = (const char *const[]){"sleep", "30", NULL}, .input = "\003", .input_len = 1, TTY(24, 80)}, 0, SIGINT,
          "^C");
}

Test(terminal, input_is_typed)
{
    each(input);
}

static void volume(struct box *b)
{
    static char lines[1 << 20];
    struct run r;
    memset(lines, 'x', sizeof lines);
    for (size_t i = 63; i < sizeof lines; i += 64)
        lines[i] = '\n';
    check(b, WITH("stty -echo; echo go; wc -c | tr -d ' '", .input = lines, .input_len = sizeof lines), 0, 0, NULL);
    cr_assert_eq(run_start(&r, b, WITH("dd if=/dev/zero bs=65536 count=64 2>/dev/null | tr '\\0' x", .pipe_bytes = 4096)), 0);
    run_wait(&r);
    cr_expect_eq(r.out_len, 64U * 65536U, "%zu", r.out_len);
    run_finish(&r);
    for (int i = 0; i < 20; i++) { /* what was written last is still on its way when the command ends */
        cr_assert_eq(run_start(&r, b, WITH("head -c 30000 /dev/zero | tr '\\0' x", .pipe_bytes = 512)), 0);
        run_wait(&r);
        cr_expect_eq(r.out_len, 30000U, "%zu", r.out_len);
        run_finish(&r);
    }
}

Test(terminal, nothing_gets_lost)
{
    each(volume);
}

static void background(struct box *b)
{
    int64_t start = sg_now_ms();
    check(b, ON("setsid sleep 30 & echo hi"), 0, 0, "hi\r\n");
    check(b, ON("trap '' HUP; (while :; do echo x; done) & echo hi"), 0, 0, NULL);
    check(b, ON("exec >/dev/null 2>&1 </dev/null; sleep 0.1; echo late >/dev/tty"), 0, 0, "late\r\n");
    cr_expect(sg_now_ms() - start < 10000);
    /* The terminal is hung up: who ignores that can no longer write to it, and lives on. */
    check(b, ON("trap '' HUP; (while echo x; do sleep 0.01; done; echo over > hung) & echo hi"), 0, 0, NULL);
    free(box_sh(b, "for i in $(seq 500); do test -s hung && exit 0; sleep 0.02; done; exit 1"));
}

Test(terminal, who_holds_it_does_not_hold_the_command)
{
    each(background);
}

static void killed(struct box *b)
{
    struct run r;
    cr_assert_eq(run_start(&r, b, WITH("setsid sleep 1000 & echo up; cat", .stdin_open = true, .timeout_ms = 400)), 0);
    run_wait(&r);
    cr_expect_eq(r.exit.signal, SIGKILL);
    cr_expect_eq(r.exit.killed_by, SG_KILLED_TIMEOUT);
    cr_expect_str_eq(r.out, "up\r\n");
    run_finish(&r);
    free(box_sh(b, "for i in $(seq 500); do grep -qs 'sleep.[1]000' /proc/[1-9]*/cmdline || exit 0; sleep 0.02; done; exit 1"));
}

Test(terminal, kills_take_all)
{
    each(killed);
}

/* ---- its size ---- */

struct resized {
    struct box *box;
    bool done;
    bool failed;
};

static void on_resized(void *arg, const struct sg_error *err)
{
    struct resized *z = arg;
    z->failed = err != NULL;
    box_set(z->box, &z->done);
}

static void resizing(struct box *b)
{
    struct run r;
    struct sg_error err = {0};
    struct resized z = {.box = b};
    cr_assert_eq(run_start(&r, b, WITH("trap 'stty size; exit' WINCH; while :; do sleep 0.01; done", .stdin_open = true)), 0);
    box_wait(b, &r.started);
    free(box_sh(b, "sleep 0.3")); /* until the trap is set */
    cr_assert_eq(r.x->ops->resize(r.x, 50, 132, &(struct sg_done){on_resized, &z}, &err), 0, "%s", err.message);
    box_wait(b, &z.done);
    cr_expect(!z.failed);
    run_wait(&r);
    cr_expect_str_eq(r.out, "50 132\r\n");
    cr_expect_eq(r.x->ops->resize(r.x, 50, 132, &(struct sg_done){on_resized, &z}, &err), -1);
    cr_expect_eq(err.code, SG_CONFLICT);
    sg_error_clear(&err);
    run_finish(&r);
}

Test(terminal, can_be_resized)
{
    each(resizing);
}

static void many(struct box *b)
{
    check(b, ON("true"), 0, 0, "");
    unsigned before = open_fds();
    for (int i = 0; i < 100; i++)
        check(b, ON("true"), 0, 0, "");
    struct timespec t = {.tv_nsec = 5000000};
    for (int i = 0; i < 1000 && open_fds() > before; i++) /* closed on a worker */
        nanosleep(&t, NULL);
    cr_expect_leq(open_fds(), before);
    char *left = box_sh(b, "ls /dev/pts");
    cr_expect_str_eq(left, "ptmx\n");
    free(left);
}

Test(terminal, none_is_left)
{
    each(many);
}
