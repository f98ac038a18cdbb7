/* What an engine says of a pull, in whatever pieces it comes. */
#include "backends/docker/pull_progress.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static const char told[] =
    "{\"status\":\"Pulling from library/x\",\"id\":\"1\"}\r\n"
    "{\"status\":\"Already exists\",\"progressDetail\":{},\"id\":\"aa\"}\r\n"
    "{\"status\":\"Pulling fs layer\",\"progressDetail\":{},\"id\":\"bb\"}{\"status\":\"Waiting\",\"id\":\"cc\"}\n"
    "{\"status\":\"Downloading\",\"progressDetail\":{\"current\":100,\"total\":1000},\"id\":\"bb\"}\n"
    "{\"status\":\"Downloading\",\"progressDetail\":{\"current\":50,\"total\":500},\"id\":\"cc\"}\n"
    "{\"status\":\"Download complete\",\"progressDetail\":{},\"id\":\"cc\"}\n"
    "this is not JSON\n"
    "{\"status\":\"Downloading\",\"progressDetail\":{\"current\":-7,\"total\":99999999999999999999},\"id\":\"bb\"}\n"
    "{\"status\":\"Downloading\",\"progressDetail\":{\"current\":300,\"total\":1000},\"id\":\"bb\"}\n";

static void check_downloading(const struct pull_progress *p)
{
    struct pull_figures f;
    pull_figures(p, &f);
    cr_assert_str_eq(f.status, "downloading");
    cr_assert_eq(f.current, 800);
    cr_assert_eq(f.total, 1500);
    cr_assert_eq(f.layers, 3);
    cr_assert_eq(f.layers_done, 1);
    cr_assert_str_eq(p->error, "");
}

Test(pull_progress, in_pieces_of_any_size)
{
    for (size_t piece = 1; piece < sizeof told; piece += 7) {
        struct pull_progress p = {0};
        for (size_t at = 0; at < sizeof told - 1; at += piece) {
            size_t left = sizeof told - 1 - at;
            pull_progress_feed(&p, told + at, left < piece ? left : piece);
        }
        check_downloading(&p);
        pull_progress_finish(&p);
    }
}

Test(pull_progress, to_the_end)
{
    static const char rest[] = "{\"status\":\"Extracting\",\"progressDetail\":{\"current\":10,\"total\":500},\"id\":\"cc\"}\n"
                               "{\"status\":\"Pull complete\",\"progressDetail\":{},\"id\":\"cc\"}\n";
    struct pull_progress p = {0};
    struct pull_figures f;
    pull_figures(&p, &f);
    cr_assert_str_eq(f.status, "resolving");
    pull_progress_feed(&p, told, sizeof told - 1);
    pull_progress_feed(&p, rest, sizeof rest - 1);
    pull_figures(&p, &f);
    cr_assert_str_eq(f.status, "extracting");
    cr_assert_eq(f.layers_done, 2);
    pull_progress_finish(&p);
}

Test(pull_progress, an_error_without_a_line_end)
{
    static const char error[] = "{\"errorDetail\":{\"message\":\"no space\"},\"error\":\"no space\"}";
    struct pull_progress p = {0};
    pull_progress_feed(&p, error, sizeof error - 1);
    pull_progress_end(&p);
    cr_assert_str_eq(p.error, "no space");
    pull_progress_finish(&p);

    pull_progress_feed(&p, "{\"errorDetail\":{}, \"error\":\"\"}\n", 31);
    pull_progress_end(&p);
    cr_assert_str_eq(p.error, "no reason given", "an error of which nothing is said is one all the same, not \"%s\"", p.error);
    pull_progress_finish(&p);
}

Test(pull_progress, what_has_no_end)
{
    struct pull_progress p = {0};
    static char much[3 * PULL_LINE_MAX];
    memset(much, 'x', sizeof much);
    pull_progress_feed(&p, much, sizeof much);
    cr_assert_eq(p.len, 0);
    pull_progress_feed(&p, "\n", 1);
    pull_progress_feed(&p, told, sizeof told - 1);
    check_downloading(&p);

    for (int i = 0; i < 1000; i++) {
        char line[80];
        int n = snprintf(line, sizeof line, "{\"status\":\"Waiting\",\"id\":\"layer%d\"}\n", i);
        pull_progress_feed(&p, line, (size_t)n);
    }
    struct pull_figures f;
    pull_figures(&p, &f);
    cr_assert_eq(f.layers, PULL_LAYERS_MAX);
    pull_progress_finish(&p);
}
