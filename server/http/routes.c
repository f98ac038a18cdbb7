/* Every operation of the API, in the order of its description. */
#include "http/api.h"

/* What a command is answered with; a stream is one of the last two. */
const char *const sg_exec_types[] = {"application/json", "application/x-ndjson", "text/event-stream", NULL};
#define STREAM_TYPES (sg_exec_types + 1)

#define QUERY(...) (const char *const[]) { __VA_ARGS__, NULL }

const struct sg_route sg_routes[] = {
    {.method = "POST", .path = "/select", .operation_id = "select", .body = SG_BODY_JSON, .auth = SG_AUTH_TENANT, .handle = sg_route_select},
    {.method = "GET", .path = "/backends", .operation_id = "listBackends", .auth = SG_AUTH_TENANT, .handle = sg_route_backends},

    {.method = "POST", .path = "/leases", .operation_id = "createLease", .body = SG_BODY_JSON_OPTIONAL, .auth = SG_AUTH_TENANT,
     .handle = sg_route_lease_create, .query = QUERY("wait")},
    {.method = "GET", .path = "/leases", .operation_id = "listLeases", .auth = SG_AUTH_TENANT, .handle = sg_route_lease_list,
     .query = QUERY("state", "provider", "trajectory_id", "tenant", "limit", "cursor")},
    {.method = "GET", .path = "/leases/{id}", .operation_id = "getLease", .auth = SG_AUTH_TENANT, .handle = sg_route_lease_get,
     .query = QUERY("wait")},
    {.method = "DELETE", .path = "/leases/{id}", .operation_id = "deleteLease", .auth = SG_AUTH_TENANT, .handle = sg_route_lease_delete},
    {.method = "POST", .path = "/leases/{id}/extend", .operation_id = "extendLease", .body = SG_BODY_JSON_OPTIONAL,
     .auth = SG_AUTH_TENANT, .handle = sg_route_lease_extend},
    {.method = "GET", .path = "/leases/{id}/events", .operation_id = "getLeaseEvents", .auth = SG_AUTH_TENANT,
     .handle = sg_route_lease_events, .query = QUERY("after", "follow"), .produces = STREAM_TYPES, .watches = true},

    {.method = "POST", .path = "/leases/{id}/exec", .operation_id = "exec", .body = SG_BODY_JSON, .auth = SG_AUTH_TENANT,
     .handle = sg_route_exec, .max_body = 64U << 20, .produces = sg_exec_types},
    {.method = "GET", .path = "/leases/{id}/exec", .operation_id = "listExecs", .auth = SG_AUTH_TENANT, .handle = sg_route_exec_list,
     .query = QUERY("limit", "cursor")},
    {.method = "GET", .path = "/leases/{id}/exec/{eid}", .operation_id = "getExec", .auth = SG_AUTH_TENANT, .handle = sg_route_exec_get},
    {.method = "DELETE", .path = "/leases/{id}/exec/{eid}", .operation_id = "killExec", .auth = SG_AUTH_TENANT,
     .handle = sg_route_exec_kill},
    {.method = "GET", .path = "/leases/{id}/exec/{eid}/output", .operation_id = "getExecOutput", .auth = SG_AUTH_TENANT,
     .handle = sg_route_exec_output, .query = QUERY("after", "follow"), .produces = STREAM_TYPES},
    {.method = "POST", .path = "/leases/{id}/exec/{eid}/stdin", .operation_id = "writeExecStdin", .body = SG_BODY_STREAM,
     .auth = SG_AUTH_TENANT, .handle = sg_route_exec_stdin, .query = QUERY("eof")},
    {.method = "POST", .path = "/leases/{id}/exec/{eid}/signal", .operation_id = "signalExec", .body = SG_BODY_JSON,
     .auth = SG_AUTH_TENANT, .handle = sg_route_exec_signal},

    {.method = "GET", .path = "/leases/{id}/files", .operation_id = "getFile", .auth = SG_AUTH_TENANT, .handle = sg_route_file_get,
     .query = QUERY("path", "max_bytes"), .produces = SG_ANY_TYPE},
    {.method = "PUT", .path = "/leases/{id}/files", .operation_id = "putFile", .body = SG_BODY_STREAM, .auth = SG_AUTH_TENANT,
     .handle = sg_route_file_put, .query = QUERY("path", "append", "mode")},
    {.method = "DELETE", .path = "/leases/{id}/files", .operation_id = "deleteFile", .auth = SG_AUTH_TENANT,
     .handle = sg_route_file_delete, .query = QUERY("path", "recursive"), .produces = SG_ANY_TYPE},
    {.method = "GET", .path = "/leases/{id}/files/list", .operation_id = "listFiles", .auth = SG_AUTH_TENANT,
     .handle = sg_route_file_list, .query = QUERY("path", "recursive", "limit", "cursor")},
    {.method = "GET", .path = "/leases/{id}/files/stat", .operation_id = "statFile", .auth = SG_AUTH_TENANT,
     .handle = sg_route_file_stat, .query = QUERY("path")},
    {.method = "POST", .path = "/leases/{id}/files/mkdir", .operation_id = "makeDirectory", .auth = SG_AUTH_TENANT,
     .handle = sg_route_file_mkdir, .query = QUERY("path", "mode")},
    {.method = "POST", .path = "/leases/{id}/files/move", .operation_id = "moveFile", .body = SG_BODY_JSON, .auth = SG_AUTH_TENANT,
     .handle = sg_route_file_move, .produces = SG_ANY_TYPE},
    {.method = "GET", .path = "/leases/{id}/files/tar", .operation_id = "getTar", .auth = SG_AUTH_TENANT, .handle = sg_route_tar_get,
     .query = QUERY("path"), .produces = SG_ANY_TYPE},
    {.method = "PUT", .path = "/leases/{id}/files/tar", .operation_id = "putTar", .body = SG_BODY_STREAM, .auth = SG_AUTH_TENANT,
     .handle = sg_route_tar_put, .query = QUERY("path", "outside_links")},

    {.method = "POST", .path = "/leases/{id}/endpoints", .operation_id = "issueEndpoint", .body = SG_BODY_JSON, .auth = SG_AUTH_TENANT,
     .handle = sg_route_endpoint_issue},
    {.method = "GET", .path = "/leases/{id}/endpoints/{endpoint}", .operation_id = "getEndpoint", .auth = SG_AUTH_TENANT,
     .handle = sg_route_endpoint},
    {.method = "DELETE", .path = "/leases/{id}/endpoints/{endpoint}", .operation_id = "revokeEndpoint", .auth = SG_AUTH_TENANT,
     .handle = sg_route_endpoint_revoke},
    {.method = "*", .path = "/leases/{id}/proxy/{port}/{rest...}", .operation_id = "proxy", .body = SG_BODY_STREAM, .auth = SG_AUTH_NONE,
     .handle = sg_route_proxy},

    {.method = "GET", .path = "/pools", .operation_id = "listPools", .auth = SG_AUTH_TENANT, .handle = sg_route_pools,
     .query = QUERY("limit", "cursor")},
    {.method = "GET", .path = "/pools/{name}", .operation_id = "getPool", .auth = SG_AUTH_TENANT, .handle = sg_route_pool},

    {.method = "GET", .path = "/slots", .operation_id = "listSlotPools", .auth = SG_AUTH_ADMIN, .handle = sg_route_slots},
    {.method = "GET", .path = "/slots/{pool}", .operation_id = "getSlotPool", .auth = SG_AUTH_ADMIN, .handle = sg_route_slot_pool},
    {.method = "POST", .path = "/slots/{pool}/drain", .operation_id = "drainSlotPool", .auth = SG_AUTH_ADMIN, .handle = sg_route_slot_drain,
     .query = QUERY("slot")},
    {.method = "POST", .path = "/slots/{pool}/undrain", .operation_id = "undrainSlotPool", .auth = SG_AUTH_ADMIN,
     .handle = sg_route_slot_undrain, .query = QUERY("slot")},
    {.method = "POST", .path = "/slots/{pool}/recycle", .operation_id = "recycleSlotPool", .auth = SG_AUTH_ADMIN,
     .handle = sg_route_slot_recycle, .query = QUERY("slot", "reset")},
    {.method = "GET", .path = "/slots/{pool}/{slot}/log", .operation_id = "getSlotLog", .auth = SG_AUTH_ADMIN, .handle = sg_route_slot_log,
     .query = QUERY("bytes")},

    {.method = "GET", .path = "/receipts/{id}", .operation_id = "getReceipt", .auth = SG_AUTH_TENANT, .handle = sg_route_receipt_get},
    {.method = "POST", .path = "/receipts/verify", .operation_id = "verifyReceipt", .body = SG_BODY_JSON, .auth = SG_AUTH_TENANT,
     .handle = sg_route_receipt_verify},
    {.method = "GET", .path = "/audit", .operation_id = "listAudit", .auth = SG_AUTH_TENANT, .handle = sg_route_audit,
     .query = QUERY("limit", "cursor", "tenant")},

    {.method = "GET", .path = "/healthz", .operation_id = "health", .auth = SG_AUTH_NONE, .handle = sg_route_health, .always = true,
     .produces = SG_ANY_TYPE},
    {.method = "GET", .path = "/readyz", .operation_id = "ready", .auth = SG_AUTH_NONE, .handle = sg_route_ready, .always = true,
     .produces = SG_ANY_TYPE},
    {.method = "GET", .path = "/metrics", .operation_id = "metrics", .auth = SG_AUTH_NONE, .handle = sg_route_metrics, .always = true,
     .produces = SG_ANY_TYPE},
    {.method = "GET", .path = "/version", .operation_id = "version", .auth = SG_AUTH_NONE, .handle = sg_route_version, .always = true},
    {.method = "GET", .path = "/openapi.yaml", .operation_id = "openapiYaml", .auth = SG_AUTH_NONE, .handle = sg_route_openapi_yaml,
     .always = true, .produces = SG_ANY_TYPE},
    {.method = "GET", .path = "/openapi.json", .operation_id = "openapiJson", .auth = SG_AUTH_NONE, .handle = sg_route_openapi_json,
     .always = true},
};
const size_t sg_routes_count = SG_COUNT_OF(sg_routes);
