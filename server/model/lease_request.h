/* The body of POST /leases as plain values. The one place that knows its field names. */
#ifndef SG_LEASE_REQUEST_H
#define SG_LEASE_REQUEST_H

#include "base/json.h"
#include "model/manifest.h"
#include "model/sandbox.h"

#define SG_LEASE_SERVICES_MAX 16U
#define SG_LEASE_COMMANDS_MAX 32U

/* Owns everything it points to. Members that were not given are NULL, 0 or false. */
struct sg_lease_request {
    char *trajectory_id;
    char *pool;
    json_t *overrides;
    json_t *policy;   /* parsed by the selection module */
    struct sg_manifest manifest;
    char *local_pool;
    char *image; /* or env_args.sandbox_image, which says the same when both are there */
    char *env_type;
    json_t *env_args;
    const char *commands[SG_LEASE_COMMANDS_MAX]; /* env_args.sandbox_cmd: shell texts, which env_args owns */
    size_t n_commands;
    int64_t commands_timeout_ms; /* env_args.sandbox_cmd_timeout, of all of them together; 0: not given */
    json_t *metadata; /* as given, paddock_mode checked */
    bool mode_given;
    enum sg_mode mode; /* resolved: blackbox if a service is called so, else whitebox */
    struct sg_service_port *services;
    size_t n_services;
    struct sg_env env; /* manifest env, then the body's on top */
    struct sg_limits limits;
    bool egress_given;
    enum sg_egress egress;
    int64_t timeout_ms; /* timeout_sec, else manifest.timeout_seconds, else 0 */
    int64_t idle_timeout_ms;
    int64_t acquire_timeout_ms;
    bool acquire_timeout_given;
    char hash[65]; /* of the body: tells a repetition from a conflict */
};

/* Strict parse; ranges that depend on the configuration are the service's to check. An empty body is {}. */
int sg_lease_request_parse(const char *body, size_t len, struct sg_lease_request *ret, struct sg_error *err);
void sg_lease_request_finish(struct sg_lease_request *q);

#endif
