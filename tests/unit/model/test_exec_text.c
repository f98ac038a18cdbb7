#include <criterion/criterion.h>

#include "base/json.h"
#include "model/exec_text.h"

static int gone;

static void count_gone(void *arg)
{
    (void)arg;
    gone++;
}

static struct sg_exec_result result(const char *out, size_t out_len, uint64_t out_total, const char *err, size_t err_len)
{
    return (struct sg_exec_result){.exec_id = "exec_1",
                                   .command = json_pack("[s, s]", "echo", "a \"b\" \xc3\xa9"),
                                   .out = {out, out_len, out_total},
                                   .err = {err, err_len, err_len},
                                   .exit = {.returncode = 3, .duration_us = 123456},
                                   .timeout_ms = 300000};
}

/* All pieces, each within its bound. */
static char *whole(struct sg_exec_text *t, size_t *ret_len)
{
    struct sg_buf all, piece;
    int rc;
    sg_buf_init(&all, (size_t)64 << 20);
    sg_buf_init(&piece, SG_EXEC_TEXT_PIECE);
    while ((rc = sg_exec_text_next(t, &piece)) > 0) {
        cr_assert_eq(sg_buf_add(&all, piece.data, piece.len), 0);
        piece.len = 0;
    }
    cr_assert_eq(rc, 0);
    cr_assert_eq(sg_exec_text_next(t, &piece), 0);
    sg_buf_finish(&piece);
    return sg_buf_steal(&all, ret_len);
}

/* The same document as the one that is made whole. */
static void same(struct sg_exec_result *r)
{
    size_t len;
    gone = 0;
    r->keep = sg_hold_new(count_gone, NULL);
    struct sg_exec_text *t = sg_exec_text_new(r, "", "");
    cr_assert_not_null(t);
    sg_hold_unref(r->keep);
    cr_assert_eq(gone, 0, "the output is held while its text is made");
    char *text = whole(t, &len);
    sg_exec_text_free(t);
    cr_assert_eq(gone, 1);
    json_error_t why;
    json_t *got = json_loadb(text, len, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &why);
    cr_assert_not_null(got, "%s at %d", why.text, why.position);
    json_t *want = sg_exec_result_json(r);
    cr_assert(json_equal(got, want), "%.300s", text);
    json_decref(got);
    json_decref(want);
    json_decref(r->command);
    free(text);
}

static char *bytes(size_t len, unsigned seed, bool text)
{
    static const char *const chars[] = {"a", "\"", "\\", "\n", "\x01", "\x7f", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", " "};
    char *s = malloc(len + 8);
    size_t n = 0;
    while (n < len) {
        seed = seed * 1103515245 + 12345;
        unsigned pick = (seed >> 16) & 0xff;
        if (text) {
            size_t k = strlen(chars[pick % 10]);
            memcpy(s + n, chars[pick % 10], k);
            n += k;
        } else {
            s[n++] = (char)pick;
        }
    }
    return s;
}

Test(exec_text, is_the_result_for_any_output)
{
    static const size_t sizes[] = {0, 1, 2, 3, 10000, 24575, 24576, 24577, 65536, 300000};
    for (size_t i = 0; i < SG_COUNT_OF(sizes); i++) {
        for (int kind = 0; kind < 4; kind++) {
            char *out = bytes(sizes[i], 7, kind & 1);
            char *err = bytes(sizes[i], 9, kind & 2);
            struct sg_exec_result r = result(out, sizes[i], sizes[i], err, sizes[i] / 2);
            same(&r);
            r = result(out, sizes[i], sizes[i] + 5, err, 0); /* cut, maybe within a character */
            same(&r);
            free(out);
            free(err);
        }
    }
    struct sg_exec_result r = result(NULL, 0, 0, NULL, 0);
    same(&r);
    char *zeros = calloc(1, 200000);
    r = result(zeros, 200000, 200000, NULL, 0);
    same(&r);
    free(zeros);
}

Test(exec_text, in_the_middle_of_something)
{
    struct sg_exec_result r = result("x", 1, 1, "", 0);
    size_t len;
    struct sg_exec_text *t = sg_exec_text_new(&r, "{\"state\":\"finished\",\"result\":", "}\n");
    char *text = whole(t, &len);
    json_t *got = json_loads(text, 0, NULL);
    cr_assert_not_null(got);
    cr_assert_str_eq(json_string_value(json_object_get(json_object_get(got, "result"), "stdout")), "x");
    cr_assert_eq(text[len - 1], '\n');
    json_decref(got);
    json_decref(r.command);
    sg_exec_text_free(t);
    free(text);
}
