#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/json.h"
#include "base/str.h"

/* 503: nothing happened, repeat it. 502 and 504: the outcome is unknown. */
static const struct {
    const char *name;
    int status;
    const char *title;
} codes[SG_CODE_COUNT] = {
    [SG_OK] = {"ok", 200, "OK"},
    [SG_INVALID_REQUEST] = {"invalid_request", 400, "The request is not valid"},
    [SG_UNAUTHORIZED] = {"unauthorized", 401, "A valid token is needed"},
    [SG_FORBIDDEN] = {"forbidden", 403, "Not permitted"},
    [SG_CROSS_ORIGIN] = {"cross_origin", 403, "Not for pages of other origins"},
    [SG_NOT_FOUND] = {"not_found", 404, "Not found"},
    [SG_METHOD_NOT_ALLOWED] = {"method_not_allowed", 405, "The method is not allowed here"},
    [SG_NOT_ACCEPTABLE] = {"not_acceptable", 406, "No acceptable representation"},
    [SG_REQUEST_TIMEOUT] = {"request_timeout", 408, "The request took too long to arrive"},
    [SG_CONFLICT] = {"conflict", 409, "Conflicts with the present state"},
    [SG_TRAJECTORY_CONFLICT] = {"trajectory_conflict", 409, "The trajectory has a different lease"},
    [SG_IDEMPOTENCY_CONFLICT] = {"idempotency_conflict", 409, "The idempotency key was used for another request"},
    [SG_EXEC_ID_CONFLICT] = {"exec_id_conflict", 409, "The exec id was used for another command"},
    [SG_NO_TTY] = {"no_tty", 409, "The command has no terminal"},
    [SG_IS_A_DIRECTORY] = {"is_a_directory", 409, "Is a directory"},
    [SG_NOT_A_DIRECTORY] = {"not_a_directory", 409, "Not a directory"},
    [SG_NOT_A_REGULAR_FILE] = {"not_a_regular_file", 409, "Not a regular file"},
    [SG_DIRECTORY_NOT_EMPTY] = {"directory_not_empty", 409, "The directory is not empty"},
    [SG_ALREADY_EXISTS] = {"already_exists", 409, "Already exists"},
    [SG_LEASE_NOT_READY] = {"lease_not_ready", 409, "The lease is not ready"},
    [SG_LEASE_GONE] = {"lease_gone", 410, "The lease has ended"},
    [SG_SANDBOX_LOST] = {"sandbox_lost", 410, "The sandbox was lost"},
    [SG_HISTORY_DROPPED] = {"history_dropped", 410, "That part of the output is no longer kept"},
    [SG_PRECONDITION_FAILED] = {"precondition_failed", 412, "A precondition does not hold"},
    [SG_PAYLOAD_TOO_LARGE] = {"payload_too_large", 413, "The body is too large"},
    [SG_URI_TOO_LONG] = {"uri_too_long", 414, "The request target is too long"},
    [SG_UNSUPPORTED_MEDIA_TYPE] = {"unsupported_media_type", 415, "The media type is not supported"},
    [SG_RANGE_NOT_SATISFIABLE] = {"range_not_satisfiable", 416, "The range is outside of the file"},
    [SG_EXPECTATION_FAILED] = {"expectation_failed", 417, "The expectation cannot be met"},
    [SG_MISDIRECTED_REQUEST] = {"misdirected_request", 421, "This host is not served here"},
    [SG_UPGRADE_REQUIRED] = {"upgrade_required", 426, "A WebSocket is needed"},
    [SG_HEADERS_TOO_LARGE] = {"headers_too_large", 431, "The header fields are too large"},
    [SG_NO_BACKENDS_REGISTERED] = {"no_backends_registered", 422, "No backends are registered"},
    [SG_OVERRIDE_NOT_REGISTERED] = {"override_not_registered", 422, "The backend asked for is not registered"},
    [SG_OVERRIDE_MISSING_CAPABILITIES] = {"override_missing_capabilities", 422,
                                          "The backend asked for lacks capabilities"},
    [SG_OVERRIDE_MISSING_CREDENTIALS] = {"override_missing_credentials", 422,
                                         "The backend asked for lacks credentials"},
    [SG_NO_BACKEND_SATISFIES_POLICY] = {"no_backend_satisfies_policy", 422, "No backend satisfies the policy"},
    [SG_POOL_MODE_MISMATCH] = {"pool_mode_mismatch", 422, "The local pool has another mode"},
    [SG_POOL_NOT_FOUND] = {"pool_not_found", 422, "No such pool"},
    [SG_SNAPSHOT_NOT_FOUND] = {"snapshot_not_found", 422, "No such snapshot"},
    [SG_POOL_REFUSED] = {"pool_refused", 422, "The pool refuses the request"},
    [SG_NOT_SUPPORTED] = {"not_supported", 422, "The backend does not support this"},
    [SG_LIMIT_EXCEEDED] = {"limit_exceeded", 422, "Above a limit of this server"},
    [SG_TIMEOUT_ABOVE_MAXIMUM] = {"timeout_above_maximum", 422, "The timeout is above the maximum"},
    [SG_CWD_NOT_FOUND] = {"cwd_not_found", 422, "The working directory does not exist"},
    [SG_MANIFEST_FAILED] = {"manifest_failed", 422, "The manifest could not be applied"},
    [SG_SANDBOX_CMD_FAILED] = {"sandbox_cmd_failed", 422, "A command of env_args.sandbox_cmd failed"},
    [SG_REPO_NOT_FOUND] = {"repo_not_found", 422, "No such repository"},
    [SG_REF_NOT_FOUND] = {"ref_not_found", 422, "The repository has no such ref"},
    [SG_PATH_REFUSED] = {"path_refused", 403, "The path cannot be used"},
    [SG_RATE_LIMITED] = {"rate_limited", 429, "Too many requests"},
    [SG_QUOTA_EXCEEDED] = {"quota_exceeded", 429, "The quota is used up"},
    [SG_INTERNAL] = {"internal_error", 500, "Internal error"},
    [SG_NOT_IMPLEMENTED] = {"not_implemented", 501, "Not implemented"},
    [SG_PROVIDER_FAILED] = {"provider_failed", 502, "The provider failed"},
    [SG_OUTCOME_UNKNOWN] = {"outcome_unknown", 502, "The outcome is unknown"},
    [SG_ENDPOINT_FAILED] = {"endpoint_failed", 502, "The service in the sandbox failed"},
    [SG_PROVIDER_TIMEOUT] = {"provider_timeout", 504, "The provider did not answer in time"},
    [SG_ENDPOINT_TIMEOUT] = {"endpoint_timeout", 504, "The service in the sandbox did not answer in time"},
    [SG_ENDPOINT_NOT_LISTENING] = {"endpoint_not_listening", 503, "Nothing listens on that port"},
    [SG_ACQUIRE_TIMEOUT] = {"acquire_timeout", 503, "No sandbox became free in time"},
    [SG_OVERLOADED] = {"overloaded", 503, "Overloaded"},
    [SG_SHUTTING_DOWN] = {"shutting_down", 503, "The server is shutting down"},
    [SG_STORE_UNAVAILABLE] = {"store_unavailable", 503, "The store is not available"},
    [SG_UNAVAILABLE] = {"unavailable", 503, "Not available at the moment"},
    [SG_NO_MEMORY] = {"out_of_memory", 503, "Out of memory"},
    [SG_SANDBOX_DISK_FULL] = {"sandbox_disk_full", 507, "The sandbox's disk is full"},
    [SG_CANCELLED] = {"cancelled", 499, "Cancelled by the caller"},
};

static size_t known(enum sg_code code)
{
    size_t i = (size_t)code;
    return i < SG_CODE_COUNT && codes[i].name != NULL ? i : SG_INTERNAL;
}

const char *sg_code_name(enum sg_code code)
{
    return codes[known(code)].name;
}

int sg_code_status(enum sg_code code)
{
    return codes[known(code)].status;
}

const char *sg_code_title(enum sg_code code)
{
    return codes[known(code)].title;
}

/* Makes any text fit for one line of JSON: messages may quote names that a sandbox chose. */
static void tidy(char *s)
{
    size_t len = strlen(s);
    len = sg_utf8_whole(s, len);
    s[len] = '\0';
    bool valid = sg_utf8_valid(s, len);
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c < 0x20 || c == 0x7f || (c >= 0x80 && !valid)) {
            s[i] = '?';
        }
    }
}

SG_PRINTF(3, 0)
static void format(char *out, size_t size, const char *fmt, va_list ap)
{
    if (vsnprintf(out, size, fmt, ap) < 0) {
        out[0] = '\0';
    }
    tidy(out);
}

static int fill(struct sg_error *err, enum sg_code code, const char *message)
{
    sg_error_clear(err);
    err->code = code;
    (void)snprintf(err->message, sizeof err->message, "%s", message);
    return -1;
}

int sg_error_set(struct sg_error *err, enum sg_code code, const char *fmt, ...)
{
    if (err == NULL) {
        return -1;
    }
    char text[sizeof err->message]; /* the arguments may point into err */
    va_list ap;
    va_start(ap, fmt);
    format(text, sizeof text, fmt, ap);
    va_end(ap);
    return fill(err, code, text);
}

int sg_error_field(struct sg_error *err, enum sg_code code, const char *field, const char *fmt, ...)
{
    if (err == NULL) {
        return -1;
    }
    char text[sizeof err->message];
    char name[sizeof err->field];
    va_list ap;
    va_start(ap, fmt);
    format(text, sizeof text, fmt, ap);
    va_end(ap);
    (void)snprintf(name, sizeof name, "%s", field);
    tidy(name);
    (void)fill(err, code, text);
    memcpy(err->field, name, sizeof name);
    return -1;
}

int sg_error_sys(struct sg_error *err, enum sg_code code, int sys, const char *fmt, ...)
{
    if (err == NULL) {
        return -1;
    }
    char text[sizeof err->message];
    char reason[128];
    va_list ap;
    va_start(ap, fmt);
    format(text, sizeof text, fmt, ap);
    va_end(ap);
    const char *why = strerror_r(sys, reason, sizeof reason);
    (void)sg_error_set(err, code, "%s: %s", text, why);
    err->sys = sys;
    return -1;
}

int sg_error_wrap(struct sg_error *err, const char *fmt, ...)
{
    if (err == NULL) {
        return -1;
    }
    char text[sizeof err->message];
    va_list ap;
    va_start(ap, fmt);
    format(text, sizeof text, fmt, ap);
    va_end(ap);
    size_t n = strlen(text);
    if (snprintf(text + n, sizeof text - n, ": %s", err->message) >= (int)(sizeof text - n)) {
        tidy(text); /* the cut may have split a character */
    }
    memcpy(err->message, text, sizeof text);
    return -1;
}

int sg_error_reason(struct sg_error *err, const char *reason)
{
    if (err != NULL) {
        (void)snprintf(err->reason, sizeof err->reason, "%s", reason);
        tidy(err->reason);
    }
    return -1;
}

int sg_error_retry_after(struct sg_error *err, int seconds)
{
    if (err != NULL) {
        err->retry_after = seconds;
    }
    return -1;
}

void sg_error_member(struct sg_error *err, const char *name, struct json_t *value)
{
    if (err == NULL) {
        sg_json_unref(value);
        return;
    }
    if (value == NULL) {
        return;
    }
    if (err->members == NULL) {
        err->members = json_object();
    }
    (void)json_object_set_new(err->members, name, value); /* frees value when it fails */
}

void sg_error_copy(struct sg_error *dst, const struct sg_error *src)
{
    if (dst == NULL || dst == src) {
        return;
    }
    sg_error_clear(dst);
    *dst = *src;
    dst->members = json_deep_copy(src->members); /* whoever has a copy may add to it */
}

void sg_error_clear(struct sg_error *err)
{
    if (err != NULL) {
        sg_json_unref(err->members);
        memset(err, 0, sizeof *err);
    }
}
