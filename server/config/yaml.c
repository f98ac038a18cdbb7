/* YAML text into a tree of nodes that remember their lines. JSON is YAML too. */
#include <stdarg.h>
#include <stdio.h>
#include <yaml.h>

#include "base/json.h"
#include "base/str.h"
#include "config/priv.h"

#define DEPTH_MAX 24
#define NODES_MAX 100000 /* aliases are followed: a small file could unfold into a huge tree */

struct conf_node *conf_node_free(struct conf_node *n)
{
    if (n != NULL) {
        for (size_t i = 0; i < n->n; i++) {
            (void)conf_node_free(n->items[i]);
        }
        free(n->items);
        free(n->key);
        free(n->text);
        free(n);
    }
    return NULL;
}

void conf_node_p(struct conf_node **n)
{
    *n = conf_node_free(*n);
}

int conf_error(const struct conf_source *src, int line, struct sg_error *err, const char *key, const char *fmt, ...)
{
    char text[256];
    char where[256] = "";
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (src != NULL && line > 0) {
        (void)snprintf(where, sizeof where, "%s:%d: ", src->name, line);
    } else if (src != NULL) {
        (void)snprintf(where, sizeof where, "%s: ", src->name);
    }
    return sg_error_field(err, SG_INVALID_REQUEST, key, "%s%s%s%s", where, key, *key != '\0' ? ": " : "", text);
}

struct conf_node *conf_scalar(const char *text)
{
    struct conf_node *n = sg_xcalloc(1, sizeof *n);
    n->kind = CONF_SCALAR;
    n->text = sg_xstrdup(text);
    n->plain = true;
    return n;
}

static void add(struct conf_node *parent, struct conf_node *child)
{
    if ((parent->n & (parent->n - 1)) == 0) { /* full at every power of two */
        struct conf_node **items = reallocarray(parent->items, parent->n == 0 ? 1 : parent->n * 2, sizeof(struct conf_node *));
        if (items == NULL) {
            abort();
        }
        parent->items = items;
    }
    parent->items[parent->n++] = child;
}

struct conf_node *conf_split(const char *text)
{
    struct conf_node *list = sg_xcalloc(1, sizeof *list);
    list->kind = CONF_LIST;
    for (const char *p = text;;) {
        size_t n = strcspn(p, ",");
        const char *next = p + n;
        while (n > 0 && *p == ' ') {
            p++;
            n--;
        }
        while (n > 0 && p[n - 1] == ' ') {
            n--;
        }
        sg_cleanup(sg_free_p) char *part = sg_xstrndup(p, n);
        add(list, conf_scalar(part));
        if (*next == '\0') {
            return list;
        }
        p = next + 1;
    }
}

struct conf_node *conf_get(const struct conf_node *map, const char *key)
{
    for (size_t i = 0; map != NULL && map->kind == CONF_MAP && i < map->n; i++) {
        if (sg_streq(map->items[i]->key, key)) {
            return map->items[i];
        }
    }
    return NULL;
}

bool conf_is_null(const struct conf_node *n)
{
    return n == NULL || (n->kind == CONF_SCALAR && n->plain &&
                         (*n->text == '\0' || sg_streq(n->text, "~") || sg_streq(n->text, "null")));
}

/* ---- from libyaml's document ---- */

struct reading {
    const struct conf_source *src;
    yaml_document_t *doc;
    int nodes;
    struct sg_error *err;
};

static int line_of(const yaml_node_t *y)
{
    return (int)y->start_mark.line + 1;
}

static struct conf_node *convert(struct reading *r, int id, int depth);

static int convert_map(struct reading *r, const yaml_node_t *y, struct conf_node *n, int depth)
{
    for (yaml_node_pair_t *p = y->data.mapping.pairs.start; p < y->data.mapping.pairs.top; p++) {
        const yaml_node_t *key = yaml_document_get_node(r->doc, p->key);
        if (key->type != YAML_SCALAR_NODE) {
            return conf_error(r->src, line_of(key), r->err, "", "a key must be a word");
        }
        const char *name = (const char *)key->data.scalar.value;
        if (strlen(name) != key->data.scalar.length) {
            return conf_error(r->src, line_of(key), r->err, "", "a key holds a NUL");
        }
        if (conf_get(n, name) != NULL) {
            return conf_error(r->src, line_of(key), r->err, name, "given twice");
        }
        struct conf_node *child = convert(r, p->value, depth + 1);
        if (child == NULL) {
            return -1;
        }
        child->key = sg_xstrdup(name);
        child->line = line_of(key);
        add(n, child);
    }
    return 0;
}

static int convert_list(struct reading *r, const yaml_node_t *y, struct conf_node *n, int depth)
{
    for (yaml_node_item_t *i = y->data.sequence.items.start; i < y->data.sequence.items.top; i++) {
        struct conf_node *child = convert(r, *i, depth + 1);
        if (child == NULL) {
            return -1;
        }
        add(n, child);
    }
    return 0;
}

static int convert_scalar(struct reading *r, const yaml_node_t *y, struct conf_node *n)
{
    n->text = sg_xstrndup((const char *)y->data.scalar.value, y->data.scalar.length);
    n->plain = y->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    return strlen(n->text) == y->data.scalar.length ? 0 : conf_error(r->src, line_of(y), r->err, "", "a value holds a NUL");
}

static struct conf_node *convert(struct reading *r, int id, int depth)
{
    const yaml_node_t *y = yaml_document_get_node(r->doc, id);
    if (depth > DEPTH_MAX || ++r->nodes > NODES_MAX) {
        (void)conf_error(r->src, line_of(y), r->err, "", "nested too deeply, or too large");
        return NULL;
    }
    sg_cleanup(conf_node_p) struct conf_node *n = sg_xcalloc(1, sizeof *n);
    n->line = line_of(y);
    int rc;
    if (y->type == YAML_MAPPING_NODE) {
        n->kind = CONF_MAP;
        rc = convert_map(r, y, n, depth);
    } else if (y->type == YAML_SEQUENCE_NODE) {
        n->kind = CONF_LIST;
        rc = convert_list(r, y, n, depth);
    } else {
        n->kind = CONF_SCALAR;
        rc = convert_scalar(r, y, n);
    }
    return rc < 0 ? NULL : sg_steal(&n);
}

static int convert_document(const struct conf_source *src, yaml_document_t *doc, struct conf_node **ret, struct sg_error *err)
{
    struct reading r = {.src = src, .doc = doc, .err = err};
    if (yaml_document_get_root_node(doc) == NULL) {
        *ret = NULL;
        return 0;
    }
    *ret = convert(&r, 1, 0);
    return *ret == NULL ? -1 : 0;
}

/* Nothing may follow the one document. */
static int expect_end(const struct conf_source *src, yaml_parser_t *parser, struct sg_error *err)
{
    yaml_document_t doc;
    if (yaml_parser_load(parser, &doc) == 0) {
        return conf_error(src, (int)parser->problem_mark.line + 1, err, "", "%s", parser->problem);
    }
    const yaml_node_t *root = yaml_document_get_root_node(&doc);
    int r = root == NULL ? 0 : conf_error(src, line_of(root), err, "", "more than one document");
    yaml_document_delete(&doc);
    return r;
}

int conf_parse(const struct conf_source *src, const char *text, size_t len, struct conf_node **ret, struct sg_error *err)
{
    yaml_parser_t parser;
    yaml_document_t doc;
    if (yaml_parser_initialize(&parser) == 0) {
        return sg_error_set(err, SG_NO_MEMORY, "out of memory");
    }
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, len);
    int r;
    sg_cleanup(conf_node_p) struct conf_node *tree = NULL;
    if (yaml_parser_load(&parser, &doc) == 0) {
        r = conf_error(src, (int)parser.problem_mark.line + 1, err, "", "%s", parser.problem != NULL ? parser.problem : "not YAML");
    } else {
        r = convert_document(src, &doc, &tree, err);
        yaml_document_delete(&doc);
        if (r == 0 && tree != NULL) {
            r = expect_end(src, &parser, err);
        }
    }
    yaml_parser_delete(&parser);
    if (r == 0) {
        *ret = sg_steal(&tree);
    }
    return r;
}

/* ---- to JSON ---- */

/* A plain word as YAML's core schema reads it, as far as JSON can say it. */
static json_t *plain_to_json(const char *text)
{
    json_t *v = NULL;
    int64_t n;
    if (sg_streq(text, "true") || sg_streq(text, "false")) {
        return json_boolean(*text == 't');
    }
    if (sg_parse_int(text, INT64_MIN, INT64_MAX, &n)) {
        return json_integer(n);
    }
    if (strspn(text, "0123456789+-.eE") == strlen(text) && sg_json_parse(text, strlen(text), &v, NULL) == 0) {
        return v;
    }
    return json_string(text);
}

json_t *conf_to_json(const struct conf_node *n)
{
    if (conf_is_null(n)) {
        return json_null();
    }
    if (n->kind == CONF_SCALAR) {
        return n->plain ? plain_to_json(n->text) : json_string(n->text);
    }
    json_t *v = n->kind == CONF_MAP ? json_object() : json_array();
    for (size_t i = 0; i < n->n; i++) {
        json_t *item = conf_to_json(n->items[i]);
        int r = n->kind == CONF_MAP ? json_object_set_new(v, n->items[i]->key, item) : json_array_append_new(v, item);
        if (r < 0) {
            sg_json_unref(v);
            return NULL;
        }
    }
    return v;
}

int conf_line_of(const struct conf_node *n, const char *path)
{
    int line = n->line;
    while (n != NULL && *path != '\0') {
        char part[96];
        path += strspn(path, ".[]");
        size_t len = strcspn(path, ".[]");
        int64_t index;
        (void)snprintf(part, sizeof part, "%.*s", (int)(len < sizeof part ? len : sizeof part - 1), path);
        path += len;
        if (n->kind == CONF_LIST && sg_parse_int(part, 0, (int64_t)n->n - 1, &index)) {
            n = n->items[index];
        } else {
            n = conf_get(n, part);
        }
        line = n != NULL ? n->line : line;
    }
    return line;
}

int sg_yaml_to_json(const char *text, size_t len, json_t **ret, struct sg_error *err)
{
    sg_cleanup(conf_node_p) struct conf_node *root = NULL;
    struct conf_source src = {.name = "yaml"};

    if (conf_parse(&src, text, len, &root, err) < 0) {
        return -1;
    }
    *ret = conf_to_json(root);
    return *ret != NULL ? 0 : sg_error_set(err, SG_NO_MEMORY, "no memory for the document");
}
