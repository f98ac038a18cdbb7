#include "backends/local_bwrap/local_bwrap.h"

#include <stdio.h>

#include "backends/egress/lease.h"
#include "backends/egress/proxy.h"
#include "base/buf.h"

#define DISK_MIN ((int64_t)1024 * 1024)
#define SERVICE_TEXT_MAX ((size_t)128 * 1024)

static bool name_ok(const char *name)
{
    size_t n = strlen(name);
    return n >= 1 && n <= 63 && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") == n;
}

static int check_numbers(const struct sg_local_pool_config *c, struct sg_error *err)
{
    if (c->size < 1 || c->size > SG_LOCAL_POOL_SIZE_MAX) {
        return sg_error_field(err, SG_INVALID_REQUEST, "size", "a pool has 1 to %u slots, not %u",
                              SG_LOCAL_POOL_SIZE_MAX, c->size);
    }
    if (c->acquire_timeout_ms < 0) {
        return sg_error_field(err, SG_INVALID_REQUEST, "acquire_timeout", "must not be negative");
    }
    if (c->health_interval_ms < 0) {
        return sg_error_field(err, SG_INVALID_REQUEST, "health_interval", "must not be negative");
    }
    if (c->disk_max < DISK_MIN) {
        return sg_error_field(err, SG_INVALID_REQUEST, "disk_max", "must be at least 1MiB");
    }
    if (c->memory_max < 0) {
        return sg_error_field(err, SG_INVALID_REQUEST, "memory_max", "must not be negative");
    }
    if (c->pids_max < 0) {
        return sg_error_field(err, SG_INVALID_REQUEST, "pids_max", "must not be negative");
    }
    if (c->cpu_milli < 0) {
        return sg_error_field(err, SG_INVALID_REQUEST, "cpu_max", "must not be negative");
    }
    return 0;
}

/* ---- the service ---- */

#define LOWER "abcdefghijklmnopqrstuvwxyz_"

/* The value of the placeholder of n characters; NULL: there is none of that name. */
static const char *placeholder(const char *name, size_t n, const char *slot, const char *port)
{
    const struct {
        const char *name;
        const char *value;
    } all[] = {{"slot", slot},           {"port", port}, {"work", "/workspace"}, {"home", "/home/sandbox"},
               {"tmp", "/tmp"}, {"runtime", "/run"}};
    for (size_t i = 0; i < SG_COUNT_OF(all); i++) {
        if (strlen(all[i].name) == n && memcmp(all[i].name, name, n) == 0) {
            return all[i].value;
        }
    }
    return NULL;
}

/* Length of "{name}" at p, 0: it is none. */
static size_t braced(const char *p)
{
    size_t n = *p == '{' ? strspn(p + 1, LOWER) : 0;
    return n > 0 && p[n + 1] == '}' ? n + 2 : 0;
}

char *sg_service_text(const char *text, const char *slot, uint16_t port, struct sg_error *err)
{
    char number[8];
    struct sg_buf b;
    bool bad = false;
    (void)snprintf(number, sizeof number, "%u", (unsigned)port);
    sg_buf_init(&b, SERVICE_TEXT_MAX);
    for (const char *p = text; *p != '\0' && !bad;) {
        size_t n = p > text && p[-1] == '$' ? 0 : braced(p);
        const char *value = n > 0 ? placeholder(p + 1, n - 2, slot, number) : NULL;
        if (*p == '{' && braced(p + 1) > 0) {
            n = braced(p + 1);
            bad = sg_buf_add(&b, p + 1, n) < 0;
            p += n + 1;
        } else if (n > 0 && value == NULL) {
            sg_error_set(err, SG_INVALID_REQUEST, "there is no placeholder %.*s; write {%.*s for the text itself", (int)n, p, (int)n, p);
            sg_buf_finish(&b);
            return NULL;
        } else {
            bad = sg_buf_add(&b, n > 0 ? value : p, n > 0 ? strlen(value) : 1) < 0;
            p += n > 0 ? n : 1;
        }
    }
    if (bad) {
        sg_error_set(err, SG_INVALID_REQUEST, "is longer than %zu bytes", SERVICE_TEXT_MAX);
        sg_buf_finish(&b);
        return NULL;
    }
    return sg_buf_steal(&b, NULL);
}

static int check_service(const struct sg_local_pool_config *c, struct sg_error *err)
{
    if (c->mode != SG_POOL_BLACKBOX) {
        return 0;
    }
    if (c->service_command == NULL || c->service_command[0] == NULL || c->service_command[0][0] == '\0') {
        return sg_error_field(err, SG_INVALID_REQUEST, "mode", "blackbox needs service_command");
    }
    if (c->service_port == 0) {
        return sg_error_field(err, SG_INVALID_REQUEST, "mode", "blackbox needs service_port");
    }
    const char *path = c->service_health_path;
    if (path == NULL || path[0] != '/' || strlen(path) > 1024 || strpbrk(path, " \t\r\n#") != NULL) {
        return sg_error_field(err, SG_INVALID_REQUEST, "service_health_path", "must start with '/' and hold no blanks");
    }
    if (c->service_start_ms <= 0) {
        return sg_error_field(err, SG_INVALID_REQUEST, "service_start_timeout", "must be above 0");
    }
    for (size_t i = 0; c->service_command[i] != NULL; i++) {
        struct sg_error why = {0};
        char *text = sg_service_text(c->service_command[i], "slot", c->service_port, &why);
        free(text);
        if (text == NULL) {
            return sg_error_field(err, SG_INVALID_REQUEST, "service_command", "argument %zu: %s", i, why.message);
        }
    }
    return 0;
}

static int check_egress(const struct sg_local_pool_config *c, struct sg_error *err)
{
    if (sg_egress_settings_check(c->egress, c->egress_allow, err) < 0) {
        return -1;
    }
    if (c->egress >= SG_EGRESS_RESTRICTED && c->mode == SG_POOL_BLACKBOX && c->service_port == SG_EGRESS_PORT) {
        return sg_error_field(err, SG_INVALID_REQUEST, "service_port", "%d is the port of the proxy of restricted egress", SG_EGRESS_PORT);
    }
    return 0;
}

int sg_local_pool_config_check(const struct sg_local_pool_config *c, struct sg_error *err)
{
    if (c->name == NULL || !name_ok(c->name)) {
        return sg_error_field(err, SG_INVALID_REQUEST, "name",
                              "the name of a local pool is 1 to 63 of a-z, 0-9, '-' and '_'");
    }
    return check_egress(c, err) < 0 || check_numbers(c, err) < 0 || check_service(c, err) < 0 ? -1 : 0;
}
