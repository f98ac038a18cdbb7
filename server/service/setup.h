/* What runs in a new sandbox before its lease is ready: the commands of env_args.sandbox_cmd, one after the other, and in a blackbox the
 * services, until they answer.
 *
 * The last command of a blackbox that has no service of its own may be the service itself: it is started in the background, where it
 * outlives the server as its sandbox does, and is watched only until the services answer. What it writes is in service.log of
 * TMPDIR or /tmp, the first MiB of it. */
#ifndef SG_SETUP_H
#define SG_SETUP_H

#include "base/json.h"
#include "service/service.h"

#define SG_SETUP_OUTPUT_MAX 4096U /* bytes of each stream of each command that are told */

struct sg_setup_args {
    struct sg_service *service;
    struct sg_sandbox *sandbox;         /* borrowed until done, as what follows */
    const struct sg_lease_terms *terms; /* whose env, root, mode and services */
    const char *const *commands;
    size_t n_commands;
    struct sg_cancel *cancel;    /* of the lease: ends it with SG_CANCELLED */
    int64_t commands_timeout_ms; /* of all commands together, > 0 */
    int64_t services_timeout_ms; /* of the services after them */
    /* Once, on any thread, without locks held, maybe before the call returns. report: an array with what came of each command, borrowed;
     * NULL without commands. err: the sandbox is in an unknown state and must go; its member `stage` says how far things had come.
     * SG_SANDBOX_CMD_FAILED (reason command_failed, command_timed_out) and what a command fails with, with its `index` and what is known
     * of it; SG_ACQUIRE_TIMEOUT; SG_SANDBOX_LOST, SG_UNAVAILABLE; SG_CANCELLED. */
    void (*done)(void *arg, json_t *report, const struct sg_error *err);
    void *arg;
};
void sg_setup(const struct sg_setup_args *args);

#endif
