#include "model/exec_json.h"

#include "base/base64.h"
#include "base/hash.h"
#include "base/str.h"

#include <stdio.h>

#define STDIN_MAX (64U * 1024U * 1024U)
/* Seconds far beyond any maximum a server can have: larger numbers mean "above the maximum" all the same. */
#define TIMEOUT_CEILING_MS INT64_C(4000000000000)

int sg_env_parse(const json_t *v, const char *path, struct sg_env *ret, struct sg_error *err)
{
    const char *key;
    json_t *value;
    char field[160];

    if (!json_is_object(v))
        return sg_error_field(err, SG_INVALID_REQUEST, path, "must be an object of strings");
    json_object_foreach((json_t *)v, key, value)
    {
        sg_json_path(path, key, field, sizeof field);
        if (!json_is_string(value))
            return sg_error_field(err, SG_INVALID_REQUEST, field, "must be a string");
        if (sg_env_set(ret, key, json_string_value(value), err) < 0) {
            snprintf(err->field, sizeof err->field, "%.95s", field);
            return -1;
        }
    }
    return 0;
}

static int parse_argv(const json_t *list, struct sg_exec_request *q, struct sg_error *err)
{
    size_t n = json_array_size(list), bytes = 0;

    if (n == 0)
        return sg_error_field(err, SG_INVALID_REQUEST, "command", "must not be empty");
    if (n > SG_EXEC_ARGS_MAX)
        return sg_error_field(err, SG_INVALID_REQUEST, "command", "has more than %u arguments", SG_EXEC_ARGS_MAX);
    q->argv = sg_xcalloc(n + 1, sizeof *q->argv);
    for (size_t i = 0; i < n; i++) {
        const json_t *arg = json_array_get(list, i);
        char field[48];
        snprintf(field, sizeof field, "command[%zu]", i);
        if (!json_is_string(arg))
            return sg_error_field(err, SG_INVALID_REQUEST, field, "must be a string");
        bytes += json_string_length(arg) + 1;
        if (bytes > SG_EXEC_ARGS_BYTES_MAX)
            return sg_error_field(err, SG_INVALID_REQUEST, "command", "is longer than %u bytes", SG_EXEC_ARGS_BYTES_MAX);
        q->argv[i] = strdup(json_string_value(arg));
        if (!q->argv[i])
            return sg_error_set(err, SG_NO_MEMORY, "no memory for the command");
    }
    if (q->argv[0][0] == '\0')
        return sg_error_field(err, SG_INVALID_REQUEST, "command[0]", "must name a program");
    return 0;
}

static int parse_shell(const char *text, struct sg_exec_request *q, struct sg_error *err)
{
    if (text[0] == '\0')
        return sg_error_field(err, SG_INVALID_REQUEST, "command", "must not be empty");
    /* The kernel refuses a single argument above 128 KiB. */
    if (strlen(text) >= 128U * 1024U)
        return sg_error_field(err, SG_INVALID_REQUEST, "command",
                              "is longer than 131071 bytes; put the text in a file or on stdin");
    q->argv = sg_xcalloc(4, sizeof *q->argv);
    q->argv[0] = sg_xstrdup("/bin/sh");
    q->argv[1] = sg_xstrdup("-c");
    q->argv[2] = strdup(text);
    if (!q->argv[2])
        return sg_error_set(err, SG_NO_MEMORY, "no memory for the command");
    return 0;
}

static int parse_command(struct sg_json_reader *r, struct sg_exec_request *q, struct sg_error *err)
{
    json_t *v;

    if (!sg_json_any(r, "command", &v))
        return sg_error_field(err, SG_INVALID_REQUEST, "command", "is required: shell text or a list of arguments");
    q->command = sg_json_ref(v);
    if (json_is_string(v))
        return parse_shell(json_string_value(v), q, err);
    if (json_is_array(v))
        return parse_argv(v, q, err);
    return sg_error_field(err, SG_INVALID_REQUEST, "command", "must be shell text or a list of arguments");
}

static int parse_stdin(struct sg_json_reader *r, struct sg_exec_request *q, struct sg_error *err)
{
    const char *text, *b64;
    int has_text, has_b64;

    if ((has_text = sg_json_str(r, "stdin", &text, err)) < 0 || (has_b64 = sg_json_str(r, "stdin_base64", &b64, err)) < 0)
        return -1;
    if (has_text && has_b64)
        return sg_error_field(err, SG_INVALID_REQUEST, "stdin_base64", "cannot be given together with stdin");
    q->stdin_given = has_text || has_b64;
    if (has_text) {
        q->stdin_len = strlen(text);
        q->stdin_data = (uint8_t *)strdup(text);
        if (!q->stdin_data)
            return sg_error_set(err, SG_NO_MEMORY, "no memory for stdin");
    }
    if (has_b64 && sg_base64_decode(b64, strlen(b64), STDIN_MAX, &q->stdin_data, &q->stdin_len, err) < 0) {
        snprintf(err->field, sizeof err->field, "stdin_base64");
        return -1;
    }
    return 0;
}

static int parse_exec_id(struct sg_json_reader *r, struct sg_exec_request *q, struct sg_error *err)
{
    const char *id;
    int has = sg_json_str(r, "exec_id", &id, err);

    if (has <= 0)
        return has;
    size_t n = strlen(id);
    if (n == 0 || n >= sizeof q->exec_id ||
        strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != n || id[0] == '.')
        return sg_error_field(err, SG_INVALID_REQUEST, "exec_id",
                              "must be 1 to %zu letters, digits, '.', '_' or '-', not starting with '.'",
                              sizeof q->exec_id - 1);
    memcpy(q->exec_id, id, n + 1);
    return 0;
}

static int read_size(struct sg_json_reader *r, const char *key, bool must, uint16_t *ret, struct sg_error *err)
{
    int64_t v;
    char field[80];
    int has = sg_json_int(r, key, 1, INT64_MAX, &v, err);

    sg_json_path(r->path, key, field, sizeof field);
    if (has == 0 && must)
        return sg_error_field(err, SG_INVALID_REQUEST, field, "is required: a number of characters");
    if (has <= 0)
        return has;
    if (v > SG_TTY_SIZE_MAX)
        return sg_error_field(err, SG_LIMIT_EXCEEDED, field, "is above the maximum of %d", SG_TTY_SIZE_MAX);
    *ret = (uint16_t)v;
    return 0;
}

int sg_tty_size_read(struct sg_json_reader *r, bool all_given, struct sg_tty_size *size, struct sg_error *err)
{
    return read_size(r, "rows", all_given, &size->rows, err) < 0 || read_size(r, "cols", all_given, &size->cols, err) < 0 ? -1 : 0;
}

json_t *sg_tty_size_json(struct sg_tty_size size)
{
    return size.rows ? json_pack("{s:i, s:i}", "rows", (int)size.rows, "cols", (int)size.cols) : json_null();
}

static int parse_tty(struct sg_json_reader *r, struct sg_exec_request *q, struct sg_error *err)
{
    json_t *v;
    struct sg_json_reader in;
    int has = sg_json_object(r, "tty", &v, err);

    if (has <= 0)
        return has;
    q->tty = (struct sg_tty_size){24, 80};
    return sg_json_begin(&in, v, "tty", err) < 0 || sg_tty_size_read(&in, false, &q->tty, err) < 0 ? -1 : sg_json_end(&in, err);
}

static int parse_members(struct sg_json_reader *r, struct sg_exec_request *q, struct sg_error *err)
{
    const char *cwd;
    json_t *v;
    int has;

    if (parse_command(r, q, err) < 0 || parse_stdin(r, q, err) < 0 || parse_exec_id(r, q, err) < 0)
        return -1;
    if ((has = sg_json_str(r, "cwd", &cwd, err)) < 0)
        return -1;
    if (has) {
        if (cwd[0] == '\0' || strlen(cwd) >= 4096)
            return sg_error_field(err, SG_INVALID_REQUEST, "cwd", "must be a path of 1 to 4095 bytes");
        q->cwd = sg_xstrdup(cwd);
    }
    if (sg_json_any(r, "env", &v) && sg_env_parse(v, "env", &q->env, err) < 0)
        return -1;
    if (sg_json_seconds_ms(r, "timeout", TIMEOUT_CEILING_MS, &q->timeout_ms, err) < 0 ||
        sg_json_int(r, "max_output_bytes", 1, INT64_MAX, &q->max_output_bytes, err) < 0 ||
        sg_json_bool(r, "detach", &q->detach, err) < 0)
        return -1;
    if (parse_tty(r, q, err) < 0)
        return -1;
    return sg_json_end(r, err);
}

int sg_exec_request_parse(const char *body, size_t len, struct sg_exec_request *ret, struct sg_error *err)
{
    sg_cleanup(sg_json_p) json_t *doc = NULL;
    struct sg_json_reader r;
    struct sg_exec_request q = {0};

    if (sg_json_parse_object(body, len, &doc, err) < 0 || sg_json_begin(&r, doc, "", err) < 0)
        return -1;
    if (parse_members(&r, &q, err) < 0) {
        sg_exec_request_finish(&q);
        return -1;
    }
    sg_cleanup(sg_free_p) char *text = json_dumps(doc, JSON_COMPACT | JSON_SORT_KEYS);
    if (!text) {
        sg_exec_request_finish(&q);
        return sg_error_set(err, SG_NO_MEMORY, "no memory for the request");
    }
    sg_sha256_hex(text, strlen(text), q.hash);
    *ret = q;
    return 0;
}

void sg_exec_request_finish(struct sg_exec_request *q)
{
    for (size_t i = 0; q->argv && q->argv[i]; i++)
        free(q->argv[i]);
    free(q->argv);
    sg_json_unref(q->command);
    free(q->cwd);
    sg_env_finish(&q->env);
    free(q->stdin_data);
    *q = (struct sg_exec_request){0};
}

bool sg_exec_output_is_text(const struct sg_exec_output *s, size_t *ret_len)
{
    *ret_len = s->len;
    if (sg_utf8_valid(s->data, s->len))
        return true;
    if (s->total <= s->len)
        return false;
    size_t whole = sg_utf8_whole(s->data, s->len);
    if (s->len - whole >= 4 || !sg_utf8_valid(s->data, whole))
        return false;
    *ret_len = whole;
    return true;
}

/* Sets NAME, NAME_encoding, NAME_bytes_total and NAME_truncated. */
static int add_output(json_t *o, const char *name, const struct sg_exec_output *s)
{
    char key[40];
    size_t len;
    bool text = sg_exec_output_is_text(s, &len);
    json_t *v = NULL;

    if (text) {
        v = json_stringn_nocheck(s->data ? s->data : "", len);
    } else {
        size_t n;
        sg_cleanup(sg_free_p) char *b64 = sg_base64_encode(s->data, len, &n);
        v = b64 ? json_stringn_nocheck(b64, n) : NULL;
    }
    int bad = json_object_set_new(o, name, v);
    snprintf(key, sizeof key, "%s_encoding", name);
    bad |= json_object_set_new(o, key, json_string(text ? "utf-8" : "base64"));
    snprintf(key, sizeof key, "%s_bytes_total", name);
    bad |= json_object_set_new(o, key, json_integer((json_int_t)s->total));
    snprintf(key, sizeof key, "%s_truncated", name);
    bad |= json_object_set_new(o, key, json_boolean(s->total > s->len));
    return bad;
}

static json_t *string_or_null(const char *s)
{
    return s ? json_string(s) : json_null();
}

/* How it ended. */
static int add_exit(json_t *o, const struct sg_exec_result *r)
{
    const struct sg_exit *x = &r->exit;
    int bad = 0;

    bad |= json_object_set_new(o, "returncode", x->signal ? json_null() : json_integer(x->returncode));
    bad |= json_object_set_new(o, "signal", string_or_null(x->signal ? sg_signal_name(x->signal) : NULL));
    bad |= json_object_set_new(o, "timed_out", json_boolean(x->killed_by == SG_KILLED_TIMEOUT));
    bad |= json_object_set_new(o, "killed", json_boolean(x->killed_by != SG_KILLED_NOT));
    bad |= json_object_set_new(o, "killed_by", string_or_null(sg_killed_by_name(x->killed_by)));
    bad |= json_object_set_new(o, "timeout", json_real((double)r->timeout_ms / 1000.0));
    bad |= json_object_set_new(o, "duration_seconds", json_real((double)x->duration_us / 1e6));
    bad |= json_object_set_new(o, "metadata", json_object());
    return bad;
}

static json_t *or_null(json_t *o, int bad)
{
    if (!bad)
        return o;
    sg_json_unref(o);
    return NULL;
}

json_t *sg_exec_result_json(const struct sg_exec_result *r)
{
    json_t *o = json_object();
    int bad = 0;

    bad |= json_object_set_new(o, "exec_id", json_string(r->exec_id));
    bad |= json_object_set_new(o, "cmd", sg_json_ref(r->command));
    bad |= add_output(o, "stdout", &r->out);
    bad |= add_output(o, "stderr", &r->err);
    bad |= add_exit(o, r);
    return or_null(o, bad);
}

json_t *sg_exec_exit_json(const struct sg_exec_result *r)
{
    json_t *o = json_object();
    int bad = 0;

    bad |= json_object_set_new(o, "exec_id", json_string(r->exec_id));
    bad |= json_object_set_new(o, "cmd", sg_json_ref(r->command));
    bad |= json_object_set_new(o, "stdout_bytes_total", json_integer((json_int_t)r->out.total));
    bad |= json_object_set_new(o, "stderr_bytes_total", json_integer((json_int_t)r->err.total));
    bad |= json_object_set_new(o, "stdout_truncated", json_false());
    bad |= json_object_set_new(o, "stderr_truncated", json_false());
    bad |= add_exit(o, r);
    return or_null(o, bad);
}

json_t *sg_exec_step_json(const struct sg_exec_result *r, bool ended)
{
    json_t *o = json_object();
    int bad = json_object_set_new(o, "cmd", sg_json_ref(r->command));

    bad |= json_object_set_new(o, "running", json_boolean(!ended));
    bad |= json_object_set_new(o, "returncode", !ended || r->exit.signal ? json_null() : json_integer(r->exit.returncode));
    bad |= json_object_set_new(o, "signal", string_or_null(r->exit.signal ? sg_signal_name(r->exit.signal) : NULL));
    bad |= json_object_set_new(o, "timed_out", json_boolean(r->exit.killed_by == SG_KILLED_TIMEOUT));
    bad |= add_output(o, "stdout", &r->out);
    bad |= add_output(o, "stderr", &r->err);
    bad |= json_object_del(o, "stdout_bytes_total") | json_object_del(o, "stderr_bytes_total");
    return or_null(o, bad);
}
