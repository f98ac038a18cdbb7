/* What the parts of the configuration share: the tree a file becomes, and the table of keys. */
#ifndef SG_CONFIG_PRIV_H
#define SG_CONFIG_PRIV_H

#include "config.h"

/* ---- the tree ---- */

enum conf_kind { CONF_SCALAR, CONF_LIST, CONF_MAP };

/* A node; children of a map have keys, those of a list do not. */
struct conf_node {
    enum conf_kind kind;
    char *key; /* in its parent map, or NULL */
    char *text; /* of a scalar */
    bool plain; /* not quoted: may be a number, a bool, null */
    int line;   /* 1..., 0: not from a file */
    struct conf_node **items;
    size_t n;
};

struct conf_node *conf_node_free(struct conf_node *n); /* NULL-safe, returns NULL */
void conf_node_p(struct conf_node **n);

/* Where nodes come from, for messages: a file's name or a variable's. */
struct conf_source {
    const char *name;
};

/* Parses YAML (or JSON) text; *ret is NULL for an empty document. Refuses duplicate keys. */
int conf_parse(const struct conf_source *src, const char *text, size_t len, struct conf_node **ret, struct sg_error *err);
/* A scalar, and a list of what is between the commas (blanks around are dropped). */
struct conf_node *conf_scalar(const char *text);
struct conf_node *conf_split(const char *text);
/* The child of a map by key, or NULL. */
struct conf_node *conf_get(const struct conf_node *map, const char *key);
/* An unquoted null or nothing at all: as if the key were not there. */
bool conf_is_null(const struct conf_node *n);
/* The same value as JSON; plain scalars become numbers, bools and null. NULL when memory is out. */
json_t *conf_to_json(const struct conf_node *n);
/* The line of a member named by a path such as "[0].template.env", or of its nearest known parent. */
int conf_line_of(const struct conf_node *n, const char *path);
/* "FILE:LINE: key: message" or "VARIABLE: message", with the key as field; returns -1. */
int conf_error(const struct conf_source *src, int line, struct sg_error *err, const char *key, const char *fmt, ...)
    SG_PRINTF(5, 6);

/* ---- the table ---- */

enum conf_type {
    CONF_STRING,
    CONF_ENUM,     /* one of choices; stored as its position */
    CONF_BOOL,
    CONF_INT,
    CONF_DURATION, /* milliseconds */
    CONF_SIZE,     /* bytes */
    CONF_MILLI,    /* decimal, in thousandths */
    CONF_USD,      /* decimal, in millionths */
    CONF_STRINGS,  /* list; each of choices when there are some */
    CONF_OBJECTS,  /* list of what the sub-table describes */
    CONF_TEXTS,    /* map of strings: struct sg_config_pair */
    CONF_PRICES,   /* map of dollars: struct sg_config_pair */
    CONF_JSON,     /* a list kept as it is */
    CONF_SECRET,   /* the name of the variable that has it */
    CONF_PRIVATE,  /* a secret, or what has one in it, itself */
};

struct conf_table;

struct conf_key {
    const char *section; /* NULL in sub-tables */
    const char *name;    /* "" when the section itself is the value */
    enum conf_type type;
    size_t offset, size; /* of the member */
    size_t extra;        /* offset of the count (lists, maps) or of the bool that says it was given; 0: none */
    const char *def;     /* as it would be written in a variable, NULL: none */
    int64_t min, max;    /* of numbers */
    const char *const *choices;      /* NULL-terminated */
    const struct conf_table *sub;    /* CONF_OBJECTS */
    bool (*valid)(const char *text); /* of each string */
    const char *expected;            /* what valid wants, for the message and the table */
    bool required;                   /* in sub-tables */
    bool hidden;                     /* the value is not shown */
    bool again;    /* like those of another section: not in the README's table */
    const char *help;
};

struct conf_table {
    const struct conf_key *keys;
    size_t n;
    size_t size; /* of the struct it fills */
};

extern const struct conf_table conf_top;

/* The key as people write it: "server.listen", "remotes". */
void conf_key_name(const struct conf_key *k, char *out, size_t size);
/* SANDGATE_SERVER_LISTEN. */
void conf_variable_name(const struct conf_key *k, char *out, size_t size);

/* ---- values ---- */

/* Stores node (NULL: the default) in the struct at base; key: for messages. */
int conf_store(const struct conf_key *k, void *base, const struct conf_node *node, const struct conf_source *src,
               const char *key, struct sg_error *err);
/* Fills a struct from a map by a sub-table; unknown keys are errors. */
int conf_fill(const struct conf_table *t, void *base, const struct conf_node *map, const struct conf_source *src,
              const char *path, struct sg_error *err);
/* Frees what the members of the struct own. */
void conf_finish(const struct conf_table *t, void *base);
/* The stored value as JSON; NULL (absent) when there is none or it is hidden. */
json_t *conf_show(const struct conf_key *k, const void *base);

/* ---- checks across keys ---- */

/* The key may come from anywhere, so messages name the key and its origin. */
int conf_check(struct sg_config *c, struct sg_error *err);
/* Where a key comes from ("server.listen"), for messages. */
const char *conf_origin(const struct sg_config *c, const char *key);

bool conf_valid_listen(const char *s);
bool conf_valid_url(const char *s);
bool conf_valid_proxy(const char *s);
bool conf_valid_domain(const char *s);
bool conf_valid_path(const char *s);
bool conf_valid_name(const char *s);
bool conf_valid_pool_name(const char *s);
bool conf_valid_image(const char *s);
bool conf_valid_container_user(const char *s);
bool conf_valid_sha256(const char *s);

#endif
