/* Subcommands that need no running server. */
#include <stdio.h>

#include "app.h"
#include "base/json.h"
#include "base/secret.h"
#include "cli/commands.h"
#include "config.h"

static struct sg_config_args config_args(const struct sg_cli_args *a)
{
    return (struct sg_config_args){
        .file = sg_cli_value(a, "config"),
        .state_dir = sg_cli_value(a, "state-dir"),
        .listen = sg_cli_value(a, "listen"),
    };
}

static void config_p(struct sg_config **c)
{
    *c = sg_config_free(*c);
}

int sg_cli_serve(const struct sg_cli_args *a)
{
    struct sg_error err = {0};
    struct sg_config_args args = config_args(a);
    sg_cleanup(config_p) struct sg_config *c = NULL;
    sg_secret_hide_env();
    if (sg_config_load(&args, &c, &err) < 0 || sg_app_run(c, &args, &err) < 0) {
        return sg_cli_fail(&err);
    }
    return SG_CLI_OK;
}

static int print_explained(const json_t *rows)
{
    struct sg_cli_table t = {.columns = 3};
    size_t i;
    json_t *row;
    sg_cli_table_add(&t, "SETTING");
    sg_cli_table_add(&t, "VALUE");
    sg_cli_table_add(&t, "FROM");
    json_array_foreach(rows, i, row) {
        sg_cleanup(sg_free_p) char *value = sg_cli_text(row, "value");
        sg_cli_table_add(&t, json_string_value(json_object_get(row, "key")));
        sg_cli_table_add(&t, value);
        sg_cli_table_add(&t, json_string_value(json_object_get(row, "origin")));
    }
    return sg_cli_table_print(&t);
}

int sg_cli_check_config(const struct sg_cli_args *a)
{
    struct sg_error err = {0};
    struct sg_config_args args = config_args(a);
    sg_cleanup(config_p) struct sg_config *c = NULL;
    if (sg_cli_value(a, "table") != NULL) {
        sg_cleanup(sg_free_p) char *table = sg_config_table();
        (void)printf("%s", table);
        return SG_CLI_OK;
    }
    if (sg_config_load(&args, &c, &err) < 0) {
        return sg_cli_fail(&err);
    }
    sg_cleanup(sg_json_p) json_t *rows = sg_config_explain(c);
    if (sg_cli_value(a, "json") != NULL) {
        return sg_cli_print_json(rows);
    }
    if (sg_cli_value(a, "explain") != NULL) {
        return print_explained(rows);
    }
    (void)printf("the configuration is good\n");
    return SG_CLI_OK;
}

int sg_cli_version(const struct sg_cli_args *a)
{
    if (sg_cli_value(a, "json") != NULL) {
        sg_cleanup(sg_json_p) json_t *v = json_pack("{s:s, s:s}", "name", "sandgate", "version", SG_VERSION);
        return sg_cli_print_json(v);
    }
    (void)printf("sandgate %s\n", SG_VERSION);
    return SG_CLI_OK;
}
