/* Loading: every key of the table from the first of its sources that has it. */
#include "config.h"

#include <stdio.h>
#include <unistd.h>

#include "base/fd.h"
#include "config/priv.h"

#define FILE_BYTES_MAX (4U << 20)

extern char **environ;

struct sg_config *sg_config_free(struct sg_config *c)
{
    if (c != NULL) {
        conf_finish(&conf_top, c);
        for (size_t i = 0; c->origins != NULL && i < conf_top.n; i++) {
            free(c->origins[i]);
        }
        free(c->origins);
        free(c->slots_dir);
        free(c);
    }
    return NULL;
}

static void config_p(struct sg_config **c)
{
    *c = sg_config_free(*c);
}

size_t sg_config_count(const char *const *list)
{
    size_t n = 0;
    while (list != NULL && list[n] != NULL) {
        n++;
    }
    return n;
}

const char *conf_origin(const struct sg_config *c, const char *key)
{
    for (size_t i = 0; i < conf_top.n; i++) {
        char name[96];
        conf_key_name(&conf_top.keys[i], name, sizeof name);
        if (sg_streq(name, key)) {
            return c->origins[i];
        }
    }
    return "configuration";
}

/* ---- the file ---- */

/* Row of a key, or -1; *section_known: whether any row has that section. */
static int find_row(const char *section, const char *name, bool *section_known)
{
    for (size_t i = 0; i < conf_top.n; i++) {
        if (sg_streq(conf_top.keys[i].section, section)) {
            *section_known = true;
            if (sg_streq(conf_top.keys[i].name, name)) {
                return (int)i;
            }
        }
    }
    return -1;
}

static int check_section(const struct conf_source *src, const struct conf_node *section, struct sg_error *err)
{
    bool known = false;
    if (find_row(section->key, "", &known) >= 0 || (known && conf_is_null(section))) {
        return 0;
    }
    if (!known) {
        return conf_error(src, section->line, err, section->key, "unknown key");
    }
    if (section->kind != CONF_MAP) {
        return conf_error(src, section->line, err, section->key, "a map is expected");
    }
    for (size_t i = 0; i < section->n; i++) {
        const struct conf_node *n = section->items[i];
        if (find_row(section->key, n->key, &known) < 0) {
            char name[256];
            (void)snprintf(name, sizeof name, "%s.%s", section->key, n->key);
            return conf_error(src, n->line, err, name, "unknown key");
        }
    }
    return 0;
}

static int read_file(const char *path, struct conf_node **ret, struct sg_error *err)
{
    struct conf_source src = {path};
    sg_cleanup(sg_free_p) char *text = NULL;
    sg_cleanup(conf_node_p) struct conf_node *tree = NULL;
    size_t len = 0;
    if (sg_read_file(path, FILE_BYTES_MAX, &text, &len, err) < 0) {
        return sg_error_wrap(err, "cannot read the configuration");
    }
    if (conf_parse(&src, text, len, &tree, err) < 0) {
        return -1;
    }
    if (!conf_is_null(tree) && tree->kind != CONF_MAP) {
        return conf_error(&src, tree->line, err, "", "a map of sections is expected");
    }
    for (size_t i = 0; tree != NULL && tree->kind == CONF_MAP && i < tree->n; i++) {
        if (check_section(&src, tree->items[i], err) < 0) {
            return -1;
        }
    }
    *ret = sg_steal(&tree);
    return 0;
}

/* ---- the environment ---- */

static bool is_list(const struct conf_key *k)
{
    return k->type == CONF_STRINGS;
}

static bool is_tree(const struct conf_key *k)
{
    return k->type == CONF_OBJECTS || k->type == CONF_TEXTS || k->type == CONF_PRICES || k->type == CONF_JSON;
}

/* The node a variable's text stands for; NULL with err when it cannot be read. */
static struct conf_node *variable_node(const struct conf_key *k, const char *variable, const char *text, struct sg_error *err)
{
    struct conf_source src = {variable};
    struct conf_node *n = NULL;
    if (is_tree(k) || (is_list(k) && *text == '[')) {
        if (conf_parse(&src, text, strlen(text), &n, err) == 0 && n == NULL) {
            n = conf_scalar(text);
        }
        return n;
    }
    return is_list(k) ? conf_split(text) : conf_scalar(text);
}

/* SANDGATE_<SECTION>_<something we do not know> is a mistake; other SANDGATE_ variables are not ours. */
static int check_variable(const char *entry, struct sg_error *err)
{
    char name[256];
    size_t len = strcspn(entry, "=");
    bool ours = false;
    for (size_t i = 0; i < conf_top.n; i++) {
        conf_variable_name(&conf_top.keys[i], name, sizeof name);
        if (strncmp(entry, name, len) == 0 && name[len] == '\0') {
            return 0;
        }
        struct conf_key section = {.section = conf_top.keys[i].section, .name = ""};
        conf_variable_name(&section, name, sizeof name);
        size_t n = strlen(name);
        ours = ours || (strncmp(entry, name, n) == 0 && entry[n] == '_');
    }
    if (ours && entry[len] != '\0' && entry[len + 1] != '\0') {
        (void)snprintf(name, sizeof name, "%.*s", (int)len, entry);
        return sg_error_field(err, SG_INVALID_REQUEST, name, "%s: there is no such setting", name);
    }
    return 0;
}

static int check_variables(struct sg_error *err)
{
    for (char **e = environ; e != NULL && *e != NULL; e++) {
        if (strncmp(*e, "SANDGATE_", strlen("SANDGATE_")) == 0 && check_variable(*e, err) < 0) {
            return -1;
        }
    }
    return 0;
}

/* ---- one key ---- */

struct loading {
    struct sg_config *config;
    const struct sg_config_args *args;
    const char *file; /* NULL: none */
    const struct conf_node *tree;
    struct sg_error *err;
};

static const char *from_command_line(const struct sg_config_args *a, const char *key, const char **option)
{
    if (a != NULL && a->listen != NULL && sg_streq(key, "server.listen")) {
        *option = "--listen";
        return a->listen;
    }
    if (a != NULL && a->state_dir != NULL && sg_streq(key, "server.state_dir")) {
        *option = "--state-dir";
        return a->state_dir;
    }
    return NULL;
}

static int store_text(struct loading *l, size_t row, const char *key, const char *origin, const char *text)
{
    struct conf_source src = {origin};
    sg_cleanup(conf_node_p) struct conf_node *n = variable_node(&conf_top.keys[row], origin, text, l->err);
    l->config->origins[row] = sg_xstrdup(origin);
    return n == NULL ? -1 : conf_store(&conf_top.keys[row], l->config, n, &src, key, l->err);
}

static int load_key(struct loading *l, size_t row)
{
    const struct conf_key *k = &conf_top.keys[row];
    char key[96];
    char variable[128];
    const char *option = NULL;
    conf_key_name(k, key, sizeof key);
    conf_variable_name(k, variable, sizeof variable);
    const char *text = from_command_line(l->args, key, &option);
    if (text != NULL) {
        return store_text(l, row, key, option, text);
    }
    text = getenv(variable);
    if (text != NULL && *text != '\0') {
        return store_text(l, row, key, variable, text);
    }
    const struct conf_node *n = conf_get(l->tree, k->section);
    n = *k->name != '\0' ? conf_get(n, k->name) : n;
    struct conf_source src = {l->file};
    bool given = !conf_is_null(n);
    l->config->origins[row] = given ? sg_xasprintf("%s:%d", l->file, n->line) : sg_xstrdup("default");
    return conf_store(k, l->config, n, given ? &src : NULL, key, l->err);
}

/* ---- what is left ---- */

/* systemd's directory, else the usual places. */
static int default_state_dir(struct sg_config *c, struct sg_error *err)
{
    const char *systemd = getenv("STATE_DIRECTORY");
    const char *xdg = getenv("XDG_STATE_HOME");
    const char *home = getenv("HOME");
    if (c->server.state_dir != NULL) {
        return 0;
    }
    if (systemd != NULL && *systemd == '/') {
        c->server.state_dir = sg_xstrndup(systemd, strcspn(systemd, ":"));
    } else if (geteuid() == 0) {
        c->server.state_dir = sg_xstrdup("/var/lib/sandgate");
    } else if (xdg != NULL && *xdg == '/') {
        c->server.state_dir = sg_xasprintf("%s/sandgate", xdg);
    } else if (home != NULL && *home == '/') {
        c->server.state_dir = sg_xasprintf("%s/.local/state/sandgate", home);
    } else {
        return sg_error_field(err, SG_INVALID_REQUEST, "server.state_dir", "server.state_dir: must be given: there is no HOME");
    }
    return 0;
}

int sg_config_load(const struct sg_config_args *args, struct sg_config **ret, struct sg_error *err)
{
    sg_cleanup(conf_node_p) struct conf_node *tree = NULL;
    sg_cleanup(config_p) struct sg_config *c = sg_xcalloc(1, sizeof *c);
    c->origins = sg_xcalloc(conf_top.n, sizeof(char *));
    c->local_bwrap.pool.name = "default";
    struct loading l = {.config = c, .args = args, .err = err, .file = args != NULL ? args->file : NULL};
    if (l.file == NULL) {
        l.file = getenv("SANDGATE_CONFIG");
    }
    if (l.file != NULL && *l.file != '\0' && read_file(l.file, &tree, err) < 0) {
        return -1;
    }
    l.tree = tree;
    if (check_variables(err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < conf_top.n; i++) {
        if (load_key(&l, i) < 0) {
            return -1;
        }
    }
    if (default_state_dir(c, err) < 0 || conf_check(c, err) < 0) {
        return -1;
    }
    c->slots_dir = sg_xasprintf("%s/slots", c->server.state_dir);
    *ret = sg_steal(&c);
    return 0;
}

struct sg_local_pool_config *sg_config_local_pools(const struct sg_config *c, size_t *ret_n)
{
    *ret_n = c->n_local_pools + 1;
    struct sg_local_pool_config *all = sg_xcalloc(*ret_n, sizeof *all);
    for (size_t i = 0; i < *ret_n; i++) {
        all[i] = i == 0 ? c->local_bwrap.pool : c->local_pools[i - 1].pool;
    }
    return all;
}

json_t *sg_config_explain(const struct sg_config *c)
{
    json_t *list = json_array();
    for (size_t i = 0; i < conf_top.n; i++) {
        char name[128];
        json_t *row = json_object();
        json_t *value = conf_show(&conf_top.keys[i], c);
        conf_key_name(&conf_top.keys[i], name, sizeof name);
        (void)json_object_set_new(row, "key", json_string(name));
        conf_variable_name(&conf_top.keys[i], name, sizeof name);
        (void)json_object_set_new(row, "variable", json_string(name));
        (void)json_object_set_new(row, "value", value != NULL ? value : json_null());
        (void)json_object_set_new(row, "origin", json_string(c->origins[i]));
        (void)json_array_append_new(list, row);
    }
    return list;
}
