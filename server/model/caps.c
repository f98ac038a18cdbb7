#include "model/caps.h"

#include <string.h>

static const char *const names[SG_CAP_COUNT] = {"file_rw", "exec", "network", "gpu", "snapshot", "persistent_volumes", "public_url"};

const char *sg_cap_name(unsigned i)
{
    return i < SG_CAP_COUNT ? names[i] : "";
}

unsigned sg_cap_parse(const char *name)
{
    for (unsigned i = 0; i < SG_CAP_COUNT; i++) {
        if (strcmp(name, names[i]) == 0) {
            return 1U << i;
        }
    }
    return 0;
}
