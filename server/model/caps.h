/* Capabilities of a backend, as bits, and their names on the wire. */
#ifndef SG_CAPS_H
#define SG_CAPS_H

#include <stdbool.h>
#include <stddef.h>

enum sg_cap {
    SG_CAP_FILE_RW = 1U << 0,
    SG_CAP_EXEC = 1U << 1,
    SG_CAP_NETWORK = 1U << 2,
    SG_CAP_GPU = 1U << 3,
    SG_CAP_SNAPSHOT = 1U << 4,
    SG_CAP_PERSISTENT_VOLUMES = 1U << 5,
    SG_CAP_PUBLIC_URL = 1U << 6,
};
#define SG_CAP_COUNT 7

/* Name of the capability at bit position i (the order of the enum). */
const char *sg_cap_name(unsigned i);
/* The bit of a name, 0 when there is no such capability. */
unsigned sg_cap_parse(const char *name);

#endif
