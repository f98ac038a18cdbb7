/* The reader of strangers' archives: limits, names, links, and where its bytes come from. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "base/buf.h"
#include "service/tar_reader.h"

#define BLOCK 512U

/* Adds a plain old header, and content in whole blocks. */
static void add(struct sg_buf *b, char type, const char *name, const char *link, const char *content)
{
    char h[BLOCK] = {0};
    size_t len = strlen(content);
    unsigned sum = 0;
    snprintf(h, 100, "%s", name);
    snprintf(h + 100, 8, "%07o", 04755U);
    snprintf(h + 124, 12, "%011o", (unsigned)len);
    snprintf(h + 136, 12, "%011o", 1234567U);
    memset(h + 148, ' ', 8);
    h[156] = type;
    snprintf(h + 157, 100, "%s", link);
    memcpy(h + 257, "ustar\00000", 8);
    for (size_t i = 0; i < sizeof h; i++)
        sum += (unsigned char)h[i];
    snprintf(h + 148, 8, "%06o", sum);
    cr_assert_eq(sg_buf_add(b, h, sizeof h), 0);
    memset(h, 0, sizeof h);
    if (len > 0) {
        memcpy(h, content, len);
        cr_assert_eq(sg_buf_add(b, h, sizeof h), 0);
    }
}

struct input {
    struct sg_buf data;
    size_t at, step, fail_at;
};

static void setup(struct input *in)
{
    *in = (struct input){.step = 100, .fail_at = SIZE_MAX};
    sg_buf_init(&in->data, 1U << 20);
}

static ssize_t pull(void *arg, const void **data, struct sg_error *err)
{
    struct input *in = arg;
    size_t n = in->data.len - in->at < in->step ? in->data.len - in->at : in->step;
    if (in->at >= in->fail_at)
        return sg_error_set(err, SG_SANDBOX_LOST, "gone");
    *data = in->data.data + in->at;
    in->at += n;
    return (ssize_t)n;
}

static const struct sg_tar_limits wide = {.entries = 100, .bytes = 1U << 20, .unpacked = 1U << 20};

static struct sg_tar_reader *reader(struct input *in, const struct sg_tar_limits *limits)
{
    struct sg_tar_reader *t = NULL;
    struct sg_error err = {0};
    char end[2 * BLOCK] = {0};
    cr_assert_eq(sg_buf_add(&in->data, end, sizeof end), 0);
    cr_assert_eq(sg_tar_reader_new(limits, pull, in, &t, &err), 0, "%s", err.message);
    return t;
}

Test(tar_reader, entries_come_clean)
{
    struct input in;
    struct sg_tar_entry e;
    struct sg_error err = {0};
    const void *data;
    size_t len;
    uint64_t offset;
    setup(&in);
    add(&in.data, '5', "./", "", "");
    add(&in.data, '0', ".//a/./b", "", "hello");
    add(&in.data, '2', "a/l", "../a/b", "");
    add(&in.data, '1', "a/h", "./a//b", "");
    struct sg_tar_reader *t = reader(&in, &wide);
    cr_assert_eq(sg_tar_next(t, &e, &err), 1, "%s", err.message);
    cr_expect(e.kind == SG_TAR_DIRECTORY && e.path[0] == '\0' && e.mode == 0755 && e.mtime_ns == 1234567000000000);
    cr_assert_eq(sg_tar_next(t, &e, &err), 1, "%s", err.message);
    cr_expect(e.kind == SG_TAR_FILE && e.size == 5);
    cr_expect_str_eq(e.path, "a/b");
    cr_assert_eq(sg_tar_data(t, &data, &len, &offset, &err), 1);
    cr_expect(len == 5 && offset == 0 && memcmp(data, "hello", 5) == 0);
    cr_assert_eq(sg_tar_data(t, &data, &len, &offset, &err), 0);
    cr_assert_eq(sg_tar_next(t, &e, &err), 1, "%s", err.message);
    cr_expect(e.kind == SG_TAR_SYMLINK);
    cr_expect_str_eq(e.target, "../a/b");
    cr_assert_eq(sg_tar_next(t, &e, &err), 1, "%s", err.message);
    cr_expect(e.kind == SG_TAR_HARDLINK);
    cr_expect_str_eq(e.target, "a/b");
    cr_expect_eq(sg_tar_next(t, &e, &err), 0);
    cr_expect(sg_tar_entries(t) == 4 && sg_tar_bytes(t) == 5);
    sg_tar_reader_free(t);
    sg_buf_finish(&in.data);
}

/* The reason why the one entry is refused, or "" when it is not. */
static void one(char type, const char *name, const char *link, const struct sg_tar_limits *limits, const char *reason)
{
    struct input in;
    struct sg_tar_entry e;
    struct sg_error err = {0};
    setup(&in);
    add(&in.data, type, name, link, "");
    struct sg_tar_reader *t = reader(&in, limits);
    cr_expect_eq(sg_tar_next(t, &e, &err), reason[0] != '\0' ? -1 : 1, "%s -> %s", name, link);
    cr_expect_str_eq(err.reason, reason, "%s -> %s: %s", name, link, err.message);
    sg_error_clear(&err);
    sg_tar_reader_free(t);
    sg_buf_finish(&in.data);
}

Test(tar_reader, names_and_links_stay_inside)
{
    struct sg_tar_limits any = wide;
    any.outside_links = true;
    one('0', "/a", "", &wide, "unsafe_path");
    one('0', "a/..", "", &wide, "unsafe_path");
    one('0', "..", "", &wide, "unsafe_path");
    one('0', "...", "", &wide, "");
    one('0', "a/..b", "", &wide, "");
    one('0', ".", "", &wide, "unsafe_path");
    one('3', "dev", "", &wide, "unsupported_entry");
    one('4', "dev", "", &wide, "unsupported_entry");
    one('6', "fifo", "", &wide, "unsupported_entry");
    one('2', "l", "/etc", &wide, "unsafe_link");
    one('2', "l", "/etc", &any, "");
    one('2', "l", "..", &wide, "unsafe_link");
    one('2', "a/l", "..", &wide, "");
    one('2', "a/l", "../..", &wide, "unsafe_link");
    one('2', "a/b/l", "../x/../../y", &wide, "");
    one('2', "a/l", "b/../../../x", &wide, "unsafe_link");
    one('2', "a/l", "b/../../../x", &any, "");
    one('1', "h", "/a", &any, "unsafe_link");
    one('1', "h", "../a", &any, "unsafe_link");
    one('1', "h", ".", &any, "unsafe_link");
    one('2', ".", "a", &any, "unsafe_path");
}

/* Reads to the end; the reason of the failure. */
static void all(struct input *in, const struct sg_tar_limits *limits, int files, const char *reason)
{
    struct sg_tar_entry e;
    struct sg_error err = {0};
    int rc;
    for (int i = 0; i < files; i++)
        add(&in->data, '0', "f", "", "12345678");
    struct sg_tar_reader *t = reader(in, limits);
    while ((rc = sg_tar_next(t, &e, &err)) > 0)
        ;
    cr_expect_eq(rc, reason[0] != '\0' ? -1 : 0);
    cr_expect_str_eq(err.reason, reason, "%s", err.message);
    sg_error_clear(&err);
    sg_tar_reader_free(t);
    sg_buf_finish(&in->data);
}

Test(tar_reader, limits)
{
    struct input in;
    setup(&in);
    all(&in, &(struct sg_tar_limits){.entries = 3, .bytes = 24, .unpacked = 8192}, 3, "");
    setup(&in);
    all(&in, &(struct sg_tar_limits){.entries = 2, .bytes = 24, .unpacked = 8192}, 3, "too_many_entries");
    setup(&in);
    all(&in, &(struct sg_tar_limits){.entries = 3, .bytes = 23, .unpacked = 8192}, 3, "too_many_bytes");
    setup(&in);
    all(&in, &(struct sg_tar_limits){.entries = 3, .bytes = 24, .unpacked = 1000}, 3, "expands_too_much");
}

Test(tar_reader, errors_of_the_source_are_its_own)
{
    struct input in;
    struct sg_tar_entry e;
    struct sg_error err = {0};
    setup(&in);
    in.fail_at = 1000;
    add(&in.data, '0', "f", "", "12345678");
    add(&in.data, '0', "g", "", "12345678");
    struct sg_tar_reader *t = reader(&in, &wide);
    while (sg_tar_next(t, &e, &err) > 0)
        ;
    cr_expect_eq(err.code, SG_SANDBOX_LOST);
    sg_error_clear(&err);
    sg_tar_reader_free(t);
    sg_buf_finish(&in.data);
}
