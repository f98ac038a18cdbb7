#include "model/kept.h"

#include <jansson.h>

#include "base/clock.h"

const char *const sg_kept_dir_names[SG_KEPT_DIRS + 1] = {"home", "work", "runtime", "tmp", NULL};
const char *const sg_kept_dir_paths[SG_KEPT_DIRS] = {"/home/sandbox", "/workspace", "/run", "/tmp"};

static json_t *text_or_null(const char *s)
{
    return s[0] ? json_string(s) : json_null();
}

static json_t *time_or_null(int64_t us)
{
    char text[SG_TIME_LEN];

    if (us == 0)
        return json_null();
    sg_time_format(us, text);
    return json_string(text);
}

json_t *sg_kept_json(const struct sg_kept *k)
{
    json_t *dirs = json_array();

    for (size_t i = 0; i < SG_KEPT_DIRS; i++)
        if (k->dirs >> i & 1U)
            json_array_append_new(dirs, json_string(sg_kept_dir_names[i]));
    json_t *v = json_pack("{s:s, s:s, s:o, s:s, s:s, s:o, s:o, s:o, s:o, s:o}", "id", k->id, "lease_id", k->lease_id, "trajectory_id",
                          text_or_null(k->trajectory_id), "provider", k->provider, "sandbox_id", k->sandbox_id, "dirs", dirs, "digest",
                          k->sha256[0] ? json_sprintf("sha256:%s", k->sha256) : json_null(), "bytes",
                          k->sha256[0] ? json_integer((json_int_t)k->bytes) : json_null(), "created_at", time_or_null(k->created_us),
                          "expires_at", time_or_null(k->expires_us));
    if (k->kind == SG_KEPT_SNAPSHOT)
        json_object_set_new(v, "held_by", json_string(k->ref[0] ? "provider" : "server"));
    if (k->kind == SG_KEPT_ARCHIVE) {
        json_object_set_new(v, "local_pool", text_or_null(k->pool));
        json_object_set_new(v, "slot", text_or_null(k->slot));
        json_object_set_new(v, "generation", k->slot[0] ? json_integer((json_int_t)k->generation) : json_null());
        json_object_set_new(v, "reason", text_or_null(k->reason));
    }
    return v;
}
