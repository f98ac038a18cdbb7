#include <criterion/criterion.h>

#include "model/tree_record.h"

/* NUL-separated fields of a record of that kind and name. */
static ssize_t read_one(struct sg_tree_walk *w, char kind, const char *name, const char *target, uint64_t size, struct sg_tree_record *ret)
{
    struct sg_buf b;
    struct sg_error err = {0};
    const struct sg_tree_record r = {.kind = kind, .name = name, .target = target, .mode = 0640, .uid = 7, .mtime_ns = -5, .size = size};
    static char kept[SG_TREE_RECORD_MAX];

    sg_buf_init(&b, 65536);
    cr_assert_eq(sg_tree_record_write(&r, &b), 0);
    memcpy(kept, b.data, b.len);
    for (size_t n = 0; n < b.len; n++)
        cr_assert_eq(sg_tree_record_read(kept, n, w, ret, &err), 0, "a part of a record is none");
    ssize_t rc = sg_tree_record_read(kept, b.len, w, ret, &err);
    cr_assert(rc == -1 ? err.code == SG_PROVIDER_FAILED : rc == (ssize_t)b.len);
    sg_buf_finish(&b);
    return rc;
}

static bool walks(const char *const (*steps)[2])
{
    struct sg_tree_walk w = {0};
    struct sg_tree_record r;
    bool good = true;

    for (; good && (*steps)[0]; steps++)
        good = read_one(&w, (*steps)[0][0], (*steps)[1], (*steps)[0][0] == 'l' ? "x" : "", 0, &r) > 0;
    sg_tree_walk_finish(&w);
    return good;
}

Test(tree_record, comes_back_as_it_went)
{
    struct sg_tree_walk w = {0};
    struct sg_tree_record r;

    cr_assert(read_one(&w, 'f', "name\n\xff", "", 5000000000, &r) > 0);
    cr_assert(r.kind == 'f' && strcmp(r.name, "name\n\xff") == 0 && r.mode == 0640 && r.uid == 7 && r.mtime_ns == -5 && r.size == 5000000000);
    cr_assert(read_one(&w, 'l', "s", "/anywhere/../x", 0, &r) > 0 && strcmp(r.target, "/anywhere/../x") == 0);
    cr_assert(read_one(&w, 'e', "", "", 0, &r) > 0 && r.kind == 'e');
    sg_tree_walk_finish(&w);
}

Test(tree_record, a_walk_over_a_tree)
{
    cr_assert(walks((const char *const[][2]){{"d", "a"}, {"f", "a/b"}, {"d", "a/c"}, {"f", "a/c/x"}, {"f", "a/c-"}, {"f", "a-"}, {"l", "b"}, {"f", "\xff"}, {NULL, NULL}}));
}

Test(tree_record, what_is_no_walk)
{
    cr_assert(!walks((const char *const[][2]){{"f", "/a"}, {NULL, NULL}}));
    cr_assert(!walks((const char *const[][2]){{"f", ""}, {NULL, NULL}}));
    cr_assert(!walks((const char *const[][2]){{"f", "a/../b"}, {NULL, NULL}}));
    cr_assert(!walks((const char *const[][2]){{"f", "."}, {NULL, NULL}}));
    cr_assert(!walks((const char *const[][2]){{"d", "a"}, {"f", "a//b"}, {NULL, NULL}}));
    cr_assert(!walks((const char *const[][2]){{"d", "a"}, {"f", "a/"}, {NULL, NULL}}));
    cr_assert(!walks((const char *const[][2]){{"f", "a/b"}, {NULL, NULL}}), "a directory that was not named");
    cr_assert(!walks((const char *const[][2]){{"f", "a"}, {"f", "a/b"}, {NULL, NULL}}), "below a file");
    cr_assert(!walks((const char *const[][2]){{"l", "a"}, {"f", "a/b"}, {NULL, NULL}}), "through a link");
    cr_assert(!walks((const char *const[][2]){{"d", "ab"}, {"f", "a"}, {NULL, NULL}}), "backwards");
    cr_assert(!walks((const char *const[][2]){{"d", "a"}, {"d", "a"}, {NULL, NULL}}), "twice");
    cr_assert(!walks((const char *const[][2]){{"d", "a"}, {"d", "a/b"}, {"f", "b"}, {"f", "b/x"}, {NULL, NULL}}));
    cr_assert(!walks((const char *const[][2]){{"d", "a"}, {"d", "a/bb"}, {"f", "a/bbc/x"}, {NULL, NULL}}));
    cr_assert(!walks((const char *const[][2]){{"h", "a"}, {NULL, NULL}}));
    cr_assert(!walks((const char *const[][2]){{"v", "a"}, {NULL, NULL}}));
}

Test(tree_record, what_is_no_record)
{
    static const char *const bad[] = {"", "f", "ff", "\x01"};
    static const char rest[] = "n\0" "0644\0" "1\0" "2\0" "-1\0" "\0";
    struct sg_tree_walk w = {0};
    struct sg_tree_record r;
    struct sg_error err = {0};
    char long_one[SG_TREE_RECORD_MAX];

    memset(long_one, 'x', sizeof long_one);
    cr_assert_eq(sg_tree_record_read(long_one, sizeof long_one, &w, &r, &err), -1);
    for (size_t i = 0; i < SG_COUNT_OF(bad); i++) {
        char text[64];
        size_t n = strlen(bad[i]) + 1;
        memcpy(text, bad[i], n);
        memcpy(text + n, rest, sizeof rest - 1);
        cr_assert_eq(sg_tree_record_read(text, n + sizeof rest - 1, &w, &r, &err), -1, "%zu", i);
    }
    cr_assert_eq(read_one(&w, 'd', "d", "", 1, &r), -1, "a directory of a size");
    cr_assert_eq(read_one(&w, 'l', "l", "", 0, &r), -1, "a link to nowhere");
    cr_assert_eq(read_one(&w, 'f', "f", "x", 0, &r), -1, "a file with a target");
    sg_tree_walk_finish(&w);
}
