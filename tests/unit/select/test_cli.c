/* `sandgate select` and `sandgate receipt verify`, in-process. */
#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <stdio.h>
#include <unistd.h>

#include "app.h"
#include "base/json.h"
#include "cli/commands.h"

static const char plain_request[] = GOLDEN_DIR "/plain.request.json";
static const char plain_answer[] = GOLDEN_DIR "/plain.answer.json";
static const char all_reasons_request[] = GOLDEN_DIR "/all_reasons.request.json";
static const char paid_answer[] = GOLDEN_DIR "/paid.answer.json";

/* Nothing here serves. */
int sg_app_run(const struct sg_config *cfg SG_UNUSED, const struct sg_config_args *args SG_UNUSED,
               struct sg_error *err)
{
    return sg_error_set(err, SG_NOT_IMPLEMENTED, "not in this test");
}

static int run(const char *const *words)
{
    char *argv[12] = {NULL};
    int argc = 0;
    for (; words[argc]; argc++)
        argv[argc] = sg_xstrdup(words[argc]);
    int status = sg_cli_main(sg_cli_commands, argc, argv);
    for (int i = 0; i < argc; i++)
        free(argv[i]);
    fflush(NULL);
    return status;
}

#define RUN(...) run((const char *const[]){"sandgate", __VA_ARGS__, NULL})

static void redirect(void)
{
    unsetenv("SANDGATE_CONFIG");
    unsetenv("E2B_API_KEY");
    cr_redirect_stdout();
    cr_redirect_stderr();
}

static void expect_stdout(const char *part)
{
    static char text[65536];
    FILE *f = cr_get_redirected_stdout();
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = '\0';
    cr_assert(strstr(text, part) != NULL, "no \"%s\" in: %s", part, text);
}

static void expect_stderr(const char *part)
{
    static char text[65536];
    FILE *f = cr_get_redirected_stderr();
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = '\0';
    cr_assert(strstr(text, part) != NULL, "no \"%s\" in: %s", part, text);
}

/* A file with this text; its name is written to path. */
static void write_file(char *path, const char *text)
{
    static const char template[] = "/tmp/sandgate-test-XXXXXX";
    memcpy(path, template, sizeof template);
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

static char *slurp(const char *path)
{
    static char text[65536];
    FILE *f = fopen(path, "re");
    cr_assert(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = '\0';
    fclose(f);
    return text;
}

Test(cli_select, without_a_body_the_default_configuration_counts, .init = redirect)
{
    cr_assert_eq(RUN("select"), 0);
    expect_stdout("chosen   local_bwrap");
}

Test(cli_select, json_is_what_the_server_answers, .init = redirect)
{
    cr_assert_eq(RUN("select", "--json", "--file", plain_request), 0);
    expect_stdout(slurp(plain_answer));
}

Test(cli_select, a_refusal_is_explained_and_is_1, .init = redirect)
{
    cr_assert_eq(RUN("select", "--file", all_reasons_request), 1);
    expect_stdout("missing_capabilities: missing exec, gpu; missing_credentials: missing A1");
    expect_stderr("none of the 4 backends");
}

Test(cli_select, a_bad_body_names_the_member, .init = redirect)
{
    char path[64];
    write_file(path, "{\"policy\":{\"required_capabilities\":[\"warp\"]}}");
    cr_assert_eq(RUN("select", "--file", path), 1);
    unlink(path);
    expect_stderr("policy.required_capabilities[0]");
}

Test(cli_select, escapes_do_not_reach_the_terminal, .init = redirect)
{
    char path[64];
    write_file(path, "{\"\\u001b[31mred\":1}");
    cr_assert_eq(RUN("select", "--file", path), 1);
    unlink(path);
    expect_stderr("?[31mred");
}

Test(cli_select, wrong_use, .init = redirect)
{
    cr_assert_eq(RUN("select", "--nope"), 2);
    cr_assert_eq(RUN("select", "surplus"), 2);
    cr_assert_eq(RUN("receipt", "verify"), 2);
    cr_assert_eq(RUN("select", "--file", "/nonexistent/x"), 1);
    cr_assert_eq(RUN("select", "--help"), 0);
    cr_assert_eq(RUN("receipt", "verify", "--help"), 0);
}

/* The receipt of a golden answer in a file of its own. */
static void receipt_file(char *path, bool forge)
{
    json_t *answer = NULL;
    const char *text = slurp(paid_answer);
    cr_assert_eq(sg_json_parse(text, strlen(text), &answer, NULL), 0);
    json_t *receipt = json_object_get(answer, "receipt");
    if (forge)
        json_object_set_new(receipt, "chosen_backend", json_string("e2b"));
    sg_cleanup(sg_free_p) char *out = sg_json_dump(receipt, NULL);
    write_file(path, out);
    json_decref(answer);
}

Test(cli_select, a_receipt_is_verified, .init = redirect)
{
    char path[64];
    receipt_file(path, false);
    cr_assert_eq(RUN("receipt", "verify", path), 0);
    unlink(path);
    expect_stdout("ok ");
}

Test(cli_select, a_forged_receipt_is_not, .init = redirect)
{
    char path[64];
    receipt_file(path, true);
    cr_assert_eq(RUN("receipt", "verify", path), 1);
    cr_assert_eq(RUN("receipt", "verify", "--json", path), 1);
    unlink(path);
    expect_stderr("id_mismatch");
    expect_stdout("\"ok\": false");
}
