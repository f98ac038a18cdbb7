#include "cli/cli.h"

#include <stdarg.h>
#include <stdio.h>

#define PROGRAM "sandgate"

/* ---- help ---- */

static void help_all(FILE *out, const struct sg_cli_command *commands)
{
    (void)fprintf(out, "usage: " PROGRAM " COMMAND [OPTION...] [ARGUMENT...]\n\n");
    for (const struct sg_cli_command *c = commands; c->name != NULL; c++) {
        (void)fprintf(out, "  %-16s %s\n", c->name, c->summary);
    }
    (void)fprintf(out, "\n" PROGRAM " COMMAND --help tells more.\n");
}

static void help_one(FILE *out, const struct sg_cli_command *c)
{
    bool options = c->options[0].name != NULL;
    (void)fprintf(out, "usage: " PROGRAM " %s%s%s%s\n\n%s.\n", c->name, options ? " [OPTION...]" : "", *c->args != '\0' ? " " : "",
                  c->args, c->summary);
    for (size_t i = 0; i < SG_CLI_OPTIONS_MAX && c->options[i].name != NULL; i++) {
        char left[64];
        const struct sg_cli_option *o = &c->options[i];
        (void)snprintf(left, sizeof left, "--%s%s%s", o->name, o->arg != NULL ? " " : "", o->arg != NULL ? o->arg : "");
        (void)fprintf(out, "%s  %-20s %s\n", i == 0 ? "\n" : "", left, o->help);
    }
}

/* The commands whose first word is `word`; false when there are none. */
static bool help_group(FILE *out, const struct sg_cli_command *commands, const char *word)
{
    size_t n = strlen(word);
    bool any = false;
    for (const struct sg_cli_command *c = commands; c->name != NULL; c++) {
        if (strncmp(c->name, word, n) == 0 && c->name[n] == ' ') {
            (void)fprintf(out, "%s" PROGRAM " %s %s: %s\n", any ? "       " : "usage: ", c->name, c->args, c->summary);
            any = true;
        }
    }
    return any;
}

static bool is_help(const char *s)
{
    return sg_streq(s, "--help") || sg_streq(s, "-h");
}

/* ---- parsing ---- */

static bool named(const struct sg_cli_command *c, const char *first, const char *second)
{
    const char *blank = strchr(c->name, ' ');
    if (blank == NULL) {
        return sg_streq(c->name, first);
    }
    size_t n = (size_t)(blank - c->name);
    return second != NULL && strlen(first) == n && strncmp(c->name, first, n) == 0 && sg_streq(blank + 1, second);
}

static const struct sg_cli_command *find(const struct sg_cli_command *commands, const char *first, const char *second)
{
    for (const struct sg_cli_command *c = commands; c->name != NULL; c++) {
        if (named(c, first, second)) {
            return c;
        }
    }
    return NULL;
}

SG_PRINTF(2, 3)
static int usage(const struct sg_cli_command *c, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    (void)fprintf(stderr, PROGRAM " %s: %s\n", c->name, text);
    help_one(stderr, c);
    return SG_CLI_USAGE;
}

static int option_index(const struct sg_cli_command *c, const char *name, size_t len)
{
    for (int i = 0; i < SG_CLI_OPTIONS_MAX && c->options[i].name != NULL; i++) {
        if (strlen(c->options[i].name) == len && strncmp(c->options[i].name, name, len) == 0) {
            return i;
        }
    }
    return -1;
}

/* `--name`, `--name VALUE` or `--name=VALUE` at argv[*i]. */
static int parse_option(struct sg_cli_args *a, int argc, char **argv, int *i)
{
    bool two_dashes = strncmp(argv[*i], "--", 2) == 0;
    const char *name = argv[*i] + 2;
    const char *equals = two_dashes ? strchr(name, '=') : NULL;
    int k = two_dashes ? option_index(a->command, name, equals != NULL ? (size_t)(equals - name) : strlen(name)) : -1;
    if (k < 0) {
        return usage(a->command, "there is no option %s", argv[*i]);
    }
    if (a->command->options[k].arg == NULL) {
        a->values[k] = "";
        return equals == NULL ? SG_CLI_OK : usage(a->command, "--%s takes no value", a->command->options[k].name);
    }
    if (equals == NULL && *i + 1 >= argc) {
        return usage(a->command, "--%s needs a value", a->command->options[k].name);
    }
    a->values[k] = equals != NULL ? equals + 1 : argv[++*i];
    return SG_CLI_OK;
}

static int parse(struct sg_cli_args *a, int argc, char **argv)
{
    bool only_args = false;
    for (int i = 0; i < argc; i++) {
        if (!only_args && sg_streq(argv[i], "--")) {
            only_args = true;
        } else if (!only_args && argv[i][0] == '-' && argv[i][1] != '\0') {
            int r = parse_option(a, argc, argv, &i);
            if (r != SG_CLI_OK) {
                return r;
            }
        } else if (a->n == a->command->args_max || a->n == SG_CLI_ARGS_MAX) {
            return usage(a->command, "too many arguments");
        } else if (argv[i][0] == '\0') {
            return usage(a->command, "an argument is empty"); /* an id of nothing would name the whole list */
        } else {
            a->args[a->n++] = argv[i];
        }
    }
    return a->n < a->command->args_min ? usage(a->command, "%s is missing", a->command->args) : SG_CLI_OK;
}

static int no_such_command(const struct sg_cli_command *commands, int argc, char **argv)
{
    bool asked = argc > 2 && is_help(argv[2]);
    if (help_group(asked ? stdout : stderr, commands, argv[1])) {
        return asked ? SG_CLI_OK : SG_CLI_USAGE;
    }
    (void)fprintf(stderr, PROGRAM ": there is no command %s\n", argv[1]);
    help_all(stderr, commands);
    return SG_CLI_USAGE;
}

int sg_cli_main(const struct sg_cli_command *commands, int argc, char **argv)
{
    if (argc < 2) {
        help_all(stderr, commands);
        return SG_CLI_USAGE;
    }
    if (is_help(argv[1]) || sg_streq(argv[1], "help")) {
        help_all(stdout, commands);
        return SG_CLI_OK;
    }
    struct sg_cli_args a = {.command = find(commands, argv[1], argc > 2 ? argv[2] : NULL)};
    if (a.command == NULL) {
        return no_such_command(commands, argc, argv);
    }
    int first = strchr(a.command->name, ' ') != NULL ? 3 : 2;
    for (int i = first; i < argc && !sg_streq(argv[i], "--"); i++) {
        if (is_help(argv[i])) {
            help_one(stdout, a.command);
            return SG_CLI_OK;
        }
    }
    int r = parse(&a, argc - first, argv + first);
    return r != SG_CLI_OK ? r : a.command->run(&a);
}

const char *sg_cli_value(const struct sg_cli_args *a, const char *option)
{
    int k = option_index(a->command, option, strlen(option));
    return k < 0 ? NULL : a->values[k];
}

/* ---- output ---- */

int sg_cli_fail(struct sg_error *err)
{
    for (char *p = err->message; *p != '\0'; p++) {
        if ((unsigned char)*p < 0x20 || *p == 0x7f) {
            *p = '?'; /* it may quote what somebody sent */
        }
    }
    (void)fprintf(stderr, PROGRAM ": %s\n", err->message);
    sg_error_clear(err);
    return SG_CLI_FAILED;
}

static int flushed(void)
{
    return fflush(stdout) == 0 && ferror(stdout) == 0 ? SG_CLI_OK : SG_CLI_FAILED;
}

int sg_cli_print_json(const json_t *v)
{
    sg_cleanup(sg_free_p) char *text = json_dumps(v, JSON_INDENT(2) | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    if (text == NULL) {
        return SG_CLI_FAILED;
    }
    (void)printf("%s\n", text);
    return flushed();
}

void sg_cli_table_add(struct sg_cli_table *t, const char *text)
{
    char **cells = reallocarray(t->cells, t->n + 1, sizeof(char *));
    if (cells == NULL) {
        abort();
    }
    t->cells = cells;
    char *cell = sg_xstrdup(text == NULL || *text == '\0' ? "-" : text);
    for (char *p = cell; *p != '\0'; p++) {
        if ((unsigned char)*p < 0x20 || *p == 0x7f) {
            *p = '?'; /* names come from callers: no escape sequences on somebody's terminal */
        }
    }
    t->cells[t->n++] = cell;
}

/* Characters, not bytes. */
static size_t width(const char *s)
{
    size_t n = 0;
    for (; *s != '\0'; s++) {
        n += ((unsigned char)*s & 0xc0) != 0x80;
    }
    return n;
}

static size_t widest(const struct sg_cli_table *t, size_t column)
{
    size_t most = 0;
    for (size_t i = column; i < t->n; i += t->columns) {
        size_t w = width(t->cells[i]);
        most = w > most ? w : most;
    }
    return most;
}

int sg_cli_table_print(struct sg_cli_table *t)
{
    sg_cleanup(sg_free_p) size_t *widths = sg_xcalloc(t->columns, sizeof *widths);
    for (size_t c = 0; c < t->columns; c++) {
        widths[c] = widest(t, c);
    }
    for (size_t i = 0, c = 0; i < t->n; i++, c = c + 1 < t->columns ? c + 1 : 0) {
        bool last = c + 1 == t->columns;
        (void)printf("%s%*s%s", t->cells[i], last ? 0 : (int)(widths[c] - width(t->cells[i]) + 2), "", last ? "\n" : "");
        free(t->cells[i]);
    }
    free(t->cells);
    *t = (struct sg_cli_table){.columns = t->columns};
    return flushed();
}

char *sg_cli_text(const json_t *object, const char *member)
{
    const json_t *v = json_object_get(object, member);
    if (v == NULL || json_is_null(v)) {
        return sg_xstrdup("");
    }
    if (json_is_string(v)) {
        return sg_xstrdup(json_string_value(v));
    }
    char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    return text != NULL ? text : sg_xstrdup("?");
}
