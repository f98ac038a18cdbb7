/* Values of the configuration by type: read into a struct, freed, shown. */
#include <stdarg.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/str.h"
#include "config/priv.h"

/* What every step of storing needs to know. */
struct storing {
    const struct conf_key *key;
    const struct conf_source *src;
    const char *name; /* for messages */
    struct sg_error *err;
};

SG_PRINTF(3, 4)
static int bad(const struct storing *s, const struct conf_node *n, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return conf_error(s->src, n->line, s->err, s->name, "%s", text);
}

/* Integers, bools and enums of any width. */
static void put_int(void *p, size_t size, int64_t v)
{
    if (size == 1) {
        uint8_t narrow = (uint8_t)v;
        memcpy(p, &narrow, size);
    } else if (size == 2) {
        uint16_t narrow = (uint16_t)v;
        memcpy(p, &narrow, size);
    } else if (size == 4) {
        uint32_t narrow = (uint32_t)v;
        memcpy(p, &narrow, size);
    } else {
        memcpy(p, &v, size);
    }
}

static int64_t get_int(const void *p, size_t size)
{
    uint8_t one;
    uint16_t two;
    uint32_t four;
    int64_t v;
    switch (size) {
    case 1: memcpy(&one, p, size); return one;
    case 2: memcpy(&two, p, size); return two;
    case 4: memcpy(&four, p, size); return four;
    default: memcpy(&v, p, size); return v;
    }
}

static void put_pointer(void *p, const void *v)
{
    memcpy(p, &v, sizeof v);
}

static void *get_pointer(const void *p)
{
    void *v;
    memcpy(&v, p, sizeof v);
    return v;
}

static void *at(void *base, size_t offset)
{
    return (char *)base + offset;
}

static const void *at_const(const void *base, size_t offset)
{
    return (const char *)base + offset;
}

static void put_count(const struct conf_key *k, void *base, size_t n)
{
    if (k->extra != 0) {
        memcpy(at(base, k->extra), &n, sizeof n);
    }
}

static size_t get_count(const struct conf_key *k, const void *base)
{
    size_t n;
    memcpy(&n, at_const(base, k->extra), sizeof n);
    return n;
}

/* ---- scalars ---- */

static bool parse_decimal(const char *text, int digits, int64_t *ret)
{
    int64_t v = 0;
    int decimals = -1;
    bool negative = *text == '-';
    const char *p = negative ? text + 1 : text;
    bool any = false;
    for (; *p != '\0'; p++) {
        if (*p == '.' && decimals < 0 && any) {
            decimals = 0;
            continue;
        }
        if (*p < '0' || *p > '9' || decimals == digits || __builtin_mul_overflow(v, 10, &v) ||
            __builtin_add_overflow(v, *p - '0', &v)) {
            return false;
        }
        any = true;
        decimals += decimals >= 0;
    }
    for (int i = decimals < 0 ? 0 : decimals; i < digits; i++) {
        if (__builtin_mul_overflow(v, 10, &v)) {
            return false;
        }
    }
    *ret = negative ? -v : v;
    return any;
}

static int choice(const struct storing *s, const struct conf_node *n, int64_t *ret)
{
    struct sg_buf all;
    sg_buf_init(&all, 200);
    for (int64_t i = 0; s->key->choices[i] != NULL; i++) {
        if (sg_streq(n->text, s->key->choices[i])) {
            *ret = i;
            sg_buf_finish(&all);
            return 0;
        }
        (void)sg_buf_addf(&all, "%s%s", i > 0 ? ", " : "", s->key->choices[i]);
    }
    (void)bad(s, n, "must be one of %s", all.data);
    sg_buf_finish(&all);
    return -1;
}

static int number(const struct storing *s, const struct conf_node *n, int64_t *ret)
{
    const struct conf_key *k = s->key;
    bool ok = false;
    const char *what = "a whole number";
    switch (k->type) {
    case CONF_DURATION: ok = sg_parse_duration_ms(n->text, ret); what = "a duration such as 250ms, 5s, 2m or 1h"; break;
    case CONF_SIZE: ok = sg_parse_size(n->text, ret); what = "a size such as 64KiB, 1MiB or 2GiB"; break;
    case CONF_MILLI: ok = parse_decimal(n->text, 3, ret); what = "a number with at most 3 decimals"; break;
    case CONF_USD: ok = parse_decimal(n->text, 6, ret); what = "an amount with at most 6 decimals"; break;
    default: ok = sg_parse_int(n->text, INT64_MIN, INT64_MAX, ret); break;
    }
    if (!ok) {
        return bad(s, n, "%s is expected", what);
    }
    if (*ret < k->min || *ret > k->max) {
        double unit = k->type == CONF_USD ? 1e6 : k->type == CONF_DURATION || k->type == CONF_MILLI ? 1e3 : 1;
        return bad(s, n, "must be from %.12g to %.12g%s", (double)k->min / unit, (double)k->max / unit,
                   k->type == CONF_DURATION ? " seconds" : k->type == CONF_SIZE ? " bytes" : k->type == CONF_USD ? " dollars" : "");
    }
    return 0;
}

static int check_text(const struct storing *s, const struct conf_node *n)
{
    if (n->kind != CONF_SCALAR) {
        return bad(s, n, "a single value is expected");
    }
    if (!sg_utf8_valid(n->text, strlen(n->text))) {
        return bad(s, n, "not valid UTF-8");
    }
    if (s->key->valid != NULL && *n->text != '\0' && !s->key->valid(n->text)) {
        return bad(s, n, "%s is expected", s->key->expected);
    }
    return 0;
}

static int store_secret(const struct storing *s, void *place, const struct conf_node *n)
{
    struct sg_secret *secret = NULL;
    int r = sg_secret_from_env(n->text, &secret, s->err);
    if (r < 0) {
        return sg_error_wrap(s->err, "%s", s->name);
    }
    if (r == 0) {
        /* Not quoted: it may be the secret itself, put here by mistake. */
        return bad(s, n, "the variable it must name, or the same with _FILE, is not in the environment");
    }
    put_pointer(place, secret);
    return 0;
}

static int store_scalar(const struct storing *s, void *base, const struct conf_node *n)
{
    const struct conf_key *k = s->key;
    void *place = at(base, k->offset);
    int64_t v = 0;
    if (check_text(s, n) < 0) {
        return -1;
    }
    switch (k->type) {
    case CONF_STRING: put_pointer(place, *n->text == '\0' ? NULL : sg_xstrdup(n->text)); return 0;
    case CONF_SECRET: return store_secret(s, place, n);
    case CONF_PRIVATE: put_pointer(place, *n->text == '\0' ? NULL : sg_secret_new(n->text, strlen(n->text))); return 0;
    case CONF_BOOL:
        if (!sg_streq(n->text, "true") && !sg_streq(n->text, "false")) {
            return bad(s, n, "true or false is expected");
        }
        v = *n->text == 't';
        break;
    case CONF_ENUM:
        if (choice(s, n, &v) < 0) {
            return -1;
        }
        break;
    default:
        if (number(s, n, &v) < 0) {
            return -1;
        }
        if (k->extra != 0) {
            put_int(at(base, k->extra), sizeof(bool), 1);
        }
        break;
    }
    put_int(place, k->size, v);
    return 0;
}

/* ---- lists and maps ---- */

static int store_strings(const struct storing *s, void *base, const struct conf_node *n)
{
    if (n->kind != CONF_LIST) {
        return bad(s, n, "a list is expected");
    }
    char **list = sg_xcalloc(n->n + 1, sizeof *list);
    put_pointer(at(base, s->key->offset), list); /* freed with the configuration, also after an error */
    for (size_t i = 0; i < n->n; i++) {
        const struct conf_node *item = n->items[i];
        int64_t ignored;
        if (check_text(s, item) < 0 || (s->key->choices != NULL && choice(s, item, &ignored) < 0)) {
            return -1;
        }
        list[i] = sg_xstrdup(item->text);
    }
    return 0;
}

static int store_objects(const struct storing *s, void *base, const struct conf_node *n)
{
    const struct conf_table *sub = s->key->sub;
    if (n->kind != CONF_LIST) {
        return bad(s, n, "a list is expected");
    }
    char *items = sg_xcalloc(n->n, sub->size);
    put_pointer(at(base, s->key->offset), items);
    put_count(s->key, base, n->n);
    for (size_t i = 0; i < n->n; i++) {
        char path[128];
        (void)snprintf(path, sizeof path, "%s[%zu]", s->name, i);
        if (conf_fill(sub, items + i * sub->size, n->items[i], s->src, path, s->err) < 0) {
            return -1;
        }
    }
    return 0;
}

static int store_pairs(const struct storing *s, void *base, const struct conf_node *n)
{
    if (n->kind != CONF_MAP) {
        return bad(s, n, "a map is expected");
    }
    struct sg_config_pair *pairs = sg_xcalloc(n->n, sizeof *pairs);
    put_pointer(at(base, s->key->offset), pairs);
    put_count(s->key, base, n->n);
    for (size_t i = 0; i < n->n; i++) {
        const struct conf_node *item = n->items[i];
        if (!conf_valid_name(item->key)) {
            return bad(s, item, "\"%s\" is not a name", item->key);
        }
        pairs[i].name = sg_xstrdup(item->key);
        if (check_text(s, item) < 0) {
            return -1;
        }
        if (s->key->type == CONF_PRICES) {
            if (!parse_decimal(item->text, 6, &pairs[i].microusd) || pairs[i].microusd < 0) {
                return bad(s, item, "%s: an amount of dollars with at most 6 decimals is expected", item->key);
            }
        } else {
            pairs[i].value = sg_xstrdup(item->text);
        }
    }
    return 0;
}

static int store_json(const struct storing *s, void *base, const struct conf_node *n)
{
    if (n->kind != CONF_LIST) {
        return bad(s, n, "a list is expected");
    }
    json_t *v = conf_to_json(n);
    if (v == NULL) {
        return bad(s, n, "not valid UTF-8");
    }
    put_pointer(at(base, s->key->offset), v);
    return 0;
}

static int store_node(const struct storing *s, void *base, const struct conf_node *n)
{
    switch (s->key->type) {
    case CONF_STRINGS: return store_strings(s, base, n);
    case CONF_OBJECTS: return store_objects(s, base, n);
    case CONF_TEXTS:
    case CONF_PRICES: return store_pairs(s, base, n);
    case CONF_JSON: return store_json(s, base, n);
    default: return store_scalar(s, base, n);
    }
}

static struct conf_node *default_node(const struct conf_key *k)
{
    switch (k->type) {
    case CONF_STRINGS: return conf_split(k->def);
    case CONF_JSON: {
        struct conf_node *n = sg_xcalloc(1, sizeof *n);
        n->kind = CONF_LIST;
        return n;
    }
    default: return conf_scalar(k->def);
    }
}

int conf_store(const struct conf_key *k, void *base, const struct conf_node *node, const struct conf_source *src,
               const char *key, struct sg_error *err)
{
    struct storing s = {.key = k, .src = src, .name = key, .err = err};
    if (!conf_is_null(node)) {
        return store_node(&s, base, node);
    }
    if (k->required) {
        return conf_error(src, node != NULL ? node->line : 0, err, key, "is missing");
    }
    if (k->def == NULL && k->type != CONF_JSON) {
        return 0;
    }
    sg_cleanup(conf_node_p) struct conf_node *def = default_node(k);
    return store_node(&s, base, def);
}

int conf_fill(const struct conf_table *t, void *base, const struct conf_node *map, const struct conf_source *src,
              const char *path, struct sg_error *err)
{
    char key[256];
    if (map->kind != CONF_MAP) {
        return conf_error(src, map->line, err, path, "a map is expected");
    }
    for (size_t i = 0; i < map->n; i++) {
        size_t j = 0;
        while (j < t->n && !sg_streq(t->keys[j].name, map->items[i]->key)) {
            j++;
        }
        if (j == t->n) {
            (void)snprintf(key, sizeof key, "%s.%s", path, map->items[i]->key);
            return conf_error(src, map->items[i]->line, err, key, "unknown key");
        }
    }
    for (size_t i = 0; i < t->n; i++) {
        const struct conf_node *node = conf_get(map, t->keys[i].name);
        (void)snprintf(key, sizeof key, "%s.%s", path, t->keys[i].name);
        if (t->keys[i].required && conf_is_null(node)) {
            return conf_error(src, map->line, err, key, "is missing");
        }
        if (conf_store(&t->keys[i], base, node, src, key, err) < 0) {
            return -1;
        }
    }
    return 0;
}

/* ---- freeing ---- */

static void finish_pairs(struct sg_config_pair *pairs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free((void *)(uintptr_t)pairs[i].name);
        free((void *)(uintptr_t)pairs[i].value);
    }
    free(pairs);
}

static void finish_key(const struct conf_key *k, void *base)
{
    void *place = at(base, k->offset);
    switch (k->type) {
    case CONF_STRING: free(get_pointer(place)); break;
    case CONF_SECRET:
    case CONF_PRIVATE: (void)sg_secret_free(get_pointer(place)); break;
    case CONF_JSON: sg_json_unref(get_pointer(place)); break;
    case CONF_TEXTS:
    case CONF_PRICES: finish_pairs(get_pointer(place), get_count(k, base)); break;
    case CONF_STRINGS: {
        char **list = get_pointer(place);
        for (size_t i = 0; list != NULL && list[i] != NULL; i++) {
            free(list[i]);
        }
        free(list);
        break;
    }
    case CONF_OBJECTS: {
        char *items = get_pointer(place);
        for (size_t i = 0; i < get_count(k, base); i++) {
            conf_finish(k->sub, items + i * k->sub->size);
        }
        free(items);
        break;
    }
    default: break;
    }
}

void conf_finish(const struct conf_table *t, void *base)
{
    for (size_t i = 0; i < t->n; i++) {
        finish_key(&t->keys[i], base);
    }
}

/* ---- showing ---- */

static json_t *show_decimal(int64_t v, int digits)
{
    int64_t unit = 1;
    for (int i = 0; i < digits; i++) {
        unit *= 10;
    }
    return v % unit == 0 ? json_integer(v / unit) : json_real((double)v / (double)unit);
}

static json_t *show_strings(const char *const *list)
{
    json_t *v = json_array();
    for (size_t i = 0; list != NULL && list[i] != NULL; i++) {
        (void)json_array_append_new(v, json_string(list[i]));
    }
    return v;
}

static json_t *show_objects(const struct conf_key *k, const char *items, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *o = json_object();
        for (size_t j = 0; j < k->sub->n; j++) {
            json_t *v = conf_show(&k->sub->keys[j], items + i * k->sub->size);
            if (v != NULL) {
                (void)json_object_set_new(o, k->sub->keys[j].name, v);
            }
        }
        (void)json_array_append_new(list, o);
    }
    return list;
}

static json_t *show_pairs(const struct conf_key *k, const struct sg_config_pair *pairs, size_t n)
{
    json_t *o = json_object();
    for (size_t i = 0; i < n; i++) {
        json_t *v = k->type == CONF_PRICES ? show_decimal(pairs[i].microusd, 6) : json_string(pairs[i].value);
        (void)json_object_set_new(o, pairs[i].name, v);
    }
    return o;
}

json_t *conf_show(const struct conf_key *k, const void *base)
{
    const void *place = at_const(base, k->offset);
    const char *text;
    if (k->hidden) {
        return NULL;
    }
    switch (k->type) {
    case CONF_STRING: text = get_pointer(place); return text == NULL ? NULL : json_string(text);
    case CONF_SECRET:
    case CONF_PRIVATE: return NULL;
    case CONF_ENUM: return json_string(k->choices[get_int(place, k->size)]);
    case CONF_BOOL: return json_boolean(get_int(place, k->size));
    case CONF_DURATION: return show_decimal(get_int(place, k->size), 3);
    case CONF_MILLI: return show_decimal(get_int(place, k->size), 3);
    case CONF_USD: return get_int(at_const(base, k->extra), sizeof(bool)) ? show_decimal(get_int(place, k->size), 6) : NULL;
    case CONF_STRINGS: return show_strings(get_pointer(place));
    case CONF_OBJECTS: return show_objects(k, get_pointer(place), get_count(k, base));
    case CONF_TEXTS:
    case CONF_PRICES: return show_pairs(k, get_pointer(place), get_count(k, base));
    case CONF_JSON: return sg_json_ref(get_pointer(place));
    default: return json_integer(get_int(place, k->size));
    }
}
