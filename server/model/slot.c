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

const char *sg_egress_outcome_name(enum sg_egress_outcome o)
{
    static const char *const names[SG_EGRESS_OUTCOMES] = {
        [SG_EGRESS_ALLOWED] = "allowed",
        [SG_EGRESS_HOST_NOT_ALLOWED] = "host_not_allowed",
        [SG_EGRESS_PORT_NOT_ALLOWED] = "port_not_allowed",
        [SG_EGRESS_ADDRESS_NOT_ALLOWED] = "address_not_allowed",
        [SG_EGRESS_MALFORMED] = "malformed",
        [SG_EGRESS_TOO_LARGE] = "too_large",
        [SG_EGRESS_TOO_MANY] = "too_many",
        [SG_EGRESS_TOO_SLOW] = "too_slow",
        [SG_EGRESS_NAME_NOT_FOUND] = "name_not_found",
        [SG_EGRESS_UNREACHABLE] = "unreachable",
        [SG_EGRESS_TIMED_OUT] = "timed_out",
    };
    return (unsigned)o < SG_EGRESS_OUTCOMES ? names[o] : "unknown";
}

void sg_slot_report_finish(struct sg_slot_report *r)
{
    for (size_t i = 0; i < r->n; i++) {
        free(r->pools[i].slots);
    }
    free(r->pools);
    *r = (struct sg_slot_report){0};
}
