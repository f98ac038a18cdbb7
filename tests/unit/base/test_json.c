#include <criterion/criterion.h>

#include "base/json.h"

static json_t *parse(const char *text)
{
    json_t *v = NULL;
    struct sg_error err = {0};
    cr_assert_eq(sg_json_parse(text, strlen(text), &v, &err), 0, "%s: %s", text, err.message);
    return v;
}

Test(json, refuses)
{
    static const struct {
        const char *text;
        const char *says;
    } cases[] = {
        {"", "JSON: the text ends too early (line 1, column 0)"},
        {"{", "JSON: the text ends too early"},
        {"{}x", "after the end"},
        {"{\"a\":\"\xff\"}", "UTF-8"},
        {"{\"a\":\"\\u0000\"}", "NUL"},
        {"{\"a\\u0000\":1}", "NUL"},
        {"{\"a\":1,\n\"a\":2}", "duplicate key \"a\" (line 2"},
        {"{a:1}", "not valid"},
        {"[1,]", "not valid"},
        {"[NaN]", "not valid"},
        {"'x'", "not valid"},
        {"12345678901234567890", "too large"},
        {"1e999", "too large"},
    };
    for (size_t i = 0; i < SG_COUNT_OF(cases); i++) {
        json_t *v = NULL;
        struct sg_error err = {0};
        cr_expect_eq(sg_json_parse(cases[i].text, strlen(cases[i].text), &v, &err), -1, "%s", cases[i].text);
        cr_expect_eq(err.code, SG_INVALID_REQUEST);
        cr_expect(strstr(err.message, cases[i].says) != NULL, "%s: %s", cases[i].text, err.message);
    }
    json_t *v = NULL;
    struct sg_error err = {0};
    cr_assert_eq(sg_json_parse("{}\0", 3, &v, &err), -1);
    cr_assert_eq(sg_json_parse("{\"secret\":tok_123}", 18, &v, &err), -1);
    cr_assert_null(strstr(err.message, "tok_123"), "the input is not quoted");
    cr_assert_eq(sg_json_parse("{\"x\":1,\"x\":2}", 13, &v, &err), -1);
    cr_assert_str_eq(err.field, "x");
    cr_assert_eq(sg_json_parse_object("[]", 2, &v, &err), -1);
    cr_assert_null(v);
}

Test(json, depth_limit_ignores_brackets_in_strings)
{
    char text[256] = "";
    for (int levels = SG_JSON_DEPTH_MAX; levels <= SG_JSON_DEPTH_MAX + 1; levels++) {
        memset(text, '[', (size_t)levels);
        memset(text + levels, ']', (size_t)levels);
        json_t *v = NULL;
        int r = sg_json_parse(text, (size_t)levels * 2, &v, NULL);
        cr_assert_eq(r, levels > SG_JSON_DEPTH_MAX ? -1 : 0);
        json_decref(v);
    }
    json_decref(parse("[\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\\"[[[[[[[[[[[[[[[[\"]"));
}

Test(json, canonical_form)
{
    sg_cleanup(sg_json_p) json_t *v =
        parse("{\"b\":[1,true,null,\"\\u00e9\\/\"],\"a\":{\"z\":-1,\"\\u20ac\":2,\"B\":\"\\u001F\\n\\b\\\"\\\\\\u007f\"},\"\\ud83d\\ude00\":0,\"\\ufb33\":0}");
    char *text = NULL;
    size_t len = 0;
    cr_assert_eq(sg_json_canonical(v, &text, &len, NULL), 0);
    cr_assert_str_eq(text, "{\"a\":{\"B\":\"\\u001f\\n\\b\\\"\\\\\x7f\",\"z\":-1,\"\xe2\x82\xac\":2},"
                           "\"b\":[1,true,null,\"\xc3\xa9/\"],\"\xef\xac\xb3\":0,\"\xf0\x9f\x98\x80\":0}");
    cr_assert_eq(len, strlen(text));
    free(text);

    sg_cleanup(sg_json_p) json_t *real = parse("{\"a\":[1.0]}");
    struct sg_error err = {0};
    cr_assert_eq(sg_json_canonical(real, &text, &len, &err), -1);
    cr_assert_eq(err.code, SG_INVALID_REQUEST);
}

Test(json, dump_keeps_the_order_and_reads_back_equal)
{
    static const char text[] = "{\"z\":0.1,\"a\":[{},[],\"\\u0001\xe2\x82\xac\"],\"m\":-9223372036854775808,\"r\":5.0}";
    sg_cleanup(sg_json_p) json_t *v = parse(text);
    size_t len = 0;
    sg_cleanup(sg_free_p) char *out = sg_json_dump(v, &len);
    cr_assert_str_eq(out, text);
    cr_assert_eq(len, strlen(text));
}

Test(json, reader_takes_typed_members)
{
    sg_cleanup(sg_json_p) json_t *v = parse("{\"s\":\"x\",\"i\":5,\"w\":5.0,\"b\":true,\"t\":1.5,\"o\":{},\"a\":[],\"n\":null,\"any\":7}");
    struct sg_json_reader r;
    struct sg_error err = {0};
    const char *s = NULL;
    int64_t i = 0, t = 0;
    bool b = false;
    json_t *o = NULL, *a = NULL, *any = NULL;
    cr_assert_eq(sg_json_begin(&r, v, "", &err), 0);
    cr_assert_eq(sg_json_str(&r, "s", &s, &err), 1);
    cr_assert_str_eq(s, "x");
    cr_assert_eq(sg_json_int(&r, "i", 0, 10, &i, &err), 1);
    cr_assert_eq(sg_json_int(&r, "w", 0, 10, &i, &err), 1);
    cr_assert_eq(i, 5);
    cr_assert(sg_json_bool(&r, "b", &b, &err) == 1 && b);
    cr_assert(sg_json_seconds_ms(&r, "t", 2000, &t, &err) == 1 && t == 1500);
    cr_assert(sg_json_object(&r, "o", &o, &err) == 1 && o != NULL);
    cr_assert(sg_json_array(&r, "a", &a, &err) == 1 && a != NULL);
    cr_assert_eq(sg_json_str(&r, "n", &s, &err), 0, "null is absent");
    cr_assert_eq(sg_json_end(&r, &err), -1, "any was not taken");
    cr_assert_str_eq(err.field, "any");
    cr_assert_eq(sg_json_any(&r, "any", &any), 1);
    cr_assert_eq(sg_json_str(&r, "gone", &s, &err), 0);
    cr_assert_eq(sg_json_end(&r, &err), 0);
    sg_error_clear(&err);
}

Test(json, reader_names_the_member)
{
    sg_cleanup(sg_json_p) json_t *v = parse("{\"s\":1,\"i\":1.5,\"big\":11,\"b\":0,\"t\":0,\"late\":3,\"o\":[],\"a\":{},\"huge\":1e300}");
    struct sg_json_reader r;
    struct sg_error err = {0};
    const char *s = NULL;
    int64_t i = 7;
    bool b = false;
    json_t *o = NULL;
    cr_assert_eq(sg_json_begin(&r, v, "exec", &err), 0);
    cr_expect_eq(sg_json_str(&r, "s", &s, &err), -1);
    cr_expect_str_eq(err.field, "exec.s");
    cr_expect_str_eq(err.message, "exec.s: a string is expected");
    cr_expect_eq(sg_json_int(&r, "i", 0, 10, &i, &err), -1);
    cr_expect_eq(sg_json_int(&r, "huge", INT64_MIN, INT64_MAX, &i, &err), -1);
    cr_expect_eq(sg_json_int(&r, "big", 0, 10, &i, &err), -1);
    cr_expect_str_eq(err.message, "exec.big: must be from 0 to 10");
    cr_expect_eq(sg_json_bool(&r, "b", &b, &err), -1);
    cr_expect_eq(sg_json_seconds_ms(&r, "t", 2000, &i, &err), -1);
    cr_expect_eq(sg_json_object(&r, "o", &o, &err), -1);
    cr_expect_eq(sg_json_array(&r, "a", &o, &err), -1);
    cr_expect_eq(i, 7);
    cr_expect_eq(sg_json_seconds_ms(&r, "late", 2000, &i, &err), 1, "too long becomes the longest");
    cr_expect_eq(i, 2000);
    cr_expect_eq(sg_json_begin(&r, json_object_get(v, "s"), "exec.s", &err), -1);
    sg_error_clear(&err);
}

/* Every byte at every place of a word, against the plain rule. */
Test(json, strings_are_escaped_wherever_the_special_byte_stands)
{
    for (int c = 1; c < 0x80; c++)
        for (size_t at = 0; at < 17; at++) {
            char text[18] = "abcdefghijklmnopq", want[40];
            text[at] = (char)c;
            char one[8];
            if (strchr("\b\t\n\f\r\"\\", c))
                snprintf(one, sizeof one, "\\%c", "btnfr\"\\"[strchr("\b\t\n\f\r\"\\", c) - "\b\t\n\f\r\"\\"]);
            else
                snprintf(one, sizeof one, c < 0x20 ? "\\u%04x" : "%c", c);
            snprintf(want, sizeof want, "\"%.*s%s%s\"", (int)at, text, one, text + at + 1);
            struct sg_buf b;
            sg_buf_init(&b, 100);
            cr_assert_eq(sg_json_add_string(&b, text, 17), 0);
            cr_assert_str_eq(b.data, want);
            sg_buf_finish(&b);
        }
}

Test(json, long_strings_are_whole)
{
    struct sg_buf text, b;
    sg_buf_init(&text, 1 << 20);
    sg_buf_init(&b, 1 << 20);
    for (int i = 0; i < 3000; i++)
        cr_assert_eq(sg_buf_addf(&text, "%d\xc3\xa9%c", i, i % 40 + 1), 0);
    cr_assert_eq(sg_json_add_string(&b, text.data, text.len), 0);
    json_t *v = json_loadb(b.data, b.len, JSON_DECODE_ANY, NULL);
    cr_assert_not_null(v);
    cr_assert_str_eq(json_string_value(v), text.data);
    json_decref(v);
    struct sg_buf small;
    sg_buf_init(&small, 2000);
    cr_assert_eq(sg_json_add_string(&small, text.data, text.len), -1);
    sg_buf_finish(&small);
    sg_buf_finish(&text);
    sg_buf_finish(&b);
}
