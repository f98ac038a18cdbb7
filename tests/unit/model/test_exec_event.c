#include <criterion/criterion.h>
#include <signal.h>

#include "base/json.h"
#include "model/exec_event.h"

static void expect(const struct sg_exec_event *e, enum sg_event_format f, const char *want)
{
    struct sg_buf b;
    sg_buf_init(&b, 1 << 20);
    cr_assert_eq(sg_exec_event_encode(e, f, &b), 0);
    cr_assert_str_eq(b.data, want);
    sg_buf_finish(&b);
}

Test(exec_event, text)
{
    struct sg_exec_event e = {.seq = 7, .type = SG_EVENT_STDOUT, .data = "a\n\"\\\x01\xc3\xa9", .len = 7};
    expect(&e, SG_EVENT_NDJSON,
           "{\"seq\":7,\"type\":\"stdout\",\"data\":\"a\\n\\\"\\\\\\u0001\xc3\xa9\",\"encoding\":\"utf-8\"}\n");
    expect(&e, SG_EVENT_SSE,
           "id: 7\nevent: stdout\ndata: {\"seq\":7,\"type\":\"stdout\",\"data\":\"a\\n\\\"\\\\\\u0001\xc3\xa9\",\"encoding\":\"utf-8\"}\n\n");
}

Test(exec_event, bytes)
{
    struct sg_exec_event e = {.seq = 8, .type = SG_EVENT_STDERR, .binary = true, .data = "\0\xff", .len = 2};
    expect(&e, SG_EVENT_NDJSON, "{\"seq\":8,\"type\":\"stderr\",\"data\":\"AP8=\",\"encoding\":\"base64\"}\n");
}

Test(exec_event, without_a_number)
{
    struct sg_exec_event e = {.type = SG_EVENT_PING};
    expect(&e, SG_EVENT_NDJSON, "{\"type\":\"ping\"}\n");
    expect(&e, SG_EVENT_SSE, "event: ping\ndata: {\"type\":\"ping\"}\n\n");
}

Test(exec_event, members)
{
    struct sg_exec_event e = {.seq = 1, .type = SG_EVENT_EXIT, .data = "{\"a\":1}", .len = 7};
    expect(&e, SG_EVENT_NDJSON, "{\"seq\":1,\"type\":\"exit\",\"a\":1}\n");
    e.data = "{}";
    e.len = 2;
    expect(&e, SG_EVENT_NDJSON, "{\"seq\":1,\"type\":\"exit\"}\n");
}

Test(exec_event, never_half_an_event)
{
    struct sg_exec_event e = {.seq = 7, .type = SG_EVENT_STDOUT, .data = "some text", .len = 9};
    struct sg_buf b;
    sg_buf_init(&b, 100);
    cr_assert_eq(sg_exec_event_encode(&e, SG_EVENT_NDJSON, &b), 0);
    size_t len = b.len;
    cr_assert_eq(sg_exec_event_encode(&e, SG_EVENT_NDJSON, &b), -1);
    cr_assert_eq(b.len, len);
    cr_assert_eq(b.data[len], '\0');
    sg_buf_finish(&b);
}

Test(exec_event, what_is_text)
{
    cr_assert(sg_event_is_text("", 0));
    cr_assert(sg_event_is_text("plain text of some length \xe2\x82\xac", 29));
    cr_assert_not(sg_event_is_text("a\0b", 3));
    cr_assert_not(sg_event_is_text("plain text of some length \xff", 27));
}

Test(exec_event, exit_says_how_it_ended)
{
    sg_cleanup(sg_json_p) json_t *cmd = json_string("kill -9 $$");
    struct sg_exec_result r = {.exec_id = "x1",
                               .command = cmd,
                               .out = {.total = 12},
                               .err = {.data = "nobody asked", .len = 12, .total = 34},
                               .exit = {.signal = SIGKILL, .duration_us = 1500000},
                               .timeout_ms = 2000};
    sg_cleanup(sg_free_p) char *text = sg_exec_exit_text(&r);
    sg_cleanup(sg_json_p) json_t *v = NULL;
    cr_assert_eq(sg_json_parse_object(text, strlen(text), &v, NULL), 0);
    cr_assert_str_eq(json_string_value(json_object_get(v, "exec_id")), "x1");
    cr_assert_str_eq(json_string_value(json_object_get(v, "cmd")), "kill -9 $$");
    cr_assert_str_eq(json_string_value(json_object_get(v, "signal")), "SIGKILL");
    cr_assert(json_is_null(json_object_get(v, "returncode")));
    cr_assert_eq(json_integer_value(json_object_get(v, "stdout_bytes_total")), 12);
    cr_assert_eq(json_integer_value(json_object_get(v, "stderr_bytes_total")), 34);
    cr_assert_null(json_object_get(v, "stderr"));
    cr_assert_eq(json_real_value(json_object_get(v, "timeout")), 2.0);
}

Test(exec_event, error_is_typed)
{
    struct sg_error err = {0};
    sg_error_set(&err, SG_SANDBOX_LOST, "the agent is gone");
    sg_cleanup(sg_free_p) char *text = sg_exec_error_text(&err);
    cr_assert_str_eq(text,
                     "{\"code\":\"sandbox_lost\",\"title\":\"The sandbox was lost\",\"detail\":\"the agent is gone\"}");
}
