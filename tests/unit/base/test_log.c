#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <unistd.h>

#include "base/log.h"

static int ends[2];
static struct sg_log *log_;

static void setup(void)
{
    cr_assert_eq(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    log_ = sg_log_new(ends[1], SG_LOG_INFO);
}

static void teardown(void)
{
    sg_log_free(log_);
    close(ends[0]);
    close(ends[1]);
}

TestSuite(log, .init = setup, .fini = teardown);

/* The one line that is in the pipe, parsed. */
static json_t *line(void)
{
    char text[8192];
    ssize_t n = read(ends[0], text, sizeof text);
    cr_assert_gt(n, 0);
    cr_assert_leq(n, 4096);
    cr_assert_eq(text[n - 1], '\n');
    cr_assert_eq(memchr(text, '\n', (size_t)n), text + n - 1);
    json_error_t e;
    json_t *v = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, &e);
    cr_assert_not_null(v, "%s: %.*s", e.text, (int)n, text);
    return v;
}

static const char *member(json_t *v, const char *key)
{
    return json_string_value(json_object_get(v, key));
}

Test(log, members)
{
    struct sg_log_line l;
    sg_log_begin(&l, log_, SG_LOG_WARN, "lease_ready");
    sg_log_str(&l, "lease_id", "lease_1");
    sg_log_str(&l, "none", NULL);
    sg_log_str(&l, "empty", "");
    sg_log_int(&l, "duration_us", -5);
    sg_log_bool(&l, "cold", true);
    sg_log_end(&l);
    json_t *v = line();
    cr_assert_str_eq(member(v, "level"), "warn");
    cr_assert_str_eq(member(v, "event"), "lease_ready");
    cr_assert_eq(strlen(member(v, "time")), 27);
    cr_assert_str_eq(member(v, "lease_id"), "lease_1");
    cr_assert_eq(json_integer_value(json_object_get(v, "duration_us")), -5);
    cr_assert(json_is_true(json_object_get(v, "cold")));
    cr_assert_eq(json_object_size(v), 6);
    json_decref(v);
}

Test(log, numbers_and_parts_of_text)
{
    struct sg_log_line l;
    sg_log_begin(&l, log_, SG_LOG_INFO, "e");
    sg_log_int(&l, "least", INT64_MIN);
    sg_log_int(&l, "most", INT64_MAX);
    sg_log_int(&l, "zero", 0);
    sg_log_text(&l, "part", "/a/b?secret", 4);
    sg_log_text(&l, "whole", "/a/b", 100);
    sg_log_text(&l, "nothing", "/a/b", 0);
    sg_log_text(&l, "half", "\xe2\x82\xac", 2);
    sg_log_end(&l);
    json_t *v = line();
    cr_assert_eq(json_integer_value(json_object_get(v, "least")), INT64_MIN);
    cr_assert_eq(json_integer_value(json_object_get(v, "most")), INT64_MAX);
    cr_assert_eq(json_integer_value(json_object_get(v, "zero")), 0);
    cr_assert_str_eq(member(v, "part"), "/a/b");
    cr_assert_str_eq(member(v, "whole"), "/a/b");
    cr_assert_null(json_object_get(v, "nothing"));
    cr_assert_str_eq(member(v, "half"), "\xef\xbf\xbd\xef\xbf\xbd");
    json_decref(v);
}

Test(log, hostile_text_stays_one_line_of_json)
{
    struct sg_log_line l;
    sg_log_begin(&l, log_, SG_LOG_INFO, "e");
    sg_log_str(&l, "a", "q\"b\\n\nx\x01\x7f\xff\xc3(\xe2\x82\xac\xf0\x9f");
    sg_log_end(&l);
    json_t *v = line();
    cr_assert_str_eq(member(v, "a"), "q\"b\\n\nx\x01\x7f\xef\xbf\xbd\xef\xbf\xbd(\xe2\x82\xac\xef\xbf\xbd\xef\xbf\xbd");
    json_decref(v);
}

Test(log, too_long_is_cut_and_still_valid)
{
    char big[5000];
    for (int width = 0; width < 3; width++) { /* cuts fall on different bytes of the characters */
        memset(big, 'x', sizeof big);
        for (size_t i = (size_t)width; i + 3 < sizeof big; i += 3) {
            memcpy(big + i, width == 1 ? "\xe2\x82\xac" : "\n\"\\", 3);
        }
        big[sizeof big - 1] = '\0';
        struct sg_log_line l;
        sg_log_begin(&l, log_, SG_LOG_INFO, "e");
        for (int i = 0; i < 100; i++) {
            char key[16];
            (void)snprintf(key, sizeof key, "k%d", i);
            sg_log_str(&l, key, big);
            (void)snprintf(key, sizeof key, "n%d", i);
            sg_log_int(&l, key, INT64_MIN);
        }
        sg_log_end(&l);
        json_t *v = line();
        cr_assert_not_null(member(v, "k1"), "a long value leaves room for others");
        json_decref(v);
    }
}

Test(log, levels_errors_and_no_log)
{
    struct sg_error err = {0};
    enum sg_log_level level;
    sg_log_event(log_, SG_LOG_DEBUG, "quiet", NULL);
    sg_log_event(NULL, SG_LOG_ERROR, "nowhere", NULL);
    char c;
    cr_assert(read(ends[0], &c, 1) < 0 && errno == EAGAIN);
    sg_error_sys(&err, SG_STORE_UNAVAILABLE, ENOSPC, "writing");
    sg_log_event(log_, SG_LOG_ERROR, "store", &err);
    json_t *v = line();
    cr_assert_str_eq(member(v, "code"), "store_unavailable");
    cr_assert_str_eq(member(v, "error"), "writing: No space left on device");
    cr_assert_eq(json_integer_value(json_object_get(v, "errno")), ENOSPC);
    json_decref(v);
    cr_assert(sg_log_level_parse("warn", &level) && level == SG_LOG_WARN);
    cr_assert_not(sg_log_level_parse("WARN", &level));
}

/* How many lines are in the pipe; *lost: how many more there were, by what the lines say. */
static size_t drain(uint64_t *lost)
{
    static char text[2 << 20];
    size_t len = 0, lines = 0;
    for (ssize_t n; (n = read(ends[0], text + len, sizeof text - 1 - len)) > 0;) {
        len += (size_t)n;
    }
    text[len] = '\0';
    for (char *at = text, *end; (end = strchr(at, '\n')) != NULL; at = end + 1) {
        json_t *v = json_loadb(at, (size_t)(end - at), 0, NULL);
        cr_assert_not_null(v);
        bool tells = strcmp(member(v, "event"), "log_lines_lost") == 0;
        *lost += tells ? (uint64_t)json_integer_value(json_object_get(v, "lines")) : 0;
        lines += !tells;
        json_decref(v);
    }
    return lines;
}

Test(log, nobody_waits_for_a_reader_that_has_stopped, .timeout = 60)
{
    enum { LINES = 20000 };
    uint64_t lost = 0;
    cr_assert_eq(fcntl(ends[1], F_SETFL, 0), 0); /* as standard error is: whoever writes waits */
    for (int i = 0; i < LINES; i++) {
        sg_log_event(log_, SG_LOG_INFO, "request", NULL);
    }
    size_t seen = drain(&lost);
    cr_assert_gt(seen, 100);
    cr_assert_lt(seen, LINES);
    cr_assert_eq(lost, 0);
    sg_log_event(log_, SG_LOG_INFO, "request", NULL);
    sg_log_event(log_, SG_LOG_INFO, "request", NULL);
    cr_assert_eq(seen + drain(&lost), LINES + 2 - lost);
    cr_assert_gt(lost, 0);
    sg_log_event(log_, SG_LOG_INFO, "request", NULL);
    cr_assert_eq(drain(&lost), 1);
}
