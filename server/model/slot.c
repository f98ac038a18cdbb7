#include "model/slot.h"

const char *sg_slot_state_name(enum sg_slot_state s)
{
    static const char *const names[SG_SLOT_STATES] = {
        [SG_SLOT_EMPTY] = "EMPTY",           [SG_SLOT_STARTING] = "STARTING",
        [SG_SLOT_READY] = "READY",           [SG_SLOT_LEASED] = "LEASED",
        [SG_SLOT_RELEASING] = "RELEASING",   [SG_SLOT_RESETTING] = "RESETTING",
        [SG_SLOT_RESTARTING] = "RESTARTING", [SG_SLOT_FAILED] = "FAILED",
        [SG_SLOT_DEAD] = "DEAD",             [SG_SLOT_LOST] = "LOST",
    };
    return (unsigned)s < SG_SLOT_STATES ? names[s] : "UNKNOWN";
}

const char *sg_slot_event_name(enum sg_slot_event_kind k)
{
    static const char *const names[SG_SLOT_EVENTS] = {
        [SG_SLOT_BUILT] = "built",         [SG_SLOT_BUILD_FAILED] = "build_failed", [SG_SLOT_GAVE_UP] = "failed",
        [SG_SLOT_RECOVERED] = "recovered", [SG_SLOT_DIED] = "died",                 [SG_SLOT_TAKEN] = "lost",
        [SG_SLOT_RELEASED] = "released",   [SG_SLOT_RECYCLED] = "recycled",
    };
    return (unsigned)k < SG_SLOT_EVENTS ? names[k] : "unknown";
}

void sg_slot_report_finish(struct sg_slot_report *r)
{
    for (size_t i = 0; i < r->n; i++) {
        free(r->pools[i].slots);
    }
    free(r->pools);
    *r = (struct sg_slot_report){0};
}
