#include "backends/local_bwrap/local_bwrap.h"

#define DISK_MIN ((int64_t)1024 * 1024)

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

int sg_local_pool_config_check(const struct sg_local_pool_config *c, struct sg_error *err)
{
    if (c->name == NULL || !name_ok(c->name)) {
        return sg_error_field(err, SG_INVALID_REQUEST, "name",
                              "the name of a local pool is 1 to 63 of a-z, 0-9, '-' and '_'");
    }
    if (c->mode != SG_POOL_COMMAND_ONLY) {
        return sg_error_field(err, SG_INVALID_REQUEST, "mode",
                              "mode %s is not available in this build; command_only is",
                              sg_pool_mode_name(c->mode));
    }
    if (c->egress != SG_EGRESS_NONE && c->egress != SG_EGRESS_LOOPBACK) {
        return sg_error_field(err, SG_INVALID_REQUEST, "egress",
                              "egress %s is not available in this build; none and loopback are",
                              sg_egress_name(c->egress));
    }
    return check_numbers(c, err);
}
