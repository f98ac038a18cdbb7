#include "box.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

static void both(void (*body)(struct box *b))
{
    static const enum sg_agent_isolation kinds[] = {SG_AGENT_UID, SG_AGENT_DUMPABLE};
    for (size_t i = 0; i < SG_COUNT_OF(kinds); i++) {
        struct box b;
        if (!box_can(kinds[i], BOX_HELPER))
            continue;
        box_start(&b, kinds[i], BOX_HELPER);
        body(&b);
        cr_assert(!b.lost, "%s", b.why.message);
        box_stop(&b);
    }
}

static void content_is(struct box *b, const char *path, const char *want)
{
    char *have = box_read(b, path, NULL);
    cr_assert(have != NULL, "%s", path);
    cr_expect_str_eq(have, want);
    free(have);
}

static void round_trip(struct box *b)
{
    struct file_result r;
    unsigned char all[512];
    for (size_t i = 0; i < sizeof all; i++)
        all[i] = (unsigned char)i;
    cr_assert_eq(box_put(b, "deep/er/file", all, sizeof all, false, &r), SG_OK);
    cr_expect(r.created);
    cr_expect(r.stat.size == sizeof all && r.stat.mode == 0644 && r.stat.uid == 1000 &&
              r.stat.type == SG_FILE_REGULAR);
    size_t n = 0;
    char *back = box_read(b, "/workspace/deep/er/file", &n);
    cr_assert(back != NULL && n == sizeof all && memcmp(back, all, n) == 0);
    free(back);
    /* Replaced: new content, the mode stays; a command sees it, and it is the command's. */
    free(box_sh(b, "chmod 0750 deep/er/file"));
    cr_assert_eq(box_put(b, "deep/er/file", "echo run", 8, false, &r), SG_OK);
    cr_expect(!r.created && r.stat.mode == 0750);
    char *out = box_sh(b, "deep/er/file; stat -c '%u %g %a' deep deep/er/file; ls -A deep/er; ls -A");
    cr_expect_str_eq(out, "run\n1000 1000 755\n1000 1000 750\nfile\ndeep\n");
    free(out);
    cr_assert_eq(box_put(b, "empty", "", 0, false, &r), SG_OK);
    cr_expect(r.created && r.stat.size == 0);
}

Test(files, put_and_get)
{
    both(round_trip);
}

static void put_is_atomic(struct box *b)
{
    struct file_result r, reader;
    struct sg_error err = {0};
    cr_assert_eq(box_put(b, "f", "old content", 11, false, &r), SG_OK);
    struct sg_file_put_args a = {.path = "f", .size_hint = -1, .mode_given = true, .mode = 0600};
    cr_assert_eq(box_put_open(b, &a, &r), SG_OK);
    cr_assert_eq(r.sink->ops->write(r.sink, "half", 4, &err), 0);
    content_is(b, "f", "old content");
    cr_assert_eq(box_get(b, "f", &reader), SG_OK);
    cr_assert_eq(box_commit(b, &r), SG_OK);
    cr_expect_eq(r.stat.mode, 0600U);
    content_is(b, "f", "half");
    char was[16] = "";
    cr_expect_eq(pread(reader.source.fd, was, sizeof was, 0), 11);
    cr_expect_str_eq(was, "old content");
    close(reader.source.fd);
    sg_hold_unref(reader.source.hold);
    /* Given up: nothing of it, not even its directory. */
    a.path = "no/such/dir/f";
    cr_assert_eq(box_put_open(b, &a, &r), SG_OK);
    cr_assert_eq(r.sink->ops->write(r.sink, "gone", 4, &err), 0);
    r.sink->ops->abort(r.sink);
    char *left = box_sh(b, "find . | sort");
    cr_expect_str_eq(left, ".\n./f\n");
    free(left);
}

Test(files, put_is_all_or_nothing)
{
    both(put_is_atomic);
}

static void executable_at_once(struct box *b)
{
    struct sg_file_put_args a = {.path = "prog", .size_hint = -1, .mode_given = true, .mode = 0755};
    for (int i = 0; i < 30; i++) {
        struct file_result r;
        struct sg_error err = {0};
        cr_assert_eq(box_put_open(b, &a, &r), SG_OK);
        cr_assert_eq(r.sink->ops->write(r.sink, "#!/bin/sh\necho ok\n", 18, &err), 0);
        cr_assert_eq(box_commit(b, &r), SG_OK);
        char *out = box_sh(b, "./prog");
        cr_expect_str_eq(out, "ok\n");
        free(out);
    }
}

Test(files, a_program_can_run_as_soon_as_it_is_there)
{
    both(executable_at_once);
}

static void kinds(struct box *b)
{
    struct file_result r;
    free(box_sh(b, "mkfifo fifo; ln -s fifo to-fifo; ln -s /etc/passwd pw; ln -s nowhere dangling; ln -s "
                   "loop loop; mkdir d; "
                   "echo x > closed; chmod 0 closed; echo r > ro; chmod 0444 ro; ln -s "
                   "/proc/self/root/etc/passwd magic; "
                   "ln -s target link; printf t > target"));
    static const struct {
        const char *path;
        enum sg_code get, put;
    } cases[] = {
        {"fifo", SG_NOT_A_REGULAR_FILE, SG_NOT_A_REGULAR_FILE},
        {"to-fifo", SG_NOT_A_REGULAR_FILE, SG_NOT_A_REGULAR_FILE},
        {"/dev/null", SG_NOT_A_REGULAR_FILE, SG_NOT_A_REGULAR_FILE},
        {"/dev/full", SG_NOT_A_REGULAR_FILE, SG_NOT_A_REGULAR_FILE},
        {"d", SG_IS_A_DIRECTORY, SG_IS_A_DIRECTORY},
        {"d/", SG_IS_A_DIRECTORY, SG_IS_A_DIRECTORY},
        {".", SG_IS_A_DIRECTORY, SG_IS_A_DIRECTORY},
        {"/", SG_IS_A_DIRECTORY, SG_IS_A_DIRECTORY},
        {"missing", SG_NOT_FOUND, SG_OK},
        {"", SG_PATH_REFUSED, SG_PATH_REFUSED},
        {"target/below", SG_NOT_A_DIRECTORY, SG_NOT_A_DIRECTORY},
        {"loop", SG_PATH_REFUSED, SG_PATH_REFUSED},
        {"closed", SG_FORBIDDEN, SG_FORBIDDEN},
        {"ro", SG_OK, SG_FORBIDDEN},
        {"/usr/new", SG_NOT_FOUND, SG_FORBIDDEN},
        {"/proc/self/status", SG_NOT_A_REGULAR_FILE, SG_FORBIDDEN},
        {"/proc/1/environ", SG_NOT_A_REGULAR_FILE, SG_FORBIDDEN},
        {"/proc/self/root/workspace/target", SG_PATH_REFUSED, SG_PATH_REFUSED},
        {"magic", SG_PATH_REFUSED, SG_PATH_REFUSED},
        {"../../../../workspace/target", SG_OK, SG_OK},
        {"../etc/shadow", SG_NOT_FOUND,
         SG_OK}, /* the sandbox's own /etc, writable where bwrap gives it to the user */
    };
    for (size_t i = 0; i < SG_COUNT_OF(cases); i++) {
        enum sg_code get = box_get(b, cases[i].path, &r);
        if (get == SG_OK) {
            close(r.source.fd);
            sg_hold_unref(r.source.hold);
        }
        cr_expect_eq(get, cases[i].get, "get %s: %s", cases[i].path, sg_code_name(get));
        enum sg_code put = box_put(b, cases[i].path, "new", 3, false, NULL);
        if ((strncmp(cases[i].path, "/proc/", 6) == 0 && put != SG_OK) ||
            strstr(cases[i].path, "etc/shadow") != NULL)
            continue; /* which refusal it is depends on the kind of sandbox */
        cr_expect_eq(put, cases[i].put, "put %s: %s", cases[i].path, sg_code_name(put));
    }
    /* Links lead where a command's would: the sandbox's own files. */
    char *pw = box_read(b, "pw", NULL);
    cr_assert(pw != NULL && strstr(pw, "sandbox:x:1000") != NULL);
    free(pw);
    cr_assert_eq(box_put(b, "link", "through", 7, false, &r), SG_OK);
    content_is(b, "target", "through");
    cr_assert_eq(box_put(b, "dangling", "made", 4, false, &r), SG_OK);
    content_is(b, "nowhere", "made");
    cr_expect_eq(box_put(b, "pw", "x", 1, false, &r), SG_FORBIDDEN);
    char *links = box_sh(b, "readlink link dangling");
    cr_expect_str_eq(links, "target\nnowhere\n");
    free(links);
}

Test(files, every_kind_of_name)
{
    both(kinds);
}

static void fifo_untouched(struct box *b)
{
    struct run r;
    struct file_result f;
    cr_assert_eq(
        run_start(&r, b, &(struct run_args){.shell = "mkfifo p; touch up; echo hello > p; echo wrote"}), 0);
    free(box_sh(b, "i=0; while [ ! -e up ] && [ $i -lt 200 ]; do sleep 0.02; i=$((i+1)); done; sleep 0.1"));
    cr_expect_eq(box_get(b, "p", &f), SG_NOT_A_REGULAR_FILE);
    char *out = box_sh(b, "cat p"); /* the writer still waits for its first reader */
    cr_expect_str_eq(out, "hello\n");
    free(out);
    run_wait(&r);
    cr_expect_str_eq(r.out, "wrote\n");
    run_finish(&r);
}

Test(files, looking_at_a_fifo_does_not_open_it)
{
    both(fifo_untouched);
}

static void stats(struct box *b)
{
    struct file_result r;
    free(box_sh(
        b, "printf 12345 > f; chmod 0640 f; touch -d @1000000000.5 f; ln -s f l; mkfifo p; mkdir -m 0711 d"));
    cr_assert_eq(box_stat(b, "f", &r), SG_OK);
    cr_expect(r.stat.type == SG_FILE_REGULAR && r.stat.size == 5 && r.stat.mode == 0640 &&
              r.stat.uid == 1000);
    cr_expect_eq(r.stat.mtime_ns, 1000000000500000000);
    cr_assert_eq(box_stat(b, "l", &r), SG_OK);
    cr_expect(r.stat.type == SG_FILE_SYMLINK);
    cr_expect_str_eq(r.stat.target, "f");
    cr_assert_eq(box_stat(b, "p", &r), SG_OK);
    cr_expect_eq(r.stat.type, SG_FILE_FIFO);
    cr_assert_eq(box_stat(b, "d/", &r), SG_OK);
    cr_expect(r.stat.type == SG_FILE_DIRECTORY && r.stat.mode == 0711);
    cr_assert_eq(box_stat(b, "/dev/null", &r), SG_OK);
    cr_expect_eq(r.stat.type, SG_FILE_DEVICE);
    cr_expect_eq(box_stat(b, "none", &r), SG_NOT_FOUND);
    cr_expect_eq(box_stat(b, "f/none", &r), SG_NOT_A_DIRECTORY);
}

Test(files, stat)
{
    both(stats);
}

static void directories(struct box *b)
{
    cr_expect_eq(box_mkdir(b, "a/b/c", 0700), SG_OK);
    cr_expect_eq(box_mkdir(b, "a/b/c", 0755), SG_OK);
    char *modes = box_sh(b, "stat -c %a a a/b a/b/c");
    cr_expect_str_eq(modes, "755\n755\n700\n");
    free(modes);
    free(box_sh(b, "touch a/f"));
    cr_expect_eq(box_mkdir(b, "a/f", 0755), SG_NOT_A_DIRECTORY);
    cr_expect_eq(box_mkdir(b, "a/f/g", 0755), SG_NOT_A_DIRECTORY);
    cr_expect_eq(box_mkdir(b, "/usr/x", 0755), SG_FORBIDDEN);
    cr_expect_eq(box_move(b, "a/f", "a/b/g"), SG_OK);
    cr_expect_eq(box_move(b, "a/f", "a/b/h"), SG_NOT_FOUND);
    cr_expect_eq(box_move(b, "a", "a/b/in-itself"), SG_PATH_REFUSED);
    cr_expect_eq(box_move(b, "a/b/g", "a/b/c"), SG_IS_A_DIRECTORY);
    cr_expect_eq(box_remove(b, "a/b", false), SG_DIRECTORY_NOT_EMPTY);
    cr_expect_eq(box_remove(b, "a/b/g", false), SG_OK);
    cr_expect_eq(box_remove(b, "a/b/g", true), SG_NOT_FOUND);
    cr_expect_eq(box_remove(b, "a/b/c", false), SG_OK);
    enum sg_code root = box_remove(b, "/workspace", true);
    cr_expect(root == SG_CONFLICT || root == SG_FORBIDDEN);
    cr_expect_eq(box_remove(b, "/", true), SG_CONFLICT);
}

Test(files, directories_and_moves)
{
    both(directories);
}

static void moves_across(struct box *b)
{
    free(box_sh(b, "mkdir -p /tmp/t/d; echo x > /tmp/t/d/f; ln -s d/f /tmp/t/l; chmod 0640 /tmp/t/d/f; echo "
                   "one > /tmp/one"));
    cr_expect_eq(box_move(b, "/tmp/one", "one"), SG_OK);
    content_is(b, "one", "one\n");
    cr_expect_eq(box_move(b, "/tmp/t", "t"), SG_OK);
    char *out = box_sh(b, "ls -A /tmp; stat -c %a t/d/f; readlink t/l; cat t/l; find . | sort");
    cr_expect_str_eq(out, "640\nd/f\nx\n.\n./one\n./t\n./t/d\n./t/d/f\n./t/l\n");
    free(out);
    free(box_sh(b, "head -c 10000000 /dev/zero > t/big; head -c 10000000 /dev/zero > /tmp/more"));
    cr_expect_eq(box_move(b, "/tmp/more", "more"), SG_SANDBOX_DISK_FULL);
    cr_expect_eq(box_move(b, "t", "/tmp/t"), SG_OK);
    cr_expect_eq(box_move(b, "/usr/bin/env", "env"), SG_FORBIDDEN);
    out = box_sh(b, "ls -A . /tmp /tmp/t");
    cr_expect_str_eq(out, ".:\none\n\n/tmp:\nmore\nt\n\n/tmp/t:\nbig\nd\nl\n");
    free(out);
}

Test(files, moves_between_file_systems)
{
    both(moves_across);
}

static void trees(struct box *b)
{
    free(box_sh(b, "mkdir t; cd t; for i in 1 2 3 4 5 6 7 8; do mkdir $i; for j in $(seq 200); do echo > "
                   "$i/$j; done; done; "
                   "ln -s /workspace/keep l; mkdir /workspace/keep; echo k > /workspace/keep/k"));
    cr_expect_eq(box_remove(b, "t", true), SG_OK);
    content_is(b, "keep/k", "k\n");
    /* Deeper than descriptors may be held. */
    free(box_sh(b, "p=deep; mkdir deep; cd deep; for i in $(seq 450); do mkdir d; echo > f; cd d; done"));
    cr_expect_eq(box_remove(b, "deep", true), SG_OK);
    char *left = box_sh(b, "ls -A");
    cr_expect_str_eq(left, "keep\n");
    free(left);
    /* What only its own user's mode forbids. */
    free(box_sh(b, "mkdir -p p/q/r; echo > p/q/f; chmod 0 p/q"));
    cr_expect_eq(box_remove(b, "p", true), SG_OK);
    cr_expect_eq(box_remove(b, "/usr/bin", true), SG_FORBIDDEN);
}

Test(files, whole_trees_go)
{
    both(trees);
}

static void lists(struct box *b)
{
    struct file_result r;
    free(box_sh(b, "mkdir -p l/b/x l/empty; echo 1 > l/a; echo 22 > l/b/y; ln -s a l/z; echo > l/.hidden; "
                   "echo > \"l/$(printf 'n\\377n')\""));
    cr_assert_eq(box_list(b, "l", false, 100, &r), SG_OK);
    const char *flat[] = {".hidden", "a", "b", "empty", "n\xffn", "z"};
    cr_assert_eq(r.list.n, SG_COUNT_OF(flat));
    for (size_t i = 0; i < SG_COUNT_OF(flat); i++)
        cr_expect_str_eq(r.list.entries[i].name, flat[i]);
    cr_expect(!r.list.truncated);
    cr_expect(r.list.entries[5].stat.type == SG_FILE_SYMLINK);
    cr_expect_str_eq(r.list.entries[5].stat.target, "a");
    cr_expect(r.list.entries[1].stat.size == 2);
    sg_file_list_finish(&r.list);
    cr_assert_eq(box_list(b, "l", true, 100, &r), SG_OK);
    cr_assert_eq(r.list.n, 8U);
    cr_expect_str_eq(r.list.entries[3].name, "b/x");
    cr_expect_str_eq(r.list.entries[4].name, "b/y");
    sg_file_list_finish(&r.list);
    cr_assert_eq(box_list(b, "l", false, 6, &r), SG_OK);
    cr_expect(r.list.n == 6 && !r.list.more && !r.list.truncated);
    sg_file_list_finish(&r.list);
    cr_assert_eq(box_list(b, "l", false, 5, &r), SG_OK);
    cr_expect(r.list.n == 5 && r.list.more && !r.list.truncated);
    sg_file_list_finish(&r.list);
    cr_assert_eq(box_list(b, "l/empty", true, 5, &r), SG_OK);
    cr_expect(r.list.n == 0 && !r.list.more && !r.list.truncated);
    sg_file_list_finish(&r.list);
    cr_expect_eq(box_list(b, "l/a", false, 5, &r), SG_NOT_A_DIRECTORY);
    cr_expect_eq(box_list(b, "l/none", false, 5, &r), SG_NOT_FOUND);
    cr_expect_eq(box_list(b, "/proc/self/fd", false, 50, &r), SG_FORBIDDEN);
}

Test(files, lists_are_sorted_and_bounded)
{
    both(lists);
}

static void long_list(struct box *b)
{
    struct file_result r;
    free(box_sh(b, "mkdir big; cd big; seq -f %06.0f 6000 | xargs touch"));
    cr_assert_eq(box_list(b, ".", true, 100000, &r), SG_OK);
    cr_assert_eq(r.list.n, 6001U);
    cr_expect_str_eq(r.list.entries[0].name, "big");
    cr_expect_str_eq(r.list.entries[1].name, "big/000001");
    cr_expect_str_eq(r.list.entries[6000].name, "big/006000");
    sg_file_list_finish(&r.list);
    char *left = box_sh(b, "sleep 0.05; ls /proc | grep -c '^[0-9]'"); /* the worker has gone */
    cr_expect(atoi(left) < 8);
    free(left);
}

Test(files, a_long_list_is_a_workers)
{
    both(long_list);
}

static void full(struct box *b)
{
    struct file_result r;
    struct sg_error err = {0};
    size_t len = 9 << 20;
    char *big = malloc(len);
    memset(big, 'x', len);
    cr_assert_eq(box_put(b, "first", big, len, false, &r), SG_OK);
    cr_expect_eq(box_put(b, "new/second", big, len, false, &r), SG_SANDBOX_DISK_FULL);
    cr_expect_eq(box_put(b, "first", big, len, false, &r), SG_SANDBOX_DISK_FULL);
    cr_expect_eq(box_put(b, "first", big, 5 << 20, true, &r), SG_SANDBOX_DISK_FULL);
    char *left = box_sh(b, "stat -c '%n %s' *; find . | wc -l");
    cr_expect_str_eq(left, "first 9437184\n2\n");
    free(left);
    /* All that was tried has been given back. */
    cr_expect_eq(box_put(b, "third", big, 6 << 20, false, &r), SG_OK);
    sg_error_clear(&err);
    free(big);
}

Test(files, a_full_disk_leaves_nothing_behind)
{
    both(full);
}

static void appends(struct box *b)
{
    struct file_result r;
    cr_assert_eq(box_put(b, "log", "", 0, true, &r), SG_OK);
    cr_expect(r.created && r.stat.size == 0);
    cr_assert_eq(box_put(b, "log", "one\n", 4, true, &r), SG_OK);
    cr_expect(!r.created && r.stat.size == 4 && r.stat.uid == 1000);
    cr_assert_eq(box_put(b, "log", "", 0, true, &r), SG_OK);
    cr_expect(!r.created && r.stat.size == 4);
    free(box_sh(b, "ln -s log l; chmod 0600 log; echo two >> log; mkfifo p"));
    cr_assert_eq(box_put(b, "l", "three\n", 6, true, &r), SG_OK);
    content_is(b, "log", "one\ntwo\nthree\n");
    cr_assert_eq(box_put(b, "made/here", "x", 1, true, &r), SG_OK);
    cr_expect(r.created);
    cr_expect_eq(box_put(b, "p", "x", 1, true, &r), SG_NOT_A_REGULAR_FILE);
    cr_expect_eq(box_put(b, "/etc/passwd", "x", 1, true, &r), SG_FORBIDDEN);
}

Test(files, append)
{
    both(appends);
}

static void many_appends(struct box *b)
{
    enum { N = 50, LEN = 5000 };
    static struct file_result r[N];
    char chunk[LEN];
    struct sg_error err = {0};
    for (int i = 0; i < N; i++) {
        struct sg_file_put_args a = {.path = "shared", .append = true, .size_hint = -1};
        cr_assert_eq(box_put_open(b, &a, &r[i]), SG_OK);
        memset(chunk, 'A' + i, LEN);
        cr_assert_eq(r[i].sink->ops->write(r[i].sink, chunk, LEN, &err), 0);
    }
    for (int i = 0; i < N; i++)
        box_commit_start(&r[i]);
    unsigned made = 0;
    for (int i = 0; i < N; i++) {
        box_wait(b, &r[i].done);
        cr_assert_eq(r[i].error.code, SG_OK);
        made += r[i].created;
    }
    cr_expect_eq(made, 1U);
    size_t len = 0;
    char *all = box_read(b, "shared", &len);
    cr_assert_eq(len, (size_t)N * LEN);
    bool seen[N] = {false};
    for (size_t at = 0; at < len; at += LEN) {
        memset(chunk, all[at], LEN);
        cr_assert_eq(memcmp(all + at, chunk, LEN), 0, "mixed at %zu", at);
        cr_assert(!seen[all[at] - 'A']);
        seen[all[at] - 'A'] = true;
    }
    free(all);
}

Test(files, concurrent_appends_do_not_mix)
{
    both(many_appends);
}

static void long_paths(struct box *b)
{
    char path[5000], name[300];
    struct file_result r;
    memset(name, 'n', sizeof name);
    name[255] = '\0';
    cr_expect_eq(box_put(b, name, "x", 1, false, &r), SG_OK);
    name[255] = 'n';
    name[256] = '\0';
    cr_expect_eq(box_put(b, name, "x", 1, false, &r), SG_PATH_REFUSED);
    memset(path, 'a', sizeof path);
    path[4999] = '\0';
    cr_expect_eq(box_get(b, path, &r), SG_PATH_REFUSED);
    for (size_t i = 1; i < sizeof path - 1; i += 2)
        path[i] = '/';
    path[4001] = '\0';
    cr_expect_eq(box_mkdir(b, path, 0755), SG_OK);
    cr_expect_eq(box_remove(b, "a", true), SG_OK);
}

Test(files, long_paths)
{
    both(long_paths);
}

static void no_leak(struct box *b)
{
    struct file_result r;
    char *data = box_read(b, "/etc/passwd", NULL);
    free(data);
    unsigned before = open_fds();
    for (int i = 0; i < 300; i++) {
        cr_assert_eq(box_put(b, "f", "x", 1, false, &r), SG_OK);
        cr_assert_eq(box_put(b, "f", "y", 1, true, &r), SG_OK);
        content_is(b, "f", "xy");
        cr_assert_eq(box_get(b, "none", &r), SG_NOT_FOUND);
        cr_assert_eq(box_list(b, ".", true, 10, &r), SG_OK);
        sg_file_list_finish(&r.list);
        cr_assert_eq(box_dial(b, 1, 1000, &r), SG_ENDPOINT_NOT_LISTENING);
    }
    cr_expect_eq(open_fds(), before);
}

Test(files, nothing_stays_open)
{
    both(no_leak);
}

/* ---- sockets ---- */

static void start_server(struct box *b, struct run *r, const char *listen)
{
    char text[512];
    snprintf(text, sizeof text,
             "exec python3 -c 'import socket\n%s\nopen(\"up\",\"w\").close()\n"
             "while True:\n c,_=s.accept()\n c.sendall(b\"hello\")\n c.close()\n'",
             listen);
    cr_assert_eq(run_start(r, b, &(struct run_args){.shell = text}), 0);
    free(box_sh(
        b, "i=0; while [ ! -e up ] && [ $i -lt 400 ]; do sleep 0.02; i=$((i+1)); done; test -e up; rm up"));
}

static void greet(struct box *b, uint16_t port)
{
    struct file_result r;
    char buf[16] = "";
    enum sg_code code = box_dial(b, port, 3000, &r);
    cr_assert_eq(code, SG_OK, "%s", sg_code_name(code));
    int flags = fcntl(r.fd, F_GETFL);
    cr_expect((flags & O_NONBLOCK) && (fcntl(r.fd, F_GETFD) & FD_CLOEXEC));
    fcntl(r.fd, F_SETFL, flags & ~O_NONBLOCK);
    cr_expect_eq(recv(r.fd, buf, sizeof buf, MSG_WAITALL), 5);
    cr_expect_str_eq(buf, "hello");
    close(r.fd);
}

static void dials(struct box *b)
{
    struct run v4, v6, full;
    struct file_result r;
    cr_expect_eq(box_dial(b, 8000, 3000, &r), SG_ENDPOINT_NOT_LISTENING);
    start_server(b, &v4, "s=socket.create_server((\"127.0.0.1\",8000))");
    start_server(b, &v6, "s=socket.create_server((\"::1\",8001),family=socket.AF_INET6)");
    greet(b, 8000);
    greet(b, 8001);
    cr_expect_eq(box_dial(b, 8002, 3000, &r), SG_ENDPOINT_NOT_LISTENING);
    /* A service that accepts nobody: the deadline ends it. */
    cr_assert_eq(run_start(&full, b,
                           &(struct run_args){
                               .shell = "exec python3 -c 'import socket,time\n"
                                        "s=socket.create_server((\"127.0.0.1\",8003),backlog=0)\n"
                                        "c=[socket.socket() for i in range(4)]\n"
                                        "[(x.setblocking(0),x.connect_ex((\"127.0.0.1\",8003))) for x in c]\n"
                                        "open(\"up\",\"w\").close()\ntime.sleep(60)\n'"}),
                 0);
    free(box_sh(b, "i=0; while [ ! -e up ] && [ $i -lt 400 ]; do sleep 0.02; i=$((i+1)); done; sleep 0.1"));
    int64_t start = sg_now_ms();
    cr_expect_eq(box_dial(b, 8003, 300, &r), SG_ENDPOINT_TIMEOUT);
    cr_expect(sg_now_ms() - start >= 290 && sg_now_ms() - start < 3000);
    cr_expect_eq(box_dial(b, 0, 300, &r), SG_INVALID_REQUEST);
    struct run *all[] = {&v4, &v6, &full};
    for (size_t i = 0; i < SG_COUNT_OF(all); i++) {
        all[i]->x->ops->kill(all[i]->x, SG_KILLED_CALLER);
        run_wait(all[i]);
        run_finish(all[i]);
    }
}

Test(dial, services_on_the_sandboxs_own_loopback)
{
    both(dials);
}

static void conditions(struct box *b)
{
    struct file_result r;
    struct sg_condition c = {.kind = SG_IF_ABSENT};
    struct sg_file_put_args put = {.path = "c/f", .size_hint = -1, .only_if = &c};
    /* Decided at the commit: it was absent when the upload began. */
    cr_assert_eq(box_put_open(b, &put, &r), SG_OK);
    free(box_sh(b, "mkdir c; echo other > c/f"));
    cr_expect_eq(box_commit(b, &r), SG_PRECONDITION_FAILED);
    cr_expect_eq(box_put_open(b, &put, &r), SG_PRECONDITION_FAILED);
    cr_assert_eq(box_stat(b, "c/f", &r), SG_OK);
    c = (struct sg_condition){.kind = SG_IF_MATCHES, .n = 1};
    c.tags[0] = (struct sg_file_tag){r.stat.dev, r.stat.ino, r.stat.mtime_ns, r.stat.ctime_ns, r.stat.size};
    cr_assert_eq(box_put_open(b, &put, &r), SG_OK);
    free(box_sh(b, "echo more >> c/f"));
    cr_expect_eq(box_commit(b, &r), SG_PRECONDITION_FAILED);
    char *text = box_read(b, "c/f", NULL);
    cr_expect_str_eq(text, "other\nmore\n");
    free(text);
    c.kind = SG_IF_DIFFERS;
    cr_assert_eq(box_put_open(b, &put, &r), SG_OK);
    cr_expect_eq(box_commit(b, &r), SG_OK);
    free(box_sh(b, "test \"$(find . -name '.sandgate*' | wc -l)\" = 0 && rm -r c"));
}

Test(files, conditions_are_decided_at_the_commit)
{
    both(conditions);
}
