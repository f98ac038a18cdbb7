#include <criterion/criterion.h>
#include <errno.h>

#include "service/exec_log.h"

struct rig {
    struct sg_exec_log *log;
    struct sg_run_memory memory;
    int woken, space;
};

static void woken(void *arg)
{
    ((struct rig *)arg)->woken++;
}

static void has_space(void *arg)
{
    ((struct rig *)arg)->space++;
}

static struct rig *rig_new(size_t history, size_t window)
{
    struct rig *g = sg_xcalloc(1, sizeof *g);
    g->memory.max = 1 << 24;
    g->log = sg_exec_log_new(history, window, &g->memory);
    sg_exec_log_set_space(g->log, &(struct sg_waker){.wake = has_space, .arg = g});
    return g;
}

static void rig_free(struct rig *g)
{
    sg_exec_log_unref(g->log);
    cr_assert_eq(g->memory.used, 0);
    free(g);
}

static struct sg_exec_reader *reader(struct rig *g, uint64_t after, bool attached)
{
    struct sg_exec_reader *r = NULL;
    struct sg_error err = {0};
    cr_assert_eq(sg_exec_reader_new(g->log, after, attached, &r, &err), 0, "%s", err.message);
    return r;
}

static void out(struct rig *g, const char *text)
{
    sg_exec_log_output(g->log, SG_EVENT_STDOUT, text, strlen(text));
    sg_exec_log_wake(g->log);
}

static void expect(struct sg_exec_reader *r, uint64_t seq, enum sg_event_type type, const char *data, size_t len, bool binary)
{
    struct sg_exec_event e;
    cr_assert_eq(sg_exec_reader_next(r, &e), 1);
    cr_assert_eq(e.seq, seq, "%llu", (unsigned long long)e.seq);
    cr_assert_eq(e.type, type);
    cr_assert_eq(e.len, len, "event %llu: %zu bytes", (unsigned long long)seq, e.len);
    cr_assert_eq(e.binary, binary);
    cr_assert(len == 0 || memcmp(e.data, data, len) == 0);
}

static void expect_text(struct sg_exec_reader *r, uint64_t seq, enum sg_event_type type, const char *text)
{
    expect(r, seq, type, text, strlen(text), false);
}

static int next(struct sg_exec_reader *r)
{
    struct sg_exec_event e;
    return sg_exec_reader_next(r, &e);
}

Test(exec_log, events_in_order_and_the_end)
{
    struct rig *g = rig_new(1 << 20, 1 << 20);
    struct sg_exec_reader *r = reader(g, 0, false);
    cr_assert_eq(next(r), -EAGAIN);
    sg_exec_log_start(g->log, "{}");
    out(g, "one\n");
    sg_exec_log_output(g->log, SG_EVENT_STDERR, "two\n", 4);
    out(g, "three\n");
    sg_exec_log_end(g->log, SG_EVENT_EXIT, "{\"a\":1}");
    sg_exec_log_end(g->log, SG_EVENT_ERROR, "{}"); /* there is one end */
    out(g, "late\n");
    expect_text(r, 1, SG_EVENT_START, "{}");
    expect_text(r, 2, SG_EVENT_STDOUT, "one\n");
    expect_text(r, 3, SG_EVENT_STDERR, "two\n");
    expect_text(r, 4, SG_EVENT_STDOUT, "three\n");
    expect_text(r, 5, SG_EVENT_EXIT, "{\"a\":1}");
    cr_assert_eq(next(r), 0);
    cr_assert_eq(next(r), 0);
    sg_exec_reader_free(r);
    r = reader(g, 3, false);
    expect_text(r, 4, SG_EVENT_STDOUT, "three\n");
    sg_exec_reader_free(r);
    r = reader(g, 5, false);
    cr_assert_eq(next(r), 0);
    sg_exec_reader_free(r);
    rig_free(g);
}

Test(exec_log, events_that_are_numbered_elsewhere)
{
    struct rig *g = rig_new(1 << 20, 0);
    struct sg_exec_reader *r = reader(g, 0, false);
    struct sg_exec_event e;
    sg_exec_reader_set_waker(r, &(struct sg_waker){.wake = woken, .arg = g});
    sg_exec_log_event(g->log, 7, SG_EVENT_READY, "{\"a\":1}");
    sg_exec_log_event(g->log, 30, SG_EVENT_LOST, NULL);
    sg_exec_log_event(g->log, 0, SG_EVENT_ERROR, "{}");
    expect_text(r, 7, SG_EVENT_READY, "{\"a\":1}");
    expect_text(r, 30, SG_EVENT_LOST, "");
    cr_assert_eq(sg_exec_reader_next(r, &e), 1);
    cr_assert_eq(e.seq, 0);
    cr_assert_eq(next(r), -EAGAIN);
    /* The end alone wakes, too, and nothing follows it. */
    g->woken = 0;
    sg_exec_log_close(g->log);
    sg_exec_log_event(g->log, 31, SG_EVENT_LOST, NULL);
    sg_exec_log_wake(g->log);
    cr_assert_eq(g->woken, 1);
    cr_assert_eq(next(r), 0);
    sg_exec_reader_free(r);
    rig_free(g);
}

Test(exec_log, after_must_exist)
{
    struct rig *g = rig_new(1 << 20, 1 << 20);
    struct sg_exec_reader *r = NULL;
    struct sg_error err = {0};
    cr_assert_eq(sg_exec_reader_new(g->log, 1, false, &r, &err), -1);
    cr_assert_eq(err.code, SG_INVALID_REQUEST);
    cr_assert_str_eq(err.field, "after");
    sg_exec_log_start(g->log, NULL);
    r = reader(g, 1, false);
    cr_assert_eq(next(r), -EAGAIN);
    sg_exec_reader_free(r);
    rig_free(g);
}

Test(exec_log, characters_are_never_split)
{
    static const char text[] = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z"; /* 1, 2, 3 and 4 bytes */
    struct rig *g = rig_new(1 << 20, 1 << 20);
    struct sg_exec_reader *r = reader(g, 0, false);
    for (size_t i = 0; text[i]; i++)
        sg_exec_log_output(g->log, SG_EVENT_STDOUT, text + i, 1);
    expect_text(r, 1, SG_EVENT_STDOUT, "a");
    expect_text(r, 2, SG_EVENT_STDOUT, "\xc3\xa9");
    expect_text(r, 3, SG_EVENT_STDOUT, "\xe2\x82\xac");
    expect_text(r, 4, SG_EVENT_STDOUT, "\xf0\x9f\x98\x80");
    expect_text(r, 5, SG_EVENT_STDOUT, "z");
    sg_exec_reader_free(r);
    rig_free(g);
}

Test(exec_log, each_stream_has_its_own_unfinished_character)
{
    struct rig *g = rig_new(1 << 20, 1 << 20);
    struct sg_exec_reader *r = reader(g, 0, false);
    out(g, "x\xc3");
    sg_exec_log_output(g->log, SG_EVENT_STDERR, "\xe2\x82", 2);
    out(g, "\xa9y");
    sg_exec_log_output(g->log, SG_EVENT_STDERR, "\xac", 1);
    out(g, "\xf0\x9f");
    sg_exec_log_end(g->log, SG_EVENT_EXIT, "{}");
    expect_text(r, 1, SG_EVENT_STDOUT, "x");
    expect_text(r, 2, SG_EVENT_STDOUT, "\xc3\xa9y");
    expect_text(r, 3, SG_EVENT_STDERR, "\xe2\x82\xac");
    expect(r, 4, SG_EVENT_STDOUT, "\xf0\x9f", 2, true); /* it never became a character */
    expect_text(r, 5, SG_EVENT_EXIT, "{}");
    sg_exec_reader_free(r);
    rig_free(g);
}

Test(exec_log, bytes_that_are_no_text)
{
    struct rig *g = rig_new(1 << 20, 1 << 20);
    struct sg_exec_reader *r = reader(g, 0, false);
    out(g, "\xff\xfeok\n");
    sg_exec_log_output(g->log, SG_EVENT_STDOUT, "a\0b", 3);
    out(g, "\xc3(");
    expect(r, 1, SG_EVENT_STDOUT, "\xff\xfeok\n", 5, true);
    expect(r, 2, SG_EVENT_STDOUT, "a\0b", 3, true);
    expect(r, 3, SG_EVENT_STDOUT, "\xc3(", 2, true);
    sg_exec_reader_free(r);
    rig_free(g);
}

Test(exec_log, large_output_comes_in_pieces)
{
    enum { LEN = 3 * (int)SG_EXEC_LOG_PIECE + 100 };
    struct rig *g = rig_new(1 << 20, 1 << 20);
    struct sg_exec_reader *r = reader(g, 0, false);
    char *text = malloc(LEN);
    for (int i = 0; i < LEN; i += 2)
        memcpy(text + i, "\xc3\xa9", 2);
    sg_exec_log_output(g->log, SG_EVENT_STDOUT, text + 1, LEN - 1); /* begins in the middle of a character */
    size_t total = 0;
    struct sg_exec_event e;
    for (uint64_t seq = 1; sg_exec_reader_next(r, &e) == 1; seq++) {
        cr_assert_eq(e.seq, seq);
        cr_assert_leq(e.len, SG_EXEC_LOG_PIECE + 3);
        cr_assert_eq(memcmp(e.data, text + 1 + total, e.len), 0);
        cr_assert_eq(e.binary, seq == 1);
        total += e.len;
    }
    cr_assert_eq(total, LEN - 1);
    free(text);
    sg_exec_reader_free(r);
    rig_free(g);
}

Test(exec_log, readers_are_woken_once)
{
    struct rig *g = rig_new(1 << 20, 1 << 20);
    struct sg_exec_reader *r = reader(g, 0, false);
    sg_exec_reader_set_waker(r, &(struct sg_waker){.wake = woken, .arg = g});
    out(g, "nobody was turned away\n");
    cr_assert_eq(g->woken, 0);
    cr_assert_eq(next(r), 1);
    cr_assert_eq(next(r), -EAGAIN);
    cr_assert_eq(next(r), -EAGAIN);
    out(g, "a");
    out(g, "b");
    cr_assert_eq(g->woken, 1);
    sg_exec_reader_set_waker(r, &(struct sg_waker){.wake = woken, .arg = g}); /* there is something: at once */
    cr_assert_eq(g->woken, 2);
    cr_assert_eq(next(r), 1);
    cr_assert_eq(next(r), 1);
    cr_assert_eq(next(r), -EAGAIN);
    sg_exec_log_end(g->log, SG_EVENT_EXIT, NULL);
    cr_assert_eq(g->woken, 2);
    sg_exec_log_wake(g->log);
    cr_assert_eq(g->woken, 3);
    sg_exec_reader_free(r);
    rig_free(g);
}

Test(exec_log, detached_never_full_and_the_oldest_go)
{
    struct rig *g = rig_new(10000, 1000);
    struct sg_exec_reader *late = reader(g, 0, false), *r = NULL;
    struct sg_error err = {0};
    sg_exec_log_start(g->log, "{}");
    for (int i = 0; i < 1000; i++) {
        out(g, "some more output\n");
        cr_assert_not(sg_exec_log_full(g->log));
        cr_assert_leq(sg_exec_log_bytes(g->log), 10000);
    }
    sg_exec_log_end(g->log, SG_EVENT_EXIT, "{}");
    cr_assert_eq(next(late), -ESTALE);
    cr_assert_eq(next(late), -ESTALE);
    cr_assert_eq(sg_exec_reader_new(g->log, 0, false, &r, &err), -1);
    cr_assert_eq(err.code, SG_HISTORY_DROPPED);
    uint64_t oldest = (uint64_t)json_integer_value(json_object_get(err.members, "oldest_seq"));
    cr_assert_gt(oldest, 500);
    sg_error_clear(&err);
    cr_assert_eq(sg_exec_reader_new(g->log, oldest - 2, false, &r, NULL), -1);
    r = reader(g, oldest - 1, false);
    for (uint64_t seq = oldest; seq <= 1001; seq++)
        expect_text(r, seq, SG_EVENT_STDOUT, "some more output\n");
    expect_text(r, 1002, SG_EVENT_EXIT, "{}");
    cr_assert_eq(next(r), 0);
    sg_exec_reader_free(r);
    sg_exec_reader_free(late);
    sg_exec_log_drop(g->log);
    r = reader(g, 1001, false);
    expect_text(r, 1002, SG_EVENT_EXIT, "{}");
    sg_exec_reader_free(r);
    rig_free(g);
}

Test(exec_log, an_attached_reader_holds_the_writer_back)
{
    struct rig *g = rig_new(0, 1000);
    struct sg_exec_reader *r = reader(g, 0, true);
    int n = 0;
    for (; !sg_exec_log_full(g->log); n++)
        out(g, "some output\n");
    cr_assert(n > 5 && n < 100);
    int read = 0;
    for (; g->space == 0; read++)
        cr_assert_eq(next(r), 1);
    cr_assert_leq(sg_exec_log_bytes(g->log), 600); /* what was read is not kept */
    cr_assert_lt(read, n);
    cr_assert_eq(g->space, 1);
    cr_assert_not(sg_exec_log_full(g->log));
    while (!sg_exec_log_full(g->log))
        out(g, "some output\n");
    sg_exec_reader_free(r); /* it left */
    cr_assert_eq(g->space, 2);
    cr_assert_not(sg_exec_log_full(g->log));
    cr_assert_eq(sg_exec_log_bytes(g->log), 0);
    rig_free(g);
}

/* Two pipes of one command ask: the answer to one must not take the call from the other, which still waits for it. */
Test(exec_log, who_was_told_full_is_called_whatever_others_were_told)
{
    struct rig *g = rig_new(0, 1000);
    struct sg_exec_reader *r = reader(g, 0, true);
    int n = 0;
    for (; !sg_exec_log_full(g->log); n++)
        out(g, "some output\n");
    cr_assert_eq(next(r), 1);
    cr_assert_not(sg_exec_log_full(g->log)); /* more than half a window behind */
    cr_assert_eq(g->space, 0);
    while (next(r) == 1)
        ;
    cr_assert_eq(g->space, 1);
    sg_exec_reader_free(r);
    rig_free(g);
}

Test(exec_log, the_slowest_attached_reader_counts_and_loses_nothing)
{
    struct rig *g = rig_new(100, 1000);
    struct sg_exec_reader *fast = reader(g, 0, true), *slow = reader(g, 0, true);
    int n = 0;
    for (; !sg_exec_log_full(g->log); n++) {
        out(g, "some output\n");
        cr_assert_eq(next(fast), 1);
    }
    cr_assert_eq(g->space, 0);
    for (int i = 1; i <= n; i++)
        expect_text(slow, (uint64_t)i, SG_EVENT_STDOUT, "some output\n");
    cr_assert_eq(g->space, 1);
    sg_exec_reader_free(fast);
    sg_exec_reader_free(slow);
    rig_free(g);
}

Test(exec_log, an_event_being_read_survives_being_dropped)
{
    struct rig *g = rig_new(200, 1000);
    struct sg_exec_reader *r = reader(g, 0, false);
    struct sg_exec_event e;
    out(g, "kept for the moment");
    cr_assert_eq(sg_exec_reader_next(r, &e), 1);
    for (int i = 0; i < 100; i++)
        out(g, "much more");
    cr_assert_eq(memcmp(e.data, "kept for the moment", e.len), 0);
    cr_assert_eq(next(r), -ESTALE);
    sg_exec_reader_free(r);
    rig_free(g);
}

Test(exec_log, what_all_keep_is_bounded)
{
    struct rig *g = rig_new(1 << 20, 1000);
    struct sg_exec_reader *r = NULL;
    g->memory.max = 5000;
    for (int i = 0; i < 1000; i++) {
        out(g, "some more output\n");
        cr_assert_leq(g->memory.used, 5000);
        cr_assert_eq(g->memory.used, sg_exec_log_bytes(g->log));
    }
    g->memory.used += 10000; /* others */
    out(g, "x");
    cr_assert_eq(sg_exec_log_bytes(g->log), 0);
    g->memory.used -= 10000;
    cr_assert_eq(sg_exec_reader_new(g->log, 0, false, &r, NULL), -1);
    rig_free(g);
}
