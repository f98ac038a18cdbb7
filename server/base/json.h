/* Strict JSON over jansson: what every body, file and reply goes through.
 *
 * Refused: duplicate keys, NUL in strings, invalid UTF-8, trailing bytes, more than 32 levels.
 * Getters fill err with SG_INVALID_REQUEST, the member's path as `field`, and what was expected.
 */
#ifndef SG_JSON_H
#define SG_JSON_H

#include <jansson.h>

#include "base/buf.h"
#include "base/error.h"

#define SG_JSON_DEPTH_MAX 32

/* A further reference, and one less; NULL is fine. Any thread, as long as nobody changes the value. jansson's own json_incref()
 * and json_decref() read the count without an atomic while other threads write it. */
json_t *sg_json_ref(json_t *v);
void sg_json_unref(json_t *v);
/* Unrefs *p; for sg_cleanup. */
void sg_json_p(json_t **p);

/* Parses an object, array or scalar. The error names line and column. */
int sg_json_parse(const char *text, size_t len, json_t **ret, struct sg_error *err);
/* The same, and it must be an object. */
int sg_json_parse_object(const char *text, size_t len, json_t **ret, struct sg_error *err);

/* Compact text, keys in insertion order; NULL when memory is out. Caller frees. */
char *sg_json_dump(const json_t *v, size_t *ret_len);

/* Canonical text: keys sorted by UTF-8 bytes, ',' and ':', RFC 8785 string escaping
 * (short forms, else lower-case \u00xx), integers only. -1 (SG_INVALID_REQUEST) when v holds a real
 * number. Caller frees *ret. */
int sg_json_canonical(const json_t *v, char **ret, size_t *ret_len, struct sg_error *err);

/* Appends s as a JSON string with its quotes, escaped as in canonical text. s must be valid UTF-8. -1 when b's cap would be
 * passed or memory is out. */
int sg_json_add_string(struct sg_buf *b, const char *s, size_t len);

/* Typed members of an object that is read strictly: begin, take members, end. `path` is the prefix
 * for field names ("" for the top). end fails on the first member nobody took. */
struct sg_json_reader {
    const json_t *obj;
    const char *path;
    const char *taken[64];
    size_t n_taken;
};

int sg_json_begin(struct sg_json_reader *r, const json_t *v, const char *path, struct sg_error *err);
int sg_json_end(const struct sg_json_reader *r, struct sg_error *err);

/* Each: 1 and *ret set when the member is there, 0 when absent (*ret untouched; a null member counts as
 * absent), -1 with err for a wrong type or range. Strings and values are borrowed from the object. */
int sg_json_str(struct sg_json_reader *r, const char *key, const char **ret, struct sg_error *err);
int sg_json_int(struct sg_json_reader *r, const char *key, int64_t min, int64_t max, int64_t *ret,
                struct sg_error *err);
int sg_json_bool(struct sg_json_reader *r, const char *key, bool *ret, struct sg_error *err);
/* A number of seconds above 0, integer or real, into milliseconds. What is above max_ms becomes max_ms: give one that is beyond
 * any limit of the server, so that the limit's own error can name it. */
int sg_json_seconds_ms(struct sg_json_reader *r, const char *key, int64_t max_ms, int64_t *ret,
                       struct sg_error *err);
int sg_json_object(struct sg_json_reader *r, const char *key, json_t **ret, struct sg_error *err);
int sg_json_array(struct sg_json_reader *r, const char *key, json_t **ret, struct sg_error *err);
int sg_json_any(struct sg_json_reader *r, const char *key, json_t **ret);

/* "path.key" (or "key") into out, for error fields. */
void sg_json_path(const char *path, const char *key, char *out, size_t out_size);

#endif
