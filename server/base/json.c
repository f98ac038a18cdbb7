#include "base/json.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/str.h"

#define JSON_TEXT_MAX ((size_t)1 << 30)

/* true, false and null have this count for ever. */
static bool is_constant(json_t *v)
{
    return __atomic_load_n(&v->refcount, __ATOMIC_RELAXED) == (size_t)-1;
}

json_t *sg_json_ref(json_t *v)
{
    if (v != NULL && !is_constant(v)) {
        __atomic_add_fetch(&v->refcount, 1, __ATOMIC_RELAXED);
    }
    return v;
}

void sg_json_unref(json_t *v)
{
    if (v != NULL && !is_constant(v) && __atomic_sub_fetch(&v->refcount, 1, __ATOMIC_ACQ_REL) == 0) {
        json_delete(v);
    }
}

void sg_json_p(json_t **p)
{
    sg_json_unref(*p);
    *p = NULL;
}

/* Nesting is checked before parsing: the parser below recurses. */
static bool too_deep(const char *text, size_t len)
{
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\') {
                i++;
            } else if (c == '"') {
                in_string = false;
            }
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > SG_JSON_DEPTH_MAX) {
                return true;
            }
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
    return false;
}

/* jansson says: duplicate object key near '"name"'. */
static void duplicate_name(const char *text, char *out, size_t size)
{
    const char *start = strstr(text, "near '\"");
    out[0] = '\0';
    if (start != NULL) {
        start += strlen("near '\"");
        const char *end = strrchr(start, '"');
        int n = end != NULL ? (int)(end - start) : (int)strlen(start);
        (void)snprintf(out, size, "%.*s", n, start);
    }
}

/* Our own words: the library's quote the input, which may hold secrets. */
static const char *parse_reason(const json_error_t *e)
{
    switch (json_error_code(e)) {
    case json_error_premature_end_of_input: return "the text ends too early";
    case json_error_end_of_input_expected: return "there is something after the end";
    case json_error_invalid_utf8: return "a string is not valid UTF-8";
    case json_error_null_character:
    case json_error_null_byte_in_key: return "a string holds a NUL";
    case json_error_numeric_overflow: return "a number is too large";
    case json_error_stack_overflow: return "nested too deeply";
    case json_error_out_of_memory: return "out of memory";
    default: return "not valid JSON";
    }
}

int sg_json_parse(const char *text, size_t len, json_t **ret, struct sg_error *err)
{
    if (too_deep(text, len)) {
        return sg_error_set(err, SG_INVALID_REQUEST, "JSON: more than %d levels deep", SG_JSON_DEPTH_MAX);
    }
    json_error_t e;
    json_t *v = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
    if (v != NULL) {
        *ret = v;
        return 0;
    }
    if (json_error_code(&e) == json_error_duplicate_key) {
        char name[96];
        duplicate_name(e.text, name, sizeof name);
        return sg_error_field(err, SG_INVALID_REQUEST, name, "JSON: duplicate key \"%s\" (line %d, column %d)",
                              name, e.line, e.column);
    }
    enum sg_code code = json_error_code(&e) == json_error_out_of_memory ? SG_NO_MEMORY : SG_INVALID_REQUEST;
    return sg_error_set(err, code, "JSON: %s (line %d, column %d)", parse_reason(&e), e.line, e.column);
}

int sg_json_parse_object(const char *text, size_t len, json_t **ret, struct sg_error *err)
{
    sg_cleanup(sg_json_p) json_t *v = NULL;
    if (sg_json_parse(text, len, &v, err) < 0) {
        return -1;
    }
    if (!json_is_object(v)) {
        return sg_error_set(err, SG_INVALID_REQUEST, "JSON: an object is expected");
    }
    *ret = sg_steal(&v);
    return 0;
}

/* ---- writing ---- */

struct writer {
    struct sg_buf buf;
    bool canonical;
    bool real_found;
};

static int put_value(struct writer *w, const json_t *v);

static int put(struct writer *w, const char *s)
{
    return sg_buf_add(&w->buf, s, strlen(s));
}

/* One character as it stands inside a string; returns the length, at most 6. */
static size_t escape(unsigned char c, char *out)
{
    static const char shorts[0x60] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f',
                                      ['\r'] = 'r', ['"'] = '"',  ['\\'] = '\\'};
    static const char hex[] = "0123456789abcdef";
    if (c >= 0x20 && c != '"' && c != '\\') {
        out[0] = (char)c;
        return 1;
    }
    out[0] = '\\';
    if (shorts[c] != 0) {
        out[1] = shorts[c];
        return 2;
    }
    memcpy(out + 1, "u00", 3);
    out[4] = hex[c >> 4];
    out[5] = hex[c & 15];
    return 6;
}

/* Is any of eight bytes zero? Never says no wrongly. */
static uint64_t has_zero(uint64_t v)
{
    return (v - UINT64_C(0x0101010101010101)) & ~v & UINT64_C(0x8080808080808080);
}

/* May one of eight bytes need an escape? Never says no wrongly. */
static bool special(uint64_t v)
{
    uint64_t control = (v - UINT64_C(0x2020202020202020)) & ~v & UINT64_C(0x8080808080808080);
    return (control | has_zero(v ^ UINT64_C(0x2222222222222222)) | has_zero(v ^ UINT64_C(0x5c5c5c5c5c5c5c5c))) != 0;
}

/* Output of commands goes through here: by pieces, most of it eight bytes at a time. */
int sg_json_add_string(struct sg_buf *b, const char *s, size_t len)
{
    char piece[1024];
    size_t n = 0;
    uint64_t eight;
    piece[n++] = '"';
    for (size_t i = 0; i < len;) {
        if (n > sizeof piece - 16) {
            if (sg_buf_add(b, piece, n) < 0) {
                return -1;
            }
            n = 0;
        }
        if (len - i >= sizeof eight && (memcpy(&eight, s + i, sizeof eight), !special(eight))) {
            memcpy(piece + n, &eight, sizeof eight);
            n += sizeof eight;
            i += sizeof eight;
        } else {
            n += escape((unsigned char)s[i++], piece + n);
        }
    }
    piece[n++] = '"';
    return sg_buf_add(b, piece, n);
}

static int put_string(struct writer *w, const char *s, size_t len)
{
    return sg_json_add_string(&w->buf, s, len);
}

static int put_member(struct writer *w, const char *key, const json_t *v, bool first)
{
    return (!first && put(w, ",") < 0) || put_string(w, key, strlen(key)) < 0 || put(w, ":") < 0 ? -1
                                                                                                 : put_value(w, v);
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int put_sorted(struct writer *w, json_t *obj)
{
    size_t n = json_object_size(obj);
    sg_cleanup(sg_free_p) const char **keys = calloc(n + 1, sizeof *keys);
    if (keys == NULL) {
        return -1;
    }
    size_t i = 0;
    const char *key;
    json_t *v;
    json_object_foreach(obj, key, v) {
        keys[i++] = key;
    }
    qsort(keys, n, sizeof *keys, by_bytes);
    for (i = 0; i < n; i++) {
        if (put_member(w, keys[i], json_object_get(obj, keys[i]), i == 0) < 0) {
            return -1;
        }
    }
    return 0;
}

static int put_object(struct writer *w, json_t *obj)
{
    if (put(w, "{") < 0) {
        return -1;
    }
    if (w->canonical) {
        return put_sorted(w, obj) < 0 ? -1 : put(w, "}");
    }
    bool first = true;
    const char *key;
    json_t *v;
    json_object_foreach(obj, key, v) {
        if (put_member(w, key, v, first) < 0) {
            return -1;
        }
        first = false;
    }
    return put(w, "}");
}

static int put_array(struct writer *w, const json_t *a)
{
    if (put(w, "[") < 0) {
        return -1;
    }
    for (size_t i = 0; i < json_array_size(a); i++) {
        if ((i > 0 && put(w, ",") < 0) || put_value(w, json_array_get(a, i)) < 0) {
            return -1;
        }
    }
    return put(w, "]");
}

static int put_real(struct writer *w, double d)
{
    if (w->canonical) {
        w->real_found = true;
        return -1;
    }
    char text[SG_DOUBLE_LEN];
    sg_format_double(d, text);
    return put(w, text);
}

static int put_value(struct writer *w, const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: return put_object(w, (json_t *)(uintptr_t)v); /* iteration wants it writable */
    case JSON_ARRAY: return put_array(w, v);
    case JSON_STRING: return put_string(w, json_string_value(v), json_string_length(v));
    case JSON_INTEGER: return sg_buf_addf(&w->buf, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    case JSON_REAL: return put_real(w, json_real_value(v));
    case JSON_TRUE: return put(w, "true");
    case JSON_FALSE: return put(w, "false");
    case JSON_NULL: return put(w, "null");
    }
    return -1;
}

char *sg_json_dump(const json_t *v, size_t *ret_len)
{
    struct writer w = {.canonical = false};
    sg_buf_init(&w.buf, JSON_TEXT_MAX);
    if (put_value(&w, v) < 0) {
        sg_buf_finish(&w.buf);
        return NULL;
    }
    return sg_buf_steal(&w.buf, ret_len);
}

int sg_json_canonical(const json_t *v, char **ret, size_t *ret_len, struct sg_error *err)
{
    struct writer w = {.canonical = true};
    sg_buf_init(&w.buf, JSON_TEXT_MAX);
    if (put_value(&w, v) < 0) {
        sg_buf_finish(&w.buf);
        return w.real_found ? sg_error_set(err, SG_INVALID_REQUEST, "JSON: real numbers have no canonical form")
                            : sg_error_set(err, SG_NO_MEMORY, "JSON: out of memory");
    }
    *ret = sg_buf_steal(&w.buf, ret_len);
    return 0;
}

/* ---- strict reading ---- */

void sg_json_path(const char *path, const char *key, char *out, size_t out_size)
{
    (void)snprintf(out, out_size, "%s%s%s", path, *path != '\0' ? "." : "", key);
}

SG_PRINTF(4, 5)
static int bad(const struct sg_json_reader *r, struct sg_error *err, const char *key, const char *fmt, ...)
{
    char path[256];
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    sg_json_path(r->path, key, path, sizeof path);
    return sg_error_field(err, SG_INVALID_REQUEST, path, "%s: %s", path, text);
}

int sg_json_begin(struct sg_json_reader *r, const json_t *v, const char *path, struct sg_error *err)
{
    *r = (struct sg_json_reader){.obj = v, .path = path};
    if (!json_is_object(v)) {
        return sg_error_field(err, SG_INVALID_REQUEST, path, "%s%san object is expected", path,
                              *path != '\0' ? ": " : "");
    }
    return 0;
}

int sg_json_end(const struct sg_json_reader *r, struct sg_error *err)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)r->obj, key, v) {
        bool found = false;
        for (size_t i = 0; i < r->n_taken && !found; i++) {
            found = sg_streq(r->taken[i], key);
        }
        if (!found) {
            return bad(r, err, key, "unknown member");
        }
    }
    return 0;
}

/* The member, or NULL when it is absent or null; either way it counts as known. */
static json_t *take(struct sg_json_reader *r, const char *key)
{
    if (r->n_taken == SG_COUNT_OF(r->taken)) {
        abort(); /* more members in a schema than a reader holds: a fault of the program */
    }
    r->taken[r->n_taken++] = key;
    json_t *v = json_object_get(r->obj, key);
    return json_is_null(v) ? NULL : v;
}

int sg_json_str(struct sg_json_reader *r, const char *key, const char **ret, struct sg_error *err)
{
    json_t *v = take(r, key);
    if (v == NULL) {
        return 0;
    }
    if (!json_is_string(v)) {
        return bad(r, err, key, "a string is expected");
    }
    *ret = json_string_value(v);
    return 1;
}

/* 5.0 is an integer in JSON Schema's eyes. */
static bool whole_number(const json_t *v, int64_t *ret)
{
    if (json_is_integer(v)) {
        *ret = json_integer_value(v);
        return true;
    }
    double d = json_is_real(v) ? json_real_value(v) : 0.5;
    if (fabs(d) > 9007199254740992.0 || d < floor(d) || d > floor(d)) {
        return false;
    }
    *ret = (int64_t)d;
    return true;
}

int sg_json_int(struct sg_json_reader *r, const char *key, int64_t min, int64_t max, int64_t *ret,
                struct sg_error *err)
{
    json_t *v = take(r, key);
    int64_t n;
    if (v == NULL) {
        return 0;
    }
    if (!whole_number(v, &n)) {
        return bad(r, err, key, "an integer is expected");
    }
    if (n < min || n > max) {
        return bad(r, err, key, "must be from %lld to %lld", (long long)min, (long long)max);
    }
    *ret = n;
    return 1;
}

int sg_json_bool(struct sg_json_reader *r, const char *key, bool *ret, struct sg_error *err)
{
    json_t *v = take(r, key);
    if (v == NULL) {
        return 0;
    }
    if (!json_is_boolean(v)) {
        return bad(r, err, key, "true or false is expected");
    }
    *ret = json_is_true(v);
    return 1;
}

int sg_json_seconds_ms(struct sg_json_reader *r, const char *key, int64_t max_ms, int64_t *ret,
                       struct sg_error *err)
{
    json_t *v = take(r, key);
    if (v == NULL) {
        return 0;
    }
    if (!json_is_number(v)) {
        return bad(r, err, key, "a number of seconds is expected");
    }
    double ms = json_number_value(v) * 1000;
    if (!(ms > 0)) {
        return bad(r, err, key, "must be a number of seconds above 0");
    }
    if (ms >= (double)max_ms) {
        *ret = max_ms;
        return 1;
    }
    int64_t whole = (int64_t)llround(ms);
    *ret = whole < 1 ? 1 : whole;
    return 1;
}

int sg_json_object(struct sg_json_reader *r, const char *key, json_t **ret, struct sg_error *err)
{
    json_t *v = take(r, key);
    if (v == NULL) {
        return 0;
    }
    if (!json_is_object(v)) {
        return bad(r, err, key, "an object is expected");
    }
    *ret = v;
    return 1;
}

int sg_json_array(struct sg_json_reader *r, const char *key, json_t **ret, struct sg_error *err)
{
    json_t *v = take(r, key);
    if (v == NULL) {
        return 0;
    }
    if (!json_is_array(v)) {
        return bad(r, err, key, "an array is expected");
    }
    *ret = v;
    return 1;
}

int sg_json_any(struct sg_json_reader *r, const char *key, json_t **ret)
{
    json_t *v = take(r, key);
    if (v == NULL) {
        return 0;
    }
    *ret = v;
    return 1;
}
