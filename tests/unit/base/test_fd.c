#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"

static char dir[64];

static void setup(void)
{
    (void)snprintf(dir, sizeof dir, "/tmp/sg-test-fd-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    cr_assert_eq(chdir(dir), 0);
}

static void teardown(void)
{
    struct sg_error err = {0};
    cr_assert_eq(chdir("/"), 0);
    cr_assert_eq(sg_remove_tree(AT_FDCWD, dir, &err), 0, "%s", err.message);
}

TestSuite(fd, .init = setup, .fini = teardown);

static bool exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

static void make(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    cr_assert_geq(fd, 0);
    close(fd);
}

Test(fd, write_and_read_files)
{
    struct sg_error err = {0};
    char *text = NULL;
    size_t len = 0;
    cr_assert_eq(sg_write_file("key", "a\0b", 3, 0600, &err), 0, "%s", err.message);
    struct stat st;
    cr_assert_eq(stat("key", &st), 0);
    cr_assert_eq(st.st_mode & 07777, 0600);
    cr_assert_eq(sg_read_file("key", 3, &text, &len, &err), 0);
    cr_assert(len == 3 && memcmp(text, "a\0b", 4) == 0);
    free(text);
    cr_assert_eq(sg_read_file("key", 2, &text, &len, &err), -1);
    cr_assert_eq(err.code, SG_PAYLOAD_TOO_LARGE);
    cr_assert_eq(sg_read_file("none", 2, &text, &len, &err), -1);
    cr_assert_eq(err.code, SG_NOT_FOUND);
    cr_assert_eq(sg_read_file(".", 2, &text, &len, &err), -1);
    cr_assert_eq(sg_write_file("no/such/dir", "x", 1, 0600, &err), -1);
    cr_assert_eq(sg_write_all(-1, "x", 1), -EBADF);
}

Test(fd, a_failed_write_leaves_no_temporary_file)
{
    cr_assert_eq(mkdir("target", 0700), 0);
    make("target/x");
    struct sg_error err = {0};
    cr_assert_eq(sg_write_file("target", "x", 1, 0600, &err), -1, "a directory cannot be replaced");
    cr_assert_eq(unlink("target/x"), 0);
    cr_assert_eq(rmdir("target"), 0);
    cr_assert_eq(chdir("/"), 0);
    cr_assert_eq(rmdir(dir), 0, "something is left: %d", errno);
    cr_assert_eq(mkdir(dir, 0700), 0);
}

Test(fd, mkdirs)
{
    struct sg_error err = {0};
    cr_assert_eq(sg_mkdirs("a/b//c/", 0700, &err), 0, "%s", err.message);
    cr_assert_eq(sg_mkdirs("a/b/c", 0700, &err), 0);
    cr_assert(exists("a/b/c"));
    make("a/file");
    cr_assert_eq(sg_mkdirs("a/file", 0700, &err), -1);
    cr_assert_eq(sg_mkdirs("a/file/x", 0700, &err), -1);
    cr_assert_eq(sg_mkdirs("", 0700, &err), -1);
    cr_assert_eq(sg_mkdirs("/tmp", 0700, &err), 0);
}

Test(fd, remove_does_not_follow_links)
{
    cr_assert_eq(sg_mkdirs("outside", 0700, NULL), 0);
    make("outside/keep");
    cr_assert_eq(sg_mkdirs("tree/sub", 0700, NULL), 0);
    cr_assert_eq(symlink("../outside", "tree/link"), 0);
    cr_assert_eq(symlink("../../outside", "tree/sub/link"), 0);
    cr_assert_eq(symlink("outside", "top"), 0);
    cr_assert_eq(mkfifo("tree/fifo", 0600), 0);
    cr_assert_eq(sg_remove_tree(AT_FDCWD, "tree", NULL), 0);
    cr_assert_eq(sg_remove_tree(AT_FDCWD, "top", NULL), 0);
    cr_assert_not(exists("tree"));
    cr_assert_not(exists("top"));
    cr_assert(exists("outside/keep"));
    cr_assert_eq(sg_remove_tree(AT_FDCWD, "tree", NULL), 0, "missing is fine");
}

Test(fd, remove_any_depth_and_any_mode)
{
    cr_assert_eq(mkdir("tree", 0700), 0);
    int at = open("tree", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; i < 2000; i++) { /* far more levels than descriptors may be open */
        cr_assert_eq(mkdirat(at, "d", 0700), 0);
        int next = openat(at, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        cr_assert_geq(next, 0);
        close(at);
        at = next;
        if (i % 100 == 0) {
            cr_assert_eq(mkdirat(at, ".sg-remove-0", 0700), 0);
            cr_assert_eq(mkdirat(at, "shut", 0), 0);
        }
    }
    close(at);
    cr_assert_eq(mkdir("tree/.sg-remove-1", 0700), 0); /* a name the removal would like to use */
    make("tree/.sg-remove-1/f");
    cr_assert_eq(sg_mkdirs("tree/locked/in", 0700, NULL), 0);
    make("tree/locked/in/f");
    cr_assert_eq(chmod("tree/locked/in", 0), 0);
    cr_assert_eq(chmod("tree/locked", 0500), 0);
    struct sg_error err = {0};
    cr_assert_eq(sg_remove_tree(AT_FDCWD, "tree", &err), 0, "%s", err.message);
    cr_assert_not(exists("tree"));
}
