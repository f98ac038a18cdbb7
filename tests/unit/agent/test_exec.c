#include "box.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <time.h>

#include "base/clock.h"

/* Runs body in every kind of sandbox this machine can make. */
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

static void one(void (*body)(struct box *b))
{
    struct box b;
    bool root = box_can(SG_AGENT_UID, BOX_CGROUP);
    box_start(&b, root ? SG_AGENT_UID : SG_AGENT_DUMPABLE, root ? BOX_CGROUP : BOX_HELPER);
    body(&b);
    cr_assert(!b.lost, "%s", b.why.message);
    box_stop(&b);
}

static void check(struct box *b, const struct run_args *a, int status, int signo, const char *out,
                  const char *err)
{
    struct run r;
    cr_assert_eq(run_start(&r, b, a), 0);
    run_wait(&r);
    cr_assert(!r.failed, "%s", r.error.message);
    cr_expect_eq(r.exit.signal, signo, "signal %d", r.exit.signal);
    cr_expect_eq(r.exit.returncode, status, "status %d: %s", r.exit.returncode, r.err);
    if (out != NULL)
        cr_expect_str_eq(r.out, out);
    if (err != NULL)
        cr_expect(strstr(r.err, err) != NULL, "stderr: %s", r.err);
    run_finish(&r);
}

#define SH(text) (&(struct run_args){.shell = (text)})
#define ARGV(...) (&(struct run_args){.argv = (const char *const[]){__VA_ARGS__, NULL}})

static void statuses(struct box *b)
{
    check(b, SH("echo hi; echo there >&2"), 0, 0, "hi\n", "there\n");
    check(b, SH("exit 137"), 137, 0, "", NULL);
    check(b, SH("kill -KILL $$"), 0, SIGKILL, "", NULL);
    check(b, SH("kill -SEGV $$"), 0, SIGSEGV, "", NULL);
    check(b, ARGV("printf", "%s|", "a\nb", "$HOME", ""), 0, 0, "a\nb|$HOME||", NULL);
    check(b, SH("pwd; echo $HOME; umask; ulimit -c"), 0, 0, "/workspace\n/workspace\n0022\n0\n", NULL);
    check(b, ARGV("nosuchcmd"), 127, 0, "", "nosuchcmd: not found");
    check(b, ARGV("/nosuch/dir/cmd"), 127, 0, "", "not found");
    check(b, ARGV("/etc/passwd"), 126, 0, "", "Permission denied");
    check(b, ARGV("/usr"), 126, 0, "", "Permission denied");
    check(b, ARGV(""), 127, 0, "", "not found");
    check(b,
          &(struct run_args){.argv = (const char *const[]){"sh", "-c", "echo x", NULL}, .path = "/nowhere"},
          127, 0, "", "not found");
}

Test(exec, statuses_are_a_shells)
{
    each(statuses);
}

static void scripts(struct box *b)
{
    free(box_sh(b, "mkdir p; printf 'echo \"$0 $1\"' > p/s; chmod +x p/s; printf 'x' > p/n"));
    check(b, ARGV("/workspace/p/s", "arg"), 0, 0, "/workspace/p/s arg\n", NULL);
    check(b,
          &(struct run_args){.argv = (const char *const[]){"s", "q", NULL}, .path = "/nowhere:/workspace/p"},
          0, 0, "/workspace/p/s q\n", NULL);
    check(b, &(struct run_args){.argv = (const char *const[]){"n", NULL}, .path = "/nowhere:/workspace/p"},
          126, 0, "", "Permission denied");
    free(box_sh(b, "printf '#!/no/such/interpreter\\n' > p/i; chmod +x p/i"));
    check(b, ARGV("/workspace/p/i"), 127, 0, "", "not found");
}

Test(exec, scripts_without_interpreter_line)
{
    one(scripts);
}

static void users(struct box *b)
{
    char *id = box_sh(
        b,
        "id -u; id -G; grep -E '^(CapEff|CapPrm|CapInh|CapAmb|NoNewPrivs|SigBlk|SigIgn)' /proc/self/status | "
        "tr -s '\\t\\n' ' '; ls -l /proc/self/fd | wc -l");
    cr_expect_str_eq(
        id, "1000\n1000\nSigBlk: 0000000000000000 SigIgn: 0000000000000000 CapInh: 0000000000000000 "
            "CapPrm: 0000000000000000 CapEff: 0000000000000000 CapAmb: 0000000000000000 NoNewPrivs: 1 5\n");
    free(id);
    check(b, SH("cat /proc/1/environ"), 1, 0, "", "denied");
    check(b, SH("kill -KILL 1; kill -STOP 1; sleep 0.1; echo alive"), 0, 0, "alive\n", NULL);
}

Test(exec, commands_have_no_rights)
{
    each(users);
}

static void isolated(struct box *b)
{
    /* Only where the agent has a uid of its own is this the kernel's doing alone. */
    check(b, SH("kill -0 1"), 1, 0, NULL, NULL);
    check(b, ARGV("prlimit", "--pid", "1", "--nofile=4:4"), 1, 0, NULL, NULL);
}

Test(exec, the_agent_is_out_of_reach)
{
    struct box b;
    if (!box_can(SG_AGENT_UID, BOX_HELPER))
        return;
    box_start(&b, SG_AGENT_UID, BOX_HELPER);
    isolated(&b);
    box_stop(&b);
}

static void cwds(struct box *b)
{
    struct run r;
    free(box_sh(b, "mkdir -p sub; touch file; mkdir closed; chmod 0 closed"));
    check(b, &(struct run_args){.shell = "pwd", .cwd = "sub"}, 0, 0, "/workspace/sub\n", NULL);
    check(b, &(struct run_args){.shell = "pwd", .cwd = "/tmp"}, 0, 0, "/tmp\n", NULL);
    const char *bad[] = {"missing", "file", "/workspace/closed", "file/x"};
    for (size_t i = 0; i < SG_COUNT_OF(bad); i++) {
        cr_assert_eq(run_start(&r, b, &(struct run_args){.shell = "pwd", .cwd = bad[i]}), 0);
        run_wait(&r);
        cr_expect(r.failed && !r.started && r.error.code == SG_CWD_NOT_FOUND, "%s", bad[i]);
        run_finish(&r);
    }
}

Test(exec, missing_working_directory_is_an_error)
{
    each(cwds);
}

static void no_stdin(struct box *b)
{
    check(b, ARGV("cat"), 0, 0, "", NULL);
    check(b, SH("read x || echo eof"), 0, 0, "eof\n", NULL);
}

Test(exec, stdin_that_was_not_given_is_at_its_end)
{
    each(no_stdin);
}

static void stdin_early(struct box *b)
{
    size_t len = 10 << 20;
    char *big = malloc(len);
    memset(big, 'x', len);
    check(b, &(struct run_args){.argv = (const char *const[]){"true", NULL}, .input = big, .input_len = len},
          0, 0, "", NULL);
    check(b,
          &(struct run_args){
              .argv = (const char *const[]){"head", "-c", "1", NULL}, .input = big, .input_len = len},
          0, 0, "x", NULL);
    check(b,
          &(struct run_args){.argv = (const char *const[]){"wc", "-c", NULL}, .input = big, .input_len = len},
          0, 0, "10485760\n", NULL);
    free(big);
}

Test(exec, stdin_may_be_closed_early)
{
    one(stdin_early);
}

static void outputs(struct box *b)
{
    struct run r;
    run_shell(&r, b, "head -c 1000000 /dev/zero >&2; head -c 1000000 /dev/zero");
    cr_expect(r.out_len == 1000000 && r.err_len == 1000000);
    run_finish(&r);
    /* The command is gone while most of this is still in the pipes. */
    cr_assert_eq(
        run_start(&r, b, &(struct run_args){.shell = "exec head -c 8388608 /dev/zero", .pipe_bytes = 4096}),
        0);
    run_wait(&r);
    cr_expect_eq(r.out_len, 8388608U);
    run_finish(&r);
    run_shell(&r, b, "(sleep 0.05; echo late) & exit 0");
    cr_expect_str_eq(r.out, "late\n");
    run_finish(&r);
}

Test(exec, all_output_arrives)
{
    each(outputs);
}

static void background(struct box *b)
{
    struct run r;
    int64_t start = sg_now_ms();
    run_shell(&r, b, "echo hi; (while :; do echo noise; sleep 0.02; done) & echo $! > bg");
    cr_expect(sg_now_ms() - start < 1500);
    cr_expect(strncmp(r.out, "hi\n", 3) == 0);
    cr_expect(r.exit.returncode == 0 && r.exit.signal == 0);
    run_finish(&r);
    /* It lives on, and writing does not kill it. */
    char *out = box_sh(b, "sleep 0.3; kill -0 $(cat bg) && echo lives; kill $(cat bg)");
    cr_expect_str_eq(out, "lives\n");
    free(out);
}

Test(exec, background_children_do_not_hold_the_exec)
{
    each(background);
}

static void loud_background(struct box *b)
{
    struct run r;
    run_shell(&r, b, "yes & echo $! > bg; sleep 0.1");
    cr_expect(r.exit.returncode == 0);
    run_finish(&r);
    free(box_sh(b, "kill $(cat bg)"));
}

Test(exec, endless_background_output_ends_with_the_grace)
{
    one(loud_background);
}

static void timeouts(struct box *b)
{
    struct run r;
    int64_t start = sg_now_ms();
    cr_assert_eq(run_start(&r, b, &(struct run_args){.shell = "echo before; sleep 60", .timeout_ms = 300}),
                 0);
    run_wait(&r);
    cr_expect_eq(r.exit.signal, SIGKILL);
    cr_expect_eq(r.exit.killed_by, SG_KILLED_TIMEOUT);
    cr_expect_str_eq(r.out, "before\n");
    cr_expect(sg_now_ms() - start >= 290 && sg_now_ms() - start < 5000);
    run_finish(&r);
    check(b, SH("exit 124"), 124, 0, NULL, NULL);
}

Test(exec, timeouts_kill)
{
    each(timeouts);
}

/* Everything of `text` (which writes ticks into the file t for ever) is dead after a kill. */
static void tree_dies(struct box *b, const char *text)
{
    struct run r;
    free(box_sh(b, "rm -f t; touch t"));
    cr_assert_eq(run_start(&r, b, &(struct run_args){.shell = text}), 0);
    box_wait(b, &r.started);
    free(box_sh(
        b,
        "i=0; while [ $(wc -l < t) -lt 2 ] && [ $i -lt 200 ]; do sleep 0.02; i=$((i+1)); done; test -s t"));
    r.x->ops->kill(r.x, SG_KILLED_CALLER);
    run_wait(&r);
    cr_assert(!r.failed, "%s: %s", text, r.error.message);
    char *ticks = box_sh(b, "sleep 0.15; wc -l < t");
    char *later = box_sh(b, "sleep 0.3; wc -l < t");
    cr_expect_str_eq(ticks, later, "%s lives on", text);
    free(ticks);
    free(later);
    run_finish(&r);
}

#define TICK "while :; do date >> t; sleep 0.02; done"

static void trees(struct box *b)
{
    tree_dies(b, TICK);
    tree_dies(b, "sh -c '" TICK "' & sleep 60");
    tree_dies(b, "setsid sh -c '" TICK "' & sleep 60");
    tree_dies(b, "nohup setsid sh -c '" TICK "' >/dev/null 2>&1 & sleep 60");
    tree_dies(b, "setsid sh -c 'setsid sh -c \"" TICK "\" & exit 0'; sleep 60"); /* its parents are gone */
    tree_dies(b, "(setsid sh -c '" TICK "' &) & exit 0");                        /* and so is the command */
    tree_dies(b, "trap '' TERM INT HUP; yes | (" TICK ")");
}

Test(exec, kill_reaches_every_descendant, .timeout = 90)
{
    each(trees);
}

static void bomb(struct box *b)
{
    struct run r;
    free(box_sh(b, "printf '%s\\n' '#!/bin/sh' 'ulimit -u 150 2>/dev/null; sleep 20 & [ $1 -gt 0 ] && { $0 "
                   "$(($1-1)) & $0 $(($1-1)) & }; "
                   "wait' > bomb; chmod +x bomb"));
    cr_assert_eq(run_start(&r, b, &(struct run_args){.shell = "./bomb 6"}), 0);
    box_wait(b, &r.started);
    free(box_sh(b, "sleep 0.3"));
    r.x->ops->kill(r.x, SG_KILLED_CALLER);
    run_wait(&r);
    cr_assert(!r.failed);
    char *left = box_sh(b, "sleep 0.2; ls /proc | grep -c '^[0-9]'");
    cr_expect(atoi(left) < 12, "%s processes are left", left);
    free(left);
    run_finish(&r);
}

Test(exec, a_bomb_dies)
{
    each(bomb);
}

static void kill_ended(struct box *b)
{
    struct run r;
    run_shell(&r, b, "(setsid sleep 45 >/dev/null 2>&1 &) ; exit 0");
    cr_expect_eq(r.exit.killed_by, SG_KILLED_NOT);
    char *n = box_sh(b, "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 45' || true");
    cr_expect_str_eq(n, "1\n");
    free(n);
    r.x->ops->kill(r.x, SG_KILLED_CALLER);
    n = box_sh(b, "sleep 0.2; cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 4[5]' || true");
    cr_expect_str_eq(n, "0\n");
    free(n);
    run_finish(&r);
}

Test(exec, background_children_of_an_ended_command_can_be_killed)
{
    each(kill_ended);
}

static void signals(struct box *b)
{
    struct run r;
    struct sg_error err = {0};
    cr_assert_eq(
        run_start(&r, b,
                  &(struct run_args){
                      .shell = "trap 'echo got; exit 3' TERM; touch up; while :; do sleep 0.02; done"}),
        0);
    free(box_sh(b, "i=0; while [ ! -e up ] && [ $i -lt 200 ]; do sleep 0.02; i=$((i+1)); done"));
    cr_assert_eq(r.x->ops->signal(r.x, SIGTERM, &err), 0);
    run_wait(&r);
    cr_expect_eq(r.exit.returncode, 3);
    cr_expect_eq(r.exit.killed_by, SG_KILLED_NOT);
    cr_expect_str_eq(r.out, "got\n");
    cr_expect_eq(r.x->ops->signal(r.x, SIGTERM, &err), -1);
    cr_expect_eq(err.code, SG_CONFLICT);
    sg_error_clear(&err);
    run_finish(&r);
}

static void groups_are_free_first(struct box *b)
{
    struct run r;
    if (b->tree != BOX_CGROUP)
        return;
    run_shell(&r, b, "exit 3");
    cr_expect(r.freed_first, "whoever hears of the end may start the next one in the same group");
    run_finish(&r);
    run_shell(&r, b, "sleep 1000 >/dev/null 2>&1 &");
    cr_expect_not(r.freed_first, "something is left to kill");
    r.x->ops->kill(r.x, SG_KILLED_CALLER);
    run_finish(&r);
}

Test(exec, an_empty_group_is_free_before_the_end_is_told)
{
    each(groups_are_free_first);
}

Test(exec, signals_reach_the_command)
{
    each(signals);
}

static void released(struct box *b)
{
    struct run r;
    cr_assert_eq(
        run_start(&r, b, &(struct run_args){.shell = "head -c 3000000 /dev/zero; touch through; sleep 0.05"}),
        0);
    r.x->ops->release(r.x);
    free(box_sh(
        b,
        "i=0; while [ ! -e through ] && [ $i -lt 400 ]; do sleep 0.02; i=$((i+1)); done; test -e through"));
    cr_expect(!r.ended);
}

Test(exec, a_released_command_goes_on_unheard)
{
    struct box b;
    box_start(&b, SG_AGENT_DUMPABLE, BOX_HELPER);
    released(&b);
    box_stop(&b);
}

static void long_args(struct box *b)
{
    /* About 1 MiB of arguments and 100 KiB of environment. */
    enum { N = 9, EACH = 110000 };
    const char *argv[4] = {"/bin/sh", "-c", "n=0; for a; do n=$((n+${#a})); done; echo $n ${#BIG}", "sh"};
    char *arg = malloc(EACH + 1), *env = malloc(100001);
    memset(arg, 'a', EACH);
    arg[EACH] = '\0';
    memset(env, 'e', 100000);
    env[100000] = '\0';
    const char *full[N + 5];
    memcpy(full, argv, sizeof argv);
    for (int i = 0; i < N; i++)
        full[4 + i] = arg;
    full[4 + N] = NULL;
    check(b, &(struct run_args){.argv = full, .big_env = env}, 0, 0, "990000 100000\n", NULL);
    /* One argument may not be longer than 128 KiB: the kernel's limit, as for a shell. */
    char *huge = malloc(200001);
    memset(huge, 'h', 200000);
    huge[200000] = '\0';
    check(b, ARGV("/bin/echo", huge), 126, 0, "", "too long");
    free(huge);
    free(arg);
    free(env);
}

Test(exec, a_megabyte_of_arguments)
{
    each(long_args);
}

static void slow_reader(struct box *b)
{
    struct run r;
    cr_assert_eq(run_start(&r, b, &(struct run_args){.shell = "yes", .timeout_ms = 700, .pipe_bytes = 10000}),
                 0);
    box_wait(b, &r.started);
    free(box_sh(b, "sleep 0.2"));
    cr_expect_eq(sg_pipe_pending(r.x->out), 10000U);
    run_wait(&r);
    cr_expect_eq(r.exit.killed_by, SG_KILLED_TIMEOUT);
    run_finish(&r);
}

Test(exec, a_slow_reader_slows_the_command)
{
    one(slow_reader);
}

static void many(struct box *b)
{
    enum { N = 50 };
    static struct run r[N];
    int64_t start = sg_now_ms();
    for (int i = 0; i < N; i++)
        cr_assert_eq(run_start(&r[i], b, &(struct run_args){.shell = "sleep 0.5; echo done"}), 0);
    for (int i = 0; i < N; i++) {
        run_wait(&r[i]);
        cr_expect_str_eq(r[i].out, "done\n");
        run_finish(&r[i]);
    }
    cr_expect(sg_now_ms() - start < 6000);
}

Test(exec, side_by_side)
{
    one(many);
}

static void leaks(struct box *b)
{
    free(box_sh(b, "true"));
    unsigned before = open_fds();
    for (int i = 0; i < 2500; i++) {
        check(b, ARGV("true"), 0, 0, "", NULL);
        check(b, ARGV("nosuch"), 127, 0, "", "not found");
    }
    cr_expect_eq(open_fds(), before);
    char *inside = box_sh(b, "ls /proc | grep -c '^[0-9]'");
    cr_expect(atoi(inside) < 8, "%s", inside);
    free(inside);
}

Test(exec, five_thousand_starts_leak_nothing, .timeout = 100)
{
    one(leaks);
}

static void ends_with_box(struct box *b)
{
    struct run r;
    cr_assert_eq(run_start(&r, b, &(struct run_args){.shell = "sleep 60"}), 0);
    box_wait(b, &r.started);
    sg_agent_close(b->agent);
    run_wait(&r);
    cr_expect(r.failed);
    cr_expect_eq(r.error.code, SG_LEASE_GONE);
    cr_expect_eq(run_start(&(struct run){0}, b, &(struct run_args){.shell = "true"}), SG_LEASE_GONE);
    run_finish(&r);
}

Test(exec, closing_the_agent_ends_commands)
{
    struct box b;
    box_start(&b, SG_AGENT_DUMPABLE, BOX_HELPER);
    ends_with_box(&b);
    box_stop(&b);
}

static void attack_helper(const char *how)
{
    struct box b;
    struct run r, hostile;
    box_start(&b, SG_AGENT_DUMPABLE, BOX_HELPER);
    cr_assert_eq(run_start(&r, &b, &(struct run_args){.shell = "sleep 60"}), 0);
    box_wait(&b, &r.started);
    cr_assert_eq(run_start(&hostile, &b, &(struct run_args){.shell = how}), 0);
    box_wait(&b, &b.lost);
    run_wait(&r);
    run_wait(&hostile);
    cr_expect(r.failed && r.error.code == SG_SANDBOX_LOST);
    cr_expect(sg_agent_is_gone(b.agent));
    run_finish(&r);
    run_finish(&hostile);
    box_stop(&b);
}

/* Commands with the agent's uid can reach its helpers: then nobody knows their descendants any more. */
Test(exec, an_attacked_helper_loses_the_sandbox)
{
    attack_helper("kill -KILL $PPID; sleep 60");
    attack_helper("kill -STOP $PPID; sleep 60");
}

static void stop_each_other(struct box *b)
{
    struct run r;
    cr_assert_eq(run_start(&r, b, &(struct run_args){.shell = "echo $$ > p; kill -STOP $$; exit 5"}), 0);
    free(box_sh(b, "i=0; while [ ! -s p ] && [ $i -lt 200 ]; do sleep 0.02; i=$((i+1)); done; sleep 0.1; "
                   "kill -CONT $(cat p)"));
    run_wait(&r);
    cr_expect_eq(r.exit.returncode, 5);
    run_finish(&r);
}

Test(exec, a_stopped_command_is_only_stopped)
{
    each(stop_each_other);
}
