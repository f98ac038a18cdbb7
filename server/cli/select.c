/* `sandgate select` and `sandgate receipt verify`: the server's own selector, offline. */
#include <stdio.h>

#include "backends/facts.h"
#include "base/fd.h"
#include "base/json.h"
#include "cli/commands.h"
#include "config.h"
#include "select/decide.h"
#include "select/receipt.h"

#define INPUT_MAX ((size_t)1 << 20)

/* ---- input ---- */

static int read_stdin(char **ret, size_t *ret_len, struct sg_error *err)
{
    char *text = malloc(INPUT_MAX + 1);
    if (!text)
        return sg_error_set(err, SG_NO_MEMORY, "out of memory");
    size_t n = fread(text, 1, INPUT_MAX + 1, stdin);
    if (ferror(stdin) || n > INPUT_MAX) {
        free(text);
        return sg_error_set(err, SG_INVALID_REQUEST, "standard input: unreadable, or more than %zu bytes",
                            INPUT_MAX);
    }
    *ret = text;
    *ret_len = n;
    return 0;
}

/* The JSON in a file, or on standard input for "-". */
static int read_json(const char *path, json_t **ret, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *text = NULL;
    size_t len = 0;
    int rc =
        sg_streq(path, "-") ? read_stdin(&text, &len, err) : sg_read_file(path, INPUT_MAX, &text, &len, err);
    return rc < 0 ? -1 : sg_json_parse_object(text, len, ret, err);
}

/* ---- what a server with this configuration would choose from ---- */

/* A backend has what one of its local pools has. */
static enum sg_egress widest_egress(const struct sg_config *c)
{
    enum sg_egress e = c->local_bwrap.pool.egress;
    for (size_t i = 0; i < c->n_local_pools; i++) {
        if (c->local_pools[i].pool.egress > e)
            e = c->local_pools[i].pool.egress;
    }
    return e;
}

static int candidates_of(const struct sg_config *c, struct sg_candidates *ret, struct sg_error *err)
{
    const struct sg_facts_settings settings = {.local_bwrap_egress = widest_egress(c),
                                               .docker_egress = c->docker.egress};
    for (size_t i = 0; i < sg_config_count(c->backends.enabled); i++) {
        struct sg_driver_facts f;
        /* What has no row (the scriptable backend of tests) is known to a running server only. */
        if (!sg_facts_get(c->backends.enabled[i], &settings, &f))
            continue;
        if (sg_candidates_add(ret, f.name, f.caps, f.free, f.credentials, err) < 0)
            return -1;
    }
    return 0;
}

static int answer_over_config(const struct sg_selection_request *rq, const char *file, char **ret,
                              size_t *ret_len, struct sg_error *err)
{
    const struct sg_principal anyone = {.role = SG_ROLE_ADMIN, .allow_paid = true};
    const struct sg_config_args args = {.file = file};
    struct sg_candidates registered = {0};
    struct sg_environment env = {0};
    struct sg_config *c = NULL;
    const struct sg_selection_world world = {&anyone, &registered, &env};
    int rc = sg_config_load(&args, &c, err);
    if (rc == 0)
        rc = candidates_of(c, &registered, err);
    if (rc == 0)
        rc = sg_facts_held_credentials(&env.available_credentials, err);
    if (rc == 0)
        rc = sg_selection_answer(rq, &world, ret, ret_len, err);
    sg_candidates_finish(&registered);
    sg_environment_finish(&env);
    sg_config_free(c);
    return rc;
}

/* A request that brings everything needs no configuration, good or bad. */
static int answer(const struct sg_selection_request *rq, const char *config, char **ret, size_t *ret_len,
                  struct sg_error *err)
{
    const struct sg_selection_world nothing = {0};
    if (rq->backends_given && rq->environment_given)
        return sg_selection_answer(rq, &nothing, ret, ret_len, err);
    return answer_over_config(rq, config, ret, ret_len, err);
}

/* ---- select ---- */

/* "code: detail; code: detail". Caller frees. */
static char *why_not(const json_t *considered)
{
    const json_t *reasons = json_object_get(considered, "reasons");
    char *text = sg_xstrdup("");
    for (size_t i = 0; i < json_array_size(reasons); i++) {
        const json_t *r = json_array_get(reasons, i);
        char *longer =
            sg_xasprintf("%s%s%s: %s", text, i ? "; " : "", json_string_value(json_object_get(r, "code")),
                         json_string_value(json_object_get(r, "detail")));
        free(text);
        text = longer;
    }
    return text;
}

/* v: {considered, receipt}; result: the last line's word and value. */
static int print_table(const json_t *v, const char *word, const char *value)
{
    struct sg_cli_table t = {.columns = 3};
    size_t i;
    json_t *c;
    sg_cli_table_add(&t, "BACKEND");
    sg_cli_table_add(&t, "ELIGIBLE");
    sg_cli_table_add(&t, "WHY NOT");
    json_array_foreach(json_object_get(v, "considered"), i, c)
    {
        sg_cleanup(sg_free_p) char *why = why_not(c);
        sg_cli_table_add(&t, json_string_value(json_object_get(c, "backend")));
        sg_cli_table_add(&t, json_is_true(json_object_get(c, "eligible")) ? "yes" : "no");
        sg_cli_table_add(&t, why);
    }
    int rc = sg_cli_table_print(&t);
    printf("\n%-8s %s\nreceipt  %s\n", word, value,
           json_string_value(json_object_get(json_object_get(v, "receipt"), "id")));
    return rc;
}

static int print_choice(const char *text, size_t len, bool json)
{
    struct sg_error err = {0};
    sg_cleanup(sg_json_p) json_t *v = NULL;
    if (json)
        return printf("%s\n", text) < 0 || fflush(stdout) != 0 ? SG_CLI_FAILED : SG_CLI_OK;
    if (sg_json_parse(text, len, &v, &err) < 0)
        return sg_cli_fail(&err);
    return print_table(v, "chosen", json_string_value(json_object_get(v, "backend")));
}

static int print_refusal(struct sg_error *err, bool json)
{
    if (err->members && json) {
        sg_cleanup(sg_json_p) json_t *v =
            json_pack("{s:s, s:s}", "code", sg_code_name(err->code), "detail", err->message);
        json_object_update_missing(v, err->members);
        sg_cli_print_json(v);
    } else if (err->members) {
        print_table(err->members, "refused", sg_code_name(err->code));
    }
    return sg_cli_fail(err);
}

int sg_cli_select(const struct sg_cli_args *a)
{
    const char *file = sg_cli_value(a, "file");
    bool json = sg_cli_value(a, "json") != NULL;
    struct sg_selection_request rq = {0};
    struct sg_error err = {0};
    sg_cleanup(sg_json_p) json_t *body = file ? NULL : json_object();
    sg_cleanup(sg_free_p) char *text = NULL;
    size_t len = 0;
    int status;
    if ((file && read_json(file, &body, &err) < 0) || sg_selection_parse(body, &rq, &err) < 0) {
        if (err.field[0] && !strstr(err.message, err.field))
            sg_error_wrap(&err, "%s", err.field);
        status = sg_cli_fail(&err);
    } else if (answer(&rq, sg_cli_value(a, "config"), &text, &len, &err) < 0) {
        status = print_refusal(&err, json);
    } else {
        status = print_choice(text, len, json);
    }
    sg_selection_request_finish(&rq);
    return status;
}

/* ---- receipt verify ---- */

int sg_cli_receipt_verify(const struct sg_cli_args *a)
{
    struct sg_receipt_check check;
    struct sg_error err = {0};
    sg_cleanup(sg_json_p) json_t *receipt = NULL;
    if (read_json(a->args[0], &receipt, &err) < 0 || sg_receipt_verify(receipt, &check, &err) < 0)
        return sg_cli_fail(&err);
    if (sg_cli_value(a, "json")) {
        sg_cleanup(sg_json_p) json_t *v =
            json_pack("{s:b, s:s?, s:s?}", "ok", check.ok, "reason", check.ok ? NULL : check.reason, "detail",
                      check.ok ? NULL : check.detail);
        int rc = sg_cli_print_json(v);
        return check.ok ? rc : SG_CLI_FAILED;
    }
    if (!check.ok) {
        sg_error_set(&err, SG_CONFLICT, "not genuine: %s: %s", check.reason, check.detail);
        return sg_cli_fail(&err);
    }
    printf("ok %s\n", json_string_value(json_object_get(receipt, "id")));
    return fflush(stdout) == 0 ? SG_CLI_OK : SG_CLI_FAILED;
}
