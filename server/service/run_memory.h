/* What all commands together may keep of their output, and of stdin that waits for them. */
#ifndef SG_RUN_MEMORY_H
#define SG_RUN_MEMORY_H

#include <stddef.h>

/* Embedded in the service, outlives every command. */
struct sg_run_memory {
    _Atomic size_t used;
    size_t max;
};

#endif
