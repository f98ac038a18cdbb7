#include "backends/facts.h"

#include "base/secret.h"
#include "model/selection.h"

#define BASICS (SG_CAP_FILE_RW | SG_CAP_EXEC)

/* A capability stands here only when the driver really has it. */
struct row {
    const char *name;
    unsigned caps;
    bool free;
    bool outlives_server;
    const char *const *credentials;
};

static const char *const e2b_credentials[] = {"E2B_API_KEY", NULL};
static const char *const modal_credentials[] = {"MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET", NULL};
static const char *const daytona_credentials[] = {"DAYTONA_API_KEY", NULL};
static const char *const blaxel_credentials[] = {"BLAXEL_API_KEY", NULL};
static const char *const runloop_credentials[] = {"RUNLOOP_API_KEY", NULL};
static const char *const vercel_credentials[] = {"VERCEL_TOKEN", NULL};

static const struct row rows[] = {
    {"worktree", BASICS | SG_CAP_NETWORK, true, false, NULL},
    {"docker", BASICS | SG_CAP_SNAPSHOT | SG_CAP_PUBLIC_URL, true, true, NULL},
    {"local_bwrap", BASICS | SG_CAP_SNAPSHOT | SG_CAP_PUBLIC_URL, true, false, NULL},
    {"e2b", BASICS | SG_CAP_NETWORK | SG_CAP_SNAPSHOT | SG_CAP_PUBLIC_URL, false, true, e2b_credentials},
    {"modal", BASICS | SG_CAP_NETWORK | SG_CAP_GPU | SG_CAP_SNAPSHOT | SG_CAP_PUBLIC_URL, false, true,
     modal_credentials},
    {"daytona", BASICS | SG_CAP_NETWORK | SG_CAP_SNAPSHOT | SG_CAP_PERSISTENT_VOLUMES | SG_CAP_PUBLIC_URL,
     false, true, daytona_credentials},
    {"blaxel", BASICS | SG_CAP_NETWORK | SG_CAP_PERSISTENT_VOLUMES | SG_CAP_PUBLIC_URL, false, true,
     blaxel_credentials},
    {"runloop", BASICS | SG_CAP_NETWORK | SG_CAP_SNAPSHOT | SG_CAP_PUBLIC_URL, false, true,
     runloop_credentials},
    {"vercel", BASICS | SG_CAP_NETWORK | SG_CAP_SNAPSHOT | SG_CAP_PUBLIC_URL, false, true,
     vercel_credentials},
};

size_t sg_facts_count(void)
{
    return SG_COUNT_OF(rows);
}

struct sg_driver_facts sg_facts_at(size_t i, const struct sg_facts_settings *s)
{
    static const struct sg_facts_settings nothing = {SG_EGRESS_NONE, SG_EGRESS_NONE, false};
    const struct row *r = &rows[i];
    struct sg_driver_facts f = {.name = r->name,
                                .caps = r->caps,
                                .free = r->free,
                                .tty = sg_streq(r->name, "docker") || sg_streq(r->name, "local_bwrap") || sg_streq(r->name, "e2b"),
                                .outlives_server = r->outlives_server,
                                .credentials = r->credentials};
    if (!s)
        s = &nothing;
    if ((sg_streq(r->name, "docker") && sg_egress_reaches_out(s->docker_egress)) ||
        (sg_streq(r->name, "local_bwrap") && sg_egress_reaches_out(s->local_bwrap_egress)))
        f.caps |= SG_CAP_NETWORK;
    if (sg_streq(r->name, "modal") && s->modal_volumes)
        f.caps |= SG_CAP_PERSISTENT_VOLUMES;
    return f;
}

bool sg_facts_get(const char *name, const struct sg_facts_settings *s, struct sg_driver_facts *ret)
{
    for (size_t i = 0; i < SG_COUNT_OF(rows); i++) {
        if (sg_streq(rows[i].name, name)) {
            *ret = sg_facts_at(i, s);
            return true;
        }
    }
    return false;
}

static int held(const char *name, struct sg_error *err)
{
    struct sg_secret *s = NULL;
    int has = sg_secret_from_env(name, &s, err);
    sg_secret_free(s);
    return has;
}

int sg_facts_held_credentials(struct sg_names *ret, struct sg_error *err)
{
    const char *names[64];
    size_t n = 0;
    for (size_t i = 0; i < SG_COUNT_OF(rows); i++) {
        for (const char *const *c = rows[i].credentials; c && *c && n + 1 < SG_COUNT_OF(names); c++) {
            int has = held(*c, err);
            if (has < 0)
                return -1;
            if (has)
                names[n++] = *c;
        }
    }
    names[n] = NULL;
    return sg_names_set(ret, names, err);
}
