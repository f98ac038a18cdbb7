#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "base/pipe.h"

/* An object with a count of wakes and of references, as a request or a connection would be. */
struct party {
    int wakes;
    int refs;
};

static void party_wake(void *arg)
{
    ((struct party *)arg)->wakes++;
}

static void party_ref(void *arg)
{
    ((struct party *)arg)->refs++;
}

static void party_unref(void *arg)
{
    ((struct party *)arg)->refs--;
}

static struct sg_waker waker(struct party *p)
{
    return (struct sg_waker){.wake = party_wake, .ref = party_ref, .unref = party_unref, .arg = p};
}

Test(pipe, bytes_come_out_in_order_across_the_wrap)
{
    struct sg_pipe *p = sg_pipe_new(7);
    char in = 0, out = 0;
    for (int round = 0; round < 200; round++) {
        char data[7], back[7];
        size_t n = (size_t)(round % 7) + 1;
        for (size_t i = 0; i < n; i++) {
            data[i] = (char)(in + (char)i);
        }
        ssize_t w = sg_pipe_write(p, data, n);
        cr_assert_geq(w, 0);
        in = (char)(in + (char)w);
        cr_assert_leq(sg_pipe_pending(p), 7);
        ssize_t r = sg_pipe_read(p, back, (size_t)(round % 3) + 2);
        cr_assert_gt(r, 0);
        for (ssize_t i = 0; i < r; i++) {
            cr_assert_eq(back[i], out);
            out++;
        }
    }
    sg_pipe_unref(p);
}

Test(pipe, full_and_empty_wake_once)
{
    struct sg_pipe *p = sg_pipe_new(4);
    struct party r = {0}, w = {0};
    struct sg_waker rw = waker(&r), ww = waker(&w);
    char buf[8];
    sg_pipe_set_reader(p, &rw);
    sg_pipe_set_writer(p, &ww);
    cr_assert_eq(w.wakes, 1, "writable already: told at once");
    cr_assert_eq(r.wakes, 0);
    cr_assert_eq(sg_pipe_read(p, buf, 8), -EAGAIN);
    cr_assert_eq(sg_pipe_write(p, "ab", 2), 2);
    cr_assert_eq(sg_pipe_write(p, "cdef", 4), 2);
    cr_assert_eq(r.wakes, 1, "once, not per write");
    cr_assert_eq(sg_pipe_write(p, "ef", 2), 0);
    cr_assert_eq(sg_pipe_read(p, buf, 1), 1);
    cr_assert_eq(sg_pipe_read(p, buf, 1), 1);
    cr_assert_eq(w.wakes, 2);
    cr_assert_eq(sg_pipe_read(p, buf, 8), 2);
    cr_assert_eq(sg_pipe_write(p, "x", 1), 1);
    cr_assert_eq(r.wakes, 1, "was not turned away");
    sg_pipe_unref(p);
    cr_assert_eq(r.refs, 0);
    cr_assert_eq(w.refs, 0);
}

Test(pipe, replacing_a_waker_keeps_the_count_and_the_wake)
{
    struct sg_pipe *p = sg_pipe_new(4);
    struct party a = {0}, b = {0};
    struct sg_waker aw = waker(&a), bw = waker(&b);
    char buf[8];
    sg_pipe_set_reader(p, &aw);
    cr_assert_eq(a.refs, 1);
    cr_assert_eq(sg_pipe_read(p, buf, 8), -EAGAIN);
    sg_pipe_set_reader(p, NULL);
    cr_assert_eq(a.refs, 0);
    sg_pipe_write(p, "x", 1);
    cr_assert_eq(a.wakes, 0);
    sg_pipe_set_reader(p, &bw);
    cr_assert_eq(b.wakes, 1, "data is there");
    sg_pipe_read(p, buf, 8);
    cr_assert_eq(sg_pipe_read(p, buf, 8), -EAGAIN);
    sg_pipe_close(p);
    cr_assert_eq(b.wakes, 2, "the end wakes too");
    sg_pipe_unref(p);
    cr_assert_eq(b.refs, 0);
}

Test(pipe, a_waker_set_after_being_turned_away_hears_of_data)
{
    struct sg_pipe *p = sg_pipe_new(4);
    struct party r = {0};
    struct sg_waker rw = waker(&r);
    char buf[8];
    cr_assert_eq(sg_pipe_read(p, buf, 8), -EAGAIN);
    sg_pipe_set_reader(p, &rw);
    cr_assert_eq(r.wakes, 0);
    sg_pipe_write(p, "x", 1);
    cr_assert_eq(r.wakes, 1);
    sg_pipe_unref(p);
}

Test(pipe, ends)
{
    char buf[8];
    struct sg_error err = {0}, got = {0};
    struct sg_pipe *p = sg_pipe_new(4);
    sg_pipe_write(p, "ab", 2);
    sg_pipe_close(p);
    cr_assert_eq(sg_pipe_write(p, "c", 1), -EPIPE);
    cr_assert_eq(sg_pipe_read(p, buf, 8), 2);
    cr_assert_eq(sg_pipe_read(p, buf, 8), 0);
    cr_assert_eq(sg_pipe_read(p, buf, 8), 0);
    sg_pipe_unref(p);

    p = sg_pipe_new(4);
    sg_pipe_write(p, "ab", 2);
    sg_error_set(&err, SG_SANDBOX_LOST, "agent gone");
    sg_pipe_fail(p, &err);
    sg_pipe_close(p); /* the first end counts */
    cr_assert_eq(sg_pipe_read(p, buf, 8), 2);
    cr_assert_eq(sg_pipe_read(p, buf, 8), -EIO);
    sg_pipe_error(p, &got);
    cr_assert_eq(got.code, SG_SANDBOX_LOST);
    cr_assert_str_eq(got.message, "agent gone");
    sg_pipe_unref(p);
}

Test(pipe, a_stopped_reader_is_told_to_the_writer_once)
{
    struct sg_pipe *p = sg_pipe_new(4);
    struct party w = {0};
    struct sg_waker ww = waker(&w);
    sg_pipe_write(p, "abcd", 4);
    sg_pipe_set_writer(p, &ww);
    cr_assert_eq(w.wakes, 0);
    sg_pipe_stop(p);
    sg_pipe_stop(p);
    cr_assert_eq(w.wakes, 1);
    cr_assert_eq(sg_pipe_pending(p), 0);
    cr_assert_eq(sg_pipe_write(p, "x", 1), -EPIPE);
    cr_assert_eq(sg_pipe_write_from(p, 0, 1), -EPIPE);
    sg_pipe_unref(p);
}

Test(pipe, descriptors)
{
    int a[2], b[2];
    char buf[16];
    cr_assert_eq(pipe2(a, O_NONBLOCK | O_CLOEXEC), 0);
    cr_assert_eq(pipe2(b, O_NONBLOCK | O_CLOEXEC), 0);
    struct sg_pipe *p = sg_pipe_new(5);
    cr_assert_eq(sg_pipe_write_from(p, a[0], 100), -EAGAIN);
    cr_assert_eq(sg_pipe_read_to(p, b[1]), -EAGAIN);
    cr_assert_eq(write(a[1], "abcdefgh", 8), 8);
    cr_assert_eq(sg_pipe_write_from(p, a[0], 3), 3);
    cr_assert_eq(sg_pipe_read(p, buf, 2), 2);
    cr_assert_eq(sg_pipe_write_from(p, a[0], 100), 4, "around the wrap in one call");
    cr_assert_eq(sg_pipe_write_from(p, a[0], 100), -ENOBUFS);
    cr_assert_eq(sg_pipe_read_to(p, b[1]), 5);
    cr_assert_eq(read(b[0], buf, 16), 5);
    cr_assert_arr_eq(buf, "cdefg", 5);
    cr_assert_eq(sg_pipe_write_from(p, a[0], 100), 1);
    close(a[1]);
    cr_assert_eq(sg_pipe_write_from(p, a[0], 100), 0);
    cr_assert_eq(sg_pipe_pending(p), 1, "end of file does not close the pipe");

    while (write(b[1], buf, sizeof buf) > 0) {
    }
    while (write(b[1], buf, 1) > 0) {
    }
    cr_assert_eq(sg_pipe_read_to(p, b[1]), -ENOBUFS);
    close(b[0]);
    signal(SIGPIPE, SIG_IGN);
    cr_assert_eq(sg_pipe_read_to(p, b[1]), -EPIPE);
    cr_assert_eq(sg_pipe_pending(p), 1);
    cr_assert_eq(sg_pipe_write_from(p, -1, 1), -EBADF);
    sg_pipe_unref(p);
    cr_assert_null(sg_pipe_unref(NULL));
}

Test(pipe, asking_whether_it_is_over_turns_no_wake_away)
{
    struct sg_pipe *p = sg_pipe_new(4);
    struct party party = {0};
    struct sg_waker w = waker(&party);
    char data[8];
    sg_pipe_set_writer(p, &w);
    cr_assert_eq(sg_pipe_write(p, "abcdef", 6), 4);
    party.wakes = 0;
    cr_assert_not(sg_pipe_is_over(p));
    cr_assert_eq(sg_pipe_read(p, data, 8), 4);
    cr_assert_eq(party.wakes, 1);
    sg_pipe_stop(p);
    cr_assert(sg_pipe_is_over(p));
    sg_pipe_unref(p);
}

Test(pipe, flush_is_for_what_was_read)
{
    struct sg_pipe *p = sg_pipe_new(8);
    struct party party = {0};
    struct sg_waker w = waker(&party);
    char data[8];
    cr_assert_eq(sg_pipe_flush(p), 0);
    cr_assert_eq(sg_pipe_write(p, "abcd", 4), 4);
    sg_pipe_set_writer(p, &w);
    party.wakes = 0;
    cr_assert_eq(sg_pipe_flush(p), -EAGAIN);
    cr_assert_eq(sg_pipe_read(p, data, 2), 2);
    cr_assert_eq(party.wakes, 1);
    cr_assert_eq(sg_pipe_flush(p), -EAGAIN);
    cr_assert_eq(sg_pipe_read(p, data, 8), 2);
    cr_assert_eq(party.wakes, 2);
    cr_assert_eq(sg_pipe_flush(p), 0);
    cr_assert_eq(sg_pipe_write(p, "abc", 3), 3);
    cr_assert_eq(sg_pipe_flush(p), -EAGAIN);
    sg_pipe_stop(p);
    cr_assert_eq(party.wakes, 3);
    cr_assert_eq(sg_pipe_flush(p), -EPIPE);
    cr_assert_eq(sg_pipe_dropped(p), 3);
    sg_pipe_unref(p);
}

Test(pipe, flush_of_a_pipe_that_was_read_and_stopped)
{
    struct sg_pipe *p = sg_pipe_new(8);
    char data[8];
    cr_assert_eq(sg_pipe_write(p, "abcd", 4), 4);
    cr_assert_eq(sg_pipe_read(p, data, 8), 4);
    sg_pipe_stop(p);
    cr_assert_eq(sg_pipe_flush(p), 0);
    sg_pipe_unref(p);
}
