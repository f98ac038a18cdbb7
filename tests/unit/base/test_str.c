#include <criterion/criterion.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/id.h"
#include "base/str.h"

Test(str, utf8_valid)
{
    static const char *const good[] = {"", "a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"};
    static const char *const bad[] = {"\x80",         "\xc3",         "\xc0\x80",         "\xc1\xbf",        "\xe0\x80\x80",
                                      "\xed\xa0\x80", "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "a\xff"};
    for (size_t i = 0; i < SG_COUNT_OF(good); i++) {
        cr_expect(sg_utf8_valid(good[i], strlen(good[i])), "good %zu", i);
    }
    for (size_t i = 0; i < SG_COUNT_OF(bad); i++) {
        cr_expect_not(sg_utf8_valid(bad[i], strlen(bad[i])), "bad %zu", i);
    }
    cr_assert(sg_utf8_valid("a\0b", 3));
}

Test(str, utf8_whole_holds_back_only_what_may_still_become_a_character)
{
    static const struct {
        const char *text;
        size_t whole;
    } cases[] = {
        {"", 0},         {"ab", 2},           {"a\xc3", 1},         {"a\xc3\xa9", 3}, {"a\xe2\x82", 1},
        {"\xe2\x82\xac", 3}, {"\xf0\x9f\x98", 0}, {"a\xff", 2},     {"a\x80", 2},     {"\xe0\x80", 2},
        {"\xed\xa0", 2}, {"\xf4\x90", 2},     {"\x80\x80\x80", 3},  {"\xc3\xc3", 1},
    };
    for (size_t i = 0; i < SG_COUNT_OF(cases); i++) {
        cr_expect_eq(sg_utf8_whole(cases[i].text, strlen(cases[i].text)), cases[i].whole, "case %zu", i);
    }
}

Test(str, parse_int)
{
    int64_t v = 7;
    cr_assert(sg_parse_int("0", 0, 10, &v) && v == 0);
    cr_assert(sg_parse_int("-9223372036854775808", INT64_MIN, INT64_MAX, &v) && v == INT64_MIN);
    cr_assert(sg_parse_int("9223372036854775807", INT64_MIN, INT64_MAX, &v) && v == INT64_MAX);
    static const char *const bad[] = {"", "-", "+1", " 1", "1 ", "0x1", "1.0", "9223372036854775808", "-9223372036854775809", "11"};
    v = 7;
    for (size_t i = 0; i < SG_COUNT_OF(bad); i++) {
        int64_t max = sg_streq(bad[i], "11") ? 10 : INT64_MAX;
        cr_expect_not(sg_parse_int(bad[i], INT64_MIN, max, &v), "\"%s\"", bad[i]);
    }
    cr_assert_eq(v, 7);
}

Test(str, durations_and_sizes)
{
    static const struct {
        const char *text;
        int64_t value; /* -1: refused */
    } durations[] = {
        {"250ms", 250}, {"5s", 5000},  {"1.5h", 5400000}, {"2m", 120000}, {"7", 7000},   {"0.5", 500},  {"0", 0},
        {"", -1},       {"s", -1},     {"5 s", -1},       {"-5s", -1},    {"5d", -1},    {"1.", -1},    {".5s", -1},
        {"0.5ms", -1},  {"1e3", -1},   {"9223372036854775807h", -1},      {"1.0000000s", -1},
    }, sizes[] = {
        {"64KiB", 65536}, {"1MiB", 1 << 20}, {"2GiB", INT64_C(2) << 30}, {"0.5KiB", 512}, {"17", 17}, {"64KB", -1},
        {"64kib", -1},    {"0.3", -1},       {"9223372036854GiB", -1},   {"-1", -1},
    };
    for (size_t i = 0; i < SG_COUNT_OF(durations); i++) {
        int64_t v = -1;
        bool ok = sg_parse_duration_ms(durations[i].text, &v);
        cr_expect(ok == (durations[i].value >= 0) && v == durations[i].value, "\"%s\": %" PRId64, durations[i].text, v);
    }
    for (size_t i = 0; i < SG_COUNT_OF(sizes); i++) {
        int64_t v = -1;
        bool ok = sg_parse_size(sizes[i].text, &v);
        cr_expect(ok == (sizes[i].value >= 0) && v == sizes[i].value, "\"%s\": %" PRId64, sizes[i].text, v);
    }
}

Test(str, percent_decode)
{
    char out[32];
    size_t len = 0;
    cr_assert(sg_percent_decode("a%2Fb%c3%A9+", 12, false, out, &len));
    cr_assert_str_eq(out, "a/b\xc3\xa9+");
    cr_assert(sg_percent_decode("a+b", 3, true, out, &len));
    cr_assert_str_eq(out, "a b");
    static const char *const bad[] = {"%", "%2", "%zz", "%00", "a%0"};
    for (size_t i = 0; i < SG_COUNT_OF(bad); i++) {
        cr_expect_not(sg_percent_decode(bad[i], strlen(bad[i]), true, out, &len), "\"%s\"", bad[i]);
    }
    cr_assert_not(sg_percent_decode("%41", 2, false, out, &len), "must not look past the length given");
}

Test(str, doubles_are_short_and_exact)
{
    static const struct {
        double v;
        const char *text;
    } cases[] = {{0.1, "0.1"}, {5, "5.0"}, {-2, "-2.0"}, {1e300, "1e+300"}, {1.0 / 3, "0.3333333333333333"}};
    for (size_t i = 0; i < SG_COUNT_OF(cases); i++) {
        char out[SG_DOUBLE_LEN];
        sg_format_double(cases[i].v, out);
        cr_expect_str_eq(out, cases[i].text);
    }
}

Test(clock, every_day_of_the_calendar)
{
    for (time_t day = -719528; day <= 2932896; day++) { /* 0000-01-01 to 9999-12-31 */
        time_t s = day * 86400 + 86399;
        struct tm tm;
        char out[SG_TIME_LEN];
        sg_time_format((int64_t)s * 1000000 + 7, out);
        cr_assert_not_null(gmtime_r(&s, &tm));
        bool same = atoi(out) == tm.tm_year + 1900 && atoi(out + 5) == tm.tm_mon + 1 && atoi(out + 8) == tm.tm_mday;
        cr_assert(same && strcmp(out + 10, "T23:59:59.000007Z") == 0, "%s", out);
    }
}

Test(clock, time_format)
{
    char out[SG_TIME_LEN];
    sg_time_format(1795872369123456, out);
    cr_expect_str_eq(out, "2026-11-28T13:26:09.123456Z");
    sg_time_format(-1, out);
    cr_expect_str_eq(out, "1969-12-31T23:59:59.999999Z");
    sg_time_format(INT64_MAX, out);
    cr_expect_str_eq(out, "1970-01-01T00:00:00.000000Z", "out of range falls back");
    int64_t before = sg_now_ms();
    cr_assert_leq(before, sg_now_us() / 1000);
}

Test(id, ids_are_valid_distinct_and_sorted_by_time)
{
    char a[SG_ID_MAX], b[SG_ID_MAX];
    sg_id_new("lease", a);
    int64_t start = sg_wall_us() / 1000;
    while (sg_wall_us() / 1000 <= start) {
        /* until the next millisecond */
    }
    sg_id_new("lease", b);
    cr_assert(sg_id_valid("lease", a));
    cr_assert_not(sg_id_valid("exec", a));
    cr_assert_lt(strcmp(a, b), 0);
    cr_assert_eq(strlen(a), strlen("lease_") + 32);
    static const char *const bad[] = {"", "lease", "lease_", "lease_0", "lease_0123456789012345678901234567890u",
                                      "lease_0123456789012345678901234567890A", "lease_012345678901234567890123456789012"};
    for (size_t i = 0; i < SG_COUNT_OF(bad); i++) {
        cr_expect_not(sg_id_valid("lease", bad[i]), "\"%s\"", bad[i]);
    }
}
