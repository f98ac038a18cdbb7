/* What went wrong, in the words of the API.
 *
 * Every function that can fail for more than one reason returns 0 or a negative value and fills the
 * `struct sg_error *err` that is its last parameter; on success err is untouched. err may be NULL.
 * sg_error_set() returns -1, so a call site is one `return`.
 */
#ifndef SG_ERROR_H
#define SG_ERROR_H

#include "base/base.h"

struct json_t; /* jansson */

/* The stable `code` members of problem+json, in one table with their HTTP status and title: error.c. */
enum sg_code {
    SG_OK = 0,
    SG_INVALID_REQUEST,
    SG_UNAUTHORIZED,
    SG_FORBIDDEN,
    SG_CROSS_ORIGIN,
    SG_NOT_FOUND,
    SG_METHOD_NOT_ALLOWED,
    SG_NOT_ACCEPTABLE,
    SG_REQUEST_TIMEOUT,
    SG_CONFLICT,
    SG_TRAJECTORY_CONFLICT,
    SG_IDEMPOTENCY_CONFLICT,
    SG_EXEC_ID_CONFLICT,
    SG_NO_TTY,
    SG_IS_A_DIRECTORY,
    SG_NOT_A_DIRECTORY,
    SG_NOT_A_REGULAR_FILE,
    SG_DIRECTORY_NOT_EMPTY,
    SG_ALREADY_EXISTS,
    SG_LEASE_NOT_READY,
    SG_LEASE_GONE,
    SG_SANDBOX_LOST,
    SG_HISTORY_DROPPED,
    SG_PRECONDITION_FAILED,
    SG_PAYLOAD_TOO_LARGE,
    SG_URI_TOO_LONG,
    SG_UNSUPPORTED_MEDIA_TYPE,
    SG_RANGE_NOT_SATISFIABLE,
    SG_EXPECTATION_FAILED,
    SG_UPGRADE_REQUIRED,
    SG_HEADERS_TOO_LARGE,
    SG_MISDIRECTED_REQUEST,
    SG_NO_BACKENDS_REGISTERED,
    SG_OVERRIDE_NOT_REGISTERED,
    SG_OVERRIDE_MISSING_CAPABILITIES,
    SG_OVERRIDE_MISSING_CREDENTIALS,
    SG_NO_BACKEND_SATISFIES_POLICY,
    SG_POOL_MODE_MISMATCH,
    SG_POOL_NOT_FOUND,
    SG_SNAPSHOT_NOT_FOUND,
    SG_POOL_REFUSED,
    SG_NOT_SUPPORTED,
    SG_LIMIT_EXCEEDED,
    SG_TIMEOUT_ABOVE_MAXIMUM,
    SG_CWD_NOT_FOUND,
    SG_MANIFEST_FAILED,
    SG_SANDBOX_CMD_FAILED,
    SG_REPO_NOT_FOUND,
    SG_REF_NOT_FOUND,
    SG_PATH_REFUSED,
    SG_RATE_LIMITED,
    SG_QUOTA_EXCEEDED,
    SG_INTERNAL,
    SG_NOT_IMPLEMENTED,
    SG_PROVIDER_FAILED,
    SG_PROVIDER_TIMEOUT,
    SG_OUTCOME_UNKNOWN,
    SG_ENDPOINT_FAILED,
    SG_ENDPOINT_TIMEOUT,
    SG_ENDPOINT_NOT_LISTENING,
    SG_ACQUIRE_TIMEOUT,
    SG_OVERLOADED,
    SG_SHUTTING_DOWN,
    SG_STORE_UNAVAILABLE,
    SG_UNAVAILABLE,
    SG_SANDBOX_DISK_FULL,
    SG_NO_MEMORY,
    SG_CANCELLED, /* the caller hung up; never reaches a client */
    SG_CODE_COUNT
};

struct sg_error {
    enum sg_code code;
    int sys;                /* errno behind it, or 0 */
    int retry_after;        /* seconds, 0: none */
    char message[512];      /* one line for people, no secrets; ends up as `detail` */
    char field[96];         /* the offending member or parameter, or "" */
    char reason[64];        /* finer stable word, or "" */
    struct json_t *members; /* further problem members (an object), owned, or NULL */
};

/* Fills err (cleared first) and returns -1. */
int sg_error_set(struct sg_error *err, enum sg_code code, const char *fmt, ...) SG_PRINTF(3, 4);

/* The same with the `field` member. */
int sg_error_field(struct sg_error *err, enum sg_code code, const char *field, const char *fmt, ...)
    SG_PRINTF(4, 5);

/* The same for a failed system call: appends ": strerror(sys)". */
int sg_error_sys(struct sg_error *err, enum sg_code code, int sys, const char *fmt, ...)
    SG_PRINTF(4, 5);

/* Puts "context: " before the message that is there; returns -1. */
int sg_error_wrap(struct sg_error *err, const char *fmt, ...) SG_PRINTF(2, 3);

/* Sets `reason`, `retry_after`; return -1 so that they can end a function. */
int sg_error_reason(struct sg_error *err, const char *reason);
int sg_error_retry_after(struct sg_error *err, int seconds);

/* Adds a member for the problem document; steals value (NULL is ignored). */
void sg_error_member(struct sg_error *err, const char *name, struct json_t *value);

/* Deep copy: for handing an error to another thread, or for adding to it. */
void sg_error_copy(struct sg_error *dst, const struct sg_error *src);

/* Releases members and zeroes err. */
void sg_error_clear(struct sg_error *err);

/* The wire name of a code ("invalid_request"), its HTTP status and its title. */
const char *sg_code_name(enum sg_code code);
int sg_code_status(enum sg_code code);
const char *sg_code_title(enum sg_code code);

#endif
