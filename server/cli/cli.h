/* The frame of the command line: a table of subcommands with their options, parsed the same way everywhere.
 *
 * Exit codes: 0 done, 1 refused or failed, 2 wrong usage. Data goes to stdout, everything else to stderr.
 */
#ifndef SG_CLI_H
#define SG_CLI_H

#include <jansson.h>

#include "base/error.h"

#define SG_CLI_OPTIONS_MAX 8
#define SG_CLI_ARGS_MAX 4

enum { SG_CLI_OK = 0, SG_CLI_FAILED = 1, SG_CLI_USAGE = 2 };

struct sg_cli_option {
    const char *name; /* without dashes */
    const char *arg;  /* what its value is called; NULL: a flag */
    const char *help;
};

struct sg_cli_args;

/* One row. `name` may be two words: "lease ls". */
struct sg_cli_command {
    const char *name;
    const char *args; /* positional ones as shown in the usage, or "" */
    size_t args_min, args_max;
    const char *summary;
    struct sg_cli_option options[SG_CLI_OPTIONS_MAX]; /* ends with a NULL name */
    int (*run)(const struct sg_cli_args *a);
};

struct sg_cli_args {
    const struct sg_cli_command *command;
    const char *values[SG_CLI_OPTIONS_MAX];
    const char *args[SG_CLI_ARGS_MAX];
    size_t n;
};

/* Finds the subcommand in a table (ends with a NULL name), parses, runs it; returns the exit code. */
int sg_cli_main(const struct sg_cli_command *commands, int argc, char **argv);

/* The value of an option, "" for a flag that is there, NULL when it is not. */
const char *sg_cli_value(const struct sg_cli_args *a, const char *option);

/* "sandgate: message" on stderr; returns SG_CLI_FAILED and clears err. */
int sg_cli_fail(struct sg_error *err);
/* Pretty JSON and a newline on stdout. SG_CLI_FAILED when that does not work. */
int sg_cli_print_json(const json_t *v);

/* Aligned columns: the first row is the heading. Control characters are shown as '?'. */
struct sg_cli_table {
    size_t columns;
    char **cells;
    size_t n;
};
void sg_cli_table_add(struct sg_cli_table *t, const char *text); /* NULL or "": "-" */
int sg_cli_table_print(struct sg_cli_table *t); /* frees the cells; an exit code */
/* A member of an object as text for a cell: strings as they are, other values as JSON, null as "". Caller frees. */
char *sg_cli_text(const json_t *object, const char *member);

#endif
