#include <criterion/criterion.h>

#include "http/accept.h"

static bool json(const char *accept)
{
    const struct sg_header h[] = {{"Host", "h"}, {"accept", accept}};
    return sg_accepts(h, SG_COUNT_OF(h), "application/json");
}

Test(accept, absent_or_illegible_is_no_demand)
{
    const struct sg_header h[] = {{"Host", "h"}};
    cr_assert(sg_accepts(h, 1, "application/json"));
    cr_assert(sg_accepts(NULL, 0, "application/json"));
    static const char *const odd[] = {"", " ", ",", ", ,", "json", ";q=0", "/", "text/", "/json", "*"};
    for (size_t i = 0; i < SG_COUNT_OF(odd); i++)
        cr_assert(json(odd[i]), "%s", odd[i]);
}

Test(accept, ranges)
{
    static const char *const yes[] = {"application/json", "Application/JSON", "application/*", "*/*", "text/html, */*;q=0.1",
                                      " text/html ,\tapplication/json ", "application/json; charset=utf-8", "application/json;q=0.001",
                                      "application/json;q=1", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
                                      "application/json;q=0, application/json;v=2", "text/*;q=0, application/json", "x, application/json"};
    static const char *const no[] = {"text/event-stream", "image/png", "application/x-ndjson", "text/*", "application/jsonp",
                                     "application/jso", "*/json", "application/json;q=0", "application/json ; q=0.000",
                                     "*/*;q=0", "*/*, application/json;q=0", "application/json;q=0, application/*", "*/*, application/*;q=0.0",
                                     "image/png, image/*", "application/json;v=1;q=0"};
    for (size_t i = 0; i < SG_COUNT_OF(yes); i++)
        cr_assert(json(yes[i]), "%s", yes[i]);
    for (size_t i = 0; i < SG_COUNT_OF(no); i++)
        cr_assert_not(json(no[i]), "%s", no[i]);
}

Test(accept, several_lines_are_one_list)
{
    const struct sg_header h[] = {{"Accept", "image/png"}, {"ACCEPT", "application/json"}};
    cr_assert(sg_accepts(h, 2, "application/json"));
    cr_assert(sg_accepts(h, 2, "image/png"));
    cr_assert_not(sg_accepts(h, 2, "text/plain"));
}

static const char *best(const char *accept)
{
    static const char *const types[] = {"application/json", "application/x-ndjson", "text/event-stream", NULL};
    const struct sg_header h[] = {{"Host", "h"}, {"accept", accept}};
    return types[sg_accept_best(h, SG_COUNT_OF(h), types)];
}

Test(accept, the_best_of_several)
{
    static const char *const cases[][2] = {
        {"", "application/json"},
        {"*/*", "application/json"},
        {"application/*", "application/json"},
        {"application/json", "application/json"},
        {"application/x-ndjson", "application/x-ndjson"},
        {"text/event-stream", "text/event-stream"},
        {"text/*", "text/event-stream"},
        {"text/event-stream, */*", "text/event-stream"},
        {"*/*, text/event-stream", "text/event-stream"},
        {"*/*, text/event-stream;q=0.5", "application/json"},
        {"application/json, text/event-stream", "application/json"},
        {"text/event-stream, application/json", "text/event-stream"},
        {"application/json;q=0.5, application/x-ndjson;q=0.501", "application/x-ndjson"},
        {"application/json;q=0, */*", "application/x-ndjson"},
        {"application/x-ndjson;q=0, application/*", "application/json"},
        {"text/event-stream;q=0, image/png", "application/json"},
    };
    for (size_t i = 0; i < SG_COUNT_OF(cases); i++)
        cr_assert_str_eq(best(cases[i][0]), cases[i][1], "%s", cases[i][0]);
    cr_assert_eq(sg_accept_best(NULL, 0, (const char *const[]){"a/b", "c/d", NULL}), 0);
}
