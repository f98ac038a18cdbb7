/* The bodies of POST /leases and of an exec: what is taken keeps its promises to the services, and is the
 * same when it comes again. */
#include "fuzz.h"

#include <string.h>

#include "model/exec_json.h"
#include "model/lease_request.h"

static void check_env(const struct sg_env *env)
{
    for (size_t i = 0; i < env->n; i++) {
        const char *name = env->vars[i].name;
        fuzz_require(*name != '\0' && strchr(name, '=') == NULL, "a variable has a name");
        fuzz_require(env->vars[i].value != NULL, "and a value");
    }
}

static void check_exec(const char *body, size_t len)
{
    struct sg_error err = {0};
    struct sg_exec_request q, again;
    if (sg_exec_request_parse(body, len, &q, &err) < 0) {
        fuzz_require(sg_code_status(err.code) >= 400 && sg_code_status(err.code) < 500, "the caller's fault");
        sg_error_clear(&err);
        return;
    }
    size_t args = 0, bytes = 0;
    for (; q.argv[args] != NULL; args++)
        bytes += strlen(q.argv[args]);
    fuzz_require(args > 0 && args <= SG_EXEC_ARGS_MAX && bytes <= SG_EXEC_ARGS_BYTES_MAX,
                 "arguments within their limits");
    fuzz_require(q.timeout_ms >= 0 && q.max_output_bytes >= 0, "nothing negative");
    fuzz_require(q.stdin_given || q.stdin_len == 0, "no input but a given one");
    check_env(&q.env);
    fuzz_require(sg_exec_request_parse(body, len, &again, NULL) == 0 && strcmp(q.hash, again.hash) == 0,
                 "the same again");
    sg_exec_request_finish(&again);
    sg_exec_request_finish(&q);
}

static void check_lease(const char *body, size_t len)
{
    struct sg_error err = {0};
    struct sg_lease_request q, again;
    if (sg_lease_request_parse(body, len, &q, &err) < 0) {
        fuzz_require(sg_code_status(err.code) >= 400 && sg_code_status(err.code) < 500, "the caller's fault");
        sg_error_clear(&err);
        return;
    }
    fuzz_require(q.timeout_ms >= 0 && q.idle_timeout_ms >= 0 && q.acquire_timeout_ms >= 0,
                 "no negative times");
    fuzz_require(q.n_services <= SG_LEASE_SERVICES_MAX, "so many services");
    check_env(&q.env);
    fuzz_require(sg_lease_request_parse(body, len, &again, NULL) == 0 && strcmp(q.hash, again.hash) == 0,
                 "the same again");
    sg_lease_request_finish(&again);
    sg_lease_request_finish(&q);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_exec((const char *)data, size);
    check_lease((const char *)data, size);
    return 0;
}
