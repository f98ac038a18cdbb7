/* /leases/{id}/events: what happens to a lease. */
#include "http/api.h"
#include "http/exec_stream.h"
#include "service/lease_events.h"

static void answered(void *arg, bool delivered SG_UNUSED)
{
    sg_lease_follow_end(arg);
}

static void follow_lease(struct sg_request *r, struct sg_api *api, struct sg_entry *e)
{
    struct sg_lease_follow *follow;
    struct sg_exec_reader *reader;
    struct sg_error err = {0};
    bool on = false;
    int64_t after;

    if (sg_event_after(r, "after", &after, &err) < 0 || sg_req_query_bool(r, "follow", &on, &err) < 0 ||
        sg_service_follow_lease(api->service, e, (uint64_t)after, sg_req_cancel(r), &follow, &reader, &err) < 0) {
        sg_api_fail(r, &err);
        return;
    }
    /* Called last, when the stream has let go of its reader. */
    sg_req_on_end(r, answered, follow);
    sg_exec_stream_respond(r, sg_service_parts(api->service)->reactor, reader, sg_event_format_of(r), on);
}

void sg_route_lease_events(struct sg_request *r, void *app)
{
    sg_api_with_lease(r, app, follow_lease);
}
