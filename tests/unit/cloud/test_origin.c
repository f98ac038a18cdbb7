/* What a provider's answers mean, and that nothing secret comes back out of them. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <jansson.h>
#include <string.h>

#include "backends/cloud/origin.h"
#include "backends/cloud/scrub.h"

#define KEY "e2b_0123456789abcdef0123456789abcdef"

static struct sg_error refused(int status, int retry_after, const char *text)
{
    struct sg_error err = {0};

    cr_expect_eq(sg_origin_refused("e2b", status, retry_after, text, strlen(text), KEY, &err), -1);
    cr_expect_str_eq(json_string_value(json_object_get(err.members, "provider")), "e2b");
    cr_expect_eq(json_integer_value(json_object_get(err.members, "provider_status")), status);
    return err;
}

Test(origin, every_status_has_its_meaning)
{
    static const struct {
        int status;
        const char *text;
        enum sg_code code;
        const char *reason;
        bool unknown;
    } all[] = {
        {400, "{\"code\":400,\"message\":\"no\"}", SG_PROVIDER_FAILED, "", true},
        {401, "", SG_UNAVAILABLE, "provider_credentials", false},
        {403, "", SG_UNAVAILABLE, "provider_credentials", false},
        {404, "", SG_NOT_FOUND, "", false},
        {409, "", SG_CONFLICT, "", false},
        {408, "", SG_PROVIDER_TIMEOUT, "", true},
        {429, "", SG_UNAVAILABLE, "provider_limit", false},
        {500, "", SG_PROVIDER_FAILED, "", true},
        {502, "<html>", SG_PROVIDER_FAILED, "", true},
        {503, "{\"error_code\":\"sandbox_capacity_unavailable\"}", SG_UNAVAILABLE, "provider_capacity", false},
        {503, "upstream", SG_PROVIDER_FAILED, "", true},
        {504, "", SG_PROVIDER_TIMEOUT, "", true},
    };
    for (size_t i = 0; i < SG_COUNT_OF(all); i++) {
        struct sg_error err = refused(all[i].status, 0, all[i].text);
        cr_expect_eq(err.code, all[i].code, "%d", all[i].status);
        cr_expect_str_eq(err.reason, all[i].reason, "%d", all[i].status);
        cr_expect_eq(sg_origin_unknown(&err), all[i].unknown, "%d", all[i].status);
        if (err.code == SG_UNAVAILABLE)
            cr_expect_gt(err.retry_after, 0, "%d", all[i].status);
        sg_error_clear(&err);
    }
}

Test(origin, the_providers_time_to_come_again_is_kept)
{
    struct sg_error err = refused(429, 17, "");
    cr_expect_eq(err.retry_after, 17);
    sg_error_clear(&err);
}

Test(origin, what_it_says_is_told_unless_a_secret_is_in_it)
{
    struct sg_error err = refused(500, 0, "{\"code\":500,\"message\":\"the disk\\nis full\"}");
    cr_expect_not_null(strstr(err.message, "the disk is full"), "%s", err.message);
    sg_error_clear(&err);

    static const char *const echoes[] = {"{\"message\":\"bad key " KEY "\"}", "{\"message\":\"bad key 89abcdef01...\"}"};
    for (size_t i = 0; i < SG_COUNT_OF(echoes); i++) {
        err = refused(500, 0, echoes[i]);
        cr_expect_null(strstr(err.message, "bad key"), "%s", err.message);
        cr_expect_null(strstr(err.message, "89abcdef"), "%s", err.message);
        sg_error_clear(&err);
    }
}

Test(origin, a_secret_is_seen_in_other_forms_too)
{
    static const char key[] = "sk/live+0123456789abcdef=WXYZ";
    static const char *const tells[] = {"key sk/live+0123456789abcdef=WXYZ", "?k=sk%2Flive%2B0123456789abcdef%3DWXYZ", "?k=%73%6b%2f%6c%69%76%65%2b%30",
                                        "Basic c2svbGl2ZSswMTIzNDU2Nzg5YWJjZGVmPVdYWVo=", "Basic dXNlcjpzay9saXZlKzAxMjM0NTY3ODlhYmNkZWY9V1hZWg==",
                                        "Basic OnNrL2xpdmUrMDEyMzQ1Njc4OWFiY2RlZj1XWFla", "Basic YTpzay9saXZlKzAxMjM0NTY3ODlhYmNkZWY9V1hZWg",
                                        "736B2F6C6976652B30313233", "...89abcdef=W..."};
    for (size_t i = 0; i < SG_COUNT_OF(tells); i++)
        cr_expect_eq(sg_gives_away(tells[i], key), true, "%s", tells[i]);
    static const char *const harmless[] = {"", "template 'base' not found", "%", "%2", "status 0123456", "Sandbox \"i0123abc\" doesn't exist or you don't have access to it"};
    for (size_t i = 0; i < SG_COUNT_OF(harmless); i++)
        cr_expect_eq(sg_gives_away(harmless[i], key), false, "%s", harmless[i]);
    cr_expect_eq(sg_gives_away("anything", NULL), false);
    cr_expect_eq(sg_gives_away("anything", ""), false);
    cr_expect_eq(sg_gives_away("a pin of 1234 it was", "1234"), true);
}

Test(origin, pauses_grow_by_chance_and_have_an_end)
{
    for (unsigned attempt = 0; attempt < 40; attempt++) {
        int64_t full = attempt < 5 ? INT64_C(200) << attempt : 5000;
        full = full < 5000 ? full : 5000;
        int64_t ms = sg_backoff_ms(attempt, 200, 5000);
        cr_expect_geq(ms, full / 2, "%u", attempt);
        cr_expect_leq(ms, full, "%u", attempt);
    }
}
