#include <criterion/criterion.h>
#include <criterion/redirect.h>

#include "cli/cli.h"

static struct sg_cli_args seen;
static int runs;

static int note(const struct sg_cli_args *a)
{
    seen = *a;
    runs++;
    return 7;
}

static const struct sg_cli_command commands[] = {
    {"plain", "", 0, 0, "Plain one", {{"config", "FILE", "a file"}, {"json", NULL, "flag"}}, note},
    {"lease show", "ID", 1, 2, "Shows", {{"url", "URL", "where"}}, note},
    {.name = NULL},
};

static int run(const char *const *words)
{
    char *argv[12] = {0};
    int n = 0;
    argv[n++] = (char *)(uintptr_t) "sandgate";
    for (; words[n - 1] != NULL; n++) {
        argv[n] = (char *)(uintptr_t)words[n - 1];
    }
    runs = 0;
    return sg_cli_main(commands, n, argv);
}
#define RUN(...) run((const char *const[]){__VA_ARGS__, NULL})

static void quiet(void)
{
    cr_redirect_stdout();
    cr_redirect_stderr();
}

TestSuite(cli, .init = quiet);

Test(cli, options_and_arguments)
{
    cr_assert_eq(RUN("plain", "--config", "f.yaml", "--json"), 7);
    cr_assert_str_eq(sg_cli_value(&seen, "config"), "f.yaml");
    cr_assert_str_eq(sg_cli_value(&seen, "json"), "");
    cr_assert_null(sg_cli_value(&seen, "nope"));
    cr_assert_eq(RUN("plain", "--config=--x"), 7);
    cr_assert_str_eq(sg_cli_value(&seen, "config"), "--x");
    cr_assert_null(sg_cli_value(&seen, "json"));
    cr_assert_eq(RUN("lease", "show", "a", "--url", "u", "--", "--help"), 7);
    cr_assert(seen.n == 2 && sg_streq(seen.args[0], "a") && sg_streq(seen.args[1], "--help"));
    cr_assert_eq(RUN("lease", "show", "-"), 7);
}

Test(cli, wrong_usage_is_2_and_runs_nothing)
{
    cr_assert_eq(RUN("nope"), SG_CLI_USAGE);
    cr_assert_eq(RUN("lease"), SG_CLI_USAGE);
    cr_assert_eq(RUN("lease", "nope"), SG_CLI_USAGE);
    cr_assert_eq(RUN("leas", "show"), SG_CLI_USAGE);
    cr_assert_eq(RUN("lease", "show"), SG_CLI_USAGE);
    cr_assert_eq(RUN("lease", "show", "a", "b", "c"), SG_CLI_USAGE);
    cr_assert_eq(RUN("lease", "show", ""), SG_CLI_USAGE);
    cr_assert_eq(RUN("plain", "--nope"), SG_CLI_USAGE);
    cr_assert_eq(RUN("plain", "-x"), SG_CLI_USAGE);
    cr_assert_eq(RUN("plain", "--config"), SG_CLI_USAGE);
    cr_assert_eq(RUN("plain", "--json=1"), SG_CLI_USAGE);
    cr_assert_eq(RUN("plain", "x"), SG_CLI_USAGE);
    cr_assert_eq(runs, 0);
    char *none[] = {(char *)(uintptr_t) "sandgate", NULL};
    cr_assert_eq(sg_cli_main(commands, 1, none), SG_CLI_USAGE);
}

Test(cli, help_is_on_stdout)
{
    cr_assert_eq(RUN("plain", "--help"), SG_CLI_OK);
    cr_assert_eq(RUN("--help"), SG_CLI_OK);
    cr_assert_eq(RUN("lease", "--help"), SG_CLI_OK);
    cr_assert_eq(RUN("lease", "show", "x", "-h"), SG_CLI_OK);
    cr_assert_eq(runs, 0);
    fflush(stdout);
    char text[4096];
    size_t n = fread(text, 1, sizeof text - 1, cr_get_redirected_stdout());
    text[n] = '\0';
    cr_assert_not_null(strstr(text, "--config FILE"));
    cr_assert_not_null(strstr(text, "lease show"));
}

Test(cli, tables_are_aligned_and_harmless)
{
    struct sg_cli_table t = {.columns = 2};
    sg_cli_table_add(&t, "NAME");
    sg_cli_table_add(&t, "X");
    sg_cli_table_add(&t, "\xc3\xa9\x1b[2J");
    sg_cli_table_add(&t, NULL);
    cr_assert_eq(sg_cli_table_print(&t), SG_CLI_OK);
    char text[256];
    size_t n = fread(text, 1, sizeof text - 1, cr_get_redirected_stdout());
    text[n] = '\0';
    cr_assert_str_eq(text, "NAME   X\n\xc3\xa9?[2J  -\n");
}
