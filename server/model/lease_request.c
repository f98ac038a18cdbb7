#include "model/lease_request.h"

#include "base/hash.h"
#include "base/str.h"
#include "model/exec_json.h"

#include <stdio.h>

/* Seconds far beyond any maximum a server can have: larger numbers mean "above the maximum" all the same. */
#define TIMEOUT_CEILING_MS INT64_C(4000000000000)
#define METADATA_BYTES_MAX (64U * 1024U)
#define COMMAND_BYTES_MAX (128U * 1024U) /* the kernel refuses a single argument above */

/* An optional string of 1 to max bytes without control characters, duplicated. */
static int take_text(struct sg_json_reader *r, const char *key, size_t max, char **ret, struct sg_error *err)
{
    const char *s;
    int has = sg_json_str(r, key, &s, err);

    if (has <= 0)
        return has;
    size_t n = strlen(s);
    bool clean = n > 0 && n <= max;
    char field[64];
    for (size_t i = 0; clean && i < n; i++)
        clean = (unsigned char)s[i] >= 0x20 && s[i] != 0x7f;
    sg_json_path(r->path, key, field, sizeof field);
    if (!clean)
        return sg_error_field(err, SG_INVALID_REQUEST, field, "must be 1 to %zu bytes without control characters", max);
    *ret = sg_xstrdup(s);
    return 1;
}

static int take_object(struct sg_json_reader *r, const char *key, json_t **ret, struct sg_error *err)
{
    json_t *v;
    int has = sg_json_object(r, key, &v, err);

    if (has > 0)
        *ret = sg_json_ref(v);
    return has;
}

static int parse_service(const json_t *v, const char *path, struct sg_service_port *s, struct sg_error *err)
{
    struct sg_json_reader r;
    const char *name, *health = "/health";
    int64_t port;
    char field[64];

    if (sg_json_begin(&r, v, path, err) < 0)
        return -1;
    int has_name = sg_json_str(&r, "name", &name, err);
    int has_port = has_name < 0 ? -1 : sg_json_int(&r, "port", 1, 65535, &port, err);
    if (has_name < 0 || has_port < 0 || sg_json_str(&r, "health_path", &health, err) < 0)
        return -1;
    sg_json_path(path, has_name ? "port" : "name", field, sizeof field);
    if (!has_name || !has_port)
        return sg_error_field(err, SG_INVALID_REQUEST, field, "is required");
    size_t n = strlen(name);
    if (n == 0 || n >= sizeof s->name || strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != n)
        return sg_error_field(err, SG_INVALID_REQUEST, path, "name must be 1 to 63 letters, digits, '_' or '-'");
    if (health[0] != '/' || strlen(health) > 1024 || strpbrk(health, " \r\n\t#"))
        return sg_error_field(err, SG_INVALID_REQUEST, path, "health_path must start with '/' and hold no blanks");
    memcpy(s->name, name, n + 1);
    s->port = (uint16_t)port;
    s->health_path = sg_xstrdup(health);
    return sg_json_end(&r, err);
}

static int parse_services(struct sg_json_reader *r, struct sg_lease_request *q, struct sg_error *err)
{
    json_t *list;
    int has = sg_json_array(r, "services", &list, err);

    if (has <= 0)
        return has;
    if (json_array_size(list) > SG_LEASE_SERVICES_MAX)
        return sg_error_field(err, SG_INVALID_REQUEST, "services", "has more than %u entries", SG_LEASE_SERVICES_MAX);
    q->services = sg_xcalloc(SG_LEASE_SERVICES_MAX, sizeof *q->services);
    for (size_t i = 0; i < json_array_size(list); i++) {
        char path[32];
        snprintf(path, sizeof path, "services[%zu]", i);
        q->n_services = i + 1;
        if (parse_service(json_array_get(list, i), path, &q->services[i], err) < 0)
            return -1;
        for (size_t k = 0; k < i; k++)
            if (sg_streq(q->services[k].name, q->services[i].name))
                return sg_error_field(err, SG_INVALID_REQUEST, path, "repeats the name \"%s\"", q->services[i].name);
    }
    return 0;
}

static int parse_manifest(struct sg_json_reader *top, struct sg_lease_request *q, struct sg_error *err)
{
    json_t *v;
    int has = sg_json_object(top, "manifest", &v, err);

    return has <= 0 ? has : sg_manifest_parse(v, &q->manifest, &q->env, &q->timeout_ms, err);
}

/* A number or, for sizes, text such as "512MiB". */
static int take_amount(struct sg_json_reader *r, const char *key, bool size, int64_t *ret, struct sg_error *err)
{
    json_t *v;
    char field[64];

    if (!sg_json_any(r, key, &v))
        return 0;
    sg_json_path("limits", key, field, sizeof field);
    if (json_is_integer(v) && json_integer_value(v) > 0) {
        *ret = json_integer_value(v);
        return 1;
    }
    if (size && json_is_string(v) && sg_parse_size(json_string_value(v), ret) && *ret > 0)
        return 1;
    return sg_error_field(err, SG_INVALID_REQUEST, field,
                          size ? "must be a number of bytes above 0 or text such as \"512MiB\"" : "must be an integer above 0");
}

static int parse_limits(struct sg_json_reader *top, struct sg_lease_request *q, struct sg_error *err)
{
    struct sg_json_reader r;
    json_t *v;
    int has = sg_json_object(top, "limits", &v, err);

    if (has <= 0)
        return has;
    if (sg_json_begin(&r, v, "limits", err) < 0 || take_amount(&r, "memory_max", true, &q->limits.memory_bytes, err) < 0 ||
        take_amount(&r, "pids_max", false, &q->limits.pids, err) < 0 ||
        take_amount(&r, "disk_max", true, &q->limits.disk_bytes, err) < 0)
        return -1;
    json_t *cpu;
    if (sg_json_any(&r, "cpu_max", &cpu)) {
        double n = json_is_number(cpu) ? json_number_value(cpu) : 0;
        if (!(n >= 0.001 && n <= 1024))
            return sg_error_field(err, SG_INVALID_REQUEST, "limits.cpu_max", "must be a number of CPUs from 0.001 to 1024");
        q->limits.cpu_milli = (int64_t)(n * 1000.0 + 0.5);
    }
    return sg_json_end(&r, err);
}

static int parse_mode(struct sg_json_reader *r, struct sg_lease_request *q, struct sg_error *err)
{
    int has = take_object(r, "metadata", &q->metadata, err);

    if (has < 0)
        return -1;
    q->mode = SG_MODE_WHITEBOX;
    for (size_t i = 0; i < q->n_services; i++)
        if (sg_streq(q->services[i].name, "blackbox"))
            q->mode = SG_MODE_BLACKBOX;
    const json_t *mode = json_object_get(q->metadata, "paddock_mode");
    if (mode) {
        if (!json_is_string(mode) || !sg_mode_parse(json_string_value(mode), &q->mode))
            return sg_error_field(err, SG_INVALID_REQUEST, "metadata.paddock_mode", "must be \"blackbox\" or \"whitebox\"");
        q->mode_given = true;
    }
    sg_cleanup(sg_free_p) char *text = q->metadata ? json_dumps(q->metadata, JSON_COMPACT) : NULL;
    if (text && strlen(text) > METADATA_BYTES_MAX)
        return sg_error_field(err, SG_INVALID_REQUEST, "metadata", "is larger than %u bytes", METADATA_BYTES_MAX);
    return 0;
}

static int parse_egress(struct sg_json_reader *r, struct sg_lease_request *q, struct sg_error *err)
{
    const char *s;
    int has = sg_json_str(r, "network_egress_class", &s, err);

    if (has <= 0)
        return has;
    if (!sg_egress_parse(s, &q->egress))
        return sg_error_field(err, SG_INVALID_REQUEST, "network_egress_class",
                              "must be \"none\", \"loopback\", \"restricted\" or \"open\"");
    q->egress_given = true;
    return 0;
}

static int parse_acquire_timeout(struct sg_json_reader *r, struct sg_lease_request *q, struct sg_error *err)
{
    json_t *v;

    if (!sg_json_any(r, "acquire_timeout", &v))
        return 0;
    q->acquire_timeout_given = true;
    /* 0 means "now or not at all". */
    if (json_is_number(v) && !(json_number_value(v) > 0) && !(json_number_value(v) < 0))
        return 0;
    return sg_json_seconds_ms(r, "acquire_timeout", TIMEOUT_CEILING_MS, &q->acquire_timeout_ms, err);
}

static int take_command(struct sg_lease_request *q, const json_t *v, const char *field, struct sg_error *err)
{
    size_t n = json_string_length(v);

    if (!json_is_string(v))
        return sg_error_field(err, SG_INVALID_REQUEST, field, "must be text, which a shell runs");
    if (n == 0 || n >= COMMAND_BYTES_MAX)
        return sg_error_field(err, SG_INVALID_REQUEST, field, "must be 1 to %u bytes", COMMAND_BYTES_MAX - 1);
    q->commands[q->n_commands++] = json_string_value(v);
    return 0;
}

static int take_commands(struct sg_json_reader *r, struct sg_lease_request *q, struct sg_error *err)
{
    static const char name[] = "env_args.sandbox_cmd";
    json_t *v;
    char field[64];

    if (!sg_json_any(r, "sandbox_cmd", &v))
        return 0;
    if (json_is_string(v))
        return take_command(q, v, name, err);
    if (!json_is_array(v))
        return sg_error_field(err, SG_INVALID_REQUEST, name, "must be text, which a shell runs, or a list of such");
    if (json_array_size(v) > SG_LEASE_COMMANDS_MAX)
        return sg_error_field(err, SG_INVALID_REQUEST, name, "has more than %u entries", SG_LEASE_COMMANDS_MAX);
    for (size_t i = 0; i < json_array_size(v); i++) {
        snprintf(field, sizeof field, "%s[%zu]", name, i);
        if (take_command(q, json_array_get(v, i), field, err) < 0)
            return -1;
    }
    return 0;
}

/* What is not known there is for others to read. */
static int parse_env_args(struct sg_json_reader *top, struct sg_lease_request *q, struct sg_error *err)
{
    sg_cleanup(sg_free_p) char *image = NULL;
    struct sg_json_reader r;
    int has = take_object(top, "env_args", &q->env_args, err);

    if (has <= 0)
        return has;
    if (sg_json_begin(&r, q->env_args, "env_args", err) < 0 || take_text(&r, "sandbox_image", 512, &image, err) < 0 ||
        take_commands(&r, q, err) < 0 ||
        sg_json_seconds_ms(&r, "sandbox_cmd_timeout", TIMEOUT_CEILING_MS, &q->commands_timeout_ms, err) < 0)
        return -1;
    if (image && q->image && !sg_streq(image, q->image))
        return sg_error_field(err, SG_INVALID_REQUEST, "env_args.sandbox_image", "is another than image: give one of them");
    if (!q->image)
        q->image = sg_steal(&image);
    return 0;
}

static int parse_members(struct sg_json_reader *r, struct sg_lease_request *q, struct sg_error *err)
{
    json_t *v;

    if (take_text(r, "trajectory_id", 256, &q->trajectory_id, err) < 0 || take_text(r, "pool", 64, &q->pool, err) < 0 ||
        take_text(r, "local_pool", 64, &q->local_pool, err) < 0 || take_text(r, "image", 512, &q->image, err) < 0 ||
        take_text(r, "env_type", 64, &q->env_type, err) < 0 || take_object(r, "overrides", &q->overrides, err) < 0 ||
        take_object(r, "policy", &q->policy, err) < 0 || parse_env_args(r, q, err) < 0)
        return -1;
    if (parse_manifest(r, q, err) < 0 || parse_services(r, q, err) < 0 || parse_mode(r, q, err) < 0 ||
        parse_limits(r, q, err) < 0 || parse_egress(r, q, err) < 0 || parse_acquire_timeout(r, q, err) < 0)
        return -1;
    if (sg_json_any(r, "env", &v) && sg_env_parse(v, "env", &q->env, err) < 0)
        return -1;
    if (sg_json_seconds_ms(r, "timeout_sec", TIMEOUT_CEILING_MS, &q->timeout_ms, err) < 0 ||
        sg_json_seconds_ms(r, "idle_timeout_sec", TIMEOUT_CEILING_MS, &q->idle_timeout_ms, err) < 0)
        return -1;
    return sg_json_end(r, err);
}

int sg_lease_request_parse(const char *body, size_t len, struct sg_lease_request *ret, struct sg_error *err)
{
    sg_cleanup(sg_json_p) json_t *doc = NULL;
    struct sg_json_reader r;
    struct sg_lease_request q = {0};

    if (len == 0) {
        body = "{}";
        len = 2;
    }
    if (sg_json_parse_object(body, len, &doc, err) < 0 || sg_json_begin(&r, doc, "", err) < 0)
        return -1;
    if (parse_members(&r, &q, err) < 0) {
        sg_lease_request_finish(&q);
        return -1;
    }
    sg_cleanup(sg_free_p) char *text = json_dumps(doc, JSON_COMPACT | JSON_SORT_KEYS);
    if (!text) {
        sg_lease_request_finish(&q);
        return sg_error_set(err, SG_NO_MEMORY, "no memory for the request");
    }
    sg_sha256_hex(text, strlen(text), q.hash);
    *ret = q;
    return 0;
}

void sg_lease_request_finish(struct sg_lease_request *q)
{
    free(q->trajectory_id);
    free(q->pool);
    free(q->local_pool);
    free(q->image);
    free(q->env_type);
    sg_json_unref(q->overrides);
    sg_json_unref(q->policy);
    sg_manifest_finish(&q->manifest);
    sg_json_unref(q->env_args);
    sg_json_unref(q->metadata);
    for (size_t i = 0; i < q->n_services; i++)
        free(q->services[i].health_path);
    free(q->services);
    sg_env_finish(&q->env);
    *q = (struct sg_lease_request){0};
}
