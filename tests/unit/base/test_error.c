#include <criterion/criterion.h>
#include <errno.h>
#include <jansson.h>

#include "base/error.h"

Test(error, every_code_has_a_distinct_name_a_title_and_a_status)
{
    for (int i = 0; i < SG_CODE_COUNT; i++) {
        const char *name = sg_code_name((enum sg_code)i);
        cr_assert_neq(*name, '\0');
        cr_assert(i == SG_INTERNAL || !sg_streq(name, "internal_error"), "code %d is not in the table", i);
        cr_assert_neq(*sg_code_title((enum sg_code)i), '\0');
        cr_assert(sg_code_status((enum sg_code)i) >= 200 && sg_code_status((enum sg_code)i) < 600);
        for (int j = 0; j < i; j++) {
            cr_assert_str_neq(name, sg_code_name((enum sg_code)j));
        }
    }
}

Test(error, statuses_of_the_contract)
{
    static const struct {
        enum sg_code code;
        int status;
        const char *name;
    } cases[] = {
        {SG_INVALID_REQUEST, 400, "invalid_request"},
        {SG_TRAJECTORY_CONFLICT, 409, "trajectory_conflict"},
        {SG_IS_A_DIRECTORY, 409, "is_a_directory"},
        {SG_NOT_A_REGULAR_FILE, 409, "not_a_regular_file"},
        {SG_LEASE_GONE, 410, "lease_gone"},
        {SG_POOL_MODE_MISMATCH, 422, "pool_mode_mismatch"},
        {SG_CWD_NOT_FOUND, 422, "cwd_not_found"},
        {SG_NO_BACKEND_SATISFIES_POLICY, 422, "no_backend_satisfies_policy"},
        {SG_TIMEOUT_ABOVE_MAXIMUM, 422, "timeout_above_maximum"},
        {SG_QUOTA_EXCEEDED, 429, "quota_exceeded"},
        {SG_PROVIDER_FAILED, 502, "provider_failed"},
        {SG_OVERLOADED, 503, "overloaded"},
        {SG_ENDPOINT_NOT_LISTENING, 503, "endpoint_not_listening"},
        {SG_PROVIDER_TIMEOUT, 504, "provider_timeout"},
        {SG_SANDBOX_DISK_FULL, 507, "sandbox_disk_full"},
    };
    for (size_t i = 0; i < SG_COUNT_OF(cases); i++) {
        cr_expect_eq(sg_code_status(cases[i].code), cases[i].status, "%s", cases[i].name);
        cr_expect_str_eq(sg_code_name(cases[i].code), cases[i].name);
    }
    cr_assert_eq(sg_code_status((enum sg_code)9999), 500);
}

Test(error, set_wrap_and_clear)
{
    struct sg_error err = {0};
    cr_assert_eq(sg_error_field(&err, SG_INVALID_REQUEST, "timeout", "must be above %d", 0), -1);
    cr_assert_str_eq(err.field, "timeout");
    cr_assert_eq(sg_error_wrap(&err, "lease %s", "l1"), -1);
    cr_assert_str_eq(err.message, "lease l1: must be above 0");
    cr_assert_str_eq(err.field, "timeout");

    sg_error_set(&err, SG_CONFLICT, "again: %s", err.message); /* arguments inside err */
    cr_assert_str_eq(err.message, "again: lease l1: must be above 0");
    cr_assert_str_eq(err.field, "");

    sg_error_sys(&err, SG_INTERNAL, ENOENT, "open %s", "x");
    cr_assert_str_eq(err.message, "open x: No such file or directory");
    cr_assert_eq(err.sys, ENOENT);
    sg_error_clear(&err);
    cr_assert_eq(err.code, SG_OK);
    cr_assert_eq(sg_error_set(NULL, SG_CONFLICT, "nobody listens"), -1);
}

Test(error, messages_are_one_line_of_valid_utf8)
{
    struct sg_error err = {0};
    sg_error_set(&err, SG_NOT_FOUND, "%s", "a\nb\x1b[0m\xff");
    cr_assert_str_eq(err.message, "a?b?[0m?");

    char text[600];
    memset(text, 'x', sizeof text);
    memcpy(text + sizeof err.message - 2, "\xc3\xa9", 2); /* the cut falls into a character */
    text[sizeof text - 1] = '\0';
    sg_error_set(&err, SG_NOT_FOUND, "%s", text);
    cr_assert_eq(strlen(err.message), sizeof err.message - 2);
}

Test(error, members_are_shared_by_copies)
{
    struct sg_error a = {0}, b = {0};
    sg_error_set(&a, SG_QUOTA_EXCEEDED, "leases");
    sg_error_member(&a, "limit", json_integer(3));
    sg_error_member(&a, "nothing", NULL);
    sg_error_copy(&b, &a);
    sg_error_clear(&a);
    cr_assert_eq(json_integer_value(json_object_get(b.members, "limit")), 3);
    cr_assert_eq(json_object_size(b.members), 1);
    sg_error_set(&b, SG_CONFLICT, "replaced");
    cr_assert_null(b.members);
    sg_error_member(NULL, "limit", json_integer(1));
}
