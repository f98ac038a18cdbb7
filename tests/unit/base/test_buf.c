#include <criterion/criterion.h>

#include "base/buf.h"

Test(buf, never_holds_more_than_its_cap)
{
    struct sg_buf b;
    sg_buf_init(&b, 10);
    cr_assert_eq(sg_buf_add(&b, "12345", 5), 0);
    cr_assert_eq(sg_buf_add(&b, "678901", 6), -1);
    cr_assert_eq(b.len, 5);
    cr_assert_eq(sg_buf_addf(&b, "%d", 678901), -1);
    cr_assert_str_eq(b.data, "12345");
    cr_assert_eq(sg_buf_add_some(&b, "6789012", 7), 5);
    cr_assert_eq(sg_buf_add_some(&b, "x", 1), 0);
    cr_assert_str_eq(b.data, "1234567890");
    cr_assert_eq(sg_buf_add(&b, "x", SIZE_MAX), -1);
    sg_buf_finish(&b);
    cr_assert_eq(b.len, 0);
}

Test(buf, consume_and_steal)
{
    struct sg_buf b;
    size_t len = 99;
    sg_buf_init(&b, 100);
    sg_buf_consume(&b, 5);
    char *none = sg_buf_steal(&b, &len);
    cr_assert_str_eq(none, "");
    cr_assert_eq(len, 0);
    free(none);
    cr_assert_eq(sg_buf_addf(&b, "%s-%d", "abc", 7), 0);
    sg_buf_consume(&b, 2);
    cr_assert_str_eq(b.data, "c-7");
    char *text = sg_buf_steal(&b, &len);
    cr_assert_str_eq(text, "c-7");
    cr_assert_eq(len, 3);
    free(text);
    cr_assert_null(b.data);
    cr_assert_eq(b.cap, 100, "still usable");
}

Test(buf, grows_over_many_steps)
{
    struct sg_buf b;
    sg_buf_init(&b, 1000);
    for (int i = 0; i < 1000; i++) {
        cr_assert_eq(sg_buf_add(&b, "x", 1), 0);
    }
    cr_assert_eq(sg_buf_add(&b, "x", 1), -1);
    cr_assert_leq(b.size, 1001);
    sg_buf_consume(&b, 5000);
    cr_assert_eq(b.len, 0);
    sg_buf_finish(&b);
}
