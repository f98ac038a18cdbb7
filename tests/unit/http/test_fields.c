/* Header fields of files: entity tags, dates, digests, names. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "base/digest.h"
#include "http/fields.h"

static const struct sg_file_stat st = {.dev = 0x1f, .ino = 10, .mtime_ns = 1000000000123456789, .ctime_ns = 7, .size = 42};

static void tag(char out[SG_ETAG_MAX])
{
    sg_file_etag(&st, out);
}

Test(fields, a_tag_comes_apart_again)
{
    char text[SG_ETAG_MAX];
    struct sg_file_tag t;
    tag(text);
    cr_assert(sg_file_tag_parse(text + 1, strlen(text) - 2, &t));
    cr_expect(t.dev == st.dev && t.ino == st.ino && t.mtime_ns == st.mtime_ns && t.ctime_ns == st.ctime_ns && t.size == st.size);
    const struct sg_file_stat extreme = {.dev = UINT64_MAX, .ino = 0, .mtime_ns = -1, .ctime_ns = INT64_MIN, .size = UINT64_MAX};
    sg_file_etag(&extreme, text);
    cr_assert(sg_file_tag_parse(text + 1, strlen(text) - 2, &t));
    cr_expect(t.dev == UINT64_MAX && t.ino == 0 && t.mtime_ns == -1 && t.ctime_ns == INT64_MIN && t.size == UINT64_MAX);
    static const char *const none[] = {"", "1-2-3-4", "1-2-3-4-", "1-2-3-4-5-6", "01-2-3-4-5", "1-2-3-4-G", "1-2-3-4-A", "-1-2-3-4",
                                       "1-2-3-4-11111111111111111", "1--3-4-5"};
    for (size_t i = 0; i < SG_COUNT_OF(none); i++)
        cr_expect(!sg_file_tag_parse(none[i], strlen(none[i]), &t), "%s", none[i]);
}

static bool match(const char *text, const struct sg_file_stat *s)
{
    struct sg_condition c;
    cr_assert_eq(sg_field_if_match(text, &c, NULL), 0, "%s", text);
    return sg_condition_holds(&c, s);
}

static bool none_match(const char *text, const struct sg_file_stat *s)
{
    struct sg_condition c;
    cr_assert_eq(sg_field_if_none_match(text, &c, NULL), 0, "%s", text);
    return sg_condition_holds(&c, s);
}

Test(fields, conditions)
{
    char text[SG_ETAG_MAX], list[2 * SG_ETAG_MAX];
    tag(text);
    cr_expect(match("*", &st) && !match("*", NULL));
    cr_expect(!none_match("*", &st) && none_match("*", NULL));
    cr_expect(match(text, &st) && !match(text, NULL) && !match("\"other\"", &st));
    cr_expect(!none_match(text, &st) && none_match(text, NULL) && none_match("\"other\"", &st));
    snprintf(list, sizeof list, "W/%s", text);
    cr_expect(!match(list, &st), "weak never matches strongly");
    cr_expect(!none_match(list, &st), "but weakly");
    snprintf(list, sizeof list, " \"a,b\" ,, \t%s ,", text);
    cr_expect(match(list, &st) && !none_match(list, &st), "lists");
    cr_expect(sg_field_if_range(text, &st) && !sg_field_if_range("\"x\"", &st));
    cr_expect(sg_condition_holds(NULL, NULL) && sg_condition_holds(NULL, &st));
}

Test(fields, malformed_tags)
{
    static const char *const bad[] = {"", " ", ",", "x", "\"a", "a\"", "\"a\" \"b\"", "\"a b\"", "W\"a\"", "w/\"a\"", "**", "*, \"a\""};
    struct sg_condition c;
    struct sg_error err = {0};
    for (size_t i = 0; i < SG_COUNT_OF(bad); i++) {
        cr_expect_lt(sg_field_if_match(bad[i], &c, &err), 0, "%s", bad[i]);
        cr_expect_str_eq(err.field, "If-Match");
        sg_error_clear(&err);
    }
}

Test(fields, dates)
{
    char text[SG_HTTP_DATE_LEN];
    int64_t t = 0;
    sg_field_date(784111777, text);
    cr_expect_str_eq(text, "Sun, 06 Nov 1994 08:49:37 GMT");
    cr_expect(sg_field_date_parse(text, &t) && t == 784111777);
    sg_field_date(INT64_MAX / 2, text);
    cr_expect_str_eq(text, "Thu, 01 Jan 1970 00:00:00 GMT");
    static const char *const bad[] = {"", "Mon, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:37 GMT ", "Sunday, 06-Nov-94 08:49:37 GMT",
                                      "Sun, 32 Nov 1994 08:49:37 GMT", "Sun, 06 Foo 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:37 UTC"};
    for (size_t i = 0; i < SG_COUNT_OF(bad); i++)
        cr_expect(!sg_field_date_parse(bad[i], &t), "%s", bad[i]);
}

Test(fields, digests)
{
    static const char sha256[] = "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:"; /* of nothing */
    struct sg_digests d = {0};
    struct sg_error err = {0};
    cr_assert_eq(sg_field_digest("Repr-Digest", sha256, &d, &err), 0, "%s", err.message);
    cr_expect(d.sha256_given && !d.sha512_given);
    struct sg_digester *g = sg_digester_new(&d);
    cr_expect_eq(sg_digester_check(g, &err), 0);
    sg_digester_free(g);
    g = sg_digester_new(&d);
    sg_digester_add(g, "x", 1);
    cr_expect_lt(sg_digester_check(g, &err), 0);
    cr_expect_str_eq(err.reason, "digest_mismatch");
    sg_digester_free(g);
    sg_error_clear(&err);
    d = (struct sg_digests){0};
    cr_expect_eq(sg_field_digest("Repr-Digest", "unixsum=:AA==:;a=b , md5=::", &d, NULL), 0);
    cr_expect_null(sg_digester_new(&d), "unknown ones ask for nothing");
    static const char *const bad[] = {"", "sha-256", "sha-256=", "sha-256=:", "sha-256=:AA==:", "sha-256=AA==", "=:AA==:", "md5=:A:",
                                      "md5=:AA==: md5=:AA==:", "md5=:AA==:,"};
    for (size_t i = 0; i < SG_COUNT_OF(bad); i++) {
        cr_expect_lt(sg_field_digest("Repr-Digest", bad[i], &d, &err), 0, "%s", bad[i]);
        cr_expect_str_eq(err.field, "Repr-Digest");
        sg_error_clear(&err);
    }
}

static void want(const char *text, const char *algorithm)
{
    struct sg_digests d;
    sg_field_want_digest(text, &d);
    cr_expect_eq(d.sha256_given, strcmp(algorithm, "sha-256") == 0, "%s", text);
    cr_expect_eq(d.sha512_given, strcmp(algorithm, "sha-512") == 0, "%s", text);
}

Test(fields, wanted_digests)
{
    want("sha-256=1", "sha-256");
    want(" sha-512=10 , sha-256=9", "sha-512");
    want("sha-256=5,sha-512=5", "sha-256");
    want("md5=10;a=1,\tsha-512=1;b", "sha-512");
    static const char *const none[] = {"", ",", "sha-256", "sha-256=", "sha-256=0", "sha-256=11", "sha-256=1,", "sha-256=1 x",
                                       "sha-256=1,=", "sha-25=1", "sha-2567=1", "sha-256=999999999999999999999"};
    for (size_t i = 0; i < SG_COUNT_OF(none); i++)
        want(none[i], "none");

    struct sg_digests d = {.sha256_given = true};
    struct sg_digester *g = sg_digester_new(&d);
    sg_digester_result(g, &d);
    char *text = sg_field_digest_text(&d);
    cr_expect_str_eq(text, "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:");
    free(text);
    sg_digester_free(g);
}

static void disposition(const char *path, const char *suffix, const char *want)
{
    char *text = sg_field_disposition(path, suffix);
    cr_expect_str_eq(text, want);
    free(text);
}

Test(fields, names)
{
    disposition("a/b/c.txt", "", "attachment; filename=\"c.txt\"");
    disposition("a/b//", ".tar", "attachment; filename=\"b.tar\"");
    disposition("/", ".tar", "attachment; filename=\"workspace.tar\"");
    disposition("..", ".tar", "attachment; filename=\"workspace.tar\"");
    disposition("\xff", "", "attachment; filename=\"_\"");
    disposition("a\"\\\r\n", "", "attachment; filename=\"a____\"; filename*=UTF-8''a%22%5C%0D%0A");
    disposition("\xc3\xbc", "", "attachment; filename=\"__\"; filename*=UTF-8''%C3%BC");
}
