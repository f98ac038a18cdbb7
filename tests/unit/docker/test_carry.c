#include <archive.h>
#include <archive_entry.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backends/docker/carry.h"
#include "base/clock.h"

#define MOST ((size_t)3 << 20)

static struct sg_workq *workers;

static void setup(void)
{
    cr_assert_eq(sg_workq_new(2, 64, &workers, NULL), 0);
}

static void teardown(void)
{
    sg_workq_free(workers);
}

TestSuite(carry, .init = setup, .fini = teardown);

static int file_of(size_t bytes)
{
    int fd = memfd_create("carry", MFD_CLOEXEC);
    for (size_t i = 0; i < bytes; i += 1000) {
        char piece[1000];
        size_t n = bytes - i < sizeof piece ? bytes - i : sizeof piece;
        for (size_t k = 0; k < n; k++) {
            piece[k] = (char)((i + k) * 7 / 3);
        }
        cr_assert_eq(write(fd, piece, n), (ssize_t)n);
    }
    (void)lseek(fd, 0, SEEK_SET);
    return fd;
}

/* All that comes, in pieces of at most `step`; -EIO as it is. */
static ssize_t drain(struct sg_pipe *p, char *to, size_t max, size_t step)
{
    size_t len = 0;
    int64_t until = sg_now_ms() + 20000;
    while (sg_now_ms() < until) {
        ssize_t n = sg_pipe_read(p, to + len, max - len < step ? max - len : step);
        if (n == -EAGAIN) {
            (void)sched_yield();
        } else if (n <= 0) {
            return n < 0 ? n : (ssize_t)len;
        } else {
            len += (size_t)n;
        }
    }
    return -ETIMEDOUT;
}

/* Writes the bytes, then ends as told. */
struct writing {
    pthread_t thread;
    struct sg_pipe *to;
    const char *data;
    size_t len;
    size_t step;
};

static void *write_all(void *arg)
{
    struct writing *w = arg;
    ssize_t n = 0;
    for (size_t at = 0; at < w->len && n != -EPIPE; at += n > 0 ? (size_t)n : 0) {
        n = sg_pipe_write(w->to, w->data + at, w->len - at < w->step ? w->len - at : w->step);
        if (n == 0) {
            (void)sched_yield();
        }
    }
    sg_pipe_close(w->to);
    return NULL;
}

/* What comes out of a tar; < 0: it failed with *err. */
static ssize_t out_of(const char *tar, size_t len, size_t step, char *to, struct sg_error *err)
{
    struct writing w = {.to = sg_pipe_new(4096), .data = tar, .len = len, .step = step};
    struct sg_pipe *out = sg_carry_out(workers, w.to);
    cr_assert_eq(pthread_create(&w.thread, NULL, write_all, &w), 0);
    ssize_t n = drain(out, to, MOST, step);
    if (n < 0) {
        sg_pipe_error(out, err);
    }
    (void)pthread_join(w.thread, NULL);
    sg_pipe_unref(out);
    sg_pipe_unref(w.to);
    return n;
}

Test(carry, what_goes_in_comes_out)
{
    static const size_t sizes[] = {0, 1, 511, 512, 513, 10240, 1000003};
    static char tar[MOST], back[MOST], want[MOST];
    for (size_t i = 0; i < SG_COUNT_OF(sizes); i++) {
        int64_t size = 0;
        struct sg_error err = {0};
        int fd = file_of(sizes[i]);
        struct sg_pipe *in = sg_carry_in(workers, ".name", fd, sizes[i], &size, &err);
        cr_assert_not_null(in, "%s", err.message);
        ssize_t n = drain(in, tar, sizeof tar, 1 << 16);
        cr_assert_eq(n, size, "as long as it says: %zd of %lld", n, (long long)size);
        sg_pipe_unref(in);
        /* Others read it as what it is. */
        struct archive *a = archive_read_new();
        struct archive_entry *e = NULL;
        archive_read_support_format_tar(a);
        cr_assert_eq(archive_read_open_memory(a, tar, (size_t)n), ARCHIVE_OK);
        cr_assert_eq(archive_read_next_header(a, &e), ARCHIVE_OK);
        cr_expect_str_eq(archive_entry_pathname(e), ".name");
        cr_expect_eq(archive_entry_size(e), (la_int64_t)sizes[i]);
        cr_expect_eq(archive_entry_perm(e), 0400U);
        cr_expect_eq(archive_entry_uid(e), 0);
        cr_expect_eq(archive_read_data(a, want, sizeof want), (la_ssize_t)sizes[i]);
        cr_expect_eq(archive_read_next_header(a, &e), ARCHIVE_EOF);
        archive_read_free(a);
        cr_assert_eq(out_of(tar, (size_t)n, i % 2 == 0 ? 4096 : 37, back, &err), (ssize_t)sizes[i], "%zu: %s", sizes[i], err.message);
        cr_expect_eq(memcmp(back, want, sizes[i]), 0);
        (void)close(fd);
    }
}

static size_t tar_of(char *tar, size_t max, bool pax, bool directory)
{
    struct archive *a = archive_write_new();
    struct archive_entry *e = archive_entry_new();
    size_t len = 0;
    if (pax) {
        archive_write_set_format_pax(a);
    } else {
        archive_write_set_format_gnutar(a);
    }
    cr_assert_eq(archive_write_open_memory(a, tar, max, &len), ARCHIVE_OK);
    archive_entry_set_pathname(e, "d");
    archive_entry_set_filetype(e, AE_IFDIR);
    archive_entry_set_perm(e, 0755);
    archive_entry_set_mtime(e, 1, 500);
    cr_assert_eq(archive_write_header(a, e), ARCHIVE_OK);
    if (!directory) {
        archive_entry_set_pathname(e, "d/f");
        archive_entry_set_filetype(e, AE_IFREG);
        archive_entry_set_size(e, 5);
        cr_assert_eq(archive_write_header(a, e), ARCHIVE_OK);
        cr_assert_eq(archive_write_data(a, "12345", 5), 5);
    }
    archive_entry_free(e);
    cr_assert_eq(archive_write_close(a), ARCHIVE_OK);
    archive_write_free(a);
    return len;
}

Test(carry, other_dialects_and_what_is_no_tar)
{
    static char tar[65536], back[MOST];
    struct sg_error err = {0};
    for (int pax = 0; pax < 2; pax++) {
        size_t len = tar_of(tar, sizeof tar, pax == 1, false);
        cr_expect_eq(out_of(tar, len, 100, back, &err), 5, "%s", err.message);
        cr_expect_eq(memcmp(back, "12345", 5), 0);
        for (size_t cut = 0; cut <= 1024; cut += 512) { /* in the headers, or right before the bytes */
            cr_expect_eq(out_of(tar, cut, 100, back, &err), -EIO, "%zu", cut);
            cr_expect_eq(err.code, SG_PROVIDER_FAILED);
        }
        len = tar_of(tar, sizeof tar, pax == 1, true);
        cr_expect_eq(out_of(tar, len, 100, back, &err), -EIO);
    }
    memset(tar, 'x', sizeof tar);
    cr_expect_eq(out_of(tar, sizeof tar, 4096, back, &err), -EIO);
    memset(tar + 124, '7', 12); /* a size beyond all that is given */
    cr_expect_eq(out_of(tar, sizeof tar, 4096, back, &err), -EIO);
    sg_error_clear(&err);
}

Test(carry, a_file_that_gets_shorter_and_a_reader_that_goes)
{
    static char tar[MOST];
    struct sg_error err = {0};
    int64_t size = 0;
    int fd = file_of(1000);
    struct sg_pipe *in = sg_carry_in(workers, "f", fd, 2000, &size, &err);
    cr_assert_not_null(in);
    cr_expect_eq(drain(in, tar, sizeof tar, 4096), -EIO);
    sg_pipe_unref(in);
    cr_expect_null(sg_carry_in(workers, "f", fd, SG_CARRY_MAX, &size, &err));
    cr_expect_eq(err.code, SG_LIMIT_EXCEEDED);
    (void)close(fd);
    fd = file_of(1000003);
    in = sg_carry_in(workers, "f", fd, 1000003, &size, &err);
    cr_assert_not_null(in);
    (void)close(fd); /* it has its own */
    sg_pipe_stop(in);
    sg_pipe_unref(in);
    struct sg_pipe *from = sg_pipe_new(4096);
    struct sg_pipe *out = sg_carry_out(workers, from);
    sg_error_set(&err, SG_PROVIDER_TIMEOUT, "too late");
    sg_pipe_fail(from, &err);
    sg_error_clear(&err);
    cr_expect_eq(drain(out, tar, sizeof tar, 4096), -EIO);
    sg_pipe_error(out, &err);
    cr_expect_eq(err.code, SG_PROVIDER_TIMEOUT);
    sg_pipe_unref(out);
    sg_pipe_unref(from);
    sg_error_clear(&err);
}
